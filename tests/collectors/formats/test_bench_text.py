"""The printed result of a benchmark: whole rows, several blocks, blocks that stop, and input of any kind."""

import io
import json
import time

import pytest
from collectors.formats.reading import HEAD, check_manifest, patient, read, refuses, sample, whole
from hypothesis import example, given
from hypothesis import strategies as st

from app.collectors.formats import bench_text

RUNS = {
    "case-11.txt": [
        (
            5,
            {
                "request_rate": 4.0,
                "burstiness": 1.0,
                "completed": 1000,
                "duration": 473.62,
                "total_input_tokens": 1024000,
                "total_output_tokens": 119550,
                "request_throughput": 2.11,
                "output_throughput": 252.42,
                "total_token_throughput": 2414.51,
                "mean_ttft_ms": 100636.33,
                "median_ttft_ms": 103588.53,
                "p99_ttft_ms": 197277.97,
                "mean_tpot_ms": 177.82,
                "median_tpot_ms": 172.14,
                "p99_tpot_ms": 363.05,
            },
        )
    ],
    "two-rates.txt": [
        (3, {"request_rate": 1.0, "completed": 60, "duration": 61.2, "request_throughput": 0.98, "mean_ttft_ms": 80.0}),
        (12, {"request_rate": 4.0, "completed": 240, "duration": 62.0, "request_throughput": 3.87, "mean_ttft_ms": 120.0}),
    ],
}


def runs(text: bytes):
    return [(row["line"], json.loads(row["fields"])) for row in read(bench_text, text).get("event", [])]


def test_nothing():
    assert read(bench_text, b"") == {"source_file": [whole(0)]}
    assert not bench_text.sniff(b"")


def test_the_manifest_names_each_sample():
    check_manifest(bench_text)


@pytest.mark.parametrize("name", RUNS)
def test_whole_blocks(name):
    text = sample(bench_text, f"good/{name}")
    assert bench_text.sniff(text[:HEAD])
    assert runs(text) == RUNS[name]
    assert read(bench_text, text)["source_file"][0]["rejected"] == 0


def test_the_latest_block_in_full():
    ((line, run),) = runs(sample(bench_text, "good/vllm-0.33.txt"))
    assert line == 7
    assert (run["request_rate"], run["max_concurrency"], run["completed"], run["failed"]) == ("inf", 16, 198, 2)
    assert (run["p99.9_itl_ms"], run["mean_e2el_ms"], run["max_concurrent_requests"]) == (96.31, 2487.53, 19.0)


def test_what_is_no_figure_is_named_and_the_rest_is_read():
    text = sample(bench_text, "bad/words-and-cut.txt")
    rows = read(bench_text, text)
    assert [row["line"] for row in rows["rejected_line"]] == [3, 4, 6]
    assert "event" not in rows


def test_a_count_that_is_no_number_is_named():
    """Found among a million broken inputs: `inf` is what a rate may be."""
    text = b"============ Serving Benchmark Result ============\nSuccessful requests:  inf\nFailed requests:  2\n"
    rows = read(bench_text, text)
    assert [row["line"] for row in rows["rejected_line"]] == [2]
    assert [run["failed"] for _, run in runs(text)] == [2]


def test_other_files_are_refused():
    assert not refuses(bench_text)


@pytest.mark.parametrize("name", RUNS)
@given(share=st.floats(0, 1))
@patient
def test_a_cut_block_invents_nothing(name, share):
    text = sample(bench_text, f"good/{name}")
    known = {key: {run.get(key) for _, run in RUNS[name]} for _, each in RUNS[name] for key in each}
    for _, run in runs(text[: int(share * len(text))]):
        assert all(value in known[key] for key, value in run.items())


@given(st.binary() | st.text().map(str.encode))
@example(b"============ Serving Benchmark Result ============\nMean TTFT (ms): 1" + b"0" * 400)
@example(b"============ Serving Benchmark Result ============\n" * 3)
@patient
def test_any_bytes(text):
    read(bench_text, text)
    read(bench_text, b"============ Serving Benchmark Result ============\n" + text)
    bench_text.sniff(text)


@pytest.mark.parametrize("line", [b"-" * 50_000 + b"x", b"=" * 50_000, b"- " * 25_000, b"Aa" + b" " * 50_000 + b":"])
def test_a_long_line_takes_no_time(line: bytes):
    text = b"============ Serving Benchmark Result ============\n" + line + b"\nSuccessful requests:  3\n"
    began = time.process_time()
    assert bench_text.sniff(text[:65536])
    list(bench_text.read(io.BytesIO(text), 0.0))
    assert time.process_time() - began < 1.0
