"""Several engines: each is judged alone, then combined by requests with the spread shown (attribution.md section 2.7)."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from analyzers.model import TARGETS, Engine, EngineResult, Part, Refusal, Stage, Target

ONE_TOKEN: Final = 1.02  # output tokens a request up to which a server only prefills
ALL_EXTERNAL: Final = 0.9  # share of prompt tokens from elsewhere from which a server only decodes


def lean(engine: Engine) -> Engine:
    """What `attribute.fleet` needs of an engine that was judged: no rows, but for what its clients measured."""
    took = engine.scrape.get("ok", np.zeros(0, bool)).astype(bool)
    seen = np.flatnonzero(took)
    holes = int((~took)[seen[0] : seen[-1]].sum()) if len(seen) else 0
    clients = {name: engine.request[name] for name in ("client_ttft_s", "client_e2e_s") if name in engine.request}
    return replace(
        engine,
        interval={
            "running": engine.interval.get("running", np.zeros(0))[-1:],
            "waiting": engine.interval.get("waiting", np.zeros(0))[-1:],
            "running_before": engine.interval.get("running_before", np.zeros(0))[:1],
        },
        scrape={"ok": np.array([True, *[False] * holes, True])} if len(seen) else {},
        stat={name: values[-1:] for name, values in engine.stat.items() if name == "waiting"},
        step={},
        request=clients,
        bucket={},
        event=tuple(event for event in engine.event if event.kind == "aborted"),
    )


def roles(engines: Sequence[Engine]) -> list[str]:
    """Role of each engine, from the data: prefill (requests end after a token), decode (prompts come from elsewhere), both."""
    found = []
    for e in engines:
        n = e.total.get("e2e_n", 0.0)
        outputs = e.total.get("request_output_tokens", math.nan) / n if n else math.nan
        external = e.total.get("external_hit_tokens", 0.0) / max(e.total.get("prompt_tokens", 0.0), 1.0)
        found.append("prefill" if outputs <= ONE_TOKEN else "decode" if external >= ALL_EXTERNAL else "both")
    if not ("prefill" in found and "decode" in found):
        return ["both"] * len(found)
    return found


def targets(results: Sequence[EngineResult], engines: Sequence[Engine]) -> dict[str, Target | None]:
    """The fleet's targets: None for each where nothing was observed, or servers of one chain are not joined yet."""
    if not results:
        nothing = Refusal("anything: no vLLM series, stats line or request was found", "GET /metrics of the server, or its log")
        return {
            name: Target(name, None, None, None, dict.fromkeys(stages), (), None, None, "undetermined", (nothing,))
            for name, stages in TARGETS.items()
        }
    if {"prefill", "decode"} <= {r.role for r in results}:
        return _chained(results, engines)
    if len(results) == 1:
        return dict(results[0].targets)
    if all(r.targets["e2e"].measured_s is None for r in results):
        return {name: _states(name, results, engines) for name in TARGETS}
    return {name: _weighted(name, results, engines) for name in TARGETS}


def _chained(results: Sequence[EngineResult], engines: Sequence[Engine]) -> dict[str, Target | None]:
    """A prefill and a decode server as one chain: TTFT = E2E of the prefill server + TTFT of the decode server.

    What lies between the two servers and the client (proxy, network) is in no server's time: a condition says how much
    the clients saw, where their timings are there.
    """
    sides: dict[str, dict[str, Target | None]] = {}
    for role in ("prefill", "decode"):
        chosen = [(r, e) for r, e in zip(results, engines, strict=True) if r.role == role]
        rs, es = [r for r, _ in chosen], [e for _, e in chosen]
        sides[role] = dict(rs[0].targets) if len(rs) == 1 else {name: _weighted(name, rs, es) for name in TARGETS}
    served = max(1, min(sum(r.requests for r in results if r.role == role) for role in sides))
    out: dict[str, Target | None] = {"tpot": sides["decode"]["tpot"]}
    for name in ("ttft", "e2e"):
        first, second = sides["prefill"]["e2e"], sides["decode"][name]
        out[name] = _after(name, first, second, served, _seen_by_clients(name, engines)) if first and second else None
    return {name: out[name] for name in TARGETS}


