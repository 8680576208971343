"""What is told of live sources: last success, lag, why the last attempt failed, rejected lines, gaps."""

import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from collectors.sources.serving import ROOT, TEXT, say, serving
from ports import free_port

from app.collectors.sources.kv_events import Subscription
from app.collectors.sources.prometheus import Server
from app.collectors.sources.scrape import Target
from app.live import collect
from app.live.collect import Collection, Log
from app.live.followed import put as put_log
from app.live.pulled import Pulled
from app.live.scraped import flush, put
from app.live.status import sources
from app.store import Store

URL = "http://h:1/metrics"


def line(t: float, text: str | None = TEXT) -> dict:
    return {"t": t, "url": URL, "dur": 0.0, **({"error": "down"} if text is None else {"text": text})}


@pytest.fixture(autouse=True)
def _nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect, "_RUNNING", [])


def test_an_empty_store_has_no_source():
    with Store() as store:
        assert sources(store) == []


def test_a_scraped_server_with_a_gap_and_a_bad_line():
    now = 1_800_000_000.0
    with Store() as store:
        feeds: dict = {}
        stamps = [now - 100 + at for at in (*range(20), *range(60, 90))]
        put(store, feeds, [line(ts, TEXT + "vllm:broken{ 1\n" if ts == now - 20 else TEXT) for ts in stamps])
        put(store, feeds, [line(now - 30 + at, None) for at in (20, 21)])
        flush(store, feeds)
        (alone,) = sources(store, now)
        going = Collection((Target("h:1", interval_s=1.0),), feeds=feeds)
        (failing,) = sources(store, now, going=going)
        feeds["h:1"].error = None
        (fine,) = sources(store, now - 10, going=going)
        (late,) = sources(store, now + 60, going=going)
        (old,) = sources(store, now + 2 * 86400, going=going)
    assert (alone.kind, alone.name, alone.instance, alone.state) == ("scrape", "h:1", "h:1", "stopped")
    assert alone.last_ts == now - 11
    assert alone.lag_s == 11
    assert (alone.good, alone.failed, alone.rejected) == (50, 2, 1)
    assert len(alone.examples) == 1
    assert alone.gaps == ((now - 81, now - 40),)
    assert (failing.state, failing.says) == ("failing", "down")
    assert (fine.state, late.state) == ("ok", "late")
    assert (old.state, old.good, old.last_ts, old.gaps) == ("late", 0, None, ())
    assert old.rejected == 1  # ever


def test_what_was_asked_for_and_never_answered_is_told():
    server, subscription = Server("http://p:9090"), Subscription("tcp://h:5557", instance="h:1")
    going = Collection((Target("h:1"),), (server,), (subscription,), pulled={server.url: Pulled(error="cannot connect")})
    with Store() as store:
        found = sources(store, going=going)
    assert [(one.kind, one.name, one.state, one.says) for one in found] == [
        ("scrape", "h:1", "never", ""),
        ("prometheus", "p:9090", "failing", "cannot connect"),
        ("kv_events", "tcp://h:5557", "never", ""),
    ]
    assert all(one.last_ts is None and one.lag_s is None for one in found)


def test_a_log_that_is_sent():
    with Store() as store:
        put_log(store, "log -", "h:1", (ROOT / "sample_data/formats/vllm_log/good/json-0.33.log").read_bytes(), 100, {})
        ((last,),) = store.rows(
            "SELECT max(ts) FROM (SELECT ts FROM stat UNION ALL SELECT ts FROM step UNION ALL SELECT ts FROM event)"
        )
        (lately,) = sources(store, last + 5)
        (long_ago,) = sources(store, last + 500)
    assert (lately.kind, lately.name, lately.instance, lately.state, lately.lag_s) == ("tail", "-", "h:1", "ok", pytest.approx(5))
    assert lately.good > 0
    assert long_ago.state == "quiet"


def test_what_this_process_collects_is_known(tmp_path: Path):
    """The loops that `serve` runs: a server that answers, then only fails."""
    answers = [say(TEXT)]

    def answer(request: BaseHTTPRequestHandler) -> None:
        answers[-1](request)

    with serving(answer) as url, Store(tmp_path / "s.duckdb") as store:
        going = Collection((Target(url, interval_s=0.5),))
        stop = threading.Event()
        threads = [threading.Thread(target=loop, args=(store, stop)) for loop in collect.loops_of(going)]
        for thread in threads:
            thread.start()
        try:
            assert until(lambda: [one.state for one in sources(store)] == ["ok"])
            answers.append(say("<html>", kind="text/html"))
            assert until(lambda: [one.state for one in sources(store)] == ["failing"])
            (one,) = sources(store)
        finally:
            stop.set()
            for thread in threads:
                thread.join(20)
    assert one.says == "a web page, not metrics: is the path right? vLLM's is /metrics"
    assert one.good >= 1
    assert one.failed >= 1


def test_a_log_is_followed_beside_the_server_that_writes_it(tmp_path: Path):
    log = tmp_path / "server.log"
    with serving(say(TEXT)) as url, Store() as store:
        going = Collection((Target(url, interval_s=0.5),), logs=(Log(log),))
        stop = threading.Event()
        threads = [threading.Thread(target=loop, args=(store, stop)) for loop in collect.loops_of(going)]
        for thread in threads:
            thread.start()
        try:
            assert until(lambda: {one.kind: one.says for one in sources(store)}.get("tail") == "no such file")
            log.write_bytes((ROOT / "sample_data/formats/vllm_log/good/json-0.33.log").read_bytes())
            assert until(lambda: store.rows("SELECT count(*) FROM step")[0][0] > 0)
        finally:
            stop.set()
            for thread in threads:
                thread.join(20)
        found = {one.kind: one for one in sources(store)}
        assert store.rows("SELECT DISTINCT instance FROM source_file") == [(url.removeprefix("http://"),)]
    assert found["tail"].name == str(log)
    assert found["tail"].says == ""
    assert going.stored()


def until(condition: object, seconds: float = 20.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.1)
    return False


def test_the_verb_tells_it(tmp_path: Path):
    port, path = free_port(), tmp_path / "s.duckdb"
    with Store(path) as store:
        feeds: dict = {}
        put(store, feeds, [{**line(time.time() - 5), "url": f"http://h:{port}/metrics"}])
        flush(store, feeds)
    done = subprocess.run(
        [sys.executable, "-m", "app", "status", "--store", str(path)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert f"scrape     h:{port}: last " in done.stdout
    assert "1 good, 0 rejected, 0 gaps" in done.stdout
