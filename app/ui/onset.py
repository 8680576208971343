"""When the trouble began, and what happened at that moment: a sentence for the Overview, a mark for the Timeline."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from analyzers.began import Began, began
from analyzers.diagnosis import REASONS
from analyzers.model import Target
from app.ui import draw
from app.ui.marks import KINDS, happened
from app.ui.markup import Html, bold, join
from app.ui.session import View
from app.ui.words import clock, count, length, number, plural

NEAR_S: Final = 3.0  # an event this long before the beginning may be its cause
SERIES: Final = {"ttft": ("ttft_s", "TTFT"), "tpot": ("itl_s", "ITL"), "e2e": ("e2e_s", "E2E")}


def onset(view: View, target: Target) -> Began | None:
    """The worst episode of what waits for the limiting link, or of the target itself; None where there is no clock or no episode."""
    columns = view.columns("timeline", points=draw.POINTS, **view.window())
    if not target.limiting or not draw.timed(columns):
        return None
    name = "waiting" if target.limiting in REASONS and target.name != "tpot" else SERIES[target.name][0]
    return began(np.asarray(columns["ts"], float), np.asarray(columns[name], float))


def sentence(view: View, target: Target) -> Html | None:
    """In words: Began 15:34:10 with 41 prompts of 12,000 tokens within 0.3 s; it lasted 14 s."""
    found = onset(view, target)
    if found is None:
        return None
    low, high = found.before - NEAR_S, found.start
    said: list[object] = ["Began ", bold(clock(found.start)), *_with(view, low, high)]
    said.append(f"; it lasted {length(found.end - found.before)}." if found.ended else "; it lasts to the end of the window.")
    return join(said)


def _with(view: View, low: float, high: float) -> list[object]:
    """What happened just before."""
    for one in happened(view):
        if low <= one["ts"] <= high:
            return [f", after {KINDS.get(one['kind'], one['kind'])} at {clock(one['ts'])}"]
    instances = list(dict.fromkeys(name.rpartition("/")[0] for name in view.chosen))
    rows = view.rows("overview_burst", low=view.low, high=view.high, instances=instances, **{"from": low, "to": high})
    burst: Mapping[str, Any] = rows[0]
    if not burst["n"]:
        return []
    within = f" within {number(burst['spread_s'], 2)} s" if burst["n"] > 1 and burst["spread_s"] else ""
    prompts, tokens = plural(burst["n"], "prompt"), float(f"{burst['prompt_tokens']:.2g}")
    return [" with ", bold(f"{prompts} of about {count(tokens)} tokens"), within]
