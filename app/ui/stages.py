"""Stages over all requests as a table: exact from records, or by the buckets that hold the percentiles."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from analyzers.model import TARGETS, Stage
from app.ui.markup import Html, bold, div, join, row, table, tag
from app.ui.words import DASH, LABELS, bounds, count, percent, value

FAMILIES: Final = {
    "queue": "vllm:request_queue_time_seconds",
    "prefill": "vllm:request_prefill_time_seconds",
    "decode": "vllm:request_decode_time_seconds",
    "ttft": "vllm:time_to_first_token_seconds",
    "itl": "vllm:inter_token_latency_seconds",
    "tpot": "vllm:request_time_per_output_token_seconds",
    "e2e": "vllm:e2e_request_latency_seconds",
}


def stages(rows: Sequence[Mapping[str, Any]], target: str) -> Html:
    """Mean and percentiles of every stage, and its share of the slowest 5 %."""
    named = {one["name"]: one for one in rows}
    whole = sum(named[stage.value]["slow_s"] or 0.0 for stage in TARGETS[target] if stage.value in named)
    heads = (
        ("stage", ""),
        ("requests", "num"),
        ("mean", "num"),
        ("p50", "num"),
        ("p95", "num"),
        ("p99", "num"),
        (f"share of {LABELS[target]} of the slowest 5 %", "num"),
    )
    shown = []
    for name, one in named.items():
        is_stage = name not in LABELS
        label = tag("span", tag("i", look=f"wl-dot {name}"), name) if is_stage else bold(LABELS[name])
        inside = is_stage and Stage(name) in TARGETS[target]
        share = percent((one["slow_s"] or 0.0) / whole) if inside and whole else DASH
        seconds = [value(name, one[key]) for key in ("mean_s", "p50_s", "p95_s", "p99_s")]
        shown.append(
            row(
                (label, count(one["n"]), *seconds, share),
                numbers=range(1, 7),
                heads={1: "requests", 2: "mean", 3: "p50", 4: "p95", 5: "p99", 6: "of the slowest"},
            )
        )
    return join(
        [
            div("wl-title", "Each stage over all requests that ended in the window, from their records (exact)"),
            table(heads, shown),
        ]
    )


def bucketed(quantiles: Sequence[Mapping[str, Any]], sums: Mapping[str, Any]) -> Html:
    """Mean and percentiles by stage, as the buckets that hold them."""
    title = div(
        "wl-title", "Each stage over the requests that finished: means are exact, percentiles are the bucket that holds them"
    )
    if not quantiles:
        return join([title, tag("p", "No latency histogram in this window: it needs scrapes of /metrics.", look="wl-soft")])
    found = {(one["family"], one["q"]): one for one in quantiles}
    heads = (("stage", ""), ("observed", "num"), ("mean", "num"), ("p50", "num"), ("p95", "num"), ("p99", "num"))
    rows = []
    for name, family in FAMILIES.items():
        if (family, 0.5) not in found:
            continue
        cells = [bounds(name, found[family, q]["low_s"], found[family, q]["high_s"]) for q in (0.5, 0.95, 0.99)]
        label = name if name not in LABELS and name != "itl" else bold(name.upper())
        rows.append(
            row(
                (label, count(found[family, 0.5]["n"]), value(name, sums.get(f"{name}_s")), *cells),
                numbers=range(1, 6),
                heads={1: "observed", 2: "mean", 3: "p50", 4: "p95", 5: "p99"},
            )
        )
    return join([title, table(heads, rows)])
