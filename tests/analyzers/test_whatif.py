"""What-ifs: what fixing one link, all but one, or all saves, against the same engine run again without the fault."""

import math
from dataclasses import replace

import numpy as np
import pytest

from analyzers.attribute import attribute
from analyzers.books import Books, books
from analyzers.links import CHAIN, by_name
from analyzers.model import Engine
from analyzers.segments import segments
from analyzers.twin import ENDLESS, Load, Setup, twin_of
from analyzers.whatif import LOAD_TIER, WhatIf, what_if

from .engines import adds_up, engine_of, fleet, window_of
from .replay import ENGINE, observed, poisson, replay

HEALTHY = replace(ENGINE, blocks=20_000)
LOAD = poisson(60, 6, 600, 120)


def seen(setup: Setup, load: Load = LOAD, **more) -> Engine:
    return observed(replay(load, setup), spans=True, **more)


def of(engine: Engine, **more) -> WhatIf:
    accounts = books(engine)
    assert accounts is not None
    found = what_if(accounts, **more)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def slots() -> WhatIf:
    """6 slots where 8 requests run on average: they wait for seconds."""
    return of(seen(replace(HEALTHY, slots=6)), slo={"ttft": 1.0, "tpot": 0.020, "e2e": 4.0})


def test_without_step_costs_nothing_is_replayed():
    accounts = books(engine_of(seconds=8))
    assert accounts is not None
    assert what_if(accounts) is None


@pytest.mark.parametrize(
    ("link", "before", "field", "after"),
    [
        ("slots", Setup(1, 1, 1, slots=8), "slots", ENDLESS),
        ("kv_eviction", Setup(1, 1, 1, blocks=99, hit_endless=0.7), "blocks", ENDLESS),
        ("kv_eviction", Setup(1, 1, 1, blocks=99, hit_endless=0.7), "hit", 0.7),
        ("kv_eviction", Setup(1, 1, 1, hit=0.8, hit_endless=0.7), "hit", 0.8),
        ("prefix_cache_miss", Setup(1, 1, 1, hit_shared=0.6), "hit", 0.6),
        ("prefix_cache_miss", Setup(1, 1, 1, blocks=99, hit_shared=0.6), "blocks", 99),
        ("prefill_backlog", Setup(1, 1, 1), "pool", True),
        ("decode_batch", Setup(1, 1, 1), "alone", True),
        ("engine_stall", Setup(1, 1, 1, stalls=((1.0, 2.0),)), "stalls", ()),
        ("frontend", Setup(1, 1, 1), "instant", True),
    ],
)
def test_a_link_is_fixed_by_taking_its_limit_away(link: str, before: Setup, field: str, after: object):
    assert getattr(by_name(link).fix(before), field) == after


def test_only_links_that_the_engine_has_are_fixed(slots: WhatIf):
    # a pool of 20,000 blocks is a limit too, if one that nobody feels; no stalls, no hits that could be better
    assert set(slots.saves["ttft"]) == {"slots", "kv_eviction", *LOAD_TIER}


def test_fixing_the_cap_saves_what_the_engine_without_it_was_measured_to_take(slots: WhatIf):
    free = replay(LOAD, HEALTHY)
    capped = replay(LOAD, replace(HEALTHY, slots=6))
    truth = {
        "ttft": sum(capped.stage(s).mean() - free.stage(s).mean() for s in ("queue", "prefill")),
        "e2e": sum(capped.stage(s).mean() - free.stage(s).mean() for s in ("queue", "prefill", "decode")),
    }
    assert truth["ttft"] > 8
    assert {name: slots.saves[name]["slots"] for name in truth} == pytest.approx(truth, rel=0.02)
    assert slots.saves["tpot"]["slots"] < 0  # a larger batch decodes more slowly


