"""More API server processes, for a front end or delivery that has no CPU left.

One Python event loop renders, tokenizes, detokenizes and streams for all connections. Several processes share that work.
"""

from typing import Final

from analyzers import api_server, versions
from analyzers.case import Case, amount, effect
from analyzers.hypotheses import trial
from analyzers.model import TARGETS, Hypothesis

NAME: Final = "api_servers"
SINCE: Final = versions.first_of("api-server-count")
RELIEVES: Final = ("frontend", "output")
TAKES: Final = ()
EFFORT: Final = 0
TOUCHES: Final = ("api_server_count",)
SURE: Final = 0.15


def propose(case: Case) -> Hypothesis | None:
    """Where seconds lie before and after the engine."""
    held = {name: case.seconds("frontend", name) + case.seconds("output", name) for name in TARGETS}
    if held["e2e"] <= 0.05 * (case.measured("e2e") or 0.0) and not case.limiting() & set(RELIEVES):
        return None
    now = int(api_server.servers(case.engine))
    effects = {name: effect(held[name], case.measured(name), SURE) for name in TARGETS}
    cores = api_server.cpu_cores(case.engine)
    return Hypothesis(
        name=NAME, change=f"{now} -> {4 * now} API server processes", flags=(f"--api-server-count {4 * now}",),
        claim=f"{amount(held['e2e'])} of a request lie before and after the engine while the engine has room"
        + (f"; the process uses {cores:.2f} of one core" if cores else ""),
        effect=effects, predicted_by="books",
        costs=("memory and a CPU core per process", "with several API servers vLLM prints no stats lines and exports no process CPU: less can be diagnosed then"),
        confused_with="a slow engine or slow decode steps: they look late because their tokens are delivered late",
        conditions=("free CPU cores on the host", "the seconds are at least these: what clients wait before the arrival stamp is in no metric",
                    "what each response carries (logprobs, parsers) is the other half of this CPU: see output_features", *versions.unknown(case.engine)),
        test=trial.plan(case, effects, "TTFT and E2E of clients, process CPU, scrape duration"),
        undoes="frontend",
    )  # fmt: skip
