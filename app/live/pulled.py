"""What a Prometheus knows into the store: each piece one transaction, in order of time. After a stop it goes on where it was."""

import threading
import time
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from analyzers.model import Array, Batch
from app.collectors.access import AccessError
from app.collectors.formats import prometheus_text
from app.collectors.sources import prometheus
from app.live import Background, file_of, key_of, numbered
from app.store import Store

LAG_S: Final = 5.0  # what is younger may not be there yet
APART: Final = 0.75  # of the interval: a second source's scrape nearer than this to a stored one says nothing new
FIRST_S: Final = 3600.0  # how far back the first pull without a start goes
FORGOTTEN_S: Final = 86400.0  # a server that was last seen this long before the others does not hold up the start


@dataclass(slots=True)
class Pulled:
    """What a pull did so far, by server."""

    scrapes: dict[str, int] = field(default_factory=dict)
    failed: dict[str, int] = field(default_factory=dict)
    known: dict[str, int] = field(default_factory=dict)  # already stored, by this or another source
    samples: int = 0
    last_ts: float | None = None
    notes: list[str] = field(default_factory=list)
    error: str | None = None  # of the last look; None: it was fine


def pull(
    store: Store, server: prometheus.Server, start: float | None, end: float, pulled: Pulled, stop: threading.Event | None = None
) -> None:
    """Store what a Prometheus knows between two instants; `start` None: since what is stored, else the last hour.

    Each piece goes in as one transaction, in order of time: after a stop it goes on where it was. PrometheusError,
    AccessError: the server cannot be asked, and says why.
    """

    def since(found: prometheus.Found) -> float | None:
        if start is not None:
            return None
        key = key_of(_bundle(server), _name(found), prometheus_text.NAME)
        last = store.rows(
            "SELECT max(ts) FROM scrape JOIN source_file USING (file_id) WHERE sha256 = ? AND ok AND ts < ?", [key, end]
        )
        return None if last[0][0] is None else float(last[0][0])

    def note(text: str) -> None:
        if text not in pulled.notes:
            pulled.notes.append(text)

    numbers: dict[int, Array] = {}
    earliest = _earliest(store, server, end) if start is None else start
    with server.client() as made:
        for piece in prometheus.pull(made, server, earliest, end, since, note):
            if why := store.full():
                note(why)
                return
            with store.transaction():
                known = numbers.get(id(piece.found), np.zeros(0, dtype=np.int64))
                numbers[id(piece.found)] = _put_piece(store, server, piece, known, pulled)
            if stop is not None and stop.is_set():
                return


def _earliest(store: Store, server: prometheus.Server, end: float) -> float:
    """Where a pull without a start begins: an hour ago, or where what is stored of one of its servers ends."""
    rows = store.rows(
        "SELECT max(ts) FROM scrape JOIN source_file USING (file_id) WHERE bundle = ? AND ok AND ts < ? GROUP BY file_id",
        [_bundle(server), end],
    )
    last = [float(row[0]) for row in rows]
    return min((ts for ts in last if ts > max(last) - FORGOTTEN_S), default=end - FIRST_S)


def _bundle(server: prometheus.Server) -> str:
    return f"prometheus {server.address}"


def _name(found: prometheus.Found) -> str:
    """The server, and by which labels Prometheus tells it from others."""
    labels = ", ".join(f"{name}={value}" for name, value in sorted(found.labels.items()) if name != "instance")
    return f"{found.instance} ({labels})" if labels else found.instance


def _put_piece(store: Store, server: prometheus.Server, piece: prometheus.Piece, numbers: Array, pulled: Pulled) -> Array:
    """Add one piece without the scrapes that are already there."""
    instance = piece.found.instance
    file_id = file_of(store, _bundle(server), _name(piece.found), prometheus_text.NAME, instance)
    batches = {batch.table: batch.columns for batch in piece.batches}
    if "series" in batches:
        numbers = numbered(store, numbers, Batch("series", batches["series"]))
    if "scrape" not in batches:
        return numbers
    stamps, ok = np.asarray(batches["scrape"]["ts"], dtype=float), np.asarray(batches["scrape"]["ok"], dtype=bool)
    interval_s = float(np.median(np.diff(stamps[ok]))) if ok.sum() > 2 else piece.found.interval_s
    new = _unknown(store, file_id, instance, stamps, interval_s)
    pulled.known[instance] = pulled.known.get(instance, 0) + int((~new & ok).sum())
    pulled.scrapes[instance] = pulled.scrapes.get(instance, 0) + int((new & ok).sum())
    pulled.failed[instance] = pulled.failed.get(instance, 0) + int((new & ~ok).sum())
    if new.any():
        columns = {
            name: [value for value, kept in zip(values, new, strict=True) if kept] for name, values in batches["scrape"].items()
        }
        store.add(Batch("scrape", columns), file_id=file_id)
        pulled.last_ts = max(float(stamps[new].max()), pulled.last_ts or 0.0)
    if "sample" in batches:
        ts = np.asarray(batches["sample"]["ts"])
        kept = np.isin(ts, stamps[new & ok])
        ids = numbers[np.asarray(batches["sample"]["series"])[kept]]
        store.add(Batch("sample", {"series_id": ids, "ts": ts[kept], "value": np.asarray(batches["sample"]["value"])[kept]}))
        pulled.samples += int(kept.sum())
    store.execute("UPDATE source_file SET lines = lines + ? WHERE file_id = ?", [int(new.sum()), file_id])
    return numbers


def _unknown(store: Store, file_id: int, instance: str, stamps: Array, interval_s: float) -> Array:
    """Which scrapes are new: not stored by this source, and not near one that another source stored.

    Two sources stamp a scrape differently. Interleaved, a counter could seem to fall, which reads as a restart.
    """
    margin = max(1.0, APART * interval_s)
    held = store.columns(
        "SELECT ts, file_id = $file AS own, ok FROM scrape WHERE instance = $instance AND timed AND ts BETWEEN $low AND $high ORDER BY ts",
        {"file": file_id, "instance": instance, "low": stamps.min() - margin, "high": stamps.max() + margin},
    )
    own, ts = held["own"].astype(bool), held["ts"]
    other = ts[~own & held["ok"].astype(bool)]
    new = ~np.isin(stamps, ts[own])
    if len(other):
        after = np.clip(np.searchsorted(other, stamps), 0, len(other) - 1)
        before = np.clip(after - 1, 0, None)
        new &= np.minimum(np.abs(other[after] - stamps), np.abs(stamps - other[before])) >= margin
    return np.asarray(new)


def pulling(server: prometheus.Server, pulled: Pulled) -> Background:
    """A loop that asks a Prometheus again and again for what is new."""

    def run(store: Store, stop: threading.Event) -> None:
        while not stop.is_set():
            try:
                pull(store, server, None, time.time() - LAG_S, pulled, stop)
                pulled.error = None
            except (prometheus.PrometheusError, AccessError) as error:
                pulled.error = str(error)  # it may come back
                if pulled.error not in pulled.notes:
                    pulled.notes = [*pulled.notes[-20:], pulled.error]
            stop.wait(server.every_s)

    return run
