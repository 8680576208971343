"""CUDA graphs for larger steps, where steps with prompts fall out of those that were captured.

A step with more tokens than the largest captured graph launches every kernel by itself: it takes at least the launch time (15 to
20 ms on a dense 8B model, 66 ms on a 48-layer MoE), however few tokens it computes.
"""

import math
from dataclasses import replace
from typing import Final

from analyzers import versions
from analyzers.books import Books
from analyzers.case import Case, Change, amount, between, by_twin
from analyzers.hypotheses import trial
from analyzers.model import Hypothesis
from analyzers.twin import Setup

NAME: Final = "graph_sizes"
SINCE: Final = versions.first_of("max-cudagraph-capture-size")
RELIEVES: Final = ("prefill_backlog", "decode_batch", "prefix_cache_miss")
TAKES: Final = ("kv_eviction",)
EFFORT: Final = 0
TOUCHES: Final = ("max_cudagraph_capture_size", "cudagraph_capture_sizes", "cuda_graph_sizes", "compilation_config")
ROUND: Final = 512
MOST: Final = 8192


def wanted(case: Case) -> tuple[int, int, Setup] | None:
    """(largest graph now, wanted, engine): up to the 95th percentile of prompts and the budget; None where launches do not show."""
    setup = next((t.setup for t in case.twins if t), None)
    prompt = case.work.prompt
    if setup is None or prompt is None or not math.isfinite(setup.graph) or not (setup.launch_s or setup.mixed_s):
        return None
    reach = min(setup.budget, MOST, ROUND * math.ceil(prompt.quantiles.get("p95", prompt.mean) * (1 - setup.hit) / ROUND))
    return (
        (int(setup.graph), reach, setup)
        if reach > setup.graph and prompt.mean * (1 - setup.hit) + setup.graph / 2 > setup.graph
        else None
    )


def captured(case: Case, *, mixed: bool) -> Change | None:
    """The engine with graphs up to the wanted size; `mixed`: the cost of a step with a prompt was launches, too."""
    found = wanted(case)
    if found is None:
        return None

    def setup(now: Setup, _: Books) -> Setup:
        return replace(now, graph=float(found[1]), mixed_s=0.0 if mixed else now.mixed_s)

    return Change(setup)


def changed(case: Case) -> Change | None:
    """The cautious end: only what was seen as a launch floor goes."""
    return captured(case, mixed=False)


def propose(case: Case) -> Hypothesis | None:
    """Where prompts are longer than the largest graph and launches show in the step costs."""
    found, low, high = wanted(case), captured(case, mixed=False), captured(case, mixed=True)
    effects = between(by_twin(case, low), by_twin(case, high)) if low and high else None
    if found is None or effects is None:
        return None
    now, then, setup = found
    version = versions.version_of(case.engine)
    flag = (
        f"--max-cudagraph-capture-size {then}"
        if versions.has(version, "max-cudagraph-capture-size")
        else f"--cuda-graph-sizes {then}"
    )
    floor = max(setup.launch_s, setup.mixed_s)
    return Hypothesis(
        name=NAME, change=f"CUDA graphs up to {then} tokens instead of {now}", flags=(flag,),
        claim=f"a step with more than {now} tokens runs without a graph and takes at least {amount(floor)}, a step without prompts {amount(setup.a)}",
        effect=effects, predicted_by="twin",
        costs=("start-up: capturing more sizes takes seconds to minutes", "memory for the graphs, taken from KV blocks", "steps are padded to the next captured size"),
        confused_with="a smaller budget, which also keeps steps inside the graphs but makes prompts take more of them",
        conditions=("the launch cost was fitted from steps with prompts, not measured alone: the range reaches from what is surely launches to all a mixed step costs",
                    "full graphs need a backend that supports them for steps with prompts; else the piecewise ones are used", *versions.unknown(case.engine)),
        test=trial.plan(case, effects, "p99 inter-token latency, TTFT, start-up seconds, KV blocks of the start-up line"),
    )  # fmt: skip
