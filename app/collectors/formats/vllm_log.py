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

Beside it: `vllm_log_lines` (heads, the frequent records), `vllm_log_events` (what else a record says), `vllm_log_repr`
(arguments), `vllm_log_table` (many lines at once), `vllm_log_rows` (dates and units).
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import repeat
from statistics import median
from typing import Any, BinaryIO, Final, NamedTuple

import numpy as np

from analyzers.model import Array, Batch
from app.collectors.formats.json_lines import CUT, READ_ERRORS, Tally
from app.collectors.formats.vllm_log_events import EXPECTED, Cut, Finding, call_of, understand
from app.collectors.formats.vllm_log_lines import (
    BODY,
    LITERALS,
    NAN,
    START,
    TRANSPORT,
    WHOLE,
    Groups,
    Record,
    Stamp,
    begins,
    behind_transport,
    engine_of,
    records,
    row_of,
    stamp_of,
    whole,
)
from app.collectors.formats.vllm_log_rows import NONE, Calendar, EventRow, Part, Row, batches
from app.collectors.formats.vllm_log_table import Form, Shape, learn, numbers_of, numbers_of_lines, read_table, without_digits

NAME: Final = "vllm_log"
BLOCK: Final = 1 << 20  # bytes read at once
MAX_LINE: Final = 1 << 20
SHAPES: Final = 4096  # shapes learned at most, of each sort: paths of access lines may differ without end
FEW: Final = 8  # lines of a shape below which the pattern is cheaper than a table
JOINS: Final = 4  # lines that one wrapped record may span, beyond its first
NEAR: Final = 6  # lines between the version and the model in the start-up banner
PATHS: Final = 1000  # distinct method, path, status kept
BOM: Final = b"\xef\xbb\xbf"

_ANSI: Final = re.compile(rb"(?:\x1b|#033|\^\[)\[[0-?]*[ -/]*[@-~]")
_NULS: Final = re.compile(rb"^\0+", re.MULTILINE)
_STARTED: Final = re.compile(rb"Started server process \[(\d{1,10})\]")
_BENCH: Final = re.compile(rb"Serving Benchmark Result|Traffic request rate: |Namespace\(subparser='bench'")
# pieces of a wrapped record; a line with none of them, and of some length, is no piece of one
_TAIL: Final = re.compile(rb" tokens/s, | context requests, | context tokens, | generation tokens, | reqs, |Drafted: ")
_PIECE: Final = re.compile(
    rb"[%{}\"]| ms|req|tok|thro|put|cache|rate|usage|Run|Wait|gener|elapsed|[iI]ter|Engine|HTTP|Pref|balan|step|[Ss]tart"
)
_ALONE: Final = (("step", b" context requests, "), ("stat", b"KV cache usage: "), ("stat", b"Avg prompt throughput: "))


class _Said(NamedTuple):
    """What one record says; None: it is of no kind that we know. `reason`: it is not whole, or not even a record (None)."""

    record: Record | None
    findings: list[Finding] | None
    reason: str | None = None


class _Place(NamedTuple):
    """Where a finding stands, and who wrote it."""

    number: int
    stamp: Stamp
    found: Groups


class _Line(NamedTuple):
    """A line of unknown shape."""

    text: bytes
    shape: Shape
    before: bytes  # the line before
    number: int


@dataclass(slots=True)
class _Held:
    """A line that may go on on the next one, joined from lines `first` to `last`."""

    text: bytes
    first: int
    last: int
    said: list[_Said]


@dataclass(slots=True)
class _State:
    """What is remembered from block to block, and the rows of the present one."""

    calendar: Calendar
    tally: Tally = field(default_factory=Tally)
    places: dict[bytes, int] = field(default_factory=dict)  # shape without its count of numbers -> its place in `forms`
    forms: list[Form] = field(default_factory=list)
    dull: int = 0  # how many of them are of lines that say nothing
    before: bytes = b""  # the line before
    held: _Held | None = None
    start: tuple[_Place, dict[str, Any]] | None = None  # waits for the banner's line with the model
    pid: str | None = None
    several: bool = False  # more than one API server
    instance: str | None = None
    calls: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    counted: Counter[str] = field(default_factory=Counter)
    deaths: set[tuple[str, int]] = field(default_factory=set)
    parts: list[Part] = field(default_factory=list)
    rows: dict[str, list[Row]] = field(default_factory=lambda: {"step": [], "stat": []})
    events: list[EventRow] = field(default_factory=list)
    rejects: list[tuple[int, str]] = field(default_factory=list)


def sniff(head: bytes) -> bool:
    """Recognise vLLM's record heads, its JSON records, or access lines of its API server; not the output of a benchmark."""
    text = _clean(head.removeprefix(BOM))
    return not _BENCH.search(text) and any(map(_ours, text.split(b"\n")))


