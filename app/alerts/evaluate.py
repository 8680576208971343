"""Objectives judged at an instant, over the store: burn, budget, state, alert, diagnosis, and what is to be sent.

An evaluation reads and judges first; then one transaction writes the new state, the alert and its notification together, so
that a crash loses none of them and doubles none.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np

from analyzers.alert import FIRING, Silence, State, silenced, step
from analyzers.slo import (
    BURNING,
    PAGE,
    SAYS,
    SEVERITIES,
    STUCK,
    TICKET,
    UNSEEN,
    Budget,
    Burn,
    Edges,
    Points,
    Slo,
    budget,
    burns,
    joined,
    rules_of,
)
from app.alerts import history, outbox
from app.alerts.definitions import Definitions
from app.alerts.explain import explained
from app.alerts.history import LIVE, Alert
from app.alerts.measure import near, scope
from app.alerts.points import News, extended, keep
from app.alerts.table import span_text
from app.store import Store

LOG: Final = logging.getLogger("weaklink.alerts")
ASK_AGAIN_S: Final = 30.0  # between two diagnoses of an alert of which nothing could be told yet
ASK_FOR_S: Final = 3600.0  # an hour after it fired, what cannot be told is left so


@dataclass(frozen=True, slots=True)
class Status:
    """An objective at an instant."""

    slo: Slo
    at: float
    burns: tuple[Burn, ...]
    budget: Budget
    states: dict[str, State]
    edges: Edges | None
    source: str
    notes: tuple[str, ...]
    missing: str | None

    @property
    def phase(self) -> str:
        """The most urgent phase of its alerts."""
        phases = [state.phase for state in self.states.values()]
        return next((phase for phase in (FIRING, "pending") if phase in phases), "quiet")

    @property
    def severity(self) -> str | None:
        """The most urgent severity that fires."""
        return next((name for name in SEVERITIES if name in self.states and self.states[name].phase == FIRING), None)

    def table(self) -> dict[str, Any]:
        """As plain values, for the store and for programs."""
        return {
            "phase": self.phase,
            "severity": self.severity,
            "states": {name: {**asdict(state), "says": SAYS[state.verdict]} for name, state in self.states.items()},
            "burns": [{**asdict(one), "says": SAYS[one.verdict]} for one in self.burns],
            "budget": asdict(self.budget),
            "edges": asdict(self.edges) if self.edges else None,
            "source": self.source,
            "notes": list(self.notes),
            "missing": self.missing,
        }


# -- live ---------------------------------------------------------------------------------------------------------------------
def evaluate(store: Store, definitions: Definitions, now: float) -> list[Status]:
    """Judge every objective at `now`, and write what follows: states, alerts, history, notifications."""
    slos = history.all_slos(store, definitions)
    found = [_guarded(store, definitions, slo, now) for slo in slos]
    _gone(store, definitions, {slo.name for slo in slos}, now)
    return found


def _guarded(store: Store, definitions: Definitions, slo: Slo, now: float) -> Status:
    """The objective judged; what fails is logged and unknown, changes nothing and stops no other objective."""
    try:
        return _evaluated(store, definitions, slo, now)
    except Exception as error:
        LOG.exception("%s could not be evaluated", slo.name)
        nothing = Points(missing=f"the evaluation failed ({type(error).__name__}: {error})")
        states = {name: history.state_of(store, slo.name, name) for name in severities(slo)}
        return Status(slo, now, burns(slo, nothing, now), budget(slo, nothing, now), states, None, "", (), nothing.missing)


def _evaluated(store: Store, definitions: Definitions, slo: Slo, now: float) -> Status:
    held, news = extended(store, slo, now)
    before = {severity: history.state_of(store, slo.name, severity) for severity in severities(slo)}
    status = status_of(store, slo, held, now, before)
    writes = [_change(store, definitions, status, severity, before[severity], held) for severity in severities(slo)]
    _write(store, definitions, status, news, writes, now)
    return status


def severities(slo: Slo) -> list[str]:
    """The severities that an objective's rules have, the most urgent first."""
    return [name for name in SEVERITIES if any(rule.severity == name for rule in rules_of(slo))]


def status_of(store: Store, slo: Slo, held: Points, now: float, before: dict[str, State]) -> Status:
    """The objective at `now`, its states one step on from `before`."""
    found = burns(slo, held, now)
    verdicts = {name: int(joined([np.array([one.verdict]) for one in found if one.rule.severity == name])[0]) for name in before}
    states = {
        name: step(state, now, verdicts[name], pending_s=slo.pending_s, keep_s=slo.keep_s) for name, state in before.items()
    }
    where = scope(store, slo)
    return Status(slo, now, found, budget(slo, held, now), states, near(store, slo, where), held.source, held.notes, held.missing)


Write = Callable[[], None]


