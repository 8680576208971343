"""Prefix hits: what the cache gave, and what sharing or endless capacity would have given (attribution.md section 2.3)."""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from analyzers import steps
from analyzers.model import Engine, Refusal

LONG_PROMPT_TOKENS: Final = 1000
FEW_HITS: Final = 0.02
SPREAD: Final = 0.05  # share of stored blocks that another engine had, from which engines hold the same prefixes
GIVE_KV_EVENTS: Final = '--kv-events-config \'{"enable_kv_cache_events": true, "publisher": "zmq"}\' (KV events)'


@dataclass(frozen=True, slots=True)
class Hits:
    """Prefix hits as shares of prompt tokens: now, with sharing at this capacity, with endless capacity.

    `evicted_known`/`missed_known` False: that gap cannot be told; `refusal` then says why.
    """

    now: float = math.nan
    shared: float = math.nan
    endless: float = math.nan
    how: str = ""
    evicted_known: bool = True
    missed_known: bool = True
    refusal: Refusal | None = None

    @property
    def missed(self) -> float:
        """Avoidable share of computed prompt tokens that sharing would save."""
        return _share(self.now, self.shared)

    @property
    def evicted(self) -> float:
        """Avoidable share of computed prompt tokens that endless capacity would save."""
        return _share(self.now, self.endless)


def _share(now: float, then: float) -> float:
    return (then - now) / (1 - now) if math.isfinite(now) and math.isfinite(then) and now < 1 else 0.0


def hits_of(engine: Engine) -> Hits:  # noqa: PLR0911 one return a rule, in order
    """What the prefix cache could have saved, by the first rule that applies (attribution.md section 2.3)."""
    now = steps.hit_ratio(engine)
    if engine.facts.get("prefix_caching") is False:
        return Hits(now, now, now, "prefix caching is off", missed_known=False)
    if not math.isfinite(now):
        return Hits(
            how="no hit counters",
            evicted_known=False,
            missed_known=False,
            refusal=Refusal(
                "prefix-cache misses and evicted prefixes", "scrape /metrics of vLLM 0.9 or newer (prefix_cache_hits_total)"
            ),
        )
    known = _from_events(engine, now)
    if known:
        return known
    prompt = steps.lengths(engine)[0]
    if now < FEW_HITS and prompt > LONG_PROMPT_TOKENS:
        return Hits(
            now,
            now,
            now,
            "hits near 0 with long prompts",
            missed_known=False,
            evicted_known=_nothing_evicted(engine),
            refusal=Refusal("prefill backlog or unseen sharing (salt, routing)", f"give {GIVE_KV_EVENTS}"),
        )
    if _nothing_evicted(engine):
        return Hits(now, now, now, "no-eviction certificate: fewer tokens were written since the start than the pool holds")
    if steps.number(engine.facts.get("data_parallel"), 1.0) > 1:
        return Hits(
            now,
            now,
            now,
            "several engines with a cache each",
            missed_known=False,
            evicted_known=False,
            refusal=Refusal(
                f"whether prefixes were evicted or cached on another engine (hit rate of this engine {now:.2f}); routing by prefix may help",
                f"give {GIVE_KV_EVENTS}",
            ),
        )
    return _warm_up(engine, now)


def _nothing_evicted(engine: Engine) -> bool:
    pool = steps.number(engine.facts.get("kv_blocks")) * steps.number(engine.facts.get("block_size"))
    written = steps.number(engine.facts.get("written_tokens"))
    return bool(written < 0.97 * pool)  # False where either is unknown


