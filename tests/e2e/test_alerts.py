"""The journey of an objective in a real browser: made, previewed, saved, fired on a replay, and opened at its window."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.conftest import served
from playwright.sync_api import Page, expect
from ports import free_port
from recordings import INCIDENTS

from app.ingest import load
from app.store import Store

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the address of a dashboard on the burst of long prompts."""
    folder = tmp_path_factory.mktemp("alerts")
    with Store(folder / "store.duckdb") as store:
        load(store, [INCIDENTS / "prefill_backlog"])
    yield from served(free_port(), folder / "store.duckdb", folder / "log")


def test_an_objective_is_made_previewed_replayed_and_its_diagnosis_opened(page: Page, address: str):
    page.goto(f"{address}/alerts")
    expect(page.locator("[data-alerts]")).to_contain_text("No objective is defined yet.")

    page.get_by_role("textbox", name="Name", exact=True).fill("chat")
    page.get_by_role("textbox", name="At most", exact=True).fill("1.6s")
    page.get_by_role("button", name="Preview", exact=True).click()
    expect(page.locator("[data-preview='2']")).to_contain_text("It would have fired 2 times in this data.")
    expect(page.locator("[data-preview]")).to_contain_text("the nearest are 1 s and 2.5 s")

    page.get_by_role("textbox", name="At most", exact=True).fill("soon")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.locator("[data-preview='error']")).to_contain_text("threshold: expected a length with its unit")
    page.get_by_role("textbox", name="At most", exact=True).fill("1s")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.locator(".st-key-card-objectives")).to_contain_text("99 % of TTFT at most 1 s over 30 d")

    page.get_by_role("button", name="Replay", exact=True).click()
    card = page.locator("[data-replayed]")
    expect(card.locator("h2 em")).to_have_text("Prefill backlog")
    expect(page.locator(".st-key-card-history")).to_contain_text("chat (replay)")
    page.get_by_role("button", name="Acknowledge", exact=True).click()
    expect(page.get_by_text("Acknowledged by dashboard.")).to_be_visible()

    card.get_by_role("link", name="Open its window in the Overview", exact=True).click()
    page.wait_for_url(re.compile(r"/\?.*from=2026-11-29"))
    expect(page.locator("[data-verdict]").first).to_be_visible()


def test_the_page_fits_a_narrow_screen(page: Page, address: str, tmp_path: Path):
    page.set_viewport_size({"width": 480, "height": 900})
    page.goto(f"{address}/alerts")
    expect(page.locator("[data-alerts]")).to_be_visible()
    page.screenshot(path=tmp_path / "narrow.png")
    assert page.evaluate("document.scrollingElement.scrollWidth") <= 480
