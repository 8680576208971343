"""The README's pictures, made anew: `python -m tests.screenshots` starts the dashboard on the sample incidents and photographs it.

`--all FOLDER` writes every page of every incident, light and dark, for somebody to look at; nothing of that is committed.
"""

import argparse
import io
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from app.ui.screens import PAGES

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from e2e.conftest import FLAGS, served, settled  # noqa: E402
from ports import free_port  # noqa: E402

INCIDENTS: Final = ROOT / "sample_data" / "incidents"
PICTURES: Final = ROOT / "tests" / "pictures"
MOST_BYTES: Final = 1_500_000
WIDE, TALL = 1440, 1060
SHOWN: Final = {"kv_cache": "prefix_cache_miss", "ranks": "prefix_cache_miss"}  # page -> incident; else the one of the demo


@contextmanager
def dashboard(bundles: Sequence[Path]) -> Iterator[str]:
    """Yield the address of a dashboard with these bundles."""
    with tempfile.TemporaryDirectory(prefix="weaklink-shots-") as folder:
        store = Path(folder) / "store.duckdb"
        for bundle in bundles:
            subprocess.run(
                [sys.executable, "-m", "app", "load", str(bundle), "--store", str(store)], check=True, stdout=subprocess.DEVNULL
            )
        for address in served(free_port(), store, Path(folder) / "log"):
            with urllib.request.urlopen(f"{address}/healthz", timeout=10):
                yield address


def shot(
    browser: Browser,
    url: str,
    *,
    dark: bool = False,
    whole: bool = False,
    wide: int = WIDE,
    use: Callable[[Page], None] | None = None,
) -> Image.Image:
    """Photograph a page, after somebody did `use` on it."""
    context = browser.new_context(viewport={"width": wide, "height": TALL}, color_scheme="dark" if dark else "light")
    page = context.new_page()
    page.set_default_timeout(60_000)
    page.goto(url)
    settled(page)
    if use:
        use(page)
        settled(page)
    if whole:
        height = page.evaluate("document.querySelector('[data-testid=stMainBlockContainer]').scrollHeight")
        page.set_viewport_size({"width": wide, "height": max(TALL, int(height) + 20)})
        page.wait_for_timeout(600)
    picture = Image.open(io.BytesIO(page.screenshot()))
    context.close()
    return picture


def main() -> None:
    """Photograph."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--all", type=Path, help="whole pages into this folder, for looking at")
    asked.add_argument("--incident", action="append", default=[])
    asked.add_argument("--page", action="append", default=[])
    asked.add_argument("--dark", action="store_true")
    asked.add_argument("--wide", type=int, default=WIDE)
    given = asked.parse_args()
    names = given.incident or sorted(path.name for path in INCIDENTS.iterdir() if (path / "manifest.toml").exists())
    with dashboard([INCIDENTS / name for name in names]) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        if given.all:
            given.all.mkdir(parents=True, exist_ok=True)
            for name in names:
                for page in given.page or [_last(module.__name__) for module in PAGES]:
                    picture = shot(browser, _url(address, page, name), dark=given.dark, whole=True, wide=given.wide)
                    picture.save(given.all / f"{name}-{page}{'-dark' if given.dark else ''}.png")
                    print(name, page, picture.size, flush=True)
        else:
            readme(browser, address, names)
        browser.close()


def readme(browser: Browser, address: str, names: Sequence[str]) -> None:
    """Photograph what the README shows: every page on the incident that shows most of it, and the answer of every incident."""
    PICTURES.mkdir(exist_ok=True)
    for old in PICTURES.glob("*.webp"):
        old.unlink()
    for module in PAGES:
        page = _last(module.__name__)
        if page in USED:
            continue  # at the end: what is done there shows on others
        keep(shot(browser, _url(address, page, SHOWN.get(page, "prefill_backlog"))), page, wide=1100)
    keep(shot(browser, _url(address, "overview", "prefill_backlog"), dark=True), "dark", wide=1100)
    for name in names:
        keep(shot(browser, _url(address, "overview", name)), f"incident-{name}", wide=720)
    shot(browser, _url(address, "hypotheses", "prefill_backlog"), use=_keep_experiment)
    for page, use in USED.items():
        keep(shot(browser, _url(address, page, "prefill_backlog"), use=use), page, wide=1100)
    total = sum(one.stat().st_size for one in PICTURES.glob("*.webp"))
    print(f"{len(list(PICTURES.glob('*.webp')))} pictures, {total / 1e6:.2f} MB")
    assert total < MOST_BYTES


def _keep_experiment(page: Page) -> None:
    page.get_by_role("button", name="Keep as an experiment").first.click()
    page.get_by_text("is kept: see the Experiments page").first.wait_for()


def _set_objective(page: Page) -> None:
    page.get_by_role("textbox", name="Name").fill("chat")
    page.get_by_role("button", name="Save", exact=True).click()
    page.locator(".st-key-card-objectives").wait_for()
    page.get_by_role("button", name="Replay", exact=True).click()
    page.locator("[data-replayed]").wait_for()


def keep(picture: Image.Image, name: str, *, wide: int) -> None:
    """Write a picture as wide as that."""
    small = picture.convert("RGB").resize((wide, round(picture.height * wide / picture.width)), Image.Resampling.LANCZOS)
    small.save(PICTURES / f"{name}.webp", quality=72, method=6)
    print(name, (PICTURES / f"{name}.webp").stat().st_size, flush=True)


def _last(module: str) -> str:
    return module.rpartition(".")[2]


def _url(address: str, page: str, incident: str) -> str:
    query = {"recording": incident} | ({"link": "prefill_backlog"} if page == "link" else {})
    return f"{address}/{'' if page == 'overview' else page}?{urlencode(query)}"


USED: Final[dict[str, Callable[[Page], None] | None]] = {"experiments": None, "alerts": _set_objective}

if __name__ == "__main__":
    main()
