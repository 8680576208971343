"""The step-time model: known costs come back from synthetic windows, bounds hold, and what the data cannot carry is refused."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analyzers import steps
from analyzers.model import Engine
from analyzers.steps import DEVICES, MIN_WINDOWS, device, fit, rows

from .engines import DENSE, MOE, NOON, A, B, C, counted, engine_of, interval_of, iteration, made, narrow
from .replay import ENGINE, observed, poisson, replay

# -- the fit ---------------------------------------------------------------------------------------------------------------


def test_nothing_is_fitted_without_step_counters():
    model = fit(Engine("", ""))
    assert not model.ok
    assert model.refused is not None
    assert "--enable-logging-iteration-details" in model.refused


def test_exact_windows_give_the_exact_costs():
    model = fit(engine_of(a=0.010, b=20e-6, c=50e-6))
    assert model.ok
    assert (model.a, model.b, model.c) == pytest.approx((0.010, 20e-6, 50e-6), rel=1e-6)
    assert (model.q, model.launch_s, model.mixed_s) == (0, 0, 0)
    assert model.windows == 60
    assert model.residual_ratio < 1e-9


@settings(max_examples=20, deadline=None, derandomize=True)
@given(
    st.sampled_from([0.004, 0.010, 0.030]),
    st.sampled_from([5e-6, 20e-6, 80e-6]),
    st.sampled_from([20e-6, 100e-6, 400e-6]),
    st.sampled_from([2.0, 5.0]),
)
def test_any_costs_come_back_from_exact_windows(a: float, b: float, c: float, rate: float):
    model = fit(engine_of(a=a, b=b, c=c, rate=rate))
    assert model.ok
    assert (model.a, model.b, model.c) == pytest.approx((a, b, c), rel=1e-4)


def test_a_replayed_engine_gives_its_costs_within_a_tenth_of_what_steps_cost():
    # scrapes cut steps and gauges are samples: a within 3 %, b within 30 %; c x D, a twentieth of a step, within 5 % of the step
    model = fit(observed(replay(poisson(120, 6, 600, 120), ENGINE)))
    assert model.a == pytest.approx(A, rel=0.03)
    assert model.b == pytest.approx(B, rel=0.3)
    assert 8 * abs(model.c - C) < 0.05 * A


def test_cost_by_context_is_fitted_where_prompts_differ_much():
    # q = 1 ns a pair: a prompt of 6000 tokens has 18 M pairs, 18 ms beside its 120 ms
    load = poisson(120, 3, 600, 60, long=0.2)
    run = replay(load, replace(ENGINE, q=1e-9))
    model = fit(observed(run, spans=True))
    assert model.prompt_s(6000) == pytest.approx(0.120 + 0.018, rel=0.15)


def test_windows_with_outliers_give_the_same_costs():
    engine = engine_of()
    slow = engine.interval["step_n"].copy()
    slow[[10, 30, 50]] *= 0.5  # three seconds of half the steps: stalls, not costs
    model = fit(made({**engine.interval, "step_n": slow}, bucket=engine.bucket))
    assert (model.a, model.b, model.c) == pytest.approx((A, B, C), rel=1e-3)


@pytest.mark.parametrize("column", ["running", "running_before"])
def test_a_window_in_which_the_engine_idled_is_not_used(column: str):
    idle = engine_of().interval[column].copy()
    idle[:10] = 0.0
    assert fit(engine_of(columns={column: idle})).windows == 50


def test_a_window_of_a_restart_or_behind_a_hole_is_not_used():
    restarted = np.arange(60) == 5
    dt = np.where(np.arange(60) == 20, 10.0, 1.0)
    assert fit(engine_of(columns={"restarted": restarted, "dt_s": dt})).windows == 58


# -- refusals --------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("seconds", "ok"), [(MIN_WINDOWS - 1, False), (MIN_WINDOWS, True)])
def test_fewer_than_twelve_busy_windows_are_refused(seconds: int, ok: bool):
    model = fit(engine_of(seconds=seconds))
    assert MIN_WINDOWS == 12
    assert model.ok is ok
    if not ok:
        assert model.refused == "only 11 busy windows of at least 12: no step costs; give a longer recording"


def test_costs_that_cannot_be_told_apart_are_refused():
    # nothing varies: every second has the same prompts and the same batch
    model = fit(engine_of(swing=1e-5))
    assert model.condition > 1e3
    assert model.refused is not None
    assert "cannot be told apart" in model.refused
    assert "iteration lines" in model.refused


def test_a_batch_that_moves_with_the_prompts_is_said():
    engine = engine_of()
    together = engine.interval["computed_tokens"] / engine.interval["computed_tokens"].mean()
    decode = 15.0 * together
    n = (1 - B * engine.interval["computed_tokens"]) / (A + C * decode / 1.0)
    first = engine.interval["ttft_n"]
    model = fit(engine_of(columns={"step_n": n, "generation_tokens": decode * n + first}))
    assert model.unsplit is not None
    assert "move together (correlation" in model.unsplit
    assert fit(engine).unsplit is None
    assert "hardly vary (by 1 %)" in str(fit(engine_of(surge=0.01)).unsplit)


def test_a_step_must_cost_something():
    # a second has the fewer steps the shorter it is: -0.1 s a step
    row = engine_of().interval
    n = 1 + 0.3 * np.cos(2 * np.pi * np.arange(60) / 5)
    model = fit(made({**row, "step_n": n, "dt_s": row["computed_tokens"] * 4e-4 - 0.1 * n}))
    assert model.refused == "no positive cost of a step fits the windows: no step costs"


# -- bounds ------------------------------------------------------------------------------------------------------------------
def test_a_sequence_costs_at_least_the_reading_of_its_kv_cache():
    # 2 x 2 bytes x 32 layers x 8 heads x 128 = 131,072 bytes a token; context 600 + 120 / 2 = 660 tokens; H100: 3.35 TB/s;
    # four fifths of it: 0.8 x 131072 x 660 / 3.35e12 = 20.66 µs. The data say 5 µs.
    facts = {"shape": DENSE, "device_name": "NVIDIA H100 80GB HBM3"}
    model = fit(engine_of(facts=facts, c=5e-6))
    assert model.c_min == pytest.approx(0.8 * 131_072 * 660 / 3.35e12, rel=1e-6)
    assert model.c >= model.c_min
    assert fit(engine_of(c=5e-6)).c == pytest.approx(5e-6, rel=1e-3)


def test_the_kv_bound_takes_the_dtype_and_the_tensor_parallel_size():
    of = {
        name: steps.kv_bytes_per_token(Engine("", "", facts={"shape": DENSE, **facts}))
        for name, facts in {"bf16": {}, "fp8": {"kv_dtype": "fp8_e4m3"}, "tp2": {"tensor_parallel": 2}}.items()
    }
    assert of == {"bf16": 131_072.0, "fp8": 65_536.0, "tp2": 65_536.0}
    assert math.isnan(steps.kv_bytes_per_token(Engine("", "")))


def test_a_token_costs_at_least_its_multiplications():
    # a layer: 4096 x 128 x (2 x 32 + 2 x 8) + 3 x 4096 x 14336 = 41,943,040 + 176,160,768; 32 layers: 6.98 G parameters;
    # 2 x 6.98e9 / 989e12 FLOP/s = 14.1 µs. The data say 2 µs.
    parameters = 32 * (4096 * 128 * (2 * 32 + 2 * 8) + 3 * 4096 * 14_336)
    facts = {"shape": DENSE, "device_name": "NVIDIA H100 80GB HBM3"}
    model = fit(engine_of(facts=facts, b=2e-6, c=200e-6))
    assert parameters == 6_979_321_856
    assert model.b_min == pytest.approx(2 * parameters / 989e12)
    assert model.b >= model.b_min


def test_of_experts_a_token_passes_through_the_top_k_and_a_gpu_holds_all():
    engine = Engine("", "", facts={"shape": MOE})
    attention = 2048 * 128 * (2 * 32 + 2 * 4)
    assert steps.parameters_per_token(engine) == 48 * (attention + 3 * 2048 * 768 * 8)
    assert steps.parameters_held(engine) == 48 * (attention + 3 * 2048 * 768 * 128) + 2 * 151_936 * 2048


def test_without_shape_or_device_there_are_no_bounds_and_that_is_said():
    for facts in ({}, {"shape": DENSE}, {"device_name": "NVIDIA H100 80GB HBM3"}):
        model = fit(engine_of(facts=facts))
        assert (model.b_min, model.c_min) == (0, 0)
        assert any("config.json" in note for note in model.notes)
    assert not any("config.json" in note for note in fit(engine_of(facts={"shape": DENSE, "device_name": "H100"})).notes)


# -- the device ----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 NVL", "H100 NVL"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA B200", "B200"),
        ("AMD Instinct MI300X", "MI300X"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
    ],
)
def test_a_device_is_known_by_its_name(name: str, known: str):
    found = device(Engine("", "", facts={"device_name": name}))
    assert found == (DEVICES[known][1], DEVICES[known][2], f"device {known}")


def test_the_40_gib_a100_is_recognised_by_the_name_that_cuda_gives():
    found = device(Engine("", "", facts={"device_name": "NVIDIA A100-SXM4-40GB"}))
    assert found == (1.6e12, 312e12, "device A100-SXM4-40GB")


def test_a_device_is_known_by_its_memory_as_the_fastest_with_so_much():
    # 78 GiB: H100 and A100 have 79.6; bounds are lower bounds, so the faster one is taken
    assert device(Engine("", "", facts={"memory_gib": 78.0})) == (3.35e12, 989e12, "fastest device with 78 GiB of memory")
    assert device(Engine("", "", facts={"memory_gib": 39.0})) == (1.6e12, 312e12, "fastest device with 39 GiB of memory")


@pytest.mark.parametrize("facts", [{}, {"memory_gib": 60.0}, {"device_name": "abacus"}, {"memory_gib": 78.0, "device": "cpu"}])
def test_a_device_that_nothing_says_is_unknown(facts: dict):
    assert device(Engine("", "", facts=facts)) is None


# -- the launch floor ----------------------------------------------------------------------------------------------------------
def launched(prompt: float = 900.0, spread: float = 0.8, floor_s: float = 0.06, seconds: int = 120) -> Engine:
    """Windows of exact seconds in which prompts above 512 tokens cost at least the floor, those below what they cost."""
    k = np.arange(seconds)
    prompts = np.array([1.0, 2.0, 3.0, 2.0])[k % 4]
    own = prompt * (1 + spread * np.cos(2 * np.pi * k / 13))  # tokens a prompt, the same within a window
    decode = 10 * (1 + 0.5 * np.cos(2 * np.pi * k / 11))
    work = prompts * np.where(own > 512, np.maximum(B * own, floor_s), B * own)
    n = (1 - work) / (A + C * decode)
    row = interval_of(
        seconds, running=decode, waiting=0.0, deferred=0.0, kv_usage_ratio=0.2, ttft_n=prompts, e2e_n=prompts, computed_tokens=prompts * own,
        prompt_tokens=prompts * own, local_hit_tokens=0.0, external_hit_tokens=0.0, generation_tokens=decode * n + prompts, step_n=n,
        request_prompt_tokens=prompts * own, request_prompt_n=prompts, request_output_tokens=50 * prompts, preemptions=0.0,
    )  # fmt: skip
    edges = (50, 100, 200, 300, 400, 500, 600, 800, 1000, 1300, 1600, 2000, math.inf)
    return made(row, {"graph_size": 512}, bucket={"vllm:request_prompt_tokens": counted(edges, own, prompts)})


def test_steps_above_the_graph_size_show_their_launch_floor():
    # 900 tokens cost 18 ms, the floor is 60 ms; grid points beside it are 50 and 75 ms
    model = fit(launched(floor_s=0.06))
    assert 0.05 <= model.launch_s <= 0.075
    assert model.graph == 512
    assert model.a == pytest.approx(A, rel=0.1)


def test_a_prompt_above_the_graph_size_costs_the_floor_and_one_below_its_tokens():
    model = fit(launched(floor_s=0.06))
    assert model.prompt_s(513) == pytest.approx(model.launch_s)
    assert model.prompt_s(512) == pytest.approx(512 * model.b)


def test_without_a_launch_cost_none_is_found():
    model = fit(launched(floor_s=0.0))
    assert model.launch_s == 0


def test_without_a_known_graph_size_no_floor_is_fitted():
    engine = launched()
    facts = {name: value for name, value in engine.facts.items() if name != "graph_size"}
    model = fit(Engine("", "", interval=engine.interval, total=engine.total, facts=facts, bucket=engine.bucket))
    assert model.launch_s == 0
    assert model.graph == math.inf


# -- the log ---------------------------------------------------------------------------------------------------------------------
def logged(n: int = 640, *, fine: bool = True, scatter_s: float = 0.0) -> dict:
    """Lines of steps with known costs; with `scatter_s` each stamp is early or late by it, as asynchronous scheduling does."""
    k = np.arange(n)
    P = np.where(k % 5 == 0, 400.0 + 300 * np.cos(k / 40), 0.0)
    D = np.round(12 + 8 * np.sin(k / 60))
    lines = iteration(n, A + B * P + C * D, prompt=P, decoding=D, fine=fine)
    return {**lines, "ts": lines["ts"] + scatter_s * np.where(k % 2, 1, -1)}


def test_the_json_log_is_read_in_blocks_of_sixteen_lines():
    windows = rows(made(interval_of(0), step=logged(641)))
    assert windows is not None
    assert windows.source == "blocks of 16 iteration lines"
    assert len(windows.dt) == 40  # 640 steps between 641 stamps
    assert windows.n.tolist() == [16.0] * 40
    first = logged(641)
    assert windows.prompt[0] == first["context_tokens"][1:17].sum()  # what is computed between the stamps of lines 0 and 16
    assert windows.decode[0] == first["generation_requests"][1:17].sum()
    assert windows.dt[0] == pytest.approx(first["ts"][16] - first["ts"][0])


def test_blocks_of_the_json_log_give_the_costs_through_millisecond_stamps():
    # a stamp is off by up to 0.5 ms, a block of 16 steps by up to 1 ms in 160: a tenth of that is left over 100 blocks
    model = fit(made(interval_of(0), step=logged(1601)))
    assert model.a == pytest.approx(A, abs=5e-5)
    assert model.b == pytest.approx(B, abs=1.2e-6)
    assert model.c == pytest.approx(C, abs=5e-6)
    assert model.source == "blocks of 16 iteration lines"


def test_stamps_that_scatter_by_half_a_step_do_not_change_the_costs():
    model = fit(made(interval_of(0), step=logged(1601, scatter_s=0.005)))
    assert model.a == pytest.approx(A, rel=0.02)
    assert model.b == pytest.approx(B, rel=0.1)


GRAPHS = [1, 2, 4, *range(8, 65, 8)]


def decodes(*, empty: bool) -> Engine:
    """2000 steps of 1 to 40 sequences with prompts now and then; with `empty` the graph's empty places cost what sequences cost."""
    k = np.arange(2000)
    D = np.round(20.5 - 19.5 * np.cos(k / 90))
    P = np.where(k % 16 == 3, 400.0 + 300 * np.sin(k), 0.0)
    places = np.array([min(g for g in GRAPHS if g >= d) for d in D]) if empty else D
    step = iteration(2000, A + B * P + C * places, prompt=P, decoding=D)
    return engine_of(step=step, facts={"graph_sizes": GRAPHS})


