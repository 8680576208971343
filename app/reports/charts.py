"""The charts of a report: which columns share one, their titles and units, drawn still; and as a line of blocks for plain text."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from app.reports import svg

OVERVIEW: Final = (
    ("Requests", "", ("waiting", "running")),
    ("Mean TTFT of the span", " s", ("ttft_s",)),
    ("TPOT of the span", " s", ("tpot_s",)),
    ("KV blocks in use", "", ("kv_usage_ratio",)),
    ("Tokens a second", "", ("prompt_tokens_per_s", "generation_tokens_per_s")),
)
COUNTS: Final = ("waiting", "running", "deferred")  # of requests: they share a chart
BLOCKS: Final = "▁▂▃▄▅▆▇█"
BLOCK_WIDTH: Final = 60


def charts(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Time charts by engine: title, unit, and the series with their points."""
    out = []
    several = len(document.get("series", {})) > 1
    for engine, columns in document.get("series", {}).items():
        for title, unit, names in OVERVIEW:
            series = {_word(name): columns[name] for name in names if name in columns and _known(columns[name])}
            if series:
                out.append(_chart(f"{title} · {engine}" if several else title, unit, columns["ts"], series))
    return out


def of_evidence(one: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The charts of one evidence: requests together, every other column alone."""
    columns = {column["name"]: column for column in one["columns"]}
    ts = columns.get("ts", {"values": []})["values"]
    if len(ts) < 2:
        return []
    together = {_word(name): columns[name]["values"] for name in COUNTS if name in columns and _known(columns[name]["values"])}
    out = [_chart("requests", "", ts, together)] if together else []
    for name, column in columns.items():
        if name not in {"ts", *COUNTS} and _known(column["values"]):
            out.append(_chart(column["meaning"] or name, _unit(name), ts, {_word(name): column["values"]}))
    for chart in out:
        chart["key"] = f"{one['link']} {one['instance']} {one['engine']} {chart['title']}"
    return out


def _chart(title: str, unit: str, ts: Sequence[float | None], series: Mapping[str, Sequence[float | None]]) -> dict[str, Any]:
    return {"title": title, "key": title, "unit": unit, "ts": ts, "series": series, "svg": svg.lines(title, unit, ts, series)}


def _known(values: Sequence[float | None]) -> bool:
    return any(value is not None for value in values)


def _word(name: str) -> str:
    """A column as a reader says it: its unit stands at the axis."""
    bare = re.sub(r"_(?:per_s|s|ratio)$", "", name).replace("_", " ")
    return re.sub(r"\b(?:ttft|tpot|itl|e2e|kv|cpu)\b", lambda match: match[0].upper(), bare)


def _unit(name: str) -> str:
    return "/s" if name.endswith("_per_s") else " s" if name.endswith("_s") else ""


def blocks(values: Sequence[float | None]) -> str:
    """A series as a line of blocks from zero to its highest; unknown spans are dots."""
    known = [value for value in values if value is not None]
    top = max(known, default=0.0)
    if top <= 0:
        return ""
    size = max(1, -(-len(values) // BLOCK_WIDTH))
    spans = [[v for v in values[at : at + size] if v is not None] for at in range(0, len(values), size)]
    return "".join(BLOCKS[min(7, max(0, int(7.999 * max(span) / top)))] if span else "·" for span in spans)
