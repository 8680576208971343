"""The rows of a window as a bundle that weaklink loads again: what `weaklink report --with-data` writes.

One file (format `rows`) for each file that was read, trimmed to what the judgement of the window reads: the last scrape before
it, all of a server's start-up lines, the partners of requests that end inside. Redacted, it holds the same words as the report.
"""

import gzip
import hashlib
import io
import json
import math
import tomllib
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from app.collectors.formats import rows as written
from app.extract_words import Words
from app.pipeline import INSTANTS
from app.redact import Redactor
from app.store import Store

LEVEL: Final = 6
ROWS: Final = 20_000  # of one line
INSTANTS_AT_ONCE: Final = 200  # scrapes of one line
KEPT: Final = ("vllm:", "vllm_", "ray_vllm_", "process_", "http_", "python_")  # other programs' metrics are not ours to pass on


@dataclass(frozen=True, slots=True)
class Extract:
    """A bundle: its bytes, and what stands in it."""

    data: bytes
    sha256: str
    files: int
    rows: int


def extract(
    store: Store, instances: Sequence[str], low: float, high: float, *, redactor: Redactor | None = None, manifest: Mapping[str, Any] | None = None
) -> Extract:  # fmt: skip
    """The rows of these servers in (low, high] (infinite: open), packed as a zip with a manifest."""
    words = Words(redactor)
    counted = 0
    buffer = io.BytesIO()
    sources = _sources(store, instances)
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        _write(archive, "manifest.toml", _toml(manifest or {}).encode())
        for name, source in sources:
            packed, rows = _file(store, source, low, high, instances, words)
            counted += rows
            _write(archive, words.file(name), packed)
    data = buffer.getvalue()
    return Extract(data, hashlib.sha256(data).hexdigest(), len(sources), counted)


def _write(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    """A member without the hour at which it was packed: the same window gives the same bytes."""
    archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), data)


def _toml(said: Mapping[str, Any]) -> str:
    text = "".join(f"{name} = {json.dumps(value)}\n" for name, value in said.items())
    tomllib.loads(text)  # what is not TOML is a mistake of ours
    return text


def _sources(store: Store, instances: Sequence[str]) -> list[tuple[str, dict[str, Any]]]:
    """The files of these servers, each with a name of its own."""
    names = ("file_id", "bundle", "name", "format", "sha256", "lines", "rejected", "instance", "pid", "clock_offset_s")
    rows = store.rows(
        f"SELECT {', '.join(names)} FROM source_file AS f WHERE format IS NOT NULL AND (instance IS NULL OR list_contains($chosen, instance) "
        "OR file_id IN (SELECT file_id FROM scrape WHERE list_contains($chosen, coalesce(instance, ''))) "
        "OR file_id IN (SELECT file_id FROM request WHERE instance IS NULL OR list_contains($chosen, instance))) ORDER BY name, file_id",
        {"chosen": list(instances)},
    )
    found, taken = [], set[str]()
    for row in rows:
        source = dict(zip(names, row, strict=True))
        name = source["name"] if source["name"] not in taken else f"{source['bundle']}/{source['name']}"
        name = name if name not in taken else f"{source['file_id']}/{name}"
        taken.add(name)
        found.append((name, source))
    return found


def _file(
    store: Store, source: Mapping[str, Any], low: float, high: float, instances: Sequence[str], words: Words
) -> tuple[bytes, int]:
    """One file of the bundle, packed, and its rows."""
    params = {"file": source["file_id"], "low": low, "high": high, "chosen": list(instances), "instants": list(INSTANTS)}
    packed, count = io.BytesIO(), 0
    with gzip.GzipFile("", "wb", LEVEL, packed, mtime=0) as out:
        out.write(_line({"weaklink_rows": written.VERSION, "file": words.source(source)}))
        for statement, table in _QUERIES:
            columns = store.columns(statement, {name: value for name, value in params.items() if f"${name}" in statement})
            size = len(next(iter(columns.values())))
            plain = {name: _plain(values) for name, values in columns.items()} if size else {}
            count += size
            for at in range(0, size, ROWS):
                out.write(
                    _line(
                        {
                            "table": table,
                            "columns": words.columns(table, {name: values[at : at + ROWS] for name, values in plain.items()}),
                        }
                    )
                )
        for line, rows in _samples(store, params, words):
            out.write(line)
            count += rows
    return packed.getvalue(), count


