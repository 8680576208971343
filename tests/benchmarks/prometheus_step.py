"""What a longer scrape interval costs: `python tests/benchmarks/prometheus_step.py [incident ...]`.

Puts recorded incidents (scraped every second) into a real Prometheus, once with every scrape and once with every 5th, 15th and
30th, collects each over HTTP, and prints how far the measured seconds and the named link are from those of the raw scrapes.
"""

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from collectors.sources.serving import INCIDENTS, lines_of, only_metrics, open_metrics, prometheus

from app.collectors.sources.prometheus import Server
from app.ingest import load
from app.live.pulled import Pulled, pull
from app.pipeline import attribution_for
from app.store import Store

INTERVALS = (1, 5, 15, 30)
TARGETS = ("ttft", "tpot", "e2e")


def judged(store: Store) -> dict[str, tuple[float | None, str | None, str]]:
    found = attribution_for(store).targets
    return {
        name: (one.measured_s, one.limiting, one.verdict) if (one := found.get(name)) else (None, None, "no data")
        for name in TARGETS
    }


def main() -> None:
    names = sys.argv[1:] or ["prefill_backlog", "slots", "kv_eviction", "prefix_cache_miss", "healthy"]
    print(f"{'incident':<18}{'every':>7}{'scrapes':>9}   " + "".join(f"{name + ' measured, link':<38}" for name in TARGETS))
    for name in names:
        lines = lines_of(INCIDENTS / name)
        with tempfile.TemporaryDirectory() as folder:
            with Store() as raw:
                load(raw, [only_metrics(INCIDENTS / name, Path(folder) / "bundle")])
                truth = judged(raw)
            for interval in INTERVALS:
                place = Path(folder) / str(interval)
                place.mkdir()
                with prometheus(place, open_metrics(lines[::interval])) as url, Store() as store:
                    pulled = Pulled()
                    pull(store, Server(url), lines[0]["t"] - 60, lines[-1]["t"] + 60, pulled)
                    found = judged(store)
                row = "".join(f"{said(found[target], truth[target]):<38}" for target in TARGETS)
                print(f"{name:<18}{interval:>5} s{sum(pulled.scrapes.values()):>9}   {row}", flush=True)


def said(found: tuple, truth: tuple) -> str:
    if found[0] is None or not truth[0]:
        return str(found[2])
    same = "" if found[1:] == truth[1:] else f" (raw: {truth[1] or truth[2]})"
    return f"{found[0] / truth[0] - 1:+.1%} {found[1] or found[2]}{same}"


if __name__ == "__main__":
    main()
