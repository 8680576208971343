"""Waiting behind other requests' prompts, and decode steps stretched by them.

What it is:
    Two cells. Queue (and prefill) seconds while the token budget of the steps is taken by other requests' prompt tokens; and
    decode seconds by which steps last longer because they also compute prompts.

Why it costs latency:
    A step computes at most `max_num_batched_tokens`. Long prompts fill steps for seconds; who arrives then waits, and every
    running request gets one token a (long) step.

How it is computed:
    Queue: measured seconds that neither KV blocks nor slots nor a deferral explain. Prefill: measured seconds beyond the
    request's own work. Decode: the step model's prompt cost in the steps that decoding requests share, scaled to the measured
    sum. Only queue seconds behind a full budget count as a fault; the rest is load, present in every server under use.

What to try:
    --long-prefill-token-threshold N: long prompts leave room in each step; they themselves take longer.
    --max-num-batched-tokens down: shorter steps (ITL); prompts take more steps (TTFT). Up: the other way round.
    --cudagraph-capture-sizes beyond the usual prompt length, where launches are the cost: start-up time and memory.
    Prefill and decode on separate servers: costs a transfer per request and GPUs that stand idle in turn.
    More replicas: costs GPUs.
"""

from dataclasses import replace
from typing import Final

import numpy as np

from analyzers.books import Books
from analyzers.model import Engine, Link, Row, Sign, Stage
from analyzers.steps import lengths
from analyzers.twin import Setup

LINK: Final = Link("prefill_backlog", "Prefill backlog")


def row(books: Books) -> Row:
    """Dwell, queue, prefill and decode seconds that others' prompts take; fault: the queue behind a full budget."""
    hits = books.hits
    left = max(0.0, 1 - hits.missed - hits.evicted)
    cells = {
        Stage.FRONTEND: books.dwell_s * left,
        Stage.QUEUE: (books.queue["budget"] + books.queue["step"]) * left,
        Stage.PREFILL: books.prefill["others"] * left,
        Stage.DECODE: books.decode["prompts"] * left,
    }
    unseen = tuple(of for of, cell in ((Stage.PREFILL, books.prefill), (Stage.DECODE, books.decode)) if cell["unread"] > 0)
    if books.queue["unread"] > 0:
        seen = {**cells, Stage.QUEUE: 0.0}
        return Row(
            cells=seen,
            fault={},
            known=any(seconds > 0 for seconds in seen.values()),  # nothing that is seen is not nothing
            bound={Stage.QUEUE: books.queue["unread"]},
            unseen=unseen,
            fact="queue not readable",
            conditions=(
                f"up to {books.queue['unread']:.3f} s of queue could be behind prompts: the gauges do not match the histograms",
            ),
        )
    full = budget_full(books)
    return Row(
        cells=cells,
        unseen=unseen,
        fault={Stage.QUEUE: books.queue["budget"] * left},
        pressure=full,
        fact=f"{books.seen.get('waiting_max', 0.0):.0f} waiting at most",
        conditions=_conditions(books),
        evidence=tuple(_evidence(books, full)),
    )


def budget_full(books: Books) -> float | None:
    """Share of busy time in which prompts took the token budget; None without windows."""
    w = books.windows
    if w is None or not w.busy.any():
        return None
    step, m = books.engine.step, books.model
    if len(step.get("ts", ())):
        tokens = step["context_tokens"] + step["generation_tokens"]
        took = m.a + m.b * step["context_tokens"] + m.c * step["generation_requests"] if m.ok else step["elapsed_s"]
        return float((took * (tokens >= 0.98 * m.budget)).sum() / max(float(took.sum()), 1e-9))
    work = (
        books.model.b * w.prompt
        + books.model.q * w.pairs
        + (books.model.extra if len(books.model.extra) == len(w.prompt) else 0.0)
    )
    return float(min(1.0, work[w.busy].sum() / max(w.dt[w.busy].sum(), 1e-9))) if books.model.ok else None


def _conditions(books: Books) -> tuple[str, ...]:
    said = []
    if books.queue["budget"] > 0 and not books.gauges_hold:
        said.append("queue reasons are read from gauges that do not match the histograms well")
    if books.model.unsplit:
        said.append(f"the split from the batch is assumed: {books.model.unsplit}")
    if books.prefill["unread"] > 0 or books.decode["unread"] > 0:
        said.append(
            f"up to {books.prefill['unread'] + books.decode['unread']:.3f} s of prefill and decode could be behind prompts: "
            "without step costs and prompt lengths these cells are not known, and not counted"
        )
    if books.hits.refusal and not books.hits.missed_known:
        said.append("unseen sharing (salt, routing) cannot be told from a backlog")
    return tuple(said)


