"""Engines with a known fault, as their operator sees them, and the same engines with a change made: replayed step by step."""

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from analyzers.attribute import attribute
from analyzers.case import Case, case_of
from analyzers.hypotheses import module_of, recommended
from analyzers.model import Engine, Hypothesis
from analyzers.twin import Load, Setup

from ..analyzers.engines import DENSE, MOE, balancedness, stats_of, window_of  # noqa: TID252 the program has the name analyzers
from ..analyzers.replay import ENGINE, Replay, observed, poisson, replay  # noqa: TID252 as above

HEALTHY: Final = replace(ENGINE, blocks=20_000)
H100: Final[Mapping[str, Any]] = {
    "shape": DENSE,
    "device_name": "NVIDIA H100",
    "memory_gib": 79.6,
    "kv_dtype": "auto",
    "device": "cuda",
}
UNCACHED: Final = {**H100, "prefix_caching": False}
EP: Final[Mapping[str, Any]] = {
    "shape": MOE,
    "device_name": "NVIDIA H200",
    "tensor_parallel": 2,
    "expert_parallel": True,
    "eplb": False,
}


def bursts(rate: float, every_s: float, count: int, tokens: int) -> Load:
    """Short prompts as they come, and every few seconds some long ones at once."""
    short = poisson(60, rate, 500, 100)
    at = np.repeat(np.arange(3, 60, every_s), count) + np.tile(np.arange(count) * 0.001, len(np.arange(3, 60, every_s)))
    arrival = np.concatenate([short.arrival, at])
    order = np.argsort(arrival, kind="stable")
    lengths = [np.concatenate([x, np.full(len(at), y)])[order] for x, y in ((short.prompt, tokens), (short.output, 20))]
    return Load(arrival[order], *lengths, "bursts")


LOADS: Final[Mapping[str, Load]] = {
    "chat": poisson(60, 6, 600, 120),
    "mixed": poisson(60, 8, 600, 100, cv=0.5),
    "long": poisson(60, 4, 3000, 100),
    "bursts": bursts(6, 10, 3, 12_000),
    "prefixes": poisson(60, 3.5, 6000, 120, cv=0.05),
    "half": poisson(60, 2, 6000, 120, cv=0.05),
    "growing": poisson(80, 1.8, 60, 300, cv=0.5),  # short prompts, long answers: blocks run short while decoding
    "many": poisson(60, 20, 300, 200),
}


@functools.cache
def run(setup: Setup, load: str = "chat") -> Replay:
    """A replay of a load."""
    return replay(LOADS[load], setup)


def seen(setup: Setup, load: str = "chat", facts: Mapping[str, Any] | None = None, **more: Any) -> Engine:
    """The engine as scrapes and spans show it; `more` are options of `observed` and fields of Engine."""
    options = {name: more.pop(name) for name in ("frontend_s", "output_s", "log") if name in more}
    fields = {"version": "0.33.0", **more}
    return replace(observed(run(setup, load), spans=True, facts=facts or H100, **options), **fields)


def case(*engines: Engine, slo: Mapping[str, float] | None = None, given: Mapping[str, float] | None = None) -> Case:
    """Engines judged and ready for hypotheses."""
    window = window_of(*engines)
    return case_of(window, attribute(window, slo=slo), given, slo)


def of(name: str, found: Case) -> Hypothesis | None:
    """A hypothesis of a case; None where it does not apply."""
    made: Hypothesis | None = module_of(name).propose(found)
    return made


def names(found: Case, objective: str = "e2e") -> list[str]:
    """What is recommended, best first."""
    return [one.name for one in recommended(found, objective)]


def text(one: Hypothesis) -> str:
    """All that a hypothesis says."""
    return "\n".join((one.change, *one.flags, one.claim, *one.costs, one.confused_with, *one.conditions, one.test))


def saved(before: Replay, *after: Replay) -> dict[str, float]:
    """What a change truly saves: means of one engine less those of the engines after it."""

    def means(*runs: Replay) -> dict[str, float]:
        stage = {name: np.concatenate([r.stage(name) for r in runs]) for name in ("queue", "prefill", "decode")}
        tokens = sum(sum(len(x.tokens) - 1 for x in r.requests) for r in runs)
        return {
            "ttft": float((stage["queue"] + stage["prefill"]).mean()),
            "tpot": float(stage["decode"].sum() / tokens),
            "e2e": float((stage["queue"] + stage["prefill"] + stage["decode"]).mean()),
        }

    now, then = means(before), means(*after)
    return {name: now[name] - then[name] for name in now}


def thrashing(**kv: float) -> Engine:
    """Half of the prompt tokens hit, three quarters could: KV events saw blocks stored again."""
    made = seen(replace(HEALTHY, hit=0.5), "prefixes", {**H100, "kv_blocks": 9400.0})
    again = 0.25 * made.total["prompt_tokens"] / 16
    found = {"stored_blocks": 3 * again, "distinct_blocks": 2 * 9400.0, "again_blocks": again, "elsewhere_blocks": 0.0}
    return replace(made, kv={**found, "block_size": 16.0, "gaps": 0.0, "salts": 0.0, **kv})


def two_engines(elsewhere: float = 0.22) -> tuple[Engine, Engine]:
    """Two engines of which each computes a share of its prompt tokens that the other has."""
    made = []
    for at in range(2):
        one = seen(replace(HEALTHY, hit=0.48), "half")
        blocks = one.total["prompt_tokens"] / 16
        kv = {"stored_blocks": 0.52 * blocks, "distinct_blocks": 0.4 * blocks, "again_blocks": 0.5 * elsewhere * blocks}
        kv |= {"elsewhere_blocks": elsewhere * blocks, "block_size": 16.0, "gaps": 0.0, "salts": 0.0}
        made.append(replace(one, engine=str(at), kv=kv))
    return made[0], made[1]


def moe(iota: float = 1.77, version: str = "0.33.0", lines: int = 5, **facts: Any) -> Engine:
    """A mixture of experts over two ranks, with balancedness lines of a busiest rank `iota` times the mean."""
    events = tuple(balancedness(1024, iota) for _ in range(lines))
    return seen(replace(HEALTHY, blocks=100_000), facts={**EP, **facts}, log=True, version=version, event=events)


def drafting(accepted: float = 0.0) -> Engine:
    """Four tokens drafted a step, of which a share is accepted; verifying costs what prompt tokens cost."""
    made = seen(replace(HEALTHY, c=ENGINE.c + 4 * ENGINE.b), "many", {**H100, "speculative": True})
    steps = made.total["itl_n"]
    return replace(
        made, total={**made.total, "draft_n": steps, "draft_tokens": 4 * steps, "accepted_tokens": 4 * accepted * steps}
    )


def media(hit: float) -> Engine:
    """A server that decodes media, with a hit ratio of their cache."""
    return seen(HEALTHY, frontend_s=0.6, stat=stats_of(running=np.full(6, 5.0), mm_hit_ratio=hit))


def dealt(load: Load, ways: int) -> list[Load]:
    """A load dealt out in turn."""
    return [Load(load.arrival[k::ways], load.prompt[k::ways], load.output[k::ways], load.how) for k in range(ways)]
