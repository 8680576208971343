"""Overview: which link limits latency, by how much, how sure that is, and what to try next."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import pandas as pd
import streamlit as st

from analyzers.model import Attribution, Target
from app.ui import decisions, draw, session
from app.ui.cards import cards
from app.ui.chain import chain, unmeasured
from app.ui.first import first_run
from app.ui.ledger import ledger
from app.ui.markup import Html, bold, div, join, link, tag
from app.ui.onset import sentence
from app.ui.session import View
from app.ui.verdict import MODULES, answer, engine_rows, first_measure, notes, server
from app.ui.words import LABELS, TITLES, clock, count, flagged, places_of, plural, remedies, unit

TITLE: Final = "Overview"
FEW: Final = 6  # engines up to which the fleet table shows all rows
SHOWN: Final = 3  # predicted changes
SLICES: Final = 500  # of the small chart
TRIED: Final = 3  # things to try; the link's page has all
GAP: Final = "margin-top:.9rem"
QUEUE: Final = (
    draw.Line("running", "running", draw.COLOURS["grey"]),
    draw.Line("waiting", "waiting", draw.COLOURS["queue"], area=True),
    draw.Line("deferred", "of these for KV to arrive", draw.COLOURS["transfer"], area=True, rare=True),
)


def page(view: View) -> None:
    """Draw the page."""
    judged, target = view.judged, view.target
    if judged is None:
        if view.recordings:
            draw.html(decisions.nothing(view))
        else:
            first_run()
        draw.html(unmeasured())
        return
    draw.html(answer(judged, view.pick.target, sentence(view, target) if target else None))
    if target is None:
        servers(view, judged)
        return
    draw.html(div("wl-strip", *cards(view, judged)))
    draw.html(chain(target, view.link))
    if view.fleet is not None and len(view.engines) > 1:
        fleet(view, view.fleet)
    left, right = st.columns([3, 2], gap="small")
    with left:
        with st.container(key="card-ledger"):
            draw.html(ledger(target, view.link))
        said = notes(judged, target)
        if said:
            with st.container(key="card-notes"):
                draw.html(rests(target, said))
    with right:
        with st.container(key="card-queue"):
            queue(view)
        with st.container(key="card-try"):
            place = st.container(key="predicted")
            draw.html(next_steps(target, view.link))
    with place:  # last: a replay takes longer than the rest of the page
        predicted(view, target)


def servers(view: View, judged: Attribution) -> None:
    """The servers of a chain that is not joined: each alone."""
    if len(view.engines) > 1:
        fleet(view, judged)
    for one in judged.engines:
        draw.html(server(one, view.pick.target))
        draw.html(chain(one.targets[view.pick.target], view.link))


# -- fleet --------------------------------------------------------------------------------------------------------------------
def fleet(view: View, judged: Attribution) -> None:
    """The engines; a row picked filters every page."""
    name = view.pick.target
    rows = engine_rows(judged, name, view.models)
    with st.container(key="card-fleet"):
        alone = len(view.chosen) == 1 and len(view.engines) > 1
        some = (
            f"only the {len(view.chosen)} of {view.pick.model} are shown on all pages"
            if len(view.chosen) < len(view.engines)
            else ""
        )
        said = f"only {view.chosen[0]} is shown on this page" if alone else some or "choose a row to see one alone"
        draw.html(div("wl-title", f"{len(rows)} engines · {said}"))
        largest = (view.target.measured_s if view.target else None) or 0.0
        seconds = st.column_config.NumberColumn(format=f"%.{places_of(name, largest)}f")
        picked = st.dataframe(
            pd.DataFrame(rows),
            hide_index=True,
            key=f"fleet-{name}-{view.pick.engine}",
            on_select="rerun",
            selection_mode="single-row",
            placeholder="",
            height="content" if len(rows) <= FEW else 245,
            column_config={column: seconds for column in rows[0] if column.endswith(f", {unit(name)}")},
            alt="engines with their requests, measured mean and limiting link",
        )
    chosen = picked["selection"]["rows"]
    if chosen:
        one = judged.engines[chosen[0]]
        engine = f"{one.instance}/{one.engine}"
        session.choose(engine=None if view.pick.engine == engine else engine)
        st.rerun()


# -- the right side -----------------------------------------------------------------------------------------------------------
def queue(view: View) -> None:
    """Requests waiting and running over the whole recording, with the window marked."""
    low, high = view.whole() or (view.low, view.high)
    asked = {**view.window(), "low": low, "high": high, "points": SLICES}
    columns = view.columns("timeline", **asked)
    if len(columns["ts"]) < 2:
        columns = view.columns("timeline_log", **asked)
    title = "Requests waiting and running over time"
    if not len(columns["ts"]):
        draw.html(join([div("wl-title", title), tag("p", "No time series: one scrape, or no gauges.", style="margin-top:.5rem")]))
        return
    lines = [line for line in QUEUE if draw.shown(columns[line.column], line)]
    keys = [tag("span", tag("i", style=f"background:{line.colour}"), line.name) for line in lines]
    head = div("wl-title", title, " · ", _peak(columns))
    draw.html(join([head, div("wl-keys", *keys, tag("span", "drag to set the window"))]))
    window = None if view.pick.start is None and view.pick.end is None else (view.low, view.high)
    key = f"queue-{view.pick.start}-{view.pick.end}"
    draw.brushed(draw.small(columns, lines, window), key, "requests waiting and running over time")


def _peak(columns: Mapping[str, Any]) -> str:
    """How many waited at most, and when."""
    waiting = [0.0 if math.isnan(n) else float(n) for n in columns["waiting"]]
    most = max(waiting)
    if most <= 0:
        return "nobody waited at a scrape"
    when = f", at {clock(float(columns['ts'][waiting.index(most)]))}" if draw.timed(columns) else ""
    return f"at most {count(most)} waiting{when}"


def next_steps(target: Target, address: Callable[[str], str]) -> Html:
    """What to measure first where the data do not decide, and what to try for the link that limits."""
    found: list[Html] = []
    first = first_measure(target) if target.verdict == "undetermined" else []
    if first:
        found.append(div("wl-title", "First measure what would decide it", id_="try"))
        found.append(div("wl-try", *(tag("div", line) for line in first)))
    named = target.limiting or target.runner_up or target.load
    if named:
        head = "Try next, each with what it costs next door"
        if not target.limiting:
            head = f"{TITLES[named]}: what would make it less, and what that costs next door"
        pairs = remedies(MODULES[named].__doc__)
        tried = [
            tag("div", bold(flagged(what)), ": " if cost else "", tag("span", flagged(cost))) for what, cost in pairs[:TRIED]
        ]
        if len(pairs) > TRIED:
            tried.append(tag("div", link(address(named), f"{plural(len(pairs) - TRIED, 'more way')} on its page")))
        found.append(div("wl-title", head, id_=None if first else "try", style=GAP if first else None))
        found.append(div("wl-try", *tried))
    return join(found) or div("wl-title", "Nothing to try: no link was named.")


def predicted(view: View, target: Target) -> None:
    """The changes that help the target most, with what the replay of this window predicts."""
    if target.measured_s is None or target.verdict == "healthy":
        return
    found = [one for one in decisions.predicted(view, target.name) or () if (one.effect[target.name].saves_s or 0.0) > 0][:SHOWN]
    if found:
        title = div(
            "wl-title",
            f"Predicted for {LABELS[target.name]} from this window, each alone · ",
            link(view.pick.address("hypotheses"), "all"),
        )
        draw.html(join([title, decisions.predictions(found, target.name)]))


def rests(target: Target, said: Sequence[Html]) -> Html:
    """Conditions and refusals."""
    title = f"What the verdict on {LABELS[target.name]} rests on, and what would settle more"
    return join([div("wl-title", title), tag("ul", *(tag("li", line) for line in said), look="wl-notes")])
