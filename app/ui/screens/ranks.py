"""Ranks: how evenly expert-parallel and data-parallel ranks are loaded, and which one is hot."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import streamlit as st

from analyzers.links import moe_imbalance
from analyzers.model import Engine, Part
from app.ui import decisions, draw
from app.ui.draw import COLOURS, Line, Panel
from app.ui.markup import Html, bold, div, join, row, table, tag
from app.ui.reuse import SHADES
from app.ui.session import View
from app.ui.words import DASH, THIN, clock, count, flagged, number, percent, titled

TITLE: Final = "Ranks"
POINTS: Final = 400  # slices: every engine has a trace in every panel
MOST_LINES: Final = 8  # engines with a trace each; of more, the busiest, the middle and the idlest
MOST_ROWS: Final = 64
HOT: Final = 1.25  # times the mean load of the engines, from which one is called hot
EVEN: Final = 1.1
STEPS_FLAG: Final = "--enable-logging-iteration-details"


def page(view: View) -> None:
    """Draw the page."""
    if view.judged is None:
        draw.html(decisions.nothing(view))
        return
    engines = view.rows("ranks_engine", **view.window())
    found = view.columns("ranks", points=POINTS, **view.window())
    members = decisions.engines(view)
    draw.html(head(engines, _part(view), members))
    columns, names = spread(found)
    balance = balancedness(members, columns["ts"])
    columns["balancedness"] = balance
    with st.container(key="card-ranks"):
        if len(columns["ts"]) > 1:
            drawn = panels(names, why_no_balance(members))
            figure = draw.panels(columns, drawn, (), height=120)
            draw.brushed(
                figure, f"ranks-{view.pick.start}-{view.pick.end}-{view.pick.engine}", "load and steps of each engine over time"
            )
        else:
            draw.html(div("wl-title", "One scrape or none in this window: a state, not its course. Two or more are needed."))
    with st.container(key="card-engines"):
        draw.html(loads(engines, {one["name"]: one for one in view.rows("ranks_step", **view.window())}))
    with st.container(key="card-experts"):
        draw.html(experts(members, _part(view)))


def _part(view: View) -> Part | None:
    return next((part for part in view.target.parts if part.link == moe_imbalance.LINK.name), None) if view.target else None


# -- the answer -----------------------------------------------------------------------------------------------------------------
def head(engines: Sequence[Mapping[str, Any]], part: Part | None, members: Sequence[Engine]) -> Html:
    """How even the load is, in a sentence; what is known of experts, in a paragraph."""
    loads = load_of(engines)
    known = [value for value in loads.values() if math.isfinite(value)]
    mean = sum(known) / len(known) if known else math.nan
    busiest = max(
        (value for one in members if moe_imbalance.right_axis(one) and math.isfinite(value := moe_imbalance.iota(one)[0])),
        default=math.nan,
    )
    if len(engines) < 2 and math.isfinite(busiest):
        said = f"The busiest expert-parallel rank gets {number(busiest)} times the mean of the tokens."
    elif len(engines) < 2:
        said = "One engine: there are no data-parallel ranks to compare."
    elif not mean > 0:
        said = f"{len(engines)} engines, none with requests at a scrape."
    else:
        name = max(loads, key=lambda one: loads[one] if math.isfinite(loads[one]) else -1.0)
        over = loads[name] / mean
        how = f"the busiest, {name}, holds {percent(over - 1)} more requests than the mean" if over >= EVEN else "evenly loaded"
        said = f"{len(engines)} engines: {how}."
    return div(
        "wl-answer",
        tag("h1", said),
        tag("p", bold("Experts: "), flagged(_experts_said(part, members))),
        data_engines=str(len(engines)),
    )


def _experts_said(part: Part | None, members: Sequence[Engine]) -> str:
    """What is known of expert imbalance, or what would tell."""
    if part is not None and part.seconds is not None and part.used:
        return f"{'; '.join(part.evidence) or part.fact}."
    why = "; ".join(dict.fromkeys(part.conditions)) if part and part.conditions else why_no_balance(members)
    if part is not None and not part.used:
        return f"{titled(why)}."
    return f"{titled(why)}. To measure it: {moe_imbalance.MEASURE}."


def why_no_balance(members: Sequence[Engine]) -> str:
    """Why there is no balancedness to draw."""
    lines = [one for one in members if any(e.kind == "eplb" for e in one.event)]
    if lines and not any(moe_imbalance.right_axis(one) for one in lines):
        version = next((one.version for one in lines if one.version), "of unknown version")
        return f"vLLM {version} takes balancedness over another axis: its lines do not measure imbalance (right from 0.33)"
    if lines:
        return f"no line of a step with at least {moe_imbalance.BIG_STEP_TOKENS} tokens"
    return "unobserved: expert load is in no metric of vLLM, and the log has no balancedness lines"


def load_of(engines: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Requests that each engine holds, running and waiting, mean over time; NaN: unknown."""
    return {one["name"]: math.nan if one["running"] is None else one["running"] + (one["waiting"] or 0.0) for one in engines}


