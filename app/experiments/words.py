"""Hypotheses, workloads, capacity sheets and experiments as plain values for JSON, and as text for a terminal."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from analyzers.capacity import Sheet
from analyzers.case import Case, amount
from analyzers.experiment import Judgement
from analyzers.hypotheses import module_of, objectives
from analyzers.hypotheses.objectives import Objective
from analyzers.model import Effect, Hypothesis
from analyzers.workload import Lengths, Workload
from app.experiments.cases import Judged
from app.experiments.table import Row
from app.reports.words import stamp

TARGETS: Final = ("ttft", "tpot", "e2e")


def _number(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else value


def _pair(values: tuple[float, float] | None) -> list[float | None] | None:
    return None if values is None else [_number(v) for v in values]


# -- hypotheses -----------------------------------------------------------------------------------------------------------------
def hypothesis(found: Hypothesis, case: Case | None = None) -> dict[str, Any]:
    """A hypothesis as plain values, seconds; with a case also what it does to throughput and capacity."""
    document: dict[str, Any] = {
        "name": found.name,
        "change": found.change,
        "flags": list(found.flags),
        "claim": found.claim,
        "effect": {
            name: {"saves_s": _number(effect.saves_s), "range_s": _pair(effect.range_s)} for name, effect in found.effect.items()
        },
        "predicted_by": found.predicted_by,
        "costs": list(found.costs),
        "confused_with": found.confused_with,
        "conditions": list(found.conditions),
        "test": found.test,
        "undoes": found.undoes,
    }
    if case is not None:
        document["objectives"] = {
            name: {"now": _number(gain.now), "then": _number(gain.then), "unit": gain.unit}
            for name, gain in gains(case, found).items()
        }
    return document


def gains(case: Case, found: Hypothesis) -> dict[str, objectives.Gain]:
    """Throughput and capacity now and after a hypothesis."""
    module = module_of(found.name)
    return objectives.gains(case, module.changed(case) if hasattr(module, "changed") else None)


def effect(name: str, found: Effect) -> str:
    """An effect in words: "TTFT -4.28 s (3.42 to 5.13 s)"."""
    span = f" ({amount(found.range_s[0])} to {amount(found.range_s[1])} saved)" if found.range_s else ""
    if found.saves_s is None:
        return f"{name.upper()} cannot be predicted" + (f", at most {amount(found.range_s[1])} saved" if found.range_s else "")
    if found.saves_s == 0:
        return f"{name.upper()} unchanged"
    sign = "-" if found.saves_s > 0 else "+"
    return f"{name.upper()} {sign}{amount(abs(found.saves_s))}{span}"


def hypotheses_text(found: Sequence[Hypothesis], case: Case, objective: str) -> str:
    """Ranked hypotheses for a terminal."""
    if not found:
        return nothing(case, objective)
    lines = []
    for at, one in enumerate(found, 1):
        lines += [
            f"{at}. {one.name}: {one.change}",
            f"   {'  '.join(one.flags)}" if one.flags else "   (not a flag of the server)",
            f"   {one.claim}",
        ]
        lines.append("   predicted: " + ", ".join(effect(name, one.effect[name]) for name in TARGETS) + f" [{one.predicted_by}]")
        if objective not in TARGETS:
            gain = gains(case, one)[objective]
            lines.append(f"   {objective}: {_rate(gain.now)} -> {_rate(gain.then)} {gain.unit}")
        lines.append("   costs: " + "; ".join(one.costs))
        lines.append("   not to be confused with " + one.confused_with)
        lines += [f"   - {condition}" for condition in one.conditions]
        lines += [f"   test: {one.test}", ""]
    return "\n".join(lines).rstrip()


def _rate(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,.0f}"


def nothing(case: Case, objective: str) -> str:
    """Why nothing is recommended."""
    others = [t for t in TARGETS if t != objective and case.limited(t)]
    target = case.attribution.targets.get(objective if objective in TARGETS else "e2e")
    if not case.window.engines or target is None:
        return "Nothing to recommend: no engine was observed."
    if target.verdict == "undetermined":
        return "Nothing to recommend before it is known what limits: weaklink analyze says what to measure."
    also = (
        f" {', '.join(t.upper() for t in others)} {'is' if len(others) == 1 else 'are'} limited: --objective {others[0]}."
        if others
        else ""
    )
    return f"Nothing to recommend for {objective}: {'no change is predicted to be worth it' if case.limited(objective) else 'nothing limits it'}.{also}"


# -- workload -------------------------------------------------------------------------------------------------------------------
def _lengths(found: Lengths | None) -> dict[str, Any] | None:
    if found is None:
        return None
    quantiles = {name: _number(value) for name, value in found.quantiles.items()}
    return {"mean": found.mean, "cv": _number(found.cv), "quantiles": quantiles, "how": found.how}


def workload(
    found: Workload, sheet: Sequence[Objective] = (), conflicts: Sequence[str] = (), drift: Sequence[str] = ()
) -> dict[str, Any]:
    """A workload as plain values: tokens, requests a second, ratios 0-1, bytes."""
    return {
        "says": found.says,
        "requests": found.requests,
        "rate_per_s": _number(found.rate_per_s),
        "dispersion": _number(found.dispersion),
        "prompt_tokens": _lengths(found.prompt),
        "output_tokens": _lengths(found.output),
        "hit_ratio": _number(found.hit_ratio),
        "shared_ratio": _number(found.shared_ratio),
        "sharing": found.sharing_how,
        "in_flight": {"mean": _number(found.in_flight_mean), "max": _number(found.in_flight_max)},
        "loop": found.loop,
        "modality": list(found.modality),
        "model": found.shape,
        "kv_bytes_per_token": _number(found.kv_bytes_per_token),
        "objectives": [{"name": o.name, "now": o.now, "limited_by": o.limited_by, "says": o.says} for o in sheet],
        "conflicts": list(conflicts),
        "drift": list(drift),
    }


def workload_text(found: Workload, sheet: Sequence[Objective], conflicts: Sequence[str], drift: Sequence[str]) -> str:
    """A workload for a terminal."""
    lines = [found.says, ""]
    for o in sheet:
        lines.append(f"{o.name:<11} {o.now}" + (f", limited by {o.limited_by}" if o.limited_by else ""))
        lines.append(f"{'':<11} {o.says}")
    if conflicts:
        lines += ["", "Conflicts:", *(f"  - {c}" for c in conflicts)]
    if drift:
        lines += ["", "From its first to its second half:", *(f"  - {d}" for d in drift)]
    return "\n".join(lines)


def routing_text(found: Sequence[Mapping[str, float]]) -> list[str]:
    """Prefix hits of several engines for a terminal; nothing where the trace has no hashes."""
    lines = ["", "prefix hits      dealt out at random   to where the prefix is"] if found else []
    for one in found:
        engines = f"{one['engines']:.0f} engine{'' if one['engines'] == 1 else 's'}"
        lines.append(f"{engines:<16} {100 * one['random_hit_ratio']:>17.1f} % {100 * one['routed_hit_ratio']:>21.1f} %")
    return lines


# -- capacity -------------------------------------------------------------------------------------------------------------------
def capacity(found: Sheet) -> dict[str, Any]:
    """A capacity sheet as plain values: GiB, bytes, tokens."""
    m = found.memory
    return {
        "says": found.says,
        "context": found.context,
        "concurrency": found.concurrency,
        "fits": found.fits,
        "contexts": _number(found.contexts),
        "needed_gib": _number(found.needed_gib),
        "memory": {
            "gpu_gib": _number(m.gpu_gib),
            "share": _number(m.share),
            "weights_gib": _number(m.weights_gib),
            "kv_gib": _number(m.kv_gib),
            "room_gib": _number(m.room_gib),
            "rest_gib": _number(m.rest_gib),
            "kv_bytes_per_token": _number(m.kv_bytes),
            "pool_tokens": _number(m.pool_tokens),
            "how": dict(m.how),
        },
        "options": [
            {
                "name": o.name,
                "flags": list(o.flags),
                "pool_tokens": _number(o.pool_tokens),
                "contexts": _number(o.contexts),
                "fits": o.fits,
                "conditions": list(o.conditions),
            }
            for o in found.options
        ],
        "conditions": list(found.conditions),
    }


def capacity_text(found: Sheet) -> str:
    """A capacity sheet for a terminal."""
    m = found.memory

    def gib(value: float) -> str:
        return f"{value:.1f} GiB" if math.isfinite(value) else "unknown"

    lines = [
        found.says,
        "",
        f"one GPU     {gib(m.gpu_gib)}, of which vLLM may take {100 * m.share:.0f} % [{m.how['gpu_gib']}]",
        f"weights     {gib(m.weights_gib)} [{m.how['weights_gib']}]",
        f"KV blocks   {gib(m.kv_gib)} of {gib(m.room_gib)} that could [{m.how['room_gib']}]",
        f"the rest    {gib(m.rest_gib)}: activations, CUDA graphs [{m.how['rest_gib']}]",
        f"a token     {m.kv_bytes / 1024:.0f} KiB on each GPU [{m.how['kv_bytes']}]"
        if math.isfinite(m.kv_bytes)
        else "a token     unknown",
        f"wanted      {gib(found.needed_gib)} of KV",
        "",
        f"{'option':<32}{'contexts':>9}  {'fits':<8}flags",
    ]
    for o in found.options:
        held = f"{o.contexts:,.1f}" if math.isfinite(o.contexts) else "unknown"
        fits = "unknown" if o.fits is None else "yes" if o.fits else "no"
        lines.append(f"{o.name:<32}{held:>9}  {fits:<8}{' '.join(o.flags)}")
        lines += [f"{'':<32}{'':>9}  - {c}" for c in o.conditions]
    return "\n".join([*lines, "", *(f"- {c}" for c in found.conditions)])


# -- experiments ----------------------------------------------------------------------------------------------------------------
def judgement(found: Judged) -> dict[str, Any]:
    """A judged experiment as plain values, seconds saved."""
    promised = found.hypothesis.effect if found.hypothesis else {}
    return {
        "hypothesis": found.name,
        "targets": {name: _judged(one, promised.get(name)) for name, one in found.experiment.targets.items()},
        "configuration": list(found.experiment.configuration),
        "conditions": list(found.conditions),
    }


def _judged(found: Judgement, promised: Effect | None) -> dict[str, Any]:
    return {
        "verdict": found.verdict,
        "effect_s": _number(found.effect_s),
        "range_s": _pair(found.range_s),
        "predicted_s": _number(promised.saves_s) if promised else None,
        "why": found.why,
    }


def judgement_text(document: Mapping[str, Any]) -> str:
    """A judgement (its plain values) for a terminal."""
    lines = [f"{name.upper():<5} {one['verdict']:<13} {one['why']}" for name, one in document["targets"].items()]
    for title, key in (("Configuration", "configuration"), ("Conditions", "conditions")):
        if document[key]:
            lines += ["", f"{title}:", *(f"  - {text}" for text in document[key])]
    return "\n".join(lines)


def experiment(row: Row) -> dict[str, Any]:
    """A stored experiment as plain values."""
    return {
        "experiment": row.number,
        "hypothesis": row.hypothesis,
        "change": row.prediction["change"],
        "started": stamp(row.started_ts),
        "before": row.before,
        "prediction": dict(row.prediction),
        "after": row.after,
        "judged": stamp(row.judged_ts),
        "judgement": None if row.judgement is None else dict(row.judgement),
    }


def experiments_text(rows: Sequence[Row]) -> str:
    """The history for a terminal, the newest first."""
    lines = []
    for row in rows:
        verdicts = "waits for the recording after: weaklink experiment attach"
        if row.judgement is not None:
            verdicts = ", ".join(f"{name.upper()} {one['verdict']}" for name, one in row.judgement["targets"].items())
        lines += [
            f"{row.number:>3}  {stamp(row.started_ts)}  {row.hypothesis}: {row.prediction['change']}",
            f"     {row.before} -> {row.after or '...'}: {verdicts}",
        ]
    return "\n".join(lines) or "No experiment yet: weaklink experiment start BEFORE --hypothesis NAME."
