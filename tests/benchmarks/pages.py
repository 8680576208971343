"""How fast the pages are on a large store: `python tests/benchmarks/pages.py [--hours 24] [--engines 8] [--every 5] [--store PATH]`.

Makes a store of as many servers, each with every series of a real recording, scraped that often for so long (the numbers of the
recording, stretched); `--store` keeps it for the next time. Prints the size of the store, how long each query of a page takes over
the whole and over the last hour, when each page is ready in a real Chromium and what it sends (`--no-browser` leaves that out), and
what a live page costs. The aims: a page ready in 2 s, warm, with at most 0.5 MB; a chart's query in 300 ms; a live page under 5 % of
a core. Warm is a browser that has the dashboard open: the address is opened in its tab. In a new tab the browser first starts a
process and compiles all scripts, which is printed beside it. Of a query the CPU counts where that is less: the machine may have other work. The points of its traces are held by tests/e2e/test_pages.py.
"""

import argparse
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any, Final

from playwright.sync_api import Page, sync_playwright

ROOT: Final = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from ports import free_port  # noqa: E402

from app import kept  # noqa: E402
from app.ingest import load  # noqa: E402
from app.pipeline import attribution_for  # noqa: E402
from app.store import Store, sql, sql_names  # noqa: E402
from app.ui.screens import PAGES  # noqa: E402
from app.ui.shared import FOLLOW_S  # noqa: E402

INCIDENT: Final = ROOT / "sample_data" / "incidents" / "decode_batch"
NOON: Final = 1795953600.0
QUERY_S: Final = 0.3
READY_S: Final = 2.0
READY_BYTES: Final = 5e5
PATIENCE_MS: Final = 300_000
STILL: Final = """() => {
  const busy = document.querySelector('[data-stale="true"], [data-testid="stSpinner"], [data-testid="stSkeleton"]')
    || document.querySelector('.stApp')?.dataset.testScriptState === 'running'
    || [...document.querySelectorAll('[data-testid="stPlotlyChart"]')].some(e => !e.querySelector('.js-plotly-plot .main-svg'))
  return !busy && document.querySelectorAll('.wl-answer, .wl-blank').length > 0
}"""

CLONE: Final = """
INSERT INTO sample
WITH last AS (
  SELECT o.name, n.series_id, max(m.value) AS top, n.instance,
    o.name SIMILAR TO '.*_(total|sum|count|bucket)' AS counter, o.name LIKE '%_info' OR o.name LIKE 'process_start%' AS fixed
  FROM series AS o JOIN sample AS m USING (series_id)
  JOIN series AS n ON n.name = o.name AND n.labels = o.labels AND n.engine IS NOT DISTINCT FROM o.engine AND list_contains($names, n.instance)
  WHERE NOT list_contains($names, o.instance) GROUP BY ALL
)
SELECT series_id, $start + i * $every AS ts,
  CASE WHEN fixed THEN top WHEN counter AND name LIKE '%_sum' THEN top * $stretch * i / $n
    WHEN counter THEN floor(top * $stretch * i / $n)
    ELSE top * (0.6 + 0.4 * sin(i / 97.0 + hash(instance) % 7)) END
FROM range($low, $high) AS t(i), last
ORDER BY ts, series_id
"""


def build(path: Path, names: list[str], start: float, hours: float, every: float) -> None:
    """Fill a store with so many hours of these servers."""
    with Store(path, memory_limit="4GB") as store:
        load(store, [INCIDENT])
        first, last = store.rows("SELECT min(ts), max(ts) FROM scrape WHERE ok")[0]
        n = int(hours * 3600 / every)
        store.execute("DELETE FROM stat")
        store.execute("DELETE FROM step")
        store.execute("DELETE FROM request")
        ((file_id,),) = store.rows("SELECT file_id FROM source_file WHERE format = 'prometheus_text'")
        store.execute("UPDATE source_file SET bundle = 'large' WHERE file_id = ?", [file_id])
        recorded = "SELECT unnest($recorded::BIGINT[])"
        given = {"recorded": [one for (one,) in store.rows("SELECT series_id FROM series")]}
        for name in names:
            store.cursor().execute(
                f"INSERT INTO series SELECT nextval('series_id_seq'), $name, name, engine, model_name, labels FROM series WHERE series_id IN ({recorded}) AND instance IS NOT NULL",
                {**given, "name": name},
            )
            store.execute(
                "INSERT INTO scrape SELECT ?, ?, ? + i * ?, 0.01, true, true FROM range(?) AS t(i)",
                [file_id, name, start, every, n],
            )
        for low in range(0, n, 1000):
            spread = {
                "names": names,
                "start": start,
                "every": every,
                "n": n,
                "low": low,
                "high": min(n, low + 1000),
                "stretch": hours * 3600 / (last - first),
            }
            store.cursor().execute(CLONE, spread)
        store.cursor().execute(f"DELETE FROM sample WHERE series_id IN ({recorded})", given)
        store.cursor().execute("DELETE FROM scrape WHERE NOT list_contains($names, instance)", {"names": names})
        store.cursor().execute(f"DELETE FROM series WHERE series_id IN ({recorded})", given)
        store.execute("CHECKPOINT")


