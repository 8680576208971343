"""A prefill schedule interval: prompts are computed only in every N-th step, and the steps between are free of them."""

import math
from typing import Final

from analyzers import versions
from analyzers.case import Case, amount, within
from analyzers.hypotheses import trial
from analyzers.model import Hypothesis, Stage
from analyzers.steps import number

NAME: Final = "prefill_interval"
SINCE: Final = versions.first_of("prefill-schedule-interval")
RELIEVES: Final = ("prefill_backlog",)
TAKES: Final = ("slots", "kv_eviction")  # what does not start holds its place in the line
EFFORT: Final = 0
TOUCHES: Final = ("prefill_schedule_interval",)
EVERY: Final = 4
ALONE: Final = (0, 33)  # before, only data-parallel ranks keep the interval (sources of 0.24 and 0.33)
BESIDE: Final = 0.15
BACKLOG: Final = 0.10


def propose(case: Case) -> Hypothesis | None:
    """Where prompts stretch many decode steps and nobody waits for prompts."""
    version = versions.version_of(case.engine)
    ranks = number(case.fact("data_parallel"), 1.0)
    if not versions.has(version, "prefill-schedule-interval") or (version < ALONE and ranks < 2):
        return None
    if not case.accounts or number(case.args.get("prefill_schedule_interval"), 1.0) > 1:
        return None
    beside = case.mean(lambda b: b.decode["prompts"])
    if not beside > BESIDE * case.mean(lambda b: b.stages[Stage.DECODE]):
        return None
    if case.fault("prefill_backlog", "ttft") > BACKLOG * (case.measured("ttft") or math.inf):
        return None  # who waits for prompts would wait longer
    per = beside / max(case.mean(lambda b: b.output_tokens) - 1, 1.0)
    effects = within(case, {"tpot": per, "e2e": beside})
    step = case.mean(lambda b: b.model.a) if all(b.model.ok for b in case.accounts) else math.nan
    return Hypothesis(
        name=NAME, change=f"prompts in every {EVERY}th step only", flags=(f"--prefill-schedule-interval {EVERY}",),
        claim=f"prompts take {amount(per)} of each token; computed together in fewer steps they pay the fixed and launch cost of mixed steps less often",
        effect=effects, predicted_by="nothing",
        costs=(f"TTFT: a prompt waits up to {EVERY - 1} steps more" + (f" ({amount((EVERY - 1) * step)})" if math.isfinite(step) else "") + ", a chunked one that for each chunk",),
        confused_with="a smaller budget: that makes mixed steps shorter, this makes them fewer",
        conditions=("the same prompt tokens are computed: only what a mixed step costs beyond its tokens is saved, which is not known from here",
                    "the interval is given up while waiting requests do not fit into one release", *versions.unknown(case.engine)),
        test=trial.plan(case, effects, "p50 and p99 inter-token latency, TTFT"),
    )  # fmt: skip
