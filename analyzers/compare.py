"""What changed between two windows: the measured difference, by stage, by link, and by mechanism.

Mechanisms (arrivals, lengths, prefix hits, step costs, limits, speculation, stalls) are swapped from A to B one by one in the
twin, forwards and backwards, and the two are averaged. What the twin does not replay (front end, output, transfers) is the
measured difference of its own stage.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from analyzers import state
from analyzers.attribute import adjust, attribute
from analyzers.books import Books, arrival_rate, books
from analyzers.combine import roles
from analyzers.links import by_name, moe_imbalance
from analyzers.model import TARGETS, Array, Attribution, Engine, Stage, Target, Window
from analyzers.twin import Load, Setup, Twin, simulate, twin_of

NOISE: Final = 0.08  # difference between two starts of a server below which nothing is claimed (facts: attribution-0.33)
Swap = Callable[[Load, Setup, Twin], tuple[Load, Setup]]


@dataclass(frozen=True, slots=True)
class Change:
    """One target's change from A to B, seconds (negative: B is faster).

    `stages` and `links` are differences of what was measured and attributed; `mechanisms` what each swap explains (None where
    no twin can be built), `unexplained` the rest of the measured difference.
    """

    target: str
    before_s: float | None
    after_s: float | None
    difference_s: float | None
    stages: Mapping[str, float]
    links: Mapping[str, float]
    mechanisms: Mapping[str, float] | None
    unexplained_s: float | None
    verdict: str
    says: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two windows compared: changes by target, differing configuration, and what makes the comparison weak."""

    before: Attribution
    after: Attribution
    changes: Mapping[str, Change]
    configuration: tuple[str, ...]
    conditions: tuple[str, ...]
    state: tuple[str, ...] = ()  # the two in words, where request seconds are missing on a side


def compare(before: Window, after: Window) -> Comparison:
    """Compare two windows (captures, or spans of one)."""
    a, b = attribute(before), attribute(after)
    pair = _twins(before, after)
    changes = {name: _change(name, a, b, pair) for name in TARGETS}
    blind = any(change.difference_s is None for change in changes.values())
    return Comparison(
        a,
        b,
        changes,
        tuple(configuration(before, after)),
        tuple(_conditions(a, b, before, after, pair)),
        tuple(state.compared(before.engines, after.engines)) if blind else (),
    )


# -- mechanisms -------------------------------------------------------------------------------------------------------------
def _twins(before: Window, after: Window) -> tuple[Twin, Twin, Books, Books] | None:
    """Calibrated twins of both windows, where each is one engine with a step model."""
    if len(before.engines) != 1 or len(after.engines) != 1:
        return None
    accounts = [books(w.engines[0]) for w in (before, after)]
    if accounts[0] is None or accounts[1] is None:
        return None
    one, two = adjust(accounts[0]), adjust(accounts[1])
    first, second = twin_of(one), twin_of(two)
    return (first, second, one, two) if first and second else None


def _lengths(load: Load, _: Setup, other: Twin) -> tuple[Array, Array]:
    """Lengths of the other load at the ranks of this one."""
    rank = np.argsort(np.argsort(load.prompt, kind="stable"), kind="stable") / max(1, len(load.prompt) - 1)
    order = np.argsort(other.load.prompt, kind="stable")
    at = np.clip(np.rint(rank * (len(order) - 1)).astype(int), 0, len(order) - 1)
    return other.load.prompt[order][at], other.load.output[order][at]


def _swap_arrivals(load: Load, setup: Setup, other: Twin) -> tuple[Load, Setup]:
    n, m = len(load.arrival), len(other.load.arrival)
    arrival = np.interp(np.arange(n) * (m - 1) / max(1, n - 1), np.arange(m), other.load.arrival)
    # as many requests as this load has, at the other load's rate
    span = float(other.load.arrival[-1]) * n / max(m, 1)
    arrival = arrival * span / max(float(arrival[-1]), 1e-9)
    return replace(load, arrival=np.sort(arrival), seen=None), setup


def _swap_lengths(load: Load, setup: Setup, other: Twin) -> tuple[Load, Setup]:
    prompt, output = _lengths(load, setup, other)
    return replace(load, prompt=prompt, output=output, seen=None), setup


def _field_swap(*names: str) -> Swap:
    def swap(load: Load, setup: Setup, other: Twin) -> tuple[Load, Setup]:
        values: dict[str, Any] = {name: getattr(other.setup, name) for name in names}
        return load, replace(setup, **values)

    return swap


MECHANISMS: Final[Mapping[str, Swap]] = {
    "arrivals": _swap_arrivals,
    "lengths": _swap_lengths,
    "prefix hits": _field_swap("hit"),
    "step costs": _field_swap("a", "b", "c", "q", "launch_s", "mixed_s", "graph"),
    "KV capacity": _field_swap("blocks", "block_size"),
    "slots": _field_swap("slots"),
    "token budget": _field_swap("budget"),
    "speculation": _field_swap("tokens_per_step"),
    "stalls": _field_swap("stalls"),
}


