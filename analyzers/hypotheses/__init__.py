"""Deployment changes as hypotheses: one module each, listed in HYPOTHESES.

A module has a docstring (first line: the change) and
    NAME      its name, that of the file
    SINCE     the first vLLM version of its flags (analyzers/versions.py), None: all that can be read
    RELIEVES  links that it acts on ("floor": the work itself)      TAKES    links that it takes from: never proposed where one of them limits
    EFFORT    0 a setting, 1 answers, chunks or isolation change, 2 more GPUs or servers
    TOUCHES   arguments that differ once it is done, so that an experiment can tell what else was changed
    propose(case)  a Hypothesis where it applies to configuration and observation, else None
    changed(case)  the Change of each engine, where the twin can replay it
What several modules share lies beside them: pool, trial, objectives, caches.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Final

from analyzers.case import FLOOR, Case, case_of
from analyzers.compare import NOISE
from analyzers.hypotheses import (
    api_servers,
    block_size,
    cache_salt,
    chunk_larger,
    chunk_smaller,
    cuda_graphs,
    disaggregation,
    eager,
    eplb,
    expert_parallel,
    fewer_slots,
    graph_sizes,
    kv_dtype,
    kv_memory,
    kv_offload,
    long_threshold,
    more_slots,
    multimodal,
    objectives,
    output_features,
    pipeline_parallel,
    prefill_interval,
    prefix_caching,
    prefix_routing,
    redundant_experts,
    replicas,
    speculative,
    stream_interval,
    tensor_parallel,
    weight_quantisation,
)
from analyzers.model import TARGETS, Attribution, Hypothesis, Window

HYPOTHESES: Final[tuple[ModuleType, ...]] = (
    api_servers, output_features, stream_interval, multimodal,
    more_slots, fewer_slots,
    chunk_smaller, chunk_larger, long_threshold, prefill_interval, graph_sizes, cuda_graphs, eager, disaggregation,
    prefix_caching, cache_salt, prefix_routing, block_size,
    kv_memory, kv_dtype, kv_offload, weight_quantisation,
    replicas, tensor_parallel, pipeline_parallel,
    expert_parallel, eplb, redundant_experts, speculative,
)  # fmt: skip
WORTH: Final = 0.05  # share of the objective that a change must save to be recommended
FAULT: Final = 0.10  # share of the objective from which a fault that is not its limit is worth undoing
DISCOUNT: Final = (1.0, 0.8, 0.5)  # what a second is worth by effort: a change of answers or more GPUs must save more
# pairs that cannot both be done, or that spoil each other, and why
CONFLICTS: Final[Mapping[frozenset[str], str]] = {
    frozenset(pair): why
    for *pair, why in (
        ("more_slots", "fewer_slots", "one raises the cap that the other lowers"),
        ("chunk_smaller", "chunk_larger", "one halves the budget that the other doubles"),
        ("chunk_larger", "graph_sizes", "a larger budget makes steps that need larger graphs still"),
        ("eager", "graph_sizes", "without graphs their sizes say nothing"),
        ("eager", "cuda_graphs", "the same switch, the other way"),
        ("long_threshold", "chunk_larger", "the threshold takes back from long prompts what the budget gives them"),
        ("prefill_interval", "chunk_smaller", "prompts would need more steps, of fewer that take them"),
        ("disaggregation", "chunk_smaller", "a server without prompts in its decode steps needs no smaller budget"),
        ("disaggregation", "prefill_interval", "a server without prompts in its decode steps needs no interval"),
        ("disaggregation", "replicas", "the same GPUs: one splits the work by kind, the other by request"),
        ("tensor_parallel", "replicas", "the same GPUs: one makes each step shorter, the other each line"),
        ("tensor_parallel", "pipeline_parallel", "the same GPUs, split another way"),
        ("pipeline_parallel", "replicas", "the same GPUs: one holds the model once, the other twice"),
        ("replicas", "prefix_routing", "more engines spread prefixes further: route by prefix first"),
        ("speculative", "more_slots", "drafts pay at small batches; more slots make batches large"),
        ("speculative", "kv_memory", "drafts pay at small batches; more blocks make batches large"),
        ("prefix_caching", "cache_salt", "salts matter only while the cache is on"),
        ("eplb", "redundant_experts", "copies are placed by the same rearrangement: try moves alone first"),
        ("api_servers", "multimodal", "with several API servers the media cache between processes is off"),
    )
}


def module_of(name: str) -> ModuleType:
    """A hypothesis' module; KeyError where there is none of that name."""
    return {module.NAME: module for module in HYPOTHESES}[name]


def proposed(case: Case) -> list[Hypothesis]:
    """Every hypothesis that applies to the configuration and to what was observed, recommended or not."""
    return [found for module in HYPOTHESES if (found := module.propose(case)) is not None]


def ranked(
    window: Window, attribution: Attribution, objective: str = "e2e", given: Mapping[str, float] | None = None
) -> list[Hypothesis]:
    """What to recommend for an objective (ttft, tpot, e2e, throughput, capacity), best first; nothing where nothing limits.

    Order: predicted gain net of what it costs other targets, by effort; then what cannot be predicted. `given` as Case has it.
    """
    if not window.engines or not _anything(attribution):
        return []
    return recommended(case_of(window, attribution, given), objective)


