"""A larger token budget a step: prompts finish in fewer steps, so that fewer of them wait behind a full budget.

Every step pays its fixed cost once, however many prompt tokens it computes.
"""

import math
from dataclasses import replace
from typing import Final

from analyzers import versions
from analyzers.books import Books
from analyzers.case import Case, Change, amount, by_twin
from analyzers.hypotheses import trial
from analyzers.model import Hypothesis
from analyzers.twin import Setup

NAME: Final = "chunk_larger"
SINCE: Final = None
RELIEVES: Final = ("prefill_backlog",)
TAKES: Final = ("kv_eviction",)
EFFORT: Final = 0
TOUCHES: Final = ("max_num_batched_tokens", "max_cudagraph_capture_size", "cudagraph_capture_sizes", "cuda_graph_sizes")
MOST: Final = 32_768
TIMES: Final = (2, 4)


def to_budget(times: int) -> Change:
    """The engine with a larger budget, and with CUDA graphs up to it where they reached the budget before."""

    def setup(now: Setup, _: Books) -> Setup:
        budget = now.budget * times
        return replace(now, budget=budget, graph=float(budget) if now.budget <= now.graph < math.inf else now.graph)

    return Change(setup)


def best(case: Case) -> int | None:
    """Times the budget of now that gives the lowest TTFT."""
    now = next((t.setup for t in case.twins if t), None)
    if now is None:
        return None
    gains = {n: found["ttft"].saves_s or 0.0 for n in TIMES if now.budget * n <= MOST and (found := by_twin(case, to_budget(n)))}
    return max(gains, key=lambda n: (gains[n], -n)) if gains else None


def changed(case: Case) -> Change | None:
    """The engine with the best larger budget."""
    times = best(case)
    return to_budget(times) if times else None


def propose(case: Case) -> Hypothesis | None:
    """Where requests wait behind a full budget."""
    waits = case.mean(lambda b: b.queue["budget"]) if case.accounts else math.nan
    if not waits > 0.05 * (case.measured("ttft") or math.inf):
        return None
    times, change = best(case), changed(case)
    effects = by_twin(case, change) if change else None
    now = next((t.setup for t in case.twins if t), None)
    if times is None or effects is None or now is None:
        return None
    size = now.budget * times
    graphs = now.budget <= now.graph < math.inf and versions.has(versions.version_of(case.engine), "max-cudagraph-capture-size")
    return Hypothesis(
        name=NAME, change=f"max_num_batched_tokens {now.budget} -> {size}",
        flags=(f"--max-num-batched-tokens {size}", *((f"--max-cudagraph-capture-size {size}",) if graphs else ())),
        claim=f"requests wait {amount(waits)} behind other prompts that fill the budget of {now.budget} tokens a step",
        effect=effects, predicted_by="twin",
        costs=("inter-token latency: a full step takes longer, and running answers wait for it", "activation memory, taken from KV blocks",
               *(("CUDA graphs up to the budget: start-up time and memory",) if graphs else ())),
        confused_with="more prompt throughput: the GPU computes prompt tokens no faster, only the fixed cost of steps is saved",
        conditions=("steps beyond the captured CUDA graphs pay their launches (15-20 ms on an 8B model, 66 ms on a 48-layer MoE)" if not graphs else "the graphs of larger steps must be captured too, or each pays its launches",
                    *versions.unknown(case.engine)),
        test=trial.plan(case, effects, "TTFT, queue time, p99 inter-token latency"),
    )  # fmt: skip
