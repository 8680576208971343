"""From raw series to comparable numbers: increases between scrapes, restarts, holes, renames, several engines and servers."""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from recordings import NOON, Values, client, scrape, scrapes, series, span, started, stats, stored, text

from analyzers.model import Batch
from app.ingest import load
from app.store import Store

TOKENS: Final = series("generation_tokens_total")
PROMPT: Final = series("prompt_tokens_total")
RUNNING: Final = series("num_requests_running")
START: Final = series("process_start_time_seconds", None)


@pytest.fixture
def views(tmp_path: Path):
    """`views(rows)`: a store with these scrapes: (seconds after noon, values)."""

    def load(rows: Iterable[tuple[float, Values | None]]) -> Store:
        return stored(scrapes(tmp_path / "metrics.jsonl", rows))

    return load


def deltas(store: Store, quantity: str = "generation_tokens", instance: str = "127.0.0.1:8000") -> list[tuple[float, float]]:
    """Return (seconds after noon, increase), one a scrape and series."""
    found = store.rows(
        "SELECT ts, increase FROM delta WHERE quantity = ? AND instance = ? ORDER BY ts, series_id", [quantity, instance]
    )
    return [(round(ts - NOON, 6), increase) for ts, increase in found]


def intervals(store: Store, *columns: str, engine: str = "0", instance: str = "127.0.0.1:8000") -> list[tuple[Any, ...]]:
    """Return the columns of interval_row, ts in seconds after noon."""
    wanted = ", ".join(
        "round(ts - 1795953600, 6)" if name == "ts" else f"round({name}, 6)" if name == "dt_s" else name for name in columns
    )
    return store.rows(f"SELECT {wanted} FROM interval_row WHERE engine = ? AND instance = ? ORDER BY ts", [engine, instance])


# -- increases ---------------------------------------------------------------------------------------------------------


def test_nothing(views):
    with Store() as store:
        assert store.rows("SELECT * FROM interval_row") == []
    assert views([(0, None)]).rows("SELECT * FROM interval_row") == []


def test_one_scrape_is_only_the_baseline(views):
    store = views([(0, {TOKENS: 1000, RUNNING: 3})])
    assert deltas(store) == []
    assert intervals(store, "ts") == []
    assert store.rows("SELECT epoch, restarted, prev_ts FROM epoch") == [(0, False, None)]


def test_the_first_scrape_is_the_baseline(views):
    store = views([(0, {TOKENS: 1000}), (1, {TOKENS: 1010}), (3, {TOKENS: 1010}), (4, {TOKENS: 1100})])
    assert deltas(store) == [(1, 10), (3, 0), (4, 90)]
    assert intervals(store, "ts", "dt_s", "generation_tokens", "restarted", "epoch", "timed") == [
        (1, 1, 10, False, 0, True),
        (3, 2, 0, False, 0, True),
        (4, 1, 90, False, 0, True),
    ]


def test_a_series_that_appears_later_starts_at_0(views):
    store = views([(0, {RUNNING: 0}), (1, {TOKENS: 40}), (2, {TOKENS: 50, PROMPT: 7}), (3, {TOKENS: 50, PROMPT: 7})])
    assert deltas(store) == [(1, 40), (2, 10), (3, 0)]
    assert deltas(store, "prompt_tokens") == [(2, 7), (3, 0)]
    assert intervals(store, "ts", "generation_tokens", "prompt_tokens") == [(1, 40, None), (2, 10, 7), (3, 0, 0)]


def test_a_series_that_is_missing_in_between_loses_nothing(views):
    store = views([(0, {TOKENS: 5, PROMPT: 1}), (1, {PROMPT: 2}), (2, {TOKENS: 25, PROMPT: 3})])
    assert deltas(store) == [(2, 20)]
    assert intervals(store, "ts", "dt_s", "generation_tokens", "prompt_tokens") == [(1, 1, None, 1), (2, 1, 20, 1)]


def test_values_that_are_no_numbers_are_unknown_not_zero(views):
    store = views(
        [
            (0, {TOKENS: 10, PROMPT: 1}),
            (1, {TOKENS: "NaN", PROMPT: 2}),
            (2, {TOKENS: "+Inf", PROMPT: 3}),
            (3, {TOKENS: 40, PROMPT: 4}),
        ]
    )
    assert deltas(store) == [(3, 30)]
    assert intervals(store, "ts", "dt_s", "generation_tokens", "restarted") == [
        (1, 1, None, False),
        (2, 1, None, False),
        (3, 1, 30, False),
    ]


