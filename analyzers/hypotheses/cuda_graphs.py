"""CUDA graphs where the server runs eager: one launch a step instead of hundreds."""

import math
from typing import Final

from analyzers import steps, versions
from analyzers.capacity import GIB, memory_of
from analyzers.case import FLOOR, Case, amount, within
from analyzers.hypotheses import trial
from analyzers.model import Hypothesis

NAME: Final = "cuda_graphs"
SINCE: Final = None
RELIEVES: Final = ("decode_batch", "prefill_backlog", "slots", FLOOR)
TAKES: Final = ("kv_eviction",)
EFFORT: Final = 0
TOUCHES: Final = ("enforce_eager", "max_cudagraph_capture_size", "cudagraph_capture_sizes", "graph_sizes")


def propose(case: Case) -> Hypothesis | None:
    """Where eager mode is enforced on a GPU."""
    if case.args.get("enforce_eager") is not True or str(case.fact("device") or "cuda") == "cpu" or not case.accounts:
        return None
    if not all(b.model.ok for b in case.accounts):
        return None
    known, step = steps.device(case.engine), case.mean(lambda b: b.model.a)
    read = memory_of(case.engine).weights_gib * GIB / known[0] if known else math.nan
    least = read if math.isfinite(read) else 0.0
    saved = max(0.0, step - least)
    tokens = max(case.mean(lambda b: b.output_tokens) - 1, 1.0)
    effects = within(case, {"tpot": saved, "e2e": saved * tokens})
    reading = (
        f"reading the weights takes {amount(read)}" if math.isfinite(read) else "what reading the weights takes is not known"
    )
    return Hypothesis(
        name=NAME, change="CUDA graphs instead of eager mode", flags=("without --enforce-eager",),
        claim=f"a step takes {amount(step)} at least, {reading}: the rest is launches and what else does not shrink",
        effect=effects, predicted_by="nothing",
        costs=("start-up: compiling and capturing take up to minutes", "memory for the graphs, taken from KV blocks (0.4 to 1 GiB measured on an 8B model and a 30B MoE)"),
        confused_with="a slow GPU: eager steps take the same time on a faster one",
        conditions=("how much of a step is launches cannot be told from step times alone", "whoever enforced eager mode may have had a reason (memory, an unsupported model)", *versions.unknown(case.engine)),
        test=trial.plan(case, effects, "TPOT at equal batch, start-up seconds, KV blocks"),
    )  # fmt: skip
