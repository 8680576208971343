"""Started from the fault run alone: the change that undoes the fault comes first, saves what it is predicted to, and is judged so.

Reduced captures of issue 4 (tests/accuracy/captures); the runs of `moe-skew` and `moe-even` lie here once more with the vLLM
variables of their environment, which tell them apart.
"""

import functools
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from accuracy import packed, scores
from accuracy.table import HEALTHY

from analyzers.attribute import attribute
from analyzers.case import Case, case_of
from analyzers.experiment import Experiment, judge
from analyzers.hypotheses import HYPOTHESES, module_of, ranked, recommended
from analyzers.model import TARGETS, Hypothesis, Window

HERE: Final = Path(__file__).resolve().parent / "captures"
TRUTH: Final = scores.truths()
WITHIN: Final = 0.30

# fault run, fixed run, hypothesis that undoes the fault, targets that it must get right
PAIRS: Final = (
    ("h200-0.24.0-frontend", "h200-0.24.0-frontend-fixed", "api_servers", ("ttft", "e2e")),
    ("h200-0.24.0-slots", "h200-0.24.0-slots-fixed", "more_slots", ("ttft", "e2e")),
    ("h200-0.24.0-kv-preempt", "h200-0.24.0-kv-preempt-fixed", "kv_memory", ("ttft", "e2e")),
    ("h200-0.24.0-prefix-thrash", "h200-0.24.0-prefix-thrash-fixed", "kv_memory", ("ttft", "tpot", "e2e")),
    ("h200-0.33.0-kv-preempt-s2", "h200-0.33.0-kv-preempt-fixed-s2", "kv_memory", ("ttft", "e2e")),
    ("h200-0.33.0-dp2-spread-s1", "h200-0.33.0-dp2-affinity-s1", "prefix_routing", ("ttft", "tpot", "e2e")),
)  # fmt: skip


@functools.cache
def window(name: str) -> Window:
    return scores.capture(name)


@functools.cache
def case(name: str) -> Case:
    return case_of(window(name), attribute(window(name)))


def proposal(fault: str, name: str) -> Hypothesis | None:
    return module_of(name).propose(case(fault))


def judged(fault: str, fixed: str, name: str) -> Experiment:
    return judge(window(fault), window(fixed), proposal(fault, name), module_of(name).TOUCHES)


@pytest.mark.parametrize(("fault", "fixed", "name", "targets"), PAIRS, ids=lambda x: x if isinstance(x, str) else "")
def test_what_undoes_the_fault_is_first_predicted_and_confirmed(fault: str, fixed: str, name: str, targets: tuple[str, ...]):
    for target in targets:
        assert recommended(case(fault), target)[0].name == name, target
        predicted = proposal(fault, name).effect[target].saves_s
        assert predicted == pytest.approx(TRUTH[fault][target]["saved"], rel=WITHIN), target
    found = judged(fault, fixed, name)
    assert {target: found.targets[target].verdict for target in targets} == dict.fromkeys(targets, "confirmed")


def test_its_range_holds_the_truth():
    """Five of six; of the other the truth lies beside a range that says 20 %."""
    inside = [
        low <= TRUTH[fault][target]["saved"] <= high
        for fault, _, name, targets in PAIRS
        for target in targets
        for low, high in [proposal(fault, name).effect[target].range_s]
    ]
    assert sum(inside) / len(inside) >= 0.8


def test_rearranging_experts_made_it_slower_and_nothing_was_promised():
    fault, eplb = "h200-0.24.0-moe-skew", "h200-0.24.0-moe-skew-eplb"
    promise = proposal(fault, "eplb")
    assert promise.predicted_by == "nothing"
    assert "balancedness lines are over another axis" in " ".join(promise.conditions)
    found = judged(fault, eplb, "eplb")
    assert {x.verdict for x in found.targets.values()} == {"refuted"}
    assert found.targets["e2e"].effect_s == pytest.approx(-0.94, abs=0.02)


@pytest.mark.parametrize("name", ["eplb", None])
def test_another_environment_makes_it_inconclusive(name: str | None):
    skew, even = (packed.unpack(packed.read(HERE / f"h200-0.24.0-{run}.json.gz")) for run in ("moe-skew", "moe-even"))
    promise = proposal("h200-0.24.0-moe-skew", "eplb")
    found = judge(skew, even, promise, module_of(name).TOUCHES) if name else judge(skew, even)
    assert {x.verdict for x in found.targets.values()} == {"inconclusive"}
    assert "VLLM_MOE_ROUTING_SIMULATION_STRATEGY: skewed -> uniform_random" in found.targets["e2e"].why


def test_eplb_is_partly_right_and_its_moves_cost_seconds():
    fault, eplb = "h200-0.33.0-moe-skew-s1", "h200-0.33.0-moe-skew-eplb-s1"
    promise = proposal(fault, "eplb")
    assert promise.effect["e2e"].saves_s == pytest.approx(TRUTH[fault]["e2e"]["saved"], rel=WITHIN)
    assert recommended(case(fault), "e2e")[0].name == "eplb"
    found = judged(fault, eplb, "eplb").targets["e2e"]
    assert found.verdict == "partly"
    assert "experts moved 2 times inside the window" in found.why
    assert "the moves cost" in found.why
    assert "request seconds" in found.why


