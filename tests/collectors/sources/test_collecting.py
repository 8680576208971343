"""Live collection into a store: a replayed incident gives the verdict of its file, and nothing is lost or doubled by a kill."""

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from collectors.sources.serving import INCIDENTS, ROOT, TEXT, only_metrics, say, serving
from ports import free_port

from app.collectors import replay
from app.collectors.sources.scrape import Target
from app.ingest import load
from app.live.scraped import Feeds, flush, put, scraping
from app.pipeline import attribution_for
from app.store import Store

EVERY = "SELECT s.instance, name, engine, labels, ts, value FROM sample JOIN series AS s USING (series_id) ORDER BY ALL"


@contextlib.contextmanager
def collecting(store: Store, targets: list[Target]) -> Iterator[Feeds]:
    feeds: Feeds = {}
    stop = threading.Event()
    thread = threading.Thread(target=scraping(targets, feeds), args=(store, stop))
    thread.start()
    try:
        yield feeds
    finally:
        stop.set()
        thread.join(20)
    assert not thread.is_alive()


def verdicts(store: Store) -> dict[str, tuple]:
    return {name: (one.limiting, one.verdict) for name, one in attribution_for(store).targets.items() if one}


def line(t: float, text: str | None = TEXT, url: str = "http://h:1/metrics") -> dict:
    return {"t": t, "url": url, "dur": 0.0, **({"error": "down"} if text is None else {"text": text})}


def weaklink(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "app", *arguments]


def twice(store: Store) -> int:
    return store.rows("SELECT count(*) FROM (SELECT 1 FROM sample GROUP BY series_id, ts HAVING count(*) > 1)")[0][0]


def test_a_replayed_incident_has_the_verdict_of_its_file(tmp_path: Path):
    bundle = only_metrics(INCIDENTS / "prefill_backlog", tmp_path)
    with replay.recording(bundle) as held, replay.serve(held, speed=5) as playing, Store() as store, Store() as offline:
        with collecting(store, [Target(url, interval_s=0.2) for url in playing.urls.values()]) as feeds:
            while not playing.ended():
                time.sleep(0.1)
            time.sleep(0.5)
        load(offline, [bundle])
        live, file = attribution_for(store), attribution_for(offline)
        assert verdicts(store) == verdicts(offline)
        assert twice(store) == 0
    assert {name: one.limiting for name, one in live.targets.items()}["ttft"] == "prefill_backlog"
    for name, one in live.targets.items():
        assert one.measured_s == pytest.approx(file.targets[name].measured_s, rel=0.05), name
    (feed,) = feeds.values()
    assert feed.scrapes >= 60  # of 70
    assert feed.rejected == feed.dropped == 0


def test_a_kill_loses_nothing_stored_and_doubles_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    bundle, path, port = only_metrics(INCIDENTS / "prefill_backlog", tmp_path / "bundle"), tmp_path / "store.duckdb", free_port()
    answered: list[float] = []
    told = replay.Recording.text

    def text(self: replay.Recording, *arguments: object) -> str | None:
        answered.append(time.monotonic())
        return told(self, *arguments)

    monkeypatch.setattr(replay.Recording, "text", text)

    def begun(scrapes: int) -> subprocess.Popen:
        """Start collecting; return when so many scrapes have been answered, and surely stored."""
        command = weaklink(
            "collect", "--target", f"127.0.0.1:{port}", "--interval", "0.1", "--store", str(path), "--format", "json"
        )
        running, enough = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE), len(answered) + scrapes
        while len(answered) < enough:
            assert running.poll() is None
            time.sleep(0.05)
        time.sleep(2)
        return running

    with replay.recording(bundle) as held, replay.serve(held, speed=2, port=port) as playing:
        first = begun(30)  # over before the burst of the recording begins
        first.kill()
        first.communicate()
        with Store(path) as store:
            before = store.rows(EVERY)
        assert len(before) > 1000
        assert not playing.ended()
        second = begun(10)
        while not playing.ended():
            time.sleep(0.1)
        time.sleep(0.5)
        second.terminate()
        said = json.loads(second.communicate()[0])
        assert second.returncode == 0
    with Store(path) as store:
        after = store.rows(EVERY)
        assert set(before) <= set(after)
        assert len(set(after)) == len(after)
        assert twice(store) == 0
        assert len(after) > len(before)
        assert store.rows("SELECT count(*) FROM source_file") == [(1,)]
        assert store.rows("SELECT lines FROM source_file") == store.rows("SELECT count(*) FROM scrape")
        assert verdicts(store)["ttft"] == ("prefill_backlog", "limited")
    assert said["target"][0]["scrapes"] > 5


