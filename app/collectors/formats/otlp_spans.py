"""OpenTelemetry spans of a vLLM server (`--otlp-traces-endpoint`): one `llm_request` span per finished request.

Written by
    - the OpenTelemetry Collector's file exporter: a JSON line {"resourceSpans": [...]} per export, ids in hex.
    - OTLP receivers that store protobuf's own JSON: {"t", "request": {"resourceSpans": [...]}}, ids in base64.
    - people: one JSON document, or several, over many lines.

Versions: 0.10.2 and later (V1), and 0.8.5 to 0.10.0 with the V0 engine, whose spans have the same name, no prefill and no
decode time, and no process id in their resource.

Traps
    - The span's request id carries the number of the choice (`cmpl-<id>-0`), a response's does not; chat ids have none.
    - Requests that the client aborts have no span: a span's request is finished, `status` ok, if it says nothing else.
    - Start is the arrival in the API server (0.17+: before tokenizing), end is when the last output was taken over.
    - int64 is a string in protobuf's JSON, a number elsewhere; NaN is a string.
    - Other spans (start-up, FastAPI) are passed over.

Source: vllm/v1/engine/output_processor.py `do_tracing` (0.33), vllm/engine/llm_engine.py (0.8.5).
"""

import base64
import binascii
import re
from collections.abc import Iterator
from typing import Any, BinaryIO, Final

from analyzers.model import Batch
from app.collectors.formats.json_lines import (
    Tail,
    Tally,
    count,
    documents,
    head_fields,
    lines,
    number,
    seconds,
    string,
    table,
)

NAME: Final = "otlp_spans"
ROWS: Final = 1 << 14
EXPECTED: Final = 'expected: a JSON object with "resourceSpans"'
EXPECTED_SPAN: Final = "expected: an llm_request span with startTimeUnixNano"
COLUMNS: Final = (
    *("line", "source", "pid", "service", "request_id", "trace_id", "arrival_ts", "end_ts", "prompt_tokens", "output_tokens"),
    *("ttft_s", "queue_s", "prefill_s", "decode_s", "e2e_s", "status"),
)
_KEPT: Final = ("traceId", "spanId", "name", "startTimeUnixNano", "endTimeUnixNano", "status")
_TEXTS: Final = re.compile(r"^gen_ai\.(?!request\.id$|usage\.|latency\.)")
_HEX: Final = re.compile(r"[0-9a-fA-F]{32}")
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,20}")


def sniff(head: bytes) -> bool:
    """Recognise an export, bare or as "request"."""
    fields = head_fields(head)
    request = fields.get("request")
    if isinstance(request, Tail):
        request = head_fields(request)
    spans = fields.get("resourceSpans", request.get("resourceSpans") if isinstance(request, dict) else None)
    return isinstance(spans, list) or (isinstance(spans, Tail) and spans.startswith("["))


def read(stream: BinaryIO, reference_ts: float) -> Iterator[Batch]:  # noqa: ARG001 (the times here have their year)
    """Yield batches of request."""
    tally = Tally()
    rows: list[tuple[Any, ...]] = []
    pids: set[str | None] = set()
    for line, export in _exports(stream, tally):
        found, fine = _requests(export)
        if not fine:
            tally.reject(line, EXPECTED_SPAN)
        rows.extend((line, "span", *row) for row in found)
        pids.update(row[0] for row in found)
        if len(rows) >= ROWS:
            yield table("request", COLUMNS, rows)
            rows = []
    if rows:
        yield table("request", COLUMNS, rows)
    yield from tally.batches(pid=pids.pop() if len(pids) == 1 else None)


def kept(export: dict[str, Any]) -> dict[str, Any] | None:
    """An export with nothing but what `read` takes of its request spans: what may be recorded. None: it has none."""
    groups = []
    for group in _dicts(export.get("resourceSpans")):
        spans = [
            {**{name: span[name] for name in _KEPT if name in span}, "attributes": _named(span, ("gen_ai.",))}
            for scope in _dicts(group.get("scopeSpans"))
            for span in _dicts(scope.get("spans"))
            if span.get("name") == "llm_request"
        ]
        if spans:
            resource = {"attributes": _named(group.get("resource"), ("vllm.process_id", "process.pid", "service.name"))}
            groups.append({"resource": resource, "scopeSpans": [{"spans": spans}]})
    return {"resourceSpans": groups} if groups else None


