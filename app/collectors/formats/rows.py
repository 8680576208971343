"""Rows as another format gave them: the data that `weaklink report --with-data` puts beside a report, one file for each recording.

JSON lines. The first says what was read, the others hold rows, column by column, with vLLM's own names and units:
    {"weaklink_rows": 1, "file": {"name": "server.log.gz", "format": "vllm_log", "sha256": "...", "lines": 9, "instance": "host:8000"}}
    {"table": "stat", "columns": {"line": [3, 9], "ts": [1795968010.0, 1795968020.0], "engine": ["0", "0"], "waiting": [0, 4]}}
    {"table": "series", "columns": {"series": [0], "name": ["vllm:num_requests_running"], "engine": ["0"], "labels": [{}]}}
    {"table": "sample", "ts": [1795968010.0, 1795968011.0], "values": {"0": [3, null]}}
Tables and columns are those of queries/schema; `sample` names series by their number in the file, one value an instant, null where
there was none. Infinite values stand as "inf" and "-inf".

Traps
    - Whoever wrote the file may have replaced names (servers, models, request ids) by words; joins still hold.
    - Rows of a window, not of the whole recording: counts over all of it are lower.
"""

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, Final

from analyzers.model import Batch
from app.collectors.formats.json_lines import Tally, head_fields, integer, lines, objects, string

NAME: Final = "rows"
VERSION: Final = 1
MOST: Final = 2_000_000  # values of one line
EXPECTED: Final = 'expected: {"table": a table of the store, "columns": {name: values}} with columns of one length'
EXPECTED_HEAD: Final = f'expected: {{"weaklink_rows": {VERSION}, "file": {{...}}}} in the first line'

# What a column holds: s text, i whole number, f number, b true or false, o object, S texts, F numbers; with ! it is never unknown.
TABLES: Final[Mapping[str, Mapping[str, str]]] = {
    "series": {"series": "i!", "instance": "s", "name": "s!", "engine": "s", "model_name": "s", "labels": "o!"},
    "scrape": {"instance": "s", "ts": "f!", "duration_s": "f", "ok": "b!", "timed": "b!"},
    "request": {
        "line": "i!", "source": "s!", "instance": "s", "pid": "s", "service": "s", "request_id": "s", "trace_id": "s", "arrival_ts": "f",
        "end_ts": "f", "prompt_tokens": "i", "output_tokens": "i", "cached_tokens": "i", "ttft_s": "f", "queue_s": "f", "prefill_s": "f",
        "decode_s": "f", "e2e_s": "f", "status": "s", "finish_reason": "s", "chunk_s": "F",
    },
    "stat": {
        "line": "i!", "ts": "f", "engine": "s!", "prompt_tokens_per_s": "f", "generation_tokens_per_s": "f", "running": "f", "waiting": "f",
        "deferred": "f", "kv_usage_ratio": "f", "prefix_hit_ratio": "f", "external_hit_ratio": "f", "mm_hit_ratio": "f",
    },
    "step": {
        "line": "i!", "ts": "f", "fine": "b!", "engine": "s!", "iteration": "i", "context_requests": "i", "context_tokens": "i",
        "generation_requests": "i", "generation_tokens": "i", "elapsed_s": "f", "kv_usage_ratio": "f", "dummy": "b!",
    },
    "event": {"line": "i!", "ts": "f", "engine": "s", "kind": "s!", "fields": "o!"},
    "kv_event": {
        "line": "i!", "instance": "s", "ts": "f!", "engine": "s!", "source": "s!", "seq": "i", "kind": "s!", "block_hashes": "S",
        "block_size": "i", "medium": "s", "salt": "s",
    },
}  # fmt: skip


def sniff(head: bytes) -> bool:
    """Recognise the first line."""
    return "weaklink_rows" in head_fields(head)


def read(stream: BinaryIO, reference_ts: float) -> Iterator[Batch]:  # noqa: ARG001 (the times here have their year)
    """Yield batches of every table that has a file's rows."""
    tally = Tally()
    fact: Mapping[str, Any] = {}
    known: set[int] = set()
    for line, found in objects(lines(stream, tally), tally):
        if line == 1:
            given = found.get("file")
            if found.get("weaklink_rows") != VERSION or not isinstance(given, dict):
                tally.reject(line, EXPECTED_HEAD)
            else:
                fact = given
            continue
        batch = _samples(found, known) if found.get("table") == "sample" else _batch(found)
        if batch is None:
            tally.reject(line, EXPECTED)
            continue
        if batch.table == "series":
            known.update(int(number) for number in batch.columns["series"])
        yield batch
    closing = list(tally.batches(instance=string(fact.get("instance")), pid=string(fact.get("pid"))))
    yield from closing[:-1]
    yield Batch("source_file", {**closing[-1].columns, "clock_offset_s": [_value("f", fact.get("clock_offset_s"))]})


def _batch(found: Mapping[str, Any]) -> Batch | None:
    """The rows of one line; None where anything about them is not as the table has it."""
    name, columns = found.get("table"), found.get("columns")
    kinds = TABLES.get(name) if isinstance(name, str) else None
    if kinds is None or not isinstance(columns, dict) or not columns or not columns.keys() <= kinds.keys():
        return None
    if {column for column, kind in kinds.items() if kind.endswith("!")} - columns.keys():
        return None
    if not all(isinstance(values, list) for values in columns.values()):
        return None
    sizes = {len(values) for values in columns.values()}
    if len(sizes) != 1 or not 0 < sizes.pop() * len(columns) <= MOST:
        return None
    rows: dict[str, list[Any]] = {}
    for column, values in columns.items():
        kind = kinds[column]
        rows[column] = [_value(kind[0], value) for value in values]
        if kind.endswith("!") and None in rows[column]:
            return None
    return Batch(str(name), rows)


def _value(kind: str, value: Any) -> Any:  # noqa: PLR0911 one return a kind
    """A value of the column's kind; None where it is another."""
    if kind == "s":
        return string(value)
    if kind == "i":
        return integer(value)
    if kind == "f":
        return _float(value)
    if kind == "b":
        return value if isinstance(value, bool) else None
    if kind == "o":
        return _object(value)
    if not isinstance(value, list):
        return None
    items = [string(item) if kind == "S" else _float(item) for item in value]
    return None if None in items else items


def _object(value: Any) -> str | None:
    if not isinstance(value, dict):
        return None
    try:
        return json.dumps(value, sort_keys=True, allow_nan=False)
    except (ValueError, RecursionError):
        return None


def _float(value: Any) -> float | None:
    if isinstance(value, str) and value in {"inf", "-inf"}:
        return float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def _samples(found: Mapping[str, Any], known: set[int]) -> Batch | None:
    """Values of several series at the same instants as rows of sample; a value that is null gives none."""
    ts, values = found.get("ts"), found.get("values")
    if not isinstance(ts, list) or not isinstance(values, dict) or not 0 < len(ts) * len(values) <= MOST:
        return None
    at = [_float(one) for one in ts]
    out: dict[str, list[Any]] = {"series": [], "ts": [], "value": []}
    for name, points in values.items():
        number = int(name) if name.isascii() and name.isdigit() and len(name) < 10 else -1
        if number not in known or not isinstance(points, list) or len(points) != len(at):
            return None
        for instant, point in zip(at, points, strict=True):
            value = _float(point)
            if instant is None:
                return None
            if value is not None:
                out["series"].append(number)
                out["ts"].append(instant)
                out["value"].append(value)
    return Batch("sample", out) if out["ts"] else None
