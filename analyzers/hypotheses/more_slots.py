"""A higher max_num_seqs, where requests wait for a slot while KV blocks are free."""

import math
from dataclasses import replace
from typing import Final

from analyzers.books import cap_of
from analyzers.case import Case, by_books, by_twin
from analyzers.model import Hypothesis
from analyzers.twin import ENDLESS

NAME: Final = "more_slots"
SINCE: Final = None


def propose(case: Case) -> Hypothesis | None:
    """Where the cap holds requests back."""
    if "slots" not in case.limiting():
        return None
    cap = max((cap_of(e)[0] for e in case.window.engines if math.isfinite(cap_of(e)[0])), default=math.nan)
    if not math.isfinite(cap):
        return None
    held = max(
        (float(e.interval["waiting"].max()) for e in case.window.engines if len(e.interval.get("waiting", ()))), default=cap
    )
    wanted = int(2 ** math.ceil(math.log2(cap + min(held, 3 * cap))))
    effects = by_twin(case, lambda setup, _: replace(setup, slots=min(ENDLESS, wanted)))
    return Hypothesis(
        name=NAME, change=f"max_num_seqs {cap:.0f} -> {wanted}", flags=(f"--max-num-seqs {wanted}",),
        claim=f"running stood at the cap of {cap:.0f} with up to {held:.0f} waiting and KV blocks free",
        effect=effects or by_books(case, "slots"), predicted_by="twin" if effects else "books",
        costs=("more sequences share a step: TPOT grows", "KV blocks: preemptions become possible, watch num_preemptions_total"),
        confused_with="a prefill backlog: there running is below the cap while requests wait",
        conditions=("the arrival rate stays as it is",),
        test="the same load for at least 60 s before and after; compare queue time, TPOT and preemptions",
        undoes="slots",
    )  # fmt: skip
