"""Timeline: when did it begin, and what changed at that moment?"""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import streamlit as st

from app.ui import draw, session
from app.ui.draw import COLOURS, Line, Panel
from app.ui.session import View
from app.ui.words import DASH, clock, date, esc, length, plural, span

TITLE: Final = "Timeline"
NO_SECONDS: Final = "no request seconds: stats lines hold none, and none were scraped in this window"
PANELS: Final = (
    Panel(
        "Waiting, requests",
        (
            Line("waiting", "waiting", COLOURS["queue"], area=True),
            Line("deferred", "of these for KV to arrive", COLOURS["transfer"], area=True, rare=True),
        ),
    ),
    Panel("Running, requests", (Line("running", "running", COLOURS["decode"]),)),
    Panel("KV blocks used, %", (Line("kv_usage_ratio", "KV used, %", COLOURS["grey"]),), factor=100, top=104),
    Panel(
        "Prefix cache hits, % of prompt tokens", (Line("hit_ratio", "prefix hits, %", COLOURS["hit"]),), factor=100, top=104,
        empty="no prefix cache counters (caching may be off), or no prompts",
    ),
    Panel(
        "Prompt tokens per second",
        (
            Line("computed_per_s", "computed", COLOURS["prefill"], said="prompt tokens/s computed"),
            Line("cached_per_s", "from a cache", COLOURS["hit"], rare=True, said="prompt tokens/s from a cache"),
        ),
        empty="no token counters",
    ),
    Panel("Generated tokens per second", (Line("generation_per_s", "generated tokens/s", COLOURS["decode"]),), empty="no token counters"),
    Panel("TTFT, mean s", (Line("ttft_s", "TTFT, s", COLOURS["grey"]),), empty=NO_SECONDS),
    Panel("ITL, mean ms", (Line("itl_s", "ITL, ms", COLOURS["grey"]),), factor=1000, empty=NO_SECONDS),
)
FLEET_KV: Final = (
    Line("kv_usage_ratio", "fullest engine", COLOURS["grey"], said="KV used, fullest engine, %"),
    Line("kv_usage_least_ratio", "emptiest engine", COLOURS["light"], said="KV used, emptiest engine, %"),
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


def page(view: View) -> None:
    """Draw the page."""
    if view.judged is None:
        draw.html(
            f'<div class="wl-blank" data-empty="1"><b>{"No engine was observed in this window." if view.recordings else "Nothing has been loaded yet."}</b><br>'
            'Upload a bundle on the <a href="upload" target="_self">Data</a> page, or from a shell: <code>weaklink load PATH</code>.</div>',
        )
        return
    columns = view.columns("timeline", points=draw.POINTS, **view.window())
    source = "scrapes of /metrics"
    if len(columns["ts"]) < 2:
        log = view.columns("timeline_log", points=draw.POINTS, **view.window())
        if len(log["ts"]):
            columns, source = log, "stats lines of the log"
    _head(view, columns, source)
    if not len(columns["ts"]):
        draw.html('<div class="wl-blank"><b>No time series in this window.</b><br>One scrape shows a state, not its course: two or more are needed, or the log with its stats lines.</div>')
        return
    happened = view.rows("timeline_mark", low=view.low, high=view.high, instances=list(view.instances))
    with st.container(key="card-timeline"):
        figure = draw.panels(columns, _panels(view), marks(happened, columns))
        draw.brushed(figure, f"timeline-{view.pick.start}-{view.pick.end}-{view.pick.engine}", "queue, KV use, hits, token rates and latencies over time")
    if happened:
        with st.container(key="card-marks"):
            draw.html(events(happened))


def _panels(view: View) -> list[Panel]:
    """The panels; with several engines the KV panel shows the fullest and the emptiest."""
    if len(view.chosen) < 2:
        return list(PANELS)
    return [replace(panel, lines=FLEET_KV) if panel.title.startswith("KV") else panel for panel in PANELS]


def _head(view: View, columns: dict[str, Any], source: str) -> None:
    """What is shown, and the way back to the whole recording."""
    ts = columns["ts"]
    if not len(ts):
        shown = "nothing"
    elif draw.timed(columns):
        shown = f"{date(float(ts[0]))}, {span(float(ts[0]), float(ts[-1]))} · {length(float(ts[-1] - ts[0]))}"
    else:
        shown = f"{plural(len(ts), 'reading')} without a clock, in their order"
    engines = plural(len(view.chosen), "engine") + (" together" if len(view.chosen) > 1 else "")
    with st.container(key="timeline-head", horizontal=True, vertical_alignment="center"):
        draw.html(f'<div class="wl-answer"><p><b>{esc(shown)}</b> · {engines} · from {source}. Drag over a chart to set the window of all pages.</p></div>')
        if view.pick.start is not None or view.pick.end is not None:
            st.button("Whole recording", key="timeline-reset", on_click=session.choose, kwargs={"start": None, "end": None})


def marks(happened: Sequence[dict[str, Any]], columns: dict[str, Any]) -> list[tuple[float, str]]:
    """Marks inside the drawn span, the words of near ones joined; a restart that the log tells too is drawn once."""
    ts = np.asarray(columns["ts"], dtype=float)
    inside = [row for row in happened if len(ts) and ts[0] <= row["ts"] <= ts[-1]]
    ready = [row["ts"] for row in inside if row["kind"] == "listening"]
    inside = [row for row in inside if not (row["kind"] == "restart" and any(0 <= row["ts"] - at < 60 for at in ready))]
    near = 0.07 * float(ts[-1] - ts[0]) if len(ts) else 0.0
    found: list[tuple[float, str]] = []
    worded = -np.inf
    for row in inside[:MOST_MARKS]:
        word = KINDS.get(row["kind"], row["kind"]) if row["ts"] - worded >= near else ""
        worded = row["ts"] if word else worded
        found.append((row["ts"], word))
    return found


def events(happened: Sequence[dict[str, Any]]) -> str:
    """What happened, as a table with the place in the log."""
    rows = "".join(_event(row) for row in happened[:MOST_MARKS])
    more = f" (the first {MOST_MARKS} of {len(happened)})" if len(happened) > MOST_MARKS else ""
    return (
        f'<div class="wl-title">What happened{more}</div><table class="wl-table"><thead><tr><th>UTC</th><th>event</th><th>what it says</th><th>where</th></tr></thead>'
        f"<tbody>{rows}</tbody></table>"
    )


def _event(row: dict[str, Any]) -> str:
    where = f"{row['file']}:{row['line']:.0f}" if row["file"] else "seen by scrapes"
    return (
        f'<tr><td class="num" style="text-align:left">{clock(row["ts"], day=True)}</td><td>{esc(KINDS.get(row["kind"], row["kind"]))}</td>'
        f'<td>{esc(_fields(row["fields"]))}</td><td>{esc(where)}</td></tr>'
    )


def _fields(text: str | None) -> str:
    """An event's fields in words."""
    found = json.loads(text) if text else {}
    return " · ".join(f"{name} {value}" for name, value in found.items()) if found else DASH
