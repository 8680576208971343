"""What an operator asks for: objectives (`[[slo]]`), notifiers (`[[notify]]`) and `[alerts]`, from the TOML file or the store.

It is the file that also says what is collected (app/config.py): `weaklink config check` checks all of it.
Lengths carry their unit ("250ms", "1.5s", "30d"), shares are ratios (0.99) or percent ("99%"). Secrets never stand in the
file: it names the environment variable or the file that holds them. Unknown keys are errors, not silent defaults.

    [alerts]
    interval = "30s"                              # between two evaluations
    dashboard = "http://127.0.0.1:8501"           # where links lead

    [[slo]]
    name = "chat TTFT"
    kind = "ttft"                                 # ttft itl tpot e2e queue goodput errors availability
    threshold = "1s"                              # goodput: of TTFT, with tpot = "50ms" beside it
    objective = "99%"                             # of requests (ITL: tokens)
    period = "30d"                                # optional, as are model, engine, minimum, pending, keep, burn

    [[notify]]
    name = "on call"
    kind = "webhook"                              # webhook alertmanager apprise
    url_env = "HOOK_URL"                          # or url, url_file
    secret_env = "HOOK_SECRET"                    # signs the webhook; a bearer token for Alertmanager
    severities = ["page"]
"""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from string import Template
from typing import Any, Final
from urllib.parse import urlsplit

from analyzers.slo import DAY_S, KINDS, SEVERITIES, TIMED, WORKBOOK_PERIOD_S, Rule, Slo
from app.alerts.table import DefinitionError, Table, shown, span_text

TABLES: Final = ("slo", "notify", "alerts")
OTHERS: Final = frozenset(
    {"target", "prometheus", "kv_events", "log", "otlp", "retention", "login", "discover"}
)  # of the same file, read by app/config.py
NOTIFIERS: Final = ("webhook", "alertmanager", "apprise")
MOST_MINIMUM: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Notifier:
    """Where alerts are sent. `url` or the variable or file that holds it; `secret_*` signs (webhook) or is a bearer token."""

    name: str
    kind: str
    url: str | None = None
    url_env: str | None = None
    url_file: str | None = None
    secret_env: str | None = None
    secret_file: str | None = None
    severities: tuple[str, ...] = SEVERITIES
    title: str | None = None
    text: str | None = None
    give_up_s: float = DAY_S


@dataclass(frozen=True, slots=True)
class Definitions:
    """All that one file says. `interval_s` between two evaluations; `dashboard` is the address that links lead to."""

    slos: tuple[Slo, ...] = ()
    notifiers: tuple[Notifier, ...] = ()
    interval_s: float = 30.0
    dashboard: str = "http://127.0.0.1:8501"
    path: Path | None = None


# -- objectives ---------------------------------------------------------------------------------------------------------------
SLO_KEYS: Final = (
    "name", "kind", "threshold", "tpot", "objective", "period", "model", "engine", "minimum", "pending", "keep", "burn",
)  # fmt: skip
BURN_KEYS: Final = ("severity", "budget", "long", "short")


def slo_of(found: object, where: str) -> Slo:
    """The objective in a table. DefinitionError says which key is wrong."""
    table = Table(where, found)
    name = table.needed("name", table.text("name"), "a name")
    table.where = f"{where} {name!r}"
    kind = table.needed("kind", table.choice("kind", tuple(KINDS)), f"one of {', '.join(KINDS)}")
    objective = table.needed("objective", table.share("objective"), 'a share of good events, such as "99%"')
    threshold, tpot = table.length("threshold", least=1e-4, most=DAY_S), table.length("tpot", least=1e-4, most=DAY_S)
    if kind in TIMED:
        table.needed("threshold", threshold, 'the seconds that a good event does not exceed, such as "1s"')
    elif threshold is not None:
        raise DefinitionError(f"{table.where}: threshold: expected none, as {kind} is no time")
    if (kind == "goodput") != (tpot is not None):
        raise DefinitionError(f"{table.where}: tpot: expected a length for goodput, and for nothing else")
    given = {
        "period_s": table.length("period", least=60.0), "model": table.text("model"), "engine": table.text("engine"),
        "minimum": table.whole("minimum", MOST_MINIMUM), "pending_s": table.length("pending", most=DAY_S),
        "keep_s": table.length("keep", most=7 * DAY_S),
    }  # fmt: skip
    period = given["period_s"] or WORKBOOK_PERIOD_S
    rules = _rules(table.left.pop("burn", None), table.where, float(period))
    table.done(SLO_KEYS)
    more: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    return Slo(name, kind, objective, threshold, tpot, rules=rules, **more)


