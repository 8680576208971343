"""More KV blocks: a larger share of GPU memory, or an override taken away, where too few blocks hold requests back."""

import math
from dataclasses import replace
from functools import partial
from typing import Final

from analyzers import steps
from analyzers.books import Books
from analyzers.case import Case, by_books, by_twin
from analyzers.model import Hypothesis
from analyzers.twin import ENDLESS, Setup

NAME: Final = "kv_memory"
SINCE: Final = None
FACTORS: Final = (1.25, 1.5, 2.0, 4.0)


def propose(case: Case) -> Hypothesis | None:
    """Where KV eviction limits a target."""
    if "kv_eviction" not in case.limiting():
        return None
    args = case.fact("args") or {}
    override = args.get("num_gpu_blocks_override")
    utilisation = args.get("gpu_memory_utilization", 0.92)
    blocks = steps.number(case.fact("kv_blocks"))
    whole = by_twin(case, lambda setup, _: replace(setup, blocks=ENDLESS, hit=max(setup.hit, setup.hit_endless)))
    enough = _enough(case, whole["e2e"].saves_s) if whole and whole["e2e"].saves_s else None
    need = f"{enough * blocks:.0f} blocks" if enough else "enough blocks"
    flags = (
        ("without --num-gpu-blocks-override",)
        if override
        else (f"--gpu-memory-utilization {min(0.97, float(utilisation) + 0.03):.2f}",)
    )
    return Hypothesis(
        name=NAME, change=f"{need} instead of {blocks:.0f}" if math.isfinite(blocks) else "more KV blocks", flags=flags,
        claim="requests wait for blocks, are preempted, or lose cached prefixes while slots are free",
        effect=whole or by_books(case, "kv_eviction"), predicted_by="twin" if whole else "books",
        costs=("a larger share risks running out of memory", "more sequences share a step: TPOT grows"),
        confused_with="a slow GPU: inter-token latency looks good meanwhile, because fewer requests run",
        conditions=("the effect is that of enough blocks" + (f": about {enough:.2g} times those of now" if enough else ""),
                    *(() if override else ("the flag alone gives a few percent more blocks; fp8 KV cache doubles them, a replica or tensor parallelism adds a GPU's",))),
        test="the same load for at least 60 s before and after; compare queue time, preemptions, hit rate and TPOT",
        undoes="kv_eviction",
    )  # fmt: skip


def _enough(case: Case, wanted: float) -> float | None:
    """Smallest factor of blocks that brings nine tenths of what endless blocks bring."""
    for factor in FACTORS:
        found = by_twin(case, partial(_times, factor))
        if found and (found["e2e"].saves_s or 0.0) >= 0.9 * wanted:
            return factor
    return None


def _times(factor: float, setup: Setup, _: Books) -> Setup:
    return replace(setup, blocks=int(setup.blocks * factor))
