"""Level `state`: a few stats lines or one scrape. A link may be named from gauges and rates; seconds stay unknown."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from analyzers import client
from analyzers.links import CHAIN, moe_imbalance, speculation
from analyzers.model import TARGETS, Array, Engine, Part, Refusal, Sign, Stage, Target

NAMED_FROM: Final = 0.5  # strength of a sign from which its link is named
STEADY: Final = 0.25  # coefficient of variation of generation throughput up to which it is called steady
MANY: Final = 600.0  # generated tokens/s that no single sequence reaches
GAP: Final = 6  # times the usual distance of stats lines from which a silence is worth a word
_GAUGES: Final = ("running", "waiting", "deferred", "kv_usage_ratio")
_RATES: Final = ("prompt_tokens_per_s", "generation_tokens_per_s", "prefix_hit_ratio")
WHOLE: Final = "all of /metrics: the E2E histogram (vllm:e2e_request_latency_seconds) is not among the series that were given"
FINISHED: Final = "a window in which requests finish: in this one none did"
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
    """Gauges of the only scrapes in the place of stats lines: of one, or of texts without a time before and after."""
    gauge = engine.facts.get("last_gauges")
    if len(engine.stat.get("running", ())) or not gauge:
        return engine
    row = engine.interval
    stat = {name: np.array([gauge.get(name, math.nan)]) for name in ("ts", *_GAUGES, *_RATES)}
    if len(row.get("running_before", ())) and not np.any(row["timed"]):
        both = {name: np.append(row[f"{name}_before"][:1], row[name]) for name in _GAUGES}
        stat = {name: both.get(name, np.full(len(both["running"]), math.nan)) for name in stat}
    return replace(engine, stat=stat, facts={**engine.facts, "stat_of": "scrape"})


def _target(name: str, engine: Engine, signs: dict[str, Sign], named: str | None) -> Target:
    limiting = named if named and _concerns(name, named) else None
    moe = moe_imbalance.refusal(engine)
    seconds = Refusal("seconds of any link", _needed(engine))
    refusals = [*([moe] if moe else []), *client.refusals(engine), seconds, *_held(engine, named)]
    refusals += [Refusal(f"more about {n}", s.measure) for n, s in signs.items() if s.measure]
    if not len(engine.stat.get("running", ())):
        refusals.append(
            Refusal("the state of the engine: no stats line and no gauge was found", "the server's log, or GET /metrics")
        )
    says = describe(engine, signs)
    verdict = "limited" if limiting else "healthy" if says and not moe and not named and _calm(engine) else "undetermined"
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
        _measured(name, engine),
        parts,
        limiting,
        None,
        verdict,
        tuple(refusals),
        tuple(says),
        "decode_batch" if verdict == "healthy" else None,
    )


def _needed(engine: Engine) -> str:
    """What would give the links their seconds."""
    if not any(engine.total.get(f"{key}_n") for key in ("ttft", "queue", "prefill", "decode")):
        return MEASURE
    return FINISHED if "e2e_s" in engine.total else WHOLE


def _measured(name: str, engine: Engine) -> dict[Stage, float | None]:
    """The stages whose means were measured, although without the E2E of the same requests no link's seconds can be told."""
    if name == "tpot":
        return dict.fromkeys(TARGETS[name])  # of tokens, and how many each request had is not known with it
    means = {key: _mean(engine.total, key) for key in ("ttft", "queue", "prefill", "decode")}
    found = {Stage.QUEUE: means["queue"], Stage.PREFILL: means["prefill"], Stage.DECODE: means["decode"]}
    if None not in (means["ttft"], means["queue"], means["prefill"]):
        rest = (means["ttft"] or 0.0) - (means["queue"] or 0.0) - (means["prefill"] or 0.0)
        found[Stage.FRONTEND] = rest if rest >= 0 else None  # of other requests, where it is less
    return {stage: found.get(stage) for stage in TARGETS[name]}


def _mean(total: Mapping[str, float], key: str) -> float | None:
    count = total.get(f"{key}_n", 0.0)
    return total[f"{key}_s"] / count if count and f"{key}_s" in total else None


def _concerns(name: str, link: str) -> bool:
    """What happens before the first token does not make TPOT worse."""
    return not (name == "tpot" and link in {"slots", "kv_eviction", "prefix_cache_miss", "frontend"})


