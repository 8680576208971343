"""The twin: each rule of the scheduler on a few requests with the seconds worked out by hand, and a step-by-step reference beside it."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from analyzers.books import Books, books
from analyzers.model import Stage
from analyzers.twin import ENDLESS, GATE, Load, Setup, Twin, _Run, load_of, setup_of, simulate, twin_of, without_long

from .engines import engine_of, model_of
from .replay import ENGINE, observed, poisson, replay, same
from .replay import load_of as requests

# a step of 0.1 s, 1 ms a prompt token, 10 ms a decoding sequence
S = Setup(a=0.1, b=0.001, c=0.01)
DECODE = 0.1 + 0.01  # a step with one decoding sequence


def seconds(load: Load, setup: Setup) -> tuple[list[float], list[float], list[float]]:
    """Queue, prefill and decode seconds of each request."""
    result = simulate(load, setup)
    return tuple([round(float(x), 9) for x in values] for values in (result.queue, result.prefill, result.decode))


def test_one_request_alone_takes_its_prompt_and_a_step_a_token():
    # 100 tokens: 0.1 + 0.1; the first of 4 tokens comes with the prompt, 3 steps of 0.11 follow
    assert seconds(requests((0, 100, 4)), S) == ([0.0], [0.2], [0.33])


def test_an_output_of_one_token_has_no_decode():
    assert seconds(requests((0, 100, 1)), S) == ([0.0], [0.2], [0.0])


FOUND = replace(
    requests((0, 100, 1), (1, 100, 1), (2, 200, 1), (3, 100, 1)), hit=np.array([0.0, 0.8, 0.0, 0.4])
)  # of 500 tokens 120 were found


@pytest.mark.parametrize(
    ("hit", "found"),
    [
        (0.24, [0.0, 0.8, 0.0, 0.4]),  # as it was
        (0.48, [0.0, 0.8, 0.6, 0.4]),  # 120 more: the last that found nothing finds what others do, 0.6
        (0.60, [0.6, 0.8, 0.6, 0.4]),
        (0.70, [0.7, 0.9, 0.7, 0.5]),  # all that found nothing find something: the rest is found by all
        (0.12, [0.0, 0.4, 0.0, 0.2]),  # a smaller pool
    ],
)
def test_a_prefix_is_there_or_not(hit: float, found: list[float]):
    _, prefill, _ = seconds(FOUND, replace(S, hit=hit, hit_now=0.24))
    assert prefill == pytest.approx([0.1 + 0.001 * n * (1 - x) for n, x in zip((100, 100, 200, 100), found, strict=True)])


def test_requests_that_were_not_recorded_all_find_as_much():
    assert seconds(replace(FOUND, hit=None), replace(S, hit=0.5, hit_now=0.24))[1] == pytest.approx([0.15, 0.15, 0.2, 0.15])


def test_a_delay_is_over_before_the_engine_sees_a_request():
    # the first is held up until the second has been served
    late = replace(requests((0, 100, 1), (0.5, 100, 1)), delay=np.array([1.0, 0.0]))
    held, instant = simulate(late, S), simulate(late, replace(S, instant=True))
    assert (held.queue + held.prefill).tolist() == pytest.approx([0.2, 0.2])
    assert held.delay == 0.5
    assert instant.delay == 0.0
    twin = hand_made(late, S)
    assert twin.saved(replace(S, instant=True), "ttft") == pytest.approx(0.5)
    assert twin.saved(replace(S, instant=True), "decode") == pytest.approx(0.0)


def test_no_request_gives_no_seconds():
    result = simulate(requests(), S)
    assert result.queue.shape == (0,)
    assert result.preemptions == 0


def test_an_idle_engine_starts_a_request_when_it_arrives():
    # the first is over at 0.2; the second comes at 10 and does not wait
    assert seconds(requests((0, 100, 1), (10, 100, 1)), S) == ([0.0, 0.0], [0.2, 0.2], [0.0, 0.0])


def test_a_request_waits_for_the_step_in_flight():
    # the first one's step ends at 0.2: who came at 0.05 waited 0.15
    assert seconds(requests((0, 100, 1), (0.05, 100, 1)), S)[0] == [0.0, 0.15]


def test_who_came_first_is_served_first_however_short_the_next_is():
    # budget 100: three steps of 0.1 + 0.1 belong to the long prompt, the short one is scheduled at 0.6
    queue, prefill, _ = seconds(requests((0, 300, 1), (0, 10, 1)), replace(S, budget=100))
    assert queue == [0.0, 0.6]
    assert prefill == [0.6, 0.11]  # 0.1 + 10 x 0.001


def test_a_prompt_is_cut_into_chunks_of_the_token_budget():
    # 100, 100 and 50 tokens: 0.2 + 0.2 + 0.15
    assert seconds(requests((0, 250, 1)), replace(S, budget=100))[1] == [0.55]


def test_what_a_chunk_leaves_of_the_budget_goes_to_the_next_prompt():
    # steps of 100 tokens: 60 + 40, then the other 20: 0.2, then 0.12
    queue, prefill, _ = seconds(requests((0, 60, 1), (0, 60, 1)), replace(S, budget=100))
    assert queue == [0.0, 0.0]
    assert prefill == [0.2, 0.32]


def test_a_long_prompt_threshold_cuts_each_prompt_further_and_leaves_room():
    # at most 50 tokens of a prompt a step: 5 steps, in the first of which the short prompt shares: 0.1 + 0.06
    queue, prefill, _ = seconds(requests((0, 250, 1), (0, 10, 1)), replace(S, budget=100, long_threshold=50))
    assert queue == [0.0, 0.0]
    assert prefill == [0.16 + 4 * 0.15, 0.16]


def test_decodes_come_first_and_take_a_token_of_the_budget_each():
    # 0.2 for the first prompt; then 99 tokens beside its decode: 0.1 + 0.099 + 0.01; the last token: 0.1 + 0.001 + 0.01
    queue, prefill, decode = seconds(requests((0, 100, 3), (0, 100, 1)), replace(S, budget=100))
    assert queue == [0.0, 0.2]
    assert prefill == [0.2, 0.32]
    assert decode == [0.32, 0.0]


def test_a_full_batch_of_decodes_leaves_nothing_for_prompts():
    # budget 2 and two sequences that decode 5 steps of 0.12: the third is scheduled when they are done
    queue, _, _ = seconds(requests((0, 1, 6), (0, 1, 6), (0.01, 1, 1)), replace(S, budget=2))
    assert queue[2] == pytest.approx(0.102 + 5 * 0.12 - 0.01)


def test_running_decodes_share_a_step():
    # 0.1 + 2 x 0.01 a step with two, 0.11 when the shorter one is done
    assert seconds(requests((0, 0.0 + 100, 3), (0, 100, 5)), S)[2] == [0.24, 0.46]


def test_token_pairs_cost_by_the_context_before_each_chunk():
    # q = 1e-6: first chunk 100 x 50, second 100 x 150 pairs: 0.005 + 0.015
    assert seconds(requests((0, 200, 1)), replace(S, budget=100, q=1e-6))[1] == [0.42]


def test_a_step_with_a_prompt_costs_its_own_term_once():
    assert seconds(requests((0, 100, 2), (0, 100, 2)), replace(S, mixed_s=0.05))[1] == [0.35, 0.35]


# -- prefix cache ----------------------------------------------------------------------------------------------------------
def test_hits_are_not_computed():
    assert seconds(requests((0, 100, 1)), replace(S, hit=0.75))[1] == [0.125]


def test_the_last_token_of_a_prompt_is_always_computed():
    assert seconds(requests((0, 100, 1)), replace(S, hit=1.0))[1] == [0.101]


# -- limits ----------------------------------------------------------------------------------------------------------------
def test_no_more_requests_run_than_slots():
    # the first holds the slot for 0.2 + 2 x 0.11
    queue, prefill, _ = seconds(requests((0, 100, 3), (0, 100, 1)), replace(S, slots=1))
    assert queue == [0.0, 0.42]
    assert prefill == [0.2, 0.2]


@pytest.mark.parametrize(("blocks", "at"), [(12, 0.34), (13, 0.23)])
def test_the_whole_prompt_is_reserved_at_admission(blocks: int, at: float):
    # blocks of 4: the first prompt holds 10 from its first chunk of 15, 15, 10 tokens (0.115, 0.115, 0.11).
    # The second needs 3: with 12 blocks it waits until the first is done, with 13 it shares the third step.
    queue, _, _ = seconds(requests((0, 40, 1), (0, 12, 1)), replace(S, budget=15, block_size=4, blocks=blocks))
    assert queue[1] == pytest.approx(at)


@pytest.mark.parametrize(("watermark", "waits"), [(0, 0.0), (1, 0.108)])
def test_the_watermark_stays_free_at_admission(watermark: int, waits: float):
    # 2 blocks of 4 are there and 2 prompts of 4 tokens: the second takes the last block only without a watermark
    setup = replace(S, block_size=4, blocks=2, watermark=watermark)
    queue, _, _ = seconds(requests((0, 4, 1), (0, 4, 1)), setup)
    assert queue[1] == pytest.approx(waits if watermark == 0 else 0.104)


def test_the_head_of_the_line_blocks_those_who_would_fit():
    # 3 blocks: the first holds 2, the second needs 2 and waits; the third needs 1 and waits behind it
    setup = replace(S, block_size=4, blocks=3)
    queue, _, _ = seconds(requests((0, 8, 1), (0, 8, 1), (0, 4, 1)), setup)
    assert queue == [0.0, 0.108, 0.108]


def test_a_prompt_larger_than_the_pool_runs_alone():
    assert seconds(requests((0, 100, 1)), replace(S, block_size=4, blocks=10))[1] == [0.2]


def test_the_newest_is_preempted_when_blocks_run_out_and_computed_again():
    # 3 blocks of 4; both prompts fill one. The first decode needs a block each: the second request gives way.
    # step 1: 0.1 + 8 x 0.001 for both prompts; 5 steps of 0.11 for the first request (its third block at position 8).
    # Then 5 tokens (4 of the prompt, 1 that was out) again: 0.105 with the second token, and 4 steps of 0.11.
    result = simulate(requests((0, 4, 6), (0, 4, 6)), replace(S, block_size=4, blocks=3))
    assert result.preemptions == 1
    assert result.queue.tolist() == [0.0, 0.0]  # a queue of the first wait only
    assert result.prefill == pytest.approx([0.108, 0.108])
    assert result.decode == pytest.approx([5 * DECODE, 5 * DECODE + 0.105 + 4 * DECODE])


def test_a_preempted_prompt_starts_again_from_its_beginning():
    # blocks of 4, pool of 4. The first (1 block, 3 tokens) decodes while the second's 12 tokens come in chunks of 4 beside it:
    # at position 4 the first needs a block, all 4 are held, and the second gives way after its first chunks.
    setup = replace(S, block_size=4, blocks=4, budget=5)
    load = requests((0, 3, 4), (0, 12, 1))
    result, reference = simulate(load, setup), replay(load, setup)
    assert result.preemptions == reference.preemptions == 1
    assert result.prefill == pytest.approx(reference.stage("prefill"))
    # 3 + 2 tokens, 4 beside a decode, then preempted; alone 5 + 5 + 2 tokens after the first one's two further steps
    assert result.prefill[1] == pytest.approx(0.105 + 0.114 + 2 * DECODE + 0.105 + 0.105 + 0.102)


def test_nobody_is_admitted_in_a_step_with_a_preemption_nor_before_the_preempted():
    # as above, and a third request of one block that came during step 1: one block is free after the preemption, but the
    # preempted one stands at the head and needs two: both wait until the first is done (4 steps)
    result = simulate(requests((0, 4, 5), (0, 4, 6), (0.1, 4, 1)), replace(S, block_size=4, blocks=3))
    assert result.preemptions == 1
    assert result.queue[2] == pytest.approx(0.108 + 4 * DECODE - 0.1)


# -- cost rules ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("prompt", "prefill"), [(50, 0.15), (51, 0.4), (400, 0.5)])
def test_a_step_above_the_graph_size_takes_at_least_the_launch_floor(prompt: int, prefill: float):
    # 50 tokens fit the graph; 51 cost max(0.051, 0.3), 400 cost max(0.4, 0.3)
    assert seconds(requests((0, prompt, 1)), replace(S, graph=50, launch_s=0.3))[1] == [prefill]


def test_decodes_count_towards_the_graph_size():
    # 50 tokens beside one decode are 51
    setup = replace(S, graph=50, launch_s=0.3)
    assert seconds(requests((0, 10, 2), (0.05, 50, 1)), setup)[2] == [pytest.approx(0.1 + 0.3 + 0.01), 0.0]


def test_a_decode_step_has_no_launch_floor():
    assert seconds(requests((0, 10, 2)), replace(S, graph=5, launch_s=0.3))[2] == [DECODE]


def test_a_stall_stretches_the_step_in_which_it_falls():
    assert seconds(requests((0, 100, 2)), replace(S, stalls=((0.05, 0.5),))) == ([0.0], [0.7], [DECODE])


def test_a_stall_while_decoding_costs_its_seconds_once():
    # 99 steps of 0.11 and one stall of 1 s
    assert seconds(requests((0, 100, 100)), replace(S, stalls=((1.0, 1.0),)))[2] == [pytest.approx(99 * DECODE + 1.0)]


def test_the_ideal_pool_computes_prompts_elsewhere_without_a_line():
    # budget 100 and slots are no matter: each prompt takes 0.1 + 0.1 of its own, and decodes see no prompts
    queue, prefill, decode = seconds(requests((0, 100, 3), (0, 100, 3), (0.25, 100, 1)), replace(S, budget=100, pool=True))
    assert queue[:2] == [0.0, 0.0]
    assert prefill[:2] == [0.2, 0.2]
    assert decode[:2] == [0.24, 0.24]
    assert prefill[2] == 0.2


def test_alone_a_step_costs_what_one_sequence_costs():
    assert seconds(requests((0, 100, 3), (0, 100, 3)), replace(S, alone=True))[2] == [0.22, 0.22]


def test_speculation_gives_several_tokens_a_step():
    # 4 tokens after the first, 2 a step; 5 after the first take 3 steps
    assert seconds(requests((0, 100, 5)), replace(S, tokens_per_step=2.0))[2] == [0.22]
    assert seconds(requests((0, 100, 6)), replace(S, tokens_per_step=2.0))[2] == [0.33]


def test_a_closed_loop_client_sends_its_next_request_after_its_last_one_ended():
    # client 0 sends at 0, is served at 0.2, thinks 1 s and sends again at 1.2, whatever the recorded arrival says
    load = Load(
        np.array([0.0, 0.1]),
        np.array([100, 100]),
        np.array([1, 1]),
        "by hand",
        client=np.array([0, 0]),
        gap_s=np.array([0.0, 1.0]),
    )
    queue, prefill, _ = seconds(load, S)
    assert queue == [0.0, 0.0]
    assert prefill == [0.2, 0.2]
    run = _Run(load, S)
    run.run()
    assert run.arrival == pytest.approx([0.0, 1.2])


def test_a_slower_engine_slows_a_closed_loop_down_instead_of_building_a_line():
    clients = np.repeat(np.arange(2), 5)[np.argsort(np.tile(np.arange(5), 2), kind="stable")]
    load = Load(np.arange(10) * 0.01, np.full(10, 100), np.full(10, 1), "by hand", client=clients, gap_s=np.full(10, 0.5))
    slow = simulate(load, replace(S, a=1.0))
    opened = simulate(replace(load, client=None, gap_s=None), replace(S, a=1.0, budget=100))
    assert slow.queue.max() < 1.2  # at most the other client's step
    assert opened.queue.max() > 8.0  # ten requests, one a step of 1.1 s


# -- against a reference that takes one step at a time --------------------------------------------------------------------------
LOADS = st.builds(
    poisson,
    st.just(4.0),
    st.sampled_from([2.0, 8.0]),
    st.sampled_from([40.0, 500.0]),
    st.sampled_from([4.0, 60.0]),
    seed=st.integers(0, 1000),
)
ENDLESS_SETUPS = st.builds(
    Setup,
    a=st.just(0.01),
    b=st.just(2e-5),
    c=st.just(5e-5),
    q=st.sampled_from([0.0, 1e-9]),
    launch_s=st.sampled_from([0.0, 0.02]),
    mixed_s=st.sampled_from([0.0, 0.002]),
    graph=st.sampled_from([512.0, math.inf]),
    budget=st.sampled_from([64, 512, 8192]),
    long_threshold=st.sampled_from([100, ENDLESS]),
    slots=st.sampled_from([3, 16, ENDLESS]),
    hit=st.sampled_from([0.0, 0.3, 0.9]),
)


def agree(load: Load, setup: Setup) -> bool:
    """The twin, which skips steps, and the reference, which does not, give the same seconds and preemptions."""
    twin, reference = simulate(load, setup), replay(load, setup)
    return reference.preemptions == twin.preemptions and all(
        same(reference.stage(name), getattr(twin, name)) for name in ("queue", "prefill", "decode")
    )


@settings(max_examples=30, deadline=None, derandomize=True)
@given(LOADS, ENDLESS_SETUPS)
def test_skipping_equal_steps_changes_nothing(load: Load, setup: Setup):
    assert agree(load, setup)


@settings(max_examples=30, deadline=None, derandomize=True, report_multiple_bugs=False)
@given(LOADS, ENDLESS_SETUPS, st.sampled_from([80, 160, 400]), st.sampled_from([1, 4, 16]), st.sampled_from([0, 3]))
@example(poisson(60, 6, 600, 120), replace(ENGINE), 300, 16, 0)
def test_skipping_equal_steps_changes_nothing_when_blocks_are_short(
    load: Load, setup: Setup, blocks: int, size: int, watermark: int
):
    assert agree(load, replace(setup, blocks=blocks * 16 // size, block_size=size, watermark=watermark))


@settings(max_examples=30, deadline=None, derandomize=True, report_multiple_bugs=False)
@given(
    LOADS,
    ENDLESS_SETUPS,
    st.lists(st.tuples(st.sampled_from([0.5, 1.7, 2.9]), st.sampled_from([0.3, 1.0])), min_size=1, max_size=3),
)
@example(requests((0, 16, 101)), replace(ENGINE), [(0.5, 1.0)])
def test_skipping_equal_steps_changes_nothing_when_the_engine_stalls(load: Load, setup: Setup, stalls: list[tuple[float, float]]):
    assert agree(load, replace(setup, stalls=tuple(stalls)))


def test_no_request_keeps_a_block_when_it_ends():
    # 16 tokens of prompt fill a block; the one decode step begins a second
    run = _Run(requests((0, 16, 2), (0, 16, 2)), replace(S, blocks=100))
    run.run()
    assert run.used == 0


@settings(max_examples=20, deadline=None, derandomize=True)
@given(LOADS, ENDLESS_SETUPS)
def test_all_requests_end_and_no_second_is_negative(load: Load, setup: Setup):
    result = simulate(load, setup)
    assert min(result.queue.min(), result.decode.min()) >= 0
    assert result.prefill.min() > 0


# -- calibration, gate, anchors ---------------------------------------------------------------------------------------------
def replayed(setup: Setup) -> tuple[Books, Twin]:
    """An engine that is exactly like the twin's, seen through scrapes and spans, and its twin."""
    accounts = books(observed(replay(poisson(60, 6, 600, 120), setup), spans=True))
    assert accounts is not None
    twin = twin_of(accounts)
    assert twin is not None
    return accounts, twin


