"""Why an objective is missed while it happens: the attribution of its window, read with care for what has not finished yet.

Stages are recorded when a request finishes. In a burn that has just begun the requests that wait are in no histogram, and the
seconds of those that finished are of a better time. So waiting that the gauges hold and the histograms do not is judged from
the gauges; and a mean that is mostly unexplained names nothing.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from analyzers.attribute import UNEXPLAINED, attribute
from analyzers.books import PREEMPTING_PER_S, cap_of
from analyzers.links import by_name, offered, tries
from analyzers.model import Attribution, Engine, Part, Target, Window
from analyzers.slo import EXPLAINED_BY, KINDS

NAMES: Final = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "E2E"}
FAULT: Final = 0.05  # of the measured value: the smallest fault that is mentioned
CHANGED: Final = 1.5  # ratio from which a number of the window is called changed
FEW: Final = 5  # finished requests below which a baseline says nothing
FULL: Final = 0.95  # KV use from which blocks are short
REASONS: Final[Mapping[str, str]] = {
    "slots": "with running at its cap",
    "kv_eviction": "with KV blocks short",
    "kv_transfer": "for KV blocks to arrive",
    "prefill_backlog": "with sequence slots and KV blocks free, so behind other requests' prompts",
}


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What limits the objective's target in [start, end], or why that cannot be told.

    `verdict`: limited (by a fault) · waiting (by a fault, from the gauges) · load · undetermined. `seconds` of the link are
    per request (TPOT: per token), of the mean `measured_s`; `before_s` is that mean in the baseline window.
    """

    target: str | None
    verdict: str
    link: str | None
    says: str
    seconds: float | None = None
    measured_s: float | None = None
    before_s: float | None = None
    evidence: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    tries: tuple[tuple[str, str], ...] = ()
    measure: tuple[str, ...] = ()
    start: float | None = None
    end: float | None = None

    @property
    def told(self) -> bool:
        """Whether a link is named."""
        return self.link is not None


def no_diagnosis(kind: str) -> Diagnosis:
    """Of an objective that no latency link explains."""
    return Diagnosis(None, "undetermined", None, f"The links explain seconds, not {KINDS[kind]}: see the log and its events.")


def diagnose(
    kind: str, window: Window, before: Window | None, *, missed: Mapping[str, float] | None = None, slow_s: float = 0.0
) -> Diagnosis:
    """The diagnosis of a window; `before` is its baseline.

    `missed` (goodput) holds the share of requests that miss each target, `slow_s` (ITL) the seconds that slow tokens took at
    least.
    """
    name = EXPLAINED_BY.get(kind) or (max(missed, key=lambda one: missed[one]) if missed else None)
    if name is None:
        return no_diagnosis(kind)
    found = attribute(window)
    target = _target(found, name)
    base = _target(attribute(before), name) if before is not None and _finished(before) >= FEW else None
    diagnosis = _judged(name, target, window, slow_s)
    return replace(
        diagnosis,
        before_s=base.measured_s if base else None,
        changed=tuple(changes(window, before)) if before is not None else (),
        tries=tuple(offered(diagnosis.tries, found.versions)),
        start=window.start,
        end=window.end,
    )


def _finished(window: Window) -> float:
    return sum(engine.total.get("e2e_n", 0.0) for engine in window.engines)


def _target(found: Attribution, name: str) -> Target | None:
    """The fleet's target; where servers of a chain are judged alone, that of the engine on which most can be said."""
    target = found.targets.get(name)
    if target is not None:
        return target
    alone = [engine.targets[name] for engine in found.engines if name in engine.targets]
    order = {"limited": 0, "healthy": 1, "undetermined": 2}
    return min(alone, key=lambda one: (order.get(one.verdict, 3), -(one.measured_s or 0.0)), default=None)


def _judged(name: str, target: Target | None, window: Window, slow_s: float) -> Diagnosis:
    held = waiting(window) if name != "tpot" else None
    if held is not None and held.unrecorded_s > _known_s(target, _finished(window)):
        return _held_back(name, target, held)
    if target is None or target.measured_s is None:
        return Diagnosis(name, "undetermined", None, f"Cannot tell what limits {NAMES[name]}: no request seconds in this window.")
    stall = _stalls(target, window, slow_s)
    if stall is not None:
        return stall
    if abs(target.unexplained_s or 0.0) > UNEXPLAINED * target.measured_s:
        return _untold(name, target, "most of it is unexplained")
    return _recorded(name, target)


def _recorded(name: str, target: Target) -> Diagnosis:
    """By the verdict of the attribution."""
    if target.verdict == "limited" and target.limiting:
        return _limited(name, target)
    if target.verdict == "healthy" and (target.load or _largest_fault(target)):
        return _load(name, target)
    return _untold(name, target, "")


# -- what waits ---------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Waiting:
    """Request seconds of waiting by the gauges, how many of them no histogram holds yet, by the link that holds them."""

    unrecorded_s: float
    per_request_s: float
    shares: Mapping[str, float]
    now: float
    most: float
    running: float
    usage_ratio: float


