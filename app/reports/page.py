"""What the page and document reports share: the incident's document turned into sections of words, numbers and charts."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from analyzers.links import CHAIN, by_name, tries
from app.reports import svg
from app.reports.charts import charts, of_evidence
from app.reports.words import NAMES, amount, counted, least, number

TITLES: Final[Mapping[str, str]] = {module.LINK.name: module.LINK.title for module in CHAIN}
MARKS: Final = {"limiting": "●", "contributing": "◐", "ok": "○", "unknown": "?"}
ALONE: Final = "Several servers of one chain (prefill, decode): each is judged alone."


def sections(document: Mapping[str, Any]) -> dict[str, Any]:
    """Everything a template needs, in words: no arithmetic is left to it."""
    shown = _judged(document)
    return {
        "title": document.get("title") or _title(shown),
        "summary": _title(shown),
        "headlines": [where + headline(name, t) for where, name, t in shown],
        "alone": ALONE if shown and shown[0][0] else "",
        "targets": [_target(where, name, t) for where, name, t in shown],
        "engines": [_engine(e) for e in document["engines"]] if len(document["engines"]) > 1 else [],
        "impact": [impact(one) for one in document.get("impact", [])],
        "charts": charts(document),
        "evidence": [_evidence(one) for one in document.get("evidence", [])],
        "document": document,
        "window": f"{when(document['window']['start'])} to {when(document['window']['end'])}{_length(document['window'])}",
        "tries": [
            (TITLES[name], tries(by_name(name), versions_of(document["source"]["vllm_version"]))) for name in dict.fromkeys(t["limiting"] for _, _, t in shown if t["limiting"])
        ],
        "requests": f"{counted(document['requests']['finished'], 'request')} finished, {_aborted(document)}",
        "level": document["source"]["level"],
        "vllm": _vllm(document["source"]["vllm_version"]),
        "restarts": counted(document["source"]["restarts"], "restart"),
        "hypotheses": [_hypothesis(h) for h in document.get("hypotheses", [])],
        "segments": [s for e in document["engines"] for s in e["segments"]],
        "what_ifs": [w for e in document["engines"] for w in _what_ifs(e)],
        "coverage": [covered(one) for one in document.get("coverage", [])],
        "versions": ", ".join(f"{name} {value}" for name, value in document.get("versions", {}).items()),
        "replaced": replaced(document),
    }


def _judged(document: Mapping[str, Any]) -> list[tuple[str, str, Mapping[str, Any]]]:
    """(where, target, judgement) of the fleet; of each server where they are judged alone."""
    fleet = [("", name, t) for name, t in document["targets"].items() if t]
    if fleet or not document["targets"]:
        return fleet
    return [(f"{e['instance']}/{e['engine']}: ", name, t) for e in document["engines"] for name, t in e["targets"].items()]


def _vllm(said: Any) -> str:
    return ", ".join(versions_of(said)) or "version unknown"


def versions_of(said: Any) -> list[str]:
    """The versions of a document, which has one as a text."""
    return said if isinstance(said, list) else [said] if said else []


def _aborted(document: Mapping[str, Any]) -> str:
    count = document["requests"]["aborted"]
    return "aborted unknown" if count is None else f"{count:,} aborted"


def _title(shown: Sequence[tuple[str, str, Mapping[str, Any]]]) -> str:
    """The summary sentence: the limited target, else what cannot be told, else that nothing limits."""
    for verdict in ("limited", "undetermined"):
        for where, name, t in shown:
            if t["verdict"] == verdict:
                return where + headline(name, t)
    return "Nothing was found to limit" if shown else "Nothing was observed"


def headline(name: str, t: Mapping[str, Any]) -> str:
    """A target's verdict as a sentence."""
    mean = "" if t["measured_s"] is None else f" (mean {amount(t['measured_s'], name)})"
    if t["verdict"] == "limited":
        part = next(p for p in t["parts"] if p["link"] == t["limiting"])
        if part["seconds"] is None:
            return f"{TITLES[part['link']]} limits {NAMES[name]}: {'; '.join(part['evidence'])}"
        cause = by_name(part["link"]).LINK.cause
        same = [p["seconds"] for p in t["parts"] if cause and p["seconds"] and by_name(p["link"]).LINK.cause == cause]
        label, seconds = (cause, sum(same)) if len(same) > 1 else (TITLES[part["link"]], part["seconds"])
        return f"{label} limits {NAMES[name]}: {amount(seconds, name)} of the mean {amount(t['measured_s'], name)}"
    if t["verdict"] == "healthy":
        return f"Nothing limits {NAMES[name]} beyond load{mean}"
    why = t["cannot_determine"][0]["what"] if t["cannot_determine"] else "see below"
    return f"Cannot tell what limits {NAMES[name]}{mean}: {why}"