def _ours(line: bytes) -> bool:
    line = line[:2000]
    at = behind_transport(line)
    if line.startswith(b"{", at):
        docker = b'"log":' in line and START.search(line) is not None
        return docker or (b'"asctime": "' in line and b'"message": "' in line and (b'"vllm' in line or b'"uvicorn' in line))
    head = START.search(line, at)
    if head is None or any(mark in line[: head.start()] for mark in (b'"', b",", b"#", b"<")):
        return False
    body = line[head.end() :]
    if head["om"] is not None:
        return True
    if head["level"] is not None:  # an access line
        return head["process"] is not None or b" /v1/" in body
    return any(pattern.match(body) for kind in ("step", "stat") for pattern in BODY[kind])


def read(stream: BinaryIO, reference_ts: float, *, block: int = BLOCK) -> Iterator[Batch]:
    """Yield batches of step, stat and event, one of each a `block` bytes; the last events carry the counts of the file."""
    state = _State(Calendar(anchor=min(max(0.0, reference_ts), 2.5e11)))
    damaged = False
    for text, ended in _blocks(stream, block):
        if text is None:
            damaged = True
            continue
        _block(state, _clean(text if state.tally.lines else text.removeprefix(BOM)), ended=ended)
        if state.held is not None and state.held.last < state.tally.lines:  # the line behind it was no rest of it
            _release(state)
        yield from _flush(state)
    _release(state)
    _counts(state)
    yield from _flush(state)
    if damaged:
        state.tally.lines = max(state.tally.lines, 1)
        state.tally.reject(state.tally.lines, CUT)
    offsets = state.calendar.offsets
    for batch in state.tally.batches(instance=state.instance, pid=None if state.several else state.pid):
        extra = {"clock_offset_s": [median(offsets) if offsets else None]} if batch.table == "source_file" else {}
        yield Batch(batch.table, {**batch.columns, **extra})


def _flush(state: _State) -> Iterator[Batch]:
    made, rejects = batches(state.calendar, state.parts, state.rows, state.events)
    yield from made
    for number, reason in sorted([*state.rejects, *rejects]):
        state.tally.reject(number, reason)
    state.parts, state.events, state.rejects = [], [], []
    state.rows = {kind: [] for kind in state.rows}


# -- blocks -----------------------------------------------------------------------------------------------------------


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
                yield b"".join((*parts, memoryview(data)[:cut])), True
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


def _block(state: _State, text: bytes, *, ended: bool) -> None:
    """Read the lines of a block: those of known shape together, the others one by one, which teaches shapes."""
    flat = without_digits(text)
    first = state.tally.lines + 1
    count = _uniform(state, text, flat)
    if count:
        state.tally.lines += count
        return
    found = flat.split(b"\n")
    count = len(found)
    state.tally.lines += count
    counts = numbers_of_lines(text)
    forms = _forms(state, found, counts)
    lines = text.split(b"\n")
    known = len(state.forms)
    for at in np.flatnonzero(forms < 0).tolist():
        if not lines[at]:
            continue
        if len(state.forms) > known:  # perhaps this shape was learned in this block
            place = state.places.get(found[at], -1)
            forms[at] = place if place >= 0 and state.forms[place].numbers == counts[at] else -1
        if forms[at] < 0:
            before = lines[at - 1] if at else state.before
            _one(state, _Line(lines[at], (found[at], int(counts[at])), before, first + at), ended=ended)
    state.before = lines[-1]
    for number in np.unique(forms[forms >= 0]).tolist():
        if state.forms[number].kind != "dull":
            places = np.flatnonzero(forms == number)
            _many(state, state.forms[number], b"\n".join([lines[at] for at in places.tolist()]), places + first)


def _forms(state: _State, texts: list[bytes], counts: Array) -> Array:
    """Return the place of the form of each line, from its text without digits and its count of numbers; -1 where there is none."""
    forms = np.fromiter(map(state.places.get, texts, repeat(-1)), np.int64, len(texts))
    forms[np.array([*(form.numbers for form in state.forms), -1])[forms] != counts] = -1  # a number too many, or missing
    return forms


def _uniform(state: _State, text: bytes, flat: bytes) -> int:
    """Read a block whose lines have all one known shape; how many they are. 0: it is no such block, nothing was read."""
    shape = _first(flat)
    count, rest = divmod(len(flat) + 1, len(shape) + 1)
    if rest or count == 1 or flat != b"\n".join([shape] * count):
        return 0
    place = state.places.get(shape)
    if place is None or numbers_of(text) != count * state.forms[place].numbers:
        return 0
    state.before = text[text.rfind(b"\n") + 1 :]
    _many(state, state.forms[place], text, np.arange(state.tally.lines + 1, state.tally.lines + count + 1))
    return count


def _first(text: bytes) -> bytes:
    """The first line; partition() would copy all the others."""
    end = text.find(b"\n")
    return text if end < 0 else text[:end]