def waiting(window: Window) -> Waiting | None:
    """Waiting over all engines of a window; None where no gauge was scraped."""
    seconds: dict[str, float] = dict.fromkeys(REASONS, 0.0)
    recorded = arrived = now = most = running = usage = 0.0
    known = False
    for engine in window.engines:
        row = engine.interval
        if not len(row.get("ts", ())) or not np.isfinite(row["waiting"]).any() or not bool(np.all(row["timed"].astype(bool))):
            continue
        known = True
        for link, share in _by_reason(engine).items():
            seconds[link] += share
        inside = np.nan_to_num(row["running"] + row["waiting"])
        recorded += engine.total.get("queue_s", 0.0)
        arrived += engine.total.get("e2e_n", 0.0) + float(
            inside[-1] - np.nan_to_num(row["running_before"] + row["waiting_before"])[0]
        )
        now, most = now + float(np.nan_to_num(row["waiting"])[-1]), most + float(np.nanmax(row["waiting"]))
        running += float(np.nan_to_num(row["running"])[-1])
        usage = max(usage, float(np.nan_to_num(row["kv_usage_ratio"]).max()))
    total = sum(seconds.values())
    if not known or total <= 0:
        return None
    shares = {link: value / total for link, value in seconds.items()}
    return Waiting(total - recorded, total / max(arrived, 1.0), shares, now, most, running, usage)


def _by_reason(engine: Engine) -> dict[str, float]:
    """Request seconds of waiting by the link that holds them, in the scheduler's own order."""
    row = engine.interval
    mean = {name: np.nan_to_num((row[name] + row[f"{name}_before"]) / 2) for name in ("waiting", "running", "kv_usage_ratio")}
    weight = mean["waiting"] * row["dt_s"]
    deferred = np.nan_to_num((row["deferred"] + row["deferred_before"]) / 2) * row["dt_s"]
    deferred = np.minimum(deferred, weight)
    cap, _ = cap_of(engine)
    preempting = np.nan_to_num(row["preemptions"]) / np.maximum(row["dt_s"], 1e-9) > PREEMPTING_PER_S
    slots = (mean["running"] >= cap - 0.75) & ~preempting if math.isfinite(cap) else np.zeros(len(weight), bool)
    full = (preempting | (mean["kv_usage_ratio"] >= FULL)) & ~slots
    rest = weight - deferred
    return {
        "slots": float(rest[slots].sum()),
        "kv_eviction": float(rest[full].sum()),
        "kv_transfer": float(deferred.sum()),
        "prefill_backlog": float(rest[~slots & ~full].sum()),
    }


def _known_s(target: Target | None, finished: float) -> float:
    """Request seconds that the attribution explains by the link it would name (or half of all, where it names none)."""
    if target is None or target.measured_s is None:
        return 0.0
    if target.verdict == "limited" and target.limiting:
        return (target.part(target.limiting).seconds or 0.0) * finished
    return 0.5 * target.measured_s * finished


def _held_back(name: str, target: Target | None, held: Waiting) -> Diagnosis:
    link = max(held.shares, key=lambda one: held.shares[one])
    title = by_name(link).LINK.title
    says = (
        f"{title} holds back requests that have not finished: {held.now:.0f} wait now (at most {held.most:.0f}), "
        f"{_amount(name, held.per_request_s)} a request so far."
    )
    evidence = [
        f"{100 * held.shares[link]:.0f} % of the waiting {REASONS[link]}: {held.running:.0f} running, KV use up to {100 * held.usage_ratio:.0f} %"
    ]
    evidence += list(target.part(link).evidence) if target is not None else []
    conditions = ("from the gauges: most of these seconds are in no histogram before the requests finish",)
    return Diagnosis(
        name, "waiting", link, says, held.per_request_s, target.measured_s if target else None,
        evidence=tuple(dict.fromkeys((*evidence, *conditions))), tries=_tries(link),
    )  # fmt: skip


# -- what was recorded --------------------------------------------------------------------------------------------------------
def _limited(name: str, target: Target) -> Diagnosis:
    link = target.limiting or ""
    part = target.part(link)
    says = f"{by_name(link).LINK.title} limits {NAMES[name]}: {_amount(name, part.seconds)} of the mean {_amount(name, target.measured_s)}."
    if target.runner_up:
        says += f" Close behind: {by_name(target.runner_up).LINK.title}, {_amount(name, target.part(target.runner_up).seconds)}."
    evidence = (*part.evidence, *part.conditions)
    return Diagnosis(name, "limited", link, says, part.seconds, target.measured_s, evidence=evidence, tries=_tries(link))


def _largest_fault(target: Target) -> Part | None:
    faults = [part for part in target.parts if part.fault_s and part.fault_s > FAULT * (target.measured_s or math.inf)]
    return max(faults, key=lambda part: part.fault_s or 0.0, default=None)