def test_scrapes_out_of_order_and_repeated_add_nothing():
    with Store() as store:
        feeds: Feeds = {}
        now = time.time() - 100
        put(store, feeds, [line(now), line(now + 1), line(now + 1), line(now + 0.5)])
        put(store, feeds, [line(now + 1), line(now - 5), line(now + 2)])
        put(store, {}, [line(now + 2), line(now + 1.5)])  # another run of the program
        assert [ts for (ts,) in store.rows("SELECT ts FROM scrape ORDER BY ts")] == [now, now + 1, now + 2]
        assert feeds["h:1"].skipped == 4
        assert twice(store) == 0


def test_a_failed_scrape_is_a_row_without_samples():
    with Store() as store:
        feeds: Feeds = {}
        now = time.time() - 100
        put(store, feeds, [line(now), line(now + 1, None), line(now + 2)])
        assert store.rows("SELECT ts - ?, ok FROM scrape ORDER BY ts", [now]) == [(0, True), (1, False), (2, True)]
        assert store.rows("SELECT count(DISTINCT ts) FROM sample") == [(2,)]
        assert (feeds["h:1"].failed, feeds["h:1"].error, feeds["h:1"].scrapes) == (1, None, 3)


def test_bad_lines_are_counted_and_the_first_reasons_kept():
    with Store() as store:
        feeds: Feeds = {}
        now = time.time() - 1000
        put(store, feeds, [line(now + at, f"{TEXT}\nvllm:x{{ 1\n") for at in range(130)])
        flush(store, feeds)
        assert feeds["h:1"].rejected == 130
        assert store.rows("SELECT rejected, lines FROM source_file") == [(130, 130)]
        kept = store.rows("SELECT line, reason FROM rejected_line ORDER BY line")
        assert 100 <= len(kept) <= 130
        assert "expected: name{labels} value" in kept[0][1]


def test_a_scrape_that_the_store_refuses_takes_no_other_along(monkeypatch):
    with Store() as store:
        feeds: Feeds = {}
        now = time.time() - 100
        put(store, feeds, [line(now)])
        real = store.add

        def refuse(batch, **constant):
            if batch.table == "sample" and now + 2 in list(batch.columns["ts"]):
                raise MemoryError("no room")
            return real(batch, **constant)

        monkeypatch.setattr(store, "add", refuse)
        put(store, feeds, [line(now + at) for at in range(1, 4)])
        assert [ts - now for (ts,) in store.rows("SELECT ts FROM scrape ORDER BY ts")] == [0, 1, 3]
        assert store.rows("SELECT count(DISTINCT ts) FROM sample") == [(3,)]
        assert feeds["h:1"].failed == 1


def test_a_restarted_server_and_a_new_series_are_taken():
    with Store() as store:
        feeds: Feeds = {}
        now = time.time() - 100
        put(store, feeds, [line(now, 'vllm:prompt_tokens_total{engine="0"} 5\n')])
        put(store, feeds, [line(now + 1, 'vllm:prompt_tokens_total{engine="0"} 2\nvllm:generation_tokens_total{engine="0"} 3\n')])
        rows = store.rows("SELECT name, value FROM sample JOIN series USING (series_id) ORDER BY ts, name")
    assert rows == [
        ("vllm:prompt_tokens_total", 5.0),
        ("vllm:generation_tokens_total", 3.0),
        ("vllm:prompt_tokens_total", 2.0),
    ]


def test_collecting_a_useless_target_says_why(tmp_path: Path):
    with serving(say("<html>", kind="text/html")) as url:
        command = weaklink("collect", "--target", url, "--for", "3", "--store", str(tmp_path / "s.duckdb"), "--format", "json")
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "a web page" in json.loads(done.stdout)["target"][0]["error"]
    assert "nothing was stored" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "name what to collect from"),
        (["--target", "ftp://x"], "expected http://host:port/metrics"),
        (["--target", "h:1", "--target", "h:1/other"], "host:port of its own"),
        (["--prometheus", "http://p?x=1"], "expected a URL without query"),
        (["--prometheus", "http://p", "--match", "a b"], "expected a label matcher"),
        (["--config", "no-such-file.toml"], "no-such-file.toml: cannot be read"),
    ],
)
def test_wrong_arguments_are_named(tmp_path: Path, arguments: list[str], expected: str):
    command = weaklink("collect", *arguments, "--store", str(tmp_path / "s.duckdb"))
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert expected in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unreachable_prometheus_is_named(tmp_path: Path):
    url = f"http://127.0.0.1:{free_port()}"
    command = weaklink("collect", "--prometheus", url, "--store", str(tmp_path / "s.duckdb"), "--format", "json")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert json.loads(done.stdout)["error"] == [f"{url}: 4 attempts failed; last: cannot connect"]