def _held(engine: Engine, named: str | None) -> list[Refusal]:
    """Waiting that neither the cap nor blocks in use explain, as neither figure is known."""
    stat = engine.stat
    if named in {"slots", "prefill_backlog", "kv_eviction"} or not len(stat.get("waiting", ())):
        return []
    at = (np.nan_to_num(stat["waiting"]) > 0) & (np.nan_to_num(stat["kv_usage_ratio"], nan=1.0) < 0.95)
    missing = [
        name
        for name, key in (("--max-num-seqs", "max_num_seqs"), ("the KV cache size in tokens", "kv_blocks"))
        if not engine.facts.get(key)
    ]
    if not at.any() or not missing:
        return []
    waiting, running, usage = (stat[name][at] for name in ("waiting", "running", "kv_usage_ratio"))
    return [
        Refusal(
            f"why {_span(waiting)} wait with {_span(running)} running and KV use {_span(100 * usage, 1)} %: the next prompt does not fit, or a limit stops it",
            f"{' and '.join(missing)} (the start of the log, or cache_config_info)",
        )
    ]


def _calm(engine: Engine) -> bool:
    """Nothing waits, blocks are free and tokens come steadily, over at least three stats lines."""
    stat = engine.stat
    generated = np.nan_to_num(stat.get("generation_tokens_per_s", np.zeros(0)))
    if len(generated) < 3 or not generated.mean() > 0:
        return False
    usage = np.nan_to_num(stat["kv_usage_ratio"])
    return bool(np.all(np.nan_to_num(stat["waiting"]) == 0) and usage.max() < 0.9 and generated.std() < STEADY * generated.mean())


def describe(engine: Engine, signs: Mapping[str, Sign] | None = None) -> list[str]:
    """The state in words, from the stats lines and from what clients say."""
    stat = engine.stat
    n = len(stat.get("running", ()))
    if not n:
        return client.says(engine)
    waiting, usage = (np.nan_to_num(stat[c]) for c in ("waiting", "kv_usage_ratio"))
    said = [_summary(engine)]
    if _calm(engine):
        said += _steady(engine)
    elif waiting.max() == 0 and usage.max() < 0.9 and max((s.strength for s in (signs or {}).values()), default=0.0) < NAMED_FROM:
        said.append("no pressure is seen: nothing waits and KV blocks are free")
    return [*said, *_groups(engine), *_silence(engine), *_resumed(engine), *_files(engine), *client.says(engine)]


def _summary(engine: Engine) -> str:
    stat = engine.stat
    n = len(stat["running"])
    running, waiting, usage = (np.nan_to_num(stat[c]) for c in ("running", "waiting", "kv_usage_ratio"))
    generated = stat["generation_tokens_per_s"]
    rate = f", {_span(np.nan_to_num(generated), 1)} generated tokens/s" if np.isfinite(generated).any() else ""
    lines = "scrape" if engine.facts.get("stat_of") == "scrape" else "stats line"
    return f"{n} {lines}{'' if n == 1 else 's'}: running {_span(running)}, waiting {_span(waiting)}, KV use {_span(100 * usage, 1)} %{rate}"


def _steady(engine: Engine) -> list[str]:
    running, usage, generated = (np.nan_to_num(engine.stat[c]) for c in ("running", "kv_usage_ratio", "generation_tokens_per_s"))
    per = float((running / np.maximum(generated, 1e-9)).mean())
    alone = "one request decodes" if running.max() == 1 else f"{running.mean():.0f} requests decode"
    said = [
        f"nothing is stuck: {alone} steadily at {generated.mean():.0f} tokens/s ({1000 * per:.1f} ms a token each); latency is output length, so limit max_tokens or the thinking budget"
    ]
    return said + (["KV use rises with the sequences' own growth"] if usage[-1] > usage[0] else [])


def _groups(engine: Engine) -> list[str]:
    """V0 counts sequence groups; and what a running request gets while no prompt is computed."""
    running, generated, prompts = (
        np.nan_to_num(engine.stat[c]) for c in ("running", "generation_tokens_per_s", "prompt_tokens_per_s")
    )
    per = generated[running > 0] / running[running > 0]
    if any(e.kind == "preempted_v0" for e in engine.event) and len(per) and per.min() > MANY:
        return [
            f"{_span(generated, 0)} tokens/s from {_span(running)} running: each group holds many sequences (n > 1), so the batch is not small"
        ]
    alone = (running > 0) & (prompts == 0) & (generated > 0) & (np.nan_to_num(engine.stat["waiting"]) > 0)
    steady = generated[alone] / running[alone]
    if len(steady) >= 3 and float(steady.std()) < 0.05 * float(steady.mean()):
        return [
            f"a running request gets {steady.mean():.1f} tokens/s, constant over {len(steady)} lines: the decode speed did not change"
        ]
    return []