def test_empty_places_of_cuda_graphs_count_where_they_cost_as_much():
    model = fit(decodes(empty=True))
    assert model.graphs == tuple(GRAPHS)
    assert (model.a, model.b, model.c) == pytest.approx((A, B, C), rel=0.02)
    windows = rows(decodes(empty=True))
    assert windows is not None
    assert (model.batch(windows) >= windows.decode).all()


def test_where_empty_places_cost_nothing_sequences_are_counted():
    model = fit(decodes(empty=False))
    assert model.graphs == ()
    assert (model.a, model.b, model.c) == pytest.approx((A, B, C), rel=0.02)


def test_a_batch_runs_in_the_next_captured_graph():
    assert steps.padded(np.array([0.0, 1, 3, 4, 9, 64, 65]), GRAPHS).tolist() == [0, 1, 4, 4, 16, 64, 65]
    assert steps.padded(np.array([3.0, 9.0]), ()).tolist() == [3, 9]


def test_lines_of_dummy_steps_are_no_steps():
    lines = logged(641)
    lines["dummy"] = np.arange(641) % 4 == 0
    windows = rows(made(interval_of(0), step=lines))
    assert windows is not None
    assert windows.n.sum() == 464  # 641 lines without 161 dummies: 480, of which 29 blocks of 16 lie between two stamps