def _seen_by_clients(name: str, engines: Sequence[Engine]) -> float | None:
    column = f"client_{name}_s"
    seen = [e.request[column] for e in engines if len(e.request.get(column, ()))]
    values = np.concatenate(seen) if seen else np.zeros(0)
    return float(np.nanmean(values)) if np.isfinite(values).any() else None


def _after(name: str, first: Target, second: Target, requests: int, client: float | None) -> Target:
    """Two targets one after the other: what both servers measured, added up."""
    from analyzers.attribute import judge  # noqa: PLC0415 judge and combine call each other

    def total(a: float | None, b: float | None) -> float | None:
        return None if a is None and b is None else (a or 0.0) + (b or 0.0)

    parts = []
    for a, b in zip(first.parts, second.parts, strict=True):
        unknown = [role for p, role in ((a, "prefill"), (b, "decode")) if p.seconds is None and (p.used or p.bound_s is not None)]
        cells = {stage: a.cells.get(stage, 0.0) + b.cells.get(stage, 0.0) for stage in (*a.cells, *b.cells)}
        more = a if (a.seconds or 0.0) > (b.seconds or 0.0) else b
        parts.append(
            replace(
                more,
                seconds=total(a.seconds, b.seconds) or (None if unknown else total(a.seconds, b.seconds)),
                cells=cells,
                fault_s=total(a.fault_s, b.fault_s),
                saves_s=total(a.saves_s, b.saves_s),
                bound_s=total(a.bound_s, b.bound_s),
                used=a.used or b.used,
                range_s=(a.range_s[0] + b.range_s[0], a.range_s[1] + b.range_s[1]) if a.range_s and b.range_s else None,
                status="unknown"
                if unknown and not total(a.seconds, b.seconds)
                else "contributing"
                if "contributing" in {a.status, b.status} or "limiting" in {a.status, b.status}
                else more.status,
                conditions=tuple(
                    dict.fromkeys(
                        (
                            *(f"not known on the {role} server" for role in unknown),
                            *(c if c in b.conditions else f"prefill server: {c}" for c in a.conditions),
                            *(f"decode server: {c}" for c in b.conditions if c not in a.conditions),
                        )
                    )
                ),
                evidence=(*(f"prefill server: {x}" for x in a.evidence), *(f"decode server: {x}" for x in b.evidence)),
            )
        )
    measured = total(first.measured_s, second.measured_s)
    said = [
        f"one chain over two servers: {first.measured_s or 0:.4f} s on the prefill server, then {second.measured_s or 0:.4f} s on the decode server"
    ]
    if client is not None and measured is not None:
        said.append(
            f"clients saw {client:.4f} s: {client - measured:.4f} s lie between them and the two servers (proxy, network)"
        )
    # cells may lie in stages that the target does not list on the decode server (the prefill server's delivery)
    stages = {
        stage: total(first.stages.get(stage), second.stages.get(stage))
        for stage in (*TARGETS[name], *(s for s in first.stages if s not in TARGETS[name] and first.stages.get(s)))
    }
    chained = Target(
        name,
        measured,
        total(first.floor_s, second.floor_s),
        total(first.unexplained_s, second.unexplained_s),
        stages,
        tuple(parts),
        None,
        None,
        "undetermined",
        _refusals((first, second)),
        (*said, *dict.fromkeys((*first.conditions, *second.conditions))),
        floor_whole=first.floor_whole and second.floor_whole,
    )
    return judge(chained, requests)


def _refusals(targets: Sequence[Target]) -> tuple[Refusal, ...]:
    """What could not be told of any; but how much is unexplained is judged anew of the whole."""
    from analyzers.attribute import WHAT_TAKES  # noqa: PLC0415 as judge

    return tuple(dict.fromkeys(r for t in targets for r in t.cannot_determine if not r.what.startswith(WHAT_TAKES)))


