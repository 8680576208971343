"""What the program says of itself, as Prometheus reads it: rows, lag, drops, query seconds, memory, disk."""

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from app.live.collect import Collection
from app.retention import bytes_of
from app.store import Store

Value = tuple[dict[str, str], float]
STATM: Final = Path("/proc/self/statm")
_PAGE: Final = 4096
_START: Final = time.time()


def exposition(store: Store, going: Collection) -> str:
    """The metrics as text. What is not known is not there."""
    return "".join(_family(*one) for one in _families(store, going))


def _families(store: Store, going: Collection) -> Iterator[tuple[str, str, str, Sequence[Value]]]:
    rows = store.rows(
        "SELECT table_name, estimated_size FROM duckdb_tables() WHERE NOT temporary AND NOT internal AND database_name = current_database() ORDER BY 1"
    )
    closed = store.rows("SELECT name, level, sum(count), sum(bytes), count(DISTINCT day) FROM segment GROUP BY ALL ORDER BY ALL")
    yield "weaklink_rows", "gauge", "Rows in the database, by table.", [({"table": name}, count) for name, count in rows]
    yield "weaklink_closed_rows", "gauge", "Rows of closed days.", [({"table": r[0], "level": r[1]}, r[2]) for r in closed]
    yield "weaklink_closed_days", "gauge", "Closed days.", [({"table": r[0], "level": r[1]}, r[4]) for r in closed]
    if store.path is not None:
        yield "weaklink_store_bytes", "gauge", "Disk that the store takes.", [({}, bytes_of(store))]
        yield "weaklink_disk_free_bytes", "gauge", "Disk that is free.", [({}, shutil.disk_usage(store.path.parent).free)]
        yield (
            "weaklink_disk_full",
            "gauge",
            "1: the disk is nearly full, nothing is stored.",
            [({}, float(store.full() is not None))],
        )
    yield from _collected(going)
    yield "weaklink_queries_total", "counter", "Queries of the store.", [({}, store.queries)]
    yield "weaklink_query_seconds_total", "counter", "Seconds that queries took until their first row.", [({}, store.query_s)]
    memory = store.rows("SELECT tag, memory_usage_bytes FROM duckdb_memory() WHERE memory_usage_bytes > 0 ORDER BY 1")
    yield (
        "weaklink_database_memory_bytes",
        "gauge",
        "Memory of the database, by use.",
        [({"use": tag}, used) for tag, used in memory],
    )
    if STATM.exists():
        yield "process_resident_memory_bytes", "gauge", "Resident memory.", [({}, int(STATM.read_text().split()[1]) * _PAGE)]
    cpu = time.process_time()
    yield "process_cpu_seconds_total", "counter", "CPU seconds.", [({}, cpu)]
    yield "process_start_time_seconds", "gauge", "When the process started.", [({}, _START)]
    waiting = store.rows(
        "SELECT count(*) FILTER (sent_ts IS NULL AND dead_ts IS NULL), count(*) FILTER (dead_ts IS NOT NULL) FROM outbox"
    )[0]
    yield (
        "weaklink_notifications",
        "gauge",
        "Notifications that wait, or were given up.",
        [({"state": "waiting"}, waiting[0]), ({"state": "dead"}, waiting[1])],
    )


def _collected(going: Collection) -> Iterator[tuple[str, str, str, Sequence[Value]]]:
    """How collecting goes, by server."""
    feeds, now = list(going.feeds.values()), time.time()
    lag = [({"instance": one.instance}, max(0.0, now - one.last_ts)) for one in feeds if one.last_ts > 0]
    yield "weaklink_lag_seconds", "gauge", "Age of the newest scrape in the store.", lag
    for name, what in (
        ("scrapes", "Scrapes that were stored, failed ones included."),
        ("failed", "Scrapes that failed, or could not be stored."),
        ("skipped", "Scrapes that were not newer than what is stored."),
        ("dropped", "Scrapes dropped: too much was waiting, or the disk is nearly full."),
        ("samples", "Samples stored."),
        ("rejected", "Scrapes with a line that could not be read."),
    ):
        yield f"weaklink_{name}_total", "counter", what, [({"instance": one.instance}, getattr(one, name)) for one in feeds]
    pulled = [
        ({"server": url, "instance": name}, count)
        for url, one in list(going.pulled.items())
        for name, count in one.scrapes.items()
    ]
    yield "weaklink_pulled_total", "counter", "Scrapes taken from a Prometheus.", pulled


def _family(name: str, kind: str, what: str, values: Sequence[Value]) -> str:
    if not values:
        return ""
    lines = [f"{name}{_labels(labels)} {float(value)!r}" for labels, value in values]
    return "\n".join([f"# HELP {name} {what}", f"# TYPE {name} {kind}", *lines, ""])


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    plain = {name: str(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") for name, value in labels.items()}
    return "{" + ",".join(f'{name}="{value}"' for name, value in plain.items()) + "}"