def test_beside_counts_prompt_tokens_times_decoding_step_by_step():
    lines = logged(641)
    windows = rows(made(interval_of(0), step=lines))
    assert windows is not None
    assert windows.beside is not None
    assert windows.beside[0] == pytest.approx((lines["context_tokens"] * lines["generation_requests"])[1:17].sum())


def test_the_text_log_is_read_by_seconds():
    windows = rows(made(interval_of(0), step=logged(1601, fine=False)))
    assert windows is not None
    assert windows.source == "seconds of iteration lines"
    assert set(windows.dt.tolist()) == {1.0}
    model = fit(made(interval_of(0), step=logged(3201, fine=False)))
    assert model.a == pytest.approx(A, rel=0.05)


def test_scrapes_are_better_than_seconds_of_the_text_log_and_the_json_log_than_both():
    assert rows(made(engine_of().interval, step=logged(641, fine=False))).source == "scrape intervals"
    assert rows(made(engine_of().interval, step=logged(641))).source == "blocks of 16 iteration lines"


def test_a_short_log_gives_way_to_scrapes():
    assert rows(made(engine_of().interval, step=logged(199))).source == "scrape intervals"


def test_prompts_are_placed_where_they_were_computed_when_their_times_are_known():
    # one prompt of 800 tokens scheduled at 0.5 s and done at 1.5 s: half of it in either second
    row = interval_of(3, step_n=50.0, running=1.0, ttft_n=[0, 1, 0], e2e_n=[0, 0, 1], computed_tokens=[0, 800, 0], prompt_tokens=[0, 800, 0],
                      generation_tokens=[0, 50, 50], preemptions=0.0, request_prompt_tokens=[0, 0, 800], request_prompt_n=[0, 0, 1], request_output_tokens=[0, 0, 100])  # fmt: skip
    request = {
        "arrival_ts": np.array([NOON + 0.4]), "ttft_s": np.array([1.1]), "prefill_s": np.array([1.0]), "prompt_tokens": np.array([800.0]),
        "cached_tokens": np.array([0.0]),
    }  # fmt: skip
    windows = rows(made(row, request=request))
    assert windows is not None
    assert windows.prompt.tolist() == pytest.approx([400.0, 400.0, 0.0])
    assert windows.source == "scrape intervals, prompts placed by request times"


