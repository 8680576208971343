"""Notifications: exactly one whatever kills us in between, in order, signed, and never lost without a trace."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from alerts.given import CHAT, NOON, course, recorded
from alerts.receiver import Receiver
from ports import free_port

from app.alerts import history, notify, outbox
from app.alerts.definitions import Definitions, Notifier, read
from app.alerts.evaluate import evaluate
from app.alerts.loop import backgrounds
from app.alerts.table import DefinitionError
from app.store import Store

ERRORS: Final = replace(CHAT, kind="errors", threshold_s=None)  # without a diagnosis, which takes a second


def definitions(*notifiers: Notifier) -> Definitions:
    return Definitions((ERRORS,), notifiers)


def hook(port: int, **more) -> Notifier:
    return Notifier("hook", "webhook", url=f"http://127.0.0.1:{port}/hook", **more)


def alert(store: Store, notifiers: Definitions, kind: str = "firing", slo: str = "chat", now: float = NOON) -> None:
    """Enter an alert and its letters as an evaluation does."""
    with store.transaction():
        number = history.new_alert(
            store, slo, "page", history.LIVE, now - 13, now, 13.0, {"says": "Slots limits TTFT.", "link": "slots"}
        )
        found = history.alert_of(store, number)
        outbox.put(store, notifiers, None, found, kind, now)


def delivered(store: Store, found: Definitions, *at: float) -> list[int]:
    """Deliver at these instants, seconds after noon; how many each time."""
    return [notify.deliver(store, found, lambda one=one: NOON + one) for one in at]


def said(receiver: Receiver) -> list[str]:
    return [json.loads(one.body)["alert"]["slo"] for one in receiver.got()]


# -- delivery -------------------------------------------------------------------------------------------------------------------
def test_nothing_to_send():
    assert notify.deliver(Store(), definitions(hook(9))) == 0


def test_a_webhook_is_signed_and_carries_the_diagnosis(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOOK_SECRET", "eleven")
    with Receiver() as receiver, Store() as store:
        found = definitions(hook(receiver.port, secret_env="HOOK_SECRET", title="$slo $severity", text="$diagnosis cost $$1"))
        alert(store, found)
        assert delivered(store, found, 0, 1) == [1, 0]
        (got,) = receiver.got()
    body = json.loads(got.body)
    assert (body["title"], body["text"]) == ("chat page", "Slots limits TTFT. cost $1\n")
    assert body["diagnosis"]["link"] == "slots"
    assert got.headers["X-Weaklink-Id"] == body["id"]
    assert got.headers["X-Weaklink-Signature"] == notify.signature("eleven", got.headers["X-Weaklink-Timestamp"], got.body)
    assert got.headers["X-Weaklink-Signature"] != notify.signature("twelve", got.headers["X-Weaklink-Timestamp"], got.body)


def test_a_receiver_that_is_down_gets_everything_later_in_order():
    port = free_port()
    found = definitions(hook(port))
    with Store() as store:
        for at, name in enumerate(("11", "12", "13")):
            alert(store, found, slo=name, now=NOON + at)
            assert delivered(store, found, at) == [0]
        assert delivered(store, found, 300, 310, 320) == [0, 0, 0]
        assert [one.attempts for one in outbox.waiting(store, "hook")] == [5, 0, 0]  # the first holds up the others
        with Receiver(port=port) as receiver:
            assert delivered(store, found, 700) == [3]
            assert said(receiver) == ["11", "12", "13"]
        assert not outbox.waiting(store, "hook")


def test_attempts_come_later_and_later_and_a_clock_that_goes_back_holds_nothing_up():
    found = definitions(hook(free_port()))
    with Store() as store:
        alert(store, found)
        waits, now = [], 0.0
        for _ in range(11):
            delivered(store, found, now)
            (letter,) = outbox.waiting(store, "hook")
            waits.append(letter.next_ts - NOON - now)
            now = letter.next_ts - NOON
        assert waits == pytest.approx([1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300])
        attempts = outbox.waiting(store, "hook")[0].attempts
        delivered(store, found, -86400.0)
        assert outbox.waiting(store, "hook")[0].attempts == attempts + 1


@pytest.mark.parametrize(
    ("status", "dead"), [(500, False), (503, False), (429, False), (408, False), (400, True), (404, True), (302, True)]
)
def test_what_passes_is_tried_again_and_what_does_not_is_a_dead_letter(status: int, dead: bool):
    with Receiver(status=status) as receiver, Store() as store:
        found = definitions(hook(receiver.port))
        alert(store, found)
        delivered(store, found, 0)
        assert bool(outbox.dead(store)) == dead
        if dead:
            assert outbox.dead(store)[0].error == f"HTTP {status}"
            assert history.events_of(store, 1)[-1][1] == "dead"
        receiver.status = 200
        delivered(store, found, 10)
        assert len(receiver.got()) == (1 if dead else 2)
        assert len({one.headers["X-Weaklink-Id"] for one in receiver.got()}) == 1


def test_a_dead_letter_does_not_hold_up_what_follows():
    with Receiver(status=400) as receiver, Store() as store:
        found = definitions(hook(receiver.port))
        alert(store, found, slo="11")
        delivered(store, found, 0)
        receiver.status = 200
        alert(store, found, slo="12")
        assert delivered(store, found, 1) == [1]
        assert said(receiver) == ["11", "12"]


def test_what_cannot_be_delivered_for_long_is_given_up():
    found = definitions(hook(free_port(), give_up_s=13.0))
    with Store() as store:
        alert(store, found)
        delivered(store, found, 0, 12, 14)
        assert len(outbox.dead(store)) == 1


def test_one_notifier_does_not_hold_up_another():
    with Receiver() as receiver, Store() as store:
        found = definitions(hook(free_port()), replace(hook(receiver.port), name="other"))
        alert(store, found)
        assert delivered(store, found, 0) == [1]
        assert said(receiver) == ["chat"]


def test_a_missing_secret_is_said_and_waits_for_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.delenv("HOOK_SECRET", raising=False)
    with Receiver() as receiver, Store() as store:
        found = definitions(hook(receiver.port, secret_env="HOOK_SECRET"))
        assert "HOOK_SECRET is not set" in notify.check(found.notifiers)[0]
        alert(store, found)
        delivered(store, found, 0)
        assert "HOOK_SECRET is not set" in outbox.waiting(store, "hook")[0].error
        monkeypatch.setenv("HOOK_SECRET", "eleven")
        assert delivered(store, found, 10) == [1]
        assert not notify.check(found.notifiers)
    (tmp_path / "secret").write_text("twelve\n")
    assert notify.secret_of(Notifier("n", "webhook", secret_file=str(tmp_path / "secret")), "secret") == "twelve"
    with pytest.raises(DefinitionError, match="cannot be read"):
        notify.secret_of(Notifier("n", "webhook", secret_file=str(tmp_path / "none")), "secret")


def test_alertmanager_gets_labels_that_stay_and_an_end():
    with Receiver() as receiver, Store() as store:
        found = definitions(Notifier("am", "alertmanager", url=f"http://127.0.0.1:{receiver.port}/"))
        alert(store, found)
        alert(store, found, "resolved", now=NOON + 1)
        store.execute("UPDATE alert SET noticed = true")
        assert delivered(store, found, 2) == [2]
        notify.repeat(store, found, NOON + 100)
        got = receiver.got()
    assert {one.path for one in got} == {"/api/v2/alerts"}
    bodies = [json.loads(one.body)[0] for one in got]
    assert {json.dumps(one["labels"]) for one in bodies} == {
        '{"alertname": "WeaklinkSloBurn", "slo": "chat", "severity": "page", "source": "weaklink"}'
    }
    assert bodies[0]["endsAt"] == "2026-11-29T13:00:02.000Z"
    assert bodies[-1]["endsAt"] == "2026-11-29T13:01:40.000Z"  # told again, for an hour more
    assert bodies[0]["annotations"]["link"] == "slots"


def test_apprise_delivers_to_its_own_targets(monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("apprise")
    with Receiver() as receiver, Store() as store:
        monkeypatch.setenv("TARGET", f"json://127.0.0.1:{receiver.port}/hook")
        found = definitions(Notifier("everywhere", "apprise", url_env="TARGET"))
        alert(store, found)
        assert delivered(store, found, 0) == [1]
        body = json.loads(receiver.got()[0].body)
    assert "Slots limits TTFT." in body["message"]
    assert "[FIRING] chat" in body["title"]


# -- crashes --------------------------------------------------------------------------------------------------------------------
# Evaluates once and dies by SIGKILL: before its transaction, inside it after the letter was written, or right after it.
DIES: Final = """
import os, signal, sys
from pathlib import Path
from app.alerts import evaluate, outbox
from app.alerts.definitions import read
from app.store import Store

