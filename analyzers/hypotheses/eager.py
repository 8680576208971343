"""Eager mode: the memory of CUDA graphs becomes KV blocks.

Never where launches matter: without graphs a step takes at least as long as launching its kernels, 15 ms and more.
"""

import math
from dataclasses import replace
from typing import Final

from analyzers import versions
from analyzers.books import Books
from analyzers.capacity import memory_of, pool_with
from analyzers.case import Case, Change, amount, between, by_twin
from analyzers.hypotheses import trial
from analyzers.hypotheses.pool import resized
from analyzers.model import Hypothesis
from analyzers.twin import Setup

NAME: Final = "eager"
SINCE: Final = None
RELIEVES: Final = ("kv_eviction",)
TAKES: Final = ("decode_batch", "prefill_backlog", "engine_stall")
EFFORT: Final = 0
TOUCHES: Final = ("enforce_eager", "max_cudagraph_capture_size", "cudagraph_capture_sizes")
GRAPHS_GIB: Final = 0.7  # measured: 1.0 GiB (8B, 0.24), 0.4-0.5 GiB (30B MoE, 0.33)
LAUNCH_S: Final = (0.015, 0.066)  # of a dense 8B model, of a 48-layer MoE
HIDDEN: Final = 1.5  # a step this many times longer than the launches hides them (asynchronous scheduling)


def launch_s(case: Case) -> float:
    """Seconds to launch the kernels of a step: fitted, else of a model of this kind."""
    fitted = [b.model.launch_s for b in case.accounts if b.model.launch_s > 0]
    typical = LAUNCH_S[1] if (case.fact("shape") or {}).get("experts") else LAUNCH_S[0]
    return max([typical, *fitted])


def without(case: Case, *, slower: bool) -> Change | None:
    """The engine with the graphs' memory as blocks; `slower`: steps as long as their launches at least. None where launches matter."""
    step = case.mean(lambda b: b.model.a) if case.accounts and all(b.model.ok for b in case.accounts) else math.nan
    memory = memory_of(case.engine)
    times = pool_with(case.engine, freed_gib=GRAPHS_GIB) / memory.pool_tokens
    if (
        case.args.get("enforce_eager") is True
        or memory.override
        or not math.isfinite(times)
        or not step > HIDDEN * launch_s(case)
    ):
        return None
    more = 0.1 if slower else 0.0

    def setup(now: Setup, books: Books) -> Setup:
        return replace(resized(now, books, times), a=now.a * (1 + more))

    return Change(setup)


def changed(case: Case) -> Change | None:
    """The cautious end."""
    return without(case, slower=True)


def propose(case: Case) -> Hypothesis | None:
    """Where blocks are short and every step is far longer than its launches."""
    if case.seconds("kv_eviction", "e2e") <= 0:
        return None
    low, high = without(case, slower=True), without(case, slower=False)
    effects = between(by_twin(case, low), by_twin(case, high)) if low and high else None
    if effects is None:
        return None
    return Hypothesis(
        name=NAME, change="eager mode instead of CUDA graphs", flags=("--enforce-eager",),
        claim=f"graphs take about {GRAPHS_GIB} GiB that would be KV blocks; a step takes {amount(case.mean(lambda b: b.model.a))}, its launches about {amount(launch_s(case))}",
        effect=effects, predicted_by="twin",
        costs=("every step launches its kernels one by one: TPOT grows where the CPU is slower than thought",),
        confused_with="a larger share of memory, which brings more blocks and costs no launches",
        conditions=("launches hide behind the GPU only while the CPU keeps ahead: a busy host loses that", *versions.unknown(case.engine)),
        test=trial.plan(case, effects, "TPOT at equal batch, queue time, KV blocks of the start-up line"),
    )  # fmt: skip
