"""A disk that fills, a disk that is read-only, a process that is killed: what the store says, and what is left."""

import gzip
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import duckdb
import pytest
from recordings import finished
from recordings import text as exposed

from analyzers.model import Batch
from app.backup import pieces, write
from app.collectors.sources.otlp import OtlpError
from app.live.received import take_spans
from app.live.scraped import Feeds, put
from app.retention import Policy, keep
from app.store import DatabaseError, Store, StoreError

NOON: Final = 1795953600.0
SPAN: Final = {
    "resourceSpans": [
        {
            "scopeSpans": [
                {
                    "spans": [
                        {
                            "traceId": "0" * 31 + "1", "name": "llm_request", "startTimeUnixNano": "1795953600000000000",
                            "endTimeUnixNano": "1795953601000000000",
                            "attributes": [{"key": "gen_ai.request.id", "value": {"stringValue": "r1"}}],
                        }
                    ]
                }
            ]
        }
    ]
}  # fmt: skip


def line(at: int) -> dict:
    return {"t": NOON + at, "url": "http://h:1/metrics", "dur": 0.0, "text": exposed(finished(at, e2e=1.0))}


def room(store: Store, monkeypatch: pytest.MonkeyPatch, free: float) -> None:
    monkeypatch.setattr("app.store.shutil.disk_usage", lambda _: shutil._ntuple_diskusage(10**12, 0, int(free)))
    store._full = (-1e9, store._full[1])


def test_with_little_room_collecting_stops_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    feeds: Feeds = {}
    with Store(tmp_path / "a.duckdb") as store, caplog.at_level(logging.ERROR, "weaklink.store"):
        room(store, monkeypatch, 1e9)
        put(store, feeds, [line(0)])
        room(store, monkeypatch, 4e8)
        put(store, feeds, [line(1)])
        put(store, feeds, [line(2)])
        with pytest.raises(OtlpError, match=r"nearly full: 400 MB are free, 500 MB must be"):
            take_spans(store, SPAN, None)
        assert (feeds["h:1"].scrapes, feeds["h:1"].dropped) == (1, 2)
        assert "nothing is stored until there is room" in feeds["h:1"].error
        room(store, monkeypatch, 1e9)
        put(store, feeds, [line(3)])
        assert take_spans(store, SPAN, None) == 1
        assert store.rows("SELECT count(*) FROM scrape") == [(2,)]
        assert feeds["h:1"].error is None
        said = [record.getMessage() for record in caplog.records]
        assert len(said) == 2  # once each, not at every scrape
        assert "nearly full" in said[0]
        assert "has room again" in said[1]
        assert [row[0] for row in store.rows("SELECT kind FROM journal ORDER BY ts")] == ["full", "room"]


