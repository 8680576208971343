"""The evidence of a link as its query says it: what each column is, the raw series behind it, the log lines that bear on it.

Nothing of a link stands here: titles come from the comments of queries/evidence/<link>.sql, series from the quantities that it
names, kinds of lines from its header.
"""

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np

from analyzers.model import Array, Columns
from app.store import sql
from app.ui.draw import Line, Panel
from app.ui.markup import Html, div, tag

SLICES: Final = 700  # of a trace: each gives its least and its most
MOST_SLICES: Final = 6000  # of a page: many engines have fewer each
MOST_ENGINES: Final = 6
STROKES: Final = (
    *(("#868d97", None), ("#5b7fa6", "dash"), ("#a58a6f", "dot")),
    *(("#5e666f", "dashdot"), ("#7fa6c9", "longdash"), ("#b0b5bc", "longdashdot")),
)  # grey and dull: stage colours belong to stages, and a stroke stands beside each
BORDERS: Final = {None: "solid", "dash": "dashed", "longdash": "dashed", "dot": "dotted", "dashdot": "double", "longdashdot": "double"}
UNITS: Final[tuple[tuple[str, str, float, float | None], ...]] = (  # suffix, unit, factor, fixed top
    ("_ratio", " %", 100.0, 104.0),
    ("tokens_per_s", " tok/s", 1.0, None),
    ("bytes_per_s", " MB/s", 1e-6, None),
    ("_s", " ms", 1000.0, None),
    ("cores", " cores", 1.0, None),
)


@dataclass(frozen=True, slots=True)
class Evidence:
    """One link's query: (column, what it is), the words of which some are quantities, the kinds of log lines."""

    columns: tuple[tuple[str, str], ...]
    words: tuple[str, ...]
    kinds: tuple[str, ...]


@cache
def evidence(link: str) -> Evidence:
    """What the query of a link says of itself."""
    text = sql("evidence", link)
    kinds = re.search(r"^-- Log lines: ([\w, ]+)\.$", text, re.MULTILINE)
    columns = tuple((found[1], found[2].strip()) for found in re.finditer(r"\bAS (\w+),?\s*-- (.+)$", text, re.MULTILINE))
    code = re.sub(r"--.*", "", text)
    words = tuple(dict.fromkeys(re.findall(r"\b[a-z][a-z_]+\b", code)))
    return Evidence(columns, words, tuple(kinds[1].split(", ")) if kinds else ())


def panels(found: Evidence, engines: Sequence[tuple[str, Columns]]) -> tuple[dict[str, Array], list[Panel]]:
    """Columns and panels, one panel a column of the query, one line an engine."""
    columns: dict[str, Array] = {}
    slices = min(SLICES, max(50, MOST_SLICES // max(1, len(engines) * len(found.columns))))
    seen = [reduced(one, slices) for _, one in engines]
    ts = np.concatenate([one["ts"] for one in seen]) if seen else np.zeros(0)
    columns["ts"] = np.array([ts.min(), ts.max()]) if len(ts) else ts
    columns["timed"] = columns["ts"] > 1e8
    chosen: list[Panel] = []
    for name, says in found.columns:
        unit, factor, top = _unit(name)
        lines = []
        for at, ((engine, _), one) in enumerate(zip(engines, seen, strict=True)):
            colour, dash = STROKES[at % len(STROKES)]
            columns[f"ts@{at}"], columns[f"{name}@{at}"] = one["ts"], one[name]
            said = engine if len(engines) > 1 else "here"  # the key stands above all panels
            lines.append(Line(f"{name}@{at}", "", colour, said=said, dash=dash, at=f"ts@{at}"))
        words = re.sub(r"^seconds\b", "time", re.sub(r",? at its end", "", says))
        words = words[:1].upper() + words[1:]
        chosen.append(Panel(f"{words},{unit}" if unit else words, tuple(lines), unit, factor, top, _nothing(name)))
    return columns, chosen


def keys(engines: Sequence[str]) -> Html | None:
    """The key of the strokes; none for one engine."""
    if len(engines) < 2:
        return None
    strokes = [f"height:0;background:none;border-radius:0;border-top:3px {BORDERS[dash]} {colour}" for colour, dash in STROKES]
    return div("wl-keys", *(tag("span", tag("i", style=strokes[at % len(strokes)]), one) for at, one in enumerate(engines)))


def _unit(name: str) -> tuple[str, float, float | None]:
    """Unit, factor to it and fixed top of a column, by its suffix."""
    return next(((unit, factor, top) for suffix, unit, factor, top in UNITS if name.endswith(suffix)), ("", 1.0, None))


def _nothing(name: str) -> str:
    return (
        "no event in this window" if name in {"balancedness_ratio", "avg_tokens", "max_tokens"} else "not exported, or no traffic"
    )


def reduced(columns: Mapping[str, Any], slices: int = SLICES) -> dict[str, Array]:
    """At most two rows a slice: the least and the most of each column in their order, so that spikes and dips survive."""
    plain = {name: np.asarray(values, dtype=float) for name, values in columns.items()}
    length = len(plain["ts"])
    if length <= 2 * slices:
        return plain
    edges = np.linspace(0, length, slices + 1).astype(int)
    out: dict[str, list[float]] = {name: [] for name in plain}
    for low, high in itertools.pairwise(edges):
        for name, values in plain.items():
            part = values[low:high]
            known = np.flatnonzero(np.isfinite(part))
            if name == "ts" or not len(known):
                out[name] += [float(part[0]), float(part[-1])]
                continue
            least, most = known[part[known].argmin()], known[part[known].argmax()]
            out[name] += [float(part[min(least, most)]), float(part[max(least, most)])]
    return {name: np.array(values) for name, values in out.items()}
