"""How to test a change: load, length, what to measure, and how many requests and starts the predicted effect needs.

Two things blur a difference of means: the spread of requests, which more requests average out (neighbours wait together, so
they count for less than their number), and the difference between two starts of a server (8 % of the value, facts:
attribution-0.33), which only more starts average out.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from analyzers.case import Case, amount
from analyzers.compare import NOISE
from analyzers.model import TARGETS, Array, Effect

SIGMAS: Final = 2.5  # found with 80 % probability at one-sided 5 %
TRUST: Final = 1.645 * math.sqrt(2)  # NOISE is the 95 % bound of a difference between two starts
FEWEST: Final = 100  # finished requests below which ranges are widened (attribution.md section 7)
BLOCK: Final = 20  # neighbouring requests that wait together
SHORTEST_S: Final = 60.0
SEEN: Final = 0.10  # share of a target that a test should be able to see where nothing is predicted


@dataclass(frozen=True, slots=True)
class Size:
    """What a test of an effect needs on each side: requests, starts of the server, seconds a start; and for which target's effect."""

    target: str
    effect_s: float
    requests: int
    starts: int
    seconds: float
    predicted: bool
    spread: str


def size_of(case: Case, effects: Mapping[str, Effect]) -> Size:
    """The size for the target with the largest share saved (or lost); without a prediction for a tenth of E2E."""
    shares = {
        name: abs(found.saves_s or 0.0) / (case.measured(name) or math.inf)
        for name, found in effects.items()
        if name in TARGETS and found.saves_s
    }
    predicted = bool(shares) and max(shares.values()) > 0
    target = max(shares, key=lambda name: shares[name]) if predicted else "e2e"
    measured = case.measured(target) or math.nan
    delta = abs(effects[target].saves_s or 0.0) if predicted else SEEN * measured
    sigma, together, how = _spread(case, target)
    if not delta > 0 or not math.isfinite(measured):
        return Size(target, math.nan, FEWEST, 1, SHORTEST_S, predicted=False, spread=how)
    requests = math.ceil(max(FEWEST, together * 2 * (SIGMAS * sigma * measured / delta) ** 2))
    start = NOISE * measured / TRUST
    starts = max(1, math.ceil(2 * (SIGMAS * start / delta) ** 2 - 0.5))
    each = math.ceil(max(FEWEST, requests / starts))
    rate = case.work.rate_per_s
    return Size(
        target, delta, each, starts, max(SHORTEST_S, each / rate if rate else SHORTEST_S), predicted=predicted, spread=how
    )


def _spread(case: Case, target: str) -> tuple[float, float, str]:
    """Coefficient of variation of requests, and how many neighbours count as one (variance of means of blocks over that of single ones)."""
    values = _values(case, target)
    if len(values) < 3 * BLOCK or not values.mean() > 0:
        return 1.0, 3.0, "spread of requests assumed: as large as their mean"
    blocks = values[: len(values) // BLOCK * BLOCK].reshape(-1, BLOCK).mean(1)
    together = float(min(max(BLOCK * blocks.var(ddof=1) / max(float(values.var()), 1e-18), 1.0), BLOCK))
    return float(values.std() / values.mean()), together, "spread of the requests here"


def _values(case: Case, target: str) -> Array:
    """The target of each request in order of arrival, where request records are there."""
    found = []
    for e in case.window.engines:
        row = e.request
        if not len(row.get("arrival_ts", ())):
            return np.zeros(0)
        order = np.argsort(row["arrival_ts"], kind="stable")
        per = np.maximum(row["output_tokens"] - 1, 1) if target == "tpot" else 1.0
        each = row["decode_s" if target == "tpot" else f"{target}_s"] / per
        found.append(each[order])
    values = np.concatenate(found) if found else np.zeros(0)
    return np.asarray(values[np.isfinite(values)])


def plan(case: Case, effects: Mapping[str, Effect], measure: str) -> str:
    """Load, length, sample size and what to measure, as one paragraph."""
    size = size_of(case, effects)
    times = "one start" if size.starts == 1 else f"{size.starts} starts"
    what = (
        f"the predicted {amount(size.effect_s)} of {size.target.upper()}"
        if size.predicted
        else f"an effect of {100 * SEEN:.0f} % of E2E, as nothing is predicted"
    )
    return (
        f"load: {load(case)}; length: {times} a side with at least {size.requests} requests each, {size.seconds:.0f} s, for {what} "
        f"({size.spread}; two starts differ by up to {100 * NOISE:.0f} %); measure: {measure}"
    )


def load(case: Case) -> str:
    """The window's load in words, as a test has to repeat it."""
    w = case.work
    parts = [f"{w.rate_per_s:.2g} requests a second" if w.rate_per_s else "the same arrivals"]
    if w.loop == "closed" and w.in_flight_mean:
        parts = [f"{w.in_flight_mean:.0f} clients, each waiting for its answer"]
    parts += [f"{name} of {x.mean:.0f} tokens" for name, x in (("prompts", w.prompt), ("outputs", w.output)) if x]
    if w.hit_ratio is not None and w.hit_ratio > 0.01:
        parts.append(f"{100 * w.hit_ratio:.0f} % of prompt tokens shared as here")
    return ", ".join(parts)
