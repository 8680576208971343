"""A long-prefill threshold: a long prompt takes only so many tokens a step, so that short ones pass beside it.

Without it the prompt at the head of the line fills the whole budget, step after step.
"""

import math
from dataclasses import replace
from typing import Final

from analyzers import versions
from analyzers.books import Books
from analyzers.case import Case, Change, amount, by_twin
from analyzers.hypotheses import trial
from analyzers.model import Hypothesis
from analyzers.steps import number
from analyzers.twin import Setup

NAME: Final = "long_threshold"
SINCE: Final = versions.first_of("long-prefill-token-threshold")
RELIEVES: Final = ("prefill_backlog",)
TAKES: Final = ()
EFFORT: Final = 0
TOUCHES: Final = ("long_prefill_token_threshold", "max_num_partial_prefills", "max_long_partial_prefills")
LONG: Final = 4.0  # a stream has long prompts when its p99 is so many times its median
SHARES: Final = (2, 4, 8)  # parts of the budget that one prompt may take


def to_threshold(part: int) -> Change:
    """The engine in which one prompt takes at most a part of the budget."""

    def setup(now: Setup, _: Books) -> Setup:
        return replace(now, long_threshold=max(256, now.budget // part))

    return Change(setup)


def best(case: Case) -> int | None:
    """The part that saves most of TTFT without costing E2E anything that shows."""
    gains: dict[int, float] = {}
    for part in SHARES:
        found = by_twin(case, to_threshold(part))
        if found and (found["e2e"].saves_s or 0.0) >= 0:
            gains[part] = found["ttft"].saves_s or 0.0
    return max(gains, key=lambda part: (gains[part], -part)) if gains else None


def changed(case: Case) -> Change | None:
    """The engine with the best threshold."""
    part = best(case) if _mixed(case) else None
    return to_threshold(part) if part else None


def _mixed(case: Case) -> bool:
    """True where few prompts are much longer than most, and no threshold is set."""
    prompt = case.work.prompt
    if prompt is None or number(case.args.get("long_prefill_token_threshold"), 0.0) > 0:
        return False
    return prompt.quantiles.get("p99", 0.0) > LONG * max(prompt.quantiles.get("p50", math.inf), 1.0)


def propose(case: Case) -> Hypothesis | None:
    """Where few long prompts are among short ones and requests wait behind them."""
    waits = case.mean(lambda b: b.queue["budget"]) if case.accounts else math.nan
    prompt = case.work.prompt
    if not _mixed(case) or prompt is None or not waits > 0.05 * (case.measured("ttft") or math.inf):
        return None
    part = best(case)
    effects = by_twin(case, to_threshold(part)) if part else None
    now = next((t.setup for t in case.twins if t), None)
    if part is None or effects is None or now is None:
        return None
    size = max(256, now.budget // part)
    return Hypothesis(
        name=NAME, change=f"a prompt takes at most {size} of the {now.budget} tokens of a step", flags=(f"--long-prefill-token-threshold {size}",),
        claim=f"prompts of up to {prompt.quantiles['p99']:.0f} tokens (median {prompt.quantiles['p50']:.0f}) fill the budget, and others wait {amount(waits)} behind them",
        effect=effects, predicted_by="twin",
        costs=(f"long prompts themselves take up to {part} times as many steps: their TTFT grows", "several prompts are computed at once: their KV blocks are held longer"),
        confused_with="a smaller budget, which makes all prompts slower and lets nobody pass",
        conditions=("from 0.33 on the threshold is not applied to a request that is alone; before it always is",
                    "where the GPU has more prompt work than it can do, letting short prompts pass only moves the wait", *versions.unknown(case.engine)),
        test=trial.plan(case, effects, "TTFT by prompt length, queue time, p99 inter-token latency"),
    )  # fmt: skip
