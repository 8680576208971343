"""What changed between two windows: the mechanism that was swapped is named, with its sign, against the measured difference."""

from dataclasses import replace

import numpy as np
import pytest

from analyzers.compare import MECHANISMS, NOISE, Comparison, compare
from analyzers.model import TARGETS, Engine
from analyzers.twin import Load, Setup

from .engines import engine_of, window_of
from .replay import ENGINE, observed, poisson, replay

HEALTHY = replace(ENGINE, blocks=20_000)
LOAD = poisson(40, 5, 400, 60)
_SEEN: dict[str, Engine] = {}


def seen(setup: Setup = HEALTHY, load: Load = LOAD, **more) -> Engine:
    """A replayed engine through scrapes and spans; each is replayed once."""
    key = repr((setup, load.arrival.sum(), load.prompt.sum(), load.output.sum(), more))
    if key not in _SEEN:
        _SEEN[key] = observed(replay(load, setup), spans=True, **more)
    return _SEEN[key]


def between(before: Engine, after: Engine) -> Comparison:
    return compare(window_of(before), window_of(after))


def share(found: Comparison, target: str, mechanism: str) -> float:
    """What a mechanism explains of the measured difference."""
    change = found.changes[target]
    assert change.mechanisms is not None
    assert change.difference_s
    return change.mechanisms[mechanism] / change.difference_s


CASES = {
    # mechanism -> (target, the engine after)
    "slots": ("e2e", lambda: seen(replace(HEALTHY, slots=3))),
    "KV capacity": ("e2e", lambda: seen(replace(HEALTHY, blocks=80))),
    "step costs": ("tpot", lambda: seen(replace(HEALTHY, a=0.015))),
    "token budget": ("ttft", lambda: seen(replace(HEALTHY, budget=64))),
    "lengths": ("e2e", lambda: seen(HEALTHY, replace(LOAD, output=LOAD.output * 2))),
}


@pytest.mark.parametrize("mechanism", CASES)
def test_the_swapped_mechanism_explains_the_difference(mechanism: str):
    target, after = CASES[mechanism]
    found = between(seen(), after())
    change = found.changes[target]
    assert change.verdict == "slower"
    assert share(found, target, mechanism) > 0.75
    assert max(change.mechanisms, key=lambda name: change.mechanisms[name]) == mechanism
    assert f"slower: {'+' if target != 'tpot' else ''}" in change.says
    assert mechanism in change.says.partition("mostly")[2].split(",")[0]


def test_hits_of_the_prefix_cache_explain_a_faster_first_token():
    long = poisson(40, 4, 3000, 120)
    found = between(seen(replace(HEALTHY, hit=0.05), long), seen(replace(HEALTHY, hit=0.8), long))
    assert found.changes["ttft"].verdict == "faster"
    assert share(found, "ttft", "prefix hits") > 0.75


def test_more_arrivals_explain_a_longer_line():
    # the same number of requests in a third of the time, with slots for 5
    few, many = poisson(120, 3, 400, 60, seed=3), poisson(40, 9, 400, 60, seed=3)
    found = between(seen(replace(HEALTHY, slots=5), few), seen(replace(HEALTHY, slots=5), many))
    assert found.changes["e2e"].verdict == "slower"
    assert share(found, "e2e", "arrivals") > 0.7
    assert any("the load differs" in c for c in found.conditions)


@pytest.mark.parametrize(
    ("stage", "mechanism", "targets"), [("frontend_s", "front end", ("ttft", "e2e")), ("output_s", "output", ("e2e",))]
)
def test_what_the_twin_does_not_replay_is_the_difference_of_its_own_stage(stage: str, mechanism: str, targets: tuple[str, ...]):
    found = between(seen(), seen(**{stage: 0.5}))
    for name in targets:
        assert found.changes[name].mechanisms[mechanism] == pytest.approx(0.5, abs=0.006)
        assert share(found, name, mechanism) > 0.95
    for name in {*TARGETS} - {*targets}:
        assert mechanism not in found.changes[name].mechanisms or name == "ttft"


def test_the_other_way_round_the_sign_turns():
    slow, fast = seen(replace(HEALTHY, slots=3)), seen()
    there, back = between(fast, slow).changes["e2e"], between(slow, fast).changes["e2e"]
    assert there.difference_s == pytest.approx(-back.difference_s)
    assert (there.verdict, back.verdict) == ("slower", "faster")
    assert back.mechanisms["slots"] < 0 < there.mechanisms["slots"]
    assert back.stages["queue"] == pytest.approx(-there.stages["queue"])
    assert "faster: -" in back.says


def test_mechanisms_and_what_they_leave_add_up_to_the_measured_difference():
    found = between(seen(), seen(replace(HEALTHY, slots=3, a=0.012)))
    for change in found.changes.values():
        assert sum(change.mechanisms.values()) + change.unexplained_s == pytest.approx(change.difference_s, abs=1e-9)
        assert sum(change.stages.values()) == pytest.approx(change.difference_s, abs=1e-6)


