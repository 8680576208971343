"""A larger stream interval: fewer, larger chunks to deliver.

The API server detokenizes, serializes and sends every N-th token's worth at once; the first token is sent at once in any case.
"""

from typing import Final

from analyzers import versions
from analyzers.case import Case, amount, within
from analyzers.hypotheses import trial
from analyzers.model import Hypothesis
from analyzers.steps import number

NAME: Final = "stream_interval"
SINCE: Final = versions.first_of("stream-interval")
RELIEVES: Final = ("output", "frontend")
TAKES: Final = ()
EFFORT: Final = 1  # clients see other chunks
TOUCHES: Final = ("stream_interval",)
TOKENS: Final = 4


def propose(case: Case) -> Hypothesis | None:
    """Where delivery or the front end limits and chunks are small."""
    if not case.limiting() & set(RELIEVES) or not versions.has(versions.version_of(case.engine), "stream-interval"):
        return None
    now = int(number(case.args.get("stream_interval"), 1.0))
    wanted = TOKENS * now
    held = {name: case.seconds("frontend", name) + case.seconds("output", name) for name in ("ttft", "e2e")}
    effects = within(case, {"ttft": held["ttft"], "e2e": held["e2e"]})
    gap = (case.measured("tpot") or 0.0) * wanted
    return Hypothesis(
        name=NAME, change=f"a chunk every {wanted} tokens instead of every {now}", flags=(f"--stream-interval {wanted}",),
        claim=f"{amount(held['e2e'])} of a request are the API server's, whose work grows with the number of chunks",
        effect=effects, predicted_by="nothing",
        costs=(f"clients get {wanted} tokens at once, {amount(gap)} apart: streaming looks less smooth",),
        confused_with="slow decode steps: clients' gaps between chunks grow here although tokens come as fast",
        conditions=("which share of the API server's CPU goes to chunks is not measured: the effect lies between nothing and all of its seconds",
                    "clients that do not stream gain nothing", *versions.unknown(case.engine)),
        test=trial.plan(case, effects, "E2E of clients, process CPU, tokens per chunk"),
    )  # fmt: skip
