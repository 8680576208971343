"""The one store of the process: the server opens it before Streamlit runs, the pages read it; how often they look. Imports no streamlit."""

import threading

from app.store import Store

FOLLOW_S = 30.0  # seconds between looks of a live page for new scrapes

_lock = threading.Lock()
_stores: list[Store] = []  # at most one
_turn = [0]  # counts the stores held, so that a cache never answers from the one before


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
