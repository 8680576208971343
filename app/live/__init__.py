"""Live sources to store: what `collect` and `serve` run. Beside `ingest`, whose files end, explain each other and may be undone.

`scraped` stores what /metrics says, `pulled` what a Prometheus knows, `received` what servers send. After a restart nothing goes
in twice, and nothing that is stored is lost: what belongs together is one transaction.
"""

import hashlib
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import numpy as np

from analyzers.model import Array, Batch
from app.store import Store

LIVE: Final = "live"  # the bundle of everything that comes from the servers themselves

Background = Callable[[Store, threading.Event], None]  # a loop that runs until the event is set


def file_of(store: Store, bundle: str, name: str, form: str, instance: str | None) -> int:
    """The source_file row of a live source: found again after a restart. Inside a transaction."""
    key = key_of(bundle, name, form)
    known = store.rows("SELECT file_id FROM source_file WHERE sha256 = ?", [key])
    if known:
        return int(known[0][0])
    file_id = int(store.rows("SELECT nextval('file_id_seq')")[0][0])
    row = {
        "file_id": file_id, "bundle": bundle, "name": name, "format": form, "sha256": key, "bytes": 0, "lines": 0,
        "rejected": 0, "instance": instance, "loaded_at": time.time(), "live": True,
    }  # fmt: skip
    store.add(Batch("source_file", {column: [value] for column, value in row.items()}))
    return file_id


def key_of(bundle: str, name: str, form: str) -> str:
    """What stands in source_file.sha256 for a live source."""
    return hashlib.sha256(f"{bundle}\n{name}\n{form}".encode()).hexdigest()


def numbered(store: Store, numbers: Array, batch: Batch) -> Array:
    """The table from series number to series_id, grown by a batch of series."""
    local = np.asarray(batch.columns["series"], dtype=np.int64)
    grown = np.zeros(max(len(numbers), int(local.max()) + 1), dtype=np.int64)
    grown[: len(numbers)] = numbers
    grown[local] = store.series_ids({name: list(values) for name, values in batch.columns.items()})
    return grown


def run(loops: Sequence[Callable[[threading.Event], None]], limit_s: float | None, show: Callable[[float], None]) -> bool:
    """Run loops in threads until all end, `limit_s` is over or SIGINT or SIGTERM comes: True for a signal.

    `show` is called twice a second with the seconds that have passed. What a loop raises is raised here.
    """
    stop, start = threading.Event(), time.monotonic()
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    interrupted = False
    with ThreadPoolExecutor(len(loops), "weaklink-loop") as pool:
        running = [pool.submit(loop, stop) for loop in loops]
        try:
            while not all(one.done() for one in running) and not any(one.done() and one.exception() for one in running):
                passed = time.monotonic() - start
                show(passed)
                if limit_s is not None and passed >= limit_s:
                    break
                time.sleep(0.5 if limit_s is None else min(0.5, max(0.0, limit_s - passed)))
        except KeyboardInterrupt:
            interrupted = True
        finally:
            stop.set()
            signal.signal(signal.SIGTERM, before)
    for one in running:
        one.result()
    return interrupted
