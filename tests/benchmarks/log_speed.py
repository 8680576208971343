"""How fast a server log is read, and loaded: against a loop over its lines with one full-line pattern, for each kind of line.

    python tests/benchmarks/log_speed.py [--mb 200]

Writes each log into a temporary folder by repeating lines of sample_data with advancing stamps and counters. Prints CPU seconds
of the loop and of read(), and seconds by the clock of the loop and of a whole `load` into a store on disk, which also hashes,
dates, inserts and commits, the last two on a thread beside the reading; then the largest resident memory of the process. Ratios are
the loop's seconds by ours: above 1 we are faster.
"""

import argparse
import re
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from app.collectors.formats import vllm_log  # noqa: E402
from app.ingest import load  # noqa: E402
from app.store import Store  # noqa: E402

SAMPLES: Final = ROOT / "sample_data" / "formats" / "vllm_log" / "good"
START: Final = 1795953600.0  # 2026-11-29 12:00 UTC
HEAD: Final = rb"^(?:\S+Z )?\((\w+) pid=(\d+)\) (?:INFO|DEBUG) (\d\d-\d\d \d\d:\d\d:\d\d) \[[^\]]+\] "
ITERATION: Final = (
    rb"Engine (\d+): Iteration\((\d+)\): (\d+) context requests, (\d+) context tokens, (\d+) generation requests, "
    rb"(\d+) generation tokens, iteration elapsed time: ([\d.]+) ms(?:, \w+ KV cache usage: ([\d.]+)%)?"
)
RATES: Final = (
    rb"Engine (\d+): Avg prompt throughput: ([\d.]+) tokens/s, Avg generation throughput: ([\d.]+) tokens/s, "
    rb"Running: (\d+) reqs, Waiting: (\d+) reqs(?:, Deferred: (\d+) reqs)?, \w+ KV cache usage: ([\d.]+)%"
    rb"(?:, Prefix cache hit rate: ([\d.]+)%)?(?:, External prefix cache hit rate: ([\d.]+)%)?(?:, MM cache hit rate: ([\d.]+)%)?"
)
PLAIN: Final = {
    "iterations": re.compile(HEAD + ITERATION + rb"$"),
    "stats": re.compile(HEAD + RATES + rb"$"),
    "access": re.compile(rb'^INFO: +(\S+):(\d+) - "([A-Z]+) (\S+) HTTP/[\d.]+" (\d{3})(?: [\w ]+)?$'),
    "JSON iterations": re.compile(rb'^\{"asctime": "([\d-]+ [\d:]+,\d+)".*?"message": "' + ITERATION + rb'".*\}$'),
    "container stamps": re.compile(HEAD + ITERATION + rb"$"),
}


def stamp(second: int) -> bytes:
    return time.strftime("%m-%d %H:%M:%S", time.gmtime(START + second)).encode()


def lines(kind: str) -> Iterator[bytes]:
    """Yield lines of one kind without end."""
    file, mark = {
        "iterations": ("text-0.32-iterations.log", b"Iteration("),
        "container stamps": ("text-0.32-iterations.log", b"Iteration("),
        "JSON iterations": ("json-0.33.log", b"Iteration("),
        "stats": ("case-03-all.log", b"Avg prompt"),
        "access": ("text-0.32-iterations.log", b" HTTP/1.1"),
    }[kind]
    found = [line for line in (SAMPLES / file).read_bytes().split(b"\n") if mark in line]
    parts = [re.split(rb"\d\d-\d\d \d\d:\d\d:\d\d|(?<=Iteration\()\d+", line) for line in found]
    count = 0
    while True:
        for pieces in parts:
            second = count // (8 if kind == "stats" else 100)
            values = [stamp(second), b"%d" % count][: len(pieces) - 1]
            line = b"".join(piece + value for piece, value in zip(pieces, [*values, b""], strict=True))
            if kind == "container stamps":
                line = (
                    time.strftime("%Y-%m-%dT%H:%M:%S.", time.gmtime(START + second)).encode()
                    + b"%09dZ " % (count % 100 * 10**7)
                    + line
                )
            yield line
            count += 1


def write(path: Path, kind: str, size: int) -> int:
    count = 0
    source = lines(kind)
    with path.open("wb") as file:
        while file.tell() < size:
            file.write(b"\n".join([next(source) for _ in range(1000)]) + b"\n")
            count += 1000
    return count


def plain(path: Path, pattern: re.Pattern[bytes]) -> int:
    with path.open("rb") as file:
        return sum(pattern.search(line) is not None for line in file)


def ours(path: Path) -> int:
    """Return the rows, each access line as one."""
    rows = 0
    with path.open("rb") as file:
        for batch in vllm_log.read(file, START):
            size = len(next(iter(batch.columns.values())))
            if batch.table == "event":
                counts = [re.search(r'"count": (\d+)', fields) for fields in batch.columns["fields"]]
                rows += sum(int(match[1]) for match in counts if match)
            elif batch.table != "source_file":
                rows += size
    return rows


def loaded(path: Path) -> int:
    """Load into a new store; return the lines."""
    with tempfile.TemporaryDirectory() as folder, Store(Path(folder) / "store.duckdb") as store:
        (result,) = load(store, [path], now=START + 30 * 86_400)
        if not result.added or result.rejected:
            sys.exit(f"{path}: {result}")
        return result.lines


def seconds(*works: Callable[[], int]) -> list[tuple[float, float, int]]:
    """Of each work the least CPU seconds and the least by the clock of five runs: other programs take caches away, none gives any.

    They run in turn, so that what disturbs a while disturbs all of them.
    """
    best = [(float("inf"), float("inf"), 0)] * len(works)
    for _ in range(5):
        for at, work in enumerate(works):
            start, began = time.process_time(), time.perf_counter()
            result = work()
            cpu, clock, _ = best[at]
            best[at] = min(cpu, time.process_time() - start), min(clock, time.perf_counter() - began), result
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=200, help="size of each log")
    size = parser.parse_args().mb << 20
    print(f"{'':28} {'CPU: loop':>10} {'read':>6} {'ratio':>6} {'clock: loop':>12} {'load':>6} {'ratio':>6} {'peak MiB':>9}")
    with tempfile.TemporaryDirectory() as folder:
        for kind, pattern in PLAIN.items():
            path = Path(folder) / "server.log"
            count = write(path, kind, size)
            (loop, slow, matched), (fast, _, rows), (_, whole, read) = seconds(
                lambda path=path, pattern=pattern: plain(path, pattern), lambda path=path: ours(path), lambda path=path: loaded(path)
            )
            if not matched == rows == read == count:
                sys.exit(f"{kind}: {count} lines, {matched} matched, {rows} rows, {read} loaded")
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
            print(
                f"{kind:18} {count:9} {loop:10.2f} {fast:6.2f} {loop / fast:6.2f} {slow:12.2f} {whole:6.2f} {slow / whole:6.2f} {peak:9}",
                flush=True,
            )


if __name__ == "__main__":
    main()
