"""Redundant experts: the ones asked for most are held by several ranks.

Moving experts cannot split one that is asked for more than a rank's share; a copy on another rank can. Copies take the memory
of KV blocks.
"""

import math
from typing import Final

from analyzers import versions
from analyzers.capacity import GIB, memory_of
from analyzers.case import Case, amount, within
from analyzers.hypotheses import trial
from analyzers.links.moe_imbalance import BALANCED, MIN_LINES, iota, ranks, right_axis
from analyzers.model import TARGETS, Hypothesis
from analyzers.steps import number

NAME: Final = "redundant_experts"
SINCE: Final = versions.first_of("enable-eplb")
RELIEVES: Final = ("moe_imbalance",)
TAKES: Final = ("kv_eviction",)
EFFORT: Final = 0
TOUCHES: Final = ("enable_eplb", "eplb_config", "num_redundant_experts")


def propose(case: Case) -> Hypothesis | None:
    """Where ranks are unbalanced by what was logged."""
    engine, shape = case.engine, case.fact("shape") or {}
    busiest, count = iota(engine) if right_axis(engine) else (math.nan, 0)
    if not case.fact("expert_parallel") or ranks(engine) < 2 or count < MIN_LINES or busiest < BALANCED:
        return None
    copies = int(ranks(engine))  # one a rank: the smallest number that keeps the experts of all ranks equal
    gib = 3 * number(shape.get("hidden")) * number(shape.get("moe_intermediate")) * 2 * number(shape.get("layers")) / GIB
    memory = memory_of(engine)
    share = f", {100 * gib / memory.kv_gib:.1f} % of the KV blocks" if memory.kv_gib > 0 and math.isfinite(gib) else ""
    effects = within(case, {name: case.seconds("moe_imbalance", name) for name in TARGETS})
    config = (
        f"--eplb-config '{{\"num_redundant_experts\": {copies}}}'"
        if versions.has(versions.version_of(engine), "eplb-config")
        else f"--num-redundant-experts {copies}"
    )
    return Hypothesis(
        name=NAME, change=f"{copies} experts more than the model has, as copies of those asked for most", flags=("--enable-eplb", config),
        claim=f"the busiest rank gets {busiest:.2f} times the mean; what moving whole experts cannot level, copies can: at most {amount(case.seconds('moe_imbalance', 'e2e'))} of E2E",
        effect=effects, predicted_by="nothing",
        costs=(f"memory: {gib:.2f} GiB a rank{share}" if math.isfinite(gib) else "memory of one expert per layer and rank", "as EPLB: stalls while experts move"),
        confused_with="EPLB alone, which is enough where no single expert has more than a rank's share",
        conditions=("which expert is asked for how much is in no log: whether moves alone are enough shows after the first one",
                    "experts and copies together must divide by the ranks", *versions.unknown(engine)),
        test=trial.plan(case, effects, "balancedness after a move, with and without copies; KV blocks of the start-up line"),
    )  # fmt: skip
