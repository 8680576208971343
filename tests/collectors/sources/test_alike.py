"""What speaks Prometheus's API: a real VictoriaMetrics; and Thanos and Mimir as a real Prometheus behind what they do differently."""

import contextlib
import json
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Final

import pytest
from collectors.sources.conftest import Capture
from collectors.sources.serving import INCIDENTS, lines_of, only_metrics, open_metrics, say, serving
from ports import free_port

from app.collectors.promql import PrometheusError
from app.collectors.sources.prometheus import NO_CONFIG, Server
from app.ingest import load
from app.live.pulled import Pulled, pull
from app.pipeline import attribution_for
from app.store import Store

HERE: Final = "127.0.0.1:40861"
PARTIAL: Final = 'fetch series for {job="vllm"}: rpc error: store sidecar-2 is unavailable'


def judged(store: Store) -> dict[str, tuple]:
    return {name: (one.measured_s, one.limiting, one.verdict) for name, one in attribution_for(store).targets.items() if one}


def same(found: dict[str, tuple], raw: dict[str, tuple]) -> None:
    """The same verdicts, and seconds within 2 %."""
    assert found.keys() == raw.keys()
    for name, (measured, *rest) in raw.items():
        assert found[name][0] == pytest.approx(measured, rel=0.02), name
        assert list(found[name][1:]) == rest, name


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple]:
    with Store() as store:
        load(store, [only_metrics(INCIDENTS / "prefill_backlog", tmp_path_factory.mktemp("raw"))])
        return judged(store)


# -- VictoriaMetrics --------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def victoria(folder: Path, lines: list[dict], *options: str) -> Iterator[str]:
    """Run a real VictoriaMetrics that holds these scrapes; yields its URL."""
    port = free_port()
    command = [
        "victoria-metrics", f"-storageDataPath={folder / 'data'}", f"-httpListenAddr=127.0.0.1:{port}", "-retentionPeriod=100y",
        "-loggerLevel=ERROR", "-memory.allowedPercent=10", *options,
    ]  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    with (folder / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as server:
        try:
            for _ in range(300):
                with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=1) as answer:
                    if answer.status == 200:
                        break
                time.sleep(0.1)
            else:
                raise AssertionError((folder / "log").read_text())
            body = "".join(in_ms(line) for line in open_metrics(lines).splitlines() if not line.startswith("#"))
            urllib.request.urlopen(f"{url}/api/v1/import/prometheus", body.encode(), timeout=60).close()
            urllib.request.urlopen(f"{url}/internal/force_flush", timeout=60).close()
            yield url
        finally:
            server.terminate()
            server.wait(20)


def in_ms(line: str) -> str:
    text, _, ts = line.rpartition(" ")
    return f"{text} {round(float(ts) * 1000)}\n"


@pytest.mark.victoria
@pytest.mark.parametrize("options", [(), ("-maxLabelsPerTimeseries=100",)], ids=["default", "more labels"])
def test_a_real_victoriametrics(options: tuple[str, ...], raw: dict[str, tuple], tmp_path: Path):
    lines = [line for line in lines_of(INCIDENTS / "prefill_backlog") if "text" in line]
    start, end = lines[0]["t"] - 5, lines[-1]["t"] + 5
    with victoria(tmp_path, lines, *options) as url, Store() as store:
        found = Pulled()
        pull(store, Server(url), start, end, found)
        assert found.scrapes == {HERE: len(lines)}
        assert found.notes == ([] if options else [f"{HERE}: {NO_CONFIG}"])
        if options:
            same(judged(store), raw)
        else:  # without the size of the KV cache less can be said
            assert judged(store)["ttft"][0] == pytest.approx(raw["ttft"][0], rel=0.02)
        again = Pulled()
        pull(store, Server(url), start, end, again)
        assert again.scrapes == {HERE: 0}
        assert store.rows("SELECT count(*) FROM (SELECT 1 FROM sample GROUP BY series_id, ts HAVING count(*) > 1)") == [(0,)]


# -- Thanos and Mimir -------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def before(url: str, *, prefix: str = "", tenant: str | None = None, warning: str | None = None) -> Iterator[str]:
    """Serve a Prometheus as a query front end does: under a path, for one tenant, with a warning on each answer."""

    def answer(request: BaseHTTPRequestHandler) -> None:
        if tenant is not None and request.headers.get("X-Scope-OrgID") != tenant:
            say("no org id\n", status=401)(request)
            return
        if not request.path.startswith(prefix):
            say("404 page not found\n", status=404)(request)
            return
        length = int(request.headers.get("Content-Length") or 0)
        body = request.rfile.read(length) if length else None
        asked = urllib.request.Request(url + request.path.removeprefix(prefix), body, method=request.command)
        for name in ("Content-Type", "Accept"):
            if request.headers.get(name):
                asked.add_header(name, request.headers[name])
        with urllib.request.urlopen(asked, timeout=30) as told:
            said = json.loads(told.read())
        if warning is not None:
            said["warnings"] = [warning]
        say(json.dumps(said), kind="application/json")(request)

    with serving(answer) as served:
        yield served + prefix


@pytest.mark.prometheus
def test_a_partial_answer_of_thanos_is_told(backlog: Capture, raw: dict[str, tuple]):
    """Thanos answers 200 with a warning where a store is away (partial_response, its default)."""
    with before(backlog.url, warning=PARTIAL) as url, Store() as store:
        found = Pulled()
        pull(store, Server(url), backlog.start, backlog.end, found)
        same(judged(store), raw)
    assert found.notes == [f"{url} says: {PARTIAL}"]


@pytest.mark.prometheus
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_tenant_of_mimir_under_its_path(method: str, backlog: Capture, raw: dict[str, tuple]):
    with before(backlog.url, prefix="/prometheus", tenant="team") as url, Store() as store:
        found = Pulled()
        pull(store, Server(url, tenant="team", method=method), backlog.start, backlog.end, found)
        same(judged(store), raw)
        assert found.notes == []
        with pytest.raises(PrometheusError, match="HTTP status 401"):
            pull(store, Server(url), backlog.start, backlog.end, Pulled())


def test_a_limit_of_mimir_is_told_in_its_words():
    error = "the query time range exceeds the limit (query length: 744h0m0s, limit: 720h0m0s)"
    body = json.dumps({"status": "error", "errorType": "execution", "error": error})
    said = pytest.raises(PrometheusError, match="HTTP status 422: the query time range exceeds the limit")
    with serving(say(body, status=422, kind="application/json")) as url, Store() as store, said:
        pull(store, Server(url), 0, 100, Pulled())