def test_a_replay_of_the_true_engine_meets_what_was_measured():
    accounts, twin = replayed(replace(ENGINE, blocks=20_000, slots=7))
    assert twin.holds
    assert twin.calibration == pytest.approx(1.0, abs=0.03)
    assert twin.gate["ttft"] == pytest.approx(1.0, abs=0.1)
    assert twin.gate["decode"] == pytest.approx(1.0, abs=0.02)
    assert twin.base.mean("tpot", twin.load.output) == pytest.approx(
        accounts.stages[Stage.DECODE] / (accounts.output_tokens - 1), rel=0.02
    )


def test_a_replay_of_a_healthy_engine_meets_what_was_measured():
    _, twin = replayed(replace(ENGINE, blocks=20_000))
    assert twin.holds


@pytest.mark.parametrize("error", [0.8, 1.2])
def test_costs_that_are_off_are_scaled_to_the_measured_tokens(error: float):
    engine = observed(replay(poisson(60, 6, 600, 120), replace(ENGINE, blocks=20_000)), spans=True)
    accounts = books(engine, model=model_of(0.010 * error, 20e-6 * error, 50e-6 * error))
    assert accounts is not None
    twin = twin_of(accounts)
    assert twin is not None
    assert twin.calibration == pytest.approx(1 / error, rel=0.03)
    assert twin.gate["decode"] == pytest.approx(1.0, abs=0.02)


