"""How right the analyzers are may only get better: the bars of issue 4 on committed inputs, and what was reached."""

import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from accuracy import bars, calibrate, checks, lab, packed, scores
from accuracy.table import HEALTHY

from analyzers.model import Engine, Event, Window


def hold(values: Iterable[tuple[str, float]]) -> None:
    recorded = bars.reached()
    complaints = [said for name, value in values if (said := bars.complaint(name, value, recorded))]
    assert not complaints, "\n".join(complaints)


@pytest.mark.parametrize("name", scores.truths())
def test_real_pair(name: str):
    hold(checks.pair(name))


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_run(name: str):
    hold(checks.healthy(name))


def test_other_runs():
    hold(checks.other())


@pytest.mark.parametrize(("before", "after"), checks.COMPARED)
def test_comparison(before: str, after: str):
    hold(checks.compared(before, after))


@pytest.mark.parametrize("level", scores.LEVELS)
def test_lab(level: str):
    hold(checks.lab_level(level))


@pytest.mark.parametrize("level", scores.LEVELS)
def test_larger_fault_larger_part(level: str):
    hold(checks.lab_series(level))


# -- the record -------------------------------------------------------------------------------------------------------------------
def test_missed_bars_stand_beside_what_is_reached():
    for name, was in bars.reached().items():
        bar = bars.bar_of(name)
        assert bar.met(was.value) == (was.missed is None), name
        assert was.missed in {None, bar.limit}, name


def test_a_worse_value_is_told():
    recorded = {"lab/metrics/e2e/top": bars.Reached(0.9, None), "lab/logs/e2e/top": bars.Reached(0.8, 0.9)}
    assert bars.complaint("lab/metrics/e2e/top", 0.895, recorded) is None
    assert "worse" in (bars.complaint("lab/metrics/e2e/top", 0.88, recorded) or "")
    assert bars.complaint("lab/logs/e2e/top", 0.81, recorded) is None
    assert "worse" in (bars.complaint("lab/logs/e2e/top", 0.78, recorded) or "")
    assert "bar" in (bars.complaint("lab/hashes/e2e/top", 0.5, recorded) or "")
    assert "no value" in (bars.complaint("lab/hashes/e2e/top", math.nan, recorded) or "")


# -- inputs -----------------------------------------------------------------------------------------------------------------------
def same(a: Engine, b: Engine) -> None:
    for table in packed.TABLES:
        first, second = getattr(a, table), getattr(b, table)
        assert first.keys() == second.keys()
        for name in first:
            assert first[name].dtype == second[name].dtype, (table, name)
            numbers = first[name].dtype.kind == "f"
            assert np.array_equal(first[name], second[name], equal_nan=numbers), (table, name)
    assert {k: [x.tolist() for x in v] for k, v in a.bucket.items()} == {k: [x.tolist() for x in v] for k, v in b.bucket.items()}
    assert (a.instance, a.engine, a.model, a.version, a.total, a.kv) == (b.instance, b.engine, b.model, b.version, b.total, b.kv)
    assert repr(a.facts) == repr(b.facts)
    assert repr(a.event) == repr(b.event)


def test_an_engine_survives_its_file(tmp_path: Path):
    n = 7
    columns = {
        "rising": 1.7e9 + np.array([0.001, 0.5, 0.75, 1.0, 2.0, 2.0, 3.25]),
        "falling": np.array([3.0, 2.5, math.nan, 1.0, 0.0, -1.0, 1e-9]),
        "raw": np.array([math.pi, math.e, math.inf, -math.inf, math.nan, 1e300, 1e-300]),
        "nothing": np.full(n, math.nan),
        "whole": np.arange(n, dtype=float),
        "flag": np.array([True, False] * 3 + [True]),
        "on": np.ones(n, bool),
        "text": np.array(["a", None, "ä"] * 2 + ["b"], dtype=object),
    }
    engine = Engine(
        "host:1",
        "0",
        model="m",
        version=None,
        interval=columns,
        step={k: v[:0] for k, v in columns.items()},
        request={"one": np.array([0.1])},
        bucket={"family": (np.array([1.0, math.inf]), np.array([2.0, 0.0]))},
        total={"e2e_s": 1.25},
        facts={"graph_size": math.inf, "blocks": 10.0, "slots": 4, "off": False, "none": None, "sizes": [1, 2]},
        kv={"gaps": 0.0},
        event=(Event(math.nan, None, "eplb", {"avg_tokens": 1.5}, "log", 3),),
    )
    packed.write(tmp_path / "x.json.gz", packed.pack(Window(1.0, None, (engine,), 2)))
    back = packed.unpack(packed.read(tmp_path / "x.json.gz"))
    assert (back.start, back.end, back.restarts) == (1.0, None, 2)
    same(engine, back.engines[0])