def prepare(path: Path) -> None:
    """Keep the rows of all that is there, as a server does while scrapes come in."""
    with Store(path) as store:
        kept.attach(store)
        began, spent = time.perf_counter(), time.process_time()
        assert store.kept is not None
        place = store.kept(-math.inf, math.inf)
        file = path.with_suffix(".segments") / "kept" / "rows.duckdb"
        print(
            f"kept rows: {file.stat().st_size / 1e6:.0f} MB, {'' if place else 'NOT USED, '}{time.perf_counter() - began:.1f} s, {time.process_time() - spent:.1f} s of CPU"
        )


def queries(path: Path) -> None:
    """Time every query of the screens, over the whole and over the last hour, and the judgement."""
    with Store(path) as store:
        kept.attach(store)
        ((first, last),) = store.rows("SELECT min(ts), max(ts) FROM scrape")
        ids = [f"{a}/{b}" for a, b in store.rows("SELECT DISTINCT instance, engine FROM quantity_series WHERE engine <> ''")]
        for words, low in (("the whole", first - 1), ("the last hour", last - 3600)):
            given = {
                "low": low, "high": last, "engines": ids, "instances": [one.rpartition("/")[0] for one in ids], "points": 1500,
                "slices": 60, "family": "vllm:time_to_first_token_seconds", "names": ["vllm:time_to_first_token_seconds"], "edges": [low + at * (last - low) / 1500 for at in range(1, 1501)], "start": low, "most": 12,
            }  # fmt: skip
            for name in sql_names("screens"):
                text = sql("screens", name)
                asked = {key: value for key, value in given.items() if f"${key}" in text}
                if set(re.findall(r"\$(\w+)", re.sub(r"--.*", "", text))) - set(given):
                    continue  # it is about one link or request
                best = least = math.inf
                for _ in range(3):
                    began, spent = time.perf_counter(), time.process_time()
                    store.columns(text, asked or None)
                    best, least = min(best, time.perf_counter() - began), min(least, time.process_time() - spent)
                mark = "" if min(best, least) < QUERY_S else "  MISSED"
                print(f"{words:>14} {name:24} {1000 * best:7.0f} ms, {1000 * least:.0f} ms of CPU{mark}", flush=True)
            began, spent = time.perf_counter(), time.process_time()
            attribution_for(store, low, last, ids)
            print(
                f"{words:>14} {'the judgement':24} {1000 * (time.perf_counter() - began):7.0f} ms, {1000 * (time.process_time() - spent):.0f} ms of CPU"
            )


def ready(path: Path) -> None:
    """When each page stands still in a browser that has asked for it before, in its tab and in a new one; what its socket brings."""
    port = free_port()
    command = [
        sys.executable,
        "-c",
        "from app.cli import main; main()",
        "serve",
        "--port",
        str(port),
        "--store",
        str(path),
        "--no-browser",
    ]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as server, sync_playwright() as play:
        try:
            _wait(f"http://127.0.0.1:{port}/_stcore/health")
            browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"])
            context = browser.new_context(viewport={"width": 1400, "height": 1000})
            tab = context.new_page()
            for name in ("", *(module.__name__.rpartition(".")[2] for module in PAGES[1:])):
                address = f"http://127.0.0.1:{port}/{name}{'?link=prefill_backlog' if name == 'link' else ''}"
                first = _opened(tab, address)
                before = _cpu_s(server.pid)
                again = [_opened(tab, address) for _ in range(3)]
                spent = (_cpu_s(server.pid) - before) / len(again)
                seconds, size = sorted(again)[1]
                mark = "" if seconds < READY_S and size < READY_BYTES else "  MISSED"
                new, _ = min(_anew(context, address) for _ in range(3))
                print(
                    f"page {name or 'overview':12} ready in {seconds:5.2f} s ({spent:.2f} s of the server's CPU; the first time {first[0]:5.2f} s; in a new tab {new:5.2f} s), {size / 1000:4.0f} kB{mark}",
                    flush=True,
                )
            browser.close()
        finally:
            server.terminate()


