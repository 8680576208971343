"""The verdict on a target: each rule of when a link limits, when nothing does, and when it cannot be told."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analyzers.attribute import attribute, growth_s, judge, saves, under_load
from analyzers.books import Books, books
from analyzers.links import CHAIN, slots
from analyzers.model import TARGETS, Attribution, Level, Part, Refusal, Stage, Target

from .engines import A, B, C, adds_up, engine_of, fleet, model_of, window_of
from .replay import ENGINE, observed, poisson, replay

FAULTS = ("frontend", "slots", "prefill_backlog", "prefix_cache_miss", "kv_eviction", "kv_transfer", "moe_imbalance", "speculation", "engine_stall", "output")  # fmt: skip


def part(link: str, seconds: float | None, **more: Any) -> Part:
    """A link's part; all of it a fault and saved by a fix, unless said otherwise."""
    load = link == "decode_batch"
    given = {
        "fault_s": 0.0 if load else seconds,
        "saves_s": None if load else seconds,
        "status": "unknown" if seconds is None else "ok",
    }
    return Part(link, seconds, {}, **{**given, **more})


def target(
    name: str = "e2e", measured: float | None = 1.0, cannot: tuple[Refusal, ...] = (), **parts: float | Mapping[str, Any] | None
) -> Target:
    """One target of a second with these parts; a link that is not said holds nothing."""
    made = []
    for module in CHAIN:
        value = parts.get(module.LINK.name, 0.0)
        made.append(part(module.LINK.name, **value) if isinstance(value, Mapping) else part(module.LINK.name, value))
    rest = (measured or 0.0) - sum(p.seconds or 0.0 for p in made)
    return Target(name, measured, rest, 0.0, {}, tuple(made), None, None, "undetermined", cannot)


def verdict(*args: Any, requests: int = 1000, **parts: Any) -> tuple[str, str | None]:
    judged = judge(target(*args, **parts), requests)
    return judged.verdict, judged.limiting


@pytest.mark.parametrize("sign", [1, -1])
def test_what_is_mostly_unexplained_is_neither_limited_nor_healthy(sign: int):
    judged = judge(replace(target(slots=0.2), unexplained_s=sign * 0.51), 1000)
    assert (judged.verdict, judged.limiting, judged.runner_up) == ("undetermined", None, "slots")
    assert judged.cannot_determine[0].what.startswith(f"what takes E2E: {sign * 0.51} s of 1 s are unexplained")
    assert judge(replace(target(), unexplained_s=sign * 0.51), 1000).verdict == "undetermined"
    assert judge(replace(target(slots=0.2), unexplained_s=sign * 0.49), 1000).limiting == "slots"


# -- limited -----------------------------------------------------------------------------------------------------------------
def test_nothing_to_blame_is_healthy():
    assert verdict() == ("healthy", None)


@pytest.mark.parametrize("link", FAULTS)
def test_the_largest_fault_above_a_tenth_limits(link: str):
    other = "kv_transfer" if link != "kv_transfer" else "slots"
    judged = judge(target(**{link: 0.4, other: 0.2}), 1000)
    assert (judged.verdict, judged.limiting) == ("limited", link)
    assert judged.part(link).status == "limiting"


@pytest.mark.parametrize(("seconds", "limits"), [(0.10, False), (0.101, True)])
def test_a_tenth_itself_does_not_limit(seconds: float, limits: bool):
    assert verdict(slots=seconds)[0] == ("limited" if limits else "healthy")


@pytest.mark.parametrize(("low", "limits"), [(0.05, False), (0.051, True)])
def test_the_lower_end_of_its_range_must_exceed_a_twentieth(low: float, limits: bool):
    span = {"seconds": 0.3, "range_s": (low, 0.6)}
    assert (verdict(slots=span)[0] == "limited") is limits


def test_a_large_fault_that_might_be_nothing_is_not_called_healthy():
    # 0.3 of the second, but perhaps nothing: neither limited nor healthy can be said
    assert verdict(slots={"seconds": 0.3, "range_s": (0.0, 0.6)})[0] == "undetermined"


def test_without_a_range_the_tenth_alone_decides():
    assert verdict(slots={"seconds": 0.101, "range_s": None})[0] == "limited"


def test_shares_are_of_the_measured_value_and_not_of_the_excess():
    assert verdict("e2e", 20.0, slots=1.0)[0] == "healthy"


