"""Real recordings in, the limiting link out: what the servers measured is reproduced, adds up, and is judged right."""

import itertools
import json
import math
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from recordings import DATA, INCIDENTS, NOON, judged, loaded, recorded, stats

from analyzers.attribute import attribute
from analyzers.hits import hits_of
from analyzers.links import CHAIN
from analyzers.model import TARGETS, Target
from app.ingest import load
from app.pipeline import window_of
from app.reports import json as json_report
from app.reports import text as text_report
from app.store import Store

TRUTH: Final[dict[str, Any]] = tomllib.loads((Path(__file__).parent / "accuracy" / "truth.toml").read_text())
LINKS: Final = [module.LINK.name for module in CHAIN]
FOLDERS: Final = {name: folder / name for folder in (INCIDENTS, DATA) for name in recorded(folder)}
SMALL: Final = 1e-6
NOISE: Final = 1e-9  # seconds below which a residue of subtraction is another one on another machine

# Each incident's targets: the links of which one must be named. None: no link limits. "?": it may be undetermined instead.
API: Final = ("frontend", "output")
EXPECTED: Final[dict[str, dict[str, tuple[str | None, ...]]]] = {
    "prefill_backlog": {"ttft": ("prefill_backlog",), "tpot": (None,), "e2e": ("prefill_backlog",)},
    "kv_eviction": {"ttft": ("kv_eviction",), "tpot": (None,), "e2e": ("kv_eviction",)},
    "slots": {"ttft": ("slots",), "tpot": (None,), "e2e": ("slots",)},
    "frontend": {"ttft": API, "tpot": (None, "?"), "e2e": API},
    "output": {"ttft": API, "tpot": (None, "?"), "e2e": API},
    "healthy": {"ttft": (None,), "tpot": (None,), "e2e": (None,)},
    "decode_batch": {"ttft": (None,), "tpot": (None,), "e2e": (None,)},
    "prefix_cache_miss": dict.fromkeys(TARGETS, ("prefix_cache_miss", "?")),
    # a skewed run saves 17 % of E2E when the ranks are balanced; prompts of 2,000 tokens fill its budget as well
    "moe_imbalance": {
        "ttft": ("prefill_backlog", "moe_imbalance", "?"),
        "tpot": ("moe_imbalance", "?"),
        "e2e": ("moe_imbalance", "?"),
    },
    "engine_stall": {"ttft": ("prefill_backlog", None, "?"), "tpot": (None, "?"), "e2e": (None, "?")},
    "kv_transfer": {"ttft": ("kv_transfer",), "tpot": (None,), "e2e": (None,)},
    "speculation": {"ttft": (None,), "tpot": (None, "?"), "e2e": (None, "?")},
    "h200-0.24.0-kv-preempt": {"ttft": ("kv_eviction",), "tpot": (None,), "e2e": ("kv_eviction",)},
    "h200-0.24.0-slots-fixed": {"ttft": (None,), "tpot": (None,), "e2e": (None,)},
    "cpu-0.32.0-g-restart": dict.fromkeys(TARGETS, (None, "?")),
    "cpu-0.32.0-h-aborts": dict.fromkeys(TARGETS, (None, "?")),
    "cpu-0.8.5.post2-a-baseline": dict.fromkeys(TARGETS, (None, "?")),
}


@pytest.fixture(scope="module", params=FOLDERS)
def name(request: pytest.FixtureRequest) -> str:
    """Return a recording; the tests of one follow each other, so that it is loaded once."""
    return request.param


def targets(name: str) -> Iterable[tuple[str, Target]]:
    """Yield every target of every engine and of the whole."""
    found = judged(FOLDERS[name]).attribution
    for engine in found.engines:
        yield from ((f"{engine.instance}/{engine.engine} {key}", target) for key, target in engine.targets.items())
    yield from ((key, target) for key, target in found.targets.items() if target is not None)


def test_every_recording_has_its_expectation_and_its_truth():
    assert set(EXPECTED) == set(FOLDERS) == set(TRUTH)
    for name, folder in FOLDERS.items():
        assert tomllib.loads((folder / "manifest.toml").read_text())["capture"] == TRUTH[name]["capture"]


# -- it adds up --------------------------------------------------------------------------------------------------------


