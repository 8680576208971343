"""Rows that are kept say what the views say, whatever comes late, twice, or is taken out."""

import logging
import math
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from recordings import NOON

from analyzers.model import Batch
from app import kept
from app.live import LIVE, file_of
from app.pipeline import window_of
from app.store import Store
from app.ui import shared

EDGES: Final = ("0.1", "0.5", "2.5", "+Inf")
SERIES: Final = (
    *(("vllm:time_to_first_token_seconds_bucket", f'{{"le": "{edge}"}}') for edge in EDGES),
    ("vllm:time_to_first_token_seconds_sum", "{}"),
    ("vllm:time_to_first_token_seconds_count", "{}"),
    ("vllm:generation_tokens_total", "{}"),
    ("vllm:num_requests_running", "{}"),
)
COUNTERS: Final = len(SERIES) - 1
INTERVALS: Final = "SELECT * EXCLUDE (epoch) FROM {} WHERE ts > $low AND ts <= $high ORDER BY ALL"
BUCKETS: Final = "SELECT instance, engine, family, le, low_le, ts, n FROM {} WHERE ts > $low AND ts <= $high AND n <> 0 ORDER BY ALL"
SUMS: Final = "SELECT * FROM bucket_sum(['vllm:time_to_first_token_seconds'], $low, $high) ORDER BY ALL"


def put(store: Store, instance: str, ts: Any, values: Any, *, names: Any = SERIES, engine: str = "0", bundle: str = LIVE, appending: bool = False) -> None:
    """Store scrapes: one row of `values` a scrape, one column a series; NaN: not there."""
    with store.transaction(appending=appending):
        many = len(names)
        ids = np.array(store.series_ids({
            "instance": [instance] * many, "name": [name for name, _ in names], "engine": [engine] * many,
            "model_name": ["m"] * many, "labels": [labels for _, labels in names],
        }))  # fmt: skip
        file_id = file_of(store, bundle, instance, "prometheus_text", instance)
        there = np.isfinite(values)
        at, which = np.nonzero(there)
        store.add(Batch("sample", {"series_id": ids[which], "ts": np.asarray(ts)[at], "value": values[there]}))
        rows = {"instance": [instance] * len(ts), "ts": ts, "duration_s": np.full(len(ts), 0.01)}
        store.add(Batch("scrape", {**rows, "ok": [True] * len(ts), "timed": [True] * len(ts)}), file_id=file_id)


