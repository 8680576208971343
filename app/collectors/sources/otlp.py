"""Spans that vLLM sends: POST /v1/traces of the dashboard's own server, OTLP over HTTP as JSON or protobuf, gzip or not.

    vllm serve ... --otlp-traces-endpoint http://HOST:8501/v1/traces   with OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf

Protobuf needs the extra [otlp]. It becomes the same dictionaries as OTLP's JSON, with hexadecimal ids, and the format
`otlp_spans` reads both. (protobuf's own JSON is no way: it takes hexadecimal trace ids for base64.) Only request spans are kept.

Source: https://opentelemetry.io/docs/specs/otlp/#otlphttp
"""

import json
import zlib
from collections.abc import Callable
from typing import Any, Final

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

MAX_BYTES: Final = 64 << 20  # of one export, packed and unpacked
PATH: Final = "/v1/traces"
PROTOBUF: Final = ("application/x-protobuf", "application/protobuf")
MISSING: Final = "protobuf needs the extra [otlp]: pip install 'weaklink[otlp]', or send OTLP as JSON"

Take = Callable[[dict[str, Any], str | None], object]  # an export {"resourceSpans": [...]}, and the sender's address


class OtlpError(Exception):
    """The body is no export; `status` is the HTTP status to answer with."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


def routes(take: Take) -> list[Route]:
    """What the server mounts: `take` gets each export in a thread, and has stored it when it returns."""

    async def traces(request: Request) -> Response:
        """Take one export. 200 only after it is stored: the sender repeats what fails."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        try:
            body = await _body(request)
            export = await run_in_threadpool(read, body, kind, request.headers.get("content-encoding", ""))
            await run_in_threadpool(take, export, request.client.host if request.client else None)
        except OtlpError as error:
            return JSONResponse({"code": 14 if error.status == 503 else 3, "message": str(error)}, error.status)
        return Response(b"", media_type=kind) if kind in PROTOBUF else JSONResponse({})

    return [Route(PATH, traces, methods=["POST"])]


async def _body(request: Request) -> bytes:
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > MAX_BYTES:
            raise OtlpError(f"larger than {MAX_BYTES >> 20} MiB", 413)
        parts.append(part)
    return b"".join(parts)


def read(body: bytes, kind: str, encoding: str = "") -> dict[str, Any]:
    """One export as OTLP's JSON has it. OtlpError: it is none."""
    if encoding.strip().lower() in {"gzip", "deflate"}:
        body = _unpacked(body)
    elif encoding.strip().lower() not in {"", "identity"}:
        raise OtlpError("expected content-encoding gzip or none", 415)
    if kind in PROTOBUF:
        return _from_protobuf(body)
    if kind != "application/json":
        raise OtlpError("expected content-type application/x-protobuf or application/json", 415)
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise OtlpError("expected JSON") from error
    if not isinstance(found, dict) or not isinstance(found.get("resourceSpans"), list):
        raise OtlpError('expected {"resourceSpans": [...]}')
    return found


def _unpacked(body: bytes) -> bytes:
    unpack = zlib.decompressobj(wbits=47)  # gzip or zlib
    try:
        found = unpack.decompress(body, MAX_BYTES)
    except zlib.error as error:
        raise OtlpError("the gzip is damaged") from error
    if unpack.unconsumed_tail:
        raise OtlpError(f"unpacks to more than {MAX_BYTES >> 20} MiB", 413)
    if not unpack.eof:
        raise OtlpError("the gzip is cut short")
    return found


def _from_protobuf(body: bytes) -> dict[str, Any]:
    try:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest  # noqa: PLC0415 an extra
    except ImportError as error:
        raise OtlpError(MISSING, 415) from error
    try:
        export = ExportTraceServiceRequest.FromString(body)
    except Exception as error:  # its DecodeError, whose package is another
        raise OtlpError("expected the protobuf of an ExportTraceServiceRequest") from error
    return {"resourceSpans": [_group(group) for group in export.resource_spans]}


def _group(group: Any) -> dict[str, Any]:
    scopes = [{"spans": [_span(span) for span in scope.spans]} for scope in group.scope_spans]
    return {"resource": {"attributes": _attributes(group.resource.attributes)}, "scopeSpans": scopes}


def _span(span: Any) -> dict[str, Any]:
    return {
        "traceId": span.trace_id.hex(),
        "spanId": span.span_id.hex(),
        "name": span.name,
        "startTimeUnixNano": span.start_time_unix_nano,
        "endTimeUnixNano": span.end_time_unix_nano,
        "attributes": _attributes(span.attributes),
        "status": {"code": span.status.code},
    }


def _attributes(found: Any) -> list[dict[str, Any]]:
    """Attributes of plain values; lists and bytes are none of the request's."""
    names = {"string_value": "stringValue", "int_value": "intValue", "double_value": "doubleValue", "bool_value": "boolValue"}
    kinds = [(one.key, one.value.WhichOneof("value"), one.value) for one in found]
    return [{"key": key, "value": {names[kind]: getattr(value, kind)}} for key, kind, value in kinds if kind in names]
