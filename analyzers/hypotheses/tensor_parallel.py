"""Tensor parallelism: each layer split over more GPUs, which read weights and KV together.

Steps become shorter by what they read and compute, and longer by an all-reduce twice a layer; weights are held once, so that
more memory is left for blocks.
"""

import math
from dataclasses import replace
from typing import Final

from analyzers import versions
from analyzers.books import Books
from analyzers.capacity import memory_of, pool_with
from analyzers.case import FLOOR, Case, Change, between, by_twin
from analyzers.hypotheses import trial
from analyzers.hypotheses.pool import resized
from analyzers.model import Hypothesis
from analyzers.steps import number
from analyzers.twin import Setup

NAME: Final = "tensor_parallel"
SINCE: Final = versions.first_of("tensor-parallel-size")
RELIEVES: Final = ("slots", "kv_eviction", "prefill_backlog", "decode_batch", FLOOR)
TAKES: Final = ()
EFFORT: Final = 2  # more GPUs
TOUCHES: Final = ("tensor_parallel_size", "engines", "max_num_batched_tokens", "max_num_seqs")
WAYS: Final = 2
REDUCE_S: Final = (8e-6, 30e-6)  # an all-reduce of a decode step over NVLink: assumed, not measured here


def split(case: Case, share: float) -> Change | None:
    """The engine over twice the GPUs; `share` of the fixed cost of a step is split, too, and all-reduces are as quick. None: heads cannot be split."""
    heads, ways = number((case.fact("shape") or {}).get("heads")), number(case.fact("tensor_parallel"), 1.0)
    layers = number((case.fact("shape") or {}).get("layers"), 32.0)
    if math.isfinite(heads) and heads % (WAYS * ways):
        return None
    memory = memory_of(case.engine)
    times = 1.0 if memory.override else pool_with(case.engine, tensor=WAYS) / memory.pool_tokens
    reduce_s = 2 * layers * (share * REDUCE_S[0] + (1 - share) * REDUCE_S[1])

    def setup(now: Setup, books: Books) -> Setup:
        larger = resized(now, books, times) if math.isfinite(times) else now
        fixed = now.a * (1 - share * (1 - 1 / WAYS))
        return replace(larger, a=fixed + reduce_s, b=now.b / WAYS, c=now.c / WAYS, q=now.q / WAYS)

    return Change(setup)


def changed(case: Case) -> Change | None:
    """The middle: half of the fixed cost is split."""
    return split(case, 0.5)


def propose(case: Case) -> Hypothesis | None:
    """Wherever a twin holds and the heads can be split."""
    low, high = split(case, 0.0), split(case, 1.0)
    effects = between(by_twin(case, low), by_twin(case, high)) if low and high else None
    if effects is None:
        return None
    now = int(number(case.fact("tensor_parallel"), 1.0))
    memory = memory_of(case.engine)
    tokens = pool_with(case.engine, tensor=WAYS)
    pool = (
        f"; the pool grows {tokens / memory.pool_tokens:.1f} times"
        if math.isfinite(tokens / memory.pool_tokens) and not memory.override
        else ""
    )
    kv_heads = number((case.fact("shape") or {}).get("kv_heads"))
    copied = (f"the model has {kv_heads:.0f} KV heads: {WAYS * now} GPUs hold copies of them",) if kv_heads < WAYS * now else ()
    return Hypothesis(
        name=NAME, change=f"tensors over {WAYS * now} GPUs instead of {now}", flags=(f"--tensor-parallel-size {WAYS * now}",),
        claim=f"a step of {1000 * case.mean(lambda b: b.model.a):.1f} ms and {1e6 * case.mean(lambda b: b.model.b):.0f} us a prompt token are split over twice the GPUs{pool}",
        effect=effects, predicted_by="twin, between a fixed cost that is halved and one that stays",
        costs=("GPUs: as many again", "an all-reduce twice a layer in every step"),
        confused_with="a replica, which costs as much and shortens the line instead of the step",
        conditions=(f"an all-reduce is assumed to take {1e6 * REDUCE_S[0]:.0f} to {1e6 * REDUCE_S[1]:.0f} us: GPUs of one host joined by NVLink; over PCIe it can cost more than it gives",
                    *copied, *(("an override sets the blocks: the pool does not grow until it is taken away",) if memory.override else ()), *versions.unknown(case.engine)),
        test=trial.plan(case, effects, "TPOT at equal batch, TTFT, KV blocks of the start-up line"),
    )  # fmt: skip
