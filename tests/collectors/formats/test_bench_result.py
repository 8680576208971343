"""JSON results of vllm bench serve: runs and requests, with and without details, and input of any kind."""

import json

import pytest
from collectors.formats.reading import (
    HEAD,
    check_cut,
    check_manifest,
    patient,
    read,
    refuses,
    sample,
    samples,
    scrambled,
    whole,
)
from hypothesis import example, given
from hypothesis import strategies as st

from app.collectors.formats import bench_result


def run(rows, at=0):
    return json.loads(rows["event"][at]["fields"])


def test_nothing():
    assert read(bench_result, b"") == {"source_file": [whole(0)]}
    assert not bench_result.sniff(b"")


def test_the_manifest_names_each_sample():
    check_manifest(bench_result)


@pytest.mark.parametrize("file", samples(bench_result, "good"), ids=lambda file: file.name)
def test_a_good_sample_is_ours_and_whole(file):
    text = file.read_bytes()
    assert bench_result.sniff(text[:HEAD])
    assert bench_result.sniff(text[:300])
    assert read(bench_result, text)["source_file"] == [whole(text.count(b"\n"))]


def test_a_run_with_its_requests():
    rows = read(bench_result, sample(bench_result, "good/vllm-0.32.0-detailed.json"))
    fields = run(rows)
    assert (fields["completed"], fields["request_rate"], fields["date"], fields["model_id"]) == (
        40,
        2.0,
        "20261129-161736",
        "tiny",
    )
    assert fields["request_throughput"] == pytest.approx(1.985, abs=0.001)
    assert fields["mean_ttft_ms"] == pytest.approx(29.157, abs=0.001)
    first, *_, last = rows["request"]
    assert len(rows["request"]) == 3
    assert (first["prompt_tokens"], first["output_tokens"], first["status"]) == (128, 32, "ok")
    assert first["ttft_s"] == pytest.approx(0.0221566, abs=1e-6)
    assert first["e2e_s"] == pytest.approx(0.156321, abs=1e-6)
    assert len(first["chunk_s"]) == 5
    assert first["chunk_s"][0] == first["ttft_s"] < first["chunk_s"][1]
    assert "arrival_ts" not in last  # a performance counter is no time


def test_before_0_32_the_latency_is_the_sum_of_the_gaps_and_failures_have_no_seconds():
    ok, failed, _ = read(bench_result, sample(bench_result, "good/pretty-failed.json"))["request"]
    assert ok["e2e_s"] == ok["chunk_s"][-1]
    assert (ok["queue_s"], ok["prefill_s"]) == (0.001, 0.02)
    assert (failed["status"], failed["ttft_s"], failed["e2e_s"], failed["output_tokens"]) == ("error", None, None, None)


def test_a_run_a_line():
    rows = read(bench_result, sample(bench_result, "good/append-result.jsonl"))
    assert [run(rows, at)["request_rate"] for at in (0, 1)] == [2.0, "inf"]
    assert [row["line"] for row in rows["event"]] == [1, 2]
    assert "request" not in rows


def test_what_is_no_result_is_named():
    rows = read(bench_result, sample(bench_result, "bad/no-figures-and-cut.jsonl"))
    assert [(row["line"], row["reason"]) for row in rows["rejected_line"]] == [
        (1, bench_result.EXPECTED),
        (2, bench_result.EXPECTED),
        (3, "expected: JSON"),
    ]


@pytest.mark.parametrize("file", samples(bench_result), ids=lambda file: file.name)
def test_the_users_text_is_not_stored(file):
    assert "user's text" not in str(read(bench_result, file.read_bytes()))


def test_other_files_are_refused():
    assert refuses(bench_result) == ["bench.json"]  # which is one


@given(st.binary() | st.text().map(str.encode))
@example(b'{"date": "d", "model_id": "m", "completed": 1, "ttfts": [[], null, 1e400], "itls": [[null]], "errors": 5}')
@patient
def test_any_bytes(text):
    read(bench_result, text)
    bench_result.sniff(text)


@given(scrambled(bench_result))
@patient
def test_any_types(text):
    read(bench_result, text)
    bench_result.sniff(text)


@given(st.sampled_from([file for file in samples(bench_result) if "pretty" not in file.name]), st.data())
@patient
def test_a_cut_file(file, draw):
    text = file.read_bytes()
    check_cut(bench_result, text, draw.draw(st.integers(0, len(text))))
