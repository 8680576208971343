"""A pool of another size: how many blocks an engine then has, and how many prefix hits.

Under requests for prefixes in no particular order, the share of an LRU cache's hits grows with its size in proportion until all
prefixes fit. All prefixes are as large as KV events say, else as the hits with endless blocks and those now say together.
"""

import math
from dataclasses import replace
from typing import Final

from analyzers.books import Books
from analyzers.case import Change
from analyzers.twin import ENDLESS, Setup

MOST_HITS: Final = 0.95  # the last block of a prompt is always computed


def resized(setup: Setup, books: Books, factor: float) -> Setup:
    """The engine with `factor` times its blocks."""
    if setup.blocks >= ENDLESS:
        return setup
    blocks = min(ENDLESS, int(setup.blocks * factor))
    return replace(setup, blocks=blocks, hit=hit_at(setup, books, factor))


def hit_at(setup: Setup, books: Books, factor: float) -> float:
    """Prefix hit ratio of a pool of `factor` times the blocks."""
    if factor < 1:
        return setup.hit * factor
    if setup.hit_endless <= setup.hit:
        return setup.hit
    needed = enough(setup, books)
    if factor >= needed:
        return setup.hit_endless
    return setup.hit + (setup.hit_endless - setup.hit) * (factor - 1) / (needed - 1)


def enough(setup: Setup, books: Books) -> float:
    """Times the blocks of now in which all prefixes that are asked for fit; infinite where that is not known."""
    kv, facts = books.engine.kv, books.engine.facts
    if kv.get("distinct_blocks") and facts.get("kv_blocks"):
        return max(1.01, float(kv["distinct_blocks"]) / float(facts["kv_blocks"]))
    return max(1.01, setup.hit_endless / setup.hit) if setup.hit > 0 else math.inf


def hitting(share: float) -> Change:
    """The engine with so much more of its prompt tokens hit."""

    def setup(now: Setup, _: Books) -> Setup:
        return replace(now, hit=min(MOST_HITS, now.hit + share))

    return Change(setup)