def test_fixing_too_few_blocks_saves_what_the_engine_with_enough_was_measured_to_take():
    free, short = replay(LOAD, HEALTHY), replay(LOAD, replace(HEALTHY, blocks=350))
    truth = sum(short.stage(s).mean() - free.stage(s).mean() for s in ("queue", "prefill", "decode"))
    assert truth > 1
    assert of(seen(replace(HEALTHY, blocks=350))).saves["e2e"]["kv_eviction"] == pytest.approx(truth, rel=0.1)


def test_fixing_what_nobody_feels_saves_nothing(slots: WhatIf):
    assert slots.saves["e2e"]["kv_eviction"] == pytest.approx(0.0, abs=1e-9)
    assert slots.parts["e2e"]["kv_eviction"] == pytest.approx(0.0, abs=1e-9)


def test_with_one_fault_its_part_is_what_fixing_it_saves(slots: WhatIf):
    for target in ("ttft", "tpot", "e2e"):
        assert slots.parts[target]["slots"] == pytest.approx(slots.saves[target]["slots"])
        assert slots.joint[target] == pytest.approx(slots.saves[target]["slots"])


def test_parts_of_faults_add_up_to_their_joint_fix_and_load_gets_the_rest():
    # blocks and slots both short: fixing one lets the other bind
    found = of(seen(replace(HEALTHY, blocks=330, slots=7)))
    for target in ("ttft", "tpot", "e2e"):
        faults = {k: v for k, v in found.parts[target].items() if k not in LOAD_TIER}
        assert sum(faults.values()) == pytest.approx(found.joint[target])
        link = "slots"  # all fixed at once = last of a link + all the others fixed
        assert sum(found.parts[target].values()) >= found.last[target][link] - 1e-9
    e2e = found.parts["e2e"]
    assert e2e["slots"] > 0
    assert e2e["kv_eviction"] > 0
    assert found.saves["e2e"]["slots"] + found.saves["e2e"]["kv_eviction"] != pytest.approx(found.joint["e2e"])


def test_each_fault_gets_the_mean_of_first_and_last_fix_of_two():
    found = of(seen(replace(HEALTHY, blocks=330, slots=7)))
    first, joint = found.saves["e2e"], found.joint["e2e"]
    assert found.parts["e2e"]["slots"] == pytest.approx((first["slots"] + joint - first["kv_eviction"]) / 2)


def test_shares_of_requests_that_meet_an_slo_grow_with_the_fix(slots: WhatIf):
    assert slots.met is not None
    capped = replay(LOAD, replace(HEALTHY, slots=6))
    truth = float((capped.stage("queue") + capped.stage("prefill") <= 1.0).mean())
    assert slots.met["ttft"]["now"] == pytest.approx(truth, abs=0.02)
    assert slots.met["ttft"]["slots"] == 1.0
    assert slots.met["ttft"]["all faults"] == 1.0
    assert slots.met["ttft"]["kv_eviction"] == slots.met["ttft"]["now"]
    assert slots.met["tpot"]["now"] == 1.0
    assert slots.met["e2e"]["now"] < slots.met["e2e"]["slots"]


def test_without_an_slo_no_share_is_said():
    assert of(seen(HEALTHY)).met is None


def test_seconds_of_the_api_server_count_against_an_slo():
    # every TTFT holds 1 s of front end: no request can meet 0.5 s
    found = of(seen(HEALTHY, frontend_s=1.0), slo={"ttft": 0.5})
    assert found.met is not None
    assert found.met["ttft"]["now"] == 0.0


def test_without_long_prompts_is_answered_where_there_are_any():
    mixed = poisson(60, 6, 300, 60, long=0.05, long_tokens=20_000)
    short = replace(
        mixed,
        arrival=mixed.arrival[mixed.prompt < 20_000],
        prompt=mixed.prompt[mixed.prompt < 20_000],
        output=mixed.output[mixed.prompt < 20_000],
    )
    with_long, without = replay(mixed, HEALTHY), replay(short, HEALTHY)
    others = mixed.prompt < 20_000
    truth = sum(with_long.stage(s)[others].mean() - without.stage(s).mean() for s in ("queue", "prefill", "decode"))
    found = of(seen(HEALTHY, mixed))
    assert found.without_long is not None
    assert found.without_long["e2e"] == pytest.approx(truth, rel=0.15)
    assert of(seen(HEALTHY)).without_long is None


