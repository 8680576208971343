"""What operators want of a deployment, for one workload: latency, throughput, capacity, isolation; and where these conflict.

Throughput is output tokens a second at saturation: the batch stands at what slots, blocks and token budget allow, and a step
costs what the step model says (t = a + c D + prompt work). Capacity is how many whole contexts of this workload the pool holds.
Both are arithmetic on the fitted costs; the twin's replay is not needed for a steady state.
"""

import math
from dataclasses import dataclass
from typing import Final

from analyzers import steps
from analyzers.attribute import growth_s
from analyzers.books import Books, cap_of
from analyzers.capacity import held_tokens
from analyzers.case import Case, Change, amount
from analyzers.model import Stage
from analyzers.twin import ENDLESS, Setup, load_of, setup_of

LATENCY: Final = ("ttft", "tpot", "e2e")
OBJECTIVES: Final = (*LATENCY, "throughput", "capacity")
LARGE_GPU_GIB: Final = 70.0  # from here on max_num_seqs is 1024 by default, below 256 (facts: flags per link)
NO_STEPS: Final = "cannot be determined: no step model of every engine (give a recording of a minute or more)"
UNITS: Final = {"throughput": "output tokens/s at saturation", "capacity": "contexts of this workload"}


@dataclass(frozen=True, slots=True)
class Saturated:
    """One deployment at saturation: output tokens and requests a second, TPOT and batch there, contexts that fit, what bounds it."""

    tokens_per_s: float
    requests_per_s: float
    tpot_s: float
    batch: float
    contexts: float
    bound: str


@dataclass(frozen=True, slots=True)
class Gain:
    """A rate or capacity now and after a change; None: cannot be predicted."""

    now: float | None
    then: float | None
    unit: str

    @property
    def ratio(self) -> float | None:
        """Then over now; None where either is unknown."""
        return self.then / self.now if self.now and self.then is not None else None


@dataclass(frozen=True, slots=True)
class Objective:
    """One objective for this workload: its value now in words, what limits it, and what it conflicts with."""

    name: str
    now: str
    limited_by: str | None
    says: str


def saturated(setup: Setup, books: Books, engines: int = 1) -> Saturated:
    """The steady state of one engine (times `engines`) with more requests than it can serve."""
    prompt, output, _, _ = steps.lengths(books.engine)
    computed, pairs = prompt * (1 - setup.hit), prompt * (1 - setup.hit) * (prompt * setup.hit + prompt * (1 - setup.hit) / 2)
    decodes = max(output - 1, 1.0) / setup.tokens_per_step
    slots, blocks = setup.slots, setup.blocks
    if slots >= ENDLESS:
        slots = int(default_slots(books))
    # blocks of the pool count shared prefixes once for all who share them (twin.setup_of), so a request holds its whole prompt
    room = ENDLESS if blocks >= ENDLESS else blocks * setup.block_size / max(held_tokens(prompt, output), 1.0)
    batch = min(float(slots), room)
    bound = "slots" if slots <= room else "KV blocks"
    if computed * batch / decodes > setup.budget - batch:
        bound, batch = "token budget", setup.budget / (1 + computed / decodes)
    prompts = batch / decodes  # prompts that end in a step
    work = setup.b * computed * prompts + setup.q * pairs * prompts
    if computed > setup.graph:
        work = max(work, setup.launch_s * min(1.0, prompts))
    step = setup.a + setup.c * batch + work + setup.mixed_s * min(1.0, prompts)
    rate = batch / (decodes * step) if step > 0 else math.nan
    held = math.inf if blocks >= ENDLESS else blocks * setup.block_size / max(prompt + output, 1.0)
    return Saturated(engines * rate * output, engines * rate, step / setup.tokens_per_step, batch, engines * held, bound)


