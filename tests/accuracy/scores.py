"""How right the analyzers are: real pairs against what their fix truly saved, healthy runs, lab scenarios against re-runs.

Every number is computed from committed files: nothing here reads a capture or the lab.
"""

import functools
import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from analyzers.attribute import attribute
from analyzers.links import CHAIN
from analyzers.model import Attribution, Engine, Target, Window
from analyzers.whatif import WhatIf

from . import lab, packed
from .calibrate import Case

HERE: Final = Path(__file__).resolve().parent
LEVELS: Final = ("metrics", "logs", "requests", "hashes")
TARGETS: Final = ("ttft", "e2e", "tpot")
CAUSE: Final = {module.LINK.name: module.LINK.cause or module.LINK.name for module in CHAIN}
LOAD: Final = {"prefill_backlog", "decode_batch"}
TOP: Final = 0.85  # a named link counts as right when it truly holds that much of what the largest does
LEAST: Final = 0.08  # share of the measured value below which the largest link is not worth naming
BEST: Final = 0.10  # share that fixing the best fault must save to be asked for
ACTIVE: Final = 0.05  # share of the measured value above which a link is active


# -- levels -------------------------------------------------------------------------------------------------------------------
def restrict(window: Window, level: str) -> Window:
    """What a level sees.

    Metrics: scrapes and start-up lines; logs: + steps and balancedness lines; requests: metrics + request records; hashes: all,
    with block identities.
    """
    return replace(window, engines=tuple(_restrict(e, level) for e in window.engines))


def _restrict(engine: Engine, level: str) -> Engine:
    if level in {"metrics", "requests"}:
        engine = replace(
            engine, step={k: v[:0] for k, v in engine.step.items()}, event=tuple(x for x in engine.event if x.kind != "eplb")
        )
    if level in {"metrics", "logs"}:
        engine = replace(engine, request={k: v[:0] for k, v in engine.request.items()})
    return engine if level == "hashes" else replace(engine, kv={})


def levels_of(window: Window) -> tuple[str, ...]:
    """The levels that a recording has something for."""
    has = {
        "metrics": True,
        "logs": any(len(e.step.get("ts", ())) or any(x.kind == "eplb" for x in e.event) for e in window.engines),
        "requests": any(len(e.request.get("arrival_ts", ())) for e in window.engines),
        "hashes": any(e.kv for e in window.engines),
    }
    return tuple(level for level in LEVELS if has[level])


@dataclass(frozen=True)
class Judged:
    """One window at one level: the attribution, and with the twin where there is one engine."""

    attribution: Attribution
    replayed: Attribution | None

    @property
    def twin(self) -> WhatIf | None:
        return self.replayed.engines[0].what_if if self.replayed else None

    def target(self, name: str) -> Target:
        found = self.attribution.targets[name]
        assert found is not None
        return found

    def shown(self, name: str) -> Target:
        """The target with the twin's parts where it meets what was measured, else the books'."""
        found = (self.replayed or self.attribution).targets[name]
        assert found is not None
        return found


def judged(window: Window, level: str, *, twin: bool = True) -> Judged:
    seen = restrict(window, level)
    replayed = attribute(seen, with_twin=True) if twin and len(seen.engines) == 1 else None
    return Judged(attribute(seen), replayed)


# -- threshold rules ------------------------------------------------------------------------------------------------------------
def rules(engine: Engine, target: str) -> str:
    """What simple alert rules on raw metrics say, the first that fires."""
    row, t = engine.interval, engine.total
    n = max(t.get("e2e_n", 0.0), 1.0)
    top = {name: float(np.nanmax(row[name])) if np.isfinite(row[name]).any() else 0.0 for name in ("kv_usage_ratio", "waiting")}
    mean = {name: t.get(f"{name}_s", 0.0) / max(t.get(f"{name}_n", n), 1.0) for name in ("ttft", "queue", "prefill", "decode")}
    frontend = mean["ttft"] - mean["queue"] - mean["prefill"]
    if top["kv_usage_ratio"] > 0.9:
        return "kv_eviction"
    if top["waiting"] > 0:
        return "slots"
    if frontend > max(mean["queue"] + mean["prefill"], mean["decode"] if target != "ttft" else 0.0):
        return "frontend"
    prompt = t.get("prompt_tokens", 0.0)
    if engine.facts.get("prefix_caching") and t.get("local_hit_tokens", 0.0) < 0.1 * prompt and prompt > 1000 * n:
        return "prefix_cache_miss"
    return "prefill_backlog" if target == "ttft" or mean["queue"] + mean["prefill"] > mean["decode"] else "decode_batch"