def _evidence(books: Books, full: float | None) -> list[str]:
    prompt, _, _, _ = lengths(books.engine)
    said = []
    if full is not None and len(books.engine.step.get("ts", ())):
        said.append(
            f"{100 * full:.0f} % of the step time went to steps that filled the budget of {books.model.budget:.0f} tokens"
        )
    elif full is not None:
        said.append(f"prompts took {100 * full:.0f} % of the busy time")
    said.append(f"mean prompt {prompt:.0f} tokens, waiting at most {books.seen.get('waiting_max', 0.0):.0f}")
    m = books.model
    if m.ok and m.launch_s > 0 and np.isfinite(m.graph):
        said.append(f"a step above {m.graph:.0f} tokens runs without CUDA graph and takes at least {1000 * m.launch_s:.0f} ms")
    if books.decode["prompts"] > 0 and books.stages[Stage.DECODE] > 0:
        said.append(
            f"steps shared with prompts hold {100 * books.decode['prompts'] / books.stages[Stage.DECODE]:.0f} % of decode (load: 2-25 % in healthy dense servers)"
        )
    return said


def sign(engine: Engine) -> Sign | None:
    """Generation collapses in one stats interval, and long prompts are credited in the next: they were being computed."""
    stat = engine.stat
    if len(stat.get("running", ())) < 2:
        return None
    order = np.argsort(np.nan_to_num(stat["ts"]), kind="stable")
    generated, prompts, running, waiting = (
        stat[n][order] for n in ("generation_tokens_per_s", "prompt_tokens_per_s", "running", "waiting")
    )
    for i in range(1, len(generated)):
        low, high = generated[i - 1], generated[i]
        if running[i - 1] > 0 and prompts[i] > 1000 and prompts[i - 1] < 0.05 * prompts[i] and low < 0.2 * max(high, 1.0):
            span = float(stat["ts"][order][i] - stat["ts"][order][i - 1])
            credited = (
                f"{prompts[i] * span:.0f} prompt tokens are credited in the interval that ends then"
                if span > 0
                else f"{prompts[i]:.0f} prompt tokens/s are credited in the next interval"
            )
            return Sign(
                0.9,
                f"a long prefill starves decode: generation fell to {low:.1f} tokens/s with {running[i - 1]:.0f} running and was {high:.1f} after; {credited}, "
                "the work was done before (prompt tokens count when a prefill ends, so 0.0 tokens/s of prompts does not mean that none was running)",
            )
    held = (waiting > 0) & (np.nan_to_num(stat["kv_usage_ratio"][order]) < 0.9) & (prompts > 0)
    if held.sum() >= 3 and held.mean() > 0.5 and float(np.std(prompts[held])) < 0.1 * float(np.mean(prompts[held])):
        rate = float(np.mean(prompts[held]))
        return Sign(
            0.7,
            f"prompt throughput stands at {rate:.0f} tokens/s with up to {float(waiting.max()):.0f} waiting and KV blocks free"
            + _drain(engine, rate),
        )
    return None


def _drain(engine: Engine, rate: float) -> str:
    """How fast the queue empties and KV blocks fill meanwhile, where both move one way."""
    order = np.argsort(np.nan_to_num(engine.stat["ts"]), kind="stable")
    ts, running, waiting, usage = (np.nan_to_num(engine.stat[n][order]) for n in ("ts", "running", "waiting", "kv_usage_ratio"))
    span, admitted, rise = float(ts[-1] - ts[0]), float(running[-1] - running[0]), float(usage[-1] - usage[0])
    if span <= 0 or admitted <= 0 or np.any(np.diff(waiting) > 0) or waiting[0] <= waiting[-1]:
        return ""
    drained = float(waiting[0] - waiting[-1]) / span
    empty = float(waiting[-1]) / drained
    said = (
        f"; running grows and waiting falls by {drained:.2g} requests/s, which is about {rate / drained:.0f} prompt tokens a request: "
        f"the queue is empty in about {empty:.0f} s"
    )
    full = float(1 - usage[-1]) * span / rise if rise > 0 else np.inf
    if full < empty:
        said += f", but KV blocks fill by {1000 * rise / span:.1f} points in 10 s and are all used in about {full:.0f} s: expect KV pressure next"
    return said


def fix(setup: Setup) -> Setup:
    """Prompts of others computed on an ideal separate pool."""
    return replace(setup, pool=True)
