"""Public traces of requests: what arrived when, how long prompts and outputs were, and which blocks prompts share.

Read are the Azure traces (CSV: TIMESTAMP, ContextTokens, GeneratedTokens) and Mooncake's (JSON lines: timestamp in ms, input_length,
output_length, hash_ids, one of each 512 prompt tokens); both also gzipped.
"""

import csv
import gzip
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import numpy as np

from analyzers.hypotheses.caches import replayed
from analyzers.model import Array, Engine, Window

BLOCK: Final = 512  # prompt tokens of one of Mooncake's hashes
ENGINES: Final = (1, 2, 4, 8)
HEAD: Final = 4096


class TraceError(Exception):
    """A line that is not as its trace has them; the message says which."""


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in order of arrival: seconds from the first, tokens; `blocks` by request, None where the trace has no hashes."""

    arrival: Array
    prompt: Array
    output: Array
    blocks: tuple[Sequence[int], ...] | None = None


def sniff(path: Path) -> bool:
    """True for a file that is one of these traces."""
    if not path.is_file():
        return False
    try:
        first = _text(path, HEAD).split("\n", 1)[0]
    except (OSError, UnicodeDecodeError, EOFError):
        return False
    return "ContextTokens" in first or ('"hash_ids"' in first and '"input_length"' in first)


def _text(path: Path, most: int = -1) -> str:
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
        return stream.read(most).decode("utf-8-sig")


def read(path: Path) -> Trace:
    """The trace of a file. Raises TraceError with the line that cannot be read."""
    text = _text(path)
    rows = _azure(path, text) if "ContextTokens" in text.split("\n", 1)[0] else _mooncake(path, text)
    rows.sort(key=lambda row: row[0])
    columns = [np.array([row[k] for row in rows], float) for k in range(3)]
    blocks = None if not rows or rows[0][3] is None else tuple(row[3] for row in rows)
    return Trace(columns[0] - columns[0][:1], columns[1], columns[2], blocks)


def _azure(path: Path, text: str) -> list[tuple[float, float, float, Any]]:
    rows: list[tuple[float, float, float, Any]] = []
    for at, row in enumerate(csv.DictReader(io.StringIO(text)), 2):
        try:
            # 100 ns digits: datetime takes six
            when = datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp()
            rows.append((when, float(row["ContextTokens"]), float(row["GeneratedTokens"]), None))
        except (KeyError, TypeError, ValueError) as error:
            raise TraceError(f"{path}, line {at}: expected TIMESTAMP,ContextTokens,GeneratedTokens") from error
    return rows


def _mooncake(path: Path, text: str) -> list[tuple[float, float, float, Any]]:
    rows: list[tuple[float, float, float, Any]] = []
    for at, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
            rows.append(
                (found["timestamp"] / 1000, float(found["input_length"]), float(found["output_length"]), found["hash_ids"])
            )
        except (KeyError, TypeError, ValueError) as error:
            raise TraceError(f"{path}, line {at}: expected timestamp, input_length, output_length, hash_ids") from error
    return rows


def window(trace: Trace) -> Window:
    """The trace as a window without a server: arrivals by second and the lengths of requests; who answered them is not in it."""
    n = int(trace.arrival[-1]) + 1 if len(trace.arrival) else 0
    came = np.bincount(trace.arrival.astype(int), minlength=n).astype(float)
    empty = np.zeros(n)
    row = {
        "ts": np.arange(1.0, n + 1), "dt_s": np.ones(n), "timed": np.ones(n, bool), "epoch": empty, "restarted": np.zeros(n, bool),
        "running": empty, "running_before": empty, "waiting": empty, "waiting_before": empty, "deferred": empty, "e2e_n": came, "ttft_n": came,
    }  # fmt: skip
    count = float(len(trace.arrival))
    total = {"e2e_n": count, "ttft_n": count, "request_prompt_n": count, "prompt_tokens": float(trace.prompt.sum())}
    request = {"arrival_ts": trace.arrival, "prompt_tokens": trace.prompt, "output_tokens": trace.output}
    if trace.blocks is not None:  # as one engine with endless capacity would have it
        hit = replayed(trace.blocks, None).tokens(trace.prompt, BLOCK) * total["prompt_tokens"]
        total |= {"local_hit_tokens": hit, "computed_tokens": total["prompt_tokens"] - hit}
    return Window(0.0, float(n), (Engine("trace", "0", interval=row, request=request, total=total),))


def routing(trace: Trace, capacity_tokens: float | None = None, engines: Sequence[int] = ENGINES) -> list[dict[str, float]]:
    """Prefix hits on several engines, requests dealt out at random and sent to where their prefix is; nothing without hashes."""
    if trace.blocks is None:
        return []
    blocks = None if capacity_tokens is None else max(1, int(capacity_tokens / BLOCK))
    return [
        {
            "engines": n,
            "random_hit_ratio": replayed(trace.blocks, blocks, n).tokens(trace.prompt, BLOCK),
            "routed_hit_ratio": replayed(trace.blocks, blocks, n, routed=True).tokens(trace.prompt, BLOCK),
        }
        for n in engines
    ]
