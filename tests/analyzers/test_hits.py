"""What the prefix cache gave, and what sharing or endless capacity would have given: each rule, in order, and its refusal."""

import math
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pytest

from analyzers.hits import GIVE_KV_EVENTS, Hits, hits_of
from analyzers.model import Engine

from .engines import NOON, engine_of, interval_of, made, requests_of

POOL = 100_000 * 16  # tokens of the default pool
SMALL = {"kv_blocks": 1000.0, "written_tokens": 1_000_000.0}  # 16,000 tokens: evictions are possible
EVENTS = {"stored_blocks": 10_000.0, "again_blocks": 0.0, "elsewhere_blocks": 0.0, "block_size": 16.0, "gaps": 0.0, "salts": 0.0}


def of(hit: float = 0.25, prompt: float = 600.0, facts: dict | None = None, kv: dict | None = None, **more: Any) -> Hits:
    """What is said of 300 requests of which a share of the prompt tokens was hit: 180,000 prompt tokens where prompts have 600."""
    return hits_of(engine_of(prompt=prompt, hit=hit, swing=0.0, facts=facts, kv=kv or {}, **more))


# -- the shares --------------------------------------------------------------------------------------------------------------
def test_avoidable_shares_are_of_the_computed_tokens():
    hits = Hits(now=0.5, shared=0.6, endless=0.75)
    assert hits.missed == pytest.approx(0.2)  # 0.1 of the 0.5 that was computed
    assert hits.evicted == pytest.approx(0.5)


@pytest.mark.parametrize("hits", [Hits(), Hits(0.5), Hits(1.0, 1.0, 1.0), Hits(math.nan, 0.5, 0.5)])
def test_without_knowledge_nothing_is_avoidable(hits: Hits):
    assert (hits.missed, hits.evicted) == (0.0, 0.0)


# -- caching off, no counters --------------------------------------------------------------------------------------------------
def test_with_caching_off_misses_are_unknown_and_nothing_is_evicted():
    hits = of(hit=0.0, facts={"prefix_caching": False, **SMALL})
    assert hits.how == "prefix caching is off"
    assert not hits.missed_known
    assert hits.evicted_known
    assert hits.refusal is None  # no verdict hangs on it


def test_without_hit_counters_both_are_refused():
    hits = hits_of(Engine("", "", total={"prompt_tokens": 1000.0}))
    assert not hits.missed_known
    assert not hits.evicted_known
    assert hits.refusal is not None
    assert "prefix_cache_hits_total" in hits.refusal.measure


# -- KV events -------------------------------------------------------------------------------------------------------------------
def test_blocks_stored_again_were_evicted_in_between():
    # 2250 x 16 = 36,000 of 180,000 prompt tokens
    hits = of(kv={**EVENTS, "again_blocks": 2250.0})
    assert (hits.now, hits.shared, hits.endless) == pytest.approx((0.25, 0.25, 0.45))
    assert hits.evicted == pytest.approx(0.2 / 0.75)
    assert hits.evicted_known
    assert hits.missed_known
    assert "2250 blocks stored again" in hits.how


def test_blocks_first_stored_here_that_another_engine_had_were_not_shared():
    # 400 of 10,000 stored blocks: 6400 of 180,000 tokens
    hits = of(kv={**EVENTS, "elsewhere_blocks": 400.0})
    assert (hits.now, hits.shared, hits.endless) == pytest.approx((0.25, 0.25 + 6400 / 180_000, 0.25))


def test_where_engines_hold_the_same_prefixes_what_was_stored_again_is_a_cost_of_the_spread_too():
    # 600 of 10,000 is more than a twentieth
    hits = of(kv={**EVENTS, "again_blocks": 1000.0, "elsewhere_blocks": 600.0})
    assert hits.shared == pytest.approx(0.25 + 1600 * 16 / 180_000)
    assert hits.endless == pytest.approx(0.25)
    assert "the same prefixes lie on several engines" in hits.how


def test_tokens_computed_again_after_preemptions_are_no_evicted_prefixes():
    # 10 preemptions x (600 + 120 / 2) x half = 3300 of 36,000
    columns = {"preemptions": np.where(np.arange(60) == 30, 10.0, 0.0)}
    hits = of(kv={**EVENTS, "again_blocks": 2250.0}, columns=columns)
    assert hits.endless == pytest.approx(0.25 + (36_000 - 3300) / 180_000, abs=1e-4)


def test_more_recomputed_tokens_than_blocks_stored_again_leave_no_evicted_prefix():
    columns = {"preemptions": np.where(np.arange(60) == 30, 200.0, 0.0)}
    assert of(kv={**EVENTS, "again_blocks": 2250.0}, columns=columns).evicted == 0.0


def test_blocks_that_an_offload_tier_gave_back_are_stored_again_but_not_computed_again():
    # 300 prompts of 600 tokens; 100 tokens of each came back from the tier: of 36,000 tokens stored again 30,000 were not computed
    columns = {"external_hit_tokens": 500.0, "local_hit_tokens": 750.0, "computed_tokens": 1750.0}
    hits = of(kv={**EVENTS, "again_blocks": 2250.0}, columns=columns)
    assert hits.now == pytest.approx(1250 / 3000)
    assert hits.endless == pytest.approx(1250 / 3000 + 6000 / 180_000)


