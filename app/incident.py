"""An incident ready to be reported: a window of the store, judged, with what happened when, charts, workload and what to try."""

import math
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any, Final

from analyzers.attribute import attribute
from analyzers.hypotheses import ranked
from analyzers.model import Attribution, Event, Incident, Window
from analyzers.workload import workload
from app.pipeline import window_of
from app.store import Store, sql

POINTS: Final = 300  # of a chart: more cannot be told apart on a page
MOST_EVENTS: Final = 40
TELLING: Final[Mapping[str, str]] = {
    "args": "server started", "listening": "server ready", "death": "engine died", "rearrange": "experts moved", "jit": "kernel compiled late",
    "prefix_reset": "prefix cache reset", "failed": "failure", "aborted": "requests aborted",
}  # fmt: skip


def incident_for(
    store: Store,
    files: Sequence[Mapping[str, Any]],
    start: float | None = None,
    end: float | None = None,
    engines: Sequence[str] | None = None,
    *,
    title: str = "",
    note: str = "",
    command: str = "",
    slo: Mapping[str, float] | None = None,
    baseline: Attribution | None = None,
) -> Incident:
    """Judge a window (with the twin's what-ifs) and gather what a report shows."""
    window = window_of(store, start, end, engines)
    judged = attribute(window, with_twin=True, slo=slo, baseline=baseline)
    return Incident(
        version=version("weaklink"), files=tuple(files), attribution=judged, title=title, note=note, timeline=tuple(_timeline(window, judged)),
        series=_series(store, judged), stream=workload(window).says if window.engines else "", hypotheses=tuple(ranked(window, judged)),
        arguments=_arguments(window), command=command,
    )  # fmt: skip


def _series(store: Store, judged: Attribution) -> dict[str, dict[str, list[float]]]:
    """Chart columns by engine."""
    if judged.start is None or judged.end is None:
        return {}
    found = store.columns(sql("screens", "report_series"), {"low": judged.start, "high": judged.end, "points": POINTS})
    chosen = {f"{e.instance}/{e.engine}" for e in judged.engines}
    out: dict[str, dict[str, list[float]]] = {}
    for name in dict.fromkeys(found["engine"]):
        if name in chosen:
            mask = found["engine"] == name
            out[name] = {column: [float(x) for x in values[mask]] for column, values in found.items() if column != "engine"}
    return out


def _timeline(window: Window, judged: Attribution) -> list[tuple[float, str]]:
    """What happened when: server events, and when the limiting link began to hurt."""
    said: list[tuple[float, str]] = []
    for engine in window.engines:
        said += [
            (e.ts, f"{TELLING[e.kind]} ({engine.instance}{_more(e)})")
            for e in engine.event
            if e.kind in TELLING and _inside(e, judged)
        ]
        began = _began(engine.interval)
        if began is not None and any(t and t.limiting for t in judged.targets.values()):
            said.append((began, f"first requests waiting ({engine.instance} engine {engine.engine})"))
    return sorted(dict.fromkeys(said))[:MOST_EVENTS]


def _more(event: Event) -> str:
    text = event.fields.get("text") or event.fields.get("kernel") or ""
    return f": {str(text)[:80]}" if text else ""


def _inside(event: Event, judged: Attribution) -> bool:
    return (
        math.isfinite(event.ts)
        and judged.start is not None
        and judged.end is not None
        and judged.start - 60 <= event.ts <= judged.end
    )


def _began(interval: Mapping[str, Any]) -> float | None:
    """The first scrape with requests waiting; None where none waited."""
    waiting = interval.get("waiting")
    if waiting is None or not len(waiting) or not (waiting > 0).any():
        return None
    at = int((waiting > 0).argmax())
    return float(interval["ts"][at])


def _arguments(window: Window) -> dict[str, Any]:
    """The arguments of the servers that differ from nothing: as the log or the command gave them."""
    found: dict[str, Any] = {}
    for engine in window.engines:
        for name, value in (engine.facts.get("args") or {}).items():
            found.setdefault(name, value)
    return found