def test_duplicates_count_once(views):
    row = {TOKENS: 20, RUNNING: 2}
    store = views([(0, {TOKENS: 10}), (1, row), (1, row), (1, row), (2, {TOKENS: 25, RUNNING: 1})])
    assert deltas(store) == [(1, 10), (2, 5)]
    assert intervals(store, "ts", "dt_s", "generation_tokens", "running", "running_before") == [
        (1, 1, 10, 2, None),
        (2, 1, 5, 1, 2),
    ]


def test_one_recording_in_two_forms_counts_once(tmp_path: Path):
    rows = [(0.0, {TOKENS: 10}), (1.0, {TOKENS: 20}), (2.0, {TOKENS: 40})]
    whole = scrapes(tmp_path / "a" / "all.jsonl", rows)
    part = scrapes(tmp_path / "b" / "part.jsonl", rows[1:])
    assert deltas(stored(whole.parent, part.parent)) == [(1, 10), (2, 20)]


def test_scrapes_in_any_order_are_put_in_order(views, tmp_path: Path):
    rows = [(at, {TOKENS: 10 * at * at, RUNNING: at}) for at in range(6)]
    expected = [(at, 10 * (2 * at - 1)) for at in range(1, 6)]
    store = views([rows[at] for at in (3, 0, 5, 1, 4, 2)])
    assert deltas(store) == expected
    assert [row[0] for row in intervals(store, "running_before")] == [0, 1, 2, 3, 4]
    two = stored(scrapes(tmp_path / "x" / "2.jsonl", rows[3:]), scrapes(tmp_path / "y" / "1.jsonl", rows[:3]))
    assert deltas(two) == expected


def test_failed_scrapes_are_a_hole_not_a_zero(views):
    store = views([(0, None), (1, {TOKENS: 10, RUNNING: 1}), (2, None), (3, None), (4, {TOKENS: 70, RUNNING: 4}), (5, None)])
    assert intervals(store, "ts", "dt_s", "generation_tokens", "running", "running_before", "restarted") == [
        (4, 3, 60, 4, 1, False)
    ]
    assert store.rows("SELECT ok, count(*) FROM scrape GROUP BY ok ORDER BY ok") == [(False, 4), (True, 2)]


def test_a_scrape_is_dated_when_it_was_answered(tmp_path: Path):
    file = tmp_path / "m.jsonl"
    file.write_text(scrape(0, {TOKENS: 1}, dur=0.5) + scrape(10, {TOKENS: 9}, dur=2.5))
    store = stored(file)
    assert intervals(store, "ts", "dt_s", "generation_tokens") == [(12.5, 12, 8)]
    assert store.rows("SELECT duration_s FROM epoch ORDER BY ts") == [(0.5,), (2.5,)]


# -- restarts ----------------------------------------------------------------------------------------------------------


def test_a_restart_without_start_time_is_a_counter_that_fell(views):
    store = views(
        [
            (0, {TOKENS: 100, PROMPT: 50}),
            (1, {TOKENS: 130, PROMPT: 60}),
            (2, {TOKENS: 7, PROMPT: 70}),
            (3, {TOKENS: 9, PROMPT: 71}),
        ]
    )
    assert deltas(store) == [(1, 30), (2, 7), (3, 2)]
    assert deltas(store, "prompt_tokens") == [(1, 10), (2, 70), (3, 1)]  # all counters of the server start again at 0
    assert intervals(store, "ts", "restarted", "epoch") == [(1, False, 0), (2, True, 1), (3, False, 1)]


def test_a_restart_with_start_time_is_seen_although_the_counter_is_higher(views):
    store = views(
        [
            (0, {TOKENS: 100, START: NOON - 500}),
            (1, {TOKENS: 130, START: NOON - 500}),
            (9, {TOKENS: 400, START: NOON + 2}),
            (10, {TOKENS: 405, START: NOON + 2}),
        ]
    )
    assert deltas(store) == [(1, 30), (9, 400), (10, 5)]
    assert intervals(store, "ts", "restarted", "epoch") == [(1, False, 0), (9, True, 1), (10, False, 1)]


def test_a_start_time_that_wobbles_is_no_restart(views):
    store = views(
        [(0, {TOKENS: 100, START: NOON - 500}), (1, {TOKENS: 130, START: NOON - 499.6}), (2, {TOKENS: 140, START: NOON - 500.3})]
    )
    assert deltas(store) == [(1, 30), (2, 10)]
    assert [row[0] for row in store.rows("SELECT restarted FROM epoch ORDER BY ts")] == [False] * 3


