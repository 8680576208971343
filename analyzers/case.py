"""A window ready for hypotheses: each engine's books, its twin where one holds, and what a change would do to its targets."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from analyzers.attribute import adjust
from analyzers.books import Books, books
from analyzers.combine import roles
from analyzers.model import TARGETS, Attribution, Effect, Engine, Part, Stage, Window
from analyzers.twin import GATE, Load, Result, Setup, Twin, simulate, twin_of
from analyzers.workload import Workload, workload

SURE: Final = 0.2  # share of a predicted effect that its range leaves on both sides (measured errors: tests/accuracy)
MOSTLY: Final = 0.5
SHORT: Final = 0.1  # share of the engine's seconds below which a wait that the twin misses does not spoil the rest
SMALL: Final = 0.02  # share of a target below which a predicted effect is called none
CONTRIBUTES: Final = 0.05  # share of a target from which a link is worth naming
FLOOR: Final = "floor"  # what limits an objective that is missed without a fault or much load: the work itself
UNPREDICTED: Final[Mapping[str, Effect]] = {name: Effect(None) for name in TARGETS}


@dataclass(frozen=True, slots=True)
class Change:
    """What a change does to each engine: its new setup, and into how many engines each one becomes (its requests dealt out in turn)."""

    setup: Callable[[Setup, Books], Setup]
    engines: int = 1


@dataclass(frozen=True, slots=True)
class Case:
    """What hypotheses judge: the window, its attribution, workload, and per engine the books and the twin (None: none that holds).

    `given` holds what no recording can say and the user does (accepted_length, offload_bytes_per_s), `missed` the targets whose
    objective is missed. `done` keeps replays.
    """

    window: Window
    attribution: Attribution
    work: Workload
    accounts: tuple[Books, ...]
    twins: tuple[Twin | None, ...]
    given: Mapping[str, float] = field(default_factory=dict)
    missed: frozenset[str] = frozenset()
    done: dict[tuple[int, Setup, int], Result] = field(default_factory=dict, repr=False, compare=False)

    @property
    def engine(self) -> Engine:
        """The first engine: arguments and version are the deployment's."""
        return self.window.engines[0]

    @property
    def args(self) -> Mapping[str, Any]:
        """The engine's arguments; those that are not set are missing."""
        found: Mapping[str, Any] = self.engine.facts.get("args") or {}
        return found

    def fact(self, name: str) -> Any:
        """A fact of the deployment, None where it is unknown."""
        return self.engine.facts.get(name)

    def part(self, link: str, target: str) -> Part | None:
        """A link's part of a target of the fleet; None where the target is unknown, and of the floor."""
        found = self.attribution.targets.get(target)
        return found.part(link) if found is not None and found.parts and link != FLOOR else None

    def fault(self, link: str, target: str = "e2e") -> float:
        """Fault seconds of a link in a target of the fleet; 0 where there are none or they are unknown."""
        part = self.part(link, target)
        return (part.fault_s or 0.0) if part else 0.0

    def seconds(self, link: str, target: str) -> float:
        """Seconds of a link in a target of the fleet; 0 where unknown."""
        part = self.part(link, target)
        return (part.seconds or 0.0) if part else 0.0

    def bound(self, link: str, target: str) -> float:
        """The most that an unknown link could be of a target; 0 where it is known or cannot matter."""
        part = self.part(link, target)
        return (part.bound_s or 0.0) if part else 0.0

    def measured(self, target: str) -> float | None:
        """The fleet's measured value of a target."""
        found = self.attribution.targets.get(target)
        return found.measured_s if found else None

    def limited(self, target: str) -> bool:
        """True where the fleet's target is limited, or its objective is missed."""
        found = self.attribution.targets.get(target)
        return target in self.missed or (found is not None and found.verdict == "limited")

    def limiting(self) -> set[str]:
        """Links that limit any target of the fleet or of an engine; FLOOR where an objective is missed and is mostly the work itself."""
        every = [t for t in self.attribution.targets.values() if t] + [
            t for e in self.attribution.engines for t in e.targets.values()
        ]
        missed = [t for name in self.missed if (t := self.attribution.targets.get(name)) is not None]
        floor = {FLOOR for t in missed if t.verdict == "healthy" or (t.floor_s or 0.0) > MOSTLY * (t.measured_s or math.inf)}
        return {t.limiting for t in every if t.limiting} | floor

    def mean(self, take: Callable[[Books], float]) -> float:
        """A number of the books, averaged over engines by requests; NaN where an engine does not say it."""
        whole = sum(b.requests for b in self.accounts)
        return sum(take(b) * b.requests for b in self.accounts) / whole if whole else math.nan

    def split(self) -> bool:
        """True where prompts and answers are computed on servers of their own."""
        return "decode" in roles(self.window.engines)


def case_of(
    window: Window,
    attribution: Attribution,
    given: Mapping[str, float] | None = None,
    slo: Mapping[str, float] | None = None,
) -> Case:
    """Prepare a window for hypotheses: replays each engine once to calibrate its twin. `slo` holds limits in seconds by target."""
    found = [b for b in (books(e) for e in window.engines) if b is not None]
    accounts = tuple(adjust(b) for b in found)
    twins = tuple(t if t is not None and usable(t) else None for t in (twin_of(b) for b in accounts))
    measured = {name: t.measured_s for name, t in attribution.targets.items() if t is not None and t.measured_s is not None}
    missed = frozenset(name for name, limit in (slo or {}).items() if measured.get(name, 0.0) > limit)
    return Case(window, attribution, workload(window), accounts, twins, dict(given or {}), missed)


def holds(twin: Twin, part: str) -> bool:
    """True where a twin meets what was measured of a part, "ttft" or "decode"; also where there was nothing of it."""
    value = twin.gate[part]
    return not math.isfinite(value) or GATE[0] <= value <= GATE[1]


