"""The one store of the process: the server opens it before Streamlit runs, the pages read it; how often they look. Imports no streamlit."""

import math
import threading
import time
from collections.abc import Sequence

from app.store import Store, sql

FOLLOW_S = 30.0  # seconds between looks of a live page for new scrapes
GONE_S = 60.0  # without news of what is computed ahead, pages compute it themselves
FRESH_S = 10.0  # what comes in by itself is shown at most so late, where nobody computes its rows ahead

_lock = threading.Lock()
_stores: list[Store] = []  # at most one
_turn = [0]  # counts the stores held, so that a cache never answers from the one before
_looks: list[tuple[tuple[int, int, float], float, str]] = []  # at most one: of which store and changes, when, and what it held


def hold(store: Store) -> None:
    """Make this the store that the pages show."""
    with _lock:
        _stores[:] = [store]
        _turn[0] += 1


def held() -> tuple[Store, int]:
    """The store and its number; an empty one in memory where nobody gave one."""
    with _lock:
        if not _stores:
            _stores.append(Store())
        return _stores[0], _turn[0]


def unnamed(names: Sequence[str]) -> list[str]:
    """Engines as "host:port/label", where "None/label" stands for what no server is known of: "/label"."""
    return [name.removeprefix("None") if name.startswith("None/") else name for name in names]


def settled() -> float:
    """Up to when rows of what comes in are computed ahead (epoch seconds); inf: nobody does, or whoever did has stopped."""
    store, _ = held()
    return store.settled_ts if 0.0 <= time.time() - store.settled_ts < GONE_S else math.inf


def mark() -> str:
    """How much the store holds: part of every cache's key. What is loaded or taken out changes it at once, scrapes now and then."""
    store, turn = held()
    upto = settled()
    state = turn, store.changes, upto
    fresh = math.inf if math.isfinite(upto) else min(FRESH_S, FOLLOW_S)
    with _lock:
        if _looks and _looks[0][0] == state and time.monotonic() - _looks[0][1] < fresh:
            return _looks[0][2]
    found = "-".join(str(number) for number in (turn, *store.rows(sql("screens", "frame_watermark"))[0]))
    with _lock:
        _looks[:] = [(state, time.monotonic(), found)]
    return found
