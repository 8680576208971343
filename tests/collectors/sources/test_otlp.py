"""Spans over real HTTP: JSON and protobuf, packed and not, give the same rows; a repeated export adds nothing."""

import gzip
import json
import threading
import time
import zlib
from collections.abc import Iterator
from functools import partial

import httpx
import pytest
import uvicorn
from collectors.sources.serving import ROOT
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from ports import free_port
from starlette.applications import Starlette

from analyzers.model import Batch
from app.collectors.sources import otlp
from app.collectors.sources.otlp import OtlpError, read
from app.live import LIVE
from app.live.received import take_spans
from app.store import Store

SAMPLE = ROOT / "sample_data" / "formats" / "otlp_spans" / "good" / "collector-file-exporter.jsonl"
EXPORT = json.loads(SAMPLE.read_text().splitlines()[0])
JSON, PROTOBUF = "application/json", "application/x-protobuf"
ROWS = "SELECT * EXCLUDE (file_id) FROM request ORDER BY line"


def protobuf(export: dict) -> bytes:
    """Return an export as protobuf, written without protobuf's own JSON, which reads hexadecimal ids wrongly."""
    made = ExportTraceServiceRequest()
    for group in export["resourceSpans"]:
        spans = made.resource_spans.add()
        attributes(spans.resource.attributes, group["resource"]["attributes"])
        for scope in group["scopeSpans"]:
            inside = spans.scope_spans.add()
            for span in scope["spans"]:
                one = inside.spans.add(
                    trace_id=bytes.fromhex(span["traceId"]), span_id=bytes.fromhex(span["spanId"]), name=span["name"],
                    start_time_unix_nano=int(span["startTimeUnixNano"]), end_time_unix_nano=int(span["endTimeUnixNano"]),
                )  # fmt: skip
                one.status.code = span.get("status", {}).get("code", 0)
                attributes(one.attributes, span["attributes"])
    return made.SerializeToString()


def attributes(target, found: list[dict]) -> None:
    for one in found:
        ((kind, value),) = one["value"].items()
        added = target.add(key=one["key"])
        setattr(added.value, {"stringValue": "string_value", "intValue": "int_value", "doubleValue": "double_value"}[kind], value)


@pytest.fixture
def receiving() -> Iterator[tuple[str, Store]]:
    """A server with the routes; its URL, and the store behind it."""
    port = free_port()
    with Store() as store:
        app = Starlette(routes=otlp.routes(partial(take_spans, store)))
        server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error", ws="none"))
        thread = threading.Thread(target=server.run)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{port}/v1/traces", store
        server.should_exit = True
        thread.join()


def post(url: str, body: bytes, kind: str, encoding: str | None = None) -> httpx.Response:
    headers = {"Content-Type": kind, **({"Content-Encoding": encoding} if encoding else {})}
    return httpx.post(url, content=body, headers=headers, timeout=20)


def test_json_and_protobuf_packed_or_not_are_the_same_rows():
    bodies = [
        (json.dumps(EXPORT).encode(), JSON, ""),
        (gzip.compress(json.dumps(EXPORT).encode()), JSON, "gzip"),
        (protobuf(EXPORT), PROTOBUF, ""),
        (gzip.compress(protobuf(EXPORT)), "application/protobuf", "GZIP"),
        (zlib.compress(protobuf(EXPORT)), PROTOBUF, "deflate"),
    ]
    found = []
    for body, kind, encoding in bodies:
        with Store() as store:
            assert take_spans(store, read(body, kind, encoding), "10.0.0.1") > 0
            found.append(store.rows(ROWS))
    assert all(rows == found[0] for rows in found)
    ids = [span["traceId"] for g in EXPORT["resourceSpans"] for s in g["scopeSpans"] for span in s["spans"]]
    assert {row[6] for row in found[0]} <= set(ids)


