"""Events out of a store: buckets at an edge, records elsewhere, nothing counted twice or lost over restarts and gaps."""

import math
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from alerts.given import CHAT, EDGES, NOON, SERVER, course, gauges, histogram, recorded
from hypothesis import given, settings
from hypothesis import strategies as st
from recordings import client, finished, scrape, series, span, started

from analyzers.slo import Edges, Slo, budget, burns
from app import kept
from app.alerts import measure
from app.alerts.points import extended, indicator, keep, points
from app.alerts.preview import preview
from app.ingest import load
from app.store import Store

EVER = (-1e12, 1e12)


def counted(store: Store, slo: Slo, low: float = EVER[0], high: float = EVER[1]) -> tuple[float, float, float, float, str]:
    """Return total, bad, least, most and source."""
    held = points(store, slo, low, high)
    found = tuple(float(values.sum()) for values in (held.total, held.bad, held.least, held.most))
    summed = measure.events(store, slo, measure.scope(store, slo), low, high, slice_s=math.inf)  # where only sums are asked for
    assert tuple(float(values.sum()) for values in (summed.total, summed.bad, summed.least, summed.most)) == pytest.approx(found)
    assert summed.source == held.source
    return (*found, held.source)


def test_an_empty_store_says_what_is_missing():
    held = points(Store(), CHAT, *EVER)
    assert not len(held.ts)
    assert held.missing == "no engine in the store matches the selector"


@pytest.mark.parametrize("kind", ["ttft", "itl", "tpot", "e2e", "queue", "goodput", "errors"])
def test_what_is_not_exported_is_missing_not_zero(tmp_path: Path, kind: str):
    store = recorded(tmp_path, [(0, gauges()), (10, gauges())])
    held = points(store, replace(CHAT, kind=kind, tpot_s=0.1), *EVER)
    assert held.missing
    assert held.missing.lower().startswith(kind)


def test_at_an_edge_buckets_are_exact(tmp_path: Path):
    store = recorded(tmp_path, [(0, histogram((0, 0, 0, 0))), (10, histogram((11, 12, 13, 14)))])
    assert counted(store, CHAT) == (50, 27, 27, 27, "histogram buckets")


def test_inside_a_bucket_they_are_interpolated_with_bounds(tmp_path: Path):
    """1.6 s is 0.4 of the way from 1 to 2.5 s: 14 + 0.6 * 10 of 50, between 14 and 24."""
    store = recorded(tmp_path, [(0, histogram((0, 0, 0, 0))), (10, histogram((11, 15, 10, 14)))])
    slo = replace(CHAT, threshold_s=1.6)
    assert counted(store, slo) == (50, pytest.approx(20.0), 14, 24, "histogram buckets, interpolated")
    assert measure.near(store, slo, measure.scope(store, slo)) == Edges(1.0, 2.5, far=True)


def test_the_first_scrape_is_the_baseline(tmp_path: Path):
    store = recorded(tmp_path, [(0, histogram((11, 12, 13, 14)))])
    assert counted(store, CHAT)[:2] == (0, 0)


def test_a_restart_counts_from_nothing(tmp_path: Path):
    """13 before it, 11 after it; the process start time tells it although the counter has passed where it was."""
    store = recorded(
        tmp_path,
        [
            (0, histogram((0, 0, 0, 2)) | {"process_start_time_seconds": 1000}),
            (10, histogram((0, 0, 0, 15)) | {"process_start_time_seconds": 1000}),
            (20, histogram((0, 0, 0, 16)) | {"process_start_time_seconds": 2000}),
            (30, histogram((0, 0, 0, 16)) | {"process_start_time_seconds": 2000}),
        ],
    )
    assert counted(store, CHAT)[:2] == (29, 29)


def test_edges_that_changed_with_a_restart_are_not_merged(tmp_path: Path):
    """--custom-histogram-buckets: 1 s is an edge before, and lies between 0.8 and 4 s after."""
    rows = [(0, histogram((0, 0, 0, 0))), (10, histogram((0, 11, 12, 0)))]
    rows += [(20, histogram((0, 0, 0), edges=(0.8, 4.0))), (30, histogram((2, 6, 0), edges=(0.8, 4.0)))]
    total, _, least, most, _ = counted(recorded(tmp_path, rows), CHAT)
    assert (total, least, most) == (31, 12, 18)


