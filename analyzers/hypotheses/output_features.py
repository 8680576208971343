"""Lighter responses: fewer logprobs, no parsers or output constraints that nobody uses.

Logprobs are work for every token in the API server; reasoning and tool parsers run over each delta there; structured output
compiles a grammar while its request waits, and masks logits in every step.
"""

from typing import Final

from analyzers.case import Case, amount, within
from analyzers.hypotheses import trial
from analyzers.model import Hypothesis, Stage

NAME: Final = "output_features"
SINCE: Final = None
RELIEVES: Final = ("output", "frontend")
TAKES: Final = ()
EFFORT: Final = 1  # clients get other responses
TOUCHES: Final = ("max_logprobs", "reasoning_parser", "tool_call_parser", "enable_auto_tool_choice", "structured_outputs_config")
CONFIGURED: Final = ("reasoning_parser", "tool_call_parser", "structured_outputs_config", "max_logprobs")


def propose(case: Case) -> Hypothesis | None:
    """Where the API server limits, or requests wait for a grammar."""
    grammar = case.mean(lambda b: b.queue["deferred"]) if case.fact("connector") is False else 0.0
    if not case.limiting() & set(RELIEVES) and not grammar > 0.05 * (case.measured("ttft") or 0.0):
        return None
    held = {name: case.seconds("frontend", name) + case.seconds("output", name) + grammar for name in ("ttft", "e2e")}
    effects = within(case, held)
    configured = [f"--{name.replace('_', '-')}" for name in CONFIGURED if case.args.get(name)]
    waits = (
        f"; requests wait {amount(grammar)} deferred without a KV connector: a grammar or an adapter is loaded" if grammar else ""
    )
    return Hypothesis(
        name=NAME, change="requests ask for fewer logprobs; parsers and constraints only where they are used", flags=(),
        claim=f"{amount(case.mean(lambda b: b.stages[Stage.FRONTEND] + b.stages[Stage.OUTPUT]))} of a request are the API server's, whose work grows with what each token carries{waits}"
        + (f"; configured: {', '.join(configured)}" if configured else ""),
        effect=effects, predicted_by="nothing",
        costs=("clients get less in each response",),
        confused_with="too few API server processes: the same seconds, and more processes hide them",
        conditions=("what requests ask for is in no metric: count logprobs, tools and response_format where requests are made",
                    "with none of them in use nothing is saved", "CPU per output token above that of a run without them would show it"),
        test=trial.plan(case, effects, "E2E of clients, process CPU per output token, tokens per chunk"),
        undoes="output",
    )  # fmt: skip
