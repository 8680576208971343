"""The log of a vLLM server, V1 engine 0.8.5 to 0.33, as text or JSON, through any transport; stats and preemptions of V0.

Read are periodic stats lines (table stat), iteration lines (step), start-up, configuration, rearrangement, JIT, speculation,
KV transfer, abort and death (event), access lines as counts per method, path and status. Prompts, outputs and token ids are
not read: "Received request" and "Added request" are only counted.

Traps
    - A stamp has no year and no zone: the year is the one nearest to the stamp before it, the zone is taken for UTC. Where
      a container's own stamp stands on the line, that is the time, and the difference is reported as clock_offset_s.
    - Records are cut, wrapped over several lines, glued behind a progress bar or behind each other, coloured, prefixed.
      A record that is not whole gives no figures; one that goes on on the next line is joined.
    - "Preemptions: N" and "Corrupted: N" in a stats line are dead code in all versions: not read.
    - "N Engines Aggregated" is no engine: event `aggregate`.
    - Speculation and KV transfer lines name no engine: theirs is the engine of the stats line before them.
    - Without a line end the last number of a file may be cut (8192 -> 81): only records that end in a unit are taken there.

How it is fast: lines that differ only in digits have the same shape. One line of each shape is understood by the patterns of
`vllm_log_lines`, the others of that shape are read as a table of numbers at once, by Arrow.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import repeat
from statistics import median
from typing import Any, BinaryIO, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv

from analyzers.model import Array, Batch
from app.collectors.formats import vllm_log_lines as say
from app.collectors.formats.json_lines import CUT, READ_ERRORS, Tally

NAME: Final = "vllm_log"
BLOCK: Final = 1 << 20  # bytes read at once
MAX_LINE: Final = 1 << 20
SHAPES: Final = 4096  # shapes learned at most: paths of access lines may differ without end
FEW: Final = 8  # lines of a shape below which the pattern is cheaper than a table
JOINS: Final = 4  # lines that one wrapped record may span, beyond its first
NEAR: Final = 6  # lines between the version and the model in the start-up banner
PATHS: Final = 1000  # distinct method, path, status kept
OFFSETS: Final = 10_000  # pairs of stamps kept for the offset of the clocks
SHORT: Final = 200  # bytes of a line of unknown meaning that may be the begin of a wrapped record
FOLLOWS: Final = ("spec_decode", "kv_transfer")

_ANSI: Final = re.compile(rb"(?:\x1b|#033|\^\[)\[[0-?]*[ -/]*[@-~]")
_NULS: Final = re.compile(rb"^\0+", re.MULTILINE)
_ZEROS: Final = bytes(48 if 48 <= code <= 57 else code for code in range(256))
_DIGITS: Final = frozenset(b"0123456789.")
_STARTED: Final = re.compile(rb"Started server process \[(\d{1,10})\]")
_BENCH: Final = re.compile(rb"Serving Benchmark Result|Traffic request rate: |Namespace\(subparser='bench'")


class _Form(NamedTuple):
    """A shape of line that was understood: where its numbers stand in a row of the table that `table` and `drop` make."""

    kind: str
    table: bytes
    drop: bytes
    width: int
    columns: dict[str, int]
    found: dict[str, bytes | None]


class _Part(NamedTuple):
    """Rows of one table, not yet dated: arrays of equal length."""

    kind: str
    line: Array
    year: Array
    code: Array
    tod: Array
    iso: Array
    fine: Array
    engine: Array
    values: dict[str, Array]


class _Said(NamedTuple):
    """What one record says. `reason`: it is not whole; None for the record: it is not even a record."""

    record: say.Record | None
    findings: list[say.Finding]
    reason: str | None = None


@dataclass(slots=True)
class _Held:
    """A line that may go on on the next one, joined from lines `first` to `last`."""

    text: bytes
    first: int
    last: int
    said: list[_Said]


@dataclass(slots=True)
class _State:
    """What is remembered between blocks, and the rows of the present one."""

    anchor: float  # the last instant seen, from which a stamp takes its year
    tally: Tally = field(default_factory=Tally)
    forms: dict[bytes, int] = field(default_factory=dict)
    known: list[_Form] = field(default_factory=list)
    held: _Held | None = None
    start: tuple[int, say.Record, dict[str, Any]] | None = None
    dated: bool = False
    pid: str | None = None
    several: bool = False  # more than one API server
    instance: str | None = None
    engine: int = -1  # of the last stats line
    offsets: list[float] = field(default_factory=list)
    calls: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    counted: Counter[str] = field(default_factory=Counter)
    deaths: set[tuple[str, int | None]] = field(default_factory=set)
    parts: list[_Part] = field(default_factory=list)
    rows: dict[str, list[tuple[int, say.Stamp, int, dict[str, float]]]] = field(default_factory=lambda: {"step": [], "stat": []})
    events: list[tuple[int, say.Stamp, int | None, str, dict[str, Any]]] = field(default_factory=list)
    rejects: list[tuple[int, str]] = field(default_factory=list)


def sniff(head: bytes) -> bool:
    """Recognise vLLM's record heads, its JSON records, or access lines of its API server; not the output of a benchmark."""
    text = _clean(head.removeprefix(b"\xef\xbb\xbf"))
    return not _BENCH.search(text) and any(map(_ours, text.split(b"\n")))


