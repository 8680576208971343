"""Single requests drawn: the slowest on one clock, and the heat map of a latency over time."""

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import plotly.graph_objects as go

from analyzers.beside import Beside, Held
from analyzers.model import Stage
from app.ui import draw
from app.ui.words import ahead_s, clock, count, number, plain

STAGES: Final = tuple(Stage)
PREEMPTED: Final = "#e04848"
ROW_PX: Final = 37
LONE: Final = 8.0  # times the longest request: where the slowest lie further apart, each has a clock of its own, or its bar were a dash
TEXT_SHARE: Final = 0.07  # of the width: a bar that is narrower bears no number
MOST_MARKS: Final = 40  # prompts of others marked in one decode


@dataclass(frozen=True, slots=True)
class Bar:
    """A request as it is drawn: its row of request_slow, what ran beside it, its name."""

    row: Mapping[str, Any]
    beside: Beside | None
    name: str


def name_of(key: str) -> str:
    """A request id as a page writes it: the end tells requests apart."""
    own = key.partition("@")[0] or key  # what follows names its server
    return own if len(own) <= 20 else f"…{own[-18:]}"


def together(bars: Sequence[Bar]) -> bool:
    """Whether the requests lie near enough for one clock."""
    starts = [float(one.row["arrival_ts"]) for one in bars]
    longest = max(float(one.row["e2e_s"] or 0.0) for one in bars)
    return max(starts) - min(starts) <= LONE * max(longest, 1e-3)


def by_which(bars: Sequence[Bar]) -> str:
    """By which clock the bars are drawn, for the title above them."""
    return "on one clock" if together(bars) else "each from its own arrival"


def waterfall(bars: Sequence[Bar], chosen: str) -> go.Figure:
    """Bars from arrival to last token, the slowest on top; what held the chosen one is tinted."""
    one_clock = together(bars)
    pieces = [(at, stage, *piece) for at, bar in enumerate(bars) for stage, piece in _pieces(bar.row)]
    origin = {at: 0.0 if one_clock else float(bar.row["arrival_ts"]) for at, bar in enumerate(bars)}
    width = max(start + seconds - origin[at] for at, _, start, seconds in pieces) - min(
        start - origin[at] for at, _, start, _ in pieces
    )
    figure = go.Figure()
    for stage in (*STAGES, None):
        mine = [(at, start - origin[at], seconds) for at, which, start, seconds in pieces if which is stage]
        if mine:
            figure.add_trace(_stage(stage, mine, bars, chosen, width, one_clock=one_clock))
    shapes = [*_tint(bars, chosen, origin, one_clock=one_clock), *_marks(bars, origin, one_clock=one_clock)]
    figure.update_layout(
        shapes=shapes, annotations=_words(bars, chosen, origin, one_clock=one_clock)
    )  # added one by one they take seconds
    _layout(figure, bars, width, origin, one_clock=one_clock)
    return figure


def _pieces(row: Mapping[str, Any]) -> list[tuple[Stage | None, tuple[float, float]]]:
    """(stage, (start, seconds)) of one request; None: seconds whose stage was not recorded."""
    start = float(row["arrival_ts"])
    found: list[tuple[Stage | None, tuple[float, float]]] = []
    known = [row[f"{stage.value}_s"] for stage in STAGES]
    if any(seconds is None for seconds in known):
        first, whole = row["ttft_s"] or 0.0, row["e2e_s"] or 0.0
        return [(None, (start, first)), (Stage.DECODE, (start + first, max(0.0, whole - first)))]
    for stage, seconds in zip(STAGES, known, strict=True):
        if seconds > 0:
            found.append((stage, (start, float(seconds))))
        start += float(seconds)
    return found


def _x(ts: float, one_clock: bool) -> Any:
    return draw.stamp(ts) if one_clock and ts > 1e8 else ts


def _stage(
    stage: Stage | None,
    mine: Sequence[tuple[int, float, float]],
    bars: Sequence[Bar],
    chosen: str,
    width: float,
    *,
    one_clock: bool,
) -> go.Bar:
    scale = 1000.0 if one_clock and mine[0][1] > 1e8 else 1.0  # bars on a date axis are milliseconds long
    label = stage.value if stage else "before the first token (not split)"
    mark = [2.0 if bars[at].row["key"] == chosen else 0.0 for at, _, _ in mine]
    return go.Bar(
        orientation="h",
        base=[_x(start, one_clock) for _, start, _ in mine],
        x=[seconds * scale for _, _, seconds in mine],
        y=[at for at, _, _ in mine],
        name=label,
        customdata=[[bars[at].row["key"], seconds] for at, _, seconds in mine],
        text=[f"{number(seconds)} s" if seconds >= TEXT_SHARE * width else "" for _, _, seconds in mine],
        textposition="inside",
        insidetextanchor="start",
        textfont={"size": 11, "color": "#101418"},
        constraintext="none",
        marker={"color": draw.COLOURS[stage.value if stage else "light"], "line": {"width": mark, "color": draw.COLOURS["ink"]}},
        selected={"marker": {"opacity": 1}},
        unselected={"marker": {"opacity": 1}},
        hovertemplate=f"{label} %{{customdata[1]:,.3~r}} s<extra></extra>",
        width=0.62,
    )