def test_a_split_helps_tokens_and_hurts_the_first_one():
    both, split = "h200-0.33.0-pd-aggregated-s1", "h200-0.33.0-pd-disaggregated-s1"
    promise = proposal(both, "disaggregation")
    assert promise.effect["ttft"].saves_s is promise.effect["e2e"].saves_s is None
    assert any("break-even" in c for c in promise.conditions)
    found = judged(both, split, "disaggregation").targets
    assert (found["ttft"].verdict, found["tpot"].verdict) == ("refuted", "confirmed")
    assert promise.effect["tpot"].saves_s == pytest.approx(found["tpot"].effect_s, rel=WITHIN)


def test_an_offload_tier_saves_what_it_was_predicted_to():
    fault, tier = "h200-0.33.0-prefix-thrash-s1", "h200-0.33.0-prefix-thrash-offload-s1"
    assert [one.name for one in recommended(case(fault), "e2e")][:2] == ["kv_memory", "kv_offload"]
    promise, found = proposal(fault, "kv_offload"), judged(fault, tier, "kv_offload").targets
    assert {x.verdict for x in found.values()} == {"confirmed"}
    for target in ("ttft", "e2e"):
        assert promise.effect[target].saves_s == pytest.approx(found[target].effect_s, rel=WITHIN)


def test_unseen_sharing_is_looked_into_first():
    """Salts cannot be told from prompts that share nothing: the change is named, its saving is bounded, the measurement said."""
    found = ranked(window("h200-0.24.0-prefix-salt"), attribute(window("h200-0.24.0-prefix-salt")), "e2e")
    assert [one.name for one in found] == ["cache_salt"]
    effect = found[0].effect["e2e"]
    assert effect.saves_s is None
    assert effect.range_s[0] == 0 < TRUTH["h200-0.24.0-prefix-salt"]["e2e"]["saved"] <= effect.range_s[1]
    assert any("KV events" in c for c in found[0].conditions)


@pytest.mark.parametrize("name", [*HEALTHY, "h200-0.33.0-pd-aggregated-s1", "h200-0.33.0-spec-ngram-high-s1"])
def test_nothing_is_recommended_on_a_healthy_run(name: str):
    """E2E; where a burst of prompts limits TTFT of a run without a fault, only what acts on that may be named for TTFT."""
    found = case(name)
    assert recommended(found, "e2e") == []
    if not found.limiting():
        assert all(recommended(found, objective) == [] for objective in ("ttft", "tpot", "throughput", "capacity"))
        return
    assert found.limiting() == {"prefill_backlog"}
    modules = {module.NAME: module for module in HYPOTHESES}
    assert all("prefill_backlog" in modules[one.name].RELIEVES for one in recommended(found, "ttft"))


@pytest.mark.parametrize("name", scores.captures())
def test_nothing_recommended_worsens_what_limits(name: str):
    found = case(name)
    modules = {module.NAME: module for module in HYPOTHESES}
    for objective in ("ttft", "tpot", "e2e", "throughput", "capacity"):
        for one in recommended(found, objective):
            assert not found.limiting() & set(modules[one.name].TAKES)
            for target in TARGETS:
                if found.limited(target):
                    assert (one.effect[target].saves_s or 0.0) >= -0.03 * found.measured(target)


def test_a_speculating_run_says_what_turning_it_off_would_cost():
    """Measured: TPOT 1.40 ms with, 9.26 ms without (random weights accept everything)."""
    promise = proposal("h200-0.33.0-spec-ngram-high-s1", "speculative")
    if promise is not None:
        assert promise.effect["tpot"].saves_s < 0
        assert "5.00 tokens come out of a step" in promise.claim


# -- judging ---------------------------------------------------------------------------------------------------------------------
def test_more_than_the_flags_name_makes_it_inconclusive():
    fault, fixed = window("h200-0.24.0-slots"), window("h200-0.24.0-slots-fixed")
    one = fixed.engines[0]
    other = replace(one, facts={**one.facts, "args": {**one.facts["args"], "block_size": 32}})
    promise = proposal("h200-0.24.0-slots", "more_slots")
    found = judge(fault, replace(fixed, engines=(other,)), promise, module_of("more_slots").TOUCHES)
    assert {x.verdict for x in found.targets.values()} == {"inconclusive"}
    assert "block_size: not set -> 32" in found.targets["ttft"].why
    assert judge(fault, replace(fixed, engines=(other,)), promise).targets["ttft"].verdict == "confirmed"


def test_another_load_is_not_judged():
    fault, other = window("h200-0.24.0-slots"), window("h200-0.24.0-prefix-salt-fixed")
    found = judge(fault, other)
    assert {x.verdict for x in found.targets.values()} == {"inconclusive"}
    assert "drifted too far" in found.targets["e2e"].why


def test_nothing_against_itself_is_inconclusive_or_refuted_but_never_confirmed():
    same = window("h200-0.24.0-slots")
    assert not {x.verdict for x in judge(same, same).targets.values()} & {"confirmed", "partly"}


def test_every_capture_here_says_where_it_is_from():
    manifest = tomllib.loads((HERE / "manifest.toml").read_text())
    assert {entry["name"] for entry in manifest["file"]} == {file.name for file in HERE.glob("*.json.gz")}
    assert all(
        entry[key] for entry in manifest["file"] for key in ("vllm_version", "hardware", "recorded", "flags", "environment")
    )
