"""Closed days, thinning, limits: counters stay exact to the last reset, gauges keep mean and extremes, loaded recordings stay."""

import contextlib
import json
import math
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from recordings import finished, series

from app import retention
from app.ingest import load
from app.live.scraped import Feeds, put
from app.pipeline import window_of
from app.retention import DAY_S, Policy, bytes_of, keep, keeping, notes, summary, thin
from app.store import Store

MIDNIGHT: Final = 1795910400.0  # 2026-11-29 00:00 UTC
DAY: Final = "2026-11-29"
HERE: Final = "http://127.0.0.1:8000/metrics"
EXACT: Final = ("e2e_n", "e2e_s", "ttft_s", "queue_s", "generation_tokens", "preemptions")


def text(values: dict[str, float]) -> str:
    return "".join(f"{name} {value}\n" for name, value in values.items())


def server(rng: np.random.Generator, seconds: int, step: float = 5.0, begin: float = MIDNIGHT) -> Iterator[dict[str, Any]]:
    """Yield scrapes of a server that restarts twice, one of whose counters falls alone, that is away for a while."""
    count, tokens, preempted, started = 0, 0, 0, begin - 1000
    for at in np.arange(0.0, seconds, step):
        if at in {600.0, 605.0}:  # two restarts in a row
            count = tokens = preempted = 0
            started = begin + at
        if at == 900.0:
            preempted = 0
        count += int(rng.integers(0, 5))
        tokens += int(rng.integers(0, 500))
        preempted += int(rng.integers(0, 2))
        if 1200 <= at < 1500:
            yield {"t": begin + at, "url": HERE, "dur": 0.01, "error": "timed out"}
            continue
        values = finished(count, ttft=0.25, queue=0.125, prefill=0.125, decode=1.0, e2e=1.25)
        values |= {
            series("generation_tokens_total"): tokens,
            series("num_preemptions_total"): preempted,
            series("num_requests_running"): float(rng.integers(0, 100)),
            series("num_requests_waiting"): float(rng.integers(0, 10)),
            series("kv_cache_usage_perc"): float(rng.random()),
            "process_start_time_seconds": started,
        }
        yield {"t": begin + at, "url": HERE, "dur": 0.01, "text": text(values)}


def filled(path: Path, seed: int = 0, seconds: int = 2 * 3600, begin: float = MIDNIGHT) -> Store:
    store = Store(path)
    feeds: Feeds = {}
    put(store, feeds, list(server(np.random.default_rng(seed), seconds, begin=begin)))
    return store


def totals(store: Store) -> dict[str, float]:
    """Return the counters of the whole, and the seconds that requests ran and waited."""
    (engine,) = window_of(store).engines
    row = engine.interval
    found = {name: engine.total[name] for name in EXACT}
    found["running_s"] = float(((row["running"] + row["running_before"]) / 2 * row["dt_s"]).sum())
    found["waiting_s"] = float(((row["waiting"] + row["waiting_before"]) / 2 * row["dt_s"]).sum())
    return found | {"running_high": row["running_high"].max(), "restarts": float(window_of(store).restarts)}


def alike(one: dict[str, float], two: dict[str, float], *, rel: float = 1e-9) -> None:
    for name, value in one.items():
        assert two[name] == pytest.approx(value, rel=rel), name


def test_nothing_to_keep(tmp_path: Path):
    with Store(tmp_path / "a.duckdb") as store:
        done = keep(store, Policy(), MIDNIGHT)
        assert (done.closed, done.thinned, done.notes) == ({}, {}, [])
        assert notes(store, -math.inf, math.inf) == []
    with Store() as store:
        assert keep(store, Policy(), MIDNIGHT).closed == {}


def test_a_day_is_closed_once_it_is_over_and_reads_the_same(tmp_path: Path):
    with filled(tmp_path / "a.duckdb") as store:
        before, rows = totals(store), store.rows("SELECT count(*) FROM sample")[0][0]
        assert keep(store, Policy(), MIDNIGHT + DAY_S + 3600).closed == {}  # not yet: late data may come
        assert keep(store, Policy(), MIDNIGHT + DAY_S + 7201).closed == {"sample": rows}
        assert store.rows("SELECT count(*) FROM sample") == [(0,)]
        assert store.rows("SELECT count(*) FROM every_sample") == [(rows,)]
        assert totals(store) == before
        assert keep(store, Policy(), MIDNIGHT + DAY_S + 7300).closed == {}
    with Store(tmp_path / "a.duckdb") as store:  # opened again
        assert totals(store) == before
    (tmp_path / "b.duckdb").write_bytes((tmp_path / "a.duckdb").read_bytes())
    (tmp_path / "a.segments").rename(tmp_path / "b.segments")  # moved
    with Store(tmp_path / "b.duckdb") as store:
        assert totals(store) == before


