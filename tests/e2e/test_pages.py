"""Every page in a real browser: barriers, dark mode, many engines, weight; and uploads that are large, refused or broken."""

import json
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import axe_playwright_python
import pytest
from e2e.conftest import served, settled
from e2e.test_dashboard import post
from playwright.sync_api import Browser, Page, WebSocket, expect
from ports import free_port
from recordings import HERE, INCIDENTS, finished, scrapes, series

from app.ui.screens import PAGES

pytestmark = pytest.mark.e2e

AXE: Final = Path(axe_playwright_python.__file__).with_name("axe.min.js")
# What Streamlit draws and we cannot change; each with what it is. Everything inside our own elements counts.
THEIRS: Final = {
    "scrollable-region-focusable": "stMain",  # its main region scrolls and takes no focus
}
ENGINES: Final = 64
PAGE_BYTES: Final = 500_000
NAMES: Final = [module.__name__.rpartition(".")[2] for module in PAGES]


def fleet(path: Path) -> Path:
    """Write the scrapes of one server with many engines, of which one holds most of the requests."""
    rows = []
    for t in range(0, 60, 10):
        values: dict[str, float | str] = {}
        for engine in range(ENGINES):
            n = t * (5 if engine == 7 else 1)
            values |= finished(n, str(engine), ttft=0.4, queue=0.1, prefill=0.2, decode=1.0, e2e=1.5)
            values[series("num_requests_running", str(engine))] = 30 if engine == 7 else 6
            values[series("num_requests_waiting", str(engine))] = 5 if engine == 7 else 0
            values[series("kv_cache_usage_perc", str(engine))] = 0.9 if engine == 7 else 0.2
        rows.append((t, values))
    return scrapes(path, rows, HERE)


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the address of a dashboard with an incident and a fleet."""
    folder = tmp_path_factory.mktemp("held")
    for address in served(free_port(), folder / "store.duckdb", folder / "log"):
        packed = folder / "prefix_cache_miss.zip"
        with zipfile.ZipFile(packed, "w") as archive:
            for file in sorted((INCIDENTS / "prefix_cache_miss").iterdir()):
                archive.write(file, file.name)
        assert post(f"{address}/api/bundles?name=incident.zip", packed.read_bytes(), X_Weaklink="upload")[0] == 200
        many = fleet(folder / "fleet.jsonl").read_bytes()
        assert post(f"{address}/api/bundles?name=fleet.jsonl", many, X_Weaklink="upload")[0] == 200
        yield address


def opened(page: Page, url: str) -> None:
    """Open a page and wait until it is drawn."""
    page.goto(url)
    settled(page)


def barriers(page: Page) -> list[str]:
    """What axe-core calls serious or critical, without what is Streamlit's own."""
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found: dict[str, Any] = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    said = []
    for one in found["violations"]:
        nodes = [node for node in one["nodes"] if not (one["id"] in THEIRS and THEIRS[one["id"]] in node["html"])]
        if one["impact"] in {"serious", "critical"} and nodes:
            said.append(f"{one['id']} ({one['help']}): " + " | ".join(node["html"][:160] for node in nodes[:3]))
    return said


@pytest.mark.parametrize("name", NAMES)
def test_a_page_has_no_serious_barrier_and_is_light(page: Page, held: str, name: str):
    sent: list[int] = []

    def count(socket: WebSocket) -> None:
        socket.on("framereceived", lambda frame: sent.append(len(frame)))

    page.on("websocket", count)
    opened(page, f"{held}/{'' if name == NAMES[0] else name}?recording=incident.zip")
    assert barriers(page) == []
    assert sum(sent) < PAGE_BYTES
    most = page.evaluate(
        "Math.max(0, ...[...document.querySelectorAll('.js-plotly-plot')].flatMap(e => e.calcdata.map(c => c.length)))"
    )
    assert most <= 2000
    assert page.locator("[data-testid=stException]").count() == 0


def test_dark_pages_have_no_serious_barrier(browser: Browser, held: str):
    context = browser.new_context(viewport={"width": 1440, "height": 1060}, color_scheme="dark")
    page = context.new_page()
    for name in ("", "kv_cache"):
        opened(page, f"{held}/{name}?recording=incident.zip")
        assert page.evaluate("getComputedStyle(document.querySelector('.stApp')).backgroundColor") == "rgb(15, 18, 22)"
        assert barriers(page) == []
    context.close()


def test_sixty_four_engines_are_a_fleet_with_a_hot_one(page: Page, held: str):
    opened(page, f"{held}/?recording=fleet.jsonl")
    expect(page.locator(".st-key-card-fleet")).to_contain_text(f"{ENGINES} engines")
    opened(page, f"{held}/ranks?recording=fleet.jsonl")
    expect(page.locator(".wl-answer h1")).to_contain_text(f"{ENGINES} engines: the busiest, 127.0.0.1:8000/7, holds")
    assert page.locator(".wl-hot", has_text="hot").count() == 1
    assert page.locator(".st-key-card-engines tbody tr").count() == ENGINES
    assert page.evaluate("document.querySelector('.js-plotly-plot').data.length") <= 16  # the highest, the median and the lowest


def test_the_numbers_of_a_chart_can_be_taken_away(page: Page, held: str):
    opened(page, f"{held}/timeline?recording=incident.zip")
    with page.expect_download() as waited:
        page.get_by_role("button", name="CSV", exact=True).first.click()
    lines = Path(waited.value.path()).read_text().splitlines()
    assert lines[0].startswith("x,")
    assert lines[1].startswith("2026-11-29T")
    assert len(lines) > 40


def test_a_broken_bundle_is_said_and_harms_nothing(page: Page, held: str, tmp_path: Path):
    broken = tmp_path / "broken.zip"
    broken.write_bytes(b"PK\x03\x04" + bytes(range(256)) * 20)
    opened(page, f"{held}/upload")
    page.locator("input[type=file]").set_input_files(broken)
    page.get_by_text("broken.zip").first.wait_for()
    page.get_by_role("button", name="Load", exact=True).click()
    page.get_by_text("cut short").or_(page.get_by_text("cannot be read")).first.wait_for()
    page.get_by_role("link", name="Overview", exact=True).click()
    page.locator(".wl-answer h1").wait_for()


def test_a_large_bundle_goes_to_disk_and_a_refused_one_gets_its_answer(held: str, tmp_path: Path):
    large = tmp_path / "large.zip"
    line = b"INFO 11-29 12:00:01 [x.py:1] nothing that anybody reads" + b", for a long time now" * 400 + b"\n"
    with zipfile.ZipFile(large, "w") as packed:
        packed.writestr("server.log", line * 20_000)
    assert large.stat().st_size > 150e6
    status, said = post(f"{held}/api/bundles?name=large.zip", large.read_bytes(), X_Weaklink="upload")
    assert status == 200, said
    assert json.loads(said)["files"][0]["name"] == "server.log"
    status, said = post(f"{held}/api/bundles?name=refused.zip", bytes(30_000_000))
    assert (status, "send the header" in said) == (403, True)
    with urllib.request.urlopen(f"{held}/healthz", timeout=10) as answer:
        assert json.load(answer)["status"] == "ok"
