"""State-time accounting: what is split adds up to what was measured, and each queue second has the scheduler's reason."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analyzers.books import Books, arrival_rate, books, cap_of, logged_stalls, prompt_seconds
from analyzers.links import kv_eviction
from analyzers.model import Engine, Stage

from .engines import ITL_EDGES, NOON, A, B, C, engine_of, interval_of, iteration, made, model_of
from .replay import ENGINE, observed, poisson, replay


def of(engine: Engine, **more: Any) -> Books:
    """The engine's accounting; it must be there."""
    accounts = books(engine, **more)
    assert accounts is not None
    return accounts


def measured(
    requests: float = 10.0,
    *,
    ttft: float | None = 0.2,
    queue: float = 0.05,
    prefill: float = 0.07,
    decode: float = 0.5,
    e2e: float = 0.8,
    firsts: float | None = None,
    **columns: Any,
) -> Engine:
    """Ten seconds of an engine with these means; everything finishes in the last second."""
    last = np.arange(10) == 9
    sums = {"queue_s": queue, "prefill_s": prefill, "decode_s": decode, "e2e_s": e2e}
    row = {name: last * requests * mean for name, mean in sums.items()}
    firsts = requests if firsts is None else firsts
    if ttft is not None:
        row |= {"ttft_s": last * firsts * ttft, "ttft_n": last * firsts}
    row |= {
        "e2e_n": last * requests,
        "request_output_tokens": last * requests * 10,
        "request_prompt_tokens": last * requests * 100,
    }
    row |= {"request_prompt_n": last * requests, "running": 1.0, "running_before": 1.0, "waiting": 0.0, "kv_usage_ratio": 0.1}
    return made(interval_of(10, **{**row, **columns}))


# -- stages ----------------------------------------------------------------------------------------------------------------
def test_nothing_is_accounted_without_finished_requests():
    assert books(Engine("", "")) is None
    assert books(made(interval_of(10, running=3.0))) is None


@pytest.mark.parametrize("name", ["e2e_s", "queue_s", "prefill_s", "decode_s"])
def test_nothing_is_accounted_without_a_stage_histogram(name: str):
    engine = measured()
    assert books(replace(engine, total={k: v for k, v in engine.total.items() if k != name})) is None


def test_stages_are_measured_means_and_differences_that_add_up_to_e2e():
    stages = of(measured(ttft=0.2, queue=0.05, prefill=0.07, decode=0.5, e2e=0.8)).stages
    # front end 0.2 - 0.05 - 0.07, output 0.8 - 0.2 - 0.5
    assert stages == pytest.approx(
        {Stage.FRONTEND: 0.08, Stage.QUEUE: 0.05, Stage.PREFILL: 0.07, Stage.DECODE: 0.5, Stage.OUTPUT: 0.1}
    )
    assert sum(stages.values()) == pytest.approx(0.8)


def test_a_negative_residue_stays_and_is_said():
    accounts = of(measured(ttft=0.2, queue=0.05, prefill=0.07, decode=0.5, e2e=0.65))
    assert accounts.stages[Stage.OUTPUT] == pytest.approx(-0.05)  # 0.65 - 0.2 - 0.5
    assert sum(accounts.stages.values()) == pytest.approx(0.65)
    assert any("below zero" in note for note in accounts.notes)


def test_a_ttft_of_many_requests_that_did_not_finish_is_bounded_by_those_that_did():
    # 20 first tokens of 0.4 s, 10 finished: 0.4 - 0.12 = 0.28 of front end, but E2E leaves only 0.8 - 0.62 = 0.18
    accounts = of(measured(ttft=0.4, firsts=20.0))
    assert accounts.stages[Stage.FRONTEND] == pytest.approx(0.18)
    assert accounts.stages[Stage.OUTPUT] == pytest.approx(0.0)
    assert accounts.ttft_s == pytest.approx(0.4)  # TTFT itself is as measured
    assert any("TTFT counts 20 requests, the stages only the 10 that finished" in note for note in accounts.notes)


def test_a_tenth_more_first_tokens_than_finishes_is_no_other_population():
    accounts = of(measured(ttft=0.2, firsts=11.0))
    assert accounts.stages[Stage.FRONTEND] == pytest.approx(0.08)
    assert not any("TTFT counts" in note for note in accounts.notes)


