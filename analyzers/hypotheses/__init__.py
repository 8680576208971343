"""Deployment changes as hypotheses: one module each, listed in HYPOTHESES.

A module has a docstring (first line: the change), NAME, SINCE (vLLM version of its flags, or None) and `propose(case)`: a
Hypothesis where it applies to what was observed, else None. Nothing is proposed that takes from the limiting link.
"""

import math
from types import ModuleType
from typing import Final

from analyzers.case import Case, case_of
from analyzers.hypotheses import (
    api_servers,
    kv_memory,
    more_slots,
    prefix_routing,
)
from analyzers.model import Attribution, Hypothesis, Window

HYPOTHESES: Final[tuple[ModuleType, ...]] = (api_servers, more_slots, kv_memory, prefix_routing)
WORTH: Final = 0.05  # share of the objective that a change must save to be recommended


def proposed(case: Case) -> list[Hypothesis]:
    """Every hypothesis that applies."""
    return [found for module in HYPOTHESES if (found := module.propose(case)) is not None]


def ranked(window: Window, attribution: Attribution, objective: str = "e2e") -> list[Hypothesis]:
    """Hypotheses by predicted gain on an objective (ttft, tpot, e2e); those that cannot be predicted last; none on a healthy window."""
    if not window.engines or all(t is None or t.verdict != "limited" for t in attribution.targets.values()):
        return []
    case = case_of(window, attribution)
    found = []
    for hypothesis in proposed(case):
        gain = hypothesis.effect[objective].saves_s
        if gain is not None and gain < WORTH * (case.measured(objective) or math.inf):
            continue
        found.append((gain is None, -(gain or 0.0), hypothesis))
    return [hypothesis for _, _, hypothesis in sorted(found, key=lambda item: item[:2])]
