"""CPU seconds of `weaklink analyze` in a fresh process, against importing what it needs: `python tests/benchmarks/analyze_speed.py`.

Judges the metrics of the incident kv_eviction (level metrics), or the paths that are given. Each command runs REPEAT times,
one after the other in turn, so that a busy machine slows both; the least CPU time of each counts. CPU is user and system
time of the process and its children. The aim: under 2 s, import included.
"""

import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
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


def main() -> None:
    paths = sys.argv[1:] or [str(INCIDENT)]
    commands = {
        "analyze": [sys.executable, "-m", "app", "analyze", *paths],
        "imports": [sys.executable, "-c", "import duckdb, pyarrow, numpy"],
    }
    least = dict.fromkeys(commands, float("inf"))
    for _ in range(REPEAT):
        for name, command in commands.items():
            least[name] = min(least[name], cpu_s(command))
    print(f"analyze {' '.join(Path(path).name for path in paths)}: {least['analyze']:.2f} s of CPU (aim: under {AIM_S:.0f})")
    print(f"import duckdb, pyarrow, numpy: {least['imports']:.2f} s of CPU")
    print(f"ratio: {least['analyze'] / least['imports']:.1f}")


if __name__ == "__main__":
    main()
