"""Records of AIPerf: whole rows, what is never stored, and input of any kind."""

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

from app.collectors.formats import aiperf

START = 1795968010.0
OK = {
    "line": 2, "source": "client", "request_id": "x-1", "arrival_ts": START + 1, "end_ts": START + 2.5, "prompt_tokens": 128,
    "output_tokens": 40, "cached_tokens": 64, "ttft_s": 0.25, "e2e_s": 1.5, "status": "ok", "chunk_s": [0.25, 0.75, 1.5],
}  # fmt: skip
NOTHING = dict.fromkeys(("prompt_tokens", "output_tokens", "cached_tokens", "ttft_s", "e2e_s", "chunk_s"))


def test_nothing():
    assert read(aiperf, b"") == {"source_file": [whole(0)]}
    assert not aiperf.sniff(b"")


def test_the_manifest_names_each_sample():
    check_manifest(aiperf)


def test_whole_rows():
    text = sample(aiperf, "good/aiperf-0.13.jsonl")
    assert aiperf.sniff(text[:HEAD])
    rows = read(aiperf, text)
    assert rows["source_file"] == [whole(4)]
    assert rows["request"] == [
        OK,
        OK | {"line": 3, "request_id": "x-2", "arrival_ts": START + 2, "end_ts": START + 3.5, "status": "abort", "e2e_s": None},
        OK | {"line": 4, "request_id": "x-3", "arrival_ts": START + 3, "end_ts": START + 4.5, "status": "error"} | NOTHING,
    ]


def test_what_is_no_record_is_named_and_the_rest_is_read():
    rows = read(aiperf, sample(aiperf, "bad/units-and-cut.jsonl"))
    assert rows["request"] == [OK | {"line": 1, "ttft_s": None, "chunk_s": None}]
    assert [(row["line"], row["reason"]) for row in rows["rejected_line"]] == [
        (2, aiperf.EXPECTED),
        (3, aiperf.EXPECTED),
        (4, "expected: a JSON object"),
    ]


@pytest.mark.parametrize("file", samples(aiperf), ids=lambda file: file.name)
def test_the_users_text_is_not_stored(file):
    assert "user's text" not in str(read(aiperf, file.read_bytes()))


def test_other_files_are_refused():
    assert refuses(aiperf) == ["aiperf"]  # which is one


@given(st.binary() | st.text().map(str.encode))
@example(b'{"metadata": {"request_start_ns": 1e300}, "metrics": {"time_to_first_token": {"value": 1e308, "unit": "s"}}}')
@patient
def test_any_bytes(text):
    read(aiperf, text)
    aiperf.sniff(text)


@given(scrambled(aiperf))
@patient
def test_any_types(text):
    read(aiperf, text)
    aiperf.sniff(text)


@given(st.sampled_from(samples(aiperf)), st.data())
@patient
def test_a_cut_file(file, draw):
    text = file.read_bytes()
    check_cut(aiperf, text, draw.draw(st.integers(0, len(text))))
