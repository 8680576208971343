"""What `weaklink doctor` says: there, renamed, missing, off, wrong; links; flags. The table names only what exists."""

import json

import pytest
from recordings import INCIDENTS, finished, loaded, recorded, scrapes, series, stored
from typer.testing import CliRunner

from analyzers.links import CHAIN
from app import doctor
from app.cli import app


def states(report: doctor.Report) -> dict[str, str]:
    return {finding.signal: finding.state for finding in report.signals}


def links(report: doctor.Report) -> dict[str, str]:
    return {judged.link: judged.how for judged in report.links}


def test_nothing():
    assert doctor.examine(stored()) == []


def test_the_table_is_whole():
    rules = doctor.table()
    names = [rule["name"] for rule in rules["signal"]]
    assert len(names) == len(set(names))
    assert {rule["name"] for rule in rules["link"]} == {module.LINK.name for module in CHAIN}
    used = {name for rule in rules["link"] for ways in (rule["exact"], rule["estimate"]) for one in ways for name in one}
    assert used | {rule["signal"] for rule in rules["wrong"]} <= set(names)
    for rule in rules["signal"]:
        assert ("series" in rule) != ("rows" in rule), rule["name"]
        assert bool(rule["flag"]) == bool(rule["cost"]), rule["name"]
        assert not rule["flag"].startswith("--") or rule["flag"].count("'") % 2 == 0, rule["name"]


def test_an_older_name_is_a_renamed_signal(tmp_path):
    old = {
        series("gpu_cache_usage_perc"): 0.5,
        series("time_per_output_token_seconds_sum"): 1.0,
        series("num_requests_running"): 1,
    }
    (report,) = doctor.examine(stored(scrapes(tmp_path / "metrics.jsonl", [(0, old), (1, old)])), "0.9.2")
    found = {finding.signal: finding for finding in report.signals}
    assert (found["kv_usage"].state, found["itl"].state) == ("renamed", "renamed")
    assert "vllm:gpu_cache_usage_perc" in found["kv_usage"].says
    assert "not in vLLM 0.9.2: since 0.16" in found["tokens_by_source"].says
    assert found["stages"].state == "missing"
    assert links(report)["frontend"] == "unknown"


def test_series_of_ray_are_series_of_vllm(tmp_path):
    values = {name.replace("vllm:", "ray_vllm_"): value for name, value in finished(3, ttft=0.1).items()}
    (report,) = doctor.examine(stored(scrapes(tmp_path / "metrics.jsonl", [(0, values), (1, values)])))
    assert states(report)["stages"] == "present"


@pytest.mark.parametrize(
    ("version", "state", "usable"), [("0.24.0", "wrong", False), ("0.33.0", "present", True), (None, "present", True)]
)
def test_what_is_wrong_in_a_version(tmp_path, version, state, usable):
    line = "(Worker_TP0_EP0 pid=1) INFO 11-29 12:00:10 [eplb_state.py:634] EPLB step: 4 for model M: avg_tokens=120.00, max_tokens=310, balancedness=0.3871\n"
    file = tmp_path / "server.log"
    stats = "(APIServer pid=1) INFO 11-29 12:00:10 [loggers.py:1] Engine 000: Avg prompt throughput: 1.0 tokens/s, Avg generation throughput: 1.0 tokens/s, Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 1.0%, Prefix cache hit rate: 0.0%\n"
    file.write_text(stats + line)
    (report,) = doctor.examine(stored(file), version)
    (found,) = [finding for finding in report.signals if finding.signal == "balancedness"]
    assert (found.state, found.usable) == (state, usable)


def test_the_flags_that_serve_most_come_first(tmp_path):
    values = finished(3, ttft=0.1)
    (report,) = doctor.examine(stored(scrapes(tmp_path / "metrics.jsonl", [(0, values), (1, values)])), "0.33.0")
    proposed = doctor.flags(report)
    assert [finding.signal for finding in proposed][:2] == ["iteration_lines", "kv_events"]
    assert "--logging-config.formatter json" in proposed[0].flag
    assert "iteration_seconds" not in {finding.signal for finding in proposed}
    text = doctor.render([report])
    assert all(finding.flag in text and finding.cost in text for finding in proposed)


@pytest.mark.parametrize("name", recorded(INCIDENTS))
def test_every_incident_has_its_stages(name):
    for report in doctor.examine(loaded(INCIDENTS / name)[0]):
        assert states(report)["stages"] == "present"
        assert (report.version is None) == (name == "output")  # which has no log, and nothing else says the version
        assert links(report)["output"] == "exact"


def test_the_verb(tmp_path):
    values = finished(3, ttft=0.1)
    file = scrapes(tmp_path / "metrics.jsonl", [(0, values), (1, values)])
    found = CliRunner().invoke(app, ["doctor", str(file), "--format", "json"])
    assert found.exit_code == 0
    assert json.loads(found.stdout)[0]["instance"] == "127.0.0.1:8000"
    assert CliRunner().invoke(app, ["doctor", str(file)]).stdout.startswith("127.0.0.1:8000  vLLM version unknown")
    nobody = CliRunner().invoke(app, ["doctor", "127.0.0.1:9"])
    assert nobody.exit_code == 2
