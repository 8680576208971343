"""What 100 engines cost, scraped every second into a store: `python tests/benchmarks/live_load.py [engines [seconds]]`.

The targets are in a process of their own on another core; the collector is held to one. Prints the share of that core, what
arrived, and how much more fits. The engines count on, so that every sample is new.
"""

import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from app.collectors.sources.scrape import Target
from app.live.scraped import Feeds, scraping
from app.store import Store

SAMPLE = Path(__file__).resolve().parents[2] / "sample_data" / "formats" / "prometheus_text" / "good" / "vllm-0.20.txt"
SERIES = 250

SERVER = r"""
import asyncio, sys
head, lines = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n", sys.stdin.read().splitlines()
async def serve(reader, writer):
    number = 0
    try:
        while await reader.readuntil(b"\r\n\r\n"):
            number += 1
            body = "".join(f"{line} {number}\n" for line in lines).encode()
            writer.write(head % len(body) + body)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()
async def main():
    servers = [await asyncio.start_server(serve, "127.0.0.1", 0) for _ in range(int(sys.argv[1]))]
    print(*(server.sockets[0].getsockname()[1] for server in servers), flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""


def series() -> str:
    """Return 250 series of one engine, as vLLM writes them, without their values."""
    lines = [line.rpartition(" ")[0] for line in SAMPLE.read_text().splitlines() if 'engine="0"' in line]
    return "\n".join(lines[at % len(lines)].replace('engine="0"', f'engine="{at // len(lines)}"') for at in range(SERIES))


def cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    engines = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 30.0
    with subprocess.Popen([sys.executable, "-c", SERVER, str(engines)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        server.stdin.write(series().encode())
        server.stdin.close()
        ports = server.stdout.readline().split()
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(server.pid, {cores[-1]})
        os.sched_setaffinity(0, {cores[0]})
        with tempfile.TemporaryDirectory() as folder, Store(Path(folder) / "s.duckdb", threads=1) as store:
            targets = [Target(f"127.0.0.1:{int(port)}", interval_s=1.0) for port in ports]
            feeds: Feeds = {}
            stop = threading.Event()
            thread = threading.Thread(target=scraping(targets, feeds), args=(store, stop))
            thread.start()
            while len(feeds) < engines or min(feed.scrapes for feed in feeds.values()) < 3:
                time.sleep(0.2)  # connections, and every series seen once
            before, used, start = sum(feed.samples for feed in feeds.values()), cpu(), time.monotonic()
            time.sleep(seconds)
            after, spent, passed = sum(feed.samples for feed in feeds.values()), cpu() - used, time.monotonic() - start
            stop.set()
            thread.join()
            size = sum(file.stat().st_size for file in Path(folder).iterdir())
            stored = store.rows("SELECT count(*) FROM sample")[0][0]
        server.terminate()
    due = engines * SERIES
    share = spent / max(after - before, 1) * due  # also right where other programs have kept the core from us
    print(f"{engines} engines x {SERIES} series at 1 s: {(after - before) / passed:,.0f} of {due:,} samples/s arrived")
    print(f"{share:.0%} of one core, {1e6 * share / due:.1f} us a sample; headroom {1 / share:.1f} x")
    print(f"failed {sum(f.failed for f in feeds.values())}, dropped {sum(f.dropped for f in feeds.values())}")
    print(f"{size / max(stored, 1):.1f} bytes a sample in the file and its log")


if __name__ == "__main__":
    main()