def recommended(case: Case, objective: str = "e2e") -> list[Hypothesis]:
    """As `ranked`, of a case that is there already."""
    if not case.window.engines or not (case.missed or _anything(case.attribution)):
        return []
    found = []
    for module in HYPOTHESES:
        if not may_help(case, module, objective):
            continue
        hypothesis = module.propose(case)
        if hypothesis is None or harms(case, hypothesis):
            continue
        gain = net(case, hypothesis, objective)
        if gain is None and not unpredicted_helps(case, module, hypothesis, objective):
            continue
        if gain is not None and gain < WORTH:
            continue
        found.append((gain is None, -(gain or 0.0) * DISCOUNT[module.EFFORT], module.EFFORT, hypothesis))
    return contradicted([hypothesis for *_, hypothesis in sorted(found, key=lambda item: item[:3])])


def _anything(attribution: Attribution) -> bool:
    """True where a target is limited, or cannot be determined because sharing was not seen."""
    return any(t is not None and (t.verdict == "limited" or _unseen(t.name, attribution)) for t in attribution.targets.values())


def _unseen(target: str, attribution: Attribution) -> bool:
    found = attribution.targets.get(target)
    return (
        found is not None
        and bool(found.parts)
        and found.verdict == "undetermined"
        and bool(found.part("prefix_cache_miss").bound_s)
    )


def may_help(case: Case, module: ModuleType, objective: str) -> bool:
    """True where a module acts on what keeps the objective from being met, and takes from no link that limits."""
    limits = case.limiting()
    if limits & set(module.TAKES):
        return False
    if not limits:  # nothing is known to limit: only what would show unseen sharing
        return module.RELIEVES[0] == "prefix_cache_miss" and any(_unseen(t, case.attribution) for t in TARGETS)
    acts = set(module.RELIEVES)
    if objective not in TARGETS or case.limited(objective):
        return bool(acts & limits) or any(_contributes(case, link, objective) for link in acts)
    return bool(acts & limits) or any(_contributes(case, link, objective, FAULT) for link in acts)


def _contributes(case: Case, link: str, objective: str, share: float = WORTH) -> bool:
    target = objective if objective in TARGETS else "e2e"
    seconds = case.seconds(link, target) if share == WORTH else case.fault(link, target)
    return seconds > share * (case.measured(target) or math.inf)


def harms(case: Case, hypothesis: Hypothesis) -> bool:
    """True where a target that is limited already becomes worse: as predicted, or beyond the noise at the bad end of its range."""
    for name in (name for name in TARGETS if case.limited(name)):
        effect, measured = hypothesis.effect[name], case.measured(name) or math.inf
        if (effect.saves_s or 0.0) < -WORTH / 2 * measured or (effect.range_s or (0.0,))[0] < -NOISE * measured:
            return True
    return False


def net(case: Case, hypothesis: Hypothesis, objective: str) -> float | None:
    """Gain on the objective as a share of it, less the share that the target next door loses; None: cannot be predicted.

    An objective that is met (not limited) only counts where the hypothesis undoes a link that limits another target, or a
    fault that is a tenth of it.
    """
    if objective not in TARGETS:
        module = module_of(hypothesis.name)
        change = module.changed(case) if hasattr(module, "changed") else None
        ratio = objectives.gains(case, change)[objective].ratio
        return None if ratio is None else ratio - 1
    measured, saved = case.measured(objective), hypothesis.effect[objective].saves_s
    if saved is None or not measured:
        return None
    link = hypothesis.undoes
    if not case.limited(objective) and not (link in case.limiting() or (link and _contributes(case, link, objective, FAULT))):
        return 0.0
    if objective == "e2e":  # what TTFT or TPOT lose is in it
        return saved / measured
    other = "tpot" if objective == "ttft" else "ttft"
    next_door = min(0.0, (hypothesis.effect[other].saves_s or 0.0) / (case.measured(other) or math.inf))
    return saved / measured + next_door


def unpredicted_helps(case: Case, module: ModuleType, hypothesis: Hypothesis, objective: str) -> bool:
    """What cannot be predicted is named only for a latency objective that is missed, where it acts on what limits it."""
    if objective not in TARGETS:
        return False
    target = case.attribution.targets.get(objective)
    if target is not None and case.limited(objective):
        most = hypothesis.effect[objective].range_s
        links = {target.limiting, target.runner_up} if target.limiting else {target.load}
        links |= case.limiting() & {FLOOR}
        return bool(links & set(module.RELIEVES)) and (most is None or most[1] > WORTH * (case.measured(objective) or math.inf))
    return target is not None and _unseen(objective, case.attribution)


def contradicted(found: Sequence[Hypothesis]) -> list[Hypothesis]:
    """Each with what it contradicts of the others, and with whom it shares a gain, in its conditions."""
    out = []
    for one in found:
        said = [
            f"contradicts {other.name}: {CONFLICTS[pair]}"
            for other in found
            if (pair := frozenset((one.name, other.name))) in CONFLICTS
        ]
        same = [other.name for other in found if other is not one and one.undoes and other.undoes == one.undoes]
        if same:
            said.append(f"takes away the same link as {', '.join(same)}: their gains do not add up")
        out.append(replace(one, conditions=(*one.conditions, *said)) if said else one)
    return out