def test_a_folder_that_vanishes_stops_collecting_and_ends_nothing(tmp_path: Path):
    feeds: Feeds = {}
    with Store(tmp_path / "place" / "a.duckdb") as store:
        put(store, feeds, [line(0)])
        (tmp_path / "place").rename(tmp_path / "elsewhere")
        store._full = (-1e9, None)
        put(store, feeds, [line(1)])
        assert "cannot be reached (No such file or directory)" in feeds["h:1"].error
        (tmp_path / "elsewhere").rename(tmp_path / "place")
        store._full = (-1e9, store._full[1])
        put(store, feeds, [line(2)])
        assert (feeds["h:1"].scrapes, feeds["h:1"].dropped) == (2, 1)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A disk of 12 MB of its own."""
    place = tmp_path / "disk"
    place.mkdir()
    if (
        shutil.which("mount") is None
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", str(place)], capture_output=True, check=False
        ).returncode
    ):
        pytest.skip("mounting a disk is not allowed here: run as root")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_disk_that_is_full_to_the_last_byte_loses_nothing_that_was_stored(small: Path):
    stored, feeds = 0, Feeds()
    with Store(small / "a.duckdb") as store:
        store.min_free_bytes = 0  # somebody else fills it between two looks
        store.add(Batch("rejected_line", {"line": [1], "reason": ["first"]}), file_id=1)
        put(store, feeds, [line(1)])
        stored = feeds["h:1"].scrapes
        with (small / "ballast").open("wb", buffering=0) as ballast, suppress(OSError):
            while ballast.write(bytes(1 << 16)):
                pass
        for at in range(2, 100):
            put(store, feeds, [line(at)])
        stored = feeds["h:1"].scrapes
        assert feeds["h:1"].failed > 0
        assert "could not be stored" in feeds["h:1"].error
        (small / "ballast").unlink()
        put(store, feeds, [line(1000)])
        assert feeds["h:1"].error is None
        assert store.rows("SELECT count(*) FROM scrape WHERE ok") == [(stored + 1,)]
    with Store(small / "a.duckdb") as store:
        assert store.notice is None
        assert store.rows("SELECT count(*) FROM scrape WHERE ok") == [(stored + 1,)]
        assert store.rows("SELECT count(*) FROM every_sample WHERE series_id NOT IN (SELECT series_id FROM series)") == [(0,)]


def fill(folder: Path) -> Path:
    """Fill a disk to the last byte."""
    with (folder / "ballast").open("wb", buffering=0) as ballast, suppress(OSError):
        while ballast.write(bytes(1 << 16)):
            pass
    return folder / "ballast"


def test_closing_backing_up_and_migrating_on_a_full_disk_change_nothing(small: Path, tmp_path: Path):
    with Store(small / "a.duckdb") as store:
        store.min_free_bytes = 0
        put(store, {}, [line(at) for at in range(300)])
        held = store.rows("SELECT * FROM interval_row ORDER BY ts")
        store.execute("CHECKPOINT")
        ballast = fill(small)
        with pytest.raises((DatabaseError, OSError)):
            keep(store, Policy(), NOON + 5 * 86400)
        with pytest.raises((DatabaseError, OSError)):
            write(pieces(store), small / "b.tar")
        assert store.rows("SELECT * FROM interval_row ORDER BY ts") == held
        assert not (small / "b.tar").exists()
        ballast.unlink()
        assert keep(store, Policy(), NOON + 5 * 86400).closed
        write(pieces(store), small / "b.tar")
        assert store.rows("SELECT * FROM interval_row ORDER BY ts") == held
    for file in (small / "a.duckdb", small / "b.tar"):
        file.unlink()
    old = gzip.decompress((Path(__file__).resolve().parent / "stores" / "0001.duckdb.gz").read_bytes())
    (small / "old.duckdb").write_bytes(old)
    ballast = fill(small)
    with pytest.raises(StoreError, match="its disk is full; the store is as it was"):
        Store(small / "old.duckdb")
    ballast.unlink()
    with Store(small / "old.duckdb") as store:
        assert store.rows("SELECT count(*) FROM sample") == [(29228,)]


def test_a_read_only_disk_can_be_read(small: Path):
    with Store(small / "a.duckdb") as store:
        store.min_free_bytes = 0
        put(store, {}, [line(1), line(2)])
    subprocess.run(["mount", "-o", "remount,ro", str(small)], check=True)
    with Store(small / "a.duckdb") as store:
        assert store.read_only
        assert "read-only: what is stored can be read" in store.notice
        assert store.rows("SELECT count(*) FROM interval_row") == [(1,)]
        store.note("upload", "nothing of this is kept")
        with pytest.raises(duckdb.Error, match="read-only"):
            store.add(Batch("rejected_line", {"line": [1], "reason": ["x"]}), file_id=1)
    with pytest.raises(StoreError, match="cannot be opened"):
        Store(small / "new.duckdb")
    subprocess.run(["mount", "-o", "remount,rw", str(small)], check=True)


HOLD: Final = """
import sys, time
from pathlib import Path
from app.store import Store
store = Store(Path(sys.argv[1]))
print("open", flush=True)
time.sleep(60)
"""


def test_a_killed_process_is_told_of_and_a_closed_one_is_not(tmp_path: Path):
    path = tmp_path / "a.duckdb"
    Store(path).close()
    with Store(path) as store, Store(path) as other:
        assert store.notice is other.notice is None
    with subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "open\n"
        os.kill(process.pid, signal.SIGKILL)
    with Store(path) as store:
        assert "did not close it (killed, or the machine stopped); it was last seen 20" in store.notice
        assert store.rows("SELECT kind FROM journal") == [("killed",)]
        assert abs(store.rows("SELECT ts FROM journal")[0][0] - time.time()) < 60
    with Store(path) as store:
        assert store.notice is None
