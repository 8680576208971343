"""Charts: plotly figures from columns that SQL reduced, all with one time axis.

Text and grid take Streamlit's theme (light or dark); the colours here are seen on both. Stage colours stand only where the
subject is stages; everything else is grey.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any, Final, Literal

import numpy as np
import plotly.graph_objects as go
import streamlit as st

from app.ui import plots, session
from app.ui.markup import Html
from app.ui.words import ahead_s, zone

POINTS: Final = 1500  # slices of a trace at most
COLOURS: Final = {
    "frontend": "#9aa3ad",
    "queue": "#e8a15a",
    "prefill": "#9b86d6",
    "decode": "#6c9fd8",
    "output": "#b9bec5",
    "transfer": "#4fb3a9",
    "hit": "#6fae7f",
    "grey": "#868d97",
    "light": "#b0b5bc",
    "judge": "#e8590c",  # the limiting link and nothing else
    "ink": "#6d7581",  # seen on light and dark
}
_FORMATS: Final = ((None, 60_000, "%H:%M:%S"), (60_000, 86_400_000, "%H:%M"), (86_400_000, None, "%b %d"))
STOPS: Final = [{"dtickrange": [low, high], "value": shown} for low, high, shown in _FORMATS]
EMPTY: Final = 0.45  # of a panel's height, where there is nothing to draw
CALM: Final = "rgba(128,134,142,0.18)"


@dataclass(frozen=True, slots=True)
class Line:
    """One trace of a panel: a column of the timeline, its name in the key, its colour.

    `area` fills it down to 0, `rare` leaves it out where it is never above 0, `said` is its name beside the pointer, `dash` its
    stroke, `at` the column of its instants. `bar` stacks it as bars that end there and are `<at>_width` seconds long, from the
    column `base` on where one is named.
    """

    column: str
    name: str
    colour: str
    area: bool = False
    rare: bool = False
    said: str | None = None
    dash: str | None = None
    at: str = "ts"
    bar: bool = False
    base: str | None = None
    hatched: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel: title, its lines, the drawn unit, the factor to it, a fixed top, the text where there is nothing."""

    title: str
    lines: tuple[Line, ...]
    unit: str = ""
    factor: float = 1.0
    top: float | None = None
    empty: str = "not exported by this version"


def style() -> None:
    """The style sheet of all pages; it takes no room."""
    st.html(f"<style>{files('app.ui').joinpath('style.css').read_text(encoding='utf-8')}</style>")


def html(text: Html, *, width: Literal["stretch", "content"] = "stretch") -> None:
    """A block of our own HTML."""
    st.html(text, width=width)


def times(columns: Mapping[str, Any], at: str = "ts") -> Any:
    """The time axis: instants by the written clock, or plain numbers where the recording carries none."""
    ts = np.asarray(columns[at], dtype=float)
    return ((ts + ahead_s()) * 1000).astype("datetime64[ms]") if timed(columns) else ts


def timed(columns: Mapping[str, Any]) -> bool:
    """True where every slice carries a clock."""
    return bool(len(columns["ts"])) and bool(np.all(np.asarray(columns["timed"], dtype=bool)))