def usable(twin: Twin) -> bool:
    """True where decode meets what was measured, and the wait does or hardly matters: of a short one the twin only knows the steps."""
    wait = twin.measured["queue"] + twin.measured["prefill"]
    return holds(twin, "decode") and (holds(twin, "ttft") or wait < SHORT * (wait + twin.measured["decode"]))


# -- effects ----------------------------------------------------------------------------------------------------------------
def by_twin(case: Case, change: Change | Callable[[Setup, Books], Setup]) -> dict[str, Effect] | None:
    """Effect of a changed engine on each target, averaged over engines by requests; None where an engine has no twin that holds.

    Where a twin misses a wait that is short beside decode, nothing is said of TTFT, and E2E is what decode saves.
    """
    if not case.twins or any(t is None for t in case.twins):
        return None
    changed = change if isinstance(change, Change) else Change(change)
    weights = [b.requests for b in case.accounts]
    totals = dict.fromkeys(TARGETS, 0.0)
    waits = all(t is not None and holds(t, "ttft") for t in case.twins)
    for at, (twin, accounts, weight) in enumerate(zip(case.twins, case.accounts, weights, strict=True)):
        assert twin is not None
        other = replayed(case, at, changed.setup(twin.setup, accounts), changed.engines)
        for name in TARGETS:
            totals[name] += twin.difference(other, name if waits or name != "e2e" else "decode") * weight
    found = {name: effect(total / sum(weights), case.measured(name)) for name, total in totals.items()}
    return found if waits else {**found, "ttft": Effect(None)}


def replayed(case: Case, at: int, setup: Setup, engines: int = 1) -> Result:
    """The load of one engine on another setup, its requests dealt out in turn to `engines` of them; each replay is done once."""
    twin = case.twins[at]
    assert twin is not None
    if setup == twin.setup and engines == 1:
        return twin.base
    key = (at, setup, engines)
    if key not in case.done:
        parts = [simulate(_every(twin.load, first, engines), setup) for first in range(engines)]
        queue, prefill, decode = (
            np.concatenate(each) for each in ([p.queue for p in parts], [p.prefill for p in parts], [p.decode for p in parts])
        )
        delay = sum(p.delay * len(p.queue) for p in parts) / max(1, len(queue))
        case.done[key] = Result(queue, prefill, decode, sum(p.preemptions for p in parts), delay)
    return case.done[key]


def _every(load: Load, first: int, step: int) -> Load:
    """Every `step`-th request of a load; of closed loops every `step`-th client."""
    if step == 1:
        return load
    keep = (
        np.arange(first, len(load.arrival), step)
        if load.client is None
        else np.flatnonzero(load.client.astype(int) % step == first)
    )
    return load.only(keep)


def between(low: Mapping[str, Effect] | None, high: Mapping[str, Effect] | None) -> dict[str, Effect] | None:
    """The middle of two effects, with a range over both; None where one is missing."""
    if low is None or high is None:
        return None
    out = {}
    for name in TARGETS:
        a, b = low[name], high[name]
        if a.saves_s is None or b.saves_s is None or a.range_s is None or b.range_s is None:
            out[name] = Effect(None)
        else:
            ends = (*a.range_s, *b.range_s)
            out[name] = Effect((a.saves_s + b.saves_s) / 2, (min(ends), max(ends)))
    return out


def effect(saves_s: float | None, measured: float | None, sure: float = SURE) -> Effect:
    """An effect with its range; a tiny one is none."""
    if saves_s is None or not math.isfinite(saves_s):
        return Effect(None)
    if measured and abs(saves_s) < SMALL * measured:
        return Effect(0.0, (-SMALL * measured, SMALL * measured))
    spread = sure * abs(saves_s)
    most = max(saves_s, measured) if measured else math.inf  # nobody saves more than there is
    return Effect(saves_s, (saves_s - spread, min(saves_s + spread, most)))


def within(case: Case, most: Mapping[str, float | None]) -> dict[str, Effect]:
    """Effects that cannot be predicted, with the most (seconds by target) that they could be; nothing known: no range."""
    out = {}
    for name in TARGETS:
        value, measured = most.get(name), case.measured(name)
        known = value is not None and math.isfinite(value) and measured is not None and value > SMALL * measured
        out[name] = Effect(None, (0.0, min(float(value), measured)) if known and value is not None and measured is not None else None)
    return out


def by_books(case: Case, link: str, share: float = 1.0, sure: float = SURE) -> dict[str, Effect]:
    """Effect of taking away a share of a link, as the books value it."""
    out = {}
    for name in TARGETS:
        part = case.part(link, name)
        out[name] = effect(None if part is None or part.saves_s is None else share * part.saves_s, case.measured(name), sure)
    return out


def shared(stage: Stage, case: Case) -> float:
    """Mean seconds of a stage over the fleet's requests."""
    return case.mean(lambda b: b.stages[stage])


def per_target(case: Case, stages: Mapping[Stage, float]) -> dict[str, float]:
    """Seconds per request by stage as seconds of each target (TPOT: per token after the first)."""
    tokens = max(case.mean(lambda b: b.output_tokens) - 1, 1e-9)
    return {
        name: sum(value for stage, value in stages.items() if stage in inside) / (tokens if name == "tpot" else 1.0)
        for name, inside in TARGETS.items()
    }


# -- words ------------------------------------------------------------------------------------------------------------------
def amount(seconds: float | None) -> str:
    """Seconds as a sentence has them: "1.2 s", "37 ms", "0.65 ms"."""
    if seconds is None or not math.isfinite(seconds):
        return "unknown"
    return f"{seconds:.3g} s" if abs(seconds) >= 1 else f"{1000 * seconds:.3g} ms"
