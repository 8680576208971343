"""Markdown: fit for an issue of a tracker; charts as SVG files beside it, named in the text."""

from collections.abc import Mapping
from typing import Any, Final

from analyzers.model import Incident
from app.reports.document import document
from app.reports.page import sections

SUFFIX: Final = ".md"
MEDIA_TYPE: Final = "text/markdown"


def render(incident: Incident) -> str:
    """The incident as Markdown."""
    return text(document(incident))


def text(plain: Mapping[str, Any], images: Mapping[str, str] | None = None) -> str:
    """A document as Markdown; `images` names the file of each chart by its title."""
    told = sections(plain)
    out = [
        f"# {_safe(told['title'])}",
        "",
        f"{told['window']} · {told['requests']} · judged from {told['level']} · vLLM {told['vllm']} · {told['restarts']} restarts",
        "",
    ]
    if plain.get("note"):
        out += [_safe(plain["note"]), ""]
    out += [f"- {_safe(line)}" for line in told["headlines"]]
    for t in told["targets"]:
        out += [
            "",
            f"## {t['name']}",
            "",
            f"{_safe(t['sum'])}",
            "",
            "| link | seconds | share | range | saves if fixed first | what shows it |",
            "|---|---:|---:|---:|---:|---|",
        ]
        out += [
            f"| {p['mark']} {p['title']} | {p['seconds']} | {p['share']} | {p['range']} | {p['saves']} | {_safe(p['says'])} |"
            for p in t["parts"]
        ]
        out += _list("Ruled out", [f"{name}: {why}" for name, why in t["ruled_out"]])
        out += _list("Cannot be determined", [f"{r['what']}. Measure: {r['measure']}" for r in t["refusals"]])
        out += _list("Conditions", t["conditions"])
    if told["engines"]:
        out += ["", "## Engines", "", "| engine | role | requests | targets |", "|---|---|---:|---|"]
        out += [
            f"| {_safe(e['name'])} | {e['role']} | {e['requests']} | {'; '.join(f'{n} {v}' + (f' ({limit})' if limit else '') for n, v, limit in e['targets'])} |"
            for e in told["engines"]
        ]
    charts = [f"![{_safe(title)}]({file})" for title, file in (images or {}).items()]
    out += ["", "## Over time", "", *charts] if charts else []
    out += _list("Timeline", [f"{e['ts']}: {e['what']}" for e in plain.get("timeline", [])], level=2)
    for name, changes in told["tries"]:
        out += _list(f"What to try against {name}", [change + (f": {cost}" if cost else "") for change, cost in changes], level=2)
    for h in told["hypotheses"]:
        flags = ", ".join(f"`{flag}`" for flag in h["flags"])
        out += ["", f"## Try: {_safe(h['change'])}", "", f"{_safe(h['claim'])}. {flags}", ""]
        out += [
            f"- {_safe(x)}"
            for x in (
                *h["effects"],
                *(f"costs: {c}" for c in h["costs"]),
                *(f"condition: {c}" for c in h["conditions"]),
                f"test: {h['test']}",
            )
        ]
    out += _list("What if", told["what_ifs"], level=2)
    if plain.get("workload"):
        out += ["", "## Workload", "", _safe(plain["workload"])]
    if plain.get("arguments"):
        out += [
            "",
            "## Configuration",
            "",
            "```",
            *(f"{name} = {value}".replace("```", "'''") for name, value in plain["arguments"].items()),
            "```",
        ]
    out += ["", "## Where it comes from", "", "| file | format | lines | rejected |", "|---|---|---:|---:|"]
    out += [
        f"| {_safe(f['name'])} | {f['format'] or 'not recognised'} | {f['lines']} | {f['rejected']} |"
        for f in plain["source"]["files"]
    ]
    out += ["", f"weaklink {plain['weaklink']}" + (f" · `{plain['reproduce']}`" if plain.get("reproduce") else "")]
    return "\n".join(out) + "\n"


def _list(title: str, items: list[str], level: int = 3) -> list[str]:
    return ["", f"{'#' * level} {title}", "", *(f"- {_safe(item)}" for item in items)] if items else []


def _safe(value: str) -> str:
    """Text that cannot become markup or break a table."""
    escaped = str(value).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("\n", " ").replace("\r", " ")
    return escaped.replace("`", "\\`").replace("![", "!\\[").replace("](", "]\\(")
