"""Scrapes, logs and spans of running servers written as a bundle, which `analyze` reads: never into a database, which one process holds.

While it records, everything lies in a folder beside the bundle, which is a bundle itself: what is killed leaves that folder.
Lines of a log that could hold a user's text (requests logged with their prompts) are cut where it begins; of spans nothing is
kept but the ids, counts and seconds of requests.
"""

import asyncio
import contextlib
import errno
import gzip
import json
import os
import re
import shutil
import socket
import threading
import time
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, Final

import uvicorn
from starlette.applications import Starlette

from app.collectors.formats import otlp_spans
from app.collectors.sources import otlp, scrape

MAX_BYTES: Final = 1 << 30  # packed, of the whole bundle
LEVEL: Final = 5
FLUSH_S: Final = 2.0  # what a kill may cost
POLL_S: Final = 0.5  # between two looks at a log
LOG_HEAD: Final = 8 << 20  # bytes of what a log held before: start-up lines,
LOG_TAIL: Final = 64 << 20  # and the latest
BLOCK: Final = 1 << 20
_USER_TEXT: Final = re.compile(
    rb"Received request |Generated response |Request \S+ details: |Dumping (?:input data|scheduler output)|prompt: |prompt_token_ids"
)
REMOVED: Final = b"[removed]"
OTLP_PORT: Final = 4318  # OTLP's own, over HTTP


class RecordError(Exception):
    """The bundle cannot be written; the message says why."""


@dataclass(slots=True)
class State:
    """How a recording goes. `stopped`: why it ended, where it was not the user's wish."""

    scrapes: int = 0
    failed: int = 0
    log_lines: int = 0
    cut_lines: int = 0
    spans: int = 0
    bytes: int = 0
    errors: dict[str, str] = field(default_factory=dict)  # by URL: of the last scrape
    stopped: str | None = None

    def progress(self) -> str:
        """One line for a terminal."""
        errors = "".join(f"  {url}: {error}" for url, error in self.errors.items())
        spans = f"{self.spans} spans, " if self.spans else ""
        return (
            f"{self.scrapes} scrapes, {self.failed} failed, {self.log_lines} log lines, {spans}{self.bytes / 1e6:.1f} MB{errors}"
        )

    def summary(self) -> dict[str, Any]:
        """What was recorded, for programs."""
        return {
            "scrapes": self.scrapes,
            "failed": self.failed,
            "log_lines": self.log_lines,
            "cut_lines": self.cut_lines,
            "spans": self.spans,
            "bytes": self.bytes,
            "stopped": self.stopped or "as asked",
            "errors": [f"{url}: {error}" for url, error in self.errors.items()],
        }


@dataclass(slots=True)
class _File:
    """One packed file of the recording."""

    raw: BinaryIO
    packed: gzip.GzipFile
    flushed: float = 0.0

    def write(self, data: bytes) -> None:
        """Write, and see to it that it is on the disk soon."""
        self.packed.write(data)
        if time.monotonic() - self.flushed > FLUSH_S:
            self.packed.flush(zlib.Z_SYNC_FLUSH)
            self.raw.flush()
            self.flushed = time.monotonic()

    def close(self) -> None:
        """Complete the file."""
        self.packed.close()
        self.raw.close()


def folder_of(out: Path) -> Path:
    """Where the recording lies until it is complete."""
    return out.with_name(f"{out.name}.recording")


