"""Engines to be scraped: every series of a recorded one, growing as it did, in processes that come and go.

`Fleet` holds them in groups; a group is one process, whose engines restart together. Each answer carries a number
(`vllm:soak_answer`: the life times a million, and how many answers of this life), so that one that is lost can be named.
"""

import asyncio
import gzip
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

RECORDED: Final = Path(__file__).resolve().parents[2] / "sample_data" / "incidents" / "decode_batch" / "metrics.jsonl.gz"
GROUPS: Final = 4
LIVES_S: Final = (55.0, 65.0, 75.0, 85.0)  # of a group's processes
AWAY_S: Final = 3.0
PHASE_S: Final = 300.0  # slow and fast in turn
GAUGES: Final = re.compile(r"(num_requests|_perc|_info|max_|process_)")
SLOWED: Final = re.compile(r'vllm:(?:time_to_first_token|request_queue_time|e2e_request_latency)_seconds_bucket\{.*le="0[.0-9]+"')
LIFE: Final = 1_000_000


def series() -> tuple[list[tuple[str, float, bool]], float]:
    """Name with labels, last value and whether it grows, of each series of the recording; and the seconds it took to grow."""
    lines = [one for one in map(json.loads, gzip.decompress(RECORDED.read_bytes()).splitlines()) if "text" in one]
    found = []
    for line in lines[-1]["text"].splitlines():
        name, _, value = line.rpartition(" ")
        if name and not line.startswith("#") and not name.startswith(("process_start", "python_")):
            found.append((name, float(value), GAUGES.search(name) is None))
    return found, lines[-1]["t"] - lines[0]["t"]


class Engines:
    """The servers of one process, each on a port of its own."""

    def __init__(self, life: int, slow: bool) -> None:
        self.life, self.begun = life, time.time()
        found, self.lasted = series()
        self.series = [(name, 0.0 if slow and SLOWED.match(name) else value, grows) for name, value, grows in found]
        self.answered: dict[int, int] = {}

    def text(self, port: int) -> bytes:
        grown = (time.time() - self.begun) / self.lasted
        lines = [f"{name} {int(value * grown) if grows and '_sum' not in name else value * grown if grows else value}" for name, value, grows in self.series]  # fmt: skip
        number = self.life * LIFE + self.answered[port] + 1
        lines += [f'vllm:soak_answer{{engine="0"}} {number}', f"process_start_time_seconds {self.begun}", ""]
        return "\n".join(lines).encode()

    async def serve(self, port: int) -> asyncio.Server:
        self.answered[port] = 0

        async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                while await reader.readuntil(b"\r\n\r\n"):
                    body = self.text(port)
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
                    self.answered[port] += 1
                    await writer.drain()
            except (asyncio.IncompleteReadError, ConnectionError):
                writer.close()

        return await asyncio.start_server(one, "127.0.0.1", port)

    async def run(self, ports: list[int]) -> None:
        servers = [await self.serve(port) for port in ports]
        print("up", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)  # until it is told to end
        for server in servers:
            server.close()
        await asyncio.sleep(0.3)
        print(json.dumps(self.answered), flush=True)
        os._exit(0)


class Fleet:
    """All engines, in groups that restart one after the other."""

    def __init__(self, ports: list[int]) -> None:
        self.ports = ports
        self.groups = [ports[at::GROUPS] for at in range(GROUPS)]
        self.up: list[subprocess.Popen[str] | None] = [None] * GROUPS
        self.due = [0.0] * GROUPS
        self.lives = 0
        self.held: dict[int, int] = {}  # life -> group, for the words at the end
        self.answered: dict[str, set[int]] = {f"127.0.0.1:{port}": set() for port in ports}

    def begin(self) -> None:
        for at in range(GROUPS):
            self._start(at, 0.0)

    def look(self, now: float) -> None:
        """Stop the groups whose life is over, start those that were away long enough; `now`: seconds since the start."""
        for at, group in enumerate(self.up):
            if now < self.due[at] or not self.groups[at]:
                continue
            if group is None:
                self._start(at, now)
            else:
                self._stop(at)
                self.due[at] = now + AWAY_S

    def end(self) -> None:
        for at, group in enumerate(self.up):
            if group is not None:
                self._stop(at)

    def _start(self, at: int, now: float) -> None:
        self.lives += 1
        slow = int(now // PHASE_S) % 2 == 1
        code = [sys.executable, __file__, ",".join(map(str, self.groups[at])), str(self.lives), str(int(slow))]
        group = self.up[at] = subprocess.Popen(code, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert group.stdout is not None
        assert group.stdout.readline() == "up\n"
        self.held[self.lives] = at
        self.due[at] = now + LIVES_S[at]

    def _stop(self, at: int) -> None:
        group = self.up[at]
        assert group is not None
        counts, _ = group.communicate("end\n", timeout=60)
        life = max(one for one, of in self.held.items() if of == at)
        for port, count in json.loads(counts).items():
            self.answered[f"127.0.0.1:{port}"] |= {life * LIFE + one + 1 for one in range(count)}
        self.up[at] = None


if __name__ == "__main__":
    asyncio.run(Engines(int(sys.argv[2]), sys.argv[3] == "1").run([int(port) for port in sys.argv[1].split(",")]))
