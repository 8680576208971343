"""The loops of the server: one evaluates, one delivers. Neither waits for the other, and neither ends with an error."""

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from app.alerts.definitions import Definitions, read
from app.alerts.evaluate import evaluate
from app.alerts.notify import AGAIN_S, check, deliver, repeat
from app.alerts.table import DefinitionError
from app.store import Store

LOOK_S: Final = 1.0  # between two looks into the outbox
LOG: Final = logging.getLogger("weaklink.alerts")

Background = Callable[[Store, threading.Event], None]


class Followed:
    """The definitions of a file, read again when it changes; a change that cannot be read is logged, and the old ones stay."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.held = read(path) if path else Definitions()
        self.stamp = self._stamp()

    def _stamp(self) -> tuple[int, int] | None:
        try:
            found = self.path.stat() if self.path else None
        except OSError:
            return None
        return (found.st_mtime_ns, found.st_size) if found else None

    def now(self) -> Definitions:
        """The definitions as the file has them now."""
        stamp = self._stamp()
        if self.path and stamp is not None and stamp != self.stamp:
            self.stamp = stamp
            try:
                self.held = read(self.path)
            except DefinitionError as error:
                LOG.warning("the change is not used: %s", error)
        return self.held


_RUNNING: Final[list[Followed]] = []  # at most one: the server's


def current() -> Definitions:
    """The definitions that the server of this process follows; empty ones where none runs."""
    return _RUNNING[0].held if _RUNNING else Definitions()


def running() -> bool:
    """Whether this process evaluates objectives."""
    return bool(_RUNNING)


def backgrounds(path: Path | None, clock: Callable[[], float] = time.time) -> list[Background]:
    """The loops around a definition file (None: only what the store holds). DefinitionError where it cannot be used."""
    followed = Followed(path)
    for fault in check(followed.held.notifiers):
        LOG.warning("%s", fault)
    return [_evaluating(followed, clock), _delivering(followed, clock)]


def _evaluating(followed: Followed, clock: Callable[[], float]) -> Background:
    def run(store: Store, stop: threading.Event) -> None:
        wait = 0.0
        _RUNNING[:] = [followed]
        while not stop.wait(wait):
            began = time.monotonic()
            try:
                evaluate(store, followed.now(), clock())
            except Exception:
                LOG.exception("an evaluation failed; the next one is tried in time")
            wait = max(0.05, followed.held.interval_s - (time.monotonic() - began))
        _RUNNING.clear()

    return run


def _delivering(followed: Followed, clock: Callable[[], float]) -> Background:
    def run(store: Store, stop: threading.Event) -> None:
        repeated = -AGAIN_S
        while not stop.wait(min(LOOK_S, followed.held.interval_s)):
            try:
                deliver(store, followed.held, clock)
                if time.monotonic() - repeated >= AGAIN_S:
                    repeat(store, followed.held, clock())
                    repeated = time.monotonic()
            except Exception:
                LOG.exception("a delivery failed; it is tried again")

    return run
