"""Interval rows and buckets, computed once by the views and kept in a file beside the store, which may be deleted at any time.

A day of eight engines is 65 million samples: to look for one series among them takes half a second, to compute the intervals of
an hour several, so no query over the samples can draw a page of a day. What is kept is a copy of what the views say, never
another computation of it, and each minute of a server carries a seal of all that it was computed from: where that has changed
(late samples, a recording taken out, a thinned day), it is computed again before anybody reads it.
"""

import hashlib
import itertools
import logging
import math
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from app.store import MEMORY, DatabaseError, Store, sql, sql_names

PART_S: Final = 60.0
LEAST: Final = 300  # scrapes in a span from which its rows are kept; fewer are computed as fast
CHUNK: Final = 3000  # scrapes whose rows are computed together: about 1.5 million samples
EVERY_S: Final = 10.0  # between two looks of the background: how late what comes in is shown
ON_ITS_WAY_S: Final = 2.0  # from a scrape's stamp until it is stored
RECENT_S: Final = 7200.0  # what it looks at each time; at the whole, every so many looks
WHOLE: Final = 360
SHADOWS: Final = ("every_sample", "scrape", "quantity_series", "epoch")
NAME: Final = "kept_rows"
LOG: Final = logging.getLogger("weaklink.kept")

SPAN: Final = (
    "SELECT count(*), count(*) FILTER (NOT timed), min(ts), max(ts) FROM scrape WHERE ok AND instance IS NOT NULL AND ts > ? AND ts <= ?"
)

Stale = tuple[str, int, int | None, bool, int, float | None, float | None]  # a row of queries/kept/stale.sql


@dataclass(slots=True)
class _Kept:
    """The rows kept for one store. Only `settled` is for others."""

    store: Store
    cursor: Any
    path: str  # where names are looked up while a query reads what is kept
    least: int
    lock: threading.Lock = field(default_factory=threading.Lock)
    sound: tuple[int, int, float, float, float] | None = None  # the last look found nothing stale: at what changes and appends, from where to where, of scrapes up to when

    def settled(self, low: float, high: float) -> str | None:
        """Bring what is kept of a span up to date, and say where it lies; None: it is to be computed by the views."""
        try:
            return self.path if self._settle(low, high) else None
        except DatabaseError as error:
            if not self.store.closing:  # else it was broken off
                LOG.warning("rows of intervals cannot be kept: %s", str(error).splitlines()[0])
            return None

    def _settle(self, low: float, high: float) -> bool:
        changes, appends = self.store.changes, self.store.appends
        if self.sound and self.sound[0] == changes and self.sound[2] <= low:
            _, then, _, most, last = self.sound
            if high <= last or (appends == then and high <= most):
                return True
        with self.lock:
            scrapes, untimed, first, last = self._asked(SPAN, [low, high])[0]
            if scrapes < self.least or untimed or self.store.full():
                return False
            stale = self._stale(*self._parts(low, high, first, last), high)
        while stale:
            chunk = _chunk(stale)
            stale = stale[: -len(chunk)]
            with self.lock:  # others may have kept them meanwhile
                if still := self._stale(chunk[0][1], chunk[-1][1], high):
                    self._fill(still)
        self.sound = (changes, appends, low, high, last)
        return True

    def _parts(self, low: float, high: float, first: float, last: float) -> tuple[int, int]:
        """The first and the last part of a span in which something was scraped, from `first` to `last`, or is kept."""
        least, most = self._asked(f"SELECT min(part), max(part) FROM {NAME}.part")[0]
        begin = _part(first) if least is None else min(least, _part(first))
        end = _part(last) if most is None else max(most, _part(last))
        return (
            begin if math.isinf(low) else max(begin, math.floor(low / PART_S)),
            end if math.isinf(high) else min(end, _part(high)),
        )

    def _asked(self, statement: str, params: Any = None) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = self.cursor.execute(statement, params or []).fetchall()
        return found

    def _stale(self, first: int, last: int, high: float) -> list[Stale]:
        return self._asked(sql("kept", "stale"), {"first": first, "last": last, "high": high})

    def _fill(self, stale: Sequence[Stale]) -> None:
        """Compute these parts by the views, and keep them: all, or none of them."""
        low = min(one[1] * PART_S if one[6] is None else one[6] for one in stale)
        high = (stale[-1][1] + 1) * PART_S
        bounds = {"from_ts": self.store.since(low, high, self.cursor), "to_ts": high, "low_ts": low, "high_ts": high}
        run = self.cursor.execute
        for name, value in bounds.items():
            run(f"SET VARIABLE {name} = ?::DOUBLE", [value])
        run("BEGIN")
        try:
            self._compute(stale)
        except BaseException:
            run("ROLLBACK")
            raise
        run("COMMIT")

    def _compute(self, stale: Sequence[Stale]) -> None:
        run = self.cursor.execute
        run("CREATE OR REPLACE TEMP TABLE stale (instance VARCHAR, part BIGINT, seal UBIGINT, upto_ts DOUBLE, kept_ts DOUBLE)")
        run("INSERT INTO stale SELECT unnest($instance::VARCHAR[]), unnest($part::BIGINT[]), unnest($seal::UBIGINT[]), unnest($upto::DOUBLE[]), unnest($kept::DOUBLE[])", {
            "instance": [one[0] for one in stale], "part": [one[1] for one in stale], "seal": [one[2] for one in stale],
            "upto": [one[5] for one in stale], "kept": [one[6] for one in stale],
        })  # fmt: skip
        if any(one[3] for one in stale):
            run(sql("kept", "clear"))
        for name in SHADOWS:  # a temporary table comes before a view of the same name, also inside of other views
            where = " WHERE ts >= getvariable('from_ts') AND ts <= getvariable('to_ts')" if name == "scrape" else ""
            run(f"CREATE OR REPLACE TEMP TABLE {name} AS SELECT * FROM main.{name}{where}")
        run(sql("kept", "last"))
        run(sql("kept", "fill"))
        for name in (*SHADOWS, "stale", "grown", "shape"):
            run(f"DROP TABLE temp.{name}")


