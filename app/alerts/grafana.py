"""A Grafana dashboard (10.4 or newer) of the objectives and of what explains them: imported as JSON, any Prometheus as source."""

import json
from collections.abc import Sequence
from typing import Any, Final

from analyzers.slo import Slo, factor, rules_of
from app.alerts.export import RATIO, prom_span

SOURCE: Final = {"type": "prometheus", "uid": "${source}"}
WHERE: Final = '{model_name=~"$model", instance=~"$instance"}'
RATE: Final = "$__rate_interval"


def _mean(family: str) -> str:
    return f"sum(rate({family}_sum{WHERE}[{RATE}])) / sum(rate({family}_count{WHERE}[{RATE}]))"


def _quantile(family: str, q: float) -> str:
    return f"histogram_quantile({q}, sum by (le) (rate({family}_bucket{WHERE}[{RATE}])))"


# (title, unit, what is drawn: (legend, expression), stacked)
PANELS: Final[tuple[tuple[str, str, tuple[tuple[str, str], ...], bool], ...]] = (
    (
        "TTFT",
        "s",
        tuple((f"p{round(100 * q)}", _quantile("vllm:time_to_first_token_seconds", q)) for q in (0.5, 0.95, 0.99)),
        False,
    ),
    (
        "ITL",
        "s",
        tuple((f"p{round(100 * q)}", _quantile("vllm:inter_token_latency_seconds", q)) for q in (0.5, 0.95, 0.99)),
        False,
    ),
    (
        "Mean seconds of finished requests, by stage",
        "s",
        tuple((name, _mean(f"vllm:request_{name}_time_seconds")) for name in ("queue", "prefill", "decode")),
        True,
    ),
    ("E2E", "s", (("mean", _mean("vllm:e2e_request_latency_seconds")), ("p95", _quantile("vllm:e2e_request_latency_seconds", 0.95))), False),
    (
        "Requests in flight",
        "short",
        (("running", f"sum(vllm:num_requests_running{WHERE})"), ("waiting", f"sum(vllm:num_requests_waiting{WHERE})")),
        True,
    ),
    (
        "KV blocks used",
        "percentunit",
        (("fullest engine", f"max(vllm:kv_cache_usage_perc{WHERE})"), ("emptiest engine", f"min(vllm:kv_cache_usage_perc{WHERE})")),
        False,
    ),
    ("Preemptions a second", "short", (("preemptions", f"sum(rate(vllm:num_preemptions_total{WHERE}[{RATE}]))"),), False),
    (
        "Prefix cache hits, share of prompt tokens",
        "percentunit",
        (("hits", f"sum(rate(vllm:prefix_cache_hits_total{WHERE}[{RATE}])) / sum(rate(vllm:prefix_cache_queries_total{WHERE}[{RATE}]))"),),
        False,
    ),
    (
        "Tokens a second",
        "short",
        (
            ("prompt", f"sum(rate(vllm:prompt_tokens_total{WHERE}[{RATE}]))"),
            ("generated", f"sum(rate(vllm:generation_tokens_total{WHERE}[{RATE}]))"),
        ),
        False,
    ),
)  # fmt: skip


def expressions(slos: Sequence[Slo]) -> list[str]:
    """Every expression that the dashboard asks for, without Grafana's variables: for checking."""
    found = [expression for panel in _panels(slos) for expression in (one["expr"] for one in panel.get("targets", []))]
    known = {"$__rate_interval": "5m", "$model": ".*", "$instance": ".*"}
    for variable, text in known.items():
        found = [one.replace(variable, text) for one in found]
    return found


def dashboard(slos: Sequence[Slo]) -> str:
    """The dashboard's JSON."""
    variables = [
        {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
        *(
            {
                "name": name, "label": label, "type": "query", "datasource": SOURCE, "refresh": 2, "includeAll": True, "multi": True,
                "allValue": ".*", "current": {"text": "All", "value": "$__all"},
                "query": {"query": f"label_values(vllm:num_requests_running, {of})", "refId": "variable"},
            }
            for name, label, of in (("model", "Model", "model_name"), ("instance", "Server", "instance"))
        ),
    ]  # fmt: skip
    made = {
        "title": "vLLM objectives (weaklink)",
        "uid": "weaklink-slo",
        "tags": ["vllm", "weaklink"],
        "schemaVersion": 39,
        "timezone": "utc",
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": variables},
        "panels": _panels(slos),
    }
    return json.dumps(made, indent=1) + "\n"


def _panels(slos: Sequence[Slo]) -> list[dict[str, Any]]:
    """All panels at their places: objectives first, then what explains them, two a row."""
    drawn = [_burn(slo) for slo in slos] + [_panel(title, unit, lines, stacked=stacked) for title, unit, lines, stacked in PANELS]
    for at, panel in enumerate(drawn):
        panel["id"] = at + 1
        panel["gridPos"] = {"x": 12 * (at % 2), "y": 8 * (at // 2), "w": 12, "h": 8}
    return drawn


def _burn(slo: Slo) -> dict[str, Any]:
    """How fast the budget of an objective burns, over each window of its rules; a line where alerts begin."""
    windows = sorted({rule.long_s for rule in rules_of(slo)} | {rule.short_s for rule in rules_of(slo)})
    name = json.dumps(slo.name)
    lines = tuple(
        (f"over {prom_span(one)}", f"{RATIO}{prom_span(one)}{{slo={name}}} / {slo.budget_ratio:.6g}") for one in windows
    )
    panel = _panel(f"{slo.name}: error budget burn", "short", lines, stacked=False)
    steps: list[dict[str, Any]] = [{"color": "transparent", "value": None}]
    steps += [{"color": "red", "value": limit} for limit in sorted({factor(rule, slo.period_s) for rule in rules_of(slo)})]
    panel["fieldConfig"]["defaults"]["thresholds"] = {"mode": "absolute", "steps": steps}
    panel["fieldConfig"]["defaults"]["custom"]["thresholdsStyle"] = {"mode": "dashed"}
    return panel


def _panel(title: str, unit: str, lines: Sequence[tuple[str, str]], *, stacked: bool) -> dict[str, Any]:
    stacking = {"mode": "normal" if stacked else "none", "group": "A"}
    return {
        "type": "timeseries",
        "title": title,
        "datasource": SOURCE,
        "fieldConfig": {
            "defaults": {
                "unit": unit,
                "min": 0,
                "custom": {"lineWidth": 1, "fillOpacity": 25 if stacked else 0, "stacking": stacking},
            },
            "overrides": [],
        },
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + at), "datasource": SOURCE, "expr": expression, "legendFormat": legend}
            for at, (legend, expression) in enumerate(lines)
        ],
    }
