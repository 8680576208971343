"""Where the numbers of the store come from: files, their gaps and lag, lines that were not understood, and what a server could say."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import streamlit as st

from app import doctor
from app.ui import decisions, draw, session
from app.ui.markup import Html, div, join, row, table, tag
from app.ui.session import View
from app.ui.words import DASH, THIN, TITLES, clock, count, flagged, length, plural, size, span

MOST_FILES: Final = 200
MOST_LINES: Final = 30
MOST_SERVERS: Final = 8
LATE: Final = 3.0  # usual intervals without a scrape, from which a live source lags
MARKS: Final = {"present": "✓", "renamed": "✓", "wrong": "✕", "off": "○", "missing": DASH, "unused": "○"}
HOW: Final = {"exact": "✓", "estimate": "◐", "unknown": "?", "unused": "○"}


def sources(view: View) -> None:
    """The files, the lines that were rejected, and what each server says and could say."""
    files = view.rows("upload_source", most=MOST_FILES)
    if not files:
        return
    with st.container(key="card-sources"):
        draw.html(table_of(files, time.time()))
    lines = view.rows("upload_rejected", most=MOST_LINES)
    if lines:
        with st.container(key="card-rejected"):
            draw.html(rejected(lines, sum(one["rejected"] or 0 for one in files)))
    if view.judged is not None:
        with st.container(key="card-doctor"):
            examined(view)


def table_of(files: Sequence[Mapping[str, Any]], now: float) -> Html:
    """A row a file: what it is of, what it measured, gaps, lag."""
    lost = sum(one["gaps"] or 0 for one in files)
    failed = sum(one["failed"] or 0 for one in files)
    said = f"{plural(len(files), 'file')}{f' (the newest {MOST_FILES})' if len(files) == MOST_FILES else ''} · {plural(lost, 'gap')} between scrapes"
    said += f" · {plural(failed, 'failed scrape')}" if failed else ""
    heads = (
        ("source", ""), ("format", ""), ("server", ""), ("size", "num"), ("lines", "num"), ("rejected", "num"), ("measured, UTC", ""),
        ("every", "num"), ("gaps and lag", ""),
    )  # fmt: skip
    return join([div("wl-title", "Sources: ", said), div("wl-scroll", table(heads, [_source(one, now) for one in files]))])


def _source(one: Mapping[str, Any], now: float) -> Html:
    when = "no clock"
    if one["first_ts"] is not None and one["last_ts"] is not None:
        when = span(one["first_ts"], one["last_ts"]).removesuffix(" UTC")
    every = "" if one["every_s"] is None else f"{length(one['every_s'])}"
    cells = (
        f"{one['bundle']}/{one['name']}", one["format"] or "not recognised", one["instance"] or DASH, size(one["bytes"] or 0),
        count(one["lines"]), count(one["rejected"]) if one["rejected"] else "", when, every, gaps(one, now) or DASH,
    )  # fmt: skip
    heads = {3: "size", 4: "lines", 5: "rejected", 7: "every"}
    return row(cells, numbers=(3, 4, 5, 7), look="" if one["format"] else "quiet", heads=heads)


def gaps(one: Mapping[str, Any], now: float) -> str:
    """Where scrapes are missing, and how far a live source is behind."""
    said = []
    if one["gaps"]:
        said.append(f"{plural(one['gaps'], 'gap')}, the longest {length(one['gap_s'])} after {clock(one['gap_ts'])}")
    if one["failed"]:
        said.append(f"{plural(one['failed'], 'scrape')} failed")
    if one["bundle"] == session.LIVE and one["last_ts"] is not None:
        behind = now - one["last_ts"]
        late = one["every_s"] is not None and behind > LATE * one["every_s"]
        said.append(f"{'● nothing for' if late else 'newest'} {length(max(0.0, behind))}{'' if late else f'{THIN}ago'}")
    return "; ".join(said)


def rejected(lines: Sequence[Mapping[str, Any]], total: float) -> Html:
    """Lines that were not understood, with what was expected: never their text, which may be a user's."""
    title = div(
        "wl-title", f"{plural(total, 'line')} not understood; the first of each file, and what was expected (texts are not kept)"
    )
    heads = (("file", ""), ("format", ""), ("line", "num"), ("expected", ""))
    rows = [
        row(
            (f"{one['bundle']}/{one['name']}", one["format"] or DASH, count(one["line"]), one["reason"]),
            numbers=(2,),
            heads={2: "line"},
        )
        for one in lines
    ]
    return join([title, table(heads, rows)])


def examined(view: View) -> None:
    """What each server says, what it could say, and how each link can be judged from it."""
    reports = _reports((view.mark, view.low, view.high, view.chosen), view)
    many = f" (the first {MOST_SERVERS} of {len(reports)})" if len(reports) > MOST_SERVERS else ""
    draw.html(
        div(
            "wl-title",
            f"What the servers say, and what they could{many}. The same from a shell: ",
            tag("code", "weaklink doctor PATH"),
        )
    )
    for report in reports[:MOST_SERVERS]:
        wanted = doctor.flags(report)
        head = f"{report.instance or 'a server without a name'} · vLLM {report.version or 'version unknown'} · {plural(len(wanted), 'flag')} would add more"
        with st.expander(head, expanded=len(reports) == 1):
            draw.html(report_of(report))


def report_of(report: doctor.Report) -> Html:
    """One server: its signals, and its links."""
    heads = (("signal", ""), ("what it is", ""), ("state", ""), ("flag", ""), ("what it costs", ""))
    signals = [
        row(
            (
                join([tag("span", MARKS[one.state], look="wl-mark"), one.signal]), one.what, f"{one.state}{f': {one.says}' if one.says else ''}",
                flagged(one.flag) if one.flag else DASH, one.cost or DASH,
            ),
            look="" if one.usable else "quiet",
        )
        for one in report.signals
    ]  # fmt: skip
    links = [
        row((join([tag("span", HOW[one.how], look="wl-mark"), TITLES.get(one.link, one.link)]), one.how, ", ".join(one.lacks) or DASH))
        for one in report.links
    ]
    return join([table(heads, signals), table((("link", ""), ("judged", ""), ("better with", "")), links)])


def _reports_now(key: decisions.Key, _view: View) -> list[doctor.Report]:  # noqa: ARG001 streamlit's cache reads it
    return doctor.examine(_view.store, engines_of=decisions.engines(_view))


_reports: Callable[..., list[doctor.Report]] = st.cache_resource(max_entries=8, show_spinner=False)(_reports_now)