def _named(owner: Any, prefixes: tuple[str, ...]) -> list[dict[str, Any]]:
    """Attributes of these names: an id, counts and seconds; never a prompt or an output."""
    found = _dicts(owner.get("attributes")) if isinstance(owner, dict) else []
    return [one for one in found if str(one.get("key")).startswith(prefixes) and not _TEXTS.search(str(one.get("key")))]


def _exports(stream: BinaryIO, tally: Tally) -> Iterator[tuple[int, list[Any]]]:
    """Yield line and resourceSpans of each export."""
    for line, value in documents(lines(stream, tally), stream, tally):
        export = value.get("request", value) if isinstance(value, dict) else None
        spans = export.get("resourceSpans") if isinstance(export, dict) else None
        if isinstance(spans, list):
            yield line, spans
        else:
            tally.reject(line, EXPECTED)


def _requests(resource_spans: list[Any]) -> tuple[list[tuple[Any, ...]], bool]:
    """Return the rows of an export's request spans, and whether all could be read."""
    rows = []
    fine = True
    for group in _dicts(resource_spans):
        resource = _attributes(group.get("resource"))
        pid = resource.get("vllm.process_id", resource.get("process.pid"))
        whose = (string(pid) or (str(pid) if count(pid) is not None else None), string(resource.get("service.name")))
        for scope in _dicts(group.get("scopeSpans")):
            for span in _dicts(scope.get("spans")):
                if span.get("name") == "llm_request":
                    row = _row(span)
                    fine = fine and row is not None
                    if row is not None:
                        rows.append((*whose, *row))
    return rows, fine


def _row(span: dict[str, Any]) -> tuple[Any, ...] | None:
    """Return the columns from request_id on; None without a start."""
    start, end = _nanoseconds(span.get("startTimeUnixNano")), _nanoseconds(span.get("endTimeUnixNano"))
    if start is None:
        return None
    said = _attributes(span)
    request_id = string(said.get("gen_ai.request.id"))
    if request_id and request_id.startswith("cmpl-"):
        request_id = request_id.removesuffix("-0")
    status = span.get("status")
    failed = isinstance(status, dict) and status.get("code") in (2, "STATUS_CODE_ERROR")
    latency = ("time_to_first_token", "time_in_queue", "time_in_model_prefill", "time_in_model_decode", "e2e")
    return (
        request_id,
        _trace_id(span.get("traceId")),
        start,
        end,
        count(said.get("gen_ai.usage.prompt_tokens")),
        count(said.get("gen_ai.usage.completion_tokens")),
        *(number(said.get(f"gen_ai.latency.{name}")) for name in latency),
        "error" if failed else "ok",
    )


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _attributes(owner: Any) -> dict[str, Any]:
    """Return the attributes of a span or resource as plain values; a value of an unknown kind is None."""
    found: dict[str, Any] = {}
    for attribute in _dicts(owner.get("attributes")) if isinstance(owner, dict) else ():
        key, value = attribute.get("key"), attribute.get("value")
        if isinstance(key, str) and isinstance(value, dict):
            found[key] = _plain(value)
    return found


def _plain(value: dict[str, Any]) -> Any:
    if "intValue" in value:
        raw = value["intValue"]
        return int(raw) if isinstance(raw, str) and _INTEGER.fullmatch(raw) else count(raw)
    if "doubleValue" in value:
        raw = value["doubleValue"]
        try:
            return float(raw) if isinstance(raw, str) else number(raw)
        except ValueError:
            return None
    return value.get("stringValue")


def _nanoseconds(value: Any) -> float | None:
    """Return epoch seconds of a time in nanoseconds; 0 is OTLP's word for unknown."""
    if isinstance(value, str) and _INTEGER.fullmatch(value):
        value = int(value)
    result = number(value)
    return seconds(result / 1e9) if result else None


def _trace_id(value: Any) -> str | None:
    """Return 32 hex digits, of hex or of base64."""
    if not isinstance(value, str):
        return None
    if _HEX.fullmatch(value):
        return value.lower()
    try:
        raw = base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        return None
    return raw.hex() if len(raw) == 16 else None
