"""Prefix hits: what the cache gave, and what sharing or endless capacity would have given (attribution.md section 2.3)."""

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from analyzers import steps
from analyzers.model import Engine, Refusal

LONG_PROMPT_TOKENS: Final = 1000
FEW_HITS: Final = 0.02
SPREAD: Final = 0.05  # share of stored blocks that another engine had, from which engines hold the same prefixes
FOUND_NOTHING: Final = 0.02  # share of its prompt below which a request found nothing in the cache
FALL: Final = 0.05  # fall of what hits find that is taken as scatter
FEW_INTERVALS: Final = 5
FEW_REQUESTS: Final = 15  # before the pool filled: fewer say nothing of how many prefixes there are
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


def hits_of(engine: Engine) -> Hits:
    """What the prefix cache could have saved, by the first rule that applies (attribution.md section 2.3)."""
    found, gaps = _by_rule(engine), engine.kv.get("gaps")
    if not gaps or found.refusal is None or GIVE_KV_EVENTS not in found.refusal.measure:
        return found
    lost = f"the KV events that were given have {gaps:.0f} gaps: subscribe before the load begins, or raise the publisher's buffer_steps"
    return replace(found, refusal=replace(found.refusal, measure=f"{found.refusal.measure}; {lost}"))


def _by_rule(engine: Engine) -> Hits:  # noqa: PLR0911 one return a rule, in order
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
    if max(steps.number(engine.facts.get(name), 1.0) for name in ("data_parallel", "engines_seen")) > 1:
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
    # what comes back from an offload tier or another engine is stored again, too, but not computed again
    loaded = engine.total.get("external_hit_tokens", 0.0)
    again = max(0.0, kv["again_blocks"] * size - steps.recomputed_tokens(engine)[0] - loaded)
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
            f"give {GIVE_KV_EVENTS}, or a recording from a cold start with scrapes every second or spans",
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
    if n <= n0:
        return Hits(now, now, now, "no request came after the pool filled")
    early, late = _whole_misses(engine, slice(0, k + 1)), _whole_misses(engine, slice(k + 1, None))
    if n0 < FEW_REQUESTS or late is None:
        return replace(unknown, how="evictions are possible, and too many requests share an interval to tell who found nothing")
    missed, found = late
    h0 = float(hit[k]) / max(float(prompts[k]), 1.0)
    if h0 <= FOUND_NOTHING and found <= FOUND_NOTHING:
        return Hits(now, now, now, "no hits before the pool filled: no reuse seen")
    if early is None or not len(engine.request.get("arrival_ts", ())):
        early = (min(1.0, max(0.0, 1 - h0 / found)) if found > 0 else 1.0, found)
    distinct = _distinct(n0, n0 * early[0]) if early[0] > 0 else 1.0
    evicted = max(0.0, missed * (n - n0) - (_cold(distinct, n) - _cold(distinct, n0)))
    # prefixes evicted from their end: those who find something find less than before the pool filled
    less = max(0.0, early[1] - found - FALL) * (1 - missed) * (n - n0)
    return Hits(
        now,
        now,
        max(now, min(0.99, now + (evicted * max(found, early[1]) + less) / n)),
        f"cold start: {100 * missed:.0f} % of the prompts after the pool filled found nothing in the cache; those beyond about "
        f"{distinct:.0f} distinct prefixes were evicted (assumes equal popularity)",
    )


def _cold(distinct: float, requests: float) -> float:
    """Distinct prefixes that `requests` uniform draws see."""
    return float(distinct * (1 - (1 - 1 / max(distinct, 1.0001)) ** requests))


def _whole_misses(engine: Engine, part: slice) -> tuple[float, float] | None:
    """(share of prompts that found nothing in the cache, share that the others found) in a part of the intervals.

    Only a request that found nothing can have lost its whole prefix. From request records; else from the intervals in which
    nobody found anything: n requests all miss with probability z^n. None: too few to tell.
    """
    row, req = engine.interval, engine.request
    if not len(row.get("ts", ())) or not len(row["ts"][part]):
        return None
    ends = row["ts"][part]
    if len(req.get("arrival_ts", ())) and np.isfinite(req["cached_tokens"]).any():
        low, high = float(ends[0] - row["dt_s"][part][0]), float(ends[-1])
        chosen = (req["first_token_ts"] > low) & (req["first_token_ts"] <= high)
        chosen &= np.isfinite(req["prompt_tokens"]) & np.isfinite(req["cached_tokens"])
        prompt, cached = req["prompt_tokens"][chosen], req["cached_tokens"][chosen]
        some = cached >= FOUND_NOTHING * prompt
        if not len(prompt):
            return None
        return float(prompt[~some].sum() / prompt.sum()), float(cached[some].sum() / max(prompt[some].sum(), 1.0))
    n, prompts = np.nan_to_num(row["ttft_n"][part]), np.nan_to_num(row["prompt_tokens"][part])
    hit = np.nan_to_num(row["local_hit_tokens"][part]) + np.nan_to_num(row["external_hit_tokens"][part])
    seen = (n >= 1) & (prompts > 0)
    n, prompts, hit = n[seen], prompts[seen], hit[seen]
    if len(n) < FEW_INTERVALS:
        return None
    mean, best = float(hit.sum() / prompts.sum()), float(np.percentile(hit / prompts, 97))
    most = 1 - mean / best if best > 0 else 1.0  # whole misses, if all others found as much as in the best intervals
    if most > FALL and float((most**n).sum()) < FEW_INTERVALS / 2:
        return None  # so many requests an interval that one in which all miss is not to be expected
    empty = float((hit < FOUND_NOTHING * prompts).sum())
    low, high = 0.0, 1.0
    for _ in range(40 if empty else 0):
        middle = (low + high) / 2
        low, high = (middle, high) if float((middle**n).sum()) < empty else (low, middle)
    return low, min(0.99, mean / max(1 - low, 0.05))


def _distinct(requests: float, misses: float) -> float:
    """Distinct prefixes of which `requests` uniform draws missed `misses` for the first time (coupon collector)."""
    low, high = 1.0, 1e5
    for _ in range(60):
        middle = math.sqrt(low * high)
        expected = _cold(middle, requests)
        low, high = (middle, high) if expected < misses else (low, middle)
    return math.sqrt(low * high)
