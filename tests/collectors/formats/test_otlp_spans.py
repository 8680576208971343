"""OTLP spans: whole rows of several versions, in base64 and hex, and input of any kind."""

import json
from typing import Any

import pytest
from collectors.formats.reading import (
    HEAD,
    check_cut,
    check_manifest,
    data,
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

from app.collectors.formats import json_lines, otlp_spans

UNKNOWN = dict.fromkeys(otlp_spans.COLUMNS)
FIRST_0_24 = {
    "line": 1,
    "source": "span",
    "pid": "6734",
    "service": "unknown_service:python3",
    "request_id": "cmpl-w1-00001",
    "trace_id": "aeac00477c8bfccddb33003bfc9b743b",
    "arrival_ts": 1795967598.5586867,
    "end_ts": 1795967598.628913,
    "prompt_tokens": 32,
    "output_tokens": 8,
    "ttft_s": 0.03841662406921387,
    "queue_s": 3.576500012059114e-05,
    "prefill_s": 0.020077549999996336,
    "decode_s": 0.031610394999916025,
    "e2e_s": 0.06978869438171387,
    "status": "ok",
}


def export(span: dict[str, Any], **more: Any) -> bytes:
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]} | more).encode() + b"\n"


def attribute(key: str, **value: Any) -> dict[str, Any]:
    return {"key": key, "value": value}


def test_nothing():
    assert read(otlp_spans, b"") == {"source_file": [whole(0)]}
    assert read(otlp_spans, b'{"resourceSpans": []}\n\n') == {"source_file": [whole(2)]}
    assert not otlp_spans.sniff(b"")


def test_the_manifest_names_each_sample():
    check_manifest(otlp_spans)


@pytest.mark.parametrize("file", samples(otlp_spans, "good"), ids=lambda file: file.name)
def test_good_samples_are_ours(file):
    assert otlp_spans.sniff(file.read_bytes()[:HEAD])
    assert otlp_spans.sniff(file.read_bytes()[:200])


def test_other_files_are_refused():
    assert not refuses(otlp_spans)
    assert not otlp_spans.sniff(b'{"resourceSpans": 3}')
    assert not otlp_spans.sniff(b'{"t": 1, "request": {"resourceMetrics": []}}')


def test_v0_has_no_prefill_time_and_no_process():
    assert read(otlp_spans, sample(otlp_spans, "good/vllm-0.8.5-v0.jsonl")) == {
        "request": [
            UNKNOWN
            | {"line": 1, "source": "span", "service": "unknown_service", "request_id": "cmpl-w1-00001", "status": "ok"}
            | {"trace_id": "6b355b01ec357b8f6fac58e1f836fedb", "arrival_ts": 1795968008.6615071, "end_ts": 1795968008.7308762}
            | {"prompt_tokens": 32, "output_tokens": 8, "ttft_s": 0.013182878494262695}
            | {"queue_s": 0.0013034343719482422, "e2e_s": 0.0668189525604248},
            UNKNOWN
            | {"line": 1, "source": "span", "service": "unknown_service", "request_id": "cmpl-w1-00002", "status": "ok"}
            | {"trace_id": "c03e8f9ca153cedae2220002e131048f", "arrival_ts": 1795968008.734542, "end_ts": 1795968008.774479}
            | {"prompt_tokens": 32, "output_tokens": 8, "ttft_s": 0.006269931793212891}
            | {"queue_s": 0.0004928112030029297, "e2e_s": 0.03950691223144531},
        ],
        "source_file": [whole(1)],
    }


def test_spans_of_fastapi_are_passed_over():
    text = sample(otlp_spans, "good/vllm-0.20-with-fastapi.jsonl")
    assert text.count(b'"name": "POST /v1/completions"') == 1
    assert read(otlp_spans, text) == {
        "request": [
            {"line": 1, "source": "span", "pid": "31215", "service": "unknown_service:python", "request_id": "cmpl-w1-00001"}
            | {"trace_id": "ab8feb7e9bf6ef9ddccb0890cc845f6f", "arrival_ts": 1795968596.4784474, "end_ts": 1795968596.72347}
            | {"prompt_tokens": 32, "output_tokens": 8, "ttft_s": 0.1644423007965088, "queue_s": 2.8372000087983906e-05}
            | {"prefill_s": 0.15234444499992605, "decode_s": 0.0799293499999294, "e2e_s": 0.24449539184570312, "status": "ok"}
        ],
        "source_file": [whole(1, pid="31215")],
    }


def test_a_document_over_many_lines_and_a_chat_id():
    text = sample(otlp_spans, "good/vllm-0.32-chat.json")
    rows = read(otlp_spans, text)
    assert rows["request"] == [
        {"line": 1, "source": "span", "pid": "13092", "service": "unknown_service:python3", "status": "ok"}
        | {"request_id": "chatcmpl-b57e32-00001", "trace_id": "0fdad54c910341b997385579f5a82757"}
        | {"arrival_ts": 1795966554.8869581, "end_ts": 1795966555.3261297, "prompt_tokens": 1548, "output_tokens": 42}
        | {"ttft_s": 0.1710495948791504, "queue_s": 2.6439000066602603e-05, "prefill_s": 0.16393187799985753}
        | {"decode_s": 0.26478406299997914, "e2e_s": 0.43863773345947266}
    ]
    assert rows["source_file"] == [whole(text.count(b"\n"), pid="13092")]
    twice = read(otlp_spans, text + text)
    assert [row["line"] for row in twice["request"]] == [1, 1 + text.count(b"\n")]


