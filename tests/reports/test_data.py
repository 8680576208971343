"""The data of a report: a bundle like any other, trimmed to the window, that judges the same in a fresh store."""

import gzip
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from recordings import INCIDENTS, NOON, finished, judged, loaded, scrape, series
from typer.testing import CliRunner

from app.cli import app
from app.incident.kept import Asked
from app.ingest import load
from app.reporting import drawn, report
from app.store import Store

JUDGED = ("targets", "engines", "window", "requests", "timeline", "hypotheses", "workload", "series", "impact")


def part(name: str, first: float, last: float) -> tuple[Store, Asked]:
    """Return a share of a sample incident's window."""
    store, _ = loaded(INCIDENTS / name)
    whole = judged(INCIDENTS / name).attribution
    low, high = round(whole.start, 3), round(whole.end, 3)
    return store, Asked(low + first * (high - low), low + last * (high - low), slo={"ttft": 0.5})


@pytest.mark.parametrize(("name", "redact"), [("kv_eviction", True), ("kv_transfer", False)])
def test_a_part_of_a_recording_is_trimmed_and_judges_the_same(name: str, redact: bool, tmp_path: Path):
    store, asked = part(name, 0.3, 0.8)
    one = report(store, asked, redact=redact, with_data="data.zip")
    assert one.plain["data"]["says"] == "loaded into an empty store it gives the same judgement"
    assert one.data is not None
    path = tmp_path / "data.zip"
    path.write_bytes(one.data.data)
    with Store() as fresh:
        results = load(fresh, [path])
        assert {result.format for result in results if result.format} == {"rows"}
        assert not any(result.rejected for result in results)
        again = report(fresh, asked, redact=False).plain
        assert fresh.rows("SELECT count(*) FROM sample")[0][0] < 0.7 * store.rows("SELECT count(*) FROM sample")[0][0]
    assert {key for key in JUDGED if json.dumps(again[key]) != json.dumps(one.plain[key])} == set()


def test_the_command_in_the_report_makes_the_same_judgement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    runner = CliRunner()
    arguments = [
        "report",
        str(INCIDENTS / "output"),
        "--format",
        "json",
        "--out",
        "first.json",
        "--with-data",
        "--slo",
        "e2e=1",
        "--show-replaced",
    ]
    done = runner.invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert "server-1" in done.stderr
    first = json.loads(Path("first.json").read_text())
    command = first["data"]["command"].split()
    assert command[:3] == ["weaklink", "report", "first-data.zip"]
    done = runner.invoke(app, [*command[1:], "--format", "json", "--out", "second.json"])
    assert done.exit_code == 0, done.output
    second = json.loads(Path("second.json").read_text())
    assert {key for key in JUDGED if second[key] != first[key]} == set()


def test_the_command_of_a_report_reads_back_its_window(tmp_path: Path):
    store, asked = part("output", 0.25, 0.75)
    plain = report(store, asked, named=["some folder"]).plain
    said = plain["reproduce"]
    assert f"--from {asked.start!r} --to {asked.end!r} --slo ttft=0.5" in said
    assert said.startswith("weaklink report ")


def rebooted(path: Path) -> None:
    """Write a recording with a restart, a failed scrape and a second of silence."""
    lines = []
    for t in range(60):
        count = t if t < 30 else t - 30
        values: dict[str, Any] = {
            **finished(count, ttft=0.5, queue=0.3, prefill=0.2, decode=1.0, e2e=1.6),
            "process_start_time_seconds": NOON - 100 if t < 30 else NOON + 29,
        }
        values[series("num_requests_waiting")] = 2 if t > 10 else 0
        lines.append(scrape(t, None if t == 20 else values) if t not in {40, 41, 42} else "")
    path.write_text("".join(lines))


def test_a_restart_and_its_epochs_survive(tmp_path: Path):
    rebooted(tmp_path / "m.jsonl")
    with Store() as store:
        load(store, [tmp_path / "m.jsonl"])
        one = report(store, Asked(NOON + 5, NOON + 50), with_data="d.zip")
    assert one.plain["source"]["restarts"] == 1
    assert one.plain["data"]["says"] == "loaded into an empty store it gives the same judgement"
    assert any("restart, seen by scrapes" in event["what"] for event in one.plain["timeline"])
    (coverage,) = one.plain["coverage"]
    assert (coverage["failed"], coverage["longest_gap_s"]) == (1, 4.0)


def test_other_programs_metrics_and_other_servers_stay_home(tmp_path: Path):
    lines = [
        scrape(t, {**finished(t, ttft=0.5), "acme_secret_total": t})
        + scrape(t, finished(t, ttft=0.5), "http://10.0.0.9:8000/metrics")
        for t in range(20)
    ]
    (tmp_path / "m.jsonl").write_text("".join(lines))
    with Store() as store:
        load(store, [tmp_path / "m.jsonl"])
        one = report(store, Asked(engines=("127.0.0.1:8000/0",)), redact=False, with_data="d.zip")
    assert one.data is not None
    with zipfile.ZipFile(io.BytesIO(one.data.data)) as archive:
        text = gzip.decompress(archive.read("m.jsonl")).decode()
    assert "vllm:time_to_first_token_seconds_sum" in text
    assert "acme_secret" not in text
    assert "10.0.0.9" not in text
    assert one.plain["data"]["says"].startswith("loaded into an empty store it gives the same")


def test_the_same_window_gives_the_same_bytes():
    store, asked = part("output", 0.2, 0.9)
    first, second = (report(store, asked, with_data="d.zip") for _ in range(2))
    assert first.data == second.data
    assert drawn(first.plain, "html") == drawn(second.plain, "html")
