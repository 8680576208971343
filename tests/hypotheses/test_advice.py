"""Advice, tested like code: each change where it helps and where it does not, with what is said then.

Engines are replayed step by step, seen as their operator sees them, and replayed again with the change: predictions are compared
with what it truly saves.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import pytest

from analyzers.case import Case
from analyzers.hypotheses import HYPOTHESES, may_help, recommended
from analyzers.model import TARGETS
from analyzers.twin import Setup

from ..analyzers.replay import ENGINE, replay  # noqa: TID252 the program has the name analyzers
from .scenes import (
    EP,
    H100,
    HEALTHY,
    LOADS,
    UNCACHED,
    case,
    dealt,
    drafting,
    media,
    moe,
    names,
    of,
    run,
    saved,
    seen,
    text,
    thrashing,
    two_engines,
)

SLOTS: Final = replace(HEALTHY, slots=6)  # 8 requests run on average
SHORT: Final = replace(HEALTHY, blocks=260)  # blocks for 6 of them
LAUNCHES: Final = replace(HEALTHY, graph=512, launch_s=0.06)
GROWING: Final = replace(HEALTHY, b=1e-3, blocks=140)
EAGER: Final = {**H100, "args": {"enforce_eager": True}}
SLOW: Final = replace(SHORT, a=0.05)


@dataclass(frozen=True)
class Scene:
    """A window in which a change helps: it is recommended for the objective, and says these things.

    `truly` is what it saves when it is made (None: not to be replayed), `within` how far off the prediction may be.
    """

    name: str
    build: Callable[[], Case]
    says: tuple[str, ...]
    objective: str = "e2e"
    truly: Callable[[], Mapping[str, float]] | None = None
    within: float = 0.3


def changed(before: Setup, after: Setup, load: str = "chat") -> Callable[[], Mapping[str, float]]:
    return lambda: saved(run(before, load), run(after, load))


HELPS: Final = (
    Scene("api_servers", lambda: case(seen(HEALTHY, frontend_s=0.8)), ("--api-server-count 4", "793 ms of a request", "output_features")),
    Scene("output_features", lambda: case(seen(HEALTHY, frontend_s=0.8)), ("logprobs", "nothing is saved")),
    Scene("stream_interval", lambda: case(seen(HEALTHY, frontend_s=0.8)), ("--stream-interval 4", "clients get 4 tokens at once")),
    Scene("multimodal", lambda: case(media(0.2)), ("--mm-processor-cache-gb 8", "20 % of media"), "ttft"),
    Scene("more_slots", lambda: case(seen(SLOTS)), ("--max-num-seqs", "TPOT grows, about"), "ttft", changed(SLOTS, replace(HEALTHY, slots=32)), 0.05),
    Scene("fewer_slots", lambda: case(seen(GROWING, "growing")), ("--max-num-seqs 8", "fit into the pool together"), "e2e", changed(GROWING, replace(GROWING, slots=8), "growing"), 0.5),
    Scene("chunk_smaller", lambda: case(seen(LAUNCHES, "mixed", UNCACHED, log=True), slo={"tpot": 0.012}), ("--max-num-batched-tokens 512", "the longest step takes"), "tpot", changed(LAUNCHES, replace(LAUNCHES, budget=512), "mixed"), 0.4),
    Scene("chunk_larger", lambda: case(seen(replace(HEALTHY, budget=512), "long", UNCACHED)), ("--max-num-batched-tokens 2048", "fill the budget of 512 tokens"), "ttft", changed(replace(HEALTHY, budget=512), replace(HEALTHY, budget=2048), "long"), 0.1),
    Scene("long_threshold", lambda: case(seen(replace(HEALTHY, b=6e-5), "bursts", UNCACHED)), ("--long-prefill-token-threshold 1024", "prompts of up to 12000 tokens"), "ttft", changed(replace(HEALTHY, b=6e-5), replace(HEALTHY, b=6e-5, long_threshold=1024), "bursts")),
    Scene("prefill_interval", lambda: case(seen(LAUNCHES, "mixed", UNCACHED), slo={"tpot": 0.012}), ("--prefill-schedule-interval 4", "which is not known from here", "waits up to 3 steps more"), "tpot"),
    Scene("graph_sizes", lambda: case(seen(LAUNCHES, "mixed", UNCACHED, log=True), slo={"tpot": 0.012}), ("--max-cudagraph-capture-size 1536", "runs without a graph"), "tpot", changed(LAUNCHES, replace(LAUNCHES, graph=2048), "mixed"), 0.4),
    Scene("cuda_graphs", lambda: case(seen(replace(HEALTHY, a=0.03), facts=EAGER), slo={"tpot": 0.012}), ("without --enforce-eager", "reading the weights takes"), "tpot"),
    Scene("eager", lambda: case(seen(SLOW)), ("--enforce-eager", "would be KV blocks"), "ttft"),
    Scene("disaggregation", lambda: case(seen(LAUNCHES, "mixed", UNCACHED, log=True), slo={"tpot": 0.012}), ("NixlConnector", "TTFT cannot be predicted before a transfer was measured", "break-even"), "tpot"),
    Scene("prefix_caching", lambda: case(seen(replace(HEALTHY, budget=512), "long", UNCACHED)), ("--enable-prefix-caching", "each tenth of prompt tokens that hits saves"), "ttft"),
    Scene("cache_salt", lambda: case(seen(HEALTHY, "long", kv={"stored_blocks": 9e4, "distinct_blocks": 9e4, "again_blocks": 0.0, "elsewhere_blocks": 0.0, "block_size": 16.0, "gaps": 0.0, "salts": 12.0})), ("12 cache salts were seen", "isolation"), "e2e"),
    Scene("prefix_routing", lambda: case(*two_engines()), ("hit rates of the engines are 0.48, 0.48", "hot engines"), "e2e", lambda: saved(run(replace(HEALTHY, hit=0.48), "half"), run(replace(HEALTHY, hit=0.81), "half"))),
    Scene("block_size", lambda: case(seen(replace(HEALTHY, hit=0.5, block_size=512, blocks=2000, budget=512), "long"), slo={"ttft": 0.05}), ("--block-size 16", "half a block (256 tokens)"), "ttft"),
    Scene("kv_memory", lambda: case(seen(SHORT)), ("--gpu-memory-utilization 0.95", "running out of memory"), "ttft", changed(SHORT, replace(SHORT, blocks=1483)), 0.1),
    Scene("kv_dtype", lambda: case(seen(SHORT)), ("--kv-cache-dtype fp8", "260 -> 520 blocks", "answers change"), "ttft", changed(SHORT, replace(SHORT, blocks=520)), 0.1),
    Scene("kv_offload", lambda: case(thrashing(), given={"offload_bytes_per_s": 24e9}), ("--kv-offloading-size", "loading them takes", "as given"), "e2e", lambda: saved(run(replace(HEALTHY, hit=0.5), "prefixes"), run(replace(HEALTHY, hit=0.75), "prefixes"))),
    Scene("weight_quantisation", lambda: case(seen(SHORT)), ("--quantization fp8", "become KV blocks", "kernels"), "ttft", changed(SHORT, replace(SHORT, blocks=3858)), 0.1),
    Scene("replicas", lambda: case(seen(SLOTS)), ("--data-parallel-size 2", "GPUs: as many again"), "e2e", lambda: saved(run(SLOTS), *(replay(part, SLOTS) for part in dealt(LOADS["chat"], 2))), 0.05),
    Scene("tensor_parallel", lambda: case(seen(SHORT)), ("--tensor-parallel-size 2", "all-reduce"), "ttft"),
    Scene("pipeline_parallel", lambda: case(seen(SHORT)), ("--pipeline-parallel-size 2", "TPOT becomes no better"), "ttft"),
    Scene("expert_parallel", lambda: case(seen(replace(HEALTHY, budget=512), "long", {**EP, "expert_parallel": False, "prefix_caching": False})), ("--enable-expert-parallel", "slices of 384 columns"), "ttft"),
    Scene("eplb", lambda: case(moe()), ("--enable-eplb", "1.77 times the mean", "never rearrange every few hundred steps"), "tpot"),
    Scene("redundant_experts", lambda: case(moe()), ('"num_redundant_experts": 2', "of the KV blocks"), "tpot"),
    Scene("speculative", lambda: case(seen(HEALTHY, "many"), slo={"tpot": 0.012}, given={"accepted_length": 3.0}), ("break-even at", "accepted length 3.00 as given"), "tpot"),
)  # fmt: skip


@dataclass(frozen=True)
class Against:
    """A window in which a change is not recommended: it does not apply (`says` is None), or it says why not and what it would do."""

    name: str
    build: Callable[[], Case]
    says: str | None = None
    objective: str = "e2e"


HURTS: Final = (
    Against("api_servers", lambda: case(seen(HEALTHY))),
    Against("output_features", lambda: case(seen(SLOTS))),
    Against("stream_interval", lambda: case(seen(HEALTHY, frontend_s=0.8, version="0.10.0"))),
    Against("multimodal", lambda: case(media(0.95))),
    Against("more_slots", lambda: case(seen(SHORT))),
    Against("fewer_slots", lambda: case(seen(SHORT)), "longer where requests are short"),
    Against("chunk_smaller", lambda: case(seen(replace(HEALTHY, budget=2048), "long", UNCACHED)), "a prompt takes more steps", "ttft"),
    Against("chunk_larger", lambda: case(seen(replace(HEALTHY, b=6e-5), "bursts", UNCACHED)), "computes prompt tokens no faster", "ttft"),
    Against("long_threshold", lambda: case(seen(replace(HEALTHY, budget=512), "long", UNCACHED)), None, "ttft"),
    Against("prefill_interval", lambda: case(seen(replace(HEALTHY, budget=512), "long", UNCACHED)), None, "ttft"),
    Against("graph_sizes", lambda: case(seen(HEALTHY, "mixed", UNCACHED, log=True), slo={"tpot": 0.011}), None, "tpot"),
    Against("cuda_graphs", lambda: case(seen(HEALTHY, facts={**EAGER, "device": "cpu"}), slo={"tpot": 0.010}), None, "tpot"),
    Against("eager", lambda: case(seen(SHORT))),
    Against("disaggregation", lambda: case(seen(replace(HEALTHY, b=8e-5), "long", UNCACHED)), None, "ttft"),
    Against("prefix_caching", lambda: case(seen(SLOTS)), "no prompt token hit the cache"),
    Against("cache_salt", lambda: case(thrashing())),
    Against("prefix_routing", lambda: case(*two_engines(0.0))),
    Against("block_size", lambda: case(thrashing())),
    Against("kv_memory", lambda: case(seen(SHORT, facts={**H100, "args": {"gpu_memory_utilization": 0.97}}))),
    Against("kv_dtype", lambda: case(seen(SHORT, facts={**H100, "args": {"num_gpu_blocks_override": 260}}))),
    Against("kv_offload", lambda: case(thrashing(), given={"offload_bytes_per_s": 1e9}), "of loads a request", "ttft"),
    Against("weight_quantisation", lambda: case(seen(SHORT, facts={**H100, "args": {"quantization": "fp8"}}))),
    Against("replicas", lambda: case(*two_engines()), "dealt out at random"),
    Against("tensor_parallel", lambda: case(seen(SHORT, facts={**H100, "tensor_parallel": 32}))),
    Against("pipeline_parallel", lambda: case(seen(HEALTHY, "many"), slo={"tpot": 0.011}), None, "tpot"),
    Against("expert_parallel", lambda: case(seen(SLOTS))),
    Against("eplb", lambda: case(moe(1.02))),
    Against("redundant_experts", lambda: case(moe(1.02))),
    Against("speculative", lambda: case(seen(replace(HEALTHY, b=2e-4), "chat"), slo={"tpot": 0.010}, given={"accepted_length": 1.05}), "verifying them makes every step longer", "tpot"),
)  # fmt: skip


@functools.cache
def built(scene: Scene | Against) -> Case:
    """A scene's window, judged once."""
    return scene.build()