def default_slots(books: Books) -> float:
    """max_num_seqs: the argument, else vLLM's default for this GPU."""
    cap = cap_of(books.engine)[0]
    if math.isfinite(cap):
        return cap
    large = steps.number(books.engine.facts.get("memory_gib"), 0.0) >= LARGE_GPU_GIB
    return 1024.0 if large else 256.0


def setups(case: Case) -> list[Setup] | None:
    """The engines as they are; without a twin that holds from the books. None where an engine has no step model."""
    found = []
    for twin, books in zip(case.twins, case.accounts, strict=True):
        if twin is not None:
            found.append(twin.setup)
            continue
        load = load_of(books) if books.model.ok else None
        if load is None:
            return None
        found.append(setup_of(books, load))
    return found or None


def saturation(case: Case, change: Change | None = None) -> Saturated | None:
    """The whole deployment at saturation, as it is or changed; None where an engine has no step model."""
    now = setups(case)
    if now is None or case.split():
        return None
    each = [
        saturated(change.setup(setup, books) if change else setup, books, change.engines if change else 1)
        for setup, books in zip(now, case.accounts, strict=True)
    ]
    whole = sum(s.requests_per_s for s in each)
    return Saturated(
        sum(s.tokens_per_s for s in each), whole, sum(s.tpot_s * s.requests_per_s for s in each) / max(whole, 1e-9),
        sum(s.batch for s in each), sum(s.contexts for s in each), each[0].bound,
    )  # fmt: skip


def gains(case: Case, change: Change | None) -> dict[str, Gain]:
    """Throughput and capacity now and after a change; unknown where the change cannot be put into a setup."""
    now, then = saturation(case), saturation(case, change) if change else None

    def pair(name: str, a: float | None, b: float | None) -> Gain:
        held = a if a is not None and math.isfinite(a) else None
        return Gain(held, b if b is not None and math.isfinite(b) else None, UNITS[name])

    return {
        "throughput": pair("throughput", now.tokens_per_s if now else None, then.tokens_per_s if then else None),
        "capacity": pair("capacity", now.contexts if now else None, then.contexts if then else None),
    }


# -- the sheet of objectives ------------------------------------------------------------------------------------------------------
def objectives(case: Case) -> tuple[Objective, ...]:
    """TTFT, TPOT, throughput, capacity and isolation of this workload, each with what limits it and what it conflicts with."""
    found = [_latency(case, name) for name in ("ttft", "tpot")]
    return (*found, *_limits(case), _isolation(case))


def _latency(case: Case, name: str) -> Objective:
    target = case.attribution.targets.get(name)
    limit = target.limiting if target else None
    says = _ttft(case) if name == "ttft" else _tpot(case)
    return Objective(name, amount(case.measured(name)), limit, says)


def _ttft(case: Case) -> str:
    wait, own = case.mean(lambda b: b.stages[Stage.QUEUE]), case.mean(lambda b: b.stages[Stage.PREFILL])
    return f"{amount(wait)} of it wait before the engine takes the request, {amount(own)} compute the prompt"


def _tpot(case: Case) -> str:
    if not all(b.model.ok for b in case.accounts):
        return NO_STEPS
    tokens = max(case.mean(lambda b: b.output_tokens) - 1, 1.0)
    alone = case.mean(lambda b: b.decode["base"]) / tokens
    batch = case.mean(lambda b: b.decode["batch"]) / tokens
    prompts = case.mean(lambda b: b.decode["prompts"]) / tokens
    return f"{amount(alone)} a step alone, {amount(batch)} because of the batch, {amount(prompts)} because of prompts in the same steps"


