"""A real vLLM on the CPU, under a load whose limit is known: what weaklink collects from it is judged by what its clients saw.

    uv run pytest -m live --vllm=/path/to/bin/vllm

It takes about two minutes on two cores and 2 GiB of memory, and is not part of a plain run. Any vLLM for the CPU from 0.26 on does; it
needs no weights and no network. README.md, "Develop", says how to install one.
"""

import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from live.model import make
from ports import free_port

from app.collectors.record import folder_of
from app.doctor import examine, version_of
from app.ingest import load
from app.pipeline import attribution_for
from app.store import Store

pytestmark = [pytest.mark.live, pytest.mark.timeout(1200)]

ROOT: Final = Path(__file__).resolve().parents[2]
READY_S: Final = 600  # three processes import torch; on idle processors it takes one minute
SLOTS: Final = 2
CLIENTS: Final = 8
REQUESTS: Final = 64
OUTPUT_TOKENS: Final = 48


class Run(NamedTuple):
    """One server's recording, and what its clients measured."""

    bundle: Path
    url: str
    store: Path
    ttft_s: list[float]
    e2e_s: list[float]
    version: str | None


@contextlib.contextmanager
def serving(vllm: str, folder: Path, port: int, otlp: int) -> Iterator[Path]:
    """Run `vllm serve` until it answers; yields its log."""
    log = folder / "server.log"
    command = [
        vllm, "serve", str(make(folder / "tiny")), "--served-model-name", "tiny", "--load-format", "dummy", "--enforce-eager",
        "--dtype", "bfloat16", "--max-model-len", "1024", "--max-num-seqs", str(SLOTS), "--host", "127.0.0.1", "--port", str(port),
        "--enable-logging-iteration-details", "--otlp-traces-endpoint", f"http://127.0.0.1:{otlp}/v1/traces",
    ]  # fmt: skip
    environment = {
        **os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
    }  # fmt: skip
    with log.open("wb") as file, subprocess.Popen(command, stdout=file, stderr=file, env=environment) as process:
        try:
            end = time.monotonic() + READY_S
            while not answers(f"http://127.0.0.1:{port}/health"):
                assert process.poll() is None, log.read_text()[-4000:]
                assert time.monotonic() < end, log.read_text()[-4000:]
                time.sleep(1)
            yield log
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)
            process.kill()  # while it starts it may not listen


def begun(*files: Path) -> None:
    """Wait until something is stored in all of these."""
    end = time.monotonic() + 60
    while not all(file.exists() and file.stat().st_size for file in files):
        assert time.monotonic() < end, files
        time.sleep(0.1)
    time.sleep(3)


def answers(url: str) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=2) as answer:
        return bool(answer.status == 200)
    return False


def ask(url: str, number: int) -> tuple[float, float]:
    """One streamed completion: seconds to its first chunk and to its end."""
    prompt = " ".join(f"w{(number * 37 + at) % 1000}" for at in range(64))
    body = {
        "model": "tiny", "prompt": prompt, "max_tokens": OUTPUT_TOKENS, "ignore_eos": True, "stream": True, "temperature": 0,
    }  # fmt: skip
    request = urllib.request.Request(
        f"{url}/v1/completions", data=json.dumps(body).encode(), headers={"Content-Type": "application/json"}
    )
    start, first = time.perf_counter(), None
    with urllib.request.urlopen(request, timeout=300) as answer:
        for line in answer:
            if first is None and line.startswith(b"data: {"):
                first = time.perf_counter() - start
    assert first is not None
    return first, time.perf_counter() - start