def impact(one: Mapping[str, Any]) -> str:
    """What an objective lost, as a sentence."""
    if one["missing"]:
        return f"{one['objective']}: cannot be told: {one['missing']}"
    what = "token gaps" if one["kind"] == "itl" else "scrapes" if one["kind"] == "availability" else "requests"
    sure = one["bad_most"] - one["bad_least"] <= 0.5
    span = "" if sure else f" (between {number(one['bad_least'])} and {number(one['bad_most'])}: interpolated in a bucket)"
    share = f"{100 * one['bad'] / one['total']:.3g} %"
    good = f"{100 * one['good_ratio']:.6g} %" + (" (assumed)" if one["good_ratio_assumed"] else "")
    said = f"{one['objective']}: {number(one['bad'])} of {number(one['total'])} {what} missed it ({share}){span}"
    said += f", in {one['bad_minutes']} of {one['minutes']} minutes more than an objective of {good} allows"
    if one["budget_spent_ratio"] is not None:
        said += f"; {one['budget_spent_ratio']:.3g} times the error budget of the window"
    return "; ".join([f"{said}. Counted from {one['source']}", *one["notes"]])


def _target(where: str, name: str, t: Mapping[str, Any]) -> dict[str, Any]:
    parts = [_part(name, p, t["measured_s"]) for p in t["parts"] if p["used"] or p["seconds"]]
    return {
        "name": where.removesuffix(": ") + (" · " if where else "") + NAMES[name],
        "headline": headline(name, t),
        "measured": amount(t["measured_s"], name),
        "sum": "no request seconds at this level"
        if t["measured_s"] is None
        else f"{amount(t['measured_s'], name)} = floor {least(t['floor_s'], name, t.get('floor_whole', True))} + links {amount(sum(p['seconds'] or 0 for p in t['parts']), name)} + unexplained {amount(t['unexplained_s'], name)}",
        "stages": [(stage, amount(seconds, name)) for stage, seconds in t["stages"].items()],
        "chain": svg.chain(t, TITLES, lambda seconds: amount(seconds, name)),
        "ledger": svg.ledger(t, TITLES, lambda seconds: amount(seconds, name)),
        "parts": parts,
        "ruled_out": [
            (TITLES[p["link"]], p["fact"] or "; ".join(p["conditions"])) for p in t["parts"] if not p["used"] and p["status"] != "unknown"
        ],
        "unknown": [
            (TITLES[p["link"]], "; ".join(p["conditions"]) or p["fact"]) for p in t["parts"] if not p["used"] and p["status"] == "unknown"
        ],
        "refusals": t["cannot_determine"],
        "conditions": t["conditions"],
    }  # fmt: skip


def _part(name: str, p: Mapping[str, Any], measured: float | None) -> dict[str, Any]:
    span = p["range_s"]
    return {
        "mark": MARKS[p["status"]],
        "status": p["status"],
        "title": TITLES[p["link"]],
        "seconds": amount(p["seconds"], name),
        "share": f"{100 * p['seconds'] / measured:.0f} %" if p["seconds"] is not None and measured else "",
        "range": f"{amount(span[0], name)} to {amount(span[1], name)}" if span and p["seconds"] else "",
        "saves": amount(p["saves_s"], name) if p["saves_s"] and p["seconds"] else "",
        "says": "; ".join(p["evidence"])
        if p["status"] in {"limiting", "contributing"}
        else p["fact"] or "; ".join(p["conditions"]),
    }