def _mechanisms(name: str, pair: tuple[Twin, Twin, Books, Books]) -> dict[str, float]:
    """Seconds that each mechanism explains: swapped in order and in reverse, averaged; anchored on both measured values."""
    first, second, one, two = pair
    names = [m for m in MECHANISMS if _differs(m, first, second)]
    out = dict.fromkeys(names, 0.0)
    for order in (names, names[::-1]):
        load, setup = first.load, first.setup
        last = _value(load, setup, name)
        for mechanism in order:
            load, setup = MECHANISMS[mechanism](load, setup, second)
            value = _value(load, setup, name)
            out[mechanism] += (value - last) / 2
            last = value
    inside = (
        (Stage.QUEUE, Stage.PREFILL)
        if name == "ttft"
        else (Stage.DECODE,)
        if name == "tpot"
        else (Stage.QUEUE, Stage.PREFILL, Stage.DECODE)
    )
    per = [max(b.output_tokens - 1, 1e-9) if name == "tpot" else 1.0 for b in (one, two)]
    engine = sum(two.stages[s] for s in inside) / per[1] - sum(one.stages[s] for s in inside) / per[0]
    total = sum(out.values())
    if total and engine and 0.5 < engine / total < 2:
        out = {key: value * engine / total for key, value in out.items()}  # the twin's own error is spread in proportion
    if "step costs" in out:
        moved = _imbalance(two, name, per[1]) - _imbalance(one, name, per[0])
        if moved:
            out["balancedness"] = moved
            out["step costs"] -= moved
    for stage, label in ((Stage.FRONTEND, "front end"), (Stage.OUTPUT, "output")):
        if name != "tpot" and not (name == "ttft" and stage is Stage.OUTPUT):
            out[label] = two.stages[stage] - one.stages[stage]
    return out


def _split(name: str, a: Attribution, b: Attribution, links: Mapping[str, float]) -> dict[str, float] | None:
    """What splitting replicas into a prefill and a decode server changed: the second leg, the first leg, and decode without prompts."""
    roles = [{e.role for e in side.engines} for side in (a, b)]
    if roles[0] != {"both"} or not {"prefill", "decode"} <= roles[1]:
        return None
    of = {role: next(e.targets for e in b.engines if e.role == role) for role in ("prefill", "decode")}
    decode = {"decode steps without prompts": links.get("prefill_backlog", 0.0), "larger batch": links.get("decode_batch", 0.0)}
    if name == "tpot":
        return decode
    legs = {
        "the decode server's leg (transfer, queue, first token)": of["decode"]["ttft"].measured_s or 0.0,
        "the prefill server's leg (all prompts on fewer servers)": (of["prefill"]["e2e"].measured_s or 0.0)
        - (_of(a.targets["ttft"]) or 0.0),
    }
    tokens = (a.targets["tpot"], b.targets["tpot"]) if name == "e2e" else None
    if tokens and tokens[0] and tokens[1]:
        before, after = ((side.targets["e2e"], side.targets["ttft"]) for side in (a, b))
        if before[0] and before[1] and after[0] and after[1]:
            legs["decode and delivery"] = ((after[0].measured_s or 0.0) - (after[1].measured_s or 0.0)) - (
                (before[0].measured_s or 0.0) - (before[1].measured_s or 0.0)
            )
    return legs


def _imbalance(b: Books, name: str, per: float) -> float:
    row = moe_imbalance.row(b)
    return sum(seconds for stage, seconds in row.cells.items() if stage in TARGETS[name]) / per if row.known else 0.0


def _differs(mechanism: str, first: Twin, second: Twin) -> bool:
    if mechanism in {"arrivals", "lengths"}:
        return True
    _, setup = MECHANISMS[mechanism](first.load, first.setup, second)
    return setup != first.setup


def _value(load: Load, setup: Setup, name: str) -> float:
    return simulate(load, setup).mean(name, load.output)


# -- one target -------------------------------------------------------------------------------------------------------------
def _change(name: str, a: Attribution, b: Attribution, pair: tuple[Twin, Twin, Books, Books] | None) -> Change:
    first, second = a.targets.get(name), b.targets.get(name)
    if first is None or second is None or first.measured_s is None or second.measured_s is None:
        return Change(
            name,
            _of(first),
            _of(second),
            None,
            {},
            {},
            None,
            None,
            "undetermined",
            f"{name.upper()} was not measured on both sides.",
        )
    difference = second.measured_s - first.measured_s
    stages = {str(s): (second.stages.get(s) or 0.0) - (first.stages.get(s) or 0.0) for s in {*first.stages, *second.stages}}
    links = {
        p.link: (q.seconds or 0.0) - (p.seconds or 0.0)
        for p, q in zip(first.parts, second.parts, strict=True)
        if p.seconds is not None and q.seconds is not None
    }
    mechanisms = _mechanisms(name, pair) if pair else _split(name, a, b, links)
    rest = None if mechanisms is None else difference - sum(mechanisms.values())
    small = abs(difference) < NOISE * first.measured_s
    verdict = "same" if small else "faster" if difference < 0 else "slower"
    return Change(
        name,
        first.measured_s,
        second.measured_s,
        difference,
        stages,
        links,
        mechanisms,
        rest,
        verdict,
        _sentence(name, first, second, links, mechanisms, verdict),
    )


