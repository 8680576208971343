"""Waiting for a free sequence slot.

What it is:
    Queue seconds while as many requests run as `max_num_seqs` (or `max_num_active_seqs`) allows, although KV blocks are free.

Why it costs latency:
    The cap holds requests back that the engine could decode together with the others at little extra cost.

How it is computed:
    Measured queue seconds, in the share of waiting time during which running stood at the cap and no request was preempted.
    The cap is an engine argument, or inferred where running stands still at its maximum while requests wait and KV use is low.

What to try:
    --max-num-seqs up: more sequences share a step (TPOT grows) and need KV blocks (preemptions become possible).
    More replicas: costs GPUs.
"""

import math
from dataclasses import replace
from typing import Final

import numpy as np

from analyzers.books import Books, cap_of
from analyzers.model import Engine, Link, Row, Sign, Stage
from analyzers.twin import ENDLESS, Setup

LINK: Final = Link("slots", "Slots", grows=True)


def row(books: Books) -> Row:
    """Queue seconds whose reason is the cap."""
    cap, how = cap_of(books.engine)
    running = books.engine.interval.get("running", np.zeros(0))
    top = float(np.nanmax(running)) if len(running) and np.isfinite(running).any() else math.nan
    seconds = books.queue["slots"]
    if books.queue["unread"] > 0:
        return Row(
            known=False,
            bound={Stage.QUEUE: books.queue["unread"]},
            fact="not readable",
            conditions=("the gauges do not match the histograms",),
        )
    if books.queue["cap"] > 0:
        return Row(
            known=False,
            bound={Stage.QUEUE: books.queue["cap"]},
            fact=f"{top:.0f} running at most",
            conditions=(f"max_num_seqs unknown; requests waited while {top:.0f} ran, the most that ever did",),
        )
    said = []
    if seconds > 0:
        share = books.seen.get("slots_share", 0.0)
        said.append(
            f"{100 * share:.0f} % of the waiting happened with running at the cap of {cap:.0f} ({how}), KV use then {100 * books.seen.get('usage_when_waiting', math.nan):.0f} %"
        )
    if not math.isfinite(cap) and books.queue["budget"] > 0 and not books.engine.facts.get("args_known"):
        said.append("max_num_seqs unknown; running did not stand at a maximum while requests waited")
    return Row(
        cells={Stage.QUEUE: seconds},
        pressure=min(1.0, top / cap) if math.isfinite(cap) and math.isfinite(top) else None,
        fact=f"{top:.0f} of {cap:.0f}"
        if math.isfinite(cap) and math.isfinite(top)
        else f"{top:.0f} running at most"
        if math.isfinite(top)
        else "running unknown",
        conditions=(f"cap {how}",) if seconds > 0 else (),
        evidence=tuple(said),
    )


def sign(engine: Engine) -> Sign | None:
    """Waiting while running stands at the cap, in stats lines."""
    cap = engine.facts.get("max_num_seqs")
    stat = engine.stat
    if not isinstance(cap, int | float) or not len(stat.get("waiting", ())):
        return None
    at = (stat["waiting"] > 0) & (stat["running"] >= cap - 0.5) & (np.nan_to_num(stat["kv_usage_ratio"]) < 0.95)
    if not at.any():
        return None
    return Sign(
        float(at.mean()),
        f"running stood at max_num_seqs ({cap:.0f}) with up to {float(stat['waiting'][at].max()):.0f} waiting and KV blocks free",
    )


def fix(setup: Setup) -> Setup:
    """No cap on the sequences that run."""
    return replace(setup, slots=ENDLESS)
