"""Pipeline parallelism: layers split over more GPUs, for memory.

A token still passes all layers one after the other, and a hop between GPUs: it comes no sooner. Weights are held once, so that
more memory is left for blocks; two batches are on their way at once.
"""

import math
from dataclasses import replace
from typing import Final

from analyzers import versions
from analyzers.books import Books
from analyzers.capacity import memory_of, pool_with
from analyzers.case import Case, Change, between, by_twin
from analyzers.hypotheses import trial
from analyzers.hypotheses.pool import resized
from analyzers.model import Hypothesis
from analyzers.steps import number
from analyzers.twin import Setup

NAME: Final = "pipeline_parallel"
SINCE: Final = versions.first_of("pipeline-parallel-size")
RELIEVES: Final = ("kv_eviction",)
TAKES: Final = ("decode_batch",)
EFFORT: Final = 2  # more GPUs
TOUCHES: Final = ("pipeline_parallel_size", "engines", "max_num_batched_tokens", "max_num_seqs")
STAGES: Final = 2
HOP_S: Final = (20e-6, 500e-6)  # sending hidden states to the next GPU of a host, to the next host: assumed


def staged(case: Case, *, ideal: bool) -> Change | None:
    """The engine over two stages: the pool of both, a hop more a step; ideal: half the batch in each of two batches. None: memory unknown."""
    memory = memory_of(case.engine)
    times = pool_with(case.engine, pipeline=STAGES) / memory.pool_tokens
    if memory.override or not math.isfinite(times):
        return None
    hop = (STAGES - 1) * HOP_S[0 if ideal else 1]

    def setup(now: Setup, books: Books) -> Setup:
        larger = resized(now, books, times)
        return replace(larger, a=now.a + hop, c=now.c / STAGES if ideal else now.c)

    return Change(setup)


def changed(case: Case) -> Change | None:
    """The cautious end."""
    return staged(case, ideal=False)


def propose(case: Case) -> Hypothesis | None:
    """Where blocks are short and memory is known."""
    if case.seconds("kv_eviction", "e2e") <= 0:
        return None
    low, high = staged(case, ideal=False), staged(case, ideal=True)
    effects = between(by_twin(case, low), by_twin(case, high)) if low and high else None
    if effects is None:
        return None
    now = int(number(case.fact("pipeline_parallel"), 1.0))
    memory = memory_of(case.engine)
    times = pool_with(case.engine, pipeline=STAGES) / memory.pool_tokens
    return Hypothesis(
        name=NAME, change=f"layers over {STAGES * now} GPUs instead of {now}", flags=(f"--pipeline-parallel-size {STAGES * now}",),
        claim=f"the pool grows {times:.1f} times: weights of {memory.weights_gib:.1f} GiB are split and each GPU holds the KV of half the layers",
        effect=effects, predicted_by="twin",
        costs=("GPUs: as many again", "stages: a token passes all of them, TPOT becomes no better", "bubbles: with one batch on its way half of the GPUs stand idle"),
        confused_with="tensor parallelism, which also makes steps shorter: prefer it inside a host",
        conditions=(f"a hop takes {1e6 * HOP_S[0]:.0f} to {1e6 * HOP_S[1]:.0f} us (assumed)", "at least two batches are on their way all the time", *versions.unknown(case.engine)),
        test=trial.plan(case, effects, "queue time, preemptions, TPOT, GPU utilisation of each stage"),
    )  # fmt: skip
