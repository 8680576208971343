"""The outbox: a notification is written with the change that causes it, and leaves when it was delivered or given up.

One notifier's notifications go out one after the other, in the order in which they were written: what cannot be delivered yet
holds up what follows. What is given up stays as a dead letter, with the reason.
"""

import json
import secrets
from dataclasses import dataclass
from typing import Any, Final

from analyzers.slo import Slo
from app.alerts import history, message
from app.alerts.definitions import Definitions
from app.store import Store

FIRST_WAIT_S: Final = 1.0
LONGEST_WAIT_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class Letter:
    """One notification to one notifier."""

    outbox_id: int
    notifier: str
    alert_id: int
    kind: str
    token: str
    body: dict[str, Any]
    created_ts: float
    attempts: int
    next_ts: float
    sent_ts: float | None
    dead_ts: float | None
    error: str | None


_LETTER: Final = (
    "SELECT outbox_id, notifier, alert_id, kind, token, body, created_ts, attempts, next_ts, sent_ts, dead_ts, error FROM outbox"
)


def _letter(row: tuple[Any, ...]) -> Letter:
    names = (
        "outbox_id",
        "notifier",
        "alert_id",
        "kind",
        "token",
        "body",
        "created_ts",
        "attempts",
        "next_ts",
        "sent_ts",
        "dead_ts",
        "error",
    )
    found = dict(zip(names, row, strict=True))
    return Letter(**{**found, "body": json.loads(found["body"])})


def put(store: Store, definitions: Definitions, slo: Slo | None, alert: history.Alert, kind: str, now: float) -> None:
    """Write one letter to each notifier that takes the alert's severity, inside the transaction of the change."""
    status = history.statuses(store).get(alert.slo, {})
    left = (status.get("budget") or {}).get("left_ratio")
    for notifier in definitions.notifiers:
        if alert.severity not in notifier.severities:
            continue
        token = secrets.token_hex(8)
        text = json.dumps(message.body(slo, alert, kind, token, left))
        store.execute(
            "INSERT INTO outbox VALUES (nextval('outbox_id_seq'), ?, ?, ?, ?, ?, ?, 0, ?, NULL, NULL, NULL)",
            [notifier.name, alert.alert_id, kind, token, text, now, now],
        )


def waiting(store: Store, notifier: str) -> list[Letter]:
    """What is still to be delivered to a notifier, in order."""
    rows = store.rows(f"{_LETTER} WHERE notifier = ? AND sent_ts IS NULL AND dead_ts IS NULL ORDER BY outbox_id", [notifier])
    return [_letter(row) for row in rows]


def dead(store: Store) -> list[Letter]:
    """What was given up, newest first."""
    return [_letter(row) for row in store.rows(f"{_LETTER} WHERE dead_ts IS NOT NULL ORDER BY outbox_id DESC")]


def held(store: Store) -> list[Letter]:
    """Every letter, newest first."""
    return [_letter(row) for row in store.rows(f"{_LETTER} ORDER BY outbox_id DESC LIMIT 500")]


def due(letter: Letter, now: float) -> bool:
    """Whether a letter may be tried; a clock that went back does not hold it up."""
    return letter.next_ts <= now or letter.next_ts - now > 2 * LONGEST_WAIT_S


def sent(store: Store, letter: Letter, now: float) -> None:
    """The letter was delivered."""
    with store.transaction(aside=True):
        store.execute(
            "UPDATE outbox SET sent_ts = ?, attempts = ?, error = NULL WHERE outbox_id = ?",
            [now, letter.attempts + 1, letter.outbox_id],
        )
        history.happened(store, letter.alert_id, now, "sent", f"{letter.kind} to {letter.notifier}")


def failed(store: Store, letter: Letter, now: float, why: str, *, give_up: bool) -> None:
    """The letter was not delivered: it is tried again later, twice as late as before, or becomes a dead letter."""
    wait = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2.0 ** min(letter.attempts, 30))
    with store.transaction(aside=True):
        store.execute(
            "UPDATE outbox SET attempts = ?, next_ts = ?, error = ?, dead_ts = ? WHERE outbox_id = ?",
            [letter.attempts + 1, now + wait, why, now if give_up else None, letter.outbox_id],
        )
        if give_up:
            history.happened(store, letter.alert_id, now, "dead", f"{letter.kind} to {letter.notifier} was given up: {why}")
