"""What the tests of the live sources share: free ports, servers that misbehave, a real Prometheus around a recording."""

import contextlib
import functools
import gzip
import http.server
import json
import shutil
import ssl
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from ports import free_port
from prometheus_client.parser import text_string_to_metric_families

ROOT: Final = Path(__file__).resolve().parents[3]
INCIDENTS: Final = ROOT / "sample_data" / "incidents"
TEXT: Final = (ROOT / "sample_data" / "formats" / "prometheus_text" / "good" / "vllm-0.20.txt").read_text()

Answer = Callable[[http.server.BaseHTTPRequestHandler], None]


def say(text: str | bytes, *, status: int = 200, kind: str = "text/plain", **headers: str) -> Answer:
    """Return an answer with this body."""
    body = text.encode() if isinstance(text, str) else text

    def answer(request: http.server.BaseHTTPRequestHandler) -> None:
        request.send_response(status)
        request.send_header("Content-Type", kind)
        request.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            request.send_header(name.replace("_", "-"), value)
        request.end_headers()
        request.wfile.write(body)

    return answer


@contextlib.contextmanager
def serving(answer: Answer, port: int = 0, context: ssl.SSLContext | None = None) -> Iterator[str]:
    """Serve in threads; yields the URL. A client that goes away in the middle is no error."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            with contextlib.suppress(OSError):
                answer(self)

        do_POST = do_GET  # noqa: N815 the name is http.server's

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    server.handle_error = lambda *_: None
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def lines_of(bundle: Path) -> list[dict]:
    """Return the scrapes of a recording."""
    with gzip.open(bundle / "metrics.jsonl.gz") as file:
        return [json.loads(line) for line in file]


def only_metrics(bundle: Path, folder: Path) -> Path:
    """Return a copy of a bundle with nothing but its scrapes."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(bundle / "metrics.jsonl.gz", folder)
    return folder


def _labels(labels: Mapping[str, str]) -> str:
    return ",".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in labels.items())


@functools.lru_cache(maxsize=256)
def exposed(text: str) -> list[tuple[str, str, list[tuple[str, dict[str, str], str, float]]]]:
    """Return the families of an exposition text with their samples: name, labels, the labels written out, value."""
    return [
        (
            family.name,
            "unknown" if family.type == "untyped" else family.type,
            [
                (sample.name, sample.labels, _labels(sample.labels), sample.value)
                for sample in family.samples
                if not sample.name.endswith("_created")
            ],
        )
        for family in text_string_to_metric_families(text)
        if not family.name.endswith("_created")
    ]


def open_metrics(lines: list[dict], job: str = "vllm", **more: str) -> str:
    """Return scrapes as promtool takes them: by family, counters without _total, seconds, # EOF."""
    families: dict[str, tuple[str, list[str]]] = {}
    for line in lines:
        if "text" not in line:
            continue
        given = {"job": job, "instance": line["url"].split("/")[2], **more}
        added, ts = _labels(given), f"{line['t'] + line.get('dur', 0):.3f}"
        for family, kind, samples in exposed(line["text"]):
            rows = families.setdefault(family, (kind, []))[1]
            for name, labels, written, value in samples:
                own = written if given.keys().isdisjoint(labels) else _labels({k: v for k, v in labels.items() if k not in given})
                rows.append(f"{name}{{{own}{',' if own else ''}{added}}} {value} {ts}")
    parts = [f"# TYPE {name} {kind}\n" + "\n".join(rows) + "\n" for name, (kind, rows) in families.items()]
    return "".join(parts) + "# EOF\n"


@contextlib.contextmanager
def prometheus(folder: Path, *captures: str) -> Iterator[str]:
    """Run a real Prometheus that holds these OpenMetrics texts; yields its URL."""
    data, port = folder / "data", free_port()
    for at, capture in enumerate(captures):
        text = folder / f"capture-{at}.om"
        text.write_text(capture)
        done = subprocess.run(
            ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(text), str(data)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    (folder / "prometheus.yml").write_text("global: {}\n")
    command = [
        "prometheus", f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={data}",
        f"--web.listen-address=127.0.0.1:{port}", "--storage.tsdb.retention.time=10y", "--log.level=error",
    ]  # fmt: skip
    with (folder / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as server:
        try:
            url = f"http://127.0.0.1:{port}"
            for _ in range(300):
                with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/-/ready", timeout=1) as answer:
                    if answer.status == 200:
                        break
                time.sleep(0.1)
            else:
                raise AssertionError((folder / "log").read_text())
            yield url
        finally:
            server.terminate()
            server.wait(20)
