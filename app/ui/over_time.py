"""What the Timeline draws beyond plain series: the attribution and the queue by reason as stacks, percentiles, the baseline."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import plotly.graph_objects as go
import streamlit as st

from analyzers.course import SLICES, Course, course
from analyzers.diagnosis import changes
from analyzers.model import TARGETS, Array, Attribution, Target, Window
from app.pipeline import window_of
from app.ui import decisions, draw
from app.ui.draw import COLOURS, Line, Panel
from app.ui.markup import Html, bold, div, join, link, row, table, tag
from app.ui.session import View
from app.ui.words import LABELS, MINUS, TITLES, fixed, places_of, span, unit

MOST_LINKS: Final = 4  # links drawn by themselves; the others are one layer
WORTH: Final = 0.02  # share of all seconds below which a link is one of the others
GREYS: Final = ("#6f7782", "#9aa0a9", "#565e69", "#b4b9c0")
FLOOR: Final = "#cfd3d8"
REST: Final = "#a3a8b0"
BAND: Final = "rgba(108,159,216,0.5)"
FEW: Final = 8  # slices at least, however many engines there are
LOAD: Final = 400  # slices times engines
REASONS: Final[Mapping[str, tuple[str, str]]] = {  # reason of the books: the link, the words
    "slots": ("slots", "sequence slots taken"),
    "kv": ("kv_eviction", "KV blocks short"),
    "deferred": ("kv_transfer", "KV blocks on the way"),
    "budget": ("prefill_backlog", "others' prompts"),
    "step": ("prefill_backlog", "the step in flight"),
    "stall": ("engine_stall", "a stall"),
    "cap": ("", "a cap or prompts: not told"),
    "unread": ("", "not told"),
}


def stacks(view: View) -> tuple[dict[str, Array], list[Panel]]:
    """Columns and panels of the target's seconds by link, and of the queue's by reason."""
    name, label = view.pick.target, LABELS[view.pick.target]
    factor, letters = (1000.0, "ms") if unit(name) == "ms" else (1.0, "s")
    found = _course((view.mark, view.low, view.high, view.chosen), name, view)
    title = f"{label} by link, {letters} of a request that finished then" if name != "tpot" else f"{label} by link, {letters}"
    if found is None:
        why = "too few finished requests, or no clock: no attribution over time"
        return {}, [Panel(title, (), empty=why)]
    limiting = view.target.limiting if view.target else None
    columns: dict[str, Array] = {"course": found.ts, "course_width": np.array([float(np.diff(found.ts).mean())])}
    layers = _links(found, limiting)
    lines = []
    for at, (words, values, colour, hatched) in enumerate(layers):
        columns[f"layer{at}"] = np.where(np.isfinite(found.measured), np.maximum(np.nan_to_num(values), 0.0), np.nan)
        lines.append(Line(f"layer{at}", words, colour, at="course", bar=True, hatched=hatched, rare=True))
    drawn = [Panel(title, tuple(lines), f" {letters}", factor)]
    if name != "tpot":
        reasons, rows = _reasons(found, limiting)
        columns |= reasons
        drawn.append(Panel("Queue by reason, s of a request that finished then", tuple(rows), " s", empty="nobody waited"))
    return columns, drawn


def _links(found: Course, limiting: str | None) -> list[tuple[str, Array, str, bool]]:
    """(name, seconds, colour, hatched) from the floor up: the limiting link first, the small ones together, the rest hatched."""
    total = float(np.nansum(found.measured)) or 1.0
    sums = {link: float(np.nansum(np.maximum(values, 0.0))) for link, values in found.parts.items()}
    order = sorted(
        (link for link in sums if sums[link] > WORTH * total or link == limiting),
        key=lambda link: (link != limiting, -sums[link]),
    )
    named, others = order[:MOST_LINKS], [link for link in sums if link not in order[:MOST_LINKS]]
    greys = iter(GREYS)
    layers = [("floor", found.floor, FLOOR, False)]
    layers += [(TITLES[link], found.parts[link], COLOURS["judge"] if link == limiting else next(greys), False) for link in named]
    rest = np.nansum([found.parts[link] for link in others], axis=0) if others else np.zeros(len(found.ts))
    return [*layers, ("other links", rest, "#c9cdd2", False), ("unexplained", found.unexplained, REST, True)]


def _reasons(found: Course, limiting: str | None) -> tuple[dict[str, Array], list[Line]]:
    columns, lines, greys = {}, [], iter((*GREYS, FLOOR, REST, REST, REST))
    for reason, (of, words) in REASONS.items():
        columns[f"queue_{reason}"] = found.queue[reason]
        colour = COLOURS["judge"] if of and of == limiting and reason != "step" else next(greys)
        lines.append(Line(f"queue_{reason}", words, colour, at="course", bar=True, rare=True, hatched=reason in {"cap", "unread"}))
    return columns, lines


def _course_now(key: decisions.Key, name: str, _view: View) -> Course | None:  # noqa: ARG001 streamlit's cache reads it
    return course(decisions.window(_view), name, max(FEW, min(SLICES, LOAD // max(1, len(_view.chosen)))))


_course: Callable[..., Course | None] = st.cache_resource(max_entries=16, show_spinner=False)(_course_now)


def quantiles(view: View) -> tuple[dict[str, Array], dict[str, tuple[Line, ...]]]:
    """The bucket that holds p95 of TTFT and ITL, slice by slice, as a band behind the mean."""
    found = view.columns("timeline_quantile", points=draw.POINTS // 4, **view.window())
    if not len(found["ts"]):
        return {}, {}
    columns = {f"p95_{name}": np.asarray(values, float) for name, values in found.items()}
    columns["p95_ts_width"] = np.array([float(np.median(np.diff(found["ts"]))) if len(found["ts"]) > 1 else 1.0])
    bands: dict[str, tuple[Line, ...]] = {}
    for title, name in (("TTFT, s", "ttft"), ("ITL, ms", "itl")):
        said = f"{name.upper()} p95"
        bands[title] = (
            Line(
                f"p95_{name}_high_s", "p95 lies in this bucket", BAND, said=said, at="p95_ts", bar=True, base=f"p95_{name}_low_s"
            ),
        )
    return columns, bands


def shaded(figure: go.Figure, view: View, columns: Mapping[str, Any]) -> None:
    """The baseline, where it lies inside the drawn span, as a calm band."""
    start, end = view.pick.base_start, view.pick.base_end
    if start is None or end is None or not draw.timed(columns):
        return
    low, high = max(start, float(columns["ts"][0])), min(end, float(columns["ts"][-1]))
    if low < high:
        figure.add_shape(type="rect", x0=draw.stamp(low), x1=draw.stamp(high), y0=0, y1=1, xref="x", yref="paper", fillcolor=draw.CALM, line_width=0, layer="below")  # fmt: skip


# -- against the baseline -------------------------------------------------------------------------------------------------------------
def against(view: View, now: Attribution, before: Attribution) -> Html:
    """The window beside its baseline: the target, its stages, its links; and what else changed."""
    name = view.pick.target
    title = f"Against the baseline {span(before.start, before.end)} ({before.finished:,} requests there, {now.finished:,} here): {LABELS[name]}"
    new, old = now.targets[name], before.targets[name]
    if new is None or old is None or new.measured_s is None or old.measured_s is None:
        return join([div("wl-title", title), tag("p", "No request seconds on one of the two sides.", look="wl-soft")])
    heads = (("seconds of", ""), (f"baseline, {unit(name)}", "num"), ("here", "num"), ("difference", "num"))
    rows = _differences(view, new, old)
    said = _changed((view.mark, view.low, view.high, view.chosen), (view.pick.base_start, view.pick.base_end), view)
    other = tag("ul", *(tag("li", line) for line in said), look="wl-notes") if said else tag("p", "Arrivals, lengths, hits, preemptions and requests in flight differ by less than half.", look="wl-soft")  # fmt: skip
    return join(
        [div("wl-title", title), table(heads, rows), div("wl-title", "What else changed", style="margin-top:.7rem"), other]
    )


def _differences(view: View, new: Target, old: Target) -> list[Html]:
    places = places_of(new.name, max(new.measured_s or 0.0, old.measured_s or 0.0))
    rows = [_difference(new.name, bold("measured"), old.measured_s, new.measured_s, places, "sum")]
    rows += [
        _difference(
            new.name,
            tag("span", tag("i", look=f"wl-dot {stage.value}"), stage.value),
            old.stages.get(stage),
            new.stages.get(stage),
            places,
        )
        for stage in TARGETS[new.name]
    ]
    pairs = [(part.link, old.part(part.link).seconds, part.seconds) for part in new.parts]
    known = [
        (one, was, now)
        for one, was, now in pairs
        if was is not None and now is not None and max(abs(was), abs(now)) > 0.005 * (new.measured_s or 1.0)
    ]
    known.sort(key=lambda item: -abs(item[2] - item[1]))
    return rows + [_difference(new.name, link(view.link(one), TITLES[one]), was, now, places) for one, was, now in known]


def _difference(name: str, label: object, was: float | None, now: float | None, places: int, look: str = "") -> Html:
    change = "unknown"
    if was is not None and now is not None:
        sign = "+" if now > was else MINUS if now < was else ""
        change = f"{sign}{fixed(name, abs(now - was), places)}"
    return row(
        (label, fixed(name, was, places), fixed(name, now, places), change),
        numbers=(1, 2, 3),
        look=look,
        heads={1: "baseline", 2: "here", 3: "difference"},
    )


def _changed_now(key: decisions.Key, base: tuple[float, float], _view: View) -> list[str]:  # noqa: ARG001 key
    found = window_of(_view.store, *base)
    kept = tuple(engine for engine in found.engines if f"{engine.instance}/{engine.engine}" in _view.chosen)
    return changes(decisions.window(_view), Window(found.start, found.end, kept, found.restarts))


_changed: Callable[..., list[str]] = st.cache_data(max_entries=16, show_spinner=False)(_changed_now)
