"""Service level objectives: how fast the error budget burns, what is left of it, and the alert that follows.

An objective says which share of events must be good over a period; the rest is the error budget. A burn of 1 spends it
exactly in the period. An alert needs a high burn over a long window (enough budget is gone to matter) and over a short one
(it is still going on): multi-window, multi-burn-rate alerting of the SRE workbook. Seconds and ratios 0-1 throughout; clocks
and counts come in as arguments.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from analyzers.model import Array

DAY_S: Final = 86400.0
PAGE: Final = "page"
TICKET: Final = "ticket"
SEVERITIES: Final = (PAGE, TICKET)  # most urgent first

KINDS: Final[Mapping[str, str]] = {
    "ttft": "time to first token",
    "itl": "inter-token latency",
    "tpot": "time per output token of a request",
    "e2e": "end-to-end latency",
    "queue": "time in the queue",
    "goodput": "requests that meet TTFT and TPOT both",
    "errors": "requests that fail or are aborted",
    "availability": "scrapes that the server answers",
}
TIMED: Final = ("ttft", "itl", "tpot", "e2e", "queue", "goodput")  # kinds with a threshold
# The attribution that explains a kind; goodput takes the one that is missed more, errors and availability have none.
EXPLAINED_BY: Final[Mapping[str, str]] = {"ttft": "ttft", "queue": "ttft", "itl": "tpot", "tpot": "tpot", "e2e": "e2e"}

NEAR: Final = 0.1  # of a bucket's width: nearer to an edge than this, interpolation hardly matters


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of a burn-rate table: alert where `budget_ratio` of the period's budget goes within `long_s`.

    `short_s` is the second window: without it an alert would go on for the whole long window after the burn has ended.
    """

    severity: str
    budget_ratio: float
    long_s: float
    short_s: float


# Google, The Site Reliability Workbook (2018), chapter 5 "Alerting on SLOs", table 5-8 "Recommended parameters for an
# SLO-based alerting configuration"; https://sre.google/workbook/alerting-on-slos/. Budget shares and windows are the table's,
# for its period of 30 days; the burn rates follow from them (`factor`): 14.4, 6 and 1.
WORKBOOK_PERIOD_S: Final = 30 * DAY_S
WORKBOOK: Final = (
    Rule(PAGE, budget_ratio=0.02, long_s=3600.0, short_s=300.0),
    Rule(PAGE, budget_ratio=0.05, long_s=6 * 3600.0, short_s=1800.0),
    Rule(TICKET, budget_ratio=0.10, long_s=3 * DAY_S, short_s=6 * 3600.0),
)


@dataclass(frozen=True, slots=True)
class Slo:
    """An objective. `threshold_s` is what a good event does not exceed (goodput: TTFT, with `tpot_s` beside it).

    `model` and `engine` ("1" or "host:port/1") select; None: all. `minimum`: events in the long window below which nothing is
    raised. `pending_s`: how long a burn must last before it fires, `keep_s`: how long it must be over before it resolves.
    `rules` None: the workbook's table, its windows scaled from 30 days to the period.
    """

    name: str
    kind: str
    objective: float
    threshold_s: float | None = None
    tpot_s: float | None = None
    period_s: float = WORKBOOK_PERIOD_S
    model: str | None = None
    engine: str | None = None
    minimum: int = 20
    pending_s: float = 30.0
    keep_s: float = 300.0
    rules: tuple[Rule, ...] | None = None

    @property
    def budget_ratio(self) -> float:
        """The share of events that may be bad."""
        return 1.0 - self.objective


def rules_of(slo: Slo) -> tuple[Rule, ...]:
    """The burn-rate table of an objective; the workbook's windows are scaled with the period, to whole seconds."""
    if slo.rules is not None:
        return slo.rules
    scale = slo.period_s / WORKBOOK_PERIOD_S
    return tuple(
        replace(rule, long_s=float(max(1, round(rule.long_s * scale))), short_s=float(max(1, round(rule.short_s * scale))))
        for rule in WORKBOOK
    )


def factor(rule: Rule, period_s: float) -> float:
    """The burn rate that spends the rule's share of the budget in its long window."""
    return rule.budget_ratio * period_s / rule.long_s


# -- buckets ------------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Edges:
    """The edges of a histogram around a threshold. `far`: so far inside a bucket that the share above it is a guess."""

    low_s: float
    high_s: float
    far: bool


def edges_around(edges: Sequence[float], threshold_s: float) -> Edges:
    """The nearest edges at or below and at or above the threshold; below the first edge 0, above the last infinity."""
    low = max((edge for edge in edges if edge <= threshold_s), default=0.0)
    high = min((edge for edge in edges if edge >= threshold_s), default=math.inf)
    return Edges(low, high, distance(low, high, threshold_s) > NEAR)


