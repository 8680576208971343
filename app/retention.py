"""How long what is collected live is kept, and how small: closed days as Parquet files, older ones thinned, the oldest dropped.

A day is closed once it is over: its rows move from the database to files beside it, which the same views read. Later it keeps
one sample of each series a minute, then one an hour. Counters stay exact, as both sides of every reset are kept; gauges keep
their mean and extremes. Recordings that somebody loaded are never touched.
"""

import contextlib
import logging
import math
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from app.store import CLOSED, MEMORY_BYTES, MIN_FREE_BYTES, DatabaseError, Store, sql

DAY_S: Final = 86400.0
GRACE_S: Final = 7200.0  # a day is closed so long after its end: a Prometheus may still be asked for it
EVERY_S: Final = 600.0  # between two looks
MOST_ROWS: Final = 50_000_000  # that are worked on at once: sorting more would not fit into the store's memory
LEVELS: Final = {"minute": 60.0, "hour": 3600.0}
PERIODIC: Final = (
    "spec_decode",
    "kv_transfer",
    "eplb",
    "access",
    "aggregate",
    "requests_logged",
    "aborted",
)  # events of the log's beat
ORDER: Final = {
    "sample": "floor(ts / 3600), series_id, ts",
    "step": "floor(ts / 3600), file_id, engine, line",
    "kv_event": "line",
}
SCRATCH: Final = {"old_sample": "VIEW", "old_instant": "TABLE", "new_span": "TABLE", "day_instant": "TABLE", "day_span": "TABLE"}
LOG: Final = logging.getLogger("weaklink.retention")


@dataclass(frozen=True, slots=True)
class Policy:
    """Days that live data are kept whole, by the minute and by the hour, and how much disk and memory they may take (inf: no limit)."""

    raw_days: float = 14.0
    minute_days: float = 90.0
    hour_days: float = 730.0
    max_bytes: float = math.inf
    min_free_bytes: float = MIN_FREE_BYTES  # of the disk: with less, collecting stops
    memory_bytes: float = MEMORY_BYTES  # of the database


@dataclass(slots=True)
class Done:
    """What one look did: rows moved, days thinned or dropped."""

    closed: dict[str, int] = field(default_factory=dict)  # rows by table
    thinned: dict[str, str] = field(default_factory=dict)  # day -> level
    notes: list[str] = field(default_factory=list)


def keep(store: Store, policy: Policy, now: float) -> Done:
    """One look: close what is over, thin what is old, drop what is too old, and more of it while the store is too large."""
    done = Done()
    if store.segments is None:
        return done
    for table in CLOSED:
        for day in _open_days(store, table, now - GRACE_S):
            try:
                done.closed[table] = done.closed.get(table, 0) + _close(store, table, day)
            except _ChangedError as error:  # a part of the day may be closed; the rest of this look goes on
                done.notes.append(f"{error}: it is closed at the next look")
    for day, level in _levels(store):
        age = (now - (_start(day) + DAY_S)) / DAY_S
        due = (
            "none"
            if age > policy.hour_days
            else "hour"
            if age > policy.minute_days
            else "minute"
            if age > policy.raw_days
            else "all"
        )
        if _rank(due) > _rank(level):
            thin(store, day, due, now)
            done.thinned[day] = due
    _drop_rows(store, now - policy.raw_days * DAY_S)
    _shrink(store, policy.max_bytes, now, done)
    _sweep(store)
    if done.closed or done.thinned:
        _checkpoint(store)
    return done


def _limit(store: Store, memory_bytes: float) -> None:
    """Hold the database to its memory; where it cannot free enough just now, at the next look."""
    try:
        store.limit_memory(memory_bytes)
    except DatabaseError as error:
        LOG.warning("memory_gb: %s; tried again in %d s", str(error).splitlines()[0], EVERY_S)


