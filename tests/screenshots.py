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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

from tests.e2e.conftest import FLAGS, free_port, served, settled

ROOT: Final = Path(__file__).resolve().parent.parent
INCIDENTS: Final = ROOT / "sample_data" / "incidents"
WIDE, TALL = 1440, 1060


@contextmanager
def dashboard(bundles: Sequence[Path]) -> Iterator[str]:
    """Yield the address of a dashboard with these bundles."""
    with tempfile.TemporaryDirectory(prefix="weaklink-shots-") as folder:
        store = Path(folder) / "store.duckdb"
        for bundle in bundles:
            subprocess.run([sys.executable, "-m", "app", "load", str(bundle), "--store", str(store)], check=True, stdout=subprocess.DEVNULL)
        for address in served(free_port(), store, Path(folder) / "log"):
            with urllib.request.urlopen(f"{address}/healthz", timeout=10):
                yield address


def shot(browser: Browser, url: str, *, dark: bool = False, whole: bool = False, wide: int = WIDE) -> Image.Image:
    """Photograph a page."""
    context = browser.new_context(viewport={"width": wide, "height": TALL}, color_scheme="dark" if dark else "light")
    page = context.new_page()
    page.set_default_timeout(60_000)
    page.goto(url)
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
    asked.add_argument("--all", type=Path, help="every page of these incidents into this folder")
    asked.add_argument("--incident", action="append", default=[])
    asked.add_argument("--page", action="append", default=[])
    asked.add_argument("--dark", action="store_true")
    asked.add_argument("--wide", type=int, default=WIDE)
    given = asked.parse_args()
    names = given.incident or sorted(path.name for path in INCIDENTS.iterdir() if (path / "manifest.toml").exists())
    given.all.mkdir(parents=True, exist_ok=True)
    with dashboard([INCIDENTS / name for name in names]) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        for name in names:
            for page in given.page:
                url = f"{address}/{page}?{urlencode({'recording': name})}"
                picture = shot(browser, url, dark=given.dark, whole=True, wide=given.wide)
                picture.save(given.all / f"{name}-{page}{'-dark' if given.dark else ''}.png")
                print(name, page, picture.size)
        browser.close()


if __name__ == "__main__":
    main()
