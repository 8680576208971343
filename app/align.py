"""The clock of a log against that of the metrics of the same server, by content.

Text logs have no year and no zone, and machines disagree. The rate of generated tokens in the stats lines (or, where there are
too few, of iteration lines) is compared to the counters' own rate of the same engine at every shift; where one shift fits far
better than all others, it is the offset. What is not clear, or differs between engines, is left.
"""

import json
import math
from dataclasses import dataclass
from typing import Any, Final, cast

import numpy as np

from analyzers.model import Array
from app.store import Store

ZONES_S: Final = 15 * 3600.0  # no two zones are further apart from UTC
LEAST: Final = 5  # lines that must lie inside of the metrics
MOST: Final = 300  # lines that are compared
SHIFTS: Final = 30_000
CLEAR: Final = 0.12  # mean difference (of logarithms) up to which a shift fits; 0.004 to 0.09 in recordings of one clock
BETTER: Final = (2.5, 0.03)  # times, and by how much, every other shift must fit worse
APPLIES_S: Final = 5.0  # offsets below are of the resolution of the stamps
STEP_S: Final = 1.0
ENGINES: Final = 3  # that are compared, those whose rates change most: each takes up to a second
STEPS_S: Final = 4.0  # a span of iteration lines that is compared where there are no stats lines
MOST_S: Final = 2 * 86400.0  # of a log without stats lines


@dataclass(frozen=True, slots=True)
class Offset:
    """Seconds to add to the log's stamps, how far that may be wrong, and the lines that it rests on."""

    offset_s: float
    error_s: float
    lines: int


def align(store: Store, file_id: int) -> Offset | None:
    """Find a log's offset, shift its rows where it is more than a few seconds, and note it as an event `aligned`."""
    found = _of_file(store, file_id)
    if found is None:
        return None
    applied = abs(found.offset_s) > max(APPLIES_S, 2 * found.error_s)
    if applied:
        for table in ("stat", "step", "event"):
            store.execute(f"UPDATE {table} SET ts = ts + ? WHERE file_id = ?", [found.offset_s, file_id])
    fields = {"offset_s": found.offset_s, "error_s": found.error_s, "lines": found.lines, "applied": applied}
    store.execute(
        "INSERT INTO event (file_id, line, ts, engine, kind, fields) VALUES (?, 1, NULL, NULL, 'aligned', ?)",
        [file_id, json.dumps(fields, sort_keys=True)],
    )
    return found


def notes(store: Store) -> list[str]:
    """What was shifted, in words."""
    said = []
    for file, raw in store.rows("SELECT DISTINCT file, fields FROM event_row WHERE kind = 'aligned' ORDER BY file, fields"):
        fields: dict[str, Any] = json.loads(raw)
        if fields["applied"]:
            said.append(
                f"{file}: its stamps (no zone) were moved by {_span(fields['offset_s'])} (+- {fields['error_s']:.0f} s), "
                f"where {fields['lines']} stats lines match the server's counters"
            )
    return said


def _span(seconds: float) -> str:
    sign, rest = ("-" if seconds < 0 else "+"), abs(round(seconds))
    return f"{sign}{rest // 3600}:{rest // 60 % 60:02d}:{rest % 60:02d}"


def _of_file(store: Store, file_id: int) -> Offset | None:
    """The offset that the engines of a file agree on; None where none is clear, or two contradict each other."""
    ((instance,),) = store.rows("SELECT instance FROM source_file WHERE file_id = ?", [file_id])
    if not store.rows("SELECT 1 FROM scrape WHERE instance = ? AND timed LIMIT 1", [instance]):
        return None
    lines = _lines(store, file_id)
    low, high = (pick(float(pick(ts)) for ts, _ in lines.values()) if lines else 0.0 for pick in (min, max))
    counts = _counts(store, instance, low - ZONES_S, high + ZONES_S) if lines else {}
    if len(lines) == len(counts) == 1:
        counts = dict(zip(lines, counts.values(), strict=True))  # whatever the two call it
    moving = sorted((name for name in lines if name in counts), key=lambda name: -float(lines[name][1].std()))
    found = [one for name in moving[:ENGINES] if (one := offset_of(*lines[name], *counts[name])) is not None]
    if not found:
        return None
    best = min(found, key=lambda one: (one.error_s, -one.lines))
    if any(abs(one.offset_s - best.offset_s) > one.error_s + best.error_s + STEP_S for one in found):
        return None
    return Offset(best.offset_s, best.error_s, sum(one.lines for one in found))


def _lines(store: Store, file_id: int) -> dict[str, tuple[Array, Array]]:
    """Stamps and rates of generated tokens, by engine: of the stats lines; of steps in spans of STEPS_S where those are too few."""
    rows = store.rows(
        "SELECT engine, ts, generation_tokens_per_s FROM stat WHERE file_id = ? AND ts IS NOT NULL AND generation_tokens_per_s IS NOT NULL "
        "ORDER BY ts",
        [file_id],
    )
    found = _by_engine(rows)
    if not found:
        rows = store.rows(
            "SELECT engine, (floor(ts / $span) + 1) * $span AS until, sum(generation_tokens) / $span FROM step "
            "WHERE file_id = $file AND ts IS NOT NULL GROUP BY ALL ORDER BY until",
            {"file": file_id, "span": STEPS_S},
        )
        found = _by_engine(_filled(rows))
    return found


