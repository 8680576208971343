"""Link: one link of the chain, from what it is to the samples and log lines behind its number."""

from collections.abc import Sequence
from typing import Final

import streamlit as st

from analyzers.links import CHAIN, SECTIONS, sections
from analyzers.model import TARGETS, Attribution, Hypothesis, Part, Stage, Target
from app.ui import decisions, draw, raw
from app.ui.chain import mark
from app.ui.evidence import MOST_ENGINES, evidence, keys, panels
from app.ui.markup import Html, bold, div, esc, join, link, row, table, tag
from app.ui.session import View
from app.ui.verdict import MODULES, together
from app.ui.words import (
    DASH,
    LABELS,
    TITLES,
    count,
    fixed,
    flagged,
    percent,
    places_of,
    spread,
    titled,
    unit,
    value,
)

TITLE: Final = "Link"
MOST_PREDICTED: Final = 4


def page(view: View) -> None:
    """Draw the page."""
    if view.judged is None:
        draw.html(decisions.nothing(view))
        return
    target = view.target or _alone(view.judged, view.pick.target)
    limiting = target.limiting if target else None
    name = view.pick.link if view.pick.link and view.pick.link in MODULES else limiting or str(CHAIN[0].LINK.name)
    draw.html(chips(view, target, name))
    part = target.part(name) if target and target.parts else None
    draw.html(head(target, part, name))
    left, right = st.columns([3, 2], gap="small")
    with left:
        _evidence(view, name)
        if target and part:
            with st.container(key="card-cells"):
                draw.html(cells(view.judged, target, part))
    with right:
        with st.container(key="card-says"):
            draw.html(said(part, target))
        with st.container(key="card-doc"):
            draw.html(documentation(name))
    raw.draw_raw(view, name)
    with right, st.container(key="card-predicted"):
        draw.html(predicted(decisions.predicted(view, view.pick.target), name, view.pick.target))


def _alone(judged: Attribution, name: str) -> Target | None:
    """The target of the engine with most of it, where a chain of servers is not joined."""
    found = [one.targets[name] for one in judged.engines if name in one.targets]
    return max(found, key=lambda one: one.measured_s or 0.0, default=None)


# -- head -----------------------------------------------------------------------------------------------------------------------
def chips(view: View, target: Target | None, name: str) -> Html:
    """All links in chain order, each leading to its page."""
    found = []
    for module in CHAIN:
        one = module.LINK.name
        part = target.part(one) if target and target.parts else None
        look = "wl-chip here" if one == name else "wl-chip"
        look += " limiting" if part and part.status == "limiting" else ""
        seconds = value(target.name, part.seconds) if target and part and part.seconds is not None and part.used else ""
        found.append(
            tag("a", bold(TITLES[one]), tag("span", seconds or ("not used" if part and not part.used else "unknown")), look=look,
                href=view.pick.address("link", link=one), target="_self", aria_current="page" if one == name else None)
        )  # fmt: skip
    back = link(view.pick.address(""), "Overview")
    return join(
        [
            div("wl-title", back, " / the links in chain order"),
            tag("nav", *found, look="wl-chips", aria_label="links of the chain"),
        ]
    )


def head(target: Target | None, part: Part | None, name: str) -> Html:
    """What this link holds, in a sentence, and in a paragraph what that rests on."""
    title = TITLES[name]
    doc = sections(MODULES[name])
    what = " ".join(doc.get("What it is", "").split())
    if target is None or part is None:
        return div(
            "wl-answer", tag("h1", f"{title}: nothing was measured in this window."), tag("p", flagged(what)), data_link=name
        )
    shown = tag("em", title) if part.status == "limiting" else title
    facts = []
    if part.range_s:
        facts.append(f"Range {spread(target.name, *part.range_s)}.")
    if part.saves_s is not None:
        facts.append(f"Fixing it first would save {value(target.name, part.saves_s)}{_per(target.name)}.")
    if part.last_s is not None:
        facts.append(f"Fixing it last, after all others, {value(target.name, part.last_s)}.")
    if part.pressure is not None:
        facts.append(f"Pressure {percent(part.pressure)} of its own limit{f' ({part.fact})' if part.fact else ''}.")
    elif part.fact:
        facts.append(f"{part.fact[:1].upper()}{part.fact[1:]}.")
    return div(
        "wl-answer", tag("h1", shown, _measured(target, part)), tag("p", " ".join([*facts, *_state(target, part)])), tag("p", flagged(what)),
        data_link=name, data_status=part.status,
    )  # fmt: skip


