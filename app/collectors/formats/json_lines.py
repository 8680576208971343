"""What the readers of JSON lines share: lines within bounds, values of the right type or unknown, the closing count.

Nothing here trusts its input: a line may be cut, endless, in another encoding, or hold any JSON at all.
"""

import json
import math
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Final
from urllib.parse import urlsplit
from zipfile import BadZipFile

from analyzers.model import Batch
from app.collectors.formats import MAX_REJECTED

MAX_LINE: Final = 64 << 20  # bytes; a scrape of 400 engines has 12 MiB
READ_ERRORS: Final = (EOFError, OSError, zlib.error, BadZipFile)  # a cut or damaged archive below the stream
CUT: Final = "expected: more bytes, the file is cut"
_INT64: Final = 1 << 63
_LONE_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_SPACE: Final = re.compile(r"[ \t\r\n]*+")
_DECODER: Final = json.JSONDecoder()


class Tail(str):
    """The text of a JSON value that a head cuts."""

    __slots__ = ()


@dataclass(slots=True)
class Tally:
    """Lines read and rejected; `batches` are the last of a reader."""

    lines: int = 0
    rejected: int = 0
    last: int = 0  # line rejected last
    reasons: list[tuple[int, str]] = field(default_factory=list)

    def reject(self, line: int, reason: str) -> None:
        """Count a line (1-based) that was not understood, once; `reason` says what was expected, never the text itself."""
        if line == self.last:
            return
        self.last = line
        self.rejected += 1
        if len(self.reasons) < MAX_REJECTED:
            self.reasons.append((line, reason))

    def batches(self, *, instance: str | None = None, pid: str | None = None) -> Iterator[Batch]:
        """Yield the rows of rejected_line, if any, then the one row of source_file."""
        if self.reasons:
            lines, reasons = zip(*self.reasons, strict=True)
            yield Batch("rejected_line", {"line": list(lines), "reason": list(reasons)})
        yield Batch(
            "source_file",
            {"lines": [self.lines], "rejected": [self.rejected], "instance": [instance], "pid": [pid], "clock_offset_s": [None]},
        )


def lines(stream: BinaryIO, tally: Tally) -> Iterator[tuple[int, bytes]]:
    """Yield each line that is not blank, with its number. A line over MAX_LINE and the end of a damaged archive are rejected."""
    try:
        while line := stream.readline(MAX_LINE + 1):
            tally.lines += 1
            if len(line) > MAX_LINE:
                tally.reject(tally.lines, f"expected: a line of at most {MAX_LINE} bytes")
                while line and not line.endswith(b"\n"):
                    line = stream.readline(1 << 20)
            elif not line.isspace():
                yield tally.lines, line
    except READ_ERRORS:
        tally.lines += 1
        tally.reject(tally.lines, CUT)