@pytest.mark.parametrize(
    ("seed", "at_once", "begin"),
    [
        (0, 50_000_000, MIDNIGHT),
        (1, 50_000_000, MIDNIGHT),
        (2, 1000, MIDNIGHT),  # worked on hour by hour
        (3, 1000, MIDNIGHT + 3000),  # a restart is the first scrape of an hour
        (4, 1000, MIDNIGHT + 2995),  # the last one
        (5, 1000, MIDNIGHT + 2100),  # the server goes away for an hour's last five minutes
    ],
)
def test_thinned_days_have_the_same_counters_and_means(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, at_once: int, begin: float
):
    monkeypatch.setattr(retention, "MOST_ROWS", at_once)
    with filled(tmp_path / "a.duckdb", seed, begin=begin) as store:
        before = totals(store)
        assert before["restarts"] == 2
        scrapes = store.rows("SELECT count(*) FROM scrape WHERE ok")[0][0]
        done = keep(store, Policy(raw_days=1), MIDNIGHT + 3 * DAY_S)
        assert done.thinned == {DAY: "minute"}
        alike(before, totals(store))
        kept = store.rows("SELECT count(*) FROM scrape WHERE ok")[0][0]
        assert scrapes / 12 <= kept <= scrapes / 12 + 20  # one of twelve, and those around what happened
        assert 0 < store.rows("SELECT count(*) FROM scrape WHERE NOT ok")[0][0] <= 6
        assert keep(store, Policy(raw_days=1, minute_days=5), MIDNIGHT + 8 * DAY_S).thinned == {DAY: "hour"}
        alike(before, totals(store))
        assert store.rows("SELECT count(*) FROM scrape WHERE ok")[0][0] < kept / 4
        assert notes(store, MIDNIGHT, MIDNIGHT + 10) == [
            "2026-11-29: one sample an hour is kept (counters are exact; steps, requests and stats lines are gone)"
        ]
        assert notes(store, MIDNIGHT + DAY_S, math.inf) == []
        keep(store, Policy(raw_days=1, minute_days=5, hour_days=20), MIDNIGHT + 30 * DAY_S)
        assert store.rows("SELECT count(*) FROM every_sample") == store.rows("SELECT count(*) FROM scrape") == [(0,)]
        assert store.rows("SELECT count(*) FROM gauge_span") == [(0,)]
        assert notes(store, MIDNIGHT, math.inf) == ["2026-11-29: nothing is kept"]


def test_what_comes_late_joins_its_day(tmp_path: Path):
    lines = list(server(np.random.default_rng(5), 3600))
    with filled(tmp_path / "a.duckdb", 5, 3600) as store:
        whole = totals(store)
    with Store(tmp_path / "b.duckdb") as store:
        feeds: Feeds = {}
        put(store, feeds, lines[:300])
        keep(store, Policy(), MIDNIGHT + 2 * DAY_S)
        put(store, feeds, lines[300:])
        keep(store, Policy(), MIDNIGHT + 2 * DAY_S)
        assert store.rows("SELECT count(*) FROM segment WHERE name = 'sample'") == [(2,)]
        alike(whole, totals(store))
        keep(store, Policy(raw_days=1), MIDNIGHT + 9 * DAY_S)
        assert store.rows("SELECT level, count(*) FROM segment GROUP BY 1") == [("minute", 1)]
        alike(whole, totals(store))


