"""An incident ready to be reported: a window of the store, judged, with what it cost, what happened when, and what shows it."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import Any, Final

from analyzers.attribute import attribute
from analyzers.compare import compare
from analyzers.hypotheses import ranked
from analyzers.model import TARGETS, Attribution, Incident, Window
from analyzers.slo import Slo
from analyzers.workload import workload
from app.align import notes
from app.incident.evidence import evidence
from app.incident.happened import timeline
from app.incident.lost import impacts
from app.incident.source import coverage, files
from app.pipeline import window_of
from app.store import Store, sql

POINTS: Final = 300  # of a chart: more cannot be told apart on a page
Progress = Callable[[str], None]


def incident_for(
    store: Store,
    start: float | None = None,
    end: float | None = None,
    engines: Sequence[str] | None = None,
    *,
    results: Sequence[Mapping[str, Any]] = (),
    title: str = "",
    note: str = "",
    command: str = "",
    slo: Mapping[str, float] | None = None,
    objectives: Sequence[Slo] = (),
    baseline: Window | None = None,
    baseline_name: str = "",
    marks: Sequence[tuple[float, str]] = (),
    progress: Progress | None = None,
) -> Incident:
    """Judge a window (with the twin's what-ifs) and gather what a report shows.

    `results` says what became of each file that was loaded for it, `slo` seconds by target and `objectives` those of the store,
    `marks` what happened elsewhere (an alert that fired).
    """
    say = progress or (lambda _: None)
    say("reading the window")
    low, high = -math.inf if start is None else start, math.inf if end is None else end
    with store.held("epoch", low, high, before=True), store.held("interval_row", low, high):
        window = window_of(store, start, end, engines)
        say("judging")
        limits = {**{one.kind: one.threshold_s for one in objectives if one.kind in TARGETS and one.threshold_s}, **(slo or {})}
        before = None if baseline is None else attribute(baseline)
        judged = attribute(window, with_twin=True, slo=limits, baseline=before)
        say("counting what it cost")
        lost = impacts(store, judged, slo or {}, objectives, start, end)
        say("gathering evidence")
        shown = evidence(store, judged)
        series = _series(store, judged)
        happened = timeline(store, window, judged, lost, marks)
    say("looking for changes to try")
    found = tuple(ranked(window, judged))
    return Incident(
        version=version("weaklink"), files=files(store, judged, results), attribution=replace(judged, notes=(*judged.notes, *notes(store))), title=title, note=note,
        timeline=happened, series=series, stream=workload(window).says if window.engines else "",
        hypotheses=found, arguments=_arguments(window), command=command, impact=lost, evidence=shown, coverage=coverage(store, judged, start, end),
        baseline=baseline_name, changes=() if baseline is None else _changes(baseline, window),
    )  # fmt: skip


def _changes(before: Window, after: Window) -> tuple[str, ...]:
    """What differs from the baseline, in sentences."""
    found = compare(before, after)
    return (*found.state, *(change.says for change in found.changes.values()), *found.configuration)


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


def _arguments(window: Window) -> dict[str, dict[str, Any]]:
    """The arguments of each server, as the log or the command gave them."""
    found: dict[str, dict[str, Any]] = {}
    for engine in window.engines:
        if args := engine.facts.get("args"):
            found.setdefault(engine.instance, dict(args))
    return found
