"""An offload tier in host memory: evicted prefixes are loaded again instead of computed.

A load takes the bytes over the bandwidth, and waits for the end of a step twice (measured in 0.33: a load of 17 ms cost 56 ms).
"""

import math
from dataclasses import replace
from typing import Final

from analyzers import steps, versions
from analyzers.books import Books
from analyzers.capacity import GIB, kv_bytes, memory_of
from analyzers.case import Case, Change, amount, between, by_twin, effect
from analyzers.hypotheses import trial
from analyzers.model import TARGETS, Effect, Hypothesis
from analyzers.twin import Setup

NAME: Final = "kv_offload"
SINCE: Final = versions.first_of("kv-offloading-size")
RELIEVES: Final = ("kv_eviction",)
TAKES: Final = ("kv_transfer",)
EFFORT: Final = 0
TOUCHES: Final = ("kv_offloading_size", "kv_offloading_backend", "kv_transfer_config")
BANDWIDTH: Final = (10e9, 50e9)  # bytes/s between host and GPU, PCIe 4 and 5 with 16 lanes in use; 24e9 was measured on an H200
PINNED: Final = 2  # steps whose end a load waits for
WHOLE: Final = 0.9  # share of a prompt that a hit usually holds


def loaded(books: Books) -> tuple[float, float]:
    """(tokens that a request would load, loads a request) where evicted prefixes come from the tier; zeros where none were evicted."""
    gap = books.hits.endless - books.hits.now
    prompt = steps.lengths(books.engine)[0]
    if not gap > 0 or not math.isfinite(prompt):
        return 0.0, 0.0
    return gap * prompt, min(1.0, gap / max(WHOLE * max(books.hits.endless, gap), 1e-9))


def changed(case: Case) -> Change | None:
    """The engine whose evicted prefixes hit (loads cost nothing here); None where none were evicted or there is a tier."""
    if case.fact("connector") or not any(loaded(b)[0] > 0 for b in case.accounts):
        return None

    def setup(now: Setup, _: Books) -> Setup:
        return replace(now, hit=max(now.hit, now.hit_endless))

    return Change(setup)


def transfer_s(case: Case, bandwidth: float) -> float:
    """Seconds of loads a request, averaged: bytes over bandwidth, and the ends of two steps a load."""

    def of(books: Books) -> float:
        tokens, loads = loaded(books)
        each = kv_bytes(books.engine) * max(1.0, steps.number(books.engine.facts.get("tensor_parallel"), 1.0))
        step = 2 * books.in_flight_s  # a wait for the end of a step is half of one, and long ones meet more of them
        return tokens * each / bandwidth + loads * PINNED * step

    return case.mean(of)


def propose(case: Case) -> Hypothesis | None:
    """Where evicted prefixes are computed again."""
    change = changed(case)
    whole = by_twin(case, change) if change else None
    size = needed_gib(case)
    if whole is None:
        return None
    given = case.given.get("offload_bytes_per_s")
    ends = (given, given) if given else BANDWIDTH
    low, high = (_less(case, whole, transfer_s(case, rate)) for rate in ends)
    effects = between(low, high)
    if effects is None:
        return None
    slow, fast = (transfer_s(case, rate) for rate in ends)
    tokens = case.mean(lambda b: loaded(b)[0])
    return Hypothesis(
        name=NAME, change=f"evicted prefixes go to {size:.0f} GiB of host memory" if math.isfinite(size) else "evicted prefixes go to host memory",
        flags=_flags(case, size), claim=f"{tokens:.0f} tokens of a request's prompt had been cached and were evicted: loading them takes {amount(fast)} to {amount(slow)}",
        effect=effects, predicted_by="twin, less arithmetic of the loads",
        costs=(f"{amount(fast)} to {amount(slow)} of loads a request", "host memory, PCIe traffic; what loads cost running decodes is unknown",
               "requests that wait for blocks still wait: a tier holds prefixes, not running requests"),
        confused_with="more KV blocks, which also admit more requests at once",
        conditions=(f"bandwidth {given:.3g} bytes/s as given" if given else f"bandwidth between {BANDWIDTH[0]:.0e} and {BANDWIDTH[1]:.0e} bytes/s: give what was measured to narrow it",
                    "the tier holds all prefixes that are asked for", *_missing(case), *versions.unknown(case.engine)),
        test=trial.plan(case, effects, "external hits, load seconds, TTFT of requests that load, TPOT"),
        undoes="kv_eviction",
    )  # fmt: skip


def _less(case: Case, whole: dict[str, Effect], seconds: float) -> dict[str, Effect]:
    """An effect less the loads, which lie before the first token."""
    out = {}
    for name in TARGETS:
        saved = whole[name].saves_s
        out[name] = whole[name] if name == "tpot" or saved is None else effect(saved - seconds, case.measured(name))
    return out


def needed_gib(case: Case) -> float:
    """Host memory for all prefixes: distinct blocks where KV events count them, else four times the pool."""
    e, memory = case.engine, memory_of(case.engine)
    each = memory.kv_bytes * max(1.0, steps.number(e.facts.get("tensor_parallel"), 1.0))
    if e.kv.get("distinct_blocks"):
        return 1.2 * e.kv["distinct_blocks"] * (e.kv.get("block_size") or 16.0) * each / GIB
    return 4 * memory.pool_tokens * each / GIB


def _flags(case: Case, size: float) -> tuple[str, ...]:
    wanted = max(1, math.ceil(size)) if math.isfinite(size) else 32
    if versions.has(versions.version_of(case.engine), "kv-offloading-size"):
        return (f"--kv-offloading-size {wanted}",)
    return ('--kv-transfer-config \'{"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}\'',)


def _missing(case: Case) -> tuple[str, ...]:
    if versions.has(versions.version_of(case.engine), "kv-offloading-size"):
        return ()
    return (
        "this version has no --kv-offloading-size: LMCache must be installed and configured (its size is in its own configuration)",
    )
