"""Rows of step, stat and event from what the lines of a vLLM server log said: dated, labelled, in the schema's units.

A stamp of the log has no year. It takes the one that is nearest to the instant on the line before it (the first: nearest to
the recording), so a log may run over New Year, and a 29 February finds its year.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from analyzers.model import Array, Batch
from app.collectors.formats.vllm_log_events import EXPECTED, STAT_COLUMNS
from app.collectors.formats.vllm_log_lines import NAN, Stamp, day_start

OFFSETS: Final = 10_000  # pairs of stamps kept for the offset of the clocks
LEAP: Final = 1e5  # seconds between two lines of one day, by a container's clock: no longer the same day of the same year
FOLLOWS: Final = ("spec_decode", "kv_transfer")  # events that name no engine: printed behind its stats line
NONE: Final = -1  # for an engine: none, or not known

Columns = dict[str, Array]
Dates = list[tuple[Array, Array]]  # of each part: instants (NaN: unknown), and whether the row may stand
Row = tuple[int, Stamp, int, dict[str, float]]  # line, times, engine, numbers by name
EventRow = tuple[int, Stamp, int, str, dict[str, Any]]  # line, times, engine, kind, fields


class Part(NamedTuple):
    """Rows of one table, not yet dated: arrays of equal length. The five in the middle are those of `Stamp`."""

    kind: str
    line: Array
    year: Array
    code: Array
    tod: Array
    iso: Array
    fine: Array
    engine: Array
    values: Columns


@dataclass(slots=True)
class Calendar:
    """What dating remembers from block to block."""

    anchor: float  # the last instant seen
    dated: bool = False  # whether any line had an instant
    engine: int = NONE  # of the last stats line
    offsets: list[float] = field(default_factory=list)  # container's clock minus the log's own stamp


def batches(
    calendar: Calendar, parts: list[Part], rows: dict[str, list[Row]], events: list[EventRow]
) -> tuple[list[Batch], list[tuple[int, str]]]:
    """Return the rows of a block as batches, and lines with reasons where a date does not exist."""
    parts = [*parts, *(_part(kind, some) for kind, some in rows.items() if some)]
    events = sorted(events, key=lambda event: event[0])
    if events:
        parts.append(_part("event", [(line, stamp, engine, {}) for line, stamp, engine, _, _ in events]))
    if not parts:
        return [], []
    dates = _dates(calendar, parts)
    made = [*_numbers("step", parts, dates), *_numbers("stat", parts, dates)]
    engines = _engines(calendar, parts, events)
    if events:
        made += _events(events, engines, *dates[-1])
    wrong = np.concatenate([part.line[~good] for part, (_, good) in zip(parts, dates, strict=True)])
    return made, [(line, EXPECTED["date"]) for line in wrong.tolist()]


def _part(kind: str, rows: Sequence[Row]) -> Part:
    lines, stamps, engines, values = zip(*rows, strict=True)
    year, code, tod, iso, fine = (np.array(column) for column in zip(*stamps, strict=True))
    columns = {name: np.array([row[name] for row in values]) for name in values[0]}
    return Part(kind, np.array(lines), year, code, tod, iso, fine, np.array(engines), columns)


def per_run(keys: Array, value: Callable[[float], float]) -> Array:
    """Return `value(key)` for each key, computed once for each run of equal keys: dates change once a day."""
    if not len(keys):
        return np.zeros(0)
    starts = np.concatenate([[0], np.flatnonzero(np.diff(keys)) + 1])
    return np.repeat([value(float(key)) for key in keys[starts]], np.diff([*starts.tolist(), len(keys)]))


def _dates(calendar: Calendar, parts: list[Part]) -> Dates:
    """Date the rows of all parts. Years follow from line to line."""
    line, year, code, tod, iso = (np.concatenate(column) for column in list(zip(*parts, strict=True))[1:6])
    order = np.argsort(line, kind="stable")
    own = np.full(len(line), np.nan)
    own[order] = _own(calendar.anchor, year[order], code[order], tod[order], iso[order])
    ts = np.where(np.isnan(iso), own, iso)
    good = (code == 0) | ~np.isnan(own)
    both = order[~np.isnan(own[order] + iso[order])][: OFFSETS - len(calendar.offsets)]
    calendar.offsets += (iso[both] - own[both]).tolist()
    known = order[good[order] & ~np.isnan(ts[order])]
    if len(known):
        calendar.anchor, calendar.dated = float(ts[known[-1]]), True
    ends = np.cumsum([len(part.line) for part in parts])[:-1]
    return list(zip(np.split(ts, ends), np.split(good, ends), strict=True))


def _own(anchor: float, year: Array, code: Array, tod: Array, iso: Array) -> Array:
    """Return the instants of the lines' own stamps, in the order of the lines. NaN: none, or no such day."""
    own = np.full(len(code), np.nan)
    none = np.isnan(iso)
    leaps = (none[1:] != none[:-1]) | (np.abs(np.diff(iso)) > LEAP)
    starts = [0, *(np.flatnonzero((np.diff(code) != 0) | (np.diff(year) != 0) | leaps) + 1).tolist()]
    for first, end in zip(starts, [*starts[1:], len(code)], strict=True):
        near = anchor if np.isnan(iso[first]) else float(iso[first])
        own[first:end] = _day(int(year[first]), int(code[first]), near) + tod[first:end]
        last = own[end - 1] if np.isnan(iso[end - 1]) else iso[end - 1]
        anchor = anchor if np.isnan(last) else float(last)
    return own


