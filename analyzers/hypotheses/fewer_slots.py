"""A lower max_num_seqs, so that running requests are not preempted for blocks.

What does not fit waits before it starts instead of losing its blocks half-way and computing them again.
"""

import math
from dataclasses import replace
from typing import Final

from analyzers import steps, versions
from analyzers.books import Books
from analyzers.capacity import held_tokens
from analyzers.case import Case, Change, amount, by_twin
from analyzers.hypotheses import trial
from analyzers.model import Hypothesis
from analyzers.twin import ENDLESS, Setup

NAME: Final = "fewer_slots"
SINCE: Final = None
RELIEVES: Final = ("kv_eviction",)
TAKES: Final = ("slots",)
EFFORT: Final = 0
TOUCHES: Final = ("max_num_seqs", "max_cudagraph_capture_size")
FEWER: Final = 0.8


def fitting(case: Case) -> int | None:
    """Requests whose whole prompt and half output fit into an engine's pool together; None without preemptions or a known pool."""
    if not any(b.engine.total.get("preemptions") for b in case.accounts):
        return None
    found = []
    for b in case.accounts:
        prompt, output, _, _ = steps.lengths(b.engine)
        tokens = steps.number(b.engine.facts.get("kv_blocks")) * steps.number(b.engine.facts.get("block_size"))
        hit = b.hits.now if math.isfinite(b.hits.now) else 0.0
        found.append(tokens / held_tokens(prompt, output, hit))
    least = min(found, default=math.nan)
    return max(1, int(0.9 * least)) if math.isfinite(least) else None


def capped(slots: int) -> Change:
    """The engine with so many slots."""

    def setup(now: Setup, _: Books) -> Setup:
        return replace(now, slots=slots)

    return Change(setup)


def best(case: Case) -> int | None:
    """As many slots as fit, or a few less, by E2E; None where there are no more now."""
    fit = fitting(case)
    if fit is None or fit >= min((t.setup.slots for t in case.twins if t), default=ENDLESS):
        return None
    tried = {fit, max(1, int(FEWER * fit))}
    gains = {n: found["e2e"].saves_s or 0.0 for n in tried if (found := by_twin(case, capped(n)))}
    return max(gains, key=lambda n: (gains[n], n)) if gains else None


def changed(case: Case) -> Change | None:
    """The engine with as many slots as is best."""
    slots = best(case)
    return capped(slots) if slots else None


def propose(case: Case) -> Hypothesis | None:
    """Where running requests were preempted."""
    fit, slots = fitting(case), best(case)
    effects = by_twin(case, capped(slots)) if slots else None
    if fit is None or effects is None:
        return None
    count = sum(b.engine.total.get("preemptions", 0.0) for b in case.accounts)
    lost = case.mean(lambda b: b.decode["requeue"] + b.decode["recompute"] + b.decode["beside"])
    return Hypothesis(
        name=NAME, change=f"max_num_seqs {slots}", flags=(f"--max-num-seqs {slots}",),
        claim=f"{count:.0f} preemptions cost {amount(lost)} a request; about {fit} requests of this length fit into the pool together",
        effect=effects, predicted_by="twin",
        costs=("requests wait for a slot instead of blocks: the queue does not become shorter, and longer where requests are short",
               "the waiting of new requests (TTFT) grows where blocks would have been free for them"),
        confused_with="more KV blocks, which take away the waiting too: fewer slots only stop the work that is done twice",
        conditions=("the mix of lengths stays: longer requests are preempted again", *versions.unknown(case.engine)),
        test=trial.plan(case, effects, "preemptions, queue time, E2E"),
    )  # fmt: skip
