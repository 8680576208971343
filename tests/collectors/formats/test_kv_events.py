"""KV cache events: maps and arrays of several versions, without the user's tokens, and input of any kind."""

import hashlib
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

from app.collectors.formats import kv_events


def row(*values: Any) -> dict[str, Any]:
    return dict(zip(kv_events.COLUMNS, values, strict=True))


def salt(keys: Any) -> str:
    return hashlib.sha256(json.dumps(keys).encode()).hexdigest()[:16]


HASHES = ("1794361997049318022", "18239780263714257337", "12429393508111287134", "8290145008650168279")
ROWS = {
    "vllm-0.10.0-arrays.jsonl": [
        row(1, 1795968010.5, "3", "/0", 7, "stored", ["18239780263714257337", "-5"], 1, None, None),
        row(1, 1795968010.5, "3", "/0", 7, "removed", ["18239780263714257337"], None, None, None),
    ],
    "vllm-0.20-arrays.jsonl": [
        row(1, 1795968010.5, "0", "kv/0", 0, "stored", ["9f3a00", "9f3a01"], 2, "GPU", salt(["tenant-a"])),
        row(2, 1795968011.5, "0", "kv/0", 1, "removed", ["9f3a00"], None, "GPU", None),
        row(2, 1795968011.5, "0", "kv/0", 1, "cleared", None, None, None, None),
    ],
    "vllm-0.32-salted.jsonl": [
        row(
            *(1, 1795966700.4388504, "0", "/0", 2, "stored", ["535935046440848548", "15053016582051373192"], 32, "GPU"),
            "275800c73f6a7b09",
        )
    ],
    "vllm-0.33-offload.jsonl": [
        row(1, 1795977874.9662244, "0", "/0", 1, "stored", ["18239780263714257337"], None, "CPU", None),
        row(1, 1795977874.9662244, "0", "/0", 1, "stored", ["1794361997049318022"], None, "CPU", None),
    ],
    "vllm-0.33-two-ranks.jsonl": [
        row(1, 1795978630.5717022, "0", "/0", 1192, "cleared", None, None, None, None),
        row(
            *(1, 1795978630.5717022, "0", "/0", 1192, "stored"), ["1794361997049318022", "18239780263714257337"], 16, "GPU", None
        ),
        row(2, 1795978630.6244009, "1", "/1", 1215, "cleared", None, None, None, None),
        row(
            *(2, 1795978630.6244009, "1", "/1", 1215, "stored"), ["12429393508111287134", "8290145008650168279"], 16, "GPU", None
        ),
        row(3, 1795978662.5851007, "0", "/0", 1985, "stored", ["11756057707796753480"], 16, "GPU", None),
        row(3, 1795978662.5851007, "0", "/0", 1985, "removed", ["18239780263714257337"], None, "GPU", None),
        row(3, 1795978662.5851007, "0", "/0", 1985, "removed", ["1794361997049318022"], None, "GPU", None),
    ],
}


def batch(*events: Any, **fields: Any) -> bytes:
    return json.dumps({"t": 2.0, "seq": 0, "batch": [1.0, list(events), 0]} | fields).encode() + b"\n"


def test_nothing():
    assert read(kv_events, b"") == {"source_file": [whole(0)]}
    assert read(kv_events, batch()) == {"source_file": [whole(1)]}
    assert not kv_events.sniff(b"")


def test_the_manifest_names_each_sample():
    check_manifest(kv_events)


@pytest.mark.parametrize("file", samples(kv_events, "good"), ids=lambda file: file.name)
def test_whole_rows(file):
    text = file.read_bytes()
    assert kv_events.sniff(text[:HEAD])
    assert kv_events.sniff(text[:80])
    assert read(kv_events, text) == {"kv_event": ROWS[file.name], "source_file": [whole(text.count(b"\n"))]}


def test_other_files_are_refused():
    assert not refuses(kv_events)
    assert not kv_events.sniff(b'{"seq": 1, "batch": [1, 2]}')


def test_bad_lines_are_named_and_the_rest_is_read():
    rows = read(kv_events, sample(kv_events, "bad/unknown-and-cut.jsonl"))
    assert data(rows) == {
        "kv_event": [
            row(1, 1795968010.5, "0", "/0", 0, "stored", ["1"], 16, None, None),
            row(4, 1795968012.75, "0", "/0", 3, "cleared", None, None, None, None),
        ]
    }
    assert [(bad["line"], bad["reason"]) for bad in rows["rejected_line"]] == [
        (1, kv_events.EXPECTED_EVENT),
        (2, kv_events.EXPECTED_EVENT),
        (3, kv_events.EXPECTED),
        (5, "expected: a JSON object"),
    ]
    assert rows["source_file"] == [whole(5, rejected=4)]


def test_tokens_and_salts_are_not_stored():
    event = {"type": "BlockStored", "block_hashes": [1], "token_ids": [777777], "extra_keys": [None, ["tenant"]]}
    array = ["BlockStored", [1], None, [777777], 16, None, "GPU", None, [None, ["tenant"]]]
    stored = str(read(kv_events, batch(event, array)))
    assert "777777" not in stored
    assert "tenant" not in stored
    assert stored.count(salt(["tenant"])) == 2


def test_a_topic_and_an_endpoint_have_their_own_numbers():
    event = {"type": "AllBlocksCleared"}
    texts = batch(event, topic="a", endpoint=1) + batch(event, topic="a") + batch(event, endpoint="tcp://h:1") + batch(event)
    assert [row["source"] for row in read(kv_events, texts)["kv_event"]] == ["a/1", "a/0", "/tcp://h:1", "/0"]


@given(st.binary() | st.text().map(str.encode))
@example(b'{"seq": 1, "batch": [1, [["BlockStored", [1' + b"0" * 4000 + b"]]]]}")
@example(b'{"seq": 1, "batch": [1, [["BlockStored"], [], [[]], [{}], null, {"type": []}]]}')
@example(b'{"batch": [1, [{"type": "BlockStored", "block_hashes": [], "extra_keys": [' + b"[" * 900 + b"]" * 900 + b"]}]]}")
@patient
def test_any_bytes(text):
    read(kv_events, text)
    kv_events.sniff(text)


@given(scrambled(kv_events))
@patient
def test_any_types(text):
    read(kv_events, text)
    kv_events.sniff(text)


@given(st.sampled_from(samples(kv_events)), st.data())
@patient
def test_a_cut_file(file, draw):
    text = file.read_bytes()
    check_cut(kv_events, text, draw.draw(st.integers(0, len(text))))