# -- real pairs ---------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class PairRow:
    """One pair at one level for one target. Errors are predicted / true saving - 1; NaN where nothing is said."""

    capture: str
    level: str
    target: str
    links: tuple[str, ...]
    saved: float
    fault: float
    verdict: str
    limiting: str | None
    runner_up: str | None
    right: bool
    right_by_twin: bool
    books: float
    twin: float
    gate: Mapping[str, float]
    holds: bool
    segment: float  # without the long prompts (and, with several faults, with all faults fixed)
    rule: str


@functools.cache
def truths() -> Mapping[str, Mapping[str, Any]]:
    """Truly saved seconds of the real pairs, by fault run."""
    return tomllib.loads((HERE / "captures" / "truth.toml").read_text())


def capture(name: str) -> Window:
    """The reduced inputs of a capture."""
    return packed.unpack(packed.read(HERE / "captures" / f"{name}.json.gz"))


def captures() -> tuple[str, ...]:
    return tuple(sorted(p.name.removesuffix(".json.gz") for p in (HERE / "captures").glob("*.json.gz")))


def pair_rows(name: str, window: Window, truth: Mapping[str, Any]) -> list[PairRow]:
    """A pair at all levels it has."""
    return [row for level in levels_of(window) for row in pair_level(name, window, truth, level)]


def pair_level(name: str, window: Window, truth: Mapping[str, Any], level: str) -> list[PairRow]:
    links = tuple(truth["links"])
    found = judged(window, level)
    out = []
    for target in TARGETS:
        saved, t, twin = truth[target]["saved"], found.target(target), found.twin
        segment = math.nan
        if twin is not None and "prefill_backlog" in links:
            alone = twin.without_long_joint if len(links) > 1 else twin.without_long
            segment = alone[target] if alone else math.nan
        out.append(
            PairRow(
                capture=name,
                level=level,
                target=target,
                links=links,
                saved=saved,
                fault=truth[target]["fault"],
                verdict=t.verdict,
                limiting=t.limiting,
                runner_up=t.runner_up,
                right=_names(t, links),
                right_by_twin=_names(found.shown(target), links),
                books=_error(sum(_saves(t, x) for x in links), saved),
                twin=_error(_twin_saves(found, target, links), saved),
                gate=twin.gate if twin else {},
                holds=twin.holds if twin else False,
                segment=_error(segment, saved),
                rule=rules(window.engines[0], target),
            )
        )
    return out


def _names(target: Target, links: Sequence[str]) -> bool:
    return target.limiting is not None and CAUSE[target.limiting] in {CAUSE[x] for x in links}


def _saves(target: Target, link: str) -> float:
    found = target.part(link).saves_s
    return math.nan if found is None else found


def _twin_saves(found: Judged, target: str, links: Sequence[str]) -> float:
    """The twin's saving; what it does not replay (the API server) is measured and comes from the books."""
    if found.twin is None:
        return math.nan
    replayed = found.twin.saves[target]
    if len(links) > 1 and any(x in replayed for x in links):
        return found.twin.joint[target]
    return sum(replayed[x] if x in replayed else _saves(found.target(target), x) for x in links)


def _error(predicted: float, saved: float) -> float:
    return predicted / saved - 1 if saved else math.nan


