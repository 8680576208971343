"""Recordings: what `record` writes is a bundle that gives the verdict of what it recorded, however it ends."""

import gzip
import json
import signal
import subprocess
import sys
import threading
import time
import tomllib
import urllib.request
import zipfile
from functools import partial
from pathlib import Path

import pytest
from collectors.sources.serving import INCIDENTS, ROOT, TEXT, only_metrics, say, serving
from ports import free_port

from app.collectors import replay
from app.collectors.record import RecordError, State, folder_of, record
from app.collectors.sources.scrape import Target
from app.ingest import load
from app.pipeline import attribution_for
from app.store import Store


def recorded(out: Path, targets: list[Target], seconds: float, **options: object) -> State:
    state, stop = State(), threading.Event()
    timer = threading.Timer(seconds, stop.set)
    timer.start()
    record(targets, out, state, stop, **options)
    timer.cancel()
    return state


def member(out: Path, name: str) -> bytes:
    with zipfile.ZipFile(out) as archive:
        return gzip.decompress(archive.read(name))


def test_a_recording_gives_the_verdict_of_what_it_recorded(tmp_path: Path):
    bundle, out = only_metrics(INCIDENTS / "prefill_backlog", tmp_path / "bundle"), tmp_path / "incident.zip"
    with replay.recording(bundle) as held, replay.serve(held, speed=8) as playing:
        (url,) = playing.urls.values()
        state = recorded(out, [Target(url, interval_s=0.125)], playing.end - time.time() + 0.5)
    with Store() as ours, Store() as theirs:
        results = load(ours, [out])
        load(theirs, [bundle])
        live, file = attribution_for(ours), attribution_for(theirs)
    assert {result.name: result.format for result in results} == {"manifest.toml": None, "metrics.jsonl.gz": "prometheus_text"}
    assert live.targets["ttft"].limiting == file.targets["ttft"].limiting == "prefill_backlog"
    assert live.targets["ttft"].measured_s == pytest.approx(file.targets["ttft"].measured_s, rel=0.05)
    assert state.scrapes > 50
    assert not folder_of(out).exists()


def test_the_manifest_says_what_it_is(tmp_path: Path):
    out = tmp_path / "a.zip"
    with serving(say(TEXT)) as url:
        recorded(out, [Target(f"{url}/metrics?token=secret", interval_s=0.1)], 2.0)
    with zipfile.ZipFile(out) as archive:
        manifest = tomllib.loads(archive.read("manifest.toml").decode())
    assert manifest["kind"] == "recorded"
    assert manifest["targets"] == [f"{url}/metrics"]
    assert manifest["scrapes"] >= 3
    assert manifest["stopped"] == "as asked"


def test_the_size_bound_ends_it_cleanly_and_says_so(tmp_path: Path):
    out, start = tmp_path / "a.zip", time.monotonic()
    with serving(say(TEXT)) as url:
        state = recorded(out, [Target(url, interval_s=0.05)], 30, max_bytes=100)
    assert time.monotonic() - start < 15
    assert state.stopped == "at the size bound of 0.0 MB"
    assert json.loads(member(out, "metrics.jsonl.gz").splitlines()[0])["text"] == TEXT


def test_a_log_is_followed_through_rotation_and_user_text_is_cut(tmp_path: Path):
    log, out = tmp_path / "server.log", tmp_path / "a.zip"
    log.write_text("INFO start\nINFO Received request cmpl-1: prompt: 'my secret', params: x\n")

    def write() -> None:
        time.sleep(0.4)
        with log.open("a") as file:
            file.write("INFO second\nINFO half a li")
        time.sleep(0.7)
        with log.open("a") as file:
            file.write("ne\n")
        log.rename(tmp_path / "server.log.1")
        log.write_text('INFO after rotation\n{"message": "Generated response x: output: \'my secret\'"}\n')
        time.sleep(1.2)
        log.write_text("INFO begun anew\n")

    writer = threading.Thread(target=write)
    writer.start()
    with serving(say(TEXT)) as url:
        state = recorded(out, [Target(url)], 3.5, logs=[log])
    writer.join()
    assert member(out, "server.log.gz").decode().splitlines() == [
        "INFO start",
        "INFO Received request [removed]",
        "INFO second",
        "INFO half a line",
        "INFO after rotation",
        "INFO begun anew",
    ]
    assert (state.log_lines, state.cut_lines) == (7, 2)


