"""Numbers and instants as reports print them."""

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

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


def least(seconds: float | None, name: str, whole: bool) -> str:
    """Seconds of which more may not be known."""
    return amount(seconds, name) if whole else f"at least {amount(seconds, name)}" if seconds else "unknown"


def digits(value: float) -> str:
    """Three significant digits."""
    if not math.isfinite(value):
        return "unknown"
    if value == 0:
        return "0"
    if abs(value) < 0.005:
        return "0.00"
    return f"{value:.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"


def size_lines(held: Mapping[str, Any]) -> list[str]:
    """Size, growth and closed days of a store, as app.retention sums them up."""
    growth, full = held["growth_bytes_per_day"], held["full_in_days"]
    said = (
        "growth unknown (measured once an hour while `serve` or `collect` runs)"
        if growth is None
        else f"grows {growth / 1e6:.1f} MB a day"
    )
    ends = "" if growth is None else ", the disk does not fill" if not full else f", the disk is full in {full:.0f} days"
    lines = [f"{said}{ends}; {held['free_bytes'] / 1e9:.1f} GB of the disk are free"]
    words = {"all": "whole", "minute": "by the minute", "hour": "by the hour"}
    lines += [
        f"closed days {words[one['level']]}: {one['days']} ({one['first']} to {one['last']}), {one['bytes'] / 1e6:.1f} MB"
        for one in held["closed"]
    ]
    return lines


def number(value: float) -> str:
    """A count, with thousands; a fraction of one only where it is interpolated."""
    return f"{value:,.0f}" if value == round(value) or value >= 100 else f"{value:,.3g}"


def counted(count: int, word: str) -> str:
    """A count with its word: 1 restart, 2 restarts."""
    return f"{count:,} {word}{'' if count == 1 else 's'}"
