"""Reports of GuideLLM: whole rows, what is never stored, and input of any kind."""

import json

import pytest
from collectors.formats.reading import HEAD, check_manifest, data, patient, read, refuses, sample, samples, scrambled, whole
from hypothesis import example, given
from hypothesis import strategies as st

from app.collectors.formats import guidellm

START = 1795968010.0
OK = {
    "line": 1, "source": "client", "request_id": "cmpl-0", "arrival_ts": START, "end_ts": START + 1.5, "prompt_tokens": 128,
    "output_tokens": 40, "cached_tokens": 64, "ttft_s": 0.25, "queue_s": 0.002, "prefill_s": 0.22, "decode_s": 1.25, "e2e_s": 1.5,
    "status": "ok",
}  # fmt: skip
NO_SERVER = {"queue_s": None, "prefill_s": None, "decode_s": None, "e2e_s": None}


def test_nothing():
    assert read(guidellm, b"") == {"source_file": [whole(0)]}
    assert not guidellm.sniff(b"")


def test_the_manifest_names_each_sample():
    check_manifest(guidellm)


@pytest.mark.parametrize("file", samples(guidellm, "good"), ids=lambda file: file.name)
def test_a_good_sample_is_ours(file):
    text = file.read_bytes()
    assert guidellm.sniff(text[:HEAD])
    assert read(guidellm, text)["source_file"][0]["rejected"] == 0


def test_whole_rows():
    rows = read(guidellm, sample(guidellm, "good/guidellm-0.8.1.json"))
    assert rows["request"] == [
        OK,
        OK | {"request_id": "cmpl-1", "arrival_ts": START + 1, "end_ts": START + 2.5},
        OK | {"request_id": "cmpl-2", "arrival_ts": START + 2, "end_ts": START + 3, "status": "abort"} | NO_SERVER,
        OK
        | {"request_id": "r3", "arrival_ts": START + 3, "end_ts": START + 4.5, "status": "error", "ttft_s": None}
        | {"prompt_tokens": None, "output_tokens": None, "cached_tokens": None}
        | NO_SERVER,
    ]
    assert json.loads(rows["event"][0]["fields"]) == {
        "backend": "guidellm", "completed": 2, "failed": 1, "duration": 4.0, "request_rate": 1.0, "request_throughput": 0.5,
    }  # fmt: skip


def test_what_is_no_request_is_named_and_the_rest_is_read():
    rows = read(guidellm, sample(guidellm, "bad/no-timings.json"))
    assert [(row["line"], row["reason"]) for row in rows["rejected_line"]] == [
        (1, guidellm.EXPECTED_REQUEST),
        (2, guidellm.EXPECTED),
    ]
    assert [row["arrival_ts"] for row in rows["request"]] == [None, START + 1, START + 2]
    assert len(rows["event"]) == 2


@pytest.mark.parametrize("file", samples(guidellm), ids=lambda file: file.name)
def test_the_users_text_is_not_stored(file):
    assert "user's text" not in str(read(guidellm, file.read_bytes()))


def test_other_files_are_refused():
    assert not refuses(guidellm)


@given(st.binary() | st.text().map(str.encode))
@example(b'{"metadata": {"guidellm_version": 1}, "benchmarks": [{"requests": {"successful": [{}]}, "duration": 0}]}')
@patient
def test_any_bytes(text):
    read(guidellm, text)
    guidellm.sniff(text)


@given(scrambled(guidellm))
@patient
def test_any_types(text):
    read(guidellm, text)
    guidellm.sniff(text)


@given(st.sampled_from(samples(guidellm)), st.data())
@patient
def test_a_cut_report_gives_nothing(file, draw):
    text = file.read_bytes().splitlines(keepends=True)[0] if "bad" in str(file) else file.read_bytes()
    at = draw.draw(st.integers(0, len(text.rstrip()) - 1))
    assert not data(read(guidellm, text[:at]))
