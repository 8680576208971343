"""EPLB: experts are moved between ranks until each rank gets as many tokens.

Moves cost: in 0.33 a first move of 48 layers took 11 to 17 s, with stalls of 0.14 to 0.3 s of all running answers and slower
steps meanwhile; in 0.24 moves every 300 steps made everything slower than the imbalance did.
"""

import math
from typing import Final

from analyzers import versions
from analyzers.case import Case, amount, by_books, within
from analyzers.hypotheses import trial
from analyzers.links.moe_imbalance import BALANCED, FIRST_RIGHT, MEASURE, MIN_LINES, iota, ranks, right_axis
from analyzers.model import TARGETS, Hypothesis
from analyzers.steps import number

NAME: Final = "eplb"
SINCE: Final = versions.first_of("enable-eplb")
RELIEVES: Final = ("moe_imbalance",)
TAKES: Final = ()
EFFORT: Final = 0
TOUCHES: Final = ("enable_eplb", "eplb_config", "eplb_step_interval")
EVERY: Final = 3000  # vLLM's default; every 300 steps was worse than the imbalance (TRUTH of the 0.24 captures)
SURE: Final = 0.4
MOVES_S: Final = 20.0


def propose(case: Case) -> Hypothesis | None:
    """Where experts are spread over ranks, not balanced (or not known to be), and nothing moves them."""
    engine = case.engine
    interval = number((case.args.get("eplb_config") or {}).get("step_interval"), EVERY) if case.fact("eplb") else math.inf
    if not case.fact("expert_parallel") or ranks(engine) < 2 or interval <= EVERY:
        return None
    busiest, count = iota(engine) if right_axis(engine) else (math.nan, 0)
    known = count >= MIN_LINES
    if known and busiest < BALANCED:
        return None
    effects = (
        by_books(case, "moe_imbalance", sure=SURE)
        if known
        else within(case, {name: case.bound("moe_imbalance", name) for name in TARGETS})
    )
    version = versions.version_of(engine)
    config = (
        f"--eplb-config '{{\"step_interval\": {EVERY}}}'"
        if versions.has(version, "eplb-config")
        else f"--eplb-step-interval {EVERY}"
    )
    steps = case.measured("tpot") or math.nan
    every = f"about every {EVERY * steps:.0f} s" if math.isfinite(steps) else f"every {EVERY} steps"
    claim = (
        f"the busiest of {ranks(engine):.0f} ranks gets {busiest:.2f} times the mean of tokens; at balance a request saves about {amount(effects['e2e'].saves_s)}"
        if known
        else f"experts are spread over {ranks(engine):.0f} ranks and how evenly they are used is not known"
    )
    said = () if known else (_why(version, lines=any(e.kind == "eplb" for e in engine.event)),)
    return Hypothesis(
        name=NAME, change=f"experts are rearranged every {EVERY} steps ({every})", flags=("--enable-eplb", config),
        claim=claim, effect=effects, predicted_by="books" if known else "nothing",
        costs=(f"each move: stalls of 0.1 to 0.3 s of all running answers and slower steps for up to {MOVES_S:.0f} s (measured in 0.33, 48 layers)",
               "memory for the experts that move"),
        confused_with="a larger batch or longer prompts: imbalance makes each step longer at the same batch",
        conditions=("the gain comes once a move is done, and the traffic must stay as skewed as it was", *said,
                    "never rearrange every few hundred steps: moves then cost more than they give (measured in 0.24)", *versions.unknown(engine)),
        test=trial.plan(case, effects, f"TPOT and prefill steps at equal batch from {MOVES_S:.0f} s after the first move, stalls, balancedness"),
        undoes="moe_imbalance",
    )  # fmt: skip


def _why(version: versions.Version, *, lines: bool) -> str:
    if version < FIRST_RIGHT:
        also = (
            "its balancedness lines are over another axis and measure nothing"
            if lines
            else "its balancedness lines would be over another axis"
        )
        return f"vLLM {versions.spelled(version)}: {also}; measure with {MEASURE}"
    return f"no balancedness of steps with at least 512 tokens was logged; measure with {MEASURE}"