# -- healthy runs ---------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class HealthyRow:
    """The largest fault of one target, as a share of what was measured; `api` the same of front end and output together."""

    capture: str
    level: str
    target: str
    verdict: str
    limiting: str | None
    link: str
    share: float
    api: float
    largest_load: str | None


def healthy_rows(name: str, window: Window, level: str) -> list[HealthyRow]:
    found = judged(window, level, twin=False)
    out = []
    for target in TARGETS:
        t = found.target(target)
        if t.measured_s is None:
            continue
        faults = {p.link: (p.fault_s or 0.0) / t.measured_s for p in t.parts}
        engine_faults = {k: v for k, v in faults.items() if k not in {"frontend", "output"}}
        link = max(engine_faults, key=lambda k: engine_faults[k])
        out.append(
            HealthyRow(
                name,
                level,
                target,
                t.verdict,
                t.limiting,
                link,
                engine_faults[link],
                faults["frontend"] + faults["output"],
                t.load,
            )
        )
    return out


# -- lab ------------------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Answer:
    """What one method says of one scenario at one level: seconds by target and link, what fixing a link saves, gate."""

    parts: Mapping[str, Mapping[str, float]]
    saves: Mapping[str, Mapping[str, float]]
    holds: bool = True


@dataclass(frozen=True)
class LabRow:
    """One scenario at one level: the books' answer, the twin's, both prototypes', and what the parts' ranges hold."""

    scenario: lab.Scenario
    level: str
    answers: Mapping[str, Answer | None]
    additivity: float
    ranges: Mapping[str, tuple[tuple[str, str, float, float, float], ...]]  # method: target, link, truth, low, high
    rules: Mapping[str, str]


def lab_row(scenario: lab.Scenario, level: str, *, twin: bool = True) -> LabRow:
    found = judged(scenario.window, level, twin=twin)
    targets = {name: found.target(name) for name in TARGETS}
    said = Answer(
        {n: {p.link: p.seconds or 0.0 for p in t.parts} for n, t in targets.items()},
        {n: {p.link: p.saves_s for p in t.parts if p.saves_s is not None} for n, t in targets.items()},
    )
    replayed = None
    if found.twin is not None:
        # what the twin does not replay is measured: front end and output as in the books
        measured = {
            n: {k: v for k, v in said.parts[n].items() if k not in found.twin.parts[n] and k in {"frontend", "output"}}
            for n in TARGETS
        }
        replayed = Answer(
            {n: {**measured[n], **found.twin.parts[n]} for n in TARGETS},
            {n: {**measured[n], **found.twin.saves[n]} for n in TARGETS},
            found.twin.holds,
        )
    both = {name: found.shown(name) for name in TARGETS}
    mix = Answer(
        {n: {p.link: p.seconds or 0.0 for p in t.parts} for n, t in both.items()},
        {n: {p.link: p.saves_s for p in t.parts if p.saves_s is not None} for n, t in both.items()},
    )
    prototype = scenario.prototype.get(level, {})
    answers: dict[str, Answer | None] = {"books": said, "twin": replayed, "both": mix}
    for which in lab.PROTOTYPES:
        p = prototype.get(which)
        answers[f"prototype {which}"] = Answer(p["parts"], p["saves"]) if p and "parts" in p else None
    ranges = {
        method: tuple(
            (n, p.link, scenario.parts[n].get(p.link, 0.0), *p.range_s)
            for n, t in spoken.items()
            for p in t.parts
            if p.range_s is not None and p.seconds is not None and p.link in scenario.parts[n]
        )
        for method, spoken in (("books", targets), ("both", both))
    }
    gap = max(
        abs((t.measured_s or 0.0) - (t.floor_s or 0.0) - sum(p.seconds or 0.0 for p in t.parts) - (t.unexplained_s or 0.0))
        for t in (*targets.values(), *both.values())
    )
    return LabRow(scenario, level, answers, gap, ranges, {n: rules(scenario.engine, n) for n in TARGETS})