def record(
    targets: Sequence[scrape.Target], out: Path, state: State, stop: threading.Event, *, logs: Sequence[Path] = (),
    otlp_at: tuple[str, int] | None = None, max_bytes: int = MAX_BYTES,
) -> None:  # fmt: skip
    """Record until `stop` or until `max_bytes` are written, then pack it as `out`. RecordError: it cannot be written.

    `otlp_at`: host and port where spans are taken (POST /v1/traces).
    """
    folder = folder_of(out)
    if out.exists() or folder.exists():
        raise RecordError(f"{out if out.exists() else folder}: is there already; choose another name")
    for log in logs:
        if not log.is_file():
            raise RecordError(f"{log}: no such log file")
    listening = _listening(*otlp_at) if otlp_at else None
    try:
        folder.mkdir(parents=True)
        started = time.time()
        asyncio.run(_Recording(folder, state, stop, max_bytes).run(targets, logs, listening))
        (folder / "manifest.toml").write_text(_manifest(targets, state, started), encoding="utf-8")
        _pack(folder, out)
    except OSError as error:
        raise RecordError(f"{out}: {error.strerror or error}; what was recorded lies in {folder}") from error
    finally:
        if listening is not None:
            listening.close()


def _listening(host: str, port: int) -> socket.socket:
    """The socket that spans are sent to, bound before anything is recorded. RecordError: the port is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
    except OSError as error:
        found.close()
        why = "is taken; give another --otlp-port" if error.errno == errno.EADDRINUSE else f"cannot be used ({error.strerror})"
        raise RecordError(f"{host}:{port}: {why}") from error
    return found


@dataclass(slots=True)
class _Recording:
    """The files of one recording while it runs."""

    folder: Path
    state: State
    stop: threading.Event
    max_bytes: int
    done: asyncio.Event = field(default_factory=asyncio.Event)
    files: dict[str, _File] = field(default_factory=dict)

    async def run(self, targets: Sequence[scrape.Target], logs: Sequence[Path], listening: socket.socket | None) -> None:
        """Write until the end."""
        try:
            async with asyncio.TaskGroup() as group:
                for log in logs:
                    group.create_task(self.follow(log, _name(log, logs)))
                if listening is not None:
                    group.create_task(self.receive(listening))
                group.create_task(self.until())
                group.create_task(scrape.watch(targets, self.take, self.done))
        except* OSError as errors:
            raise errors.exceptions[0] from None
        finally:
            for file in self.files.values():
                file.close()

    async def until(self) -> None:
        """Wait for the end."""
        while not self.stop.is_set():  # noqa: ASYNC110 a thread's event cannot be awaited
            await asyncio.sleep(0.1)
        self.done.set()

    def write(self, name: str, data: bytes) -> None:
        """Append to a file; at the size bound everything ends."""
        if name not in self.files:
            raw = (self.folder / name).open("wb")
            self.files[name] = _File(raw, gzip.GzipFile("", "wb", LEVEL, raw))
        self.files[name].write(data)
        self.state.bytes = sum(file.raw.tell() for file in self.files.values())
        if self.state.bytes >= self.max_bytes and not self.done.is_set():
            self.state.stopped = f"at the size bound of {self.max_bytes / 1e6:,.1f} MB"
            self.stop.set()
            self.done.set()

    def take(self, line: scrape.Line) -> None:
        """Write one scrape."""
        if self.done.is_set():
            return
        self.state.scrapes += 1
        self.state.failed += "error" in line
        self.state.errors.pop(line["url"], None)
        if "error" in line:
            self.state.errors[line["url"]] = line["error"]
        self.write("metrics.jsonl.gz", json.dumps(line).encode() + b"\n")

    async def receive(self, listening: socket.socket) -> None:
        """Write the request spans that are sent, each export before it is answered."""
        loop = asyncio.get_running_loop()

        async def put(export: dict[str, Any]) -> None:
            found = otlp_spans.kept(export)
            if found is not None and not self.done.is_set():
                scopes = [scope for group in found["resourceSpans"] for scope in group["scopeSpans"]]
                self.state.spans += sum(len(scope["spans"]) for scope in scopes)
                self.write("spans.jsonl.gz", json.dumps(found).encode() + b"\n")

        def take(export: dict[str, Any], _: str | None) -> None:
            asyncio.run_coroutine_threadsafe(put(export), loop).result(60)

        app = Starlette(routes=otlp.routes(take))
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off", timeout_graceful_shutdown=2))
        serving = asyncio.ensure_future(server.serve([listening]))
        await asyncio.wait({serving, asyncio.ensure_future(self.done.wait())}, return_when=asyncio.FIRST_COMPLETED)
        server.should_exit = True
        await serving

    async def follow(self, log: Path, name: str) -> None:
        """Write what the log holds, and what comes; also when it is rotated or begun anew."""
        file = log.open("rb")
        try:
            rest = self.lines(name, _before(file))
            while True:
                last = self.done.is_set()  # one more look after the end
                while block := file.read(BLOCK):
                    rest = self.lines(name, rest + block)
                    await asyncio.sleep(0)
                if _replaced(log, file):
                    rest = self.lines(name, rest + b"\n") if rest else rest
                    file.close()
                    file = log.open("rb")
                    continue
                if last:
                    break
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.done.wait(), POLL_S)
            self.lines(name, rest + b"\n" if rest else rest)
        finally:
            file.close()

    def lines(self, name: str, data: bytes) -> bytes:
        """Write the whole lines of `data` without a user's text; return what follows them."""
        end = data.rfind(b"\n") + 1
        if not end:
            return data if len(data) < LOG_HEAD else b""  # a line without end is none
        kept = []
        for line in data[:end].splitlines(keepends=True):
            self.state.log_lines += 1
            found = _USER_TEXT.search(line)
            if found is None:
                kept.append(line)
                continue
            self.state.cut_lines += 1
            if not line.lstrip().startswith(b"{"):  # JSON that is cut is none: such a line is left out
                kept.append(line[: found.end()] + REMOVED + b"\n")
        self.write(name, b"".join(kept))
        return data[end:]


