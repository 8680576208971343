"""What a report gathers: what it cost, when it began, what changed, how much was seen; and incidents that are kept."""

import json
from pathlib import Path
from typing import Any

import pytest
from recordings import INCIDENTS, NOON, finished, loaded, scrape, series, started, stats
from typer.testing import CliRunner

from analyzers.slo import Slo
from app.alerts import history
from app.cli import app
from app.incident import incident_for, kept
from app.incident.kept import Asked
from app.ingest import load
from app.reporting import AlertError, of_alert, report
from app.reports.charts import blocks
from app.reports.page import impact
from app.store import Store

EDGES = (0.5, 1.0, 2.5)


def buckets(slow: float, fast: float) -> dict[str, float]:
    """A TTFT histogram: `fast` requests below 0.5 s, `slow` between 1 and 2.5 s."""
    counts = {"0.5": fast, "1.0": fast, "2.5": fast + slow, "+Inf": fast + slow}
    return {series("time_to_first_token_seconds_bucket", le=le): count for le, count in counts.items()}


def slowing(path: Path) -> None:
    """Two minutes: one fast request a second, from the second minute on every second one is slow."""
    lines = []
    for t in range(121):
        slow = max(0, t - 60) // 2
        values: dict[str, Any] = {
            **finished(t, ttft=0.3 + slow / max(t, 1), queue=slow / max(t, 1), prefill=0.2, decode=1.0, e2e=1.5),
            **buckets(slow, t - slow),
        }
        values[series("num_requests_waiting")] = 1 if t > 60 else 0
        lines.append(scrape(t, values))
    path.write_text("".join(lines))


@pytest.fixture
def store(tmp_path: Path):
    slowing(tmp_path / "m.jsonl")
    with Store() as one:
        load(one, [tmp_path / "m.jsonl"])
        yield one


def test_it_counts_requests_minutes_and_budget(store: Store):
    (one,) = incident_for(store, command="x", slo={"ttft": 1.0}).impact
    assert (one.total, one.bad, one.least, one.most) == (120, 30, 30, 30)
    assert (one.minutes, one.bad_minutes) == (3, 2)  # the last scrape begins a third
    assert one.first_ts == NOON + 62
    plain = report(store, Asked(slo={"ttft": 1.0})).plain
    (told,) = plain["impact"]
    assert told["budget_spent_ratio"] == pytest.approx(30 / 1.2)
    assert impact(told).startswith(
        "TTFT at most 1 s: 30 of 120 requests missed it (25 %), in 2 of 3 minutes more than an objective of 99 % (assumed) allows; 25 times"
    )
    assert any(event["what"].startswith("first bad sample") for event in plain["timeline"])


def test_inside_a_bucket_the_count_has_bounds(store: Store):
    (one,) = incident_for(store, command="x", slo={"ttft": 2.0}).impact
    assert (one.least, one.most) == (0, 30)
    assert 0 < one.bad < 30
    assert "between 0 and 30: interpolated" in impact(report(store, Asked(slo={"ttft": 2.0})).plain["impact"][0])


def test_what_cannot_be_counted_says_why(store: Store):
    (one,) = report(store, Asked(slo={"e2e": 1.0})).plain["impact"]
    assert one["missing"]
    assert "cannot be told" in impact(one)
    with Store() as empty:
        assert report(empty, Asked(slo={"ttft": 1.0})).plain["impact"][0]["missing"] == "the recording carries no clock"


def test_it_tells_what_a_restart_changed(tmp_path: Path):
    head = "(APIServer pid=4711) INFO 11-29 {} [x.py:1] non-default args: {}\n"
    first = head.format("12:00:05", {"model": "m", "max_num_seqs": 64})
    second = head.format("12:00:40", {"model": "m", "max_num_seqs": 8})
    (tmp_path / "server.log").write_text(
        started() + first + stats("11-29 12:00:10") + stats("11-29 12:00:20") + second + stats("11-29 12:00:50")
    )
    (tmp_path / "m.jsonl").write_text("".join(scrape(t, finished(t, ttft=0.3)) for t in range(60)))
    with Store() as one:
        load(one, [tmp_path / "m.jsonl", tmp_path / "server.log"])
        said = [what for _, what in incident_for(one, command="x").timeline]
    assert "configuration changed: max_num_seqs 64 -> 8 (127.0.0.1:8000)" in said


def test_the_baseline_is_compared(store: Store):
    plain = report(store, Asked(NOON + 60, NOON + 120, baseline=(NOON, NOON + 60))).plain
    assert plain["baseline"]["name"].startswith("2026-11-29T12:00:00")
    assert any("TTFT" in line for line in plain["baseline"]["changes"])


