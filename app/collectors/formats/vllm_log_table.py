"""Lines of a vLLM server log that differ only in their digits, read at once as a table of numbers.

Such lines have one shape: each with one 0 in place of each number. One line of a shape is understood by the patterns of
`vllm_log_lines`; where its numbers stand is noted, and all lines of that shape are parted into cells there and read by Arrow.
That is several times as fast as a pattern for each line, for any transport and any process prefix alike.
"""

from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv

from analyzers.model import Array
from app.collectors.formats.vllm_log_lines import FIELDS, STAMPS, TOO_BIG, Groups, Match, day_start
from app.collectors.formats.vllm_log_rows import Part, per_run

_ZEROS: Final = bytes(48 if 48 <= code <= 57 else code for code in range(256))
_DIGITS: Final = frozenset(b"0123456789.")


class Form(NamedTuple):
    """A shape of line that was understood: where its numbers stand in a row of the table that `commas` and `drop` make."""

    kind: str
    commas: bytes
    drop: bytes
    width: int
    columns: dict[str, int]
    found: Groups


def shapes(text: bytes) -> list[bytes]:
    """Return each line with one 0 in place of each number."""
    raw = np.frombuffer(text.translate(_ZEROS), np.uint8)
    other = raw != 48
    keep = np.empty(len(raw), bool)
    keep[:1] = True
    np.logical_or(other[1:], other[:-1], out=keep[1:])
    return raw[keep].tobytes().split(b"\n")


def learn(kind: str, line: bytes, match: Match) -> Form | None:
    """Note where the numbers of a line stand, for all lines of its shape; None where they cannot be parted."""
    found = match.groupdict()
    names = (*STAMPS, "engine", "rank", *FIELDS[kind]) if kind in FIELDS else ()
    spans = {name: match.span(name) for name in names if found.get(name) is not None}
    cuts = set(line) - _DIGITS
    if _cells(line, cuts, spans) is None:
        return None
    for code in sorted(cuts):  # fewer cells are quicker to read: keep only what parts our numbers from their neighbours
        if _cells(line, cuts - {code}, spans) is not None:
            cuts.remove(code)
    commas, drop = _tables(cuts)
    return Form(kind, commas, drop, line.translate(commas, drop).count(b",") + 1, _cells(line, cuts, spans) or {}, found)


def _tables(cuts: set[int]) -> tuple[bytes, bytes]:
    """Return arguments for bytes.translate: characters that become commas, characters that are dropped."""
    return bytes(44 if code in cuts else code for code in range(256)), bytes(set(range(256)) - cuts - _DIGITS - {10})


def _cells(line: bytes, cuts: set[int], spans: dict[str, tuple[int, int]]) -> dict[str, int] | None:
    """Return the column of each number when the line is parted at `cuts`; None where a number does not stand alone."""
    commas, drop = _tables(cuts)
    cells = line.translate(commas, drop).split(b",")
    columns = {name: line[:start].translate(commas, drop).count(b",") for name, (start, _) in spans.items()}
    alone = all(cells[columns[name]] == line[start:end] for name, (start, end) in spans.items())
    return columns if alone else None


def read_table(form: Form, text: bytes, numbers: Array) -> tuple[Part, list[int]]:
    """Read lines of one shape (their numbers in the file beside them); return the rows, and lines with absurd numbers."""
    columns = _columns(form, text)
    absurd: list[int] = []
    if max(float(column.max()) for column in columns.values()) >= TOO_BIG:
        high = np.any([column >= TOO_BIG for column in columns.values()], axis=0)
        absurd = numbers[high].tolist()
        numbers = numbers[~high]
        columns = {name: column[~high] for name, column in columns.items()}
    size = len(numbers)
    unknown = np.full(size, np.nan)
    values = {name: columns.get(name, unknown) for name in FIELDS[form.kind]}
    if form.kind == "step":
        values["dummy"] = np.full(size, float(bool(form.found["dummy_a"] or form.found["dummy_b"])))
    engine = columns.get("engine", columns.get("rank", np.zeros(size)))
    return Part(form.kind, numbers, *_stamps(form, columns, size), np.minimum(engine, 1e9).astype(np.int64), values), absurd


def _columns(form: Form, text: bytes) -> dict[str, Array]:
    rows = text.translate(form.commas, form.drop)
    wanted = {str(at): pa.float64() for at in sorted(set(form.columns.values()))}
    names = [str(at) for at in range(form.width)]
    read = arrow_csv.read_csv(
        pa.BufferReader(rows),
        read_options=arrow_csv.ReadOptions(use_threads=False, column_names=names, block_size=len(rows) + 1),
        parse_options=arrow_csv.ParseOptions(quote_char=False, ignore_empty_lines=False),
        convert_options=arrow_csv.ConvertOptions(include_columns=list(wanted), column_types=wanted),
    )
    return {name: _array(read.column(str(at))) for name, at in form.columns.items()}


def _array(column: Any) -> Array:
    """Return a column without gaps as an array; its own to_numpy() would import pandas."""
    return np.concatenate([np.frombuffer(part.buffers()[1], np.float64, len(part), part.offset * 8) for part in column.chunks])


def _stamps(form: Form, columns: dict[str, Array], size: int) -> tuple[Array, Array, Array, Array, Array]:
    """Return year, code, tod, iso and fine, as `Stamp` has them, of many lines."""
    iso = np.full(size, np.nan)
    broken = np.zeros(size, bool)
    if "iy" in columns:
        iso = _container(columns, west=form.found["zs"] == b"-")
        broken = np.isnan(iso)
    letter = "j" if "jm" in columns else "o"
    month, day, hour, minute, second = (columns[letter + part] for part in "mdhns")
    tod = _clock(hour, minute, second)
    broken |= np.isnan(tod) | (day > 31)
    year = np.zeros(size, np.int64)
    if "jy" in columns:
        year = np.minimum(columns["jy"], 1e9).astype(np.int64)
        broken |= year == 0
        tod += columns["jf"] / 1000
    code = (np.minimum(month, 1e9) * 100 + np.minimum(day, 99)).astype(np.int64)
    code[broken] = -1
    iso[broken] = np.nan
    fine = np.full(size, "jy" in columns)
    if "iy" in columns:
        fine |= iso % 1 > 0
    return year, code, tod, iso, fine


def _container(columns: dict[str, Array], *, west: bool) -> Array:
    """Return the instants of a container's stamps; NaN where there is no such time."""
    year, month, day, hour, minute, second = (columns["i" + part] for part in ("y", "m", "d", "h", "n", "s"))
    keys = np.minimum(year, 1e5) * 1e4 + np.minimum(month, 99) * 100 + np.minimum(day, 99)
    zone = columns.get("zh", np.zeros(1)) * 3600 + columns.get("zm", np.zeros(1)) * 60
    days = per_run(keys, lambda key: day_start(key // 10_000, key // 100 % 100, key % 100))
    return days + _clock(hour, minute, second) - (-zone if west else zone)


def _clock(hour: Array, minute: Array, second: Array) -> Array:
    tod = hour * 3600 + minute * 60 + second
    tod[(hour >= 24) | (minute >= 60) | (second >= 61)] = np.nan
    return tod
