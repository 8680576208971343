"""A page that is open while a server is scraped: it follows in place, without an error."""

import os
import re
import time
import urllib.request
from collections.abc import Iterator
from typing import Final

import pytest
from e2e.conftest import START, served
from playwright.sync_api import Page, expect
from ports import free_port
from recordings import INCIDENTS

from app.collectors import replay

pytestmark = pytest.mark.e2e

OFTEN: Final = "from app.ui import shared; shared.FOLLOW_S = 3.0; "  # a page looks ten times as often
WATCHED_S: Final = float(os.environ.get("WEAKLINK_LIVE_S", "0"))  # longer than it takes to see one change, where asked for


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the address of a dashboard that scrapes a recording that is served again."""
    folder = tmp_path_factory.mktemp("live")
    with replay.recording(INCIDENTS / "slots") as held, replay.serve(held, speed=0.25) as playing:
        (url,) = playing.urls.values()
        options = ("--target", url, "--interval", "0.5")
        yield from served(free_port(), folder / "store.duckdb", folder / "log", *options, start=OFTEN + START)


def until_scraped(address: str, times: int) -> None:
    """Wait until the server has scraped so often."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        with urllib.request.urlopen(f"{address}/metrics", timeout=30) as answer:
            found = re.findall(r"^weaklink_scrapes_total\{.*\} (\S+)$", answer.read().decode(), re.MULTILINE)
        if sum(map(float, found)) >= times:
            return
        time.sleep(0.5)
    raise AssertionError(found)


def test_a_live_page_follows_in_place(page: Page, live: str):
    until_scraped(live, 5)  # two scrapes make a course
    page.goto(f"{live}/timeline")
    page.locator(".js-plotly-plot").first.wait_for()
    shown = page.locator(".st-key-live .wl-answer p").first
    before = shown.inner_text()
    page.evaluate("document.querySelectorAll('.wl-brand, .js-plotly-plot').forEach(e => e.seen = true)")
    expect(shown).not_to_have_text(before, timeout=90_000)
    page.wait_for_timeout(1000 * WATCHED_S)
    assert page.evaluate("[...document.querySelectorAll('.wl-brand, .js-plotly-plot')].map(e => e.seen)") == [True, True]
    assert page.locator("[data-testid=stException]").count() == 0
