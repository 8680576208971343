"""The JSON result of `vllm bench serve --save-result` (before 0.9: benchmark_serving.py), 0.6 to 0.33.

One object a file, or one a line (`--append-result`). Yields an event `bench` a run with its figures under vLLM's own names,
and with `--save-detailed` the requests. Never stored: generated texts and error texts.

Traps
    - start_times are of a performance counter, not of the wall clock, and `date` has no zone: the requests have no time and
      are not aligned to the server's recording. They count in means only.
    - A failed request keeps a TTFT of 0 and no gaps in the arrays: `errors` tells which. (`latencies` came with 0.32; before,
      E2E is TTFT plus the gaps.)
    - itls are gaps between chunks of the stream, not tokens.
    - server_ttfts is first token minus scheduled: prefill time, not TTFT (server with --enable-per-request-metrics).
    - queue_times (0.32) is the wait for the client's own limit of concurrency, not the server's queue.
    - The arrays may differ in length in old versions: what a request has not is unknown.

Source: vllm/benchmarks/serve.py (0.33).
"""

import json
from collections.abc import Iterator
from itertools import accumulate
from typing import Any, BinaryIO, Final

from analyzers.model import Batch
from app.collectors.formats.json_lines import Tally, count, documents, head_fields, lines, number, seconds, string, table

NAME: Final = "bench_result"
EXPECTED: Final = 'expected: a result of vllm bench serve with "date", "model_id" and "completed"'
COLUMNS: Final = (
    *("line", "source", "prompt_tokens", "output_tokens", "ttft_s", "queue_s", "prefill_s", "e2e_s", "status", "chunk_s"),
)
WORDS: Final = ("date", "backend", "endpoint_type", "model_id", "label")
MAX_FIGURES: Final = 200  # --metadata can add any number of them


def sniff(head: bytes) -> bool:
    """Recognise the first keys of a result."""
    fields = head_fields(head)
    return {"date", "model_id"} <= fields.keys() and bool({"num_prompts", "completed", "ttfts"} & fields.keys())


def read(stream: BinaryIO, reference_ts: float) -> Iterator[Batch]:  # noqa: ARG001 (see the traps: no time that is sure)
    """Yield batches of event and request."""
    tally = Tally()
    for line, run in documents(lines(stream, tally), stream, tally):
        if not isinstance(run, dict) or string(run.get("date")) is None or count(run.get("completed")) is None:
            tally.reject(line, EXPECTED)
            continue
        fields: dict[str, Any] = {name: text[:200] for name in WORDS if (text := string(run.get(name)))}
        fields |= {name: value for name, value in run.items() if number(value) is not None and len(name) < 60}
        if run.get("request_rate") == "inf":
            fields["request_rate"] = "inf"
        fields = dict(list(fields.items())[:MAX_FIGURES])
        yield table("event", ("line", "kind", "fields"), [(line, "bench", json.dumps(fields, sort_keys=True))])
        rows = [(line, "client", *row) for row in _requests(run)]
        if rows:
            yield table("request", COLUMNS, rows)
    yield from tally.batches()


def _requests(run: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    """Rows from the parallel arrays; as many as the longest of them that every version has."""
    arrays = {
        name: run[name] if isinstance(run.get(name), list) else []
        for name in (
            *("input_lens", "output_lens", "ttfts", "itls", "latencies", "errors"),
            *("server_queue_times", "server_ttfts"),
        )
    }
    for at in range(max(len(arrays["ttfts"]), len(arrays["input_lens"]) if arrays["ttfts"] else 0)):
        one = {name: values[at] if at < len(values) else None for name, values in arrays.items()}
        failed = bool(string(one["errors"]))
        ttft = None if failed else seconds(one["ttfts"])
        gaps = _gaps(one["itls"])
        chunks = list(accumulate(gaps, initial=ttft)) if ttft is not None and gaps is not None else None
        latency = seconds(one["latencies"])
        yield (
            count(one["input_lens"]),
            None if failed else count(one["output_lens"]),
            ttft,
            seconds(one["server_queue_times"]),
            seconds(one["server_ttfts"]),
            None if failed else latency if latency is not None else chunks[-1] if chunks else None,
            "error" if failed else "ok",
            None if failed else chunks,
        )


def _gaps(value: Any) -> list[float] | None:
    if not isinstance(value, list):
        return None
    gaps = [seconds(gap) for gap in value]
    known = [gap for gap in gaps if gap is not None]
    return known if len(known) == len(gaps) else None
