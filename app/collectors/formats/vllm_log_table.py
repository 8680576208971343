"""Lines of a vLLM server log that differ only in their digits, read at once as a table of numbers.

Such lines have one shape: the text without its digits, and how many numbers it has. One line of a shape is understood by the
patterns of `vllm_log_lines`; where its numbers stand is noted, and all lines of that shape are parted into cells there and read
by Arrow. That is several times as fast as a pattern for each line, for any transport and any process prefix alike. A line that
has the shape, but not a number in each of those places, is left to the patterns.
"""

from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv

from analyzers.model import Array
from app.collectors.formats.vllm_log_lines import FIELDS, STAMPS, TOO_BIG, Groups, Match, day_start
from app.collectors.formats.vllm_log_rows import Part, per_run

# name -> groups of one cell, and their digits: a date and its hour, without what stands between them
DATES: Final = {"o": (("om", "od", "oh"), 6), "j": (("jy", "jm", "jd", "jh"), 10), "i": (("iy", "im", "id", "ih"), 10)}
_BETWEEN: Final = frozenset(b"- T")
_FIGURES: Final = b"0123456789"
_DIGITS: Final = frozenset(b"0123456789.")

Shape = tuple[bytes, int]  # the text without its digits, how many numbers stood in it


class Form(NamedTuple):
    """A shape of line that was understood: where its numbers stand in a row of the table that `commas` and `drop` make."""

    kind: str
    numbers: int  # as a shape has them
    commas: bytes
    drop: bytes
    width: int
    columns: dict[str, int]
    found: Groups


def without_digits(text: bytes) -> bytes:
    """Return the first half of the shapes of all lines, parted by line ends."""
    return text.translate(None, _FIGURES)


def numbers_of(text: bytes) -> int:
    """How many numbers (runs of digits) a text has."""
    if not text:
        return 0
    digit = _digit(text)
    return int(digit[0]) + int(np.count_nonzero(digit[1:] > digit[:-1]))


def numbers_of_lines(text: bytes) -> Array:
    """How many numbers each line of a text has."""
    ends = np.flatnonzero(np.frombuffer(text, np.uint8) == 10)
    before = np.searchsorted(np.flatnonzero(_starts(text)), np.concatenate([[0], ends, [len(text)]]))
    return np.diff(before)


def _starts(text: bytes) -> Array:
    """Where a digit stands with none before it."""
    digit = _digit(text)
    starts = digit.copy()
    np.greater(digit[1:], digit[:-1], out=starts[1:])
    return starts


def _digit(text: bytes) -> Array:
    return (np.frombuffer(text, np.uint8) - np.uint8(48)) < 10


def learn(kind: str, line: bytes, match: Match) -> Form | None:
    """Note where the numbers of a line stand, for all lines of its shape; None where they cannot be parted."""
    found = match.groupdict()
    if kind not in FIELDS:  # it has no numbers for a table
        return Form(kind, numbers_of(line), b"", b"", 0, {}, found)
    shown = {name: match.span(name) for name in _NAMES[kind] if found.get(name) is not None}
    dates = {name: (shown[groups[0]][0], shown[groups[-1]][1]) for name, (groups, _) in DATES.items() if groups[0] in shown}
    spans = {name: span for name, span in shown.items() if name not in _DATED} | dates
    cuts = set(line) - _DIGITS - _BETWEEN
    if _cells(line, cuts, spans) is None:
        return None
    for code in sorted(cuts, key=lambda code: (-line.count(code), code)):  # few cells are quick to read: keep what parts numbers
        if _cells(line, cuts - {code}, spans) is not None:
            cuts.remove(code)
    commas, drop = _tables(cuts)
    width = line.translate(commas, drop).count(b",") + 1
    return Form(kind, numbers_of(line), commas, drop, width, _cells(line, cuts, spans) or {}, found)


_DATED: Final = frozenset(group for groups, _ in DATES.values() for group in groups)
_NAMES: Final = {kind: (*STAMPS, "engine", "rank", *fields) for kind, fields in FIELDS.items()}


def _tables(cuts: set[int]) -> tuple[bytes, bytes]:
    """Return arguments for bytes.translate: characters that become commas, characters that are dropped."""
    return bytes(44 if code in cuts else code for code in range(256)), bytes(set(range(256)) - cuts - _DIGITS - {10})