def panels(
    columns: Mapping[str, Any], chosen: Sequence[Panel], marks: Sequence[tuple[float, str]], *, height: int = 112
) -> go.Figure:
    """Panels over one time axis, with marks across all of them."""
    figure = go.Figure()
    x = times(columns)
    worded = timed(columns) and any(word for _, word in marks)
    filled = [[line for line in panel.lines if shown(columns[line.column], line)] for panel in chosen]
    whole = sum(1.0 if lines else EMPTY for lines in filled)
    bottom = 1.0
    for at, (panel, lines) in enumerate(zip(chosen, filled, strict=True)):
        axis = f"y{at + 1}" if at else "y"
        room = (1.0 if lines else EMPTY) / whole
        bottom -= room
        for line in lines:
            own = x if line.at == "ts" else times(columns, line.at)
            y = np.asarray(columns[line.column], dtype=float) * panel.factor
            if line.bar:
                base = None if line.base is None else np.asarray(columns[line.base], dtype=float) * panel.factor
                figure.add_trace(_bar(own, y, base, float(columns[f"{line.at}_width"][0]), line, axis, panel.unit))
            else:
                figure.add_trace(_trace(own, y, line, axis, panel.unit))
        figure.update_layout(
            {
                axis.replace("y", "yaxis"): {
                    "domain": [bottom + 0.02 * room, bottom + room - 0.26 / whole],  # the caption is as high where nothing is
                    "anchor": "x",
                    "fixedrange": True,
                    "zeroline": False,
                    "automargin": False,
                    "range": [0, panel.top or _top(columns, lines, panel.factor)],
                    "nticks": 4,
                    "showticklabels": bool(lines),
                    "showgrid": bool(lines),
                }
            }
        )
        _caption(figure, panel, lines, axis)
        if not lines:  # without a trace the axis would not be drawn, and its title would land on another
            figure.add_trace(go.Scatter(x=x[:1], y=[None], yaxis=axis, showlegend=False, hoverinfo="skip"))
            figure.add_annotation(
                text=panel.empty, x=0.5, y=0.5, xref="x domain", yref=f"{axis} domain", showarrow=False, font={"size": 12}
            )
    _marks(figure, marks if timed(columns) else ())
    _finish(figure, columns, height=round(40 + height * whole + (18 if worded else 0)))
    figure.update_layout(
        margin={"l": 52, "r": 10, "t": 24 if worded else 4, "b": 30},
        hoversubplots="axis",
        xaxis={"anchor": "free", "position": 0},
    )
    return figure


def shown(values: Any, line: Line) -> bool:
    """Whether a trace has anything to show; one that is `rare` only where it is ever above 0."""
    known = np.asarray(values, dtype=float)
    known = known[np.isfinite(known)]
    return bool(len(known)) and (not line.rare or bool((known > 0).any()))


def _caption(figure: go.Figure, panel: Panel, lines: Sequence[Line], axis: str) -> None:
    """Title and key of a panel, above its left end."""
    key = (
        "&nbsp;&nbsp; ".join(f"<span style='color:{line.colour}'>{'▨' if line.hatched else '■'}</span> {line.name}" for line in lines if line.name)
        if sum(bool(line.name) for line in lines) > 1
        else ""
    )
    figure.add_annotation(
        text=f"<b>{panel.title}</b>{'&nbsp;&nbsp;&nbsp; ' if key else ''}{key}",
        x=0,
        y=1,
        xref="x domain",
        yref=f"{axis} domain",
        xanchor="left",
        yanchor="bottom",
        showarrow=False,
        align="left",
        font={"size": 12.5},
    )


def _trace(x: Any, y: Any, line: Line, axis: str = "y", unit: str = "") -> go.Scatter:
    lone = len(y) == 1
    return go.Scatter(
        x=x,
        y=y.astype(np.float32),
        yaxis=axis,
        name=line.name,
        mode="markers" if lone else "lines",
        connectgaps=False,
        showlegend=False,
        line={"color": line.colour, "width": 1.6, "dash": line.dash},
        marker={"color": line.colour, "size": 5},
        fill="tozeroy" if line.area else None,
        hovertemplate=f"{line.said or line.name} %{{y:,.3~r}}{unit}<extra></extra>",
    )


def _bar(x: Any, y: Any, base: Any, width_s: float, line: Line, axis: str, unit: str) -> go.Bar:
    """A layer of a stack: a bar a slice, so that a slice of which nothing is known stays empty."""
    scale = 1000.0 if np.asarray(x).dtype.kind == "M" else 1.0
    return go.Bar(
        x=x, y=(y if base is None else y - base).astype(np.float32), base=base, yaxis=axis, name=line.name, width=width_s * scale, offset=-width_s * scale, showlegend=False,
        marker={"color": line.colour, "line": {"width": 0}, "pattern": {"shape": "/", "size": 5, "solidity": 0.35} if line.hatched else {}},
        customdata=None if base is None else np.stack([base, y], 1),
        hovertemplate=f"{line.said or line.name} {'%{y:,.3~r}' if base is None else '%{customdata[0]:,.3~r} to %{customdata[1]:,.3~r}'}{unit}<extra></extra>",
    )  # fmt: skip