def _rules(found: object, where: str, period_s: float) -> tuple[Rule, ...] | None:
    """The burn-rate table of an objective; None: the workbook's."""
    if found is None:
        return None
    if not isinstance(found, list) or not found:
        raise DefinitionError(f"{where}: burn: expected a list of tables with {', '.join(BURN_KEYS)}, got {shown(found)}")
    rules = []
    for at, one in enumerate(found, 1):
        table = Table(f"{where}: burn {at}", one)
        severity = table.needed("severity", table.choice("severity", SEVERITIES), f"one of {', '.join(SEVERITIES)}")
        share = table.needed("budget", table.share("budget"), 'the share of the budget that the long window spends, such as "2%"')
        long_s = table.needed("long", table.length("long", least=1.0, most=period_s), "the long window")
        short_s = table.needed(
            "short", table.length("short", least=1.0, most=long_s), "the short window, no longer than the long"
        )
        table.done(BURN_KEYS)
        rules.append(Rule(severity, share, long_s, short_s))
    return tuple(rules)


def table_of(slo: Slo) -> dict[str, Any]:
    """The table that `slo_of` reads back to the same objective; what is at its default is left out."""
    default = {one.name: one.default for one in fields(Slo)}
    table: dict[str, Any] = {"name": slo.name, "kind": slo.kind, "objective": slo.objective}
    lengths = {
        "threshold": slo.threshold_s,
        "tpot": slo.tpot_s,
        "period": slo.period_s,
        "pending": slo.pending_s,
        "keep": slo.keep_s,
    }
    for key, seconds in lengths.items():
        if seconds is not None and seconds != default[f"{key}_s"]:
            table[key] = span_text(seconds)
    for key in ("model", "engine", "minimum"):
        if getattr(slo, key) != default[key]:
            table[key] = getattr(slo, key)
    if slo.rules is not None:
        table["burn"] = [
            {"severity": r.severity, "budget": r.budget_ratio, "long": span_text(r.long_s), "short": span_text(r.short_s)}
            for r in slo.rules
        ]
    return table


# -- notifiers ----------------------------------------------------------------------------------------------------------------
NOTIFIER_KEYS: Final = (
    "name", "kind", "url", "url_env", "url_file", "secret_env", "secret_file", "severities", "title", "text", "give_up",
)  # fmt: skip
TEMPLATE_FIELDS: Final = (
    "headline", "slo", "severity", "state", "objective", "burn", "budget_left", "diagnosis", "evidence", "tries", "began", "fired",
    "resolved", "link",
)  # fmt: skip


def notifier_of(found: object, where: str) -> Notifier:
    """The notifier in a table."""
    table = Table(where, found)
    name = table.needed("name", table.text("name"), "a name")
    table.where = f"{where} {name!r}"
    kind = table.needed("kind", table.choice("kind", NOTIFIERS), f"one of {', '.join(NOTIFIERS)}")
    for key in ("secret", "token", "password"):
        if key in table.left:
            raise DefinitionError(f"{table.where}: {key}: expected secret_env or secret_file: no secret stands in this file")
    places = {key: table.text(key) for key in ("url", "url_env", "url_file", "secret_env", "secret_file")}
    if sum(places[key] is not None for key in ("url", "url_env", "url_file")) != 1:
        raise DefinitionError(f"{table.where}: expected one of url, url_env, url_file")
    if places["secret_env"] and places["secret_file"]:
        raise DefinitionError(f"{table.where}: expected secret_env or secret_file, not both")
    _plain_url(table, kind, places["url"])
    severities = table.left.pop("severities", list(SEVERITIES))
    if not isinstance(severities, list) or not severities or not set(severities) <= set(SEVERITIES):
        raise table.wrong("severities", f"a list of {' and '.join(SEVERITIES)}", severities)
    title, text = (_template(table, key) for key in ("title", "text"))
    give_up = table.length("give_up", least=1.0) or DAY_S
    table.done(NOTIFIER_KEYS)
    return Notifier(name, kind, severities=tuple(severities), title=title, text=text, give_up_s=give_up, **places)