def test_parts_floor_and_unexplained_add_up_to_what_was_measured(name: str):
    judged_any = False
    for where, target in targets(name):
        if target.measured_s is None:
            assert target.verdict == "undetermined", where
            continue
        judged_any = True
        explained = sum(part.seconds or 0.0 for part in target.parts)
        assert explained + target.floor_s + target.unexplained_s == pytest.approx(target.measured_s, abs=SMALL), where
        if not any(condition.startswith("TTFT is of") for condition in target.conditions):
            assert sum(target.stages.values()) == pytest.approx(target.measured_s, abs=SMALL), where
        assert list(target.stages) == list(TARGETS[target.name]), where
    assert judged_any


def test_no_column_holds_more_than_its_stage(name: str):
    for where, target in targets(name):
        for stage in target.stages if target.measured_s is not None else ():
            column = sum(part.cells.get(stage, 0.0) for part in target.parts if part.seconds is not None)
            assert column <= max(target.stages[stage], 0.0) + SMALL, (where, stage)
        for part in target.parts:
            assert all(seconds >= -NOISE for seconds in part.cells.values()), (where, part.link)
            if part.seconds is not None:
                assert sum(part.cells.values()) == pytest.approx(part.seconds, abs=SMALL), (where, part.link)


def test_verdicts_are_consistent(name: str):
    for where, target in targets(name):
        assert [part.link for part in target.parts] == LINKS, where
        assert target.verdict in {"limited", "healthy", "undetermined"}, where
        assert (target.verdict == "limited") == (target.limiting is not None), where
        assert [part.link for part in target.parts if part.status == "limiting"] == (
            [target.limiting] if target.limiting else []
        ), where
        assert target.verdict != "undetermined" or target.cannot_determine, where
        for part in target.parts:
            assert part.status in {"limiting", "contributing", "ok", "unknown"}, (where, part.link)
            assert (part.seconds is None) == (part.status == "unknown"), (where, part.link)
            if part.range_s is not None:
                assert part.range_s[0] <= part.seconds + SMALL, (where, part.link)
                assert part.seconds <= part.range_s[1] + SMALL, (where, part.link)
        if target.limiting:
            assert target.part(target.limiting).evidence, where
            assert target.part(target.limiting).saves_s is None or target.part(target.limiting).saves_s > 0, where


# -- it is judged right ------------------------------------------------------------------------------------------------


def test_the_limiting_link(name: str):
    found = judged(FOLDERS[name]).attribution.targets
    for key, allowed in EXPECTED[name].items():
        target = found[key]
        said = "?" if target.verdict == "undetermined" else target.limiting
        assert said in allowed, f"{key}: {text_report.headline(target)}"


@pytest.mark.parametrize("name", ["healthy", "decode_batch", "h200-0.24.0-slots-fixed"])
def test_a_server_without_a_fault_is_healthy_and_its_load_is_named(name: str):
    for target in judged(FOLDERS[name]).attribution.targets.values():
        assert target.verdict == "healthy"
        assert target.load in {"decode_batch", "prefill_backlog"}
        assert target.runner_up is None


def test_the_limiting_seconds_are_those_that_removing_the_fault_saved():
    """TRUTH: the same load without the fault; here only that the size is right (accuracy/ scores it)."""
    for name, saved in {"prefill_backlog": 2.54, "kv_eviction": 9.31, "slots": 4.24}.items():
        e2e = judged(FOLDERS[name]).attribution.targets["e2e"]
        assert 0.7 * saved < e2e.part(e2e.limiting).seconds < 1.3 * saved, name


# -- what was measured -------------------------------------------------------------------------------------------------


def test_the_server_means_are_reproduced(name: str):
    truth, engines = TRUTH[name], judged(FOLDERS[name]).attribution.engines
    if "means" not in truth:
        assert "servers" in truth  # below
        return
    n = sum(engine.requests for engine in engines)
    assert n == truth["requests"]

    def mean(values: Callable[[Mapping[str, Target]], float]) -> float:
        return sum(engine.requests * values(engine.targets) for engine in engines) / n

    found = {f"{stage}_s": mean(lambda t, stage=stage: t["e2e"].stages[stage]) for stage in ("queue", "prefill", "decode")}
    found["e2e_s"] = mean(lambda t: t["e2e"].measured_s)
    found["ttft_s"] = mean(lambda t: t["ttft"].measured_s)
    assert found == pytest.approx(truth["means"], rel=0.01, abs=SMALL)