def top_right(row: LabRow, which: str, target: str) -> bool | None:
    """Whether the largest part is a link that truly holds at least TOP of what the largest does; None: nothing worth naming."""
    true, answer = row.scenario.parts[target], row.answers[which]
    top = max(true.values())
    if top < LEAST * row.scenario.measured[target] or answer is None:
        return None
    said = {k: v for k, v in answer.parts[target].items() if k in true}
    return true[max(said, key=lambda k: said[k])] >= TOP * top


def rule_right(row: LabRow, target: str) -> bool | None:
    true = row.scenario.parts[target]
    top = max(true.values())
    return None if top < LEAST * row.scenario.measured[target] else true[row.rules[target]] >= TOP * top


def best_saving(row: LabRow, which: str, target: str = "e2e") -> float | None:
    """Relative error of the saving of the fault that is truly best to fix; None where none saves BEST of the measured value."""
    true = {k: v for k, v in row.scenario.saves[target].items() if k not in LOAD}
    best = max(true, key=lambda k: true[k])
    answer = row.answers[which]
    if true[best] < BEST * row.scenario.measured[target] or answer is None:
        return None
    said = answer.saves[target].get(best)
    return 1.0 if said is None else abs(said - true[best]) / true[best]


def part_error(row: LabRow, which: str, target: str) -> float | None:
    """Half the sum of |difference| over links and the rest, as a share of the measured value."""
    answer = row.answers[which]
    if answer is None:
        return None
    true, m = row.scenario.parts[target], row.scenario.measured[target]
    gaps = [answer.parts[target].get(k, 0.0) - true[k] for k in true]
    return 0.5 * (sum(abs(x) for x in gaps) + abs(sum(gaps))) / m


def mean(values: Sequence[float | bool | None]) -> float:
    known = [float(v) for v in values if v is not None]
    return float(np.mean(known)) if known else math.nan


def median(values: Sequence[float | None], q: float = 0.5) -> float:
    known = [v for v in values if v is not None]
    return float(np.quantile(known, q)) if known else math.nan


@functools.cache
def lab_rows(level: str, path: Path = lab.FILE) -> tuple[LabRow, ...]:
    return tuple(lab_row(s, level) for s in lab.scenarios(path))


def coverage(
    rows: Sequence[LabRow], *, active: bool, method: str = "books", targets: Sequence[str] = ("ttft", "e2e")
) -> tuple[float, int]:
    """Share of ranges that hold the truth, and how many there are; active: of links that hold more than ACTIVE."""
    held = [
        low - 1e-9 <= true <= high + 1e-9
        for row in rows
        for target, _, true, low, high in row.ranges[method]
        if target in targets and (true > ACTIVE * row.scenario.measured[target] or not active)
    ]
    return mean(held), len(held)


# -- calibration ------------------------------------------------------------------------------------------------------------------
def calibration_cases() -> list[Case]:
    """How far off each link's part was, in all committed scenarios and real pairs, for analyzers/calibration.py."""
    cases: list[Case] = []
    for level in LEVELS:
        for row in (*lab_rows(level), *lab_rows(level, lab.FURTHER)):
            cases += _lab_cases(row)
    for name, truth in truths().items():
        for pair in pair_rows(name, capture(name), truth):
            if pair.target == "tpot" or len(pair.links) > 1:
                continue
            for method, error in (("books", pair.books), ("twin", pair.twin if pair.holds else math.nan)):
                if math.isfinite(error) and error > -1:
                    cases.append(Case(method, pair.level, pair.links[0], name, 1.0, 1 / (1 + error)))
    return cases


def _lab_cases(row: LabRow) -> Iterator[Case]:
    for method, answer in (("books", row.answers["books"]), ("twin", row.answers["both"])):
        assert answer is not None
        for target in ("ttft", "e2e"):
            m = row.scenario.measured[target]
            for link, true in row.scenario.parts[target].items():
                yield Case(method, row.level, link, str(row.scenario.seed), answer.parts[target].get(link, 0.0) / m, true / m)
