"""A window ready for hypotheses: each engine's books, its twin where one holds, and what a change would do to its targets."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from analyzers.attribute import adjust
from analyzers.books import Books, books
from analyzers.model import TARGETS, Attribution, Effect, Engine, Stage, Window
from analyzers.twin import Setup, Twin, simulate, twin_of
from analyzers.workload import Workload, workload

SURE: Final = 0.2  # share of a predicted effect that its range leaves on both sides (measured errors: tests/accuracy)
SMALL: Final = 0.02  # share of a target below which a predicted effect is called none


@dataclass(frozen=True, slots=True)
class Case:
    """What hypotheses judge: the window, its attribution, workload, and per engine the books and the twin (None: none that holds)."""

    window: Window
    attribution: Attribution
    work: Workload
    accounts: tuple[Books, ...]
    twins: tuple[Twin | None, ...]

    @property
    def engine(self) -> Engine:
        """The first engine: arguments and version are the deployment's."""
        return self.window.engines[0]

    def fact(self, name: str) -> Any:
        """A fact of the deployment, None where it is unknown."""
        return self.engine.facts.get(name)

    def fault(self, link: str, target: str = "e2e") -> float:
        """Fault seconds of a link in a target of the fleet; 0 where there are none or they are unknown."""
        found = self.attribution.targets.get(target)
        if found is None or not found.parts:
            return 0.0
        return found.part(link).fault_s or 0.0

    def seconds(self, link: str, target: str) -> float:
        """Seconds of a link in a target of the fleet; 0 where unknown."""
        found = self.attribution.targets.get(target)
        return (found.part(link).seconds or 0.0) if found is not None and found.parts else 0.0

    def measured(self, target: str) -> float | None:
        """The fleet's measured value of a target."""
        found = self.attribution.targets.get(target)
        return found.measured_s if found else None

    def limiting(self) -> set[str]:
        """Links that limit any target of the fleet or of an engine."""
        every = [t for t in self.attribution.targets.values() if t] + [
            t for e in self.attribution.engines for t in e.targets.values()
        ]
        return {t.limiting for t in every if t.limiting}


def case_of(window: Window, attribution: Attribution) -> Case:
    """Prepare a window for hypotheses: replays each engine once to calibrate its twin."""
    found = [b for b in (books(e) for e in window.engines) if b is not None]
    accounts = tuple(adjust(b) for b in found)
    twins = tuple(t if t is not None and t.holds else None for t in (twin_of(b) for b in accounts))
    return Case(window, attribution, workload(window), accounts, twins)


def by_twin(case: Case, change: Callable[[Setup, Books], Setup]) -> dict[str, Effect] | None:
    """Effect of a changed engine on each target, averaged over engines by requests; None where an engine has no twin that holds."""
    if not case.twins or any(t is None for t in case.twins):
        return None
    weights = [b.requests for b in case.accounts]
    totals = dict.fromkeys(TARGETS, 0.0)
    for twin, accounts, weight in zip(case.twins, case.accounts, weights, strict=True):
        assert twin is not None
        changed = simulate(twin.load, change(twin.setup, accounts))
        for name in TARGETS:
            totals[name] += twin.difference(changed, name) * weight
    return {name: effect(total / sum(weights), case.measured(name)) for name, total in totals.items()}


def effect(saves_s: float | None, measured: float | None, sure: float = SURE) -> Effect:
    """An effect with its range; a tiny one is none."""
    if saves_s is None or not math.isfinite(saves_s):
        return Effect(None)
    if measured and abs(saves_s) < SMALL * measured:
        return Effect(0.0, (-SMALL * measured, SMALL * measured))
    spread = sure * abs(saves_s)
    return Effect(saves_s, (saves_s - spread, saves_s + spread))


def by_books(case: Case, link: str, share: float = 1.0, sure: float = SURE) -> dict[str, Effect]:
    """Effect of taking away a share of a link, as the books value it."""
    out = {}
    for name in TARGETS:
        found = case.attribution.targets.get(name)
        part = found.part(link) if found is not None and found.parts else None
        out[name] = effect(None if part is None or part.saves_s is None else share * part.saves_s, case.measured(name), sure)
    return out


UNPREDICTED: Final[Mapping[str, Effect]] = {name: Effect(None) for name in TARGETS}


def shared(stage: Stage, case: Case) -> float:
    """Mean seconds of a stage over the fleet's requests."""
    whole = sum(b.requests for b in case.accounts)
    return sum(b.stages[stage] * b.requests for b in case.accounts) / max(whole, 1)


def scaled(setup: Setup, **factors: float) -> Setup:
    """A setup with fields times factors."""
    return replace(setup, **{name: type(getattr(setup, name))(getattr(setup, name) * factor) for name, factor in factors.items()})