# -- load -------------------------------------------------------------------------------------------------------------------
def test_the_batch_is_load_and_never_a_fault():
    judged = judge(target(decode_batch=0.9), 1000)
    assert (judged.verdict, judged.limiting, judged.load) == ("healthy", None, "decode_batch")


def test_of_the_backlog_only_queue_seconds_behind_a_full_budget_are_a_fault():
    # 0.6 s of steps shared with prompts, 0.05 of queue: load; with 0.2 of queue: a fault
    assert verdict(prefill_backlog={"seconds": 0.65, "fault_s": 0.05}) == ("healthy", None)
    assert verdict(prefill_backlog={"seconds": 0.80, "fault_s": 0.20}) == ("limited", "prefill_backlog")


def test_a_fault_is_named_before_a_larger_load():
    judged = judge(target(decode_batch=0.6, slots=0.2), 1000)
    assert (judged.limiting, judged.load) == ("slots", "decode_batch")


def test_a_healthy_target_names_its_largest_load():
    judged = judge(target(decode_batch=0.2, prefill_backlog={"seconds": 0.3, "fault_s": 0.0}), 1000)
    assert (judged.verdict, judged.load) == ("healthy", "prefill_backlog")


def test_a_backlog_that_is_nearly_all_load_is_the_largest_load():
    judged = judge(target(decode_batch=0.05, prefill_backlog={"seconds": 0.5, "fault_s": 0.001}), 1000)
    assert (judged.verdict, judged.load) == ("healthy", "prefill_backlog")


def loaded(**more: Any) -> Attribution:
    """An engine without a fault, whose prompts stretch the decode steps by a fifth."""
    return attribute(window_of(engine_of(prompt=1000, rate=10, hit=0.05, **{"swing": 0.2, **more})))


def test_a_load_limits_while_an_slo_is_missed():
    healthy = fleet(loaded(), "tpot")
    assert (healthy.verdict, healthy.load) == ("healthy", "prefill_backlog")
    missed = under_load(healthy, {"tpot": 0.9 * healthy.measured_s}, None)
    assert (missed.verdict, missed.limiting) == ("limited", "prefill_backlog")
    assert missed.part("prefill_backlog").status == "limiting"
    assert any("load, not a fault" in c and "SLO" in c for c in missed.conditions)
    assert under_load(healthy, {"tpot": 1.1 * healthy.measured_s}, None).verdict == "healthy"
    assert under_load(healthy, {"ttft": 0.0001}, None).verdict == "healthy"


def test_a_load_limits_while_a_baseline_is_exceeded():
    before = attribute(window_of(engine_of(prompt=100, rate=2)))
    after = attribute(window_of(engine_of(prompt=1000, rate=10, hit=0.05, swing=0.2)), baseline=before)
    target = fleet(after, "tpot")
    assert (target.verdict, target.limiting) == ("limited", "prefill_backlog")
    assert any("baseline" in c for c in target.conditions)
    itself = attribute(window_of(engine_of(prompt=1000, rate=10, hit=0.05, swing=0.2)), baseline=after)
    assert fleet(itself, "tpot").verdict == "healthy"


def test_a_load_below_a_tenth_does_not_limit_however_much_an_slo_is_missed():
    assert under_load(judge(target(decode_batch=0.09), 1000), {"e2e": 0.1}, None).verdict == "healthy"


def test_a_fault_is_not_replaced_by_a_load_when_an_slo_is_missed():
    judged = judge(target(slots=0.3, decode_batch=0.5), 1000)
    assert under_load(judged, {"e2e": 0.1}, None) is judged


# -- never limiting --------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("saves", "limits"), [(-0.1, False), (0.0, False), (0.01, True), (None, True)])
def test_a_link_whose_fix_saves_nothing_never_limits(saves: float | None, limits: bool):
    assert verdict(slots={"seconds": 0.5, "saves_s": saves})[0] == ("limited" if limits else "healthy")


@pytest.mark.parametrize("link", ["slots", "kv_eviction"])
def test_slots_and_blocks_never_limit_tpot_as_their_fix_makes_the_batch_larger(link: str):
    assert verdict("tpot", **{link: 0.5}) == ("healthy", None)
    assert verdict("ttft", **{link: 0.5}) == ("limited", link)
    assert verdict("tpot", **{link: 0.5, "engine_stall": 0.2}) == ("limited", "engine_stall")