def _load(name: str, target: Target) -> Diagnosis:
    """An objective is missed and no fault is large enough to limit: then load does, and the largest fault is named beside it."""
    fault = _largest_fault(target)
    link = target.load or (fault.link if fault else "")
    part = target.part(link)
    says = (
        f"No fault holds more than 10 % of {NAMES[name]} (mean {_amount(name, target.measured_s)}); it is load: "
        f"{by_name(link).LINK.title} holds {_amount(name, part.seconds)}."
    )
    if fault is not None and fault.link != link:
        says += f" The largest fault is {by_name(fault.link).LINK.title}, {_amount(name, fault.seconds)}."
    evidence = (*part.evidence, *(fault.evidence if fault is not None and fault.link != link else ()), *part.conditions)
    advice = (*(_tries(fault.link) if fault is not None else ()), *_tries(link))
    return Diagnosis(
        name, "load", link, says, part.seconds, target.measured_s, evidence=evidence, tries=tuple(dict.fromkeys(advice))
    )


def _stalls(target: Target, window: Window, slow_s: float) -> Diagnosis | None:
    """Slow tokens that stalls of the whole engine account for; means do not show them."""
    part = target.part("engine_stall")
    tokens = sum(e.total.get("request_output_tokens", 0.0) - e.total.get("e2e_n", 0.0) for e in window.engines)
    if target.name != "tpot" or not slow_s or not part.seconds or part.seconds * tokens < 0.5 * slow_s:
        return None
    says = f"{by_name(part.link).LINK.title}: {part.seconds * tokens:.1f} s of all streams together, which accounts for the slow tokens."
    return Diagnosis(
        "tpot",
        "limited",
        part.link,
        says,
        part.seconds,
        target.measured_s,
        evidence=(*part.evidence, *part.conditions),
        tries=_tries(part.link),
    )


def _untold(name: str, target: Target, why: str) -> Diagnosis:
    refusals = target.cannot_determine
    reason = why or (refusals[0].what if refusals else "the data do not decide")
    says = f"Cannot tell what limits {NAMES[name]} (mean {_amount(name, target.measured_s)}): {reason}."
    if target.runner_up:
        says += f" The largest fault seen is {by_name(target.runner_up).LINK.title}, {_amount(name, target.part(target.runner_up).seconds)}."
    measure = tuple(f"{one.what}: {one.measure}" for one in refusals) or ("a longer window",)
    return Diagnosis(name, "undetermined", None, says, measured_s=target.measured_s, measure=measure)


def _tries(link: str) -> tuple[tuple[str, str], ...]:
    return tuple(tries(by_name(link)))


def _amount(name: str, seconds: float | None) -> str:
    """Seconds with three significant digits; ms for TPOT and small values."""
    if seconds is None or not math.isfinite(seconds):
        return "unknown"
    small = name == "tpot" or abs(seconds) < 0.1
    shown = 1000 * seconds if small else seconds
    digits = max(0, 2 - math.floor(math.log10(abs(shown)))) if abs(shown) >= 0.005 else 2
    return f"{shown:.{digits}f} {'ms' if small else 's'}"


# -- what changed -------------------------------------------------------------------------------------------------------------
def changes(now: Window, before: Window) -> list[str]:
    """What differs between the window and its baseline by more than half: arrivals, prompts, hits, preemptions, batch."""
    new, old = _numbers(now), _numbers(before)
    said = []
    for name, (value, digits) in new.items():
        was = old.get(name, (math.nan, 0))[0]
        if not (math.isfinite(value) and math.isfinite(was)) or max(value, was) <= 0:
            continue
        if min(value, was) * CHANGED <= max(value, was):
            said.append(f"{name}: {was:.{digits}f} before, {value:.{digits}f} now")
    return said


def _numbers(window: Window) -> dict[str, tuple[float, int]]:
    """Rates and means of a window, with the decimals to show."""
    rows = [engine.interval for engine in window.engines if len(engine.interval.get("ts", ()))]
    span = max((float(row["ts"][-1] - row["ts"][0] + row["dt_s"][0]) for row in rows), default=math.nan)

    def total(name: str) -> float:
        held = [engine.total[name] for engine in window.engines if name in engine.total]
        return sum(held) if held else math.nan

    def ratio(part: str, whole: str) -> float:
        return total(part) / total(whole) if total(whole) > 0 else math.nan

    def mean(names: Sequence[str]) -> float:
        return sum(float(np.mean(sum(np.nan_to_num(row[name]) for name in names))) for row in rows) if rows else math.nan

    return {
        "first tokens a second": (total("ttft_n") / span, 1),
        "prompt tokens of a request": (ratio("prompt_tokens", "ttft_n"), 0),
        "prefix hits, share of prompt tokens": (ratio("prefix_hit_tokens", "prefix_query_tokens"), 2),
        "preemptions a second": (total("preemptions") / span, 1),
        "requests in flight": (mean(("running", "waiting")), 0),
    }
