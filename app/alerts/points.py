"""Events of an objective with what surrounds them: when its servers were seen, and what is in flight; kept between evaluations.

A period of 30 days is not read from raw samples every few seconds: what was counted once is kept (table slo_point), and only
what came since then is counted.
"""

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from analyzers.model import Array, Batch
from analyzers.slo import Points, Slo, rules_of
from app.alerts.measure import Events, Scope, events, query, scope
from app.store import Store

OVERLAP_S: Final = 60.0  # spans come in batches: what ended before the last evaluation may be told after it
LONG_S: Final = 900.0  # more than what comes in between two evaluations: a page's window, a new objective, a server that was away
FLIGHT_S: Final = 900.0  # how far back the last word on requests in flight is looked for
COLUMNS: Final = ("ts", "total", "bad", "least", "most")


def points(store: Store, slo: Slo, low: float, high: float, only: Sequence[str] | None = None) -> Points:
    """All events of a span, with what was observed in it; `only` leaves no other engines. Where rows of the span are kept, by slices."""
    where = scope(store, slo, only)
    return _surrounded(store, slo, where, _known(store, slo, where, low, high), low, high, low)


def _known(store: Store, slo: Slo, where: Scope, low: float, high: float) -> Events:
    """The events of a span: of a long one by slices, where rows of it are kept."""
    size = slice_s(slo) if high - low > LONG_S and store.kept and store.kept(low, high) else None
    return events(store, slo, where, low, high, slice_s=size)


def _surrounded(store: Store, slo: Slo, where: Scope, found: Events, low: float, high: float, flight: float) -> Points:
    """Events with the instants at which servers were seen, and (since `flight`) the requests in flight."""
    params = {"low": low, "high": high, "slice": slice_s(slo), "instances": list(where.instances)}
    rows = store.columns(query("seen_point"), params)
    servers = {name: rows["ts"][rows["instance"] == name] for name in sorted(set(rows["instance"]))}
    if not servers and len(found.ts):
        servers = {"request records": np.sort(found.ts)}  # nothing was scraped: a silence may be idleness or a gap
    busy = _in_flight(store.columns(query("busy_point"), {"low": flight, "high": high, "engines": list(where.engines)}))
    order = np.argsort(found.ts, kind="stable")
    ts, total, bad, least, most = (values[order] for values in (found.ts, found.total, found.bad, found.least, found.most))
    return Points(ts, total, bad, least, most, servers, *busy, found.source, found.missing, found.notes)


def _in_flight(rows: dict[str, Array]) -> tuple[Array, Array]:
    """Requests in flight on all servers together, at every scrape of one of them."""
    ts = np.unique(rows["ts"])
    total = np.zeros(len(ts))
    for name in set(rows["instance"]):
        mine = rows["instance"] == name
        last = np.searchsorted(rows["ts"][mine], ts, "right") - 1
        total += np.where(last >= 0, rows["requests"][mine][np.maximum(last, 0)], 0.0)
    return ts, total


def slice_s(slo: Slo) -> float:
    """The resolution that the windows of an objective need."""
    return max(0.001, min(60.0, min(rule.short_s for rule in rules_of(slo)) / 60))


def indicator(slo: Slo) -> str:
    """A name for what an objective measures and how finely: two objectives of the same indicator share its points."""
    parts = (slo.kind, slo.threshold_s, slo.tpot_s, slo.model, slo.engine, slice_s(slo))
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class News:
    """Points that are new since the last evaluation, to be stored in the place of those after `low`."""

    indicator: str
    low: float
    high: float
    columns: dict[str, Array]


def extended(store: Store, slo: Slo, now: float) -> tuple[Points, News]:
    """The points of the period up to `now`: those stored, and what came since then (the last seconds are counted anew)."""
    where, name, size = scope(store, slo), indicator(slo), slice_s(slo)
    start = now - slo.period_s
    bounds: dict[str, Any] = {"indicator": name, "low": start, "high": now}
    last = store.rows("SELECT max(ts) FROM slo_point WHERE indicator = $indicator AND ts > $low AND ts <= $high", bounds)[0][0]
    low = start if last is None else max(start, math.floor((last - OVERLAP_S) / size) * size)
    found = _known(store, slo, where, low, now)
    fresh = _sliced(found, low, size)
    held = store.columns(
        "SELECT ts, total, bad, least, most FROM slo_point WHERE indicator = $indicator AND ts > $low AND ts <= $high ORDER BY ts",
        {**bounds, "high": low},
    )
    both = {key: np.concatenate([held[key], fresh[key]]) for key in COLUMNS}
    every = Events(
        both["ts"], both["total"], both["bad"], both["least"], both["most"],
        found.source, found.notes, None if len(both["ts"]) else found.missing,
    )  # fmt: skip
    recent = now - max(rule.long_s for rule in rules_of(slo))
    return _surrounded(store, slo, where, every, recent, now, now - FLIGHT_S), News(name, low, now, fresh)


def _sliced(found: Events, low: float, size: float) -> dict[str, Array]:
    """Events summed over slices of `size` seconds; a slice stands at its last event."""
    if not len(found.ts):
        return {key: np.zeros(0) for key in COLUMNS}
    which = np.ceil((found.ts - low) / size).astype(int)
    _, at = np.unique(which, return_inverse=True)
    ts = np.full(at.max() + 1, -math.inf)
    np.maximum.at(ts, at, found.ts)
    sums = {key: np.bincount(at, weights=getattr(found, key)) for key in COLUMNS[1:]}
    return {"ts": ts, **sums}


def keep(store: Store, news: News) -> None:
    """Store new points, inside a transaction."""
    store.execute("DELETE FROM slo_point WHERE indicator = ? AND ts > ? AND ts <= ?", [news.indicator, news.low, news.high])
    store.add(Batch("slo_point", {"indicator": [news.indicator] * len(news.columns["ts"]), **news.columns}))
