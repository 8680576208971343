"""Speculative decoding on; where it is on and accepts little, off.

A step drafts k tokens and verifies them at once; l of the k + 1 come out. TPOT = a / (1 - rate out c / l - rate b prompt) / l with
the step's costs while drafting. The accepted length l depends on model, method and text: it is never guessed, only the break-even.
"""

import math
from dataclasses import replace
from typing import Final

from analyzers import versions
from analyzers.attribute import growth_s
from analyzers.books import Books
from analyzers.case import FLOOR, UNPREDICTED, Case, Change, amount, between, by_twin
from analyzers.hypotheses import trial
from analyzers.model import Hypothesis
from analyzers.twin import Setup

NAME: Final = "speculative"
SINCE: Final = versions.first_of("speculative-config")
RELIEVES: Final = ("decode_batch", "speculation", FLOOR)
TAKES: Final = ("kv_eviction",)
EFFORT: Final = 0
TOUCHES: Final = ("speculative_config",)
DRAFTS: Final = 4
NGRAM_S: Final = (0.0001, 0.0003)  # measured on an H200: a step that verifies five positions of 5 to 24 requests instead of one


def with_length(length: float, verify: float) -> Change:
    """The engine that gets `length` tokens a step; verifying costs `verify` of what computing so many prompt tokens costs."""

    def setup(now: Setup, _: Books) -> Setup:
        return replace(now, tokens_per_step=length, a=now.a + NGRAM_S[1], c=now.c + verify * DRAFTS * now.b)

    return Change(setup)


def without(share: float) -> Change:
    """The engine without drafts; `share` of what verifying costs a sequence is taken back."""

    def setup(now: Setup, books: Books) -> Setup:
        t = books.engine.total
        drafts = t.get("draft_tokens", 0.0) / max(t.get("draft_n", 0.0), 1.0)
        return replace(now, tokens_per_step=1.0, c=max(books.model.c_min, now.c - share * drafts * now.b, 0.1 * now.c))

    return Change(setup)


def break_even(case: Case) -> tuple[float, float] | None:
    """Accepted lengths from which drafting pays: with verification for free, and at the price of computing prompt tokens."""
    if (
        not case.accounts
        or not all(b.model.ok for b in case.accounts)
        or any(not math.isfinite(growth_s(b)) for b in case.accounts)
    ):
        return None
    a, b, c = case.mean(lambda x: x.model.a), case.mean(lambda x: x.model.b), case.mean(lambda x: x.model.c)
    windows = [x.windows for x in case.accounts if x.windows is not None]
    together = [float(w.decode[w.busy].sum() / max(w.n[w.busy].sum(), 1.0)) for w in windows]
    batch = sum(together) / max(len(together), 1)
    now = a + c * batch
    return 1 + NGRAM_S[0] / now, 1 + (NGRAM_S[1] + DRAFTS * b * batch) / now


def propose(case: Case) -> Hypothesis | None:
    """Where decoding is what takes the time, and nothing is drafted (or drafts are hardly accepted)."""
    if any(b.engine.total.get("draft_n") for b in case.accounts):
        return _off(case)
    if case.fact("speculative") or break_even(case) is None:
        return None
    return _on(case)


def _on(case: Case) -> Hypothesis | None:
    even, length = break_even(case), case.given.get("accepted_length")
    if even is None:
        return None
    effects = between(by_twin(case, with_length(length, 1.0)), by_twin(case, with_length(length, 0.0))) if length else None
    said = (
        f"accepted length {length:.2f} as given" if length else "the accepted length is not known before a run and is not guessed"
    )
    return Hypothesis(
        name=NAME, change=f"speculative decoding with {DRAFTS} drafted tokens",
        flags=(f"--speculative-config '{{\"method\": \"ngram\", \"num_speculative_tokens\": {DRAFTS}, \"prompt_lookup_max\": {DRAFTS}}}'",),
        claim=f"a step takes {amount(case.mean(lambda b: b.model.a))} whatever comes out of it; break-even at {even[0]:.2f} to {even[1]:.2f} tokens a step (a drafting model's own time comes on top)",
        effect=effects or UNPREDICTED, predicted_by="twin, with the given accepted length" if effects else "nothing",
        costs=("rejected drafts: at large batches verifying them makes every step longer", "a drafting model takes memory from weights and KV blocks; each request holds blocks for its drafts"),
        confused_with="faster steps: steps become longer, each brings more tokens; ITL and TPOT part ways",
        conditions=(said, "a recording with speculation on says l: 1 + accepted / drafts (SpecDecoding metrics line)", "greedy decoding of random weights repeats itself: only real traffic tells", *versions.unknown(case.engine)),
        test=trial.plan(case, effects or UNPREDICTED, "TPOT (not ITL), accepted length, at the batch of the busiest hour"),
    )  # fmt: skip


def _off(case: Case) -> Hypothesis | None:
    t = [b.engine.total for b in case.accounts]
    drafts = sum(x.get("draft_n", 0.0) for x in t)
    length = 1 + sum(x.get("accepted_tokens", 0.0) for x in t) / max(drafts, 1.0)
    effects = between(by_twin(case, without(0.0)), by_twin(case, without(1.0)))
    if effects is None:
        return None
    accepted = sum(x.get("accepted_tokens", 0.0) for x in t) / max(sum(x.get("draft_tokens", 0.0) for x in t), 1.0)
    return Hypothesis(
        name=NAME, change="no speculative decoding", flags=("without --speculative-config",),
        claim=f"{length:.2f} tokens come out of a step; {100 * accepted:.0f} % of drafted tokens are accepted, the others make steps longer for nothing",
        effect=effects, predicted_by="twin",
        costs=("where drafts are accepted, tokens come slower without them",),
        confused_with="fewer drafts a step, which keeps most of the accepted ones",
        conditions=("what a step takes without drafts was not measured: a rejected token costs between nothing and what a prompt token costs", *versions.unknown(case.engine)),
        test=trial.plan(case, effects, "TPOT (not ITL) at equal load"),
        undoes="speculation",
    )  # fmt: skip
