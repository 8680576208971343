"""What an incident cost: the events over an objective, the minutes that had too many of them, the error budget they spent."""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from analyzers.model import Attribution, Impact
from analyzers.slo import Points, Slo
from app.alerts.points import points
from app.store import Store

ASSUMED: Final = 0.99  # the share that must be good where only seconds are given
MINUTE_S: Final = 60.0


def impacts(
    store: Store, judged: Attribution, slo: Mapping[str, float], objectives: Sequence[Slo], start: float | None, end: float | None
) -> tuple[Impact, ...]:  # fmt: skip
    """One impact an objective: those given in full first, then seconds by target, of which the share is assumed."""
    given = [Slo(f"{name.upper()} at most {seconds:g} s", name, ASSUMED, seconds) for name, seconds in slo.items()]
    # the bounds that were asked for: of several servers each has its own first scrape inside
    span = (judged.start if start is None else start, judged.end if end is None else end)
    whole = [_impact(store, judged, one, span, assumed=False) for one in objectives]
    return (*whole, *(_impact(store, judged, one, span, assumed=True) for one in given))


def _impact(store: Store, judged: Attribution, slo: Slo, span: tuple[float | None, float | None], *, assumed: bool) -> Impact:
    bare = Impact(slo.name, slo.kind, slo.threshold_s, slo.objective, assumed, period_s=None if assumed else slo.period_s)
    low, high = span
    if judged.start is None or low is None or high is None:
        return _missing(bare, "the recording carries no clock")
    found = points(store, slo, low, high, [f"{e.instance}/{e.engine}" for e in judged.engines])
    if found.missing:
        return _missing(bare, found.missing)
    if not found.total.sum():
        return _missing(bare, "no events in the window")
    roles = {e.role for e in judged.engines}
    twice = ("a request counts on the prefill server and on the decode server",) if "decode" in roles else ()
    return _counted(bare, found, low, twice)


def _missing(bare: Impact, why: str) -> Impact:
    return Impact(bare.name, bare.kind, bare.threshold_s, bare.objective, bare.assumed, period_s=bare.period_s, missing=why)


def _counted(bare: Impact, found: Points, start: float, said: tuple[str, ...]) -> Impact:
    """Sums over the window, and over each of its minutes."""
    minute = np.maximum(np.floor((found.ts - start) / MINUTE_S), 0).astype(int)
    total, bad = (np.bincount(minute, weights=values) for values in (found.total, found.bad))
    over = (total > 0) & (bad > (1 - bare.objective) * total)
    wrong = found.ts[found.bad > 0]
    return Impact(
        bare.name, bare.kind, bare.threshold_s, bare.objective, bare.assumed, float(found.total.sum()), float(found.bad.sum()),
        float(found.least.sum()), float(found.most.sum()), int((total > 0).sum()), int(over.sum()), float(wrong[0]) if len(wrong) else None,
        bare.period_s, found.source, None, (*found.notes, *said),
    )  # fmt: skip
