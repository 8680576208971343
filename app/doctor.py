"""What a server says, and what it could say: signals that are there, renamed, missing, off or known to be wrong in its version.

Everything it knows stands in doctor.toml. `examine` reads a store; where the version is not known, nothing is said of it.
"""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from typing import Any, Final

from analyzers.model import Engine
from app.pipeline import window_of
from app.store import Store

STATES: Final = ("present", "renamed", "wrong", "off", "missing", "unused")


@dataclass(frozen=True, slots=True)
class Finding:
    """One signal of one server. `state` is one of STATES, `says` why; `flag` and `cost` where something would add it."""

    signal: str
    what: str
    state: str
    says: str
    flag: str = ""
    cost: str = ""
    usable: bool = False  # a judgement can rest on it


@dataclass(frozen=True, slots=True)
class Judged:
    """How a link can be judged: exact, estimate, unknown, or unused; and what the next better way lacks."""

    link: str
    how: str
    lacks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """All of one server."""

    instance: str
    version: str | None
    signals: tuple[Finding, ...]
    links: tuple[Judged, ...]


def table() -> dict[str, list[dict[str, Any]]]:
    """The table: signal, wrong, link."""
    return tomllib.loads(files("app").joinpath("doctor.toml").read_text())


def examine(store: Store, version: str | None = None, engines_of: Sequence[Engine] | None = None) -> list[Report]:
    """One report a server of the store, or of some engines in it; `version` where it is known from elsewhere (GET /version)."""
    engines: dict[str, Engine] = {}
    for engine in window_of(store).engines if engines_of is None else engines_of:
        engines.setdefault(engine.instance, engine)
    return [_report(store, engine, version or engine.version) for engine in engines.values()]


def version_of(url: str) -> str | None:
    """What GET /version beside a server's /metrics says; None where it does not answer."""
    import httpx  # noqa: PLC0415 slow to import, and no bundle needs it

    try:
        said = httpx.get(url.rsplit("/", 1)[0] + "/version", timeout=3.0).json().get("version")
    except (httpx.HTTPError, ValueError, AttributeError):
        return None
    return said if isinstance(said, str) else None


def _report(store: Store, engine: Engine, version: str | None) -> Report:
    rules = table()
    names = {
        row[0]
        for row in store.rows(
            "SELECT DISTINCT regexp_replace(name, '^(ray_)?vllm_', 'vllm:') FROM series WHERE coalesce(instance, '') = ?",
            [engine.instance],
        )
    }
    signals = tuple(_finding(store, engine, version, rule, rules["wrong"], names) for rule in rules["signal"])
    return Report(engine.instance, version, signals, tuple(_judged(rule, signals) for rule in rules["link"]))


def _finding(
    store: Store,
    engine: Engine,
    version: str | None,
    rule: Mapping[str, Any],
    wrong: Sequence[Mapping[str, Any]],
    names: set[str],
) -> Finding:
    name, what = rule["name"], rule["what"]
    renamed = ""
    if "series" in rule:
        wanted = rule["series"]
        there = all(one in names for one in wanted) if rule.get("all") else any(one in names for one in wanted)
        if there and wanted[0] not in names:
            renamed = f"under its older name {next(one for one in wanted if one in names)}"
    else:
        there = store.rows(rule["rows"], {"instance": engine.instance or None})[0][0] > 0
    if there:
        bad = next((w for w in wrong if w["signal"] == name and _within(version, w)), None)
        said = "; ".join(filter(None, (renamed, bad["says"] if bad else "")))
        state = "wrong" if bad else "renamed" if renamed else "present"
        return Finding(name, what, state, said, usable=not bad or bool(bad.get("usable")))
    return _absent(engine, version, rule, metrics=any(one.startswith("vllm:") for one in names))


