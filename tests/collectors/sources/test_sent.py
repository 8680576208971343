"""A log that is sent to a dashboard which holds the store: each line once, whatever is killed, and refusals that say why."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from collectors.sources.test_tail import append, line
from e2e.conftest import START, wait
from ports import free_port
from starlette.applications import Starlette
from starlette.routing import Route
from ui.test_server import asgi

from app import routes
from app.live.followed import take_lines
from app.store import Store


def numbers(store: Store) -> list[int]:
    return [int(row[0]) for row in store.rows("SELECT generation_tokens_per_s FROM stat ORDER BY ALL")]


def taken(store: Store, logs: dict, text: str, start: int, piece: str) -> dict[str, Any]:
    return take_lines(store, logs, "log a", "h:8000", text.encode(), start, piece)


def test_a_piece_that_comes_again_is_stored_once():
    store, logs = Store(), {}
    first, second = line(1) + line(2), line(3)
    assert taken(store, logs, "", 0, "0")["bytes"] == 0
    assert taken(store, logs, first, 0, "1") == {"bytes": len(first), "stored": {"lines": 2, "rejected": 0, "stat": 2}}
    assert taken(store, logs, first, 0, "1") == {"bytes": len(first), "stored": {}}
    assert taken(store, logs, second, len(first), "2")["bytes"] == len(first + second)
    again: dict = {}  # this process was killed after it had stored the piece, before it said so
    assert taken(store, again, second, len(first), "2") == {"bytes": len(first + second), "stored": {}}
    assert taken(store, again, line(4), len(first + second), "3")["stored"]["stat"] == 1
    assert numbers(store) == [1, 2, 3, 4]
    rotated = line(5)
    assert taken(store, again, rotated, 0, "4")["bytes"] == len(rotated)  # another file has the name now
    assert numbers(store) == [1, 2, 3, 4, 5]
    assert store.rows("SELECT name, instance, lines, bytes FROM source_file") == [("log a", "h:8000", 5, len(rotated))]


def test_of_many_logs_the_zone_is_remembered_of_the_newest(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("app.live.followed.LOGS", 2)
    store, logs = Store(), {}
    for name in "abc":
        take_lines(store, logs, name, None, line(1).encode(), 0, "1")
    assert list(logs) == ["b", "c"]


@pytest.mark.parametrize(
    ("query", "headers", "body", "status"),
    [
        ("log=a&from=0&piece=1", {}, b"x\n", 403),
        ("from=0&piece=1", {"x_weaklink": "1"}, b"x\n", 400),
        ("log=a&from=0", {"x_weaklink": "1"}, b"x\n", 400),
        ("log=a&from=-1&piece=1", {"x_weaklink": "1"}, b"x\n", 400),
        ("log=a&from=1e3&piece=1", {"x_weaklink": "1"}, b"x\n", 400),
        ("log=a&from=0&piece=1", {"x_weaklink": "1"}, b"x" * 101, 413),
    ],
)
def test_what_cannot_be_taken_is_said(monkeypatch: pytest.MonkeyPatch, query: str, headers: dict, body: bytes, status: int):
    monkeypatch.setattr(routes, "MAX_PIECE_BYTES", 100)
    store = Store()
    app = Starlette(routes=[Route("/api/logs", routes.logs(store, guarded=False), methods=["POST"])])
    found, _, said = asgi(app, f"/api/logs?{query}", "POST", [body], **headers)
    assert (found, list(json.loads(said))) == (status, ["error"])
    assert store.rows("SELECT count(*) FROM source_file") == [(0,)]


def test_a_full_disk_is_waited_for(monkeypatch: pytest.MonkeyPatch):
    store = Store()
    monkeypatch.setattr(store, "full", lambda: "nearly full")
    app = Starlette(routes=[Route("/api/logs", routes.logs(store, guarded=False), methods=["POST"])])
    status, _, said = asgi(app, "/api/logs?log=a&from=0&piece=1", "POST", [line(1).encode()], x_weaklink="1")
    assert (status, json.loads(said)) == (507, {"error": "nearly full"})


@contextmanager
def dashboard(port: int, folder: Path) -> Iterator[subprocess.Popen]:
    command = [
        sys.executable,
        "-c",
        START,
        "serve",
        "--port",
        str(port),
        "--store",
        str(folder / "a.duckdb"),
        "--no-browser",
        "--token",
        "secret",
    ]
    with (folder / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            wait(process, f"http://127.0.0.1:{port}/healthz", folder / "log")
            yield process
        finally:
            process.kill()


SENDERS: Final[list[subprocess.Popen]] = []


@pytest.fixture(autouse=True)
def none_is_left() -> Iterator[None]:
    """A program that sends does not outlive the test that started it."""
    yield
    while SENDERS:
        one = SENDERS.pop()
        if one.poll() is None:
            one.kill()
            one.communicate()


def ingest(source: str, port: int, **options: Any) -> subprocess.Popen:
    command = [
        sys.executable,
        "-m",
        "app",
        "ingest",
        source,
        "--server",
        "h:8000",
        "--to",
        f"http://127.0.0.1:{port}/",
        "--format",
        "json",
    ]
    environment = {**os.environ, "WEAKLINK_TOKEN": options.pop("token", "secret")}
    SENDERS.append(
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, **options)
    )
    return SENDERS[-1]


def until_stored(port: int, count: int) -> None:
    """Wait until the dashboard has so many of the lines."""
    asked = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers={"Authorization": "Bearer secret"})
    end, said = time.monotonic() + 60, ""
    while f'weaklink_rows{{table="stat"}} {count}.0\n' not in said:
        assert time.monotonic() < end, said
        time.sleep(0.2)
        with urllib.request.urlopen(asked, timeout=30) as answer:
            said = answer.read().decode()


def test_a_dashboard_that_is_killed_gets_each_line_once(tmp_path: Path):
    port, log = free_port(), tmp_path / "server.log"
    log.write_text(line(1))
    with dashboard(port, tmp_path) as first:
        sending = ingest(str(log), port)
        refuses_itself(tmp_path, log)
        append(log, line(2))
        until_stored(port, 2)
        first.send_signal(signal.SIGKILL)
        first.wait()
        append(log, line(3) + line(4))
        assert sending.stderr is not None
        assert "it is tried again" in sending.stderr.readline()
    with dashboard(port, tmp_path) as second:
        assert "goes on" in sending.stderr.readline()
        append(log, line(5))
        until_stored(port, 5)
        sending.terminate()
        said, _ = sending.communicate(timeout=30)
        assert sending.returncode == 0
        assert json.loads(said)["stat"] >= 3
        once_more = ingest(str(log), port)  # nothing new: it goes on where it was
        until_heard(once_more, signal.SIGTERM)
        time.sleep(2)
        once_more.terminate()
        assert json.loads(once_more.communicate(timeout=30)[0]) == {}
        second.terminate()
        second.wait()
    with Store(tmp_path / "a.duckdb") as store:
        assert numbers(store) == [1, 2, 3, 4, 5]
        assert store.rows("SELECT instance, lines, rejected FROM source_file") == [("h:8000", 5, 0)]


def until_heard(process: subprocess.Popen, number: signal.Signals) -> None:
    """Wait until a program that was started handles a signal (where /proc says that)."""
    status, end = Path(f"/proc/{process.pid}/status"), time.monotonic() + 60
    while status.exists() and not int(re.search(r"SigCgt:\s*(\w+)", status.read_text())[1], 16) >> (number - 1) & 1:
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.05)


def refuses_itself(folder: Path, log: Path) -> None:
    """Where the store itself is asked for, while the dashboard holds it, the way to it is said."""
    command = [sys.executable, "-m", "app", "ingest", str(log), "--store", str(folder / "a.duckdb")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "--to http://HOST:PORT" in done.stderr


def test_a_pipe_and_what_is_refused(tmp_path: Path):
    port = free_port()
    with dashboard(port, tmp_path) as running:
        piped = ingest("-", port, stdin=subprocess.PIPE)
        said, _ = piped.communicate(line(1) + line(2), timeout=60)
        assert (piped.returncode, json.loads(said)) == (0, {"lines": 2, "rejected": 0, "stat": 2})
        later = ingest("-", port, stdin=subprocess.PIPE)  # `kubectl logs` was started again
        later.communicate(line(4), timeout=60)
        stranger = ingest("-", port, stdin=subprocess.PIPE, token="wrong")
        _, said = stranger.communicate(line(3), timeout=60)
        assert stranger.returncode == 1
        assert "401" in said
        running.terminate()
        running.wait()
    with Store(tmp_path / "a.duckdb") as store:
        assert numbers(store) == [1, 2, 4]
        # behind the first one: a piece of it that comes again after a kill is known by its end
        assert store.rows("SELECT bytes FROM source_file") == [(len(line(1) + line(2) + line(4)),)]
