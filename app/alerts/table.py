"""Tables of a definition file, read key by key: each value is checked where it is taken, and what is left over is an error."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from analyzers.slo import DAY_S

UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": DAY_S, "w": 7 * DAY_S}


class DefinitionError(Exception):
    """A definition that cannot be used; the message names the place, the key and what was expected."""


class Table:
    """One TOML table being read: every key is taken once, what is left over is an error."""

    def __init__(self, where: str, table: object) -> None:
        if not isinstance(table, Mapping):
            raise DefinitionError(f"{where}: expected a table, got {shown(table)}")
        self.where, self.left = where, dict(table)

    def wrong(self, key: str, expected: str, value: object) -> DefinitionError:
        """The error of one key."""
        return DefinitionError(f"{self.where}: {key}: expected {expected}, got {shown(value)}")

    def text(self, key: str) -> str | None:
        """A text, or None where the key is missing."""
        value = self.left.pop(key, None)
        if value is not None and (not isinstance(value, str) or not value.strip()):
            raise self.wrong(key, "a text", value)
        return value

    def length(self, key: str, *, least: float = 0.0, most: float = 400 * DAY_S) -> float | None:
        """Seconds of a length with its unit."""
        value = self.left.pop(key, None)
        if value is None:
            return None
        seconds = seconds_of(value)
        if seconds is None:
            raise self.wrong(key, 'a length with its unit, such as "250ms", "1.5s", "5m", "30d"', value)
        if not least <= seconds <= most:
            raise self.wrong(key, f"a length from {span_text(least)} to {span_text(most)}", value)
        return seconds

    def share(self, key: str) -> float | None:
        """A ratio above 0 and below 1."""
        value = self.left.pop(key, None)
        if value is None:
            return None
        found = value
        if isinstance(value, str):
            match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*%\s*", value)
            found = float(match[1]) / 100 if match else None
        if isinstance(found, bool) or not isinstance(found, int | float) or not 0 < found < 1:
            raise self.wrong(key, 'a share between 0 and 1, such as 0.99 or "99%"', value)
        return float(found)

    def whole(self, key: str, most: int) -> int | None:
        """A whole number from 0."""
        value = self.left.pop(key, None)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most):
            raise self.wrong(key, f"a whole number from 0 to {most}", value)
        return value

    def choice(self, key: str, allowed: Sequence[str]) -> str | None:
        """One of several words."""
        value = self.left.pop(key, None)
        if value is not None and value not in allowed:
            raise self.wrong(key, f"one of {', '.join(allowed)}", value)
        return None if value is None else str(value)

    def needed(self, key: str, value: Any, expected: str) -> Any:
        """`value`, which must be there."""
        if value is None:
            raise DefinitionError(f"{self.where}: {key}: expected {expected}, the key is missing")
        return value

    def done(self, known: Sequence[str]) -> None:
        """Complain about keys that nobody took."""
        for key in self.left:
            raise DefinitionError(f"{self.where}: {key}: expected one of {', '.join(known)}; this key is not known")


def shown(value: object) -> str:
    """A value as an error message shows it: short."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def seconds_of(value: object) -> float | None:
    """Seconds of a text like "250ms"; None where it is none."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*", value) if isinstance(value, str) else None
    return float(match[1]) * UNITS[match[2]] if match and match[2] in UNITS else None


def span_text(seconds: float) -> str:
    """Seconds as a length with the largest unit that keeps it whole: 259200 is "3d", 0.25 is "250ms"."""
    for unit in ("d", "h", "m", "s"):
        if seconds >= UNITS[unit] and abs(seconds / UNITS[unit] - round(seconds / UNITS[unit])) < 1e-9:
            return f"{round(seconds / UNITS[unit])}{unit}"
    return f"{seconds:g}s" if seconds >= 1 else f"{1000 * seconds:g}ms"
