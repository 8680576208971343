"""Prefix caching on where it is off; off where nothing ever hits.

On: what had been computed for another request is not computed again. Off saves hashing and lookups on the CPU, little else.
"""

from typing import Final

from analyzers import versions
from analyzers.case import UNPREDICTED, Case, amount, by_twin, within
from analyzers.hypotheses import trial
from analyzers.hypotheses.pool import MOST_HITS, hitting
from analyzers.model import TARGETS, Effect, Hypothesis

NAME: Final = "prefix_caching"
SINCE: Final = None
RELIEVES: Final = ("prefix_cache_miss", "prefill_backlog")
TAKES: Final = ()
EFFORT: Final = 0
TOUCHES: Final = ("enable_prefix_caching",)
TENTH: Final = 0.1  # share of prompt tokens by which the gain is told
NONE: Final = 0.002  # hit ratio below which nothing hits


def propose(case: Case) -> Hypothesis | None:
    """On where it is off; off where no hit was seen and prefixes of all requests were there to be hit."""
    if case.fact("prefix_caching") is False:
        return _on(case)
    certain = bool(case.accounts) and all(b.hits.missed_known and b.hits.evicted_known for b in case.accounts)
    if case.fact("prefix_caching") and certain and (case.work.hit_ratio or 0.0) < NONE and not _reused(case):
        return _off(case)
    return None


def _reused(case: Case) -> bool:
    return any(max(b.hits.endless, b.hits.shared) > NONE for b in case.accounts)


def _on(case: Case) -> Hypothesis:
    tenth, most = by_twin(case, hitting(TENTH)), by_twin(case, hitting(MOST_HITS))
    effects = (
        within(case, {name: most[name].saves_s for name in TARGETS})
        if most
        else within(case, {"ttft": case.measured("ttft"), "e2e": case.measured("e2e")})
    )
    each = (
        f"each tenth of prompt tokens that hits saves {amount(tenth['ttft'].saves_s)} of TTFT and {amount(tenth['e2e'].saves_s)} of E2E"
        if tenth
        else "what a hit saves cannot be told without a twin"
    )
    return Hypothesis(
        name=NAME, change="prefix caching on", flags=("--enable-prefix-caching",),
        claim=f"every prompt is computed whole; {each}",
        effect=effects, predicted_by="nothing",
        costs=("hashing of prompts on the CPU", "who shares a prefix with somebody else can be told by timing: a cache salt for each tenant prevents it"),
        confused_with="too small a token budget: prompts that need not be computed need none",
        conditions=("how much of the prompts is shared is not known while the cache is off: hash them, or turn it on for a day",
                    "some models and features turn it off themselves", *versions.unknown(case.engine)),
        test=trial.plan(case, effects, "hit rate, prefill time, TPOT"),
        undoes="prefix_cache_miss",
    )  # fmt: skip


def _off(case: Case) -> Hypothesis:
    effects = {
        name: Effect(0.0, (-0.02 * (case.measured(name) or 0.0), 0.02 * (case.measured(name) or 0.0))) for name in UNPREDICTED
    }
    return Hypothesis(
        name=NAME, change="prefix caching off", flags=("--no-enable-prefix-caching",),
        claim="no prompt token hit the cache, and none had been computed before",
        effect=effects, predicted_by="arithmetic",
        costs=("requests that share a prefix later are computed whole", "no KV events: evictions cannot be observed any more"),
        confused_with="evicted or salted prefixes: there the cache is the remedy, not the cost",
        conditions=("only hashing and lookups on the CPU are saved: below what can be measured here", *versions.unknown(case.engine)),
        test=trial.plan(case, UNPREDICTED, "process CPU, TTFT"),
    )  # fmt: skip
