"""A browser for the pages of reports: one for the module, a page without network for each test."""

import shutil
from collections.abc import Iterator
from typing import Final

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

FLAGS: Final = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking"]


@pytest.fixture(scope="module")  # no longer: while it is open its event loop runs, and asyncio.run() of other tests fails
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        one = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        yield one
        one.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """Return a page; the test fails where its console has an error or a script raised one. `asked` are the addresses asked for."""
    context = browser.new_context(viewport={"width": 1100, "height": 900}, bypass_csp=True)  # axe comes in as a script of ours
    one = context.new_page()
    one.set_default_timeout(60_000)
    faults: list[str] = []
    one.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
    one.on("pageerror", lambda error: faults.append(str(error)))
    yield one
    context.close()
    assert not faults, "\n".join(faults)