def _top(columns: Mapping[str, Any], lines: Sequence[Line], factor: float) -> float:
    """The upper end of an axis: a little above the largest value."""
    stacked = [np.nan_to_num(np.asarray(columns[line.column], dtype=float)) for line in lines if line.bar]
    plain = [np.asarray(columns[line.column], dtype=float) for line in lines if not line.bar]
    tops = [float(np.nanmax(one)) for one in plain] + ([float(np.sum(stacked, axis=0).max())] if stacked else [])
    largest = max(tops, default=0.0)
    return 1.12 * factor * largest if largest > 0 else 1.0


def _marks(figure: go.Figure, marks: Sequence[tuple[float, str]]) -> None:
    """Dashed verticals across all panels; the words stand above the first."""
    for ts, word in marks:
        x = stamp(ts)
        figure.add_shape(
            type="line",
            x0=x,
            x1=x,
            y0=0,
            y1=1,
            xref="x",
            yref="paper",
            line={"color": COLOURS["grey"], "width": 1, "dash": "dot"},
        )
        if word:
            figure.add_annotation(
                text=word, x=x, y=1, xref="x", yref="paper", yanchor="bottom", xanchor="left", showarrow=False, font={"size": 11}
            )


def _finish(figure: go.Figure, columns: Mapping[str, Any], *, height: int) -> None:
    x = times(columns)
    figure.update_layout(
        height=height,
        dragmode="select",
        selectdirection="h",
        hovermode="x unified",
        barmode="stack",
        bargap=0,
        hoverdistance=40,
        spikedistance=-1,
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        hoverlabel={"namelength": -1},
        newselection={"line": {"color": COLOURS["grey"], "width": 1}},
        activeselection={"fillcolor": CALM},
    )
    figure.update_xaxes(showgrid=False, fixedrange=True, showline=False, ticks="", automargin=False)
    if len(x) > 1:
        figure.update_xaxes(range=[x[0], x[-1]])
    if timed(columns):
        figure.update_xaxes(type="date", tickformatstops=STOPS, hoverformat=f"%Y-%m-%d %H:%M:%S {zone()}")


def small(
    columns: Mapping[str, Any], lines: Sequence[Line], shaded: tuple[float, float] | None, *, height: int = 190
) -> go.Figure:
    """One small panel; what lies outside of `shaded` (the window) is greyed."""
    figure = go.Figure()
    x = times(columns)
    for line in lines:
        figure.add_trace(_trace(x, np.asarray(columns[line.column], dtype=float), line))
    if shaded and timed(columns):
        for low, high in ((float(columns["ts"][0]), shaded[0]), (shaded[1], float(columns["ts"][-1]))):
            if high > low:
                figure.add_vrect(x0=stamp(low), x1=stamp(high), fillcolor=COLOURS["grey"], opacity=0.18, line_width=0)
    _finish(figure, columns, height=height)
    figure.update_layout(margin={"l": 40, "r": 6, "t": 8, "b": 24})
    figure.update_yaxes(range=[0, _top(columns, lines, 1.0)], nticks=4, zeroline=False, fixedrange=True, automargin=False)
    return figure


def brushed(figure: go.Figure, key: str, words: str) -> None:
    """Draw a figure on which a drag sets the window of all pages."""
    st.plotly_chart(plots.light(figure), key=key, on_select=lambda: _brush(key), selection_mode="box", config=dict(plots.CONFIG), alt=words)
    plots.download(figure, key, words)


def _brush(key: str) -> None:
    session.set_clock()  # a callback runs before the page does
    for box in st.session_state[key]["selection"]["box"]:
        ends = [end for edge in box["x"] if (end := seconds(edge)) is not None]
        if len(ends) > 1 and min(ends) < max(ends):
            session.choose(start=min(ends), end=max(ends))


def seconds(edge: Any) -> float | None:
    """Epoch seconds of an edge of a selection: plotly writes the drawn clock without saying so."""
    if isinstance(edge, int | float):
        return float(edge)
    try:
        return datetime.fromisoformat(str(edge)).replace(tzinfo=UTC).timestamp() - ahead_s()
    except ValueError:
        return None


def stamp(ts: float) -> str:
    """An instant as plotly takes it."""
    return datetime.fromtimestamp(ts + ahead_s(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")
