"""Several engines and servers: means by requests, hot engines that must not vanish, a prefill and a decode server as one chain."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analyzers.attribute import attribute
from analyzers.combine import label, roles, spread
from analyzers.model import TARGETS, Attribution, Engine, Level, Stage

from .engines import adds_up, engine_of, fleet, requests_of, stats_of, window_of


def rank(number: int, **more: Any) -> Engine:
    return engine_of(**{"engine": str(number), "swing": 0.1, **more})


def full(number: int, waiting: float = 4.0, **more: Any) -> Engine:
    """Return an engine that never runs fewer than its cap of 6, with `waiting` requests in line."""
    return rank(number, waiting=waiting, swing=0.05, **{"facts": {"max_num_seqs": 6}, **more})


# -- weights -------------------------------------------------------------------------------------------------------------------
def test_seconds_of_several_engines_are_means_by_requests():
    # 300 requests with 1 s of queue (5 waiting, 5 a second), 60 without any
    one, two = rank(0, rate=5, waiting=5.0), rank(1, rate=1)
    n = [e.total["e2e_n"] for e in (one, two)]
    result = attribute(window_of(one, two))
    alone = [e.targets["e2e"] for e in result.engines]
    both = fleet(result, "e2e")
    assert n == pytest.approx([300, 60], rel=0.02)
    assert both.measured_s == pytest.approx((n[0] * alone[0].measured_s + n[1] * alone[1].measured_s) / sum(n))
    assert both.stages[Stage.QUEUE] == pytest.approx(1.0 * n[0] / sum(n), rel=0.02)
    assert both.part("prefill_backlog").seconds == pytest.approx(
        sum(w * t.part("prefill_backlog").seconds for w, t in zip(n, alone, strict=True)) / sum(n)
    )


def test_seconds_a_token_are_means_by_tokens_after_the_first():
    # 300 requests of 120 tokens, 300 of 12
    one, two = rank(0, output=120, c=200e-6), rank(1, output=12)
    result = attribute(window_of(one, two))
    tokens = [e.total["request_output_tokens"] - e.total["e2e_n"] for e in (one, two)]
    alone = [e.targets["tpot"].measured_s for e in result.engines]
    assert fleet(result, "tpot").measured_s == pytest.approx((tokens[0] * alone[0] + tokens[1] * alone[1]) / sum(tokens))


def test_time_to_first_token_is_a_mean_by_first_tokens():
    one, two = rank(0, waiting=5.0), rank(1)
    first = two.interval["ttft_n"] * 1.05  # some have a first token and are not done
    two = rank(1, columns={"ttft_n": first, "ttft_s": 0.036 * first})
    result = attribute(window_of(one, two))
    n = [e.total["ttft_n"] for e in (one, two)]
    alone = [e.targets["ttft"].measured_s for e in result.engines]
    assert fleet(result, "ttft").measured_s == pytest.approx((n[0] * alone[0] + n[1] * alone[1]) / sum(n))


def test_a_mean_says_how_far_engines_lie_apart():
    result = attribute(window_of(rank(0, waiting=5.0), rank(1)))
    assert any(c.startswith("mean of 2 engines, which lie between") for c in fleet(result, "e2e").conditions)
    measured = spread(result.engines, "e2e")
    assert list(measured) == ["0", "1"]
    assert measured["0"] - measured["1"] == pytest.approx(1.0, rel=0.05)


def test_an_engine_without_requests_weighs_nothing():
    idle = rank(1, rate=1e-9, columns={"e2e_n": 0.0, "ttft_n": 0.0})
    result = attribute(window_of(rank(0), idle))
    assert fleet(result, "e2e").measured_s == pytest.approx(result.engines[0].targets["e2e"].measured_s)


def test_one_engine_is_its_own_fleet():
    result = attribute(window_of(rank(0)))
    assert dict(result.targets) == dict(result.engines[0].targets)


def test_a_link_is_unknown_to_the_fleet_only_where_all_engines_do_not_know_it():
    off, on = rank(0, facts={"prefix_caching": False}), rank(1)
    part = fleet(attribute(window_of(off, on)), "e2e").part("prefix_cache_miss")
    assert part.seconds == 0.0
    assert fleet(attribute(window_of(off, off)), "e2e").part("prefix_cache_miss").seconds is None


@settings(max_examples=6, deadline=None, derandomize=True)
@given(
    st.lists(
        st.tuples(st.sampled_from([1.0, 4.0]), st.sampled_from([0.0, 3.0]), st.sampled_from([0.3, 0.98]), st.booleans()),
        min_size=2,
        max_size=3,
    )
)
def test_parts_of_a_fleet_add_up(engines: list[tuple[float, float, float, bool]]):
    made = [rank(i, rate=r, waiting=w, usage=u, facts={"prefix_caching": on}) for i, (r, w, u, on) in enumerate(engines)]
    result = attribute(window_of(*made))
    assert all(adds_up(fleet(result, name)) < 1e-6 for name in TARGETS)


def test_the_level_of_a_fleet_is_its_poorest():
    rich = rank(0, kv={"stored_blocks": 10.0, "again_blocks": 0.0, "elsewhere_blocks": 0.0, "gaps": 0.0})
    assert attribute(window_of(rich, rank(1))).level == Level.METRICS


# -- hot engines -------------------------------------------------------------------------------------------------------------------
def test_one_limited_engine_of_eight_does_not_vanish_in_the_mean():
    # one of eight waits 0.4 s of 1.74 s: 0.05 s in the mean, below a tenth
    result = attribute(window_of(full(0, waiting=2.0), *(rank(i) for i in range(1, 8))))
    target = fleet(result, "e2e")
    assert target.part("slots").seconds < 0.1 * target.measured_s
    assert (target.verdict, target.limiting) == ("limited", "slots")
    assert "limited on 1 of 8 engines (0); the mean over all engines hides it" in target.conditions
    assert target.part("slots").status == "limiting"
    assert adds_up(target) < 1e-6


def test_a_fleet_that_is_limited_as_a_whole_says_on_how_many_engines():
    result = attribute(window_of(full(0), full(1), rank(2)))
    target = fleet(result, "ttft")
    assert (target.verdict, target.limiting) == ("limited", "slots")
    assert "limited on 2 of 3 engines (0, 1)" in target.conditions


def test_the_cause_with_more_request_seconds_is_named_of_hot_engines():
    # at the cap for 0.4 s each; short of blocks for 1 s each
    starved = rank(1, waiting=5.0, usage=0.98)
    result = attribute(window_of(full(0, waiting=2.0), starved, *(rank(i, rate=40, prompt=100, output=60) for i in range(2, 6))))
    assert fleet(result, "e2e").limiting == "kv_eviction"


def test_engines_without_a_fault_are_a_healthy_fleet():
    result = attribute(window_of(*(rank(i) for i in range(4))))
    assert {name: fleet(result, name).verdict for name in TARGETS} == dict.fromkeys(TARGETS, "healthy")


def test_engines_of_several_instances_are_told_apart_by_both():
    result = attribute(window_of(rank(0, instance="a:1"), rank(0, instance="b:1")))
    assert [label(r, result.engines) for r in result.engines] == ["a:1/0", "b:1/0"]


# -- a prefill and a decode server -------------------------------------------------------------------------------------------------------
def chain(**decode: Any) -> Attribution:
    """Return requests that get their first token from one server and the others from a second one, which holds 0.2 s in line for KV."""
    first = engine_of(instance="p:1", rate=4, output=1.0, prefill_s=0.05, output_s=0.002)
    prompts = 4 * (1 + 0.1 * np.cos(2 * np.pi * np.arange(60) / 7)) * 600.0
    second = engine_of(
        instance="d:1", rate=4, swing=0.1, b=0.0, waiting=0.8,
        **{"columns": {"external_hit_tokens": prompts, "computed_tokens": 0.0, "deferred": 0.8, "deferred_before": 0.8, "nixl_transfer_s": 0.02, "nixl_transfer_n": 4.0, "nixl_bytes": 4e8}, **decode},
    )  # fmt: skip
    return attribute(window_of(first, second))


def test_servers_are_a_chain_by_what_their_requests_do():
    result = chain()
    assert [e.role for e in result.engines] == ["prefill", "decode"]
    assert roles([rank(0), rank(1)]) == ["both", "both"]
    assert roles([engine_of(output=1.0)]) == ["both"]  # no decode server: requests of one token


def test_the_first_token_of_a_chain_comes_after_all_of_the_prefill_server_and_the_decode_servers_first():
    result = chain()
    prefill, decode = result.engines
    ttft, e2e, tpot = (fleet(result, name) for name in ("ttft", "e2e", "tpot"))
    assert ttft.measured_s == pytest.approx(prefill.targets["e2e"].measured_s + decode.targets["ttft"].measured_s)
    assert e2e.measured_s == pytest.approx(prefill.targets["e2e"].measured_s + decode.targets["e2e"].measured_s)
    assert tpot.measured_s == decode.targets["tpot"].measured_s
    assert any("one chain over two servers" in c for c in ttft.conditions)


def test_parts_of_a_chain_add_up_and_keep_the_servers_apart_in_evidence():
    result = chain()
    for name in ("ttft", "e2e"):
        assert adds_up(fleet(result, name)) < 1e-6
    evidence = fleet(result, "ttft").part("kv_transfer").evidence
    assert any(text.startswith("decode server: 240 transfers, 5.0 ms each on the wire") for text in evidence)


def test_the_queue_of_a_decode_server_is_the_wait_for_kv():
    target = fleet(chain(), "ttft")
    assert target.part("kv_transfer").seconds == pytest.approx(0.2, rel=0.02)
    assert (target.verdict, target.limiting) == ("limited", "kv_transfer")


def test_what_clients_saw_beyond_both_servers_is_said():
    result = chain(request=requests_of(240, client_ttft_s=0.5, client_e2e_s=2.0))
    measured = fleet(result, "ttft").measured_s
    assert (
        f"clients saw 0.5000 s: {0.5 - measured:.4f} s lie between them and the two servers (proxy, network)"
        in fleet(result, "ttft").conditions
    )


def test_two_decode_servers_are_averaged_before_they_follow_the_prefill_server():
    first = engine_of(instance="p:1", rate=8, output=1.0, prefill_s=0.05)
    prompts = 4 * (1 + 0.1 * np.cos(2 * np.pi * np.arange(60) / 7)) * 600.0
    seconds = [
        engine_of(
            instance=f"d{i}:1",
            rate=4,
            swing=0.1,
            b=0.0,
            waiting=w,
            columns={"external_hit_tokens": prompts, "computed_tokens": 0.0},
        )
        for i, w in enumerate((0.4, 1.2))
    ]
    result = attribute(window_of(first, *seconds))
    decode = [e.targets["ttft"].measured_s for e in result.engines[1:]]
    assert fleet(result, "ttft").measured_s == pytest.approx(
        result.engines[0].targets["e2e"].measured_s + sum(decode) / 2, rel=1e-6
    )


# -- states ----------------------------------------------------------------------------------------------------------------------------
def states(waiting: list[float], data_parallel: int = 8) -> Attribution:
    """Ranks of which only stats lines are known; those with waiting requests stand at their cap of 64."""
    return attribute(
        window_of(
            *(
                Engine("a:1", str(i), stat=stats_of(running=64.0 if w else 10.0, waiting=[w, w], kv_usage_ratio=0.4, generation_tokens_per_s=500.0), facts={"max_num_seqs": 64, "data_parallel": data_parallel})
                for i, w in enumerate(waiting)
            )
        )
    )  # fmt: skip


def test_of_eight_ranks_the_two_that_hold_the_line_are_named():
    target = fleet(states([0, 0, 30, 0, 0, 10, 0, 0]), "ttft")
    assert (target.verdict, target.limiting) == ("limited", "slots")
    assert "2 of 8 engines (2, 5) hold 40 of 40 waiting requests" in target.conditions
    evidence = target.part("slots").evidence
    assert "2 of 8 engines (2, 5) hold 40 of 40 waiting requests" in evidence
    assert any(text.startswith("engine 2: running stood at max_num_seqs (64) with up to 30 waiting") for text in evidence)


def test_ranks_that_are_not_visible_are_asked_for():
    target = fleet(states([30, 0]), "ttft")
    assert any(
        r.what == "imbalance between engines: 2 of 8 are visible" and "all engines" in r.measure for r in target.cannot_determine
    )
    assert not any("visible" in r.what for r in fleet(states([30] + [0] * 7), "ttft").cannot_determine)


def test_ranks_without_a_sign_are_undetermined_unless_all_are_calm():
    assert fleet(states([0.0] * 8), "ttft").verdict == "undetermined"  # two lines each: too few to call it calm
    calm = [
        Engine("a:1", str(i), stat=stats_of(running=[4, 4, 4], generation_tokens_per_s=100.0), facts={"data_parallel": 8})
        for i in range(8)
    ]
    assert fleet(attribute(window_of(*calm)), "ttft").verdict == "healthy"