# -- several API servers -------------------------------------------------------------------------------------------------------
def test_with_several_api_servers_steps_are_decoded_tokens_over_running():
    # two servers count each step once where both have outputs: the counter says up to twice the steps
    honest = engine_of(prefill_s=0.0)
    twice = engine_of(prefill_s=0.0, facts={"api_servers": 2}, columns={"step_n": 2 * honest.interval["step_n"]})
    windows, true = rows(twice), rows(honest)
    assert windows is not None
    assert true is not None
    assert windows.n == pytest.approx(true.n, rel=1e-3)
    assert fit(twice).a == pytest.approx(A, rel=0.02)


def test_with_several_api_servers_iteration_lines_are_not_used():
    engine = engine_of(facts={"api_servers": 2}, step=logged(641))
    windows = rows(engine)
    assert windows is not None
    assert windows.source == "scrape intervals"


# -- small parts ---------------------------------------------------------------------------------------------------------------
def test_hits_are_local_and_external_over_prompt_tokens():
    engine = Engine(
        "", "", total={"prompt_tokens": 1000.0, "computed_tokens": 400.0, "local_hit_tokens": 500.0, "external_hit_tokens": 100.0}
    )
    assert steps.hit_ratio(engine) == pytest.approx(0.6)


def test_without_tokens_by_source_hits_are_hits_over_queries():
    assert steps.hit_ratio(Engine("", "", total={"prefix_query_tokens": 800.0, "prefix_hit_tokens": 200.0})) == 0.25