def test_a_counter_that_fell_under_one_start_time_starts_alone_at_0(views):
    store = views([(0, {TOKENS: 100, PROMPT: 50, START: 5}), (1, {TOKENS: 3, PROMPT: 60, START: 5})])
    assert deltas(store) == [(1, 3)]
    assert deltas(store, "prompt_tokens") == [(1, 10)]
    assert intervals(store, "restarted") == [(False,)]


def test_a_restart_in_a_hole(views):
    store = views([(0, {TOKENS: 100, START: 5}), (1, None), (2, None), (3, {TOKENS: 120, START: 5000})])
    assert intervals(store, "ts", "dt_s", "generation_tokens", "restarted") == [(3, 3, 120, True)]


def test_a_series_that_comes_back_after_a_restart_starts_at_0(views):
    rows = [(0, {TOKENS: 100, PROMPT: 9}), (1, {PROMPT: 1}), (2, {TOKENS: 130, PROMPT: 2})]
    assert deltas(views(rows)) == [(2, 130)]


def test_restarts_of_one_server_are_not_those_of_another(tmp_path: Path):
    folder = tmp_path / "two"
    scrapes(folder / "a.jsonl", [(0, {TOKENS: 100}), (1, {TOKENS: 5})], "http://a:1/metrics")
    scrapes(folder / "b.jsonl", [(0, {TOKENS: 100}), (1, {TOKENS: 105})], "http://b:1/metrics")
    store = stored(folder)
    assert store.rows("SELECT instance, restarted FROM epoch WHERE prev_ts IS NOT NULL ORDER BY 1") == [
        ("a:1", True),
        ("b:1", False),
    ]
    assert deltas(store, instance="a:1") == [(1, 5)]
    assert deltas(store, instance="b:1") == [(1, 5)]


STEPS: Final = st.lists(
    st.tuples(st.sampled_from(["grow", "grow", "stay", "restart", "fail", "gone"]), st.integers(0, 1000)), max_size=12
)
SHARED: Final = Store()
WALKS: Final = st.lists(st.tuples(st.integers(0, 10_000), STEPS, st.booleans()), min_size=1, max_size=6)


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(WALKS, st.randoms(use_true_random=False))
def test_increases_add_up_whatever_happens(tmp_path: Path, walks: list[tuple[int, list[tuple[str, int]], bool]], dice: Any):
    """The sum of increases is what plain Python finds: of each process the last value that was seen, less the baseline."""
    lines, expected = [], {}
    for server, (first, steps, told) in enumerate(walks):
        rows, expected[f"h{server}:1"] = walk(first, steps, told=told)
        lines += [scrape(t, values, f"http://h{server}:1/metrics") for t, values in rows]
    dice.shuffle(lines)
    (tmp_path / "metrics.jsonl").write_text("".join(lines))
    with Store() as store:
        (result,) = load(store, [tmp_path / "metrics.jsonl"])
        assert result.added
        found = store.rows(
            "SELECT instance, sum(increase), min(increase) FROM delta WHERE quantity = 'generation_tokens' GROUP BY 1"
        )
    assert all(least >= 0 for _, _, least in found)
    assert dict.fromkeys(expected, 0) | {instance: total for instance, total, _ in found} == expected


def walk(first: int, steps: list[tuple[str, int]], *, told: bool) -> tuple[list[tuple[float, Values | None]], int]:
    """Return scrapes of a server that is restarted now and then, and how far its counter was seen to grow.

    `told`: the start time of the process is exported; else a restart shows in another counter that falls.
    """
    value, process = first, 0
    last: dict[int, int] = {}  # process -> the last value that was seen
    rows: list[tuple[float, Values | None]] = []
    for at, (what, size) in enumerate([("stay", 0), *steps]):
        if what == "restart":
            value, process = size, process + 1
        value += size if what == "grow" else 0
        sign = {START: 1000.0 + 100 * process} if told else {PROMPT: 1000.0 - 20 * process + at}
        if what == "fail":
            rows.append((at, None))
        elif what == "gone":
            rows.append((at, sign))
        else:
            rows.append((at, {TOKENS: value, **sign}))
            last[process] = value
    return rows, sum(last.values()) - first


# -- names -------------------------------------------------------------------------------------------------------------