# -- over time ------------------------------------------------------------------------------------------------------------------
MEASURES: Final = ("running", "waiting", "step_s", "kv_usage_ratio")


def spread(found: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Columns "<measure> <engine>" over common slices, and the names of what has a column; of many engines the extremes."""
    slices, at = np.unique(np.asarray(found["slice"], dtype=float), return_inverse=True)
    ts = np.full(len(slices), -math.inf)
    np.maximum.at(ts, at, np.asarray(found["ts"], dtype=float))
    columns: dict[str, Any] = {"ts": ts, "timed": np.full(len(slices), bool(np.all(np.asarray(found["timed"], dtype=bool))))}
    names = list(dict.fromkeys(found["name"]))
    index = {name: n for n, name in enumerate(names)}
    which = np.array([index[name] for name in found["name"]], dtype=int)
    for measure in MEASURES:
        grid = np.full((len(slices), len(names)), math.nan)
        grid[at, which] = np.asarray(found[measure], dtype=float)
        if len(names) > MOST_LINES:
            columns |= {f"{measure} {name}": values for name, values in zip(EXTREMES, _extremes(grid), strict=True)}
        else:
            columns |= {f"{measure} {name}": grid[:, n] for n, name in enumerate(names)}
    return columns, list(EXTREMES) if len(names) > MOST_LINES else names


EXTREMES: Final = ("highest engine", "median engine", "lowest engine")


def _extremes(grid: Any) -> tuple[Any, Any, Any]:
    """Highest, median and lowest of each row; NaN where a row has none."""
    known = np.isfinite(grid).any(axis=1)
    out = [np.full(len(grid), math.nan) for _ in EXTREMES]
    if known.any():
        out[0][known], out[2][known] = np.nanmax(grid[known], axis=1), np.nanmin(grid[known], axis=1)
        out[1][known] = np.nanmedian(grid[known], axis=1)
    return out[0], out[1], out[2]


def panels(names: Sequence[str], no_balance: str) -> list[Panel]:
    """A panel for each measure, with the same colour for an engine in all of them."""

    def lines(measure: str) -> tuple[Line, ...]:
        return tuple(Line(f"{measure} {name}", name, SHADES[at % len(SHADES)]) for at, name in enumerate(names))

    return [
        Panel("Running, requests", lines("running")),
        Panel("Waiting, requests", lines("waiting")),
        Panel("Time a step while requests run, ms", lines("step_s"), unit=" ms", factor=1000, empty="no counter of steps (vllm:iteration_tokens_total)"),
        Panel("KV blocks in use, %", lines("kv_usage_ratio"), unit=" %", factor=100, top=104),
        Panel(
            "Balancedness of expert-parallel ranks (mean over busiest: 1 is even)",
            (Line("balancedness", "balancedness", COLOURS["grey"]),), top=1.04, empty=no_balance,
        ),
    ]  # fmt: skip


def balancedness(members: Sequence[Engine], edges: Any) -> Any:
    """Mean over busiest rank in each slice, weighted by tokens, of lines of large steps; NaN where there is none."""
    tokens, ideal = np.zeros(len(edges)), np.zeros(len(edges))
    for engine in members:
        if not moe_imbalance.right_axis(engine):
            continue
        size, ratio = moe_imbalance.lines_of(engine)
        ts = np.array(
            [e.ts for e in engine.event if e.kind == "eplb" and float(e.fields.get("avg_tokens", 0.0)) > 0], dtype=float
        )
        at = np.searchsorted(edges, ts)
        use = (size >= moe_imbalance.BIG_STEP_TOKENS) & np.isfinite(ts) & (at < len(edges))
        np.add.at(tokens, at[use], size[use])
        np.add.at(ideal, at[use], size[use] * ratio[use])
    return np.where(ideal > 0, tokens / np.where(ideal > 0, ideal, 1.0), math.nan)


# -- tables ---------------------------------------------------------------------------------------------------------------------
def loads(engines: Sequence[Mapping[str, Any]], steps: Mapping[str, Mapping[str, Any]]) -> Html:
    """The load of each engine over the window, the hot ones marked."""
    held = load_of(engines)
    known = [value for value in held.values() if math.isfinite(value)]
    mean = sum(known) / len(known) if known else math.nan
    heads = (
        ("engine", ""), ("running", "num"), ("waiting", "num"), ("most waiting", "num"), ("finished", "num"), ("generated", "num"),
        ("KV peak", "num"), ("ms a step", "num"), ("steps p50 / p95 / p99", "num"), ("steps without requests", "num"),
    )  # fmt: skip
    order = sorted(engines, key=lambda one: -(held[one["name"]] if math.isfinite(held[one["name"]]) else -1.0))
    rows = [
        _load(one, steps.get(one["name"]), hot=len(engines) > 1 and mean > 0 and held[one["name"]] >= HOT * mean)
        for one in order[:MOST_ROWS]
    ]
    said = [f"Load of each engine, the fullest first; ● holds at least {HOT:g} times the mean. "]
    if not steps:
        said.append(f"Seconds of single steps and steps without requests are in the log with {STEPS_FLAG}. ")
    if len(engines) > MOST_ROWS:
        said.append(f"The first {MOST_ROWS} of {len(engines)}.")
    return join([div("wl-title", *(flagged(one) for one in said)), table(heads, rows)])


def _load(one: Mapping[str, Any], step: Mapping[str, Any] | None, *, hot: bool) -> Html:
    mark = tag("span", "● hot" if hot else "", look="wl-hot")
    quantiles = (
        " / ".join(f"{number(1000 * step[q])}" for q in ("p50_s", "p95_s", "p99_s") if step[q] is not None) if step else DASH
    )
    cells = (
        join([one["name"], " ", mark]), number(one["running"]), number(one["waiting"]), count(one["waiting_peak"]), count(one["finished"]),
        "unknown" if one["generation_tokens"] is None else f"{count(one['generation_tokens'])}{THIN}tok", percent(one["kv_peak_ratio"]),
        "unknown" if one["step_s"] is None else number(1000 * one["step_s"]), quantiles or DASH,
        percent(step["dummies"] / step["steps"]) if step and step["steps"] else DASH,
    )  # fmt: skip
    heads = {
        1: "running",
        2: "waiting",
        3: "most waiting",
        4: "finished",
        5: "generated",
        6: "KV peak",
        7: "ms a step",
        8: "steps",
        9: "empty",
    }
    return row(cells, numbers=range(1, 10), heads=heads)


def experts(members: Sequence[Engine], part: Part | None) -> Html:
    """Balancedness lines of each server, and rearrangements."""
    title = div("wl-title", "Expert-parallel ranks, as the log tells")
    rows = [row(cells, numbers=(3, 4, 5, 6)) for engine in members[:MOST_ROWS] if (cells := _experts(engine))]
    if not rows:
        said = _experts_said(part, members)
        return join([title, tag("p", flagged(f"{said[:1].upper()}{said[1:]}"))])
    heads = (
        ("engine", ""), ("vLLM", ""), ("read as", ""), ("lines", "num"), ("large steps", "num"), ("busiest over mean", "num"),
        ("rearrangements", "num"), ("first and last line, UTC", ""),
    )  # fmt: skip
    return join([title, table(heads, rows)])


def _experts(engine: Engine) -> tuple[object, ...] | None:
    lines = [e for e in engine.event if e.kind == "eplb"]
    if not lines:
        return None
    right = moe_imbalance.right_axis(engine)
    busiest, large = moe_imbalance.iota(engine)
    stamps = [e.ts for e in lines if math.isfinite(e.ts)]
    when = f"{clock(min(stamps))} {DASH} {clock(max(stamps))}" if stamps else "no clock"
    return (
        f"{engine.instance}/{engine.engine}", engine.version or "unknown", "over ranks" if right else "known wrong: another axis, not used", count(len(lines)),
        count(large), number(busiest) if right and math.isfinite(busiest) else "unknown",
        count(sum(e.kind == "rearrange" for e in engine.event)), when,
    )  # fmt: skip