def _from_events(engine: Engine, now: float) -> Hits | None:
    """Blocks stored again were evicted in between; blocks first stored here after another engine were not shared."""
    kv = engine.kv
    if not kv.get("stored_blocks"):
        return None
    if kv.get("gaps"):
        return None
    prompt = max(engine.total.get("prompt_tokens", 0.0), 1.0)
    size = kv.get("block_size") or 16.0
    again = max(0.0, kv["again_blocks"] * size - steps.recomputed_tokens(engine)[0])
    elsewhere = kv["elsewhere_blocks"] * size
    how = f"KV events: {kv['again_blocks']:.0f} blocks stored again, {kv['elsewhere_blocks']:.0f} already on another engine"
    if kv["elsewhere_blocks"] > SPREAD * kv["stored_blocks"]:
        # each engine evicts because it also holds the others' prefixes (0.33 captures: with routing by prefix nothing was evicted)
        elsewhere, again = elsewhere + again, 0.0
        how += "; the same prefixes lie on several engines: what was stored again is taken as a cost of that, too"
    left = max(0.0, 0.999 - now)  # generated tokens are stored, too: both together are no more than what was computed
    fits = min(1.0, left * prompt / max(elsewhere + again, 1e-9))
    shared, endless = now + fits * elsewhere / prompt, now + fits * again / prompt
    if kv.get("salts"):
        return Hits(
            now,
            shared,
            endless,
            how,
            missed_known=False,
            refusal=Refusal(
                f"what {kv['salts']:.0f} cache salts keep from being shared",
                "prompt block hashes without salts, or a run with one salt",
            ),
        )
    return Hits(now, shared, endless, how)


def _warm_up(engine: Engine, now: float) -> Hits:
    """Counters from an empty cache: until the pool is full every miss is cold, which counts the distinct prefixes."""
    row, t = engine.interval, engine.total
    pool = steps.number(engine.facts.get("kv_blocks")) * steps.number(engine.facts.get("block_size"))
    unknown = Hits(
        now,
        now,
        now,
        "evictions are possible and the recording does not start with an empty cache",
        evicted_known=False,
        refusal=Refusal(
            "how many prompt tokens were computed again because their prefix was evicted",
            f"give {GIVE_KV_EVENTS}, or a recording from a cold start",
        ),
    )
    if not math.isfinite(pool) or not len(row.get("ts", ())):
        return unknown
    computed = np.cumsum(steps.computed_by_interval(engine))
    written = computed + np.cumsum(np.nan_to_num(row["generation_tokens"]))
    before = steps.number(engine.facts.get("written_tokens")) - written[-1]
    if not before < 0.05 * pool:
        return unknown
    first, prompts = np.cumsum(np.nan_to_num(row["ttft_n"])), np.cumsum(np.nan_to_num(row["prompt_tokens"]))
    hit = np.cumsum(np.nan_to_num(row["local_hit_tokens"]) + np.nan_to_num(row["external_hit_tokens"]))
    k = min(int(np.searchsorted(written, pool)), len(written) - 1)
    n0, n = float(first[k]), float(t.get("ttft_n", 0.0))
    if n0 < 15:
        return unknown
    h0 = float(hit[k]) / max(float(prompts[k]), 1.0)
    dense = np.nan_to_num(row["ttft_n"]) >= 1
    ratios = (np.nan_to_num(row["local_hit_tokens"]) / np.maximum(np.nan_to_num(row["prompt_tokens"]), 1.0))[dense]
    full = min(0.99, float(np.percentile(ratios, 97))) if len(ratios) else 0.0
    if full <= 0.05 or h0 <= 0.02:
        return Hits(now, now, now, "no hits before the pool filled: no reuse seen")
    distinct = _distinct(n0, n0 * (1 - h0 / full))
    cold = distinct * (1 - (1 - 1 / max(distinct, 1.0001)) ** n)
    return Hits(
        now,
        now,
        max(now, full * (1 - cold / n)),
        f"cold start: about {distinct:.0f} distinct prefixes, misses beyond them were evicted (assumes equal popularity)",
    )


def _distinct(requests: float, misses: float) -> float:
    """Distinct prefixes of which `requests` uniform draws missed `misses` for the first time (coupon collector)."""
    low, high = 1.0, 1e5
    for _ in range(60):
        middle = math.sqrt(low * high)
        expected = middle * (1 - (1 - 1 / middle) ** requests) if middle > 1 else 1.0
        low, high = (middle, high) if expected < misses else (low, middle)
    return math.sqrt(low * high)
