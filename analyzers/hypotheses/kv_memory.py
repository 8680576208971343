"""More KV blocks: a larger share of GPU memory, or an override taken away, where too few blocks hold requests back."""

import math
from dataclasses import replace
from typing import Final

from analyzers import steps, versions
from analyzers.books import Books
from analyzers.capacity import MOST_SHARE, memory_of, pool_with
from analyzers.case import Case, Change, amount, by_books, by_twin, effect, within
from analyzers.hypotheses import trial
from analyzers.hypotheses.pool import resized
from analyzers.model import TARGETS, Effect, Hypothesis
from analyzers.twin import ENDLESS, Setup

NAME: Final = "kv_memory"
SINCE: Final = None
RELIEVES: Final = ("kv_eviction",)
TAKES: Final = ()
EFFORT: Final = 0
TOUCHES: Final = ("num_gpu_blocks_override", "gpu_memory_utilization", "kv_cache_memory_bytes")
STEP: Final = 0.03  # of the GPU's memory, added to the share
FACTORS: Final = (1.25, 1.5, 2.0, 4.0, 8.0)


def factor(case: Case) -> float | None:
    """Times the blocks of now; infinite where an override is taken away and the memory behind it is unknown. None: no room."""
    engine = case.engine
    memory = memory_of(engine)
    if memory.override:
        tokens = pool_with(engine)
        return tokens / memory.pool_tokens if math.isfinite(tokens / memory.pool_tokens) else math.inf
    if memory.share >= MOST_SHARE - 0.01:
        return None
    tokens = pool_with(engine, share=min(MOST_SHARE, memory.share + STEP))
    return tokens / memory.pool_tokens


def changed(case: Case) -> Change | None:
    """The engine with the larger pool."""
    times = factor(case)
    if times is None or not times > 1:
        return None

    def setup(now: Setup, books: Books) -> Setup:
        if math.isinf(times):
            return replace(now, blocks=ENDLESS, hit=max(now.hit, now.hit_endless))
        return resized(now, books, times)

    return Change(setup)


def propose(case: Case) -> Hypothesis | None:
    """Where KV eviction has a part."""
    change, times = changed(case), factor(case)
    if case.seconds("kv_eviction", "e2e") <= 0 or times is None or (math.isfinite(times) and change is None):
        return None
    blocks = steps.number(case.fact("kv_blocks"))
    override, share = memory_of(case.engine).override, memory_of(case.engine).share
    effects, by = _effects(case, change)
    to = f"{blocks * times:,.0f}" if math.isfinite(times) else "as many as memory holds"
    flag = "without --num-gpu-blocks-override" if override else f"--gpu-memory-utilization {min(MOST_SHARE, share + STEP):.2f}"
    return Hypothesis(
        name=NAME, change=f"{to} KV blocks instead of {blocks:,.0f}" if math.isfinite(blocks) else "more KV blocks", flags=(flag,),
        claim="requests wait for blocks, are preempted, or lose cached prefixes while slots are free",
        effect=effects, predicted_by=by,
        costs=("a larger share risks running out of memory, above all with long prompts", "more sequences share a step: TPOT grows"),
        confused_with="a slow GPU: inter-token latency looks good meanwhile, because fewer requests run",
        conditions=(*_conditions(case, effects, override=override), *versions.unknown(case.engine)),
        test=trial.plan(case, effects, "queue time, preemptions, hit rate, TPOT"),
        undoes="kv_eviction",
    )  # fmt: skip


def _effects(case: Case, change: Change | None) -> tuple[dict[str, Effect], str]:
    """By the twin; what it does not say by the books, whose saving is that of endless blocks: an override taken away may bring them."""
    found = by_twin(case, change) if change else None
    override = memory_of(case.engine).override
    if found and (found["ttft"].saves_s is not None or not override):
        return found, "twin"
    if not override:
        return within(case, {name: case.seconds("kv_eviction", name) for name in TARGETS if name != "tpot"}), "nothing"
    books = by_books(case, "kv_eviction")
    wait, decode = books["ttft"].saves_s, found["e2e"].saves_s if found else None
    if found is None or wait is None or decode is None:
        return books, "books"
    return {"ttft": books["ttft"], "tpot": found["tpot"], "e2e": effect(wait + decode, case.measured("e2e"))}, "books and twin"


def _conditions(case: Case, effects: dict[str, Effect], *, override: bool) -> list[str]:
    """What the prediction rests on, and how many blocks would be enough where the flag brings less."""
    said = []
    whole = by_twin(case, lambda s, _: replace(s, blocks=ENDLESS, hit=max(s.hit, s.hit_endless)))
    best, got = (whole["e2e"].saves_s if whole else None), effects["e2e"].saves_s
    if best is not None and got is not None and got < 0.8 * best:
        enough = next((f for f in FACTORS if _of(case, f) >= 0.9 * best), None)
        need = f"about {enough:.3g} times the blocks of now" if enough else f"more than {FACTORS[-1]:.0f} times the blocks of now"
        said.append(
            f"enough blocks would save {amount(best)} of E2E and are {need}: 8-bit KV, an offload tier, a replica or more GPUs an engine bring them"
        )
    if not override and effects["e2e"].saves_s is None:
        said.append("how many blocks the larger share brings is unknown: the GPU's memory or the model's shape is missing")
    if any(t and t.setup.hit_endless > t.setup.hit for t in case.twins):
        said.append("prefixes are taken as asked for in no particular order: hits grow with the pool in proportion until all fit")
    return said


def _of(case: Case, times: float) -> float:
    found = by_twin(case, lambda s, b: resized(s, b, times))
    return (found["e2e"].saves_s or 0.0) if found else 0.0
