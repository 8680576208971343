"""What the store keeps of objectives and alerts: definitions made in the dashboard, states, alerts, what happened to them, silences."""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from analyzers.alert import Silence, State
from analyzers.diagnosis import Diagnosis
from analyzers.slo import Slo
from app.alerts.definitions import Definitions, decoded, encoded
from app.alerts.table import DefinitionError
from app.store import Store

LIVE = "live"
REPLAY = "replay"


# -- objectives ---------------------------------------------------------------------------------------------------------------
def saved(store: Store) -> tuple[Slo, ...]:
    """The objectives made in the dashboard, by name."""
    return tuple(decoded(row[0], "store") for row in store.rows("SELECT definition FROM slo ORDER BY name"))


def save(store: Store, slo: Slo) -> None:
    """Keep an objective, in the place of one with the same name."""
    with store.transaction():
        store.execute("DELETE FROM slo WHERE name = ?", [slo.name])
        store.execute("INSERT INTO slo VALUES (?, ?, ?)", [slo.name, encoded(slo), time.time()])
        store.note("slo", f"{slo.name}: {encoded(slo)}")


def remove(store: Store, name: str) -> None:
    """Forget an objective made in the dashboard; its alerts resolve at the next evaluation."""
    with store.transaction():
        store.execute("DELETE FROM slo WHERE name = ?", [name])
        store.note("slo", f"{name} removed")


def all_slos(store: Store, definitions: Definitions) -> tuple[Slo, ...]:
    """Those of the file, then those made in the dashboard whose name the file does not use."""
    names = {slo.name for slo in definitions.slos}
    return (*definitions.slos, *(slo for slo in saved(store) if slo.name not in names))


def slo_named(store: Store, definitions: Definitions, name: str) -> Slo:
    """One objective; DefinitionError where there is none of this name."""
    for slo in all_slos(store, definitions):
        if slo.name == name:
            return slo
    raise DefinitionError(f"no objective is called {name!r}")


# -- states -------------------------------------------------------------------------------------------------------------------
def state_of(store: Store, slo: str, severity: str) -> State:
    """Where an alert stands; quiet where nothing is known."""
    found = store.rows("SELECT state FROM alert_state WHERE slo = ? AND severity = ?", [slo, severity])
    return State(**json.loads(found[0][0])) if found else State()


def put_state(store: Store, slo: str, severity: str, state: State) -> None:
    """Keep a state, inside a transaction."""
    store.execute("DELETE FROM alert_state WHERE slo = ? AND severity = ?", [slo, severity])
    store.execute("INSERT INTO alert_state VALUES (?, ?, ?)", [slo, severity, json.dumps(asdict(state))])


def put_status(store: Store, slo: str, ts: float, status: dict[str, Any]) -> None:
    """Keep the last evaluation of an objective, inside a transaction."""
    store.execute("DELETE FROM slo_status WHERE slo = ?", [slo])
    store.execute("INSERT INTO slo_status VALUES (?, ?, ?)", [slo, ts, json.dumps(status)])


def statuses(store: Store) -> dict[str, dict[str, Any]]:
    """The last evaluation of each objective, by name, with its instant as `ts`."""
    return {row[0]: {"ts": row[1], **json.loads(row[2])} for row in store.rows("SELECT slo, ts, status FROM slo_status")}


# -- alerts -------------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Alert:
    """An alert that fired. `diagnosis` holds what `diagnosis_table` makes; `resolved_ts` None: still firing."""

    alert_id: int
    slo: str
    severity: str
    origin: str
    began_ts: float
    fired_ts: float
    resolved_ts: float | None
    burn: float | None
    diagnosis: dict[str, Any]
    noticed: bool
    acknowledged_ts: float | None
    acknowledged_by: str | None

    @property
    def firing(self) -> bool:
        """Whether it is not resolved."""
        return self.resolved_ts is None


_COLUMNS = tuple(one.name for one in fields(Alert))
_ALERT = f"SELECT {', '.join(_COLUMNS)} FROM alert"


def alerts(store: Store, *, firing: bool | None = None, origin: str | None = None, limit: int = 200) -> list[Alert]:
    """The newest alerts first; `firing` leaves those that are (or are not) resolved."""
    where = "WHERE ($firing IS NULL OR (resolved_ts IS NULL) = $firing) AND ($origin IS NULL OR origin = $origin)"
    rows = store.rows(
        f"{_ALERT} {where} ORDER BY fired_ts DESC, alert_id DESC LIMIT $limit",
        {"firing": firing, "origin": origin, "limit": limit},
    )
    return [_alert(row) for row in rows]


def _alert(row: Sequence[Any]) -> Alert:
    found = dict(zip(_COLUMNS, row, strict=True))
    return Alert(**{**found, "diagnosis": json.loads(found["diagnosis"])})


def alert_of(store: Store, alert_id: int) -> Alert | None:
    """One alert by its number."""
    rows = store.rows(f"{_ALERT} WHERE alert_id = ?", [alert_id])
    return _alert(rows[0]) if rows else None


