"""KV and ranks: what events and counters of a few blocks and engines must say, and the numbers that every chart hands out."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
from recordings import NOON, client, finished, kv_event, scrapes, series, started, stored
from ui.test_pages import html, opened, plain

from analyzers.hits import Hits
from app.store import Store, sql
from app.ui import plots, reuse
from app.ui.screens import kv_cache, ranks

ENGINE = "127.0.0.1:8000/0"
WINDOW: dict[str, Any] = {"low": -math.inf, "high": math.inf, "engines": [ENGINE]}


def changed(seq: int, t: float, kind: str, hashes: list[int]) -> str:
    return kv_event(seq, t, hashes, type=kind) if kind != "AllBlocksCleared" else cleared(seq, t)


def cleared(seq: int, t: float) -> str:
    line = json.loads(kv_event(seq, t, []))
    line["batch"][1] = [{"type": "AllBlocksCleared"}]
    return json.dumps(line) + "\n"


def told(folder: Path, *events: tuple[str, list[int]]) -> Store:
    """Return a store with scrapes and these KV events, one a second."""
    scrapes(folder / "metrics.jsonl", [(t, finished(t) | {series("kv_cache_usage_perc"): 0.5}) for t in range(0, 40, 5)])
    lines = [changed(seq, seq + 1, kind, hashes) for seq, (kind, hashes) in enumerate(events)]
    (folder / "kv_events.jsonl").write_text("".join(lines))
    return stored(folder)


STORED, REMOVED, CLEARED = "BlockStored", "BlockRemoved", "AllBlocksCleared"


def test_a_block_comes_back_at_as_many_blocks_as_were_evicted_in_between(tmp_path: Path):
    store = told(tmp_path, (STORED, [1, 2, 3]), (REMOVED, [1]), (REMOVED, [2, 3]), (STORED, [1]), (STORED, [3, 9]))
    found = store.rows(sql("screens", "kv_cache_reuse"), WINDOW)
    assert found == [(ENGINE, 1, 1), (ENGINE, 3, 1)]  # block 3 went last: one more would have kept it; block 1 needs all three


def test_what_a_reset_took_away_was_not_evicted(tmp_path: Path):
    store = told(tmp_path, (STORED, [1]), (REMOVED, [1]), (CLEARED, []), (STORED, [1]))
    assert store.rows(sql("screens", "kv_cache_reuse"), WINDOW) == []


def test_blocks_held_are_known_from_the_start_or_from_a_reset(tmp_path: Path):
    edges = [NOON + t for t in range(5, 40, 5)]
    asked = {"edges": edges, "high": math.inf, "engines": [ENGINE]}
    whole = told(tmp_path / "whole", (STORED, [1, 2, 3]), (REMOVED, [1]))
    assert whole.rows(sql("screens", "kv_cache_held"), asked) == [(ENGINE, NOON + 5, 2)]
    scrapes(tmp_path / "late" / "metrics.jsonl", [(t, finished(t)) for t in range(0, 40, 5)])
    lines = changed(7, 1, STORED, [1, 2]) + cleared(8, 7) + changed(9, 8, STORED, [4])
    (tmp_path / "late" / "kv_events.jsonl").write_text(lines)
    assert stored(tmp_path / "late").rows(sql("screens", "kv_cache_held"), asked) == [(ENGINE, NOON + 10, 1)]


def test_shares_of_what_would_have_been_kept():
    far, share = reuse.kept([5.0, 1.0, 9.0], [1.0, 2.0, 1.0])
    assert far.tolist() == [0, 1, 5, 9]
    assert share.tolist() == [0, 0.5, 0.75, 1]


def test_endless_blocks_hit_what_came_back_whatever_the_verdict_calls_it():
    def endless(now: float, by_verdict: float, again: float) -> float:
        return reuse.Cache("a", 100.0, 16.0, 1000.0, again, Hits(now, now, by_verdict)).endless

    assert endless(0.49, 0.49, 240.0) == pytest.approx(0.73)  # the verdict counts it as too little sharing
    assert endless(0.49, 0.73, 240.0) == pytest.approx(0.73)
    assert endless(0.49, 0.6, math.nan) == 0.6
    assert endless(0.9, 0.9, 500.0) == 0.999
    assert math.isnan(endless(math.nan, math.nan, math.nan))


def test_a_ratio_is_unknown_until_the_first_event():
    found = {"name": np.array(["a", "b"], dtype=object), "ts": np.array([10.0, 20.0]), "held_blocks": np.array([50.0, 90.0])}
    held = kv_cache.held(found, np.array([5.0, 10.0, 20.0]), {"a": 100.0, "b": 100.0})
    assert math.isnan(held[0])
    assert held[1:].tolist() == [0.5, 0.9]


def test_prefixes_that_come_again_stand_by_what_they_cost(tmp_path: Path):
    store = told(
        tmp_path, (STORED, [1, 2, 3]), (STORED, [7]), (REMOVED, [7, 1, 2, 3]), (STORED, [1, 2, 3]), (STORED, [7]), (STORED, [8])
    )
    rows = store.columns(sql("screens", "kv_cache_prefix"), {**WINDOW, "most": 5})
    assert rows["hash"].tolist() == ["1", "7"]
    assert rows["blocks"].tolist() == [3, 1]
    assert rows["times"].tolist() == [2, 2]
    shown = plain(html(opened("kv_cache", store)))
    assert "48 2 times 1 48 tokens" in shown.replace("\N{NO-BREAK SPACE}", " ")


def test_each_part_of_kv_names_the_flag_that_would_tell(tmp_path: Path):
    store = stored(scrapes(tmp_path / "metrics.jsonl", [(t, finished(t)) for t in range(0, 60, 5)]))
    shown = plain(html(opened("kv_cache", store)))
    assert shown.count("--kv-events-config") >= 3
    assert "--kv-cache-metrics" in shown
    assert "KV use is unknown" in shown
    assert " 0 preemptions" not in shown


def lines_of_eplb(version: str) -> str:
    head = "(EngineCore pid=7) INFO 11-29 12:00:20 [eplb_state.py:1] "
    one = "EPLB step: 75 for model m: avg_tokens=4000.00, max_tokens=8000, balancedness=0.5000, steps until the next rearrangement: 25\n"
    return started(version=version) + (head + one) * 4


@pytest.mark.parametrize(
    ("version", "said"),
    [("0.24.0", "takes balancedness over another axis"), ("0.33.0", "no line of a step with at least 512 tokens")],
)
def test_balancedness_of_older_versions_is_refused(tmp_path: Path, version: str, said: str):
    scrapes(tmp_path / "metrics.jsonl", [(t, finished(t) | {series("num_requests_running"): 3}) for t in range(0, 60, 5)])
    (tmp_path / "server.log").write_text(lines_of_eplb(version))
    store = stored(tmp_path)
    if not store.rows("SELECT 1 FROM event WHERE kind = 'eplb'"):
        pytest.fail("the lines of this test are none of vLLM's")
    figure = json.loads(opened("ranks", store).get("plotly_chart")[0].proto.spec)
    assert any(said in one["text"] for one in figure["layout"]["annotations"])
    shown = plain(html(opened("ranks", store)))
    assert ("known wrong" in shown) == (version == "0.24.0")


def test_a_hot_engine_is_named_and_its_load_is_a_mean_over_time(tmp_path: Path):
    rows = []
    for t in range(0, 60, 5):
        values: dict[str, float | str] = {}
        for engine, running in (("0", 2), ("1", 2), ("2", 8)):
            values |= finished(t, engine) | {
                series("num_requests_running", engine): running,
                series("num_requests_waiting", engine): 0,
            }
        rows.append((t, values))
    store = stored(scrapes(tmp_path / "metrics.jsonl", rows))
    shown = plain(html(opened("ranks", store))).replace("\N{NO-BREAK SPACE}", " ")
    assert "3 engines: the busiest, 127.0.0.1:8000/2, holds 100 % more requests than the mean." in shown
    assert shown.count("● hot") == 1
    assert "Experts:" in shown


def test_many_engines_are_drawn_by_their_extremes():
    found = {
        "slice": np.repeat([0.0, 1.0], 9), "name": np.array([f"e{n}" for n in range(9)] * 2, dtype=object),
        "ts": np.repeat([10.0, 20.0], 9), "timed": np.ones(18, dtype=bool),
        **{name: np.array([*range(9), *([math.nan] * 9)], dtype=float) for name in ranks.MEASURES},
    }  # fmt: skip
    columns, names = ranks.spread(found)
    assert names == list(ranks.EXTREMES)
    assert [columns[f"running {name}"][0] for name in names] == [8, 4, 0]
    assert all(math.isnan(columns[f"running {name}"][1]) for name in names)


# -- the numbers of a chart -----------------------------------------------------------------------------------------------------


def test_the_numbers_of_a_chart_are_rows_of_its_axis():
    figure = go.Figure()
    figure.add_trace(
        go.Scatter(x=np.array([1000, 2000]).astype("datetime64[ms]"), y=np.array([1.5, np.nan], dtype=np.float32), name="a")
    )
    figure.add_trace(go.Scatter(x=np.array([2000, 3000]).astype("datetime64[ms]"), y=[2, 3], name="=cmd()"))
    assert plots.sheet(figure) == (
        "x,a,'=cmd()\n1970-01-01T00:00:01.000Z,1.5,\n1970-01-01T00:00:02.000Z,,2\n1970-01-01T00:00:03.000Z,,3\n"
    )


def test_bars_keep_their_order_and_heat_maps_their_cells():
    assert plots.sheet(plots.bars(["9", "10"], [("n", "#888", [1.0, 2.0])], across="", up="")) == "x,n\n9,1.0\n10,2.0\n"
    heat = go.Figure(go.Heatmap(x=[1, 2], y=["low"], z=[[3, 4]], name="n"))
    assert plots.sheet(heat) == "x,y,n\n1,low,3\n2,low,4\n"
    lying = go.Figure(go.Bar(x=[2.0], y=["r"], base=[1.0], orientation="h", name="queue"))
    assert plots.sheet(lying) == "bar,of it,from,length\nr,queue,1.0,2.0\n"


def test_every_chart_offers_its_numbers(tmp_path: Path):
    store = stored(scrapes(tmp_path / "metrics.jsonl", [(t, finished(t)) for t in range(0, 60, 5)]))
    (tmp_path / "client.jsonl").write_text(client("a", 3) + client("b", 4))
    for page in ("timeline", "kv_cache", "ranks", "overview"):
        app = opened(page, store)
        assert len(app.get("plotly_chart")) == len(app.get("download_button")) > 0


# -- sources --------------------------------------------------------------------------------------------------------------------


def test_gaps_and_failed_scrapes_are_counted_and_rejected_lines_have_no_text(tmp_path: Path):
    times = [*range(0, 60, 5), *range(200, 260, 5)]
    scrapes(tmp_path / "metrics.jsonl", [*((t, finished(t)) for t in times), (270, None)])
    (tmp_path / "client.jsonl").write_text(client("a", 3) + "{secret nonsense\n" + client("b", 4))
    shown = plain(html(opened("upload", stored(tmp_path)))).replace("\N{NO-BREAK SPACE}", " ")
    assert "1 gap, the longest 2.4 min after 12:00:55" in shown
    assert "1 scrape failed" in shown
    assert "secret" not in shown
    assert "What the servers say, and what they could" in shown