def _ours(line: bytes) -> bool:
    line = line[:2000]
    transport = say.TRANSPORT.match(line)
    at = transport.end() if transport else 0
    if line.startswith(b"{", at):
        mark = b'"log":' in line and say.START.search(line)
        return bool(mark) or (b'"asctime": "' in line and b'"message": "' in line and (b'"vllm' in line or b'"uvicorn' in line))
    head = say.START.search(line, at)
    if head is None or any(mark in line[: head.start()] for mark in b'",#<'):
        return False
    if head["om"] is not None:
        return True
    body = line[head.end() :]
    if head["level"] is not None:  # an access line
        return head["process"] is not None or b" /v1/" in body
    return any(pattern.match(body) for kind in ("step", "stat") for pattern in say.BODY[kind])


def read(stream: BinaryIO, reference_ts: float, *, block: int = BLOCK) -> Iterator[Batch]:
    """Yield batches of step, stat and event, one of each a `block` bytes; the last events carry the counts of a file."""
    state = _State(anchor=min(max(reference_ts, 0.0), 2.5e11) if reference_ts == reference_ts else 0.0)  # noqa: PLR0124
    damaged = False
    for text, ended in _blocks(stream, block):
        if text is None:
            damaged = True
            continue
        clean = _clean(text.removeprefix(b"\xef\xbb\xbf") if not state.tally.lines else text)
        _block(state, clean, ended=ended)
        yield from _flush(state)
    _release(state)
    _counts(state)
    yield from _flush(state)
    if damaged:
        state.tally.lines += state.tally.lines == 0
        state.tally.reject(state.tally.lines, CUT)
    offset = median(state.offsets) if state.offsets else None
    for batch in state.tally.batches(instance=state.instance, pid=None if state.several else state.pid):
        extra = {"clock_offset_s": [offset]} if batch.table == "source_file" else {}
        yield Batch(batch.table, {**batch.columns, **extra})


# ------------------------------------------------------------------------------------------------------------ blocks


def _blocks(stream: BinaryIO, size: int) -> Iterator[tuple[bytes | None, bool]]:
    """Yield whole lines without the last line end, True; at last what has no line end, False. None: the stream is damaged.

    Of a line longer than MAX_LINE a little more than that is kept, so that it is known to be too long.
    """
    parts: list[bytes] = []
    kept = 0
    try:
        while data := stream.read(size):
            cut = data.rfind(b"\n")
            if cut >= 0:
                yield b"".join((*parts, data[:cut])), True
                parts, kept = [], 0
            rest = data[cut + 1 :][: max(0, MAX_LINE + 1 - kept)]
            if rest:
                parts.append(rest)
                kept += len(rest)
    except READ_ERRORS:
        yield None, False
    if parts:
        yield b"".join(parts), False