def _day(year: int, code: int, near: float) -> float:
    """Return the epoch seconds of a day; without a year, of the one that is nearest. NaN: none, or no such day."""
    if code <= 0:
        return NAN
    month, day = divmod(code, 100)
    if year:
        return day_start(year, month, day)
    middle = int(1970 + near / 31_556_952)  # of a mean year; one year off does not matter
    for years in (range(middle - 1, middle + 2), range(middle - 8, middle + 9)):  # the wider one is for 29 February
        starts = [start for candidate in years if not np.isnan(start := day_start(candidate, month, day))]
        if starts:
            return min(starts, key=lambda start: abs(start + 43_200 - near))
    return NAN


def _numbers(kind: str, parts: list[Part], dates: Dates) -> Iterator[Batch]:
    mine = [(part, ts, good) for part, (ts, good) in zip(parts, dates, strict=True) if part.kind == kind and good.any()]
    if not mine:
        return
    line = np.concatenate([part.line[good] for part, _, good in mine])
    order = np.argsort(line, kind="stable")
    values = {name: np.concatenate([part.values[name][good] for part, _, good in mine])[order] for name in mine[0][0].values}
    engines = np.concatenate([part.engine[good] for part, _, good in mine])[order]
    labels = {engine: str(engine) for engine in np.unique(engines).tolist()}
    head: dict[str, Any] = {
        "line": line[order],
        "ts": np.concatenate([ts[good] for _, ts, good in mine])[order],
        "engine": [labels[engine] for engine in engines.tolist()] if len(labels) > 1 else [*labels.values()] * len(engines),
    }
    if kind == "stat":
        yield Batch(kind, {**head, **_stat(values)})
    else:
        fine = np.concatenate([part.fine[good] for part, _, good in mine])[order]
        yield Batch(kind, {**head, "fine": fine, **_step(values)})


def _step(values: Columns) -> Columns:
    counts = ("iteration", "context_requests", "context_tokens", "generation_requests", "generation_tokens")
    return {
        **{name: values[name].astype(np.int64) for name in counts},
        "elapsed_s": values["elapsed"] / 1000,
        "kv_usage_ratio": values["kv"] / 100,
        "dummy": values["dummy"] > 0,
    }


def _stat(values: Columns) -> Columns:
    return {column: values[name] / unit for name, (column, unit) in STAT_COLUMNS.items()}


def _engines(calendar: Calendar, parts: list[Part], events: list[EventRow]) -> list[int]:
    """Return the engine of each event; those that name none take that of the stats line before them."""
    aggregates = [event[0] for event in events if event[3] == "aggregate"]
    stats = [part for part in parts if part.kind == "stat"]
    line = np.concatenate([*(part.line for part in stats), np.array(aggregates, np.int64)])
    engine = np.concatenate([*(part.engine for part in stats), np.full(len(aggregates), NONE)])
    order = np.argsort(line, kind="stable")
    line, engine = line[order], np.concatenate([[calendar.engine], engine[order]])
    calendar.engine = int(engine[-1])
    return [int(engine[np.searchsorted(line, number)]) if kind in FOLLOWS else own for number, _, own, kind, _ in events]


def _events(events: list[EventRow], engines: list[int], ts: Array, good: Array) -> Iterator[Batch]:
    kept = np.flatnonzero(good).tolist()
    if kept:
        columns: dict[str, Any] = {
            "line": [events[at][0] for at in kept],
            "ts": ts[kept],
            "engine": [None if engines[at] == NONE else str(engines[at]) for at in kept],
            "kind": [events[at][3] for at in kept],
            "fields": [json.dumps(events[at][4], sort_keys=True) for at in kept],
        }
        yield Batch("event", columns)
