"""How fast the pages are on a large store: `python tests/benchmarks/pages.py [--hours 24] [--engines 8] [--every 5]`.

Makes a store of as many servers, each with every series of a real recording, scraped that often for so long (the numbers of the
recording, stretched). Prints the size of the store, how long each query of a page takes over the whole and over the last hour, and
what a live page costs. The aims: a chart's query in under 300 ms, a live page under 5 % of a core. What a page sends, and the
points of its traces, are held by tests/e2e/test_pages.py.
"""

import argparse
import math
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from app.ingest import load  # noqa: E402
from app.pipeline import attribution_for  # noqa: E402
from app.store import Store, sql, sql_names  # noqa: E402
from app.ui.shared import FOLLOW_S  # noqa: E402

INCIDENT: Final = ROOT / "sample_data" / "incidents" / "decode_batch"
NOON: Final = 1795953600.0
QUERY_S: Final = 0.3

CLONE: Final = """
INSERT INTO sample
WITH last AS (
  SELECT o.name, n.series_id, max(m.value) AS top, n.instance,
    o.name SIMILAR TO '.*_(total|sum|count|bucket)' AS counter, o.name LIKE '%_info' OR o.name LIKE 'process_start%' AS fixed
  FROM series AS o JOIN sample AS m USING (series_id)
  JOIN series AS n ON n.name = o.name AND n.labels = o.labels AND n.engine IS NOT DISTINCT FROM o.engine AND n.instance LIKE '10.0.0.%'
  WHERE o.instance NOT LIKE '10.0.0.%' GROUP BY ALL
)
SELECT series_id, $start + i * $every AS ts,
  CASE WHEN fixed THEN top WHEN counter AND name LIKE '%_sum' THEN top * $stretch * i / $n
    WHEN counter THEN floor(top * $stretch * i / $n)
    ELSE top * (0.6 + 0.4 * sin(i / 97.0 + hash(instance) % 7)) END
FROM range($low, $high) AS t(i), last
ORDER BY ts, series_id
"""


def build(path: Path, hours: float, engines: int, every: float) -> None:
    """Fill a store with so many servers."""
    with Store(path, memory_limit="4GB") as store:
        load(store, [INCIDENT])
        first, last = store.rows("SELECT min(ts), max(ts) FROM scrape WHERE ok")[0]
        n = int(hours * 3600 / every)
        store.execute("DELETE FROM stat")
        store.execute("DELETE FROM step")
        store.execute("DELETE FROM request")
        ((file_id,),) = store.rows("SELECT file_id FROM source_file WHERE format = 'prometheus_text'")
        store.execute("UPDATE source_file SET bundle = 'large' WHERE file_id = ?", [file_id])
        for k in range(engines):
            name = f"10.0.0.{k}:8000"
            store.execute(
                "INSERT INTO series SELECT nextval('series_id_seq'), ?, name, engine, model_name, labels FROM series WHERE instance NOT LIKE '10.0.0.%' AND instance IS NOT NULL",
                [name],
            )
            store.execute(
                "INSERT INTO scrape SELECT ?, ?, ? + i * ?, 0.01, true, true FROM range(?) AS t(i)",
                [file_id, name, NOON, every, n],
            )
        for low in range(0, n, 1000):
            given = {
                "start": NOON,
                "every": every,
                "n": n,
                "low": low,
                "high": min(n, low + 1000),
                "stretch": hours * 3600 / (last - first),
            }
            store.cursor().execute(CLONE, given)
        store.execute("DELETE FROM sample WHERE ts < ?", [NOON - 1] if last < NOON else [-1])
        store.execute("DELETE FROM sample WHERE series_id IN (SELECT series_id FROM series WHERE instance NOT LIKE '10.0.0.%')")
        store.execute("DELETE FROM scrape WHERE instance NOT LIKE '10.0.0.%'")
        store.execute("DELETE FROM series WHERE instance NOT LIKE '10.0.0.%'")
        store.execute("CHECKPOINT")


def queries(path: Path) -> None:
    """Time every query of the screens, over the whole and over the last hour."""
    with Store(path) as store:
        began = time.perf_counter()
        store.rows("SELECT count(*) FROM interval_row")
        print(f"rows of the intervals: {time.perf_counter() - began:.2f} s the first time")
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
                best = math.inf
                for _ in range(2):
                    began = time.perf_counter()
                    store.columns(text, asked or None)
                    best = min(best, time.perf_counter() - began)
                mark = "" if best < QUERY_S else "  MISSED"
                print(f"{words:>14} {name:24} {1000 * best:7.0f} ms{mark}", flush=True)


def refresh(path: Path) -> None:
    """CPU seconds of one look of a live page at the last hour, after a scrape more of each server."""
    with Store(path) as store:
        ((last,),) = store.rows("SELECT max(ts) FROM scrape")
        names = [f"{a}/{b}" for a, b in store.rows("SELECT DISTINCT instance, engine FROM quantity_series WHERE engine <> ''")]
        store.rows("SELECT count(*) FROM interval_row")
        store.execute(
            "INSERT INTO scrape SELECT file_id, instance, ts + 5, duration_s, ok, timed FROM scrape WHERE ts = ?", [last]
        )
        store.execute("INSERT INTO sample SELECT series_id, ts + 5, value FROM sample WHERE ts = ?", [last])
        began = time.process_time()
        attribution_for(store, last - 3600, math.inf, names)
        for name in ("overview_card", "overview_quantile", "timeline"):
            given = {"low": last - 3600, "high": math.inf, "engines": names, "points": 500}
            store.columns(sql("screens", name), {key: given[key] for key in given if f"${key}" in sql("screens", name)})
        spent = time.process_time() - began
        print(
            f"a live page: {spent:.2f} s of CPU a look, every {FOLLOW_S} s where scrapes came: {100 * spent / FOLLOW_S:.1f} % of a core"
        )


def main() -> None:
    """Print the figures."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--hours", type=float, default=24.0)
    asked.add_argument("--engines", type=int, default=8)
    asked.add_argument("--every", type=float, default=5.0)
    asked.add_argument("--store", type=Path, help="keep the store here, or use the one that is there")
    given = asked.parse_args()
    with tempfile.TemporaryDirectory(prefix="weaklink-pages-") as folder:
        path = given.store or Path(folder) / "store.duckdb"
        if not path.exists():
            began = time.perf_counter()
            build(path, given.hours, given.engines, given.every)
            print(f"made in {time.perf_counter() - began:.0f} s")
        with Store(path) as store:
            samples, series = store.rows("SELECT (SELECT count(*) FROM sample), (SELECT count(*) FROM series)")[0]
        print(f"store: {path.stat().st_size / 1e6:.0f} MB, {samples:,} samples of {series:,} series")
        queries(path)
        refresh(path)


if __name__ == "__main__":
    main()
