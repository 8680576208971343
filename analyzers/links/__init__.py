"""The links of the token-state chain: one module each, listed in chain order in CHAIN.

A module has a docstring (What it is, Why it costs latency, How it is computed, What to try), LINK, `row(books)` and may have
`adjust(books)` (its cost lies inside other links' steps and is taken out of them first), `saves(books, row, target, per)` (its
own rule for what fixing it saves), `fix(setup)` (the counterfactual in the twin) and `sign(engine)` (what a state without
request seconds says).
"""

import re
import textwrap
from collections.abc import Iterable
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
from analyzers.versions import FLAGS, has, parsed

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


def tries(module: ModuleType, versions: Iterable[str] = ()) -> list[tuple[str, str]]:
    """What to try, one pair a change: (the flag or change, what it costs next door), as far as these versions of vLLM have it."""
    out = []
    for line in sections(module).get("What to try", "").splitlines():
        change, _, cost = line.strip().partition(": ")
        out.append((change, cost))
    return offered(out, versions)


def offered(changes: Iterable[tuple[str, str]], versions: Iterable[str]) -> list[tuple[str, str]]:
    """The changes without those that are a flag which none of these versions has; other advice stays, also where it names one."""
    known = [one for one in map(parsed, versions) if one]

    def there(change: str) -> bool:
        named = [flag for flag in re.findall(r"--([a-z-]+)", change) if flag in FLAGS]
        return not known or not change.startswith("--") or all(any(has(version, flag) for version in known) for flag in named)

    return [(change, cost) for change, cost in changes if there(change)]


def by_name(name: str) -> ModuleType:
    """The module of a link; KeyError where the chain has no such link."""
    for module in CHAIN:
        if module.LINK.name == name:
            return module
    raise KeyError(name)
