"""The page that HTML and PDF reports share, from one template; charts with script for the screen, still ones for paper."""

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, Final

from app.reports.page import sections
from app.reports.words import stamp

# The still chart stands in its place until the library has drawn the other one, and stays where scripts are off.
_DRAW: Final = """
const dark = matchMedia("(prefers-color-scheme: dark)").matches;
JSON.parse(document.getElementById("points").textContent).forEach((chart, at) => {
  const ink = dark ? "#e8eaed" : "#1b1f24", place = document.getElementById(`chart-${at + 1}`);
  place.replaceChildren();
  Plotly.newPlot(place, chart.series.map(s => ({x: chart.x, y: s.y, name: s.name, mode: "lines", type: "scatter", connectgaps: false})),
    {title: {text: chart.title, font: {size: 14}}, height: 230, margin: {l: 56, r: 12, t: 36, b: 32}, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
     font: {color: ink}, legend: {orientation: "h", y: 1.2, x: 1, xanchor: "right"}, yaxis: {rangemode: "tozero", ticksuffix: chart.unit}},
    {responsive: true, displaylogo: false, displayModeBar: false});
  const drawn = place.querySelector(".main-svg");
  if (drawn) { drawn.setAttribute("role", "img"); drawn.setAttribute("aria-label", `${chart.plain}: ${chart.series.map(s => s.name).join(", ")}`); }
});
"""

_CONTROL: Final = re.compile(r"[\x00-\x08\x0b\x0e-\x1f\x7f-\x9f]")


def page(plain: Mapping[str, Any], *, still: bool = False) -> str:
    """A document as a page; `still` draws the charts without script (print, PDF)."""
    told = sections(plain)
    drawn = [*told["charts"], *(chart for one in told["evidence"] for chart in one["charts"])]
    drawn = [] if still else [chart for chart in drawn if chart["svg"]]
    for at, chart in enumerate(drawn, 1):
        chart["at"] = at
    found = _template().render(**told, still=still, script=_library() if drawn else "", points=_points(drawn), draw=_DRAW)
    return str(found)


@cache
def _template() -> Any:
    from jinja2 import Environment, select_autoescape  # noqa: PLC0415 only where a page is made

    environment = Environment(autoescape=select_autoescape(default=True), trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(files("app.reports").joinpath("incident.html.j2").read_text(encoding="utf-8"))


@cache
def _library() -> str:
    from plotly.offline import get_plotlyjs  # noqa: PLC0415 several megabytes

    source = str(get_plotlyjs()).replace("</script", "<\\/script").replace("<!--", "<\\!--")
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", source)  # HTML allows none of them, JavaScript their escapes


def _points(charts: Sequence[Mapping[str, Any]]) -> str:
    """The charts' points as JSON that cannot end its script element."""
    plain = [
        {
            "title": _text(c["title"]),
            "plain": c["title"],
            "unit": c["unit"],
            "x": [None if t is None else _stamp(t) for t in c["ts"]],
            "series": [
                {"name": _text(name), "y": [None if v is None else float(f"{v:.5g}") for v in values]}
                for name, values in c["series"].items()
            ],
        }
        for c in charts
    ]
    return json.dumps(plain, separators=(",", ":")).replace("<", "\\u003c")


def _text(value: str) -> str:
    """Text that the library, which reads a little markup in titles and names, shows as it is."""
    return value.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _stamp(ts: float) -> str:
    return (stamp(round(ts, 3)) or "").replace("Z", "").replace("T", " ")
