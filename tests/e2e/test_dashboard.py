"""What an operator does first: upload a bundle, read the verdict, look when it began, set the window, hand on the address."""

import json
import urllib.error
import urllib.request
import zipfile
from pathlib import Path
from typing import Final

import pytest
from playwright.sync_api import Page, expect
from recordings import INCIDENTS, judged

from app.ui.verdict import headline
from app.ui.words import THIN

pytestmark = pytest.mark.e2e

DRAWN: Final = (
    "[...document.querySelectorAll('.js-plotly-plot')].some(e => e._fullLayout && e.querySelector('.scatterlayer .trace path'))"
)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a zip of one incident, as somebody would send it."""
    path = tmp_path_factory.mktemp("sent") / "tuesday.zip"
    with zipfile.ZipFile(path, "w") as packed:
        for file in sorted((INCIDENTS / "prefill_backlog").iterdir()):
            packed.write(file, f"tuesday/{file.name}")
    return path


def plain(markup: str) -> str:
    return markup.replace("<em>", "").replace("</em>", "").replace(THIN, " ")


def post(url: str, body: bytes, **headers: str) -> tuple[int, str]:
    request = urllib.request.Request(url, body, {name.replace("_", "-"): value for name, value in headers.items()})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_from_an_upload_to_the_cause_and_its_moment(page: Page, dashboard: str, archive: Path):
    target = judged(INCIDENTS / "prefill_backlog").attribution.targets["ttft"]
    page.goto(dashboard)
    expect(page.locator(".wl-answer h1")).to_have_text("Nothing has been loaded yet.")
    page.get_by_role("link", name="Upload a bundle").click()
    page.locator("input[type=file]").set_input_files(archive)
    page.get_by_text("tuesday.zip").wait_for()
    page.get_by_role("button", name="Load", exact=True).click()
    page.get_by_text("files read of").wait_for()
    expect(page.locator(".st-key-card-results")).to_contain_text("prometheus_text")
    page.get_by_role("link", name="See what limits it").click()

    head = page.locator(".wl-answer h1")
    expect(head).to_contain_text("Prefill backlog limits TTFT")
    assert head.inner_text().replace(THIN, " ") == plain(headline(target))
    expect(page.locator(".wl-link.limiting")).to_have_attribute("data-link", "prefill_backlog")
    assert page.locator(".wl-chain").bounding_box()["y"] + page.locator(".wl-chain").bounding_box()["height"] < 1060

    page.get_by_role("link", name="Timeline").click()
    page.wait_for_function(DRAWN)
    box = page.locator(".js-plotly-plot .nsewdrag").first.bounding_box()
    page.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 22, steps=5)
    page.mouse.move(box["x"] + 0.7 * box["width"], box["y"] + 24, steps=5)
    page.mouse.up()
    page.wait_for_url("**from=2026-11-29*")
    page.get_by_role("button", name="Whole recording").first.wait_for()

    page.get_by_role("link", name="Overview").click()  # the window goes with the pages
    page.wait_for_url("**/?*from=2026-11-29*")
    page.locator("[data-testid=stPopoverButton]").last.click()
    page.get_by_role("button", name="Whole recording").click()
    page.keyboard.press("Escape")
    expect(head).to_contain_text("Prefill backlog limits TTFT")
    page.get_by_role("radio", name="E2E").click()
    page.wait_for_url("**target=e2e*")
    expect(head).to_contain_text("E2E")

    page.goto(page.url)  # the address alone shows the same to somebody else
    expect(head).to_contain_text("Prefill backlog limits E2E")


def test_on_a_narrow_screen_nothing_is_cut(page: Page, dashboard: str, archive: Path):
    post(f"{dashboard}/api/bundles?name=tuesday.zip", archive.read_bytes(), X_Weaklink="upload")
    page.set_viewport_size({"width": 400, "height": 900})
    page.goto(dashboard)
    page.locator(".wl-chain").wait_for()
    assert page.evaluate("document.querySelector('[data-testid=stMain]').scrollWidth") <= 400
    wide = "[...document.querySelectorAll('.stHtml *')].filter(e => e.getBoundingClientRect().right > 401).map(e => e.className)"
    assert page.evaluate(wide) == []


def test_bundles_are_taken_by_post(dashboard: str, archive: Path):
    url = f"{dashboard}/api/bundles?name=tuesday.zip"
    status, said = post(url, archive.read_bytes(), X_Weaklink="upload")
    assert status == 200
    assert {one["format"] for one in json.loads(said)["files"]} >= {"prometheus_text", "vllm_log", "otlp_spans"}
    status, said = post(f"{dashboard}/api/bundles?name=../../cut.zip", b"PK\x03\x04", X_Weaklink="upload")
    assert (status, json.loads(said)["files"][0]["name"]) == (200, "cut.zip")
    assert "cut short" in json.loads(said)["files"][0]["message"]
    assert post(url, b"", X_Weaklink="upload")[0] == 400
    assert post(url, b"x")[0] == 403  # a large body would not be read before the refusal
    assert post(url, b"x", X_Weaklink="upload", Origin="http://elsewhere.test")[0] == 403
    assert post(url, b"x", X_Weaklink="upload", Host="rebound.test")[0] == 403
    with urllib.request.urlopen(f"{dashboard}/healthz", timeout=10) as answer:
        assert json.load(answer)["status"] == "ok"


def test_with_a_token_everything_asks_for_it_once(page: Page, guarded: str):
    for path in ("/", "/timeline", "/healthz", "/_stcore/health", "/api/bundles?name=x", "/?token=wrong"):
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"{guarded}{path}", timeout=10)
        with refused.value as error:
            assert error.code == 401
            assert error.read().startswith(b"weaklink: ")
    assert post(f"{guarded}/api/bundles?name=x.log", b"x", X_Weaklink="upload")[0] == 401
    assert post(f"{guarded}/api/bundles?name=x.log", b"x", Authorization="Bearer secret")[0] == 200

    page.goto(f"{guarded}/?token=secret&target=e2e")
    page.locator(".wl-answer h1").wait_for()
    assert "token" not in page.url
    assert "target=e2e" in page.url
    page.goto(guarded)
    page.locator(".wl-answer h1").wait_for()
