"""The objectives as rules for a stock Prometheus (2.42 or newer): recorded ratios, and alerts over two windows each.

Prometheus has no request records, so latency is read from buckets: at a bucket edge exactly, else by the same linear
interpolation that weaklink uses, with its error in the annotations. One ratio is recorded a window; alerts compare them.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from analyzers.slo import SEVERITIES, Edges, Rule, Slo, edges_around, factor, rules_of
from app.alerts.definitions import Definitions
from app.alerts.measure import FAILED, FAMILIES, GENERATES, edges, scope
from app.alerts.message import objective
from app.alerts.table import span_text
from app.store import Store

# Default bucket edges, vLLM 0.8.5 to 0.33 (vllm/v1/metrics/loggers.py); --custom-histogram-buckets (0.32) changes them.
_REQUEST: Final = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_TOKEN: Final = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
DEFAULT_EDGES: Final[Mapping[str, tuple[float, ...]]] = {
    "ttft": (
        *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560),
    ),
    "itl": _TOKEN,
    "tpot": _TOKEN,
    "e2e": _REQUEST,
    "queue": _REQUEST,
}
ALERT: Final = "WeaklinkSloBurn"
RATIO: Final = "weaklink_slo:bad:ratio_rate"
EVENTS: Final = "weaklink_slo:events:increase"


@dataclass(frozen=True, slots=True)
class Rules:
    """A rule file, what could not be put into it, and what is to be known of it."""

    text: str
    left_out: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


KnownEdges = Mapping[str, Mapping[str, Sequence[float]]]  # by objective and kind


def edges_in(store: Store, slos: Sequence[Slo]) -> dict[str, dict[str, list[float]]]:
    """The bucket edges that the store holds for each objective, by kind; kinds without a histogram are missing."""
    found: dict[str, dict[str, list[float]]] = {}
    for slo in slos:
        where = scope(store, slo)
        kinds = {kind: edges(store, slo, where, kind) for kind in _kinds(slo)}
        found[slo.name] = {kind: held for kind, held in kinds.items() if held}
    return found


def _kinds(slo: Slo) -> tuple[str, ...]:
    if slo.kind == "goodput":
        return ("ttft", "tpot")
    return (slo.kind,) if slo.kind in FAMILIES else ()


class _UnsayableError(Exception):
    """An objective that Prometheus cannot be asked for; the message says why."""


def rules(slos: Sequence[Slo], definitions: Definitions, known: KnownEdges | None = None) -> Rules:
    """The rule file of objectives. `known` holds bucket edges that were seen; vLLM's defaults where there are none."""
    groups: list[dict[str, Any]] = []
    left_out: list[str] = []
    notes: list[str] = []
    for slo in slos:
        try:
            groups.append(_group(slo, definitions, (known or {}).get(slo.name, {}), notes))
        except _UnsayableError as error:
            left_out.append(f"{slo.name}: {error}")
    head = "# Made by weaklink alerts export. Needs Prometheus 2.42 (keep_firing_for). Check: promtool check rules FILE\n"
    return Rules(head + _yaml({"groups": groups}), left_out, notes)


def _group(slo: Slo, definitions: Definitions, known: Mapping[str, Sequence[float]], notes: list[str]) -> dict[str, Any]:
    table = rules_of(slo)
    windows = sorted({rule.long_s for rule in table} | {rule.short_s for rule in table})
    labels = {"slo": slo.name}
    found: list[dict[str, Any]] = []
    said = _said(slo, known)
    notes += [f"{slo.name}: {line}" for line in said]
    for window in windows:
        for name, expression in _ratios(slo, known, prom_span(window)):
            found.append({"record": f"{name}{prom_span(window)}", "expr": expression, "labels": labels})
    longs = [prom_span(window) for window in sorted({rule.long_s for rule in table})]
    found += [{"record": f"{EVENTS}{one}", "expr": _total(slo, one, "increase"), "labels": labels} for one in longs]
    for severity in SEVERITIES:
        mine = [rule for rule in table if rule.severity == severity]
        if mine:
            found.append(_alert(slo, severity, mine, definitions, said))
    return {"name": f"weaklink-slo-{slug(slo.name)}", "interval": prom_span(definitions.interval_s), "rules": found}