def _engine(e: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": f"{e['instance']}/{e['engine']}",
        "role": e["role"],
        "requests": e["requests"],
        "targets": [
            (NAMES[name], amount(t["measured_s"], name), TITLES.get(t["limiting"] or "", "")) for name, t in e["targets"].items()
        ],
    }


def _evidence(one: Mapping[str, Any]) -> dict[str, Any]:
    given = ", ".join(f"${name} = {value}" for name, value in one["parameters"].items())
    drawn = of_evidence(one)
    return {
        "title": f"{TITLES[one['link']]} on {one['instance'] or 'the server'}/{one['engine']}",
        "charts": drawn,
        "query": one["query"],
        "parameters": given,
        "rows": f"{one['rows']:,} rows" + ("" if drawn else ": nothing to draw"),
        "lines": [(f"{line['file']}:{line['line']}", line["ts"] or "no time", line["what"]) for line in one["lines"]],
    }


def _hypothesis(h: Mapping[str, Any]) -> dict[str, Any]:
    effects = []
    for name, e in h["effect"].items():
        span = f" ({amount(e['range_s'][0], name)} to {amount(e['range_s'][1], name)})" if e["range_s"] else ""
        effects.append(
            f"{NAMES[name]}: "
            + ("cannot be predicted from this data" if e["saves_s"] is None else f"saves {amount(e['saves_s'], name)}{span}")
        )
    return {**h, "effects": effects}


def _what_ifs(e: Mapping[str, Any]) -> list[str]:
    found = e["what_if"]
    if not found:
        return []
    gate = ", ".join(f"{name} {value:.2f}" for name, value in found["gate"].items() if value is not None)
    if not found["holds"]:
        return [f"{e['instance']}/{e['engine']}: the twin is outside its gate (twin / measured: {gate}); no what-ifs"]
    said = [f"{e['instance']}/{e['engine']}: twin / measured {gate}"]
    said.append(
        "all faults fixed together, load (prefill backlog, decode batch) left as it is, would save "
        + ", ".join(f"{amount(s, name)} of {NAMES[name]}" for name, s in found["joint_s"].items())
    )
    if found["without_long_prompts_s"]:
        said.append(
            "without the prompts above 6 times the median the other requests would save "
            + ", ".join(f"{amount(s, name)} of {NAMES[name]}" for name, s in found["without_long_prompts_s"].items())
        )
    return said


def covered(one: Mapping[str, Any]) -> str:
    """How much of the window a server was seen, as a sentence."""
    name = one["instance"] or "the server"
    if one["first"] is None:
        return f"{name}: {counted(one['scrapes'], 'scrape')} without a time"
    gap = ""
    if one["longest_gap_s"] is not None:
        gap = f"; the longest time without a scrape {one['longest_gap_s']:.3g} s, from {when(one['longest_gap_from'])}"
    return (
        f"{name}: {counted(one['scrapes'], 'scrape')}, {one['failed']} failed, {when(one['first'])} to {when(one['last'])}{gap}"
    )


def replaced(document: Mapping[str, Any]) -> list[str]:
    """What was replaced, by kind."""
    found = document.get("replaced") or {}
    return [f"{count} {kind}" for kind, count in found.items()]


def when(text: str | None) -> str:
    """A stamp as a reader says it."""
    return "no clock" if not text else datetime.fromisoformat(text).strftime("%Y-%m-%d %H:%M:%S UTC")


def _length(window: Mapping[str, Any]) -> str:
    if not (window["start"] and window["end"]):
        return ""
    seconds = (datetime.fromisoformat(window["end"]) - datetime.fromisoformat(window["start"])).total_seconds()
    return f" ({seconds:,.0f} s)" if seconds < 7200 else f" ({seconds / 3600:.1f} h)"