def test_without_ttft_front_end_and_output_are_one_number_and_that_is_said():
    accounts = of(measured(ttft=None))
    assert accounts.stages[Stage.FRONTEND] == pytest.approx(0.18)
    assert accounts.stages[Stage.OUTPUT] == 0.0
    assert math.isnan(accounts.ttft_s)
    assert any("TTFT is not exported" in note for note in accounts.notes)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(*(st.floats(0, 3) for _ in range(5)), st.sampled_from([10.0, 14.0]))
def test_stages_add_up_whatever_was_measured(
    frontend: float, queue: float, prefill: float, decode: float, output: float, firsts: float
):
    e2e = frontend + queue + prefill + decode + output
    accounts = of(measured(ttft=frontend + queue + prefill, queue=queue, prefill=prefill, decode=decode, e2e=e2e, firsts=firsts))
    assert sum(accounts.stages.values()) == pytest.approx(e2e, abs=1e-9)
    assert sum(accounts.queue.values()) == pytest.approx(accounts.stages[Stage.QUEUE], abs=1e-9)
    assert sum(accounts.prefill.values()) == pytest.approx(accounts.stages[Stage.PREFILL], abs=1e-9)
    assert sum(accounts.decode.values()) == pytest.approx(accounts.stages[Stage.DECODE], abs=1e-9)


# -- queue reasons ---------------------------------------------------------------------------------------------------------
def waited(seconds: float = 2.0, *, cap: float | None = 8, facts: dict | None = None, n: int = 10, **columns: Any) -> Engine:
    """Return an engine of `n` seconds whose 10 requests waited `seconds` on average, with steps of 0.1 s and gauges that agree."""
    row = {"running": 4.0, "waiting": 2.0, "deferred": 0.0, "kv_usage_ratio": 0.3, "preemptions": 0.0, "step_n": 10.0, **columns}
    row |= {
        f"{name}_before": row[name]
        for name in ("running", "waiting", "deferred", "kv_usage_ratio")
        if f"{name}_before" not in row
    }
    last = np.arange(n) == n - 1
    integral = float(np.broadcast_to(row["running"], (n,)).sum())
    row = {
        "queue_s": last * 10 * seconds, "prefill_s": 0.0, "decode_s": last * integral, "e2e_s": last * (10 * seconds + integral), "e2e_n": last * 10.0,
        "ttft_s": last * 10 * seconds, "ttft_n": last * 10.0, "prompt_tokens": last * 1000.0, "computed_tokens": last * 1000.0, "local_hit_tokens": 0.0,
        "generation_tokens": 100.0, "request_prompt_tokens": last * 1000.0, "request_prompt_n": last * 10.0, "request_output_tokens": last * 100.0, **row,
    }  # fmt: skip
    return made(interval_of(n, **row), {"max_num_seqs": cap, **(facts or {})})


def reasons(engine: Engine) -> dict[str, float]:
    """Queue seconds by reason, without those that hold nothing."""
    return {name: round(seconds, 9) for name, seconds in of(engine).queue.items() if seconds}


def test_without_waiting_there_are_no_reasons():
    assert reasons(waited(0.0, waiting=0.0)) == {}


def test_waiting_at_the_cap_is_for_a_slot():
    assert reasons(waited(running=8.0)) == {"slots": 2.0}


def test_waiting_with_blocks_short_of_the_head_of_the_line_is_for_kv():
    # the head needs 100 tokens, 7 blocks and one more of 1000: short above 1 - max(0.00725, 0.05) - 0.02 = 0.93
    assert reasons(waited(kv_usage_ratio=0.94, facts={"kv_blocks": 1000.0})) == {"kv": 2.0}
    assert "kv" not in reasons(waited(kv_usage_ratio=0.92, facts={"kv_blocks": 1000.0}))


def test_a_long_head_of_the_line_is_short_of_blocks_earlier():
    # 100 tokens of a pool of 50 blocks of 16: (100 + 16) / 16 / 50 = 0.145; short above 1 - 0.145 - 0.02 = 0.835
    assert reasons(waited(kv_usage_ratio=0.85, facts={"kv_blocks": 50.0})) == {"kv": 2.0}
    assert "kv" not in reasons(waited(kv_usage_ratio=0.82, facts={"kv_blocks": 50.0}))


def test_waiting_while_requests_are_preempted_is_for_kv_even_at_the_cap():
    # above 0.3 preemptions a second
    assert reasons(waited(running=8.0, preemptions=1.0)) == {"kv": 2.0}
    assert reasons(waited(running=8.0, preemptions=0.2)) == {"slots": 2.0}