def test_an_unknown_link_never_limits():
    assert verdict(slots=None) == ("healthy", None)


# -- undetermined ------------------------------------------------------------------------------------------------------------------
def unknown(bound: float | None, **more: Any) -> dict[str, Any]:
    return {"seconds": None, "bound_s": bound, **more}


@pytest.mark.parametrize(("bound", "expected"), [(0.31, "undetermined"), (0.29, "limited")])
def test_a_named_link_stands_unless_an_unseen_one_could_be_larger(bound: float, expected: str):
    judged = judge(target(slots=0.3, prefix_cache_miss=unknown(bound)), 1000)
    assert judged.verdict == expected
    assert judged.limiting == ("slots" if expected == "limited" else None)


def test_the_link_that_was_found_is_named_beside_an_undetermined_verdict():
    assert judge(target(slots=0.3, prefix_cache_miss=unknown(0.4)), 1000).runner_up == "slots"


@pytest.mark.parametrize(("bound", "expected"), [(0.11, "undetermined"), (0.09, "healthy")])
def test_nothing_named_is_healthy_unless_an_unseen_link_could_limit(bound: float, expected: str):
    assert verdict(moe_imbalance=unknown(bound))[0] == expected


def test_a_link_that_the_configuration_rules_out_has_no_bound_and_hides_nothing():
    assert verdict(prefix_cache_miss=unknown(None, used=False)) == ("healthy", None)
    assert verdict(slots=0.3, moe_imbalance=unknown(None, used=False)) == ("limited", "slots")


def test_what_a_known_link_may_hold_beyond_its_part_is_its_bound_and_its_part():
    # evicted prefixes could add 0.25 to the 0.1 s of preemptions that are known
    assert verdict(slots=0.3, kv_eviction={"seconds": 0.1, "bound_s": 0.25})[0] == "undetermined"
    assert verdict(slots=0.3, kv_eviction={"seconds": 0.04, "bound_s": 0.25})[0] == "limited"


def test_a_bound_of_the_named_link_itself_does_not_hide_it():
    assert verdict(kv_eviction={"seconds": 0.3, "bound_s": 0.6}) == ("limited", "kv_eviction")


def test_unseen_slots_and_blocks_hide_nothing_of_tpot():
    assert verdict("tpot", slots=unknown(0.9), kv_eviction=unknown(0.9)) == ("healthy", None)


def test_an_undetermined_verdict_always_says_what_it_hangs_on():
    hinted = target(moe_imbalance=unknown(0.5, conditions=("no balancedness line",)))
    judged = judge(hinted, 1000)
    assert any("moe_imbalance: up to 0.500 s (no balancedness line)" in r.what for r in judged.cannot_determine)
    given = Refusal("MoE imbalance", "log_balancedness")
    assert judge(replace(hinted, cannot_determine=(given,)), 1000).cannot_determine == (given,)


# -- few requests, nothing measured ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("requests", "expected"), [(0, "undetermined"), (4, "undetermined"), (5, "limited")])
def test_fewer_than_five_requests_are_not_judged(requests: int, expected: str):
    judged = judge(target(slots=0.5), requests)
    assert judged.verdict == expected
    if expected == "undetermined":
        assert judged.cannot_determine[-1] == Refusal(f"anything from {requests} finished requests", "a longer window")


def test_what_was_not_measured_is_not_judged():
    nothing = target("tpot", None)
    assert judge(nothing, 1000) is nothing


def test_requests_of_one_token_have_no_tpot_and_that_is_said():
    result = attribute(window_of(engine_of(output=1.0, rate=4)))
    tpot = fleet(result, "tpot")
    assert (tpot.measured_s, tpot.verdict) == (None, "undetermined")
    assert tpot.cannot_determine[0].what == "TPOT: no request had a token after its first"
    assert fleet(result, "ttft").verdict == "healthy"


def test_an_empty_window_is_judged_without_an_error():
    result = attribute(window_of())
    assert {name: t.verdict for name, t in result.targets.items()} == dict.fromkeys(TARGETS, "undetermined")
    assert all("/metrics" in t.cannot_determine[0].measure for t in result.targets.values())


# -- the API server is one cause -----------------------------------------------------------------------------------------------------
def test_front_end_and_output_are_ranked_as_one_cause():
    # neither exceeds a tenth, together they do; the larger one is named
    judged = judge(target(frontend=0.06, output=0.08), 1000)
    assert (judged.verdict, judged.limiting) == ("limited", "output")
    assert verdict(frontend=0.2, output=0.15, slots=0.3) == ("limited", "frontend")


