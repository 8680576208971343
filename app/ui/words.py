"""Numbers and times as the pages write them: three significant digits, s for TTFT and E2E, ms for TPOT and ITL; UTC, or the clock that was picked."""

import math
import re
from collections.abc import Iterable
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Final

from analyzers.links import CHAIN
from app.ui.markup import Html, join, tag

MINUS: Final = "\N{MINUS SIGN}"
THIN: Final = "\N{NO-BREAK SPACE}"
DASH: Final = "\N{EN DASH}"
LABELS: Final = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "E2E"}
TITLES: Final = {module.LINK.name: module.LINK.title for module in CHAIN}
_MEASURED_IN_MS: Final = {"tpot", "itl"}
_MINUTE: Final = 60.0
_HOUR: Final = 3600.0
_DAY: Final = 86400.0


def number(value: float | None, digits: int = 3) -> str:
    """A number with `digits` significant digits and thousands separators; "unknown" where there is none."""
    if value is None or not math.isfinite(value):
        return "unknown"
    if value == 0:
        return "0"
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    rounded = round(value, places)
    if rounded and math.floor(math.log10(abs(rounded))) > math.floor(math.log10(abs(value))):
        places = max(0, places - 1)  # 0.0999 becomes 0.100, not 0.1000
    text = f"{abs(rounded):,.{min(places, 6)}f}"
    return f"{MINUS}{text}" if rounded < 0 else text


def places_of(target: str, largest: float) -> int:
    """Decimals that a column of this target needs, so that its rows and their sum agree as they are printed."""
    size = largest * 1000 if target in _MEASURED_IN_MS else largest
    return 3 if size < 10 else 2 if size < 1000 else 1


def in_unit(target: str, seconds: float) -> float:
    """Seconds in the unit that the target is written in."""
    return 1000 * seconds if target in _MEASURED_IN_MS else seconds


def unit(target: str) -> str:
    """The unit that a target is written in."""
    return "ms" if target in _MEASURED_IN_MS else "s"


def fixed(target: str, seconds: float | None, places: int) -> str:
    """Seconds of a target with a fixed number of decimals, without the unit."""
    if seconds is None or not math.isfinite(seconds):
        return "unknown"
    text = f"{abs(in_unit(target, seconds)):,.{places}f}"
    return f"{MINUS}{text}" if seconds < 0 and float(text.replace(",", "")) else text


def value(target: str, seconds: float | None) -> str:
    """Seconds of a target in its unit; what rounds to nothing is "< 1 ms" or "< 1 µs"."""
    if seconds is None or not math.isfinite(seconds):
        return "unknown"
    shown = in_unit(target, seconds)
    if shown == 0:
        return "0"
    if abs(shown) < 0.001:
        return f"< 1{THIN}µs" if target in _MEASURED_IN_MS else f"< 1{THIN}ms"
    if abs(shown) < 1:
        return f"{number(shown, 2 if abs(shown) < 0.01 else 3)}{THIN}{unit(target)}"
    return f"{number(shown)}{THIN}{unit(target)}"


def bounds(target: str, low: float | None, high: float | None) -> str:
    """A range of seconds in the target's unit, as of a histogram bucket: "0.5 - 1 s", "above 20 s"."""
    if low is None or high is None or not math.isfinite(low):
        return "unknown"
    if not math.isfinite(high):
        return f"above {plain(in_unit(target, low))}{THIN}{unit(target)}"
    return f"{plain(in_unit(target, low))}{THIN}{DASH}{THIN}{plain(in_unit(target, high))}{THIN}{unit(target)}"


def spread(target: str, low: float, high: float) -> str:
    """A range of a measured value: "1.21 - 1.45 s"."""
    return f"{number(in_unit(target, low))} {DASH} {number(in_unit(target, high))}{THIN}{unit(target)}"


def plain(shown: float) -> str:
    """An edge of a bucket: as short as it is, at most three significant digits."""
    text = number(shown)
    return re.sub(r"\.?0+$", "", text) if "." in text else text


def percent(ratio: float | None, digits: int = 2) -> str:
    """A ratio (0-1) in percent."""
    if ratio is None or not math.isfinite(ratio):
        return "unknown"
    if 0 < ratio < 0.001:
        return f"< 0.1{THIN}%"
    return f"{number(100 * ratio, 3 if ratio >= 0.995 else digits)}{THIN}%"


def count(n: float | None) -> str:
    """A whole number with thousands separators."""
    return "unknown" if n is None or not math.isfinite(n) else f"{round(n):,}"


def exact(n: float | None) -> str:
    """A number as it was recorded: whole where it is whole, else with six significant digits."""
    if n is None or not math.isfinite(n):
        return "unknown"
    return f"{n:,.0f}" if n == round(n) and abs(n) < 1e15 else re.sub(r"(\.\d*?)0+$", r"\1", number(n, 6))