@pytest.mark.parametrize("name", ["h200-0.33.0-kv-preempt-s2", "cpu-0.32.0-g-restart"])
def test_a_reduced_capture_survives_its_file(name: str, tmp_path: Path):
    window = scores.capture(name)
    packed.write(tmp_path / "x.json.gz", packed.pack(window))
    assert (tmp_path / "x.json.gz").read_bytes() == (scores.HERE / "captures" / f"{name}.json.gz").read_bytes()
    for a, b in zip(window.engines, packed.unpack(packed.read(tmp_path / "x.json.gz")).engines, strict=True):
        same(a, b)


def test_reduction_drops_ids_and_addresses():
    engine = Engine(
        "host:1",
        "0",
        request={"request_id": np.array(["x"], dtype=object), "e2e_s": np.array([1.23456789])},
        facts={"args": {"port": 1, "kv_events_config": {"endpoint": "tcp://h:1", "publisher": "zmq"}}},
        event=(Event(1.0, None, "access", {}, "server.log", 1), Event(1.0, None, "eplb", {}, "server.log", 2)),
    )
    [reduced] = packed.reduced(Window(None, None, (engine,))).engines
    assert {k: v.tolist() for k, v in reduced.request.items()} == {"e2e_s": [1.234568]}
    assert reduced.facts["args"] == {"kv_events_config": {"publisher": "zmq"}}
    assert [e.kind for e in reduced.event] == ["eplb"]


def test_levels_see_what_they_should():
    window = scores.capture("h200-0.33.0-kv-preempt-s2")
    assert scores.levels_of(window) == scores.LEVELS
    seen = {level: scores.restrict(window, level).engines[0] for level in scores.LEVELS}
    assert {k: (len(e.step["ts"]) > 0, len(e.request["arrival_ts"]) > 0, bool(e.kv)) for k, e in seen.items()} == {
        "metrics": (False, False, False),
        "logs": (True, False, False),
        "requests": (False, True, False),
        "hashes": (True, True, True),
    }


def test_lab_scenarios_are_consistent():
    """Stages add up, and true parts add up to what fixing all would save."""
    found = lab.scenarios()
    assert len(found) == 30
    for scenario in found:
        t = scenario.engine.total
        assert t["ttft_s"] + t["decode_s"] == pytest.approx(t["e2e_s"], abs=1e-3)
        assert t["e2e_s"] / t["e2e_n"] == pytest.approx(scenario.measured["e2e"], rel=1e-6)
        assert scenario.engine.interval["step_n"].sum() == len(scenario.engine.step["ts"])
        assert sum(scenario.parts["e2e"].values()) < scenario.measured["e2e"]


# -- calibration ------------------------------------------------------------------------------------------------------------------
def test_few_cases_take_the_prior_and_many_the_quantiles():
    few = ([0.5] * 4, [0.8, 1.1])
    assert calibrate.cell("metrics", "slots", few) == (0.04, 0.8, pytest.approx(1 + 0.04 / 0.3), "  # prior: inactive, active")
    many = ([0.01] * 90 + [0.3] * 10, [0.5] * 10 + [1.0] * 80 + [3.0] * 10)
    inactive, least, most, mark = calibrate.cell("metrics", "slots", many)
    assert 0.01 <= inactive <= 0.3
    assert (least, most, mark) == (0.5, 3.0, "")


def test_no_range_is_narrower_than_two_runs_of_one_load_differ():
    _, least, most, _ = calibrate.cell("metrics", "slots", ([0.0] * 50, [1.0] * 50))
    assert (least, most) == (pytest.approx(0.94), pytest.approx(1.06))


def test_rules_name_what_fires_first():
    engine = scores.capture("h200-0.24.0-slots").engines[0]
    assert scores.rules(engine, "ttft") == "slots"
    full = replace(engine, interval={**engine.interval, "kv_usage_ratio": np.full(len(engine.interval["ts"]), 0.95)})
    assert scores.rules(full, "ttft") == "kv_eviction"