def test_waiting_for_remote_blocks_is_deferred():
    # 1 of 2 waiting requests is deferred; steps of 0.1 s: 0.05 behind the step in flight, the rest behind a full budget
    assert reasons(waited(deferred=1.0)) == {"deferred": 1.0, "step": 0.05, "budget": 0.95}


def test_all_other_waiting_is_behind_the_step_in_flight_and_a_full_budget():
    assert reasons(waited(2.0)) == {"step": 0.05, "budget": 1.95}  # half of a step of 0.1 s
    assert reasons(waited(0.03)) == {"step": 0.03}


def test_reasons_share_the_queue_by_the_waiting_in_their_intervals():
    # 5 s at the cap with 1 waiting, 5 s short of blocks with 3 waiting: a quarter and three quarters
    first = np.arange(10) < 5
    engine = waited(
        running=np.where(first, 8.0, 4.0), waiting=np.where(first, 1.0, 3.0), kv_usage_ratio=np.where(first, 0.3, 0.97)
    )
    assert reasons(engine) == {"slots": 0.5, "kv": 1.5}
    assert of(engine).seen["slots_share"] == pytest.approx(0.25)
    assert of(engine).seen["waiting_max"] == 3.0


def test_waits_that_no_scrape_saw_are_behind_a_step_or_a_budget():
    assert reasons(waited(0.2, waiting=0.0)) == {"step": 0.05, "budget": 0.15}


def test_texts_without_a_clock_give_no_reasons():
    assert reasons(waited(2.0, running=8.0, timed=False)) == {"step": 0.05, "budget": 1.95}


def test_stalls_hold_up_who_stands_in_the_line_and_who_arrives():
    accounts = of(stalled(8.0, 0.5, prefill_s=0.3), model=model_of())
    count, length = accounts.stalls
    share = accounts.decode["stall"] / accounts.stages[Stage.DECODE]
    assert share > 0
    arrived = 5 * count * length**2 / 2 / 300  # 5 a second, each waits for half of the stall
    assert accounts.queue["stall"] == pytest.approx(share * accounts.stages[Stage.QUEUE] + arrived, rel=0.02)
    assert accounts.prefill["stall"] == pytest.approx(share * accounts.stages[Stage.PREFILL], rel=0.02)
    assert accounts.stalled_s == 0.0  # the front end is nominal
    assert sum(accounts.queue.values()) == pytest.approx(accounts.stages[Stage.QUEUE])
    assert sum(accounts.prefill.values()) == pytest.approx(accounts.stages[Stage.PREFILL])


def test_who_arrives_in_a_stall_waits_in_the_input_queue_where_the_front_end_is_longer_than_nominal():
    accounts = of(replace(stalled(8.0, 0.5), total=with_frontend(stalled(8.0, 0.5), 0.5)), model=model_of())
    count, length = accounts.stalls
    assert accounts.stalled_s == pytest.approx(5 * count * length**2 / 2 / 300, rel=0.02)
    share = accounts.decode["stall"] / accounts.stages[Stage.DECODE]
    assert accounts.queue["stall"] == pytest.approx(share * accounts.stages[Stage.QUEUE])


def with_frontend(engine: Engine, seconds: float) -> dict[str, float]:
    """The engine's totals with so many seconds of front end a request."""
    t = engine.total
    more = t["e2e_n"] * seconds
    return {**t, "ttft_s": t["ttft_s"] + more, "e2e_s": t["e2e_s"] + more}


# -- the cap -----------------------------------------------------------------------------------------------------------------
def test_the_cap_is_an_engine_argument():
    assert cap_of(waited(cap=8)) == (8.0, "engine argument")


def test_an_unknown_cap_is_where_running_stands_still_while_requests_wait():
    cap, how = cap_of(waited(cap=None, facts={"args_known": False}, running=6.0))
    assert cap == 6.0
    assert how == "inferred: running stood at 6 in 100 % of the scrapes with waiting requests"


@pytest.mark.parametrize(
    "columns",
    [
        {"running": [6, 5, 4, 3, 2, 1, 2, 3, 4, 5]},  # never stands still
        {"running": 6.0, "kv_usage_ratio": 0.95},  # blocks are short
        {"running": 6.0, "waiting": [0, 0, 0, 0, 0, 0, 0, 2, 2, 2]},  # fewer than 4 scrapes with waiting requests
    ],
)
def test_no_cap_is_inferred_otherwise(columns: dict):
    columns = {name: np.array(value, float) for name, value in columns.items()}
    assert math.isnan(cap_of(waited(cap=None, facts={"args_known": False}, **columns))[0])