def hand_made(load: Load, setup: Setup, times: float = 1.0, gate: float = 1.0) -> Twin:
    """A twin whose engine measured `times` what the replay gives."""
    base = simulate(load, setup)
    measured = {name: times * base.mean(name) for name in ("queue", "prefill", "decode")}
    return Twin(load, setup, base, {"ttft": gate, "decode": 1.0}, measured, 1.0)


@pytest.mark.parametrize(
    ("gate", "holds"), [(0.79, False), (0.8, True), (1.0, True), (1.25, True), (1.26, False), (math.nan, True)]
)
def test_the_gate_is_0_8_to_1_25(gate: float, holds: bool):
    assert GATE == (0.8, 1.25)
    assert hand_made(requests((0, 100, 2), (0, 100, 2)), S, gate=gate).holds is holds


def test_savings_are_anchored_on_what_was_measured():
    # two requests, one slot: the second waits 0.2 + 0.11, a mean of 0.155; measured is twice the replay
    twin = hand_made(requests((0, 100, 2), (0, 100, 2)), replace(S, slots=1), times=2.0)
    # without the cap both prompts share a step of 0.3 and a decode step of 0.12
    assert twin.saved(replace(S), "ttft") == pytest.approx(2 * (0.155 + 0.2 - 0.3))
    assert twin.saved(replace(S), "decode") == pytest.approx(2 * (0.11 - 0.12))
    assert twin.saved(replace(S), "e2e") == pytest.approx(2 * (0.155 + 0.2 - 0.3 + 0.11 - 0.12))
    assert twin.saved(replace(S), "tpot") == pytest.approx(2 * (0.11 - 0.12))  # one token after the first


