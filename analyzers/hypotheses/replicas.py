"""Another engine for the same requests: data parallelism, or a second server behind a router.

Each engine gets half of the requests: half the batch, half the prompts to wait behind, twice the slots and blocks. Each has a
prefix cache of its own, so prefixes that both are asked for are computed twice.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from analyzers import versions
from analyzers.books import Books
from analyzers.case import Case, Change, between, by_twin
from analyzers.hypotheses import trial
from analyzers.model import Hypothesis
from analyzers.steps import number
from analyzers.twin import Setup

NAME: Final = "replicas"
SINCE: Final = versions.first_of("data-parallel-size")
RELIEVES: Final = ("slots", "kv_eviction", "prefill_backlog", "decode_batch")
TAKES: Final = ("prefix_cache_miss",)
EFFORT: Final = 2  # more GPUs
TOUCHES: Final = ("data_parallel_size", "data_parallel_size_local", "api_server_count", "engines")
ENGINES: Final = 2


def spread(hit: float, engines: int) -> float:
    """The least hit ratio when requests are dealt out at random: each engine misses all that one missed."""
    return max(0.0, 1 - engines * (1 - hit))


def dealt(hits: Callable[[float], float]) -> Change:
    """Two engines for each one; `hits` gives the hit ratio of each."""

    def setup(now: Setup, _: Books) -> Setup:
        hit = hits(now.hit)
        return replace(now, hit=hit, hit_shared=max(hit, now.hit_shared), hit_endless=max(hit, now.hit_endless))

    return Change(setup, ENGINES)


def changed(case: Case) -> Change | None:
    """Twice the engines, requests with the same prefix kept together as far as half of the lost hits."""
    del case
    return dealt(lambda hit: (hit + spread(hit, ENGINES)) / 2)


def propose(case: Case) -> Hypothesis | None:
    """Wherever a twin holds: the effect says whether it is worth GPUs."""
    routed, random = by_twin(case, dealt(lambda hit: hit)), by_twin(case, dealt(lambda hit: spread(hit, ENGINES)))
    effects = between(random, routed)
    if effects is None or case.split():
        return None
    now = int(number(case.fact("data_parallel"), 1.0))
    hit = case.work.hit_ratio or 0.0
    lost = (
        f"{100 * hit:.0f} % of prompt tokens hit now, {100 * spread(hit, ENGINES):.0f} % at least when dealt out at random"
        if hit > 0.01
        else "hardly any prompt token hits, so caches of their own lose nothing"
    )
    return Hypothesis(
        name=NAME, change=f"{now} -> {ENGINES * now} data-parallel engines", flags=(f"--data-parallel-size {ENGINES * now}",),
        claim=f"each engine serves half of the requests, with its own slots, blocks and token budget; {lost}",
        effect=effects, predicted_by="twin, from random to prefix-aware routing",
        costs=("GPUs: as many again", "prefix hits, unless requests with the same prefix go to the same engine",
               "API servers and coordination: by default one API server per engine, and with it no stats lines"),
        confused_with="tensor parallelism: that makes each step faster, this makes each line shorter",
        conditions=("requests are dealt out evenly; a router that does not look at load sends bursts to one engine",
                    *(("the ranks of an MoE step together: an idle rank runs dummy steps",) if (case.fact("shape") or {}).get("experts") else ()), *versions.unknown(case.engine)),
        test=trial.plan(case, effects, "queue time, TPOT, hit rate and running per engine"),
    )  # fmt: skip
