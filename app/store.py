"""The store: with queries/ the only place that knows DuckDB.

One process holds the file (DuckDB locks it against every other, even to read), one cursor serves each thread.
"""

import logging
import math
import os
import re
import shutil
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, Self

import duckdb
import numpy as np
import pyarrow as pa

from analyzers.model import Batch
from app.arrow import arrow, plain

MEMORY = ":memory:"
MEMORY_BYTES: Final = 2e9  # DuckDB's own default is 80 % of the machine, which belongs to the server next door
DEFAULT_MEMORY_LIMIT = f"{MEMORY_BYTES / 1e9:g}GB"


_TYPES: Mapping[str, pa.DataType] = {
    "VARCHAR": pa.string(),
    "DOUBLE": pa.float64(),
    "BIGINT": pa.int64(),
    "BOOLEAN": pa.bool_(),
    "VARCHAR[]": pa.list_(pa.string()),
    "FLOAT[]": pa.list_(pa.float32()),
}


CLOSED: Final = ("sample", "step", "kv_event")  # tables whose closed days lie in Parquet files beside the database
MIN_FREE_BYTES: Final = 5e8  # of the disk: with less, nothing more is collected
LOOKBACK_S: Final = 300.0  # before the scrape that a span begins with: a series that one scrape misses is not a new one
NEAR_S: Final = 3600.0  # where that scrape is looked for first


CLOSING_S: Final = 10.0  # that queries have to end in, once they are broken off
STAGING: Final = "staging"  # below the segments: what a backup is made of
DatabaseError: Final = duckdb.Error  # what a query raises
LOG: Final = logging.getLogger("weaklink.store")


class StoreError(Exception):
    """The store cannot be opened or used; the message says what to do."""


def sql(*path: str) -> str:
    """Read one file of queries/: the folders, then the name without suffix ("evidence", "slots")."""
    *folders, name = path
    return files("queries").joinpath(*folders, f"{name}.sql").read_text(encoding="utf-8")


def sql_names(folder: str) -> list[str]:
    """Names (without suffix) of the files in a folder of queries/, in name order."""
    return sorted(
        entry.name.removesuffix(".sql") for entry in files("queries").joinpath(folder).iterdir() if entry.name.endswith(".sql")
    )


