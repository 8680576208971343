"""A real Prometheus around a recording: what comes out of it is what went in, and how it is asked."""

import json
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
from collectors.sources.conftest import Capture
from collectors.sources.serving import INCIDENTS, ROOT, lines_of, only_metrics, open_metrics, prometheus, say, serving

from app.collectors.promql import PrometheusError
from app.collectors.sources import prometheus as source
from app.collectors.sources.prometheus import NO_CONFIG, Found, Server, _scrapes, find
from app.collectors.sources.prometheus import pull as pieces
from app.ingest import load
from app.live.pulled import Pulled, pull
from app.pipeline import attribution_for
from app.store import Store

GOOD = ROOT / "sample_data" / "formats" / "prometheus_text" / "good"
VLLM = "vllm:num_requests_running"


def pulled(url: str, start: float, end: float, store: Store, **options: object) -> Pulled:
    found = Pulled()
    pull(store, Server(url, **options), start, end, found)
    return found


def targets(store: Store) -> dict[str, tuple]:
    return {name: (one.measured_s, one.limiting, one.verdict) for name, one in attribution_for(store).targets.items() if one}


def counts(store: Store) -> dict[str, int]:
    return {name: store.rows(f"SELECT count(*) FROM {name}")[0][0] for name in ("series", "sample", "scrape", "source_file")}


def twice(store: Store) -> int:
    return store.rows("SELECT count(*) FROM (SELECT 1 FROM sample GROUP BY series_id, ts HAVING count(*) > 1)")[0][0]


@pytest.mark.prometheus
def test_the_attribution_is_that_of_the_raw_scrapes(backlog: Capture, tmp_path: Path):
    with Store() as store, Store() as raw:
        found = pulled(backlog.url, backlog.start, backlog.end, store)
        load(raw, [only_metrics(INCIDENTS / "prefill_backlog", tmp_path)])
        ours, theirs = targets(store), targets(raw)
        gauges = "SELECT ts, value FROM sample JOIN series USING (series_id) WHERE name = ? ORDER BY ts"
        assert np.allclose(store.rows(gauges, [VLLM]), raw.rows(gauges, [VLLM]), rtol=0, atol=0.001)
    assert found.scrapes == {"127.0.0.1:40861": 67}
    assert found.notes == []
    assert theirs["ttft"][1] == theirs["e2e"][1] == "prefill_backlog"
    assert ours.keys() == theirs.keys()
    for name, (measured, limiting, verdict) in theirs.items():
        assert ours[name][0] == pytest.approx(measured, rel=0.02), name
        assert ours[name][1:] == (limiting, verdict), name


@pytest.mark.prometheus
def test_asking_again_adds_nothing(backlog: Capture):
    with Store() as store:
        pulled(backlog.url, backlog.start, backlog.end, store)
        before = counts(store)
        again = pulled(backlog.url, backlog.start, backlog.end, store)
        assert counts(store) == before
        assert again.scrapes == {"127.0.0.1:40861": 0}
        assert again.known == {"127.0.0.1:40861": 67}


@pytest.mark.prometheus
def test_parts_in_any_order_and_overlapping_are_the_whole(backlog: Capture):
    middle = (backlog.start + backlog.end) / 2
    with Store() as whole, Store() as parts:
        pulled(backlog.url, backlog.start, backlog.end, whole)
        pulled(backlog.url, middle, backlog.end, parts)
        pulled(backlog.url, backlog.start, middle + 7, parts)
        every = "SELECT name, engine, labels, ts, value FROM sample JOIN series USING (series_id) ORDER BY ALL"
        assert parts.rows(every) == whole.rows(every)
        assert twice(parts) == 0


@pytest.mark.prometheus
def test_small_pieces_are_the_whole(backlog: Capture, monkeypatch):
    with Store() as whole, Store() as parts:
        pulled(backlog.url, backlog.start, backlog.end, whole)
        monkeypatch.setattr(source, "PIECE", 1)  # 30 s each
        pulled(backlog.url, backlog.start, backlog.end, parts)
        every = "SELECT name, engine, labels, ts, value FROM sample JOIN series USING (series_id) ORDER BY ALL"
        assert parts.rows(every) == whole.rows(every)


@pytest.mark.prometheus
def test_it_goes_on_where_it_was(backlog: Capture, monkeypatch):
    middle = (backlog.start + backlog.end) / 2
    with Store() as store:
        pulled(backlog.url, backlog.start, middle, store)
        first = counts(store)["scrape"]
        rest = Pulled()
        pull(store, Server(backlog.url), None, backlog.end, rest)
        assert first + rest.scrapes["127.0.0.1:40861"] == 67
        assert sum(rest.known.values()) <= 1
        assert twice(store) == 0