# -- in an attribution ---------------------------------------------------------------------------------------------------------
def test_an_attribution_takes_parts_and_savings_of_the_twin_and_says_so():
    engine = seen(replace(HEALTHY, slots=6))
    plain, replayed = attribute(window_of(engine)), attribute(window_of(engine), with_twin=True)
    target = fleet(replayed, "e2e")
    what = replayed.engines[0].what_if
    assert target.part("slots").saves_s == what.saves["e2e"]["slots"]
    assert target.part("slots").last_s == what.last["e2e"]["slots"]
    assert any("parts and savings by the twin" in c and "twin / measured" in c for c in target.conditions)
    # with one fault its part is what the engine without it was measured to save, and stays inside its stages
    free, capped = replay(LOAD, HEALTHY), replay(LOAD, replace(HEALTHY, slots=6))
    truth = sum(capped.stage(s).mean() - free.stage(s).mean() for s in ("queue", "prefill", "decode"))
    assert target.part("slots").seconds == pytest.approx(truth, rel=0.02)
    assert target.part("slots").seconds == pytest.approx(sum(target.part("slots").cells.values()))
    assert adds_up(target) < 1e-6
    assert fleet(plain, "e2e").part("slots").last_s is None


def test_no_stage_holds_more_than_it_lasted():
    engine = seen(replace(HEALTHY, blocks=330, slots=7, stalls=((20.0, 1.0),)), frontend_s=0.3, log=True)
    for name in ("ttft", "tpot", "e2e"):
        target = fleet(attribute(window_of(engine), with_twin=True), name)
        assert adds_up(target) < 1e-6
        assert target.floor_s is not None
        assert target.floor_s >= -1e-9
        for stage, measured in target.stages.items():
            assert sum(p.cells.get(stage, 0.0) for p in target.parts) <= (measured or 0.0) * 1.001 + 1e-9, (name, stage)


def test_what_the_twin_does_not_replay_keeps_its_part():
    plain, replayed = (
        fleet(attribute(window_of(seen(replace(HEALTHY, slots=6), output_s=0.5)), with_twin=twin), "e2e")
        for twin in (False, True)
    )
    assert plain.part("output").seconds == pytest.approx(0.498)
    assert replayed.part("output").seconds == pytest.approx(0.498)


def test_load_is_not_saved():
    target = fleet(attribute(window_of(seen(replace(HEALTHY, slots=6))), with_twin=True), "e2e")
    assert target.part("decode_batch").saves_s is None


def test_outside_the_gate_the_books_speak_alone_and_that_is_said(monkeypatch: pytest.MonkeyPatch):
    engine = seen(replace(HEALTHY, slots=6))
    accounts = books(engine)
    assert accounts is not None
    replayed = what_if(accounts)
    assert replayed is not None
    outside = replace(
        replayed, gate={"ttft": 1.4, "decode": 1.0}, holds=False, holds_of=dict.fromkeys(("ttft", "tpot", "e2e"), False)
    )

    def instead(_: Books, **__: object) -> WhatIf:
        return outside

    monkeypatch.setattr("analyzers.attribute.what_if", instead)
    plain, twin = attribute(window_of(engine)), attribute(window_of(engine), with_twin=True)
    for name in ("ttft", "tpot", "e2e"):
        assert [p.saves_s for p in fleet(twin, name).parts] == [p.saves_s for p in fleet(plain, name).parts]
        assert [p.seconds for p in fleet(twin, name).parts] == [p.seconds for p in fleet(plain, name).parts]
        assert any(
            "the twin is outside its gate (twin / measured: ttft 1.40, decode 1.00)" in c for c in fleet(twin, name).conditions
        )
    assert twin.engines[0].what_if is outside