def _many(state: _State, form: Form, text: bytes, numbers: Array) -> None:
    """Read lines of one shape."""
    if form.kind == "dull":
        return
    if form.kind == "access":
        _calls(state, text, numbers)
        return
    read = read_table(form, text, numbers) if len(numbers) >= FEW else None
    if read is None:
        for line, number in zip(text.split(b"\n"), numbers.tolist(), strict=True):
            if not _frequent(state, form.kind, line, number):
                state.rejects.append((number, EXPECTED[form.kind]))
        return
    state.parts.append(read[0])
    state.rejects += [(number, EXPECTED["number"]) for number in read[1]]


def _calls(state: _State, text: bytes, numbers: Array) -> None:
    """Count access lines of one shape: most end alike."""
    end = _first(text).rpartition(b" - ")[2]
    if len(numbers) > 1 and (text + b"\n").count(b" - " + end + b"\n") == len(numbers):
        ends = [end] * len(numbers)
    else:
        ends = [line.rpartition(b" - ")[2] for line in text.split(b"\n")]
    for end, count in Counter(ends).items():
        call = call_of(end)
        if call is not None:
            _call(state, call, count)
        else:
            state.rejects += [(int(n), EXPECTED["access"]) for n, e in zip(numbers, ends, strict=True) if e == end]


def _call(state: _State, call: tuple[str, str, int], count: int) -> None:
    state.calls[call if call in state.calls or len(state.calls) < PATHS else ("*", "*", call[2])] += count


# -- single lines -----------------------------------------------------------------------------------------------------


def _one(state: _State, line: _Line, *, ended: bool) -> None:
    """Read a line of unknown shape; it may be the rest of the one before."""
    text, number = line.text, line.number
    if state.held is not None:
        if _joined(state, state.held, line, ended=ended):
            return
        _release(state)
    if len(text) > MAX_LINE:
        state.rejects.append((number, EXPECTED["long"]))
        return
    if not any(literal in text and _frequent(state, kind, text, number, line.shape) for kind, literal in LITERALS.items()):
        _other(state, line, ended=ended)


def _other(state: _State, line: _Line, *, ended: bool) -> None:
    """Read a line that is no frequent record, or not only one."""
    text, number = line.text, line.number
    said = _say(text, ended=ended)
    if said and said[-1].reason:
        state.held = _Held(text, number, number, said)
    elif said:
        _enter(state, number, said)
        if all(findings is None for _, findings, _ in said):
            _ignore(state, line.shape)
    elif not (_TAIL.search(text) and _joined(state, _Held(line.before, number - 1, number - 1, []), line, ended=ended)):
        _headless(state, text, number)
        if len(text) > 12 and (not _PIECE.search(text) or text.lstrip().startswith(b'File "')):
            _ignore(state, line.shape)


def _ignore(state: _State, shape: Shape) -> None:
    """Learn that lines of a shape say nothing."""
    if state.dull < SHAPES:
        state.dull += 1
        _teach(state, shape, Form("dull", shape[1], b"", b"", 0, {}, {}))


def _joined(state: _State, held: _Held, line: _Line, *, ended: bool) -> bool:
    """Join a line without a head to the one before, where both make a record or may with the next one."""
    if line.number != held.last + 1 or held.last - held.first >= JOINS or len(line.text) > MAX_LINE or begins(line.text):
        return False
    if not held.said:  # the line before said nothing by itself, or it is none of ours
        before = _say(held.text, ended=True) if len(held.text) <= MAX_LINE else []
        if not before or before[-1].findings or before[-1].reason:
            return False
    text = held.text + line.text[behind_transport(line.text) :]
    said = _say(text, ended=ended)
    if said and said[-1].findings and not said[-1].reason:
        state.held = None
        _enter(state, held.first, said)
        return True
    if said and said[-1].reason:
        state.held = _Held(text, held.first, line.number, said)
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
        found = records(line)
    except ValueError:
        ours = b'"asctime"' in line or b'"message"' in line
        return [_Said(None, [], EXPECTED["json"])] if ours else []
    said = []
    for at, record in enumerate(found):
        try:
            said.append(_Said(record, understand(record.body, ended=ended or at + 1 < len(found))))
        except Cut as cut:
            said.append(_Said(record, list(cut.findings), cut.reason))
    return said


def _frequent(state: _State, kind: str, line: bytes, number: int, shape: Shape | None = None) -> bool:
    """Read a line that holds one frequent record and nothing else, and learn its shape; False if it is none."""
    match = next((hit for pattern in WHOLE[kind] if (hit := pattern.fullmatch(line))), None)
    if match is None:
        return False
    found = match.groupdict()
    if kind == "access":
        _calls(state, line, np.array([number]))
    elif (row := row_of(kind, found)) is not None:
        state.rows[kind].append((number, stamp_of(found), engine_of(found), row))
    else:
        state.rejects.append((number, EXPECTED["number"]))
    if shape is not None:
        _server(state, found)
        form = learn(kind, line, match) if len(state.forms) - state.dull < SHAPES else None
        if form is not None:
            _teach(state, shape, form)
    return True