def test_a_renamed_histogram_is_counted_once(tmp_path: Path):
    """0.10.2 exposes ITL under both names."""
    both = histogram((1, 2, 3, 4), "inter_token_latency_seconds") | histogram((1, 2, 3, 4), "time_per_output_token_seconds")
    none = dict.fromkeys(both, 0.0)
    assert counted(recorded(tmp_path, [(0, none), (10, both)]), replace(CHAT, kind="itl"))[:2] == (10, 7)


def test_engines_are_selected_by_label_or_server(tmp_path: Path):
    rows = [
        (0, histogram((0, 0, 0, 0)) | histogram((0, 0, 0, 0), engine="1")),
        (10, histogram((0, 0, 0, 11)) | histogram((0, 0, 0, 12), engine="1")),
    ]
    store = recorded(tmp_path, rows)
    for engine, count in ((None, 23), ("0", 11), ("1", 12), (f"{SERVER}/1", 12), (SERVER, 23), ("other:1/0", 0)):
        assert counted(store, replace(CHAT, engine=engine))[0] == count
    assert counted(store, replace(CHAT, model="m"))[0] == 23
    assert counted(store, replace(CHAT, model="another"))[0] == 0


# -- records ------------------------------------------------------------------------------------------------------------------
def bundle(folder: Path, ttfts: list[float], n: int | None = None) -> Store:
    """A server whose histograms counted `n` requests, with spans of these TTFTs."""
    folder.mkdir(exist_ok=True)
    zero, end = finished(0), finished(len(ttfts) if n is None else n, ttft=1.0, e2e=2.0)
    slow = histogram((0, 0, n or len(ttfts), 0))
    (folder / "metrics.jsonl").write_text(scrape(0, zero | dict.fromkeys(slow, 0.0)) + scrape(30, end | slow))
    (folder / "server.log").write_text(started())
    spans = []
    for at, ttft in enumerate(ttfts):
        spans.append(span(f"cmpl-{at}", 1 + at).replace('"doubleValue": 0.5', f'"doubleValue": {ttft}'))
    (folder / "spans.jsonl").write_text("".join(spans))
    store = Store()
    assert all(one.added for one in load(store, [folder]))
    return store


def test_records_tell_any_threshold_exactly(tmp_path: Path):
    store = bundle(tmp_path / "b", [1.1, 1.2, 1.3, 1.7, 1.8])
    slo = replace(CHAT, threshold_s=1.25)
    assert counted(store, slo) == (5, 3, 3, 3, "request spans")


def test_records_of_some_requests_are_not_used(tmp_path: Path):
    """5 of 13 were traced."""
    store = bundle(tmp_path / "b", [1.1, 1.2, 1.3, 1.7, 1.8], n=13)
    assert counted(store, replace(CHAT, threshold_s=1.25))[4] == "histogram buckets, interpolated"


def test_records_alone_are_enough(tmp_path: Path):
    (tmp_path / "client.jsonl").write_text("".join(client(f"r{at}", at, status="ok" if at < 11 else "error") for at in range(13)))
    store = Store()
    load(store, [tmp_path / "client.jsonl"], instances={"client.jsonl": SERVER})
    assert counted(store, replace(CHAT, threshold_s=0.5))[:2] == (13, 13)
    assert counted(store, replace(CHAT, kind="errors", threshold_s=None)) == (13, 2, 2, 2, "client records")
    assert counted(store, replace(CHAT, kind="goodput", threshold_s=0.7, tpot_s=1.0))[:2] == (13, 2)


# -- the other kinds ------------------------------------------------------------------------------------------------------------
def test_goodput_from_histograms_is_bounded(tmp_path: Path):
    """22 of 100 miss TTFT, 13 miss TPOT: 22 at least, 35 at most miss one of them."""
    family = "request_time_per_output_token_seconds"
    rows = [
        (0, histogram((0, 0, 0, 0)) | histogram((0, 0, 0, 0), family)),
        (10, histogram((70, 8, 22, 0)) | histogram((80, 7, 13, 0), family)),
    ]
    store = recorded(tmp_path, rows)
    total, bad, least, most, source = counted(store, replace(CHAT, kind="goodput", tpot_s=1.0))
    assert (total, bad, least, most, source) == (100, 22, 22, 35, "histogram buckets, bounded")