def open_alert(store: Store, slo: str, severity: str) -> Alert | None:
    """The live alert of an objective and severity that is firing."""
    rows = store.rows(f"{_ALERT} WHERE slo = ? AND severity = ? AND origin = 'live' AND resolved_ts IS NULL", [slo, severity])
    return _alert(rows[0]) if rows else None


def new_alert(
    store: Store, slo: str, severity: str, origin: str, began: float, fired: float, burn: float | None, diagnosis: dict[str, Any]
) -> int:
    """Enter an alert that fires, inside a transaction; its number."""
    alert_id = int(store.rows("SELECT nextval('alert_id_seq')")[0][0])
    store.execute(
        "INSERT INTO alert VALUES (?, ?, ?, ?, ?, ?, NULL, ?, ?, false, NULL, NULL)",
        [alert_id, slo, severity, origin, began, fired, burn, json.dumps(diagnosis)],
    )
    happened(store, alert_id, fired, "fired", str(diagnosis.get("says", "")))
    return alert_id


def resolve(store: Store, alert_id: int, now: float, said: str) -> None:
    """Close an alert, inside a transaction."""
    store.execute("UPDATE alert SET resolved_ts = ? WHERE alert_id = ?", [now, alert_id])
    happened(store, alert_id, now, "resolved", said)


def rediagnose(store: Store, alert_id: int, now: float, diagnosis: dict[str, Any]) -> None:
    """Replace the diagnosis of an alert, inside a transaction."""
    store.execute("UPDATE alert SET diagnosis = ? WHERE alert_id = ?", [json.dumps(diagnosis), alert_id])
    happened(store, alert_id, now, "diagnosed", str(diagnosis.get("says", "")))


def notice(store: Store, alert_id: int) -> None:
    """Remember that an alert was put into the outbox, inside a transaction."""
    store.execute("UPDATE alert SET noticed = true WHERE alert_id = ?", [alert_id])


def happened(store: Store, alert_id: int, ts: float, kind: str, said: str) -> None:
    """Add a line to an alert's history."""
    store.execute("INSERT INTO alert_event VALUES (?, ?, ?, ?)", [alert_id, ts, kind, said])


def events_of(store: Store, alert_id: int) -> list[tuple[float, str, str]]:
    """What happened to an alert, oldest first: (instant, kind, what is said)."""
    rows = store.rows("SELECT ts, kind, said FROM alert_event WHERE alert_id = ? ORDER BY ts", [alert_id])
    return [(row[0], row[1], row[2]) for row in rows]


def acknowledge(store: Store, alert_id: int, by: str) -> Alert:
    """Say that somebody looks after an alert. DefinitionError where there is none of this number."""
    found = alert_of(store, alert_id)
    if found is None:
        raise DefinitionError(f"no alert has the number {alert_id}")
    if found.acknowledged_ts is None:
        now = time.time()
        with store.transaction():
            store.execute("UPDATE alert SET acknowledged_ts = ?, acknowledged_by = ? WHERE alert_id = ?", [now, by, alert_id])
            happened(store, alert_id, now, "acknowledged", f"by {by}")
    return alert_of(store, alert_id) or found


def dumped(diagnosis: dict[str, Any]) -> str:
    """A diagnosis as the store keeps it."""
    return json.dumps(diagnosis)


def diagnosis_table(found: Diagnosis, **more: Any) -> dict[str, Any]:
    """A diagnosis as it is stored and sent: plain values."""
    return {**asdict(found), "tries": [list(pair) for pair in found.tries], "told": found.told, **more}


# -- silences -----------------------------------------------------------------------------------------------------------------
def silences(store: Store, now: float | None = None) -> list[tuple[int, Silence, str]]:
    """(number, silence, reason) of all silences, or of those that have not ended at `now`."""
    rows = store.rows(
        "SELECT silence_id, slo, severity, start_ts, end_ts, reason FROM silence WHERE $now IS NULL OR end_ts > $now ORDER BY silence_id",
        {"now": now},
    )
    return [(row[0], Silence(row[1], row[2], row[3], row[4]), row[5]) for row in rows]


def silence(store: Store, found: Silence, reason: str) -> int:
    """Add a silence; its number."""
    with store.transaction():
        silence_id = int(store.rows("SELECT nextval('silence_id_seq')")[0][0])
        store.execute(
            "INSERT INTO silence VALUES (?, ?, ?, ?, ?, ?)",
            [silence_id, found.slo, found.severity, found.start, found.end, reason],
        )
        store.note("silence", f"{found.slo or 'all objectives'}: {reason}")
    return silence_id


def end_silence(store: Store, silence_id: int, now: float) -> bool:
    """End a silence now; False where there is none of this number that goes on."""
    known = any(number == silence_id for number, _, _ in silences(store, now))
    with store.transaction():
        store.execute("UPDATE silence SET end_ts = ? WHERE silence_id = ? AND end_ts > ?", [now, silence_id, now])
    return known
