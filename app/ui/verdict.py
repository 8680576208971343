"""The answer in words: one sentence as the headline, one paragraph of what it is a part of and what it was judged from."""

from collections.abc import Mapping
from types import ModuleType
from typing import Final

from analyzers.links import CHAIN
from analyzers.model import Attribution, EngineResult, Level, Part, Target
from app.ui.words import flagged, in_unit, LABELS, TITLES, bounds, count, esc, first_sentence, listed, plural, titled, unit, value

MODULES: Final[Mapping[str, ModuleType]] = {module.LINK.name: module for module in CHAIN}
JUDGED_FROM: Final[Mapping[Level, str]] = {
    Level.STATE: "the state alone: gauges and stats lines",
    Level.METRICS: "metrics",
    Level.LOGS: "metrics and log lines",
    Level.REQUESTS: "metrics and request records",
    Level.HASHES: "metrics, request records and KV events",
}
JOIN: Final = "Their seconds are not joined into one chain yet. A request passes the prefill server, the transfer and the decode server in turn."
MOSTLY: Final = 0.5  # unexplained share of the measured value from which the headline says so


def answer(attribution: Attribution, name: str) -> str:
    """Headline and paragraph, as HTML."""
    target = attribution.targets[name]
    if target is None:
        found = f"<h1>{_nothing(attribution, name)}</h1>"
        lines = [JOIN if is_pair(attribution) else "", basis(attribution)]
    else:
        found = f"<h1>{headline(target)}</h1>"
        more = ' <a href="#try">What to try</a>' if target.limiting else ""
        lines = [f"{paragraph(attribution.targets, target)}{more}", basis(attribution)]
    marks = f'data-verdict="{esc(target.verdict if target else "none")}" data-limiting="{esc(target.limiting or "") if target else ""}"'
    return f'<div class="wl-answer" {marks}>{found}{"".join(f"<p>{line}</p>" for line in lines if line)}</div>'


def server(result: EngineResult, name: str) -> str:
    """Headline and paragraph of one server of a chain of several, as HTML."""
    target = result.targets[name]
    where = f"{esc(result.role.capitalize())} server {esc(result.instance)}, {plural(result.requests, 'request')} finished"
    return f'<div class="wl-answer second"><h2>{headline(target)}</h2><p>{where}. {paragraph(result.targets, target)}</p></div>'


def _nothing(attribution: Attribution, name: str) -> str:
    if is_pair(attribution):
        return "Prefill and decode are two servers: each is judged alone."
    return f"Nothing was observed that {LABELS[name]} could be judged from."


def is_pair(attribution: Attribution) -> bool:
    """True where prefill and decode are servers of their own."""
    return {"prefill", "decode"} <= {one.role for one in attribution.engines}


def headline(target: Target) -> str:
    """The sentence a person would say, with its number."""
    name, label = target.name, LABELS[target.name]
    mean = f"mean {value(name, target.measured_s)}{_per(name)}"
    if target.verdict == "limited" and target.limiting:
        part, title = target.part(target.limiting), esc(TITLES[target.limiting])
        if part.seconds is None or target.measured_s is None:
            return f"<em>{title}</em> limits {label}; no request seconds say by how much."
        return f"<em>{title}</em> limits {label}: {value(name, part.seconds)} of the {mean}."
    if target.verdict == "healthy":
        if target.measured_s is None:
            return f"Nothing limits {label}, as far as the state shows."
        unexplained = (target.unexplained_s or 0.0) > MOSTLY * target.measured_s
        return f"Nothing limits {label} beyond load: {mean}{', most of it unexplained' if unexplained else ''}."
    if target.measured_s is None:
        return f"Cannot tell what limits {label}: no request seconds."
    most = _largest_bound(target)
    what = f": {esc(TITLES[most.link])} may hold up to {value(name, most.bound_s)} of it" if most else ""
    return f"Cannot tell what limits {label} ({mean}){what}."


def _per(name: str) -> str:
    return " a token" if name == "tpot" else ""


def _largest_bound(target: Target) -> Part | None:
    bounded = [part for part in target.parts if part.bound_s]
    return max(bounded, key=lambda part: part.bound_s or 0.0, default=None)


def paragraph(targets: Mapping[str, Target | None], target: Target) -> str:
    """What the headline rests on, in a few sentences."""
    if target.verdict == "limited" and target.limiting:
        return " ".join(_limited(targets, target))
    return " ".join(_healthy(target) if target.verdict == "healthy" else _undetermined(target))