@pytest.mark.prometheus
def test_a_recording_of_the_same_server_is_not_mixed_with_it(backlog: Capture, tmp_path: Path):
    """Stamps differ by milliseconds between the two: taken together, counters would seem to fall."""
    with Store() as store:
        load(store, [only_metrics(INCIDENTS / "prefill_backlog", tmp_path)])
        before, expected = counts(store), targets(store)
        found = pulled(backlog.url, backlog.start, backlog.end, store)
        assert found.known == {"127.0.0.1:40861": 67}
        assert counts(store)["sample"] == before["sample"]
        assert targets(store) == expected


@pytest.mark.prometheus
def test_steps_in_place_of_samples(backlog: Capture):
    with Store() as store:
        found = pulled(backlog.url, backlog.start, backlog.end, store, step_s=5)
        rows = store.rows("SELECT ts, ok FROM scrape ORDER BY ts")
        judged = targets(store)
    assert all(ts % 5 == 0 and ok for ts, ok in rows)
    assert len(rows) == found.scrapes["127.0.0.1:40861"]
    assert 14 <= len(rows) <= 16
    assert judged["ttft"][1] == "prefill_backlog"


@pytest.mark.prometheus
def test_too_many_samples_become_steps_and_too_many_series_a_refusal(backlog: Capture):
    with Store() as store:
        found = pulled(backlog.url, backlog.start, backlog.end, store, max_samples=1000)
        assert "samples are too many: taken is one value every 60 s" in found.notes[0]
        assert store.rows("SELECT DISTINCT ts % 60 FROM sample") == [(0.0,)]
        with pytest.raises(PrometheusError, match="series of 1 servers, at most 10 are taken: narrow it, as with --match"):
            pulled(backlog.url, backlog.start, backlog.end, store, max_series=10)


@pytest.mark.prometheus
def test_only_what_matches(backlog: Capture):
    with Store() as store:
        assert pulled(backlog.url, backlog.start, backlog.end, store, match=("job=other",)).scrapes == {}
        assert pulled(backlog.url, backlog.start, backlog.end, store, match=('job=~"v.*"',)).scrapes == {"127.0.0.1:40861": 67}


@pytest.mark.prometheus
def test_nothing_there_is_no_error(backlog: Capture):
    with Store() as store:
        found = pulled(backlog.url, backlog.start - 1000, backlog.start - 500, store)
        assert (found.scrapes, found.notes, counts(store)["sample"]) == ({}, [], 0)


@pytest.mark.prometheus
def test_other_names_two_jobs_odd_labels_and_gaps(tmp_path: Path):
    """Ray's names, one server scraped by two jobs, a label value full of quotes, and a server that was away for 12 scrapes."""
    lines = [line for line in lines_of(INCIDENTS / "healthy") if "text" in line]
    odd = 'a"b\\c\nd{}'
    ray = [
        {**line, "url": line["url"].replace(":38669", ":1"), "text": line["text"].replace("vllm:", "ray_vllm_")} for line in lines
    ]
    away = [{**line, "url": line["url"].replace(":38669", ":2")} for at, line in enumerate(lines) if not 20 <= at < 32]
    away = [{**line, "text": line["text"].replace("vllm:cache_config_info", "vllm:other_info")} for line in away]
    late = [{**line, "t": line["t"] + 0.4} for line in lines]
    router = (GOOD / "router-production-stack.txt").read_text()
    before = [{**line, "url": "http://router:80/metrics", "text": router} for line in lines]
    texts = [
        open_metrics(before, "router", pod="router-0"),
        open_metrics(ray, "ray", WorkerId="w-1"),
        open_metrics(ray, "ray", WorkerId="w-2"),
        open_metrics(away, pod=odd),
        open_metrics(lines, "one"),
        open_metrics(late, "two"),
    ]
    start, end = lines[0]["t"] - 5, lines[-1]["t"] + 5
    with prometheus(tmp_path, *texts) as url, Store() as store:
        server = Server(url)
        with server.client() as made:
            found = {(one.instance, one.prefix): one for one in find(made, server, start, end)}
        said = pulled(url, start, end, store)
        gaps = store.rows("SELECT count(*) FROM scrape WHERE instance = '127.0.0.1:2' AND NOT ok")[0][0]
        odd_labels = store.rows(
            "SELECT count(*) FROM series WHERE (contains(labels, 'pod') OR contains(labels, 'job')) AND instance <> 'router:80'"
        )[0][0]
        engines = {one.instance: one.targets["ttft"].measured_s for one in attribution_for(store).engines}
        doubled = twice(store)
        routed = store.rows("SELECT DISTINCT instance, router, target FROM router_series WHERE target <> '' ORDER BY ALL")
    assert routed == [("router:80", "production-stack", f"http://10.0.0.{at}:8000") for at in (1, 2)]
    assert "router:80" not in engines
    assert said.scrapes["router:80"] == len(lines)
    assert set(found) == {
        ("router:80", ""),
        ("127.0.0.1:1/w-1", "ray_vllm_"), ("127.0.0.1:1/w-2", "ray_vllm_"), ("127.0.0.1:2", "vllm:"), ("127.0.0.1:38669", "vllm:"),
    }  # fmt: skip
    assert said.scrapes["127.0.0.1:2"] == len(away)
    assert gaps == 12
    assert [note for note in said.notes if "cache_config_info" in note] == [f"127.0.0.1:2: {NO_CONFIG}"]
    assert odd_labels == 0
    assert doubled == 0
    assert said.scrapes["127.0.0.1:38669"] == len(lines)  # of one job only
    assert said.known["127.0.0.1:38669"] == len(lines)
    assert engines["127.0.0.1:1/w-1"] == engines["127.0.0.1:1/w-2"] == pytest.approx(engines["127.0.0.1:38669"], rel=1e-6)


