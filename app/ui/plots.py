"""Charts whose axis is not time, and what every chart offers: its numbers as CSV, its picture as PNG (plotly's own button)."""

import csv
import io
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import plotly.graph_objects as go
import streamlit as st
from streamlit.elements import plotly_chart as charts

CONFIG: Final[Mapping[str, Any]] = {
    "displayModeBar": "hover",
    "displaylogo": False,
    "doubleClick": False,
    "modeBarButtons": [["toImage"]],
    "scrollZoom": False,
    "toImageButtonOptions": {"format": "png", "scale": 2},
}
_FORMULA: Final = re.compile(r"^[=+\-@\t\r]")

_identity: Final = charts.compute_and_register_element_id


def _keyed(kind: str, **given: Any) -> str:
    """The identity of a chart: its key alone.

    Streamlit counts the numbers in, too, so that each look of a live page would take the chart away and draw another one.
    """
    found: str = _identity(kind, **{**given, "key_as_main_identity": given["user_key"] is not None})
    return found


charts.compute_and_register_element_id = _keyed


def curves(
    lines: Sequence[tuple[str, str, Any, Any]],
    *,
    across: str,
    up: str,
    top: float | None = None,
    height: int = 260,
    step: bool = False,
) -> go.Figure:
    """Lines over a number: (name, colour, x, y) each; `across` and `up` are the titles of the axes."""
    figure = go.Figure()
    for name, colour, x, y in lines:
        figure.add_trace(
            go.Scatter(
                x=np.asarray(x, dtype=float), y=np.asarray(y, dtype=np.float32), name=name, mode="lines",
                line={"color": colour, "width": 1.8, "shape": "hv" if step else "linear"},
                hovertemplate=f"{name} %{{y:,.3~r}}<extra></extra>",
            )
        )  # fmt: skip
    _finish(figure, across, up, top, height, several=len(lines) > 1)
    return figure


def bars(names: Sequence[str], series: Sequence[tuple[str, str, Any]], *, across: str, up: str, height: int = 220) -> go.Figure:
    """Bars side by side: a name below each, (name, colour, heights) for each series."""
    figure = go.Figure()
    for name, colour, heights in series:
        figure.add_trace(
            go.Bar(
                x=list(names), y=np.asarray(heights, dtype=np.float32), name=name, marker={"color": colour},
                hovertemplate=f"{name} %{{y:,.3~r}}<extra></extra>",
            )
        )  # fmt: skip
    _finish(figure, across, up, None, height, several=len(series) > 1)
    figure.update_layout(bargap=0.15, xaxis={"type": "category"})
    return figure


def _finish(figure: go.Figure, across: str, up: str, top: float | None, height: int, *, several: bool) -> None:
    figure.update_layout(
        height=height,
        hovermode="x unified",
        dragmode=False,
        showlegend=several,
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "itemclick": False, "itemdoubleclick": False},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        margin={"l": 52, "r": 10, "t": 30 if several else 8, "b": 44},
        hoverlabel={"namelength": -1},
    )
    figure.update_xaxes(title={"text": across, "font": {"size": 12}}, showgrid=False, zeroline=False, fixedrange=True)
    figure.update_yaxes(title={"text": up, "font": {"size": 12}}, zeroline=False, fixedrange=True, rangemode="tozero", nticks=5)
    if top is not None:
        figure.update_yaxes(range=[0, top])


def show(figure: go.Figure, key: str, words: str) -> None:
    """Draw a figure with its CSV; `words` say what it shows to who cannot see it."""
    st.plotly_chart(light(figure), key=key, config=dict(CONFIG), alt=words)
    download(figure, key, words)


def light(figure: go.Figure) -> go.Figure:
    """A figure as it is sent: instants as milliseconds, a third as long as their text."""
    found = go.Figure(figure)
    for trace in found.data:
        if trace.x is not None and np.asarray(trace.x).dtype.kind == "M":
            trace.x = np.asarray(trace.x).astype("datetime64[us]").astype(np.int64) / 1000.0
    return found


def download(figure: go.Figure, key: str, words: str) -> None:
    """A button that hands out the numbers of a figure; they are made when it is pressed."""
    name = "weaklink-" + (re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")[:60] or "chart")
    with st.container(key=f"csv-{key}", horizontal=True, horizontal_alignment="right"):
        st.download_button(
            "CSV", partial(sheet, figure), f"{name}.csv", "text/csv", key=f"csv-button-{key}", on_click="ignore", type="tertiary",
            help=f"The numbers of this chart: {words}",
        )  # fmt: skip


def sheet(figure: go.Figure) -> str:
    """The numbers of a figure: a row for each place on its axis, a column for each trace; of a heat map a row for each cell."""
    columns: dict[str, dict[Any, Any]] = {}
    heats = [trace for trace in figure.data if trace.type == "heatmap"]
    lying = [trace for trace in figure.data if trace.type == "bar" and trace.orientation == "h"]
    for at, trace in enumerate(figure.data):
        if trace.x is None or trace.y is None or trace.opacity == 0 or trace in heats or trace in lying:
            continue
        name = trace.name or f"trace {at + 1}"
        while name in columns:
            name += "'"
        columns[name] = dict(zip(_cells(trace.x), _cells(trace.y), strict=False))
    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\n")
    if columns:
        rows.writerow(map(_safe, ("x", *columns)))
        places = dict.fromkeys(place for values in columns.values() for place in values)
        ordered = sorted(places) if len({type(place) for place in places}) == 1 and not _named(figure) else list(places)
        rows.writerows([_safe(place), *(values.get(place, "") for values in columns.values())] for place in ordered)
    if lying:
        rows.writerow(("bar", "of it", "from", "length"))
    for trace in lying:
        bars = zip(_cells(trace.y), _cells(trace.base), _cells(trace.x), strict=False)
        rows.writerows((_safe(y), _safe(trace.name), _safe(base), cell) for y, base, cell in bars)
    for trace in heats:
        rows.writerow(("x", "y", _safe(trace.name or "value")))
        for y, line in zip(_cells(trace.y), trace.z, strict=False):
            rows.writerows((_safe(x), _safe(y), cell) for x, cell in zip(_cells(trace.x), _cells(line), strict=False))
    return out.getvalue()


def _named(figure: go.Figure) -> bool:
    return any(trace.type == "bar" for trace in figure.data)


def _cells(values: Any) -> list[Any]:
    """Cells as they are written: instants in ISO 8601 UTC, no number as nothing."""
    array = np.asarray(values)
    if array.dtype.kind == "M":
        return [f"{text}Z" for text in np.datetime_as_string(array.astype("datetime64[ms]"))]
    if array.dtype.kind == "f":
        return ["" if np.isnan(one) else float(f"{one:.9g}") for one in array]
    return ["" if one is None else one for one in array.tolist()]


def _safe(cell: Any) -> Any:
    """Text that no spreadsheet takes for a formula."""
    return f"'{cell}" if isinstance(cell, str) and _FORMULA.match(cell) else cell