def test_with_caching_off_there_are_no_hits_and_without_counters_they_are_unknown():
    assert steps.hit_ratio(Engine("", "", facts={"prefix_caching": False})) == 0.0
    assert math.isnan(steps.hit_ratio(Engine("", "")))


def test_lengths_are_those_of_finished_requests():
    total = {"e2e_n": 4.0, "request_prompt_n": 4.0, "request_prompt_tokens": 2400.0, "request_output_tokens": 480.0}
    bucket = {"vllm:request_prompt_tokens": narrow(600, 4)}
    prompt, output, spread, unknown = steps.lengths(Engine("", "", total=total, bucket=bucket))
    assert (prompt, output) == (600, 120)
    assert spread == pytest.approx(0.0, abs=1e-9)
    assert unknown == 0.5  # without a histogram


@pytest.mark.parametrize(
    ("facts", "step", "tokens"),
    [
        # 10 preemptions x (600 + 120 / 2) tokens, half of them: freed blocks may still be cached
        ({}, {}, (3300.0, 0.0, 6600.0)),
        ({"prefix_caching": False}, {}, (6600.0, 6600.0, 6600.0)),
        # iteration lines: 7000 context tokens where 6000 prompt tokens were computed
        ({}, {"context_tokens": [7000.0], "generation_tokens": [5.0], "generation_requests": [5.0]}, (1000.0, 1000.0, 1000.0)),
        # on a CPU they are generation tokens beyond one a request
        ({}, {"context_tokens": [6000.0], "generation_tokens": [905.0], "generation_requests": [5.0]}, (900.0, 900.0, 900.0)),
        # with several writers there are no lines to count on
        ({"api_servers": 2}, {"context_tokens": [7000.0], "generation_tokens": [5.0], "generation_requests": [5.0]}, (3300.0, 0.0, 6600.0)),
    ],
)  # fmt: skip
def test_tokens_computed_again_after_preemptions(facts: dict, step: dict, tokens: tuple[float, float, float]):
    total = {
        "preemptions": 10.0,
        "e2e_n": 10.0,
        "computed_tokens": 6000.0,
        "request_prompt_tokens": 6000.0,
        "request_output_tokens": 1200.0,
    }
    lines = {name: np.array(values) for name, values in step.items()}
    if lines:
        lines["ts"] = np.array([NOON])
    assert steps.recomputed_tokens(Engine("", "", total=total, facts=facts, step=lines))[:3] == tokens


def test_without_preemptions_nothing_is_computed_again():
    assert steps.recomputed_tokens(Engine("", "", total={"preemptions": 0.0}))[:3] == (0, 0, 0)


def test_least_squares_keep_coefficients_at_or_above_zero():
    # y falls with the second column: its coefficient would be -1
    X = np.stack([np.ones(20), np.arange(20.0)], 1)
    coef, _, _ = steps.non_negative(X, 30.0 - np.arange(20.0))
    assert coef[1] == 0
    assert coef[0] == pytest.approx(20.5)


def test_a_draw_that_cannot_carry_a_fit_keeps_the_model():
    engine = engine_of()
    windows = rows(engine)
    assert windows is not None
    model = fit(engine, windows)
    assert steps.refit(windows, model, np.arange(5)) is model
    assert steps.refit(windows, model, np.arange(60)).a == pytest.approx(model.a)
