"""The alert that follows from an objective: pending, firing, resolved; replays of it; silences.

Pure, as the burn is (slo.py): the clock comes in, and is not trusted.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from analyzers.model import Array
from analyzers.slo import BURNING, FEW, QUIET, SEVERITIES, Points, Slo, joined, rules_of, track

PENDING: Final = "pending"
FIRING: Final = "firing"
CALM: Final = "quiet"


@dataclass(frozen=True, slots=True)
class State:
    """Where an alert stands: quiet, pending or firing, since when, and how long what changes it has lasted.

    `held_s` and `calm_s` add up what passed between evaluations that said the same, so that neither a clock that jumps nor
    evaluations that did not happen count as time observed.
    """

    phase: str = CALM
    at: float | None = None
    since: float | None = None
    held_s: float = 0.0
    calm_s: float | None = None  # None: the last word was not "quiet"
    verdict: int = QUIET


def step(state: State, now: float, verdict: int, *, pending_s: float, keep_s: float) -> State:
    """The state after an evaluation. What is unknown changes nothing: a gap neither fires nor resolves.

    A clock that goes back counts as no time passed; one that leaps ahead, or evaluations that were missed, as no more than
    one of the two spans, so that firing and resolving need two evaluations that agree (unless the span is 0).
    """
    same = state.at is not None and state.verdict == verdict
    passed = min(max(0.0, now - (state.at or now)), max(pending_s, keep_s)) if same else 0.0
    state = replace(state, at=now, verdict=verdict)
    if state.phase == FIRING:
        if verdict in {BURNING, FEW}:
            return replace(state, calm_s=None)
        if verdict != QUIET:
            return state
        calm = 0.0 if state.calm_s is None else state.calm_s + passed
        return State(CALM, now, now, verdict=verdict) if calm >= keep_s else replace(state, calm_s=calm)
    if verdict == BURNING:
        held = state.held_s + passed if state.phase == PENDING else 0.0
        since = state.since if state.phase == PENDING else now
        return replace(state, phase=FIRING if held >= pending_s else PENDING, since=since, held_s=held, calm_s=None)
    if verdict in {QUIET, FEW} and state.phase == PENDING:
        return State(CALM, now, now, verdict=verdict)
    return state


@dataclass(frozen=True, slots=True)
class Episode:
    """An alert of a replay: pending since, firing since, resolved (None: still firing at the end), its highest long burn."""

    severity: str
    pending_ts: float
    fired_ts: float
    resolved_ts: float | None
    peak_burn: float


def episodes(slo: Slo, points: Points, at: Array) -> tuple[Episode, ...]:
    """The alerts that evaluations at the instants `at` would have raised, one after the other."""
    found: list[Episode] = []
    tracks = [track(slo, points, rule, at) for rule in rules_of(slo)]
    for severity in SEVERITIES:
        mine = [one for one in tracks if one.rule.severity == severity]
        if not mine:
            continue
        peak = np.nanmax(np.stack([np.nan_to_num(one.long_burn) for one in mine]), axis=0)
        found += _episodes(slo, severity, at, joined([one.verdict for one in mine]), peak)
    return tuple(sorted(found, key=lambda one: one.fired_ts))


def _episodes(slo: Slo, severity: str, at: Array, verdicts: Array, peak: Array) -> list[Episode]:
    found: list[Episode] = []
    state, highest = State(), 0.0
    for now, verdict, burn in zip(at.tolist(), verdicts.tolist(), peak.tolist(), strict=True):
        before, state = state, step(state, now, verdict, pending_s=slo.pending_s, keep_s=slo.keep_s)
        if state.phase == FIRING:
            highest = max(burn, highest) if before.phase == FIRING else burn
            if before.phase != FIRING:
                found.append(Episode(severity, state.since or now, now, None, burn))
            found[-1] = replace(found[-1], peak_burn=highest)
        elif before.phase == FIRING:
            found[-1] = replace(found[-1], resolved_ts=now)
    return found


@dataclass(frozen=True, slots=True)
class Silence:
    """A span in which nothing is sent for an objective (None: all) and severity (None: both); alerts are still recorded."""

    slo: str | None
    severity: str | None
    start: float
    end: float


def silenced(silences: Sequence[Silence], slo: str, severity: str, now: float) -> bool:
    """Whether one of the silences covers this alert now."""
    return any(one.start <= now < one.end and one.slo in {None, slo} and one.severity in {None, severity} for one in silences)
