"""Level `state`: a few stats lines or one scrape. A link may be named from gauges and rates; seconds stay unknown."""

import math
from typing import Final

import numpy as np

from analyzers.links import CHAIN, moe_imbalance
from analyzers.model import TARGETS, Engine, Part, Refusal, Sign, Target

NAMED_FROM: Final = 0.5  # strength of a sign from which its link is named
STEADY: Final = 0.25  # coefficient of variation of generation throughput up to which it is called steady
MEASURE: Final = "two scrapes of /metrics around the trouble (or a recording of it): request seconds are in no log line"


def targets(engine: Engine) -> dict[str, Target]:
    """The targets of one engine without request seconds."""
    engine = _with_scrape(engine)
    signs = {module.LINK.name: module.sign(engine) for module in CHAIN if hasattr(module, "sign")}
    found = {name: sign for name, sign in signs.items() if sign is not None}
    best = max(found, key=lambda name: found[name].strength, default=None)
    named = best if best and found[best].strength >= NAMED_FROM else None
    return {name: _target(name, engine, found, named) for name in TARGETS}


def _with_scrape(engine: Engine) -> Engine:
    """A single scrape's gauges in the place of a stats line."""
    gauge = engine.facts.get("last_gauges")
    if len(engine.stat.get("running", ())) or not gauge:
        return engine
    from dataclasses import replace  # noqa: PLC0415 only here

    names = (
        "ts",
        "running",
        "waiting",
        "deferred",
        "kv_usage_ratio",
        "prompt_tokens_per_s",
        "generation_tokens_per_s",
        "prefix_hit_ratio",
    )
    return replace(engine, stat={name: np.array([gauge.get(name, math.nan)]) for name in names})


def _target(name: str, engine: Engine, signs: dict[str, Sign], named: str | None) -> Target:
    limiting = named if named and _concerns(name, named) else None
    moe = moe_imbalance.refusal(engine)
    refusals = [*([moe] if moe else []), Refusal("seconds of any link", MEASURE)]
    refusals += [Refusal(f"more about {n}", s.measure) for n, s in signs.items() if s.measure]
    if not len(engine.stat.get("running", ())):
        refusals.append(
            Refusal("the state of the engine: no stats line and no gauge was found", "the server's log, or GET /metrics")
        )
    says = describe(engine)
    verdict = "limited" if limiting else "healthy" if says and not moe and _calm(engine) else "undetermined"
    parts = tuple(
        Part(
            link=module.LINK.name,
            seconds=None,
            cells={},
            status="limiting" if module.LINK.name == limiting else "unknown",
            evidence=(signs[module.LINK.name].says,) if module.LINK.name in signs else (),
            conditions=("no request seconds at this level",),
            fact="no seconds",
        )
        for module in CHAIN
    )
    return Target(
        name,
        None,
        None,
        None,
        dict.fromkeys(TARGETS[name]),
        parts,
        limiting,
        None,
        verdict,
        tuple(refusals),
        tuple(says),
        "decode_batch" if verdict == "healthy" else None,
    )


def _concerns(name: str, link: str) -> bool:
    """A queue does not make TPOT worse; a prefill that starves decode does not show in TTFT of this state."""
    return not (name == "tpot" and link in {"slots", "kv_eviction"})


def _calm(engine: Engine) -> bool:
    """Nothing waits, blocks are free and tokens come steadily, over at least three stats lines."""
    stat = engine.stat
    generated = np.nan_to_num(stat["generation_tokens_per_s"])
    if len(generated) < 3 or not generated.mean() > 0:
        return False
    usage = np.nan_to_num(stat["kv_usage_ratio"])
    return bool(np.all(np.nan_to_num(stat["waiting"]) == 0) and usage.max() < 0.9 and generated.std() < STEADY * generated.mean())


def describe(engine: Engine) -> list[str]:
    """The state in words, from the stats lines."""
    stat = engine.stat
    n = len(stat.get("running", ()))
    if not n:
        return []
    running, waiting, usage, generated = (
        np.nan_to_num(stat[c]) for c in ("running", "waiting", "kv_usage_ratio", "generation_tokens_per_s")
    )
    said = [
        f"{n} stats lines: running {_span(running)}, waiting {_span(waiting)}, KV use {_span(100 * usage, 1)} %, {_span(generated, 1)} generated tokens/s"
    ]
    if _calm(engine):
        per = float((running / np.maximum(generated, 1e-9)).mean())
        alone = "one request decodes" if running.max() == 1 else f"{running.mean():.0f} requests decode"
        said.append(
            f"nothing is stuck: {alone} steadily at {generated.mean():.0f} tokens/s ({1000 * per:.1f} ms a token each); latency is output length, so limit max_tokens or the thinking budget"
        )
        if usage[-1] > usage[0]:
            said.append("KV use rises with the sequences' own growth")
    elif waiting.max() == 0 and usage.max() < 0.9:
        said.append("no pressure is seen: nothing waits and KV blocks are free")
    hits, prompts = stat["prefix_hit_ratio"], np.nan_to_num(stat["prompt_tokens_per_s"])
    if n >= 3 and np.isfinite(hits).all() and hits[-1] > hits[0] and float((prompts[1:] == 0).mean()) > 0.8 and waiting.max() > 0:
        said.append(
            f"the prefix hit rate rises from {100 * hits[0]:.1f} to {100 * hits[-1]:.1f} % while no prompt tokens are credited: in this version resumed (preempted) "
            "requests count as hits, so it says nothing of reuse; preemption is inferred from it"
        )
    return said


def _span(values: np.ndarray, digits: int = 0) -> str:
    low, high = float(values.min()), float(values.max())
    return f"{low:.{digits}f}" if low == high else f"{low:.{digits}f} to {high:.{digits}f}"