def test_every_hypothesis_has_a_scene_in_which_it_helps_and_one_in_which_it_does_not():
    every = {module.NAME for module in HYPOTHESES}
    assert {scene.name for scene in HELPS} == {scene.name for scene in HURTS} == every


@pytest.mark.parametrize("scene", HELPS, ids=lambda scene: scene.name)
def test_it_helps_and_says_how(scene: Scene):
    found = built(scene)
    one = of(scene.name, found)
    assert one is not None
    for part in scene.says:
        assert part in text(one), text(one)
    assert scene.name in names(found, scene.objective), names(found, scene.objective)
    if scene.truly is None:
        return
    truth = scene.truly()[scene.objective]
    predicted = one.effect[scene.objective].saves_s
    assert predicted == pytest.approx(truth, rel=scene.within)


@pytest.mark.parametrize("scene", HURTS, ids=lambda scene: scene.name)
def test_it_does_not_help_and_is_not_recommended(scene: Against):
    found = built(scene)
    one = of(scene.name, found)
    assert scene.name not in names(found, scene.objective)
    if scene.says is None:
        assert one is None, text(one) if one else ""
        return
    assert one is not None
    assert scene.says in text(one), text(one)


@pytest.mark.parametrize("scene", [*HELPS, *HURTS], ids=lambda scene: scene.name)
def test_nothing_recommended_takes_from_what_limits_or_worsens_it(scene: Scene | Against):
    found = built(scene)
    modules = {module.NAME: module for module in HYPOTHESES}
    for objective in ("ttft", "tpot", "e2e", "throughput", "capacity"):
        for name in names(found, objective):
            assert not found.limiting() & set(modules[name].TAKES), name
            assert may_help(found, modules[name], objective)
            effect = of(name, found).effect
            for target in TARGETS:
                if found.limited(target):
                    assert (effect[target].saves_s or 0.0) >= -0.03 * found.measured(target), (name, target)
                    assert (effect[target].range_s or (0.0,))[0] >= -0.08 * found.measured(target), (name, target)