def _alert(slo: Slo, severity: str, mine: Sequence[Rule], definitions: Definitions, said: Sequence[str]) -> dict[str, Any]:
    selector = f'{{slo="{_quoted(slo.name)}"}}'
    terms = []
    for rule in mine:
        limit = f"({factor(rule, slo.period_s):.6g} * {slo.budget_ratio:.6g})"
        long, short = prom_span(rule.long_s), prom_span(rule.short_s)
        terms.append(
            f"(\n  {RATIO}{long}{selector} > {limit}\n  and {RATIO}{short}{selector} > {limit}\n"
            f"  and {EVENTS}{long}{selector} >= {slo.minimum}\n)"
        )
    rates = " or ".join(f"{factor(rule, slo.period_s):.3g} times over {span_text(rule.long_s)}" for rule in mine)
    runbook = (
        "Open weaklink at the time of the alert: it splits the seconds among the links, names the one that limits, and says what "
        "to try. Without the dashboard: weaklink analyze --from ... --to ..., or weaklink alerts check."
    )
    return {
        "alert": ALERT,
        "expr": "\nor\n".join(terms),
        "for": prom_span(slo.pending_s),
        "keep_firing_for": prom_span(slo.keep_s),
        "labels": {"slo": slo.name, "severity": severity},
        "annotations": {
            "summary": f"{slo.name}: the error budget burns too fast",
            "description": f"{objective(slo)}. The budget burns more than {rates}." + "".join(f" {line}" for line in said),
            "runbook": runbook,
            "runbook_url": f"{definitions.dashboard}/alerts",
        },
    }


# -- expressions --------------------------------------------------------------------------------------------------------------
def prom_span(seconds: float) -> str:
    """A length as Prometheus takes it: whole units only."""
    text = span_text(seconds)
    return text if "." not in text else f"{max(1, round(1000 * seconds))}ms"


def slug(name: str) -> str:
    """A name for a rule group."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "unnamed"


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _matchers(slo: Slo, *more: str) -> str:
    """Label matchers of the objective's selector."""
    found = [f'model_name="{_quoted(slo.model)}"'] if slo.model else []
    if slo.engine:
        instance, _, label = slo.engine.rpartition("/")
        if not instance and ":" in label:
            instance, label = label, ""
        found += [f'instance="{_quoted(instance)}"'] if instance else []
        found += [f'engine="{_quoted(label)}"'] if label else []
    return "{" + ", ".join([*found, *more]) + "}" if found or more else ""


def _server(slo: Slo) -> tuple[str, ...]:
    """The matcher of the server alone, for series without model and engine."""
    instance = slo.engine.rpartition("/")[0] or (slo.engine if ":" in slo.engine else "") if slo.engine else ""
    return (f'instance="{_quoted(instance)}"',) if instance else ()


def _around(slo: Slo, kind: str, known: Mapping[str, Sequence[float]]) -> tuple[Edges, float]:
    """The bucket edges around a threshold, and the threshold."""
    threshold = (slo.tpot_s if slo.kind == "goodput" and kind == "tpot" else slo.threshold_s) or 0.0
    found = edges_around(known.get(kind) or DEFAULT_EDGES[kind], threshold)
    if not math.isfinite(found.high_s):
        raise _UnsayableError(f"{span_text(threshold)} lies above the last bucket edge ({found.low_s:g} s): buckets cannot tell")
    return found, threshold


def _said(slo: Slo, known: Mapping[str, Sequence[float]]) -> list[str]:
    """What buckets make uncertain."""
    said = []
    for kind in _kinds(slo):
        found, threshold = _around(slo, kind, known)
        if found.low_s != found.high_s:
            far = "far from an edge" if found.far else "near an edge"
            said.append(
                f"{kind.upper()}: {span_text(threshold)} is no bucket edge ({far}): interpolated between {found.low_s:g} and {found.high_s:g} s; "
                "at one of these it would be exact."
            )
    if slo.kind == "goodput":
        said.append(
            "From buckets the share of requests that miss TTFT or TPOT is at least the larger of the two; it is what is compared."
        )
    if slo.kind == "errors":
        said.append("Requests that a client cancels are in none of vLLM's counters.")
    return said