def test_known_arguments_that_set_no_cap_leave_only_the_defaults():
    assert math.isnan(cap_of(waited(cap=None, running=6.0))[0])
    assert cap_of(waited(cap=None, running=256.0))[0] == 256.0


# -- Little's law ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("times", "holds"), [(1.0, True), (1.09, True), (1.11, False), (0.91, True), (0.89, False)])
def test_gauges_must_hold_the_seconds_of_the_histograms_within_a_tenth(times: float, holds: bool):
    # gauges hold 4 running + 2 waiting for 10 s = 60 request seconds
    engine = waited(2.0)
    accounts = of(replace(engine, total={**engine.total, "queue_s": 20.0, "decode_s": 60.0 / times - 20.0}))
    assert accounts.little == pytest.approx(times)
    assert accounts.gauges_hold is holds


def test_gauges_that_do_not_match_make_the_queue_unread_and_that_is_refused():
    engine = waited(2.0)
    accounts = of(replace(engine, total={**engine.total, "decode_s": 100.0}))
    # 60 of 120 seconds; half a step of 0.1 s is known whatever
    assert accounts.little == pytest.approx(0.5)
    assert {name: round(x, 9) for name, x in accounts.queue.items() if x} == {"step": 0.05, "unread": 1.95}
    refusal = next(r for r in accounts.refusals if "why requests waited" in r.what)
    assert "0.50 times" in refusal.what
    assert refusal.measure == "a drained run or a longer window, scraped without holes"


def test_a_reason_that_nearly_always_held_stands_although_the_gauges_do_not_match():
    engine = waited(2.0, running=8.0)
    accounts = of(replace(engine, total={**engine.total, "decode_s": 200.0}))
    assert not accounts.gauges_hold
    assert {name: x for name, x in accounts.queue.items() if x} == {"slots": 2.0}


def test_stages_stand_although_the_gauges_do_not_match():
    engine = waited(2.0)
    accounts = of(replace(engine, total={**engine.total, "decode_s": 100.0, "e2e_s": 125.0, "ttft_s": 23.0}))
    assert accounts.stages == pytest.approx(
        {Stage.FRONTEND: 0.3, Stage.QUEUE: 2.0, Stage.PREFILL: 0.0, Stage.DECODE: 10.0, Stage.OUTPUT: 0.2}
    )


def test_without_a_clock_there_is_no_check():
    assert math.isnan(of(waited(2.0, timed=False)).little)
    assert not of(waited(2.0, timed=False)).gauges_hold


def test_scrapes_of_short_requests_are_samples_and_may_scatter():
    # 2 or 10 of 6 on average: a standard error of 4 / sqrt(10) / 6 = 0.21; 30 % off is within two
    running = np.array([0.0, 8.0] * 5)
    engine = waited(2.0, running=running, running_before=running)
    seen = running.sum() + 20.0
    accounts = of(replace(engine, total={**engine.total, "decode_s": seen / 1.3 - 20.0}))
    assert accounts.little == pytest.approx(1.3)
    assert accounts.gauges_hold


def test_a_restart_is_left_out_of_the_gauges_integral():
    engine = waited(2.0, restarted=np.arange(10) == 4)
    assert of(engine).little == pytest.approx(54 / 60)


def preempted(waiting: float = 2.0) -> Engine:
    """Return an engine whose requests waited 0.5 s at first, and the rest of what the gauge holds again: inside of decode."""
    engine = waited(0.5, preemptions=1.0, waiting=waiting)
    return replace(engine, total={**engine.total, "decode_s": 10 * (4.0 + waiting - 0.5), "e2e_s": 10 * (4.0 + waiting)})


# -- preemption ------------------------------------------------------------------------------------------------------------
def test_waiting_beyond_the_first_waits_is_waiting_after_preemption():
    # the gauge holds 2 x 10 s, first waits were 10 x 0.5 s: 15 s of waiting again, 1.5 s a request
    accounts = of(preempted())
    assert accounts.requeue_s == pytest.approx(1.5)
    assert accounts.requeue_unread_s == 0.0


