"""Logs as they grow: pipes, files, rotation, restarts; nothing is lost and nothing stored twice."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.align import notes
from app.collectors.sources import tail
from app.live.followed import Clock, _offset, following, put
from app.store import Store

STAT = (
    "(APIServer pid=1) INFO 11-29 12:00:{:02d} [loggers.py:1] Engine 000: Avg prompt throughput: 1.0 tokens/s, "
    "Avg generation throughput: {}.0 tokens/s, Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 1.0%, Prefix cache hit rate: 0.0%\n"
)


def line(at: int) -> str:
    return STAT.format(at, at)


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def followed(path: Path, steps: list[Callable[[], None]], start: int = 0) -> bytes:
    """Return what is handed over of a file while the steps change it; after each, something new has to come."""
    got: list[bytes] = []
    stop = threading.Event()
    thread = threading.Thread(target=tail.follow, args=(path, lambda text, _: got.append(text), stop, start))
    thread.start()
    try:
        until(lambda: bool(got) or not path.stat().st_size)
        for step in steps:
            before = len(got)
            step()
            until(lambda before=before: len(got) > before)
    finally:
        stop.set()
        thread.join()
    return b"".join(got)


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_a_file_that_grows(tmp_path):
    path = tmp_path / "a.log"
    path.write_text("one\ntw")
    assert followed(path, [lambda: append(path, "o\nthree\nfo")]) == b"one\ntwo\nthree\n"  # "fo" may go on


def test_a_file_that_is_rotated_and_one_that_is_cut(tmp_path):
    path = tmp_path / "a.log"
    path.write_text("one\n")

    def rotate() -> None:
        append(path, "two\n")
        path.rename(tmp_path / "a.log.1")
        path.write_text("three\n")

    def cut() -> None:
        os.truncate(path, 0)
        time.sleep(2 * tail.POLL_S)
        append(path, "4\n")

    text = followed(path, [rotate, lambda: append(path, "more\n"), cut])
    assert text.split() == [b"one", b"two", b"three", b"more", b"4"]


def test_a_pipe_ends_with_what_has_no_line_end():
    read, write = os.pipe()
    os.write(write, b"one\ntw")
    os.close(write)
    got: list[bytes] = []
    with os.fdopen(read, "rb") as source:
        tail.stream(source, lambda text, _: got.append(text), threading.Event())
    assert b"".join(got) == b"one\ntw"


@given(st.lists(st.binary(max_size=40) | st.sampled_from([b"\n", b"\r\n", b"a\nb", b"\xff\n"]), max_size=12))
@settings(max_examples=40, deadline=None)
def test_any_pieces_come_out_whole_and_in_lines(parts: list[bytes]):
    read, write = os.pipe()
    got: list[tuple[bytes, int]] = []

    def send() -> None:
        with os.fdopen(write, "wb", buffering=0) as target:
            for part in parts:
                target.write(part)

    writer = threading.Thread(target=send)
    writer.start()
    with os.fdopen(read, "rb") as source:
        tail.stream(source, lambda lines, at: got.append((lines, at)), threading.Event())
    writer.join()
    text = b"".join(parts)
    assert b"".join(lines for lines, _ in got) == text
    assert all(lines.endswith(b"\n") for lines, _ in got[:-1])
    assert [at for _, at in got] == [sum(len(lines) for lines, _ in got[: number + 1]) for number in range(len(got))]


def test_a_pipe_is_read_in_large_pieces():
    """8 MB by 64 KiB at a time would be 128 transactions; lines that come alone are not held back."""
    read, write = os.pipe()
    text = b"".join(b"line %06d of some length, as logs have them\n" % at for at in range(180_000))
    got: list[tuple[float, int, int]] = []
    start = time.monotonic()

    def send() -> None:
        with os.fdopen(write, "wb") as target:
            target.write(text)
            target.flush()
            time.sleep(1.5)
            sent.append(time.monotonic() - start)
            target.write(b"alone\n")
            target.flush()
            time.sleep(1.5)

    sent: list[float] = []
    writer = threading.Thread(target=send)
    writer.start()
    with os.fdopen(read, "rb") as source:
        tail.stream(source, lambda lines, at: got.append((time.monotonic() - start, len(lines), at)), threading.Event())
    writer.join()
    assert sum(size for _, size, _ in got) == got[-1][2] == len(text) + 6
    assert len(got) < 30
    assert got[-1][0] - sent[0] < 1.0


# -- zones ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("zone_s", [0.0, 7 * 3600.0, -5.5 * 3600.0, 900.0])
def test_fresh_lines_tell_the_zone(zone_s):
    clock, now = Clock(), 1_800_000_000.0
    assert clock.look(now - zone_s - 1, now) is None  # one look is none
    assert clock.look(now - zone_s - 1, now + 1) is None  # too soon after it
    assert clock.look(now - zone_s + 8, now + 10) == (zone_s or None)


@pytest.mark.parametrize(
    ("first_s", "then_s"),
    [
        (7200.0, 3600.0),  # an old log that is read: its stamps pass faster than we
        (7200.0, 7210.0 + 20),  # slower: nothing new is written
        (1234.0, 1234.0),  # no zone is 20 minutes away: a wrong clock is left as it is
        (20 * 3600.0, 20 * 3600.0),
    ],
)
def test_other_distances_tell_nothing(first_s, then_s):
    clock, now = Clock(), 1_800_000_000.0
    clock.look(now - first_s, now)
    assert clock.look(now + 10 - then_s, now + 10) is None


def test_a_log_in_another_zone_is_moved_while_it_is_followed(monkeypatch):
    store, clock, now = Store(), Clock(), 1795953610.0  # 2026-11-29 12:00:10 UTC

    def at(seconds: float) -> None:
        monkeypatch.setattr(time, "time", lambda: now + seconds + 7 * 3600)
        put(store, "log x", "h:1", line(10 + int(seconds)).encode(), 0, {}, clock)

    for seconds in (0, 10, 20):
        at(seconds)
    assert [row[0] for row in store.rows("SELECT ts FROM stat ORDER BY ts")] == [now + at + 7 * 3600 for at in (0, 10, 20)]
    assert notes(store)[0].startswith("log x: its stamps (no zone) were moved by +7:00:00")
    clock = Clock(_offset(store, "log x"))  # as after a restart
    at(30)
    assert store.rows("SELECT max(ts) FROM stat") == [(now + 30 + 7 * 3600,)]


def stored(store: Store) -> list[float]:
    return [row[0] for row in store.rows("SELECT generation_tokens_per_s FROM stat ORDER BY line")]


def test_a_file_goes_on_after_a_restart(tmp_path):
    path, store = tmp_path / "a.log", Store()
    path.write_text(line(1) + line(2))
    for _ in range(2):
        stop = threading.Event()
        stop.set()
        following(path, "h:8000", {})(store, stop)
        assert stored(store) == [1, 2]
    append(path, line(3))
    following(path, "h:8000", {})(store, stop)
    assert stored(store) == [1, 2, 3]
    assert store.rows("SELECT lines, rejected, instance FROM source_file") == [(3, 0, "h:8000")]
    assert [row[0] for row in store.rows("SELECT line FROM stat ORDER BY line")] == [1, 2, 3]


@pytest.mark.parametrize(("text", "status"), [(line(1) + line(2), 0), ("hello\n", 2)])
def test_standard_input(tmp_path, text, status):
    path = tmp_path / "weaklink.duckdb"
    command = [sys.executable, "-m", "app", "ingest", "-", "--store", str(path)]
    done = subprocess.run(command, input=text.encode(), capture_output=True, timeout=120, check=False)
    assert done.returncode == status, done.stderr
    with Store(path) as store:
        assert stored(store) == ([1, 2] if status == 0 else [])


def test_pipes_of_two_servers_are_two_logs(tmp_path):
    path = tmp_path / "store.duckdb"
    for server in ("a:8000", "b:8000"):
        command = [sys.executable, "-m", "app", "ingest", "-", "--server", server, "--store", str(path)]
        done = subprocess.run(command, input=line(1), text=True, capture_output=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
    with Store(path) as store:
        assert store.rows("SELECT instance, lines FROM source_file ORDER BY instance") == [("a:8000", 1), ("b:8000", 1)]
