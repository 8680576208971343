"""What a report of a day costs: `python tests/benchmarks/report_speed.py [hours [engines [seconds between scrapes]]]`.

Eight servers scraped every 15 s for 24 h, as a Prometheus has them: all series of a real recording, growing as they did there,
with a day's rise and fall and an hour of backlog. Prints the seconds of the report (all of `weaklink report`, without making the store) and its bytes.
The aims: under 20 s and under 8 MB of HTML.
"""

import gzip
import json
import math
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import numpy as np

from analyzers.model import Batch
from app.store import Store

ROOT: Final = Path(__file__).resolve().parents[2]
SAMPLE: Final = ROOT / "sample_data" / "incidents" / "healthy" / "metrics.jsonl.gz"
START: Final = 1795910400.0
AIM_S: Final = 20.0
AIM_BYTES: Final = 8_000_000
OWN: Final = ("engine", "model_name")  # labels that are columns
_NAME: Final = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})?$")
_PAIR: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def exposed() -> tuple[dict[str, float], dict[str, float], float]:
    """The first and the last exposition of the recording as values by series, and the seconds between them."""
    with gzip.open(SAMPLE, "rt") as file:
        scrapes = [one for one in map(json.loads, file) if "text" in one]
    texts = [dict(line.rsplit(" ", 1) for line in one["text"].splitlines() if line and line[0] != "#") for one in scrapes]
    first, last = ({name: float(value) for name, value in text.items()} for text in (texts[0], texts[-1]))
    return first, last, scrapes[-1]["t"] - scrapes[0]["t"]


def fill(store: Store, hours: float, engines: int, every: float) -> int:
    """Write the day into the store; the number of samples."""
    first, last, seconds = exposed()
    ts = START + np.arange(0, hours * 3600 + every, every)
    day = 1 + 0.4 * np.sin(2 * math.pi * (ts - START) / 86400)
    burst = (ts > ts[-1] - 3 * 3600) & (ts < ts[-1] - 2 * 3600)
    parsed = [(match[1], dict(_PAIR.findall(match[2] or "")), name) for name in last if (match := _NAME.match(name))]
    for engine in range(engines):
        instance = f"10.0.0.{engine + 1}:8000"
        ids = store.series_ids(
            {
                "instance": [instance] * len(parsed),
                "name": [name for name, _, _ in parsed],
                "engine": [labels.get("engine") for _, labels, _ in parsed],
                "model_name": [labels.get("model_name") for _, labels, _ in parsed],
                "labels": [
                    json.dumps({k: v for k, v in labels.items() if k not in OWN}, sort_keys=True) for _, labels, _ in parsed
                ],
            }
        )
        scrape = {
            "instance": [instance] * len(ts),
            "ts": ts,
            "duration_s": [0.01] * len(ts),
            "ok": [True] * len(ts),
            "timed": [True] * len(ts),
        }
        store.add(Batch("scrape", scrape), file_id=1)
        for number, (name, _, full) in zip(ids, parsed, strict=True):
            rate = (last[full] - first.get(full, 0.0)) / seconds * every
            store.add(
                Batch(
                    "sample",
                    {"series_id": np.full(len(ts), number), "ts": ts, "value": worth(name, last[full], rate, day, burst)},
                )
            )
    store.execute(
        "INSERT INTO source_file (file_id, bundle, name, format, sha256, bytes, loaded_at) VALUES (1, 'day', 'metrics', 'prometheus_text', '0', 1, 0)"
    )
    return engines * len(parsed) * len(ts)


def worth(name: str, value: float, rate: float, day: np.ndarray, burst: np.ndarray) -> np.ndarray:
    """A day of one series: counters grow with the load, and the seconds of the queue faster while the backlog lasts."""
    if name == "process_start_time_seconds":
        return np.full(len(day), START - 3600)
    if name == "vllm:num_requests_waiting":
        return np.where(burst, 40.0, 0.0)
    if name == "vllm:num_requests_running":
        return np.round(12 * day)
    if not name.endswith(("_total", "_sum", "_count", "_bucket")):
        return np.full(len(day), value)
    waited = name in {f"vllm:{one}_seconds_sum" for one in ("request_queue_time", "time_to_first_token", "e2e_request_latency")}
    return value + np.cumsum(day * rate + (burst * 4.0 * day * rate if waited else 0.0))


def main() -> None:
    hours, engines, every = ([float(one) for one in sys.argv[1:]] + [24.0, 8.0, 15.0][len(sys.argv) - 1 :])[:3]
    with tempfile.TemporaryDirectory() as folder:
        path, out = Path(folder) / "day.duckdb", Path(folder) / "day.html"
        with Store(path) as store:
            count = fill(store, hours, int(engines), every)
        command = [sys.executable, "-m", "app", "report", "--store", str(path), "--slo", "ttft=1", "--out", str(out)]
        start = time.monotonic()
        subprocess.run(command, cwd=ROOT, check=True)
        took, size = time.monotonic() - start, out.stat().st_size
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        print(
            f"{hours:.0f} h, {engines:.0f} engines, {count:,} samples ({path.stat().st_size / 1e6:.0f} MB): {took:.1f} s, {usage.ru_utime + usage.ru_stime:.1f} s of CPU (aim: under {AIM_S:.0f} s on two free cores)"
        )
        print(f"HTML: {size / 1e6:.2f} MB (aim: under {AIM_BYTES / 1e6:.0f})")


if __name__ == "__main__":
    main()
