"""The answer in words: one sentence as the headline, one paragraph of what it is a part of and what it was judged from."""

import re
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Final

from analyzers.links import CHAIN
from analyzers.model import Attribution, EngineResult, Level, Part, Refusal, Target
from app.ui.markup import Html, bold, div, esc, join, link, tag
from app.ui.words import LABELS, TITLES, count, first_sentence, flagged, in_unit, listed, plural, spread, titled, unit, value

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
WORTH: Final = 0.01  # share of a target from which a saving is worth a word


def answer(attribution: Attribution, name: str, began: Html | None = None) -> Html:
    """Headline and paragraph."""
    target = attribution.targets[name]
    if target is None:
        head: object = _nothing(attribution, name)
        lines = [JOIN if is_pair(attribution) else "", basis(attribution)]
    else:
        head = headline(target)
        more = link("#try", "What to try") if target.limiting else None
        lines = [join([paragraph(attribution.targets, target), more], " "), join([began, basis(attribution)], " ")]
    return div(
        "wl-answer", tag("h1", head), *(tag("p", line) for line in lines if line),
        data_verdict=target.verdict if target else "none", data_limiting=(target.limiting or "") if target else "",
    )  # fmt: skip


def server(result: EngineResult, name: str) -> Html:
    """Headline and paragraph of one server of a chain of several."""
    target = result.targets[name]
    where = f"{result.role.capitalize()} server {result.instance}, {plural(result.requests, 'request')} finished."
    return div("wl-answer second", tag("h2", headline(target)), tag("p", where, " ", paragraph(result.targets, target)))


def is_pair(attribution: Attribution) -> bool:
    """True where prefill and decode are servers of their own."""
    return {"prefill", "decode"} <= {one.role for one in attribution.engines}


def _nothing(attribution: Attribution, name: str) -> str:
    if is_pair(attribution):
        return "Prefill and decode are two servers: each is judged alone."
    return f"Nothing was observed that {LABELS[name]} could be judged from."


def headline(target: Target) -> Html:
    """The sentence a person would say, with its number."""
    name, label = target.name, LABELS[target.name]
    mean = f"mean {value(name, target.measured_s)}{_per(name)}"
    if target.verdict == "limited" and target.limiting:
        part, title = target.part(target.limiting), tag("em", TITLES[target.limiting])
        measured = part.seconds is not None and target.measured_s is not None
        how = f": {value(name, part.seconds)} of the {mean}." if measured else "; no request seconds say by how much."
        return join([title, f" {_limits(TITLES[part.link])} {label}{how}"])
    if target.verdict == "healthy":
        if target.measured_s is None:
            return esc(f"Nothing limits {label}, as far as the state shows.")
        more = ", most of it unexplained" if _mostly_unexplained(target) else ""
        return esc(f"Nothing limits {label} beyond load: {mean}{more}.")
    if target.measured_s is None:
        return esc(f"Cannot tell what limits {label}: no request seconds.")
    most = max((part for part in target.parts if part.bound_s), key=lambda part: part.bound_s or 0.0, default=None)
    what = f": {TITLES[most.link]} may hold up to {value(name, most.bound_s)} of it" if most else ""
    return esc(f"Cannot tell what limits {label} ({mean}){what}.")


def _limits(title: str) -> str:
    """The verb after a title: "Slots limit", "Prefix miss limits"."""
    return "limit" if title.endswith("s") and not title.endswith("ss") else "limits"


def _per(name: str) -> str:
    return " a token" if name == "tpot" else ""


def _mostly_unexplained(target: Target) -> bool:
    return (target.unexplained_s or 0.0) > MOSTLY * (target.measured_s or 0.0)


def paragraph(targets: Mapping[str, Target | None], target: Target) -> Html:
    """What the headline rests on, in a few sentences."""
    if target.verdict == "limited" and target.limiting:
        said = _limited(targets, target, target.part(target.limiting))
    elif target.verdict == "healthy":
        said = _healthy(target)
    else:
        said = _undetermined(target)
    return join(said, " ")


def _limited(targets: Mapping[str, Target | None], target: Target, part: Part) -> list[Html]:
    said = [_sentence(first_sentence(MODULES[part.link].__doc__))]
    if part.seconds is None:
        return [*said, *(_sentence(line) for line in part.evidence[:1]), *_settle(target, 1)]
    if part.range_s:
        said.append(esc(f"Range {spread(target.name, *part.range_s)}."))
    saved = _saved(targets, target.name, part.link)
    if saved:
        said.append(join(["Fixing it first would save ", listed(saved), "."]))
    if target.runner_up:
        runner = target.part(target.runner_up)
        said.append(join(["Runner-up: ", bold(TITLES[runner.link]), f", {value(target.name, runner.seconds)}."]))
    return said + [_sentence(line) for line in target.conditions if line.startswith("limited on")]


def _saved(targets: Mapping[str, Target | None], first: str, name: str) -> list[Html]:
    """What fixing a link would save of the chosen target, of TTFT and of E2E, where it is worth a word."""
    found = []
    for one in dict.fromkeys((first, "ttft", "e2e")):
        target = targets[one]
        saving = target.part(name).saves_s if target else None
        if target and saving and target.measured_s and saving > WORTH * target.measured_s:
            found.append(join([bold(f"{value(one, saving)} of {LABELS[one]}"), _per(one)]))
    return found