def _change(store: Store, definitions: Definitions, status: Status, severity: str, was: State, held: Points) -> Write:
    """What one alert's step writes; the diagnosis is made here, before the transaction."""
    slo, now, state = status.slo, status.at, status.states[severity]
    current = history.open_alert(store, slo.name, severity)
    if state.phase == FIRING and current is None:
        burn = loudest(status, severity)
        began, diagnosis = explained(store, slo, held, now, burn.rule, definitions.dashboard)
        return lambda: _raise(store, slo, severity, began, now, burn, diagnosis)
    if current is None:
        return lambda: None
    if state.phase != FIRING:
        said = f"the burn is over: quiet for {span_text(slo.keep_s)}"
        return lambda: _resolve(store, definitions, slo, current, now, said)
    if not current.diagnosis.get("told") and _ask_again(current, now, was):
        _, diagnosis = explained(store, slo, held, now, loudest(status, severity).rule, definitions.dashboard)
        return lambda: _rediagnose(store, definitions, slo, current, now, {**diagnosis, "asked": now})
    if (was.verdict in {UNSEEN, STUCK}) != (state.verdict in {UNSEEN, STUCK}):
        kind = "unknown" if state.verdict in {UNSEEN, STUCK} else "known"
        return lambda: history.happened(store, current.alert_id, now, kind, _unseen(status, severity) or SAYS[state.verdict])
    return lambda: None


def _ask_again(alert: Alert, now: float, was: State) -> bool:
    """Whether it is time for another diagnosis; not while the burn is unknown."""
    asked = float(alert.diagnosis.get("asked", alert.fired_ts))
    return was.verdict == BURNING and now - alert.fired_ts <= ASK_FOR_S and now - asked >= min(ASK_AGAIN_S, now - alert.fired_ts)


def _unseen(status: Status, severity: str) -> str:
    names = sorted({name for burn in status.burns if burn.rule.severity == severity for name in burn.unseen})
    return f"not seen in the short window: {', '.join(names)}" if names else ""


def loudest(status: Status, severity: str) -> Burn:
    """The rule of a severity that burns, the shortest first; where none does, the first."""
    mine = sorted((one for one in status.burns if one.rule.severity == severity), key=lambda one: one.rule.long_s)
    return next((one for one in mine if one.verdict == BURNING), mine[0])


# -- what is written, inside one transaction ------------------------------------------------------------------------------------
def _write(store: Store, definitions: Definitions, status: Status, news: News, writes: Sequence[Write], now: float) -> None:
    name = status.slo.name
    with store.transaction(aside=True):
        keep(store, news)
        for severity, state in status.states.items():
            history.put_state(store, name, severity, state)
        history.put_status(store, name, now, status.table())
        for write in writes:
            write()
        _notice(store, definitions, status, now)


def _raise(store: Store, slo: Slo, severity: str, began: float, now: float, burn: Burn, diagnosis: dict[str, Any]) -> None:
    table = {**diagnosis, "factor": burn.factor, "long_s": burn.rule.long_s, "short_s": burn.rule.short_s}
    history.new_alert(store, slo.name, severity, LIVE, began, now, burn.long_burn, table)


def _resolve(store: Store, definitions: Definitions, slo: Slo | None, alert: Alert, now: float, said: str) -> None:
    history.resolve(store, alert.alert_id, now, said)
    if alert.noticed:
        outbox.put(store, definitions, slo, replace(alert, resolved_ts=now), "resolved", now)


def _rediagnose(store: Store, definitions: Definitions, slo: Slo, alert: Alert, now: float, diagnosis: dict[str, Any]) -> None:
    """Keep a new diagnosis; where it names a link at last, say so to those who were told that it could not be."""
    table = {**alert.diagnosis, **diagnosis}
    if not diagnosis.get("told"):
        store.execute("UPDATE alert SET diagnosis = ? WHERE alert_id = ?", [history.dumped(table), alert.alert_id])
        return
    history.rediagnose(store, alert.alert_id, now, table)
    if alert.noticed:
        outbox.put(store, definitions, slo, replace(alert, diagnosis=table), "diagnosed", now)


def _notice(store: Store, definitions: Definitions, status: Status, now: float) -> None:
    """Put into the outbox what fires and was not told yet: unless it is silenced, or a page of the same objective says it."""
    quiet: list[Silence] = [one for _, one, _ in history.silences(store, now)]
    paged = False
    for severity in SEVERITIES:
        alert = history.open_alert(store, status.slo.name, severity)
        if alert is None:
            continue
        held = silenced(quiet, alert.slo, severity, now)
        if not alert.noticed and not held and not (severity == TICKET and paged):
            outbox.put(store, definitions, status.slo, alert, "firing", now)
            history.notice(store, alert.alert_id)
        elif not alert.noticed and held and alert.fired_ts == now:
            history.happened(store, alert.alert_id, now, "silenced", "nothing is sent while the silence lasts")
        paged = paged or severity == PAGE


def _gone(store: Store, definitions: Definitions, names: set[str], now: float) -> None:
    """Close alerts of objectives that are no longer defined."""
    for alert in history.alerts(store, firing=True, origin=LIVE):
        if alert.slo in names:
            continue
        with store.transaction(aside=True):
            _resolve(store, definitions, None, alert, now, "the objective was removed")
            store.execute("DELETE FROM alert_state WHERE slo = ?", [alert.slo])
            store.execute("DELETE FROM slo_status WHERE slo = ?", [alert.slo])