def _limits(case: Case) -> tuple[Objective, Objective]:
    now, rate = saturation(case), case.work.rate_per_s
    if now is None:
        return Objective("throughput", "unknown", None, NO_STEPS), Objective("capacity", "unknown", None, NO_STEPS)
    load = f", {100 * rate / now.requests_per_s:.0f} % of it asked for now" if rate and now.requests_per_s > 0 else ""
    throughput = Objective(
        "throughput", f"{now.tokens_per_s:,.0f} tokens/s", now.bound,
        f"at saturation {now.requests_per_s:.2g} requests a second{load}; then {now.batch:.0f} run together and TPOT is {amount(now.tpot_s)}",
    )  # fmt: skip
    if not math.isfinite(now.contexts):
        return throughput, Objective(
            "capacity", "unknown", None, "the pool's size is not known (give the start-up lines of the log)"
        )
    most = case.work.in_flight_max
    asked = f"; at most {most:.0f} were in flight" if most is not None else ""
    return throughput, Objective(
        "capacity",
        f"{now.contexts:,.0f} contexts",
        "KV blocks",
        f"prompts and answers of the mean length of this workload, prefixes shared as now{asked}",
    )


def _isolation(case: Case) -> Objective:
    """What tenants, salts and processes share, and what a salt for each would cost."""
    engines = case.window.engines
    salts = max((e.kv.get("salts", 0.0) for e in engines), default=0.0)
    seen = any(e.kv.get("stored_blocks") for e in engines)
    hit, prompt = case.work.hit_ratio, case.work.prompt
    now = f"{salts:.0f} cache salts" if salts else "no salts" if seen else "unknown"
    said = (
        "requests share prefixes inside a salt only; "
        if salts
        else "every request may reuse every prefix; "
        if seen
        else "salts stand only in KV events; "
    )
    processes = f"{len(engines)} engines with a cache each; " if len(engines) > 1 else ""
    if not hit or prompt is None:
        cost = "nothing is shared now, so a salt for each tenant would cost nothing more"
    else:
        seconds = case.mean(lambda b: b.model.prompt_s(prompt.mean * hit) if b.model.ok else math.nan)
        cost = f"a salt for each request would cost the {100 * hit:.0f} % of prompt tokens that hit"
        cost += f", {amount(seconds)} of computing a request" if seconds > 0 else ""
    return Objective("isolation", now, None, f"{said}{processes}{cost}")


def conflicts(case: Case) -> tuple[str, ...]:
    """Pairs of objectives that pull in opposite directions here, with this window's numbers."""
    said: list[str] = []
    tokens = max(case.mean(lambda b: b.output_tokens) - 1, 1.0)
    grow = [growth_s(b) for b in case.accounts]
    held = case.seconds("slots", "ttft") + case.seconds("kv_eviction", "ttft")
    told = all(b.model.ok for b in case.accounts) and all(math.isfinite(g) for g in grow)
    if held > 0.1 * (case.measured("ttft") or math.inf) and grow and told:
        more = sum(grow) / len(grow) / tokens
        said.append(
            f"TTFT against TPOT: admitting at once what waits {amount(held)} makes a token take {amount(max(more, 0.0))} longer (more sequences a step)"
        )
    now = saturation(case)
    tpot = case.measured("tpot")
    if now is not None and tpot and now.tpot_s > 1.1 * tpot:
        said.append(
            f"throughput against TPOT: at saturation ({now.tokens_per_s:,.0f} tokens/s) a token takes {amount(now.tpot_s)}, now {amount(tpot)}"
        )
    prompts = case.mean(lambda b: b.decode.get("prompts", 0.0))
    if prompts > 0.1 * case.mean(lambda b: b.stages[Stage.DECODE]):
        said.append(
            f"TTFT against TPOT: prompts share steps with decodes and take {amount(prompts / tokens)} of each token; keeping them apart lengthens TTFT"
        )
    hit = case.work.hit_ratio or 0.0
    if hit > 0.05 and len(case.window.engines) > 1:
        said.append(
            "capacity against TTFT: every engine holds prefixes of its own; more engines hold more contexts and find fewer hits"
        )
    if hit > 0.05:
        said.append(
            f"isolation against TTFT: {100 * hit:.0f} % of prompt tokens are shared; a cache salt for each tenant takes from them"
        )
    return tuple(said)
