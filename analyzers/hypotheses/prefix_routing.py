"""Routing by prefix, where data-parallel engines hold the same prefixes in caches of their own."""

from typing import Final

from analyzers.case import Case, by_books
from analyzers.model import Hypothesis

NAME: Final = "prefix_routing"
SINCE: Final = None


def propose(case: Case) -> Hypothesis | None:
    """Where prefixes that another engine holds are computed again."""
    spread = sum(e.kv.get("elsewhere_blocks", 0.0) for e in case.window.engines)
    if len(case.window.engines) < 2 or "prefix_cache_miss" not in case.limiting() or not spread:
        return None
    rates = ", ".join(f"{b.hits.now:.2f}" for b in case.accounts)
    best = max(b.hits.shared for b in case.accounts)
    return Hypothesis(
        name=NAME, change="requests with the same prefix go to the same engine", flags=("a prefix-aware router in front (session affinity)",),
        claim=f"hit rates of the engines are {rates}; with each prefix on one engine {best:.2f}",
        effect=by_books(case, "prefix_cache_miss", sure=0.25), predicted_by="books",
        costs=("balance: popular prefixes make hot engines", "a router that knows prefixes"),
        confused_with="too little KV memory: each engine evicts because it also holds the others' prefixes",
        conditions=("what was stored again is taken as a cost of the spread",),
        test="the same load for at least 60 s before and after; compare hit rate per engine, prefill time and running per engine",
        undoes="prefix_cache_miss",
    )  # fmt: skip
