"""Deliver what is in the outbox: signed webhooks, Alertmanager's API, and the targets of apprise.

Between a receiver's answer and our note of it a crash repeats the delivery: the message's id (X-Weaklink-Id) stays the same,
so that a receiver can tell.
"""

import hashlib
import hmac
import importlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import httpx

from app.alerts import history, message, outbox
from app.alerts.definitions import Definitions, Notifier
from app.alerts.explain import stamp
from app.alerts.export import ALERT
from app.alerts.outbox import Letter
from app.alerts.table import DefinitionError
from app.store import Store

TIMEOUT_S: Final = 10.0
LATER: Final = {408, 425, 429}  # client errors that pass
AGAIN_S: Final = 60.0  # Alertmanager forgets an alert that is not repeated
HOLD_S: Final = 3600.0  # and keeps ours so long if we cannot repeat it


class PermanentError(Exception):
    """A receiver refused the message for good; trying again would not help."""


class PassingError(Exception):
    """The message could not be delivered now."""


def secret_of(notifier: Notifier, what: str) -> str | None:
    """The `url` or `secret` of a notifier, from where the file says it is; None where it names none."""
    plain, variable, file = (getattr(notifier, f"{what}{end}", None) for end in ("", "_env", "_file"))
    if plain:
        return str(plain)
    if variable:
        found = os.environ.get(variable)
        if not found:
            raise DefinitionError(f"[[notify]] {notifier.name!r}: {what}_env: the variable {variable} is not set")
        return found
    if file:
        try:
            return Path(file).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise DefinitionError(
                f"[[notify]] {notifier.name!r}: {what}_file: {file} cannot be read ({error.strerror})"
            ) from error
    return None


def deliver(store: Store, definitions: Definitions, now: Callable[[], float] = time.time) -> int:
    """Try everything that is due, each notifier's letters in order; how many were delivered."""
    waiting = [(notifier, outbox.waiting(store, notifier.name)) for notifier in definitions.notifiers]
    if not any(letters and outbox.due(letters[0], now()) for _, letters in waiting):
        return 0  # before a client is made: it reads all certificates of the machine, 50 ms of a processor, and this runs each second
    done = 0
    with httpx.Client(timeout=TIMEOUT_S, follow_redirects=False) as client:
        for notifier, letters in waiting:
            for letter in letters:
                if not outbox.due(letter, now()) or not _tried(store, client, notifier, letter, now()):
                    break
                done += 1
    return done


def _tried(store: Store, client: httpx.Client, notifier: Notifier, letter: Letter, now: float) -> bool:
    """Send one letter and note what came of it; False where what follows has to wait."""
    try:
        SENDERS[notifier.kind](client, notifier, letter.body, now)
    except PermanentError as error:
        outbox.failed(store, letter, now, str(error), give_up=True)
        return True
    except (PassingError, DefinitionError, httpx.HTTPError) as error:
        late = now - letter.created_ts > notifier.give_up_s
        outbox.failed(store, letter, now, f"{type(error).__name__}: {error}" if not str(error) else str(error), give_up=late)
        return late
    outbox.sent(store, letter, now)
    return True


def _post(client: httpx.Client, url: str, content: bytes, headers: Mapping[str, str]) -> None:
    answer = client.post(url, content=content, headers={"Content-Type": "application/json", **headers})
    if answer.is_success:
        return
    said = f"HTTP {answer.status_code}"
    if answer.status_code < 500 and answer.status_code not in LATER:
        raise PermanentError(said)
    raise PassingError(said)


def signature(secret: str, stamped: str, content: bytes) -> str:
    """HMAC-SHA256 over the time stamp, a full stop and the body, as X-Weaklink-Signature has it."""
    return "sha256=" + hmac.new(secret.encode(), stamped.encode() + b"." + content, hashlib.sha256).hexdigest()


