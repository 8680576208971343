"""Books to Attribution: links' cells become parts of each target, and a verdict says which link limits (house.md section 2)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Final

import numpy as np

from analyzers import combine, ranges, replayed, state, steps
from analyzers.books import NOMINAL_FRONTEND_S, NOMINAL_OUTPUT_S, STEP_COSTS, Books, arrival_rate, books
from analyzers.links import CHAIN, by_name, moe_imbalance
from analyzers.model import TARGETS, Attribution, Engine, EngineResult, Level, Link, Part, Refusal, Row, Stage, Target, Window
from analyzers.segments import segments
from analyzers.whatif import what_if

LIMITS: Final = 0.10  # share of the measured value from which the largest fault limits
LOW_END: Final = 0.05  # which the lower end of its range must exceed
NEAR: Final = 0.15  # a runner-up within this of the first, or whose range overlaps its, is named beside it
CONTRIBUTES: Final = 0.05
TRACE: Final = 0.01  # share of the measured value from which a link holds a fault at all: then its load is of the same cause
FEW_REQUESTS: Final = 5  # below this nothing is judged
UNEXPLAINED: Final = 0.5  # share of the measured value, of either sign: above it nothing is named, nor called healthy
TPOT_NOISE_S: Final = 0.00035  # two runs of one load differ by as much (attribution.md section 7)
WHAT_TAKES: Final = "what takes"
LONG_PROMPT: Final = 8192.0  # mean prompt tokens from which attention over the context decides what a step costs


def attribute(
    window: Window, *, with_twin: bool = False, slo: Mapping[str, float] | None = None, baseline: Attribution | None = None
) -> Attribution:
    """Judge a window: each engine alone, then combined by requests. Never raises on missing data: it refuses.

    `with_twin` also replays each engine: what-ifs, joint fixes, and parts closer to the truth; it is not needed to name the link. A load link limits a
    target only while its SLO (`slo`, seconds by target) is missed or the `baseline` is exceeded.
    """
    return fleet(window, results_of(window, with_twin=with_twin, slo=slo, baseline=baseline), slo=slo, baseline=baseline)


def results_of(
    window: Window, *, with_twin: bool = False, slo: Mapping[str, float] | None = None, baseline: Attribution | None = None
) -> tuple[EngineResult, ...]:
    """Each engine of a window judged alone; options as `attribute` has them."""
    nominal_s = _nominal_frontend_s(baseline)
    return tuple(
        _engine(engine, "both", with_twin=with_twin, slo=slo, nominal_s=nominal_s, summed=combine.summed(engine, window.engines))
        for engine in window.engines
    )


def fleet(
    window: Window,
    alone: Sequence[EngineResult],
    *,
    slo: Mapping[str, float] | None = None,
    baseline: Attribution | None = None,
) -> Attribution:
    """Engines that were judged alone, combined. The engines of the window may be what `combine.lean` leaves of them."""
    roles = combine.roles(window.engines)
    results = tuple(replace(result, role=role) for result, role in zip(alone, roles, strict=True))
    # a request of a prefill and a decode server finishes on both
    last = [e for e, role in zip(window.engines, roles, strict=True) if role != "prefill" or "decode" not in roles]
    finished = int(sum(e.total.get("e2e_n", 0.0) for e in last))
    return Attribution(
        start=window.start,
        end=window.end,
        models=tuple(sorted({e.model for e in window.engines if e.model})),
        versions=tuple(sorted({e.version for e in window.engines if e.version})),
        level=min((r.level for r in results), key=list(Level).index, default=Level.STATE),
        restarts=window.restarts,
        finished=finished,
        aborted=_aborted(window.engines),
        engines=results,
        targets={name: under_load(t, slo, baseline) for name, t in combine.targets(results, window.engines).items()},
        notes=tuple(_notes(window)),
    )


def level_of(engine: Engine) -> Level:
    """What was observed of an engine."""
    if not engine.total.get("e2e_n"):
        return Level.STATE
    if engine.kv.get("stored_blocks") and not engine.kv.get("gaps"):
        return Level.HASHES
    if len(engine.request.get("arrival_ts", ())):
        return Level.REQUESTS
    if len(engine.step.get("ts", ())) or any(e.kind == "eplb" for e in engine.event):
        return Level.LOGS
    return Level.METRICS


def _nominal_frontend_s(baseline: Attribution | None) -> float:
    """What the front end took in the baseline, after input dwell; the usual value without one."""
    target = baseline.targets.get("ttft") if baseline else None
    taken = target.stages.get(Stage.FRONTEND) if target else None
    if target is None or taken is None:
        return NOMINAL_FRONTEND_S
    return max(0.0, taken - sum(target.part(link).cells.get(Stage.FRONTEND, 0.0) for link in ("prefill_backlog", "engine_stall")))


def _engine(
    engine: Engine, role: str, *, with_twin: bool, slo: Mapping[str, float] | None, nominal_s: float, summed: Refusal | None
) -> EngineResult:
    accounts = books(engine, frontend_nominal_s=nominal_s)
    if accounts is None:
        return EngineResult(
            engine.instance, engine.engine, role, int(engine.total.get("e2e_n", 0.0)), state.targets(engine), Level.STATE
        )
    level = level_of(engine)
    adjusted = adjust(accounts)
    rows = {module.LINK.name: module.row(adjusted) for module in CHAIN}
    plain = {name: target_of(name, adjusted, rows) for name in TARGETS}
    replay = what_if(adjusted, slo=slo) if with_twin else None
    shown = plain if replay is None else {name: replayed.with_twin(target, replay, adjusted) for name, target in plain.items()}
    if summed:
        shown = {name: replace(target, cannot_determine=(*target.cannot_determine, summed)) for name, target in shown.items()}
    spans = ranges.of(accounts, plain, level, shown)
    targets = {name: judge(_with_ranges(target, spans[name]), accounts.requests) for name, target in shown.items()}
    return EngineResult(engine.instance, engine.engine, role, accounts.requests, targets, level, replay, segments(engine))


def adjust(accounts: Books) -> Books:
    """Books after the links whose cost lies inside others' steps have taken their share."""
    for module in CHAIN:
        if hasattr(module, "adjust"):
            accounts = module.adjust(accounts)
    return accounts


