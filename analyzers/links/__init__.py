"""The links of the token-state chain: one module each, listed in chain order in CHAIN.

A module has a docstring (What it is, Why it costs latency, How it is computed, What to try), LINK, `row(books)` and may have
`adjust(books)` (its cost lies inside other links' steps and is taken out of them first), `saves(books, row, target, per)` (its
own rule for what fixing it saves), `fix(setup)` (the counterfactual in the twin) and `sign(engine)` (what a state without
request seconds says).
"""

import textwrap
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


SECTIONS: Final = ("What it is", "Why it costs latency", "How it is computed", "What to try")


def sections(module: ModuleType) -> dict[str, str]:
    """A link's documentation by section, as its docstring has it."""
    found: dict[str, list[str]] = {}
    current: list[str] | None = None
    for line in (module.__doc__ or "").splitlines():
        if line.rstrip(":") in SECTIONS and line.endswith(":"):
            current = found.setdefault(line.rstrip(":"), [])
        elif current is not None:
            current.append(line)
    return {name: textwrap.dedent("\n".join(lines)).strip() for name, lines in found.items()}


def tries(module: ModuleType) -> list[tuple[str, str]]:
    """What to try, one pair a change: (the flag or change, what it costs next door)."""
    out = []
    for line in sections(module).get("What to try", "").splitlines():
        change, _, cost = line.strip().partition(": ")
        out.append((change, cost))
    return out


def by_name(name: str) -> ModuleType:
    """The module of a link; KeyError where the chain has no such link."""
    for module in CHAIN:
        if module.LINK.name == name:
            return module
    raise KeyError(name)
