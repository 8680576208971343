"""Laws over many engines: a larger fault gives a larger part, a healthy engine raises nothing, and what is split adds up."""

import functools
import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from analyzers.attribute import attribute
from analyzers.links import CHAIN
from analyzers.model import TARGETS, Engine, Target
from analyzers.twin import Load, Setup

from .engines import COUNTERS, ITL_EDGES, MOE, adds_up, balancedness, counted, engine_of, fleet, iteration, window_of
from .replay import ENGINE, observed, poisson, replay

HEALTHY = replace(ENGINE, blocks=20_000)
LOAD = poisson(40, 6, 600, 100)
QUICK = (Phase.explicit, Phase.generate)  # an example takes a tenth of a second: a failing one is shown as it was found
TOLERANCE = 0.01  # of the measured value: gauges are samples, and a fit moves a little
LEVELS = {"metrics": {}, "requests": {"log": True, "spans": True}}


def e2e(engine: Engine) -> Target:
    return fleet(attribute(window_of(engine)), "e2e")


# a fault in growing sizes: (link, arguments of `seen` for a size, sizes)
FAULTS: dict[str, tuple[str, Callable[[float], dict], tuple[float, ...]]] = {
    "fewer blocks": ("kv_eviction", lambda size: {"setup": replace(HEALTHY, blocks=size)}, (20_000, 420, 350, 270)),
    "a lower cap": ("slots", lambda size: {"setup": replace(HEALTHY, slots=size)}, (64, 9, 7, 5)),
    "more long prompts": ("prefill_backlog", lambda size: {"load": poisson(40, 6, 600, 100, long=size, long_tokens=12_000)}, (0.0, 0.03, 0.08, 0.15)),
    "more stalls": ("engine_stall", lambda size: {"setup": replace(HEALTHY, stalls=tuple((3.0 + 35 * i / max(1, size), 1.2) for i in range(size)))}, (0, 2, 5, 9)),
    "a slower front end": ("frontend", lambda size: {"frontend_s": size}, (0.004, 0.05, 0.2, 0.8)),
    "slower delivery": ("output", lambda size: {"output_s": size}, (0.001, 0.05, 0.2, 0.8)),
}  # fmt: skip


def seen(level: str, load: Load = LOAD, setup: Setup = HEALTHY, **more: float) -> Engine:
    """A replayed engine as a level shows it."""
    return observed(replay(load, setup), **LEVELS[level], **more)


@functools.cache
def judged(fault: str, size: float, level: str) -> Target:
    """E2E of an engine with a fault of this size."""
    return e2e(seen(level, **FAULTS[fault][1](size)))


@pytest.mark.parametrize(
    ("fault", "level"), [*itertools.product(list(FAULTS)[:4], LEVELS), *itertools.product(list(FAULTS)[4:], ["metrics"])]
)
def test_a_larger_fault_gives_a_larger_part(fault: str, level: str):
    link, _, sizes = FAULTS[fault]
    targets = [judged(fault, size, level) for size in sizes]
    parts = [t.part(link).seconds for t in targets]
    for (smaller, larger), target in zip(itertools.pairwise(parts), targets[1:], strict=True):
        assert larger >= smaller - TOLERANCE * target.measured_s
    assert parts[0] < 0.05 * targets[0].measured_s or fault == "more long prompts"
    assert parts[-1] > 0.1 * targets[-1].measured_s
    assert all(adds_up(t) < 1e-6 for t in targets)


@pytest.mark.parametrize(
    "fault",
    ["fewer blocks", "a lower cap", "a slower front end", "slower delivery", "more stalls"],
)
def test_the_fault_that_was_made_is_the_one_that_is_named(fault: str):
    link, _, sizes = FAULTS[fault]
    target = judged(fault, sizes[-1], "metrics")
    assert (target.verdict, target.limiting) == ("limited", link)


@pytest.mark.parametrize("fault", ["fewer blocks", "a lower cap"])
def test_a_part_is_what_the_fault_cost(fault: str):
    # against the same load on an engine without the fault: 15 % at the level of metrics
    link, _, sizes = FAULTS[fault]
    free = judged(fault, sizes[0], "metrics").measured_s
    for size in sizes[2:]:
        target = judged(fault, size, "metrics")
        assert target.part(link).seconds == pytest.approx(target.measured_s - free, rel=0.15)


