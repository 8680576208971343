"""What Ray workers bring: `python tests/benchmarks/ray_scale.py [--bundles 12] [--minutes 10] [--workers 1 2 4] [--gb 0]`.

Makes an archive of bundles, each the /metrics of a server that a recorded one is replayed as (scraped every second for so many
minutes), and judges it with `analyze --ray local` by 1, 2 and 4 workers, and by one store without Ray. Prints the seconds, the most
memory of the driver, and whether the verdicts are the same to 1e-9. `--gb 20` makes bundles until they are so large
unpacked (gzip leaves about a twelfth on the disk).
"""

import argparse
import gzip
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

RECORDED: Final = ROOT / "sample_data" / "incidents" / "slots" / "metrics.jsonl.gz"
ALONE: Final = "alone"


def make(folder: Path, bundles: int, minutes: float, least_bytes: float) -> float:
    """Write the archive; its bytes unpacked."""
    lines = [one for one in map(json.loads, gzip.decompress(RECORDED.read_bytes()).splitlines()) if "text" in one]
    size, at = 0.0, 0
    while at < bundles or size < least_bytes:
        place = folder / f"gpu-{at:04}"
        place.mkdir(parents=True)
        with gzip.open(place / "metrics.jsonl.gz", "wb", compresslevel=1) as out:
            for second in range(int(60 * minutes)):
                lap, line = divmod(second, len(lines))
                # a later lap is a later life of the server: its process started anew
                text = lines[line]["text"].replace("process_start_time_seconds 1.", f"process_start_time_seconds {lap + 1}.")
                row = {**lines[line], "t": lines[0]["t"] + second, "url": f"http://gpu-{at}:8000/metrics", "text": text}
                size += out.write(json.dumps(row).encode() + b"\n")
        at += 1
    return size


def one(folder: Path, workers: str) -> dict[str, Any]:
    """Judge in this process; seconds, the most memory of this process in MB, and the verdict's numbers."""
    from app.ingest import load  # noqa: PLC0415 only in the process that measures
    from app.pipeline import attribution_for  # noqa: PLC0415
    from app.shards import Asked, judged, on_ray, shards_of  # noqa: PLC0415
    from app.store import Store  # noqa: PLC0415

    began = ready = time.monotonic()
    if workers == ALONE:
        with tempfile.TemporaryDirectory() as place, Store(Path(place) / "a.duckdb") as store:
            load(store, sorted(folder.iterdir()))
            found = attribution_for(store)
    else:
        asked = Asked()
        run = on_ray("local", asked, processors=int(workers))
        ready = time.monotonic()
        found, _ = judged(shards_of(str(folder)), asked, run)
    took = time.monotonic() - ready
    numbers = {f"{name} {part.link}": part.seconds for name, target in found.targets.items() if target for part in target.parts}
    numbers |= {name: target.measured_s for name, target in found.targets.items() if target}
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    return {"seconds": took, "start": ready - began, "most": most, "numbers": numbers, "limiting": found.targets["e2e"].limiting if found.targets["e2e"] else None}  # fmt: skip


def same(one: dict[str, float | None], other: dict[str, float | None]) -> bool:
    return one.keys() == other.keys() and all(
        a == b or (a is not None and b is not None and math.isclose(a, b, rel_tol=1e-9)) for a, b in zip(one.values(), other.values(), strict=True)
    )  # fmt: skip


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--bundles", type=int, default=12)
    asked.add_argument("--minutes", type=float, default=10.0)
    asked.add_argument("--workers", nargs="+", default=[ALONE, "1", "2", "4"])
    asked.add_argument("--gb", type=float, default=0.0)
    asked.add_argument("--one", help=argparse.SUPPRESS)
    asked.add_argument("--folder", type=Path, help="keep the archive here, or use the one that is there")
    given = asked.parse_args()
    if given.one:
        print(json.dumps(one(given.folder, given.one)))
        return
    with tempfile.TemporaryDirectory(prefix="weaklink-ray-") as place:
        folder = given.folder or Path(place)
        if not any(folder.glob("gpu-*")):
            size = make(folder, given.bundles, given.minutes, given.gb * 1e9)
            print(f"{size / 1e9:.2f} GB unpacked", flush=True)
        files = list(folder.glob("gpu-*/*"))
        print(
            f"{len(files)} bundles, {sum(file.stat().st_size for file in files) / 1e6:.0f} MB on the disk, {os.cpu_count()} processors"
        )
        first: dict[str, Any] | None = None
        for workers in given.workers:
            command = [sys.executable, __file__, "--one", workers, "--folder", str(folder)]
            began = os.times()
            done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
            spent = os.times()
            if done.returncode:
                print(workers, done.stderr[-2000:])
                continue
            found = json.loads(done.stdout.splitlines()[-1])
            first = first or found
            cpu = spent.children_user + spent.children_system - began.children_user - began.children_system
            print(f"{workers:>6}: {found['seconds']:7.1f} s (and {found['start']:.1f} s for Ray to start), driver {found['most']:.0f} MB at most and {cpu:.0f} s of CPU, "
                  f"{'the same verdict' if same(first['numbers'], found['numbers']) else 'ANOTHER VERDICT'}: {found['limiting']}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
