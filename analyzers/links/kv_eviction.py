"""Everything that too few KV blocks cost.

What it is:
    Three facts: blocked admission (the head of the queue finds no blocks for its prompt), preemption (a running request loses
    its blocks, waits again and computes its tokens again), eviction (a cached prefix is reclaimed and computed again).

Why it costs latency:
    Requests wait although the GPU could batch them, and work is done twice. Inter-token latency often looks better
    meanwhile, because fewer requests run.

How it is computed:
    Queue seconds while blocks were short, waiting seconds beyond the first waits (the re-queue after preemption), recomputed
    tokens at the step model's cost, and the share of prompt costs that evicted prefixes caused (cold-start counters or KV
    events; refused where neither is there).

What to try:
    --gpu-memory-utilization up, or less memory for other things: risks running out of memory.
    --kv-cache-dtype fp8: costs accuracy, needs kernel support.
    --kv-offloading-size (a host tier for evicted prefixes): costs transfer seconds.
    --max-num-seqs down: fewer preemptions, longer queue.
    More replicas or tensor parallelism: costs GPUs.
"""

import math
from dataclasses import replace
from typing import Final

import numpy as np

from analyzers import steps
from analyzers.books import Books, prompt_seconds
from analyzers.model import Engine, Link, Row, Sign, Stage
from analyzers.twin import ENDLESS, Setup

LINK: Final = Link("kv_eviction", "KV eviction", grows=True)


def row(books: Books) -> Row:
    """Blocked admission, preemption and evicted prefixes together: endless blocks would remove all three."""
    hits, m = books.hits, books.hits.evicted
    total = hits.missed + hits.evicted
    usage = books.engine.interval.get("kv_usage_ratio", np.zeros(0))
    top = float(np.nanmax(usage)) if len(usage) and np.isfinite(usage).any() else math.nan
    cells = {
        Stage.FRONTEND: books.dwell_s * m,
        Stage.QUEUE: books.queue["kv"] + (books.queue["budget"] + books.queue["step"]) * m,
        Stage.PREFILL: books.prefill["others"] * m + books.prefill["extra"] * (m / total if total > 0 else 0.0),
        Stage.DECODE: books.decode["requeue"] + books.decode["recompute"] + books.decode["beside"] + books.decode["prompts"] * m,
    }
    known = hits.evicted_known
    seen = sum(cells.values()) > 0
    bound = None if known else prompt_seconds(books)
    if books.queue["unread"] > 0:
        known, bound = False, {**(bound or {}), Stage.QUEUE: books.queue["unread"]}
    if books.requeue_unread_s > 0:
        known, bound = False, {**(bound or {}), Stage.DECODE: (bound or {}).get(Stage.DECODE, 0.0) + books.requeue_unread_s}
    return Row(
        cells=cells if known or seen else {},
        known=known or seen,
        bound=bound,
        pressure=top if math.isfinite(top) else None,
        fact=f"{100 * top:.0f} % of blocks" if math.isfinite(top) else "KV use unknown",
        conditions=_conditions(books),
        evidence=tuple(_evidence(books)),
    )


def _conditions(books: Books) -> tuple[str, ...]:
    said = []
    if books.requeue_unread_s > 0:
        said.append(
            f"waiting again after a preemption is not in it: up to {books.requeue_unread_s:.3g} s a request, of which the gauges do not "
            "tell the first waits of requests that had not finished"
        )
    if books.engine.total.get("preemptions"):
        said.append(f"recomputed tokens: {books.recomputed[3]}")
    if not books.hits.evicted_known:
        said.append(f"evicted prefixes are not in it: {books.hits.how}")
    elif books.hits.evicted > 0:
        said.append(f"evicted prefixes: {books.hits.how}")
    return tuple(said)


