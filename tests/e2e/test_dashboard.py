"""What an operator does first: upload a bundle, read the verdict, look when it began, set the window, hand on the address."""

import gzip
import itertools
import json
import re
import urllib.error
import urllib.request
import zipfile
from pathlib import Path
from typing import Final

import pytest
from e2e.conftest import settled
from playwright.sync_api import Page, expect
from recordings import INCIDENTS, judged

from app.ui.first import WAYS
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


def test_from_an_upload_to_the_cause_and_its_moment(page: Page, elsewhere: Page, dashboard: str, archive: Path):
    target = judged(INCIDENTS / "prefill_backlog").attribution.targets["ttft"]
    page.goto(dashboard)
    expect(page.locator(".wl-answer h1")).to_have_text("Nothing has been loaded yet.")
    expect(page.locator("[data-testid=stCode]")).to_have_text([line for _, _, line in WAYS])  # each with its button to copy
    page.get_by_role("link", name="Upload a bundle", exact=True).click()
    page.locator("input[type=file]").set_input_files(archive)
    page.get_by_text("tuesday.zip").wait_for()
    page.get_by_role("button", name="Load", exact=True).click()
    page.get_by_text("files read of").wait_for()
    expect(page.locator(".st-key-card-results")).to_contain_text("prometheus_text")
    page.get_by_role("link", name="See what limits it").click()
    page.locator(".wl-chain").wait_for()
    settled(page)

    head = page.locator(".wl-answer h1")
    expect(head).to_contain_text("Prefill backlog limits TTFT")
    assert head.inner_text().replace(THIN, " ") == plain(headline(target))
    expect(page.locator(".wl-link.limiting")).to_have_attribute("data-link", "prefill_backlog")
    assert page.locator(".wl-chain").bounding_box()["y"] + page.locator(".wl-chain").bounding_box()["height"] < 1060

    page.get_by_role("link", name="Timeline", exact=True).click()
    page.wait_for_function(DRAWN)
    settled(page)
    box = page.locator(".js-plotly-plot .nsewdrag").first.bounding_box()
    page.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 22, steps=5)
    page.mouse.move(box["x"] + 0.7 * box["width"], box["y"] + 24, steps=5)
    page.mouse.up()
    page.wait_for_url("**from=2026-11-29*")
    page.get_by_role("button", name="Whole recording", exact=True).first.wait_for()
    elsewhere.goto(page.url)
    expect(elsewhere.locator(".st-key-picks")).to_have_text(page.locator(".st-key-picks").inner_text(), use_inner_text=True)
    assert elsewhere.evaluate("getComputedStyle(document.querySelector('.stApp')).backgroundColor") == "rgb(15, 18, 22)"

    page.get_by_role("link", name="Overview", exact=True).click()  # the window goes with the pages
    page.wait_for_url("**/?*from=2026-11-29*")
    page.locator(".wl-chain").wait_for()
    settled(page)
    page.locator("[data-testid=stPopoverButton]").last.click()
    page.get_by_role("button", name="Whole recording", exact=True).click()
    page.keyboard.press("Escape")
    expect(head).to_contain_text("Prefill backlog limits TTFT")
    page.get_by_role("radio", name="E2E", exact=True).click()
    page.wait_for_url("**target=e2e*")
    expect(head).to_contain_text("E2E")

    page.goto(page.url)  # the address alone shows the same to somebody else
    expect(head).to_contain_text("Prefill backlog limits E2E")


@pytest.fixture
def incident(dashboard: str, archive: Path) -> str:
    """Return the address of a dashboard that holds the incident."""
    post(f"{dashboard}/api/bundles?name=tuesday.zip", archive.read_bytes(), X_Weaklink="upload")
    return dashboard


def line_of(where: str) -> str:
    """Return the line of the incident's recording that a page names as "file:line"."""
    name, _, number = where.rpartition(":")
    with gzip.open(INCIDENTS / "prefill_backlog" / name.rpartition("/")[2], "rt") as file:
        return next(itertools.islice(file, int(number) - 1, None))


def test_from_the_verdict_to_the_sample_behind_it(page: Page, incident: str):
    page.goto(f"{incident}/?recording=tuesday.zip")
    page.locator(".wl-link.limiting").click()
    page.wait_for_url("**/link?*link=prefill_backlog*")
    settled(page)
    expect(page.locator(".wl-answer h1")).to_contain_text(
        re.compile(r"Prefill backlog holds 1\.\d\d.s of the mean TTFT of 1\.73.s")
    )
    page.wait_for_function(DRAWN)
    row = page.locator(".st-key-card-raw tr", has_text="vllm:num_requests_waiting").first
    most, where = row.locator("td").nth(3).inner_text(), row.locator("code").last.inner_text()
    text = json.loads(line_of(where))["text"]
    assert float(most) > 100
    assert [line.split()[-1] for line in text.splitlines() if line.startswith("vllm:num_requests_waiting{")] == [f"{most}.0"]
    step = page.locator(".st-key-card-lines tr", has_text="context_tokens").first
    iteration = re.search(r"iteration (\d+)", step.inner_text().replace(",", ""))[1]
    assert f"Iteration({iteration})" in line_of(step.locator("code").inner_text())

    page.locator(".wl-chip", has_text="Slots").click()  # another link, without loading everything anew
    expect(page.locator(".wl-answer")).to_have_attribute("data-link", "slots")
    page.go_back()
    expect(page.locator(".wl-answer")).to_have_attribute("data-link", "prefill_backlog")


def test_from_the_slowest_request_to_who_held_it(page: Page, elsewhere: Page, incident: str):
    page.goto(f"{incident}/requests?recording=tuesday.zip")
    expect(page.locator(".wl-answer h1")).to_contain_text("behind 23 prompts of 12,000 tokens that arrived at the same moment")
    key = page.locator(".wl-answer").first.get_attribute("data-request")
    span = page.locator(".st-key-card-request li", has_text="span of the server").locator("code").inner_text()
    assert key in line_of(span)
    page.wait_for_function("document.querySelectorAll('.barlayer .point path').length > 20")
    settled(page)
    bar = page.locator(".barlayer .trace").nth(1).locator(".point path").nth(3).bounding_box()  # the fourth request's queue
    page.mouse.click(bar["x"] + bar["width"] / 2, bar["y"] + 4)
    page.wait_for_url("**request=cmpl*")
    expect(page.locator(".wl-answer").first).not_to_have_attribute("data-request", key)

    culprit = page.locator(".st-key-card-request td a[href*=request]").first
    name = culprit.inner_text()
    culprit.click()
    expect(page.locator(".wl-answer").first).to_have_attribute("data-request", re.compile(name.strip("…")))
    expect(page.locator(".st-key-card-request")).to_contain_text("12,000 prompt tokens")

    elsewhere.goto(page.url + "&zone=local")  # the address alone shows the same, by the reader's own clock
    expect(elsewhere.locator(".wl-answer").first).to_have_attribute("data-request", re.compile(name.strip("…")))
    expect(elsewhere.locator(".st-key-picks")).to_contain_text(re.compile(r"21:03:45 . 21:04:51 UTC\+5:30"))


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
    for path in ("/", "/timeline", "/_stcore/health", "/api/bundles?name=x", "/?token=wrong"):
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
