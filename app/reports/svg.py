"""Small static drawings for reports: line charts over time and the bar that adds up. Plain SVG, no script."""

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any, Final

WIDTH: Final = 760
HEIGHT: Final = 170
LEFT: Final = 58
COLOURS: Final = ("#4a7fb5", "#d97b1f", "#7d5fb2", "#3f8f6b", "#8a8f98", "#b5485d")


def lines(title: str, unit: str, ts: Sequence[float | None], series: Mapping[str, Sequence[float | None]]) -> str:
    """A line chart: x epoch seconds, one line a series; unknown points leave a gap. Empty text where nothing is known."""
    known = [y for values in series.values() for y in values if y is not None]
    xs = [x for x in ts if x is not None]
    if not known or len(xs) < 2:
        return ""
    low, high = min(xs), max(xs)
    top = _nice(max([*known, 0.0]))

    def place(x: float, y: float) -> str:
        across = LEFT + (x - low) / max(high - low, 1e-9) * (WIDTH - LEFT - 10)
        return f"{across:.1f},{HEIGHT - 24 - y / top * (HEIGHT - 60):.1f}"

    body = [_axis(top, unit), *_times(low, high)]
    legend = []
    for at, (name, values) in enumerate(series.items()):
        colour = COLOURS[at % len(COLOURS)]
        legend.append(f'<text x="{LEFT + 150 * at}" y="30" fill="{colour}" font-size="12">{escape(name)}</text>')
        for run in _runs(ts, values):
            body.append(  # noqa: PERF401 a sentence a line is easier to read
                f'<polyline fill="none" stroke="{colour}" stroke-width="1.6" points="{" ".join(place(x, y) for x, y in run)}"/>'
            )
    label = f"{title}: {', '.join(series)}"
    return (
        f'<svg role="img" aria-label="{escape(label)}" viewBox="0 0 {WIDTH} {HEIGHT}" width="100%" font-family="sans-serif">'
        f'<text x="0" y="14" font-size="13" fill="currentColor">{escape(title)}</text>{"".join(legend)}{"".join(body)}</svg>'
    )


def _runs(ts: Sequence[float | None], values: Sequence[float | None]) -> list[list[tuple[float, float]]]:
    """Stretches of known points."""
    runs: list[list[tuple[float, float]]] = [[]]
    for x, y in zip(ts, values, strict=True):
        if x is None or y is None:
            runs.append([])
        else:
            runs[-1].append((x, y))
    return [run for run in runs if len(run) > 1]


def _nice(value: float) -> float:
    """The next of 1, 2, 5 times a power of ten."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return float(next(step * power for step in (1, 2, 5, 10) if step * power >= value))


def _axis(top: float, unit: str) -> str:
    out = []
    for part in (0.0, 0.5, 1.0):
        y = HEIGHT - 24 - part * (HEIGHT - 60)
        out.append(f'<line x1="{LEFT}" x2="{WIDTH - 10}" y1="{y:.1f}" y2="{y:.1f}" stroke="#8886" stroke-width="0.6"/>')
        out.append(
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" font-size="11" fill="currentColor">{_tick(part * top)}{unit if part == 1 else ""}</text>'
        )
    return "".join(out)


def _tick(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _times(low: float, high: float) -> list[str]:
    out = []
    for part, anchor in ((0.0, "start"), (0.5, "middle"), (1.0, "end")):
        when = datetime.fromtimestamp(low + part * (high - low), UTC).strftime("%H:%M:%S")
        out.append(
            f'<text x="{LEFT + part * (WIDTH - LEFT - 10):.0f}" y="{HEIGHT - 8}" text-anchor="{anchor}" font-size="11" fill="currentColor">{when}</text>'
        )
    return out


def ledger(target: Mapping[str, Any], titles: Mapping[str, str], said: Callable[[float | None], str]) -> str:
    """Measured = floor + parts + unexplained as one bar; the limiting link is the only saturated colour."""
    measured = target.get("measured_s") or 0.0
    if measured <= 0:
        return ""
    pieces = [("floor" if target.get("floor_whole", True) else "floor, at least", target.get("floor_s") or 0.0, "#cfd3d8")]
    pieces += [
        (titles[p["link"]], p["seconds"], "#d9480f" if p["status"] == "limiting" else "#8f98a3")
        for p in target["parts"]
        if (p["seconds"] or 0) > 0
    ]
    pieces.append(("unexplained", max(0.0, target.get("unexplained_s") or 0.0), "#e9d8a6"))
    x, body = 0.0, []
    for name, seconds, colour in pieces:
        width = seconds / measured * WIDTH
        if width > 0.2:
            body.append(
                f'<rect x="{x:.2f}" y="0" width="{width:.2f}" height="26" fill="{colour}"><title>{escape(name)} {said(seconds)}</title></rect>'
            )
            text = f"{name} {said(seconds)}"
            if width > 12 + 6.8 * len(text):  # it fits
                body.append(
                    f'<text x="{x + 6:.1f}" y="17" font-size="12" fill="{"#fff" if colour == "#d9480f" else "#1b1f24"}">{escape(text)}</text>'
                )
        x += width
    return f'<svg role="img" aria-label="{escape("measured " + said(measured) + " = " + " + ".join(f"{name} {said(seconds)}" for name, seconds, _ in pieces))}" viewBox="0 0 {WIDTH} 26" width="100%" font-family="sans-serif">{"".join(body)}</svg>'


_BOX: Final = {
    "limiting": ("#d9480f", "#fff"),
    "contributing": ("#f3d5b5", "#1b1f24"),
    "ok": ("#e8eaed", "#1b1f24"),
    "unknown": ("#fff", "#1b1f24"),
}


def chain(target: Mapping[str, Any], titles: Mapping[str, str], said: Callable[[float | None], str]) -> str:
    """The links in the order of the chain, each with its seconds; the limiting one is the only saturated box."""
    parts = target["parts"]
    width = (WIDTH - 2) / max(1, len(parts))
    body = []
    for at, part in enumerate(parts):
        fill, ink = _BOX[part["status"]]
        x = 1 + at * width
        dash = ' stroke-dasharray="3 2"' if part["status"] == "unknown" else ""
        body.append(f'<rect x="{x:.1f}" y="1" width="{width - 6:.1f}" height="50" rx="4" fill="{fill}" stroke="#9aa1ab"{dash}/>')
        words = titles[part["link"]].split(" ", 1)
        value = said(part["seconds"]) if part["used"] or part["seconds"] else "out" if part["status"] != "unknown" else "unknown"
        for line, text in enumerate([*words, *[""] * (2 - len(words)), value]):
            weight = ' font-weight="600"' if line == 2 else ""
            size = 10.5 if len(text) < 10 else 9.3
            body.append(
                f'<text x="{x + (width - 6) / 2:.1f}" y="{14 + 14 * line}" text-anchor="middle" font-size="{size}" fill="{ink}"{weight}>{escape(text)}</text>'
            )
        if at:
            body.append(f'<path d="M{x - 5:.1f} 26 h4" stroke="#6b727c"/>')
    label = "; ".join(f"{titles[p['link']]} {said(p['seconds'])}" for p in parts)
    return f'<svg role="img" aria-label="{escape("Chain: " + label)}" viewBox="0 0 {WIDTH} 52" width="100%" font-family="sans-serif">{"".join(body)}</svg>'