def keeping(policy: Policy) -> Callable[[Store, threading.Event], None]:
    """A loop that looks every ten minutes, and notes every hour how large the store is."""

    def run(store: Store, stop: threading.Event) -> None:
        measured, store.min_free_bytes = -math.inf, policy.min_free_bytes
        while not stop.is_set():
            try:
                _limit(store, policy.memory_bytes)
                done = keep(store, policy, time.time())
                if done.closed or done.thinned or done.notes:
                    LOG.info("%s", "; ".join([f"closed {done.closed}, thinned {done.thinned}", *done.notes]))
                store.execute("UPDATE alive SET ts = ?", [time.time()])
                if time.time() - measured > 3600:
                    measured = time.time()
                    store.execute("INSERT INTO size VALUES (?, ?)", [measured, bytes_of(store)])
            except Exception:
                LOG.exception("retention failed; the next look is in %d s", EVERY_S)
            stop.wait(EVERY_S)

    return run


def bytes_of(store: Store) -> int:
    """What the store takes on disk: the database, its log, the closed days and the rows that are kept of all."""
    if store.path is None or store.segments is None:
        return 0
    places = [store.path, Path(f"{store.path}.wal"), *_files(store), *(store.segments / "kept").glob("*")]
    return sum(place.stat().st_size for place in places if place.exists())


# -- closing ------------------------------------------------------------------------------------------------------------------
def _start(day: str) -> float:
    return datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp()


def _day(ts: float) -> str:
    return datetime.fromtimestamp(ts, UTC).date().isoformat()


def _open_days(store: Store, table: str, before: float) -> list[str]:
    """Days that are over and have live rows in the database."""
    found = store.rows(f"SELECT DISTINCT floor(ts / {DAY_S}) FROM {table} WHERE ts < ? AND ts >= {DAY_S} ORDER BY 1", [before])
    days = [_day(row[0] * DAY_S) for row in found if (row[0] + 1) * DAY_S <= before]
    return [day for day in days if _count(store, table, _start(day), _start(day) + DAY_S)]


def _live(store: Store, table: str, low: float, high: float) -> str:
    """The condition of live rows between two instants. That of samples names a temporary table, which is made."""
    if table != "sample":
        return f"{_between('ts', low, high)} AND file_id IN (SELECT file_id FROM source_file WHERE live)"
    mixed = _mixed(store, low, high)
    store.create(
        "live_row",
        f"SELECT DISTINCT s.series_id, {'c.ts' if mixed else 'NULL::DOUBLE AS ts'} FROM scrape AS c JOIN source_file AS f USING (file_id) "
        f"JOIN series AS s ON s.instance = c.instance WHERE f.live AND c.ok AND {_between('c.ts', low, high)}",
    )
    columns = "(series_id, ts)" if mixed else "series_id"
    return f"{_between('ts', low, high)} AND {columns} IN (SELECT {columns.strip('()')} FROM live_row)"


def _between(column: str, low: float, high: float) -> str:
    return f"{column} >= {low!r} AND {column} < {high!r}"


def _mixed(store: Store, low: float, high: float) -> bool:
    """Whether a server that was scraped live is also in a recording of that time that somebody loaded."""
    found = store.rows(
        "SELECT 1 FROM scrape AS c JOIN source_file AS f USING (file_id) WHERE c.ts >= ? AND c.ts < ? AND c.ok "
        "GROUP BY c.instance HAVING bool_or(f.live) AND bool_or(NOT f.live) LIMIT 1",
        [low, high],
    )
    return bool(found)


def _count(store: Store, table: str, low: float, high: float) -> int:
    return int(store.rows(f"SELECT count(*) FROM {table} WHERE {_live(store, table, low, high)}")[0][0])


