"""The exported rules: what a stock Prometheus makes of them, checked and tested by its own tool over replayed incidents."""

import json
import math
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
import pytest
from alerts.incident import stored, texts

from analyzers.slo import PAGE, Rule, Slo
from app.alerts import export, grafana
from app.alerts.definitions import Definitions
from app.alerts.preview import preview

EVERY: Final = 5.0
DEFINITIONS: Final = Definitions(interval_s=EVERY, dashboard="http://weaklink.example:8501")
CHAT: Final = Slo('chat "TTFT"', "ttft", 0.99, 1.0, pending_s=EVERY, keep_s=2 * EVERY)
EVERYTHING: Final = (
    CHAT,
    replace(CHAT, name="odd", threshold_s=1.6, model="m8b", engine="127.0.0.1:8000/1"),
    replace(CHAT, name="fast", threshold_s=0.0005),
    Slo("tokens", "itl", 0.999, 0.11),
    Slo("tpot", "tpot", 0.95, 0.025),
    Slo("e2e", "e2e", 0.95, 5.0),
    Slo("queue", "queue", 0.99, 0.5, engine="1"),
    Slo("good", "goodput", 0.95, 1.0, 0.05),
    Slo("errors", "errors", 0.99, engine="127.0.0.1:8000"),
    Slo("up", "availability", 0.999),
    replace(CHAT, name="short", rules=(Rule(PAGE, 0.02, 1.5, 0.25),), period_s=60.0),
)


def promtool(*arguments: str, folder: Path) -> str:
    done = subprocess.run([shutil.which("promtool"), *arguments], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_no_objective_is_an_empty_file():
    assert export.rules((), DEFINITIONS).text.endswith("groups: []\n")


def test_a_threshold_above_the_last_edge_is_left_out_with_the_reason():
    found = export.rules((replace(CHAT, threshold_s=9000.0),), DEFINITIONS)
    assert found.left_out == ['chat "TTFT": 150m lies above the last bucket edge (2560 s): buckets cannot tell']


def test_an_interpolated_threshold_is_flagged_with_its_edges():
    found = export.rules((replace(CHAT, threshold_s=1.6),), DEFINITIONS)
    assert "far from an edge" in found.notes[0]
    assert "between 1 and 2.5 s" in found.notes[0]
    assert "0.6 * sum(rate" in found.text
    assert "0.4 * sum(rate" in found.text


def test_edges_of_the_store_take_the_place_of_the_defaults():
    known = {CHAT.name: {"ttft": [0.8, 4.0]}}
    assert "between 0.8 and 4 s" in export.rules((CHAT,), DEFINITIONS, known).notes[0]
    assert export.edges_in(stored("healthy"), (CHAT,))[CHAT.name]["ttft"] == list(export.DEFAULT_EDGES["ttft"])


@pytest.mark.parametrize("kind", ["itl", "tpot", "e2e", "queue"])
def test_the_default_edges_are_those_of_a_recorded_server(kind: str):
    slo = Slo("x", kind, 0.99, 1.0)
    assert export.edges_in(stored("healthy"), (slo,))["x"][kind] == list(export.DEFAULT_EDGES[kind])


def test_factors_are_computed_and_each_alert_has_a_runbook():
    text = export.rules((CHAT,), DEFINITIONS).text
    assert all(f"> ({rate} * 0.01)" in text for rate in ("14.4", "6", "1"))
    assert text.count('runbook_url: "http://weaklink.example:8501/alerts"') == 2


@pytest.mark.prometheus
def test_promtool_accepts_every_kind_of_objective(tmp_path: Path):
    (tmp_path / "rules.yml").write_text(export.rules(EVERYTHING, DEFINITIONS).text)
    assert "SUCCESS" in promtool("check", "rules", "rules.yml", folder=tmp_path)


@pytest.mark.prometheus
def test_promtool_accepts_every_expression_of_the_dashboard(tmp_path: Path):
    rules = [{"record": f"panel:{at}", "expr": one} for at, one in enumerate(grafana.expressions(EVERYTHING))]
    (tmp_path / "rules.json").write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    assert f"{len(rules)} rules found" in promtool("check", "rules", "rules.json", folder=tmp_path)


def test_the_dashboard_is_whole():
    made = json.loads(grafana.dashboard(EVERYTHING))
    ids = [panel["id"] for panel in made["panels"]]
    assert len(set(ids)) == len(ids) == len(EVERYTHING) + len(grafana.PANELS)
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in made["panels"]]
    assert len(set(places)) == len(places)
    assert all(panel["targets"] and panel["title"] for panel in made["panels"])
    assert {one["name"] for one in made["templating"]["list"]} == {"source", "model", "instance"}