def test_spans_are_taken_beside_the_scrapes(tmp_path: Path):
    """As vLLM's exporter sends them; a prompt in an attribute and the spans of others do not reach the disk."""
    out, port = tmp_path / "a.zip", free_port()
    sample = (ROOT / "sample_data/formats/otlp_spans/good/vllm-0.33-two-servers.jsonl").read_text()
    exports = [json.loads(line)["request"] for line in sample.splitlines()]
    span = exports[0]["resourceSpans"][0]["scopeSpans"][0]["spans"][0]
    span["attributes"].append({"key": "gen_ai.prompt.0.content", "value": {"stringValue": "my secret"}})
    exports.append({"resourceSpans": [{"scopeSpans": [{"spans": [{"name": "GET /my secret", "startTimeUnixNano": "1"}]}]}]})
    answers = []

    def send() -> None:
        for export in exports:
            request = urllib.request.Request(
                f"http://127.0.0.1:{port}/v1/traces",
                data=gzip.compress(json.dumps(export).encode()),
                headers={"Content-Type": "application/json", "Content-Encoding": "gzip"},
            )
            for _ in range(50):
                try:
                    answers.append(urllib.request.urlopen(request, timeout=5).status)
                    break
                except OSError:
                    time.sleep(0.1)

    sender = threading.Thread(target=send)
    sender.start()
    with serving(say(TEXT)) as url:
        state = recorded(out, [Target(url)], 4, otlp_at=("127.0.0.1", port))
    sender.join()
    assert answers == [200] * len(exports)
    assert state.spans == 2
    assert b"secret" not in member(out, "spans.jsonl.gz")
    with Store() as store:
        load(store, [out])
        assert store.rows("SELECT count(*), count(ttft_s), count(output_tokens), count(DISTINCT pid) FROM request") == [
            (2, 2, 2, 2)
        ]


def test_a_port_that_is_taken_is_said_before_anything_is_recorded(tmp_path: Path):
    with serving(say(TEXT)) as url:
        port = int(url.rpartition(":")[2])
        with pytest.raises(RecordError, match=f"127.0.0.1:{port}: is taken; give another --otlp-port"):
            record([Target(url)], tmp_path / "a.zip", State(), threading.Event(), otlp_at=("127.0.0.1", port))
    assert list(tmp_path.iterdir()) == []


def test_two_logs_of_one_name_are_both_there(tmp_path: Path):
    logs = [tmp_path / "a" / "vllm.log", tmp_path / "b" / "vllm.log"]
    for log in logs:
        log.parent.mkdir()
        log.write_text(f"{log.parent.name}\n")
    with serving(say(TEXT)) as url:
        recorded(tmp_path / "o.zip", [Target(url)], 0.3, logs=logs)
    assert [member(tmp_path / "o.zip", f"vllm-{at}.log.gz") for at in (1, 2)] == [b"a\n", b"b\n"]


def test_what_is_there_is_not_overwritten(tmp_path: Path):
    out = tmp_path / "a.zip"
    out.write_text("precious")
    with pytest.raises(RecordError, match="is there already"):
        record([Target("h:1")], out, State(), threading.Event())
    assert out.read_text() == "precious"
    with pytest.raises(RecordError, match="no such log file"):
        record([Target("h:1")], tmp_path / "b.zip", State(), threading.Event(), logs=[tmp_path / "none.log"])
    assert [file.name for file in tmp_path.iterdir()] == ["a.zip"]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match=r"a\.zip: "):
        record([Target("h:1")], tmp_path / "file" / "a.zip", State(), threading.Event())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_completes_the_bundle(tmp_path: Path, number: signal.Signals):
    out = tmp_path / "a.zip"
    command = [sys.executable, "-m", "app", "record", "--interval", "0.1", "--out", str(out), "--format", "json"]
    heard = partial(
        signal.signal, number, signal.SIG_DFL
    )  # a suite that a shell runs in the background ignores SIGINT, and so would this
    with (
        serving(say(TEXT)) as url,
        subprocess.Popen(
            [*command, "--target", url],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            preexec_fn=heard,  # noqa: PLW1509 it starts no thread
        ) as running,
    ):
        while not (folder_of(out) / "metrics.jsonl.gz").exists():
            time.sleep(0.05)
        time.sleep(1.5)
        running.send_signal(number)
        said = json.loads(running.communicate(timeout=20)[0])
    assert running.returncode == 0
    assert len(member(out, "metrics.jsonl.gz").splitlines()) == said["scrapes"] > 2
    assert not folder_of(out).exists()


def test_what_is_killed_leaves_a_folder_that_can_be_read(tmp_path: Path):
    out = tmp_path / "a.zip"
    command = [sys.executable, "-m", "app", "record", "--interval", "0.1", "--out", str(out)]
    with serving(say(TEXT)) as url, subprocess.Popen([*command, "--target", url], cwd=ROOT) as running:
        while not (folder_of(out) / "metrics.jsonl.gz").exists():
            time.sleep(0.05)
        time.sleep(3)
        running.kill()
    assert not out.exists()
    with Store() as store:
        load(store, [folder_of(out)])
        assert store.rows("SELECT count(*) FROM scrape")[0][0] >= 5


def test_a_recording_without_a_scrape_is_said_so(tmp_path: Path):
    out, url = tmp_path / "a.zip", f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "app", "record", "--target", url, "--for", "5", "--out", str(out), "--format", "json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert json.loads(done.stdout)["errors"] == [f"http://{url}/metrics: cannot connect: Connection refused"]
    assert "no scrape succeeded" in done.stderr
