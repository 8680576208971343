"""Smaller KV blocks, for finer prefix hits.

Only whole blocks are shared: of each shared prefix half a block is lost on average, all of it where it is shorter than one.
"""

import math
from dataclasses import replace
from typing import Final

from analyzers import steps, versions
from analyzers.books import Books
from analyzers.case import Case, Change, by_twin
from analyzers.hypotheses import trial
from analyzers.model import Hypothesis
from analyzers.twin import Setup

NAME: Final = "block_size"
SINCE: Final = None
RELIEVES: Final = ("prefix_cache_miss", "prefill_backlog")
TAKES: Final = ()
EFFORT: Final = 0
TOUCHES: Final = ("block_size", "max_num_batched_tokens")
SMALL: Final = 16  # the default on GPUs
CPU: Final = 32  # CPU kernels take multiples of it


def smaller(case: Case) -> tuple[int, int] | None:
    """Block size now and the one to try; None where it is small or unknown, or nothing hits."""
    size = steps.number(case.fact("block_size"))
    least = CPU if str(case.fact("device") or "") == "cpu" else SMALL
    hit = case.work.hit_ratio or 0.0
    return (int(size), least) if math.isfinite(size) and size > least and hit > 0.01 else None


def changed(case: Case) -> Change | None:
    """The engine with smaller blocks."""
    found = smaller(case)
    if found is None:
        return None
    now, then = found

    def setup(s: Setup, books: Books) -> Setup:
        prompt = steps.lengths(books.engine)[0]
        hit = min(0.99, s.hit + (now - then) / 2 / max(prompt, 1.0))
        return replace(s, block_size=then, blocks=s.blocks * now // then, hit=hit)

    return Change(setup)


def propose(case: Case) -> Hypothesis | None:
    """Where blocks are large and prefixes hit."""
    found, change = smaller(case), changed(case)
    effects = by_twin(case, change) if change else None
    prompt = case.work.prompt
    if found is None or effects is None or prompt is None:
        return None
    now, then = found
    return Hypothesis(
        name=NAME, change=f"blocks of {then} tokens instead of {now}", flags=(f"--block-size {then}",),
        claim=f"half a block ({now / 2:.0f} tokens) of each shared prefix is computed again, {100 * now / 2 / prompt.mean:.1f} % of the mean prompt",
        effect=effects, predicted_by="twin",
        costs=("more blocks to manage and hash on the CPU", "attention kernels may be slower with small blocks, or refuse them"),
        confused_with="evicted prefixes: those lose whole prompts, not half a block",
        conditions=("the attention backend must take this size (some need 64 or more)", "shared prefixes end anywhere in a block",
                    "prefixes shorter than a block never hit and are not in this estimate", *versions.unknown(case.engine)),
        test=trial.plan(case, effects, "hit rate, prefill time, TPOT"),
    )  # fmt: skip
