"""KV: how full the blocks are, what was evicted or preempted, what more capacity or one shared cache would hit."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import streamlit as st

from analyzers import steps
from analyzers.hits import hits_of
from analyzers.model import Engine
from app.ui import decisions, draw
from app.ui.draw import COLOURS, Line, Panel
from app.ui.markup import Html, bold, div, join, row, table, tag
from app.ui.reuse import NO_EVENTS, Cache, blocks, capacity
from app.ui.session import View
from app.ui.words import DASH, clock, count, flagged, percent, plural

TITLE: Final = "KV"
MOST_PREFIXES: Final = 12
MOST_ROWS: Final = 64


def page(view: View) -> None:
    """Draw the page."""
    if view.judged is None:
        draw.html(decisions.nothing(view))
        return
    caches = caches_of(decisions.engines(view))
    told = view.rows("kv_cache_gap", engines=list(view.chosen))
    columns = over_time(view, caches)
    draw.html(head(view, columns, caches, told))
    with st.container(key="card-kv"):
        if len(columns["ts"]) > 1:
            figure = draw.panels(columns, panels(view, told=bool(told)), ())
            draw.brushed(
                figure,
                f"kv-{view.pick.start}-{view.pick.end}-{view.pick.engine}",
                "KV blocks, hits, preemptions, evictions over time",
            )
        else:
            draw.html(div("wl-title", "One scrape or none in this window: a state, not its course. Two or more are needed."))
    left, right = st.columns(2, gap="small")
    with left, st.container(key="card-capacity"):
        capacity(view, caches, told)
    with right, st.container(key="card-blocks"):
        blocks(view)
    with st.container(key="card-shared"):
        draw.html(shared(caches))
    with st.container(key="card-prefixes"):
        draw.html(prefixes(view, told))


# -- over time ------------------------------------------------------------------------------------------------------------------
def over_time(view: View, caches: Sequence[Cache]) -> dict[str, Any]:
    """Scrapes and KV events on the same slices of time."""
    columns = dict(view.columns("kv_cache", points=draw.POINTS, **view.window()))
    if not len(columns["ts"]):
        columns = dict(view.columns("timeline_log", points=draw.POINTS, **view.window()))
        columns["preemptions_per_s"] = columns["preemptions"] = np.full(len(columns["ts"]), math.nan)
    edges = np.asarray(columns["ts"], dtype=float)
    start = float(edges[0] - np.median(np.diff(edges))) if len(edges) > 1 else math.nan
    names = ("stored_per_s", "removed_per_s", "again_per_s", "elsewhere_per_s")
    columns.update({name: np.full(len(edges), math.nan) for name in (*names, "held_ratio")})
    if len(edges) < 2 or not draw.timed(columns) or not view.rows("kv_cache_gap", engines=list(view.chosen)):
        return columns
    asked = {"edges": edges.tolist(), "high": float(edges[-1]), "engines": list(view.chosen)}
    found = view.columns("kv_cache_event", start=start, **asked)
    columns.update({name: found[name] for name in names})
    columns["held_ratio"] = held(view.columns("kv_cache_held", **asked), edges, {one.name: one.blocks for one in caches})
    return columns


def held(found: Mapping[str, Any], edges: Any, pools: Mapping[str, float]) -> Any:
    """Share of the blocks of the fullest engine that hold something; NaN until it is known."""
    ratio = np.full(len(edges), math.nan)
    for name in dict.fromkeys(found["name"]):
        mine = found["name"] == name
        last = np.searchsorted(found["ts"][mine].astype(float), edges, side="right") - 1
        share = np.where(
            last >= 0, found["held_blocks"][mine].astype(float)[np.maximum(last, 0)] / pools.get(name, math.nan), math.nan
        )
        ratio = np.fmax(ratio, share)
    return ratio


def panels(view: View, *, told: bool) -> list[Panel]:
    """The panels, with what would fill those that are empty."""
    several = len(view.chosen) > 1
    used = [Line("kv_usage_ratio", "in use, fullest engine" if several else "in use by requests", COLOURS["decode"])]
    if several:
        used.append(Line("kv_usage_least_ratio", "emptiest engine", COLOURS["light"]))
    used.append(Line("held_ratio", "in use or cached (KV events)", COLOURS["grey"]))
    empty = "no events in this window" if told else NO_EVENTS
    return [
        Panel("KV blocks, %", tuple(used), unit=" %", factor=100, top=104),
        Panel(
            "Prefix cache hits, % of prompt tokens", (Line("hit_ratio", "prefix hits", COLOURS["hit"]),), unit=" %", factor=100,
            top=104, empty="no prefix cache counters, or no prompts",
        ),
        Panel("Preemptions per second", (Line("preemptions_per_s", "preemptions", PREEMPTED, area=True),), empty="no counter of preemptions"),
        Panel("Blocks cached and evicted per second", (
            Line("stored_per_s", "cached", COLOURS["light"]), Line("removed_per_s", "evicted", COLOURS["grey"]),
        ), empty=empty),
        Panel("Blocks computed again per second", (
            Line("again_per_s", "had been evicted here", PREEMPTED, area=True),
            Line("elsewhere_per_s", "lay on another engine", COLOURS["transfer"], rare=True),
        ), empty=empty),
    ]  # fmt: skip


PREEMPTED: Final = "#d64545"


def head(view: View, columns: Mapping[str, Any], caches: Sequence[Cache], told: Sequence[Mapping[str, Any]]) -> Html:
    """The cache in a sentence, and in one paragraph."""
    used = np.asarray(columns["kv_usage_ratio"], dtype=float)
    peak = float(np.nanmax(used)) if np.isfinite(used).any() else math.nan
    lost = np.asarray(columns["preemptions"], dtype=float)
    first = (
        f"KV blocks: at most {percent(peak)} in use" if math.isfinite(peak) else "KV use is unknown: no gauge and no stats line"
    )
    second = f", {plural(float(np.nansum(lost)), 'preemption')}" if np.isfinite(lost).any() else ", preemptions unknown"
    again = sum(one["again_blocks"] for one in told)
    third = f", {count(again)} blocks computed again" if told else ""
    pools = [one.blocks for one in caches if math.isfinite(one.blocks)]
    sizes = {round(one.block_size) for one in caches if math.isfinite(one.block_size)}
    said: list[Any] = []
    if pools:
        tokens = f" of {min(sizes)} tokens" if len(sizes) == 1 else ""
        said.append(bold(f"{count(min(pools))} blocks{tokens}{' on each engine' if len(caches) > 1 else ''}. "))
    else:
        said.append("How many blocks there are is in no metric of this recording (cache_config_info, or the log's start). ")
    said.append(
        "Blocks in use belong to running requests; cached ones are free to be evicted. A full cache without waiting or preemption is healthy. "
    )
    if told and any(one["gaps"] for one in told):
        said.append(
            bold(
                f"{count(sum(one['gaps'] or 0 for one in told))} messages of KV events were lost: what they told is missing here. "
            )
        )
    if not told:
        said.append(flagged(f"Evictions and what lies in the cache: {NO_EVENTS}."))
    return div("wl-answer", tag("h1", f"{first}{second}{third}."), tag("p", *said), data_engines=str(len(view.chosen)))


# -- engines --------------------------------------------------------------------------------------------------------------------
def shared(caches: Sequence[Cache]) -> Html:
    """Hits of each engine now, with one cache for all, and with endless blocks of its own."""
    title = div("wl-title", "Prefix hits of each engine, and of one cache that all shared, % of prompt tokens")
    heads = (("engine", ""), ("hits now", "num"), ("one shared cache", "num"), ("endless blocks", "num"), ("from what", ""))
    return join([title, table(heads, [_shared(one, alone=len(caches) == 1) for one in caches[:MOST_ROWS]]), _more(len(caches))])


def _more(many: int) -> Html | None:
    return div("wl-title", f"The first {MOST_ROWS} of {many} engines.") if many > MOST_ROWS else None


def _shared(one: Cache, *, alone: bool) -> Html:
    hits = one.hits
    common = "one engine" if alone else percent(hits.shared) if hits.missed_known else "unknown"
    said: list[Any] = [hits.how]
    if hits.refusal:
        said.append(flagged(f"; {hits.refusal.what}: {hits.refusal.measure}"))
    cells = (one.name, percent(hits.now), common, percent(one.endless) if hits.evicted_known else "unknown", join(said))
    return row(cells, numbers=(1, 2, 3), heads={1: "now", 2: "shared", 3: "endless"})


def prefixes(view: View, told: Sequence[Mapping[str, Any]]) -> Html:
    """The prefixes that were computed most often."""
    title = div("wl-title", "Prefixes that were cached more than once, by what that computed again")
    if not told:
        return join([title, tag("p", flagged(f"Not known: {NO_EVENTS}. Hashes are shown, never text."))])
    found = view.rows("kv_cache_prefix", most=MOST_PREFIXES, **view.window())
    if not found:
        return join([title, tag("p", "No block was cached a second time in this window.")])
    heads = (
        ("hash of its first block", ""),
        ("tokens", "num"),
        ("cached", "num"),
        ("on engines", "num"),
        ("computed again", "num"),
        ("first and last, UTC", ""),
    )
    return join([title, table(heads, [_prefix(one) for one in found])])


def _prefix(one: Mapping[str, Any]) -> Html:
    tokens = one["blocks"] * (one["block_size"] or math.nan)
    cells = (
        tag("code", str(one["hash"])[:16]), count(tokens), f"{one['times']:.0f} times", count(one["engines"]),
        f"{count((one['times'] - 1) * tokens)} tokens", f"{clock(one['first_ts'])} {DASH} {clock(one['last_ts'])}",
    )  # fmt: skip
    return row(cells, numbers=(1, 2, 3, 4), heads={1: "tokens", 2: "cached", 3: "engines", 4: "again"})


def caches_of(engines: Sequence[Engine]) -> tuple[Cache, ...]:
    """The cache of each engine."""
    found = []
    for engine in engines:
        again = math.nan
        if engine.kv.get("stored_blocks"):
            tokens = engine.kv["again_blocks"] * (engine.kv.get("block_size") or 16.0)
            again = max(0.0, tokens - steps.recomputed_tokens(engine)[0])
        facts = engine.facts
        found.append(
            Cache(
                f"{engine.instance}/{engine.engine}",
                steps.number(facts.get("kv_blocks")),
                steps.number(facts.get("block_size")),
                engine.total.get("prompt_tokens", math.nan),
                again,
                hits_of(engine),
            )
        )
    return tuple(found)