def _per(name: str) -> str:
    return " a token" if name == "tpot" else ""


def _verb(title: str) -> str:
    """The verb after a title: Slots hold, Prefix miss holds."""
    return "hold" if title.endswith("s") and not title.endswith("ss") else "holds"


def _measured(target: Target, part: Part) -> str:
    label = LABELS[target.name]
    if not part.used and not part.seconds:
        return f" is not used here: {part.fact or 'the configuration rules it out'}."
    if part.seconds is None:
        bound = f", at most {value(target.name, part.bound_s)} of it" if part.bound_s else ""
        return f": how much of {label} it holds cannot be told{bound}."
    if target.measured_s is None:
        return f": no request seconds of {label} were measured."
    share = f" ({percent(part.seconds / target.measured_s)})" if target.measured_s else ""
    return f" {_verb(TITLES[part.link])} {value(target.name, part.seconds)} of the mean {label} of {value(target.name, target.measured_s)}{_per(target.name)}{share}."


def _state(target: Target, part: Part) -> list[str]:
    """Whether it limits, and if not, in which sense it is there."""
    if part.status == "limiting":
        return [f"It limits {LABELS[target.name]}."]
    if part.seconds and not part.fault_s:
        return ["It is load, not a fault by itself."]
    return (
        [f"It does not limit {LABELS[target.name]}: {mark(target, part).strip('●◐○? ') or 'not used'}."] if part.seconds else []
    )


# -- cells ------------------------------------------------------------------------------------------------------------------------
def cells(judged: Attribution, target: Target, part: Part) -> Html:
    """The link's cells in the chosen target, its part of every target, and of every engine."""
    places = places_of(target.name, target.measured_s or 0.0)
    heads = (("stage", ""), (f"measured, {unit(target.name)}", "num"), ("of it this link", "num"), ("share", ""))
    rows = [_cell(target, part, stage, places) for stage in TARGETS[target.name]]
    per_token = " of one output token" if target.name == "tpot" else " of one request"
    found = [div("wl-title", f"Its cells: seconds{per_token} by stage, {LABELS[target.name]}"), table(heads, rows)]
    found += [div("wl-title", "Its part of each target", style="margin-top:.9rem"), _targets(judged, part.link)]
    if len(judged.engines) > 1:
        found += [div("wl-title", "On each engine", style="margin-top:.9rem"), _engines(judged, target.name, part.link)]
    return join(found)


def _cell(target: Target, part: Part, stage: Stage, places: int) -> Html:
    measured, mine = target.stages.get(stage), part.cells.get(stage)
    shown = "unknown" if part.seconds is None else fixed(target.name, mine or 0.0, places)
    share = percent(mine / measured) if mine and measured else ""
    look = "" if mine else "quiet"
    return row((tag("span", tag("i", look=f"wl-dot {stage.value}"), stage.value), fixed(target.name, measured, places), shown, share), numbers=(1, 2), look=look, heads={1: "measured", 2: "this link"})  # fmt: skip


def _targets(judged: Attribution, name: str) -> Html:
    heads = (("target", ""), ("measured", "num"), ("part", "num"), ("range", "num"), ("saves if fixed first", "num"), ("state", ""))
    rows = []
    for target in judged.targets.values():
        if target is None or not target.parts:
            continue
        one = target.part(name)
        span = spread(target.name, *one.range_s) if one.range_s else DASH
        saves = DASH if one.saves_s is None else value(target.name, one.saves_s)
        shown = "not used" if not one.used and not one.seconds else value(target.name, one.seconds)
        measured = value(target.name, target.measured_s) + _per(target.name)
        rows.append(row((LABELS[target.name], measured, shown, span, saves, mark(target, one)), numbers=(1, 2, 3, 4), look=one.status, heads={1: "measured", 2: "part", 3: "range", 4: "saves"}))  # fmt: skip
    return table(heads, rows)


def _engines(judged: Attribution, name: str, named: str) -> Html:
    heads = (("engine", ""), ("requests", "num"), ("part", "num"), ("fact", ""), ("state", ""))
    found = [(one, one.targets[name]) for one in judged.engines]
    found.sort(key=lambda pair: -((pair[1].part(named).seconds or 0.0) if pair[1].parts else 0.0))
    rows = []
    for one, target in found[:16]:
        if target.parts:
            part = target.part(named)
            rows.append(row((f"{one.instance}/{one.engine}", count(one.requests), value(name, part.seconds), part.fact, mark(target, part)), numbers=(1, 2), look=part.status, heads={1: "requests", 2: "part"}))  # fmt: skip
    more = tag("p", f"{len(found) - 16} more engines hold less.", look="wl-soft") if len(found) > 16 else None
    return join([table(heads, rows), more])


