"""The capacity sheet, objectives and their conflicts, and the size of a test: arithmetic against what was measured."""

import json
import math
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pytest

from analyzers.books import books
from analyzers.capacity import GIB, held_tokens, kv_bytes, memory_of, planned, pool_with, sheet
from analyzers.hypotheses import trial
from analyzers.hypotheses.objectives import conflicts, objectives, saturated, saturation
from analyzers.model import Effect, Engine
from analyzers.twin import simulate
from app.experiments import words

from ..analyzers.engines import DENSE, event, facts_of  # noqa: TID252 the program has the name analyzers
from ..analyzers.replay import poisson  # noqa: TID252 as above
from .scenes import EP, H100, HEALTHY, UNCACHED, case, seen, two_engines
from .test_pairs import window

POOL: Final = {"kv_blocks": 58_000.0, "block_size": 16}


def engine(*events: Any, version: str = "0.33.0", **facts: Any) -> Engine:
    return Engine("10.0.0.1:8000", "0", version=version, facts=facts_of({**H100, **POOL, **facts}), event=events)


# -- memory ----------------------------------------------------------------------------------------------------------------------
def test_a_token_takes_what_its_heads_say():
    assert kv_bytes(engine()) == 2 * 2 * 32 * 8 * 128
    assert kv_bytes(engine(kv_dtype="fp8")) == 2 * 32 * 8 * 128
    assert kv_bytes(engine(), tensor=2) == 2 * 2 * 32 * 4 * 128
    assert kv_bytes(engine(), tensor=16) == 2 * 2 * 32 * 1 * 128  # a head cannot be cut
    assert kv_bytes(engine(), pipeline=2) == 2 * 2 * 16 * 8 * 128
    assert math.isnan(kv_bytes(engine(shape={})))


def test_start_up_lines_come_before_the_shape():
    said = event("memory", kv_gib=40.0), event("memory", model_gib=15.1)
    found = memory_of(engine(*said, kv_blocks=20_000.0))
    assert found.weights_gib == 15.1
    assert found.room_gib == 40.0
    assert found.kv_bytes == pytest.approx(40.0 * GIB / 320_000)
    assert found.how["weights_gib"] == found.how["room_gib"] == "start-up line"
    assert memory_of(engine()).how["weights_gib"].startswith("the model's shape")


def test_an_override_sets_the_blocks_and_not_the_memory():
    fixed = window("h200-0.24.0-kv-preempt-fixed").engines[0]
    held = memory_of(window("h200-0.24.0-kv-preempt").engines[0])
    assert held.override
    assert held.pool_tokens == 36_000
    measured = fixed.facts["kv_blocks"] * fixed.facts["block_size"]
    assert pool_with(window("h200-0.24.0-kv-preempt").engines[0]) == pytest.approx(measured, rel=0.01)


@pytest.mark.parametrize(("change", "times"), [({"kv": 0.5}, 2.0), ({"tensor": 2}, 2.0), ({"weights": 1.0}, 1.0)])
def test_what_a_change_leaves_for_blocks(change: dict[str, float], times: float):
    one = engine()
    assert pool_with(one, **change) >= times * memory_of(one).pool_tokens * 0.999
    assert pool_with(one, share=0.95) > pool_with(one) > pool_with(one, share=0.85)
    assert pool_with(one, freed_gib=1.0) - pool_with(one) == pytest.approx(GIB / kv_bytes(one))


def test_tensor_parallelism_more_than_doubles_the_pool():
    """Twice the memory, weights held once."""
    one = engine()
    more = pool_with(one, tensor=2) / memory_of(one).pool_tokens
    assert more == pytest.approx(2 + memory_of(one).weights_gib / memory_of(one).room_gib, rel=0.01)


