"""Numbers and instants as reports print them."""

import math
from datetime import UTC, datetime
from typing import Final

NAMES: Final = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "E2E"}


def stamp(ts: float | None) -> str | None:
    """An instant as ISO 8601 in UTC with milliseconds; None stays None."""
    return None if ts is None else datetime.fromtimestamp(ts, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def amount(seconds: float | None, name: str) -> str:
    """Seconds with three significant digits: s, or ms for TPOT and small values."""
    if seconds is None or not math.isfinite(seconds):
        return "unknown"
    if name == "tpot" or (seconds != 0 and abs(seconds) < 0.1):
        return f"{digits(1000 * seconds)} ms"
    return f"{digits(seconds)} s"


def digits(value: float) -> str:
    """Three significant digits."""
    if not math.isfinite(value):
        return "unknown"
    if value == 0:
        return "0"
    if abs(value) < 0.005:
        return "0.00"
    return f"{value:.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"
