"""Prefill and decode on servers of their own: no decode step carries a prompt.

Every request then passes two servers and a transfer of its KV; one server computes the prompts of all. Measured in 0.33 (two
servers instead of two replicas): TPOT 0.65 ms better, TTFT 74 ms worse without any transfer being slow.
"""

import math
from dataclasses import replace
from typing import Final

import numpy as np

from analyzers import versions
from analyzers.books import Books, arrival_rate
from analyzers.case import Case, amount, by_twin, effect, per_target
from analyzers.hypotheses import trial
from analyzers.model import Effect, Hypothesis, Stage
from analyzers.steps import lengths, number
from analyzers.twin import Load, Setup, Twin, simulate

NAME: Final = "disaggregation"
SINCE: Final = versions.first_of("kv-transfer-config")
RELIEVES: Final = ("prefill_backlog",)
TAKES: Final = ("kv_transfer",)
EFFORT: Final = 2  # another server, and a proxy
TOUCHES: Final = ("kv_transfer_config", "engines")
SURE: Final = 0.4
BESIDE: Final = 0.10  # share of decode in steps with prompts from which it is worth a look
FULL: Final = 0.85  # use of the prefill server by prompts above which its queue eats the gain


def propose(case: Case) -> Hypothesis | None:
    """Where prompts stretch decode steps on servers that do both."""
    if case.split() or not case.accounts or not all(b.model.ok for b in case.accounts):
        return None
    beside = case.mean(lambda b: b.decode["prompts"] + b.decode["beside"])
    busy = prefill_use(case)
    if not beside > BESIDE * case.mean(lambda b: b.stages[Stage.DECODE]) or not busy < FULL:
        return None
    tpot = tpot_saved(case)
    tokens = max(case.mean(lambda b: b.output_tokens) - 1, 1.0)
    effects = {"ttft": Effect(None), "tpot": effect(tpot, case.measured("tpot"), SURE), "e2e": Effect(None)}
    tensor = max(1.0, number(case.fact("tensor_parallel"), 1.0))
    each = (case.work.kv_bytes_per_token or math.nan) * tensor * case.mean(lambda b: lengths(b.engine)[0])
    size = f" of {each / 1e6:.0f} MB" if math.isfinite(each) else ""
    even = (
        f"break-even: {amount(tpot * tokens)} a request are saved while decoding, so E2E gains only if transfer, second queue and second API server together stay below that"
        if tpot is not None
        else "break-even: cannot be said without a twin"
    )
    return Hypothesis(
        name=NAME, change=_change(case), flags=('--kv-transfer-config \'{"kv_connector": "NixlConnector", "kv_role": "kv_both"}\'',),
        claim=f"steps shared with prompts hold {amount(per_target(case, {Stage.DECODE: beside})['tpot'])} of each token; prompts would keep their own server busy {100 * busy:.0f} % of the time",
        effect=effects, predicted_by="twin for TPOT, nothing for TTFT",
        costs=(f"a transfer{size} a request, and its wait for the ends of steps (measured: a 5 ms copy cost 15 ms of queue)",
               "TTFT: two API servers and two queues, and fewer GPUs for prompts: bursts of prompts wait longer",
               *(() if len(case.accounts) > 1 else ("a second server with its GPUs",))),
        confused_with="a threshold or budget for long prompts, which needs no second server",
        conditions=("TTFT cannot be predicted before a transfer was measured", even, "a proxy that sends each request to both servers", *versions.unknown(case.engine)),
        test=trial.plan(case, effects, "TTFT, TPOT and E2E of clients, queue time of the decode server, transfer seconds and bytes"),
        undoes="prefill_backlog",
    )  # fmt: skip


def _change(case: Case) -> str:
    n = len(case.accounts)
    if n < 2:
        return "one server for prompts, one for decoding"
    return f"{n // 2} of {n} servers only compute prompts, the others only decode"


def prefill_use(case: Case) -> float:
    """Share of time that the prefill servers would be busy: half of the engines there are, or one more."""
    servers = max(1, len(case.accounts) // 2)
    total = 0.0
    for b in case.accounts:
        rate, (prompt, _, cv, _) = arrival_rate(b.engine), lengths(b.engine)
        hit = b.hits.now if math.isfinite(b.hits.now) else 0.0
        total += (rate or math.nan) * (b.model.a + b.model.mixed_s + b.model.prompt_s(prompt * (1 - hit), prompt * hit, cv))
    return total / servers


def tpot_saved(case: Case) -> float | None:
    """Seconds a token on decode servers without prompts: of one engine by the twin, of several with the batches put together."""
    if len(case.accounts) < 2:
        found = by_twin(case, _apart)
        return found["tpot"].saves_s if found else None
    twins = [t for t in case.twins if t]
    if len(twins) < len(case.accounts):
        return None
    ways = len(twins) // max(1, len(twins) - len(twins) // 2) if len(twins) > 1 else 1
    saved = []
    for at in range(0, len(twins) - len(twins) % max(ways, 1), max(ways, 1)):
        group = twins[at : at + ways]
        saved.append(_together(group))
    now = case.measured("tpot")
    return None if now is None or not saved else now * (1 - sum(saved) / len(saved))


def _together(twins: list[Twin]) -> float:
    """TPOT of one decode server with the requests of several engines, over the mean TPOT of these."""
    order = np.argsort(np.concatenate([t.load.arrival for t in twins]), kind="stable")
    arrival, prompt, output = (
        np.concatenate([getattr(t.load, name) for t in twins])[order] for name in ("arrival", "prompt", "output")
    )
    both = Load(arrival, prompt, output, "requests of several engines")
    then = simulate(both, _apart(twins[0].setup, None)).mean("tpot", both.output)
    before = [t.base.mean("tpot", t.load.output) for t in twins]
    return then / max(sum(before) / len(before), 1e-12)


def _apart(now: Setup, _: Books | None) -> Setup:
    """A decode server: prompts are computed elsewhere."""
    return replace(now, pool=True)
