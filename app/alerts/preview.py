"""Objectives over a recording: what they would have done, what they did up to an instant, and their alerts entered as a replay."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from analyzers.alert import Episode, State, episodes, step
from analyzers.slo import BURNING, Budget, Burn, Edges, Points, Slo, budget, burns, factor, joined, rules_of, track
from app.alerts import history
from app.alerts.definitions import Definitions
from app.alerts.evaluate import Status, severities, status_of
from app.alerts.explain import clock, explained
from app.alerts.history import REPLAY, Alert
from app.alerts.measure import FAMILIES, near, scope
from app.alerts.points import points
from app.alerts.table import span_text
from app.store import Store


@dataclass(frozen=True, slots=True)
class Preview:
    """What an objective would have done over a span: its alerts, its budget at the end, how its events were told."""

    slo: Slo
    start: float | None
    end: float | None
    interval_s: float
    episodes: tuple[Episode, ...]
    budget: Budget
    edges: Edges | None
    source: str
    notes: tuple[str, ...]
    missing: str | None
    least: float
    most: float

    @property
    def interpolated(self) -> bool:
        """Whether the events were interpolated inside a bucket."""
        return self.most - self.least > 0.5

    def table(self) -> dict[str, Any]:
        """As plain values, for programs."""
        return {
            "slo": self.slo.name, "from": self.start, "to": self.end, "interval_s": self.interval_s,
            "alerts": [asdict(one) for one in self.episodes], "budget": asdict(self.budget),
            "edges": asdict(self.edges) if self.edges else None, "source": self.source, "notes": list(self.notes),
            "missing": self.missing, "bad_least": self.least, "bad_most": self.most,
        }  # fmt: skip

    def said(self) -> str:
        """In a few lines: how often it would have fired and when, what is left, and what is uncertain."""
        if self.missing:
            return f"{self.slo.name}: cannot be measured: {self.missing}"
        times = len(self.episodes)
        count = "would not have fired" if not times else f"would have fired {times} time{'' if times == 1 else 's'}"
        left = self.budget.left_ratio
        budget_said = (
            "no events"
            if left is None
            else f"{self.budget.bad:,.0f} of {self.budget.total:,.0f} bad, budget left {100 * left:.1f} %"
        )
        lines = [f"{self.slo.name}: {count} in this data; {budget_said}; from {self.source}"]
        for one in self.episodes:
            ended = f"resolved {clock(one.resolved_ts)}" if one.resolved_ts is not None else "not resolved by the end"
            lines.append(f"  {one.severity:<7}{clock(one.fired_ts)}, burn up to {one.peak_burn:.1f}; {ended}")
        return "\n".join([*lines, *(f"  {line}" for line in self.uncertain())])

    def uncertain(self) -> list[str]:
        """What the numbers leave open."""
        said = list(self.notes)
        most = 1 / self.slo.budget_ratio
        over = [limit for limit in (factor(rule, self.slo.period_s) for rule in rules_of(self.slo)) if limit >= most]
        if over:
            rates = " and of ".join(f"{limit:.3g}" for limit in over)
            said.append(
                f"a burn of {rates} cannot happen: with an objective of {100 * self.slo.objective:.6g} % every event bad is a burn of {most:.3g}"
            )
        if self.interpolated:
            said.append(f"interpolated inside a bucket: between {self.least:,.0f} and {self.most:,.0f} are bad")
        if self.edges is not None and self.edges.far and self.slo.kind in FAMILIES:
            high = f"{self.edges.high_s:g} s" if np.isfinite(self.edges.high_s) else "no edge above"
            records = "" if "buckets" in self.source else "; request records tell it exactly here, Prometheus could not"
            exact = records if self.interpolated or records else "; nothing lay between them here"
            said.append(f"the threshold is far from a bucket edge: the nearest are {self.edges.low_s:g} s and {high}{exact}")
        return said


def instants(slo: Slo, held: Points, low: float, high: float, interval_s: float) -> tuple[float, float, Any]:
    """Evaluations every `interval_s` over what was observed of a span: its start, its end, the instants.

    They go on for `pending_s` after the end, so that what burns there fires.
    """
    seen = [ts for ts in (*held.seen.values(), held.ts) if len(ts)]
    first = max(low, min((float(ts[0]) for ts in seen), default=low))
    last = min(high, max((float(ts[-1]) for ts in seen), default=high))
    return first, last, np.arange(first, last + slo.pending_s + interval_s, interval_s)


def preview(store: Store, slo: Slo, low: float, high: float, interval_s: float, only: Sequence[str] | None = None) -> Preview:
    """What the objective would have done in (low, high], evaluated every `interval_s`."""
    held = points(store, slo, low, high, only)
    edges = near(store, slo, scope(store, slo, only))
    if not held.seen:
        none = Budget(None, None, None, 0.0, 0.0, 0.0)
        missing = held.missing or "nothing with a clock was observed in this span"
        return Preview(slo, None, None, interval_s, (), none, edges, held.source, held.notes, missing, 0.0, 0.0)
    first, last, at = instants(slo, held, low, high, interval_s)
    whole = replace(slo, period_s=max(slo.period_s, last - first + interval_s))
    return Preview(
        slo, first, last, interval_s, episodes(slo, held, at), budget(whole, held, last + interval_s), edges, held.source,
        held.notes, held.missing, float(held.least.sum()), float(held.most.sum()),
    )  # fmt: skip


def replay(
    store: Store,
    definitions: Definitions,
    slo: Slo,
    low: float,
    high: float,
    interval_s: float,
    only: Sequence[str] | None = None,
) -> list[Alert]:
    """Enter the alerts that a recording would have raised, each with its diagnosis; nothing is sent."""
    held = points(store, slo, low, high, only)
    if not held.seen:
        return []
    _, _, at = instants(slo, held, low, high, interval_s)
    made = []
    for one in episodes(slo, held, at):
        burn = _burn_of(slo, held, one)
        began, diagnosis = explained(store, slo, held, one.fired_ts, burn.rule, definitions.dashboard, only)
        table = {**diagnosis, "factor": burn.factor, "long_s": burn.rule.long_s, "short_s": burn.rule.short_s}
        with store.transaction():
            made.append(history.new_alert(store, slo.name, one.severity, REPLAY, began, one.fired_ts, burn.long_burn, table))
            if one.resolved_ts is not None:
                history.resolve(store, made[-1], one.resolved_ts, f"the burn was over: quiet for {span_text(slo.keep_s)}")
    return [alert for alert in (history.alert_of(store, number) for number in made) if alert is not None]


def _burn_of(slo: Slo, held: Points, episode: Episode) -> Burn:
    mine = sorted(
        (one for one in burns(slo, held, episode.fired_ts) if one.rule.severity == episode.severity),
        key=lambda one: one.rule.long_s,
    )
    return next((one for one in mine if one.verdict == BURNING), mine[0])


def judged_at(store: Store, definitions: Definitions, at: float) -> list[Status]:
    """Every objective at an instant of the past, with the evaluations before it replayed; nothing is written."""
    found = []
    for slo in history.all_slos(store, definitions):
        rules = rules_of(slo)
        low = at - max(slo.period_s, *(rule.long_s for rule in rules))
        held = points(store, slo, low, at)
        back = max(slo.pending_s, slo.keep_s) + max(rule.long_s for rule in rules)
        count = min(2000, int(back / definitions.interval_s) + 2)
        steps = at - definitions.interval_s * np.arange(count, 0, -1)
        before = {}
        for severity in severities(slo):
            verdicts = joined([track(slo, held, rule, steps).verdict for rule in rules if rule.severity == severity])
            state = State()
            for now, verdict in zip(steps.tolist(), verdicts.tolist(), strict=True):
                state = step(state, now, verdict, pending_s=slo.pending_s, keep_s=slo.keep_s)
            before[severity] = state
        found.append(status_of(store, slo, held, at, before))
    return found


def sample(store: Store, definitions: Definitions, found: Preview, low: float, high: float) -> Alert:
    """The first alert of a preview as it would have been, with its diagnosis; nothing is written."""
    first, held = found.episodes[0], points(store, found.slo, low, high)
    burn = _burn_of(found.slo, held, first)
    began, diagnosis = explained(store, found.slo, held, first.fired_ts, burn.rule, definitions.dashboard)
    table = {**diagnosis, "factor": burn.factor, "long_s": burn.rule.long_s, "short_s": burn.rule.short_s}
    return Alert(
        0, found.slo.name, first.severity, REPLAY, began, first.fired_ts, None, burn.long_burn, table,
        noticed=False, acknowledged_ts=None, acknowledged_by=None,
    )  # fmt: skip