def test_a_prefill_and_a_decode_server_are_two_servers_each_with_its_own_histograms():
    found = {engine.instance: engine for engine in judged(FOLDERS["kv_transfer"]).attribution.engines}
    expected = TRUTH["kv_transfer"]["servers"]
    assert set(found) == set(expected)
    for instance, means in expected.items():
        targets_of = found[instance].targets
        measured = {
            "e2e_s": targets_of["e2e"].measured_s,
            "ttft_s": targets_of["ttft"].measured_s,
            "queue_s": targets_of["e2e"].stages["queue"],
        }
        assert {key: measured[key] for key in means} == pytest.approx(means, rel=0.01)
    assert [engine.role for engine in found.values()] == ["prefill", "decode"]


def test_two_engines_of_one_server_are_two_engines():
    engines = judged(FOLDERS["prefix_cache_miss"]).attribution.engines
    assert [engine.engine for engine in engines] == ["0", "1"]
    assert len({engine.instance for engine in engines}) == 1
    assert [engine.requests for engine in engines] == [164, 160]
    measured = [engine.targets["e2e"].measured_s for engine in engines]
    whole = judged(FOLDERS["prefix_cache_miss"]).attribution.targets["e2e"].measured_s
    assert whole == pytest.approx((164 * measured[0] + 160 * measured[1]) / 324)
    assert measured[0] != measured[1]


def test_the_counter_increases_are_reproduced(name: str):
    store, _ = loaded(FOLDERS[name])
    found = dict(store.rows("SELECT quantity, sum(increase) FROM delta GROUP BY 1"))
    assert {key: found.get(key, 0.0) for key in TRUTH[name]["counters"]} == pytest.approx(TRUTH[name]["counters"], rel=0.01)
    assert store.rows("SELECT count(*) FROM delta WHERE increase < 0") == [(0,)]
    assert judged(FOLDERS[name]).attribution.restarts == TRUTH[name]["restarts"]


def test_a_restart_is_counted_and_no_rate_is_negative():
    store, _ = loaded(FOLDERS["cpu-0.32.0-g-restart"])
    assert store.rows("SELECT count(*) FROM epoch WHERE restarted") == [(1,)]
    columns = [name for name, kind, *_ in store.rows("DESCRIBE interval_row") if kind == "DOUBLE" and name != "ts"]
    least = store.rows(f"SELECT {', '.join(f'min({name})' for name in columns)} FROM interval_row")[0]
    assert all(value is None or value >= 0 for value in least), dict(zip(columns, least, strict=True))
    assert "1 restart;" in text_report.render(judged(FOLDERS["cpu-0.32.0-g-restart"]))


def test_aborted_requests_are_named():
    incident = judged(FOLDERS["cpu-0.32.0-h-aborts"])
    assert json_report.document(incident)["requests"] == {"finished": 64, "aborted": 80}
    text = text_report.render(incident)
    assert "64 requests finished, 80 aborted" in text
    assert "80 requests got a first token and are in no finished histogram" in text


def test_the_oldest_version_is_read():
    found = judged(FOLDERS["cpu-0.8.5.post2-a-baseline"]).attribution
    assert (found.finished, found.models) == (81, ("tiny",))
    assert [engine.engine for engine in found.engines] == ["0"]
    tokens = TRUTH["cpu-0.8.5.post2-a-baseline"]["counters"]["generation_tokens"]
    assert found.targets["tpot"].measured_s == pytest.approx(0.2135233 * 81 / (tokens - 81), rel=0.02)


# -- windows -----------------------------------------------------------------------------------------------------------


def test_a_window_is_as_long_as_it_is_asked_and_its_parts_add_up_to_the_whole():
    store, _ = loaded(FOLDERS["slots"])
    whole = window_of(store)
    middle = (whole.start + whole.end) / 2
    first, second = window_of(store, None, middle), window_of(store, middle, None)
    assert first.end <= middle < second.end == whole.end
    assert first.start == whole.start
    for name, total in whole.engines[0].total.items():
        parts = [window.engines[0].total.get(name, 0.0) for window in (first, second)]
        assert sum(parts) == pytest.approx(total), name
    assert attribute(first).finished + attribute(second).finished == 290