def _marks(bars: Sequence[Bar], origin: Mapping[int, float], *, one_clock: bool) -> list[dict[str, Any]]:
    """Prompts of others inside each decode, and holes between its tokens."""
    found = []
    for at, bar in enumerate(bars):
        if bar.beside is None:
            continue
        largest = sorted(bar.beside.prompts, key=lambda one: -one[2])[:MOST_MARKS]
        boxes = [(start, end, draw.COLOURS["prefill"], 0.9, 0.13, 0.31) for start, end, _ in largest]
        boxes += [(start, end, PREEMPTED, 0.9, -0.31, 0.31) for start, end in bar.beside.holes]
        found += [
            _box(start - origin[at], end - origin[at], at + top, at + bottom, colour, opacity, one_clock=one_clock)
            for start, end, colour, opacity, top, bottom in boxes
        ]
    return found


def _box(low: float, high: float, top: float, bottom: float, colour: str, opacity: float, *, one_clock: bool) -> dict[str, Any]:
    return {
        "type": "rect", "x0": _x(low, one_clock), "x1": _x(high, one_clock), "y0": top, "y1": bottom, "fillcolor": colour, "opacity": opacity,
        "line": {"width": 0}, "layer": "below" if colour == draw.COLOURS["judge"] else "above",
    }  # fmt: skip


def _worst(bars: Sequence[Bar], chosen: str) -> tuple[int, Held] | None:
    """The row of the chosen request and what held it, where that has a span."""
    for at, bar in enumerate(bars):
        worst = bar.beside.worst if bar.beside else None
        if bar.row["key"] == chosen and worst is not None and worst.span is not None:
            return at, worst
    return None


def _tint(bars: Sequence[Bar], chosen: str, origin: Mapping[int, float], *, one_clock: bool) -> list[dict[str, Any]]:
    """The span that the requests that held the chosen one took, over all rows."""
    found = _worst(bars, chosen)
    if found is None or found[1].span is None:
        return []
    at, worst = found
    low, high = (edge - origin[at] for edge in worst.span or (0.0, 0.0))
    top, bottom = (-0.5, len(bars) - 0.5) if one_clock else (at - 0.45, at + 0.45)
    return [_box(low, high, top, bottom, draw.COLOURS["judge"], 0.13, one_clock=one_clock)]


def _words(bars: Sequence[Bar], chosen: str, origin: Mapping[int, float], *, one_clock: bool) -> list[dict[str, Any]]:
    """What the tint is, above it."""
    found: list[dict[str, Any]] = []
    worst = _worst(bars, chosen)
    if worst is not None and worst[1].span is not None:
        text = f"<b>{html.escape(worst[1].says.partition(' that arrived')[0])}</b>"
        low = _x(worst[1].span[0] - origin[worst[0]], one_clock)
        found.append(
            {"text": text, "x": low, "y": 1, "yref": "paper", "xanchor": "left", "yanchor": "bottom", "showarrow": False, "font": {"size": 12, "color": draw.COLOURS["judge"]}}
        )  # fmt: skip
    return found


def _layout(figure: go.Figure, bars: Sequence[Bar], width: float, origin: Mapping[int, float], *, one_clock: bool) -> None:
    starts = [float(bar.row["arrival_ts"]) - origin[at] for at, bar in enumerate(bars)]
    ends = [float(bar.row["arrival_ts"]) + float(bar.row["e2e_s"] or 0.0) - origin[at] for at, bar in enumerate(bars)]
    low, high = min(starts) - 0.02 * width, max(ends) + 0.02 * width
    figure.update_layout(
        barmode="overlay",
        height=74 + ROW_PX * len(bars),
        margin={"l": 8, "r": 8, "t": 26, "b": 28},
        showlegend=False,
        hovermode="closest",
        dragmode=False,
        clickmode="event+select",
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        xaxis={"range": [_x(low, one_clock), _x(high, one_clock)], "fixedrange": True, "showgrid": False, "zeroline": False},
        yaxis={
            "tickvals": list(range(len(bars))),
            "ticktext": [_label(bar) for bar in bars],
            "range": [len(bars) - 0.5, -0.5],
            "fixedrange": True,
            "showgrid": False,
            "zeroline": False,
            "automargin": True,
            "ticks": "",
        },
    )
    if one_clock and starts[0] > 1e8:
        figure.update_xaxes(type="date", tickformat="%H:%M:%S", hoverformat="%H:%M:%S.%L")
    else:
        figure.update_xaxes(
            title={"text": "seconds since each one's arrival" if not one_clock else "seconds", "font": {"size": 11}}
        )


