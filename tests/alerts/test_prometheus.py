"""End to end: a fault replayed to a real Prometheus with the exported rules, a real Alertmanager, and weaklink beside them."""

import json
import shutil
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import pytest
from alerts.incident import texts
from alerts.receiver import Receiver
from ports import free_port

from app.alerts import export, history
from app.alerts.definitions import read
from app.alerts.loop import backgrounds
from app.collectors.sources.scrape import Target
from app.live.scraped import scraping
from app.store import Store

SPEED: Final = 6.0  # 66 recorded seconds in 11
EVERY_S: Final = 0.25
AGREE_S: Final = 2.0  # scrapes and evaluations of both, on two busy processors
PATIENCE_S: Final = 45.0

SLO: Final = """
[alerts]
interval = "250ms"

[[slo]]
name = "chat"
kind = "ttft"
threshold = "1s"
objective = "90%"
period = "5m"
minimum = 5
pending = "500ms"
keep = "2s"
burn = [{{severity = "page", budget = "4%", long = "6s", short = "2s"}}]

[[notify]]
name = "alertmanager"
kind = "alertmanager"
url = "http://127.0.0.1:{alertmanager}"
"""
PROMETHEUS: Final = """
global: {{scrape_interval: 250ms, scrape_timeout: 250ms, evaluation_interval: 250ms}}
rule_files: [rules.yml]
alerting: {{alertmanagers: [{{static_configs: [{{targets: ["127.0.0.1:{alertmanager}"]}}]}}]}}
scrape_configs: [{{job_name: vllm, static_configs: [{{targets: ["127.0.0.1:{server}"]}}]}}]
"""
ALERTMANAGER: Final = """
route: {{receiver: hook, group_by: ["..."], group_wait: 100ms, group_interval: 500ms, repeat_interval: 1h}}
receivers: [{{name: hook, webhook_configs: [{{url: "{hook}", send_resolved: true}}]}}]
"""


@contextmanager
def replayed(name: str) -> Iterator[int]:
    """Serve the incident's scrapes as /metrics, SPEED times as fast; yields the port."""
    found = texts(name)
    began = time.monotonic()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            at = found[0][0] + SPEED * (time.monotonic() - began)
            text = [one for ts, _, one in found if ts <= at][-1].encode()
            with suppress(OSError):  # a scrape that ran out of time
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.end_headers()
                self.wfile.write(text)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


@contextmanager
def program(folder: Path, *command: str) -> Iterator[None]:
    name = Path(command[0]).name
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=subprocess.STDOUT)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def eventually(what: str, found: Callable[[], Any]) -> Any:
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        try:
            answer = found()
        except OSError:
            answer = None
        if answer:
            return answer
        time.sleep(0.1)
    pytest.fail(f"waited {PATIENCE_S:.0f} s for {what}")


def ready(port: int) -> bool:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=2) as answer:
        return answer.status == 200


def alerts_of(hook: Receiver, source: str | None) -> list[dict[str, Any]]:
    """Firing alerts that Alertmanager handed to the receiver, from weaklink (source "weaklink") or from Prometheus (None)."""
    bodies = [json.loads(one.body) for one in hook.got()]
    found = [alert for body in bodies for alert in body["alerts"]]
    return [one for one in found if one["status"] == "firing" and one["labels"].get("source") == source]


@pytest.mark.prometheus
@pytest.mark.alertmanager
def test_prometheus_and_weaklink_tell_alertmanager_the_same(tmp_path: Path):
    port, manager = free_port(), free_port()
    with ExitStack() as stack:
        hook = stack.enter_context(Receiver())
        (tmp_path / "slo.toml").write_text(SLO.format(alertmanager=manager))
        definitions = read(tmp_path / "slo.toml")
        (tmp_path / "rules.yml").write_text(export.rules(definitions.slos, definitions).text)
        (tmp_path / "alertmanager.yml").write_text(ALERTMANAGER.format(hook=hook.url))
        stack.enter_context(
            program(
                tmp_path, shutil.which("prometheus-alertmanager"), "--config.file=alertmanager.yml", "--storage.path=am",
                "--cluster.listen-address=", f"--web.listen-address=127.0.0.1:{manager}",
            )
        )  # fmt: skip
        eventually("Alertmanager", lambda: ready(manager))

        server = stack.enter_context(replayed("prefill_backlog"))
        (tmp_path / "prometheus.yml").write_text(PROMETHEUS.format(alertmanager=manager, server=server))
        stack.enter_context(
            program(
                tmp_path, shutil.which("prometheus"), "--config.file=prometheus.yml", "--storage.tsdb.path=tsdb",
                f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn",
            )
        )  # fmt: skip
        store = stack.enter_context(Store())
        stop = threading.Event()
        loops = [
            scraping([Target(f"http://127.0.0.1:{server}/metrics", interval_s=EVERY_S)], {}),
            *backgrounds(tmp_path / "slo.toml"),
        ]
        threads = [threading.Thread(target=loop, args=(store, stop), daemon=True) for loop in loops]
        for thread in threads:
            thread.start()
        try:
            ours = eventually("weaklink's alert", lambda: history.alerts(store))[-1]
            told = eventually("Prometheus' alert at the receiver", lambda: alerts_of(hook, None))[0]
            mine = eventually("weaklink's alert at the receiver", lambda: alerts_of(hook, "weaklink"))[0]
        finally:
            stop.set()
            for thread in threads:
                thread.join(20)
    same = ("alertname", "slo", "severity")
    assert {name: told["labels"][name] for name in same} == {name: mine["labels"][name] for name in same}
    theirs = datetime.fromisoformat(told["startsAt"]).timestamp()
    assert abs(theirs - ours.fired_ts) <= AGREE_S
    assert "The budget burns more than" in told["annotations"]["description"]
    assert told["annotations"]["runbook_url"].endswith("/alerts")
    assert "TTFT" in mine["annotations"]["description"]
    assert "from=" in mine["annotations"]["dashboard"]
