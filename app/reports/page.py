"""What the page and document reports share: the incident's document turned into sections of words, numbers and charts."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from analyzers.links import CHAIN, by_name, tries
from app.reports import svg
from app.reports.words import NAMES, amount

TITLES: Final[Mapping[str, str]] = {module.LINK.name: module.LINK.title for module in CHAIN}
MARKS: Final = {"limiting": "●", "contributing": "◐", "ok": "○", "unknown": "?"}
CHARTS: Final = (
    ("Requests", "", ("waiting", "running")),
    ("Mean TTFT of the span", " s", ("ttft_s",)),
    ("TPOT of the span", " s", ("tpot_s",)),
    ("KV blocks in use", "", ("kv_usage_ratio",)),
    ("Tokens a second", "", ("prompt_tokens_per_s", "generation_tokens_per_s")),
)


def sections(document: Mapping[str, Any]) -> dict[str, Any]:
    """Everything a template needs, in words: no arithmetic is left to it."""
    targets = {name: t for name, t in document["targets"].items() if t}
    return {
        "title": document.get("title") or _title(targets),
        "headlines": [headline(name, t) for name, t in targets.items()],
        "targets": [_target(name, t) for name, t in targets.items()],
        "engines": [_engine(e) for e in document["engines"]] if len(document["engines"]) > 1 else [],
        "charts": charts(document),
        "document": document,
        "window": f"{document['window']['start'] or 'no clock'} to {document['window']['end'] or 'no clock'}",
        "tries": [
            (TITLES[name], tries(by_name(name)))
            for name in dict.fromkeys(t["limiting"] for t in targets.values() if t["limiting"])
        ],
        "requests": f"{document['requests']['finished']} finished, {_aborted(document)}",
        "level": document["source"]["level"],
        "vllm": document["source"]["vllm_version"] or "version unknown",
        "restarts": document["source"]["restarts"],
        "hypotheses": [_hypothesis(h) for h in document.get("hypotheses", [])],
        "segments": [s for e in document["engines"] for s in e["segments"]],
        "what_ifs": [w for e in document["engines"] for w in _what_ifs(e)],
    }


def _aborted(document: Mapping[str, Any]) -> str:
    count = document["requests"]["aborted"]
    return "aborted unknown" if count is None else f"{count} aborted"


def _title(targets: Mapping[str, Mapping[str, Any]]) -> str:
    limited = [name for name, t in targets.items() if t["verdict"] == "limited"]
    return (
        headline(limited[0], targets[limited[0]])
        if limited
        else "Nothing was found to limit"
        if targets
        else "Nothing was observed"
    )


def headline(name: str, t: Mapping[str, Any]) -> str:
    """A target's verdict as a sentence."""
    mean = "" if t["measured_s"] is None else f" (mean {amount(t['measured_s'], name)})"
    if t["verdict"] == "limited":
        part = next(p for p in t["parts"] if p["link"] == t["limiting"])
        if part["seconds"] is None:
            return f"{TITLES[part['link']]} limits {NAMES[name]}: {'; '.join(part['evidence'])}"
        return f"{TITLES[part['link']]} limits {NAMES[name]}: {amount(part['seconds'], name)} of the mean {amount(t['measured_s'], name)}"
    if t["verdict"] == "healthy":
        return f"Nothing limits {NAMES[name]} beyond load{mean}"
    why = t["cannot_determine"][0]["what"] if t["cannot_determine"] else "see below"
    return f"Cannot tell what limits {NAMES[name]}{mean}: {why}"


def _target(name: str, t: Mapping[str, Any]) -> dict[str, Any]:
    parts = [_part(name, p, t["measured_s"]) for p in t["parts"] if p["used"] or p["seconds"]]
    return {
        "name": NAMES[name],
        "headline": headline(name, t),
        "measured": amount(t["measured_s"], name),
        "sum": f"{amount(t['measured_s'], name)} = floor {amount(t['floor_s'], name)} + links {amount(sum(p['seconds'] or 0 for p in t['parts']), name)} + unexplained {amount(t['unexplained_s'], name)}",
        "stages": [(stage, amount(seconds, name)) for stage, seconds in t["stages"].items()],
        "ledger": svg.ledger(t, TITLES),
        "parts": parts,
        "evidence": [
            (TITLES[p["link"]], p["evidence"], p["conditions"]) for p in t["parts"] if p["status"] in {"limiting", "contributing"}
        ],
        "ruled_out": [(TITLES[p["link"]], p["fact"] or "; ".join(p["conditions"])) for p in t["parts"] if not p["used"]],
        "refusals": t["cannot_determine"],
        "conditions": t["conditions"],
    }


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
        "all faults fixed together would save "
        + ", ".join(f"{amount(s, name)} of {NAMES[name]}" for name, s in found["joint_s"].items())
    )
    if found["without_long_prompts_s"]:
        said.append(
            "without the prompts above 6 times the median the other requests would save "
            + ", ".join(f"{amount(s, name)} of {NAMES[name]}" for name, s in found["without_long_prompts_s"].items())
        )
    return said


def charts(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Time charts by engine: title, unit, and the series with their points."""
    out = []
    for engine, columns in document.get("series", {}).items():
        for title, unit, names in CHARTS:
            series = {
                name.replace("_per_s", "").replace("_", " "): columns[name]
                for name in names
                if name in columns and any(v is not None for v in columns[name])
            }
            if series:
                where = f" · {engine}" if len(document["series"]) > 1 else ""
                out.append(
                    {
                        "title": title + where,
                        "unit": unit,
                        "ts": columns["ts"],
                        "series": series,
                        "svg": svg.lines(title + where, unit, columns["ts"], series),
                    }
                )
    return out


def when(text: str | None) -> str:
    """A stamp as a reader says it."""
    return "unknown" if not text else datetime.fromisoformat(text).strftime("%Y-%m-%d %H:%M:%S UTC")