def label(result: EngineResult, results: Sequence[EngineResult]) -> str:
    """An engine's name in a sentence: its label, with the instance where there are several."""
    return result.engine if len({r.instance for r in results}) == 1 else f"{result.instance}/{result.engine}"


def _weighted(name: str, results: Sequence[EngineResult], engines: Sequence[Engine]) -> Target:
    """Means over engines, weighted by finished requests (TPOT: by output tokens after the first)."""
    from analyzers.attribute import judge  # noqa: PLC0415 judge and combine call each other

    pairs = []
    for result, engine in zip(results, engines, strict=True):
        target = result.targets[name]
        n = engine.total.get("e2e_n", 0.0)
        weight = (
            engine.total.get("request_output_tokens", 0.0) - n
            if name == "tpot"
            else engine.total.get("ttft_n", n)
            if name == "ttft"
            else n
        )
        if target.measured_s is not None and weight > 0:
            pairs.append((weight, target, result))
    if not pairs:
        return results[0].targets[name]
    whole = sum(w for w, _, _ in pairs)

    def mean(values: Sequence[float | None]) -> float | None:
        return (
            sum(w * (v or 0.0) for (w, _, _), v in zip(pairs, values, strict=True)) / whole
            if any(v is not None for v in values)
            else None
        )

    chosen = [t for _, t, _ in pairs]
    parts = tuple(_mean_part([t.parts[index] for t in chosen], mean) for index in range(len(chosen[0].parts)))
    spread = [t.measured_s or 0.0 for t in chosen]
    combined = Target(
        name=name,
        measured_s=mean(spread),
        floor_s=mean([t.floor_s for t in chosen]),
        unexplained_s=mean([t.unexplained_s for t in chosen]),
        stages={stage: mean([t.stages[stage] for t in chosen]) for stage in TARGETS[name]},
        parts=parts,
        limiting=None,
        runner_up=None,
        verdict="undetermined",
        cannot_determine=_refusals(chosen),
        conditions=(
            f"mean of {len(chosen)} engines, which lie between {min(spread):.4g} and {max(spread):.4g} s",
            *dict.fromkeys(c for t in chosen for c in t.conditions),
        ),
        floor_whole=all(t.floor_whole for t in chosen),
    )
    return _hot(judge(combined, sum(r.requests for _, _, r in pairs)), [(t, r) for _, t, r in pairs], results)


def _mean_part(parts: Sequence[Part], take: Callable[[Sequence[float | None]], float | None]) -> Part:
    """One link's part over engines; `take` is the weighted mean of the caller."""
    known = [p for p in parts if p.seconds is not None]
    first = max(parts, key=lambda p: p.seconds or 0.0)
    if not known:
        return replace(first, bound_s=take([p.bound_s for p in parts]))
    cells: dict[Stage, float] = {}
    for stage in dict.fromkeys(s for p in known for s in p.cells):  # in one order: reports are compared
        cells[stage] = take([p.cells.get(stage, 0.0) for p in parts]) or 0.0
    status = "contributing" if any(p.status in {"contributing", "limiting"} for p in known) else "ok"
    return replace(
        first,
        seconds=take([p.seconds for p in parts]),
        cells=cells,
        fault_s=take([p.fault_s for p in parts]),
        saves_s=None if any(p.saves_s is None for p in known) else take([p.saves_s for p in parts]),
        status=status,
        bound_s=take([p.bound_s for p in parts]) if any(p.bound_s is not None for p in parts) else None,
        range_s=_mean_range(parts, take) if all(p.range_s for p in known) else None,
        pressure=max((p.pressure for p in parts if p.pressure is not None), default=None),
        conditions=tuple(dict.fromkeys(c for p in parts for c in p.conditions)),
        evidence=tuple(dict.fromkeys(e for p in parts for e in p.evidence)),
    )


def _mean_range(parts: Sequence[Part], take: Callable[[Sequence[float | None]], float | None]) -> tuple[float, float]:
    low, high = (take([p.range_s[i] if p.range_s else None for p in parts]) or 0.0 for i in (0, 1))
    return low, high