def _of(target: Target | None) -> float | None:
    return target.measured_s if target else None


def _sentence(
    name: str, first: Target, second: Target, links: Mapping[str, float], mechanisms: Mapping[str, float] | None, verdict: str
) -> str:
    assert first.measured_s is not None
    assert second.measured_s is not None
    difference = second.measured_s - first.measured_s
    unit, k = ("ms", 1000.0) if name == "tpot" or abs(difference) < 0.1 else ("s", 1.0)
    head = f"{name.upper()} {'is the same within the noise of two starts' if verdict == 'same' else verdict}: {k * difference:+.3g} {unit} ({100 * difference / first.measured_s:+.0f} %)"
    of = mechanisms or links
    along = sorted(((value, key) for key, value in of.items() if value * difference > 0), key=lambda item: -abs(item[0]))
    against = sorted(
        ((value, key) for key, value in of.items() if value * difference < 0 and abs(value) > 0.2 * abs(difference)),
        key=lambda item: -abs(item[0]),
    )

    def called(key: str) -> str:
        return key if mechanisms else str(by_name(key).LINK.title.lower())

    said = ", ".join(f"{called(key)} {k * value:+.3g} {unit}" for value, key in along[:3])
    back = ", ".join(f"{called(key)} {k * value:+.3g} {unit}" for value, key in against[:2])
    return head + (f"; mostly {said}" if said else "") + (f"; against it {back}" if back else "") + "."


# -- conditions -------------------------------------------------------------------------------------------------------------
def configuration(before: Window, after: Window) -> list[str]:
    """Arguments, engines and versions that differ, in words."""

    def args(window: Window) -> dict[str, Any]:
        given = {k: v for e in window.engines for k, v in (e.facts.get("args") or {}).items()}
        return {**{k: v for k, v in given.items() if k != "env"}, **{f"env.{k}": v for k, v in (given.get("env") or {}).items()}}

    a, b = args(before), args(after)
    said = [
        f"{key}: {a.get(key, 'not set')} -> {b.get(key, 'not set')}"
        for key in sorted({*a, *b})
        if a.get(key) != b.get(key) and key not in _INCIDENTAL
    ]
    parts = [
        ", ".join(f"{e.instance} {role}" for e, role in zip(w.engines, roles(w.engines), strict=True)) for w in (before, after)
    ]
    if len(before.engines) != len(after.engines) or roles(before.engines) != roles(after.engines):
        said.append(f"engines: {parts[0]} -> {parts[1]}")
    versions = [sorted({e.version or "unknown" for e in w.engines}) for w in (before, after)]
    return said + ([f"vLLM {versions[0]} -> {versions[1]}"] if versions[0] != versions[1] else [])


_INCIDENTAL: Final = {
    "cudagraph_capture_sizes",
    "port",
    "host",
    "otlp_traces_endpoint",
    "kv_events_config",
    "logging_config",
    "master_port",
    "api_server_count_default",
    "model",
    "tokenizer",
}


def _conditions(
    a: Attribution, b: Attribution, before: Window, after: Window, pair: tuple[Twin, Twin, Books, Books] | None
) -> list[str]:
    said = []
    rates = [_rate(w.engines) for w in (before, after)]
    if all(math.isfinite(r) for r in rates) and abs(rates[1] / rates[0] - 1) > 0.1:
        said.append(
            f"the load differs: {rates[0]:.2f} against {rates[1]:.2f} prompts a second: part of the difference is the load's"
        )
    if pair is None:
        said.append("several engines, or no step model: no replay, differences by link or by server")
    elif not (pair[0].holds and pair[1].holds):
        said.append("a twin is outside its gate: read the mechanisms as directions")
    if a.level != b.level:
        said.append(f"judged from {a.level} before and {b.level} after: some differences are of what was seen")
    return said


def _rate(engines: Sequence[Engine]) -> float:
    """Prompts a second while they arrived, over all engines (a decode server's prompts came through a prefill server)."""
    chained = {"prefill", "decode"} <= set(roles(engines))
    counted = [e for e, role in zip(engines, roles(engines), strict=True) if not (chained and role == "decode")]
    rates = [arrival_rate(e) for e in counted]
    return sum(r for r in rates if r is not None) if any(r is not None for r in rates) else math.nan