# -- what single ones must not do ------------------------------------------------------------------------------------------------
def test_a_lower_share_of_memory_is_never_proposed():
    for share in (0.5, 0.9, 0.93, 0.96, 0.97):
        one = of("kv_memory", case(seen(SHORT, facts={**H100, "args": {"gpu_memory_utilization": share}})))
        if one is not None:
            assert float(one.flags[0].split()[1]) > share


def test_more_blocks_than_the_flag_brings_are_not_promised():
    """Of 400 GiB for blocks a few percent more are little: the rest is said, not predicted."""
    facts = {**H100, "memory_gib": 79.6, "device_name": None}
    tight = replace(HEALTHY, blocks=260)
    one = of("kv_memory", case(seen(tight, facts={**facts, "memory_gib": 1.0})))
    assert one is not None
    assert one.effect["ttft"].saves_s is not None
    whole = saved(run(tight), run(HEALTHY))["ttft"]
    assert one.effect["ttft"].saves_s < 0.8 * whole
    assert "enough blocks would save" in text(one)


def test_slots_are_not_raised_where_blocks_are_short_too():
    both = replace(HEALTHY, slots=6, blocks=200)
    found = case(seen(both))
    assert "kv_eviction" in found.limiting() | {"kv_eviction"}
    if "kv_eviction" in found.limiting():
        assert "more_slots" not in names(found)