def walked(rng: Any, n: int) -> Any:
    """Scrapes of one server: counters that grow and sometimes start again, a gauge, and now and then a series that is missing."""
    grown = rng.integers(0, 4, (n, len(SERIES))).astype(float)
    grown[:, : len(EDGES)] = np.cumsum(grown[:, : len(EDGES)], axis=1)  # cumulative over le
    values = np.cumsum(grown, axis=0)
    again = int(rng.integers(n // 3, n))
    values[again:, :COUNTERS] -= values[again - 1, :COUNTERS]  # a restart
    values[:, -1] = rng.integers(0, 9, n)
    missing = rng.random((n, len(SERIES))) < 0.05
    missing[:, : len(EDGES)] = missing[:, :1]  # the buckets of a histogram are exposed together
    values[missing] = np.nan
    return values


def same(store: Store, low: float = NOON - 3600, high: float = NOON + 3600) -> int:
    """Hold what is kept of a span against the views; how many rows were compared."""
    bounds = {"low": low, "high": high}
    compared = 0
    for text, name in ((INTERVALS, "interval_row"), (BUCKETS, "bucket")):
        plain = store.rows(text.format(f"main.{name}"), bounds)
        assert store.kept is not None
        assert store.kept(low, high)
        assert store.rows(text.format(name), bounds) == plain
        ((held,),) = store.rows(f"SELECT count(*) FROM kept_rows.{name} WHERE ts > ? AND ts <= ?", [low, high])
        assert held == len(plain)  # it was not the view that answered
        compared += len(plain)
    here, store.kept = store.kept, None
    plain = store.rows(SUMS, bounds)
    store.kept = here
    assert store.rows(SUMS, bounds) == plain
    return compared


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "a.duckdb") as found:
        kept.attach(found, least=1)
        yield found


@pytest.mark.parametrize("seed", range(2))
def test_it_is_what_the_views_say(store: Store, seed: int):
    rng = np.random.default_rng(seed)
    ts = {name: NOON + np.cumsum(rng.choice([5.0, 5.1, 7.0, 90.0], 60, p=[0.6, 0.2, 0.15, 0.05])) for name in ("a:1", "b:1")}
    values = {name: walked(rng, 60) for name in ts}
    first = {name: rng.random(60) < 0.7 for name in ts}
    for name, chosen in first.items():
        put(store, name, ts[name][chosen], values[name][chosen])
    assert same(store) > 100
    for name, chosen in first.items():  # the rest comes late, and between what is there
        put(store, name, ts[name][~chosen], values[name][~chosen])
    same(store)
    put(store, "a:1", ts["a:1"][20:40], values["a:1"][20:40], bundle="again")  # a copy of what is there
    same(store)
    for low in rng.uniform(NOON, NOON + 300, 2):
        same(store, float(low), float(low) + 120.0)
    with store.transaction():
        (file_id,) = store.rows("SELECT file_id FROM source_file WHERE bundle = 'again'")[0]
        store.execute("DELETE FROM scrape WHERE file_id = ?", [file_id])
        gone = float(ts["b:1"][30])
        store.execute("DELETE FROM scrape WHERE instance = 'b:1' AND ts > ?", [gone])
        store.execute("DELETE FROM sample WHERE ts > ? AND series_id IN (SELECT series_id FROM series WHERE instance = 'b:1')", [gone])
    same(store)


@pytest.mark.parametrize("seed", range(2))
def test_what_comes_in_piece_by_piece_is_what_the_views_say(store: Store, seed: int):
    """Each piece is added to what is kept of its minute: also where it begins with a restart, or lacks series that were there."""
    rng, each = np.random.default_rng(seed), 24
    values = {name: walked(rng, each) for name in ("a:1", "b:1")}
    at = {name: NOON + shift + np.cumsum(rng.choice([2.0, 5.0, 31.0], each, p=[0.6, 0.3, 0.1])) for name, shift in (("a:1", 0.0), ("b:1", 0.7))}  # fmt: skip
    now, compared = NOON, 0
    while now < max(float(ts[-1]) for ts in at.values()):
        before, now = now, now + float(rng.choice([4.0, 11.0, 45.0]))
        for name, ts in at.items():
            fresh = (ts > before) & (ts <= now)
            if fresh.any():
                put(store, name, ts[fresh], values[name][fresh], appending=True)
        compared = same(store, NOON, now)
    assert compared > 100


def test_what_comes_in_while_rows_are_computed_is_kept_once(store: Store, monkeypatch: pytest.MonkeyPatch):
    values, at = walked(np.random.default_rng(4), 24), NOON + 2.0 * np.arange(1, 25)
    arriving = [slice(8, 12), slice(12, 16), slice(16, 20)]
    fill = kept._Kept._fill

    def late(self: Any, stale: Any) -> None:  # after the seals were made
        if arriving:
            put(store, "a:1", at[arriving[0]], values[arriving.pop(0)], appending=True)
        fill(self, stale)

    put(store, "a:1", at[:8], values[:8], appending=True)
    monkeypatch.setattr(kept._Kept, "_fill", late)
    for seconds in (16.0, 24.0, 32.0, 40.0):
        assert store.kept is not None
        assert store.kept(NOON, NOON + seconds)
    assert not arriving
    same(store, NOON, NOON + 40)


def test_while_a_minute_lasts_what_is_kept_of_it_holds(store: Store, monkeypatch: pytest.MonkeyPatch):
    filled: list[tuple[int, ...]] = []
    fill = kept._Kept._fill
    monkeypatch.setattr(kept._Kept, "_fill", lambda self, stale: (filled.append(tuple(one[1] for one in stale)), fill(self, stale)))
    values, at = walked(np.random.default_rng(2), 40), NOON + 2.0 * np.arange(1, 41)
    assert store.kept is not None

    def fills(low: float, high: float) -> int:
        filled.clear()
        assert store.kept is not None
        assert store.kept(low, high)
        return len(filled)

    put(store, "a:1", at[:10], values[:10], appending=True)
    assert fills(NOON, NOON + 20) == 1
    put(store, "a:1", at[10:20], values[10:20], appending=True)
    assert fills(NOON, NOON + 20) == 0  # more of the minute came, after what is asked for
    assert fills(NOON - 1, NOON + 20) == 0
    same(store, NOON, NOON + 20)
    assert fills(NOON, NOON + 22) == 1
    same(store, NOON, NOON + 40)
    put(store, "a:1", at[:5] + 1, values[:5])  # late
    assert fills(NOON, NOON + 20) == 1
    put(store, "b:1", at[:5], values[:5], appending=True)  # another server, whose minute is not kept at all
    assert fills(NOON, NOON + 21) == 1
    put(store, "a:1", at[20:], values[20:], appending=True)
    same(store)


def test_what_comes_in_is_kept_ahead_and_pages_stay_with_it(store: Store, monkeypatch: pytest.MonkeyPatch):
    now, stop = time.time(), threading.Event()
    put(store, "a:1", now - 100 + np.arange(90.0), walked(np.random.default_rng(3), 90), appending=True)
    shared.hold(store)
    shared.mark()
    stop.set()
    kept.keeping(store, stop)
    assert now - 3 < store.settled_ts < time.time()
    second = shared.mark()
    put(store, "a:1", now + np.arange(2.0), walked(np.random.default_rng(3), 2), appending=True)
    assert shared.mark() == second
    put(store, "a:1", now - 200 + np.arange(2.0), walked(np.random.default_rng(3), 2), bundle="loaded")
    assert (third := shared.mark()) != second  # loaded by somebody: at once
    put(store, "a:1", now + 5 + np.arange(2.0), walked(np.random.default_rng(3), 2), appending=True)
    assert shared.mark() == third
    kept.keeping(store, stop)
    assert shared.mark() != third
    assert shared.settled() == store.settled_ts
    monkeypatch.setattr(shared, "GONE_S", 0.0)  # whoever computed ahead has stopped: pages do not stand still
    assert math.isinf(shared.settled())
    monkeypatch.undo()
    monkeypatch.setattr(store, "full", lambda: "no room")  # nothing is kept any more: it is looked at by the clock
    put(store, "a:1", now + 9 + np.arange(2.0), walked(np.random.default_rng(3), 2), appending=True)
    kept.keeping(store, stop)
    assert math.isinf(store.settled_ts)
    fourth = shared.mark()
    monkeypatch.setattr(shared, "FRESH_S", 0.0)
    put(store, "a:1", now + 19 + np.arange(2.0), walked(np.random.default_rng(3), 2), appending=True)
    assert shared.mark() != fourth


def test_a_name_that_gives_way_to_a_newer_one_is_counted_no_more(store: Store):
    ts, old = NOON + 5.0 * np.arange(20), (("vllm:time_per_output_token_seconds_sum", "{}"),)
    put(store, "a:1", ts, np.arange(20.0)[:, None], names=old)
    same(store)
    put(store, "a:1", ts + 200, np.arange(20.0)[:, None], names=(("vllm:inter_token_latency_seconds_sum", "{}"),))
    same(store)
    put(store, "a:1", ts + 400, np.arange(20.0)[:, None], names=SERIES[4:5], engine="1")
    same(store)


def test_other_edges_are_another_histogram(store: Store):
    name, ts = "vllm:time_to_first_token_seconds_bucket", NOON + 5.0 * np.arange(20)
    put(store, "a:1", ts, np.arange(20.0)[:, None] * [1, 2], names=((name, '{"le": "1.0"}'), (name, '{"le": "+Inf"}')))
    put(store, "a:1", ts + 300, np.arange(20.0)[:, None] * [1, 3], names=((name, '{"le": "2.0"}'), (name, '{"le": "+Inf"}')))
    same(store, NOON, NOON + 200)
    same(store, NOON + 300, NOON + 600)


def test_nothing_observed_is_zero_and_nothing_exposed_is_no_row(store: Store):
    ts = NOON + 5.0 * np.arange(20)
    put(store, "a:1", ts, np.zeros((20, len(SERIES))))
    put(store, "b:1", ts, np.zeros((20, 1)), names=SERIES[-1:])
    found = store.rows(SUMS, {"low": NOON, "high": NOON + 100})
    assert found == [("a:1", "0", "vllm:time_to_first_token_seconds", float(edge), 0.0) for edge in EDGES]


def test_what_is_kept_is_found_again_and_made_anew_where_it_is_of_no_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path, ts = tmp_path / "a.duckdb", NOON + 5.0 * np.arange(40)
    file = tmp_path / "a.segments" / "kept" / "rows.duckdb"

    def opened() -> int:
        with Store(path) as store:
            kept.attach(store, least=1)
            ((held,),) = store.rows("SELECT count(*) FROM kept_rows.interval_row")
            same(store)
            return held

    with Store(path) as store:
        put(store, "a:1", ts, walked(np.random.default_rng(0), 40))
    assert opened() == 0
    assert opened() == 39
    file.write_bytes(b"broken")
    assert opened() == 0
    monkeypatch.setattr(kept, "sql", lambda *path: kept_text(*path) + " -- a change")
    assert opened() == 0
    assert opened() == 39
    monkeypatch.undo()
    file.unlink()
    assert opened() == 0


kept_text: Final = kept.sql


def test_short_spans_and_texts_without_a_time_are_left_to_the_views(tmp_path: Path):
    with Store(tmp_path / "a.duckdb") as store:
        kept.attach(store)
        put(store, "a:1", NOON + 5.0 * np.arange(40), walked(np.random.default_rng(0), 40))
        assert store.kept is not None
        assert store.kept(NOON, NOON + 200) is None
        assert len(window_of(store).engines[0].interval["ts"]) == 39
        store.kept = None
        store.execute("DETACH kept_rows")
        kept.attach(store, least=1)
        assert store.kept is not None
        assert store.kept(NOON, NOON + 200)
        store.execute("UPDATE scrape SET timed = false")
        assert store.kept(NOON, NOON + 200) is None


def test_inside_of_a_transaction_the_views_answer(store: Store):
    put(store, "a:1", NOON + 5.0 * np.arange(40), walked(np.random.default_rng(0), 40))
    with store.snapshot():
        found = store.rows(INTERVALS.format("interval_row"), {"low": NOON, "high": NOON + 3600})
    assert len(found) == 39
    assert store.rows("SELECT count(*) FROM kept_rows.part") == [(0,)]


def test_a_store_in_use_is_judged_the_same(store: Store):
    rng = np.random.default_rng(1)
    put(store, "a:1", NOON + 5.0 * np.arange(90), walked(rng, 90))
    with_kept = window_of(store, NOON, NOON + 3600)
    store.kept = None
    plain = window_of(store, NOON, NOON + 3600)
    assert (with_kept.start, with_kept.end, with_kept.restarts) == (plain.start, plain.end, plain.restarts)
    assert with_kept.engines[0].total == pytest.approx(plain.engines[0].total)
    for family, (le, n) in plain.engines[0].bucket.items():
        assert with_kept.engines[0].bucket[family][0].tolist() == le.tolist()
        assert with_kept.engines[0].bucket[family][1].tolist() == n.tolist()


def test_what_cannot_be_kept_is_said_and_computed(store: Store, caplog: pytest.LogCaptureFixture):
    put(store, "a:1", NOON + 5.0 * np.arange(40), walked(np.random.default_rng(0), 40))
    store.execute("DROP TABLE kept_rows.shown")
    with caplog.at_level(logging.WARNING):
        found = store.rows(INTERVALS.format("interval_row"), {"low": -math.inf, "high": math.inf})
    assert len(found) == 39
    assert "cannot be kept" in caplog.text
