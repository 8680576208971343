"""Incidents in the store: a window with title and note that somebody wants to find again, and what was noted later."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from analyzers.model import Batch
from app.store import Store


@dataclass(frozen=True, slots=True)
class Asked:
    """What a report is asked of: a window (None: open), its engines ("host:port/label"; None: all), and what stands beside it.

    `slo` gives seconds by target, `baseline` the window (start, end) it is compared to, on `baseline_engines`.
    """

    start: float | None = None
    end: float | None = None
    engines: tuple[str, ...] | None = None
    title: str = ""
    note: str = ""
    slo: Mapping[str, float] = field(default_factory=dict)
    alert_id: int | None = None
    baseline: tuple[float | None, float | None] | None = None
    baseline_engines: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Kept:
    """An incident of the store. `verdict` is the summary sentence when it was kept, `notes` are (epoch seconds, text)."""

    number: int
    made_ts: float
    verdict: str
    asked: Asked
    notes: tuple[tuple[float, str], ...]


def keep(store: Store, asked: Asked, verdict: str, now: float | None = None) -> int:
    """Keep an incident; its number."""
    with store.transaction():
        number = int(store.rows("SELECT nextval('incident_id_seq')")[0][0])
        low, high = asked.baseline or (None, None)
        columns: dict[str, list[Any]] = {
            "incident_id": [number], "made_ts": [time.time() if now is None else now], "title": [asked.title], "note": [asked.note],
            "verdict": [verdict], "start_ts": [asked.start], "end_ts": [asked.end], "engines": [_list(asked.engines)],
            "slo": [json.dumps(dict(asked.slo))], "alert_id": [asked.alert_id], "baseline_start_ts": [low], "baseline_end_ts": [high],
            "baseline_engines": [_list(asked.baseline_engines)],
        }  # fmt: skip
        store.add(Batch("incident", columns))
    return number


def _list(names: Sequence[str] | None) -> list[str] | None:
    return None if names is None else list(names)


_COLUMNS = "incident_id, made_ts, title, note, verdict, start_ts, end_ts, engines, slo, alert_id, baseline_start_ts, baseline_end_ts, baseline_engines"


def rows(store: Store) -> list[Kept]:
    """All incidents, the newest first."""
    said: dict[int, list[tuple[float, str]]] = {}
    for number, ts, text in store.rows("SELECT incident_id, ts, said FROM incident_note ORDER BY ts"):
        said.setdefault(number, []).append((ts, text))
    found = store.rows(f"SELECT {_COLUMNS} FROM incident ORDER BY incident_id DESC")
    return [_kept(row, said.get(row[0], [])) for row in found]


def one(store: Store, number: int) -> Kept | None:
    """An incident by its number."""
    return next((kept for kept in rows(store) if kept.number == number), None)


def note(store: Store, number: int, said: str, now: float | None = None) -> None:
    """Add a note to an incident."""
    store.execute("INSERT INTO incident_note VALUES (?, ?, ?)", [number, time.time() if now is None else now, said])


def remove(store: Store, number: int) -> None:
    """Forget an incident and its notes; its recordings stay."""
    with store.transaction():
        store.execute("DELETE FROM incident_note WHERE incident_id = ?", [number])
        store.execute("DELETE FROM incident WHERE incident_id = ?", [number])


def _kept(row: Sequence[Any], notes: Sequence[tuple[float, str]]) -> Kept:
    number, made, title, text, verdict, start, end, engines, slo, alert, low, high, others = row
    baseline = None if low is None and high is None else (low, high)
    asked = Asked(
        start, end, None if engines is None else tuple(engines), title, text, json.loads(slo), alert, baseline,
        None if others is None else tuple(others),
    )  # fmt: skip
    return Kept(number, made, verdict, asked, tuple(notes))
