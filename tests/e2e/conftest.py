"""The dashboard as users run it: `weaklink serve` in a process of its own, on a free port, driven by a real Chromium."""

import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright
from ports import free_port

FLAGS: Final = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
]
READY_S: Final = 60
PATIENCE_MS: Final = 30_000  # other tests may have the processors
STATE: Final = """() => {
  const busy = document.querySelector('[data-stale="true"], [data-testid="stSpinner"], [data-testid="stSkeleton"]')
    || document.querySelector('.stApp')?.dataset.testScriptState === 'running'
    || [...document.querySelectorAll('[data-testid="stPlotlyChart"]')].some(e => !e.querySelector('.js-plotly-plot .main-svg'))
  return (busy ? 'busy' : 'still') + document.querySelector('[data-testid="stMain"]').innerText
}"""
START: Final = "from app.cli import main; main()"


def served(port: int, store: Path, log: Path, *options: str, start: str = START) -> Iterator[str]:
    """Yield the address of a server, once it is ready; stop it afterwards."""
    command = [sys.executable, "-c", start, "serve", "--port", str(port), "--store", str(store), "--no-browser", *options]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, "NO_COLOR": "1"})
    try:
        wait(process, f"http://127.0.0.1:{port}/_stcore/health", log)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    """Return when the server answers, with whatever; fail with its output where it does not."""
    end = time.monotonic() + READY_S
    while time.monotonic() < end:
        if process.poll() is not None:
            break
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except urllib.error.HTTPError as error:  # it is up, and asks for a token
            error.close()
            return
        except OSError:
            time.sleep(0.2)
    pytest.fail(f"the server is not ready (status {process.poll()}):\n{log.read_text(errors='replace')[-4000:]}")


@pytest.fixture(scope="session")
def dashboard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the address of a dashboard on an empty store."""
    folder = tmp_path_factory.mktemp("dashboard")
    yield from served(free_port(), folder / "store.duckdb", folder / "log")


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the address of a dashboard that asks for the token "secret"."""
    folder = tmp_path_factory.mktemp("guarded")
    yield from served(free_port(), folder / "store.duckdb", folder / "log", "--token", "secret")


@pytest.fixture(scope="module")  # no longer: while it is open its event loop runs, and asyncio.run() of other tests fails
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        one = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        yield one
        one.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """Return a page that fails the test where its console has an error or a request leaves this machine."""
    yield from watched(browser)


@pytest.fixture
def elsewhere(browser: Browser) -> Iterator[Page]:
    """Return a page as somebody else has it: dark, in India, with no state of the first one; watched as that is."""
    yield from watched(browser, color_scheme="dark", timezone_id="Asia/Kolkata")


def watched(browser: Browser, **options: Any) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1440, "height": 1060}, **options)
    one = context.new_page()
    one.set_default_timeout(PATIENCE_MS)
    expect.set_options(timeout=PATIENCE_MS)
    faults: list[str] = []
    one.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
    one.on("pageerror", lambda error: faults.append(str(error)))
    one.on("request", lambda request: None if _local(request.url) else faults.append(f"a request to {request.url}"))
    yield one
    context.close()
    assert not faults, "\n".join(faults)


def settled(page: Page) -> None:
    """Wait until a page is drawn and stands still."""
    page.locator(".wl-answer, .wl-blank").first.wait_for()
    quiet, before, end = 0, "", time.monotonic() + READY_S
    while quiet < 3 and time.monotonic() < end:
        page.wait_for_timeout(200)
        now = page.evaluate(STATE)
        quiet = quiet + 1 if now == before and not now.startswith("busy") else 0
        before = now


def _local(url: str) -> bool:
    return url.startswith(("http://127.0.0.1:", "ws://127.0.0.1:", "data:", "blob:"))