def test_one_address_in_two_clusters_is_two_servers(tmp_path: Path):
    """What is above many clusters: each has a server 127.0.0.1:1, one of them busy, and a replica of its Prometheus."""
    lines, others = ([line for line in lines_of(INCIDENTS / name) if "text" in line] for name in ("healthy", "slots"))
    shift = lines[0]["t"] - others[0]["t"]
    east = [{**line, "url": "http://127.0.0.1:1/metrics"} for line in lines]
    west = [{**line, "url": "http://127.0.0.1:1/metrics", "t": line["t"] + shift} for line in others]
    texts = [
        open_metrics(east, "vllm", cluster="east", replica="a"),
        open_metrics([{**line, "t": line["t"] + 0.3} for line in east], "vllm", cluster="east", replica="b"),
        open_metrics(west, "vllm", cluster="west", replica="a"),
    ]
    with prometheus(tmp_path, *texts) as url, Store() as store, Store() as alone:
        said = pulled(url, lines[0]["t"] - 5, west[-1]["t"] + 5, store)
        names = {one.instance: one.targets["ttft"].limiting for one in attribution_for(store).engines}
        load(alone, [only_metrics(INCIDENTS / "slots", tmp_path)])
        limiting = attribution_for(alone).targets["ttft"].limiting
        west_only = pulled(url, lines[0]["t"] - 5, west[-1]["t"] + 5, alone, match=('cluster="west"',))
    assert said.scrapes == {"east/127.0.0.1:1": len(lines), "west/127.0.0.1:1": len(west)}
    assert said.known["east/127.0.0.1:1"] == len(lines)  # of the replica
    assert (names["east/127.0.0.1:1"], names["west/127.0.0.1:1"]) == (None, limiting)
    assert limiting == "slots"
    assert set(west_only.scrapes) == {"west/127.0.0.1:1"}


def test_failed_scrapes_and_missing_steps_are_gaps():
    one = Found("h:1", {}, "vllm:", interval_s=10.0)
    up = [
        {"metric": {"__name__": "up"}, "values": [[100.0, "1"], [110.0, "0"], [120.0, "1"]]},
        {"metric": {"__name__": "scrape_duration_seconds"}, "values": [[100.0, "0.25"], [110.0, "10"]]},
    ]
    first = _scrapes(one, np.array([100.0, 120.0]), up, None)
    assert list(zip(*(first.columns[name] for name in ("ts", "ok", "duration_s")), strict=True)) == [
        (100.0, True, 0.25),
        (110.0, False, 10.0),
        (120.0, True, None),
    ]
    second = _scrapes(one, np.array([150.0, 160.0, 170.0]), [], None)
    assert [ts for ts, ok in zip(second.columns["ts"], second.columns["ok"], strict=True) if not ok] == [130.0, 140.0]
    assert _scrapes(one, np.zeros(0), [], None) is None


def test_a_prometheus_that_knows_no_vllm_is_empty():
    asked: list[str] = []

    def answer(request: BaseHTTPRequestHandler) -> None:
        asked.append(parse_qs(urlsplit(request.path).query)["match[]"][0])
        say(json.dumps({"status": "success", "data": []}))(request)

    with serving(answer) as url:
        server = Server(url, match=('ns="a\\"b"',))
        with server.client() as made:
            assert list(pieces(made, server, 0, 100)) == []
    assert asked[0] == '{__name__=~"(ray_)?vllm[:_]num_requests_running",model_name!="",ns="a\\"b"}'
    assert all(one.endswith(',ns="a\\"b"}') for one in asked)