def test_what_unfinished_requests_waited_is_not_waiting_again():
    # the histograms lack 15 of the gauges' 60 s: those may be first waits of requests that have not finished
    assert sum(of(waited(0.5, preemptions=1.0), model=model_of(a=0.01, b=1e-3, c=0.0)).decode.values()) == pytest.approx(4.0)  # all steps
    accounts = of(waited(0.5, preemptions=1.0), model=model_of(a=1e-4, b=1e-3, c=0.0))
    assert accounts.little == pytest.approx(60 / 45)
    assert (accounts.requeue_s, accounts.decode["requeue"]) == (0.0, 0.0)
    assert accounts.requeue_unread_s == pytest.approx(1.5)
    assert sum(accounts.decode.values()) == pytest.approx(4.0 - 1.5)  # which no cell claims
    part = kv_eviction.row(accounts)
    assert part.bound is not None
    assert part.bound[Stage.DECODE] >= 1.5
    assert any("waiting again after a preemption is not in it: up to 1.5 s a request" in said for said in part.conditions)


def test_without_preemptions_nobody_waits_again():
    assert of(waited(0.5)).requeue_s == 0.0


def test_waiting_again_and_computing_again_are_parts_of_decode():
    # 10 requests decode 4 s each and wait 15 s again; 10 preemptions x (100 + 10 / 2) tokens x half computed again
    accounts = of(preempted(), model=model_of(a=0.01, b=1e-3, c=0.0))
    again = 10 * 105 / 2
    seconds = 10 * 0.01 + again * 1e-3  # a step each, and the tokens
    assert accounts.decode["requeue"] == pytest.approx(1.5)
    assert accounts.decode["recompute"] == pytest.approx(seconds / 10)
    assert sum(accounts.decode.values()) == pytest.approx(5.5)


def test_waiting_again_is_at_most_four_fifths_of_decode():
    accounts = of(preempted(waiting=20.0), model=model_of())
    assert accounts.requeue_s == pytest.approx(19.5)  # as the gauge says
    assert accounts.decode["requeue"] + accounts.decode["recompute"] == pytest.approx(0.8 * 23.5)


def test_without_step_costs_waiting_again_is_still_known():
    accounts = of(preempted())
    assert not accounts.model.ok
    assert accounts.decode["requeue"] == pytest.approx(1.5)
    assert accounts.decode["unread"] == pytest.approx(4.0)


# -- prefill and decode --------------------------------------------------------------------------------------------------------
def steady(**more: Any) -> Books:
    """5 requests a second of 600 prompt and 120 output tokens: prompts take 5 x 600 x 20 µs = 0.06 s of every second."""
    return of(engine_of(swing=0.0, rate=5, prompt=600, output=120, **more), model=model_of(A, B, C))


def test_decode_is_split_into_steps_alone_the_batch_and_prompts_beside():
    accounts = steady()
    mean = accounts.stages[Stage.DECODE]
    together = mean * 5  # Little's law: 5 requests a second, each `mean` seconds
    assert accounts.decode["base"] == pytest.approx(119 * (A + C))
    assert accounts.decode["batch"] == pytest.approx(119 * C * (together - 1))
    assert accounts.decode["prompts"] == pytest.approx(0.06 * mean)
    assert accounts.scale == pytest.approx(1.0)


def test_costs_that_are_off_are_scaled_to_the_measured_decode():
    accounts = of(engine_of(swing=0.0), model=model_of(A / 2, B / 2, C / 2))
    assert accounts.decode == pytest.approx(dict(steady().decode))


def test_a_prompt_of_its_own_work_leaves_nothing_to_others():
    # 2 steps of 0.01 and 600 x 20 µs
    assert {k: v for k, v in steady().prefill.items() if abs(v) > 1e-12} == pytest.approx({"own": 0.032})


def test_prefill_beyond_the_own_work_is_others_prompts():
    accounts = steady(prefill_s=0.1)
    assert accounts.prefill["own"] == pytest.approx(0.032)
    assert accounts.prefill["others"] == pytest.approx(0.068)


def test_the_own_prefill_is_at_most_what_was_measured():
    assert steady(prefill_s=0.01).prefill == pytest.approx(
        {"own": 0.01, "extra": 0.0, "others": 0.0, "unread": 0.0, "stall": 0.0}
    )


def test_avoidable_misses_are_extra_prefill():
    # a quarter of 180,000 prompt tokens was hit; 2250 blocks of 16 stored again are another fifth:
    # computed 450 of 600 tokens, at best 330: 120 x 20 µs
    kv = {"stored_blocks": 10_000.0, "again_blocks": 2250.0, "elsewhere_blocks": 0.0, "block_size": 16.0, "gaps": 0.0}
    accounts = steady(hit=0.25, kv=kv, prefill_s=0.1)
    assert accounts.hits.endless == pytest.approx(0.45)
    assert accounts.prefill["own"] == pytest.approx(0.02 + 330 * B)
    assert accounts.prefill["extra"] == pytest.approx(120 * B)
    assert sum(accounts.prefill.values()) == pytest.approx(0.1)


