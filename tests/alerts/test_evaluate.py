"""Evaluations over a store: what is raised, told, silenced and resolved, and what a gap in the data does."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from alerts.given import CHAT, NOON, RULE, course, gauges, histogram, recorded
from alerts.incident import stored

from analyzers.alert import Silence
from analyzers.slo import TICKET, WORKBOOK, Slo, onset
from app.alerts import evaluate as evaluation
from app.alerts import history, outbox
from app.alerts.definitions import Definitions, Notifier
from app.alerts.evaluate import evaluate
from app.alerts.preview import judged_at, preview, replay
from app.alerts.table import DefinitionError
from app.store import Store

HOOK = Notifier("hook", "webhook", url="http://127.0.0.1:9/hook")
DEFINITIONS = Definitions((CHAT,), (HOOK,), interval_s=10.0)
BURN = [0, 0, 0, 0, 0, 0, 9, 9, 9]  # from 60 s on 9 of 20 requests are slow


@pytest.fixture
def diagnosis() -> None:
    """Asks for real diagnoses, which take a second each."""


@pytest.fixture(autouse=True)
def _quick(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace diagnoses by the burn's beginning alone, where the test does not ask for them."""
    if "diagnosis" not in request.fixturenames:
        monkeypatch.setattr(
            evaluation, "explained", lambda _, slo, points, now, rule, *__: (onset(slo, points, now, rule), {"told": True})
        )


def run(store: Store, until: float, start: float = 0.0, definitions: Definitions = DEFINITIONS) -> str:
    """Evaluate every 10 s; the phases, a letter each."""
    said = ""
    for at in np.arange(start, until + 1, 10):
        said += evaluate(store, definitions, NOON + float(at))[0].phase[0]
    return said


def letters(store: Store) -> list[tuple[str, int]]:
    return [(one.kind, one.alert_id) for one in reversed(outbox.held(store))]


def kinds(store: Store, alert_id: int = 1) -> list[str]:
    return [kind for _, kind, _ in history.events_of(store, alert_id)]


def test_an_empty_store_is_unknown_and_raises_nothing():
    store = Store()
    status = evaluate(store, DEFINITIONS, NOON)[0]
    assert (status.phase, status.missing) == ("quiet", "no engine in the store matches the selector")
    assert not evaluate(store, Definitions(), NOON)
    assert not history.alerts(store)


def test_a_burn_is_pending_then_fires_then_resolves(tmp_path: Path):
    store = recorded(tmp_path, course([*BURN, *[0] * 16]))
    # 9 of 86 at 70 s are 10.5 times too fast, 18 of 106 at 80 s 17 times: above 13; quiet once the short window is, at 130 s
    assert run(store, 170) == "qqqqqqqqpffffffqqq"
    alert = history.alerts(store)[0]
    assert (alert.fired_ts - NOON, alert.resolved_ts - NOON) == (90, 150)
    assert alert.burn == pytest.approx(100 * 27 / (99 + 27))
    assert alert.began_ts - NOON == 60
    assert kinds(store) == ["fired", "resolved"]
    assert letters(store) == [("firing", 1), ("resolved", 1)]


def test_evaluating_often_and_again_tells_it_once(tmp_path: Path):
    store = recorded(tmp_path, course([*BURN, *BURN[6:] * 4]))
    for _ in range(3):
        run(store, 110, 80)
    assert letters(store) == [("firing", 1)]


def test_a_gap_does_not_resolve_and_is_in_the_history(tmp_path: Path):
    """Scrapes end during the burn, and come back after 100 s."""
    rows = course(BURN)
    store = recorded(tmp_path, rows)
    assert run(store, 190, 80) == "p" + "f" * 11
    last = rows[-1][1]
    more = [(200.0 + 10 * at, last) for at in range(4)]
    recorded(tmp_path, more, "later.jsonl", store)
    assert run(store, 230, 200) == "fffq"
    assert kinds(store) == ["fired", "unknown", "known", "resolved"]
    assert "127.0.0.1:8000" in history.events_of(store, 1)[1][2]