def test_the_two_rows_of_one_cause_are_not_each_others_runner_up():
    assert judge(target(frontend=0.3, output=0.29), 1000).runner_up is None


def test_lower_ends_of_the_two_rows_add_up():
    wide = {"seconds": 0.07, "range_s": (0.026, 0.2)}
    assert verdict(frontend=wide, output=wide)[0] == "limited"
    assert verdict(frontend={**wide, "range_s": (0.024, 0.2)}, output={**wide, "range_s": (0.024, 0.2)})[0] != "limited"


def test_a_front_end_is_nominal_up_to_12_ms():
    nominal, slow = (fleet(attribute(window_of(engine_of(frontend_s=s))), "ttft") for s in (0.012, 0.060))
    assert nominal.part("frontend").seconds == pytest.approx(0.0, abs=1e-12)
    # what prompts fill of the step in flight is not the front end's: 0.06 s a second, half of a step's share
    dwell = slow.part("prefill_backlog").cells[Stage.FRONTEND]
    assert slow.part("frontend").seconds == pytest.approx(0.048 - dwell)
    assert (slow.verdict, slow.limiting) == ("limited", "frontend")


def test_a_baseline_replaces_the_nominal_front_end():
    # 30 ms were normal here: only what exceeds them is the front end's
    before = attribute(window_of(engine_of(frontend_s=0.030)))
    after = fleet(attribute(window_of(engine_of(frontend_s=0.060)), baseline=before), "ttft")
    dwell = after.part("prefill_backlog").cells[Stage.FRONTEND]
    assert after.part("frontend").seconds == pytest.approx(0.030 - dwell, abs=0.001)


# -- runner-up -------------------------------------------------------------------------------------------------------------------------
def test_a_runner_up_within_15_percent_is_named():
    assert judge(target(slots=0.40, kv_eviction=0.35), 1000).runner_up == "kv_eviction"  # 0.35 > 0.85 x 0.40


def test_a_runner_up_whose_range_overlaps_is_named():
    judged = judge(
        target(slots={"seconds": 0.4, "range_s": (0.2, 0.6)}, kv_eviction={"seconds": 0.2, "range_s": (0.1, 0.3)}), 1000
    )
    assert judged.runner_up == "kv_eviction"


def test_a_distant_second_is_no_runner_up():
    judged = judge(
        target(slots={"seconds": 0.6, "range_s": (0.55, 0.65)}, kv_eviction={"seconds": 0.1, "range_s": (0.08, 0.12)}), 1000
    )
    assert judged.limiting == "slots"
    assert judged.runner_up is None


def test_prompts_whose_queue_is_a_fault_count_with_the_steps_that_they_stretch():
    prompts = {"seconds": 0.3, "fault_s": 0.03, "range_s": (0.1, 0.5)}
    first = {"seconds": 0.4, "range_s": (0.2, 0.6)}
    assert judge(target(kv_eviction=first, prefill_backlog=prompts), 1000).runner_up == "prefill_backlog"
    # without a fault they are load, which is no cause
    assert judge(target(kv_eviction=first, prefill_backlog={**prompts, "fault_s": 0.0}), 1000).runner_up is None


def test_a_trifle_is_no_runner_up():
    assert judge(target(slots=0.4, kv_eviction=0.04), 1000).runner_up is None


def test_of_two_equal_causes_both_are_named():
    judged = judge(target(slots=0.3, kv_eviction=0.3), 1000)
    assert {judged.limiting, judged.runner_up} == {"slots", "kv_eviction"}


# -- from engines ----------------------------------------------------------------------------------------------------------------------
def test_an_engine_at_its_cap_is_limited_by_slots_in_ttft_and_e2e_and_not_in_tpot():
    # 60 s of waiting for 300 requests: 0.2 s each, of a TTFT of 0.236
    result = attribute(window_of(engine_of(swing=0.05, waiting=1.0, facts={"max_num_seqs": 6})))
    assert fleet(result, "ttft").part("slots").seconds == pytest.approx(0.2, rel=0.01)
    assert {name: fleet(result, name).limiting for name in TARGETS} == {"ttft": "slots", "tpot": None, "e2e": "slots"}


