"""When a trouble began: the first instant of the episode that holds most of it, in one series over time."""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from analyzers.model import Array

FEW: Final = 6  # instants below which a series has no beginning
CALM_RATIO: Final = 0.5  # share of the instants, the lowest, that count as calm
TIMES: Final = 3.0  # the trouble is at least so many times the calm
RISE: Final = 0.1  # and at least this share of the way from the calm to the worst
GAP: Final = 2  # calm instants that do not end an episode
ALWAYS: Final = 0.75  # share of the instants above which it was there all the time


@dataclass(frozen=True, slots=True)
class Began:
    """First and last instant of the worst episode, and the instant before its first; `ended` False: it lasts to the end."""

    start: float
    end: float
    before: float
    ended: bool


def began(ts: Array, values: Array) -> Began | None:
    """The worst episode of a series (waiting requests, seconds); None where it has none, or was in one from the start on."""
    known = np.isfinite(values) & np.isfinite(ts)
    at, seen = ts[known], values[known]
    if len(seen) < FEW or float(seen.max()) <= 0:
        return None
    calm = float(np.median(np.sort(seen)[: max(3, math.ceil(CALM_RATIO * len(seen)))]))
    high = seen > max(TIMES * calm, calm + RISE * (float(seen.max()) - calm))
    if not high.any() or high.mean() > ALWAYS:
        return None
    runs: list[list[int]] = []
    for one in np.flatnonzero(high):
        if runs and one - runs[-1][1] <= GAP + 1:
            runs[-1][1] = int(one)
        else:
            runs.append([int(one), int(one)])
    first, last = max(runs, key=lambda run: float((seen[run[0] : run[1] + 1] - calm).sum()))
    if first == 0:
        return None
    return Began(float(at[first]), float(at[last]), float(at[first - 1]), last < len(seen) - 1)