LONG = requests((0, 1000, 1), (0.05, 10, 1), (0.05, 10, 1), (0.05, 10, 1))


def with_records(twin: Twin) -> Twin:
    """The twin of request records that measured what the replay gives."""
    seen = {name: getattr(twin.base, name) for name in ("queue", "prefill", "decode")}
    return replace(twin, load=replace(twin.load, seen=seen))


def test_without_long_prompts_the_others_do_not_wait_for_them():
    # 1000 tokens in 10 steps of 0.2; three short prompts that came at 0.05 are scheduled at 2.0
    twin = with_records(hand_made(LONG, replace(S, budget=100)))
    assert twin.base.queue.tolist() == pytest.approx([0.0, 1.95, 1.95, 1.95])
    saved = without_long(twin)
    assert saved is not None
    assert saved["ttft"] == pytest.approx(1.95)  # of the three: their own 0.13 stays
    assert saved["e2e"] == pytest.approx(1.95)


def test_without_long_prompts_the_answer_does_not_need_request_records():
    # the long request itself waits 0 and takes 2.0: the mean of all is 2.06, of the others 2.08
    saved = without_long(hand_made(LONG, replace(S, budget=100)))
    assert saved is not None
    assert saved["ttft"] == pytest.approx(1.95)


def test_without_long_prompts_of_which_there_are_none_nothing_is_said():
    assert without_long(hand_made(requests((0, 100, 1), (0, 110, 1), (0, 590, 1)), S)) is None


