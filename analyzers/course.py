"""The course of an attribution: the same books, slice by slice of a window, with step costs fitted over the whole of it.

Stages are recorded when a request finishes, so a slice holds the seconds of the requests that finished in it. What is known of
the whole window only (step costs, identities of KV blocks) holds for every slice; stalls that only a histogram shows are in no
slice, and stay unexplained.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Final

import numpy as np

from analyzers import combine, steps
from analyzers.attribute import FEW_REQUESTS, adjust, target_of
from analyzers.books import Books, books
from analyzers.links import CHAIN
from analyzers.model import TARGETS, Array, Engine, EngineResult, Level, Target, Window
from analyzers.steps import Rows, StepModel

SLICES: Final = 48
SCRAPES: Final = 4  # scrapes of a slice at least
RECORDED: Final = ("ttft", "queue", "prefill", "decode", "e2e")
COMPLETE: Final = 0.5  # records of so many of the finished requests give their mean (which slice the last ones fall into differs)
REASONS: Final = ("slots", "kv", "cap", "deferred", "budget", "step", "stall", "unread")
_STALLS: Final = "vllm:inter_token_latency_seconds"


@dataclass(frozen=True, slots=True)
class Course:
    """Seconds by slice. `ts` the end of each slice; `parts` by link, NaN where unknown; `queue` a request's seconds by reason."""

    ts: Array
    measured: Array
    floor: Array
    unexplained: Array
    parts: Mapping[str, Array]
    queue: Mapping[str, Array]
    requests: Array


def course(window: Window, name: str, most: int = SLICES) -> Course | None:
    """The course of one target; None where the window has no clock, or too few scrapes or requests for two slices."""
    edges = _edges(window, most)
    if len(edges) < 3:
        return None
    whole = [(engine, *_whole(engine)) for engine in window.engines]
    rows = []
    for low, high in itertools.pairwise(edges):
        accounts = [
            one for one in (_books(*known, low, high) for known in whole) if one is not None and one.requests >= FEW_REQUESTS
        ]
        rows.append((float(high), *_slice(accounts, name)))
    return _course(rows)


def _whole(engine: Engine) -> tuple[Rows | None, StepModel, bool]:
    """Steps and step costs of the whole window, and whether its gauges agree with its histograms."""
    windows = steps.rows(engine)
    model = steps.fit(engine, windows)
    found = books(engine, windows, model)
    return windows, model, found is not None and found.gauges_hold


def _lasted(engine: Engine) -> float:
    """Mean seconds of a request of the slice: so long before it they began to wait."""
    finished = engine.total.get("e2e_n", 0.0)
    return engine.total.get("e2e_s", 0.0) / finished if finished else 0.0


def _books(engine: Engine, windows: Rows | None, model: StepModel, holds: bool, low: float, high: float) -> Books | None:
    """One engine's books of a slice, with the steps and the step costs of the whole window."""
    cut = cut_of(engine, low, high)
    waited = cut_of(engine, low - _lasted(cut), high) if holds else None
    if windows is None:
        return books(cut, model=model, waited=waited)
    middle = windows.t0 + windows.dt / 2
    mask = (middle > low) & (middle <= high)
    arrays = {one.name: getattr(windows, one.name) for one in fields(windows) if one.name not in {"own_weights", "source"}}
    inside = replace(windows, **{name: values[mask] for name, values in arrays.items() if values is not None})
    extra = model.extra[mask] if len(model.extra) == len(mask) else model.extra
    return books(cut, inside, replace(model, extra=extra), waited=waited)