def test_events_decide_before_counters_do():
    # hits near 0, long prompts, a small pool, several engines: all of no matter where block identities are known
    hits = of(hit=0.0, prompt=2000.0, rate=1.0, facts={**SMALL, "data_parallel": 2}, kv=EVENTS)
    assert hits.missed_known
    assert hits.evicted_known
    assert hits.refusal is None


def test_lost_events_are_no_events():
    hits = of(facts=SMALL, kv={**EVENTS, "again_blocks": 2250.0, "gaps": 3.0})
    assert not hits.evicted_known
    assert hits.refusal is not None


def test_salts_hide_what_could_be_shared_but_not_what_was_evicted():
    hits = of(kv={**EVENTS, "again_blocks": 2250.0, "salts": 12.0})
    assert not hits.missed_known
    assert hits.evicted_known
    assert hits.endless == pytest.approx(0.45)
    assert hits.refusal is not None
    assert hits.refusal.what == "what 12 cache salts keep from being shared"
    assert "block hashes without salts" in hits.refusal.measure


# -- hits near 0 -------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("hit", "prompt", "refused"), [(0.0, 1001, True), (0.019, 1001, True), (0.021, 1001, False), (0.0, 1000, False)]
)
def test_hits_near_0_with_long_prompts_are_refused_and_kv_events_are_asked_for(hit: float, prompt: float, refused: bool):
    hits = of(hit=hit, prompt=prompt, rate=2.0)
    assert (hits.refusal is not None) is refused
    assert hits.missed_known is not refused
    if refused:
        assert hits.refusal.what == "prefill backlog or unseen sharing (salt, routing)"
        assert "KV events" in hits.refusal.measure
        assert "--kv-events-config" in hits.refusal.measure
        assert "enable_kv_cache_events" in hits.refusal.measure


def test_hits_near_0_do_not_hide_that_nothing_can_have_been_evicted():
    assert of(hit=0.0, prompt=2000, rate=1.0).evicted_known
    assert not of(hit=0.0, prompt=2000, rate=1.0, facts=SMALL).evicted_known


def test_external_hits_are_hits():
    k = np.arange(60)
    tokens = 2000.0 * np.ones_like(k)
    hits = of(hit=0.0, prompt=2000, rate=1.0, columns={"external_hit_tokens": 0.5 * tokens, "computed_tokens": 0.5 * tokens})
    assert hits.now == pytest.approx(0.5)
    assert hits.missed_known


# -- the certificate -----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("written", "certain"), [(0.96 * POOL, True), (0.98 * POOL, False)])
def test_fewer_tokens_written_than_the_pool_holds_are_a_certificate(written: float, certain: bool):
    hits = of(facts={"written_tokens": written})
    assert hits.how.startswith("no-eviction certificate") is certain
    assert hits.evicted_known is certain


@pytest.mark.parametrize("missing", ["written_tokens", "kv_blocks", "block_size"])
def test_there_is_no_certificate_without_pool_or_written_tokens(missing: str):
    assert not of(facts={missing: None}).evicted_known


def test_the_certificate_holds_for_one_of_several_engines():
    hits = of(facts={"data_parallel": 2})
    assert hits.evicted_known


# -- several engines -----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("how", ["data_parallel", "engines_seen"])  # by the arguments, or where only /metrics is there
def test_of_several_engines_with_a_cache_each_counters_cannot_tell_and_routing_is_named(how: str):
    hits = of(hit=0.49, facts={**SMALL, how: 2})
    assert not hits.missed_known
    assert not hits.evicted_known
    assert hits.refusal is not None
    assert "hit rate of this engine 0.49" in hits.refusal.what
    assert "routing by prefix may help" in hits.refusal.what
    assert GIVE_KV_EVENTS in hits.refusal.measure


# -- a cold start --------------------------------------------------------------------------------------------------------------------
FULL: Final = 0.9  # share of a prompt of 1000 tokens that is a shared prefix