def _with_ranges(target: Target, spans: Mapping[str, tuple[float, float]]) -> Target:
    return replace(target, parts=tuple(replace(p, range_s=spans.get(p.link)) for p in target.parts))


# -- one target -----------------------------------------------------------------------------------------------------------
def _measured(name: str, b: Books) -> tuple[float, float]:
    """The measured mean of a target and what seconds per request are divided by (TPOT: tokens after the first)."""
    if name == "tpot":
        t = b.engine.total
        tokens = t.get("request_output_tokens", math.nan) - t.get("e2e_n", math.nan)
        if not math.isfinite(tokens):
            tokens = t.get("generation_tokens", math.nan) - t.get("ttft_n", math.nan)
        per = tokens / b.requests
        return (b.stages[Stage.DECODE] / per, per) if per > 0 else (math.nan, 1.0)
    return (b.ttft_s if name == "ttft" else sum(b.stages.values())), 1.0


def _floor(b: Books) -> dict[Stage, float]:
    """Work nobody else causes: the nominal front end and delivery, the own prefill, decoding alone."""
    frontend = b.stages[Stage.FRONTEND] - b.dwell_s - b.stalled_s
    return {
        Stage.FRONTEND: min(max(frontend, 0.0), b.frontend_nominal_s),
        Stage.QUEUE: 0.0,
        Stage.PREFILL: b.prefill["own"],
        Stage.DECODE: b.decode["base"],
        Stage.OUTPUT: min(max(b.stages[Stage.OUTPUT], 0.0), NOMINAL_OUTPUT_S),
    }


def _over(cells: Mapping[Stage, float] | None, stages: Sequence[Stage], per: float) -> float:
    return sum(seconds for stage, seconds in (cells or {}).items() if stage in stages) / per


def target_of(name: str, b: Books, rows: Mapping[str, Row]) -> Target:
    """One target with its parts, not judged yet."""
    stages = TARGETS[name]
    measured, per = _measured(name, b)
    if not math.isfinite(measured):
        what = (
            "TPOT: no request had a token after its first" if name == "tpot" else f"{name.upper()}: its histogram is not exported"
        )
        return Target(
            name,
            None,
            None,
            None,
            dict.fromkeys(stages),
            tuple(_blank(m, rows[m.LINK.name]) for m in CHAIN),
            None,
            None,
            "undetermined",
            (Refusal(what, "a window with such requests" if name == "tpot" else "scrape /metrics without --disable-log-stats"),),
        )
    parts = tuple(_part(module.LINK, rows[module.LINK.name], name, stages, per, b, measured) for module in CHAIN)
    floor = _over(_floor(b), stages, per)
    unread = {Stage.PREFILL: b.prefill["unread"], Stage.DECODE: b.decode["unread"]}
    explained = floor + sum(p.seconds or 0.0 for p in parts)
    return Target(
        name=name,
        measured_s=measured,
        floor_s=floor,
        unexplained_s=measured - explained,
        stages={stage: b.stages[stage] / per for stage in stages},
        parts=parts,
        limiting=None,
        runner_up=None,
        verdict="undetermined",
        cannot_determine=(
            *b.refusals,
            *(r for r in (moe_imbalance.refusal(b.engine, rows[moe_imbalance.LINK.name].known),) if r),
        ),
        conditions=tuple(_conditions(name, b)),
        floor_whole=not _over(unread, stages, per) > 0,
    )