def test_the_same_window_twice_is_the_same():
    found = between(seen(), seen())
    for change in found.changes.values():
        assert change.verdict == "same"
        assert change.difference_s == 0.0
        assert "is the same within the noise of two starts" in change.says


@pytest.mark.parametrize(("factor", "verdict"), [(1.075, "same"), (1.085, "slower"), (0.925, "same"), (0.915, "faster")])
def test_less_than_8_percent_is_within_the_noise_of_two_starts(factor: float, verdict: str):
    # all request seconds times a factor
    before = engine_of()
    scaled = {
        name: factor * value
        for name, value in before.total.items()
        if name in {"ttft_s", "queue_s", "prefill_s", "decode_s", "e2e_s"}
    }
    assert NOISE == 0.08
    assert {c.verdict for c in between(before, replace(before, total={**before.total, **scaled})).changes.values()} == {verdict}


def test_a_change_within_the_noise_is_not_explained_as_a_change():
    found = between(seen(), seen(replace(HEALTHY, a=0.0102)))
    assert found.changes["e2e"].verdict == "same"
    assert found.changes["e2e"].says.startswith("E2E is the same within the noise")


def test_what_was_not_measured_on_both_sides_is_not_compared():
    tokens = engine_of(output=1.0, rate=4)
    change = between(engine_of(), tokens).changes["tpot"]
    assert (change.verdict, change.difference_s, change.mechanisms) == ("undetermined", None, None)
    assert change.says == "TPOT was not measured on both sides."


def test_without_step_costs_the_difference_is_by_link():
    short = engine_of(seconds=8)
    found = between(short, engine_of(seconds=8, frontend_s=0.5))
    change = found.changes["ttft"]
    assert change.mechanisms is None
    assert change.links["frontend"] == pytest.approx(0.488)  # 0.5 less the nominal 12 ms
    assert "mostly api server +0.488 s" in change.says
    assert any("no step model" in c for c in found.conditions)


def test_several_engines_are_compared_without_a_replay():
    found = compare(window_of(engine_of(), engine_of(engine="1")), window_of(engine_of(waiting=5.0), engine_of(engine="1")))
    assert found.changes["e2e"].mechanisms is None
    assert found.changes["e2e"].difference_s == pytest.approx(0.5, rel=0.05)
    assert any("several engines" in c for c in found.conditions)


def test_arguments_engines_and_versions_that_differ_are_listed():
    before = engine_of(facts={"args": {"max_num_seqs": 8, "port": 8000, "dtype": "bfloat16"}}, version="0.24.0")
    after = engine_of(
        facts={"args": {"max_num_seqs": 64, "port": 8001, "dtype": "bfloat16", "enable_eplb": True}}, version="0.33.0"
    )
    said = between(before, after).configuration
    assert "max_num_seqs: 8 -> 64" in said
    assert "enable_eplb: not set -> True" in said
    assert not any("port" in line or "dtype" in line for line in said)
    assert any("0.24.0" in line and "0.33.0" in line for line in said)


def test_a_split_into_a_prefill_and_a_decode_server_is_explained_by_its_legs():
    prompts = 4 * (1 + 0.1 * np.cos(2 * np.pi * np.arange(60) / 7)) * 600.0
    replicas = window_of(engine_of(instance="a:1", rate=2, swing=0.1), engine_of(instance="b:1", rate=2, swing=0.1))
    split = window_of(
        engine_of(instance="p:1", rate=4, output=1.0, prefill_s=0.05),
        engine_of(
            instance="d:1",
            rate=4,
            swing=0.1,
            b=0.0,
            waiting=0.8,
            columns={"external_hit_tokens": prompts, "computed_tokens": 0.0},
        ),
    )
    found = compare(replicas, split)
    ttft, tpot = found.changes["ttft"], found.changes["tpot"]
    assert (ttft.verdict, ttft.difference_s > 0) == ("slower", True)
    assert sum(ttft.mechanisms.values()) == pytest.approx(ttft.difference_s)
    assert any("decode server's leg" in name for name in ttft.mechanisms)
    # 2 x 600 x 20 µs of every second went to prompts
    assert tpot.mechanisms["decode steps without prompts"] < 0
    assert any(line.startswith("engines: ") for line in found.configuration)


def test_every_mechanism_swaps_to_the_other_engines_value():
    one = Setup(1, 1, 1)
    other = Setup(
        2,
        3,
        4,
        q=5,
        launch_s=6,
        mixed_s=7,
        graph=8,
        budget=9,
        slots=10,
        blocks=11,
        block_size=12,
        hit=0.13,
        tokens_per_step=1.4,
        stalls=((1, 2),),
    )

    class Other:
        setup = other
        load = LOAD

    load, setup = LOAD, one
    for swap in MECHANISMS.values():
        load, setup = swap(load, setup, Other)
    # what is left of the first are counterfactuals (sharing, endless blocks, pool, alone) and what no engine sets
    same = {"watermark", "long_threshold", "hit_shared", "hit_endless", "pool", "alone"}
    assert {name for name in Setup.__dataclass_fields__ if getattr(setup, name) != getattr(other, name)} <= same
    assert load.prompt.tolist() == LOAD.prompt.tolist()