def _webhook(client: httpx.Client, notifier: Notifier, body: dict[str, Any], now: float) -> None:
    title, text = message.rendered(notifier, body["fields"])
    content = json.dumps({**body, "title": title, "text": text}).encode()
    stamped, secret = f"{now:.0f}", secret_of(notifier, "secret")
    headers = {"X-Weaklink-Id": body["id"], "X-Weaklink-Timestamp": stamped}
    if secret:
        headers["X-Weaklink-Signature"] = signature(secret, stamped, content)
    _post(client, secret_of(notifier, "url") or "", content, headers)


def _alertmanager(client: httpx.Client, notifier: Notifier, body: dict[str, Any], now: float) -> None:
    alert, found, shown = body["alert"], body["diagnosis"], body["fields"]
    title, text = message.rendered(notifier, shown)
    ends = alert["resolved_ts"] if alert["resolved_ts"] is not None else now + HOLD_S
    # the same until it resolves; those of the exported rules, but for the source
    labels = {"alertname": ALERT, "slo": alert["slo"], "severity": alert["severity"], "source": "weaklink"}
    one = {
        "labels": labels,
        "annotations": {
            "summary": title,
            "description": text,
            "link": found.get("link") or "unknown",
            "dashboard": shown["link"],
        },
        "startsAt": stamp(alert["fired_ts"]),
        "endsAt": stamp(ends),
        "generatorURL": shown["link"],
    }
    secret = secret_of(notifier, "secret")
    headers = {"Authorization": f"Bearer {secret}"} if secret else {}
    _post(client, f"{(secret_of(notifier, 'url') or '').rstrip('/')}/api/v2/alerts", json.dumps([one]).encode(), headers)


def _apprise(client: httpx.Client, notifier: Notifier, body: dict[str, Any], now: float) -> None:
    del client, now
    try:
        apprise: Any = importlib.import_module("apprise")
    except ImportError as error:
        raise PassingError("apprise is not installed: pip install 'weaklink[notify]'") from error
    title, text = message.rendered(notifier, body["fields"])
    target = apprise.Apprise()
    if not target.add(secret_of(notifier, "url")):
        raise PermanentError("apprise does not understand the address")
    if not target.notify(title=title, body=text):
        raise PassingError("apprise could not deliver it")


SENDERS: Final[Mapping[str, Callable[[httpx.Client, Notifier, dict[str, Any], float], None]]] = {
    "webhook": _webhook,
    "alertmanager": _alertmanager,
    "apprise": _apprise,
}


def repeat(store: Store, definitions: Definitions, now: float) -> None:
    """Tell Alertmanagers again what is firing; what fails is repeated the next time."""
    notifiers = [one for one in definitions.notifiers if one.kind == "alertmanager"]
    firing = [alert for alert in history.alerts(store, firing=True, origin=history.LIVE) if alert.noticed] if notifiers else []
    if not firing:
        return
    slos = {slo.name: slo for slo in history.all_slos(store, definitions)}
    with httpx.Client(timeout=TIMEOUT_S) as client:
        for notifier in notifiers:
            if outbox.waiting(store, notifier.name):
                continue  # the letter that tells it first is still on its way
            for alert in firing:
                if alert.severity in notifier.severities:
                    body = message.body(slos.get(alert.slo), alert, "firing", "", None)
                    _quietly(client, notifier, body, now)


def _quietly(client: httpx.Client, notifier: Notifier, body: dict[str, Any], now: float) -> None:
    try:
        SENDERS[notifier.kind](client, notifier, body, now)
    except (PermanentError, PassingError, DefinitionError, httpx.HTTPError):
        return


def check(notifiers: Sequence[Notifier]) -> list[str]:
    """What is wrong with the secrets and addresses that notifiers need, one line a fault."""
    wrong = []
    for notifier in notifiers:
        for what in ("url", "secret"):
            try:
                secret_of(notifier, what)
            except DefinitionError as error:
                wrong.append(str(error))
    return wrong