def test_an_engine_short_of_blocks_is_limited_by_kv_in_ttft_and_e2e_and_not_in_tpot():
    result = attribute(window_of(engine_of(waiting=1.0, usage=0.98, swing=0.1)))
    assert {name: fleet(result, name).limiting for name in TARGETS} == {"ttft": "kv_eviction", "tpot": None, "e2e": "kv_eviction"}


def test_a_queue_behind_a_full_budget_is_the_backlogs():
    result = attribute(window_of(engine_of(waiting=1.0, swing=0.1)))
    assert fleet(result, "ttft").limiting == "prefill_backlog"
    # 0.2 s, less half of a step of 11 ms in flight
    assert fleet(result, "ttft").part("prefill_backlog").fault_s == pytest.approx(0.2 - 0.0055, abs=0.001)


def slower(tpot: float, output: float = 120.0) -> Books:
    """The books of an engine at its cap that takes `tpot` seconds a token, for outputs of `output` tokens."""
    accounts = books(engine_of(swing=0.05, waiting=1.0, facts={"max_num_seqs": 6}), model=model_of())
    assert accounts is not None
    return replace(accounts, stages={**accounts.stages, Stage.DECODE: tpot * (output - 1)}, output_tokens=output)


def test_a_growing_batch_is_taken_off_what_a_higher_cap_saves():
    # TPOT' = a / (1 - rate x output x c - rate x prompt x b) = 0.01 / (1 - 0.03 - 0.06) = 10.99 ms instead of 10 ms
    accounts = slower(0.010)
    grown = A / (1 - 5 * 120 * C - 5 * 600 * B) - 0.010
    assert growth_s(accounts) == pytest.approx(119 * grown, rel=0.02)
    row = slots.row(accounts)
    assert saves(slots.LINK, row, "tpot", accounts, 119.0) == pytest.approx(-grown, rel=0.02)
    assert saves(slots.LINK, row, "e2e", accounts, 1.0) == pytest.approx(accounts.queue["slots"] - 119 * grown, rel=0.02)
    assert saves(slots.LINK, row, "ttft", accounts, 1.0) == accounts.queue["slots"]


def test_savings_of_a_cap_are_not_said_where_the_engine_would_be_full():
    # 5 x 3800 x 50 µs = 0.95 of every second for the batch alone
    accounts = slower(0.010, 3800.0)
    assert math.isnan(growth_s(accounts))
    assert saves(slots.LINK, slots.row(accounts), "e2e", accounts, 1.0) is None


def test_a_level_is_what_was_observed():
    run = replay(poisson(20, 5, 200, 40), replace(ENGINE, blocks=20_000))
    levels = {
        "scrapes": attribute(window_of(observed(run))).level,
        "log": attribute(window_of(observed(run, log=True))).level,
        "spans": attribute(window_of(observed(run, log=True, spans=True))).level,
        "events": attribute(window_of(replace(observed(run), kv={"stored_blocks": 10.0, "again_blocks": 0.0, "elsewhere_blocks": 0.0, "gaps": 0.0}))).level,
        "events with gaps": attribute(window_of(replace(observed(run), kv={"stored_blocks": 10.0, "again_blocks": 0.0, "elsewhere_blocks": 0.0, "gaps": 2.0}))).level,
        "nothing": attribute(window_of()).level,
    }  # fmt: skip
    assert levels == {
        "scrapes": Level.METRICS, "log": Level.LOGS, "spans": Level.REQUESTS, "events": Level.HASHES, "events with gaps": Level.METRICS, "nothing": Level.STATE,
    }  # fmt: skip


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.dictionaries(st.sampled_from([m.LINK.name for m in CHAIN]), st.floats(-0.2, 0.6)), st.sampled_from(list(TARGETS)))
def test_a_limiting_link_always_keeps_the_rules(seconds: dict[str, float], name: str):
    judged = judge(target(name, 1.0, **seconds), 1000)
    links = {m.LINK.name: m.LINK for m in CHAIN}
    if judged.limiting is None:
        assert judged.verdict == "healthy"
        return
    link = links[judged.limiting]
    assert judged.verdict == "limited"
    assert not link.load
    assert not (name == "tpot" and link.grows)
    together = sum(max(0.0, seconds.get(k, 0.0)) for k, other in links.items() if (other.cause or k) == (link.cause or link.name))
    assert together > 0.10
    assert np.isclose(adds_up(judged), 0.0)
    assert judged.runner_up != judged.limiting