def _evidence(books: Books) -> list[str]:
    n, said = books.engine.total.get("preemptions", math.nan), []
    if n > 0:
        unread = books.requeue_unread_s
        again = f"up to {unread:.3f} s of waiting again" if unread > 0 else f"{books.requeue_s:.3f} s of waiting again"
        said.append(
            f"{n:.0f} preemptions, {again} a request, {books.recomputed[0]:.0f} tokens computed again"
        )
    if books.queue["kv"] > 0:
        said.append(
            f"{100 * books.seen.get('kv_share', 0.0):.0f} % of the waiting with KV blocks short, up to {books.seen.get('waiting_max', 0.0):.0f} requests"
        )
    if books.hits.evicted > 0:
        said.append(f"prefix hit rate {books.hits.now:.2f}, {books.hits.endless:.2f} with endless blocks ({books.hits.how})")
    elif books.hits.evicted_known and books.hits.how:
        said.append(books.hits.how)
    if n == 0:
        said.append("no preemptions")
    blocks = steps.number(books.engine.facts.get("kv_blocks"))
    if math.isfinite(blocks):
        said.append(f"{blocks:.0f} blocks in the pool")
    return said


def sign(engine: Engine) -> Sign | None:
    """Waiting with nearly all KV blocks in use and slots free; or preemptions that V0 logged."""
    stat = engine.stat
    if not len(stat.get("waiting", ())):
        return None
    if any(e.kind == "preempted_v0" for e in engine.event):
        return _preempted(engine)
    cap = engine.facts.get("max_num_seqs")
    free = stat["running"] < cap - 0.5 if isinstance(cap, int | float) else np.ones(len(stat["running"]), bool)
    held = (stat["waiting"] > 0) & (stat["kv_usage_ratio"] >= 0.95) & free
    if not held.any():
        return None
    usage, waiting, running = stat["kv_usage_ratio"][held], stat["waiting"][held], stat["running"][held]
    slots = f", below max_num_seqs ({cap:.0f})" if isinstance(cap, int | float) else ""
    return Sign(
        min(1.0, 0.5 + float(held.mean())),
        f"KV blocks limit admission: use {_range(100 * usage, 1)} % with {_range(waiting)} waiting and {_range(running)} running{slots}",
        "vllm:num_preemptions_total (/metrics): the log never shows preemptions",
    )


def _preempted(engine: Engine) -> Sign:
    """V0 says when it takes the blocks of a running sequence group: the pool was full, whatever the line before shows."""
    stat, lines = engine.stat, [e for e in engine.event if e.kind == "preempted_v0"]
    modes = " and ".join(sorted({str(e.fields["mode"]) for e in lines if e.fields.get("mode")}))
    waiting, usage, ts = (np.nan_to_num(stat[n]) for n in ("waiting", "kv_usage_ratio", "ts"))
    said = f"KV blocks are short: the log has {modes or 'a'} preemption lines (not enough KV cache space) with {_range(waiting)} waiting"
    rise, span = 100 * float(usage[-1] - usage[0]), float(ts[-1] - ts[0])
    if rise > 1 and span > 0:
        left = (100 - 100 * float(usage[-1])) * span / rise
        said += f"; KV use rose {rise:.1f} points in {span:.0f} s, which fills the pool in about {left:.0f} s"
    unread = any(e.fields.get("count") is None for e in lines)
    if unread:
        said += "; the line's cumulative counter is cut off: it is not read"
    return Sign(
        0.9, said, "the whole log: the counter of preemptions is cut off" if unread else "vllm:num_preemptions_total (/metrics)"
    )


def _range(values: np.ndarray, digits: int = 0) -> str:
    low, high = float(values.min()), float(values.max())
    return f"{low:.{digits}f}" if low == high else f"{low:.{digits}f} to {high:.{digits}f}"


def fix(setup: Setup) -> Setup:
    """Endless KV blocks: nothing waits for them, is preempted or evicted."""
    return replace(setup, blocks=ENDLESS, hit=max(setup.hit, setup.hit_endless))