def _plain_url(table: Table, kind: str, url: str | None) -> None:
    """An address that stands in the file: http(s), without anything secret."""
    if url is None:
        return
    if kind == "apprise":
        raise DefinitionError(f"{table.where}: url: expected url_env or url_file: addresses of apprise hold secrets")
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise table.wrong("url", "an http or https address", url)
    if parts.username or parts.password:
        raise DefinitionError(f"{table.where}: url: expected url_env or url_file: an address with a password is a secret")


def _template(table: Table, key: str) -> str | None:
    text = table.text(key)
    if text is None:
        return None
    template = Template(text)
    unknown = sorted(set(template.get_identifiers()) - set(TEMPLATE_FIELDS))
    if unknown or not template.is_valid():
        raise table.wrong(key, f"a text with ${', $'.join(TEMPLATE_FIELDS)} ($$ is a dollar sign)", text)
    return text


# -- files and the store ------------------------------------------------------------------------------------------------------
def read(path: Path) -> Definitions:
    """The definitions in a TOML file; tables of the collectors are left alone. DefinitionError names file, key and expectation."""
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DefinitionError(f"{path}: cannot be read ({error.strerror})") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise DefinitionError(f"{path}: expected TOML: {error}") from error
    return definitions_of({name: table for name, table in found.items() if name not in OTHERS}, str(path), path)


def definitions_of(found: Mapping[str, Any], where: str, path: Path | None = None) -> Definitions:
    """The definitions in a parsed file."""
    for key in found:
        if key not in TABLES:
            raise DefinitionError(f"{where}: {key}: expected [[slo]], [[notify]] or [alerts]; this table is not known")
    slos = tuple(slo_of(one, f"{where}: [[slo]] {at}") for at, one in enumerate(_list(found, "slo", where), 1))
    notifiers = tuple(notifier_of(one, f"{where}: [[notify]] {at}") for at, one in enumerate(_list(found, "notify", where), 1))
    for word, names in (("[[slo]]", [slo.name for slo in slos]), ("[[notify]]", [one.name for one in notifiers])):
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise DefinitionError(f"{where}: {word}: name: expected each name once, {twice[0]!r} is there twice")
    table = Table(f"{where}: [alerts]", found.get("alerts", {}))
    interval, dashboard = table.length("interval", least=0.1, most=DAY_S), table.text("dashboard")
    table.done(("interval", "dashboard"))
    if dashboard is not None and urlsplit(dashboard).scheme not in {"http", "https"}:
        raise table.wrong("dashboard", "the http or https address that links lead to", dashboard)
    plain = Definitions()
    return Definitions(slos, notifiers, interval or plain.interval_s, (dashboard or plain.dashboard).rstrip("/"), path)


def _list(found: Mapping[str, Any], key: str, where: str) -> list[Any]:
    value = found.get(key, [])
    if not isinstance(value, list):
        raise DefinitionError(f"{where}: {key}: expected [[{key}]] (a list of tables), got {shown(value)}")
    return value


def encoded(slo: Slo) -> str:
    """An objective as the store keeps it."""
    return json.dumps(table_of(slo), sort_keys=True)


def decoded(text: str, where: str = "store") -> Slo:
    """An objective as the store keeps it, read back."""
    return slo_of(json.loads(text), where)