# -- the sheet --------------------------------------------------------------------------------------------------------------------
def test_contexts_fit_or_do_not():
    one = engine()
    tokens = memory_of(one).pool_tokens
    assert sheet(one, tokens / 10, 10).fits is True
    assert sheet(one, tokens / 10, 11).fits is False
    found = sheet(one, 8000, 200)
    assert found.fits is False
    assert found.contexts == pytest.approx(tokens / 8000)
    assert next(o for o in found.options if o.name == "8-bit KV cache").fits == (2 * tokens >= 200 * 8000)
    assert all(o.conditions or o.name.startswith("without") for o in found.options)
    assert any("kernel" in c for o in found.options if "8-bit" in o.name for c in o.conditions)


def test_a_context_beyond_the_models_is_refused_whatever_the_memory():
    found = sheet(engine(args={"max_model_len": 4096}), 8000, 1)
    assert found.fits is False
    assert any("--max-model-len is 4096" in c for c in found.conditions)


def test_what_is_unknown_is_not_promised():
    found = sheet(Engine("", "0", facts={}), 8000, 10)
    assert found.fits is None
    assert "cannot be determined" in found.says
    assert all(o.fits is None for o in found.options)
    assert any("config.json" in c for c in found.conditions)
    assert json.dumps(words.capacity(found), allow_nan=False)
    assert "unknown" in words.capacity_text(found)


def test_memory_that_is_unknown_is_not_none_of_it():
    """The shape is known, the GPU is not: nothing says how many blocks there could be."""
    blind = engine(kv_blocks=None, block_size=None, device_name=None, memory_gib=None)
    assert math.isnan(memory_of(blind).room_gib)
    assert math.isnan(pool_with(blind, share=0.95))
    assert all(o.fits is None for o in sheet(blind, 8000, 10).options)
    known = engine(event("memory", kv_gib=40.0), shape={})  # the size of the weights is not
    assert math.isnan(memory_of(known).weights_gib)
    assert pool_with(known) == pytest.approx(memory_of(known).pool_tokens)
    assert math.isnan(pool_with(known, weights=0.5))


def test_a_server_that_does_not_run_yet():
    found = sheet(planned(DENSE, {"tensor_parallel_size": 2}, "H100"), 32_000, 16)
    assert found.fits is not None
    assert found.memory.how["pool_tokens"].startswith("modelled")
    assert found.memory.weights_gib == pytest.approx(8.03e9 * 2 / 2 / GIB, rel=0.05)
    assert any("assumed" in c for c in found.conditions)


def test_heads_that_cannot_be_split_are_no_option():
    names = [o.name for o in sheet(engine(shape={**DENSE, "heads": 4, "kv_heads": 4}), 1000, 1).options]
    assert "4 times the GPUs, tensors split" in names
    assert "8 times the GPUs, tensors split" not in names


def test_a_cpu_has_another_switch():
    found = sheet(engine(device="cpu"), 1000, 1)
    assert [o.flags[0].split()[0] for o in found.options] == ["VLLM_CPU_KVCACHE_SPACE"]


# -- objectives -------------------------------------------------------------------------------------------------------------------
def test_saturation_is_what_a_replay_under_too_much_load_reaches():
    setup = replace(HEALTHY, slots=16)
    accounts = books(seen(setup))
    assert accounts is not None
    found = saturated(setup, accounts)
    load = poisson(60, 40, 600, 120)
    result = simulate(load, setup)
    took = float((load.arrival + result.queue + result.prefill + result.decode).max())
    assert found.tokens_per_s == pytest.approx(float(load.output.sum()) / took, rel=0.1)
    assert found.bound == "slots"
    assert found.tpot_s == pytest.approx(result.mean("tpot", load.output), rel=0.1)


def test_blocks_and_budget_bound_the_batch_too():
    accounts = books(seen(HEALTHY))
    assert accounts is not None
    assert saturated(replace(HEALTHY, blocks=400), accounts).bound == "KV blocks"
    assert saturated(replace(HEALTHY, blocks=400), accounts).batch == pytest.approx(6400 / held_tokens(577, 119), rel=0.02)
    assert saturated(replace(HEALTHY, budget=64, slots=256), accounts).bound == "token budget"
    assert saturated(HEALTHY, accounts, engines=2).tokens_per_s == pytest.approx(2 * saturated(HEALTHY, accounts).tokens_per_s)