def test_evidence_names_its_query_and_lines():
    store, _ = loaded(INCIDENTS / "kv_eviction")
    found = incident_for(store, command="x").evidence
    assert found[0].link == "kv_eviction"
    assert "FROM interval_row" in found[0].query
    assert set(found[0].columns) <= {"ts", *found[0].meaning}
    assert found[0].lines[0][0] == "server.log.gz"
    assert "waiting" in found[0].lines[0][3]


def test_progress_is_told(store: Store):
    said: list[str] = []
    report(store, Asked(), with_data="d.zip", progress=said.append)
    assert said[0] == "reading the window"
    assert {"judging", "gathering evidence", "replacing names", "packing the data", "loading the data again"} <= set(said)


def test_a_held_view_is_let_go(store: Store):
    with store.held("interval_row", NOON, NOON + 10):
        assert store.rows("SELECT count(*) FROM interval_row")[0][0] == 10
    assert store.rows("SELECT count(*) FROM interval_row")[0][0] == 120


def test_a_held_view_is_of_its_own_span_whatever_was_asked_before(store: Store):
    store.rows("SELECT count(*) FROM interval_row WHERE ts > $low AND ts <= $high", {"low": NOON + 100, "high": NOON + 110})
    with store.held("epoch", NOON, NOON + 60, before=True), store.held("interval_row", NOON, NOON + 60):
        assert store.rows("SELECT count(*) FROM interval_row")[0][0] == 60
        assert store.rows("SELECT min(ts) FROM epoch")[0][0] == NOON


# -- kept -------------------------------------------------------------------------------------------------------------------------
def test_an_incident_is_kept_with_its_notes(tmp_path: Path):
    asked = Asked(NOON, NOON + 60, ("a/0",), "Slow", "it was slow", {"ttft": 1.0}, None, (NOON - 60, NOON), ("a/0",))
    with Store(tmp_path / "s.duckdb") as one:
        assert kept.rows(one) == []
        number = kept.keep(one, asked, "nothing limits", now=NOON)
        kept.note(one, number, "restarted it", now=NOON + 1)
    with Store(tmp_path / "s.duckdb") as one:
        (found,) = kept.rows(one)
        assert found == kept.one(one, number)
        assert (found.asked, found.verdict, found.notes) == (asked, "nothing limits", ((NOON + 1, "restarted it"),))
        kept.remove(one, number)
        assert kept.rows(one) == []
        assert kept.one(one, number) is None


def test_a_kept_incident_is_reported_from_the_shell(tmp_path: Path):
    slowing(tmp_path / "m.jsonl")
    path = tmp_path / "s.duckdb"
    with Store(path) as one:
        load(one, [tmp_path / "m.jsonl"])
        number = kept.keep(one, Asked(NOON + 60, NOON + 120, title="Slow again", slo={"ttft": 1.0}), "")
    out = tmp_path / "r.json"
    done = CliRunner().invoke(
        app, ["report", "--store", str(path), "--incident", str(number), "--format", "json", "--out", str(out)]
    )
    assert done.exit_code == 0, done.output
    plain = json.loads(out.read_text())
    assert plain["title"] == "Slow again"
    assert plain["impact"][0]["bad"] == 30
    for wrong in (["--incident", "77"], ["--incident", str(number), "--from", "1"], ["--alert", "5"]):
        done = CliRunner().invoke(app, ["report", "--store", str(path), *wrong])
        assert done.exit_code == 1, wrong


def test_an_alert_is_reported_with_its_objective_and_the_time_before(store: Store):
    history.save(store, Slo("chat", "ttft", 0.9, 1.0))
    with store.transaction():
        number = history.new_alert(
            store,
            "chat",
            "page",
            history.LIVE,
            NOON + 62,
            NOON + 90,
            5.0,
            {"says": "Slots limit", "start": NOON + 62, "end": NOON + 120},
        )
    asked = of_alert(store, number)
    assert (asked.start, asked.end, asked.baseline) == (NOON + 62, NOON + 120, (NOON + 4, NOON + 62))
    plain = report(store, asked).plain
    (one,) = plain["impact"]
    assert (one["objective"], one["good_ratio"], one["good_ratio_assumed"]) == ("chat", 0.9, False)
    assert [event["what"] for event in plain["timeline"] if "alert" in event["what"]] == [
        "alert chat: the burn began",
        "alert chat fired (page)",
    ]
    assert plain["reproduce"] == f"weaklink report --alert {number}"
    with pytest.raises(AlertError, match="no alert has the number 99"):
        of_alert(store, 99)


def test_blocks_are_a_chart_in_a_line():
    assert blocks([0, 1, 2, 4]) == "▁▂▄█"
    assert blocks([None, 4, None]) == "·█·"
    assert blocks([0, 0]) == blocks([]) == blocks([None]) == ""
    assert len(blocks(list(range(1, 1000)))) <= 60


def test_the_schema_is_printed():
    done = CliRunner().invoke(app, ["report", "--schema"])
    assert json.loads(done.stdout)["title"] == "weaklink incident"
