"""Timeline: when it began, and what changed at that moment."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import streamlit as st

from app.ui import draw, session
from app.ui.draw import COLOURS, Line, Panel
from app.ui.markup import Html, bold, div, join, link, row, table, tag
from app.ui.session import View
from app.ui.words import DASH, clock, date, length, plural, span

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
    Panel("TTFT, mean s", (Line("ttft_s", "TTFT", COLOURS["grey"]),), unit=" s", empty=NO_SECONDS),
    Panel("ITL, mean ms", (Line("itl_s", "ITL", COLOURS["grey"]),), unit=" ms", factor=1000, empty=NO_SECONDS),
)
FLEET_KV: Final = (
    Line("kv_usage_ratio", "fullest engine", COLOURS["grey"], said="KV used, fullest engine"),
    Line("kv_usage_least_ratio", "emptiest engine", COLOURS["light"], said="KV used, emptiest engine"),
)
KINDS: Final = {
    "restart": "restart",
    "start": "server starts",
    "listening": "ready",
    "jit": "late compilation",
    "rearrange": "expert rearrangement",
    "failed": "failure",
    "death": "engine death",
    "prefix_reset": "prefix cache reset",
    "preempted_v0": "preemption",
    "aborted": "aborted requests",
}
MOST_MARKS: Final = 40
RESTART_S: Final = 60.0  # a first scrape this long after a log's "ready" shows the same restart


def page(view: View) -> None:
    """Draw the page."""
    if view.judged is None:
        head = "No engine was observed in this window." if view.recordings else "Nothing has been loaded yet."
        said = [link("upload", "Upload a bundle"), ", or from a shell: ", tag("code", "weaklink load PATH"), "."]
        draw.html(div("wl-answer", tag("h1", head), tag("p", *said), data_verdict="empty"))
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
    happened = view.rows("timeline_mark", low=view.low, high=view.high, instances=list(view.instances))
    with st.container(key="card-timeline"):
        figure = draw.panels(columns, _panels(view), marks(happened, columns))
        key = f"timeline-{view.pick.start}-{view.pick.end}-{view.pick.engine}"
        draw.brushed(figure, key, "queue, KV use, hits, token rates and latencies over time")
    if happened:
        with st.container(key="card-marks"):
            draw.html(events(happened))


def _panels(view: View) -> list[Panel]:
    """The panels; with several engines the KV panel shows the fullest and the emptiest."""
    if len(view.chosen) < 2:
        return list(PANELS)
    return [replace(panel, lines=FLEET_KV) if panel.title.startswith("KV") else panel for panel in PANELS]


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


def marks(happened: Sequence[Mapping[str, Any]], columns: Mapping[str, Any]) -> list[tuple[float, str]]:
    """Marks inside the drawn span, the words of near ones joined; a restart that the log tells too is drawn once."""
    ts = np.asarray(columns["ts"], dtype=float)
    inside = [one for one in happened if len(ts) and ts[0] <= one["ts"] <= ts[-1]]
    ready = [one["ts"] for one in inside if one["kind"] == "listening"]
    told = [one for one in inside if one["kind"] == "restart" and any(0 <= one["ts"] - at < RESTART_S for at in ready)]
    near = 0.07 * float(ts[-1] - ts[0]) if len(ts) else 0.0
    found: list[tuple[float, str]] = []
    worded = -np.inf
    for one in [one for one in inside if one not in told][:MOST_MARKS]:
        word = KINDS.get(one["kind"], one["kind"]) if one["ts"] - worded >= near else ""
        worded = one["ts"] if word else worded
        found.append((one["ts"], word))
    return found


def events(happened: Sequence[Mapping[str, Any]]) -> Html:
    """What happened, as a table with the place in the log."""
    more = f" (the first {MOST_MARKS} of {len(happened)})" if len(happened) > MOST_MARKS else ""
    heads = (("UTC", ""), ("event", ""), ("what it says", ""), ("where", ""))
    return join([div("wl-title", f"What happened{more}"), table(heads, [_event(one) for one in happened[:MOST_MARKS]])])


def _event(one: Mapping[str, Any]) -> Html:
    where = f"{one['file']}:{one['line']:.0f}" if one["file"] else "seen by scrapes"
    return row((clock(one["ts"], day=True), KINDS.get(one["kind"], one["kind"]), _fields(one["fields"]), where))


def _fields(text: str | None) -> str:
    """An event's fields in words."""
    found = json.loads(text) if text else {}
    return " · ".join(f"{name} {value}" for name, value in found.items()) if found else DASH
