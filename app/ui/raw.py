"""What a link's number is computed from: series and samples as vLLM exposes them, and log lines, each with file and line."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pandas as pd
import streamlit as st

from app.ui import draw
from app.ui.evidence import evidence
from app.ui.markup import Html, bold, div, join, row, table, tag
from app.ui.session import View
from app.ui.words import DASH, clock, count, exact, plural, zone

SAMPLES: Final = 1000  # raw samples shown at most
LINES: Final = 20  # log lines of each kind
SHOWN_LINES: Final = 8  # of a kind before the rest is folded
SHOWN_SERIES: Final = 12  # before the rest is folded


def draw_raw(view: View, name: str) -> None:
    """The series, samples and log lines that the number is computed from, each with the place where it stands."""
    found = evidence(name)
    asked = {**view.window(), "quantities": list(found.words)}
    series = view.rows("link_series", **asked)
    lines = view.rows("link_line", **view.window(), kinds=list(found.kinds), most=LINES)
    with st.container(key="card-raw"):
        draw.html(_series(series))
        if series:
            with st.expander(f"Every sample (the newest {SAMPLES:,})"):
                _samples(view.rows("link_sample", **asked, most=SAMPLES))
    with st.container(key="card-lines"):
        draw.html(_lines(lines, found.kinds))


def _series(series: Sequence[Mapping[str, Any]]) -> Html:
    title = div("wl-title", "Raw samples behind it: series as vLLM exposes them, with file and line")
    if not series:
        return join([title, tag("p", "No series of this link was scraped in this window.", look="wl-soft")])
    heads = (
        ("series", ""),
        ("samples", "num"),
        ("first", "num"),
        ("largest", "num"),
        ("last", "num"),
        ("where the largest stands", ""),
    )
    rows = [_one(one) for one in series]
    folded = rows[SHOWN_SERIES:]
    more = tag("details", tag("summary", f"{len(folded)} more series"), table(heads, folded)) if folded else None
    return join([title, table(heads, rows[:SHOWN_SERIES]), more])


def _one(one: Mapping[str, Any]) -> Html:
    labels = (
        {"engine": one["engine"], **json.loads(one["labels"] or "{}")} if one["engine"] else json.loads(one["labels"] or "{}")
    )
    text = ", ".join(f'{key}="{word}"' for key, word in labels.items())
    name = join(
        [
            tag("code", one["name"]),
            tag("br"),
            tag("span", f"{{{text}}} · {one['instance'] or 'server unknown'} · {one['kind']}", look="wl-soft"),
        ]
    )
    where = _place(one["file"], one["most_nth"], by_line=bool(one["by_line"])) or "place unknown"
    at = f", {clock(one['most_ts'], fine=True)}" if one["most_ts"] and one["most_ts"] > 1e8 else ""
    values = [exact(one[key]) for key in ("first_value", "most", "last_value")]
    return row((name, count(one["samples"]), *values, join([tag("code", where), at])), numbers=(1, 2, 3, 4), heads={1: "samples", 2: "first", 3: "largest", 4: "last"})  # fmt: skip


def _place(file: str | None, nth: float | None, *, by_line: bool) -> str:
    """File and line of a scrape; where a line is not a scrape, which scrape of the file it is."""
    if not file or nth is None:
        return ""
    return f"{file}:{nth:.0f}" if by_line else f"{file}, scrape {nth:.0f}"


def _samples(rows: Sequence[Mapping[str, Any]]) -> None:
    shown = [
        {
            zone(): clock(one["ts"], day=True, fine=True) if one["ts"] > 1e8 else f"text {one['ts']:.0f}",
            "series": one["name"],
            "labels": one["labels"],
            "engine": f"{one['instance']}/{one['engine']}" if one["engine"] else one["instance"],
            "value": one["value"],
            "where": _place(one["file"], one["nth"], by_line=bool(one["by_line"])),
        }
        for one in rows
    ]
    st.dataframe(pd.DataFrame(shown), hide_index=True, height=330, alt="raw samples with file and line")


def _lines(lines: Sequence[Mapping[str, Any]], kinds: Sequence[str]) -> Html:
    title = div("wl-title", "Log lines that bear on it: what was read of them, with file and line (the text itself is not kept)")
    if not lines:
        return join([title, tag("p", f"None in this window. Kinds that would tell: {', '.join(kinds)}.", look="wl-soft")])
    heads = ((zone(), ""), ("what it says", ""), ("where", ""))
    found: list[Html] = []
    for kind in dict.fromkeys(one["kind"] for one in lines):
        mine = [one for one in lines if one["kind"] == kind]
        more = f", the {len(mine)} that tell most" if mine[0]["found"] > len(mine) else ""
        rows = [_line(one) for one in mine]
        found.append(tag("p", bold(kind), f": {plural(mine[0]['found'], 'line')} in the window{more}", style="margin-top:.6rem"))
        found.append(table(heads, rows[:SHOWN_LINES]))
        if rows[SHOWN_LINES:]:
            found.append(tag("details", tag("summary", f"{len(rows) - SHOWN_LINES} more"), table(heads, rows[SHOWN_LINES:])))
    return join([title, *found])


def _line(one: Mapping[str, Any]) -> Html:
    when = clock(one["ts"], day=True, fine=one["ts"] % 1 > 0) if one["ts"] is not None else "no time"
    fields = {key: word for key, word in json.loads(one["fields"] or "{}").items() if word is not None}
    words = " · ".join(f"{key} {exact(word) if isinstance(word, float) else word}" for key, word in fields.items())
    return row((when, words or DASH, tag("code", f"{one['file']}:{one['line']:.0f}")))
