"""Stores with numbers that are easy to recognise, for the tests of alerts: scrapes every 10 s of one server's histograms."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from recordings import NOON, scrapes, series

from analyzers.slo import PAGE, Rule, Slo
from app.ingest import load
from app.store import Store

EDGES = (0.5, 1.0, 2.5)
FAMILY = "time_to_first_token_seconds"
SERVER = "127.0.0.1:8000"
# 13 times too fast over 120 s, still so over 30 s
RULE = Rule(PAGE, budget_ratio=0.02, long_s=120.0, short_s=30.0)
CHAT = Slo("chat", "ttft", 0.99, 1.0, period_s=78_000.0, minimum=12, pending_s=10.0, keep_s=30.0, rules=(RULE,))


def histogram(
    counts: Sequence[float], family: str = FAMILY, edges: Sequence[float] = EDGES, engine: str = "0"
) -> dict[str, float]:
    """Return a histogram with so many values in each bucket (the last one: above the last edge)."""
    values, upto = {}, 0.0
    for edge, count in zip([*(str(edge) for edge in edges), "+Inf"], counts, strict=True):
        upto += count
        values[series(f"{family}_bucket", engine, le=edge)] = upto
    return values | {series(f"{family}_count", engine): upto, series(f"{family}_sum", engine): upto}


def gauges(running: float = 0, waiting: float = 0) -> dict[str, float]:
    return {series("num_requests_running"): running, series("num_requests_waiting"): waiting}


def recorded(
    folder: Path, rows: Iterable[tuple[float, Mapping[str, float] | None]], name: str = "m.jsonl", store: Store | None = None
) -> Store:
    """Return a store with these scrapes, seconds after noon."""
    held = store or Store()
    results = load(held, [scrapes(folder / name, rows)])
    assert all(one.added for one in results), results
    return held


def course(bad: Sequence[float], good: float = 11.0, start: float = 0.0) -> list[tuple[float, dict[str, float]]]:
    """Scrapes every 10 s between which `good` requests took 0.5 to 1 s, and so many above 2.5 s."""
    rows, slow, fine = [(start, histogram((0, 0, 0, 0)) | gauges())], 0.0, 0.0
    for at, more in enumerate(bad, 1):
        slow, fine = slow + more, fine + good
        rows.append((start + 10.0 * at, histogram((0, fine, 0, slow)) | gauges()))
    return rows


__all__ = ["CHAT", "EDGES", "FAMILY", "NOON", "RULE", "SERVER", "course", "gauges", "histogram", "recorded"]