def cold(
    distinct: int = 40,
    before: float = 0.0,
    *,
    per_s: int = 2,
    seconds: int = 300,
    late: float = 0.5,
    part: float = FULL,
    kv_blocks: float = 2600.0,
    spans: bool = False,
) -> Engine:
    """`per_s` requests a second of 1000 tokens, 900 of them a prefix, one of `distinct`; from an empty cache.

    Until the pool (of 41,600 tokens) is full a prefix misses only where it was not drawn before. Then a share `late` of those
    seen before is found, `part` of the prompt; the others were evicted.
    """
    rng = np.random.default_rng(3)
    n = per_s * seconds
    drawn = rng.integers(0, distinct, n)
    seen = np.array([drawn[i] in drawn[:i] for i in range(n)])
    share = np.where(seen, FULL, 0.0)
    full = int(np.argmax(np.cumsum(1010.0 - 1000 * share) > 16 * kv_blocks))
    after = np.arange(n) > full
    share = np.where(after & seen, np.where(rng.random(n) < late, part, 0.0), share)
    hit = 1000 * share.reshape(seconds, per_s).sum(1)
    row = interval_of(
        seconds, running=1.0, waiting=0.0, deferred=0.0, kv_usage_ratio=0.5, ttft_n=per_s, e2e_n=per_s, prompt_tokens=1000.0 * per_s,
        local_hit_tokens=hit, external_hit_tokens=0.0, computed_tokens=1000.0 * per_s - hit, generation_tokens=10.0 * per_s,
        request_prompt_tokens=1000.0 * per_s, request_prompt_n=per_s, request_output_tokens=10.0 * per_s, preemptions=0.0,
    )  # fmt: skip
    written = float((1000.0 * per_s - hit).sum()) + 10.0 * n
    came = NOON + (np.arange(n) + 0.5) / per_s
    return made(
        row,
        {"kv_blocks": kv_blocks, "written_tokens": written + before},
        request=requests_of(n, arrival_ts=came, first_token_ts=came, prompt_tokens=1000.0, cached_tokens=1000 * share)
        if spans
        else {},
    )


@pytest.mark.parametrize("spans", [False, True])
def test_from_a_cold_start_misses_beyond_the_distinct_prefixes_were_evicted(spans: bool):
    # each of 40 prefixes misses once in 600 requests, whatever the pool holds
    hits = hits_of(cold(40, spans=spans))
    assert hits.evicted_known
    assert "cold start" in hits.how
    assert "assumes equal popularity" in hits.how
    assert hits.endless == pytest.approx(FULL * (1 - 40 / 600), abs=0.02 if spans else 0.08)
    assert hits.shared == hits.now  # at this capacity sharing would add nothing that the counters show


def test_the_fewer_prefixes_there_are_the_more_of_the_misses_were_evictions():
    few, many = hits_of(cold(20, spans=True)), hits_of(cold(80, spans=True))
    assert few.endless > many.endless > many.now


def test_prefixes_that_are_shared_in_part_are_not_evicted():
    # conversations of which a request finds the earlier turns: all find some, nobody finds as much as the best
    rng = np.random.default_rng(5)
    engine = cold(40, late=1.0, spans=True)
    shares = np.where(engine.request["cached_tokens"] > 0, rng.uniform(0.1, 0.9, len(engine.request["cached_tokens"])), 0.0)
    hit = 1000 * shares.reshape(-1, 2).sum(1)
    columns = {"local_hit_tokens": hit, "computed_tokens": 2000.0 - hit}
    for seen in (
        replace(engine, request={**engine.request, "cached_tokens": 1000 * shares}, interval={**engine.interval, **columns}),
        replace(engine, request={}, interval={**engine.interval, **columns}),
    ):
        hits = hits_of(replace(seen, total={**seen.total, "local_hit_tokens": float(hit.sum())}))
        assert hits.evicted_known
        assert hits.endless == pytest.approx(hits.now, abs=0.02)


def test_prefixes_that_lost_their_end_were_evicted_in_part():
    # every request finds half of what it found before the pool filled
    hits = hits_of(cold(40, late=1.0, part=FULL / 2, spans=True))
    assert hits.evicted_known
    assert hits.endless == pytest.approx(FULL * (1 - 40 / 600), abs=0.08)


def test_where_many_requests_share_an_interval_who_found_nothing_is_not_told():
    hits = hits_of(cold(40, per_s=20, seconds=60))
    assert not hits.evicted_known
    assert "too many requests share an interval" in hits.how
    assert hits.refusal is not None
    assert "--kv-events-config" in hits.refusal.measure
    assert "scrapes every second" in hits.refusal.measure
    assert hits_of(cold(40, per_s=20, seconds=60, spans=True)).evicted_known


def test_where_the_recording_starts_late_evictions_are_unknown_and_kv_events_are_asked_for():
    # a tenth of the pool had been written before
    hits = hits_of(cold(40, before=0.1 * 2600 * 16))
    assert not hits.evicted_known
    assert hits.missed_known
    assert hits.how == "evictions are possible and the recording does not start with an empty cache"
    assert hits.refusal is not None
    assert "their prefix was evicted" in hits.refusal.what
    assert "--kv-events-config" in hits.refusal.measure
    assert "cold start" in hits.refusal.measure


def test_a_pool_that_fills_within_a_few_requests_tells_nothing():
    # 640 tokens: full within the first second, 10 requests
    assert not hits_of(cold(40, kv_blocks=40.0)).evicted_known


def test_a_cold_start_without_any_hit_before_the_pool_filled_shows_no_reuse():
    hits = of(hit=0.0, facts={"kv_blocks": 1500.0})
    assert hits.how == "no hits before the pool filled: no reuse seen"
    assert hits.evicted_known
    assert hits.evicted == 0.0


def test_possible_evictions_without_a_pool_size_are_refused():
    hits = of(facts={"kv_blocks": None})
    assert not hits.evicted_known
    assert hits.refusal is not None
