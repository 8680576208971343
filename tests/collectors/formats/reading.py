"""What the tests of the readers share: samples, rows as dictionaries, and input that goes wrong in every way."""

import functools
import gzip
import io
import json
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import duckdb
import numpy as np
import pyarrow as pa
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from app.collectors.formats import MAX_REJECTED

ROOT: Final = Path(__file__).resolve().parents[3]
SAMPLES: Final = ROOT / "sample_data" / "formats"
HEAD: Final = 1 << 16
NOON: Final = 1795953600.0  # 2026-11-29 12:00 UTC
ARROW: Final = {
    "BIGINT": pa.int64(),
    "DOUBLE": pa.float64(),
    "VARCHAR": pa.string(),
    "BOOLEAN": pa.bool_(),
    "VARCHAR[]": pa.list_(pa.string()),
    "FLOAT[]": pa.list_(pa.float32()),
}
patient: Final = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a busy machine is no failure
Rows = dict[str, list[dict[str, Any]]]

JSON: Final = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([0, -1, 1 << 63, 1 << 64, 10**400, 1e308, 0.5, -0.0])
    | st.floats()
    | st.text()
    | st.sampled_from(["", "0", "NaN", "1e999", "\ud800", "\x00", "9" * 5000, "cmpl-1-0", "http://[", "http://h:x/", "{"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


def sample(module: ModuleType, name: str) -> bytes:
    return (SAMPLES / module.NAME / name).read_bytes()


def samples(module: ModuleType, kind: str = "*") -> list[Path]:
    return sorted(file for file in (SAMPLES / module.NAME).glob(f"{kind}/*") if file.name != "manifest.toml")


@functools.cache
def schema() -> dict[str, dict[str, pa.DataType]]:
    """Return the Arrow type of each column that a reader may fill."""
    with duckdb.connect() as db:
        for file in sorted((ROOT / "queries" / "schema").glob("*.sql")):
            db.execute(file.read_text())
        found = db.execute("SELECT table_name, column_name, data_type FROM information_schema.columns").fetchall()
    types: dict[str, dict[str, pa.DataType]] = {}
    for table, column, kind in found:
        types.setdefault(table, {})[column] = ARROW[kind]
    for table in ("series", "sample"):
        types[table]["series"] = pa.int64()
    return types


def read(module: ModuleType, data: bytes) -> Rows:
    """Return the rows of each table, after a check that the store can take them."""
    found: Rows = {}
    batches = list(module.read(io.BytesIO(data), NOON))
    assert [batch.table for batch in batches].index("source_file") == len(batches) - 1
    for batch in batches:
        columns = {}
        for name, values in batch.columns.items():
            column = pa.array(values, schema()[batch.table][name])
            plain = values.tolist() if isinstance(values, np.ndarray) else list(values)
            columns[name] = column.to_pylist() if isinstance(values, np.ndarray) else plain
            if pa.types.is_floating(column.type):
                assert all(value is None or np.isfinite(value) for value in plain), (batch.table, name)
        assert len({len(values) for values in columns.values()}) == 1, batch.table
        rows = zip(*columns.values(), strict=True)
        found.setdefault(batch.table, []).extend(dict(zip(columns, row, strict=True)) for row in rows)
    (fact,) = found["source_file"]
    kept = found.get("rejected_line", [])
    assert len(kept) == min(fact["rejected"], MAX_REJECTED)
    assert fact["rejected"] <= fact["lines"]
    assert all(1 <= row["line"] <= fact["lines"] for row in kept)
    return found


def whole(lines: int, rejected: int = 0, instance: str | None = None, pid: str | None = None) -> dict[str, Any]:
    """Return the row of source_file."""
    return {"lines": lines, "rejected": rejected, "instance": instance, "pid": pid, "clock_offset_s": None}


def data(rows: Rows) -> Rows:
    return {table: found for table, found in rows.items() if table not in {"source_file", "rejected_line"}}


def is_prefix(part: Rows, full: Rows) -> bool:
    """Tell whether `part` holds the first rows of each table of `full`, and nothing else."""
    return all(full.get(table, [])[: len(found)] == found for table, found in data(part).items())


def check_cut(module: ModuleType, text: bytes, at: int) -> None:
    """A file that is cut loses at most the line that is cut, and nothing is invented."""
    full, part = read(module, text), read(module, text[:at])
    assert is_prefix(part, full)
    ended = text[: text[:at].rfind(b"\n") + 1]
    line = text[len(ended) :].partition(b"\n")
    assert data(part) in (data(read(module, ended)), data(read(module, ended + line[0] + line[1])))


def nodes(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each value inside of a JSON value."""
    yield path
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from nodes(inner, (*path, key))


def put(value: Any, path: Sequence[Any], new: Any) -> Any:
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = put(value[path[0]], path[1:], new)
    return copy


@st.composite
def scrambled(draw: Callable[..., Any], module: ModuleType) -> bytes:
    """Return a JSON sample in which some values have become others."""
    files = [file for file in samples(module) if file.suffix in {".json", ".jsonl"}]
    text = draw(st.sampled_from(files)).read_text()
    values = []
    for line in [text] if _is_json(text) else text.splitlines():
        if not _is_json(line):
            continue
        value = json.loads(line)
        for _ in range(draw(st.integers(1, 3))):
            value = put(value, draw(st.sampled_from(list(nodes(value)))), draw(JSON))
        values.append(json.dumps(value, ensure_ascii=draw(st.booleans())))
    return "\n".join(values).encode("utf-8", "surrogatepass")


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def check_manifest(module: ModuleType) -> None:
    """The manifest names each sample, where it comes from and what it is there for."""
    entries = tomllib.loads((SAMPLES / module.NAME / "manifest.toml").read_text())["file"]
    assert sorted(entry["name"] for entry in entries) == [f"{file.parent.name}/{file.name}" for file in samples(module)]
    assert all(set(entry) == {"name", "source", "version", "what"} for entry in entries)


OTHERS: Final = {  # heads of files that lie beside ours in a bundle, and are none of them
    "empty": b"",
    "truth.json": b'{\n "client": {\n  "ttft_s": {"n": 225, "mean": 0.129}}, "segments": {"warmup": {}}}\n',
    "scenario.json": b'{\n "name": "slots",\n "server_args": ["--max-num-seqs", "16"],\n "segments": [{"n": 6000}]}\n',
    "bench.json": b'{"date": "20261129-120000", "backend": "vllm", "model_id": "m", "ttfts": [0.1], "input_lens": [3]}',
    "aiperf": b'{"metadata": {"x_request_id": "a", "request_start_ns": 1}, "metrics": {"time_to_first_token": {"value": 1}}}\n',
    "proxy.jsonl": b'{"t": 1795977636.4, "id": "w1", "prefill_start": 0.0005, "decode_start": 0.03, "end": 0.15}\n',
    "README.md": b"# slots\n\nvLLM 0.24.0.\n\n```\nvllm serve ./m8b --port 35623\n```\n\nvllm:num_requests_running rose.\n",
    "log": b"(APIServer pid=101) INFO 11-29 12:00:10 [loggers.py:248] Engine 000: Running: 12 reqs, Waiting: 3 reqs\n"
    b"(APIServer pid=101) INFO 11-29 12:00:11 [api_server.py:1] vllm serve ./m\n",
    "JSON log": b'{"asctime": "2026-11-29 12:00:10,123", "levelname": "INFO", "message": "vllm serve ./m", "process": 101}\n',
    "compose.yaml": b"services:\n  vllm:\n    command: vllm serve ./m --port 8000\n",
    "list": b'["vllm", "serve", "./m"]',
}


def refuses(module: ModuleType) -> list[str]:
    """Return the names of those heads, and of other formats' samples, that a format wrongly takes for its own."""
    wrong = [name for name, head in OTHERS.items() if module.sniff(head)]
    for folder in SAMPLES.glob("*/"):
        if folder.name != module.NAME:
            wrong += [str(file) for file in folder.glob("good/*") if file.name != "manifest.toml" and module.sniff(_head(file))]
    return wrong


def _head(file: Path) -> bytes:
    return (gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes())[:HEAD]
