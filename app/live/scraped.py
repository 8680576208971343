"""Scrapes into the store. Those that are waiting go into one transaction, in which each is whole.

A scrape that is not newer than the last one stored of its server, by whatever source, is left out.
"""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np

from analyzers.model import Array, Batch
from app.collectors.formats import MAX_REJECTED, prometheus_text
from app.collectors.formats.json_lines import instance_of
from app.collectors.sources import scrape
from app.live import LIVE, Background, file_of, numbered
from app.store import Store

AHEAD_S: Final = 60.0  # a stored stamp further in the future is a wrong clock, and holds nothing up
WAITING_BYTES: Final = 256 << 20  # of texts, while a large upload holds the store
GATHER_S: Final = 0.25  # many targets: what comes within shares a transaction
MANY: Final = 8  # targets
FLUSH_S: Final = 10.0  # between two updates of what the files' rows count

Line = Mapping[str, Any]


@dataclass(slots=True)
class Feed:
    """What is known of one live server: its place in the store, its parser, its watermark, and its counts since the start."""

    instance: str
    file_id: int
    line: int  # scrapes in the store
    reasons: int  # rows of rejected_line in the store
    last_ts: float  # the newest successful scrape in the store
    read: Callable[[Line], list[Batch]] = field(default_factory=prometheus_text.follow)
    numbers: Array = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # series number of the parser -> series_id
    scrapes: int = 0
    failed: int = 0
    skipped: int = 0  # not newer than the watermark
    dropped: int = 0  # came while too much was waiting
    samples: int = 0
    rejected: int = 0  # with a line that could not be read
    error: str | None = None  # of the last scrape; None: it was fine
    unwritten: int = 0  # scrapes, bytes and bad ones that the file's row does not count yet
    unwritten_bytes: int = 0
    unwritten_rejected: int = 0


Feeds = dict[str, Feed]  # by instance


@dataclass(slots=True)
class _News:
    """One scrape on its way into the store."""

    feed: Feed
    line: Line
    ts: float
    samples: Sequence[Batch]
    rows: Mapping[str, Batch]  # of the other tables: one row each


def _open(store: Store, feeds: Feeds, instances: Iterable[str]) -> None:
    """Give each server its feed: as it was left, where there is something in the store."""
    with store.transaction():
        files = {instance: file_of(store, LIVE, instance, prometheus_text.NAME, instance) for instance in instances}
    last = dict(store.rows(
        "SELECT instance, max(ts) FROM scrape WHERE list_contains(?, instance) AND ok AND timed AND ts < ? GROUP BY 1",
        [list(files), time.time() + AHEAD_S],
    ))  # fmt: skip
    lines = dict(
        store.rows(  # days that are thinned hold fewer scrapes than there were
            "SELECT file_id, greatest(any_value(f.lines), count(*)) FROM scrape JOIN source_file AS f USING (file_id) "
            "WHERE list_contains(?, file_id) GROUP BY 1",
            [list(files.values())],
        )
    )
    told = dict(
        store.rows(
            "SELECT file_id, count(*) FROM rejected_line WHERE list_contains(?, file_id) GROUP BY 1", [list(files.values())]
        )
    )
    for instance, file_id in files.items():
        feed = Feed(instance, file_id, lines.get(file_id, 0), told.get(file_id, 0), last.get(instance, -np.inf))
        feed.unwritten = 1  # after a kill, what the file's row counts is behind
        feeds[instance] = feed


def put(store: Store, feeds: Feeds, lines: Sequence[Line]) -> None:
    """Store recording lines, all in one transaction. A line that the store refuses is counted, and takes no other along.

    Where the disk is nearly full they are dropped, which is counted and said.
    """
    if why := store.full():
        for line in lines:
            if feed := feeds.get(_instance(line)):
                feed.dropped, feed.error = feed.dropped + 1, why
        return
    if new := {_instance(line) for line in lines} - set(feeds):
        _open(store, feeds, sorted(new))
    try:
        _put(store, feeds, lines)
    except Exception as error:  # noqa: BLE001 whatever it is, nothing of it was stored and collecting goes on
        for feed in feeds.values():  # the series that the transaction took back are told again
            feed.read, feed.numbers = prometheus_text.follow(), np.zeros(0, dtype=np.int64)
        if len(lines) > 1:
            for line in lines:
                put(store, feeds, [line])
            return
        feed = feeds[_instance(lines[0])]
        feed.failed += 1
        feed.error = f"could not be stored: {type(error).__name__}: {error}"


def _instance(line: Line) -> str:
    return instance_of(line["url"]) or str(line["url"])


def _put(store: Store, feeds: Feeds, lines: Sequence[Line]) -> None:
    last: dict[str, float] = {}
    news: list[_News] = []
    with store.transaction(appending=True):
        for line in lines:
            feed = feeds[_instance(line)]
            batches = feed.read(line)
            rows = {batch.table: batch for batch in batches if batch.table != "sample"}
            if "series" in rows:
                feed.numbers = numbered(store, feed.numbers, rows["series"])
            ts = float(rows["scrape"].columns["ts"][0]) if "scrape" in rows else -np.inf
            if "text" in line:
                if ts <= last.get(feed.instance, feed.last_ts):
                    feed.skipped += 1
                    continue
                last[feed.instance] = ts
            news.append(_News(feed, line, ts, [batch for batch in batches if batch.table == "sample"], rows))
        _add(store, news)
    for one in news:
        _count(one)