def loaded(url: str) -> list[tuple[float, float]]:
    """CLIENTS clients, each asking again as soon as it has its answer: most of them wait, as only SLOTS run."""
    found: list[tuple[float, float]] = []
    numbers = iter(range(REQUESTS))
    lock = threading.Lock()

    def client() -> None:
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            took = ask(url, number)
            with lock:
                found.append(took)

    threads = [threading.Thread(target=client) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@pytest.fixture(scope="module")
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    vllm = request.config.getoption("--vllm") or shutil.which("vllm")
    if vllm is None:
        pytest.skip("no vLLM: give --vllm=PATH")
    folder = tmp_path_factory.mktemp("live")
    port, otlp = free_port(), free_port()
    url, bundle, store = f"http://127.0.0.1:{port}", folder / "incident.zip", folder / "store.duckdb"
    with serving(str(vllm), folder, port, otlp) as log:
        ask(url, 0)  # the first one compiles
        weaklink = [sys.executable, "-m", "app"]
        record = [
            *weaklink, "record", "--target", url, "--log", str(log), "--otlp", "--otlp-port", str(otlp), "--out", str(bundle),
            "--interval", "0.5",
        ]  # fmt: skip
        collect = [*weaklink, "collect", "--target", url, "--interval", "0.5", "--store", str(store)]
        with subprocess.Popen(record, cwd=ROOT) as recording, subprocess.Popen(collect, cwd=ROOT) as collecting:
            begun(folder_of(bundle) / "metrics.jsonl.gz", store.with_name(f"{store.name}.wal"))
            took = loaded(url)
            time.sleep(7)  # vLLM sends its spans every 5 s
            recording.terminate()
            collecting.terminate()
        assert (recording.returncode, collecting.returncode) == (0, 0)
        yield Run(bundle, url, store, [one for one, _ in took], [one for _, one in took], version_of(f"{url}/metrics"))


def test_the_recording_names_what_limits_it(run: Run):
    with Store() as store:
        results = load(store, [run.bundle])
        found = attribution_for(store)
        requests = store.rows(
            "SELECT count(*), avg(ttft_s), avg(e2e_s) FROM request WHERE source = 'span' AND arrival_ts > (SELECT min(ts) FROM scrape)"
        )[0]
    assert {one.format for one in results if one.format} == {"prometheus_text", "vllm_log", "otlp_spans"}
    assert sum(one.rejected for one in results) == 0, [one.reasons for one in results]
    ttft, e2e = found.targets["ttft"], found.targets["e2e"]
    assert (ttft.limiting, ttft.verdict) == ("slots", "limited")
    assert requests == (REQUESTS, pytest.approx(ttft.measured_s, rel=0.02), pytest.approx(e2e.measured_s, rel=0.02))
    within(ttft.measured_s, run.ttft_s)
    within(e2e.measured_s, run.e2e_s)


def test_live_collection_says_the_same(run: Run):
    with Store(run.store) as store:
        found = attribution_for(store)
        twice = store.rows("SELECT count(*) FROM (SELECT 1 FROM sample GROUP BY series_id, ts HAVING count(*) > 1)")[0][0]
    assert (found.targets["ttft"].limiting, found.targets["ttft"].verdict) == ("slots", "limited")
    within(found.targets["ttft"].measured_s, run.ttft_s)
    assert twice == 0


def within(measured_s: float, clients_s: list[float]) -> None:
    """The server sees what its clients see, less the way to it, which is long where the processors are busy."""
    mean = statistics.mean(clients_s)
    assert 0.6 * mean < measured_s < 1.02 * mean


def test_doctor_knows_this_version(run: Run):
    """Nothing that every server has is missing; what was turned on is there; what was not is told with its flag."""
    with Store() as store:
        load(store, [run.bundle])
        (report,) = examine(store, run.version)
    states = {one.signal: one.state for one in report.signals}
    assert run.version is not None
    assert report.version == run.version
    assert not [one for one in report.signals if one.state == "missing"]
    assert {states[name] for name in ("stages", "ttft", "itl", "gauges", "kv_usage", "preemptions", "spans", "start_log")} == {
        "present"
    }
    assert states["iteration_seconds"] in {"present", "wrong"}
    assert states["kv_events"] == "off"
    assert {one.link: one.how for one in report.links}["slots"] == "exact"


def test_doctor_at_the_running_server(run: Run):
    done = subprocess.run(
        [sys.executable, "-m", "app", "doctor", run.url, "--format", "json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (report,) = json.loads(done.stdout)
    assert report["version"] == run.version
    assert not [one["signal"] for one in report["signals"] if one["state"] == "missing"]
    assert "--enable-logging-iteration-details" in " ".join(one["flag"] for one in report["add"])
