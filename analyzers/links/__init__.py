"""The links of the token-state chain: one module each, listed in chain order in CHAIN.

A module has a docstring (What it is, Why it costs latency, How it is computed, What to try), LINK, `row(books)` and may have
`adjust(books)` (its cost lies inside other links' steps and is taken out of them first) and `sign(engine)` (what a state
without request seconds says).
"""

from types import ModuleType
from typing import Final

from analyzers.links import (
    decode_batch,
    engine_stall,
    frontend,
    kv_eviction,
    kv_transfer,
    moe_imbalance,
    output,
    prefill_backlog,
    prefix_cache_miss,
    slots,
    speculation,
)

CHAIN: Final[tuple[ModuleType, ...]] = (
    frontend,
    slots,
    prefill_backlog,
    prefix_cache_miss,
    kv_eviction,
    kv_transfer,
    decode_batch,
    moe_imbalance,
    speculation,
    engine_stall,
    output,
)
