"""Text: one screen for the terminal. The verdict first, with its number; then the chain, what is ruled out, what cannot be told."""

from collections.abc import Sequence
from typing import Final

from analyzers.links import CHAIN, by_name, tries
from analyzers.model import Attribution, Incident, Level, Part, Refusal, Target
from app.reports.words import NAMES, amount, digits, least, stamp

SUFFIX: Final = ".txt"
MEDIA_TYPE: Final = "text/plain"

MARKS: Final = {"limiting": "●", "contributing": "◐", "ok": "○", "unknown": "?"}
_FROM: Final = {
    Level.STATE: "gauges and rates only",
    Level.METRICS: "metrics",
    Level.LOGS: "metrics and logs",
    Level.REQUESTS: "metrics and request records",
    Level.HASHES: "metrics and block identities",
}


QUIET: Final = ("not recognised", "empty", "already loaded", "has no time; timed")  # nothing is lost by these


def render(incident: Incident, target: str | None = None) -> str:
    """The incident on one screen; `target` (ttft, tpot, e2e) chooses what is shown in detail."""
    a = incident.attribution
    lines: list[str] = []
    if a.targets and all(t is None for t in a.targets.values()):
        lines += ["Several servers of one chain (prefill, decode): each is judged alone.", ""]
        for engine in a.engines:
            lines += [f"{engine.instance} engine {engine.engine} ({engine.role})", *_body(dict(engine.targets), target, a), ""]
    else:
        lines += _body({name: t for name, t in a.targets.items() if t}, target, a)
        if len(a.engines) > 1:
            lines += ["", *_fleet(a)]
    lines += ["", *_origin(incident)]
    return "\n".join(line.rstrip() for line in lines).strip() + "\n"


def chosen(targets: dict[str, Target], asked: str | None) -> str:
    """The target to show: the one asked for, else the limited one with the largest share, else E2E."""
    if asked:
        return asked
    limited = [name for name, t in targets.items() if t.verdict == "limited"]

    def share(name: str) -> float:
        t = targets[name]
        return (t.part(t.limiting).seconds or 0.0) / t.measured_s if t.limiting and t.measured_s else 0.0

    if limited:
        return max(limited, key=share)
    return next((name for name in ("e2e", "ttft", "tpot") if name in targets and targets[name].verdict == "undetermined"), "e2e")


def headline(t: Target) -> str:
    """The verdict as a sentence, its number first."""
    name = NAMES[t.name]
    if t.verdict == "limited" and t.limiting:
        part, title = t.part(t.limiting), by_name(t.limiting).LINK.title
        if part.seconds is None or t.measured_s is None:
            return f"{title} limits {name}: {part.evidence[0] if part.evidence else 'seconds unknown at this level'}."
        rows = cause_parts(t, t.limiting)
        whole = sum(p.seconds or 0.0 for p in rows)
        label = (
            f"{by_name(t.limiting).LINK.cause} ({' and '.join(by_name(p.link).LINK.title.lower() if p.link != 'frontend' else 'front end' for p in rows)})"
            if len(rows) > 1
            else title
        )
        return f"{label} limits {name}: {amount(whole, t.name)} of the mean {amount(t.measured_s, t.name)}."
    if t.verdict == "healthy":
        if t.measured_s is None:
            return f"Nothing waits ({name}: no request seconds at this level)."
        load = (
            f"; the largest load is {by_name(t.load).LINK.title.lower()}, {amount(t.part(t.load).seconds, t.name)}"
            if t.load
            else ""
        )
        return f"Nothing limits {name} beyond load: mean {amount(t.measured_s, t.name)}{load}."
    why = t.cannot_determine[0] if t.cannot_determine else Refusal("the limiting link", "see below")
    mean = f" (mean {amount(t.measured_s, t.name)})" if t.measured_s is not None else ""
    return f"Cannot tell what limits {name}{mean}: {why.what}. Measure: {why.measure}."


def cause_parts(t: Target, link: str) -> list[Part]:
    """The parts of the cause a link belongs to that hold seconds (front end and output are one cause)."""
    cause = by_name(link).LINK.cause
    parts = [p for p in t.parts if p.seconds and (p.link == link or (cause and by_name(p.link).LINK.cause == cause))]
    return parts or [t.part(link)]