@pytest.mark.parametrize("stored", ["again_blocks", "elsewhere_blocks"])
def test_more_blocks_stored_again_or_elsewhere_give_a_larger_part(stored: str):
    link = "kv_eviction" if stored == "again_blocks" else "prefix_cache_miss"
    kv = {"stored_blocks": 6000.0, "again_blocks": 0.0, "elsewhere_blocks": 0.0, "block_size": 16.0, "gaps": 0.0, "salts": 0.0}
    parts = [
        e2e(engine_of(hit=0.2, waiting=2.0, swing=0.1, kv={**kv, stored: blocks})).part(link).seconds
        for blocks in (0.0, 1000.0, 3000.0, 6000.0)
    ]
    assert parts == sorted(parts)
    assert parts[0] == 0.0
    # 96,000 of 180,000 tokens could have been hits, of the 144,000 that were computed: two thirds of 0.4 s of queue and more
    assert parts[-1] > 2 / 3 * 0.39


def test_a_busier_imbalance_gives_a_larger_part():
    facts = {"expert_parallel": True, "tensor_parallel": 2, "shape": MOE, "device_name": "NVIDIA H100 80GB HBM3"}
    k = np.arange(640)
    prompt, decoding = np.where(k % 8 == 0, 2048 + 1024 * np.cos(k / 30), 0.0), np.round(16 + 8 * np.sin(k / 50))
    step = iteration(640, 0.01 + 20e-6 * prompt + 50e-6 * decoding, prompt=prompt, decoding=decoding)
    parts = [
        e2e(engine_of(facts=facts, event=(balancedness(4096, iota),) * 3, version="0.33.0", step=step))
        .part("moe_imbalance")
        .seconds
        for iota in (1.02, 1.2, 1.5, 1.9)
    ]
    assert parts == sorted(parts)
    assert parts[0] == 0.0
    assert parts[-1] > 0


def test_a_larger_batch_gives_a_larger_load():
    parts = [e2e(engine_of(rate=rate)).part("decode_batch").seconds for rate in (1, 3, 6, 10)]
    assert parts == sorted(parts)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("rate", "prompt", "output", "seed"), [(2, 300, 150, 1), (4, 900, 60, 3), (10, 200, 120, 4)])
def test_a_healthy_engine_raises_nothing(level: str, rate: float, prompt: float, output: float, seed: int):
    result = attribute(window_of(observed(replay(poisson(40, rate, prompt, output, seed=seed), HEALTHY), **LEVELS[level])))
    for name in TARGETS:
        target = fleet(result, name)
        assert target.verdict == "healthy"
        for part in target.parts:
            most = 0.10 if part.link in {"frontend", "output"} else 0.05
            assert (part.fault_s or 0.0) <= most * target.measured_s, part.link


# -- additivity ----------------------------------------------------------------------------------------------------------------
STAGES = ("e2e_n", "e2e_s", "queue_s", "prefill_s", "decode_s")  # without them the level is `state`
RAISING = ("ttft_s", "draft_tokens", "nixl_transfer_s")


def engines() -> st.SearchStrategy[Engine]:
    """Engines of all kinds: with and without faults, arguments, counters, log and step costs."""
    facts = st.fixed_dictionaries({}, optional={
        "max_num_seqs": st.sampled_from([None, 4, 64]), "args_known": st.booleans(), "prefix_caching": st.sampled_from([None, True, False]),
        "kv_blocks": st.sampled_from([None, 500.0, 100_000.0]), "written_tokens": st.sampled_from([None, 1e3, 1e9]), "api_servers": st.sampled_from([1, 4]),
        "expert_parallel": st.booleans(), "data_parallel": st.sampled_from([1, 2]), "connector": st.booleans(), "graph_size": st.sampled_from([None, 256]),
    })  # fmt: skip
    columns = st.fixed_dictionaries({}, optional={
        "preemptions": st.sampled_from([0.0, 0.5, 3.0]), "deferred": st.sampled_from([0.0, 0.5, np.nan]), "timed": st.booleans(), "step_n": st.sampled_from([np.nan, 30.0]),
        "external_hit_tokens": st.just(500.0), "restarted": st.just(np.arange(30) == 20),
    })  # fmt: skip
    # shares of the prompt tokens that were stored again here, or after another engine had stored them, and salts
    stored = st.sampled_from([None, (0.3, 0.01, 0.0), (0.05, 0.3, 3.0)])
    drafts = st.sampled_from([{}, {"draft_n": 50.0, "draft_tokens": 150.0, "accepted_tokens": 100.0}])
    missing = st.sets(
        st.sampled_from(
            [name for name in COUNTERS if name not in {*STAGES, *RAISING, "request_output_tokens", "request_prompt_tokens"}]
        ),
        max_size=3,
    )
    bucket = st.sampled_from(
        [{}, {"vllm:inter_token_latency_seconds": counted(ITL_EDGES, np.array([0.02, 0.02, 3.0]), np.array([5e3, 5e3, 60.0]))}]
    )
    return st.builds(
        made, facts, columns, drafts, stored, missing, rate=st.sampled_from([0.5, 4.0, 15.0]), prompt=st.sampled_from([50.0, 600.0, 2500.0]),
        output=st.sampled_from([1.0, 20.0, 200.0]), hit=st.sampled_from([0.0, 0.4]), waiting=st.sampled_from([0.0, 1.0, 20.0]), usage=st.sampled_from([0.2, 0.97]),
        frontend_s=st.sampled_from([0.001, 0.2]), output_s=st.sampled_from([0.0, 0.1]), swing=st.sampled_from([0.02, 0.3]), prefill_s=st.sampled_from([None, 0.3]),
        bucket=bucket,
    )  # fmt: skip


