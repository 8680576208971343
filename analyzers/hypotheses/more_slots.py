"""A higher max_num_seqs, where requests wait for a slot while KV blocks are free."""

import math
from dataclasses import replace
from typing import Final

from analyzers import versions
from analyzers.books import Books, cap_of
from analyzers.case import Case, Change, amount, by_books, by_twin
from analyzers.hypotheses import trial
from analyzers.model import Hypothesis
from analyzers.twin import ENDLESS, Setup

NAME: Final = "more_slots"
SINCE: Final = None
RELIEVES: Final = ("slots",)
TAKES: Final = ("kv_eviction",)
EFFORT: Final = 0
TOUCHES: Final = ("max_num_seqs", "max_cudagraph_capture_size")  # graphs are captured up to twice the sequences


def wanted(case: Case) -> tuple[float, float, int] | None:
    """The cap now, the most that waited, the cap that would hold all; None where slots are not what holds requests back."""
    cap = max((cap_of(e)[0] for e in case.window.engines if math.isfinite(cap_of(e)[0])), default=math.nan)
    if not math.isfinite(cap) or case.fault("slots", "e2e") <= 0:
        return None
    waits = [float(e.interval["waiting"].max()) for e in case.window.engines if len(e.interval.get("waiting", ()))]
    held = max(waits, default=cap)
    return cap, held, int(2 ** math.ceil(math.log2(cap + min(max(held, 1.0), 3 * cap))))


def changed(case: Case) -> Change | None:
    """The engine with the higher cap."""
    found = wanted(case)
    if found is None:
        return None

    def setup(now: Setup, _: Books) -> Setup:
        return replace(now, slots=min(ENDLESS, found[2]))

    return Change(setup)


def propose(case: Case) -> Hypothesis | None:
    """Where the cap holds requests back."""
    found, change = wanted(case), changed(case)
    if found is None or change is None:
        return None
    cap, held, more = found
    effects = by_twin(case, change)
    tpot = effects["tpot"].saves_s if effects else None
    slower = f", about {amount(-tpot)} here" if tpot is not None and tpot < 0 else ""
    used = [float(e.interval["kv_usage_ratio"].max()) for e in case.window.engines if len(e.interval.get("kv_usage_ratio", ()))]
    room = f" (blocks in use now: {100 * max(used):.0f} %)" if used and math.isfinite(max(used)) else ""
    return Hypothesis(
        name=NAME, change=f"max_num_seqs {cap:.0f} -> {more}", flags=(f"--max-num-seqs {more}",),
        claim=f"running stood at the cap of {cap:.0f} with up to {held:.0f} waiting and KV blocks free",
        effect=effects or by_books(case, "slots"), predicted_by="twin" if effects else "books",
        costs=(f"more sequences share a step: TPOT grows{slower}", f"KV blocks{room}: preemptions become possible, watch num_preemptions_total",
               "CUDA graphs for larger batches: memory and start-up time"),
        confused_with="a prefill backlog: there running is below the cap while requests wait",
        conditions=("the arrival rate stays as it is", *versions.unknown(case.engine)),
        test=trial.plan(case, effects or by_books(case, "slots"), "queue time, TPOT, preemptions"),
        undoes="slots",
    )  # fmt: skip