def distance(low_s: float, high_s: float, threshold_s: float) -> float:
    """How far a threshold is from the nearer edge of its bucket, as a share of the bucket's width (0 - 0.5; infinite bucket: 1)."""
    if low_s == high_s or threshold_s in {low_s, high_s}:
        return 0.0
    return min(threshold_s - low_s, high_s - threshold_s) / (high_s - low_s) if math.isfinite(high_s) else 1.0


def above(threshold_s: float, total: Array, low_s: Array, high_s: Array, upto_low: Array, upto_high: Array) -> tuple[Array, ...]:
    """How many events exceed a threshold: (estimate, least, most), interpolated linearly in the bucket that holds it.

    `upto_low` and `upto_high` count events up to the bucket's edges. In the last, infinite bucket the estimate is the most.
    """
    most, least = total - upto_low, total - upto_high
    width = np.where(np.isfinite(high_s) & (high_s > low_s), high_s - low_s, np.inf)
    inside = np.where(high_s > low_s, np.clip((threshold_s - low_s) / width, 0.0, 1.0), 1.0)
    return most - inside * (most - least), least, most


# -- burn ---------------------------------------------------------------------------------------------------------------------
def _none() -> Array:
    return np.zeros(0)


@dataclass(frozen=True, slots=True)
class Points:
    """Events of one objective in the order of time: at `ts` it became known that of `total` events `bad` were bad.

    `least` and `most` bound `bad` where it is interpolated. `seen` holds, by server, the instants at which it was observed,
    `busy_ts`/`busy` the requests in flight. `missing` says why nothing can be measured at all.
    """

    ts: Array = field(default_factory=_none)
    total: Array = field(default_factory=_none)
    bad: Array = field(default_factory=_none)
    least: Array = field(default_factory=_none)
    most: Array = field(default_factory=_none)
    seen: Mapping[str, Array] = field(default_factory=dict)
    busy_ts: Array = field(default_factory=_none)
    busy: Array = field(default_factory=_none)
    source: str = ""
    missing: str | None = None
    notes: tuple[str, ...] = ()


QUIET, BURNING, FEW, UNSEEN, STUCK = range(5)
SAYS: Final[Mapping[int, str]] = {
    QUIET: "quiet",
    BURNING: "burning",
    FEW: "burning, but of too few events",
    UNSEEN: "unknown: no data in the short window",
    STUCK: "unknown: requests in flight, none measured in the short window",
}


@dataclass(frozen=True, slots=True)
class Burn:
    """A rule at one instant. Burns are None where the window holds no event; `least`/`most` bound the long one."""

    rule: Rule
    factor: float
    long_burn: float | None
    short_burn: float | None
    least: float | None
    most: float | None
    events: float
    verdict: int
    unseen: tuple[str, ...] = ()


def _sums(points: Points, values: Array, at: Array, width_s: float) -> Array:
    """Sums of `values` over (at - width, at]."""
    running = np.concatenate([[0.0], np.cumsum(values)])
    first, last = np.searchsorted(points.ts, at - width_s, "right"), np.searchsorted(points.ts, at, "right")
    return np.asarray(running[last] - running[first])


def _ratio(part: Array, whole: Array) -> Array:
    return np.asarray(np.divide(part, whole, out=np.full(len(whole), np.nan), where=whole > 0))


def _any(ts: Array, at: Array, width_s: float) -> Array:
    """Whether anything lies in (at - width, at]."""
    return np.asarray(np.searchsorted(ts, at, "right") > np.searchsorted(ts, at - width_s, "right"))


def _unseen(points: Points, rule: Rule, at: Array) -> Array:
    """True where a server was observed in the long window but not in the short one, or none was observed at all."""
    lost, known = np.zeros(len(at), bool), np.zeros(len(at), bool)
    for ts in points.seen.values():
        once, now = _any(ts, at, rule.long_s), _any(ts, at, rule.short_s)
        lost |= once & ~now
        known |= now
    return lost | ~known


def _stuck(points: Points, rule: Rule, at: Array) -> Array:
    """True where the last word of the short window is that requests are in flight."""
    if not len(points.busy_ts):
        return np.zeros(len(at), bool)
    last = np.searchsorted(points.busy_ts, at, "right") - 1
    fresh = (last >= 0) & (points.busy_ts[np.maximum(last, 0)] > at - rule.short_s)
    return np.asarray(fresh & (points.busy[np.maximum(last, 0)] > 0))


@dataclass(frozen=True, slots=True)
class Track:
    """A rule over many instants: its burns (NaN: no event), their bounds, the events of the long window, the verdicts."""

    rule: Rule
    factor: float
    long_burn: Array
    short_burn: Array
    least: Array
    most: Array
    events: Array
    verdict: Array


