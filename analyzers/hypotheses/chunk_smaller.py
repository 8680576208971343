"""A smaller token budget a step: shorter steps, so that prompts hold up running answers less at a time.

The work of prompts stays; it is spread over more steps. The mean hardly changes, the longest gap between two tokens does, and
steps small enough for a CUDA graph lose their launch cost.
"""

import math
from dataclasses import replace
from typing import Final

import numpy as np

from analyzers import steps, versions
from analyzers.books import Books
from analyzers.case import Case, Change, amount, by_twin
from analyzers.hypotheses import trial
from analyzers.model import Hypothesis, Stage
from analyzers.twin import Setup

NAME: Final = "chunk_smaller"
SINCE: Final = None
RELIEVES: Final = ("prefill_backlog",)
TAKES: Final = ()
EFFORT: Final = 0
TOUCHES: Final = ("max_num_batched_tokens",)
LEAST: Final = 512
BESIDE: Final = 0.10  # share of decode in steps with prompts from which it is worth a look


def budgets(case: Case) -> list[int]:
    """Smaller budgets that hold the largest batch and are below what prompts need."""
    setup = next((t.setup for t in case.twins if t), None)
    if setup is None:
        return []
    running = [float(np.nanmax(e.interval["running"])) for e in case.window.engines if len(e.interval.get("running", ()))]
    least = max(LEAST, 2 * max(running, default=0.0))
    longest = case.work.prompt.quantiles.get("p99", math.inf) if case.work.prompt else math.inf
    tried = {setup.budget // 4, setup.budget // 2, *([int(setup.graph)] if math.isfinite(setup.graph) else [])}
    return sorted(b for b in tried if least <= b < setup.budget and b < longest)


def to_budget(size: int) -> Change:
    """The engine with another budget."""

    def setup(now: Setup, _: Books) -> Setup:
        return replace(now, budget=size)

    return Change(setup)


def best(case: Case) -> int | None:
    """The budget with the lowest TPOT."""
    gains = {b: found["tpot"].saves_s or 0.0 for b in budgets(case) if (found := by_twin(case, to_budget(b)))}
    return max(gains, key=lambda b: (gains[b], b)) if gains else None


def changed(case: Case) -> Change | None:
    """The engine with the best smaller budget."""
    size = best(case)
    return to_budget(size) if size else None


def propose(case: Case) -> Hypothesis | None:
    """Where prompts stretch the steps of running answers."""
    beside = case.mean(lambda b: b.decode["prompts"]) if case.accounts else math.nan
    if not beside > BESIDE * case.mean(lambda b: b.stages[Stage.DECODE]):
        return None
    size, change = best(case), changed(case)
    effects = by_twin(case, change) if change else None
    now = next((t.setup for t in case.twins if t), None)
    if size is None or effects is None or now is None:
        return None
    return Hypothesis(
        name=NAME, change=f"max_num_batched_tokens {now.budget} -> {size}", flags=(f"--max-num-batched-tokens {size}",),
        claim=f"steps shared with prompts hold {amount(beside)} of each request's decode; the longest step takes {amount(longest_s(case, now, now.budget))}, then {amount(longest_s(case, now, size))}",
        effect=effects, predicted_by="twin",
        costs=("TTFT: a prompt takes more steps" + (f", {amount(-(effects['ttft'].saves_s or 0.0))} here" if (effects["ttft"].saves_s or 0.0) < 0 else ""),
               "throughput: the fixed cost of a step is paid more often"),
        confused_with="a larger batch: that makes every step longer, prompts only those they share",
        conditions=("means hardly show it: look at the 99th percentile of inter-token latency", *versions.unknown(case.engine)),
        test=trial.plan(case, effects, "p99 inter-token latency, TPOT, TTFT by prompt length"),
    )  # fmt: skip


def longest_s(case: Case, setup: Setup, budget: int) -> float:
    """Seconds of a step whose budget is full of prompt tokens."""
    prompt = steps.lengths(case.engine)[0]
    tokens = min(float(budget), case.work.prompt.quantiles.get("p99", prompt) if case.work.prompt else prompt)
    work = setup.b * tokens + setup.q * tokens * tokens / 2
    return setup.a + (max(work, setup.launch_s) if tokens > setup.graph else work) + setup.mixed_s