def _filled(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Spans without a step had no tokens; the first and the last are cut, and left out."""
    filled: list[tuple[Any, ...]] = []
    for engine, points in _grouped(rows).items():
        known = dict(cast(list[tuple[float, float]], points))
        first, last = min(known), max(known)
        if last - first > MOST_S:
            continue
        filled += [(engine, ts, known.get(ts, 0.0)) for ts in np.arange(first + STEPS_S, last, STEPS_S).tolist()]
    return filled


def _by_engine(rows: list[tuple[Any, ...]]) -> dict[str, tuple[Array, Array]]:
    """Columns of (engine, x, y) by engine, of those with enough rows."""
    found = {name: np.array(points, dtype=float) for name, points in _grouped(rows).items() if len(points) >= LEAST}
    return {name: (points[:, 0], points[:, 1]) for name, points in found.items()}


def _grouped(rows: list[tuple[Any, ...]]) -> dict[str, list[list[float]]]:
    found: dict[str, list[list[float]]] = {}
    for name, *values in rows:
        found.setdefault(name, []).append([math.nan if value is None else value for value in values])
    return found


def _counts(store: Store, instance: str, low: float, high: float) -> dict[str, tuple[Array, Array]]:
    """When each engine was scraped, and how many tokens it had generated since the first scrape."""
    rows = store.rows(
        "SELECT engine, ts, generation_tokens, dt_s FROM interval_row WHERE instance = $instance AND timed AND ts > $low AND ts <= $high "
        "ORDER BY ts",
        {"instance": instance, "low": low, "high": high},
    )
    counts = {}
    for name, values in _grouped(rows).items():
        points = np.array(values, dtype=float)
        if len(points) >= LEAST:
            start = points[0, 0] - np.nan_to_num(points[0, 2])
            grown = np.cumsum(np.nan_to_num(points[:, 1]))
            counts[name] = (np.concatenate([[start], points[:, 0]]), np.concatenate([[0.0], grown]))
    return counts


def offset_of(line: Array, rate: Array, ts: Array, count: Array) -> Offset | None:
    """The shift of `line` (stamps of rates over the stats interval) that fits a counter; None where none is clear.

    `count` at `ts` grows; both in seconds. The stats interval is the usual distance of the lines.
    """
    every = float(np.median(np.diff(line)))
    if not every > 0 or not float(rate.std()) > 0.1 * float(rate.mean()):
        return None  # a rate that never changes fits everywhere
    if len(line) > MOST:
        keep = np.linspace(0, len(line) - 1, MOST).astype(int)
        line, rate = line[keep], rate[keep]
    low, high = max(-ZONES_S, ts[0] - line[-1]), min(ZONES_S, ts[-1] - line[0])
    if high <= low:
        return None
    step = max(STEP_S, (high - low) / SHIFTS)
    shifts = np.arange(math.ceil(low / step) * step, high + step, step)
    cost = np.array([_cost(line + shift, rate, ts, count, every) for shift in shifts])
    if not np.isfinite(cost).any():
        return None
    best = int(np.nanargmin(cost))
    far = np.abs(shifts - shifts[best]) > max(1.5 * every, 2 * step)
    other = float(np.nanmin(cost[far])) if np.isfinite(cost[far]).any() else math.inf
    if cost[best] > CLEAR or other < max(BETTER[0] * cost[best], cost[best] + BETTER[1]):
        return None
    near = shifts[(np.nan_to_num(cost, nan=math.inf) <= max(1.5 * cost[best], cost[best] + BETTER[1])) & ~far]
    error = max(STEP_S, float(np.max(np.abs(near - shifts[best]))))
    inside = int(_inside(line + shifts[best], ts, every).sum())
    return Offset(float(shifts[best]), error, inside)


def _inside(at: Array, ts: Array, every: float) -> Array:
    inside: Array = (at - every >= ts[0]) & (at <= ts[-1])
    return inside


def _cost(at: Array, rate: Array, ts: Array, count: Array, every: float) -> float:
    """Mean difference of the logarithms of both rates over the lines inside of the metrics; NaN where those are too few."""
    inside = _inside(at, ts, every)
    if inside.sum() < max(LEAST, 0.3 * min(len(at), (ts[-1] - ts[0]) / every)):
        return math.nan
    grown = (np.interp(at[inside], ts, count) - np.interp(at[inside] - every, ts, count)) / every
    if not grown.any():
        return math.nan
    return float(np.minimum(np.abs(np.log1p(grown) - np.log1p(rate[inside])), 2.0).mean())