def test_a_row_that_comes_while_a_day_is_closed_puts_off_only_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with filled(tmp_path / "a.duckdb", seconds=3600) as store:
        feeds: Feeds = {}
        put(store, feeds, list(server(np.random.default_rng(1), 600, begin=MIDNIGHT + DAY_S)))
        rows = dict(store.rows("SELECT floor(ts / 86400)::INT, count(*) FROM sample GROUP BY ALL ORDER BY 1"))
        first, second = rows.values()
        written = retention._written

        @contextlib.contextmanager
        def slowly(store: Store, table: str, day: str, statement: str) -> Iterator[tuple[Path, int]]:
            with written(store, table, day, statement) as found:
                if day == DAY and not came:
                    came.append(day)
                    store.execute("INSERT INTO sample BY NAME SELECT * REPLACE (ts + 2.5 AS ts) FROM sample WHERE ts < 1795910401 LIMIT 1")
                yield found

        came: list[str] = []
        monkeypatch.setattr(retention, "_written", slowly)
        done = keep(store, Policy(), MIDNIGHT + 3 * DAY_S)
        assert done.closed == {"sample": second}
        assert done.notes == [f"sample of {DAY}: rows came while it was closed ({first} written, {first + 1} there): it is closed at the next look"]
        assert store.rows("SELECT count(*) FROM every_sample") == [(first + second + 1,)]
        done = keep(store, Policy(), MIDNIGHT + 3 * DAY_S)
        assert (done.closed, done.notes) == ({"sample": first + 1}, [])
        assert store.rows("SELECT count(*) FROM every_sample") == [(first + second + 1,)]


def test_a_recording_that_was_loaded_is_left_alone(tmp_path: Path):
    bundle = Path(__file__).resolve().parent.parent / "sample_data" / "incidents" / "slots"
    with filled(tmp_path / "a.duckdb", 0, 600) as store:
        load(store, [bundle])
        loaded = "SELECT count(*) FROM every_sample JOIN series USING (series_id) WHERE instance <> '127.0.0.1:8000'"
        names = [
            row[0]
            for row in store.rows("SELECT DISTINCT scrape.instance FROM scrape JOIN source_file USING (file_id) WHERE NOT live")
        ]
        assert names
        tables = {
            name: store.rows(f"SELECT count(*) FROM {name} JOIN source_file USING (file_id) WHERE NOT live")
            for name in ("scrape", "stat", "step", "event")
        }
        before = store.rows(loaded)
        keep(store, Policy(raw_days=0.5, minute_days=1, hour_days=2), MIDNIGHT + 4000 * DAY_S)
        assert store.rows(loaded) == before
        for name, held in tables.items():
            assert store.rows(f"SELECT count(*) FROM {name} JOIN source_file USING (file_id) WHERE NOT live") == held
        assert store.rows("SELECT count(*) FROM scrape JOIN source_file USING (file_id) WHERE live") == [(0,)]


def test_a_store_that_is_too_large_gives_up_its_oldest_days_first(tmp_path: Path):
    with filled(tmp_path / "a.duckdb", 0, 3600) as store:
        keep(store, Policy(), MIDNIGHT + 2 * DAY_S)
        raw = bytes_of(store)
        done = keep(store, Policy(max_bytes=raw - 1), MIDNIGHT + 2 * DAY_S)
        assert done.thinned == {DAY: "minute"}
        done = keep(store, Policy(max_bytes=1), MIDNIGHT + 2 * DAY_S)
        assert done.thinned == {DAY: "none"}
        assert done.notes == ["the store is larger than it may be, and no closed day is left to thin"]


def test_a_query_of_a_span_reads_what_it_needs(tmp_path: Path):
    with filled(tmp_path / "a.duckdb") as store:
        spans = [(MIDNIGHT + low, MIDNIGHT + low + 300) for low in (0, 595, 600, 605, 900, 1190, 1500)]
        whole = store.columns("SELECT * FROM interval_row ORDER BY ts")
        for low, high in [*spans, (MIDNIGHT + 6000, math.inf)]:
            part = store.columns(
                "SELECT * FROM interval_row WHERE ts > $low AND ts <= $high ORDER BY ts", {"low": low, "high": high}
            )
            inside = (whole["ts"] > low) & (whole["ts"] <= high)
            assert len(part["ts"]) == inside.sum()
            for name in set(whole) - {"instance", "engine", "epoch"}:
                np.testing.assert_array_equal(part[name], whole[name][inside], err_msg=name)
        assert store.rows("SELECT count(*) FROM every_sample") == store.rows("SELECT count(*) FROM sample")