def _part(ts: float) -> int:
    """The part that an instant lies in: its end belongs to it, as to a span."""
    return math.ceil(ts / PART_S) - 1


def _chunk(stale: Sequence[Stale]) -> list[Stale]:
    """The last parts, as many as are computed together: neighbours, the newest first as pages show them."""
    chosen: list[Stale] = []
    scrapes = 0
    for one in reversed(stale):
        scrapes += one[4]
        if chosen and one[1] != chosen[-1][1] and (scrapes > CHUNK or chosen[-1][1] - one[1] > 5):
            break
        chosen.append(one)
    return chosen[::-1]


def attach(store: Store, *, least: int = LEAST) -> None:
    """Let queries over long spans of a store read what is kept. Nothing is done where nothing can be written."""
    if store.read_only or store.kept is not None:
        return
    path = None if store.segments is None else store.segments / "kept" / "rows.duckdb"
    cursor = store.own_cursor()
    try:
        _open(cursor, path)
    except (DatabaseError, OSError) as error:
        LOG.warning("%s cannot be opened (%s): pages over long spans are slow", path, str(error).splitlines()[0])
        return
    ((catalog,),) = cursor.execute("SELECT current_catalog()").fetchall()
    store.kept = _Kept(store, cursor, f"""{NAME}.main,"{catalog.replace('"', '""')}".main""", least).settled


def _open(cursor: Any, path: Path | None) -> None:
    """Attach the file; one that another version wrote, or that is broken, is made anew."""
    version = hashlib.sha256("".join(sql(folder, name) for folder in ("views", "kept") for name in sql_names(folder)).encode())
    place = "'" + str(path or MEMORY).replace("'", "''") + "'"
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
    for attempt in range(2):
        try:
            cursor.execute(f"ATTACH {place} AS {NAME}")
            tables = cursor.execute("SELECT table_name FROM duckdb_tables() WHERE database_name = ?", [NAME]).fetchall()
            if tables and cursor.execute(f"SELECT * FROM {NAME}.version").fetchall() == [(version.hexdigest(),)]:
                return
            if tables:
                cursor.execute(f"DETACH {NAME}")
                raise DatabaseError("of another version")  # noqa: TRY301 as one that is broken
            break
        except DatabaseError:
            if path is None or attempt:
                raise
            for file in path.parent.iterdir():
                file.unlink()
    cursor.execute("BEGIN")
    cursor.execute(sql("kept", "tables"))
    cursor.execute(f"CREATE TABLE {NAME}.version AS SELECT ? AS views", [version.hexdigest()])
    cursor.execute("COMMIT")


def keeping(store: Store, stop: threading.Event) -> None:
    """Keep the rows of what comes in, so that no page waits for them: what is new at each look, now and then all that is there."""
    for look in itertools.count():
        if store.kept is not None:
            recent = store.rows("SELECT max(ts) FROM scrape WHERE ok AND timed")[0][0]
            if recent is not None:
                began = time.time()
                place = store.kept(-math.inf if look % WHOLE == 0 else recent - RECENT_S, math.inf)
                store.settled_ts = began - ON_ITS_WAY_S if place else math.inf
        if stop.wait(EVERY_S):
            return

