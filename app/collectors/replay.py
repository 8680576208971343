"""A recording served as live /metrics, for demonstrations and tests without a GPU: each server of the bundle on its own port.

An answer is the scrape that the recording has at that moment, moved to now; where the recorded scrape failed the answer is
HTTP 503. Values that are epoch seconds (process start, own times of samples) are moved too.

At another speed than 1, recorded seconds and ours differ, and what a server counts in seconds would no longer fit the clock of
who scrapes it. So each sample then carries a time of its own, a second apart where the recording is: the first ones lie in the
past, the last ones arrive when they are due.
"""

import json
import re
import tempfile
import threading
import time
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO, Final

from app.collectors.formats import prometheus_text
from app.collectors.formats.json_lines import Tally, instance_of, lines, loads, seconds
from app.collectors.sources.bundle import BundleError, members

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_CLOCK: Final = re.compile(r"^((?:process_start_time_seconds|[\w:]+_created)(?:\{[^\n]*\})? )(\S+)$", re.MULTILINE)
_STAMPED: Final = re.compile(r"^([^#\n][^\n]*[ }]\S+) ([0-9]{12,14})$", re.MULTILINE)  # milliseconds
_UNSTAMPED: Final = re.compile(r"^((?!#)[^ {\n]+(?:\{[^\n]*\})? [^ \n]+)$", re.MULTILINE)


@dataclass(slots=True)
class Track:
    """The scrapes of one server: when each was taken (epoch seconds), and where its text lies (None: the scrape failed)."""

    instance: str
    times: list[float] = field(default_factory=list)
    places: list[tuple[int, int] | None] = field(default_factory=list)


@dataclass(slots=True)
class Recording:
    """All scrapes of a bundle. Texts lie in a file, for recordings can be larger than memory."""

    texts: IO[bytes]
    tracks: dict[str, Track] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def start(self) -> float:
        """The first scrape, epoch seconds."""
        return min(track.times[0] for track in self.tracks.values())

    @property
    def end(self) -> float:
        """The last scrape, epoch seconds."""
        return max(track.times[-1] for track in self.tracks.values())

    def text(self, track: Track, ts: float, clock: "Clock") -> str | None:
        """What `track` said last before `ts`, moved to now; None where it did not answer."""
        at = max(bisect_right(track.times, ts) - 1, 0)
        if ts > self.end:  # it stands still where it last answered
            at = next((place for place in range(at, -1, -1) if track.places[place]), at)
        place = track.places[at]
        if place is None:
            return None
        with self.lock:
            self.texts.seek(place[0])
            raw = self.texts.read(place[1])
        return _moved(raw.decode(), track.times[at], clock)


@contextmanager
def recording(path: Path) -> Iterator[Recording]:
    """The timed scrapes of a bundle. BundleError: it has none."""
    with tempfile.TemporaryFile() as texts, members(path) as found:
        held = Recording(texts)
        for member in found:
            if member.path is not None and (head := member.head()).lstrip().startswith(b"{") and prometheus_text.sniff(head):
                with member.open() as stream:
                    for _, raw in lines(stream, Tally()):
                        _keep(held, loads(raw))
        for name, track in held.tracks.items():
            order = sorted(range(len(track.times)), key=track.times.__getitem__)
            held.tracks[name] = Track(name, [track.times[at] for at in order], [track.places[at] for at in order])
        if not held.tracks:
            raise BundleError(f"{path}: no scrapes with a time in it; expected what `weaklink record` writes")
        yield held


def _keep(held: Recording, fields: object) -> None:
    if not isinstance(fields, Mapping):
        return
    instance, ts, text = instance_of(fields.get("url")), seconds(fields.get("t")), fields.get("text")
    if instance is None or ts is None or not (isinstance(text, str) or "error" in fields):
        return
    track = held.tracks.setdefault(instance, Track(instance))
    track.times.append(ts + (seconds(fields.get("dur")) or 0.0))
    if isinstance(text, str):
        raw = text.encode()
        track.places.append((held.texts.tell(), len(raw)))
        held.texts.write(raw)
    else:
        track.places.append(None)


@dataclass(frozen=True, slots=True)
class Clock:
    """How recorded time passes: `start` to `end` of the recording, from `started` on, at `speed`; epoch seconds."""

    start: float
    end: float
    started: float
    speed: float

    def recorded(self, now: float) -> float:
        """The recorded instant that is played at `now`."""
        return self.start + (now - self.started) * self.speed

    @property
    def over(self) -> float:
        """When the last scrape is played."""
        return self.started + (self.end - self.start) / self.speed

    @property
    def shift(self) -> float:
        """What is added to recorded stamps: the last one becomes `over`."""
        return self.over - self.end


def _moved(text: str, ts: float, clock: Clock) -> str:
    """The text of the scrape at `ts` with its instants moved."""

    def start(found: re.Match[str]) -> str:
        try:
            return f"{found[1]}{float(found[2]) + clock.shift!r}"
        except ValueError:
            return found[0]

    text = _CLOCK.sub(start, text)
    text = _STAMPED.sub(lambda found: f"{found[1]} {int(found[2]) + round(clock.shift * 1000)}", text)
    return text if clock.speed == 1 else _UNSTAMPED.sub(rf"\1 {round((ts + clock.shift) * 1000)}", text)


@dataclass(slots=True)
class Replay:
    """A recording that is being served: `urls` by recorded instance; `ended` once its last scrape has been reached."""

    urls: dict[str, str]
    end: float  # when the last scrape is played, epoch seconds

    def ended(self) -> bool:
        """True where only the last scrape is served again and again."""
        return time.time() >= self.end


@contextmanager
def serve(held: Recording, *, speed: float = 1.0, host: str = "127.0.0.1", port: int = 0) -> Iterator[Replay]:
    """Serve every server of a recording on `port`, `port` + 1, ... (0: free ones) inside the `with`. OSError: a port is taken."""
    clock = Clock(held.start, held.end, time.time(), speed)
    with ExitStack() as stack:
        urls = {}
        for at, track in enumerate(held.tracks.values()):
            server = ThreadingHTTPServer((host, port + at if port else 0), _handler(held, track, clock))
            server.daemon_threads = True
            server.handle_error = lambda *_: None  # type: ignore[method-assign] # a client that goes away is no news
            stack.callback(server.server_close)
            thread = threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True)
            thread.start()
            stack.callback(thread.join)
            stack.callback(server.shutdown)
            urls[track.instance] = f"http://{host}:{server.server_address[1]}/metrics"
        yield Replay(urls, clock.over)


def _handler(held: Recording, track: Track, clock: Clock) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            known = self.path.partition("?")[0].rstrip("/") in {"", "/metrics"}
            text = held.text(track, clock.recorded(time.time()), clock) if known else None
            status = 404 if not known else 503 if text is None else 200
            body = (text if text is not None else json.dumps({"weaklink": "nothing recorded here"})).encode()
            self.send_response(status)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    return Handler