def test_a_prompt_above_the_graph_size_takes_at_least_its_launch():
    accounts = of(engine_of(swing=0.0, prefill_s=0.2), model=model_of(launch_s=0.05, graph=512))
    assert accounts.prefill["own"] == pytest.approx(0.02 + 0.05)  # 600 tokens would cost 0.012


def test_without_step_costs_prefill_and_decode_are_unread():
    accounts = of(engine_of(seconds=8))
    assert accounts.prefill["unread"] == pytest.approx(accounts.stages[Stage.PREFILL])
    assert accounts.decode["unread"] == pytest.approx(accounts.stages[Stage.DECODE])
    assert any("a longer recording" in r.measure for r in accounts.refusals)


# -- input dwell -------------------------------------------------------------------------------------------------------------
def test_the_wait_for_the_step_in_flight_is_what_prompts_fill_of_it():
    # 5 prompts a second of 0.012 s: a twentieth of the steps is twice as long, meets twice the arrivals and holds each twice as long
    accounts = steady(frontend_s=0.5)
    plain = A + C * accounts.stages[Stage.DECODE] * 5
    n = (1 - 0.06) / plain
    mixed = n * (1 - math.exp(-5 / n))  # some steps have two prompts
    squares = (n - mixed) * plain**2 + mixed * (plain + 0.06 / mixed) ** 2
    assert accounts.in_flight_s == pytest.approx(squares / 2, rel=0.05)
    assert accounts.dwell_s == pytest.approx(squares / 2 - plain / 2, rel=0.05)


def test_the_dwell_is_no_more_than_the_front_end_beyond_its_nominal_12_ms():
    assert steady(frontend_s=0.0121).dwell_s == pytest.approx(0.0001)
    assert steady(frontend_s=0.004).dwell_s == 0.0


def test_without_step_costs_there_is_no_dwell():
    assert of(engine_of(seconds=8, frontend_s=0.5)).dwell_s == 0.0


# -- stalls ------------------------------------------------------------------------------------------------------------------
def stalled(gaps: float = 40.0, bucket: float = 2.5, *, preemptions: float = 0.0, waiting: float = 1.0, **more: Any) -> Engine:
    """Return an engine of which `gaps` token gaps lie in the bucket up to `bucket` seconds."""
    counts = np.where(np.array(ITL_EDGES) == bucket, gaps, 0.0) + np.where(np.array(ITL_EDGES) == 0.025, 20_000.0, 0.0)
    histogram = {"vllm:inter_token_latency_seconds": (np.array(ITL_EDGES), counts)}
    return engine_of(
        swing=0.2,
        waiting=waiting,
        bucket=histogram,
        columns={"preemptions": np.where(np.arange(60) == 30, preemptions, 0.0)},
        **more,
    )


def test_token_gaps_beyond_twice_the_largest_modelled_step_are_stalls():
    # 40 gaps between 1 and 2.5 s, sqrt(1 x 2.5) = 1.58 s each, over about 6.5 sequences at once: 6 stalls
    accounts = of(stalled(40.0), model=model_of())
    count, length = accounts.stalls
    together = accounts.stages[Stage.DECODE] * 5
    assert count == pytest.approx(40 / together, rel=0.05)
    assert length == pytest.approx(math.sqrt(2.5))
    assert accounts.decode["stall"] == pytest.approx(40 * math.sqrt(2.5) / accounts.engine.total["e2e_n"])
    assert sum(accounts.decode.values()) == pytest.approx(accounts.stages[Stage.DECODE])


def test_gaps_of_preempted_requests_are_no_stalls():
    assert of(stalled(40.0, preemptions=40.0), model=model_of()).stalls == (0.0, 0.0)
    half = of(stalled(40.0, preemptions=20.0), model=model_of())
    assert half.decode["stall"] == pytest.approx(20 * math.sqrt(2.5) / half.engine.total["e2e_n"])


def test_gaps_that_a_full_budget_explains_are_no_stalls():
    # 8192 tokens x 20 µs = 0.16 s: gaps of 0.2 to 0.3 s are below twice that and 0.01
    assert of(stalled(40.0, 0.3), model=model_of()).stalls == (0.0, 0.0)