def test_a_quantity_under_its_old_and_its_new_name_counts_once(views):
    old = {"gpu_prefix_cache_queries_total": 100, "gpu_prefix_cache_hits_total": 10, "gpu_cache_usage_perc": 0.25}
    old |= {"time_per_output_token_seconds_sum": 1.0, "time_per_output_token_seconds_count": 10}
    new = {"prefix_cache_queries_total": 100, "prefix_cache_hits_total": 10, "kv_cache_usage_perc": 0.25}
    new |= {"inter_token_latency_seconds_sum": 1.0, "inter_token_latency_seconds_count": 10}
    columns = ("prefix_query_tokens", "prefix_hit_tokens", "kv_usage_ratio", "itl_s", "itl_n")
    expected = [(100, 10, 0.5, 1, 10)]
    for names in (old, new, old | new):
        before = {series(name): value for name, value in names.items()}
        after = {series(name): 2 * value for name, value in names.items()}
        assert intervals(views([(0, before), (1, after)]), *columns) == expected


def test_the_new_name_is_used_where_the_old_one_says_otherwise(views):
    old, new = series("gpu_cache_usage_perc"), series("kv_cache_usage_perc")
    store = views([(0, {old: 0.9, new: 0.1}), (1, {old: 0.8, new: 0.2})])
    assert intervals(store, "kv_usage_ratio_before", "kv_usage_ratio") == [(0.1, 0.2)]


@pytest.mark.parametrize("prefix", ["vllm:", "vllm_", "ray_vllm_"])
def test_names_of_ray_and_dynamo_are_the_same(prefix: str, views):
    names = {
        "generation_tokens_total": 10,
        "num_requests_running": 3,
        "kv_cache_usage_perc": 0.5,
        "request_queue_time_seconds_sum": 4,
    }
    found = {series(prefix + name, WorkerId="abc"): value for name, value in names.items()}
    store = views([(0, found), (1, {name: 2 * value for name, value in found.items()})])
    assert intervals(store, "generation_tokens", "running", "kv_usage_ratio", "queue_s") == [(10, 6, 1, 4)]


def test_replicas_of_ray_under_one_address_are_added(views):
    a, b = (series("ray_vllm_generation_tokens_total", WorkerId=one) for one in "ab")
    assert intervals(views([(0, {a: 1, b: 100}), (1, {a: 2, b: 200})]), "generation_tokens") == [(101,)]


def test_the_engine_of_v0_has_no_label_and_is_engine_0(views):
    tokens, running = series("generation_tokens_total", None), series("num_requests_running", None)
    store = views([(0, {tokens: 10, running: 1}), (1, {tokens: 30, running: 2})])
    assert intervals(store, "generation_tokens", "running", "running_before") == [(20, 2, 1)]


def test_quantities_that_a_label_tells_apart(views):
    def at(factor: int) -> dict[str, float]:
        values = {
            series("request_success_total", finished_reason="abort"): 1,
            series("request_success_total", finished_reason="stop"): 100,
            series("prompt_tokens_by_source_total", source="local_compute"): 1000,
            series("prompt_tokens_by_source_total", source="local_cache_hit"): 200,
            series("prompt_tokens_by_source_total", source="external_kv_transfer"): 30,
            series("num_requests_waiting_by_reason", reason="deferred"): 4,
            series("num_requests_waiting_by_reason", reason="capacity"): 5,
        }
        return {name: factor * value for name, value in values.items()}

    columns = ("aborted_n", "computed_tokens", "local_hit_tokens", "external_hit_tokens", "deferred", "waiting")
    assert intervals(views([(0, at(1)), (1, at(2))]), *columns) == [(1, 1000, 200, 30, 8, None)]


def test_series_of_no_quantity_are_kept_but_count_nowhere(views):
    store = views([(0, {series("something_new_total"): 1}), (1, {series("something_new_total"): 5})])
    assert store.rows("SELECT count(*) FROM series") == [(1,)]
    assert store.rows("SELECT * FROM delta") == []


# -- several -----------------------------------------------------------------------------------------------------------


def test_two_engines_of_one_server(views):
    def at(a: float, b: float) -> dict[str, float]:
        return {
            series("generation_tokens_total", "0"): a,
            series("generation_tokens_total", "1"): b,
            series("num_requests_running", "0"): a / 10,
            series("num_requests_running", "1"): b / 10,
            series("http_request_duration_highr_seconds_sum", None): a + b,
        }

    store = views([(0, at(0, 1000)), (1, at(10, 1500)), (2, at(30, 1500))])
    columns = ("ts", "generation_tokens", "running", "http_s")
    assert intervals(store, *columns) == [(1, 10, 1, 510), (2, 20, 3, 20)]
    assert intervals(store, *columns, engine="1") == [(1, 500, 150, 510), (2, 0, 150, 20)]


