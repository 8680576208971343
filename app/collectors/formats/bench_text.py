"""What `vllm bench serve` (before 0.9: benchmark_serving.py) prints: the block "Serving Benchmark Result", all versions.

Yields an event `bench` a block, with the names of the JSON result (completed, duration, request_rate, request_throughput,
total_input_tokens, mean_ttft_ms, ...), so that a pasted block and a result file are one thing. Lines before a block (the
offered rate, the burstiness, the most requests in flight) belong to it. Anything else in the text is not ours and is skipped.

Traps
    - A block may stop anywhere; what is not there stays unknown. A value without a line end may be cut and is not taken.
    - "Request throughput" is what was served over the whole run, the wait for the last answer included; the offered rate
      stands only in the line before ("Traffic request rate"), or in the arguments.
    - ITL is per chunk of the stream, not per token; a failed request is in no mean.
    - Older versions print "Traffic request rate: inf" for all at once.

Source: vllm/benchmarks/serve.py (0.33), benchmarks/benchmark_serving.py (0.6 to 0.8).
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Final

from analyzers.model import Batch
from app.collectors.formats.json_lines import Tally, lines, table

NAME: Final = "bench_text"
EXPECTED: Final = 'expected: a line "Name: number" of the benchmark\'s result'
NAMES: Final = {
    "Successful requests": "completed",
    "Failed requests": "failed",
    "Maximum request concurrency": "max_concurrency",
    "Request rate configured (RPS)": "request_rate",
    "Benchmark duration (s)": "duration",
    "Total input tokens": "total_input_tokens",
    "Total generated tokens": "total_output_tokens",
    "Request throughput (req/s)": "request_throughput",
    "Request goodput (req/s)": "request_goodput",
    "Output token throughput (tok/s)": "output_throughput",
    "Peak output token throughput (tok/s)": "max_output_tokens_per_s",
    "Peak concurrent requests": "max_concurrent_requests",
    "Total Token throughput (tok/s)": "total_token_throughput",
    "Total token throughput (tok/s)": "total_token_throughput",
}
COUNTS: Final = ("completed", "failed", "max_concurrency", "total_input_tokens", "total_output_tokens")
_START: Final = b"= Serving Benchmark Result ="
_RULE: Final = frozenset(b"-=")
_PAIR: Final = re.compile(rb"\s*([A-Z][A-Za-z0-9 ().,/-]{2,60}?):\s+(\S+)\s*$")
_LATENCY: Final = re.compile(r"(Mean|Median|P(\d{1,2}(?:\.\d{1,3})?)|Std) (TTFT|TPOT|ITL|E2EL) \(ms\)")
_BEFORE: Final = re.compile(
    rb"(Traffic request rate|Burstiness factor|Maximum request concurrency): ([\d.]+|inf|None)\b(?: \(|\s*$)"
)
_BEFORE_NAMES: Final = {
    b"Traffic request rate": "request_rate",
    b"Burstiness factor": "burstiness",
    b"Maximum request concurrency": "max_concurrency",
}
_NUMBER: Final = re.compile(rb"-?\d{1,15}(?:\.\d{1,15})?")


def sniff(head: bytes) -> bool:
    """Recognise the head of the block, or the line with the offered rate that stands before it."""
    return not head.lstrip().startswith(b"{") and (
        _START in head or re.search(rb"^Traffic request rate: ", head, re.MULTILINE) is not None
    )


@dataclass(slots=True)
class _State:
    """What is known of the present block, and the blocks before it."""

    rows: list[tuple[int, str, str]] = field(default_factory=list)
    before: dict[str, Any] = field(default_factory=dict)  # figures that stand before a block
    block: dict[str, Any] | None = None
    start: int = 0

    def close(self) -> None:
        if self.block is not None and len(self.block) > len(self.before):
            self.rows.append((self.start, "bench", json.dumps(self.block, sort_keys=True)))
        self.block, self.before = None, {}

    def take(self, number: int, line: bytes) -> bool:
        """Read a whole line; False where it should be a figure and is none."""
        if _START in line:
            before = {} if self.block is not None else self.before
            self.close()
            self.block, self.before, self.start = dict(before), before, number
        elif self.block is None:
            self.before.update(_offered(line))
        elif set(line.strip()) == {ord("=")}:
            self.close()
        elif not _is_head(line) and not _PAIR.match(line):
            self.close()
            self.before.update(_offered(line))
        elif not _is_head(line):
            return _enter(self.block, line)
        return True


def read(stream: BinaryIO, reference_ts: float) -> Iterator[Batch]:  # noqa: ARG001 (no times here)
    """Yield one batch of event."""
    tally, state = Tally(), _State()
    for number, raw in lines(stream, tally):
        if raw.endswith(b"\n"):
            if not state.take(number, raw.rstrip(b"\r\n")):
                tally.reject(number, EXPECTED)
        elif raw.strip(b"\r= -") and (state.block is not None or _BEFORE.match(raw)):
            tally.reject(number, "expected: a line end; the last number may be cut and was left out")
    state.close()
    if state.rows:
        yield table("event", ("line", "kind", "fields"), state.rows)
    yield from tally.batches()


def _is_head(line: bytes) -> bool:
    """Whether a line begins and ends with a rule: no pattern, as one would take minutes for a long line of dashes."""
    text = line.rstrip()
    return len(text) >= 6 and _RULE.issuperset(text[:3] + text[-3:])


def _offered(line: bytes) -> dict[str, Any]:
    match = _BEFORE.match(line)
    if match is None or match[2] == b"None":
        return {}
    return {_BEFORE_NAMES[match[1]]: _value(match[2])}


def _value(text: bytes) -> Any:
    if text in {b"inf", b"nan"}:
        return "inf" if text == b"inf" else None
    return float(text) if _NUMBER.fullmatch(text) else None


def _enter(block: dict[str, Any], line: bytes) -> bool:
    """Take a line of the block; False where it should be a figure and is none. Names that we do not know are skipped."""
    match = _PAIR.match(line)
    assert match is not None
    label, value = match[1].decode("ascii"), _value(match[2])
    latency = _LATENCY.fullmatch(label)
    name = NAMES.get(label) or (f"{_statistic(latency)}_{latency[3].lower()}_ms" if latency else None)
    if name is None:
        return True
    if value is None:
        return match[2] in {b"nan", b"None"}
    if name in COUNTS:
        if value == "inf":  # a rate may be that
            return False
        value = int(value) if value == int(value) else value
    block[name] = value
    return True


def _statistic(match: re.Match[str]) -> str:
    return f"p{match[2]}" if match[2] else match[1].lower()