def _healthy(target: Target) -> list[Html]:
    if target.measured_s is None:
        return [_sentence(line) for line in target.conditions[:2]]
    said = []
    if target.load:
        part = target.part(target.load)
        said.append(join(["Largest load: ", bold(TITLES[part.link]), f", {value(target.name, part.seconds)}."]))
        said.append(esc(f"{first_sentence(MODULES[part.link].__doc__)}; present in every server under use."))
    return said + (_settle(target, 1) if _mostly_unexplained(target) else [])


def _undetermined(target: Target) -> list[Html]:
    said = []
    if target.runner_up:
        part = target.part(target.runner_up)
        said.append(join(["Largest fault seen: ", bold(TITLES[part.link]), f", {value(target.name, part.seconds)}."]))
    if target.measured_s is None:
        said += [_sentence(line) for line in target.conditions[:1]]
    return said + _settle(target, 2)


def _settle(target: Target, most: int) -> list[Html]:
    """The first refusals, each with what would settle it."""
    return [_refused(one) for one in target.cannot_determine[:most]]


def _refused(one: Refusal) -> Html:
    return join([f"Cannot be told: {titled(one.what)}. To settle it: ", bold(flagged(one.measure)), "."])


def _sentence(text: str) -> Html:
    shown = titled(text).strip()
    return esc(f"{shown[:1].upper()}{shown[1:]}{'' if shown.endswith('.') else '.'}")


def basis(attribution: Attribution) -> Html:
    """Requests, what was judged from, versions, restarts."""
    if is_pair(attribution):
        served = {
            role: [one.requests for one in attribution.engines if one.role == role] for role in ("prefill", "decode", "both")
        }
        finished = listed(f"{count(sum(n))} on {_SERVERS[role]}" for role, n in served.items() if n)
        said = [f"Requests finished: {finished}"]
    elif attribution.level is Level.STATE and not attribution.finished:
        said = ["No finished request was measured"]
    else:
        aborted = "none aborted" if attribution.aborted == 0 else f"aborted {count(attribution.aborted)}"
        said = [f"{plural(attribution.finished, 'request')} finished, {aborted}"]
    said.append(f"judged from {JUDGED_FROM[attribution.level]}")
    said.append(f"vLLM {', '.join(attribution.versions)}" if attribution.versions else "vLLM version unknown")
    if attribution.restarts:
        said.append(f"{plural(attribution.restarts, 'restart')} inside the window")
    return esc("; ".join(said) + ".")


def first_measure(target: Target) -> list[Html]:
    """What to measure before anything is changed."""
    return list(dict.fromkeys(flagged(one.measure) for one in target.cannot_determine))


def notes(attribution: Attribution, target: Target) -> list[Html]:
    """Conditions and refusals of a target: a claim carries its conditions."""
    found = _settle(target, len(target.cannot_determine))
    found += [_sentence(line) for line in target.conditions]
    if target.limiting:
        found += [_sentence(f"{TITLES[target.limiting]}: {line}") for line in target.part(target.limiting).conditions]
    found += [_sentence(line) for line in attribution.notes]
    return together(found)


def together(found: Iterable[Html]) -> list[Html]:
    """Lines that differ in their numbers only are one line each: the first, and how many are like it."""
    alike: dict[str, list[Html]] = {}
    for line in dict.fromkeys(found):
        alike.setdefault(re.sub(r"[\d.,]+", "#", line), []).append(line)
    return [
        join([lines[0], tag("span", f" ({len(lines) - 1} more alike, of other engines)") if len(lines) > 1 else None])
        for lines in alike.values()
    ]


def engine_rows(attribution: Attribution, name: str, models: Mapping[str, str]) -> list[dict[str, object]]:
    """The fleet table: each engine with its requests, measured value (in the target's unit) and what limits it."""
    mixed, levels = is_pair(attribution), {one.level for one in attribution.engines}
    rows: list[dict[str, object]] = []
    for one in attribution.engines:
        target = one.targets[name]
        row: dict[str, object] = (
            {"model": models.get(f"{one.instance}/{one.engine}", "")} if len(set(models.values())) > 1 else {}
        )
        row |= {"engine": f"{one.instance}/{one.engine}" if one.instance else one.engine}
        row |= {"role": one.role} if mixed else {}
        row |= {"requests": one.requests, f"mean {LABELS[name]}, {unit(name)}": _shown(name, target.measured_s)}
        row["limiting"] = TITLES[target.limiting] if target.limiting else _OTHERWISE.get(target.verdict, "")
        row[f"of it, {unit(name)}"] = _shown(name, target.part(target.limiting).seconds if target.limiting else None)
        row |= {"judged from": JUDGED_FROM[one.level]} if len(levels) > 1 else {}
        rows.append(row)
    return rows


_SERVERS: Final = {"prefill": "prefill servers", "decode": "decode servers", "both": "others"}
_OTHERWISE: Final = {"healthy": "nothing", "undetermined": "cannot tell"}


def _shown(name: str, seconds: float | None) -> float | None:
    return None if seconds is None else in_unit(name, seconds)
