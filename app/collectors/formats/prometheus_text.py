"""Prometheus or OpenMetrics text of a vLLM server's /metrics, all versions since 0.8.5, and of routers (production-stack, llm-d, Dynamo).

Written by
    - `curl .../metrics > file`, once or several times into one file: a new scrape begins where an already seen series
      comes again. Such a text has no time: its scrapes are numbered 0, 1, 2 and are not `timed`.
    - recorders, as JSON lines {"t", "url", "text"}, optional "dur" seconds; "error" in place of "text" where it failed.
    - federation and dumps, with a time beside each sample.

Traps
    - The numbers are taken while the server answers, so a recorded scrape and its samples are at t + dur, not at t. Where all
      samples carry one and the same time of their own, they and the scrape are at that.
    - A sample's own time is in milliseconds in Prometheus text and in seconds in OpenMetrics. The two cannot be told by the
      content type that was lost with the HTTP answer, but by size: 1e11 s is the year 5138, 1e11 ms is 1973.
    - NaN and infinite samples (a summary without observations) are unknown, and are not stored.
    - Ray Serve writes `ray_vllm_` or `vllm_` in place of `vllm:`.
    - Series that say nothing of latency (python_*, and the start times *_created) are dropped.
    - A text whose last line has no end is cut there, and the number on that line may lack digits: it is rejected.

Source: https://prometheus.io/docs/instrumenting/exposition_formats/; the reference in tests is prometheus_client.parser.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Final

import numpy as np

from analyzers.model import Array, Batch
from app.collectors.formats.json_lines import (
    CUT,
    MAX_LINE,
    READ_ERRORS,
    Tally,
    head_fields,
    instance_of,
    lines,
    loads,
    seconds,
    table,
)

NAME: Final = "prometheus_text"
KEPT: Final = (
    *("vllm:", "vllm_", "ray_vllm_", "http_", "process_"),
    *("inference_extension_", "inference_objective_", "inference_pool_", "llm_d_epp_", "llm_d_router_epp_"),  # routers: llm-d
    *("dynamo_frontend_", "dynamo_component_router_", "dynamo_router_"),  # Dynamo; production-stack writes vllm:
)
EXPECTED: Final = "expected: name{labels} value [timestamp]"
ROWS: Final = 1 << 17  # samples a batch
BLOCK: Final = 1 << 20  # bytes of raw text at once
FOLLOWED: Final = 400_000  # spellings of series that a follower remembers; 1000 engines have 258,000
SERIES: Final = ("series", "instance", "name", "engine", "model_name", "labels")
SCRAPE: Final = ("instance", "ts", "duration_s", "ok", "timed")

_LINE: Final = re.compile(
    r"""[ \t]*+ ([a-zA-Z_:][a-zA-Z0-9_:]*+)? [ \t]*+
        (?: \{ ((?: [^"{}]++ | "(?:[^"\\]++|\\.)*+" )*+) \} )? [ \t]*+
        ([^\s#{]\S*+) (?: [ \t]++ ([^\s#]\S*+) )? (?: [ \t]++ \#.*+ )? [ \t]*+ \Z""",
    re.VERBOSE,
)
_LABEL: Final = re.compile(
    r"""[ \t]*+ (?: "((?:[^"\\]++|\\.)*+)" | ([a-zA-Z_][a-zA-Z0-9_]*+) ) [ \t]*+
        (?: = [ \t]*+ "((?:[^"\\]++|\\.)*+)" )? [ \t]*+ (?: , [ \t]*+ | \Z )""",
    re.VERBOSE,
)
_ESCAPE: Final = re.compile(r'\\([\\n"])')
_COMMENT: Final = re.compile(r"# (?:HELP|TYPE|UNIT) [a-zA-Z_:]|# EOF")


@dataclass(slots=True)
class _Book:
    """The series of one file, and samples that wait for their batch."""

    texts: dict[str | None, dict[str, int]] = field(default_factory=dict)  # by instance: a series as written -> its place
    series: list[int] = field(default_factory=list)  # by place: number of the series, -1 where it is dropped
    last: list[int] = field(default_factory=list)  # by place: the last raw scrape that had it
    numbers: dict[tuple[str | None, ...], int] = field(default_factory=dict)  # what makes a series -> its number
    new: list[tuple[Any, ...]] = field(default_factory=list)
    scrapes: list[tuple[Any, ...]] = field(default_factory=list)
    parts: list[tuple[Array, Array, Array]] = field(default_factory=list)  # series, ts, value
    rows: int = 0
    raw: int = 0  # number of the raw scrape
    untimed: bool = False
    stamps: set[float] = field(default_factory=set)  # of a raw text


def sniff(head: bytes) -> bool:
    """Recognise JSON lines of a recorder, and exposition text."""
    fields = head_fields(head)
    if fields:
        body = fields.get("text", fields.get("error"))
        return "t" in fields and isinstance(fields.get("url"), str) and isinstance(body, str)
    texts = [line for line in head.decode("utf-8", "replace").split("\n")[:-1] if line.strip()][:50]
    told = sum(bool(_COMMENT.match(line)) or line.startswith(KEPT) for line in texts)
    fine = sum(line.startswith("#") or _LINE.match(line.rstrip("\r")) is not None for line in texts)
    return told > 0 and fine >= 0.9 * len(texts)


def read(stream: BinaryIO, reference_ts: float) -> Iterator[Batch]:  # noqa: ARG001 (the times here have their year)
    """Yield batches of series, sample and scrape."""
    tally, book = Tally(), _Book()
    source = lines(stream, tally)
    first = next(source, None)
    if first is not None and first[1].removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"{"):
        while first is not None:
            _snapshot(book, tally, *first)
            if max(book.rows, len(book.scrapes)) >= ROWS:
                yield from _flush(book)
            first = next(source, None)
    elif first is not None:
        for number, texts in _blocks(stream, tally, first[1].removeprefix(b"\xef\xbb\xbf")):
            _raw(book, tally, number, texts)
            if book.rows >= ROWS:
                yield from _flush(book)
        if book.untimed:
            yield table("scrape", SCRAPE, [(None, float(at), None, True, False) for at in range(book.raw + 1)])
        if book.stamps:
            yield table("scrape", SCRAPE, [(None, ts, None, True, True) for ts in sorted(book.stamps)])
    yield from _flush(book)
    instances = [name for name in book.texts if name is not None]
    yield from tally.batches(instance=instances[0] if len(instances) == 1 else None)


def follow() -> Callable[[Mapping[str, Any]], list[Batch]]:
    """A reader of one line of a recorder after another, as a dictionary, that remembers the series: for a live target.

    The batches of each line are complete, as of a file with that line only, but a series is told once and keeps its number.
    """
    book = _Book()

    def one(fields: Mapping[str, Any]) -> list[Batch]:
        nonlocal book
        if len(book.series) > FOLLOWED:  # labels that never repeat: forget, and tell the series again
            book = _Book()
        tally = Tally(lines=1)
        _take(book, tally, 1, fields)
        return [*_flush(book), *tally.batches()]

    return one


def _snapshot(book: _Book, tally: Tally, number: int, line: bytes) -> None:
    """Take one line of a recorder."""
    _take(book, tally, number, loads(line))


def _take(book: _Book, tally: Tally, number: int, fields: Any) -> None:
    """Take what one line of a recorder says."""
    ts = seconds(fields.get("t")) if isinstance(fields, Mapping) else None
    if ts is None:
        tally.reject(number, 'expected: a JSON object {"t": epoch seconds, "url", "text"}')
        return
    instance, duration, text = instance_of(fields.get("url")), seconds(fields.get("dur")), fields.get("text")
    known = book.texts.setdefault(instance, {})
    ts += duration or 0.0
    if not isinstance(text, str):
        if "error" in fields:
            book.scrapes.append((instance, ts, duration, False, True))
        else:
            tally.reject(number, 'expected: "text" or "error"')
        return
    places, values, stamps, _, bad = _samples(book, instance, known, text.split("\n"), -1)
    if bad:
        more = f", and {len(bad) - 1} more" if len(bad) > 1 else ""
        tally.reject(number, f"text line {bad[0] + 1}: {EXPECTED}{more}")
    if stamps and len(stamps) == len(places) and len(own := set(stamps.values())) == 1:
        ts = own.pop()
    book.scrapes.append((instance, ts, duration, bool(places) or not bad, True))
    _keep(book, places, values, np.full(len(places), ts), stamps)


def _raw(book: _Book, tally: Tally, number: int, texts: list[str]) -> None:
    """Take lines of raw text, of which the first has this number."""
    before = book.raw
    known = book.texts.setdefault(None, {})
    places, values, stamps, starts, bad = _samples(book, None, known, texts, before)
    for at in bad:
        tally.reject(number + at, EXPECTED)
    steps = np.zeros(len(places))
    steps[starts] = 1
    book.untimed = book.untimed or len(stamps) < len(places)
    book.stamps.update(stamps.values())
    _keep(book, places, values, before + np.cumsum(steps), stamps)


def _samples(
    book: _Book, instance: str | None, known: dict[str, int], texts: list[str], scrape: int
) -> tuple[list[int], list[float], dict[int, float], list[int], list[int]]:
    """Return places and values of the samples, own times, which of them start a scrape (none if `scrape` < 0), bad lines."""
    places: list[int] = []
    values: list[float] = []
    stamps: dict[int, float] = {}
    starts: list[int] = []
    bad: list[int] = []
    last = book.last
    for at, line in enumerate(texts):
        text, _, raw = line.rpartition(" ")
        place = known.get(text)
        try:
            if place is None or "_" in raw:
                if line.startswith("#"):
                    continue
                found = _slow(book, instance, known, line)
                if found is None:
                    continue
                place, value, stamp = found
                if stamp is not None:
                    stamps[len(places)] = stamp
                    places.append(place)
                    values.append(value)
                    continue
            else:
                value = float(raw)
        except ValueError:
            bad.append(at)
            continue
        if last[place] == scrape >= 0:
            scrape += 1
            starts.append(len(places))
        last[place] = scrape
        places.append(place)
        values.append(value)
    book.raw = max(book.raw, scrape)
    return places, values, stamps, starts, bad


def _slow(book: _Book, instance: str | None, known: dict[str, int], line: str) -> tuple[int, float, float | None] | None:
    """Return place, value and own time of a line that the cache does not know; None: a comment. ValueError: malformed."""
    line = line.rstrip("\r")
    if not line or line.isspace() or line.lstrip(" \t").startswith("#"):
        return None
    text, _, stamp = line.rpartition(" ")
    text, _, value = text.rpartition(" ")
    place = known.get(text)
    if place is not None:
        return place, _number(value), _stamp(stamp)
    match = _LINE.match(line)
    if match is None:
        raise ValueError(EXPECTED)
    name, labels, value, stamp = match.groups()
    result = _number(value), _stamp(stamp) if stamp else None
    text = line[: match.start(3)].strip(" \t")
    place = known.get(text)
    if place is None:
        place = known[text] = _place(book, instance, name, labels or "")
    return place, *result


def _number(raw: str) -> float:
    if "_" in raw:  # Python takes 1_000 for a number, the format does not
        raise ValueError(EXPECTED)
    return float(raw)


def _stamp(raw: str) -> float:
    value = _number(raw)
    value = value / 1000 if value >= 1e11 else value
    if seconds(value) is None:
        raise ValueError(EXPECTED)
    return value


def _place(book: _Book, instance: str | None, name: str | None, text: str) -> int:
    """Give a place to a series in a spelling that is new. ValueError: malformed labels."""
    labels: dict[str, str] = {}
    at = 0
    while at < len(text):
        match = _LABEL.match(text, at)
        if match is None:
            raise ValueError(EXPECTED)
        quoted, key, value = match.groups()
        if key is None and value is None and name is None:
            name = _unescape(quoted)
        else:
            key = key or _unescape(quoted or "")
            if value is None or key in labels:
                raise ValueError(EXPECTED)
            labels[key] = _unescape(value)
        at = match.end()
    if not name:
        raise ValueError(EXPECTED)
    number = -1
    if name.startswith(KEPT) and not name.endswith("_created"):
        engine, model = labels.pop("engine", None), labels.pop("model_name", None)
        series = (instance, name, engine, model, json.dumps(labels, sort_keys=True))
        if series not in book.numbers:
            book.numbers[series] = len(book.numbers)
            book.new.append((book.numbers[series], *series))
        number = book.numbers[series]
    book.series.append(number)
    book.last.append(-2)
    return len(book.series) - 1


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda match: "\n" if match[1] == "n" else match[1], text) if "\\" in text else text


def _keep(book: _Book, places: list[int], values: list[float], ts: Array, stamps: dict[int, float]) -> None:
    """Let the samples of kept series that are numbers wait for their batch."""
    if not places:
        return
    if stamps:
        ts[list(stamps)] = list(stamps.values())
    series = np.array(book.series, dtype=np.int64)[places]
    value = np.array(values, dtype=np.float64)
    keep = (series >= 0) & np.isfinite(value)
    book.parts.append((series[keep], ts[keep], value[keep]))
    book.rows += int(keep.sum())


def _flush(book: _Book) -> Iterator[Batch]:
    """Yield what waits, in batches of at most ROWS samples; series before their samples."""
    if book.new:
        yield table("series", SERIES, book.new)
    if book.scrapes:
        yield table("scrape", SCRAPE, book.scrapes)
    if book.rows:
        columns = [np.concatenate(part) for part in zip(*book.parts, strict=True)]
        for at in range(0, book.rows, ROWS):
            yield Batch("sample", {key: col[at : at + ROWS] for key, col in zip(("series", "ts", "value"), columns, strict=True)})
    book.new, book.scrapes, book.parts, book.rows = [], [], [], 0


def _blocks(stream: BinaryIO, tally: Tally, rest: bytes) -> Iterator[tuple[int, list[str]]]:
    """Yield the number of the first line, and whole lines. `rest` is the first line, which the tally has counted."""
    number = tally.lines
    tally.lines -= 1
    damaged = False
    try:
        while True:
            end = rest.rfind(b"\n") + 1
            if end:
                texts = rest[: end - 1].decode("utf-8", "replace").split("\n")
                tally.lines += len(texts)
                yield number, texts
                number, rest = tally.lines + 1, rest[end:]
            elif len(rest) > MAX_LINE:
                tally.lines += 1
                tally.reject(number, f"expected: a line of at most {MAX_LINE} bytes")
                while rest and b"\n" not in rest:
                    rest = stream.read(BLOCK)
                number, rest = number + 1, rest[rest.find(b"\n") + 1 :]
                continue
            block = stream.read(BLOCK)
            if not block:
                break
            rest += block
    except READ_ERRORS:
        damaged = True
    if rest or damaged:
        tally.lines += 1
        tally.reject(number, CUT)