def _add(store: Store, news: Sequence[_News]) -> None:
    """Add the rows of all scrapes, one insert a table."""
    samples = [(one.feed.numbers[batch.columns["series"]], batch.columns) for one in news for batch in one.samples]
    if samples:
        columns = {name: np.concatenate([columns[name] for _, columns in samples]) for name in ("ts", "value")}
        store.add(Batch("sample", {"series_id": np.concatenate([ids for ids, _ in samples]), **columns}))
    _add_rows(store, "scrape", [(one.rows["scrape"], {"file_id": one.feed.file_id}) for one in news if "scrape" in one.rows])
    _add_rows(store, "rejected_line", [
        (one.rows["rejected_line"], {"file_id": one.feed.file_id, "line": one.feed.line + 1})
        for one in news if "rejected_line" in one.rows and one.feed.reasons < MAX_REJECTED
    ])  # fmt: skip


def _add_rows(store: Store, table: str, found: Sequence[tuple[Batch, Mapping[str, Any]]]) -> None:
    """Add batches of one row, each with columns of its own."""
    rows = [{**{name: values[0] for name, values in batch.columns.items()}, **own} for batch, own in found]
    if rows:
        store.add(Batch(table, {name: [row[name] for row in rows] for name in rows[0]}))


def flush(store: Store, feeds: Feeds) -> None:
    """Write how many lines each file has: now and then, as an UPDATE costs as much as storing a scrape."""
    with store.transaction(appending=True):
        for feed in feeds.values():
            if feed.unwritten:
                store.execute(
                    "UPDATE source_file SET lines = ?, bytes = bytes + ?, rejected = rejected + ? WHERE file_id = ?",
                    [feed.line, feed.unwritten_bytes, feed.unwritten_rejected, feed.file_id],
                )
    for feed in feeds.values():
        feed.unwritten = feed.unwritten_bytes = feed.unwritten_rejected = 0


def _count(one: _News) -> None:
    feed = one.feed
    feed.unwritten += 1
    feed.unwritten_bytes += len(one.line.get("text", ""))
    feed.unwritten_rejected += one.rows["source_file"].columns["rejected"][0]
    feed.line += 1
    feed.scrapes += 1
    feed.reasons += "rejected_line" in one.rows
    feed.rejected += one.rows["source_file"].columns["rejected"][0]
    feed.samples += sum(len(batch.columns["ts"]) for batch in one.samples)
    if "text" in one.line:
        feed.last_ts, feed.error = one.ts, None
    else:
        feed.failed += 1
        feed.error = str(one.line.get("error"))


@dataclass(slots=True)
class _Waiting:
    """Scrapes that wait for the store; None ends them."""

    lines: asyncio.Queue[scrape.Line | None] = field(default_factory=asyncio.Queue)
    bytes: int = 0


Watch = Callable[[scrape.Take, asyncio.Event], Awaitable[None]]


def scraping(targets: Sequence[scrape.Target], feeds: Feeds) -> Background:
    """A loop that scrapes `targets` into a store; `feeds` shows, while it runs, how it goes."""
    return watching(partial(scrape.watch, targets), feeds, GATHER_S if len(targets) > MANY else 0.0)


def watching(watch: Watch, feeds: Feeds, gather_s: float = GATHER_S) -> Background:
    """A loop that stores what `watch` takes."""

    def run(store: Store, stop: threading.Event) -> None:
        asyncio.run(_scrape(store, watch, feeds, stop, gather_s))

    return run


async def _scrape(store: Store, watch: Watch, feeds: Feeds, stop: threading.Event, gather_s: float) -> None:
    waiting, done = _Waiting(), asyncio.Event()

    def take(line: scrape.Line) -> None:
        size = len(line.get("text", ""))
        if waiting.bytes + size > WAITING_BYTES:
            if _instance(line) in feeds:
                feeds[_instance(line)].dropped += 1
            return
        waiting.bytes += size
        waiting.lines.put_nowait(line)

    async with asyncio.TaskGroup() as group:
        ending = group.create_task(_until(stop, done))
        group.create_task(_write(store, feeds, waiting, gather_s))
        try:
            await watch(take, done)
        finally:
            ending.cancel()
            waiting.lines.put_nowait(None)


async def _until(stop: threading.Event, done: asyncio.Event) -> None:
    while not stop.is_set():  # noqa: ASYNC110 a thread's event cannot be awaited
        await asyncio.sleep(0.1)
    done.set()


async def _write(store: Store, feeds: Feeds, waiting: _Waiting, gather_s: float) -> None:
    """Store what waits, until the None that ends it. One thread writes, so that scraping goes on meanwhile."""
    loop, line, flushed = asyncio.get_running_loop(), await waiting.lines.get(), time.monotonic()
    with ThreadPoolExecutor(1, "weaklink-write") as writer:
        while line is not None:
            await asyncio.sleep(gather_s)
            lines = []
            while line is not None:
                lines.append(line)
                if waiting.lines.empty():
                    break
                line = waiting.lines.get_nowait()
            await loop.run_in_executor(writer, put, store, feeds, lines)
            if time.monotonic() - flushed > FLUSH_S:
                await loop.run_in_executor(writer, flush, store, feeds)
                flushed = time.monotonic()
            waiting.bytes -= sum(len(one.get("text", "")) for one in lines)
            if line is not None:
                line = await waiting.lines.get()
        await loop.run_in_executor(writer, flush, store, feeds)