def _clean(text: bytes) -> bytes:
    """Remove what transports add: colours, carriage returns at line ends, NUL bytes at line starts (a truncated file)."""
    if b"\x1b" in text or (b"#" in text and b"#033[" in text) or (b"^" in text and b"^[[" in text):  # one byte is found quicker
        text = _ANSI.sub(b"", text)
    if b"\r" in text:
        text = text.replace(b"\r\n", b"\n").removesuffix(b"\r")
    return _NULS.sub(b"", text) if b"\0" in text else text


def _shapes(text: bytes) -> list[bytes]:
    """Return each line with one 0 in place of each number."""
    raw = np.frombuffer(text.translate(_ZEROS), np.uint8)
    other = raw != 48
    keep = np.empty(len(raw), bool)
    keep[:1] = True
    np.logical_or(other[1:], other[:-1], out=keep[1:])
    return raw[keep].tobytes().split(b"\n")


def _block(state: _State, text: bytes, *, ended: bool) -> None:
    shapes = _shapes(text)
    first = state.tally.lines + 1
    state.tally.lines += len(shapes)
    forms = np.fromiter(map(state.forms.get, shapes, repeat(-1)), np.int64, len(shapes))
    if forms[0] >= 0 and (forms == forms[0]).all():
        _many(state, state.known[forms[0]], text, np.arange(first, first + len(shapes)))
        return
    lines = text.split(b"\n")
    taught = len(state.known)
    for at in np.flatnonzero(forms < 0).tolist():
        if len(state.known) > taught:
            forms[at] = state.forms.get(shapes[at], -1)
        if forms[at] < 0:
            _slow(state, lines[at], shapes[at], first + at, ended=ended)
    for form in np.unique(forms).tolist():
        if form >= 0:
            places = np.flatnonzero(forms == form)
            _many(state, state.known[form], b"\n".join([lines[at] for at in places.tolist()]), places + first)


# ------------------------------------------------------------------------------------------------- lines of known shape


def _learn(state: _State, shape: bytes, kind: str, line: bytes, match: say.Match) -> None:
    """Note where the numbers of a line stand, for all lines of its shape."""
    if len(state.known) >= SHAPES:
        return
    found = match.groupdict()
    names = (*say.STAMPS, "engine", "rank", *say.FIELDS.get(kind, ()))
    spans = {name: match.span(name) for name in names if found.get(name) is not None} if kind != "access" else {}
    cuts = set(line) - _DIGITS
    for code in sorted(cuts):  # fewer cells are quicker to read: keep only those characters that part our numbers from others
        if _cells(line, cuts - {code}, spans) is not None:
            cuts.remove(code)
    columns = _cells(line, cuts, spans)
    if columns is None:
        return
    table, drop = _tables(cuts)
    state.forms[shape] = len(state.known)
    state.known.append(_Form(kind, table, drop, line.translate(table, drop).count(b",") + 1, columns, found))


def _tables(cuts: set[int]) -> tuple[bytes, bytes]:
    """Return arguments for bytes.translate: characters that become commas, characters that are dropped."""
    return bytes(44 if code in cuts else code for code in range(256)), bytes(set(range(256)) - cuts - _DIGITS - {10})


def _cells(line: bytes, cuts: set[int], spans: dict[str, tuple[int, int]]) -> dict[str, int] | None:
    """Return the column of each number when the line is parted at `cuts`; None where a number does not stand alone."""
    table, drop = _tables(cuts)
    cells = line.translate(table, drop).split(b",")
    columns = {name: line[:start].translate(table, drop).count(b",") for name, (start, _) in spans.items()}
    alone = all(cells[columns[name]] == line[start:end] for name, (start, end) in spans.items())
    return columns if alone else None


