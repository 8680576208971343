"""CPU seconds of `weaklink analyze` in a fresh process, against importing what it needs: `python tests/benchmarks/analyze_speed.py`.

Judges the metrics of the incident kv_eviction (level metrics), or the paths that are given. Each command runs REPEAT times,
one after the other in turn, so that a busy machine slows both; the least CPU time of each counts. CPU is user and system
time of the process and its children. The aims: under 2 s, import included; with the twin under 2 s more.

Then: an hour of 20 engines, each with every series of a real recording, scraped every 5 s (`--every`), judged in one process (aims:
60 s, 2 GB); and the twin by the number of requests, which must cost the same for each.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "benchmarks")]
INCIDENT: Final = ROOT / "sample_data" / "incidents" / "kv_eviction" / "metrics.jsonl.gz"
REPEAT: Final = 5
AIM_S: Final = 2.0


def cpu_s(command: list[str]) -> float:
    """Return the CPU seconds of a command that must succeed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


JUDGE: Final = """
import resource, sys, time
from pathlib import Path
from app.pipeline import window_of
from app.store import Store
from analyzers.attribute import attribute
began, cpu = time.monotonic(), time.process_time()
with Store(Path(sys.argv[1])) as store:
    window = window_of(store)
    read = time.process_time() - cpu
    attribute(window)
print(len(window.engines), read, time.process_time() - cpu, time.monotonic() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3)
"""


def hour(engines: int, every: float) -> None:
    """Judge an hour of many engines in a process of its own."""
    from pages import build  # noqa: PLC0415 it brings the dashboard, which the first part does not want

    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "hour.duckdb"
        build(store, 1.0, engines, every)
        found = subprocess.run([sys.executable, "-c", JUDGE, str(store)], cwd=ROOT, capture_output=True, text=True, check=True)
        count, read, cpu, wall, memory = map(float, found.stdout.split())
        size = store.stat().st_size / 1e6
    print(
        f"1 h of {count:.0f} engines at {every:g} s ({size:.0f} MB): {cpu:.1f} s of CPU, {read:.1f} of them reading, {wall:.1f} s by the clock, "
        f"{memory:.0f} MB (aims: 60 s, 2000 MB)"
    )


def by_requests() -> None:
    """The twin's CPU seconds for 1, 4 and 16 minutes of 12 requests/s on one engine."""
    import numpy as np  # noqa: PLC0415

    from analyzers.twin import Load, Setup, simulate  # noqa: PLC0415

    for minutes in (1, 4, 16):
        rng = np.random.default_rng(1)
        n = 720 * minutes
        load = Load(np.cumsum(rng.exponential(1 / 12, n)), rng.integers(200, 1000, n), rng.integers(50, 200, n), "drawn")
        began = time.process_time()
        simulate(load, Setup(a=0.008, b=2e-5, c=5e-5, blocks=20_000, slots=256))
        took = time.process_time() - began
        print(f"twin, {n} requests: {took:.2f} s of CPU, {1e3 * took / n:.2f} ms a request")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="*", default=[str(INCIDENT)])
    parser.add_argument("--engines", type=int, default=20)
    parser.add_argument("--every", type=float, default=5.0, help="seconds between scrapes of the hour")
    given = parser.parse_args()
    paths = given.paths
    commands = {
        "analyze": [sys.executable, "-m", "app", "analyze", *paths],
        "analyze --what-if": [sys.executable, "-m", "app", "analyze", "--what-if", *paths],
        "imports": [sys.executable, "-c", "import duckdb, pyarrow, numpy"],
    }
    least = dict.fromkeys(commands, float("inf"))
    for _ in range(REPEAT):
        for name, command in commands.items():
            least[name] = min(least[name], cpu_s(command))
    print(f"analyze {' '.join(Path(path).name for path in paths)}: {least['analyze']:.2f} s of CPU (aim: under {AIM_S:.0f})")
    print(f"with the twin: {least['analyze --what-if'] - least['analyze']:.2f} s more (aim: under {AIM_S:.0f})")
    print(f"import duckdb, pyarrow, numpy: {least['imports']:.2f} s of CPU")
    print(f"ratio: {least['analyze'] / least['imports']:.1f}")
    hour(given.engines, given.every)
    by_requests()


if __name__ == "__main__":
    main()