def test_a_server_that_hangs_does_not_resolve(tmp_path: Path):
    rows = course(BURN)
    hung = [(100.0 + 10 * at, rows[-1][1] | gauges(running=7, waiting=11)) for at in range(12)]
    store = recorded(tmp_path, [*rows, *hung])
    assert run(store, 210, 80) == "p" + "f" * 13


def test_a_clock_that_goes_back_neither_doubles_nor_resolves(tmp_path: Path):
    store = recorded(tmp_path, course([*BURN, *BURN[6:] * 4]))
    run(store, 110, 80)
    run(store, 90, 70)
    run(store, 160, 100)
    assert letters(store) == [("firing", 1)]


# -- who is told ----------------------------------------------------------------------------------------------------------------
BOTH = replace(CHAT, rules=(RULE, replace(RULE, severity=TICKET)))


def test_a_ticket_waits_while_the_page_of_the_same_objective_fires(tmp_path: Path):
    store = recorded(tmp_path, course([*BURN, *BURN[6:] * 4]))
    run(store, 110, 80, definitions=replace(DEFINITIONS, slos=(BOTH,)))
    assert {alert.severity: alert.noticed for alert in history.alerts(store)} == {"page": True, "ticket": False}
    assert len(letters(store)) == 1


def test_a_notifier_is_told_of_its_severities(tmp_path: Path):
    store = recorded(tmp_path, course([*BURN, *BURN[6:] * 4]))
    tickets = replace(HOOK, name="tickets", severities=("ticket",))
    run(store, 110, 80, definitions=replace(DEFINITIONS, notifiers=(tickets, HOOK)))
    assert [one.notifier for one in outbox.held(store)] == ["hook"]


def test_a_silence_records_and_tells_later(tmp_path: Path):
    store = recorded(tmp_path, course([*BURN, *BURN[6:] * 4]))
    number = history.silence(store, Silence("chat", None, NOON, NOON + 125), "planned")
    run(store, 110, 80)
    assert (letters(store), kinds(store)) == ([], ["fired", "silenced"])
    run(store, 140, 130)
    assert letters(store) == [("firing", 1)]
    assert not history.end_silence(store, number, NOON + 130)


def test_what_was_silenced_to_its_end_is_not_told_at_all(tmp_path: Path):
    store = recorded(tmp_path, course([*BURN, *[0] * 16]))
    history.silence(store, Silence(None, "page", NOON, NOON + 1000), "planned")
    run(store, 160, 80)
    assert history.alerts(store)[0].resolved_ts is not None
    assert letters(store) == []


def test_acknowledging_is_kept_and_done_once(tmp_path: Path):
    store = recorded(tmp_path, course([*BURN, *BURN[6:] * 4]))
    run(store, 110, 80)
    first = history.acknowledge(store, 1, "ada")
    assert history.acknowledge(store, 1, "bob") == first
    assert first.acknowledged_by == "ada"
    assert kinds(store)[-1] == "acknowledged"
    with pytest.raises(DefinitionError, match="no alert has the number 13"):
        history.acknowledge(store, 13, "ada")


def test_an_objective_that_is_removed_resolves_its_alert(tmp_path: Path):
    store = recorded(tmp_path, course([*BURN, *BURN[6:] * 4]))
    run(store, 110, 80)
    assert not evaluate(store, replace(DEFINITIONS, slos=()), NOON + 130)
    assert history.events_of(store, 1)[-1][1:] == ("resolved", "the objective was removed")
    assert letters(store) == [("firing", 1), ("resolved", 1)]


def test_objectives_of_the_store_are_evaluated_too_and_the_file_wins(tmp_path: Path):
    store = recorded(tmp_path, course([0] * 6))
    history.save(store, replace(CHAT, threshold_s=0.5))
    history.save(store, replace(CHAT, name="mine"))
    found = evaluate(store, DEFINITIONS, NOON + 60)
    assert [(one.slo.name, one.slo.threshold_s) for one in found] == [("chat", 1.0), ("mine", 1.0)]
    assert set(history.statuses(store)) == {"chat", "mine"}