def _close(store: Store, table: str, day: str) -> int:
    """Move the live rows of a day into files; how many. Rows that come meanwhile put it off to the next look."""
    low = _start(day)
    parts = max(1, math.ceil(_count(store, table, low, low + DAY_S) / MOST_ROWS))
    moved = 0
    for part in range(parts):
        since, until = low + part * DAY_S / parts, low + (part + 1) * DAY_S / parts
        where = _live(store, table, since, until)
        with _written(store, table, day, f"SELECT * FROM {table} WHERE {where} ORDER BY {ORDER[table]}") as (file, count):
            if not count:
                continue
            with store.transaction():
                _enter(store, table, day, "all", file, since, until)
                gone = store.rows(f"DELETE FROM {table} WHERE {where}")[0][0]
                if gone != count:
                    raise _ChangedError(f"{table} of {day}: rows came while it was closed ({count} written, {gone} there)")
                store.closed(table)
            moved += count
    return moved


class _ChangedError(Exception):
    """Rows came while a day was written."""


@contextlib.contextmanager
def _written(store: Store, table: str, day: str, statement: str) -> Iterator[tuple[Path, int]]:
    """Write a query's rows to a file that stays only if the block ends well. A crash leaves a file that nothing names: swept later."""
    assert store.segments is not None
    number = store.rows("SELECT nextval('segment_id_seq')")[0][0]
    file = store.segments / table / f"{day}-{number:06d}.parquet"
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        count = store.rows(f"COPY ({statement}) TO '{_quoted(file)}' (FORMAT parquet, COMPRESSION zstd)")[0][0]
        with file.open("rb") as written:
            os.fsync(written.fileno())
        yield file, int(count)
        if not count:
            file.unlink()
    except BaseException:
        file.unlink(missing_ok=True)
        raise


def _quoted(path: Path) -> str:
    return str(path).replace("'", "''")


def _enter(store: Store, table: str, day: str, level: str, file: Path, low: float, high: float) -> None:
    assert store.segments is not None
    store.execute(
        "INSERT INTO segment SELECT nextval('segment_id_seq'), ?, ?, ?, ?, count(*), ?, ?, ? FROM read_parquet(?)",
        [table, day, level, str(file.relative_to(store.segments)), file.stat().st_size, low, high, str(file)],
    )


# -- thinning -----------------------------------------------------------------------------------------------------------------
def _rank(level: str) -> int:
    return ("all", "minute", "hour", "none").index(level)


def _levels(store: Store) -> list[tuple[str, str]]:
    """Closed days and the finest level of what they hold."""
    rows = store.rows("SELECT day, list(DISTINCT level) FROM segment GROUP BY day ORDER BY day")
    return [(day, min(levels, key=_rank)) for day, levels in rows]


def thin(store: Store, day: str, level: str, now: float) -> None:
    """Bring a closed day to a coarser level; "none" drops it. Steps and KV events are not thinned but dropped."""
    low, high = _start(day), _start(day) + DAY_S
    found = store.rows(
        "SELECT segment_id, level, file, count FROM segment WHERE name = 'sample' AND day = ? ORDER BY segment_id", [day]
    )
    finer = [(one, file, count) for one, has, file, count in found if _rank(has) < _rank(level)]
    with contextlib.ExitStack() as stack:
        stack.callback(store.execute, "; ".join(f"DROP {what} IF EXISTS {name}" for name, what in SCRATCH.items()))
        files = []
        for since, until in _slices(low, sum(count for *_, count in finer)):
            _gather(store, [file for _, file, _ in finer], LEVELS.get(level, 0.0), since, until)
            if level in LEVELS:
                written = _written(store, "sample", day, sql("retention", "sample").rstrip().rstrip(";"))
                file, count = stack.enter_context(written)
                files += [(file, since, until)] if count else []
        with store.transaction():
            for file, since, until in files:
                _enter(store, "sample", day, level, file, since, until)
            if finer:
                _swap(store, LEVELS.get(level, DAY_S), [file for _, file, _ in finer], low, high, dropped=level == "none")
            store.execute(
                "DELETE FROM segment WHERE day = ? AND (name <> 'sample' OR list_contains(?, segment_id))",
                [day, [one for one, *_ in finer]],
            )
            store.execute("DELETE FROM thinned WHERE day = ?", [day])
            store.execute("INSERT INTO thinned VALUES (?, ?, ?)", [day, level, now])
            for table in CLOSED:
                store.closed(table)