# -- promtool test rules, over recordings -----------------------------------------------------------------------------------
# incident -> what fires in it
FIRES: Final = {
    "prefill_backlog": CHAT,
    "slots": CHAT,
    "engine_stall": Slo("tokens", "itl", 0.999, 0.1, pending_s=EVERY, keep_s=2 * EVERY),
    "kv_eviction": replace(CHAT, name="long", threshold_s=2.5),
}


def inputs(name: str, kind: str) -> list[dict[str, str]]:
    """Every series of a histogram as promtool takes it: a value each second, _ where none was scraped."""
    family = {"ttft": "vllm:time_to_first_token_seconds", "itl": "vllm:inter_token_latency_seconds"}[kind]
    found = texts(name)
    start, end = found[0][0], found[-1][0]
    columns: dict[str, list[str]] = {}
    for at in range(math.ceil(end - start) + 1):
        last = [text for ts, _, text in found if start + at - 1 < ts <= start + at]
        for line in last[-1].splitlines() if last else []:
            if line.startswith((f"{family}_bucket{{", f"{family}_count{{")):
                series, _, value = line.rpartition(" ")
                column = columns.setdefault(series, [])
                column += ["_"] * (at - len(column)) + [value]
    return [{"series": series, "values": " ".join([*column, "_"])} for series, column in columns.items()]


def run_over(folder: Path, name: str, slo: Slo, checks: list[tuple[float, bool]]) -> str:
    """Run promtool: at each instant, seconds after the start, something fires or nothing does."""
    (folder / "rules.yml").write_text(export.rules((slo,), DEFINITIONS).text)
    cases = []
    for at, fires in checks:
        samples = [{"labels": "{}", "value": 1}] if fires else []
        expression = 'max(ALERTS{alertname="WeaklinkSloBurn", alertstate="firing"})'
        cases.append({"expr": expression, "eval_time": f"{round(1000 * at)}ms", "exp_samples": samples})
    tests = [{"interval": "1s", "input_series": inputs(name, slo.kind), "promql_expr_test": cases}]
    body = {"rule_files": ["rules.yml"], "evaluation_interval": f"{EVERY:.0f}s", "tests": tests}
    (folder / "test.json").write_text(json.dumps(body))  # JSON is YAML
    return promtool("test", "rules", "test.json", folder=folder)


@pytest.mark.prometheus
@pytest.mark.parametrize("name", FIRES)
def test_rules_fire_in_the_fault_run_when_weaklink_says_so(tmp_path: Path, name: str):
    slo = FIRES[name]
    buckets = replace(slo, engine=None)
    found = preview(stored(name), buckets, -math.inf, math.inf, EVERY)
    fired = found.episodes[0].fired_ts - texts(name)[0][0]
    # evaluated at multiples of 5 s in both; weaklink's first look may be a moment later
    checks = [(at, False) for at in np.arange(EVERY, fired - EVERY, EVERY)] + [(fired + 2 * EVERY, True)]
    assert "SUCCESS" in run_over(tmp_path, name, slo, checks)


@pytest.mark.prometheus
@pytest.mark.parametrize(
    "slo", sorted({slo.name: slo for slo in FIRES.values()}.values(), key=lambda slo: slo.name), ids=lambda slo: slo.name
)
def test_rules_stay_quiet_in_the_healthy_run(tmp_path: Path, slo: Slo):
    assert "SUCCESS" in run_over(tmp_path, "healthy", slo, [(at, False) for at in np.arange(EVERY, 75, EVERY)])