def _blank(module: ModuleType, row: Row) -> Part:
    return Part(module.LINK.name, None, {}, status="unknown", conditions=row.conditions, fact=row.fact, used=row.used)


def _part(link: Link, row: Row, name: str, stages: Sequence[Stage], per: float, b: Books, measured: float) -> Part:
    cells = {stage: seconds / per for stage, seconds in row.cells.items() if stage in stages}
    known = row.known and (any(one > 0 for one in cells.values()) or not set(row.unseen) & set(stages))
    seconds = sum(cells.values()) if known else None
    fault = row.fault if row.fault is not None else {} if link.load else row.cells
    fault_s = _over(fault, stages, per) if known else None
    status = "unknown" if not known else "contributing" if (seconds or 0.0) > CONTRIBUTES * measured else "ok"
    return Part(
        link=link.name,
        seconds=seconds,
        cells=cells,
        fault_s=fault_s,
        saves_s=saves(link, row, name, b, per) if known else None,
        status=status,
        conditions=row.conditions,
        evidence=row.evidence,
        pressure=row.pressure,
        fact=row.fact,
        used=row.used,
        bound_s=None if row.bound is None else _over(row.bound, stages, per),
    )


def _conditions(name: str, b: Books) -> list[str]:
    said = list(b.notes)
    if b.requests < 100:
        said.append(f"only {b.requests} finished requests")
    if math.isfinite(b.scale) and b.scale > 0 and not 0.8 <= b.scale <= 1.25:
        said.append(f"the step model gives {1 / b.scale:.2f} times the measured decode seconds; its split was scaled")
    held = b.queue["slots"] + b.queue["kv"] + b.decode["requeue"]
    if held > 0.1 * (b.stages[Stage.QUEUE] + b.stages[Stage.PREFILL]) and math.isnan(growth_s(b)):
        said.append(
            "the engine is full (above 95 % busy with more at once): what a cap or blocks cost grows with how long one looks, savings are a lower bound"
        )
    if steps.number(b.engine.facts.get("api_servers"), 1.0) > 1 and b.model.ok:
        said.append(
            "several API servers each count the steps: they are estimated from tokens over running requests; one API server, or the JSON log of the engine, would count them"
        )
    if steps.lengths(b.engine)[0] > LONG_PROMPT and not len(b.engine.step.get("ts", ())):
        said.append(
            f"prompts of {steps.lengths(b.engine)[0]:.0f} tokens on average, and no context by step: costs are those of the mean; iteration lines, or runs matched by prompt length, would tell"
        )
    if name == "ttft" and b.engine.total.get("ttft_n", 0.0) != b.engine.total.get("e2e_n", 0.0):
        said.append(
            f"TTFT is of {b.engine.total.get('ttft_n', 0.0):.0f} requests that got a first token, stages of {b.requests} that finished"
        )
    return said


def growth_s(b: Books) -> float:
    """Seconds that decode grows by (per request) when a cap or KV shortage goes: more sequences share a step (Little's law).

    TPOT' = a / (1 - rate x output x c - prefill share); 0 where it cannot be said, or nothing is held back.
    """
    m, w, t = b.model, b.windows, b.engine.total
    rate = arrival_rate(b.engine)
    if not m.ok or w is None or rate is None or not b.output_tokens > 1:
        return 0.0
    prompt = t.get("request_prompt_tokens", 0.0) / max(t.get("request_prompt_n", 0.0), 1.0)
    now = b.hits.now if math.isfinite(b.hits.now) else 0.0
    busy = rate * m.prompt_s(prompt * (1 - now), prompt * now)
    load = rate * b.output_tokens * m.c + busy
    if load >= 0.95:
        return math.nan
    tpot = b.stages[Stage.DECODE] / max(b.output_tokens - 1, 1e-9)
    return float((m.a / max(0.05, 1 - load) - tpot) * (b.output_tokens - 1))


