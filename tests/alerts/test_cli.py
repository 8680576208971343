"""`weaklink alerts`: what it prints, its exit status, and what it leaves in the store."""

import json
import time
from pathlib import Path

import pytest
from alerts.given import NOON, course, recorded
from typer.testing import CliRunner

from app.cli import app
from app.store import Store

SLO = """
[alerts]
interval = "10s"
[[slo]]
name = "chat"
kind = "ttft"
threshold = "1s"
objective = "99%"
period = "78000s"
minimum = 12
pending = "0s"
burn = [{severity = "page", budget = "2%", long = "120s", short = "30s"}]
[[notify]]
name = "hook"
kind = "webhook"
url = "http://127.0.0.1:9/hook"
title = "$slo is $state"
"""
BURN = [0, 0, 0, 0, 0, 0, 9, 9, 9]


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    """Return the paths of a store in which a burn goes on now, and of the objectives."""
    slo, path = tmp_path / "slo.toml", tmp_path / "store.duckdb"
    slo.write_text(SLO)
    with Store(path) as store:
        recorded(tmp_path, course(BURN, start=time.time() - NOON - 90), store=store)
    return str(path), str(slo)


def weaklink(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["alerts", *arguments], catch_exceptions=False)
    return done.exit_code, done.output


def test_nothing_defined_is_quiet(tmp_path: Path):
    status, said = weaklink("check", "--store", str(tmp_path / "store.duckdb"))
    assert (status, "no objective is defined" in said) == (0, True)


def test_a_check_fires_tells_and_lists(files: tuple[str, str]):
    store, slo = files
    status, said = weaklink("check", "--store", store, "--slo", slo)
    assert status == 3, said
    assert said.startswith("FIRING  page    chat: burning; burn 21.4 (fires above 13)")
    assert "http://127.0.0.1:8501/?" in said
    status, said = weaklink("list", "--store", store, "--slo", slo)
    assert status == 0
    assert "firing         chat" in said
    assert "notification 1 of alert 1 to hook: waits after 1 attempts" in said
    found = json.loads(weaklink("list", "--store", store, "--slo", slo, "--format", "json")[1])
    assert [one["status"]["phase"] for one in found["slos"]] == ["firing"]
    assert [(one["slo"], one["resolved_ts"]) for one in found["alerts"]] == [("chat", None)]


def test_an_alert_is_acknowledged(files: tuple[str, str]):
    store, slo = files
    weaklink("check", "--store", store, "--slo", slo)
    assert weaklink("ack", "1", "--store", store, "--by", "ada") == (0, "alert 1 is acknowledged by ada\n")
    assert json.loads(weaklink("ack", "1", "--store", store, "--format", "json")[1])["acknowledged_by"] == "ada"
    assert weaklink("ack", "13", "--store", store) == (1, "weaklink: no alert has the number 13\n")


def test_an_instant_is_judged_without_a_trace(files: tuple[str, str]):
    store, slo = files
    assert weaklink("check", "--store", store, "--slo", slo, "--at", "newest")[0] == 3
    assert weaklink("check", "--store", store, "--slo", slo, "--at", f"{time.time() - 60}")[0] == 0
    assert json.loads(weaklink("list", "--store", store, "--format", "json")[1])["alerts"] == []
    assert weaklink("check", "--store", store, "--slo", slo, "--at", "noon")[0] == 1


def test_a_preview_counts_and_shows_the_message(files: tuple[str, str]):
    store, slo = files
    status, said = weaklink("preview", "--store", store, "--slo", slo, "--notifier", "hook")
    assert status == 0
    assert said.startswith(
        "chat: would have fired 1 time in this data; 27 of 126 bad, budget left -2042.9 %; from histogram buckets"
    )
    assert "\nchat is FIRING\n" in said
    found = json.loads(weaklink("preview", "--store", store, "--slo", slo, "--format", "json")[1])
    assert [one["severity"] for one in found[0]["alerts"]] == ["page"]
    assert weaklink("preview", "--store", store, "--slo", slo, "--notifier", "none")[0] == 1


def test_rules_and_dashboard_are_written(files: tuple[str, str], tmp_path: Path):
    store, slo = files
    rules, panel = tmp_path / "rules.yml", tmp_path / "panel.json"
    status, said = weaklink("export", "--store", store, "--slo", slo, "--to", str(rules), "--grafana", str(panel))
    assert (status, said.splitlines()) == (0, [f"written: {rules}", f"written: {panel}"])
    assert "WeaklinkSloBurn" in rules.read_text()
    assert json.loads(panel.read_text())["panels"]
    assert weaklink("export", "--store", store, "--slo", slo)[0] == 1


def test_a_silence_is_listed_and_ended(files: tuple[str, str]):
    store, slo = files
    assert weaklink("silence", "--store", store, "--slo", "chat", "--for", "2h", "--reason", "planned") == (
        0,
        "silence 1 lasts 2h\n",
    )
    assert "silence 1: chat until" in weaklink("list", "--store", store)[1]
    weaklink("check", "--store", store, "--slo", slo)
    assert json.loads(weaklink("list", "--store", store, "--format", "json")[1])["notifications"] == []
    assert weaklink("silence", "--store", store, "--end", "1") == (0, "silence 1 ended\n")
    assert weaklink("silence", "--store", store, "--end", "1")[0] == 1
    assert weaklink("silence", "--store", store, "--for", "long")[0] == 1
    assert weaklink("silence", "--store", store, "--severity", "all")[0] == 1


def test_a_bad_file_is_a_wrong_argument(tmp_path: Path):
    slo = tmp_path / "slo.toml"
    slo.write_text("[[slo]]\n")
    status, said = weaklink("check", "--store", str(tmp_path / "store.duckdb"), "--slo", str(slo))
    assert (status, said) == (1, f"weaklink: {slo}: [[slo]] 1: name: expected a name, the key is missing\n")
