"""8-bit weights: memory that becomes KV blocks, and fewer bytes to read a step.

A decode step at a small batch takes as long as reading the weights; the freed memory holds more contexts.
"""

import math
from dataclasses import replace
from typing import Final

from analyzers import steps, versions
from analyzers.books import Books
from analyzers.capacity import FP8, GIB, QUANTISED_WEIGHTS, memory_of, pool_with
from analyzers.case import FLOOR, Case, Change, between, by_twin, within
from analyzers.hypotheses import trial
from analyzers.hypotheses.pool import resized
from analyzers.model import TARGETS, Hypothesis
from analyzers.twin import Setup

NAME: Final = "weight_quantisation"
SINCE: Final = None
RELIEVES: Final = ("kv_eviction", "decode_batch", FLOOR)
TAKES: Final = ()
EFFORT: Final = 1  # answers change
TOUCHES: Final = ("quantization",)


def factor(case: Case) -> float:
    """Times the KV blocks of now; 1 where an override sets them, NaN where memory is unknown."""
    memory = memory_of(case.engine)
    return 1.0 if memory.override else pool_with(case.engine, weights=FP8) / memory.pool_tokens


def saved_step_s(case: Case) -> float:
    """Seconds less to read the weights in a step; 0 where the device or the weights are unknown."""
    known = steps.device(case.engine)
    freed = memory_of(case.engine).weights_gib * (1 - FP8) * GIB / known[0] if known else 0.0
    return freed if math.isfinite(freed) else 0.0


def changed(case: Case, share: float = 0.5) -> Change | None:
    """The engine with 8-bit weights; `share` of the reading they save shortens its steps. None where they are 8-bit or unknown."""
    times = factor(case)
    if case.args.get("quantization") not in {None, "None", ""} or not math.isfinite(times):
        return None
    saved = share * saved_step_s(case)

    def setup(now: Setup, books: Books) -> Setup:
        return replace(resized(now, books, times), a=max(0.3 * now.a, now.a - saved))

    return Change(setup)


def propose(case: Case) -> Hypothesis | None:
    """Where weights are 16-bit and their size is known."""
    low, high = changed(case, 0.0), changed(case, 1.0)
    if low is None or high is None:
        return None
    found = between(by_twin(case, low), by_twin(case, high))
    effects = found or within(case, {name: case.seconds("kv_eviction", name) for name in TARGETS})
    memory = memory_of(case.engine)
    saved = saved_step_s(case)
    faster = f"; a step reads {1000 * saved:.2g} ms less" if saved else ""
    return Hypothesis(
        name=NAME, change=f"8-bit weights: {memory.weights_gib * (1 - FP8):.1f} GiB a GPU "
        + ("less to hold and to read" if memory.override else f"become KV blocks ({factor(case):.2f} times those of now)"),
        flags=("--quantization fp8",),
        claim=f"weights take {memory.weights_gib:.1f} GiB of each GPU, KV blocks {memory.kv_gib:.1f}{faster}",
        effect=effects, predicted_by="twin" if found else "nothing",
        costs=("accuracy: weights are rounded to 8 bits", "start-up: weights are converted while loading, unless the checkpoint holds them so"),
        confused_with="8-bit KV: that doubles what the pool holds; freed weights help most where they are much of the memory",
        conditions=(*QUANTISED_WEIGHTS, "the range reaches from no faster step to one that is faster by all the bytes less to read",
                    *(("an override sets the blocks: freed memory adds none until it is taken away",) if memory.override else ()), *versions.unknown(case.engine)),
        test=trial.plan(case, effects, "TPOT, queue time, preemptions, and an evaluation of answers"),
    )  # fmt: skip