def test_a_post_is_stored_before_it_is_answered(receiving):
    url, store = receiving
    answer = post(url, gzip.compress(protobuf(EXPORT)), PROTOBUF, "gzip")
    assert (answer.status_code, answer.content, answer.headers["content-type"]) == (200, b"", PROTOBUF)
    rows = store.rows(ROWS)
    assert len(rows) > 0
    answer = post(url, json.dumps(EXPORT).encode(), JSON)
    assert (answer.status_code, answer.json()) == (200, {})
    assert store.rows(ROWS) == rows  # the sender repeats what it believes lost
    assert store.rows("SELECT bundle, name, lines FROM source_file") == [(LIVE, "spans", len(rows))]


@pytest.mark.parametrize(
    ("body", "kind", "encoding", "status"),
    [
        (b"{", JSON, None, 400),
        (b"[]", JSON, None, 400),
        (b'{"resourceSpans": 1}', JSON, None, 400),
        (b"\xff\xff\xff", PROTOBUF, None, 400),
        (b"x", JSON, "gzip", 400),
        (gzip.compress(b"{}")[:-9], JSON, "gzip", 400),
        (b"{}", "text/plain", None, 415),
        (b"{}", JSON, "br", 415),
        (gzip.compress(b" " * (65 << 20)), JSON, "gzip", 413),
        (b" " * (65 << 20), JSON, None, 413),
    ],
    ids=["cut", "list", "number", "no-protobuf", "no-gzip", "cut-gzip", "text", "brotli", "bomb", "large"],
)
def test_what_is_no_export_is_refused(receiving, body: bytes, kind: str, encoding: str | None, status: int):
    url, store = receiving
    answer = post(url, body, kind, encoding)
    assert answer.status_code == status
    assert answer.json()["message"]
    assert store.rows(ROWS) == []


def test_only_post(receiving):
    assert httpx.get(receiving[0]).status_code == 405


def test_spans_belong_to_the_server_whose_log_has_their_process_else_to_the_only_one():
    with Store() as store:
        names = {"bundle": [LIVE], "format": ["prometheus_text"], "bytes": [0], "loaded_at": [0.0]}
        store.add(
            Batch("source_file", {"file_id": [1001], "name": ["a"], "sha256": ["1"], "instance": ["10.0.0.1:8000"], **names})
        )
        take_spans(store, EXPORT, "10.0.0.9")
        assert store.rows("SELECT DISTINCT instance FROM request") == [("10.0.0.1:8000",)]
        store.execute("DELETE FROM request")
        store.add(
            Batch("source_file", {"file_id": [1002], "name": ["b"], "sha256": ["2"], "instance": ["10.0.0.2:8000"], **names})
        )
        take_spans(store, EXPORT, "10.0.0.2")
        assert store.rows("SELECT DISTINCT instance FROM request") == [("10.0.0.2:8000",)]
        store.execute("DELETE FROM request")
        take_spans(store, EXPORT, "10.0.0.9")
        assert store.rows("SELECT DISTINCT instance FROM request") == [(None,)]
        store.execute("DELETE FROM request")
        log = {**names, "format": ["vllm_log"], "pid": ["6734"]}
        store.add(Batch("source_file", {"file_id": [1003], "name": ["c"], "sha256": ["3"], "instance": ["10.0.0.3:8000"], **log}))
        take_spans(store, EXPORT, "10.0.0.2")
        assert store.rows("SELECT DISTINCT instance FROM request") == [("10.0.0.3:8000",)]


def test_an_export_without_request_spans_is_nothing():
    with Store() as store:
        assert take_spans(store, {"resourceSpans": []}, None) == 0


@given(st.binary(max_size=400), st.sampled_from([JSON, PROTOBUF]), st.sampled_from(["", "gzip", "deflate"]))
def test_any_bytes_are_an_export_or_refused(body: bytes, kind: str, encoding: str):
    try:
        found = read(body, kind, encoding)
    except OtlpError:
        return
    assert isinstance(found["resourceSpans"], list)
