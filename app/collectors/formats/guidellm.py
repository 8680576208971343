"""GuideLLM's benchmarks.json, report version 2 (0.4 to 0.8).

Yields the requests, which carry epoch seconds of the client, and an event `bench` a benchmark with what vLLM's own result calls
completed, failed, duration, request_rate, request_throughput (counted here from the requests). Never stored: request
arguments, outputs, reasoning, tool calls, error texts.

Traps
    - What GuideLLM calls ITL is our TPOT; its output_tokens_per_second is over the whole latency.
    - TTFT here starts with request_start, not with targeted_start: a client that is late adds nothing to it.
    - first_token_iteration is the first token of any kind, first_output_token_iteration the first behind the reasoning.
    - `incomplete` requests were cut by the benchmark's end: they have no E2E.
    - response_metrics is vLLM's `metrics`: time_to_first_token_ms there is prefill time, not TTFT.
    - A report holds all texts and may be large: up to 64 MB of it are read, else the file is rejected.

Source: guidellm 0.8.1, schemas/base/request_stats.py, schemas/base/info.py, benchmark/schemas/report.py.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, Final

from analyzers.model import Batch
from app.collectors.formats.json_lines import Tail, Tally, count, documents, head_fields, lines, number, seconds, string, table

NAME: Final = "guidellm"
EXPECTED: Final = 'expected: a report of GuideLLM with "metadata" and "benchmarks"'
EXPECTED_REQUEST: Final = 'expected: requests with "info.timings" in epoch seconds'
COLUMNS: Final = (
    *("line", "source", "request_id", "arrival_ts", "end_ts", "prompt_tokens", "output_tokens", "cached_tokens", "ttft_s"),
    *("queue_s", "prefill_s", "decode_s", "e2e_s", "status"),
)
STATUS: Final = {"successful": "ok", "incomplete": "abort", "errored": "error"}


def sniff(head: bytes) -> bool:
    """Recognise the report's metadata."""
    metadata = head_fields(head).get("metadata")
    return (isinstance(metadata, dict) and "guidellm_version" in metadata) or (
        isinstance(metadata, Tail) and "guidellm_version" in metadata
    )


def read(stream: BinaryIO, reference_ts: float) -> Iterator[Batch]:  # noqa: ARG001 (the times here have their year)
    """Yield batches of request and event."""
    tally = Tally()
    for line, report in documents(lines(stream, tally), stream, tally):
        found = report.get("benchmarks") if isinstance(report, dict) else None
        if not isinstance(found, list):
            tally.reject(line, EXPECTED)
            continue
        for one in found:
            run = one if isinstance(one, dict) else {}
            rows = [(line, "client", *row) for row in _rows(_of(run, "requests"))]
            if rows:
                yield table("request", COLUMNS, rows)
            fields = _run(run, [row[-1] for row in rows])
            yield table("event", ("line", "kind", "fields"), [(line, "bench", json.dumps(fields, sort_keys=True))])
            if any(row[3] is None for row in rows):
                tally.reject(line, EXPECTED_REQUEST)
    yield from tally.batches()


def _of(value: Mapping[str, Any], *path: str) -> dict[str, Any]:
    """The object at a path; {} where there is none."""
    found: Any = value
    for name in path:
        found = found.get(name) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}


def _run(run: Mapping[str, Any], statuses: list[str]) -> dict[str, Any]:
    done, failed = statuses.count("ok"), statuses.count("error")
    duration = seconds(run.get("duration"))
    rate = number(_of(run, "config", "strategy").get("rate"))
    fields: dict[str, Any] = {
        "completed": done,
        "failed": failed,
        "backend": "guidellm",
        "duration": duration,
        "request_rate": rate,
    }
    if duration:
        fields["request_throughput"] = done / duration
    return {name: value for name, value in fields.items() if value is not None}


def _rows(requests: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    for name, status in STATUS.items():
        group = requests.get(name)
        for one in group if isinstance(group, list) else []:
            if isinstance(one, dict):
                yield _row(one, status)


def _row(one: Mapping[str, Any], status: str) -> tuple[Any, ...]:
    timings, server = _of(one, "info", "timings"), _of(one, "response_metrics")
    start, end = seconds(timings.get("request_start")), seconds(timings.get("request_end"))
    first, last = seconds(timings.get("first_token_iteration")), seconds(timings.get("last_token_iteration"))
    milliseconds = [number(server.get(name)) for name in ("queue_time_ms", "time_to_first_token_ms", "generation_time_ms")]
    whole = status == "ok"
    return (
        string(one.get("response_id")) or string(one.get("request_id")),
        start,
        end,
        count(_of(one, "input_metrics").get("text_tokens")),
        count(_of(one, "output_metrics").get("text_tokens")),
        count(_of(one, "input_metrics").get("cached_tokens")),
        None if first is None or start is None or status == "error" else first - start,
        *(None if value is None else value / 1000 for value in milliseconds),
        None if last is None or start is None or not whole else last - start,
        status,
    )
