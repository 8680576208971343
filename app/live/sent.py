"""A growing log to a dashboard that holds the store: `weaklink ingest ... --to http://HOST:PORT`, beside the server or from elsewhere.

Each piece has a name of its own and is sent again until the dashboard says that it has it, which stores it once.
"""

import secrets
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx

from app.collectors.sources import tail

AGAIN_S: Final = 2.0  # until a piece is sent again
PATIENCE: Final = httpx.Timeout(60, connect=10)
REFUSED: Final = frozenset({400, 401, 403, 404, 405, 413})  # sending it again changes nothing


class SendError(Exception):
    """The dashboard does not take the log; the message says why."""


@dataclass(slots=True)
class _Post:
    """Where pieces go to, and how it went."""

    client: httpx.Client
    to: str
    asked: dict[str, str]
    stop: threading.Event
    say: Callable[[str], None]
    counts: dict[str, int]
    trouble: str = field(default="", init=False)  # that was said

    def send(self, lines: bytes, start: int) -> int:
        """Send until it is taken; the bytes that the dashboard has. SendError: it is refused, or away when `stop` is set."""
        params = {**self.asked, "from": str(start), "piece": secrets.token_hex(8)}
        while (said := self._once(params, lines)) is None:
            if self.stop.wait(AGAIN_S):
                raise SendError(f"{self.to}: {self.trouble}; {len(lines):,} bytes were not sent")
        if self.trouble:
            self.trouble = ""
            self.say(f"{self.to}: goes on")
        for key, count in said["stored"].items():
            self.counts[key] = self.counts.get(key, 0) + int(count)
        return int(said["bytes"])

    def _once(self, params: dict[str, str], lines: bytes) -> dict[str, Any] | None:
        try:
            answer = self.client.post(f"{self.to}/api/logs", params=params, content=lines)
            why = f"{answer.status_code} {answer.text.strip()[:300]}"
            if answer.status_code in REFUSED:
                raise SendError(f"{self.to}: {why}")
            if answer.status_code == 200:
                said: dict[str, Any] = answer.json()
                return {"stored": said["stored"], "bytes": said["bytes"]}
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise SendError(f"{self.to}: {error}; expected http://HOST:PORT") from error
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
            why = f"{type(error).__name__}: {error}"
        if not self.trouble:
            self.trouble = why
            self.say(f"{self.to}: {why}; it is tried again")
        return None


def sending(
    path: Path | None, instance: str | None, to: str, token: str | None, counts: dict[str, int], say: Callable[[str], None]
) -> Callable[[threading.Event], None]:
    """A loop that sends a file's lines, or standard input's where `path` is None; `counts` is what the dashboard stored of them.

    A file goes on where the dashboard has it, a pipe begins anew. `say` is told when the dashboard cannot be reached, and when it can
    again; what was not sent at the end is lost of a pipe, and sent the next time of a file. The loop raises SendError.
    """
    name = f"log {socket.gethostname()}:{path.resolve() if path else f'- of {instance}' if instance else '-'}"
    asked = {"log": name} | ({"server": instance} if instance else {})
    headers = {"X-Weaklink": "log"} | ({"Authorization": f"Bearer {token}"} if token else {})

    def run(stop: threading.Event) -> None:
        with httpx.Client(headers=headers, timeout=PATIENCE) as client:
            post = _Post(client, to, asked, stop, say, counts)

            has = post.send(b"", 0)
            base = has if path is None else 0  # what a pipe brings is behind what pipes before it brought

            def take(lines: bytes, position: int) -> None:
                post.send(lines, base + max(0, position - len(lines)))

            if path is None:
                tail.stream(sys.stdin.buffer, take, stop)
            else:
                tail.follow(path, take, stop, start=has)

    return run
