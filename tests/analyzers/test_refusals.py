"""Each situation in which something cannot be determined: it is refused, and the text names what to measure and the flag."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from analyzers.attribute import attribute, judge
from analyzers.compare import compare
from analyzers.links import CHAIN
from analyzers.model import TARGETS, Attribution, Engine, Part, Target

from .conftest import ACTIVE
from .engines import MOE, NOON, A, B, C, adds_up, balancedness, engine_of, fleet, iteration, requests_of, said, window_of
from .replay import ENGINE, observed, poisson, replay

EVENTS = {"stored_blocks": 10_000.0, "again_blocks": 0.0, "elsewhere_blocks": 0.0, "block_size": 16.0, "gaps": 0.0, "salts": 0.0}
EXPERTS = {"expert_parallel": True, "tensor_parallel": 2, "shape": MOE, "device_name": "NVIDIA H100 80GB HBM3"}


def judged(*engines: Engine, **more: Any) -> Attribution:
    return attribute(window_of(*engines), **more)


def refused(target: Target) -> str:
    """Only what stands in the list of refusals, not conditions beside numbers."""
    return "\n".join(f"{r.what}: {r.measure}" for r in target.cannot_determine)


# -- fewer than 12 busy windows, fewer than 100 requests ---------------------------------------------------------------------------
def test_without_12_busy_windows_step_costs_are_refused_and_a_longer_recording_is_asked_for():
    result = judged(engine_of(seconds=11, waiting=1.0, facts={"max_num_seqs": 6}))
    for name in TARGETS:
        target = fleet(result, name)
        assert "what the steps of this engine cost" in refused(target)
        assert "a longer recording" in refused(target)
        assert target.part("decode_batch").seconds is None
        assert target.part("engine_stall").seconds is None
    # what needs no step costs stands
    assert fleet(result, "ttft").limiting == "slots"


def test_without_step_costs_what_prompts_cost_decodes_is_said_to_be_unknown():
    part = fleet(judged(engine_of(seconds=11, prompt=3000)), "tpot").part("prefill_backlog")
    assert part.seconds is None or part.bound_s or any("step" in c for c in part.conditions)


def test_without_step_costs_only_a_part_of_the_floor_is_known_and_said_to_be():
    few, whole = engine_of(seconds=9, engine="1"), engine_of(engine="0")
    alone = fleet(judged(few), "e2e")
    assert not alone.floor_whole
    assert alone.floor_s == pytest.approx(0.004 + 0.001)  # front end and delivery
    assert (fleet(judged(few), "tpot").floor_s, fleet(judged(few), "tpot").floor_whole) == (0.0, False)
    together = fleet(judged(whole, few), "e2e")  # one that does not know its own leaves that of both unknown
    assert not together.floor_whole
    assert adds_up(together) < 1e-6
    assert fleet(judged(whole), "e2e").floor_whole
    assert fleet(judged(whole), "e2e").floor_s > 1.0


def test_without_step_costs_the_front_end_is_named_only_where_it_took_longer_than_a_step_of_prompts_may():
    # arrivals wait in the front end for the step in flight, which takes about as long as prefill: here 0.2 s
    may = fleet(judged(engine_of(seconds=9, rate=20, frontend_s=0.15, prefill_s=0.2)), "ttft")
    assert (may.verdict, may.limiting) == ("undetermined", None)
    part = may.part("frontend")
    assert (part.seconds, part.fault_s) == (pytest.approx(0.138), pytest.approx(0.0))
    assert "may be waits for the step in flight" in " ".join(part.conditions)
    surely = fleet(judged(engine_of(seconds=9, rate=20, frontend_s=2.0, prefill_s=0.2)), "ttft")
    assert surely.limiting == "frontend"
    assert surely.part("frontend").fault_s == pytest.approx(2.0 - 0.012 - 0.2, rel=0.01)
    assert surely.part("frontend").saves_s == surely.part("frontend").seconds  # of two runs the whole of it was saved


def test_without_step_counters_scrapes_or_the_flag_of_iteration_lines_are_asked_for():
    target = fleet(judged(engine_of(columns={"step_n": np.nan})), "tpot")
    assert "--enable-logging-iteration-details" in refused(target)
    assert "/metrics" in refused(target)


def test_with_fewer_than_100_requests_ranges_are_wider_and_the_number_is_said():
    few, many = (fleet(judged(engine_of(swing=0.05, rate=r, waiting=1.0, facts={"max_num_seqs": 2})), "e2e") for r in (1.6, 1.7))
    assert "only 96 finished requests" in said(few)
    assert "finished requests" not in said(many)
    for target, more in ((few, 1.645 / 96**0.5), (many, 0.0)):  # the mean of 96 requests is itself off by a sixth
        part = target.part("slots")
        assert part.range_s[1] == pytest.approx(min(part.seconds * (1 + ACTIVE) * (1 + more), target.measured_s), rel=0.01)


def test_fewer_than_5_requests_are_not_judged_and_a_longer_window_is_asked_for():
    target = fleet(judged(engine_of(rate=0.07, waiting=1.0)), "e2e")
    assert (target.verdict, target.limiting) == ("undetermined", None)
    assert "anything from 4 finished requests: a longer window" in refused(target)


# -- Little's law -------------------------------------------------------------------------------------------------------------------
def holes() -> Engine:
    """An engine with a line behind prompts, whose gauges hold 1.3 times the seconds of its histograms."""
    engine = engine_of(waiting=4.0, swing=0.1)
    longer = {name: 1.35 * engine.interval[name] for name in ("running", "running_before")}
    return replace(engine, interval={**engine.interval, **longer})


def test_gauges_that_do_not_match_the_histograms_refuse_the_reasons_of_the_queue():
    target = fleet(judged(holes()), "ttft")
    assert target.verdict == "undetermined"
    assert target.part("slots").seconds is None
    assert "why requests waited" in refused(target)
    assert all(text in refused(target) for text in ("a drained run", "a longer window", "scraped without holes"))


def test_gauges_that_do_not_match_the_histograms_leave_stages_and_the_api_server():
    wrong = holes()
    right = engine_of(waiting=4.0, swing=0.1)
    assert fleet(judged(wrong), "e2e").stages == fleet(judged(right), "e2e").stages
    slow = replace(wrong, total={**wrong.total, "ttft_s": wrong.total["ttft_s"] + 3000.0, "e2e_s": wrong.total["e2e_s"] + 3000.0})
    assert fleet(judged(slow), "ttft").limiting == "frontend"


# -- prompts and batch that cannot be told apart --------------------------------------------------------------------------------------
def test_prompt_tokens_that_hardly_vary_refuse_the_split_between_steps_and_prompts():
    target = fleet(judged(engine_of(surge=0.01)), "tpot")
    assert "iteration lines" in refused(target)
    assert "a step in load" in refused(target)


def test_a_batch_that_moves_with_the_prompts_refuses_the_split_between_them():
    engine = engine_of()
    decode = 15.0 * engine.interval["computed_tokens"] / engine.interval["computed_tokens"].mean()
    n = (1 - B * engine.interval["computed_tokens"]) / (A + C * decode)
    target = fleet(judged(engine_of(columns={"step_n": n, "generation_tokens": decode * n + engine.interval["ttft_n"]})), "tpot")
    assert "iteration lines" in refused(target)
    assert "a step in load" in refused(target)


def test_steps_that_never_differ_refuse_all_step_costs():
    target = fleet(judged(engine_of(swing=1e-5)), "tpot")
    assert target.part("decode_batch").seconds is None
    assert "give iteration lines" in refused(target)


def test_iteration_lines_are_asked_for_with_their_flag():
    assert "--enable-logging-iteration-details" in refused(fleet(judged(engine_of(swing=1e-5)), "tpot"))


TURN_ON = 'vLLM 0.33 with --enable-eplb --eplb-config \'{"log_balancedness": true'


def without(engine: Engine, fact: str) -> Engine:
    return replace(engine, facts={**engine.facts, fact: None})


# -- experts ----------------------------------------------------------------------------------------------------------------------------
def experts(*lines: Any, version: str | None = "0.33.0", steps: int = 640, same: bool = False, **more: Any) -> Engine:
    """Return an MoE over two ranks with iteration lines: every eighth step computes about 2048 prompt tokens beside 16 decodes."""
    k = np.arange(steps)
    prompt = np.where(k % 8 == 0, 2048.0 if same else 2048 + 1024 * np.cos(k / 30), 0.0)
    decoding = 16.0 if same else np.round(16 + 8 * np.sin(k / 50))
    step = iteration(steps, A + B * prompt + C * decoding, prompt=prompt, decoding=decoding)
    return engine_of(facts=EXPERTS, event=tuple(lines), version=version, step=step, **more)


@pytest.mark.parametrize(
    ("engine", "why", "measure"),
    [
        (experts(), "no balancedness line", TURN_ON),
        (experts(*[balancedness(4096, 1.8)] * 2), "2 balancedness lines of steps with at least 512 tokens, of 3", "a longer recording under load"),
        (experts(*[balancedness(500, 1.8)] * 50), "0 balancedness lines of steps with at least 512 tokens, of 3", "a longer recording under load"),
        (experts(*[balancedness(4096, 1.8)] * 9, version="0.24.0"), "the balancedness lines of vLLM 0.24.0 may be over layers, not ranks", TURN_ON),
        (experts(*[balancedness(4096, 1.8)] * 9, version=None), "the balancedness lines of vLLM (version unknown) may be over layers", TURN_ON),
        (without(experts(*[balancedness(4096, 1.8)] * 9), "shape"), "the balancedness lines are there, but the model's shape is not known", "config.json"),
        (replace(experts(*[balancedness(4096, 1.8)] * 9), step={}), "the balancedness lines are there, but no iteration lines", "--enable-logging-iteration-details"),
    ],
)  # fmt: skip
def test_experts_without_three_lines_over_ranks_of_large_steps_are_refused(engine: Engine, why: str, measure: str):
    for name in TARGETS:
        target = fleet(judged(engine), name)
        assert target.verdict == "undetermined"
        part = target.part("moe_imbalance")
        assert part.seconds is None
        assert part.bound_s > 0.1 * target.measured_s
        assert f"MoE imbalance: {why}" in refused(target)
        assert measure in refused(target)


def test_three_lines_of_large_steps_are_enough():
    target = fleet(judged(experts(*[balancedness(4096, 1.8)] * 3)), "e2e")
    assert target.part("moe_imbalance").seconds > 0
    assert target.verdict != "undetermined"


def test_what_three_lines_have_settled_is_not_refused():
    assert "MoE imbalance" not in refused(fleet(judged(experts(*[balancedness(4096, 1.8)] * 3)), "e2e"))


def test_without_step_costs_an_imbalance_that_was_seen_is_not_zero():
    # every block of 16 steps is like the others: nothing can be fitted
    target = fleet(judged(experts(*[balancedness(4096, 1.8)] * 3, same=True)), "e2e")
    part = target.part("moe_imbalance")
    assert any("busiest rank 1.80 times the mean" in text for text in part.evidence)
    assert (part.seconds, part.fact) == (None, "balancedness 0.56")
    assert part.bound_s > 0.1 * target.measured_s
    assert target.verdict == "undetermined"


@pytest.mark.parametrize(
    "facts",
    [
        {"shape": MOE},
        {"expert_parallel": True, "tensor_parallel": 1, "shape": MOE},
        {"expert_parallel": True, "tensor_parallel": 2, "shape": {"layers": 32}},
    ],
)
def test_experts_that_the_configuration_rules_out_do_not_hang_a_verdict(facts: dict):
    target = fleet(judged(engine_of(facts=facts)), "e2e")
    assert target.verdict == "healthy"
    assert not target.part("moe_imbalance").used
    assert refused(target) == ""


# -- evictions, unseen sharing ---------------------------------------------------------------------------------------------------------------
def starved(**more: Any) -> Engine:
    """An engine with hits, whose pool of 16,000 tokens had been written over and over before the recording: misses may be evictions."""
    return engine_of(
        **{"hit": 0.5, "prompt": 3000, "rate": 8, "waiting": 8.0, "facts": {"kv_blocks": 1000.0, "written_tokens": 1e9}, **more}
    )


def test_possible_evictions_without_block_identities_are_refused_and_kv_events_are_asked_for():
    target = fleet(judged(starved()), "ttft")
    assert target.verdict == "undetermined"
    assert target.part("kv_eviction").seconds is None
    assert "their prefix was evicted" in refused(target)
    assert "--kv-events-config" in refused(target)


def test_with_kv_events_they_are_not():
    target = fleet(judged(starved(kv=EVENTS)), "ttft")
    assert target.part("kv_eviction").seconds == 0.0
    assert (target.verdict, target.limiting) == ("limited", "prefill_backlog")
    assert refused(target) == ""


def test_events_with_gaps_are_said_to_have_gaps():
    assert "gap" in said(fleet(judged(starved(kv={**EVENTS, "gaps": 3.0})), "ttft"))


def test_hits_near_0_with_long_prompts_are_not_blamed_on_the_backlog():
    # 10 s of waiting behind prompts of 3000 tokens of which none was hit
    target = fleet(judged(engine_of(prompt=3000, rate=5, waiting=10.0, swing=0.1)), "ttft")
    assert (target.verdict, target.limiting) == ("undetermined", None)
    assert target.part("prefix_cache_miss").seconds is None
    assert target.runner_up == "prefill_backlog"
    assert "prefill backlog or unseen sharing (salt, routing)" in refused(target)
    assert "--kv-events-config" in refused(target)


def test_engines_with_a_cache_each_refuse_what_sharing_would_save_and_name_routing():
    target = fleet(judged(starved(facts={"kv_blocks": 1000.0, "written_tokens": 1e9, "data_parallel": 2})), "ttft")
    assert target.verdict == "undetermined"
    assert "routing by prefix may help" in refused(target)
    assert "--kv-events-config" in refused(target)


def test_salts_are_refused_although_events_are_there():
    target = fleet(judged(engine_of(hit=0.5, prompt=3000, rate=8, waiting=8.0, kv={**EVENTS, "salts": 9.0})), "ttft")
    assert target.part("prefix_cache_miss").seconds is None
    assert "9 cache salts" in refused(target)
    assert "block hashes without salts, or a run with one salt" in refused(target)


# -- caching off -----------------------------------------------------------------------------------------------------------------------------
def test_with_caching_off_misses_are_unknown_and_no_verdict_hangs_on_it():
    result = judged(engine_of(prompt=3000, rate=5, waiting=10.0, swing=0.1, facts={"prefix_caching": False}))
    target = fleet(result, "ttft")
    assert (target.verdict, target.limiting) == ("limited", "prefill_backlog")
    part = target.part("prefix_cache_miss")
    assert (part.seconds, part.used, part.bound_s) == (None, False, None)
    assert "needs a run with it on (--enable-prefix-caching, and KV events)" in said(target)


def test_a_run_with_caching_on_is_asked_for_with_its_flag():
    assert "--enable-prefix-caching" in said(fleet(judged(engine_of(facts={"prefix_caching": False})), "ttft"))


# -- an unknown cap ------------------------------------------------------------------------------------------------------------------------------
UNKNOWN_CAP = {"max_num_seqs": None, "args_known": False}


def test_a_line_behind_as_many_as_ever_ran_is_refused_where_the_cap_is_unknown_and_engine_arguments_are_asked_for():
    # 18 of 60 scrapes stand near the most that ran: too few to infer a cap, and then it may have been one
    target = fleet(judged(engine_of(waiting=4.0, facts=UNKNOWN_CAP)), "ttft")
    slots, backlog = target.part("slots"), target.part("prefill_backlog")
    assert slots.seconds is None
    assert 0.2 * target.measured_s < slots.bound_s < 0.4 * target.measured_s
    assert "engine arguments (--max-num-seqs" in refused(target)
    # with fewer running a cap holds nobody back: that part is the backlog's, and no more
    assert target.limiting == "prefill_backlog"
    known = fleet(judged(engine_of(waiting=4.0)), "ttft").part("prefill_backlog")
    assert backlog.fault_s == pytest.approx(known.fault_s - slots.bound_s, rel=0.02)


def test_where_the_arguments_set_no_cap_the_few_that_run_are_not_at_it():
    # the defaults are 128 sequences and more
    target = fleet(judged(engine_of(waiting=4.0, facts={**UNKNOWN_CAP, "args_known": True})), "ttft")
    assert target.part("slots").seconds == 0.0
    assert "engine arguments" not in refused(target)


def test_a_cap_that_is_inferred_is_said_to_be():
    target = fleet(judged(engine_of(waiting=4.0, swing=0.0, surge=0.2, facts=UNKNOWN_CAP)), "ttft")
    assert target.limiting == "slots"
    assert "cap inferred: running stood at" in said(target)


# -- stalls ----------------------------------------------------------------------------------------------------------------------------------------
def test_stalls_below_the_buckets_are_said_not_to_be_seen():
    assert "stalls below its buckets are not seen" in said(fleet(judged(engine_of()), "tpot"))


def test_for_stalls_below_the_buckets_iteration_lines_are_asked_for():
    conditions = fleet(judged(engine_of()), "tpot").part("engine_stall").conditions
    assert any("iteration lines" in c for c in conditions)


# -- the twin outside its gate --------------------------------------------------------------------------------------------------------------------------
def outside() -> Target:
    """A healthy replay of an engine whose line came from elsewhere: the twin explains none of its waiting."""
    run = replay(poisson(60, 6, 600, 120), replace(ENGINE, blocks=20_000))
    engine = observed(run, spans=True)
    return fleet(judged(replace(engine, total={**engine.total, "queue_s": 360 * 2.0, "ttft_s": engine.total["ttft_s"] + 720, "e2e_s": engine.total["e2e_s"] + 720}), with_twin=True), "ttft")  # fmt: skip


def test_a_twin_outside_its_gate_says_nothing_and_its_gate_is_shown():
    target = outside()
    assert "the twin is outside its gate (twin / measured: ttft 0.01" in said(target)
    assert "savings are the books'" in said(target)
    assert all(p.last_s is None for p in target.parts)


def test_for_a_twin_outside_its_gate_a_paired_run_is_asked_for():
    assert "a paired run" in said(outside())


# -- long prompts -----------------------------------------------------------------------------------------------------------------------------------------
def test_prompts_above_8k_without_context_by_step_ask_for_bins_by_prompt_length():
    target = fleet(judged(engine_of(prompt=12_000, rate=2, hit=0.1, waiting=2.0)), "ttft")
    assert "prompt length" in said(target)


# -- several engines in one series ----------------------------------------------------------------------------------------------------------------------------
def test_several_engines_summed_in_one_series_ask_for_the_engine_label():
    result = judged(engine_of(waiting=4.0, swing=0.1, facts={"data_parallel": 2}))
    for name in TARGETS:
        assert "say 2 engines, its series are of one, or a sum of all" in refused(fleet(result, name))
        assert "`engine` label" in refused(fleet(result, name))


def test_engines_that_all_have_series_of_their_own_are_not_asked_for_it():
    both = [engine_of(waiting=4.0, swing=0.1, facts={"data_parallel": 2}, engine=rank) for rank in "01"]
    assert "`engine` label" not in refused(fleet(judged(*both), "ttft"))
    # behind an external balancer each server is one rank
    own = engine_of(facts={"data_parallel": 2, "args": {"data_parallel_rank": 1}})
    assert "`engine` label" not in refused(fleet(judged(own), "ttft"))


# -- several API servers ------------------------------------------------------------------------------------------------------------------------------------------
def test_steps_that_are_estimated_behind_several_api_servers_are_said_to_be():
    text = said(fleet(judged(engine_of(facts={"api_servers": 4})), "tpot"))
    assert "estimated" in text
    assert "one API server" in text


def test_the_cpu_of_several_api_servers_is_said_to_be_unknown():
    assert fleet(judged(engine_of(facts={"api_servers": 4})), "ttft").part("frontend").fact == "process CPU unknown"


# -- below the noise --------------------------------------------------------------------------------------------------------------------------------------------------
def test_a_saving_of_tpot_below_a_third_of_a_millisecond_is_not_claimed():
    # 2 ms a token, 0.3 ms of them stalls: more than a tenth, less than what two runs differ by
    parts = tuple(
        Part(
            m.LINK.name,
            0.0003 if m.LINK.name == "engine_stall" else 0.0,
            {},
            fault_s=0.0003 if m.LINK.name == "engine_stall" else 0.0,
        )
        for m in CHAIN
    )
    assert judge(Target("tpot", 0.002, 0.0017, 0.0, {}, parts, None, None, "undetermined"), 1000).verdict != "limited"


def test_a_difference_across_two_starts_below_8_percent_is_not_claimed():
    before = engine_of()
    after = replace(
        before,
        total={
            **before.total,
            "decode_s": 1.07 * before.total["decode_s"],
            "e2e_s": before.total["e2e_s"] + 0.07 * before.total["decode_s"],
        },
    )
    change = compare(window_of(before), window_of(after)).changes["tpot"]
    assert change.difference_s == pytest.approx(0.07 * change.before_s)
    assert change.verdict == "same"
    assert "within the noise of two starts" in change.says


# -- an engine that is full ------------------------------------------------------------------------------------------------------------------------------------------------
def crowded() -> Target:
    """20 requests a second, whose prompts and batch take 20 x (2337 x 20 µs + 20 x 50 µs) = 0.955 of every second, at a cap of 70."""
    engine = engine_of(
        rate=20, prompt=2460, hit=0.05, output=20, waiting=100.0, swing=0.03, surge=0.05, facts={"max_num_seqs": 70}
    )
    return fleet(judged(engine), "e2e")


def test_savings_of_a_full_engine_are_not_stated_as_a_number():
    target = crowded()
    assert target.limiting == "slots"
    assert target.part("slots").seconds == pytest.approx(100 / 20, rel=0.02)  # seconds are fine
    assert target.part("slots").saves_s is None


def test_savings_of_a_full_engine_are_said_to_depend_on_how_long_one_looks():
    assert "how long" in said(crowded())


# -- what nobody saw ------------------------------------------------------------------------------------------------------------------------------------------------------------
def test_scrapes_that_failed_in_between_are_counted():
    ok = np.ones(60, bool)
    ok[20:27] = False
    scrape = {"ok": ok, "duration_s": np.full(60, 0.01), "ts": NOON + np.arange(60.0), "timed": np.ones(60, bool)}
    notes = judged(engine_of(scrape=scrape)).notes
    assert "10.0.0.1:8000: 7 scrapes failed in between: holes in the gauges" in notes


def test_preempted_requests_that_wait_again_are_not_aborted():
    # 300 first tokens, 294 finished, nobody runs at the end: 4 wait, of whom as many may wait again as were preempted
    def aborted(preemptions: float) -> int | None:
        last = np.arange(60) == 59
        columns = {"e2e_n": 5.0 - 6.0 * last, "preemptions": preemptions * last}
        return judged(engine_of(swing=0.0, waiting=4.0, columns=columns)).aborted

    assert (aborted(0.0), aborted(3.0), aborted(50.0)) == (6, 3, 2)


def test_requests_that_no_histogram_of_finished_ones_has_are_counted():
    # 360 first tokens, 300 finished, nobody is left running
    first = np.full(60, 6.0)
    engine = engine_of(swing=0.0, columns={"ttft_n": first, "ttft_s": 0.036 * first})
    result = judged(engine)
    assert result.aborted == 60
    assert any(
        note.startswith("60 requests got a first token and are in no finished histogram (aborted, failed or cut by a restart)")
        for note in result.notes
    )
    assert "TTFT counts 360 requests, the stages only the 300 that finished" in said(fleet(result, "ttft"))


# -- what else is not exported ------------------------------------------------------------------------------------------------------------------------------------------------------
def test_without_a_ttft_histogram_there_is_no_ttft_and_the_flag_is_named():
    engine = engine_of(total={"ttft_s": None, "ttft_n": None})
    target = fleet(judged(engine), "ttft")
    assert (target.measured_s, target.verdict) == (None, "undetermined")
    assert "--disable-log-stats" in refused(target)
    assert fleet(judged(engine), "e2e").measured_s is not None


def test_without_the_reasons_of_waiting_transfers_are_unknown_and_the_version_is_named():
    none = {"deferred": np.nan, "deferred_before": np.nan}
    target = fleet(
        judged(engine_of(waiting=4.0, swing=0.1, facts={"connector": True}, columns={**none, "nixl_transfer_s": 0.1})), "ttft"
    )
    assert target.verdict == "undetermined"
    assert target.part("kv_transfer").seconds is None
    assert "num_requests_waiting_by_reason is not exported (vLLM 0.20 has it)" in said(target)


def test_what_speculation_would_not_cost_is_unknown_and_a_run_without_it_is_asked_for():
    columns = {"draft_n": 100.0, "draft_tokens": 300.0, "accepted_tokens": 200.0}
    text = said(fleet(judged(engine_of(columns=columns, facts={"speculative": True})), "tpot"))
    assert "run once without --speculative-config" in text


def test_hits_without_counters_ask_for_a_newer_version():
    none = dict.fromkeys(
        ("computed_tokens", "local_hit_tokens", "external_hit_tokens", "prefix_query_tokens", "prefix_hit_tokens"), np.nan
    )
    target = fleet(judged(engine_of(columns=none, waiting=4.0, swing=0.1)), "ttft")
    assert target.part("prefix_cache_miss").seconds is None
    assert "prefix_cache_hits_total" in refused(target)


def test_an_engine_of_which_only_texts_without_a_clock_are_known_is_judged_by_its_stages():
    target = fleet(judged(engine_of(columns={"timed": False}, frontend_s=0.5)), "ttft")
    assert target.limiting == "frontend"
    assert "why requests waited" in refused(target)


def test_what_clients_saw_before_the_arrival_stamp_is_theirs():
    request = requests_of(300, client_e2e_s=2.0, client_ttft_s=0.5, e2e_s=1.3, ttft_s=0.04)
    text = " ".join(fleet(judged(engine_of(request=request)), "ttft").part("frontend").evidence)
    assert "client" in text
    assert "0.7" in text or "700" in text  # 2.0 - 1.3


def test_an_engine_with_nothing_but_a_name_is_refused_without_an_error():
    result = judged(Engine("", ""))
    assert {name: fleet(result, name).verdict for name in TARGETS} == dict.fromkeys(TARGETS, "undetermined")
    assert all(refused(fleet(result, name)) for name in TARGETS)


def test_without_step_costs_prompts_that_stretch_decodes_are_unknown_although_a_wait_behind_them_is_seen():
    result = judged(engine_of(seconds=9, waiting=2.0))
    assert fleet(result, "ttft").part("prefill_backlog").seconds > 0
    part = fleet(result, "tpot").part("prefill_backlog")
    assert (part.seconds, part.status) == (None, "unknown")