def _many(state: _State, form: _Form, text: bytes, numbers: Array) -> None:
    """Read lines of one shape."""
    if form.kind == "access":
        _calls(state, text.split(b"\n"), numbers)
    elif len(numbers) < FEW:
        for line, number in zip(text.split(b"\n"), numbers.tolist(), strict=True):
            _frequent(state, form.kind, line, number)
    else:
        _table(state, form, text, numbers)


def _calls(state: _State, lines: list[bytes], numbers: Array) -> None:
    """Count access lines of one shape: most end alike."""
    ends = [line[line.rfind(b" - ") + 3 :] for line in lines]
    for end, count in Counter(ends).items():
        call = say.call_of(end)
        if call is not None:
            _call(state, call, count)
        else:
            state.rejects += [(int(n), say.EXPECTED["access"]) for n, e in zip(numbers, ends, strict=True) if e == end]


def _call(state: _State, call: tuple[str, str, int], count: int) -> None:
    state.calls[call if call in state.calls or len(state.calls) < PATHS else ("*", "*", call[2])] += count


def _table(state: _State, form: _Form, text: bytes, numbers: Array) -> None:
    """Read lines of one shape as a table of numbers."""
    rows = text.translate(form.table, form.drop)
    wanted = {str(at): pa.float64() for at in sorted(set(form.columns.values()))}
    read_table = arrow_csv.read_csv(
        pa.BufferReader(rows),
        read_options=arrow_csv.ReadOptions(use_threads=False, column_names=[str(at) for at in range(form.width)], block_size=len(rows) + 1),
        parse_options=arrow_csv.ParseOptions(quote_char=False, ignore_empty_lines=False),
        convert_options=arrow_csv.ConvertOptions(include_columns=list(wanted), column_types=wanted),
    )
    columns = {name: _array(read_table.column(str(at))) for name, at in form.columns.items()}
    absurd = np.any([column >= say.TOO_BIG for column in columns.values()], axis=0)
    if absurd.any():
        state.rejects += [(int(number), say.EXPECTED["number"]) for number in numbers[absurd]]
        numbers = numbers[~absurd]
        columns = {name: column[~absurd] for name, column in columns.items()}
    size = len(numbers)
    unknown = np.full(size, np.nan)
    values = {name: columns.get(name, unknown) for name in say.FIELDS[form.kind]}
    if form.kind == "step":
        values["dummy"] = np.full(size, float(bool(form.found["dummy_a"] or form.found["dummy_b"])))
    engine = columns.get("engine", columns.get("rank", np.zeros(size)))
    state.parts.append(_Part(form.kind, numbers, *_stamps(form, columns, size), engine.astype(np.int64), values))


def _array(column: Any) -> Array:
    """Return a column without gaps as an array; its own to_numpy() would import pandas."""
    return np.concatenate([np.frombuffer(part.buffers()[1], np.float64, len(part), part.offset * 8) for part in column.chunks])