# -- words ------------------------------------------------------------------------------------------------------------------------
def said(part: Part | None, target: Target | None) -> Html:
    """Evidence and conditions: a claim carries what it rests on."""
    evident = list(part.evidence) if part else []
    conditions = [*(part.conditions if part else ())]
    named = f"{part.link}:" if part else ""
    settle = [one for one in (target.cannot_determine if target else ()) if part and one.what.startswith(named)]
    none = tag("p", "No sign of it in this window.", look="wl-soft")
    found: list[Html] = [
        div("wl-title", "What shows it"),
        tag("ul", *(tag("li", line) for line in together(esc(titled(line)) for line in evident)), look="wl-notes") if evident else none,
    ]
    if conditions or settle:
        lines = [
            *(flagged(titled(line)) for line in conditions),
            *(join(["To settle it: ", flagged(one.measure)]) for one in settle),
        ]
        found += [div("wl-title", "What that rests on, and what would settle more", style="margin-top:.7rem")]
        found += [tag("ul", *(tag("li", line) for line in together(lines)), look="wl-notes")]
    return join(found)


def documentation(name: str) -> Html:
    """The sections of the link's documentation after the first, which the head says."""
    doc = sections(MODULES[name])
    found: list[Html] = []
    for section in SECTIONS[1:]:
        body = doc.get(section, "")
        lines = [line.strip() for line in body.splitlines() if line.strip()]
        said = [tag("p", flagged(" ".join(lines)))]
        if section == "What to try":
            pairs = [(what, cost) for what, _, cost in (line.partition(": ") for line in lines)]
            said = [
                div(
                    "wl-try",
                    *(tag("div", bold(flagged(what)), ": " if cost else "", tag("span", flagged(cost))) for what, cost in pairs),
                )
            ]
        found += [tag("h2", section), *said]
    return div("wl-doc", *found)


def predicted(found: Sequence[Hypothesis] | None, name: str, target: str) -> Html:
    """Changes whose effect on the target is predicted from this window, those that take this link away first."""
    title = div(
        "wl-title", f"Predicted from this window, for {LABELS[target]} (all changes: ", link("hypotheses", "Hypotheses"), ")"
    )
    if found is None:
        return join([title, tag("p", "Too much was recorded to replay it here in a moment: see Hypotheses.", look="wl-soft")])
    mine = [one for one in found if one.undoes == name]
    shown = [*mine, *(one for one in found if one not in mine and (one.effect[target].saves_s or 0.0) > 0)][:MOST_PREDICTED]
    if not shown:
        return join([title, tag("p", "No change is predicted to help.", look="wl-soft")])
    return join([title, decisions.predictions(shown, target)])


# -- evidence and what is behind it -------------------------------------------------------------------------------------------------
def _largest(view: View, name: str) -> list[str]:
    """The engines on which the link holds most, as many as one chart can show."""
    held = {f"{one.instance}/{one.engine}": one.targets[view.pick.target] for one in (view.judged.engines if view.judged else ())}
    seconds = {engine: target.part(name).seconds or 0.0 for engine, target in held.items() if target.parts}
    return sorted(view.chosen, key=lambda one: -seconds.get(one, 0.0))[:MOST_ENGINES]


def _evidence(view: View, name: str) -> None:
    """The link's evidence over time, a panel a column."""
    found = evidence(name)
    chosen = _largest(view, name)
    pairs = [(one, *one.rpartition("/")[::2]) for one in chosen]
    read = [(one, view.evidence(name, instance if instance != "None" else None, engine)) for one, instance, engine in pairs]
    columns, drawn = panels(found, read)
    with st.container(key="card-evidence"):
        more = (
            f" · the {MOST_ENGINES} of {len(view.chosen)} engines that hold most of it" if len(view.chosen) > MOST_ENGINES else ""
        )
        draw.html(join([div("wl-title", f"Evidence over time{more} · drag to set the window"), keys(chosen)]))
        if not len(columns["ts"]):
            kinds = ", ".join(found.kinds)
            draw.html(
                tag(
                    "p",
                    f"Nothing over time in this window: it needs scrapes of /metrics, or log lines ({kinds}).",
                    look="wl-soft",
                )
            )
            return
        draw.brushed(draw.panels(columns, drawn, []), f"evidence-{name}-{view.pick.start}-{view.pick.end}-{view.pick.engine}", f"evidence of {TITLES[name]} over time")  # fmt: skip