def test_objectives_are_named_with_what_limits_them():
    found = {o.name: o for o in objectives(case(seen(replace(HEALTHY, slots=6))))}
    assert list(found) == ["ttft", "tpot", "throughput", "capacity", "isolation"]
    assert found["ttft"].limited_by == found["throughput"].limited_by == "slots"
    assert "salts stand only in KV events" in found["isolation"].says
    assert "no salts" in {o.name: o for o in objectives(case(*two_engines()))}["isolation"].now


def test_conflicts_have_numbers_of_this_window():
    slots = conflicts(case(seen(replace(HEALTHY, slots=6))))
    assert any(said.startswith("TTFT against TPOT: admitting at once") for said in slots)
    shared = conflicts(case(*two_engines()))
    assert any(said.startswith("capacity against TTFT") for said in shared)
    assert any(said.startswith("isolation against TTFT: 48 %") for said in shared)
    assert any("keeping them apart lengthens TTFT" in said for said in conflicts(case(seen(HEALTHY, "long", UNCACHED))))


def test_without_a_step_model_nothing_is_made_up():
    found = case(seen(HEALTHY))
    blind = replace(
        found, twins=(None,), accounts=tuple(replace(b, model=replace(b.model, refused="no costs")) for b in found.accounts)
    )
    assert saturation(blind) is None
    said = {o.name: o for o in objectives(blind)}
    assert said["throughput"].now == "unknown"
    assert "no step model" in said["tpot"].says  # not 0 ms a step, 0 ms because of the batch
    crowded = case(seen(replace(HEALTHY, slots=12)))
    assert any("admitting at once" in text for text in conflicts(crowded))
    unseen = replace(crowded, accounts=tuple(replace(b, model=replace(b.model, refused="no costs")) for b in crowded.accounts))
    assert not any("admitting at once" in text for text in conflicts(unseen))


# -- the size of a test -----------------------------------------------------------------------------------------------------------
def test_small_effects_need_more_requests_and_more_starts():
    found = case(seen(HEALTHY))
    e2e = found.measured("e2e")
    sizes = [trial.size_of(found, {"e2e": Effect(share * e2e, (0.0, e2e))}) for share in (0.5, 0.1, 0.05, 0.02)]
    totals = [s.requests * s.starts for s in sizes]
    assert totals == sorted(totals)
    assert [s.starts for s in sizes] == sorted(s.starts for s in sizes)
    assert sizes[0].starts == 1
    assert sizes[-1].starts > 10  # 2 % is far below the 8 % that two starts differ by
    assert all(s.seconds >= 60 for s in sizes)


def test_a_test_of_that_size_finds_the_effect():
    """Four times in five, by drawing requests again: half the effect is rarely exceeded by chance, the effect mostly is."""
    found = case(seen(HEALTHY))
    values = found.window.engines[0].request["e2e_s"]
    effect = 0.12 * float(values.mean())
    size = trial.size_of(found, {"e2e": Effect(effect, (effect, effect))})
    rng = np.random.default_rng(0)
    draws = [rng.choice(values, size.requests).mean() - (rng.choice(values, size.requests) - effect).mean() for _ in range(400)]
    error = float(
        np.std([rng.choice(values, size.requests).mean() - rng.choice(values, size.requests).mean() for _ in range(400)])
    )
    assert np.mean(np.array(draws) > 1.645 * error) >= 0.8


def test_without_a_prediction_a_tenth_is_looked_for():
    found = case(seen(HEALTHY))
    size = trial.size_of(found, {"e2e": Effect(None)})
    assert not size.predicted
    assert size.effect_s == pytest.approx(0.1 * found.measured("e2e"))
    said = trial.plan(found, {"e2e": Effect(None)}, "E2E")
    assert "an effect of 10 % of E2E, as nothing is predicted" in said
    assert "6 requests a second, prompts of 577 tokens, outputs of 119 tokens" in said


def test_a_mixture_of_experts_holds_all_of_them():
    assert memory_of(engine(**EP)).weights_gib == pytest.approx(30.5e9 * 2 / 2 / GIB, rel=0.05)