def _teach(state: _State, shape: Shape, form: Form) -> None:
    """Learn a shape; of those that differ only in how many numbers they have, the first."""
    if shape[0] not in state.places:
        state.places[shape[0]] = len(state.forms)
        state.forms.append(form)


def _headless(state: _State, line: bytes, number: int) -> None:
    """Read a line without a record head: a message alone, as people paste it, or uvicorn's start."""
    kind = next((kind for kind, literal in _ALONE if literal in line), None)
    if kind is not None:
        transport = TRANSPORT.match(line)
        record = Record(line[behind_transport(line) :].strip(), given=transport.groupdict() if transport else {})
        try:
            findings = understand(record.body) or []
        except Cut:
            findings = []
        _enter(state, number, [_Said(record, findings, None if findings else EXPECTED[kind])])
    elif started := _STARTED.search(line):
        _server(state, {"process": b"APIServer", "pid": started[1]})


# -- what they say ----------------------------------------------------------------------------------------------------


def _enter(state: _State, number: int, said: list[_Said]) -> None:
    """Enter what a line says into the rows of the block."""
    for record, findings, reason in said:
        if reason:
            state.rejects.append((number, reason))
        rest = [finding for finding in findings or () if not _counted(state, finding)]
        if record is not None and (rest or not findings):
            found = record.found
            _server(state, found)
            for finding in rest:
                _finding(state, _Place(number, stamp_of(found, record.outer), found), finding)


def _counted(state: _State, finding: Finding) -> bool:
    """Count what is only counted; such lines may be most of a log."""
    kind, fields = finding
    if kind == "access":
        _call(state, (fields["method"], fields["path"], fields["status"]), 1)
    elif kind in {"received", "added"}:
        state.counted[kind] += 1
    else:
        return False
    return True


def _server(state: _State, found: Groups) -> None:
    pid = found.get("pid")
    if pid and (found.get("process") or b"").lower() == b"apiserver":
        state.several |= found.get("rank") is not None
        state.pid = pid.decode()


def _finding(state: _State, place: _Place, finding: Finding) -> None:
    """Enter one row or event."""
    kind, fields = finding
    inside = (place.found.get("process") or b"").startswith((b"Engine", b"Worker", b"VllmWorker"))
    rank = engine_of({"rank": place.found.get("rank")})
    engine = rank if inside else NONE
    if kind in state.rows:
        label = fields.pop("engine")
        state.rows[kind].append((place.number, place.stamp, whole(label) if label else max(engine, 0), fields))
    elif kind == "version":
        _begin(state)
        state.start = (place, {**fields, "model": None})
    elif kind == "model":
        if state.start is not None and place.number - state.start[0].number <= NEAR:
            state.start[1].update(fields)
            _begin(state)
    elif kind in {"death", "error"}:
        _failure(state, place, engine, finding)
    elif kind != "listening" or inside or not rank:  # of several API servers of a server the first one counts
        if kind == "listening":
            state.instance = f"{fields['host']}:{fields['port']}"
            state.deaths.clear()
        state.events.append((place.number, place.stamp, engine, kind, fields))


def _begin(state: _State) -> None:
    """Enter the start that waited for the banner's line with the model."""
    if state.start is not None:
        place, fields = state.start
        state.events.append((place.number, place.stamp, NONE, "start", fields))
        state.start = None


def _failure(state: _State, place: _Place, engine: int, finding: Finding) -> None:
    """Enter an error; a death once per server life, for each process and request repeats it."""
    kind, fields = finding
    if kind == "error":
        if place.found.get("level") not in {b"ERROR", b"CRITICAL"}:
            return
        kind = "death" if fields["text"].endswith("EngineDeadError") else "failed"
    if kind == "death":
        key = (fields["text"], engine)
        if key in state.deaths:
            return
        state.deaths.add(key)
    state.events.append((place.number, place.stamp, engine, kind, fields))


def _counts(state: _State) -> None:
    """Enter the counts of the whole file, at its last line and instant."""
    _begin(state)
    stamp = Stamp(iso=state.calendar.anchor if state.calendar.dated else NAN)
    for (method, path, status), count in sorted(state.calls.items()):
        fields = {"method": method, "path": path, "status": status, "count": count}
        state.events.append((state.tally.lines, stamp, NONE, "access", fields))
    if state.counted:
        counts = {kind: state.counted[kind] for kind in ("received", "added")}
        state.events.append((state.tally.lines, stamp, NONE, "requests_logged", counts))