def test_gaps_that_the_largest_step_seen_does_not_explain_are_stalls():
    # no step had more than 1024 tokens: 0.03 s, and gaps of 0.2 to 0.3 s are far above twice that
    few = stalled(40.0, 0.3)
    steps = {"vllm:iteration_tokens_total": (np.array([256.0, 1024.0, 8192.0, math.inf]), np.array([5000.0, 300.0, 0.0, 0.0]))}
    accounts = of(replace(few, bucket={**few.bucket, **steps}), model=model_of())
    assert accounts.stalls[1] == pytest.approx(math.sqrt(0.2 * 0.3))
    assert accounts.decode["stall"] == pytest.approx(40 * math.sqrt(0.2 * 0.3) / accounts.engine.total["e2e_n"])
    # one step above all edges: the budget is the most it can have had
    steps = {"vllm:iteration_tokens_total": (np.array([1024.0, math.inf]), np.array([5300.0, 1.0]))}
    assert of(replace(few, bucket={**few.bucket, **steps}), model=model_of()).stalls == (0.0, 0.0)


def test_a_gap_of_one_sequence_is_less_than_a_stall():
    assert of(stalled(3.0), model=model_of()).stalls == (0.0, 0.0)  # 3 gaps of more than 6 sequences at once


def test_without_a_histogram_no_stall_is_seen():
    engine = replace(stalled(), bucket={})
    assert of(engine, model=model_of()).stalls == (0.0, 0.0)


def with_log(**at: float) -> Engine:
    """An engine with millisecond stamps of 400 steps of 10.5 ms that decode 10; `at` adds seconds before the line of a step."""
    steps = iteration(400, A + C * 10 + np.array([at.get(f"line{i}", 0.0) for i in range(400)]), decoding=10.0)
    return engine_of(swing=0.2, waiting=1.0, step=steps)


def test_millisecond_stamps_show_each_stall_and_who_waited():
    stalls = logged_stalls(with_log(line100=1.0, line300=0.2), model_of())
    assert stalls is not None
    assert [one.seconds for one in stalls] == pytest.approx([1.0, 0.2], abs=0.002)  # stamps are cut to milliseconds
    assert [(one.decoding, one.prefilling) for one in stalls] == [(10.0, 0.0), (10.0, 0.0)]
    # stamp of line 100: 101 steps and the stall
    assert stalls[0].end_ts == pytest.approx(NOON + 101 * (A + C * 10) + 1.0, abs=0.002)
    assert of(with_log(line100=1.0, line300=0.2), model=model_of()).stalls == pytest.approx((2, 0.6), abs=0.001)
    assert of(with_log(line100=1.0, line300=0.2), model=model_of()).decode["stall"] == pytest.approx(10 * 1.2 / 300.5, rel=0.01)


def test_a_stall_beside_a_long_prompt_is_as_long_as_it_was():
    # 1 s in the step before one that computes 8192 tokens (0.17 s), of which asynchronous scheduling stamps a part a line early
    k = np.arange(400)
    prompt = np.where(k == 201, 8192.0, 0.0)
    work = A + C * 10 + B * prompt
    took = work + np.where(k == 200, 1.0 + 0.06, 0.0) - np.where(k == 201, 0.06, 0.0)
    found = logged_stalls(engine_of(step=iteration(400, took, decoding=10.0, prompt=prompt)), model_of())
    assert found is not None
    assert [one.seconds for one in found] == pytest.approx([1.0], abs=0.003)


def test_a_stall_of_two_steps_stops_who_was_being_prefilled():
    # 1 s in each of two steps, the second with prompts of 3 requests
    k = np.arange(400)
    prompt = np.where(k == 201, 3000.0, 0.0)
    took = A + C * 10 + B * prompt + np.where((k == 200) | (k == 201), 1.0, 0.0)
    step = iteration(400, took, decoding=10.0, prompt=prompt) | {"context_requests": np.where(k == 201, 3.0, 0.0)}
    engine = engine_of(step=step, waiting=1.0, swing=0.2)
    found = logged_stalls(engine, model_of())
    assert found is not None
    assert [(one.decoding, one.prefilling) for one in found] == [(10.0, 0.0), (10.0, 3.0)]
    assert sum(one.seconds for one in found) == pytest.approx(2.0, abs=0.003)
    n = engine.total["e2e_n"]
    assert of(engine, model=model_of()).prefill["stall"] == pytest.approx(min(3.0 / n, 0.1), abs=0.01)