def _absent(engine: Engine, version: str | None, rule: Mapping[str, Any], *, metrics: bool) -> Finding:
    """Why a signal is not there; `metrics`: other series of vLLM are."""
    name, what = rule["name"], rule["what"]
    if version and _parts(version) < _parts(rule["since"]):
        return Finding(name, what, "missing", f"not in vLLM {version}: since {rule['since']}")
    if rule.get("default"):
        said = (
            "others of vLLM's series are there"
            if metrics
            else "no /metrics was given, or the server runs with --disable-log-stats"
        )
        return Finding(name, what, "missing", f"every server has it: {said}")
    if "when" in rule and not engine.facts.get("args", {}).get(rule["when"]):
        if not engine.facts.get("args_known"):
            said = f"needed only with {rule['when']}, and the arguments are not known"
            return Finding(name, what, "missing", said, rule["flag"], rule["cost"])
        return Finding(name, what, "unused", f"{rule['when']} is not set", rule["flag"], rule["cost"])
    if not rule["flag"]:
        return Finding(name, what, "missing", f"since {rule['since']}" + ("" if version else "; the version is not known"))
    return Finding(name, what, "off", rule.get("hint", ""), rule["flag"], rule["cost"])


def _within(version: str | None, rule: Mapping[str, Any]) -> bool:
    """True where a known version lies in from <= version < below."""
    if version is None:
        return False
    parts = _parts(version)
    return _parts(rule.get("from", "0")) <= parts and ("below" not in rule or parts < _parts(rule["below"]))


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d{1,6}", version.split("+", maxsplit=1)[0])[:3])


def _judged(rule: Mapping[str, Any], signals: Sequence[Finding]) -> Judged:
    has = {finding.signal for finding in signals if finding.usable}
    states = {finding.signal: finding.state for finding in signals}
    for how in ("exact", "estimate"):
        if any(set(one) <= has for one in rule[how]):
            better = rule["exact"] if how == "estimate" else []
            return Judged(rule["name"], how, _lacks(better, has))
    ways = [*rule["estimate"], *rule["exact"]]
    unused = {name for one in ways for name in one if states.get(name) == "unused"}
    return Judged(rule["name"], "unused" if unused else "unknown", () if unused else _lacks(ways, has))


def _lacks(ways: Sequence[Sequence[str]], has: set[str]) -> tuple[str, ...]:
    """What the nearest of some ways still needs."""
    return min((tuple(name for name in one if name not in has) for one in ways), key=len, default=())


def flags(report: Report) -> list[Finding]:
    """What to turn on, by how many links it serves better, then in the table's order."""
    wanted = [name for judged in report.links for name in judged.lacks]
    off = [finding for finding in report.signals if finding.state == "off"]
    beside = {rule["name"]: rule.get("beside") for rule in table()["signal"]}
    off = [finding for finding in off if beside[finding.signal] not in {one.signal for one in off}]
    first = ("iteration_lines", "kv_events", "balancedness")
    return sorted(
        off, key=lambda f: (f.signal not in first, first.index(f.signal) if f.signal in first else -wanted.count(f.signal))
    )


def document(reports: Sequence[Report]) -> list[dict[str, Any]]:
    """The reports as plain values."""
    return [{**asdict(report), "add": [asdict(finding) for finding in flags(report)]} for report in reports]


def render(reports: Sequence[Report]) -> str:
    """The reports as text."""
    lines: list[str] = []
    for report in reports:
        lines += [f"{report.instance or 'a server without a name'}  vLLM {report.version or 'version unknown'}", ""]
        for finding in report.signals:
            lines.append(
                f"  {finding.state:<8} {finding.signal:<18} {finding.what}" + (f" ({finding.says})" if finding.says else "")
            )
        lines += ["", "  Links, and how they can be judged:"]
        for judged in report.links:
            lines.append(
                f"  {judged.how:<8} {judged.link:<18}" + (f" better with {', '.join(judged.lacks)}" if judged.lacks else "")
            )
        added = flags(report)
        if added:
            lines += ["", "  What would add more, and what it costs:"]
            lines += [
                f"  - {f.flag}\n      adds {f.signal}: {f.what}. Costs: {f.cost}." + (f" Note: {f.says}." if f.says else "")
                for f in added
            ]
        lines.append("")
    return "\n".join(line.rstrip() for line in lines).strip() + "\n"
