"""Timeline: when it began, and what changed at that moment."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import streamlit as st

from app.ui import decisions, draw, over_time, session
from app.ui.draw import COLOURS, Line, Panel
from app.ui.marks import KINDS, MOST_MARKS, happened, marks
from app.ui.markup import Html, bold, div, join, row, table, tag
from app.ui.session import View
from app.ui.words import DASH, clock, date, length, plural, span, zone

TITLE: Final = "Timeline"
NO_SECONDS: Final = "no request seconds in this window"
PANELS: Final = (
    Panel(
        "Waiting, requests",
        (
            Line("waiting", "waiting", COLOURS["queue"], area=True),
            Line("deferred", "of these for KV to arrive", COLOURS["transfer"], area=True, rare=True),
        ),
    ),
    Panel("Running, requests", (Line("running", "running", COLOURS["decode"]),)),
    Panel("KV blocks used, %", (Line("kv_usage_ratio", "KV used", COLOURS["grey"]),), unit=" %", factor=100, top=104),
    Panel(
        "Prefix cache hits, % of prompt tokens",
        (Line("hit_ratio", "prefix hits", COLOURS["hit"]),),
        unit=" %",
        factor=100,
        top=104,
        empty="no prefix cache counters, or no prompts",
    ),
    Panel(
        "Prompt tokens per second",
        (
            Line("computed_per_s", "computed", COLOURS["prefill"], said="prompt computed"),
            Line("cached_per_s", "from a cache", COLOURS["hit"], rare=True, said="prompt from a cache"),
        ),
        unit=" tok/s",
        empty="no token counters",
    ),
    Panel(
        "Generated tokens per second",
        (Line("generation_per_s", "generated", COLOURS["decode"]),),
        unit=" tok/s",
        empty="no token counters",
    ),
    Panel(
        "Step, mean ms",
        (Line("step_s", "step", COLOURS["grey"]),),
        unit=" ms",
        factor=1000,
        empty="steps are not counted by this version, or the engine was never busy",
    ),
    Panel("TTFT, s", (Line("ttft_s", "mean", COLOURS["ink"], said="TTFT mean"),), unit=" s", empty=NO_SECONDS),
    Panel("ITL, ms", (Line("itl_s", "mean", COLOURS["ink"], said="ITL mean"),), unit=" ms", factor=1000, empty=NO_SECONDS),
)
FLEET_KV: Final = (
    Line("kv_usage_ratio", "fullest engine", COLOURS["grey"], said="KV used, fullest engine"),
    Line("kv_usage_least_ratio", "emptiest engine", COLOURS["light"], said="KV used, emptiest engine"),
)


def page(view: View) -> None:
    """Draw the page."""
    if view.judged is None:
        draw.html(decisions.nothing(view))
        return
    columns = view.columns("timeline", points=draw.POINTS, **view.window())
    source = "scrapes of /metrics"
    if len(columns["ts"]) < 2:
        log = view.columns("timeline_log", points=draw.POINTS, **view.window())
        if len(log["ts"]):
            columns, source = log, "stats lines of the log"
    _head(view, columns, source)
    if not len(columns["ts"]):
        why = "One scrape shows a state, not its course: two or more are needed, or the log with its stats lines."
        draw.html(div("wl-blank", bold("No time series in this window."), tag("br"), why))
        return
    found = happened(view)
    with st.container(key="card-timeline"):
        layers, stacks = over_time.stacks(view)
        quantiles, bands = over_time.quantiles(view)
        together = {**columns, **layers, **quantiles}
        figure = draw.panels(together, [*stacks, *_panels(view, bands)], marks(found, columns))
        over_time.shaded(figure, view, columns)
        key = f"timeline-{view.pick.target}-{view.pick.start}-{view.pick.end}-{view.pick.engine}-{view.pick.base_start}"
        draw.brushed(figure, key, "attribution, queue, KV use, hits, token rates and latencies over time")
    if view.baseline is not None and view.judged is not None:
        with st.container(key="card-baseline"):
            draw.html(over_time.against(view, view.judged, view.baseline))
    if found:
        with st.container(key="card-marks"):
            draw.html(events(found))


def _panels(view: View, bands: Mapping[str, tuple[Line, ...]]) -> list[Panel]:
    """The panels; with several engines the KV panel shows the fullest and the emptiest. `bands` go behind the lines of a panel."""
    fleet = len(view.chosen) > 1
    found = [replace(panel, lines=FLEET_KV) if fleet and panel.title.startswith("KV") else panel for panel in PANELS]
    return [replace(panel, lines=(*bands.get(panel.title, ()), *panel.lines)) for panel in found]


def _head(view: View, columns: Mapping[str, Any], source: str) -> None:
    """What is shown, and the way back to the whole recording."""
    ts = columns["ts"]
    if not len(ts):
        shown = "nothing"
    elif draw.timed(columns):
        shown = f"{date(float(ts[0]))}, {span(float(ts[0]), float(ts[-1]))} · {length(float(ts[-1] - ts[0]))}"
    else:
        shown = f"{plural(len(ts), 'reading')} without a clock, in their order"
    engines = plural(len(view.chosen), "engine") + (" together" if len(view.chosen) > 1 else "")
    rest = f" · {engines} · from {source}. Drag over a chart to set the window of all pages."
    with st.container(key="timeline-head", horizontal=True, vertical_alignment="center"):
        draw.html(div("wl-answer", tag("p", bold(shown), rest)))
        if view.pick.start is not None or view.pick.end is not None:
            whole = {"start": None, "end": None}
            st.button("Whole recording", key="timeline-reset", on_click=session.choose, kwargs=whole)
        if draw.timed(columns):
            _baseline(view, float(ts[0]), float(ts[-1]))


def _baseline(view: View, low: float, high: float) -> None:
    """What to compare with: this window kept, or the time before it."""
    if view.pick.base_start is not None and view.pick.base_end is not None:
        none = {"base_start": None, "base_end": None}
        words = f"Baseline {span(view.pick.base_start, view.pick.base_end)}: remove"
        st.button(words, key="base-none", on_click=session.choose, kwargs=none)
        return
    whole = view.whole()
    if whole and view.pick.start is not None and view.pick.start - whole[0] > 1:
        before = {"base_start": max(whole[0], view.pick.start - (high - low)), "base_end": view.pick.start}
        st.button("Compare with the time before", key="base-before", on_click=session.choose, kwargs=before)
    st.button("Keep as baseline", key="base-this", on_click=session.choose, kwargs={"base_start": low, "base_end": high})


def events(happened: Sequence[Mapping[str, Any]]) -> Html:
    """What happened, as a table with the place in the log."""
    more = f" (the first {MOST_MARKS} of {len(happened)})" if len(happened) > MOST_MARKS else ""
    heads = ((zone(), ""), ("event", ""), ("what it says", ""), ("where", ""))
    return join([div("wl-title", f"What happened{more}"), table(heads, [_event(one) for one in happened[:MOST_MARKS]])])


def _event(one: Mapping[str, Any]) -> Html:
    where = f"{one['file']}:{one['line']:.0f}" if one["file"] else "seen by scrapes"
    return row((clock(one["ts"], day=True), KINDS.get(one["kind"], one["kind"]), _fields(one["fields"]), where))


def _fields(text: str | None) -> str:
    """An event's fields in words."""
    found = json.loads(text) if text else {}
    return " · ".join(f"{name} {value}" for name, value in found.items()) if found else DASH