def test_two_servers_are_told_apart():
    rows = read(otlp_spans, sample(otlp_spans, "good/vllm-0.33-two-servers.jsonl"))
    told = [(row["line"], row["pid"], row["service"], row["request_id"], row["queue_s"]) for row in rows["request"]]
    assert told == [
        (1, "5380", "prefill", "cmpl-w1-00001", 3.962300002058328e-05),
        (2, "5381", "decode", "cmpl-w1-00001", 0.07562001099995541),
    ]
    assert rows["source_file"] == [whole(2)]


def test_the_collectors_form_and_what_is_not_a_number():
    assert read(otlp_spans, sample(otlp_spans, "good/collector-file-exporter.jsonl")) == {
        "request": [FIRST_0_24, FIRST_0_24 | {"line": 2, "decode_s": None, "status": "error"}],
        "source_file": [whole(2, pid="6734")],
    }


def test_bad_lines_are_named_and_the_rest_is_read():
    rows = read(otlp_spans, sample(otlp_spans, "bad/no-start-and-cut.jsonl"))
    assert data(rows) == {"request": [FIRST_0_24]}
    assert [(row["line"], row["reason"]) for row in rows["rejected_line"]] == [
        (2, otlp_spans.EXPECTED_SPAN),
        (3, otlp_spans.EXPECTED),
        (4, "expected: JSON"),
        (5, "expected: JSON"),
    ]
    assert rows["source_file"] == [whole(5, rejected=4, pid="6734")]


def test_a_cut_document_gives_nothing():
    text = sample(otlp_spans, "bad/cut.json")
    rejected = [{"line": 1, "reason": "expected: JSON"}]
    assert read(otlp_spans, text) == {"rejected_line": rejected, "source_file": [whole(text.count(b"\n") + 1, rejected=1)]}


def test_a_document_that_is_too_long_is_not_read(monkeypatch):
    monkeypatch.setattr(otlp_spans, "documents", json_lines.documents)
    monkeypatch.setattr(json_lines, "MAX_LINE", 1000)
    rows = read(otlp_spans, sample(otlp_spans, "good/vllm-0.32-chat.json"))
    assert rows["rejected_line"] == [{"line": 1, "reason": "expected: a document of at most 1000 bytes"}]
    assert not data(rows)


@pytest.mark.parametrize(
    ("said", "stored"),
    [
        ("cmpl-a-0", "cmpl-a"),
        ("cmpl-a-0-0", "cmpl-a-0"),
        ("cmpl-a-1", "cmpl-a-1"),
        ("chatcmpl-a-0", "chatcmpl-a-0"),
        ("", None),
    ],
)
def test_the_choice_suffix_is_removed(said, stored):
    span = {"name": "llm_request", "startTimeUnixNano": "5", "attributes": [attribute("gen_ai.request.id", stringValue=said)]}
    assert read(otlp_spans, export(span))["request"][0]["request_id"] == stored


@pytest.mark.parametrize(
    ("value", "tokens"),
    [
        ({"intValue": "7"}, 7),
        ({"intValue": 7}, 7),
        ({"doubleValue": 7.0}, 7),
        ({"doubleValue": "NaN"}, None),
        ({"doubleValue": 7.5}, None),
        ({"intValue": "-7"}, None),
        ({"intValue": str(1 << 64)}, None),
        ({"intValue": "9" * 5000}, None),
        ({"stringValue": "7"}, None),
        ({"arrayValue": {}}, None),
    ],
)
def test_counts(value, tokens):
    span = {"name": "llm_request", "startTimeUnixNano": 5, "attributes": [attribute("gen_ai.usage.prompt_tokens", **value)]}
    assert read(otlp_spans, export(span))["request"][0]["prompt_tokens"] == tokens


@pytest.mark.parametrize("trace", ["", "zz", "aeac", "A" * 33, 5, None, "azVbAew1e49vrFjh+Db+2w=", "w+oRrScNKvc="])
def test_a_trace_id_that_is_none_is_unknown(trace):
    span = {"name": "llm_request", "startTimeUnixNano": 5, "traceId": trace}
    assert read(otlp_spans, export(span))["request"][0]["trace_id"] is None


@given(st.binary() | st.text().map(str.encode))
@example(b"{")
@example(b'{"resourceSpans": [\n' + b"[" * 100_000)
@example(b'{"resourceSpans": ' + b"[" * 900 + b'"\\ud800"' + b"]" * 900 + b"}")
@example(b"{\n}{}{}\n{}")
@patient
def test_any_bytes(text):
    read(otlp_spans, text)
    otlp_spans.sniff(text)


@given(scrambled(otlp_spans))
@patient
def test_any_types(text):
    read(otlp_spans, text)
    otlp_spans.sniff(text)


@given(st.sampled_from([file for file in samples(otlp_spans) if file.suffix == ".jsonl"]), st.data())
@patient
def test_a_cut_file(file, draw):
    text = file.read_bytes()
    check_cut(otlp_spans, text, draw.draw(st.integers(0, len(text))))
