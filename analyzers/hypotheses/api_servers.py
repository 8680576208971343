"""More API server processes, for a front end or delivery that has no CPU left.

One Python event loop renders, tokenizes, detokenizes and streams for all connections. Several processes share that work.
"""

from typing import Final

from analyzers import api_server
from analyzers.case import Case, effect
from analyzers.model import TARGETS, Hypothesis

NAME: Final = "api_servers"
SINCE: Final = (0, 10)


def propose(case: Case) -> Hypothesis | None:
    """Where the API server limits a target."""
    if not case.limiting() & {"frontend", "output"}:
        return None
    now = int(api_server.servers(case.engine))
    effects = {
        name: effect(case.seconds("frontend", name) + case.seconds("output", name), case.measured(name), 0.15) for name in TARGETS
    }
    cores = api_server.cpu_cores(case.engine)
    return Hypothesis(
        name=NAME, change=f"{now} -> {4 * now} API server processes", flags=(f"--api-server-count {4 * now}",),
        claim="seconds lie before and after the engine while the engine has room" + (f"; the process uses {cores:.2f} of one core" if cores else ""),
        effect=effects, predicted_by="books",
        costs=("memory per process", "with several API servers vLLM prints no stats lines and exports no process CPU: less can be diagnosed then"),
        confused_with="a slow engine or slow decode steps: they look late because their tokens are delivered late",
        conditions=("free CPU cores on the host", "the seconds are at least these: what clients wait before the arrival stamp is in no metric"),
        test="the same load for at least 60 s before and after; compare TTFT and E2E of clients, process CPU and scrape duration",
        undoes="frontend",
    )  # fmt: skip
