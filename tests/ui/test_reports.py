"""The Reports page: a report made, kept, noted, opened from an alert; names replaced, and shown to whoever sends it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from recordings import NOON, finished, scrape, series
from streamlit.testing.v1 import AppTest

from analyzers.slo import Slo
from app.alerts import history
from app.incident import kept
from app.ingest import load
from app.store import Store
from app.ui import shared
from app.ui.session import ALERT


def draws() -> None:
    """Run by Streamlit: the frame, and in it the page."""
    from app.ui import main  # noqa: PLC0415 Streamlit takes the text of this function alone
    from app.ui.screens import PAGES, reports  # noqa: PLC0415 as above

    main.PAGES = (reports, *(one for one in PAGES if one is not reports))
    main.frame()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    lines = [
        scrape(t, {**finished(t, ttft=0.5, queue=0.3, prefill=0.2, decode=1.0, e2e=1.6), series("num_requests_waiting"): 1})
        for t in range(90)
    ]
    (tmp_path / "m.jsonl").write_text("".join(lines))
    with Store() as one:
        load(one, [tmp_path / "m.jsonl"])
        shared.hold(one)
        yield one


def opened() -> AppTest:
    app = AppTest.from_function(draws, default_timeout=90)
    app.run()
    assert not app.exception, [one.message for one in app.exception]
    return app


def html(app: AppTest) -> str:
    return "".join(one.proto.body for one in app.get("html"))


def test_a_report_is_made_kept_and_noted(store: Store):
    app = opened()
    assert 'data-report="made"' not in html(app)
    app.text_input(key="report-title-None").input("A slow hour")
    app.text_input(key="report-slo-ttft").input("0.4")
    app.checkbox(key="report-data").check()
    app.button(key="report-keep").click().run()
    assert not app.exception
    shown = html(app)
    assert 'data-report="made"' in shown
    assert "A slow hour" in shown
    assert "it gives the same judgement" in shown
    assert "127.0.0.1:8000" in shown  # in the list of what was replaced
    (one,) = kept.rows(store)
    assert (one.asked.title, dict(one.asked.slo)) == ("A slow hour", {"ttft": 0.4})
    app.text_input(key=f"incident-note-{one.number}").input("restarted it")
    app.button(key=f"incident-add-{one.number}").click().run()
    assert "restarted it" in html(app)
    app.button(key=f"incident-remove-{one.number}").click().run()
    assert kept.rows(store) == []


def test_what_is_no_number_of_seconds_is_said(store: Store):
    app = opened()
    app.text_input(key="report-slo-e2e").input("soon")
    app.button(key="report-make").click().run()
    assert 'data-report="error"' in html(app)
    assert kept.rows(store) == []


def test_an_alert_is_opened_as_an_incident(store: Store):
    history.save(store, Slo("chat", "ttft", 0.9, 0.4))
    with store.transaction():
        number = history.new_alert(
            store,
            "chat",
            "page",
            history.LIVE,
            NOON + 30,
            NOON + 60,
            5.0,
            {"says": "Slots limit", "start": NOON + 30, "end": NOON + 80},
        )
    app = AppTest.from_function(draws, default_timeout=90)
    app.session_state[ALERT] = number
    app.run()
    assert not app.exception, [one.message for one in app.exception]
    assert f"Report of alert {number}" in html(app)
    app.button(key="report-keep").click().run()
    (one,) = kept.rows(store)
    assert (one.asked.alert_id, one.asked.start, one.asked.baseline) == (number, NOON + 30, (NOON - 20, NOON + 30))
    assert "Alert chat: Slots limit" in html(app)