def test_errors_from_counters(tmp_path: Path):
    """11 stopped, 12 by length, 2 aborted, 1 failed; 13 were answered with 5xx; what is no generation does not count."""

    def at(n: float) -> dict[str, float]:
        reasons = {"stop": 11, "length": 12, "abort": 2, "error": 1}
        done = {series("request_success_total", finished_reason=name): n * count for name, count in reasons.items()}
        http = {"/v1/chat/completions": 13, "/health": 99}
        return done | {
            series("http_requests_total", None, handler=name, method="POST", status="5xx"): n * count
            for name, count in http.items()
        }

    store = recorded(tmp_path, [(0, at(0)), (10, at(1))])
    assert counted(store, replace(CHAT, kind="errors", threshold_s=None)) == (39, 16, 16, 16, "counters")


def test_availability_counts_scrapes(tmp_path: Path):
    store = recorded(tmp_path, [(0, gauges()), (10, None), (20, None), (30, gauges())])
    assert counted(store, replace(CHAT, kind="availability", threshold_s=None))[:2] == (4, 2)


# -- kept between evaluations -------------------------------------------------------------------------------------------------
@given(st.lists(st.floats(-15, 40), min_size=1, max_size=6), st.lists(st.integers(0, 13), min_size=1, max_size=12))
@settings(max_examples=10, deadline=None)
def test_evaluations_at_any_instants_count_everything_once(tmp_path_factory: pytest.TempPathFactory, steps, bad):
    """However often, and also with a clock that goes back: the kept points are what one look at everything finds."""
    store = recorded(tmp_path_factory.mktemp("s"), course(bad))
    now = NOON
    for more in steps:
        now += more
        _, news = extended(store, CHAT, now)
        with store.transaction():
            keep(store, news)
    end = NOON + 10 * len(bad) + 1
    held, _ = extended(store, CHAT, end)
    whole = points(store, CHAT, *EVER)
    assert held.total.sum() == whole.total.sum() == 11 * len(bad) + sum(bad)
    assert held.bad.sum() == whole.bad.sum() == sum(bad)
    assert budget(CHAT, held, end).left_ratio == budget(CHAT, whole, end).left_ratio


@given(st.lists(st.integers(0, 13), min_size=2, max_size=40), st.sampled_from([1.0, 1.6, 0.4, 4.0]))
@settings(max_examples=15, deadline=None)
def test_a_preview_from_kept_rows_is_that_from_samples(bad: list[int], threshold_s: float):
    """A page over an hour reads the rows that are kept of it; the threshold at an edge, in a bucket, below and above all edges."""
    store, slo, end = Store(), replace(CHAT, threshold_s=threshold_s), NOON + 10.0 * len(bad)
    with tempfile.TemporaryDirectory() as folder:
        recorded(Path(folder), course(bad), store=store)
    plain, evaluated = preview(store, slo, NOON - 3600, end, 10.0), extended(store, slo, end)[1].columns
    kept.attach(store, least=1)
    held = preview(store, slo, NOON - 3600, end, 10.0)
    assert points(store, slo, NOON - 3600, end).total.sum() == 11 * len(bad) + sum(bad)
    again = extended(store, slo, end)[1].columns
    assert {name: pytest.approx(values) for name, values in evaluated.items()} == again
    assert (held.start, held.end, held.episodes, held.budget) == (plain.start, plain.end, plain.episodes, plain.budget)
    assert (held.source, held.least, held.most) == (plain.source, pytest.approx(plain.least), pytest.approx(plain.most))


def test_a_burn_from_kept_points_is_that_from_samples(tmp_path: Path):
    store = recorded(tmp_path, course([0] * 6 + [11, 12, 13]))
    for now in np.arange(NOON, NOON + 91, 10):
        held, news = extended(store, CHAT, float(now))
        with store.transaction():
            keep(store, news)
    direct = burns(CHAT, points(store, CHAT, NOON - 500, NOON + 90), NOON + 90)[0]
    assert burns(CHAT, held, NOON + 90)[0] == direct
    assert direct.long_burn == pytest.approx(100 * 36 / (99 + 36))


def test_kept_points_are_of_one_indicator():
    assert indicator(CHAT) == indicator(replace(CHAT, name="other", objective=0.9))
    assert indicator(CHAT) != indicator(replace(CHAT, threshold_s=1.1))
    assert EDGES[1] == CHAT.threshold_s