def _hot(target: Target, pairs: Sequence[tuple[Target, EngineResult]], results: Sequence[EngineResult]) -> Target:
    """A few limited engines must not vanish in the mean of many healthy ones."""
    limited = [(t, r) for t, r in pairs if t.verdict == "limited" and t.limiting]
    if not limited:
        return target
    names = ", ".join(label(r, results) for _, r in limited)
    said = f"limited on {len(limited)} of {len(pairs)} engines ({names})"
    if target.verdict == "limited":
        return replace(target, conditions=(said, *target.conditions)) if len(limited) < len(pairs) else target
    if target.verdict == "undetermined" and target.measured_s and any(p.bound_s for p in target.parts):
        return replace(target, conditions=(said, *target.conditions))
    link = max(
        dict.fromkeys(t.limiting for t, _ in limited if t.limiting),
        key=lambda name: sum((t.part(name).seconds or 0.0) * r.requests for t, r in limited),
    )
    parts = tuple(replace(p, status="limiting") if p.link == link else p for p in target.parts)
    return replace(
        target,
        verdict="limited",
        limiting=link,
        parts=parts,
        conditions=(f"{said}; the mean over all engines hides it", *target.conditions),
    )


def summed(engine: Engine, engines: Sequence[Engine]) -> Refusal | None:
    """Refuse what cannot be said of one series where the arguments of its server say several engines (attribution.md section 7)."""
    args = engine.facts.get("args") or {}
    expected = int(engine.facts.get("data_parallel") or 1)
    alone = sum(e.instance == engine.instance for e in engines) == 1
    own = any(args.get(name) for name in ("data_parallel_external_lb", "data_parallel_hybrid_lb", "data_parallel_rank"))
    if expected < 2 or not alone or own:
        return None
    return Refusal(
        f"what each engine does: the arguments of {engine.instance} say {expected} engines, its series are of one, or a sum of all",
        "/metrics with the `engine` label kept (no rule or query that sums over it)",
    )


def _states(name: str, results: Sequence[EngineResult], engines: Sequence[Engine]) -> Target:
    """Several engines of which only states are known: the limited ones are named, never averaged away."""
    chosen = [r.targets[name] for r in results]
    limited = [(t, r) for t, r in zip(chosen, results, strict=True) if t.limiting]
    refusals = _refusals(chosen)
    expected = max((int(e.facts.get("data_parallel") or 1) for e in engines), default=1)
    if expected > len(results):
        refusals = (
            *refusals,
            Refusal(
                f"imbalance between engines: {len(results)} of {expected} are visible",
                "the stats lines or /metrics of all engines",
            ),
        )
    if not limited:
        verdict = "healthy" if all(t.verdict == "healthy" for t in chosen) else "undetermined"
        return replace(chosen[0], verdict=verdict, cannot_determine=refusals)
    link = limited[0][0].limiting
    names = ", ".join(label(r, results) for _, r in limited)
    waits = {
        label(r, results): float(np.nan_to_num(e.stat["waiting"][-1]))
        for r, e in zip(results, engines, strict=True)
        if len(e.stat.get("waiting", ()))
    }
    held = sum(waits.get(label(r, results), 0.0) for _, r in limited)
    total = sum(waits.values())
    said = f"{len(limited)} of {len(results)} engines ({names}) hold {held:.0f} of {total:.0f} waiting requests"
    base = limited[0][0]
    parts = tuple(
        replace(
            p,
            status="limiting",
            evidence=tuple(
                dict.fromkeys(
                    (
                        said,
                        *(e for t, r in limited for e in (f"engine {label(r, results)}: {x}" for x in t.part(p.link).evidence)),
                    )
                )
            ),
        )
        if p.link == link
        else p
        for p in base.parts
    )
    return replace(
        base, verdict="limited", limiting=link, parts=parts, cannot_determine=refusals, conditions=(said, *base.conditions)
    )


def spread(results: Sequence[EngineResult], name: str) -> Mapping[str, float]:
    """Measured value of each engine, by label."""
    return {label(r, results): r.targets[name].measured_s or math.nan for r in results}