def _cells(line: bytes, cuts: set[int], spans: dict[str, tuple[int, int]]) -> dict[str, int] | None:
    """Return the column of each number when the line is parted at `cuts`; None where a number does not stand alone."""
    commas, drop = _tables(cuts)
    cells = line.translate(commas, drop).split(b",")
    columns = {name: line[:start].translate(commas, drop).count(b",") for name, (start, _) in spans.items()}
    alone = all(cells[columns[name]] == line[start:end].translate(None, b"- T") for name, (start, end) in spans.items())
    return columns if alone else None


def read_table(form: Form, text: bytes, numbers: Array) -> tuple[Part, list[int]] | None:
    """Read lines of one shape (their numbers in the file beside them); return the rows, and lines with absurd numbers.

    None where a date has not the usual digits, or a number is missing: such lines are for the patterns.
    """
    columns = _columns(form, text)
    if columns is None:
        return None
    figures = [columns[name] for name in FIELDS[form.kind] if name in columns]
    absurd: list[int] = []
    if max(float(figure.max()) for figure in figures) >= TOO_BIG:
        high = np.any([figure >= TOO_BIG for figure in figures], axis=0)
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


def _columns(form: Form, text: bytes) -> dict[str, Array] | None:
    rows = text.translate(form.commas, form.drop)
    wanted = {str(at): _kind(form, name) for name, at in form.columns.items()}
    names = [str(at) for at in range(form.width)]
    try:
        read = arrow_csv.read_csv(
            pa.BufferReader(rows),
            read_options=arrow_csv.ReadOptions(use_threads=False, column_names=names, block_size=len(rows) + 1),
            parse_options=arrow_csv.ParseOptions(quote_char=False, ignore_empty_lines=False),
            convert_options=arrow_csv.ConvertOptions(include_columns=list(wanted), column_types=wanted),
        )
    except pa.ArrowInvalid:  # more digits than any number of ours has
        return None
    columns = {}
    for name, at in form.columns.items():
        cells = read.column(str(at))
        chunks = cells.chunks
        if cells.null_count:
            return None
        if name not in DATES:  # their own to_numpy() would import pandas
            kind = np.float64 if wanted[str(at)] == pa.float64() else np.int64
            parts = [np.frombuffer(part.buffers()[1], kind, len(part), part.offset * 8) for part in chunks]
            columns[name] = np.concatenate(parts, dtype=np.float64)
            continue
        date = _date(*DATES[name], cells)
        if date is None:
            return None
        columns.update(date)
    return columns


def _kind(form: Form, name: str) -> pa.DataType:
    """How the cells of a number are read: a point stands in all lines of a shape or in none, and whole numbers are read faster."""
    return pa.binary() if name in DATES else pa.float64() if b"." in (form.found[name] or b"") else pa.int64()


def _date(groups: tuple[str, ...], width: int, cells: Any) -> dict[str, Array] | None:
    """Return the numbers of a date that stands in one cell; None where one has not `width` digits."""
    coded = cells.combine_chunks().dictionary_encode()  # few dates and hours stand on many lines
    known = coded.dictionary.to_pylist()
    if any(len(cell) != width or not cell.isdigit() for cell in known):
        return None
    digits = np.frombuffer(b"".join(known), np.uint8).reshape(-1, width) - 48.0
    pairs = digits[:, ::2] * 10 + digits[:, 1::2]
    if len(groups) == 4:
        pairs = np.concatenate([pairs[:, :1] * 100 + pairs[:, 1:2], pairs[:, 2:]], axis=1)
    places = np.frombuffer(coded.indices.buffers()[1], np.int32, len(coded), coded.indices.offset * 4)
    return {group: pairs[places, at] for at, group in enumerate(groups)}


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
        broken |= (year == 0) | (columns["jf"] > 999)
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
    east, north, compact = (columns.get(name, np.zeros(len(year))) for name in ("zh", "zm", "zc"))
    if "zc" in columns:  # +0200 or +02
        east, north = np.where(compact <= 24, compact, compact // 100), np.where(compact <= 24, 0, compact % 100)
    zone = _clock(east, north, np.zeros(len(year)))
    days = per_run(keys, lambda key: day_start(key // 10_000, key // 100 % 100, key % 100))
    return np.asarray(days + _clock(hour, minute, second) - (-zone if west else zone))


def _clock(hour: Array, minute: Array, second: Array) -> Array:
    tod: Array = hour * 3600 + minute * 60 + second
    tod[(hour >= 24) | (minute >= 60) | (second >= 61)] = np.nan
    return tod