def plural(n: float, one: str, many: str | None = None) -> str:
    """A counted noun: "1 request", "3 requests", "no requests"."""
    word = one if round(n) == 1 else many or f"{one}s"
    return f"no {word}" if round(n) == 0 else f"{round(n):,} {word}"


_OFFSET: Final[ContextVar[float]] = ContextVar("offset", default=0.0)  # seconds that the written clock is ahead of UTC


def write_in(offset_s: float) -> None:
    """Write instants by a clock so many seconds ahead of UTC, for what this thread draws."""
    _OFFSET.set(offset_s)


def ahead_s() -> float:
    """How many seconds the written clock is ahead of UTC."""
    return _OFFSET.get()


def zone() -> str:
    """The name of the written clock: "UTC", "UTC+1", "UTC-3:30"."""
    minutes = round(_OFFSET.get() / 60)
    if not minutes:
        return "UTC"
    hours, rest = divmod(abs(minutes), 60)
    return f"UTC{'+' if minutes > 0 else MINUS}{hours}{f':{rest:02}' if rest else ''}"


def _moment(ts: float) -> datetime:
    return datetime.fromtimestamp(ts + _OFFSET.get(), UTC)


def clock(ts: float, *, day: bool = False, fine: bool = False) -> str:
    """An instant by the written clock: "15:33:44", with its date where asked, to the millisecond where `fine`."""
    moment = _moment(ts)
    text = moment.strftime("%Y-%m-%d %H:%M:%S" if day else "%H:%M:%S")
    return f"{text}.{moment.microsecond // 1000:03}" if fine else text


def date(ts: float) -> str:
    """The day of an instant by the written clock: "2026-11-29"."""
    return _moment(ts).strftime("%Y-%m-%d")


def span(start: float | None, end: float | None) -> str:
    """A window in words: "15:33:44 - 15:34:51 UTC"; its date where it is longer than a day."""
    if start is None or end is None:
        return "no clock"
    far = _moment(start).date() != _moment(end).date()
    return f"{clock(start, day=far)} {DASH} {clock(end, day=far)} {zone()}"


def length(seconds: float) -> str:
    """How long something lasted: "67 s", "12 min", "3.4 h", "2.1 d"."""
    if seconds < 2 * _MINUTE:
        return f"{number(seconds, 2 if seconds < 100 else 3)}{THIN}s"
    for size, name in ((_MINUTE, "min"), (_HOUR, "h"), (_DAY, "d")):
        if seconds < 100 * size or name == "d":
            return f"{number(seconds / size, 2)}{THIN}{name}"
    raise AssertionError


def size(n: float) -> str:
    """Bytes: "4.2 MB"."""
    for name in ("B", "kB", "MB", "GB"):
        if n < 1000 or name == "GB":
            return f"{number(n) if name != 'B' else round(n)}{THIN}{name}"
        n /= 1000
    raise AssertionError


def flagged(text: str) -> Html:
    """Text with command line flags (with their JSON), and what stands between backticks, set as code."""
    pieces = re.split(r"((?<![\w-])--[a-z][a-z0-9-]+(?: N\b| '\{[^']*\}')?|`[^`]+`)", text)
    return join(tag("code", piece.strip("`")) if at % 2 else piece for at, piece in enumerate(pieces))


def titled(text: str) -> str:
    """A sentence of the analyzers with links called by their titles (kv_eviction: KV eviction)."""
    return re.sub(r"\b(" + "|".join(TITLES) + r")\b", lambda found: TITLES[found[0]] if "_" in found[0] else found[0], text)


def first_sentence(doc: str | None) -> str:
    """The first line of a docstring, without its full stop."""
    return (doc or "").strip().partition("\n")[0].strip().removesuffix(".")


def remedies(doc: str | None) -> list[tuple[str, str]]:
    """The lines under "What to try" of a link's docstring: (what, what it costs)."""
    _, found, tail = (doc or "").partition("What to try:")
    joined: list[str] = []
    for line in tail.strip("\n").splitlines() if found else []:
        if not line.strip():
            break
        text = line.strip()
        if joined and not re.search(r"[.:]$", joined[-1]) and text[:1].islower():
            joined[-1] += f" {text}"
        else:
            joined.append(text)
    pairs = [line.partition(": ")[::2] for line in joined]
    return [(what.strip().removesuffix("."), cost.strip()) for what, cost in pairs]


def listed(items: Iterable[str]) -> Html:
    """Items of a sentence: "a, b and c"."""
    found = list(items)
    return join([join(found[:-1], ", "), found[-1]], " and ") if len(found) > 1 else join(found)