def _slices(low: float, rows: int) -> list[tuple[float, float]]:
    """Whole hours of a day that hold about MOST_ROWS each; none of a day without rows.

    What is kept of a slice does not depend on the others: the first and the last instant of each server stay, so that whatever
    happens between two slices is between two kept instants.
    """
    parts = min(24, math.ceil(rows / MOST_ROWS))
    edges = [low + 3600.0 * (24 * at // parts) for at in range(parts)]
    return list(zip(edges, [*edges[1:], low + DAY_S], strict=True)) if parts else []


def _samples(store: Store, names: list[str], where: str) -> str:
    assert store.segments is not None
    paths = ", ".join(f"'{_quoted(store.segments / name)}'" for name in names)
    return f"SELECT * FROM read_parquet([{paths}]) WHERE {where}"


def _gather(store: Store, names: list[str], seconds: float, since: float, until: float) -> None:
    """The temporary tables that thinning a slice works on: its samples, its instants, and what gauges did between kept ones.

    Instants and gauges are also added to those of the day.
    """
    store.execute(f"CREATE OR REPLACE TEMP VIEW old_sample AS {_samples(store, names, _between('ts', since, until))}")
    if seconds:
        store.create("old_instant", sql("retention", "instant"), {"seconds": seconds})
        store.create("new_span", sql("retention", "gauge_span"))
    else:
        store.create(
            "old_instant", "SELECT DISTINCT s.instance, o.ts, NULL::DOUBLE AS into_ts FROM old_sample AS o JOIN series AS s USING (series_id)"
        )
        store.create("new_span", "SELECT * FROM gauge_span WHERE false")
    for name, whole in (("old_instant", "day_instant"), ("new_span", "day_span")):
        store.execute(f"CREATE TEMP TABLE IF NOT EXISTS {whole} AS FROM {name} WHERE false; INSERT INTO {whole} FROM {name}")


def _swap(store: Store, seconds: float, names: list[str], low: float, high: float, *, dropped: bool) -> None:
    """Take the scrapes and gauges of a thinned day out that stand for themselves no more."""
    live = "file_id IN (SELECT file_id FROM source_file WHERE live)"
    store.execute(
        f"DELETE FROM scrape USING day_instant AS o WHERE scrape.instance = o.instance AND scrape.ts = o.ts "
        f"AND o.into_ts IS DISTINCT FROM o.ts AND {live}"
    )
    span = "ts >= (SELECT min(ts) FROM day_instant) AND ts <= (SELECT max(ts) FROM day_instant)"
    last = f"SELECT file_id, max(ts) FROM scrape WHERE NOT ok AND {span} GROUP BY file_id, floor(ts / {seconds})"
    keep_some = "true" if dropped else f"(file_id, ts) NOT IN ({last})"
    store.execute(f"DELETE FROM scrape WHERE NOT ok AND {span} AND {live} AND {keep_some}")
    known = _between("ts", low, high)
    if store.rows(f"SELECT 1 FROM gauge_span WHERE {known} LIMIT 1"):  # else reading all samples again is for nothing
        old = _samples(store, names, known)
        store.execute(f"DELETE FROM gauge_span USING ({old}) AS o WHERE gauge_span.series_id = o.series_id AND gauge_span.ts = o.ts")
    store.execute("INSERT INTO gauge_span SELECT series_id, ts, seconds, low, mean, high FROM day_span")


def _drop_rows(store: Store, before: float) -> None:
    """Drop stats lines, requests and the log's periodic events of live sources that are older than raw data are kept."""
    live = "file_id IN (SELECT file_id FROM source_file WHERE live)"
    for statement, params in (
        (f"DELETE FROM stat WHERE ts < $before AND {live}", {}),
        (f"DELETE FROM request WHERE coalesce(end_ts, arrival_ts) < $before AND {live}", {}),
        (f"DELETE FROM event WHERE ts < $before AND {live} AND list_contains($kinds, kind)", {"kinds": list(PERIODIC)}),
    ):
        if math.isfinite(before):
            store.rows(statement, {"before": before, **params})


def _shrink(store: Store, most: float, now: float, done: Done) -> None:
    """Where the store is larger than it may be, bring the oldest of the finest days one level down, until that frees enough."""
    if bytes_of(store) <= most:
        return
    _checkpoint(store)
    excess = bytes_of(store) - _unnamed_bytes(store) - most
    while excess > 0:
        days = _levels(store)
        if not days:
            done.notes.append("the store is larger than it may be, and no closed day is left to thin")
            return
        day, level = min(days, key=lambda one: (_rank(one[1]), one[0]))
        coarser, held = ("all", "minute", "hour", "none")[_rank(level) + 1], _day_bytes(store, day)
        thin(store, day, coarser, now)
        done.thinned[day] = coarser
        excess -= held - _day_bytes(store, day)


def _day_bytes(store: Store, day: str) -> int:
    return int(store.rows("SELECT coalesce(sum(bytes), 0) FROM segment WHERE day = ?", [day])[0][0])


def _checkpoint(store: Store) -> None:
    with contextlib.suppress(Exception):  # others are reading: the next look frees the space
        store.execute("CHECKPOINT")


def _files(store: Store) -> set[Path]:
    assert store.segments is not None
    return {file for table in CLOSED for file in (store.segments / table).glob("*.parquet")}


def _named(store: Store) -> set[Path]:
    assert store.segments is not None
    return {store.segments / row[0] for row in store.rows("SELECT file FROM segment")}


def _unnamed_bytes(store: Store) -> int:
    return sum(file.stat().st_size for file in _files(store) - _named(store))


_DOOMED: Final[dict[Path, float]] = {}  # files that nothing names any more, and since when


def _sweep(store: Store, after_s: float = 300.0) -> None:
    """Remove files that no row names: of a replaced level, once no query can still read them, or of a crash."""
    unnamed = _files(store) - _named(store)
    for file in unnamed:
        if time.monotonic() - _DOOMED.setdefault(file, time.monotonic()) >= after_s:
            file.unlink(missing_ok=True)
            _DOOMED.pop(file, None)


def notes(store: Store, low: float, high: float) -> list[str]:
    """What a judgement of a span must say: days of it that are not whole any more."""
    found = store.rows("SELECT day, level FROM thinned ORDER BY day")
    said = []
    words = {"minute": "one sample a minute", "hour": "one sample an hour", "none": "nothing"}
    for level, what in words.items():
        days = [day for day, has in found if has == level and _start(day) < high and _start(day) + DAY_S > low]
        if days:
            span = days[0] if len(days) == 1 else f"{len(days)} days from {days[0]} to {days[-1]}"
            lost = "" if level == "none" else " (counters are exact; steps, requests and stats lines are gone)"
            said.append(f"{span}: {what} is kept{lost}")
    return said


def summary(store: Store, now: float) -> dict[str, Any]:
    """Size, growth and what is closed, for `status`: None where it cannot be known yet."""
    held = bytes_of(store)
    rows = store.rows("SELECT ts, bytes FROM size WHERE ts > ? ORDER BY ts", [now - 7 * DAY_S])
    span = now - rows[0][0] if rows else 0.0
    growth = max(0.0, (held - rows[0][1]) / span * DAY_S) if span > 3600 else None
    free = shutil.disk_usage(store.path.parent).free if store.path else 0
    days = store.rows(
        "SELECT level, count(DISTINCT day), sum(bytes)::BIGINT, min(day), max(day) FROM segment GROUP BY level ORDER BY min(day)"
    )
    return {
        "bytes": held, "free_bytes": free, "growth_bytes_per_day": growth,
        "full_in_days": free / growth if growth else None,
        "closed": [{"level": r[0], "days": r[1], "bytes": r[2], "first": r[3], "last": r[4]} for r in days],
    }  # fmt: skip