def test_a_gap_below_80_ms_or_below_three_steps_is_no_stall():
    assert logged_stalls(with_log(line100=0.079), model_of()) == []
    assert len(logged_stalls(with_log(line100=0.082), model_of())) == 1
    # a step of 50 ms: 80 ms more are not three times it
    slow = model_of(a=0.050)
    steps = iteration(400, 0.050 + C * 10 + np.where(np.arange(400) == 100, 0.090, 0.0), decoding=10.0)
    assert logged_stalls(engine_of(step=steps), slow) == []


def test_an_idle_engine_does_not_stall():
    # nothing for 5 s, then a step that only computes a prompt
    k = np.arange(400)
    steps = iteration(
        400, A + np.where(k == 200, 5.0, 0.0), decoding=np.where(k == 200, 0.0, 1.0), prompt=np.where(k == 200, 500.0, 0.0)
    )
    assert logged_stalls(engine_of(step=steps), model_of()) == []


def test_a_chunk_of_a_long_prompt_is_no_stall_nor_is_its_neighbour():
    # 8192 tokens: 174 ms, of which asynchronous scheduling stamps a part a line early
    k = np.arange(400)
    prompt = np.where(k == 200, 8192.0, 0.0)
    took = np.where(k == 199, 0.1, np.where(k == 200, 0.085, A + C * 10))
    assert logged_stalls(engine_of(step=iteration(400, took, decoding=10.0, prompt=prompt)), model_of()) == []


def test_whole_second_stamps_show_no_stall():
    assert logged_stalls(engine_of(step=iteration(400, 0.0105, decoding=10.0, fine=False)), model_of()) is None


# -- arrivals ------------------------------------------------------------------------------------------------------------------
def test_the_arrival_rate_is_over_the_time_in_which_requests_arrived():
    # 120 s of scrapes, arrivals in the first 60
    first = np.arange(120) < 60
    engine = engine_of(seconds=120, swing=0.0, columns={"e2e_n": np.where(first, 5.0, 0.0), "ttft_n": np.where(first, 5.0, 0.0)})
    assert arrival_rate(engine) == pytest.approx(5.0, rel=0.02)


def test_without_a_clock_or_first_tokens_the_rate_is_unknown():
    assert arrival_rate(engine_of(columns={"timed": False})) is None
    assert arrival_rate(Engine("", "")) is None


# -- a replayed engine -----------------------------------------------------------------------------------------------------------
def test_what_scrapes_show_of_a_replayed_engine_is_accounted_as_it_happened():
    run = replay(poisson(60, 6, 600, 120), replace(ENGINE, blocks=20_000))
    accounts = of(observed(run, frontend_s=0.02))
    queued = np.array([r.scheduled - r.queued for r in run.requests]).mean()
    truth = {
        Stage.QUEUE: queued,
        Stage.PREFILL: run.stage("prefill").mean(),
        Stage.DECODE: run.stage("decode").mean(),
        Stage.OUTPUT: 0.001,
    }
    assert {stage: accounts.stages[stage] for stage in truth} == pytest.approx(truth)
    assert accounts.gauges_hold
    # a request waits 6 ms for the step in flight; what prompts, 12 ms each in one step of 14, add to that wait is dwell
    waited = run.stage("queue").mean() - queued
    assert accounts.stages[Stage.FRONTEND] == pytest.approx(0.02 + waited)
    assert accounts.in_flight_s == pytest.approx(waited, rel=0.1)
    plain = sum(s.end - s.start - B * s.tokens for s in run.steps) / len(run.steps)
    assert accounts.dwell_s == pytest.approx(waited - plain / 2, rel=0.25)


def test_decode_seconds_beside_prompts_are_those_that_happened():
    run = replay(poisson(120, 6, 600, 120), replace(ENGINE, blocks=20_000))
    beside = sum(s.decoding * B * s.tokens for s in run.steps) / len(run.requests)
    batch = sum(s.decoding * C * (s.decoding - 1) for s in run.steps) / len(run.requests)
    accounts = of(observed(run, log=True), model=model_of())
    assert accounts.decode["prompts"] == pytest.approx(beside, rel=0.02)
    assert accounts.decode["batch"] == pytest.approx(batch, rel=0.1)


def test_all_that_prompts_cost_is_the_most_that_misses_could_own():
    accounts = steady(waiting=1.0, prefill_s=0.1)
    assert prompt_seconds(accounts) == pytest.approx({
        Stage.FRONTEND: accounts.dwell_s, Stage.QUEUE: 0.2, Stage.PREFILL: 0.1, Stage.DECODE: accounts.decode["prompts"],
    })  # fmt: skip