def track(slo: Slo, points: Points, rule: Rule, at: Array) -> Track:
    """One rule at each of the instants `at`."""
    limit = factor(rule, slo.period_s)
    long_n, short_n = _sums(points, points.total, at, rule.long_s), _sums(points, points.total, at, rule.short_s)
    long_burn = _ratio(_sums(points, points.bad, at, rule.long_s), long_n) / slo.budget_ratio
    short_burn = _ratio(_sums(points, points.bad, at, rule.short_s), short_n) / slo.budget_ratio
    bounds = [_ratio(_sums(points, values, at, rule.long_s), long_n) / slo.budget_ratio for values in (points.least, points.most)]
    with np.errstate(invalid="ignore"):
        over = (long_burn > limit) & (short_burn > limit)
    verdict = np.where(over, np.where(long_n >= slo.minimum, BURNING, FEW), QUIET)
    verdict = np.where(~over & (short_n == 0) & _stuck(points, rule, at), STUCK, verdict)
    verdict = np.where(~over & _unseen(points, rule, at), UNSEEN, verdict)
    if points.missing:
        verdict = np.full(len(at), UNSEEN)
    return Track(rule, limit, long_burn, short_burn, bounds[0], bounds[1], long_n, verdict)


def burns(slo: Slo, points: Points, at: float) -> tuple[Burn, ...]:
    """Every rule of an objective at one instant."""
    found = []
    for rule in rules_of(slo):
        one = track(slo, points, rule, np.array([at]))
        lost = tuple(
            name
            for name, ts in points.seen.items()
            if _any(ts, np.array([at]), rule.long_s)[0] and not _any(ts, np.array([at]), rule.short_s)[0]
        )
        long_burn, short_burn, least, most = (
            _number(values[0]) for values in (one.long_burn, one.short_burn, one.least, one.most)
        )
        found.append(Burn(rule, one.factor, long_burn, short_burn, least, most, float(one.events[0]), int(one.verdict[0]), lost))
    return tuple(found)


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def joined(verdicts: Sequence[Array]) -> Array:
    """What the rules of one severity say together: one that burns is enough; quiet only where none is unknown."""
    held = np.stack(verdicts)
    found = np.full(held.shape[1], QUIET)
    for verdict in (STUCK, UNSEEN, FEW, BURNING):  # the last that applies is kept
        found = np.where((held == verdict).any(axis=0), verdict, found)
    return found


@dataclass(frozen=True, slots=True)
class Budget:
    """The error budget at one instant: the share that is left (negative: overspent; None: no events), bounds where interpolated."""

    left_ratio: float | None
    least_ratio: float | None
    most_ratio: float | None
    bad: float
    total: float
    observed_s: float


def budget(slo: Slo, points: Points, at: float) -> Budget:
    """The budget of the period that ends at `at`, of what was observed of it."""
    now = np.array([at])
    total = float(_sums(points, points.total, now, slo.period_s)[0])
    bad, least, most = (float(_sums(points, values, now, slo.period_s)[0]) for values in (points.bad, points.least, points.most))
    inside = [ts[(ts > at - slo.period_s) & (ts <= at)] for ts in points.seen.values()]
    observed = max((float(ts[-1] - ts[0]) for ts in inside if len(ts)), default=0.0)
    if not total:
        return Budget(None, None, None, bad, total, observed)
    allowed = total * slo.budget_ratio
    return Budget(1 - bad / allowed, 1 - most / allowed, 1 - least / allowed, bad, total, observed)


def onset(slo: Slo, points: Points, at: float, rule: Rule) -> float:
    """When the burn that is going on at `at` began: where bad events started to exceed half of what the rule allows.

    The last minimum of the cumulative sum of bad - allowed/2 in the long window (a change point test: Page, Biometrika 41,
    1954); what came before is the baseline.
    """
    inside = (points.ts > at - rule.long_s) & (points.ts <= at)
    ts = points.ts[inside]
    if not len(ts):
        return at
    allowed = min(0.5, 0.5 * factor(rule, slo.period_s) * slo.budget_ratio)
    walk = np.concatenate([[0.0], np.cumsum(points.bad[inside] - allowed * points.total[inside])])
    first = len(walk) - 1 - int(np.argmin(walk[::-1]))
    if first == 0:
        return float(max(at - rule.long_s, ts[0] - _gap(points.ts)))
    return float(ts[min(first, len(ts)) - 1])


def _gap(ts: Array) -> float:
    """The usual distance of two points."""
    steps = np.diff(np.unique(ts))
    return float(np.median(steps)) if len(steps) else 0.0