def test_without_long_prompts_the_engine_may_have_its_faults_fixed_besides():
    # a slot for one: without the long prompt the shorts still follow each other, with slots for all they share a step
    twin = with_records(hand_made(LONG, replace(S, budget=100, slots=1)))
    alone, joint = without_long(twin), without_long(twin, setup=replace(S, budget=100))
    assert alone is not None
    assert joint is not None
    # the three are served at 2.0, 2.11, 2.22; without the long one at 0.05, 0.16, 0.27; with slots all at 0.05, together in 0.13
    assert alone["ttft"] == pytest.approx(1.95)
    assert joint["ttft"] == pytest.approx((1.95 + 2.06 + 2.17) / 3 + 0.11 - 0.13)


# -- what is replayed ---------------------------------------------------------------------------------------------------------
def test_real_requests_are_replayed_where_they_are_known():
    load = poisson(60, 6, 600, 120)
    accounts = books(observed(replay(load, replace(ENGINE, blocks=20_000)), spans=True))
    assert accounts is not None
    replayed = load_of(accounts)
    assert replayed is not None
    assert replayed.how == "request records"
    assert np.allclose(replayed.arrival, load.arrival - load.arrival[0], atol=1e-6)
    assert replayed.prompt.tolist() == load.prompt.tolist()
    assert replayed.seen is not None