def _edges(window: Window, most: int) -> Array:
    """Slices of equal length, each with enough scrapes and requests."""
    if window.start is None or window.end is None or window.end <= window.start:
        return np.zeros(0)
    scrapes = max((len(engine.interval.get("ts", ())) for engine in window.engines), default=0)
    finished = sum(engine.total.get("e2e_n", 0.0) for engine in window.engines)
    slices = int(min(most, scrapes // SCRAPES, finished // FEW_REQUESTS))
    return np.linspace(window.start, window.end, slices + 1) if slices >= 2 else np.zeros(0)


def cut_of(engine: Engine, low: float, high: float) -> Engine:
    """What one engine shows of (low, high]."""

    def cut(table: Mapping[str, Array], column: str) -> dict[str, Array]:
        if column not in table:
            return dict(table)
        inside = np.flatnonzero((table[column] > low) & (table[column] <= high))
        whole = slice(inside[0], inside[-1] + 1) if len(inside) else slice(0)
        rows = whole if len(inside) == whole.stop - (whole.start or 0) else inside  # in the order of time nothing is copied
        return {key: values[rows] for key, values in table.items()}

    interval = cut(engine.interval, "ts")
    total = _totals({key: interval[key] for key in engine.total if key in interval})
    request = cut(engine.request, "end_ts")
    total |= _recorded(request, total)
    return replace(
        engine, interval=interval, scrape=cut(engine.scrape, "ts"), stat=cut(engine.stat, "ts"), step=cut(engine.step, "ts"),
        request=request, total=total, bucket={key: one for key, one in engine.bucket.items() if key != _STALLS},
        event=tuple(event for event in engine.event if math.isnan(event.ts) or event.ts <= high),
    )  # fmt: skip


def _totals(counters: Mapping[str, Array]) -> dict[str, float]:
    """The increase of each counter over the intervals; one that is nowhere known is left out."""
    known = {key: np.isfinite(values) for key, values in counters.items()}
    return {
        key: float(values.sum() if known[key].all() else np.nansum(values)) for key, values in counters.items() if known[key].any()
    }


def _recorded(request: Mapping[str, Array], total: Mapping[str, float]) -> dict[str, float]:
    """Stage seconds of the requests that ended in the slice, from their records: of the same requests, all of them.

    The histograms have TTFT of those that began to answer in it, and what they counted at a scrape may have ended before.
    """
    finished = total.get("e2e_n", 0.0)
    if not finished or any(f"{name}_s" not in request for name in RECORDED):
        return {}
    seconds = {name: np.asarray(request[f"{name}_s"], dtype=float) for name in RECORDED}
    known = np.isfinite(np.sum(list(seconds.values()), axis=0))
    if known.sum() < COMPLETE * finished:
        return {}
    return {f"{name}_s": float(values[known].mean()) * finished for name, values in seconds.items()} | {"ttft_n": finished}


def _slice(accounts: Sequence[Books], name: str) -> tuple[Target | None, dict[str, float], float]:
    """The target of a slice over its engines, queue seconds by reason, and how many requests it holds."""
    results, engines = [], []
    queue = dict.fromkeys(REASONS, 0.0)
    requests = float(sum(one.requests for one in accounts))
    for one in accounts:
        engine = one.engine
        adjusted = adjust(one)
        rows = {module.LINK.name: module.row(adjusted) for module in CHAIN}
        targets = {target: target_of(target, adjusted, rows) for target in TARGETS}
        results.append(EngineResult(engine.instance, engine.engine, "both", one.requests, targets, Level.METRICS))
        engines.append(engine)
        for reason in REASONS:
            queue[reason] += adjusted.queue.get(reason, 0.0) * one.requests / requests
    if not results:
        return None, {}, 0.0
    roles = combine.roles(engines)
    results = [replace(one, role=role) for one, role in zip(results, roles, strict=True)]
    return combine.targets(tuple(results), tuple(engines)).get(name), queue, requests


def _course(rows: Sequence[tuple[float, Target | None, dict[str, float], float]]) -> Course | None:
    told = [target for _, target, _, _ in rows if target is not None and target.measured_s is not None]
    if not told:
        return None

    def column(of: str) -> Array:
        return np.array(
            [math.nan if target is None or getattr(target, of) is None else getattr(target, of) for _, target, _, _ in rows]
        )

    def part(link: str, target: Target | None) -> float:
        seconds = target.part(link).seconds if target is not None and target.parts else None
        return math.nan if seconds is None else seconds

    names = [module.LINK.name for module in CHAIN]
    return Course(
        ts=np.array([high for high, _, _, _ in rows]),
        measured=column("measured_s"),
        floor=column("floor_s"),
        unexplained=column("unexplained_s"),
        parts={link: np.array([part(link, target) for _, target, _, _ in rows]) for link in names},
        queue={reason: np.array([queue.get(reason, math.nan) for _, _, queue, _ in rows]) for reason in REASONS},
        requests=np.array([requests for _, _, _, requests in rows]),
    )
