"""A growing log: standard input (`kubectl logs -f ... | weaklink ingest -`) or a file that is followed, also when it is rotated.

Whole lines are handed over, many at once; a line without its end waits for it, and is handed over at the end. A file that was
replaced (another inode) or cut (shorter than what was read) is read to its end, then from the start of the new one. What came
between two rotations that are both missed is lost.
"""

import os
import select
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Final

POLL_S: Final = 0.3
AT_ONCE: Final = 8 << 20  # bytes
GATHER_S: Final = 1.0  # what a pipe gives within is handed over together
PAUSE_S: Final = 0.05  # without anything: it is handed over
MAX_LINE: Final = 4 << 20  # bytes without a line end that are held

Take = Callable[[bytes, int], None]  # whole lines, and the position in the file behind them


def follow(path: Path, take: Take, stop: threading.Event, start: int = 0) -> None:
    """Hand over what a file holds from byte `start` on, and what comes, until `stop`. OSError: it cannot be opened."""
    file: BinaryIO = path.open("rb")
    try:
        if os.fstat(file.fileno()).st_size >= start:
            file.seek(start)
        held = b""
        while True:
            stopped = stop.is_set()
            fresh = file.read(AT_ONCE)
            held = _lines(held + fresh, take, file.tell(), last=False)
            if fresh:
                continue
            if stopped:
                break
            other = _replacement(path, file)
            if other is not None:
                _lines(held, take, 0, last=True)
                file.close()
                file, held = other, b""
                continue
            stop.wait(POLL_S)
    finally:
        file.close()


def stream(source: BinaryIO, take: Take, stop: threading.Event) -> None:
    """Hand over what comes through a pipe, until it ends or `stop`."""
    held, at, ended = b"", 0, False
    while not ended and not stop.is_set():
        fresh, ended = _gathered(source.fileno())
        at += len(fresh)
        if fresh:
            held = _lines(held + fresh, take, at, last=False)
    _lines(held, take, at, last=True)


def _gathered(descriptor: int) -> tuple[bytes, bool]:
    """What a pipe holds and what follows at once, and whether that was its end: a pipe gives 64 KiB, and storing those alone is slow."""
    parts: list[bytes] = []
    size, wait, until = 0, POLL_S, time.monotonic() + GATHER_S
    while size < AT_ONCE and (not parts or time.monotonic() < until) and select.select([descriptor], [], [], wait)[0]:
        fresh = os.read(descriptor, AT_ONCE - size)
        if not fresh:
            return b"".join(parts), True
        parts.append(fresh)
        size, wait = size + len(fresh), PAUSE_S
    return b"".join(parts), False


def _lines(text: bytes, take: Take, at: int, *, last: bool) -> bytes:
    """Hand over the whole lines of a text that ends at byte `at`; what is left."""
    cut = len(text) if last or len(text) > MAX_LINE else text.rfind(b"\n") + 1
    if cut:
        take(text[:cut], at - (len(text) - cut))
    return text[cut:]


def _replacement(path: Path, file: BinaryIO) -> BinaryIO | None:
    """The file that now has the name, opened, where it is another one or was cut; None where nothing changed."""
    try:
        now, held = path.stat(), os.fstat(file.fileno())
        if now.st_ino == held.st_ino and now.st_size >= file.tell():
            return None
        return path.open("rb")
    except OSError:
        return None  # between two files of a rotation