def test_the_gate_is_of_each_target(monkeypatch: pytest.MonkeyPatch):
    # a replay whose wait is off by a half, where decoding is nearly all: its word counts for TPOT and E2E, not for TTFT
    accounts = books(seen(HEALTHY))
    assert accounts is not None
    twin = twin_of(accounts)
    assert twin is not None
    wait = replace(twin.base, queue=twin.base.queue * 1.5, prefill=twin.base.prefill * 1.5)
    monkeypatch.setattr("analyzers.whatif.twin_of", lambda *_: replace(twin, base=wait))
    found = what_if(accounts)
    assert found is not None
    assert found.holds_of == {"ttft": False, "tpot": True, "e2e": True}


def test_with_several_api_servers_steps_are_estimated_and_nothing_is_replayed():
    accounts = books(seen(HEALTHY, facts={"api_servers": 2}))
    assert accounts is not None
    assert what_if(accounts) is None


def test_fixing_a_slow_api_server_saves_its_seconds_and_what_its_bunching_costs():
    # requests come evenly; the server hands them over in bunches, 2 s late on average
    even = replace(LOAD, arrival=np.arange(len(LOAD.arrival)) / 6)
    late = np.ceil(even.arrival / 4 + 1e-9) * 4 - even.arrival
    bunched, direct = replay(replace(even, arrival=even.arrival + late), HEALTHY), replay(even, HEALTHY)
    engine = observed(bunched, spans=True)
    before = 0.004 + late
    waited = {"ttft_s": engine.request["ttft_s"] + late, "e2e_s": engine.request["e2e_s"] + late}
    engine = replace(
        engine,
        request={**engine.request, **waited, "arrival_ts": engine.request["arrival_ts"] - late},
        total={**engine.total, **{name: float(values.sum()) for name, values in waited.items()}},
    )
    truth = before.mean() - 0.004 + sum(bunched.stage(s).mean() - direct.stage(s).mean() for s in ("queue", "prefill"))
    found = of(engine)
    assert truth > 2.0
    assert found.saves["ttft"]["frontend"] == pytest.approx(truth, rel=0.05)
    assert found.parts["ttft"]["frontend"] == pytest.approx(found.saves["ttft"]["frontend"])


def test_every_link_that_has_a_fix_changes_a_setup_or_leaves_it():
    setup = Setup(0.01, 1e-5, 1e-5, slots=4, blocks=100, hit_shared=0.2, hit_endless=0.3, stalls=((1.0, 1.0),))
    fixes = {m.LINK.name: m.fix(setup) for m in CHAIN if hasattr(m, "fix")}
    assert set(fixes) == {
        "frontend",
        "slots",
        "prefill_backlog",
        "prefix_cache_miss",
        "kv_eviction",
        "decode_batch",
        "engine_stall",
    }
    assert all(fixed != setup for fixed in fixes.values())
    for module in CHAIN:
        if hasattr(module, "fix"):
            assert module.fix(module.fix(setup)) == module.fix(setup)


# -- prompt lengths --------------------------------------------------------------------------------------------------------------
def test_requests_are_told_apart_by_prompt_length():
    engine = seen(HEALTHY, poisson(60, 6, 300, 60, cv=0.1, long=0.05, long_tokens=20_000))
    found = segments(engine)
    assert [s.name for s in found] == ["about the median", "above 6 medians"]
    assert sum(s.requests for s in found) == 360
    assert found[1].prompt_tokens == 20_000
    assert found[1].seconds["prefill"] > 0.4 > found[0].seconds["prefill"]  # 20,000 x 20 µs


def test_without_request_records_there_are_no_segments():
    assert segments(engine_of()) == ()


def test_seconds_that_are_not_known_are_in_no_segment():
    engine = seen(HEALTHY)
    unknown = replace(engine, request={**engine.request, "queue_s": engine.request["queue_s"] * math.nan})
    assert "queue" not in segments(unknown)[0].seconds
