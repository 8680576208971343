"""Expert parallelism: whole experts spread over ranks instead of slices of each on every rank."""

from typing import Final

from analyzers import versions
from analyzers.case import UNPREDICTED, Case
from analyzers.hypotheses import trial
from analyzers.links.moe_imbalance import MEASURE, ranks
from analyzers.model import Hypothesis
from analyzers.steps import number

NAME: Final = "expert_parallel"
SINCE: Final = versions.first_of("enable-expert-parallel")
RELIEVES: Final = ("decode_batch", "prefill_backlog")
TAKES: Final = ("moe_imbalance",)
EFFORT: Final = 0
TOUCHES: Final = ("enable_expert_parallel", "all2all_backend")


def propose(case: Case) -> Hypothesis | None:
    """Where an MoE lies on several ranks and its experts are sliced."""
    shape = case.fact("shape") or {}
    if not shape.get("experts") or ranks(case.engine) < 2 or case.fact("expert_parallel") is not False:
        return None
    experts, used = number(shape["experts"]), number(shape.get("experts_per_token"), 1.0)
    each = number(shape.get("moe_intermediate")) / ranks(case.engine)
    return Hypothesis(
        name=NAME, change=f"{experts:.0f} experts spread over {ranks(case.engine):.0f} ranks", flags=("--enable-expert-parallel",),
        claim=f"each rank now multiplies slices of {each:.0f} columns of all experts that are asked for; whole experts are fewer and larger products",
        effect=UNPREDICTED, predicted_by="nothing",
        costs=("an all-to-all in every MoE layer (with data-parallel attention)", "imbalance: a step takes as long as the rank whose experts are asked for most"),
        confused_with="EPLB, which only moves experts that are spread already",
        conditions=(f"kernel speed of slices against whole experts, the all-to-all and the imbalance of this traffic (top {used:.0f} of {experts:.0f}) are not known before a run",
                    f"record its balancedness: {MEASURE}", *versions.unknown(case.engine)),
        test=trial.plan(case, UNPREDICTED, "TPOT at equal batch, prompt tokens a second, balancedness"),
    )  # fmt: skip
