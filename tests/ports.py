"""Ports for the servers of tests."""

import itertools
import os
import socket
from typing import Final

FIRST: Final = 10_000  # below the ports that the system gives to connections and to whoever binds port 0 (from 32768 on Linux)
EACH: Final = 1_100  # of one worker of the suite; 20 workers have their own
WORKER: Final = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 20
NEXT: Final = itertools.count(os.getpid())  # runs side by side begin at different places


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody listens on, and that no other test is given before its server has bound it."""
    for _ in range(EACH):
        port = FIRST + WORKER * EACH + next(NEXT) % EACH
        with socket.socket() as one:
            try:
                one.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError(f"none of the {EACH} ports from {FIRST + WORKER * EACH} is free")
