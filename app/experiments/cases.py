"""Recordings as cases: what a command line or a page asks about hypotheses, answered from a store."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from analyzers.attribute import attribute
from analyzers.capacity import planned
from analyzers.case import Case, case_of
from analyzers.course import cut_of
from analyzers.experiment import Experiment, judge
from analyzers.hypotheses import HYPOTHESES, module_of, recommended
from analyzers.model import Attribution, Engine, Event, Hypothesis, Window
from analyzers.workload import Workload, drift, workload
from app.pipeline import facts_of, window_of
from app.store import Store

MIN_HALF_S: Final = 30.0  # a recording shorter than this has no halves worth comparing
NAMES: Final[tuple[str, ...]] = tuple(module.NAME for module in HYPOTHESES)


@dataclass(frozen=True, slots=True)
class Judged:
    """A judged experiment with what it was judged against; `hypothesis` None: the change does not apply to the window before."""

    name: str | None
    hypothesis: Hypothesis | None
    experiment: Experiment
    conditions: tuple[str, ...]


def case_for(
    window: Window,
    *,
    slo: Mapping[str, float] | None = None,
    baseline: Attribution | None = None,
    given: Mapping[str, float] | None = None,
) -> Case:
    """A window judged and prepared for hypotheses."""
    return case_of(window, attribute(window, slo=slo, baseline=baseline), given, slo)


def hypotheses_for(case: Case, objective: str) -> list[Hypothesis]:
    """What to recommend, best first."""
    return recommended(case, objective)


def proposal(case: Case, name: str) -> Hypothesis | None:
    """A hypothesis of a case by its name; None where it does not apply. KeyError: no such name."""
    found: Hypothesis | None = module_of(name).propose(case)
    return found


def predicted(before: Window, name: str, given: Mapping[str, float] | None = None) -> Hypothesis | None:
    """A hypothesis with its prediction from the window before alone; None where it does not apply to it. KeyError: no such name."""
    return proposal(case_for(before, given=given), name) if before.engines else None


def judged(before: Window, after: Window, name: str | None, hypothesis: Hypothesis | None = None) -> Judged:
    """Judge two windows; with a name, against the prediction from the one before (or `hypothesis`, where it was made then)."""
    if name is None:
        found = judge(before, after)
        return Judged(None, None, found, found.conditions)
    promise = hypothesis or predicted(before, name)
    found = judge(before, after, promise, module_of(name).TOUCHES)
    said = () if promise else (f"{name} does not apply to the recording before: judged without a prediction",)
    return Judged(name, promise, found, (*said, *found.conditions))


def of_bundle(store: Store, bundle: str) -> Window:
    """The window of one recording of the store; without engines where it is not there."""
    rows = store.rows("SELECT instances, start_ts, end_ts FROM recording WHERE bundle = ?", [bundle])
    if not rows:
        return Window(None, None, ())
    instances, start, end = rows[0]
    found = window_of(store, start, end)
    kept = tuple(e for e in found.engines if e.instance in instances or not instances)
    return Window(found.start, found.end, kept, found.restarts)


def events_of(store: Store) -> tuple[Event, ...]:
    """Everything that logs, command lines and configurations said, whatever server it is of."""
    rows = store.rows("SELECT ts, engine, kind, fields, file, line FROM event_row ORDER BY file, line")
    return tuple(Event(math.nan if r[0] is None else r[0], r[1], r[2], json.loads(r[3]), r[4], r[5]) for r in rows)


def engine_to_plan(store: Store, gpu: str | None) -> Engine | None:
    """An engine for the capacity sheet: one that ran, else what a command line and a config.json say; None where neither is there."""
    window = window_of(store)
    if window.engines:
        first = next((e for e in window.engines if e.facts.get("shape")), window.engines[0])
        named = {**first.facts, "device_name": gpu} if gpu else first.facts
        return replace(first, facts=named)
    events = events_of(store)
    shape: dict[str, Any] = facts_of(store, None, "0", events)["shape"]
    args = {name: value for event in events if event.kind == "args" for name, value in event.fields.items()}
    return planned(shape, args, gpu) if shape else None


def halves(store: Store) -> tuple[str, ...]:
    """How the workload of the second half of what the store holds differs from the first; nothing without a clock."""
    return drift_of(window_of(store))


def drift_of(window: Window) -> tuple[str, ...]:
    """How the workload of the second half of a window differs from the first, over its engines; nothing without a clock."""
    if window.start is None or window.end is None or not window.end - window.start > MIN_HALF_S:
        return ()
    middle = (window.start + window.end) / 2
    first, second = (_stream(window, *span) for span in ((window.start, middle), (middle, window.end)))
    return drift(first, second)


def _stream(window: Window, low: float, high: float) -> Workload:
    """What came to the engines of a window in (low, high]; quantiles are those of the whole window."""
    part = replace(window, engines=tuple(cut_of(e, low, high) for e in window.engines))
    return replace(workload(part), rate_per_s=_arrivals_per_s(part))


def _arrivals_per_s(window: Window) -> float | None:
    """Requests a second that came into the engines of a half: finished ones and those more in the engine, while any came."""
    came, span = 0.0, 0.0
    for row in (e.interval for e in window.engines if len(e.interval.get("ts", ()))):
        before = np.nan_to_num(row["running_before"]) + np.nan_to_num(row["waiting_before"])
        each = np.nan_to_num(row["e2e_n"]) + np.nan_to_num(row["running"]) + np.nan_to_num(row["waiting"]) - before
        some = np.flatnonzero(each > 0)
        if len(some):
            came += float(each.sum())
            span = max(span, float(row["ts"][some[-1]] - row["ts"][some[0]] + row["dt_s"][some[0]]))
    return came / span if span > 0 else None


def wanted(store: Store) -> tuple[float | None, float | None]:
    """Context and concurrency of a recording: p99 of prompts and of outputs together, and the most in one engine; None: unknown."""
    window = window_of(store)
    if not window.engines:
        return None, None
    found = workload(window)
    if found.prompt is None or found.output is None:
        return None, found.in_flight_engine_max
    longest = [x.quantiles.get("p99", x.mean) for x in (found.prompt, found.output)]
    tokens = sum(x for x in longest if math.isfinite(x))
    return tokens or None, found.in_flight_engine_max