class Store:
    """Recordings in DuckDB: `add` puts rows in, `rows` takes rows out.

    `path` None keeps everything in memory. `upto` stops at these migrations, without views: for rows of an older backup. Raises StoreError where the file is locked by another process, or was written
    by a newer schema.
    """

    def __init__(
        self,
        path: Path | None = None,
        *,
        memory_limit: str = DEFAULT_MEMORY_LIMIT,
        threads: int = 2,
        upto: Sequence[str] | None = None,
    ) -> None:
        self.path = path
        self.min_free_bytes = MIN_FREE_BYTES
        self.read_only = False
        self.notice: str | None = None  # what befell the store before it was opened
        self.queries, self.query_s = 0, 0.0  # asked so far
        self.changes, self.appends = 0, 0  # statements that may have changed what had been there; that added what is newer
        self.kept: Callable[[float, float], str | None] | None = None  # where rows of a span lie that app/kept computed before
        self.settled_ts = math.inf  # up to when they are, of what comes in; inf: nobody computes them before they are asked for
        self.closing = False
        self._cursors: weakref.WeakSet[Any] = weakref.WeakSet()  # of all threads
        self._full: tuple[float, str | None] = (-math.inf, None)
        self._since: tuple[tuple[float, float, int, int], float] | None = None  # of which span and changes: what `since` said
        self.segments = path.with_suffix(".segments").absolute() if path else None  # closed days, and what is on its way there
        try:
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
            self._db = self._connect({"memory_limit": memory_limit, "threads": threads})
        except (duckdb.Error, OSError) as error:
            why = str(error).splitlines()[0]
            what = "Another weaklink may hold it: stop it, or give another --store." if "lock" in why else "Give another --store."
            raise StoreError(f"{path}: cannot be opened ({why}). {what}") from error
        self._local = threading.local()
        self._columns: dict[str, dict[str, pa.DataType]] = {}
        self._series: dict[tuple[Any, ...], int] | None = None
        self.lock = threading.RLock()
        try:
            if self.segments and self._db.execute("SELECT current_setting('enable_external_access')").fetchone() == (True,):
                self._db.execute("SET allowed_directories = ?", [[f"{self.segments}/"]])
            self._migrate(upto)
            if path is not None and not self.read_only and upto is None:
                self._begin()
        except BaseException as error:
            self._db.close()
            if isinstance(error, duckdb.Error) and "space left" in str(error):
                raise StoreError(f"{path}: its disk is full; the store is as it was. Free some room and try again.") from error
            raise
        self._db.execute("SET enable_external_access=false")

    def _connect(self, config: dict[str, Any]) -> Any:
        """Open the file; for reading only where its disk lets nobody write."""
        try:
            return duckdb.connect(str(self.path) if self.path else MEMORY, config=config)
        except duckdb.IOException as error:
            if self.path is None or "read-only" not in str(error).lower() or not self.path.exists():
                raise
            found = duckdb.connect(str(self.path), read_only=True, config=config)
            self.read_only, self.notice = (
                True,
                f"{self.path}: the disk is read-only: what is stored can be read, nothing can be added",
            )
            LOG.warning(self.notice)
            return found

    def _begin(self) -> None:
        """Note which process holds the store, and say where the one before did not close it."""
        found = self._db.execute(
            "SELECT pid, greatest(ts, (SELECT max(ts) FROM scrape JOIN source_file USING (file_id) WHERE live AND ok)) FROM alive WHERE NOT ended"
        ).fetchone()
        now = time.time()
        if found and found[0] != os.getpid():
            seen = datetime.fromtimestamp(found[1], UTC).isoformat(timespec="seconds")
            self.notice = (
                f"{self.path}: the process that held it before did not close it (killed, or the machine stopped); it was last seen "
                f"{seen}. All that it had stored is there; what it took in within its last second may be missing."
            )
            LOG.warning(self.notice)
            self._db.execute("INSERT INTO journal VALUES (?, NULL, 'killed', ?)", [now, self.notice])
        self._db.execute("BEGIN; DELETE FROM alive")
        self._db.execute("INSERT INTO alive VALUES (?, ?, ?, false)", [os.getpid(), now, now])
        self._db.execute("COMMIT")

    def full(self) -> str | None:
        """Why nothing more should be stored: the disk is nearly full. None: there is room. Looks once a second, and says changes."""
        if self.path is None:
            return None
        looked, why = self._full
        if time.monotonic() - looked < 1.0:
            return why
        try:
            free = float(shutil.disk_usage(self.path.parent).free)
        except OSError as error:  # the folder is gone, or its disk
            free, why_not = 0.0, f"the folder of {self.path} cannot be reached ({error.strerror})"
        else:
            why_not = f"the disk of {self.path} is nearly full: {free / 1e6:.0f} MB are free, {self.min_free_bytes / 1e6:.0f} MB must be"
        short = free < self.min_free_bytes
        now = f"{why_not}; nothing is stored until there is room" if short else None
        self._full = time.monotonic(), now
        if short != (why is not None):
            LOG.error("%s", now or f"the disk of {self.path} has room again: collecting goes on")
            with suppress(duckdb.Error):  # not even this fits
                self.note("full" if short else "room", now or f"{free / 1e6:.0f} MB are free")
        return now

    def limit_memory(self, limit_bytes: float) -> None:
        """From now on the database takes at most so much memory; what needs more goes to the disk."""
        self.cursor().execute(f"SET memory_limit = '{max(1, round(limit_bytes / 1e6))}MB'")

    def note(self, kind: str, said: str, who: str | None = None) -> None:
        """Write into the journal what was done to the store, or befell it."""
        if not self.read_only:
            self.execute("INSERT INTO journal VALUES (?, ?, ?, ?)", [time.time(), who, kind, said])

    def cursor(self) -> Any:
        """Return the thread's own cursor: DuckDB 2 refuses a connection that two threads use at once."""
        if self.closing:
            raise StoreError(f"{self.path}: is being closed")
        if not hasattr(self._local, "cursor"):
            self._local.cursor = self._db.cursor()
            self._cursors.add(self._local.cursor)
        if getattr(self._local, "elsewhere", False):  # not right after the query: that would drop its result
            self._local.cursor.execute("RESET search_path")
            self._local.elsewhere = False
        return self._local.cursor

    def own_cursor(self) -> Any:
        """Return a cursor beside those of the threads, for whoever sees to it that no two use it at once."""
        if self.closing:
            raise StoreError(f"{self.path}: is being closed")
        found = self._db.cursor()
        self._cursors.add(found)
        return found

    def close(self) -> None:
        """Write what is pending and release the file. Queries that other threads are in (a page is drawn) are broken off."""
        self.closing = True
        if self.path is not None and not self.read_only:
            with suppress(duckdb.Error):  # a full disk: the next opening says that nobody closed it
                self._db.execute("UPDATE alive SET ended = true, ts = ?", [time.time()])
        end = time.monotonic() + CLOSING_S
        while True:
            for cursor in list(self._cursors):
                cursor.interrupt()
            try:
                self._db.close()
            except duckdb.ResourceInUseException:
                if time.monotonic() > end:
                    raise
                time.sleep(0.02)
            else:
                return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- schema ---------------------------------------------------------------------------------------------------
    def _migrate(self, upto: Sequence[str] | None) -> None:
        """Apply the migrations that are missing, each in one transaction with the record that it ran; then the views."""
        db = self._db
        if self.read_only:
            if [row[0] for row in db.execute("SELECT name FROM migration ORDER BY name").fetchall()] != sql_names("schema"):
                raise StoreError(
                    f"{self.path}: of another version of weaklink, and its disk is read-only: copy it to another disk."
                )
            return
        db.execute("CREATE TABLE IF NOT EXISTS migration (name VARCHAR PRIMARY KEY)")
        done = {row[0] for row in db.execute("SELECT name FROM migration").fetchall()}
        known = sql_names("schema")
        newer = sorted(done - set(known))
        if newer:
            raise StoreError(
                f"{self.path}: written by a newer weaklink (it knows {newer[-1]}). Upgrade weaklink, or give another --store."
            )
        for name in known if upto is None else upto:
            if name not in done:
                db.execute("BEGIN")
                db.execute(sql("schema", name))
                db.execute("INSERT INTO migration VALUES (?)", [name])
                db.execute("COMMIT")
        for name in sql_names("views") if upto is None else ():
            db.execute(self._view(db, name))

    def _view(self, db: Any, name: str) -> str:
        """The text of a view; those of every row also read the files of closed days."""
        text, table = sql("views", name), name.partition("every_")[2]
        if table not in CLOSED or self.segments is None:
            return text
        found = db.execute("SELECT file FROM segment WHERE name = ? ORDER BY low_ts, segment_id", [table]).fetchall()
        paths = ", ".join("'" + str(self.segments / row[0]).replace("'", "''") + "'" for row in found)
        return text.replace("/* closed days */", f"UNION ALL BY NAME SELECT * FROM read_parquet([{paths}])" if found else "")

    def closed(self, table: str) -> None:
        """Take the files of table `segment` into the view of every row. Inside the transaction that changed them."""
        self.execute(self._view(self.cursor(), f"05_every_{table}"))

    def _types(self, table: str) -> dict[str, pa.DataType]:
        if table not in self._columns:
            found = (
                self.cursor()
                .execute(
                    "SELECT column_name, data_type FROM information_schema.columns WHERE table_name = ? AND table_schema = 'main' "
                    "AND table_catalog = current_database()",
                    [table],
                )
                .fetchall()
            )
            if not found:
                raise KeyError(table)
            self._columns[table] = {name: _TYPES[kind] for name, kind in found}
        return self._columns[table]

    # -- in ---------------------------------------------------------------------------------------------------------
    @contextmanager
    def transaction(self, *, appending: bool = False, aside: bool = False) -> Iterator[None]:
        """All or nothing: an exception inside leaves the store as it was.

        `appending`: what is added is newer than all that was there. `aside`: nothing is changed that a recording holds, but what is
        noted beside it (alerts, notifications), so that what was computed from recordings holds.
        """
        with self.lock:
            cursor = self.cursor()
            cursor.execute("BEGIN")
            self._local.inside, self._local.appending, self._local.aside = True, appending, aside
            try:
                yield
            except BaseException:
                self._series = None  # numbers handed out inside are gone with the rows
                cursor.execute("ROLLBACK")
                raise
            finally:
                self._local.inside = self._local.appending = self._local.aside = False
            try:
                cursor.execute("COMMIT")
            except BaseException:  # a full disk: DuckDB has taken all of it back
                self._series = None
                raise
            finally:
                if not aside:
                    self._changed(later=appending)

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """What is read inside is the store at one instant, whatever others write meanwhile."""
        cursor = self.cursor()
        cursor.execute("BEGIN")
        self._local.inside = True
        try:
            yield
        finally:
            self._local.inside = False
            cursor.execute("ROLLBACK")

    def add(self, batch: Batch, **constant: Any) -> None:
        """Append rows; `constant` gives columns that are the same in all of them (file_id)."""
        self.insert(batch.table, self.table(batch), **constant)

    def table(self, batch: Batch) -> pa.Table:
        """The rows of a batch as an Arrow table with the types of its table of the store. KeyError: no such table or column."""
        types = self._types(batch.table)
        arrays = {name: arrow(values, types[name]) for name, values in batch.columns.items()}
        return pa.Table.from_arrays(list(arrays.values()), names=list(arrays))

    def insert(self, name: str, rows: pa.Table, *, cursor: Any = None, **constant: Any) -> None:
        """Append the rows of an Arrow table; constants as in `add`. `cursor`: that of the transaction, where another thread began it."""
        if not rows.num_rows:
            return
        fixed = {column: value for column, value in constant.items() if column in self._types(name)}
        names = rows.column_names
        into, taken = ", ".join([*names, *fixed]), ", ".join([*names, *(f"${column}" for column in fixed)])
        cursor = cursor or self.cursor()
        cursor.register("incoming", rows)
        cursor.execute(f"INSERT INTO {name} ({into}) SELECT {taken} FROM incoming", fixed)
        cursor.unregister("incoming")
        # a new series may take the place of one with an older name
        self._changed(later=name != "series" and getattr(self._local, "appending", False))

    def series_ids(self, columns: Mapping[str, Sequence[Any]]) -> list[int]:
        """Numbers of series (columns instance, name, engine, model_name, labels), new ones entered."""
        cursor = self.cursor()
        if self._series is None:
            known = cursor.execute("SELECT instance, name, engine, model_name, labels, series_id FROM series").fetchall()
            self._series = {tuple(row[:5]): row[5] for row in known}
        keys = list(zip(*(columns[c] for c in ("instance", "name", "engine", "model_name", "labels")), strict=True))
        new = list(dict.fromkeys(key for key in keys if key not in self._series))
        if new:
            ids = [row[0] for row in cursor.execute("SELECT nextval('series_id_seq') FROM range(?)", [len(new)]).fetchall()]
            parts = list(zip(*new, strict=True))
            self.add(
                Batch(
                    "series",
                    {
                        "series_id": ids,
                        "instance": parts[0],
                        "name": parts[1],
                        "engine": parts[2],
                        "model_name": parts[3],
                        "labels": parts[4],
                    },
                )
            )
            self._series.update(zip(new, ids, strict=True))
        return [self._series[key] for key in keys]

    def execute(self, statement: str, params: Sequence[Any] | None = None) -> None:
        """Run a statement that returns nothing."""
        self.cursor().execute(statement, params or [])
        self._changed(later=getattr(self._local, "appending", False))

    def _changed(self, *, later: bool) -> None:
        if getattr(self._local, "aside", False):
            return
        self.changes, self.appends = self.changes + (not later), self.appends + later

    def create(self, name: str, statement: str, params: Mapping[str, Any] | None = None) -> None:
        """Keep the rows of a query as a temporary table of this thread."""
        self.cursor().execute(f"CREATE OR REPLACE TEMP TABLE {name} AS {statement}", params or {})

    @contextmanager
    def held(self, view: str, low: float, high: float, *, before: bool = False) -> Iterator[None]:
        """Hold the rows of a view with ts in (low, high] while many queries of this thread read it: computed once.

        `before`: also the rows just before, which a span's first interval begins with. Where the thread holds it already, that
        stays: an inner span lies in the outer one.
        """
        holding: set[str] = self._local.__dict__.setdefault("holding", set())
        if view in holding or (self.kept and self.kept(low, high)):  # what is kept is read as fast from there
            yield
            return
        # a temporary table comes before a view of the same name, also inside of other views
        where = "ts <= $high AND $low IS NOT NULL" if before else "ts > $low AND ts <= $high"
        held = f"CREATE OR REPLACE TEMP TABLE {view} AS SELECT * FROM main.{view} WHERE {where}"
        self._query(held, {"low": low, "high": high})
        holding.add(view)
        try:
            yield
        finally:
            holding.discard(view)
            self.cursor().execute(f"DROP TABLE temp.{view}")

    # -- out --------------------------------------------------------------------------------------------------------
    def rows(self, statement: str, params: Sequence[Any] | Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        """All rows of a query as tuples: for few rows."""
        found: list[tuple[Any, ...]] = self._query(statement, params).fetchall()
        return found

    def columns(self, statement: str, params: Sequence[Any] | Mapping[str, Any] | None = None) -> dict[str, np.ndarray[Any, Any]]:
        """All rows of a query as numpy arrays by column; NULL numbers are NaN, other NULLs None."""
        found = self._query(statement, params).fetchnumpy()
        return {name: plain(values) for name, values in found.items()}

    def frame(self, statement: str, params: Sequence[Any] | Mapping[str, Any] | None = None) -> Any:
        """All rows of a query as a pandas DataFrame: for the dashboard."""
        return self._query(statement, params).df()

    def _query(self, statement: str, params: Sequence[Any] | Mapping[str, Any] | None) -> Any:
        """Run a query. One with parameters `low` and `high` (epoch seconds) sees samples of that span, and of just before it.

        Where rows of intervals or buckets of the span are kept, it reads these.
        """
        span, place = (-math.inf, math.inf), None
        if (
            isinstance(params, Mapping)
            and isinstance(params.get("low"), int | float)
            and isinstance(params.get("high"), int | float)
        ):
            low, high = params["low"], params["high"]
            if self.kept and not getattr(self._local, "inside", False) and _reads_kept(statement):
                place = self.kept(low, high)
            span = self._sample_start(low, high), high
        cursor, began = self.cursor(), time.perf_counter()
        if getattr(self._local, "span", (-math.inf, math.inf)) != span:
            for name, bound in zip(("from_ts", "to_ts"), span, strict=True):
                cursor.execute(f"SET VARIABLE {name} = ?::DOUBLE", [bound])
            self._local.span = span
        if place:
            cursor.execute(f"SET search_path = '{place}'")
            self._local.elsewhere = True
        found = cursor.execute(statement, params or [])
        self.queries += 1  # without a lock: one that is missed is no harm
        self.query_s += time.perf_counter() - began
        return found

    def _sample_start(self, low: float, high: float) -> float:
        """As `since`, looked up once: a window asks for its span a hundred times."""
        if getattr(self._local, "inside", False):  # what this thread sees is not what the others do
            return self.since(low, high)
        asked = low, high, self.changes, self.appends
        held = self._since
        if held is None or held[0] != asked:
            held = self._since = asked, self.since(low, high)
        return held[1]

    def since(self, low: float, high: float, cursor: Any = None) -> float:
        """Where samples of a span begin: at the last scrape before it of each server that was scraped in it, and a margin."""
        if low == -math.inf:
            return low
        cursor = cursor or self.cursor()
        found = cursor.execute(
            "SELECT instance, max(ts) FILTER (ts <= $low) FROM scrape WHERE ok AND ts > $near AND ts <= $high "
            "GROUP BY instance HAVING max(ts) > $low",
            {"low": low, "near": low - NEAR_S, "high": high},
        ).fetchall()  # fmt: skip
        first = min((row[1] for row in found if row[1] is not None), default=low)
        if far := [row[0] for row in found if row[1] is None]:
            last = cursor.execute(
                "SELECT max(ts) FROM scrape WHERE ok AND ts <= ? AND list_contains(?, instance) GROUP BY instance", [low, far]
            ).fetchall()  # fmt: skip
            first = min([first, *(row[0] for row in last)])
        return float(first) - LOOKBACK_S


@cache
def _reads_kept(statement: str) -> bool:
    """Whether a query reads rows that are kept, and only those of a span."""
    return bool(re.search(r"(FROM|JOIN) (interval_row|bucket|bucket_sum)\b", re.sub(r"--.*", "", statement)))


def concat(tables: Sequence[pa.Table]) -> pa.Table:
    """Tables of the same columns, one after the other."""
    return pa.concat_tables(tables).combine_chunks()