def test_an_objective_that_cannot_be_evaluated_stops_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    store = recorded(tmp_path, course([*BURN, *BURN[6:] * 4]))
    run(store, 100, 80)
    whole = evaluation.extended
    monkeypatch.setattr(evaluation, "extended", lambda store, slo, now: whole(store, slo, now) if slo.name != "chat" else 1 / 0)
    found = evaluate(store, replace(DEFINITIONS, slos=(CHAT, replace(CHAT, name="other"))), NOON + 110)
    assert [(one.phase, one.missing) for one in found] == [
        ("firing", "the evaluation failed (ZeroDivisionError: division by zero)"),
        ("pending", None),
    ]
    assert letters(store) == [("firing", 1)]


# -- diagnosis ------------------------------------------------------------------------------------------------------------------
def test_what_cannot_be_told_at_first_is_told_when_it_can_be(diagnosis: None):
    """Fired after 15 s with nothing to say; a notification follows when a longer window names the link."""
    store = stored("prefix_cache_miss")
    slo = Slo("short", "ttft", 0.9, 0.1, pending_s=5.0, keep_s=10.0, rules=WORKBOOK[1:2])
    definitions = Definitions((slo,), (HOOK,), interval_s=5.0)
    start = float(store.rows("SELECT min(ts) FROM scrape")[0][0])
    for at in (10, 15, 45):
        evaluate(store, definitions, start + at)
    told = list(reversed(outbox.held(store)))
    assert [one.kind for one in told] == ["firing", "diagnosed"]
    assert told[0].body["diagnosis"]["link"] is None
    assert "Cannot tell" in told[0].body["fields"]["diagnosis"]
    assert told[1].body["diagnosis"]["link"] == "prefix_cache_miss"
    assert "diagnosed" in kinds(store, told[0].alert_id)


def test_live_evaluations_fire_when_the_preview_says(tmp_path: Path):
    store = recorded(tmp_path, course([*BURN, *[0] * 16]))
    expected = preview(store, CHAT, NOON - 1, NOON + 251, 10.0).episodes
    start = NOON + 10 * np.ceil((expected[0].fired_ts - NOON) / 10) - expected[0].fired_ts  # the same instants
    run(store, 160, 70 - start)
    found = history.alerts(store)
    assert [alert.fired_ts for alert in found] == pytest.approx([one.fired_ts for one in expected])


def test_a_replay_enters_alerts_that_are_never_sent(tmp_path: Path):
    store = recorded(tmp_path, course([*BURN, *[0] * 16]))
    made = replay(store, DEFINITIONS, CHAT, NOON - 1, NOON + 260, 10.0)
    assert [(alert.origin, alert.noticed, alert.firing) for alert in made] == [("replay", False, False)]
    assert made[0].diagnosis["url"].startswith("http://127.0.0.1:8501/?")
    assert not outbox.held(store)
    assert not replay(Store(), DEFINITIONS, CHAT, NOON - 1, NOON + 260, 10.0)


def test_an_instant_of_the_past_is_judged_without_a_trace(tmp_path: Path):
    store = recorded(tmp_path, course([*BURN, *[0] * 16]))
    assert [judged_at(store, DEFINITIONS, NOON + at)[0].phase for at in (70, 80, 100, 250)] == [
        "quiet",
        "pending",
        "firing",
        "quiet",
    ]
    assert not history.alerts(store)
    assert not history.statuses(store)


def test_a_preview_says_what_is_uncertain(tmp_path: Path):
    store = recorded(tmp_path, [(0, histogram((0, 0, 0, 0))), (10, histogram((0, 80, 13, 0)))])
    said = preview(store, replace(CHAT, threshold_s=1.6), NOON - 1, NOON + 100, 10.0).said()
    assert "interpolated inside a bucket: between 0 and 13 are bad" in said
    assert "the nearest are 1 s and 2.5 s" in said
    rarely = preview(store, replace(CHAT, objective=0.9), NOON - 1, NOON + 100, 10.0).said()
    assert "a burn of 13 cannot happen: with an objective of 90 % every event bad is a burn of 10" in rarely
    assert "cannot be measured" in preview(Store(), CHAT, NOON, NOON + 1, 10.0).said()