def test_without_requests_arrivals_per_interval_get_lengths_of_the_measured_mean():
    accounts = books(engine_of(seconds=60, rate=5, prompt=600, output=120))
    assert accounts is not None
    load = load_of(accounts)
    assert load is not None
    assert load.how == "arrivals per interval, drawn lengths"
    assert len(load.arrival) == pytest.approx(300, abs=12)
    assert load.prompt.mean() == pytest.approx(600, rel=0.01)
    assert load.output.mean() == pytest.approx(120, rel=0.02)
    assert bool((np.diff(load.arrival) >= 0).all())


def test_drawn_loads_depend_on_nothing_but_the_seed():
    accounts = books(engine_of())
    assert accounts is not None
    one, two, other = load_of(accounts, 0), load_of(accounts, 0), load_of(accounts, 1)
    assert one is not None
    assert two is not None
    assert other is not None
    assert one.arrival.tolist() == two.arrival.tolist()
    assert one.arrival.tolist() != other.arrival.tolist()


def test_the_engine_is_replayed_with_its_arguments_and_hits():
    facts = {"max_num_seqs": 7, "max_num_batched_tokens": 2048, "kv_blocks": 5000.0, "block_size": 32, "graph_size": 512}
    accounts = books(engine_of(facts=facts, hit=0.25, swing=0.2))
    assert accounts is not None
    load = load_of(accounts)
    assert load is not None
    setup = setup_of(accounts, load)
    assert (setup.slots, setup.budget, setup.block_size, setup.graph) == (7, 2048, 32, 512)
    assert setup.hit == pytest.approx(0.25)
    assert setup.a == pytest.approx(0.010, rel=0.02)


