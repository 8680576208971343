"""Requests of a client: whole rows of several versions, what is never stored, and input of any kind."""

import json
from typing import Any

import jsonschema
import pytest
from collectors.formats.reading import (
    HEAD,
    SAMPLES,
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

from app.collectors.formats import request_lines

UNKNOWN = dict.fromkeys(request_lines.COLUMNS) | {"line": 1, "source": "client"}
ROWS = {
    "vllm-0.8.5.jsonl": [
        {"instance": "127.0.0.1:60137", "request_id": "cmpl-f91d20-00001", "trace_id": "1e7f3deb07ab4d30a559c1dbc1449022"}
        | {"arrival_ts": 1795968010.77903, "end_ts": 1795968010.95623, "prompt_tokens": 171, "output_tokens": 37}
        | {"ttft_s": 0.02390003204345703, "e2e_s": 0.1769700050354004, "status": "ok", "finish_reason": "length"}
        | {"chunk_s": [0.0239, 0.0286, 0.0328, 0.0371]}
    ],
    "vllm-0.32-chat.jsonl": [
        {"instance": "127.0.0.1:44529", "request_id": "chatcmpl-b57e32-00002", "trace_id": "7f716bcf33c34704925c711fd73acd99"}
        | {"arrival_ts": 1795966555.21014, "end_ts": 1795966555.46129, "prompt_tokens": 1537, "output_tokens": 37}
        | {"cached_tokens": 1504, "ttft_s": 0.046289920806884766, "queue_s": 1.0916000064753462e-05}
        | {"prefill_s": 0.02016142399997989, "decode_s": 0.19860964300005435, "e2e_s": 0.250960111618042}
        | {"status": "ok", "finish_reason": "length", "chunk_s": [0.0463, 0.0543, 0.0543, 0.0596]}
    ],
    "vllm-0.32-aborts.jsonl": [
        {"instance": "127.0.0.1:39181", "request_id": "chatcmpl-084abf-00004", "trace_id": "10f541d117484e50ac46bbea1e1bb1fc"}
        | {"arrival_ts": 1795966870.75969, "end_ts": 1795966870.99858, "prompt_tokens": 306, "output_tokens": 1}
        | {"ttft_s": 0.2385399341583252, "e2e_s": 0.2385399341583252, "status": "abort", "chunk_s": [0.2385]},
        {"line": 2, "instance": "127.0.0.1:39181", "request_id": "cmpl-084abf-00003"}
        | {"trace_id": "b57f23905106403992ba14510807af0d", "arrival_ts": 1795966870.24278, "end_ts": 1795966872.0092}
        | {"prompt_tokens": 600, "output_tokens": 200, "ttft_s": 0.5160601139068604, "e2e_s": 1.688349962234497}
        | {"status": "timeout", "chunk_s": [0.5161, 0.5161, 0.5161, 0.5161]},
    ],
    "vllm-0.32-no-server.jsonl": [
        {"instance": "127.0.0.1:41597", "request_id": "f34bcf-00040", "arrival_ts": 1795967061.64607}
        | {"end_ts": 1795967061.64681, "output_tokens": 0, "status": "error", "chunk_s": []}
    ],
    "vllm-0.33-metrics.jsonl": [
        {"instance": "127.0.0.1:50395", "request_id": "cmpl-1735d6-00002", "trace_id": "134fab1084804c39904787691b43585a"}
        | {"arrival_ts": 1795978632.73727, "end_ts": 1795978633.33306, "prompt_tokens": 6281, "output_tokens": 90}
        | {"cached_tokens": 0, "ttft_s": 0.16148996353149414, "queue_s": 7.447600000887178e-05}
        | {"prefill_s": 0.14531401400006416, "decode_s": 0.4407541109999329, "e2e_s": 0.5955097675323486}
        | {"status": "ok", "finish_reason": "length", "chunk_s": [0.1615, 0.1621, 0.1644, 0.1695]}
    ],
    "vllm-0.33-through-proxy.jsonl": [
        {"request_id": "cmpl-cbb717-00002", "trace_id": "edb37a9aa01b4bda8545dc435a3c8f2c", "arrival_ts": 1795977638.64119}
        | {"end_ts": 1795977639.29031, "prompt_tokens": 531, "output_tokens": 121, "cached_tokens": 0}
        | {"ttft_s": 0.08740997314453125, "queue_s": 0.0064341510001213464, "prefill_s": 0.00839501499990547}
        | {"decode_s": 0.562100700999963, "e2e_s": 0.6490199565887451, "status": "ok", "finish_reason": "length"}
        | {"chunk_s": [0.0874, 0.0909, 0.0951, 0.0997]}
    ],
    "minimal.jsonl": [
        {"instance": "h:8000", "request_id": "cmpl-1", "arrival_ts": 1795968010.5, "end_ts": 1795968015.0}
        | {"ttft_s": 0.25, "e2e_s": 4.5, "prompt_tokens": 812, "output_tokens": 96},
        {"line": 2, "instance": "h:8000", "request_id": "cmpl-2", "ttft_s": 0.5, "e2e_s": 2.5}
        | {"prompt_tokens": 20, "output_tokens": 8},
        {"line": 3, "instance": "h:8000", "request_id": "cmpl-3", "e2e_s": 2.0, "status": "error"},
    ],
}


def line(**fields: Any) -> bytes:
    return json.dumps({"id": "a", "t_send": 1795968010.5} | fields).encode() + b"\n"


def test_nothing():
    assert read(request_lines, b"") == {"source_file": [whole(0)]}
    assert not request_lines.sniff(b"")


def test_the_manifest_names_each_sample():
    check_manifest(request_lines)


@pytest.mark.parametrize("file", samples(request_lines, "good"), ids=lambda file: file.name)
def test_whole_rows(file):
    assert request_lines.sniff(file.read_bytes()[:HEAD])
    assert request_lines.sniff(file.read_bytes()[:400])
    rows = [UNKNOWN | row for row in ROWS[file.name]]
    assert read(request_lines, file.read_bytes()) == {
        "request": rows,
        "source_file": [whole(len(rows), instance=rows[0]["instance"])],
    }


def test_the_schema_of_our_own_lines():
    """What the schema takes is read, and what it refuses is rejected."""
    schema = json.loads((SAMPLES.parent / "request_lines.schema.json").read_text())
    for text in sample(request_lines, "good/minimal.jsonl").splitlines():
        jsonschema.validate(json.loads(text), schema)
    for wrong in ({"start_s": 1.0}, {"request_id": "a"}, {"request_id": "", "ttft_s": 1}, {"request_id": "a", "ttft_s": -1}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)
        assert read(request_lines, json.dumps(wrong).encode() + b"\n")["source_file"] == [whole(1, rejected=1)]


def test_other_files_are_refused():
    assert not refuses(request_lines)


def test_bad_lines_are_named_and_the_rest_is_read():
    text = sample(request_lines, "bad/no-time-and-cut.jsonl")
    rows = read(request_lines, text)
    first = (
        UNKNOWN
        | {"instance": "127.0.0.1:35623", "request_id": "cmpl-w1-00001", "arrival_ts": 1795967598.55589}
        | {"end_ts": 1795967598.62954, "prompt_tokens": 32, "output_tokens": 8, "cached_tokens": 0}
        | {"ttft_s": 0.042079925537109375, "e2e_s": 0.0734100341796875, "status": "ok", "finish_reason": "length"}
        | {"chunk_s": [0.0421, 0.0445, 0.0496, 0.0539]}
    )
    assert data(rows) == {"request": [first, first | {"line": 3, "prompt_tokens": None, "chunk_s": None}]}
    assert [(row["line"], row["reason"]) for row in rows["rejected_line"]] == [
        (2, request_lines.EXPECTED),
        (4, request_lines.EXPECTED),
        (5, "expected: a JSON object"),
    ]
    assert rows["source_file"] == [whole(5, rejected=3, instance="127.0.0.1:35623")]


def test_the_users_text_is_not_stored():
    text = sample(request_lines, "bad/no-time-and-cut.jsonl")
    secrets = line(segment="secret", error="secret", prompt="secret", output="secret", messages=[{"content": "secret"}])
    assert b"the user's text" in text
    for stored in (read(request_lines, text), read(request_lines, secrets)):
        assert not {"user's", "answer", "warmup", "secret"} & set(str(stored).replace("'", " '").split())
        assert "secret" not in str(stored)


@pytest.mark.parametrize(
    ("url", "instance"),
    [
        ("http://h:8000", "h:8000"),
        ("http://h:8000/", "h:8000"),
        ("http://h:8000/v1", "h:8000"),
        ("http://h:8000/pd", None),
        ("https://h", "h:443"),
        ("h:8000", None),
        (None, None),
    ],
)
def test_a_url_with_a_path_is_a_proxy(url, instance):
    assert read(request_lines, line(base_url=url))["request"] == [
        UNKNOWN | {"instance": instance, "request_id": "a", "arrival_ts": 1795968010.5}
    ]


def test_two_servers_are_not_one_instance():
    text = line(base_url="http://h:1") + line(base_url="http://h:2")
    assert read(request_lines, text)["source_file"] == [whole(2)]


@given(st.binary() | st.text().map(str.encode))
@example(b'{"id": "a", "t_send": 1e400}')
@example(b'{"id": "a", "t_send": 5, "chunks_rel": [[]], "server_metrics": {"queue_time_ms": 1' + b"0" * 400 + b"}}")
@example(b'{"id": "\\ud800", "t_send": 5}')
@patient
def test_any_bytes(text):
    read(request_lines, text)
    request_lines.sniff(text)


@given(scrambled(request_lines))
@patient
def test_any_types(text):
    read(request_lines, text)
    request_lines.sniff(text)


@given(st.sampled_from(samples(request_lines)), st.data())
@patient
def test_a_cut_file(file, draw):
    text = file.read_bytes()
    check_cut(request_lines, text, draw.draw(st.integers(0, len(text))))
