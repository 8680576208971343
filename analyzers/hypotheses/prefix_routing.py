"""Routing by prefix, where several engines hold the same prefixes in caches of their own."""

import math
from typing import Final

from analyzers.case import Case, by_books, within
from analyzers.hits import GIVE_KV_EVENTS
from analyzers.hypotheses import trial
from analyzers.model import TARGETS, Hypothesis

NAME: Final = "prefix_routing"
SINCE: Final = None
RELIEVES: Final = ("prefix_cache_miss",)
TAKES: Final = ()
EFFORT: Final = 0
TOUCHES: Final = ()
SURE: Final = 0.25
HITS: Final = (0.05, 0.95)  # hit ratios between which prefixes are shared and some are missed


def propose(case: Case) -> Hypothesis | None:
    """Where prefixes that another engine holds are computed again, or that cannot be ruled out."""
    if len(case.accounts) < 2 or case.split():
        return None
    spread = sum(b.engine.kv.get("elsewhere_blocks", 0.0) for b in case.accounts)
    rates = [b.hits.now for b in case.accounts if math.isfinite(b.hits.now)]
    known = all(b.engine.kv.get("stored_blocks") for b in case.accounts)
    if (known and not spread) or not any(HITS[0] < rate < HITS[1] for rate in rates):
        return None
    effects = (
        by_books(case, "prefix_cache_miss", sure=SURE)
        if known
        else within(case, {name: case.bound("prefix_cache_miss", name) for name in TARGETS})
    )
    said, best = ", ".join(f"{rate:.2f}" for rate in rates), max(b.hits.shared for b in case.accounts)
    use = [float(b.engine.interval["running"].mean()) for b in case.accounts if len(b.engine.interval.get("running", ()))]
    hot = f"; running on average {', '.join(f'{x:.1f}' for x in use)} now" if use and all(map(math.isfinite, use)) else ""
    return Hypothesis(
        name=NAME, change="requests with the same prefix go to the same engine", flags=("a prefix-aware router in front (session affinity)",),
        claim=f"hit rates of the engines are {said}" + (f"; with each prefix on one engine {best:.2f}" if known else "; each may hold what the others hold"),
        effect=effects, predicted_by="books" if known else "nothing",
        costs=(f"balance: popular prefixes make hot engines{hot}", "a router that knows prefixes"),
        confused_with="too little KV memory: each engine evicts because it also holds the others' prefixes",
        conditions=("what was stored again is taken as a cost of the spread",) if known
        else (f"whether engines hold the same prefixes is not in hit counters: {GIVE_KV_EVENTS}",),
        test=trial.plan(case, effects, "hit rate per engine, prefill time, running per engine"),
        undoes="prefix_cache_miss",
    )  # fmt: skip