def test_an_engine_that_stops_being_exported_has_gaps_not_zeros(views):
    one, two = series("generation_tokens_total", "0"), series("generation_tokens_total", "1")
    store = views([(0, {one: 1, two: 1}), (1, {one: 2}), (2, {one: 3, two: 9})])
    assert intervals(store, "ts", "generation_tokens", engine="1") == [(1, None), (2, 8)]


def test_two_servers_in_one_bundle(tmp_path: Path):
    folder = tmp_path / "pair"
    scrapes(folder / "p.jsonl", [(0, {TOKENS: 1}), (2, {TOKENS: 3})], "http://10.0.0.1:8000/metrics")
    scrapes(folder / "d.jsonl", [(1, {TOKENS: 100}), (5, {TOKENS: 300})], "http://10.0.0.2:8000/metrics")
    store = stored(folder)
    assert intervals(store, "ts", "dt_s", "generation_tokens", instance="10.0.0.1:8000") == [(2, 2, 2)]
    assert intervals(store, "ts", "dt_s", "generation_tokens", instance="10.0.0.2:8000") == [(5, 4, 200)]


def test_two_servers_in_one_file(tmp_path: Path):
    file = tmp_path / "m.jsonl"
    urls = ("http://a:1/metrics", "https://[::1]:2/metrics", "http://c/metrics")
    file.write_text("".join(scrape(t, {TOKENS: 10 * at + t * (at + 1)}, url) for t in (0, 1) for at, url in enumerate(urls)))
    store = stored(file)
    assert {name: deltas(store, instance=name) for name in ("a:1", "[::1]:2", "c:80")} == {
        "a:1": [(1, 1)],
        "[::1]:2": [(1, 2)],
        "c:80": [(1, 3)],
    }


# -- texts without a time ----------------------------------------------------------------------------------------------


def test_texts_without_a_time_are_numbered_and_have_no_clock(tmp_path: Path):
    (tmp_path / "a.txt").write_text(text({TOKENS: 10, RUNNING: 1}) + text({TOKENS: 30, RUNNING: 2}))
    store = stored(tmp_path / "a.txt")
    assert store.rows("SELECT ts, dt_s, timed, generation_tokens, running, running_before FROM interval_row") == [
        (1, 1, False, 20, 2, 1)
    ]


def test_timed_scrapes_that_come_later_put_texts_out_of_use(tmp_path: Path):
    """Between a text without a time and a scrape lie neither 56 years nor a restart."""
    (tmp_path / "a.txt").write_text(text({TOKENS: 10, START: 1}))
    store = Store()
    load(store, [tmp_path / "a.txt"], instances={"a.txt": "127.0.0.1:8000"})
    load(store, [scrapes(tmp_path / "m.jsonl", [(0, {TOKENS: 20, START: 100}), (1, {TOKENS: 25, START: 100})])])
    assert intervals(store, "ts", "dt_s", "timed", "generation_tokens") == [(1, 1, True, 5)]
    assert store.rows("SELECT sum(restarted::INT) FROM epoch") == [(0,)]


# -- buckets, steps, stats, requests -------------------------------------------------------------------------------------


def test_buckets_are_not_cumulative(views):
    def at(*counts: int) -> dict[str, float]:
        return {
            series("time_to_first_token_seconds_bucket", le=le): n for le, n in zip(("0.1", "1.0", "+Inf"), counts, strict=True)
        }

    store = views([(0, at(1, 2, 3)), (1, at(2, 5, 9)), (2, at(1, 1, 1))])
    found = store.rows(
        "SELECT ts - 1795953600, le, n FROM bucket WHERE family = 'vllm:time_to_first_token_seconds' ORDER BY ts, le"
    )
    assert found == [(1, 0.1, 1), (1, 1, 2), (1, math.inf, 3), (2, 0.1, 1), (2, 1, 0), (2, math.inf, 0)]


def test_a_bucket_that_appears_later_starts_at_0(views):
    def at(**counts: int) -> dict[str, float]:
        return {series("time_to_first_token_seconds_bucket", le=le.replace("x", ".")): n for le, n in counts.items()}

    store = views([(0, {RUNNING: 0}), (1, at(**{"1x0": 2, "+Inf": 4}))])
    assert store.rows("SELECT le, n FROM bucket ORDER BY le") == [(1.0, 2), (math.inf, 2)]