def _wait(url: str) -> None:
    for _ in range(300):
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    raise TimeoutError(url)


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _anew(context: Any, address: str) -> tuple[float, int]:
    """As `_opened`, in a new tab, from when it is asked for."""
    began = time.perf_counter()
    page: Page = context.new_page()
    _, size = _opened(page, address)
    spent = time.perf_counter() - began
    page.close()
    return spent, size


def _opened(page: Page, address: str) -> tuple[float, int]:
    """Open an address in a tab: seconds until it stands still, bytes over its socket."""
    size = 0

    def count(payload: str | bytes) -> None:
        nonlocal size
        size += len(payload)

    def listen(socket: Any) -> None:
        socket.on("framereceived", count)

    page.on("websocket", listen)
    began = time.perf_counter()
    page.goto(address, wait_until="commit", timeout=PATIENCE_MS)
    page.wait_for_function(STILL, timeout=PATIENCE_MS, polling=50)
    spent = time.perf_counter() - began
    page.remove_listener("websocket", listen)
    return spent, size


def refresh(path: Path) -> None:
    """CPU seconds of one look of a live page at the last hour, after more scrapes of each server."""
    with Store(path) as store:
        kept.attach(store)
        ((last,),) = store.rows("SELECT max(ts) FROM scrape")
        names = [f"{a}/{b}" for a, b in store.rows("SELECT DISTINCT instance, engine FROM quantity_series WHERE engine <> ''")]
        assert store.kept is not None
        store.kept(last - 3600, math.inf)
        for by in range(5, int(FOLLOW_S) + 1, 5):
            store.execute(
                "INSERT INTO scrape SELECT file_id, instance, ts + ?, duration_s, ok, timed FROM scrape WHERE ts = ?", [by, last]
            )
            store.execute("INSERT INTO sample SELECT series_id, ts + ?, value FROM sample WHERE ts = ?", [by, last])
        began = time.process_time()
        attribution_for(store, last - 3600, math.inf, names)
        for name in ("overview_card", "overview_quantile", "timeline", "timeline_quantile", "timeline_mark"):
            given = {
                "low": last - 3600,
                "high": math.inf,
                "engines": names,
                "points": 500,
                "instances": [one.rpartition("/")[0] for one in names],
            }
            store.columns(sql("screens", name), {key: given[key] for key in given if f"${key}" in sql("screens", name)})
        spent = time.process_time() - began
        store.execute("DELETE FROM scrape WHERE ts > ?", [last])
        store.execute("DELETE FROM sample WHERE ts > ?", [last])
        print(
            f"a live page: {spent:.2f} s of CPU a look, every {FOLLOW_S:g} s where scrapes came: {100 * spent / FOLLOW_S:.1f} % of a core"
        )


def main() -> None:
    """Print the figures."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--hours", type=float, default=24.0)
    asked.add_argument("--engines", type=int, default=8)
    asked.add_argument("--every", type=float, default=5.0)
    asked.add_argument("--store", type=Path, help="keep the store here, or use the one that is there")
    asked.add_argument("--no-browser", action="store_true")
    given = asked.parse_args()
    with tempfile.TemporaryDirectory(prefix="weaklink-pages-") as folder:
        path = given.store or Path(folder) / "store.duckdb"
        if not path.exists():
            began = time.perf_counter()
            build(path, [f"10.0.0.{k}:8000" for k in range(given.engines)], NOON, given.hours, given.every)
            print(f"made in {time.perf_counter() - began:.0f} s")
        with Store(path) as store:
            samples, series = store.rows("SELECT (SELECT count(*) FROM sample), (SELECT count(*) FROM series)")[0]
        print(f"store: {path.stat().st_size / 1e6:.0f} MB, {samples:,} samples of {series:,} series")
        prepare(path)
        queries(path)
        if not given.no_browser:
            ready(path)
        refresh(path)


if __name__ == "__main__":
    main()