def _silence(engine: Engine) -> list[str]:
    ts = np.sort(engine.stat["ts"][np.isfinite(engine.stat["ts"])])
    gaps = np.diff(ts)
    gaps = gaps[gaps > 0]
    if len(gaps) < 3 or gaps.max() < GAP * float(np.median(gaps)) or len(set(_names(engine))) > 1:
        return []
    return [
        f"no stats line for {gaps.max():.0f} s: an idle server prints none, a stalled one looks the same, or lines were left out"
    ]


def _resumed(engine: Engine) -> list[str]:
    stat = engine.stat
    hits, prompts, waiting = stat["prefix_hit_ratio"], np.nan_to_num(stat["prompt_tokens_per_s"]), np.nan_to_num(stat["waiting"])
    if (
        len(hits) >= 3
        and np.isfinite(hits).all()
        and hits[-1] > hits[0]
        and float((prompts[1:] == 0).mean()) > 0.8
        and waiting.max() > 0
    ):
        said = (
            f"the prefix hit rate rises from {100 * hits[0]:.1f} to {100 * hits[-1]:.1f} % while no prompt tokens are credited: in this version resumed (preempted) "
            "requests count as hits, so it says nothing of reuse; preemption is inferred from it"
        )
        return [said]
    return []


def _names(engine: Engine) -> list[str]:
    return [str(name) for name in engine.stat.get("file", ())]


def _files(engine: Engine) -> list[str]:
    """Two logs, one after the other: the second against the first."""
    names = _names(engine)
    found = list(dict.fromkeys(names))
    if len(found) != 2:
        return []
    masks = [np.array([name == one for name in names]) for one in found]
    pair = [
        replace(
            engine,
            stat={name: values[mask] for name, values in engine.stat.items()},
            event=tuple(e for e in engine.event if e.file == one),
        )
        for one, mask in zip(found, masks, strict=True)
    ]
    if not pair[0].stat["ts"].max() < pair[1].stat["ts"].min():
        return []
    return [f"{found[0]} -> {found[1]}: {text}" for text in against(*pair)]


def against(before: Engine, after: Engine) -> list[str]:
    """What differs between two states, in words: how many run, what each gets, drafts, the queue."""
    a, b = (_with_scrape(e) for e in (before, after))
    if not len(a.stat.get("running", ())) or not len(b.stat.get("running", ())):
        return []
    running, waiting, usage = ([np.nan_to_num(e.stat[c]) for e in (a, b)] for c in ("running", "waiting", "kv_usage_ratio"))
    generated = [np.nan_to_num(e.stat["generation_tokens_per_s"]) for e in (a, b)]
    first = (
        f"running {_span(running[0])} -> {_span(running[1])}, waiting {_span(waiting[0])} -> {_span(waiting[1])}, "
        f"KV use {_span(100 * usage[0], 1)} -> {_span(100 * usage[1], 1)} %, generated tokens/s {_span(generated[0], 1)} -> {_span(generated[1], 1)}"
    )
    said = [first]
    best = [float(np.max(g / np.maximum(r, 1.0))) for g, r in zip(generated, running, strict=True)]
    if min(best) > 0:
        said.append(
            f"a running request gets at best {best[0]:.1f} -> {best[1]:.1f} tokens/s: each is {'faster' if best[1] > best[0] else 'slower'}"
        )
    many = [float(np.median(r)) for r in running]
    full = [float(u.max()) for u in usage]
    if min(full) > 0.9 and max(many) >= 1.5 * min(many) and max(w.max() for w in waiting) > 0:
        fewer = "fewer" if many[1] < many[0] else "more"
        said.append(
            f"{many[1]:.0f} requests fit where {many[0]:.0f} did at the same KV use: KV capacity limits both, and the second holds {fewer} sequences at once"
        )
    drafts = [_drafts(e) for e in (a, b)]
    if any(drafts):
        said.append("drafts: " + " -> ".join(one or "none" for one in drafts))
    return said


def _drafts(engine: Engine) -> str | None:
    """What the log says of drafts, None where it has none."""
    sign = speculation.sign(engine)
    return sign.says if sign else None


def compared(before: Sequence[Engine], after: Sequence[Engine]) -> list[str]:
    """Two windows of one engine each; nothing to say of more."""
    return against(before[0], after[0]) if len(before) == len(after) == 1 else []


def _span(values: Array, digits: int = 0) -> str:
    low, high = float(values.min()), float(values.max())
    return f"{low:.{digits}f}" if low == high else f"{low:.{digits}f} to {high:.{digits}f}"