def _limited(targets: Mapping[str, Target | None], target: Target) -> list[str]:
    assert target.limiting is not None
    part = target.part(target.limiting)
    said = [f"{esc(first_sentence(MODULES[target.limiting].__doc__))}."]
    if part.seconds is None:
        said += [f"{_sentence(line)}" for line in part.evidence[:1]]
        return said + _settle(target, 1)
    if part.range_s:
        said.append(f"Range {bounds(target.name, *part.range_s)}.")
    saved = []
    for name in dict.fromkeys((target.name, "ttft", "e2e")):
        other = targets[name]
        saving = other.part(target.limiting).saves_s if other else None
        if saving and other and other.measured_s and saving > 0.01 * other.measured_s:
            saved.append(f"<b>{value(name, saving)} of {LABELS[name]}</b>{_per(name)}")
    if saved:
        said.append(f"Fixing it first would save {listed(saved)}.")
    if target.runner_up:
        runner = target.part(target.runner_up)
        said.append(f"Close behind: <b>{esc(TITLES[target.runner_up])}</b>, {value(target.name, runner.seconds)}.")
    said += [_sentence(line) for line in target.conditions if line.startswith("limited on")]
    return said


def _healthy(target: Target) -> list[str]:
    said, name = [], target.name
    if target.measured_s is None:
        return [_sentence(line) for line in target.conditions[:2]]
    if target.load:
        part = target.part(target.load)
        said.append(f"Largest load: <b>{esc(TITLES[target.load])}</b>, {value(name, part.seconds)}. {esc(first_sentence(MODULES[target.load].__doc__))}; present in every server under use.")
    if (target.unexplained_s or 0.0) > MOSTLY * target.measured_s:
        said += _settle(target, 1)
    return said


def _undetermined(target: Target) -> list[str]:
    said, name = [], target.name
    if target.runner_up:
        part = target.part(target.runner_up)
        said.append(f"Largest fault seen: <b>{esc(TITLES[target.runner_up])}</b>, {value(name, part.seconds)}.")
    if target.measured_s is None:
        said += [_sentence(line) for line in target.conditions[:1]]
    return said + _settle(target, 2)


def _settle(target: Target, most: int) -> list[str]:
    """The first refusals, each with what would settle it."""
    return [f"Cannot be told: {esc(titled(one.what))}. To settle it: <b>{flagged(one.measure)}</b>." for one in target.cannot_determine[:most]]


def _sentence(text: str) -> str:
    shown = esc(titled(text)).strip()
    return f"{shown[:1].upper()}{shown[1:]}{'' if shown.endswith('.') else '.'}"


def basis(attribution: Attribution) -> str:
    """Requests, what was judged from, versions, restarts."""
    if is_pair(attribution):
        finished = listed(f"{count(one.requests)} on the {one.role} server" for one in attribution.engines)
        said = [f"Requests finished: {finished}"]
    elif attribution.level is Level.STATE and not attribution.finished:
        said = ["No finished request was measured"]
    else:
        aborted = "none aborted" if attribution.aborted == 0 else f"aborted {count(attribution.aborted)}"
        said = [f"{plural(attribution.finished, 'request')} finished, {aborted}"]
    said.append(f"judged from {JUDGED_FROM[attribution.level]}")
    said.append(f"vLLM {esc(', '.join(attribution.versions))}" if attribution.versions else "vLLM version unknown")
    if attribution.restarts:
        said.append(f"{plural(attribution.restarts, 'restart')} inside the window")
    return "; ".join(said) + "."


def first_measure(target: Target) -> list[str]:
    """What to measure before anything is changed, as HTML."""
    return list(dict.fromkeys(flagged(one.measure) for one in target.cannot_determine))


def notes(attribution: Attribution, target: Target | None) -> list[str]:
    """Conditions and refusals of a target, as HTML list items: a claim carries its conditions."""
    found = [f"Cannot be told: {esc(titled(one.what))}. <b>To settle it:</b> {flagged(one.measure)}." for one in (target.cannot_determine if target else ())]
    found += [_sentence(line) for line in (target.conditions if target else ())]
    if target and target.limiting:
        found += [f"{esc(TITLES[target.limiting])}: {esc(titled(line))}." for line in target.part(target.limiting).conditions]
    found += [_sentence(line) for line in attribution.notes]
    return list(dict.fromkeys(found))


def engine_rows(attribution: Attribution, name: str) -> list[dict[str, object]]:
    """The fleet table: each engine with its requests, measured value (in the target's unit) and what limits it."""
    mixed, levels = is_pair(attribution), {one.level for one in attribution.engines}
    rows: list[dict[str, object]] = []
    for one in attribution.engines:
        target = one.targets[name]
        limiting = TITLES[target.limiting] if target.limiting else {"healthy": "nothing", "undetermined": "cannot tell"}.get(target.verdict, "")
        part = target.part(target.limiting).seconds if target.limiting else None
        row: dict[str, object] = {"engine": f"{one.instance}/{one.engine}" if one.instance else one.engine}
        row |= {"role": one.role} if mixed else {}
        row |= {"requests": one.requests, f"mean {LABELS[name]}, {unit(name)}": _shown(name, target.measured_s), "limiting": limiting}
        row[f"of it, {unit(name)}"] = _shown(name, part)
        row |= {"judged from": JUDGED_FROM[one.level]} if len(levels) > 1 else {}
        rows.append(row)
    return rows


def _shown(name: str, seconds: float | None) -> float | None:
    return None if seconds is None else in_unit(name, seconds)