def objects(source: Iterable[tuple[int, bytes]], tally: Tally) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the JSON object of each line; reject other lines."""
    for number, line in source:
        value = loads(line)
        if isinstance(value, dict):
            yield number, value
        else:
            tally.reject(number, "expected: a JSON object")


def documents(source: Iterable[tuple[int, bytes]], stream: BinaryIO, tally: Tally) -> Iterator[tuple[int, Any]]:
    """Yield line and value of each JSON value: one on a line, or a few that people have spread over many lines.

    `source` are the `lines` of `stream`.
    Text that is not JSON is rejected. A spread value needs its whole text in memory: up to MAX_LINE bytes of it are read.
    """
    first = True
    for line, text in source:
        spread, first = first and text.rstrip().endswith((b"{", b"[", b",")), False
        if not spread:
            value = loads(text)
            if value is None:
                tally.reject(line, "expected: JSON")
            else:
                yield line, value
            continue
        raw = text + _rest(stream, tally)
        if len(raw) > MAX_LINE:
            tally.reject(line, f"expected: a document of at most {MAX_LINE} bytes")
            return
        yield from _spread(raw.decode("utf-8", "replace").lstrip("\ufeff"), line, tally)


def _rest(stream: BinaryIO, tally: Tally) -> bytes:
    """Read on, up to MAX_LINE bytes, and count the lines."""
    parts: list[bytes] = []
    try:
        while sum(map(len, parts)) <= MAX_LINE and (part := stream.read(1 << 20)):
            parts.append(part)
    except READ_ERRORS:
        pass  # the document is cut, and says so itself
    rest = b"".join(parts)
    tally.lines += rest.count(b"\n") + (rest[-1:] not in (b"\n", b""))
    return rest


def _spread(text: str, line: int, tally: Tally) -> Iterator[tuple[int, Any]]:
    end = 0
    while (at := _skip(text, end)) < len(text):
        line += text.count("\n", end, at)
        try:
            value, end = _DECODER.raw_decode(text, at)
            value = _encodable(value)
        except (ValueError, RecursionError):
            tally.reject(line, "expected: JSON")
            return
        yield line, value
        line += text.count("\n", at, end)


def loads(raw: bytes) -> Any:
    """Return the JSON value, or None where the text is not JSON. Its strings can all be encoded as UTF-8."""
    text = raw.decode("utf-8", "replace").lstrip("\ufeff")
    try:
        value = json.loads(text)
        return _encodable(value) if "\\ud" in text or "\\uD" in text else value
    except (ValueError, RecursionError):
        return None


def _encodable(value: Any) -> Any:
    """Replace lone surrogates: as an escape they are legal JSON, but no text. RecursionError: nested too deep."""
    if isinstance(value, str):
        return _LONE_SURROGATE.sub("\ufffd", value)
    if isinstance(value, list):
        return [_encodable(item) for item in value]
    if isinstance(value, dict):
        return {_encodable(key): _encodable(item) for key, item in value.items()}
    return value


def head_fields(head: bytes | str) -> dict[str, Any]:
    """Return the fields of the first JSON object of a head, as far as it reaches; the value that the head cuts is a Tail."""
    text = head if isinstance(head, str) else head.decode("utf-8", "replace").lstrip("\ufeff")
    found: dict[str, Any] = {}
    at = _skip(text, 0)
    if text[at : at + 1] != "{":
        return found
    while True:
        try:
            key, at = _DECODER.raw_decode(text, _skip(text, at + 1))
        except (ValueError, RecursionError):
            return found
        at = _skip(text, at)
        if not isinstance(key, str) or text[at : at + 1] != ":":
            return found
        at = _skip(text, at + 1)
        try:
            found[key], at = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError):
            found[key] = Tail(text[at:])
            return found
        at = _skip(text, at)
        if text[at : at + 1] != ",":
            return found


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def number(value: Any) -> float | None:
    """Return a finite JSON number; anything else is unknown."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        result = float(value)
    except OverflowError:
        return None
    return result if math.isfinite(result) else None


def seconds(value: Any) -> float | None:
    """Return a duration or an instant: a number from 0 up to the year 5138; above, it is in another unit."""
    result = number(value)
    return result if result is not None and 0 <= result < 1e11 else None


def integer(value: Any) -> int | None:
    """Return a JSON integer that the store can hold; anything else is unknown."""
    if isinstance(value, bool):
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and -_INT64 <= value < _INT64 else None


def count(value: Any) -> int | None:
    """Return a JSON integer that counts something; a negative one is unknown."""
    result = integer(value)
    return result if result is not None and result >= 0 else None


def string(value: Any) -> str | None:
    """Return a JSON string that is not empty; anything else is unknown."""
    return str(value) if isinstance(value, str) and value else None


def instance_of(url: Any) -> str | None:
    """Return host:port of a URL, without credentials; None where it has no host."""
    if not isinstance(url, str):
        return None
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    if not host:
        return None
    if port is None:
        port = 443 if parts.scheme == "https" else 80
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def table(name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Batch:
    """Make a batch of rows, each in the order of `columns`."""
    by_column: Mapping[str, list[Any]] = {column: [row[at] for row in rows] for at, column in enumerate(columns)}
    return Batch(name, by_column)