def _stamps(form: _Form, columns: dict[str, Array], size: int) -> tuple[Array, Array, Array, Array, Array]:
    """Return year, code, seconds of the day, a container's instant and whether it is fine, as in `Stamp`, for many lines."""
    iso = np.full(size, np.nan)
    broken = np.zeros(size, bool)
    if "iy" in columns:
        zone = columns.get("zh", 0.0) * 3600.0 + columns.get("zm", 0.0) * 60.0
        days = _per_run(columns["iy"] * 1e4 + columns["im"] * 100 + columns["id"], lambda key: say.day_start(key // 1e4, key // 100 % 100, key % 100))
        iso = days + _clock(*(columns[name] for name in ("ih", "in", "is"))) - (-zone if form.found["zs"] == b"-" else zone)
        broken = np.isnan(iso) | (columns["im"] > 12) | (columns["id"] > 31)
    letter = "j" if "jm" in columns else "o"
    month, day, hour, minute, second = (columns[letter + part] for part in "mdhns")
    year = columns.get("jy", np.full(size, -1.0))
    tod = _clock(hour, minute, second) + columns.get("jf", 0.0) / 1000
    broken |= np.isnan(tod) | (year == 0) | (day > 31)
    code = np.where(broken, -1, np.minimum(month, 1e9) * 100 + np.minimum(day, 99)).astype(np.int64)
    fine = (iso % 1 > 0) | ("jf" in columns)
    return np.maximum(np.minimum(year, 1e9), 0).astype(np.int64), code, tod, np.where(broken, np.nan, iso), fine


def _clock(hour: Array, minute: Array, second: Array) -> Array:
    return np.where((hour < 24) & (minute < 60) & (second < 61), hour * 3600 + minute * 60 + second, np.nan)


def _per_run(keys: Array, value: Any) -> Array:
    """Return `value(key)` for each key, computed once for each run of equal keys: they change once a day."""
    if not len(keys):
        return np.zeros(0)
    starts = np.concatenate([[0], np.flatnonzero(np.diff(keys)) + 1])
    return np.repeat([value(float(key)) for key in keys[starts]], np.diff([*starts, len(keys)]))


# ---------------------------------------------------------------------------------------------------------- other lines


def _slow(state: _State, line: bytes, shape: bytes, number: int, *, ended: bool) -> None:
    """Read a line of unknown shape; it may be the rest of the one before."""
    if state.held is not None:
        if _joined(state, state.held, line, number, ended=ended):
            return
        _release(state)
    if len(line) > MAX_LINE:
        state.rejects.append((number, say.EXPECTED["long"]))
        return
    for kind, literal in say.LITERALS.items():
        if literal in line and _frequent(state, kind, line, number, shape):
            return
    said = _say(line, ended=ended)
    if not said:
        _headless(state, line, number)
    elif said[-1].reason or (not said[-1].findings and len(line) < SHORT):
        state.held = _Held(line, number, number, said)
    else:
        _enter(state, number, said)


def _joined(state: _State, held: _Held, line: bytes, number: int, *, ended: bool) -> bool:
    """Join a line without a head to the one before, where both make a record or may with the next one."""
    transport = say.TRANSPORT.match(line)
    rest = line[transport.end() if transport else 0 :]
    if number != held.last + 1 or held.last - held.first >= JOINS or len(line) > MAX_LINE or say.begins(line):
        return False
    text = held.text + rest
    said = _say(text, ended=ended)
    if said and said[-1].findings and not said[-1].reason:
        state.held = None
        _enter(state, held.first, said)
        return True
    if said and said[-1].reason and held.said[-1].reason:
        state.held = _Held(text, held.first, number, said)
        return True
    return False


def _release(state: _State) -> None:
    """Take a line that was held for what it says by itself."""
    held, state.held = state.held, None
    if held is not None:
        _enter(state, held.first, held.said)


def _say(line: bytes, *, ended: bool) -> list[_Said]:
    """Return what each record of a line says; nothing where it has no record."""
    try:
        records = list(say.records(line) or ())
    except ValueError:
        ours = b'"asctime"' in line or b'"message"' in line
        return [_Said(None, [], say.EXPECTED["json"])] if ours else []
    said = []
    for at, record in enumerate(records):
        try:
            said.append(_Said(record, say.understand(record, ended=ended or at + 1 < len(records))))
        except say.Cut as cut:
            said.append(_Said(record, list(cut.findings), cut.reason))
    return said


def _frequent(state: _State, kind: str, line: bytes, number: int, shape: bytes | None = None) -> bool:
    """Read a line that holds one frequent record and nothing else, and learn its shape; False if it is none."""
    match = next((found for pattern in say.WHOLE[kind] if (found := pattern.fullmatch(line))), None)
    if match is None:
        return False
    found = match.groupdict()
    if kind == "access":
        _calls(state, [line], np.array([number]))
    else:
        row = say.row_of(kind, found)
        if row is None:
            state.rejects.append((number, say.EXPECTED["number"]))
            return True
        state.rows[kind].append((number, say.stamp_of(found), say.engine_of(found), row))
    if shape is not None:
        _learn(state, shape, kind, line, match)
        _server(state, (found.get("process") or b"").decode(), (found.get("pid") or b"").decode(), found.get("rank"))
    return True


def _headless(state: _State, line: bytes, number: int) -> None:
    """Read a line without a record head: a message alone, as people paste it, or uvicorn's start."""
    transport = say.TRANSPORT.match(line)
    at = transport.end() if transport else 0
    body = line[at:].strip()
    for kind, literal in (("step", b" context requests, "), ("stat", b"KV cache usage: "), ("stat", b"Avg prompt throughput: ")):
        if literal in body:
            found = transport.groupdict() if transport else {}
            record = say.Record(say.stamp_of(found), "", "", found, body)
            try:
                findings = say.understand(record, ended=True)
            except say.Cut:
                findings = []
            _enter(state, number, [_Said(record, findings, None if findings else say.EXPECTED[kind])])
            return
    started = _STARTED.search(body)
    if started:
        _server(state, "APIServer", started[1].decode(), None)


def _enter(state: _State, number: int, said: list[_Said]) -> None:
    """Enter what a line says into the rows of the block."""
    for record, findings, reason in said:
        if reason:
            state.rejects.append((number, reason))
        if record is None:
            continue
        _server(state, record.process, record.pid, record.found.get("rank"))
        for finding in findings:
            _finding(state, number, record, finding)


def _server(state: _State, process: str, pid: str, rank: bytes | None) -> None:
    if process.lower() == "apiserver" and pid:
        state.several |= rank is not None
        state.pid = pid


def _finding(state: _State, number: int, record: say.Record, finding: say.Finding) -> None:
    """Enter one row or event."""
    kind, fields = finding
    inside = record.process.startswith(("Engine", "Worker", "VllmWorker"))
    engine = say.engine_of({"rank": record.found.get("rank")}) if inside else None
    if kind in state.rows:
        label = fields.pop("engine")
        state.rows[kind].append((number, record.stamp, say.whole(label) if label else engine or 0, fields))
    elif kind == "access":
        _call(state, (fields["method"], fields["path"], fields["status"]), 1)
    elif kind in ("received", "added"):
        state.counted[kind] += 1
    elif kind == "version":
        _begin(state)
        state.start = (number, record, {**fields, "model": None})
    elif kind == "model":
        if state.start is not None and number - state.start[0] <= NEAR:
            state.start[2].update(fields)
            _begin(state)
    elif kind in ("death", "error"):
        _failure(state, number, record, engine, finding)
    else:
        if kind == "listening":
            state.instance = f"{fields['host']}:{fields['port']}"
            state.deaths.clear()
        state.events.append((number, record.stamp, engine, kind, fields))


def _begin(state: _State) -> None:
    """Enter the start that waited for the banner's line with the model."""
    if state.start is not None:
        number, record, fields = state.start
        state.events.append((number, record.stamp, None, "start", fields))
        state.start = None


def _failure(state: _State, number: int, record: say.Record, engine: int | None, finding: say.Finding) -> None:
    """Enter an error; a death once per server life, for each process and request repeats it."""
    kind, fields = finding
    if kind == "error":
        if record.found.get("level") not in (b"ERROR", b"CRITICAL"):
            return
        kind = "death" if fields["text"].endswith("EngineDeadError") else "failed"
    if kind == "death":
        key = (fields["text"], engine)
        if key in state.deaths:
            return
        state.deaths.add(key)
    state.events.append((number, record.stamp, engine, kind, fields))


def _counts(state: _State) -> None:
    """Enter the counts of the whole file, at its last line."""
    _begin(state)
    stamp = say.Stamp(iso=state.anchor if state.dated else say.NAN)
    for (method, path, status), count in sorted(state.calls.items()):
        fields = {"method": method, "path": path, "status": status, "count": count}
        state.events.append((state.tally.lines, stamp, None, "access", fields))
    if state.counted:
        fields = {kind: state.counted[kind] for kind in ("received", "added")}
        state.events.append((state.tally.lines, stamp, None, "requests_logged", fields))


# --------------------------------------------------------------------------------------------------------------- rows


def _flush(state: _State) -> Iterator[Batch]:
    """Date the rows of the block and yield them."""
    parts = [*state.parts, *(_part(kind, rows) for kind, rows in state.rows.items() if rows)]
    events = sorted(state.events, key=lambda event: event[0])
    if events:
        parts.append(_part("event", [(number, stamp, -1 if engine is None else engine, {}) for number, stamp, engine, _, _ in events]))
    dates = _dated(state, parts)
    for kind, columns_of in (("step", _step), ("stat", _stat)):
        mine = [(part, ts, good) for part, (ts, good) in zip(parts, dates, strict=True) if part.kind == kind]
        if mine:
            yield from _batch(kind, mine, columns_of)
    if events:
        yield from _events(state, events, parts, *dates[-1])
    state.engine = _last_engine(parts, state.engine)
    state.parts, state.events, state.rows = [], [], {"step": [], "stat": []}
    for number, reason in sorted(state.rejects):
        state.tally.reject(number, reason)
    state.rejects = []


def _part(kind: str, rows: list[tuple[int, say.Stamp, int, dict[str, float]]]) -> _Part:
    numbers, stamps, engines, values = zip(*rows, strict=True)
    year, code, tod, iso, fine = (np.array(column) for column in zip(*stamps, strict=True))
    names = values[0].keys()
    return _Part(
        kind, np.array(numbers), year, code, tod, iso, fine, np.array(engines), {name: np.array([row[name] for row in values]) for name in names}
    )


def _dated(state: _State, parts: list[_Part]) -> list[tuple[Array, Array]]:
    """Return instants (NaN: unknown) and whether they may stand, for each part. Years follow from line to line."""
    if not parts:
        return []
    line, year, code, tod, iso = (np.concatenate([getattr(part, name) for part in parts]) for name in ("line", "year", "code", "tod", "iso"))
    order = np.argsort(line, kind="stable")
    own = np.full(len(line), np.nan)
    own[order] = _own(state, year[order], code[order], tod[order], iso[order])
    ts = np.where(np.isnan(iso), own, iso)
    good = (code == 0) | ~np.isnan(own)
    both = order[~np.isnan(own[order]) & ~np.isnan(iso[order])][: OFFSETS - len(state.offsets)]
    state.offsets += (iso[both] - own[both]).tolist()
    known = ts[order][~np.isnan(ts[order]) & good[order]]
    if len(known):
        state.anchor, state.dated = float(known[-1]), True
    for at in np.flatnonzero(~good):
        state.rejects.append((int(line[at]), say.EXPECTED["date"]))
    ends = np.cumsum([len(part.line) for part in parts])[:-1]
    return list(zip(np.split(ts, ends), np.split(good, ends), strict=True))


def _own(state: _State, year: Array, code: Array, tod: Array, iso: Array) -> Array:
    """Return the instants of the lines' own stamps, in the order of the lines. NaN: none, or no such day."""
    own = np.full(len(code), np.nan)
    anchor = state.anchor
    key = year * 10_000_000 + code
    starts = [0, *(np.flatnonzero(np.diff(key)) + 1).tolist(), len(key)] if len(key) else [0]
    for first, last in zip(starts[:-1], starts[1:], strict=True):
        near = anchor if np.isnan(iso[first]) else float(iso[first])
        own[first:last] = _day(int(year[first]), int(code[first]), near) + tod[first:last]
        end = own[last - 1] if np.isnan(iso[last - 1]) else iso[last - 1]
        anchor = anchor if np.isnan(end) else float(end)
    return own


def _day(year: int, code: int, near: float) -> float:
    """Return the epoch seconds of a day; without a year of the one that is nearest. NaN: none, or no such day."""
    if code <= 0:
        return say.NAN
    month, day = divmod(code, 100)
    if year:
        return say.day_start(year, month, day)
    middle = int(1970 + near / 31_556_952)  # mean length of a year; one year off does not matter
    for years in (range(middle - 1, middle + 2), range(middle - 8, middle + 9)):  # 29 February
        days = [say.day_start(candidate, month, day) for candidate in years]
        known = [start for start in days if start == start]  # noqa: PLR0124 (NaN: no such day)
        if known:
            return min(known, key=lambda start: abs(start + 43_200 - near))
    return say.NAN


def _batch(kind: str, mine: list[tuple[_Part, Array, Array]], columns_of: Any) -> Iterator[Batch]:
    line = np.concatenate([part.line[good] for part, _, good in mine])
    order = np.argsort(line, kind="stable")
    values = {name: np.concatenate([part.values[name][good] for part, _, good in mine])[order] for name in mine[0][0].values}
    engines = np.concatenate([part.engine[good] for part, _, good in mine])[order]
    names = {engine: str(engine) for engine in np.unique(engines).tolist()}
    head = {
        "line": line[order],
        "ts": np.concatenate([ts[good] for _, ts, good in mine])[order],
        "engine": [names[engine] for engine in engines.tolist()],
    }
    if kind == "step":
        head["fine"] = np.concatenate([part.fine[good] for part, _, good in mine])[order]
    if len(line):
        yield Batch(kind, {**head, **columns_of(values)})


def _step(values: dict[str, Array]) -> dict[str, Array]:
    whole = ("iteration", "context_requests", "context_tokens", "generation_requests", "generation_tokens")
    return {
        **{name: values[name].astype(np.int64) for name in whole},
        "elapsed_s": values["elapsed"] / 1000,
        "kv_usage_ratio": values["kv"] / 100,
        "dummy": values["dummy"] > 0,
    }


def _stat(values: dict[str, Array]) -> dict[str, Array]:
    return {column: values[name] / unit for name, (column, unit) in say.STAT_COLUMNS.items()}


def _events(state: _State, events: list[Any], parts: list[_Part], ts: Array, good: Array) -> Iterator[Batch]:
    """Yield the events; those that name no engine take the one of the stats line before them."""
    stats = [(int(line), int(engine)) for part in parts if part.kind == "stat" for line, engine in zip(part.line, part.engine, strict=True)]
    stats = sorted([*stats, *((number, -1) for number, _, _, kind, _ in events if kind == "aggregate")])
    before = np.array([line for line, _ in stats])
    engines: list[str | None] = []
    for number, _, engine, kind, _ in events:
        at = int(np.searchsorted(before, number)) - 1 if kind in FOLLOWS else -1
        label = engine if kind not in FOLLOWS else stats[at][1] if at >= 0 else state.engine
        engines.append(None if label is None or label < 0 else str(label))
    keep = np.flatnonzero(good).tolist()
    if keep:
        columns = {
            "line": [events[at][0] for at in keep],
            "ts": ts[keep],
            "engine": [engines[at] for at in keep],
            "kind": [events[at][3] for at in keep],
            "fields": [json.dumps(events[at][4], sort_keys=True) for at in keep],
        }
        yield Batch("event", columns)


def _last_engine(parts: list[_Part], engine: int) -> int:
    last = max(((int(part.line.max()), part) for part in parts if part.kind == "stat"), key=lambda pair: pair[0], default=None)
    return engine if last is None else int(last[1].engine[int(last[1].line.argmax())])
