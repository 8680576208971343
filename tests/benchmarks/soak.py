"""Let the dashboard run: `python tests/benchmarks/soak.py [minutes [engines]]`, with uploads, page views and servers that restart.

`weaklink serve` collects from so many engines every second. Every 15 s a page is opened and a bundle is uploaded; every minute the
engines restart. Prints memory, lag and what a page takes, and at the end the slope of the memory and whether the store holds a
scrape for each answer that the engines gave.
"""

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import numpy as np

from app.store import Store

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "sample_data" / "formats" / "prometheus_text" / "good" / "vllm-0.20.txt"
LOG = ROOT / "sample_data" / "formats" / "vllm_log" / "good" / "case-02.log"
ENGINES = r"""
import asyncio, sys, time
lines, ports = sys.stdin.read().splitlines(), [int(port) for port in sys.argv[1].split(",")]
begun, answered = time.time(), 0
async def serve(reader, writer):
    global answered
    try:
        while await reader.readuntil(b"\r\n\r\n"):
            grown = int((time.time() - begun) * 10)
            body = ("".join(f"{line} {grown}\n" for line in lines) + f"process_start_time_seconds {begun}\n").encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            await writer.drain()
            answered += 1
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()
async def main():
    servers = [await asyncio.start_server(serve, "127.0.0.1", port) for port in ports]
    print("up", flush=True)
    await asyncio.sleep(float(sys.argv[2]))
    for server in servers:
        server.close()
    await asyncio.sleep(0.3)
    print(answered, flush=True)
    import os; os._exit(0)
asyncio.run(main())
"""


def engines(ports: list[int], seconds: float) -> subprocess.Popen[str]:
    series = [line.rpartition(" ")[0] for line in SAMPLE.read_text().splitlines() if 'engine="0"' in line][:250]
    code = [sys.executable, "-c", ENGINES, ",".join(map(str, ports)), str(seconds)]
    process = subprocess.Popen(code, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    process.stdin.write("\n".join(series))
    process.stdin.close()
    assert process.stdout.readline() == "up\n"
    return process


def ask(url: str, body: bytes | None = None) -> tuple[float, str]:
    began = time.monotonic()
    with urllib.request.urlopen(urllib.request.Request(url, body, {"X-Weaklink": "soak"}), timeout=120) as answer:
        text = answer.read().decode()
    return time.monotonic() - began, text


def value(text: str, name: str) -> float:
    found = [float(one) for one in re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)]
    return max(found, default=float("nan"))


def total(text: str, name: str) -> float:
    return sum(float(one) for one in re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE))


def main() -> None:
    minutes = float(sys.argv[1]) if len(sys.argv) > 1 else 120.0
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 20
    ports, port, answered, memory = [18100 + at for at in range(count)], 18099, 0, []
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "a.duckdb"
        command = [sys.executable, "-c", "from app.cli import main; main()", "serve", "--port", str(port), "--no-browser"]
        command += ["--store", str(store), *(part for one in ports for part in ("--target", f"127.0.0.1:{one}"))]
        up = engines(ports, 60)
        serving = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=ROOT, env={**os.environ, "NO_COLOR": "1"})
        url, at = f"http://127.0.0.1:{port}", 0
        for _ in range(120):
            time.sleep(1)
            with contextlib.suppress(OSError):
                ask(f"{url}/healthz")
                break
        end = time.monotonic() + 60 * minutes
        while time.monotonic() < end:
            if up.poll() is not None:
                answered += int(up.stdout.read())
                up = engines(ports, 60)
            page, _ = ask(f"{url}/")
            upload, said = ask(f"{url}/api/bundles?name=s{at}.log", LOG.read_bytes() + b"\n" * at)
            assert json.loads(said)["files"][0]["format"] == "vllm_log"
            own, text = ask(f"{url}/metrics")
            memory.append((time.monotonic() / 60, value(text, "process_resident_memory_bytes") / 1e6))
            print(f"{memory[-1][1]:6.0f} MB, lag {value(text, 'weaklink_lag_seconds'):5.1f} s, {total(text, 'weaklink_scrapes_total'):7.0f} scrapes, "
                  f"dropped {total(text, 'weaklink_dropped_total'):.0f}, page {page:.2f} s, upload {upload:.2f} s, metrics {own:.2f} s", flush=True)  # fmt: skip
            at += 1
            time.sleep(15)
        answered += int(up.stdout.read())
        serving.terminate()
        print("ended with", serving.wait(60))
        with Store(store) as held:
            kept, bad = held.rows("SELECT count(*) FILTER (ok), count(*) FILTER (NOT ok) FROM scrape")[0]
            print(
                f"{answered} answers, {kept} in the store ({bad} failed while engines were away); {store.stat().st_size / 1e6:.0f} MB, {held.notice}"
            )
    half = memory[len(memory) // 2 :]
    print(f"memory over the second half: {np.polyfit(*zip(*half, strict=True), 1)[0]:+.2f} MB a minute")


if __name__ == "__main__":
    main()
