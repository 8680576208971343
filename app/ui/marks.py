"""What happened on the servers while the window lasted: restarts, events of the log, alerts. Marks on charts, and their words."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from app.ui.session import View

KINDS: Final = {
    "restart": "restart",
    "start": "server starts",
    "listening": "ready",
    "jit": "late compilation",
    "rearrange": "expert rearrangement",
    "failed": "failure",
    "death": "engine death",
    "prefix_reset": "prefix cache reset",
    "preempted_v0": "preemption",
    "aborted": "aborted requests",
    "standstill": "no step",
    "fired": "alert",
    "resolved": "alert over",
}
MOST_MARKS: Final = 40
RESTART_S: Final = 60.0  # a first scrape this long after a log's "ready" shows the same restart


def happened(view: View) -> list[dict[str, Any]]:
    """Events and alerts of the window, in their order."""
    return view.rows("timeline_mark", low=view.low, high=view.high, instances=list(view.instances))


def marks(found: Sequence[Mapping[str, Any]], columns: Mapping[str, Any]) -> list[tuple[float, str]]:
    """Marks inside the drawn span, the words of near ones joined; a restart that the log tells too is drawn once."""
    ts = np.asarray(columns["ts"], dtype=float)
    inside = [one for one in found if len(ts) and ts[0] <= one["ts"] <= ts[-1]]
    ready = [one["ts"] for one in inside if one["kind"] == "listening"]
    told = [one for one in inside if one["kind"] == "restart" and any(0 <= one["ts"] - at < RESTART_S for at in ready)]
    near = 0.07 * float(ts[-1] - ts[0]) if len(ts) else 0.0
    shown: list[tuple[float, str]] = []
    worded = -np.inf
    for one in [one for one in inside if one not in told][:MOST_MARKS]:
        word = KINDS.get(one["kind"], one["kind"]) if one["ts"] - worded >= near else ""
        worded = one["ts"] if word else worded
        shown.append((one["ts"], word))
    return shown
