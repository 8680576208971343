"""When it began and what changed: the first bad sample, restarts, configuration, what the server's log tells."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from analyzers.model import Attribution, Engine, Event, Impact, Window
from app.store import Store

MOST: Final = 60
BEFORE_S: Final = 60.0  # a start-up that ended just before the window explains its beginning
TELLING: Final[Mapping[str, str]] = {
    "start": "server starts", "listening": "server ready", "death": "engine died", "rearrange": "experts moved",
    "jit": "kernel compiled late", "prefix_reset": "prefix cache reset", "failed": "failure", "aborted": "requests aborted",
    "preempted_v0": "running requests preempted",
}  # fmt: skip


def timeline(
    store: Store, window: Window, judged: Attribution, lost: Sequence[Impact], marks: Sequence[tuple[float, str]] = ()
) -> tuple[tuple[float, str], ...]:
    """(epoch seconds, what happened), oldest first; of very many the first and the last are kept, and that is said."""
    said = [*marks]
    said += [(one.first_ts, f"first bad sample: {one.name} was missed") for one in lost if one.first_ts is not None]
    for engine in window.engines:
        said += [
            (e.ts, f"{TELLING[e.kind]} ({_where(engine)}{_more(e)})")
            for e in engine.event
            if e.kind in TELLING and _inside(e.ts, judged)
        ]
        said += [(ts, what) for ts, what in _configured(engine) if _inside(ts, judged)]
        said += [(ts, f"{what} ({_where(engine)} engine {engine.engine})") for ts, what in _felt(engine)]
    said += [(ts, f"restart, seen by scrapes ({instance})") for instance, ts in _restarts(store, judged)]
    found = sorted(dict.fromkeys(said))
    if len(found) <= MOST:
        return tuple(found)
    half = MOST // 2
    left_out = f"{len(found) - MOST} more events are left out here"
    return (*found[:half], (found[half][0], left_out), *found[-half:])


def _where(engine: Engine) -> str:
    return engine.instance or "server without a name"


def _more(event: Event) -> str:
    found = event.fields
    text = found.get("text") or found.get("kernel") or ""
    count = f"{found['count']} " if isinstance(found.get("count"), int) else ""
    place = f", {event.file}:{event.line}" if event.file else ""
    return f": {count}{str(text)[:80]}{place}" if text or count else place


def _inside(ts: float, judged: Attribution) -> bool:
    known = math.isfinite(ts) and judged.start is not None and judged.end is not None
    return known and judged.start - BEFORE_S <= ts <= judged.end  # type: ignore[operator]


def _configured(engine: Engine) -> list[tuple[float, str]]:
    """What a later start of the server changed in its arguments."""
    said: list[tuple[float, str]] = []
    before: dict[str, Mapping[str, Any]] = {}
    for event in sorted((e for e in engine.event if e.kind in {"args", "config"} and math.isfinite(e.ts)), key=lambda e: e.ts):
        was = before.get(event.kind)
        if was is not None:
            names = sorted(name for name in {*was, *event.fields} if was.get(name) != event.fields.get(name))
            said += [
                (event.ts, f"configuration changed: {name} {was.get(name)} -> {event.fields.get(name)} ({_where(engine)})")
                for name in names
            ]
        before[event.kind] = event.fields
    return said


def _felt(engine: Engine) -> list[tuple[float, str]]:
    """The first scrape with requests waiting, and the interval with the worst mean TTFT."""
    row, found = engine.interval, []
    timed = row.get("timed")
    if timed is None or not len(timed) or not bool(np.all(timed.astype(bool))):
        return []
    waiting = row["waiting"]
    if len(waiting) and (waiting > 0).any():
        found.append((float(row["ts"][int((waiting > 0).argmax())]), "first requests waiting"))
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(row["ttft_n"] > 0, row["ttft_s"] / row["ttft_n"], np.nan)
    if np.isfinite(mean).any():
        worst = int(np.nanargmax(mean))
        found.append((float(row["ts"][worst]), f"worst mean TTFT of a scrape interval: {mean[worst]:.3g} s"))
    return found


def _restarts(store: Store, judged: Attribution) -> list[tuple[str, float]]:
    if judged.start is None or judged.end is None:
        return []
    chosen = sorted({e.instance for e in judged.engines})
    found = store.rows(
        "SELECT DISTINCT coalesce(instance, ''), ts FROM interval_row WHERE restarted AND timed AND ts > $low AND ts <= $high "
        "AND list_contains($chosen, coalesce(instance, '')) ORDER BY ts",
        {"low": judged.start, "high": judged.end, "chosen": chosen},
    )
    return [(row[0], row[1]) for row in found]
