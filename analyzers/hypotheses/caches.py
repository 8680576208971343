"""Prefix caches of several engines on one stream of requests, block by block: what routing and size make of the hits.

Each request is its blocks in order, as identities in which a block includes all before it (hash ids of a trace, or hashes of
prompts). A hit is the longest run of blocks from the start that the engine holds. Blocks leave in order of last use; a block
that a request uses is touched, later blocks first, so that ends of prompts go before their beginnings (vLLM's free queue).
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analyzers.model import Array


@dataclass(frozen=True, slots=True)
class Hits:
    """Blocks that hit and blocks in all, by engine, requests by engine, and the blocks that hit of each request."""

    hit: tuple[int, ...]
    blocks: tuple[int, ...]
    requests: tuple[int, ...]
    by_request: tuple[int, ...]

    @property
    def ratio(self) -> float:
        """Share of blocks that hit, over all engines."""
        return sum(self.hit) / max(1, sum(self.blocks))

    def tokens(self, prompt: Sequence[float] | Array, size: int) -> float:
        """Share of prompt tokens that hit, in blocks of `size` of which the last may be partial."""
        lengths = np.asarray(prompt, float)
        return float(np.minimum(size * np.asarray(self.by_request, float), lengths).sum() / max(lengths.sum(), 1.0))


def replayed(
    requests: Sequence[Sequence[int]], capacity: int | None, engines: int = 1, *, routed: bool = False, seed: int = 0
) -> Hits:
    """Hits of requests dealt to engines at random, or (`routed`) to the one that holds most of their prefix, the idlest if none does.

    `capacity` is blocks per engine; None: endless.
    """
    rng = np.random.default_rng(seed)
    caches: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(engines)]
    hit, total, count = [0] * engines, [0] * engines, [0] * engines
    each: list[int] = []
    drawn = rng.integers(0, engines, len(requests))
    for blocks, at_random in zip(requests, drawn.tolist(), strict=True):
        held = [_held(cache, blocks) for cache in caches]
        best = max(held)
        at = min((i for i in range(engines) if held[i] == best), key=lambda i: total[i] - hit[i]) if routed else at_random
        hit[at] += held[at]
        total[at] += len(blocks)
        count[at] += 1
        each.append(held[at])
        _use(caches[at], blocks, capacity)
    return Hits(tuple(hit), tuple(total), tuple(count), tuple(each))


def _held(cache: OrderedDict[int, None], blocks: Sequence[int]) -> int:
    """Blocks from the start of a request that a cache holds."""
    for at, block in enumerate(blocks):
        if block not in cache:
            return at
    return len(blocks)


def _use(cache: OrderedDict[int, None], blocks: Sequence[int], capacity: int | None) -> None:
    for block in reversed(blocks):
        cache[block] = None
        cache.move_to_end(block)
    while capacity is not None and len(cache) > capacity:
        cache.popitem(last=False)
