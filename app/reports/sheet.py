"""The page that HTML and PDF reports share, from one template; charts with script for the screen, still ones for paper."""

import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any, Final

from app.reports.page import sections
from app.reports.words import stamp

_DRAW: Final = """
const dark = matchMedia("(prefers-color-scheme: dark)").matches;
JSON.parse(document.getElementById("points").textContent).forEach((chart, at) => {
  const ink = dark ? "#e8eaed" : "#1b1f24";
  Plotly.newPlot(`chart-${at + 1}`, chart.series.map(s => ({x: chart.x, y: s.y, name: s.name, mode: "lines", type: "scatter", connectgaps: false})),
    {title: {text: chart.title, font: {size: 14}}, height: 230, margin: {l: 56, r: 12, t: 36, b: 32}, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
     font: {color: ink}, legend: {orientation: "h", y: 1.2, x: 1, xanchor: "right"}, yaxis: {rangemode: "tozero", ticksuffix: chart.unit}},
    {responsive: true, displaylogo: false, modeBarButtonsToRemove: ["lasso2d", "select2d"]});
});
"""


def page(plain: Mapping[str, Any], *, still: bool = False) -> str:
    """A document as a page; `still` draws the charts without script (print, PDF)."""
    from jinja2 import Environment, select_autoescape  # noqa: PLC0415 only where a page is made

    told = sections(plain)
    script = "" if still or not told["charts"] else _library()
    environment = Environment(autoescape=select_autoescape(default=True), trim_blocks=True)
    template = environment.from_string(files("app.reports").joinpath("incident.html.j2").read_text(encoding="utf-8"))
    return template.render(**told, script=script, points=_points(told["charts"]), draw=_DRAW)


def _library() -> str:
    from plotly.offline import get_plotlyjs  # noqa: PLC0415 several megabytes

    return str(get_plotlyjs()).replace("</script", "<\\/script")


def _points(charts: list[dict[str, Any]]) -> str:
    """The charts' points as JSON that cannot end its script element."""
    plain = [
        {"title": c["title"], "unit": c["unit"], "x": [None if t is None else round(1000 * t) for t in c["ts"]],
         "series": [{"name": name, "y": [None if v is None else float(f"{v:.5g}") for v in values]} for name, values in c["series"].items()]}
        for c in charts
    ]  # fmt: skip
    for chart in plain:
        chart["x"] = [None if t is None else _stamp(t) for t in chart["x"]]
    return json.dumps(plain, separators=(",", ":")).replace("<", "\\u003c")


def _stamp(milliseconds: int) -> str:
    return (stamp(milliseconds / 1000) or "").replace("Z", "").replace("T", " ")
