"""What shows each link: the query of queries/evidence on the engine that it costs most, its columns, and lines of the logs."""

import json
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np

from analyzers.model import Array, Attribution, Evidence
from app.store import Store, sql

POINTS: Final = 200  # of a chart
LINES: Final = 8  # of a log
MOST_ENGINES: Final = 2  # of each link: those that it costs most
HIGHEST: Final = ("running", "waiting", "deferred", "kv_usage_ratio", "step_s")  # a peak is what matters; else the mean of a span
KINDS: Final[Mapping[str, tuple[str, ...]]] = {  # events of the log that show a link
    "engine_stall": ("jit", "rearrange", "death", "failed"),
    "kv_eviction": ("preempted_v0",),
    "kv_transfer": ("kv_transfer", "failed"),
    "moe_imbalance": ("eplb", "rearrange"),
    "speculation": ("spec_decode",),
    "prefix_cache_miss": ("prefix_reset",),
}
QUEUED: Final = ("slots", "prefill_backlog", "kv_eviction", "kv_transfer")  # links that show in the queue of stats lines
_COLUMN: Final = re.compile(r"(?:^|\s)(?:AS )?(\w+),?\s+--\s*(.+)$")


def evidence(store: Store, judged: Attribution) -> tuple[Evidence, ...]:
    """One evidence a link and engine, for every link that limits or contributes to a target; worst first."""
    found = []
    for link, engines in _links(judged).items():
        for instance, engine in engines:
            found.append(_of(store, judged, link, instance, engine))
    return tuple(found)


def _links(judged: Attribution) -> dict[str, list[tuple[str, str]]]:
    """The engines on which a link limits or contributes, those with most of its seconds first; limiting links first."""
    costs: dict[str, dict[tuple[str, str], float]] = {}
    worst: dict[str, int] = {}
    for e in judged.engines:
        for target in e.targets.values():
            for part in target.parts:
                if part.status in {"limiting", "contributing"}:
                    seconds = costs.setdefault(part.link, {})
                    key = (e.instance, e.engine)
                    seconds[key] = seconds.get(key, 0.0) + (part.seconds or 0.0) * max(1, e.requests)
                    worst[part.link] = min(worst.get(part.link, 1), 0 if part.status == "limiting" else 1)
    order = sorted(costs, key=lambda link: (worst[link], -sum(costs[link].values())))
    return {link: sorted(costs[link], key=lambda key: -costs[link][key])[:MOST_ENGINES] for link in order}


def _of(store: Store, judged: Attribution, link: str, instance: str, engine: str) -> Evidence:
    text = sql("evidence", link)
    low = float("-inf") if judged.start is None else judged.start
    high = float("inf") if judged.end is None else judged.end
    parameters: dict[str, Any] = {"instance": instance or None, "engine": engine, "low": low, "high": high}
    used = {name: value for name, value in parameters.items() if f"${name}" in _code(text)}
    columns = store.columns(text, used)
    rows = len(columns["ts"])
    kept = _reduced(columns, rows)
    told = {**used, "low": judged.start, "high": judged.end}
    return Evidence(link, instance, engine, text, told, _meaning(text), kept, rows, _lines(store, link, instance, low, high))


def _code(text: str) -> str:
    """A query without its comments."""
    return "\n".join(line.split("--", 1)[0] for line in text.splitlines())


def _meaning(text: str) -> dict[str, str]:
    """What each column is, by the comment behind it."""
    return {match[1]: match[2].strip() for line in text.splitlines() if (match := _COLUMN.search(line))}


def _reduced(columns: Mapping[str, Array], rows: int) -> dict[str, Sequence[float]]:
    """Columns with anything known, over at most POINTS spans."""
    plain = {name: np.asarray(values, dtype=float) for name, values in columns.items()}
    plain = {name: values for name, values in plain.items() if name == "ts" or np.isfinite(values).any()}
    if rows <= POINTS:
        return {name: values.tolist() for name, values in plain.items()}
    edges = np.linspace(0, rows, POINTS + 1).astype(int)
    return {name: [_span(name, values[low:high]) for low, high in pairwise(edges)] for name, values in plain.items()}


def _span(name: str, values: Array) -> float:
    known = values[np.isfinite(values)]
    if not len(known):
        return float("nan")
    return float(known.max() if name in HIGHEST else known.mean())


def _lines(store: Store, link: str, instance: str, low: float, high: float) -> tuple[tuple[str, int, float | None, str], ...]:
    """Lines of logs: the events that show the link, else the stats lines with the longest queue."""
    bounds = {"instance": instance or None, "low": low, "high": high, "most": LINES}
    if link in KINDS:
        rows = store.rows(
            "SELECT file, line, ts, kind, fields FROM event_row WHERE instance IS NOT DISTINCT FROM $instance AND list_contains($kinds, kind) "
            "AND (ts IS NULL OR (ts >= $low AND ts <= $high)) ORDER BY ts, file, line LIMIT $most",
            {**bounds, "kinds": list(KINDS[link])},
        )
        if rows:
            return tuple((file, line, ts, f"{kind} {_fields(fields)}".strip()) for file, line, ts, kind, fields in rows)
    if link not in QUEUED:
        return ()
    rows = store.rows(
        "SELECT file, line, ts, running, waiting, kv_usage_ratio FROM stat_row WHERE instance IS NOT DISTINCT FROM $instance AND waiting > 0 "
        "AND (ts IS NULL OR (ts >= $low AND ts <= $high)) ORDER BY waiting DESC, file, line LIMIT $most",
        bounds,
    )
    return tuple((file, line, ts, _stat(running, waiting, kv)) for file, line, ts, running, waiting, kv in rows)


def _stat(running: float | None, waiting: float | None, kv: float | None) -> str:
    said = [f"{name} {value:g}" for name, value in (("running", running), ("waiting", waiting)) if value is not None]
    return ", ".join([*said, *([f"KV {100 * kv:.1f} %"] if kv is not None else [])])


def _fields(text: str) -> str:
    return ", ".join(f"{name} {value}" for name, value in json.loads(text).items())[:160]
