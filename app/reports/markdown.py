"""Markdown: fit for an issue of a tracker; each chart as a line of blocks in the text, and as an SVG file beside it."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from analyzers.model import Incident
from app.reports.charts import blocks
from app.reports.document import document
from app.reports.page import sections
from app.reports.words import digits

SUFFIX: Final = ".md"
MEDIA_TYPE: Final = "text/markdown"
_MARKUP: Final = re.compile(r"([\\`*_\[\]|#~$])")


def render(incident: Incident) -> str:
    """The incident as Markdown."""
    return text(document(incident))


def text(plain: Mapping[str, Any], images: Mapping[str, str] | None = None) -> str:
    """A document as Markdown; `images` names the file of each chart by its key."""
    told = sections(plain)
    out = [
        f"# {_safe(told['title'])}",
        "",
        _safe(f"{told['window']} · {told['requests']} · judged from {told['level']} · vLLM {told['vllm']} · {told['restarts']}"),
        "",
    ]
    if told["title"] != told["summary"]:
        out += [f"**{_safe(told['summary'])}.**", ""]
    out += [_safe(plain["note"]), ""] if plain.get("note") else []
    out += [told["alone"], ""] if told["alone"] else []
    out += [f"- {_safe(line)}" for line in told["headlines"]]
    if "schema" in plain:
        out += _list(
            "Impact", told["impact"] or ["No objective was given: with --slo ttft=2 this counts the requests over it"], level=2
        )
    out += _list("Timeline", [f"{e['ts']}: {e['what']}" for e in plain.get("timeline", [])], level=2)
    for t in told["targets"]:
        out += _target(t)
    if told["engines"]:
        out += _table(
            "Engines",
            ("engine", "role", "requests", "targets"),
            "::r:",
            [(e["name"], e["role"], str(e["requests"]), _targets(e["targets"])) for e in told["engines"]],
        )
    out += _charts("Over time", told["charts"], images or {})
    for e in told["evidence"]:
        out += _evidence(e, images or {})
    out += _after(plain, told)
    out += _source(plain, told)
    return "\n".join(out) + "\n"


def _target(t: Mapping[str, Any]) -> list[str]:
    out = ["", f"## {_safe(t['name'])}", "", f"{_safe(t['headline'])}.", "", _safe(t["sum"])]
    rows = [(f"{p['mark']} {p['title']}", p["seconds"], p["share"], p["range"], p["saves"], p["says"]) for p in t["parts"]]
    if rows:
        out += _table("", ("link", "seconds", "share", "range", "saves if fixed first", "what shows it"), ":rrrr:", rows)
    out += _list("Ruled out", [f"{name}: {why}" for name, why in t["ruled_out"]])
    out += _list("Not known, and not in the verdict", [f"{name}: {why}" for name, why in t["unknown"]])
    out += _list("Cannot be determined", [f"{r['what']}. Measure: {r['measure']}" for r in t["refusals"]])
    return out + _list("Conditions", t["conditions"])


def _evidence(e: Mapping[str, Any], images: Mapping[str, str]) -> list[str]:
    out = _charts(f"Evidence: {e['title']}", e["charts"], images) or ["", f"## Evidence: {_safe(e['title'])}"]
    out += _list("", [f"{where}, {ts}: {what}" for where, ts, what in e["lines"]])
    query = [*e["query"].rstrip().splitlines(), f"-- {_line(e['parameters'])}"]
    return [
        *out,
        "",
        f"<details><summary>The query behind it ({e['rows']})</summary>",
        "",
        *_fenced(query, "sql"),
        "",
        "</details>",
    ]


def _charts(title: str, charts: Sequence[Mapping[str, Any]], images: Mapping[str, str]) -> list[str]:
    """Each chart as blocks with its highest value, then its picture."""
    if not charts:
        return []
    out = ["", f"## {_safe(title)}", ""]
    drawn = []
    for chart in charts:
        for name, values in chart["series"].items():
            if line := blocks(values):
                top = max(value for value in values if value is not None)
                drawn.append(f"{line}  {_line(chart['title'])}: {_line(name)}, at most {digits(top)}{chart['unit']}")
    out += _fenced(drawn) if drawn else ["All of it is zero."]
    shown = [f"![{_safe(c['title'])}]({images[c['key']]})" for c in charts if c["key"] in images]
    return [*out, *(["", *shown] if shown else [])]


def _after(plain: Mapping[str, Any], told: Mapping[str, Any]) -> list[str]:
    """Baseline, what to try, what if, workload, configuration."""
    out: list[str] = []
    if plain.get("baseline"):
        out += _list(f"Against the baseline {plain['baseline']['name']}", plain["baseline"]["changes"], level=2)
    for name, changes in told["tries"]:
        out += _list(f"What to try against {name}", [change + (f": {cost}" if cost else "") for change, cost in changes], level=2)
    for h in told["hypotheses"]:
        flags = ", ".join(_code(flag) for flag in h["flags"])
        more = [*h["effects"], *(f"costs: {c}" for c in h["costs"]), *(f"condition: {c}" for c in h["conditions"])]
        more += [f"not to be confused with {h['confused_with']}", f"test: {h['test']}"]
        out += [
            "",
            f"## Try: {_safe(h['change'])}",
            "",
            f"{_safe(h['claim'])}. {flags}".rstrip(),
            "",
            *(f"- {_safe(x)}" for x in more),
        ]
    out += _list("What if", told["what_ifs"], level=2)
    if plain.get("workload"):
        out += ["", "## Workload", "", _safe(plain["workload"])]
    for a in plain.get("arguments", []):
        out += ["", f"## Configuration of {_safe(a['server'] or 'the server')}", ""]
        out += _fenced(_line(f"{name} = {value}") for name, value in a["flags"].items())
        out += ["", _safe("Also set, and not used here: " + ", ".join(a["left_out"]))] if a["left_out"] else []
    return out


def _source(plain: Mapping[str, Any], told: Mapping[str, Any]) -> list[str]:
    rows = [
        (f["name"], f["format"] or "not recognised", str(f["lines"]), str(f["rejected"]), f.get("sha256") or f.get("why") or "")
        for f in plain["source"]["files"]
    ]
    out = _table("Where it comes from", ("file", "format", "lines", "rejected", "SHA-256"), "::rr:", rows)
    out += _list("", [*told["coverage"], *plain["notes"]])
    if data := plain.get("data"):
        said = f"Data of the window: {data['name']}, SHA-256 {data['sha256']}; {data['says']}:"
        out += ["", f"{_safe(said)} {_code(data['command'])}"]
    if plain.get("reproduce"):
        out += ["", f"To make it again: {_code(plain['reproduce'])}"]
    if told["replaced"]:
        out += ["", _safe(f"Replaced, the same thing by the same word: {', '.join(told['replaced'])}.")]
    return [*out, "", _safe(told["versions"] or f"weaklink {plain['weaklink']}")]


def _targets(found: Iterable[tuple[str, str, str]]) -> str:
    return "; ".join(f"{name} {value}" + (f" ({limit})" if limit else "") for name, value, limit in found)


def _table(title: str, heads: Sequence[str], sides: str, rows: Sequence[Sequence[str]]) -> list[str]:
    """A table; `sides` has r for each column of numbers."""
    out = ["", f"## {title}"] if title else []
    out += ["", f"| {' | '.join(heads)} |", f"|{'|'.join('---:' if side == 'r' else '---' for side in sides)}|"]
    return out + [f"| {' | '.join(_safe(cell) for cell in row)} |" for row in rows]


def _list(title: str, items: Sequence[str], level: int = 3) -> list[str]:
    head = ["", f"{'#' * level} {_safe(title)}"] if title else []
    return [*head, "", *(f"- {_safe(item)}" for item in items)] if items else []


def _fenced(lines: Iterable[str], kind: str = "") -> list[str]:
    """A block of text as it is: its fence is longer than any row of backticks inside."""
    inside = list(lines)
    longest = max((len(run) for line in inside for run in re.findall(r"`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return [f"{fence}{kind}", *inside, fence]


def _code(value: str) -> str:
    """Text as code inside of a line."""
    plain = _line(value)
    longest = max((len(run) for run in re.findall(r"`+", plain)), default=0)
    ticks = "`" * (longest + 1)
    return f"{ticks}{plain}{ticks}" if not longest else f"{ticks} {plain} {ticks}"


def _line(value: str) -> str:
    return " ".join(str(value).split())


def _safe(value: str) -> str:
    """Text that cannot become markup, mention somebody, link anywhere or break a table."""
    escaped = _MARKUP.sub(r"\\\1", _line(value)).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return escaped.replace("@", "&#64;").replace("://", ":&#8203;//")