def _label(bar: Bar) -> str:
    """Name, seconds and tokens of a request, beside its bar."""
    out = f" · {count(bar.row['output_tokens'])} out" if bar.row["output_tokens"] is not None else ""
    return f"{html.escape(bar.name)}<br><b>{number(bar.row['e2e_s'])} s</b>{out}"


# -- heat map -----------------------------------------------------------------------------------------------------------------------
def heat(cells: Mapping[str, Any], target: str, *, timed: bool, even: bool) -> go.Figure:
    """Requests by time and latency band, darker where more; a drag chooses a span of time."""
    slices, bands = np.unique(cells["ts"]), int(np.max(cells["band"])) + 1
    grid = np.full((bands, len(slices)), np.nan)
    grid[np.asarray(cells["band"], int), np.searchsorted(slices, cells["ts"])] = cells["n"]
    edges = {
        int(band): (float(low), float(high))
        for band, low, high in zip(cells["band"], cells["low_s"], cells["high_s"], strict=True)
    }
    factor, unit = (1000.0, "ms") if target in {"tpot", "itl"} else (1.0, "s")
    step = float(np.asarray(cells["step_s"], float)[0])
    x: Any = ((slices + ahead_s()) * 1000).astype("datetime64[ms]") if timed else slices
    words = [
        [f"{_band(edges.get(band), factor, unit)}<br>{'' if np.isnan(n) else f'{n:,.0f} requests'}" for n in line]
        for band, line in enumerate(grid)
    ]
    figure = go.Figure(
        go.Heatmap(
            x=x, y=list(range(bands)), z=grid, text=words, colorscale=[[0, "rgba(108,159,216,0.22)"], [0.35, "rgba(84,141,206,0.75)"], [1, "rgba(48,104,170,1)"]],
            showscale=False, xgap=1, ygap=1, hoverongaps=False, hovertemplate="%{text}<extra></extra>",
        )
    )  # fmt: skip
    # the heat map itself cannot be selected from: points that nobody sees can
    figure.add_trace(go.Scatter(x=x, y=[0] * len(slices), mode="markers", opacity=0, hoverinfo="skip", showlegend=False))
    shown = [(low * factor, float(band)) for band, (low, _) in sorted(edges.items())]
    if even:  # bands of one height: also where no request lies
        shown = [(low * factor, at) for low, at in _even(edges, bands)]
    kept: list[tuple[float, float]] = []
    for low, at in shown:
        if not kept or at - kept[-1][1] >= bands / 7:
            kept.append((low, at))
    figure.update_layout(
        height=230,
        margin={"l": 64, "r": 8, "t": 6, "b": 26},
        dragmode="select",
        selectdirection="h",
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        hovermode="closest",
        yaxis={
            "tickvals": [at - 0.5 for _, at in kept],
            "ticktext": [f"{plain(low)} {unit}" for low, _ in kept],
            "fixedrange": True,
            "showgrid": False,
            "zeroline": False,
            "ticks": "",
        },
        xaxis={"fixedrange": True, "showgrid": False, "zeroline": False, "ticks": ""},
    )
    if timed:
        figure.update_xaxes(
            type="date", tickformatstops=draw.STOPS, range=[draw.stamp(slices[0] - step / 2), draw.stamp(slices[-1] + step / 2)]
        )
    return figure


def _even(edges: Mapping[int, tuple[float, float]], bands: int) -> list[tuple[float, float]]:
    """(lower edge, band) of every band, from those that are known, where all are of one height in the logarithm."""
    band, (low, high) = next(iter(sorted(edges.items())))
    return [(low * (high / low) ** (at - band), float(at)) for at in range(bands)]


def _band(edge: tuple[float, float] | None, factor: float, unit: str) -> str:
    if edge is None:
        return ""
    low, high = edge
    return (
        f"above {plain(low * factor)} {unit}" if math.isinf(high) else f"{plain(low * factor)} to {plain(high * factor)} {unit}"
    )


def span_said(bars: Sequence[Bar]) -> str:
    """The span of the drawn requests in words."""
    starts = [float(one.row["arrival_ts"]) for one in bars]
    return f"{clock(min(starts))} to {clock(max(starts))}" if min(starts) > 1e8 else ""