where, store, slo, now = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), float(sys.argv[4])
die = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
if where == "before":
    evaluate._write = die
if where == "inside":
    put = outbox.put
    outbox.put = lambda *a: (put(*a), die())
with Store(store) as opened:
    evaluate.evaluate(opened, read(slo), now)
    die()
"""


def test_a_kill_between_evaluation_and_notification_leaves_exactly_one(tmp_path: Path):
    """One store, killed at every stage of the same alert, then evaluated and delivered until nothing is left."""
    with Receiver() as receiver:
        slo = tmp_path / "slo.toml"
        slo.write_text(
            '[[slo]]\nname = "chat"\nkind = "availability"\nobjective = "99%"\nperiod = "78000s"\nminimum = 3\npending = "0s"\nkeep = "30s"\n'
            'burn = [{severity = "page", budget = "2%", long = "120s", short = "30s"}]\n'
            f'[[notify]]\nname = "hook"\nkind = "webhook"\nurl = "{receiver.url}"\n'
        )
        path = tmp_path / "store.duckdb"
        with Store(path) as store:
            rows = course([0, 0, 0])
            recorded(tmp_path, [*rows, (40, None), (50, None), (60, None)], store=store)
        for where in ("before", "inside", "after"):
            command = [sys.executable, "-c", DIES, where, str(path), str(slo), str(NOON + 61)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == -signal.SIGKILL, done.stderr
            assert not receiver.got()
        for at in (71.0, 81.0):
            with Store(path) as store:
                evaluate(store, read(slo), NOON + at)
                notify.deliver(store, read(slo))
        with Store(path) as store:
            assert len(history.alerts(store)) == 1
            assert [one.kind for one in outbox.held(store)] == ["firing"]
        assert said(receiver) == ["chat"]


def test_the_loops_of_the_server_evaluate_deliver_and_end(tmp_path: Path):
    """A burn that goes on now is told once; the loops end when they are asked to, and a broken file is not used."""
    slo = tmp_path / "slo.toml"
    with Receiver() as receiver, Store() as store:
        text = (
            '[alerts]\ninterval = "100ms"\n[[slo]]\nname = "chat"\nkind = "availability"\nobjective = "99%"\nminimum = 3\npending = "0s"\n'
            f'[[notify]]\nname = "hook"\nkind = "webhook"\nurl = "{receiver.url}"\n'
        )
        slo.write_text(text)
        start = time.time() - NOON - 60
        recorded(tmp_path, [(start + at, None if at > 20 else {}) for at in range(0, 60, 10)], store=store)
        recorded(tmp_path, course([0] * 2, start=start), "fine.jsonl", store)
        stop = threading.Event()
        threads = [threading.Thread(target=loop, args=(store, stop), daemon=True) for loop in backgrounds(slo)]
        for thread in threads:
            thread.start()
        end = time.monotonic() + 30
        while not receiver.got() and time.monotonic() < end:
            time.sleep(0.05)
        slo.write_text("[[slo]]\nname = 1\n")
        os.utime(slo, (0, 0))
        time.sleep(0.5)
        stop.set()
        for thread in threads:
            thread.join(10)
            assert not thread.is_alive()
        assert said(receiver) == ["chat"]
        assert history.alerts(store)[0].firing
