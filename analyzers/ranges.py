"""How sure a part is: step costs fitted to windows drawn again in blocks, the extremes of inputs that were not observed, and calibrated half-widths.

The three are united (attribution.md section 7): the bootstrap alone held the truth in only two thirds of cases.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from analyzers.books import Books, books
from analyzers.calibration import ACTIVE, SPREAD
from analyzers.links import CHAIN
from analyzers.model import Engine, Level, Target
from analyzers.steps import refit

DRAWS: Final = 24
BLOCKS: Final = 12  # moving blocks that a window is cut into
PERCENTILES: Final = (5.0, 95.0)
FEW_REQUESTS: Final = 100  # fewer finished requests: their mean is itself uncertain, by T_90 / sqrt(n) of it
T_90: Final = 1.645
UNKNOWN: Final = (0.1, 0.7, 1.3)  # of a link that the table does not hold


def of(
    accounts: Books,
    targets: Mapping[str, Target],
    level: Level,
    shown: Mapping[str, Target] | None = None,
    seed: int = 0,
) -> dict[str, dict[str, tuple[float, float]]]:
    """Range of each known part, by target and link, in the target's seconds.

    `shown` are the targets as the twin composed them, where it did: ranges are of their parts, as far off as the twin's were,
    and as wide as the books' inputs allow.
    """
    found: dict[tuple[str, str], list[float]] = {}
    ends: dict[tuple[str, str], list[float]] = {}
    for into, several in ((found, _bootstrap(accounts, seed)), (ends, _extremes(accounts))):
        for drawn in several:
            for name, link, seconds in _parts(drawn):
                into.setdefault((name, link), []).append(seconds)
    out: dict[str, dict[str, tuple[float, float]]] = {}
    for name, target in (shown or targets).items():
        out[name] = {}
        for part in target.parts:
            was = targets[name].part(part.link)
            if part.seconds is None or was.seconds is None or target.measured_s is None or (part.seconds == 0 and not part.used):
                continue
            method = "books" if was is part else "twin"
            moved = part.seconds - was.seconds
            values = [*found.get((name, part.link), []), was.seconds]
            around = [float(x) + moved for x in np.percentile(values, PERCENTILES)]
            around += [x + moved for x in ends.get((name, part.link), [])]
            spans = [
                _calibrated(method, part.link, part.seconds, target.measured_s, seen, accounts.requests)
                for seen in observed(accounts.engine, level)
            ]
            low, high = min(spans, key=lambda span: span[1] - span[0])
            low, high = min(low, *around, part.seconds), max(high, *around, part.seconds)
            out[name][part.link] = (max(0.0, low) if part.seconds >= 0 else low, min(high, max(target.measured_s, part.seconds)))
    return out


def observed(engine: Engine, level: Level) -> tuple[Level, ...]:
    """Every level whose evidence is there: iteration lines beside request rows make a link as sure as the better of both."""
    logs = len(engine.step.get("ts", ())) > 0 or any(e.kind == "eplb" for e in engine.event)
    rows = len(engine.request.get("arrival_ts", ())) > 0
    found = {level, *((Level.LOGS,) if logs else ()), *((Level.REQUESTS,) if rows else ())}
    return tuple(sorted(found, key=list(Level).index))


def _calibrated(method: str, link: str, seconds: float, measured: float, level: Level, requests: int) -> tuple[float, float]:
    """Range as calibrated: times factors where a part is active, plus or minus a share of the measured value where it is not."""
    table = SPREAD[method]
    inactive, least, most = table.get(str(level), table["metrics"]).get(link, UNKNOWN)
    more = T_90 / math.sqrt(max(requests, 1)) if requests < FEW_REQUESTS else 0.0
    if abs(seconds) <= ACTIVE * measured:
        wide = (1 + more) * inactive * measured
        return seconds - wide, seconds + wide
    ends = sorted((seconds * least * max(0.0, 1 - more), seconds * most * (1 + more)))
    return ends[0], ends[1]


def _parts(drawn: Books) -> Iterator[tuple[str, str, float]]:
    from analyzers.attribute import adjust, target_of  # noqa: PLC0415 attribute asks for ranges, ranges for its parts

    adjusted = adjust(drawn)
    rows = {module.LINK.name: module.row(adjusted) for module in CHAIN}
    for name in ("ttft", "tpot", "e2e"):
        for part in target_of(name, adjusted, rows).parts:
            if part.seconds is not None:
                yield name, part.link, part.seconds


def _bootstrap(accounts: Books, seed: int) -> Iterator[Books]:
    """The window's own books with step costs fitted to windows drawn again in blocks.

    What happened is not drawn again: a burst that was measured once did happen. What could be otherwise is the reading of it.
    """
    windows, model = accounts.windows, accounts.model
    if windows is None or not model.ok or len(windows.dt) < BLOCKS:
        return
    rng = np.random.default_rng(seed)
    n = len(windows.dt)
    size = math.ceil(n / BLOCKS)
    for _ in range(DRAWS):
        starts = rng.integers(0, n - size + 1, BLOCKS)
        index = np.concatenate([np.arange(start, start + size) for start in starts])[:n]
        drawn = books(accounts.engine, windows, refit(windows, model, index), None, accounts.frontend_nominal_s)
        if drawn is not None:
            yield drawn


def _extremes(accounts: Books) -> Iterator[Books]:
    """Books at the ends of inputs that nothing observed: tokens computed again after preemptions."""
    _, low, high, _ = accounts.recomputed
    if high > low and math.isfinite(high):
        for value in (low, high):
            drawn = books(accounts.engine, accounts.windows, accounts.model, value, accounts.frontend_nominal_s)
            if drawn is not None:
                yield drawn
