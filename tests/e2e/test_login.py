"""The dashboard below a path, as a viewer and as an admin see it."""

import re
from collections.abc import Iterator

import pytest
from e2e.conftest import served
from playwright.sync_api import Page, expect
from ports import free_port
from recordings import INCIDENTS

from app.ingest import load
from app.store import Store

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def below(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the address of a dashboard below /weaklink with a token for admins and one for viewers."""
    folder = tmp_path_factory.mktemp("below")
    (folder / "admin").write_text("admins")
    (folder / "viewer").write_text("viewers")
    (folder / "weaklink.toml").write_text(
        f'[login]\ntoken_file = "{folder / "admin"}"\nread_token_file = "{folder / "viewer"}"\nbase_path = "/weaklink"\n'
    )
    with Store(folder / "store.duckdb") as store:
        load(store, [INCIDENTS / "output"])
    for url in served(free_port(), folder / "store.duckdb", folder / "log", "--config", str(folder / "weaklink.toml")):
        yield f"{url}/weaklink"


def data_page(page: Page, url: str, token: str) -> None:
    page.goto(f"{url}/?token={token}")
    expect(page.get_by_text("weaklink").first).to_be_visible()
    page.get_by_role("link", name="Data", exact=True).click()
    expect(page).to_have_url(re.compile(r"/weaklink/upload"))


def test_a_viewer_is_told_and_an_admin_can_upload(page: Page, below: str):
    data_page(page, below, "viewers")
    expect(page.get_by_text("This login may look, not change")).to_be_visible()
    expect(page.get_by_role("button", name="Load", exact=True)).to_have_count(0)
    expect(page.locator("input[type=file]")).to_have_count(0)
    data_page(page, below, "admins")
    expect(page.get_by_role("button", name="Load", exact=True)).to_be_visible()
    expect(page.get_by_text("This login may look, not change")).to_have_count(0)
