"""Hypotheses: what to change, what that is predicted to do, what it costs next door, and how to test it."""

from collections.abc import Sequence
from typing import Any, Final

import streamlit as st

from analyzers.case import Case
from analyzers.hypotheses import module_of
from analyzers.model import TARGETS, Hypothesis
from app.experiments import table as experiments
from app.experiments import words
from app.experiments.plan import script
from app.ui import decisions, draw
from app.ui.markup import Html, bold, div, join, tag
from app.ui.session import View
from app.ui.words import LABELS, count, flagged, plural, titled, value

TITLE: Final = "Hypotheses"
EFFORT: Final = ("a setting", "changes what clients get", "more GPUs or servers")
PREDICTED: Final = {"nothing": "what cannot be predicted has to be measured"}
OPEN: Final = 3  # cards whose details stand open


def page(view: View) -> None:
    """Draw the page."""
    if view.judged is None:
        draw.html(decisions.nothing(view))
        return
    case = decisions.case(view)
    above = st.empty()
    objective = _objective(view)
    found = decisions.recommended(view, objective)
    with above.container():
        draw.html(head(case, found, objective))
    for at, one in enumerate(found):
        with st.container(key=f"card-hypothesis-{one.name}"):
            draw.html(card(case, one, at + 1, objective))
            _buttons(view, case, one)


def _objective(view: View) -> str:
    """The objective: a target as picked for all pages, or one of this page's own."""
    chosen = st.segmented_control(
        "Objective",
        list(decisions.OBJECTIVES),
        default=view.pick.target,
        key=f"objective-{view.pick.target}",
        format_func=decisions.OBJECTIVES.__getitem__,
        label_visibility="collapsed",
        required=True,
    )
    return str(chosen)


def head(case: Case, found: Sequence[Hypothesis], objective: str) -> Html:
    """What to try first, or why nothing is recommended."""
    name = decisions.OBJECTIVES[objective]
    if not found:
        said = words.nothing(case, objective)
        return div("wl-answer", tag("h1", f"Nothing to change for {name}."), tag("p", titled(said)), data_hypotheses="0")
    first = found[0]
    others = f" {plural(len(found) - 1, 'other change')} below." if len(found) > 1 else ""
    gain = _gain(case, first, objective)
    text = f"{_limits(case)} Predictions are made from this window alone; each change is tested by itself.{others}"
    return div(
        "wl-answer",
        tag("h1", f"For {name}, first try: {arrow(first.change)}{gain}."),
        tag("p", titled(text)),
        data_hypotheses=str(len(found)),
    )


def _limits(case: Case) -> str:
    """What limits the fleet; what only single engines say is no verdict on all of them."""
    fleet = {target.limiting for target in case.attribution.targets.values() if target and target.limiting}
    said = {"Limiting": case.limiting() & fleet, "Limiting on single engines, not told of all": case.limiting() - fleet}
    return " ".join(f"{what}: {', '.join(sorted(titled(link) for link in links))}." for what, links in said.items() if links)


def arrow(change: str) -> str:
    """A change as a page writes it."""
    return change.replace("->", "→")


def _gain(case: Case, found: Hypothesis, objective: str) -> str:
    """What the first change is predicted to do to the objective."""
    if objective not in TARGETS:
        gain = words.gains(case, found)[objective]
        return f", {count(gain.now)} to {count(gain.then)} {gain.unit}" if gain.now and gain.then else ""
    effect, measured = found.effect[objective], case.measured(objective)
    if effect.saves_s is None or measured is None:
        return ""
    return f", {value(objective, measured)} to about {value(objective, max(0.0, measured - effect.saves_s))}"


def card(case: Case, found: Hypothesis, at: int, objective: str) -> Html:
    """One hypothesis: change and flags, prediction, cost, conditions, test."""
    flags = [tag("code", flag) for flag in found.flags]
    effort = EFFORT[module_of(found.name).EFFORT]
    left = div(
        "wl-hypothesis-what",
        tag("h2", tag("span", f"{at}", look="wl-rank"), arrow(found.change)),
        tag("p", *([join(flags, " ")] if flags else ["not a flag of the server"]), tag("span", f" · {effort}", look="wl-soft")),
        tag("p", flagged(titled(found.claim))),
    )
    costs = [tag("li", flagged(titled(cost))) for cost in found.costs]
    right = div("wl-hypothesis-cost", div("wl-title", "Costs next door"), tag("ul", *costs, look="wl-notes"))
    more: list[Any] = [
        tag("p", bold("Not to be confused with "), titled(found.confused_with), "."),
        tag("ul", *(tag("li", flagged(titled(text))) for text in found.conditions), look="wl-notes"),
        tag("p", bold("Test: "), titled(found.test), "."),
    ]
    details = tag(
        "details", tag("summary", "Conditions, what it is confused with, how to test it"), *more, open="" if at <= OPEN else None
    )
    return join([div("wl-hypothesis", left, effects(case, found, objective), right), details])


def effects(case: Case, found: Hypothesis, objective: str) -> Html:
    """The prediction: each target, and the objective where it is another."""
    rows = []
    for name in TARGETS:
        big, span = decisions.saved(name, found.effect[name].saves_s, found.effect[name].range_s)
        look = "wl-effect chosen" if name == objective else "wl-effect"
        rows.append(div(look, tag("span", LABELS[name]), bold(big), tag("span", span, look="wl-soft")))
    for name, gain in words.gains(case, found).items():
        if gain.now and gain.then and (name == objective or abs(gain.then / gain.now - 1) > 0.05):
            look = "wl-effect chosen" if name == objective else "wl-effect"
            rows.append(
                div(
                    look,
                    tag("span", decisions.OBJECTIVES[name]),
                    bold(f"{count(gain.now)} → {count(gain.then)}"),
                    tag("span", gain.unit, look="wl-soft"),
                )
            )
    by = PREDICTED.get(found.predicted_by, f"predicted by {found.predicted_by}")
    return div("wl-hypothesis-effect", *rows, div("wl-title", by))


def _buttons(view: View, case: Case, found: Hypothesis) -> None:
    """Keep it as an experiment, or take its test as a script."""
    with st.container(horizontal=True, gap="small", key=f"do-{found.name}"):
        if st.button("Keep as an experiment", key=f"keep-{found.name}"):
            number = experiments.start(
                view.store, words.hypothesis(found, case), decisions.recording_of(view) or "this window", None
            )
            st.toast(f"Experiment {number} is kept: see the Experiments page.")
        st.download_button(
            "Test as a shell script",
            script(case, found),
            file_name=f"{found.name}.sh",
            mime="text/x-shellscript",
            key=f"plan-{found.name}",
            on_click="ignore",
        )