def saves(link: Link, row: Row, name: str, b: Books, per: float) -> float | None:
    """What fixing only this link would save: its cells, less what a larger batch then costs. None: not to be said."""
    seconds = _over(row.cells, TARGETS[name], per)
    module = by_name(link.name)
    if hasattr(module, "saves"):
        found: float | None = module.saves(b, row, name, per)
        return found
    held = _over(row.cells, (Stage.QUEUE, Stage.DECODE), 1.0)
    if link.load:
        return None
    if link.grows and held > 0.1 * (b.stages[Stage.QUEUE] + b.stages[Stage.PREFILL]) and name != "ttft":
        grow = growth_s(b)
        return (-grow / per if name == "tpot" else seconds - grow) if math.isfinite(grow) else None
    return seconds


# -- the verdict ----------------------------------------------------------------------------------------------------------
def judge(target: Target, requests: int) -> Target:  # noqa: PLR0911 one return a verdict
    """Name the limiting link by the rule of house.md section 2, or refuse."""
    if target.measured_s is None:
        return target
    measured = target.measured_s or 0.0
    if requests < FEW_REQUESTS:
        why = Refusal(f"anything from {requests} finished requests", "a longer window")
        return replace(target, verdict="undetermined", cannot_determine=(*target.cannot_determine, why))
    links = {module.LINK.name: module.LINK for module in CHAIN}
    ranked = _ranked(target, links)
    load = max(
        (p for p in target.parts if p.seconds and (links[p.link].load or p.link == "prefill_backlog")),
        key=lambda p: (p.seconds or 0.0) - (p.fault_s or 0.0),
        default=None,
    )
    target = replace(target, load=load.link if load else None)
    noise_s = TPOT_NOISE_S if target.name == "tpot" else 0.0
    named = ranked[0] if ranked and _limits(ranked[0], measured, noise_s) else None
    if abs(target.unexplained_s or 0.0) > UNEXPLAINED * measured:
        told = any(one.what.startswith(STEP_COSTS) for one in target.cannot_determine)
        why = Refusal(
            f"{WHAT_TAKES} {target.name.upper()}: {target.unexplained_s:.3g} s of {measured:.3g} s are unexplained; the requests whose stages the window "
            "has are not those whose latency it has, or something acts that no link sees",
            "a window that begins before the requests do and ends after them, or one record a request (spans)",
        )
        return replace(
            target,
            verdict="undetermined",
            runner_up=named[0] if named else None,
            cannot_determine=(*target.cannot_determine, *(() if told else (why,))),
        )
    unseen = [
        p
        for p in target.parts
        if p.bound_s is not None and not (target.name == "tpot" and links[p.link].grows) and (named is None or p.link != named[0])
    ]
    most = max(((p.bound_s or 0.0) + (p.fault_s or 0.0) for p in unseen), default=0.0)
    if most > (named[1] if named else LIMITS * measured):
        runner = named[0] if named else None
        return replace(
            target, verdict="undetermined", runner_up=runner, cannot_determine=target.cannot_determine or _bounds(target)
        )
    if (
        named is None and ranked and ranked[0][1] > max(noise_s, LIMITS * measured)
    ):  # large, but its range reaches down to nothing
        first = ranked[0]
        why = Refusal(
            f"whether {first[0]} limits: {first[1]:.3g} s of {measured:.3g} s, but perhaps only {first[2] or 0.0:.3g} s",
            "the twin (--what-if), a longer recording, or the next level of evidence (JSON log with iteration lines, spans, KV events)",
        )
        return replace(target, verdict="undetermined", runner_up=first[0], cannot_determine=(*target.cannot_determine, why))
    if named is None:
        return replace(target, verdict="healthy")
    parts = tuple(replace(p, status="limiting") if p.link == named[0] else p for p in target.parts)
    return replace(
        target, verdict="limited", limiting=named[0], runner_up=_runner_up(target, links, named, measured), parts=parts
    )


def _runner_up(target: Target, links: Mapping[str, Link], first: tuple[str, float, float | None], measured: float) -> str | None:
    """The second cause, where it may be as large as the first: within 15 %, or their ranges overlap.

    A link whose fault is seen counts with all its seconds: prompts that make others wait also stretch their steps.
    """
    name, seconds, low = first
    cause = links[name].cause or name
    rest = [
        p
        for p in target.parts
        if (links[p.link].cause or p.link) != cause
        and p.seconds is not None
        and (p.fault_s or 0.0) > TRACE * measured
        and p.seconds > CONTRIBUTES * measured
        and not (target.name == "tpot" and links[p.link].grows)
        and (p.saves_s is None or p.saves_s > 0)
    ]
    second = max(rest, key=lambda p: p.seconds or 0.0, default=None)
    if second is None:
        return None
    near = (second.seconds or 0.0) >= (1 - NEAR) * seconds
    overlap = low is not None and second.range_s is not None and second.range_s[1] >= low
    return second.link if near or overlap else None


