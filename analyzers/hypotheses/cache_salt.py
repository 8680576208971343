"""A wider cache salt: one for each group that trusts each other, not one for each request or user.

Requests with different salts never share a prefix, even where their prompts are the same.
"""

from typing import Final

from analyzers.case import Case, amount, by_twin, within
from analyzers.hypotheses import trial
from analyzers.hypotheses.pool import MOST_HITS, hitting
from analyzers.model import TARGETS, Hypothesis

NAME: Final = "cache_salt"
SINCE: Final = None
RELIEVES: Final = ("prefix_cache_miss",)
TAKES: Final = ()
EFFORT: Final = 1  # isolation is given up
TOUCHES: Final = ()


def propose(case: Case) -> Hypothesis | None:
    """Where salts were seen, or nothing hits although prompts are long and the cache is on."""
    salts = max((e.kv.get("salts", 0.0) for e in case.window.engines), default=0.0)
    unseen = any(b.hits.refusal is not None and b.hits.how == "hits near 0 with long prompts" for b in case.accounts)
    if not salts and not unseen:
        return None
    bounds = most(case)
    effects = within(case, bounds)
    hit = case.work.hit_ratio or 0.0
    seen = (
        f"{salts:.0f} cache salts were seen"
        if salts
        else "prompts are long, the cache is on and nothing hits: salts, or prompts that share nothing"
    )
    return Hypothesis(
        name=NAME, change="one cache salt for each group of users that may share (or none)", flags=(),
        claim=f"{seen}; {100 * hit:.0f} % of prompt tokens hit, and computing the others costs at most {amount(bounds['e2e'] or None)} of E2E",
        effect=effects, predicted_by="nothing",
        costs=("isolation: inside a group one user can tell by timing what another has sent",),
        confused_with="a prefill backlog, whose prompts share nothing: fewer salts then change nothing",
        conditions=("what salts keep apart is not known from hit counters: hash prompts without salts, or run with one salt",
                    *(() if salts else ("whether requests carry salts is seen in KV events only",))),
        test=trial.plan(case, effects, "hit rate, prefill time, TPOT"),
        undoes="prefix_cache_miss",
    )  # fmt: skip


def most(case: Case) -> dict[str, float]:
    """The most that sharing everything could save: what misses may hold, or the twin's answer, in which batches shrink, too."""
    shared = by_twin(case, hitting(MOST_HITS))
    ends = {name: (shared[name].range_s or (0.0, 0.0))[1] if shared else 0.0 for name in TARGETS}
    return {name: max(case.bound("prefix_cache_miss", name), ends[name]) for name in TARGETS}