def _ratios(slo: Slo, known: Mapping[str, Sequence[float]], window: str) -> list[tuple[str, str]]:
    """(name without window, expression) of the ratios recorded for one window, the last one the objective's."""
    if slo.kind == "goodput":
        halves = [(f"weaklink_slo:bad_{kind}:ratio_rate", _latency(slo, kind, known, window)) for kind in ("ttft", "tpot")]
        first, second = (f'{name}{window}{{slo="{_quoted(slo.name)}"}}' for name, _ in halves)
        return [*halves, (RATIO, f"({first} >= {second})\nor {second}\nor {first}")]
    if slo.kind == "errors":
        bad = f"{_failed(slo, window, 'rate')}\n+ {_refused(slo, window, 'rate')}"
        return [(RATIO, f"(\n{bad}\n)\n/\n({_total(slo, window, 'rate')})")]
    if slo.kind == "availability":
        return [(RATIO, f"1 -\n{_up(slo, 'sum', window)}\n/\n{_up(slo, 'count', window)}")]
    return [(RATIO, _latency(slo, slo.kind, known, window))]


def _latency(slo: Slo, kind: str, known: Mapping[str, Sequence[float]], window: str) -> str:
    """The share of events above a threshold, from one bucket or interpolated between two."""
    around, threshold = _around(slo, kind, known)
    family = FAMILIES[kind][0]
    total = f"sum(rate({family}_count{_matchers(slo)}[{window}]))"
    high = f"sum(rate({family}_bucket{_matchers(slo, _le(around.high_s))}[{window}]))"
    if around.low_s == around.high_s:
        return f"1 -\n{high}\n/\n{total}"
    part = (threshold - around.low_s) / (around.high_s - around.low_s)
    low = f"{1 - part:.6g} * sum(rate({family}_bucket{_matchers(slo, _le(around.low_s))}[{window}]))\n+ " if around.low_s else ""
    return f"1 -\n(\n{low}{part:.6g} * {high}\n)\n/\n{total}"


def _le(edge: float) -> str:
    """The matcher of a bucket edge: exposed as 1.0 by vLLM, as 1 by other front ends."""
    text = f"{edge:g}".replace(".", r"\\.")
    return f'le=~"{text}(\\\\.0)?"' if float(edge).is_integer() else f'le=~"{text}"'


def _total(slo: Slo, window: str, function: str) -> str:
    """All events of a window, as a rate or an increase."""
    if slo.kind == "availability":
        return _up(slo, "count", window)
    if slo.kind == "errors":
        return f"sum({function}(vllm:request_success_total{_matchers(slo)}[{window}]))\n+ {_refused(slo, window, function)}"
    family = FAMILIES["ttft" if slo.kind == "goodput" else slo.kind][0]
    return f"sum({function}({family}_count{_matchers(slo)}[{window}]))"


def _failed(slo: Slo, window: str, function: str) -> str:
    reasons = f'finished_reason=~"{"|".join(FAILED)}"'
    return f"sum({function}(vllm:request_success_total{_matchers(slo, reasons)}[{window}]))"


def _refused(slo: Slo, window: str, function: str) -> str:
    """Requests that the API server answered with 5xx; 0 where it counts none."""
    more = (*_server(slo), 'status=~"5.*"', f'handler=~".*({"|".join(GENERATES)}).*"')
    return f"(sum({function}(http_requests_total{{{', '.join(more)}}}[{window}])) or vector(0))"


def _up(slo: Slo, what: str, window: str) -> str:
    """Scrapes of vLLM servers in a window: `sum` those answered, `count` all."""
    up = f"up{{{', '.join(_server(slo))}}}" if _server(slo) else "up"
    return f"sum({what}_over_time({up}[{window}]) and on (job, instance) last_over_time(vllm:num_requests_running{_matchers(slo)}[1d]))"


# -- YAML ---------------------------------------------------------------------------------------------------------------------
def _yaml(value: Any, indent: int = 0) -> str:
    """Mappings, lists and texts as YAML: texts of several lines as blocks, others in JSON's quotes."""
    pad = " " * indent
    if isinstance(value, Mapping):
        return "".join(f"{pad}{key}:{_after(one, indent)}" for key, one in value.items())
    lines = []
    for one in value:
        text = _yaml(one, indent + 2)
        lines.append(f"{pad}- {text[indent + 2 :]}")
    return "".join(lines)


def _after(value: Any, indent: int) -> str:
    """What stands after a key and its colon."""
    if isinstance(value, Mapping | list):
        return f"\n{_yaml(value, indent + 2)}" if value else " []\n"
    text = str(value)
    if "\n" in text:
        return " |-\n" + "".join(f"{' ' * (indent + 2)}{line}\n" for line in text.splitlines())
    plain = re.fullmatch(r"[A-Za-z_][\w:.-]*|\d+(ms|[smhdwy])", text)
    return f" {text if plain else json.dumps(text, ensure_ascii=False)}\n"
