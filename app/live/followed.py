"""A growing log into the store, as it grows: `weaklink ingest`, and the logs of `collect` and `serve`.

Its stamps have no zone. A line that comes while we look was written just now: where stamps of fresh lines are quarters of an hour
away from now, and stay as far away, that is the zone of the log, and its rows are moved by it.
"""

import io
import json
import math
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from analyzers.model import Batch
from app.collectors.formats import MAX_REJECTED, vllm_log
from app.collectors.sources import tail
from app.live import LIVE, file_of
from app.store import Store

QUARTER_S: Final = 900.0  # zones differ by quarters of an hour
MOST_S: Final = 15 * 3600.0
LATE_S: Final = 60.0  # what lies between a line and our looking at it
APART_S: Final = 5.0  # between two looks that must agree
DRIFT_S: Final = 15.0  # between them; what is read of an old log passes much faster
CLOCKED: Final = ("stat", "step", "event")
LOGS: Final = 1000  # that are sent to us: of so many the zone is remembered


@dataclass(slots=True)
class Clock:
    """What is known of a log's zone: what is added to its stamps, and the last look: our clock, and how far the stamps were away."""

    offset_s: float = 0.0
    looked: tuple[float, float] | None = None

    def look(self, newest: float, now: float) -> float | None:
        """The offset, once two looks agree on one that is not the present one."""
        away = now - newest
        zone = round(away / QUARTER_S) * QUARTER_S
        before, self.looked = self.looked, (now, away)
        if before is None or now - before[0] < APART_S:
            self.looked = before or self.looked
            return None
        steady = abs(away - before[1]) < DRIFT_S and abs(away - zone) < LATE_S and abs(zone) <= MOST_S
        return zone if steady and zone != self.offset_s else None


def following(path: Path | None, instance: str | None, counts: dict[str, int]) -> Callable[[Store, threading.Event], None]:
    """A loop that stores a file's lines, or standard input's where `path` is None; `counts` is kept up to date.

    After a restart a file goes on where it ended; a pipe begins anew, one log a server (`instance`).
    """
    # pipes of two servers are two logs, each with its own clock
    name = f"log {path.resolve()}" if path else f"log - of {instance}" if instance else "log -"

    def run(store: Store, stop: threading.Event) -> None:
        clock = Clock(_offset(store, name))

        def take(lines: bytes, position: int) -> None:
            while store.full():
                if stop.wait(1.0):
                    return  # the next run begins with these lines
            put(store, name, instance, lines, position, counts, clock)

        if path is None:
            tail.stream(sys.stdin.buffer, take, stop)
            return
        known = store.rows("SELECT bytes FROM source_file WHERE bundle = ? AND name = ?", [LIVE, name])
        tail.follow(path, take, stop, start=int(known[0][0]) if known else 0)

    return run


def _offset(store: Store, name: str) -> float:
    """What was added to this log's stamps so far."""
    rows = store.rows(
        "SELECT fields FROM event JOIN source_file USING (file_id) WHERE bundle = ? AND name = ? AND kind = 'aligned'",
        [LIVE, name],
    )
    return sum(float(json.loads(fields)["offset_s"]) for (fields,) in rows)


def put(
    store: Store, name: str, instance: str | None, lines: bytes, position: int, counts: dict[str, int], clock: Clock | None = None
) -> None:
    """Store some whole lines in one transaction, with the position behind them."""
    clock, newest = clock or Clock(), -math.inf
    with store.transaction():
        file_id = file_of(store, LIVE, name, vllm_log.NAME, instance)
        ((base, kept),) = store.rows(
            "SELECT f.lines, (SELECT count(*) FROM rejected_line AS r WHERE r.file_id = f.file_id) FROM source_file AS f WHERE file_id = ?",
            [file_id],
        )
        for batch in vllm_log.read(io.BytesIO(lines), time.time()):
            columns = dict(batch.columns)
            if batch.table == "source_file":
                said = {key: values[0] for key, values in columns.items()}
                store.execute(
                    "UPDATE source_file SET lines = lines + ?, rejected = rejected + ?, bytes = ?, pid = coalesce(pid, ?), "
                    "instance = coalesce(instance, ?) WHERE file_id = ?",
                    [said["lines"], said["rejected"], position, said["pid"], said["instance"], file_id],
                )
                counts["lines"] = counts.get("lines", 0) + said["lines"]
                counts["rejected"] = counts.get("rejected", 0) + said["rejected"]
                continue
            columns["line"] = [int(line) + base for line in columns["line"]]
            counts[batch.table] = counts.get(batch.table, 0) + len(columns["line"])
            if batch.table == "rejected_line":
                columns = {key: list(values)[: max(0, MAX_REJECTED - kept)] for key, values in columns.items()}
            if "ts" in columns:
                stamps = _stamps(columns["ts"])
                newest = max(newest, float(np.nanmax(stamps)) if np.isfinite(stamps).any() else -math.inf)
                columns["ts"] = stamps + clock.offset_s
            if len(columns["line"]):
                store.add(Batch(batch.table, columns), file_id=file_id)
        if math.isfinite(newest):
            _settle(store, file_id, clock, newest)


@dataclass(slots=True)
class Sent:
    """A log that is sent to us in pieces: its zone, and the last piece."""

    clock: Clock
    piece: str


def take_lines(
    store: Store, logs: dict[str, Sent], name: str, instance: str | None, lines: bytes, start: int, piece: str
) -> dict[str, Any]:
    """Store a piece of a log that begins at byte `start` of it, once; what was stored, and how far we have the log.

    `logs` is kept from piece to piece. A piece that comes again after this process was killed is known by its end.
    """
    with store.lock:
        rows = store.rows("SELECT bytes FROM source_file WHERE bundle = ? AND name = ?", [LIVE, name])
        has, counts = int(rows[0][0]) if rows else 0, dict[str, int]()
        known = logs.get(name)
        again = known.piece == piece if known else start > 0 and has == start + len(lines)
        if lines and not again:
            clock = known.clock if known else Clock(_offset(store, name))
            put(store, name, instance, lines, start + len(lines), counts, clock)
            has = start + len(lines)
            if len(logs) >= LOGS and not known:
                logs.pop(next(iter(logs)))
            logs[name] = Sent(clock, piece)
    return {"bytes": has, "stored": counts}


def _stamps(values: Any) -> Any:
    return np.array([math.nan if value is None else value for value in values], dtype=float)


def _settle(store: Store, file_id: int, clock: Clock, newest: float) -> None:
    """Move the log's rows where its zone has just become clear; noted as when a recording is aligned (app/align.py)."""
    zone = clock.look(newest, time.time())
    if zone is None:
        return
    by, clock.offset_s = zone - clock.offset_s, zone
    for table in CLOCKED:
        store.execute(f"UPDATE {table} SET ts = ts + ? WHERE file_id = ?", [by, file_id])
    fields = {"offset_s": by, "error_s": LATE_S, "lines": 2, "applied": True}
    store.execute(
        "INSERT INTO event (file_id, line, ts, engine, kind, fields) VALUES (?, 1, NULL, NULL, 'aligned', ?)",
        [file_id, json.dumps(fields, sort_keys=True)],
    )