def test_stalls_are_replayed_when_they_happened_where_the_log_says_it():
    # a stall of 1.2 s at 20 s and one at 35 s, on the clock of the first arrival
    load = poisson(60, 6, 600, 120)
    run = replay(load, replace(ENGINE, blocks=20_000, stalls=((20.0, 1.2), (35.0, 1.2))))
    accounts = books(observed(run, log=True, spans=True))
    assert accounts is not None
    replayed = load_of(accounts)
    assert replayed is not None
    stalls = setup_of(accounts, replayed).stalls
    assert [when for when, _ in stalls] == pytest.approx([20.0 - load.arrival[0], 35.0 - load.arrival[0]], abs=0.1)
    # less the dearest of the steps beside it: the next one computes all prompts that came meanwhile, 7 x 12 ms
    assert [length for _, length in stalls] == pytest.approx([1.2, 1.2], abs=0.1)


def test_what_is_not_known_does_not_limit_the_replay():
    accounts = books(engine_of(facts={"max_num_seqs": None, "kv_blocks": None}))
    assert accounts is not None
    load = load_of(accounts)
    assert load is not None
    setup = setup_of(accounts, load)
    assert (setup.slots, setup.blocks) == (ENDLESS, ENDLESS)


def test_without_a_step_model_there_is_no_twin():
    accounts = books(engine_of(seconds=8))
    assert accounts is not None
    assert not accounts.model.ok
    assert twin_of(accounts) is None
