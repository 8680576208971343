"""Requests as their client saw them: JSON lines, one a request, from a load generator or a gateway.

Our own minimal format (JSON Schema: sample_data/request_lines.schema.json); whoever can write these lines needs no other:
    {"request_id": "cmpl-1", "start_s": 1795968010.5, "ttft_s": 0.31, "latency_s": 4.2, "prompt_tokens": 812, "output_tokens": 96}
Needed: request_id (or id) and one of start_s, ttft_s, latency_s. start_s in epoch seconds (above 1e9) puts the request on the
server's clock; a smaller one is of a clock of its own: then the request has no time, and counts only in means.

Read beside them, as recorders write it: response_id, trace_id, base_url, t_send, t_first_token, t_last_token, t_end (epoch
seconds), cached_tokens, status, finish_reason, chunks_rel [[seconds since t_send, tokens so far], ...], server_metrics (what
`--enable-per-request-metrics`, 0.26+, adds to the response). Never stored: prompts, outputs, error texts, the load's segment.

Traps
    - `time_to_first_token_ms` in server_metrics is first token minus scheduled: prefill time, not TTFT.
    - TTFT and E2E here are on the client's clock and include the network; E2E ends with the last token, not with t_end.
    - A base_url with a path (other than /v1) leads to a proxy, which is not an instance.
    - A proxy's own lines (prefill_start, decode_start, ...) are another format and have no t_send.
    - Under disaggregation server_metrics are those of the decode server.

Source: vLLM 0.33 vllm/entrypoints/openai (RequestMetrics of a response's usage chunk).
"""

import re
from collections.abc import Iterator
from typing import Any, BinaryIO, Final
from urllib.parse import urlsplit

from analyzers.model import Batch
from app.collectors.formats.json_lines import (
    Tally,
    count,
    head_fields,
    instance_of,
    lines,
    number,
    objects,
    seconds,
    string,
    table,
)

NAME: Final = "request_lines"
ROWS: Final = 1 << 13
EXPECTED: Final = (
    'expected: a request with "request_id" (or "id") and "start_s", "ttft_s" or "latency_s" (or "t_send"), in seconds'
)
EPOCH: Final = 1e9  # seconds from which a start is of the wall clock (2001)
OWN: Final = ("start_s", "ttft_s", "latency_s")
COLUMNS: Final = (
    *("line", "source", "instance", "request_id", "trace_id", "arrival_ts", "end_ts", "prompt_tokens", "output_tokens"),
    *("cached_tokens", "ttft_s", "queue_s", "prefill_s", "decode_s", "e2e_s", "status", "finish_reason", "chunk_s"),
)
_HEX: Final = re.compile(r"[0-9a-fA-F]{32}")
_DIRECT: Final = ("", "/", "/v1", "/v1/")


def sniff(head: bytes) -> bool:
    """Recognise a line that says when its request was sent and what became of it."""
    fields = head_fields(head)
    sent = {"id", "t_send"} <= fields.keys() and not fields.keys().isdisjoint(("t_first_token", "t_end", "status"))
    return sent or ({"request_id", "id"} & fields.keys() != set() and len(fields.keys() & set(OWN)) > 1)


def read(stream: BinaryIO, reference_ts: float) -> Iterator[Batch]:  # noqa: ARG001 (the times here have their year)
    """Yield batches of request."""
    tally = Tally()
    rows: list[tuple[Any, ...]] = []
    instances: set[str | None] = set()
    for line, fields in objects(lines(stream, tally), tally):
        row = _row(fields)
        if row is None:
            tally.reject(line, EXPECTED)
            continue
        rows.append((line, "client", *row))
        instances.add(row[0])
        if len(rows) >= ROWS:
            yield table("request", COLUMNS, rows)
            rows = []
    if rows:
        yield table("request", COLUMNS, rows)
    yield from tally.batches(instance=instances.pop() if len(instances) == 1 else None)


def _row(fields: dict[str, Any]) -> tuple[Any, ...] | None:
    """Return the columns from instance on; None without an id or any time."""
    sent, name = seconds(fields.get("t_send")), string(fields.get("request_id")) or string(fields.get("id"))
    start, ttft, latency = (seconds(fields.get(key)) for key in OWN)
    if name is None or (sent is None and start is None and ttft is None and latency is None):
        return None
    if sent is None and start is not None and start > EPOCH:
        sent = start
    first, last, end = (seconds(fields.get(key)) for key in ("t_first_token", "t_last_token", "t_end"))
    if end is None and sent is not None and latency is not None:
        end = sent + latency
    trace_id = fields.get("trace_id")
    server = fields.get("server_metrics")
    server = server if isinstance(server, dict) else {}
    return (
        _instance(fields.get("base_url")),
        string(fields.get("response_id")) or name,
        trace_id.lower() if isinstance(trace_id, str) and _HEX.fullmatch(trace_id) else None,
        sent,
        end,
        count(fields.get("prompt_tokens")),
        count(fields.get("output_tokens")),
        count(fields.get("cached_tokens")),
        ttft if first is None or sent is None else first - sent,
        _milliseconds(server.get("queue_time_ms")),
        _milliseconds(server.get("time_to_first_token_ms")),
        _milliseconds(server.get("generation_time_ms")),
        latency if last is None or sent is None else last - sent,
        string(fields.get("status")),
        string(fields.get("finish_reason")),
        _chunks(fields.get("chunks_rel")),
    )


def _instance(url: Any) -> str | None:
    instance = instance_of(url)
    return instance if instance is not None and urlsplit(url).path in _DIRECT else None


def _milliseconds(value: Any) -> float | None:
    result = number(value)
    return None if result is None else result / 1000


def _chunks(value: Any) -> list[float] | None:
    """Return seconds from sending to each chunk; unknown as a whole if one is."""
    if not isinstance(value, list):
        return None
    chunks = [number(item[0]) if isinstance(item, list) and item else None for item in value]
    known = [chunk for chunk in chunks if chunk is not None]
    return known if len(known) == len(chunks) else None
