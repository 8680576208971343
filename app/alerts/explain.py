"""The diagnosis of a firing objective: its window, the baseline before it, and the address at which the dashboard shows both."""

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import urlencode

import numpy as np

from analyzers.diagnosis import Diagnosis, diagnose, no_diagnosis
from analyzers.slo import EXPLAINED_BY, Points, Rule, Slo, onset
from app.alerts.history import diagnosis_table
from app.alerts.measure import Scope, events, scope
from app.pipeline import window_of
from app.store import Store

LONGEST_S: Final = 3600.0  # of a burn that lasts for days the last hour says as much, in less time


def explained(
    store: Store, slo: Slo, points: Points, now: float, rule: Rule, dashboard: str, only: Sequence[str] | None = None
) -> tuple[float, dict[str, Any]]:
    """When the burn that goes on at `now` began, and its diagnosis as it is stored and sent.

    The window is that of the burn; where that is too short to tell, the rule's long window up to now.
    """
    began = onset(slo, points, now, rule)
    where = scope(store, slo, only)
    if slo.kind not in EXPLAINED_BY and slo.kind != "goodput":
        found = no_diagnosis(slo.kind)
    else:
        found = _windows(store, slo, points, where, began, now, rule)
    start, end = found.start if found.start is not None else began, found.end if found.end is not None else now
    shown = min(began, start)
    return began, diagnosis_table(
        found, began=began, url=link(dashboard, found.target, shown, max(end, now), where.engines), notes=list(points.notes),
        source=points.source, events=events_said(slo, points, began, now),
    )  # fmt: skip


def _windows(store: Store, slo: Slo, points: Points, where: Scope, began: float, now: float, rule: Rule) -> Diagnosis:
    """The diagnosis of the burn's own window, else of the long one."""
    inside = (points.ts > began) & (points.ts <= now)
    slow_s = float(points.bad[inside].sum() * (slo.threshold_s or 0.0)) if slo.kind == "itl" else 0.0
    missed = _missed(store, slo, where, began, now) if slo.kind == "goodput" else None
    names, longest = list(where.engines), min(rule.long_s, LONGEST_S)
    before = window_of(store, began - longest, began, names)
    found = diagnose(slo.kind, window_of(store, max(began, now - longest), now, names), before, missed=missed, slow_s=slow_s)
    if found.told:
        return found
    wide = diagnose(slo.kind, window_of(store, now - longest, now, names), None, missed=missed, slow_s=slow_s)
    return wide if wide.told else found


def _missed(store: Store, slo: Slo, where: Scope, low: float, high: float) -> dict[str, float]:
    """The share of requests that miss each half of goodput."""
    halves = {"ttft": slo.threshold_s, "tpot": slo.tpot_s}
    shares = {}
    for kind, threshold in halves.items():
        found = events(store, Slo(slo.name, kind, slo.objective, threshold, model=slo.model, engine=slo.engine), where, low, high)
        shares[kind] = float(found.bad.sum()) / max(1.0, float(found.total.sum()))
    return shares


def events_said(slo: Slo, points: Points, began: float, now: float) -> str:
    """How many events were bad since the burn began."""
    inside = (points.ts > began) & (points.ts <= now)
    bad, total = float(points.bad[inside].sum()), float(points.total[inside].sum())
    least, most = float(points.least[inside].sum()), float(points.most[inside].sum())
    noun = {"itl": "tokens", "availability": "scrapes"}.get(slo.kind, "requests")
    error = f" (between {least:,.0f} and {most:,.0f})" if most - least > 0.5 else ""
    return f"{bad:,.0f}{error} of {total:,.0f} {noun} bad since it began"


def link(dashboard: str, target: str | None, start: float, end: float, engines: Sequence[str]) -> str:
    """The Overview at a window: the same query parameters as the dashboard's own (app/ui/session.py)."""
    params = {"target": target} if target and target != "ttft" else {}
    params |= {"engine": engines[0]} if len(engines) == 1 else {}
    params |= {"from": stamp(start, up=False), "to": stamp(end, up=True)}
    return f"{dashboard}/?{urlencode(params)}"


def stamp(ts: float, *, up: bool = False) -> str:
    """An instant in ISO 8601, UTC, to the millisecond, rounded outwards."""
    thousandth = (math.ceil if up else math.floor)(ts * 1000)
    return datetime.fromtimestamp(thousandth // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S") + f".{thousandth % 1000:03}Z"


def clock(ts: float) -> str:
    """An instant for people: "2026-11-29 10:42:13 UTC"."""
    return datetime.fromtimestamp(ts, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def newest(store: Store) -> float | None:
    """The last instant at which anything was observed; None: nothing with a clock is in the store."""
    found = store.rows("SELECT greatest((SELECT max(ts) FROM scrape WHERE timed), (SELECT max(end_ts) FROM request))")[0][0]
    return None if found is None or not np.isfinite(found) else float(found)


def instant(text: str) -> float | None:
    """Epoch seconds of an ISO 8601 instant (UTC where it names no zone) or of a number; None where it is neither."""
    try:
        return float(text)
    except ValueError:
        pass
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