def test_speculation_is_never_guessed():
    one = of("speculative", case(seen(HEALTHY, "many"), slo={"tpot": 0.012}))
    assert one is not None
    assert all(one.effect[target].saves_s is None and one.effect[target].range_s is None for target in TARGETS)
    assert "is not guessed" in text(one)
    assert "break-even at" in one.claim


def test_speculation_that_accepts_nothing_is_turned_off():
    found = case(drafting(), slo={"tpot": 0.011})
    one = of("speculative", found)
    assert one is not None
    assert one.flags == ("without --speculative-config",)
    assert one.effect["tpot"].saves_s > 0
    low, high = one.effect["tpot"].range_s
    truth = saved(run(replace(HEALTHY, c=ENGINE.c + 4 * ENGINE.b), "many"), run(HEALTHY, "many"))["tpot"]
    assert low <= truth <= high


def test_eplb_says_that_old_balancedness_lines_measure_nothing():
    one = of("eplb", case(moe(version="0.24.0")))
    assert one is not None
    assert one.predicted_by == "nothing"
    assert all(found.saves_s is None for found in one.effect.values())
    assert "balancedness lines are over another axis" in text(one)
    assert of("eplb", case(moe(eplb=True))) is None  # it moves experts already


def test_what_is_not_known_is_a_range_from_nothing():
    """Unpredicted effects have no number, at most a bound."""
    for scene in HELPS:
        one = of(scene.name, built(scene))
        for found in one.effect.values():
            if found.saves_s is None and found.range_s is not None:
                assert found.range_s[0] == 0.0
                assert found.range_s[1] > 0.0


def test_contradictions_are_named():
    found = {one.name: one for one in recommended(case(seen(SHORT)), "ttft")}
    assert any("contradicts replicas" in c for c in found["tensor_parallel"].conditions)
    assert any("their gains do not add up" in c for c in found["kv_memory"].conditions)
