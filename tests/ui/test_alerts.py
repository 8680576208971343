"""The Alerts page as Streamlit runs it: what fires, what is unknown, what was not delivered; and nothing of it is markup."""

import atexit
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from alerts.given import CHAT, NOON, course, recorded
from streamlit.testing.v1 import AppTest
from streamlit.testing.v1.app_test import TMP_DIR

from app.alerts import history, loop, outbox
from app.alerts.definitions import Definitions, Notifier
from app.alerts.evaluate import evaluate
from app.alerts.preview import preview
from app.store import Store
from app.ui import objectives, shared

atexit.register(TMP_DIR.cleanup)  # else its end is a warning, and a warning is an error

BURN = [0, 0, 0, 0, 0, 0, 9, 9, 9, 9]
EVIL = "<script>alert(1)</script>"


def draws() -> None:
    """Run by Streamlit: the frame with this page first."""
    import importlib  # noqa: PLC0415 Streamlit takes the text of this function alone

    from app.ui import main  # noqa: PLC0415 as above

    module = importlib.import_module("app.ui.screens.alerts")
    main.PAGES = (module, *(one for one in main.PAGES if one is not module))
    main.frame()


def opened(store: Store) -> AppTest:
    shared.hold(store)
    app = AppTest.from_function(draws, default_timeout=60).run()
    assert not app.exception, [one.message for one in app.exception]
    return app


def html(app: AppTest) -> str:
    return "".join(one.proto.body for one in app.get("html"))


@pytest.fixture(scope="module")
def burned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file of a store in which an objective with a telling name fires, and one receiver is gone."""
    folder = tmp_path_factory.mktemp("burned")
    store = recorded(folder, course(BURN), store=Store(folder / "a.duckdb"))
    definitions = Definitions(
        (replace(CHAT, name=f"chat {EVIL}"),), (Notifier("hook", "webhook", url="http://127.0.0.1:9/"),), 10.0
    )
    history.save(store, definitions.slos[0])
    for at in (80, 90, 100):
        evaluate(store, definitions, NOON + at)
    store.close()
    return folder / "a.duckdb"


@pytest.fixture
def firing(burned: Path, tmp_path: Path) -> Iterator[Store]:
    """Return a copy of it that a test may change."""
    shutil.copy(burned, tmp_path / "a.duckdb")
    with Store(tmp_path / "a.duckdb") as store:
        yield store


def test_what_fires_is_shown_with_its_diagnosis_and_acknowledged(firing: Store):
    app = opened(firing)
    shown = html(app)
    assert 'data-alerts="1"' in shown
    assert "1 objective burns its error budget too fast." in shown
    assert "Cannot tell what limits TTFT" in shown
    assert "● firing (page)" in shown
    assert "./?" in shown
    assert "Notifications that were not delivered" in shown
    assert EVIL not in shown
    assert "&lt;script&gt;" in shown
    app.button(key="ack-1").click().run()
    assert "Acknowledged by dashboard." in html(app)


def test_a_silence_is_made_and_ended(firing: Store):
    app = opened(firing)
    app.button(key="silence-1").click().run()
    assert "Silenced until" in html(app)
    assert len(history.silences(firing, time.time())) == 1
    app.button(key="unsilence-1").click().run()
    assert not history.silences(firing, time.time())


def test_an_objective_is_removed(firing: Store):
    app = opened(firing)
    name = f"chat {EVIL}"
    app.selectbox(key="edit-which").select(name).run()
    app.button(key="remove").click().run()
    assert not history.saved(firing)


def test_unknown_is_not_quiet(firing: Store):
    """An evaluation long after the last scrape."""
    slo = history.saved(firing)[0]
    quiet = replace(slo, name="later")
    history.save(firing, quiet)
    evaluate(firing, Definitions(), NOON + 500)
    status = history.statuses(firing)["later"]
    assert objectives.unknown(status) == "no data now"
    assert objectives.unknown(None) == "not evaluated"
    one = objectives.Objective(quiet, filed=False, status=status, preview=preview(firing, quiet, NOON - 1, NOON + 101, 10.0))
    assert "? no data now" in objectives.listed([one])
    assert "Nothing is observed now." in objectives.head([one], [], 30.0)


def test_a_dead_letter_is_shown(firing: Store):
    (letter,) = outbox.held(firing)
    outbox.failed(firing, letter, NOON + 200, "HTTP 404", give_up=True)
    assert "given up after 1 attempt (HTTP 404)" in html(opened(firing))


def test_nobody_evaluates_here_is_said(tmp_path: Path):
    assert not loop.running()
    store = recorded(tmp_path, course(BURN))
    history.save(store, CHAT)
    shown = html(opened(store))
    assert "Nobody evaluates here now" in shown
    assert "? not evaluated" in shown
