"""An 8-bit KV cache: twice the tokens in the same memory, and half the bytes to read of each.

Decode steps read the whole context of every sequence, so long contexts also gain in step time.
"""

import math
from dataclasses import replace
from typing import Final

from analyzers import steps, versions
from analyzers.books import Books
from analyzers.capacity import QUANTISED_KV, memory_of
from analyzers.case import Case, Change, by_twin, within
from analyzers.hypotheses import trial
from analyzers.hypotheses.pool import resized
from analyzers.model import TARGETS, Hypothesis
from analyzers.twin import Setup

NAME: Final = "kv_dtype"
SINCE: Final = None
RELIEVES: Final = ("kv_eviction", "decode_batch")
TAKES: Final = ()
EFFORT: Final = 1  # answers change
TOUCHES: Final = ("kv_cache_dtype",)


def changed(case: Case) -> Change | None:
    """The engine with an 8-bit cache; None where it has one, or an override sets its blocks."""
    if str(case.fact("kv_dtype") or "auto") not in {"auto", "float16", "bfloat16"} or memory_of(case.engine).override:
        return None

    def setup(now: Setup, books: Books) -> Setup:
        return replace(resized(now, books, 2.0), c=max(0.2 * now.c, now.c - read_s(books) / 2))

    return Change(setup)


def read_s(books: Books) -> float:
    """Seconds a step reads one sequence's KV; 0 where shape or device is unknown."""
    known, each = steps.device(books.engine), steps.kv_bytes_per_token(books.engine)
    prompt, output, _, _ = steps.lengths(books.engine)
    seconds = each * (prompt + output / 2) / known[0] if known else 0.0
    return seconds if math.isfinite(seconds) else 0.0


def propose(case: Case) -> Hypothesis | None:
    """Where the cache holds 16-bit numbers."""
    change = changed(case)
    if change is None:
        return None
    found = by_twin(case, change)
    effects = found or within(case, {name: case.seconds("kv_eviction", name) for name in TARGETS})
    blocks = steps.number(case.fact("kv_blocks"))
    size = f"{blocks:,.0f} -> {2 * blocks:,.0f} blocks" if math.isfinite(blocks) else "twice the blocks"
    return Hypothesis(
        name=NAME, change=f"8-bit KV cache: {size}", flags=("--kv-cache-dtype fp8",),
        claim="the same memory holds twice the tokens" + ("" if not case.seconds("kv_eviction", "e2e") else ", and blocks are what requests wait for or lose"),
        effect=effects, predicted_by="twin" if found else "nothing",
        costs=("accuracy: keys and values are rounded to 8 bits", "more sequences share a step: TPOT grows where blocks held them back"),
        confused_with="8-bit weights: those free memory once, this halves what each token takes",
        conditions=(*QUANTISED_KV, "scales come from the checkpoint or are 1.0: models with large values lose more", *versions.unknown(case.engine)),
        test=trial.plan(case, effects, "queue time, preemptions, hit rate, TPOT, and an evaluation of answers"),
        undoes="kv_eviction",
    )  # fmt: skip