def test_a_window_counts_the_kv_events_inside_it():
    store, _ = loaded(FOLDERS["prefix_cache_miss"])
    whole = window_of(store)
    cuts = [-math.inf, whole.start + 15, whole.start + 30, math.inf]
    parts = [window_of(store, low, high) for low, high in itertools.pairwise(cuts)]
    for name in ("stored_blocks", "again_blocks", "elsewhere_blocks"):
        for at in (0, 1):
            found = [part.engines[at].kv[name] for part in parts]
            assert sum(found) == whole.engines[at].kv[name]
            assert max(found) < whole.engines[at].kv[name]
    whole_hits, late = hits_of(whole.engines[0]), hits_of(parts[2].engines[0])
    assert whole_hits.shared == pytest.approx(0.85, abs=0.02)  # 282 of 322 requests can hit: all but the first of each prefix
    assert whole_hits.shared < late.shared < 1


def test_a_window_holds_what_happened_in_it_and_what_holds_since_the_start(tmp_path: Path):
    def line(at: str, text: str) -> str:
        return f"(APIServer pid=1) INFO 11-29 12:{at} [x.py:1] {text}\n"

    (tmp_path / "server.log").write_text(
        line("00:00", "vLLM API server version 0.24.0")
        + line("00:00", "non-default args: {'model': 'm', 'max_num_seqs': 16}")
        + stats("11-29 12:00:10")
        + line("05:00", "Aborted request(s) a,b,c.")
        + stats("11-29 12:05:10")
        + line("10:00", "non-default args: {'model': 'm', 'max_num_seqs': 16}")
        + stats("11-29 12:10:10")
    )
    store = Store()
    load(store, [tmp_path / "server.log"], now=NOON)

    def seen(low: float, high: float) -> tuple[int, int, int, Any]:
        window = window_of(store, NOON + low, NOON + high)
        (engine,) = window.engines
        aborted = sum(event.kind == "aborted" for event in engine.event)
        return len(engine.stat["ts"]), aborted, window.restarts, engine.facts.get("max_num_seqs")

    assert seen(-1, 1000) == (3, 1, 1, 16)
    assert seen(0, 60) == (1, 0, 0, 16)
    assert seen(240, 360) == (1, 1, 0, 16)
    assert seen(400, 1000) == (1, 0, 1, 16)


def test_only_the_engines_that_are_asked_for_are_judged():
    store, _ = loaded(FOLDERS["prefix_cache_miss"])
    assert [engine.engine for engine in window_of(store, engines=["1"]).engines] == ["1"]
    assert [engine.engine for engine in window_of(store, engines=["127.0.0.1:50395/0"]).engines] == ["0"]
    assert window_of(store, engines=["7"]).engines == ()


# -- whole reports -----------------------------------------------------------------------------------------------------


def rounded(value: Any) -> Any:
    """Round to six significant digits: machines differ in the last ones."""
    if isinstance(value, float):
        return 0.0 if abs(value) < NOISE else float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, list) else value


def test_the_whole_json_report(name: str, golden: Callable[[str, str], None]):
    if FOLDERS[name].parent != INCIDENTS:
        return
    document = rounded(json.loads(json_report.render(judged(FOLDERS[name]))))
    golden(f"{name}/analyze.json", json.dumps(document, indent=1, ensure_ascii=False) + "\n")


def test_the_whole_text_report(name: str, golden: Callable[[str, str], None]):
    if FOLDERS[name].parent == INCIDENTS:
        golden(f"{name}/analyze.txt", text_report.render(judged(FOLDERS[name])))


def test_the_text_starts_with_the_verdict_and_fits_a_screen(name: str):
    incident = judged(FOLDERS[name])
    found = {key: target for key, target in incident.attribution.targets.items() if target is not None}
    for asked in (None, *TARGETS):
        lines = text_report.render(incident, asked).splitlines()
        assert lines[0] == text_report.headline(found[text_report.chosen(found, asked)])
        assert len(lines) <= 60
        assert not re.search(r"\b(nan|inf|None|True|False)\b", " ".join(lines))
