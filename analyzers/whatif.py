"""What-ifs through the twin: single and joint fixes, their composition in two tiers, and the load without its long prompts.

Faults are composed first, among themselves; load links (prompts beside decodes, the batch) get the rest: nobody can fix "batch
of one". Values are Shapley shares of the anchored replays (attribution.md section 3).
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from analyzers.books import Books
from analyzers.links import CHAIN
from analyzers.model import TARGETS, Array, Stage
from analyzers.twin import Result, Setup, Twin, simulate, twin_of, without_long

LOAD_TIER: Final = ("prefill_backlog", "decode_batch")
TARGET_NAMES: Final = ("ttft", "tpot", "e2e")
LONG: Final = 6.0  # a prompt is long above this many medians


@dataclass(frozen=True, slots=True)
class WhatIf:
    """Answers of the twin for one engine. `holds` False: outside its gate, and the books speak alone.

    `met` is, by target with an SLO, the share of requests that met it "now" and with each link (or "all faults") fixed.

    Seconds by target and link: `saves` fixing only it, `last` fixing it when all else is fixed, `parts` its additive share, which
    `shares` splits into the wait before decoding ("wait") and "decode", seconds a request.
    `joint` all faults fixed together. `without_long` the other requests without prompts above `LONG` medians, and
    `without_long_joint` with all faults fixed besides. None: not to be said.
    """

    gate: Mapping[str, float]
    holds: bool
    holds_of: Mapping[str, bool]  # by target
    load: str
    saves: Mapping[str, Mapping[str, float]]
    last: Mapping[str, Mapping[str, float]]
    parts: Mapping[str, Mapping[str, float]]
    shares: Mapping[str, Mapping[str, float]]
    joint: Mapping[str, float]
    without_long: Mapping[str, float] | None
    without_long_joint: Mapping[str, float] | None
    met: Mapping[str, Mapping[str, float]] | None = None


class _Replays:
    """Replays of one twin by the set of links fixed, each done once."""

    def __init__(self, twin: Twin) -> None:
        self.twin = twin
        self.fixes = {module.LINK.name: module.fix for module in CHAIN if hasattr(module, "fix")}
        self.done: dict[frozenset[str], Result] = {frozenset(): twin.base}

    def setup(self, links: Sequence[str]) -> Setup:
        """The engine with these links fixed."""
        setup = self.twin.setup
        for name in links:
            setup = self.fixes[name](setup)
        return setup

    def saved(self, links: Sequence[str], target: str) -> float:
        """Anchored seconds of a target that fixing these links saves."""
        key = frozenset(links)
        if key not in self.done:
            self.done[key] = simulate(self.twin.load, self.setup(links))
        return self.twin.difference(self.done[key], target)


def what_if(books: Books, seed: int = 0, slo: Mapping[str, float] | None = None) -> WhatIf | None:
    """Replay the window with links fixed; None where there is no step model or no load to replay.

    `slo` holds limits in seconds by target.
    """
    twin = twin_of(books, seed)
    if twin is None:
        return None
    replays = _Replays(twin)
    faults = tuple(name for name in replays.fixes if name not in LOAD_TIER and _does(name, replays))
    load = tuple(name for name in replays.fixes if name in LOAD_TIER)
    links = (*faults, *load)
    names = TARGET_NAMES
    first = {t: {k: replays.saved((k,), t) for k in links} for t in names}
    every = {t: replays.saved(links, t) for t in names}
    last = {t: {k: every[t] - replays.saved([x for x in links if x != k], t) for k in links} for t in names}
    shares = {t: {**_shapley(replays, faults, (), t), **_shapley(replays, load, faults, t)} for t in ("ttft", "decode")}
    shares = {"wait": shares["ttft"], "decode": shares["decode"]}
    per = max(1e-9, float((twin.load.output - 1).mean()))
    parts = {
        "ttft": shares["wait"],
        "tpot": {k: v / per for k, v in shares["decode"].items()},
        "e2e": {k: shares["wait"][k] + shares["decode"][k] for k in links},
    }
    return WhatIf(
        gate=twin.gate,
        holds=twin.holds,
        holds_of={t: twin.meets(t) for t in names},
        load=twin.load.how,
        saves=first,
        last=last,
        parts=parts,
        shares=shares,
        joint={t: replays.saved(faults, t) for t in names},
        without_long=without_long(twin, LONG),
        without_long_joint=without_long(twin, LONG, replays.setup(faults)) if faults else None,
        met={t: _met_by(replays, links, faults, t, limit - _outside(books, t)) for t, limit in (slo or {}).items()} or None,
    )


def _does(name: str, replays: _Replays) -> bool:
    """False where fixing a link changes nothing of the engine (it has no such limit)."""
    if name == "frontend":
        return replays.twin.load.delay is not None
    return bool(replays.fixes[name](replays.twin.setup) != replays.twin.setup)


def _shapley(replays: _Replays, tier: Sequence[str], given: Sequence[str], target: str) -> dict[str, float]:
    """Shares of a tier's links in what fixing them saves, when `given` is fixed already."""
    n = len(tier)
    out = {}
    for link in tier:
        rest = [x for x in tier if x != link]
        total = 0.0
        for size in range(n):
            weight = math.factorial(size) * math.factorial(n - size - 1) / math.factorial(n)
            for chosen in itertools.combinations(rest, size):
                total += weight * (replays.saved((*given, *chosen, link), target) - replays.saved((*given, *chosen), target))
        out[link] = total
    return out


def _outside(books: Books, target: str) -> float:
    """Mean seconds of a target that lie outside the engine: no replay changes them, every request has them."""
    held = books.in_flight_s + books.stalled_s if Stage.FRONTEND in TARGETS[target] else 0.0
    return sum(books.stages[stage] for stage in TARGETS[target] if stage in {Stage.FRONTEND, Stage.OUTPUT}) - held


def _met_by(replays: _Replays, links: Sequence[str], faults: Sequence[str], target: str, limit_s: float) -> dict[str, float]:
    """Share of requests within an SLO: now, with each link fixed, with all faults fixed."""
    twin = replays.twin
    replays.saved(faults, target)
    shares = {
        "now": _met(twin.base, twin, target, limit_s),
        "all faults": _met(replays.done[frozenset(faults)], twin, target, limit_s),
    }
    return shares | {link: _met(replays.done[frozenset((link,))], twin, target, limit_s) for link in links}


def _met(result: Result, twin: Twin, target: str, limit_s: float) -> float:
    wait = (
        (result.queue + result.prefill) * (twin.measured["queue"] + twin.measured["prefill"]) / max(twin.base.mean("ttft"), 1e-9)
    )
    decode = result.decode * twin.measured["decode"] / max(twin.base.mean("decode"), 1e-9)
    values: Array = (
        wait if target == "ttft" else wait + decode if target == "e2e" else decode / np.maximum(twin.load.output - 1, 1)
    )
    return float((values <= limit_s).mean())