def under_load(
    target: Target | None, slo: Mapping[str, float] | None, baseline: Attribution | None, missed: str | None = None
) -> Target | None:
    """A healthy target whose SLO is missed, or that its baseline beats, is limited by its largest load.

    `slo` are seconds that the mean is not to exceed; `missed` names objectives that are known to be missed by their own share.
    """
    if target is None or target.verdict != "healthy" or not target.measured_s or not target.load:
        return target
    limit = (slo or {}).get(target.name)
    before = baseline.targets.get(target.name) if baseline else None
    why = f"the objective {missed} is missed" if missed else None
    if why is None and limit is not None and target.measured_s > limit:
        why = f"the SLO of {limit:.4g} s is missed"
    elif why is None and before is not None and before.measured_s and target.measured_s > (1 + LIMITS) * before.measured_s:
        why = f"the baseline of {before.measured_s:.4g} s is exceeded"
    seconds = target.part(target.load).seconds or 0.0
    if why is None or seconds <= LIMITS * target.measured_s:
        return target
    parts = tuple(replace(p, status="limiting") if p.link == target.load else p for p in target.parts)
    return replace(
        target, verdict="limited", limiting=target.load, parts=parts, conditions=(f"load, not a fault: {why}", *target.conditions)
    )


def _bounds(target: Target) -> tuple[Refusal, ...]:
    return tuple(
        Refusal(f"{p.link}: up to {p.bound_s:.3f} s ({'; '.join(p.conditions)})", "see the link's conditions")
        for p in target.parts
        if p.bound_s
    )


def _limits(candidate: tuple[str, float, float | None], measured: float, noise_s: float = 0.0) -> bool:
    _, seconds, low = candidate
    return seconds > noise_s and seconds > LIMITS * measured and (low is None or low > LOW_END * measured)


def _ranked(target: Target, links: Mapping[str, Link]) -> list[tuple[str, float, float | None]]:
    """Causes by fault seconds: (larger link of the cause, seconds of the cause, lower end of its range)."""
    causes: dict[str, list[Part]] = {}
    for part in target.parts:
        link = links[part.link]
        if part.seconds is None or not part.fault_s or (target.name == "tpot" and link.grows):
            continue
        if part.saves_s is not None and part.saves_s <= 0:
            continue
        causes.setdefault(link.cause or link.name, []).append(part)
    found = []
    for parts in causes.values():
        first = max(parts, key=lambda p: p.fault_s or 0.0)
        lows = [p.range_s[0] for p in parts if p.range_s]
        found.append((first.link, sum(p.fault_s or 0.0 for p in parts), sum(lows) if len(lows) == len(parts) else None))
    return sorted(found, key=lambda item: -item[1])


# -- the rest -------------------------------------------------------------------------------------------------------------
def _aborted(engines: Sequence[Engine]) -> int | None:
    """Requests that got a first token and surely never finished; None where the histograms are missing."""
    count, known = 0.0, False
    for e in engines:
        if "ttft_n" not in e.total or "e2e_n" not in e.total:
            continue
        known = True
        row = e.interval
        end = float(np.nan_to_num(row["running"][-1])) if len(row["running"]) else 0.0
        start = float(np.nan_to_num(row["running_before"][0])) if len(row["running_before"]) else 0.0
        if len(row["waiting"]):  # who was preempted waits again, with a first token
            end += min(float(np.nan_to_num(row["waiting"][-1])), e.total.get("preemptions", 0.0))
        count += max(0.0, e.total["ttft_n"] - e.total["e2e_n"] - end + start)
    return round(count) if known else None


def _notes(window: Window) -> list[str]:
    said = []
    aborted = _aborted(window.engines)
    if aborted:
        said.append(
            f"{aborted} requests got a first token and are in no finished histogram (aborted, failed or cut by a restart): their seconds are not in the stages"
        )
    lines = sum(int(e.fields.get("count", 1)) for one in window.engines[:1] for e in one.event if e.kind == "aborted")
    if lines:
        said.append(f"the log names {lines} aborted requests")
    for e in window.engines:
        took = e.scrape.get("ok")
        if took is not None and len(took):
            ok = took.astype(bool)
            seen = np.flatnonzero(ok)
            lost = int((~ok)[seen[0] : seen[-1]].sum()) if len(seen) else 0
            if lost:
                said.append(f"{e.instance}: {lost} scrapes failed in between: holes in the gauges")
            break
    return said