_SEEN: Final = """WITH base AS (
  SELECT instance, coalesce(max(ts) FILTER (ok AND timed AND ts <= $low), '-infinity'::DOUBLE) AS first_ts FROM scrape GROUP BY instance
), seen AS (
  SELECT s.* FROM scrape AS s JOIN base AS b ON b.instance IS NOT DISTINCT FROM s.instance
  WHERE list_contains($chosen, coalesce(s.instance, '')) AND ((s.ts >= b.first_ts AND s.ts <= $high) OR NOT timed)
)"""
_SPAN: Final = "(ts IS NULL OR (ts >= $low AND ts <= $high))"
# a request's span and its client's record are joined by its id: where one ends in the window, both are needed
_REQUESTS: Final = (
    "WITH inside AS (SELECT request_id FROM request WHERE end_ts > $low AND end_ts <= $high) "
    "SELECT * EXCLUDE (file_id) FROM request WHERE file_id = $file AND (instance IS NULL OR list_contains($chosen, instance)) AND ((end_ts > $low AND end_ts <= $high) OR arrival_ts IS NULL "
    "OR request_id IN (SELECT request_id FROM inside)) ORDER BY line"
)
_QUERIES: Final = (
    (f"{_SEEN} SELECT instance, ts, duration_s, ok, timed FROM seen WHERE file_id = $file ORDER BY instance, ts", "scrape"),
    (_REQUESTS, "request"),
    (f"SELECT * EXCLUDE (file_id) FROM stat WHERE file_id = $file AND {_SPAN} ORDER BY line", "stat"),
    (f"SELECT * EXCLUDE (file_id) FROM every_step WHERE file_id = $file AND {_SPAN} ORDER BY line", "step"),
    (f"SELECT * EXCLUDE (file_id) FROM event WHERE file_id = $file AND ({_SPAN} OR NOT list_contains($instants, kind)) ORDER BY line", "event"),
    (
        "SELECT * EXCLUDE (file_id) FROM every_kv_event WHERE file_id = $file AND list_contains($chosen, coalesce(instance, '')) AND ts <= $high ORDER BY line",
        "kv_event",
    ),
)  # fmt: skip


def _samples(store: Store, params: Mapping[str, Any], words: Words) -> Iterator[tuple[bytes, int]]:
    """The samples of the file's scrapes: its series, then some scrapes a line. Scrapes that two files hold belong to the first."""
    given = {name: params[name] for name in ("file", "low", "high", "chosen")}
    own = f"{_SEEN}, own AS (SELECT instance, ts FROM seen GROUP BY instance, ts HAVING min(file_id) = $file)"
    series = store.columns(
        f"{own} SELECT series_id AS series, instance, name, engine, model_name, labels FROM series "
        "WHERE instance IN (SELECT instance FROM own) ORDER BY series_id",
        given,
    )
    kept = [at for at, name in enumerate(series["name"]) if str(name).startswith(KEPT)]
    if not kept:
        return
    plain = {name: _plain(values[kept]) for name, values in series.items()}
    number = {int(series_id): at for at, series_id in enumerate(plain["series"])}
    yield _line({"table": "series", "columns": words.columns("series", {**plain, "series": list(range(len(kept)))})}), 0
    for (instance,) in store.rows(f"{own} SELECT DISTINCT instance FROM own ORDER BY instance", given):
        found = store.columns(
            f"{own} SELECT m.series_id, m.ts, max(m.value) AS value FROM every_sample AS m JOIN series AS s USING (series_id) "
            "JOIN own AS o ON o.ts = m.ts AND o.instance IS NOT DISTINCT FROM s.instance WHERE s.instance IS NOT DISTINCT FROM $instance "
            "GROUP BY ALL ORDER BY m.ts, m.series_id",
            {**given, "instance": instance},
        )
        yield from _spread(found, number)


def _spread(found: Mapping[str, Any], number: Mapping[int, int]) -> Iterator[tuple[bytes, int]]:
    """Samples in the order of time, some scrapes a line."""
    instants, starts = np.unique(found["ts"], return_index=True)
    ends = np.append(starts[1:], len(found["ts"]))
    for at in range(0, len(instants), INSTANTS_AT_ONCE):
        ts = instants[at : at + INSTANTS_AT_ONCE].tolist()
        values: dict[int, list[Any]] = {}
        count = 0
        for place in range(len(ts)):
            low, high = starts[at + place], ends[at + place]
            for series_id, value in zip(found["series_id"][low:high].tolist(), found["value"][low:high].tolist(), strict=True):
                if (name := number.get(int(series_id))) is not None and (point := _number(value)) is not None:
                    values.setdefault(name, [None] * len(ts))[place] = point
                    count += 1
        if values:
            yield _line({"table": "sample", "ts": ts, "values": values}), count


def _line(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode() + b"\n"


def _plain(values: Any) -> list[Any]:
    """A column as JSON has it: unknown is null, whole numbers stay whole."""
    if values.dtype.kind == "f":
        return [_number(value) for value in values.tolist()]
    return [_listed(value) for value in values.tolist()] if values.dtype.kind == "O" else list(values.tolist())


def _listed(value: Any) -> Any:
    if isinstance(value, np.ndarray | list | tuple):
        return [float(f"{one:.9g}") if isinstance(one, float | np.floating) else one for one in value]
    return value


def _number(value: float) -> Any:
    if math.isnan(value):
        return None
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return int(value) if value == int(value) and abs(value) < 2**53 else value