def _body(targets: dict[str, Target], asked: str | None, a: Attribution) -> list[str]:
    if not targets:
        return ["Nothing was observed."]
    name = chosen(targets, asked)
    t = targets[name]
    lines = [headline(t)]
    second = t.part(t.runner_up) if t.runner_up and t.verdict == "limited" else None
    if second is not None and second.seconds and t.limiting and (t.part(t.limiting).seconds or 0.0) * 0.85 <= second.seconds:
        lines.append(f"Close behind: {by_name(second.link).LINK.title} with {amount(second.seconds, name)}.")
    elif second is not None:
        lines.append(f"Runner-up: {by_name(second.link).LINK.title}, {amount(second.seconds, name)}.")
    others = [other for key, other in targets.items() if key != name]
    others.sort(key=lambda other: not _same(other, t))  # "the same" must follow what it repeats
    lines += [_brief(other, t) for other in others]
    lines += ["", *_chain(t), *_lists(t, a)]
    return lines


def _brief(other: Target, t: Target) -> str:
    """Another target's verdict; where it says the same without seconds, only that."""
    return f"The same holds for {NAMES[other.name]}." if _same(other, t) else headline(other)


def _same(other: Target, t: Target) -> bool:
    return other.measured_s is None and t.measured_s is None and other.verdict == t.verdict and other.limiting == t.limiting


def _chain(t: Target) -> list[str]:
    if t.measured_s is None:
        known = ", ".join(f"{stage} {amount(seconds, t.name)}" for stage, seconds in t.stages.items() if seconds is not None)
        return [f"measured stages: {known}", ""][: 2 * bool(known)] + [
            f"  {MARKS[p.status]} {by_name(p.link).LINK.title}: {'; '.join(p.evidence)}" for p in t.parts if p.evidence
        ]
    explained = sum(p.seconds or 0.0 for p in t.parts)
    stages = ", ".join(f"{stage} {amount(seconds, t.name)}" for stage, seconds in t.stages.items())
    lines = [
        f"{NAMES[t.name]} {amount(t.measured_s, t.name)} = floor {least(t.floor_s, t.name, t.floor_whole)} + links {amount(explained, t.name)} + unexplained {amount(t.unexplained_s, t.name)}",
        f"measured stages: {stages}",
        "",
        f"  {'':2}{'link':<17}{'seconds':>10}{'range':>18}{'share':>7}{'saves':>10}   what shows it",
    ]
    for module in CHAIN:
        part = t.part(module.LINK.name)
        if not part.used and not part.seconds:
            continue
        share = f"{100 * part.seconds / t.measured_s:.0f} %" if part.seconds is not None and t.measured_s else ""
        gain = amount(part.saves_s, t.name) if part.saves_s and part.seconds else "-"
        said = _short(part)
        lines.append(
            f"  {MARKS[part.status]} {module.LINK.title:<17}{amount(part.seconds, t.name):>10}{_span(part, t.name):>18}{share:>7}{gain:>10}   {said}"
        )
    return lines


def _span(part: Part, name: str) -> str:
    if part.range_s is None or not part.seconds:
        return ""
    unit, word = (1000, "ms") if name == "tpot" or abs(part.seconds) < 0.1 else (1, "s")  # as `amount` writes the seconds before it
    return f"{digits(unit * part.range_s[0])} - {digits(unit * part.range_s[1])} {word}"


def _short(part: Part) -> str:
    said = (
        part.evidence[0]
        if part.evidence and part.status in {"limiting", "contributing"}
        else part.fact or (part.conditions[0] if part.conditions else "")
    )
    return said if len(said) <= 100 else said[:97] + "..."


