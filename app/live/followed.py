"""A growing log into the store, as it grows: `weaklink ingest`."""

import io
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from analyzers.model import Batch
from app.collectors.formats import MAX_REJECTED, vllm_log
from app.collectors.sources import tail
from app.live import LIVE, file_of
from app.store import Store


def following(path: Path | None, instance: str | None, counts: dict[str, int]) -> Callable[[Store, threading.Event], None]:
    """A loop that stores a file's lines, or standard input's where `path` is None; `counts` is kept up to date.

    After a restart a file goes on where it ended; a pipe begins anew.
    """
    name = "log -" if path is None else f"log {path.resolve()}"

    def run(store: Store, stop: threading.Event) -> None:
        def take(lines: bytes, position: int) -> None:
            while store.full():
                if stop.wait(1.0):
                    return  # the next run begins with these lines
            put(store, name, instance, lines, position, counts)

        if path is None:
            tail.stream(sys.stdin.buffer, take, stop)
            return
        known = store.rows("SELECT bytes FROM source_file WHERE bundle = ? AND name = ?", [LIVE, name])
        tail.follow(path, take, stop, start=int(known[0][0]) if known else 0)

    return run


def put(store: Store, name: str, instance: str | None, lines: bytes, position: int, counts: dict[str, int]) -> None:
    """Store some whole lines in one transaction, with the position behind them."""
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
            if len(columns["line"]):
                store.add(Batch(batch.table, columns), file_id=file_id)