def _before(file: BinaryIO) -> bytes:
    """What a log holds already: all of it, or of a large one the beginning and the end. The file then stands at its end."""
    size = os.fstat(file.fileno()).st_size
    if size <= LOG_HEAD + LOG_TAIL:
        return file.read(size)
    head = file.read(LOG_HEAD)
    file.seek(size - LOG_TAIL)
    tail = file.read(LOG_TAIL)
    return head[: head.rfind(b"\n") + 1] + tail[tail.find(b"\n") + 1 :]


def _replaced(log: Path, file: BinaryIO) -> bool:
    """Whether the path now names another file (rotated), or the file is shorter than what was read (begun anew)."""
    try:
        now, held = log.stat(), os.fstat(file.fileno())
    except FileNotFoundError:
        return False  # between two files
    return (now.st_ino, now.st_dev) != (held.st_ino, held.st_dev) or now.st_size < file.tell()


def _name(log: Path, logs: Sequence[Path]) -> str:
    """The log's name in the bundle; numbered where two are called the same."""
    same = [other for other in logs if other.name == log.name]
    number = f"-{same.index(log) + 1}" if len(same) > 1 else ""
    return f"{log.stem}{number}{log.suffix or '.log'}.gz"


def _manifest(targets: Sequence[scrape.Target], state: State, started: float) -> str:
    """What the recording is, as TOML."""
    said: dict[str, Any] = {
        "title": f"Recording of {', '.join(target.instance for target in targets)}",
        "kind": "recorded",
        "recorded": datetime.fromtimestamp(started, UTC).isoformat(timespec="seconds"),
        "seconds": round(time.time() - started, 1),
        "targets": [scrape.public(target.url) for target in targets],
        "scrapes": state.scrapes,
        "failed": state.failed,
        "log_lines": state.log_lines,
        "cut_lines": state.cut_lines,
        "spans": state.spans,
        "stopped": state.stopped or "as asked",
    }
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in said.items())


def _pack(folder: Path, out: Path) -> None:
    """Make the bundle of the folder: complete under its name, or not there. Its files are packed already."""
    part = out.with_name(f"{out.name}.part")
    with zipfile.ZipFile(part, "w", zipfile.ZIP_STORED) as archive:
        for file in sorted(folder.iterdir()):
            archive.write(file, file.name)
    part.replace(out)
    shutil.rmtree(folder)
