"""Windows as small files: what an analyzer needs of a recording, as gzipped JSON (no pickles, the same bytes each time).

A column is `{"n": length, "v": ...}`: numbers that are decimal fractions of at most nine digits after the point are whole numbers
with their `"digits"`, rising ones as differences (`"rising"`); NaN is null. What cannot be so written exactly stays as it is.
"""

import gzip
import itertools
import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from analyzers.model import Engine, Event, Window

TABLES: Final = ("interval", "scrape", "stat", "step", "request")
# what no analyzer reads and what is of one machine
DROPPED: Final = {"file", "line", "request_id", "trace_id", "service", "chunk_s", "iteration"}
NETWORK: Final = ("host", "port", "endpoint", "otlp", "model_tag", "address")
EVENTS: Final = {"eplb", "jit", "rearrange", "aborted", "death", "prefix_reset", "kv_transfer"}
DIGITS: Final = 9
LARGEST: Final = 2**52


# -- columns ---------------------------------------------------------------------------------------------------------------
def _scalar(value: Any) -> Any:
    """A number for JSON: whole where it is, None for NaN, text for the infinite."""
    number = float(value)
    if math.isnan(number):
        return None
    if math.isinf(number):
        return "inf" if number > 0 else "-inf"
    return int(number) if number.is_integer() and abs(number) < LARGEST else number


def _column(values: np.ndarray) -> dict[str, Any]:
    n = len(values)
    if values.dtype == bool:
        whole = n > 0 and bool((values == values[0]).all())
        return {"kind": "bool", "n": n, "v": [bool(values[0])] if whole else "".join("1" if x else "0" for x in values)}
    if values.dtype.kind in "OU":
        return {"kind": "text", "n": n, "v": [None if x is None else str(x) for x in values]}
    values = values.astype(float)
    out: dict[str, Any] = {"n": n}
    if n and bool((np.isnan(values) | (values == values[0])).all() and (np.isnan(values).all() or not np.isnan(values).any())):
        return {**out, "v": [_scalar(values[0])]}
    known = np.isfinite(values)
    digits = next((d for d in range(DIGITS + 1) if _exact(values[known], d)), None)
    if digits is None or np.isinf(values).any():
        return {**out, "raw": True, "v": [_scalar(x) for x in values]}
    whole_numbers = [round(x * 10**digits) if ok else None for x, ok in zip(values.tolist(), known.tolist(), strict=True)]
    if digits:
        out["digits"] = digits
    if known.all() and n > 2 and all(b >= a for a, b in itertools.pairwise(whole_numbers)):
        steps = [b - a for a, b in itertools.pairwise(whole_numbers)]
        return {**out, "rising": True, "v": [whole_numbers[0], *steps]}
    return {**out, "v": whole_numbers}


def _exact(values: np.ndarray, digits: int) -> bool:
    if not (np.abs(values) < LARGEST / 10.0**digits).all():
        return False
    return bool((np.rint(values * 10.0**digits) / 10.0**digits == values).all())


def _values(column: Mapping[str, Any]) -> np.ndarray:
    n, v = column["n"], column["v"]
    if column.get("kind") == "bool":
        return np.full(n, v[0]) if isinstance(v, list) and v else np.array([x == "1" for x in v], dtype=bool)
    if column.get("kind") == "text":
        return np.array(v, dtype=object)
    if len(v) == 1 and n != 1:
        return np.full(n, _number(v[0]))
    numbers = np.array([_number(x) for x in v], dtype=float)
    if column.get("raw"):
        return numbers
    if column.get("rising"):
        numbers = np.cumsum(np.array(v, dtype=np.int64)).astype(float)
    return numbers / 10.0 ** column.get("digits", 0) if len(v) > 1 or "digits" in column else numbers


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def _plain(value: Any) -> Any:
    """JSON without NaN or infinity; keys of mappings are text."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, bool | str | int) or value is None:
        return value
    if isinstance(value, float | np.number):
        number = float(value)
        return number if math.isfinite(number) else {"": str(number)}
    return str(value)


def _live(value: Any) -> Any:
    if isinstance(value, Mapping):
        return float(value[""]) if set(value) == {""} else {k: _live(v) for k, v in value.items()}
    return [_live(v) for v in value] if isinstance(value, list) else value


# -- windows ---------------------------------------------------------------------------------------------------------------
def pack(window: Window) -> dict[str, Any]:
    """A window as JSON data."""
    return {
        "start": window.start,
        "end": window.end,
        "restarts": window.restarts,
        "engines": [_engine(e) for e in window.engines],
    }


def _engine(e: Engine) -> dict[str, Any]:
    return {
        "instance": e.instance,
        "engine": e.engine,
        "model": e.model,
        "version": e.version,
        **{name: {k: _column(np.asarray(v)) for k, v in getattr(e, name).items()} for name in TABLES},
        "bucket": {k: [_column(le), _column(n)] for k, (le, n) in e.bucket.items()},
        "total": _plain(e.total),
        "facts": _plain(e.facts),
        "kv": _plain(e.kv),
        "event": [[None if math.isnan(x.ts) else x.ts, x.engine, x.kind, _plain(x.fields), x.file, x.line] for x in e.event],
    }


def unpack(data: Mapping[str, Any]) -> Window:
    """The window that `pack` was given."""
    return Window(data["start"], data["end"], tuple(_back(e) for e in data["engines"]), data["restarts"])


def _back(e: Mapping[str, Any]) -> Engine:
    return Engine(
        instance=e["instance"],
        engine=e["engine"],
        model=e["model"],
        version=e["version"],
        **{name: {k: _values(v) for k, v in e[name].items()} for name in TABLES},
        bucket={k: (_values(le), _values(n)) for k, (le, n) in e["bucket"].items()},
        total={k: float(v) for k, v in _live(e["total"]).items()},
        facts=_live(e["facts"]),
        kv={k: float(v) for k, v in _live(e["kv"]).items()},
        event=tuple(
            Event(math.nan if ts is None else ts, engine, kind, _live(fields), file, line)
            for ts, engine, kind, fields, file, line in e["event"]
        ),
    )


def write(path: Path, data: Any) -> None:
    """Gzipped JSON, with no time in it."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False).encode()
    path.write_bytes(gzip.compress(text, 9, mtime=0))


def read(path: Path) -> Any:
    return json.loads(gzip.decompress(path.read_bytes()))


# -- reduction -------------------------------------------------------------------------------------------------------------
def reduced(window: Window, *, steps: bool = True) -> Window:
    """A window without what no analyzer reads: names and ids dropped, times to the microsecond, columns never seen left empty."""
    return replace(window, engines=tuple(_reduced(e, steps=steps) for e in window.engines))


def _reduced(e: Engine, *, steps: bool) -> Engine:
    tables = {name: {k: _rounded(v) for k, v in getattr(e, name).items() if k not in DROPPED} for name in TABLES}
    if not steps:
        tables["step"] = {k: v[:0] for k, v in tables["step"].items()}
    facts = {**e.facts, "args": _without_network(e.facts.get("args") or {})}
    return replace(e, **tables, facts=facts, event=tuple(replace(x, file="log") for x in e.event if x.kind in EVENTS))


def _without_network(args: Mapping[str, Any]) -> dict[str, Any]:
    """Engine arguments without addresses."""
    kept = {k: v for k, v in args.items() if not any(word in k for word in NETWORK)}
    return {k: _without_network(v) if isinstance(v, Mapping) else v for k, v in kept.items()}


def _rounded(values: np.ndarray) -> np.ndarray:
    return np.round(values.astype(float), 6) if values.dtype.kind == "f" else values