def test_a_line_in_two_overlapping_logs_counts_once(tmp_path: Path):
    lines = [stats(f"11-29 12:00:{at}0", running=at) for at in range(4)]
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "a.log").write_text(started() + "".join(lines[:3]))
    (tmp_path / "x" / "b.log").write_text("".join(lines[1:]))
    store = stored(tmp_path / "x")
    assert [row[0] for row in store.rows("SELECT running FROM stat_row WHERE instance = '127.0.0.1:8000' ORDER BY ts")] == [
        0,
        1,
        2,
        3,
    ]


def test_a_request_of_span_and_client_is_one(tmp_path: Path):
    folder = tmp_path / "x"
    folder.mkdir()
    (folder / "server.log").write_text(started() + stats())
    (folder / "spans.jsonl").write_text(span("cmpl-a-0", 1) + span("chatcmpl-b", 2) + span("cmpl-lonely-0", 3))
    (folder / "client.jsonl").write_text(
        client("1", 0.9, response_id="cmpl-a") + client("2", 1.9, response_id="chatcmpl-b") + client("3", 4, status="error")
    )
    found = stored(folder).rows(
        "SELECT request_id, round(arrival_ts - 1795953600, 3), round(sent_ts - 1795953600, 3), "
        "ttft_s, round(client_ttft_s, 3), status, has_span "
        "FROM request_row WHERE instance = '127.0.0.1:8000' ORDER BY arrival_ts"
    )
    assert found == [
        ("cmpl-a", 1, 0.9, 0.5, 0.6, "ok", True),
        ("chatcmpl-b", 2, 1.9, 0.5, 0.6, "ok", True),
        ("cmpl-lonely", 3, None, 0.5, None, "ok", True),
        ("3", 4, 4, None, 0.6, "error", False),
    ]


def test_kv_events_count_blocks_stored_again_and_elsewhere():
    def stored_at(
        line: int, hashes: list[str] | None, engine: str = "0", kind: str = "stored", medium: str | None = None
    ) -> dict[str, Any]:
        return {
            "line": line,
            "ts": float(line),
            "engine": engine,
            "source": f"/{engine}",
            "seq": line,
            "kind": kind,
            "block_hashes": hashes,
            "block_size": 16,
            "medium": medium,
            "instance": "h:1",
            "file_id": 1,
            "salt": None,
        }

    lines = [
        stored_at(1, ["a", "b"]),
        stored_at(2, ["a"], kind="removed"),
        stored_at(3, ["a"]),  # again: it had been evicted
        stored_at(4, ["a", "c"], "1"),  # a: elsewhere
        stored_at(5, ["c"], medium="CPU"),  # another tier
        stored_at(6, None, kind="cleared"),
        stored_at(7, ["b"]),  # after a reset: neither
    ]
    with Store() as store:
        store.add(Batch("kv_event", {name: [line[name] for line in lines] for name in lines[0]}))
        found = store.rows(
            "SELECT engine, stored_blocks, distinct_blocks, again_blocks, elsewhere_blocks, block_size "
            "FROM kv_summary ORDER BY engine"
        )
        assert found == [("0", 4, 2, 1, 0, 16), ("1", 2, 2, 0, 1, 16)]


def test_what_a_span_reads_does_not_grow_with_the_days_before(views):
    """Of three days only the scrapes of the span are followed, with the ones just before, which its intervals begin with."""
    store = views([(at * 600.0, {TOKENS: float(at), RUNNING: 1}) for at in range(3 * 144)])
    low = NOON + 3 * 86400 - 3600
    span = {"low": low, "high": math.inf}
    (count,) = store.rows("SELECT count(*) FROM epoch WHERE $low IS NOT NULL AND $high IS NOT NULL", span)[0]
    assert count == 6
    store.execute("INSERT INTO gauge_span SELECT series_id, ts, 600, 1, 1, 1 FROM sample JOIN series USING (series_id) WHERE name = 'vllm:num_requests_running'")  # fmt: skip
    found = store.rows("SELECT ts, generation_tokens, running_before FROM interval_row WHERE ts > $low AND ts <= $high ORDER BY ts", span)  # fmt: skip
    assert [(row[0] - low, *row[1:]) for row in found] == [(at * 600.0, 1.0, 1.0) for at in range(1, 6)]
