"""What KV events and samples of blocks say of a cache: what more capacity would have kept, and how long blocks live."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from analyzers.hits import GIVE_KV_EVENTS, Hits
from app.ui import draw, plots
from app.ui.markup import div, row, table, tag
from app.ui.session import View
from app.ui.words import DASH, THIN, count, flagged, number, percent, value

NO_EVENTS: Final = f"no KV events in this window; {GIVE_KV_EVENTS} gives them"
METRICS_FLAG: Final = (
    "--kv-cache-metrics (vLLM 0.12 or newer; it samples 1 % of the blocks unless --kv-cache-metrics-sample says otherwise)"
)
MOST_LINES: Final = 8  # engines with a line each; of more, all together
FAMILIES: Final = {
    "vllm:kv_block_lifetime_seconds": "lifetime: allocated to evicted",
    "vllm:kv_block_idle_before_evict_seconds": "idle before it was evicted",
    "vllm:kv_block_reuse_gap_seconds": "gap between two uses (seen at eviction)",
}
WHY: Final = (
    "A block that came back would have stayed if the engine had had as many further blocks as were evicted in between (they go in "
    "the order of their last use). Hits that did happen are in no event, so smaller caches cannot be judged."
)
QUANTILES: Final = (0.5, 0.95, 0.99)
SHADES: Final = ("#6c9fd8", "#9aa3ad", "#4fb3a9", "#9b86d6", "#6fae7f", "#b0b5bc", "#e8a15a", "#868d97")


@dataclass(frozen=True, slots=True)
class Cache:
    """The prefix cache of one engine. Unknown numbers are NaN.

    `blocks` is its pool, `again_tokens` what was computed again although it had been cached, without what preempted requests did.
    """

    name: str
    blocks: float
    block_size: float
    prompt_tokens: float
    again_tokens: float
    hits: Hits

    @property
    def endless(self) -> float:
        """Hits with endless blocks, which does not say why the blocks went: a verdict may count that as too little sharing."""
        found = max(self.hits.endless, self.hits.now + self.again_tokens / max(self.prompt_tokens, 1.0))
        return found if math.isnan(found) else min(found, max(0.999, self.hits.now))


def capacity(view: View, caches: Sequence[Cache], told: Sequence[Mapping[str, Any]]) -> None:
    """Hits as a function of capacity, where KV events tell what came back."""
    draw.html(div("wl-title", "What more blocks would have kept"))
    if not told:
        draw.html(tag("p", flagged(f"Not known: {NO_EVENTS}. Counters alone do not say which blocks came back.")))
        return
    found = view.columns("kv_cache_reuse", **view.window())
    lines = reuse(found, caches)
    if not lines:
        draw.html(
            tag("p", "No block came back after it had been evicted: more blocks would have kept nothing that was asked for.")
        )
        return
    better = [one for one in caches if one.again_tokens > 0 and math.isfinite(one.hits.now)]
    figure = plots.curves(lines, across="further blocks on each engine", up="% of what came back", top=104, step=True)
    plots.show(figure, f"reuse-{view.pick.engine}", "blocks that would still have been cached, by further capacity")
    said = [WHY, *(gain(one, found) for one in better[:MOST_LINES])]
    if not better:
        said.append(
            "All of it was computed again by preempted requests, or the hit counters are missing: hits would not rise, preemptions would fall."
        )
    draw.html(tag("ul", *(tag("li", text) for text in said), look="wl-notes"))


def reuse(found: Mapping[str, Any], caches: Sequence[Cache]) -> list[tuple[str, str, Any, Any]]:
    """A line for each engine (of many: all together): the share of what came back that further capacity would have kept."""
    names = list(dict.fromkeys(found["name"]))
    groups = [(name, found["name"] == name) for name in names]
    if len(names) > MOST_LINES:
        groups = [(f"{len(names)} engines", np.ones(len(found["name"]), dtype=bool))]
    pool = max((one.blocks for one in caches if math.isfinite(one.blocks)), default=math.nan)
    lines = []
    for at, (name, mine) in enumerate(groups):
        x, y = kept(found["distance"][mine], found["blocks"][mine])
        end = max(float(x[-1]), pool) if math.isfinite(pool) else float(x[-1])
        colour = SHADES[at % len(SHADES)]
        lines.append((name, colour, [*x, end], [*(100 * y), 100 * y[-1]]))
    return lines


def kept(distance: Any, blocks: Any, points: int = 400) -> tuple[Any, Any]:
    """(further blocks, share of what came back that they keep), from 0, in at most `points` steps."""
    order = np.argsort(np.asarray(distance, dtype=float), kind="stable")
    far, many = np.asarray(distance, dtype=float)[order], np.cumsum(np.asarray(blocks, dtype=float)[order])
    some = np.unique(np.linspace(0, len(far) - 1, min(points, len(far))).astype(int))
    return np.concatenate([[0.0], far[some]]), np.concatenate([[0.0], many[some] / many[-1]])


def gain(one: Cache, found: Mapping[str, Any]) -> str:
    """What doubling the blocks of an engine would have hit."""
    mine = found["name"] == one.name
    most = one.endless - one.hits.now
    end = f"{one.name}: hits {percent(one.hits.now)} of prompt tokens now, {percent(one.endless)} with endless blocks"
    if not math.isfinite(one.blocks) or not mine.any():
        return end
    far, share = kept(found["distance"][mine], found["blocks"][mine])
    twice = float(share[far <= one.blocks][-1])
    return f"{end}, {percent(one.hits.now + twice * most)} with twice as many"


def blocks(view: View) -> None:
    """Lifetime, idle time and reuse gap of blocks, where vLLM samples them."""
    draw.html(div("wl-title", "How long blocks live"))
    found = view.columns("kv_cache_block", **view.window())
    sums = {one["family"]: one["sum_s"] for one in view.rows("kv_cache_block_sum", **view.window())}
    rows, edges = [], {}
    for family, title in FAMILIES.items():
        mine = found["family"] == family if len(found["family"]) else np.zeros(0, dtype=bool)
        le, n = np.asarray(found["le"])[mine].astype(float), np.asarray(found["n"])[mine].astype(float)
        if n.sum() > 0:
            edges[title] = (le, n)
            mean = sums.get(family)
            quantiles = [upper(le, n, q) for q in QUANTILES]
            rows.append(
                row(
                    (title, "unknown" if mean is None else value("ttft", mean / n.sum()), *quantiles, count(n.sum())),
                    numbers=range(1, 6),
                )
            )
    if not rows:
        known = bool(len(found["family"]))
        said = "No sampled block was evicted in this window." if known else flagged(f"Not exported: {METRICS_FLAG} gives it.")
        draw.html(tag("p", said))
        return
    heads = (("of evicted blocks, a sample", ""), *((name, "num") for name in ("mean", "p50", "p95", "p99", "sampled")))
    draw.html(table(heads, rows))
    draw.html(div("wl-title", "Quantiles are bounds of buckets."))
    names = [f"{DASH if math.isinf(edge) else number(edge)}" for edge in next(iter(edges.values()))[0]]
    series = [(title, SHADES[at], 100 * n / n.sum()) for at, (title, (_, n)) in enumerate(edges.items())]
    figure = plots.bars(
        ["more" if name == DASH else name for name in names], series, across="seconds, at most", up="% of the sample"
    )
    plots.show(figure, f"blocks-{view.pick.engine}", "how long KV blocks live, lie idle, and wait for their next use")


def upper(le: Any, n: Any, q: float) -> str:
    """The bucket in which a quantile lies."""
    at = int(np.searchsorted(np.cumsum(n), q * n.sum()))
    low = float(le[at - 1]) if at else 0.0
    return (
        f"{number(low)}{THIN}{DASH}{THIN}{number(float(le[at]))}{THIN}s"
        if math.isfinite(le[at])
        else f"above {number(low)}{THIN}s"
    )
