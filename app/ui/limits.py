"""What the objectives ask of the judgement: which targets miss theirs, each by its own share of requests, not by a mean."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from analyzers.slo import EXPLAINED_BY, Slo
from app.alerts import history, loop
from app.alerts.measure import events, scope
from app.store import Store


@dataclass(frozen=True, slots=True)
class Goal:
    """An objective over a window: good events of all, 0-1 (None: not measured, `missing` says why)."""

    slo: Slo
    good_ratio: float | None
    missing: str = ""

    @property
    def met(self) -> bool | None:
        """Whether enough events were good; None: not measured."""
        return None if self.good_ratio is None else self.good_ratio >= self.slo.objective


def goal(store: Store, slo: Slo, engines: Sequence[str], low: float, high: float) -> Goal:
    """How many events of a window met an objective."""
    seen = events(store, slo, scope(store, slo, engines), low, high, slice_s=math.inf)
    total = float(np.sum(seen.total))
    if seen.missing or not total:
        return Goal(slo, None, seen.missing or "no event in this window")
    return Goal(slo, 1.0 - float(np.sum(seen.bad)) / total)


def missed(found: Sequence[Goal]) -> Mapping[str, str]:
    """The targets whose objective was missed, with its name. Goodput does not say which of its two targets it was: left out."""
    names: dict[str, list[str]] = {}
    for one in found:
        target = EXPLAINED_BY.get(one.slo.kind)
        if one.met is False and target and one.slo.kind != "queue":
            names.setdefault(target, []).append(one.slo.name)
    return {target: " and ".join(each) for target, each in names.items()}


def all_of(store: Store) -> tuple[Slo, ...]:
    """The objectives of the file and of the dashboard."""
    return history.all_slos(store, loop.current())