def made(
    facts: dict, columns: dict, drafts: dict, stored: tuple[float, float, float] | None, missing: set[str], **numbers: Any
) -> Engine:
    """Return 30 seconds of an engine; `stored` are KV events, as shares of the prompt tokens."""
    blocks = numbers["rate"] * 30 * numbers["prompt"] / 16
    kv = {} if stored is None else {"stored_blocks": blocks, "again_blocks": stored[0] * blocks, "elsewhere_blocks": stored[1] * blocks, "salts": stored[2], "block_size": 16.0, "gaps": 0.0}  # fmt: skip
    return engine_of(seconds=30, facts=facts, columns={**columns, **drafts, **dict.fromkeys(missing, np.nan)}, kv=kv, **numbers)


def test_more_blocks_stored_than_prompts_have_do_not_make_a_column_exceed_its_stage():
    # 180,000 prompt tokens are 11,250 blocks; 9000 stored again and 20,000 elsewhere is more than that (generated tokens are stored, too)
    kv = {
        "stored_blocks": 500_000.0,
        "again_blocks": 9000.0,
        "elsewhere_blocks": 20_000.0,
        "block_size": 16.0,
        "gaps": 0.0,
        "salts": 0.0,
    }
    target = e2e(engine_of(waiting=2.0, swing=0.1, kv=kv))
    for stage, seconds in target.stages.items():
        assert sum(p.cells.get(stage, 0.0) for p in target.parts) <= seconds + 1e-6, stage


@pytest.mark.parametrize("name", RAISING)
def test_a_counter_that_is_missing_beside_its_sister_does_not_raise(name: str):
    columns = {
        "draft_n": 50.0,
        "draft_tokens": 150.0,
        "accepted_tokens": 100.0,
        "nixl_transfer_n": 1.0,
        "nixl_transfer_s": 0.1,
        "offload_load_s": 0.1,
        name: np.nan,
    }
    assert attribute(window_of(engine_of(columns=columns))).targets["e2e"] is not None


@pytest.mark.parametrize(
    "columns",
    [{"request_output_tokens": np.nan, "preemptions": 0.5}, {"request_prompt_tokens": np.nan, "ttft_n": np.nan}],
)
def test_requests_of_unknown_lengths_add_up(columns: dict):
    assert adds_up(e2e(engine_of(columns=columns))) < 1e-6


@settings(max_examples=30, deadline=None, derandomize=True, phases=QUICK)
@given(engines())
def test_measured_is_floor_and_parts_and_unexplained(engine: Engine):
    result = attribute(window_of(engine))
    for name in TARGETS:
        target = fleet(result, name)
        if target.measured_s is None:
            assert target.verdict == "undetermined"
            continue
        assert adds_up(target) < 1e-6
        # a column of the matrix never holds more than its stage
        for stage, seconds in target.stages.items():
            assert sum(p.cells.get(stage, 0.0) for p in target.parts) <= max(seconds, 0.0) + 1e-6, stage
        for part in target.parts:
            assert part.seconds is None or abs(part.seconds - sum(part.cells.values())) < 1e-9
            assert part.seconds is None or part.seconds >= -1e-9


@settings(max_examples=8, deadline=None, derandomize=True, phases=QUICK)
@given(
    st.sampled_from([150, 400, 20_000]),
    st.sampled_from([3, 8, 64]),
    st.sampled_from([256, 8192]),
    st.sampled_from([0.0, 0.1]),
    st.sampled_from(list(LEVELS)),
    st.integers(0, 99),
)
def test_parts_of_a_replayed_engine_add_up(blocks: int, slots: int, budget: int, long: float, level: str, seed: int):
    load = poisson(20, 5, 400, 50, long=long, long_tokens=2000, seed=seed)
    result = attribute(
        window_of(observed(replay(load, replace(HEALTHY, blocks=blocks, slots=slots, budget=budget)), **LEVELS[level]))
    )
    assert all(adds_up(fleet(result, name)) < 1e-6 for name in TARGETS)


def test_every_link_has_a_part_in_every_target_in_the_order_of_the_chain():
    result = attribute(window_of(engine_of()))
    for name in TARGETS:
        assert [p.link for p in fleet(result, name).parts] == [m.LINK.name for m in CHAIN]
