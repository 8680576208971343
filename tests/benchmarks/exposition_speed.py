"""Samples per second of our reader of Prometheus text and of prometheus_client: `python tests/benchmarks/exposition_speed.py`.

Takes texts of /metrics (or JSON lines of a recorder) as arguments; without, repeats a sample to 100 engines. Warm: our reader
sees each text REPEAT times in one stream, as a recording has it, so that most series are known. Prints CPU seconds.
"""

import io
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from app.collectors.formats import prometheus_text

REPEAT = 20
SAMPLE = Path(__file__).resolve().parents[2] / "sample_data" / "formats" / "prometheus_text" / "good" / "vllm-0.20.txt"


def many_engines(text: str) -> str:
    """Return a text as of 100 engines, each series of an engine as its own."""
    lines = [line for line in text.splitlines() if 'engine="0"' in line]
    return "".join(line.replace('engine="0"', f'engine="{at}"') + "\n" for at in range(100) for line in lines)


def texts(arguments: list[str]) -> list[str]:
    if not arguments:
        return [many_engines(SAMPLE.read_text())]
    found = []
    for name in arguments:
        text = Path(name).read_text()
        if text.startswith("{"):
            found += [line["text"] for line in map(json.loads, text.splitlines()) if "text" in line]
        else:
            found.append(text)
    return found


def ours(data: bytes) -> int:
    return sum(len(batch.columns["ts"]) for batch in prometheus_text.read(io.BytesIO(data), 0.0) if batch.table == "sample")


def theirs(data: bytes) -> int:
    return sum(len(family.samples) for family in text_string_to_metric_families(data.decode()))


def speed(read: Callable[[bytes], int], data: bytes, times: int) -> float:
    best = 0.0
    for _ in range(times):
        start = time.process_time()
        count = read(data)
        best = max(best, count / (time.process_time() - start))
    return best


def main() -> None:
    found = texts(sys.argv[1:])
    raw = "".join(found).encode()
    lines = b"".join(
        json.dumps({"t": 1.0, "url": "http://h:1", "text": text}).encode() + b"\n" for text in found for _ in range(REPEAT)
    )
    results = {
        "ours, raw text, warm": speed(ours, raw * REPEAT, 3),
        "ours, recorder's JSON lines, warm": speed(ours, lines, 3),
        "ours, raw text, cold": speed(ours, raw, 3),
        "prometheus_client": speed(theirs, raw, 1),
    }
    for name, value in results.items():
        print(f"{name:36} {value:10,.0f} samples/s  {value / results['prometheus_client']:6.1f} x")


if __name__ == "__main__":
    main()