def _lists(t: Target, a: Attribution) -> list[str]:
    lines: list[str] = []
    out = [
        f"{by_name(p.link).LINK.title.lower()} ({p.fact or '; '.join(p.conditions)})"
        for p in t.parts
        if not p.used and p.status != "unknown"
    ]
    if out:
        lines += ["", "Ruled out: " + "; ".join(out)]
    off = [
        f"{by_name(p.link).LINK.title.lower()} ({'; '.join(p.conditions)})"
        for p in t.parts
        if not p.used and p.status == "unknown"
    ]
    if off and t.measured_s is not None:
        lines += ["", "Not known, and not in the verdict: " + "; ".join(off)]
    if t.cannot_determine:
        lines += ["", "Cannot determine:"] + [f"  ? {r.what}. Measure: {r.measure}" for r in t.cannot_determine]
    said = [*t.conditions, *(t.part(t.limiting).conditions if t.limiting else ()), *a.notes]
    if said:
        lines += ["", "Conditions:"] + [f"  - {c}" for c in dict.fromkeys(said)]
    lines += _what_ifs(t, a)
    if t.limiting:
        lines += ["", "What to try (and what it costs next door):"] + [
            f"  - {change}" + (f": {cost}" if cost else "") for change, cost in tries(by_name(t.limiting), a.versions)
        ]
    return lines


def _what_ifs(t: Target, a: Attribution) -> list[str]:
    """What the twin says of joint fixes and of the load without its long prompts, engine by engine."""
    lines = []
    for e in a.engines:
        found = e.what_if
        if found is None:
            continue
        where = f" (engine {e.engine})" if len(a.engines) > 1 else ""
        gate = ", ".join(f"{name} {value:.2f}" for name, value in found.gate.items())
        lines.append(
            f"  - twin{where}: twin / measured {gate}" + ("" if found.holds_of[t.name] else ": outside 0.8-1.25, the books speak alone")
        )
        if found.holds_of[t.name]:
            lines.append(f"  - all faults fixed together, load (prefill backlog, decode batch) left as it is, would save {amount(found.joint[t.name], t.name)} of {NAMES[t.name]}")
            if found.without_long:
                lines.append(
                    f"  - without the prompts above 6 times the median the others would save {amount(found.without_long[t.name], t.name)}"
                )
            if found.without_long_joint and found.without_long:
                lines.append(f"  - both together: {amount(found.without_long_joint[t.name], t.name)}")
            for name, shares in (found.met or {}).items():
                fixed = ", ".join(
                    f"{by_name(link).LINK.title.lower()} fixed {100 * share:.0f} %"
                    for link, share in shares.items()
                    if link not in {"now", "all faults"}
                )
                lines.append(
                    f"  - {100 * shares['now']:.0f} % of the requests met the SLO of {NAMES[name]}; with {fixed}; all faults fixed {100 * shares['all faults']:.0f} %"
                )
    return ["", "What if:", *lines] if lines else []


def _fleet(a: Attribution) -> list[str]:
    several = len({e.instance for e in a.engines}) > 1
    lines = ["Engines:"]
    for e in a.engines:
        cells = []
        for name, t in e.targets.items():
            cells.append(
                f"{NAMES[name]} {amount(t.measured_s, name)}" + (f" ({by_name(t.limiting).LINK.title})" if t.limiting else "")
            )
        lines.append(f"  {e.instance + '/' if several else ''}{e.engine:<4} {e.requests:>6} requests  " + "  ".join(cells))
    return lines


def _origin(incident: Incident) -> list[str]:
    a = incident.attribution
    span = (
        f"{stamp(a.start)} to {stamp(a.end)} ({a.end - a.start:.0f} s)"
        if a.start is not None and a.end is not None
        else "no clock in the recording"
    )
    aborted = "aborted unknown" if a.aborted is None else f"{a.aborted} aborted"
    said = (
        f"{a.finished} requests finished, {aborted}; judged from {_FROM[a.level]}; vLLM {', '.join(a.versions) or 'version unknown'}; "
        f"{a.restarts} restart{'' if a.restarts == 1 else 's'}; {span}"
    )
    lost = _lost(incident.files)
    return [said] + ([f"Not used or not fully read: {lost}"] if lost else [])


def _lost(files: Sequence[object]) -> str:
    said = []
    for file in files:
        assert isinstance(file, dict)
        if file.get("rejected"):
            said.append(
                f"{file['name']}: {file['rejected']} of {file['lines']} lines rejected"
                + (f" (first: {file['reasons'][0]})" if file.get("reasons") else "")
            )
        if file.get("message") and not str(file["message"]).startswith(QUIET):
            said.append(f"{file['name']}: {file['message']}")
    return "; ".join(said)
