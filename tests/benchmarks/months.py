"""Months in minutes: `python tests/benchmarks/months.py [days [engines [seconds]]]`, scrapes of so many engines every so many seconds.

Each day is stored, closed and later thinned as it would be; the last hour is judged every day, as a page does. Prints, by day: disk,
memory, what a judgement of the last hour took, what a look of the retention took. At the end the counters of the whole time
are compared with what was sent: nothing may be lost.
"""

import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from analyzers.model import Batch
from app.live import LIVE, file_of
from app.pipeline import window_of
from app.retention import DAY_S, Policy, bytes_of, keep
from app.store import Store

START = 1795910400.0
COUNTERS = (
    *("time_to_first_token_seconds", "request_queue_time_seconds", "request_prefill_time_seconds", "request_decode_time_seconds"),
    *("e2e_request_latency_seconds", "inter_token_latency_seconds", "iteration_tokens_total", "request_prompt_tokens"),
)
EDGES = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, "+Inf")


def names() -> list[tuple[str, str]]:
    """Names and labels of one engine's series, as vLLM has them; the last three are gauges."""
    found = [(f"vllm:{name}_{part}", "{}") for name in COUNTERS for part in ("sum", "count")]
    found += [(f"vllm:{name}_bucket", f'{{"le": "{edge}"}}') for name in COUNTERS for edge in EDGES]
    found += [("vllm:prompt_tokens_total", "{}"), ("vllm:generation_tokens_total", "{}"), ("vllm:num_preemptions_total", "{}")]
    return [*found, *((f"vllm:{name}", "{}") for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"))]


def main() -> None:
    days = int(sys.argv[1]) if len(sys.argv) > 1 else 6
    engines = int(sys.argv[2]) if len(sys.argv) > 2 else 4
    every = float(sys.argv[3]) if len(sys.argv) > 3 else 5.0
    policy, series = Policy(raw_days=2, minute_days=4, hour_days=1000), names()
    rng = np.random.default_rng(0)
    print(f"{len(series)} series x {engines} engines every {every:g} s")
    with tempfile.TemporaryDirectory() as folder, Store(Path(folder) / "a.duckdb") as store:
        ids, files = [], []
        for at in range(engines):
            columns = {
                "instance": [f"gpu-{at}:8000"] * len(series),
                "name": [name for name, _ in series],
                "engine": ["0"] * len(series),
            }
            with store.transaction():
                ids.append(
                    store.series_ids({**columns, "model_name": ["m"] * len(series), "labels": [label for _, label in series]})
                )
                files.append(file_of(store, LIVE, f"gpu-{at}:8000", "prometheus_text", f"gpu-{at}:8000"))
        level, first = np.zeros((engines, len(series))), np.zeros(len(series))
        stored, seen = 0, []
        for day in range(days):
            for hour in range(24):
                ts = START + day * DAY_S + hour * 3600 + np.arange(0, 3600, every)
                with store.transaction():
                    for at in range(engines):
                        grown = rng.integers(0, 5, (len(ts), len(series))).astype(float)
                        values = level[at] + np.cumsum(grown, axis=0)
                        values[:, -3:] = rng.random((len(ts), 3)) * (100, 10, 1)
                        level[at] = values[-1]
                        columns = {
                            "series_id": np.tile(ids[at], len(ts)),
                            "ts": np.repeat(ts, len(series)),
                            "value": values.ravel(),
                        }
                        store.add(Batch("sample", columns))
                        rows = {"instance": [f"gpu-{at}:8000"] * len(ts), "ts": ts, "duration_s": np.full(len(ts), 0.01)}
                        store.add(Batch("scrape", {**rows, "ok": [True] * len(ts), "timed": [True] * len(ts)}), file_id=files[at])
                        first = values[0] if day == hour == at == 0 else first
                        stored += len(ts) * len(series)
            end = START + (day + 1) * DAY_S
            began = time.process_time()
            keep(store, policy, end + 7300)
            look = time.process_time() - began
            began = time.process_time()
            window_of(store, end - 3600, end)
            page = time.process_time() - began
            seen.append((day, page, look))
            memory = int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6
            print(f"day {day + 1:3}: {stored / 1e6:7.1f} M samples sent, {bytes_of(store) / 1e6:7.1f} MB, {memory:6.0f} MB of memory, "
                  f"a look {look:5.1f} s, the last hour {page:5.2f} s of CPU", flush=True)  # fmt: skip
        for word, at in (("judging the last hour", 1), ("a look of the retention", 2)) if days > 3 else ():
            later = np.array(seen)[days // 2 :]  # the first days are not thinned yet
            print(f"{word}: {1000 * np.polyfit(later[:, 0], later[:, at], 1)[0]:+.0f} ms of CPU a day, over the second half")
        place = series.index(("vllm:generation_tokens_total", "{}"))
        sent = level[0][place] - first[place]
        kept = store.rows("SELECT sum(generation_tokens) FROM interval_row WHERE instance = 'gpu-0:8000'")[0][0]
        print(
            f"generation tokens of gpu-0 since its first scrape: {sent:.0f} sent, {kept:.0f} by the store: {'exact' if sent == kept else 'LOST'}"
        )
        print(f"most memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3:.0f} MB")


if __name__ == "__main__":
    main()