def test_a_file_that_a_crash_left_is_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with filled(tmp_path / "a.duckdb", 0, 600) as store:
        keep(store, Policy(), MIDNIGHT + 2 * DAY_S)
        named = set(store.segments.rglob("*.parquet"))
        stray = store.segments / "sample" / "2026-11-28-000001.parquet"
        stray.write_bytes(b"half a file")
        monkeypatch.setattr("app.retention.time.monotonic", iter([0.0, 0.0, 1000.0, 1000.0, 1000.0]).__next__)
        keep(store, Policy(), MIDNIGHT + 2 * DAY_S)
        assert stray.exists()
        keep(store, Policy(), MIDNIGHT + 2 * DAY_S)
        assert set(store.segments.rglob("*.parquet")) == named


def test_size_and_growth(tmp_path: Path):
    now = MIDNIGHT + 2 * DAY_S
    with filled(tmp_path / "a.duckdb", 0, 600) as store:
        assert summary(store, now)["growth_bytes_per_day"] is None
        store.execute("INSERT INTO size VALUES (?, ?)", [now - DAY_S, 1000])
        keep(store, Policy(), now)
        found = summary(store, now)
        assert found["bytes"] == bytes_of(store) > 0
        assert found["growth_bytes_per_day"] == pytest.approx(found["bytes"] - 1000)
        assert found["full_in_days"] == pytest.approx(found["free_bytes"] / found["growth_bytes_per_day"])
        assert [(one["level"], one["first"]) for one in found["closed"]] == [("all", DAY)]


def test_thinning_twice_changes_nothing(tmp_path: Path):
    with filled(tmp_path / "a.duckdb", 1, 1800) as store:
        keep(store, Policy(), MIDNIGHT + 2 * DAY_S)
        before = totals(store)
        for _ in range(2):
            thin(store, DAY, "minute", 0.0)
            alike(before, totals(store))


OPEN_ONLY: Final = (  # these mean the open days: they fill them, close them, or look at the last minutes
    *("queries/schema/", "queries/retention/", "queries/views/05_", "queries/live/source.sql"),
    *("app/ingest.py", "app/align.py", "app/retention.py", "app/live/", "app/selfcheck.py"),
)


def test_what_reads_the_past_reads_closed_days_too():
    root, wrong = Path(__file__).resolve().parent.parent, []
    for file in sorted([*(root / "queries").rglob("*.sql"), *(root / "app").rglob("*.py")]):
        name = str(file.relative_to(root))
        if not name.startswith(OPEN_ONLY) and re.search(r"\b(FROM|JOIN) (sample|step|kv_event)\b", file.read_text()):
            wrong.append(name)
    assert not wrong, f"read every_sample, every_step, every_kv_event instead of the table: {wrong}"


def test_status_says_size_growth_and_what_is_closed(tmp_path: Path):
    path = tmp_path / "a.duckdb"
    with filled(path, 0, 600) as store:
        keep(store, Policy(), MIDNIGHT + 2 * DAY_S)
        thin(store, DAY, "minute", 0.0)
        store.execute("INSERT INTO size VALUES (?, ?)", [time.time() - DAY_S, 1000])
    command = [sys.executable, "-m", "app", "status", "--store", str(path)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert re.search(r"grows \d+\.\d MB a day, the disk is full in \d+ days; \d+\.\d GB of the disk are free", said)
    assert "closed days by the minute: 1 (2026-11-29 to 2026-11-29)" in said
    assert "2026-11-29: one sample a minute is kept (counters are exact" in said
    found = json.loads(subprocess.run([*command, "--format", "json"], capture_output=True, text=True, check=True).stdout)
    assert found["rows"]["sample"] > 0  # of closed days too
    assert found["closed"][0] | {"bytes": 0} == {"level": "minute", "days": 1, "bytes": 0, "first": DAY, "last": DAY}
    assert found["growth_bytes_per_day"] > 0


def test_the_database_takes_no_more_memory_than_it_was_given(tmp_path: Path):
    ended = threading.Event()
    with Store(tmp_path / "a.duckdb") as store:
        looking = threading.Thread(target=keeping(Policy(memory_bytes=3e8)), args=(store, ended))
        looking.start()
        try:
            for _ in range(100):
                if store.rows("SELECT current_setting('memory_limit')") == [("286.1 MiB",)]:
                    break
                time.sleep(0.1)
            else:
                pytest.fail("the limit was not set")
        finally:
            ended.set()
            looking.join()


def test_a_limit_that_cannot_be_met_now_stops_no_look(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    with Store(tmp_path / "a.duckdb") as store:
        retention._limit(store, 1e6)  # an open database holds more
        assert "memory_gb: " in caplog.text
