"""AIPerf's profile_export.jsonl (0.13; before it genai-perf): JSON lines, one a request, epoch nanoseconds of the client.

Warm-up requests are left out (they are counted as lines, not as rejected). Never stored: payloads and error texts.

Traps
    - What AIPerf calls inter_token_latency is our TPOT; inter_chunk_latency is a list of the gaps between chunks.
    - Each figure has a unit, ms or s, tokens or requests: it is read with it, and is unknown with another one.
    - E2E is request_latency: up to the last response, not to the end of the connection.
    - x_request_id is the header that the client sent; vLLM's own id contains it (cmpl-<x>-0, chatcmpl-<x>).
    - A cancelled request has no E2E.

Source: aiperf 0.13.0, common/models/record_models.py (MetricRecordInfo).
"""

from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Any, BinaryIO, Final

from analyzers.model import Batch
from app.collectors.formats.json_lines import (
    Tail,
    Tally,
    count,
    head_fields,
    integer,
    lines,
    number,
    objects,
    seconds,
    string,
    table,
)

NAME: Final = "aiperf"
ROWS: Final = 1 << 13
EXPECTED: Final = 'expected: a record with "metadata" (request_start_ns, request_end_ns) and "metrics"'
COLUMNS: Final = (
    *("line", "source", "request_id", "arrival_ts", "end_ts", "prompt_tokens", "output_tokens", "cached_tokens"),
    *("ttft_s", "e2e_s", "status", "chunk_s"),
)
SCALE: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "seconds": 1.0}


def sniff(head: bytes) -> bool:
    """Recognise a record's metadata."""
    metadata = head_fields(head).get("metadata")
    return isinstance(metadata, dict | Tail) and "request_start_ns" in metadata and "guidellm_version" not in metadata


def read(stream: BinaryIO, reference_ts: float) -> Iterator[Batch]:  # noqa: ARG001 (the times here have their year)
    """Yield batches of request."""
    tally = Tally()
    rows: list[tuple[Any, ...]] = []
    for line, record in objects(lines(stream, tally), tally):
        metadata = record.get("metadata")
        row = _row(metadata, record) if isinstance(metadata, dict) else None
        if row is None or not isinstance(metadata, dict):
            tally.reject(line, EXPECTED)
            continue
        if metadata.get("benchmark_phase") == "warmup":
            continue
        rows.append((line, "client", *row))
        if len(rows) >= ROWS:
            yield table("request", COLUMNS, rows)
            rows = []
    if rows:
        yield table("request", COLUMNS, rows)
    yield from tally.batches()


def _row(metadata: Mapping[str, Any], record: Mapping[str, Any]) -> tuple[Any, ...] | None:
    start, end = (_epoch(metadata.get(name)) for name in ("request_start_ns", "request_end_ns"))
    metrics = record.get("metrics")
    if start is None or not isinstance(metrics, dict):
        return None
    cancelled, failed = metadata.get("was_cancelled") is True, record.get("error") is not None
    status = "abort" if cancelled else "error" if failed else "ok"
    ttft = _time(metrics, "time_to_first_token")
    return (
        string(metadata.get("x_request_id")),
        start,
        end,
        _tokens(metrics, "input_sequence_length"),
        _tokens(metrics, "output_sequence_length"),
        _tokens(metrics, "usage_prompt_cache_read_tokens"),
        ttft,
        None if status != "ok" else _time(metrics, "request_latency"),
        status,
        _chunks(metrics, ttft),
    )


def _epoch(value: Any) -> float | None:
    nanoseconds = integer(value)
    return None if nanoseconds is None else seconds(nanoseconds / 1e9)


def _figure(metrics: Mapping[str, Any], name: str) -> tuple[Any, str]:
    found = metrics.get(name)
    found = found if isinstance(found, dict) else {}
    return found.get("value"), str(found.get("unit"))


def _time(metrics: Mapping[str, Any], name: str) -> float | None:
    value, unit = _figure(metrics, name)
    result = number(value)
    return seconds(result * SCALE[unit]) if result is not None and unit in SCALE else None


def _tokens(metrics: Mapping[str, Any], name: str) -> int | None:
    return count(_figure(metrics, name)[0])


def _chunks(metrics: Mapping[str, Any], ttft: float | None) -> list[float] | None:
    """Seconds from sending to each chunk; unknown as a whole if one is."""
    value, unit = _figure(metrics, "inter_chunk_latency")
    if ttft is None or not isinstance(value, list) or unit not in SCALE:
        return None
    gaps = [None if (gap := number(one)) is None else seconds(gap * SCALE[unit]) for one in value]
    known = [gap for gap in gaps if gap is not None]
    return list(accumulate(known, initial=ttft)) if len(known) == len(gaps) else None
