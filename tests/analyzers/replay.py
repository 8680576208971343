"""An engine replayed one step at a time, written for reading: the rules that analyzers.twin must keep, and a source of engines with a known fault.

`replay` keeps what every step did and where every request was, so that `observed` can say what scrapes, log and spans show.
"""

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from analyzers.model import Array, Engine
from analyzers.twin import Load, Setup

from .engines import ITL_EDGES, LENGTH_EDGES, NOON, STEP_EDGES, counted, facts_of, interval_of, total_of

ENGINE: Final = Setup(a=0.010, b=20e-6, c=50e-6)  # a step of 10 ms, 20 µs a prompt token, 50 µs a sequence


def load_of(*requests: tuple[float, int, int]) -> Load:
    """Requests by hand: (arrival, prompt tokens, output tokens)."""
    rows = np.array(requests, float).reshape(-1, 3)
    return Load(rows[:, 0], rows[:, 1], rows[:, 2], "by hand")


def poisson(
    seconds: float,
    rate: float,
    prompt: float,
    output: float,
    *,
    cv: float = 0.3,
    seed: int = 1,
    long: float = 0.0,
    long_tokens: int = 6000,
) -> Load:
    """Poisson arrivals with log-normal lengths; a share `long` of them has prompts of `long_tokens`."""
    rng = np.random.default_rng(seed)
    n = round(seconds * rate)
    s2 = math.log(1 + cv * cv)
    lengths = [mean * rng.lognormal(-s2 / 2, math.sqrt(s2), n) for mean in (prompt, output)]
    arrival = np.sort(rng.random(n)) * seconds
    chosen = rng.random(n) < long
    return Load(
        arrival,
        np.where(chosen, long_tokens, np.maximum(8, lengths[0])).astype(int),
        np.maximum(2, lengths[1]).astype(int),
        "drawn",
    )


@dataclass
class Request:
    """A request on its way: `cached` tokens are in the KV cache, `left` are to be computed before the next token."""

    number: int
    arrival: float
    prompt: int
    output: int
    emitted: float = 0.0
    cached: int = 0
    left: int = 0
    blocks: int = 0
    computed: int = 0  # prompt tokens computed for the first token
    queued: float = math.nan
    scheduled: float = math.nan
    tokens: list[float] = field(default_factory=list)  # when each output came


@dataclass(frozen=True)
class Step:
    """One engine step: `prompts` requests computed prompt tokens in it; gauges are of its beginning."""

    start: float
    end: float
    tokens: int
    prompts: int
    decoding: int
    running: int
    waiting: int
    blocks: int
    preempted: int


@dataclass(frozen=True)
class Replay:
    """All that happened. `blocks_left` is what finished requests still hold: 0 if nothing leaks."""

    requests: tuple[Request, ...]
    steps: tuple[Step, ...]
    setup: Setup
    blocks_left: int

    def stage(self, name: str) -> Array:
        """Seconds of a stage by request; queue counts from arrival, as the twin's does."""
        ends = {"queue": ("arrival", "scheduled"), "prefill": ("scheduled", "first"), "decode": ("first", "last")}[name]
        at = {
            "arrival": lambda r: r.arrival,
            "scheduled": lambda r: r.scheduled,
            "first": lambda r: r.tokens[0],
            "last": lambda r: r.tokens[-1],
        }
        return np.array([at[ends[1]](r) - at[ends[0]](r) for r in self.requests])

    @property
    def preemptions(self) -> int:
        return sum(s.preempted for s in self.steps)


def replay(load: Load, setup: Setup) -> Replay:
    """Run a load step by step: running requests first, then the line, first come, first served."""
    s, size = setup, setup.block_size
    rows = [
        Request(i, float(t), int(p), int(o))
        for i, (t, p, o) in enumerate(zip(load.arrival, load.prompt, load.output, strict=True))
    ]
    coming, waiting, running, done = list(rows), [], [], []
    stalls, steps, now = sorted(s.stalls), [], 0.0
    while len(done) < len(rows):
        while coming and coming[0].arrival <= now:
            coming[0].queued = now
            waiting.append(coming.pop(0))
        if not waiting and not running:
            now = coming[0].arrival
            continue
        used = sum(r.blocks for r in running)
        preempted = 0
        # decodes first: each needs a block where its next token begins one; the newest gives way
        while len(running) > 1 and sum(r.cached % size == 0 for r in running if not r.left) > s.blocks - used:
            last = running.pop()
            used -= last.blocks
            last.blocks = last.cached = last.left = 0
            waiting.insert(0, last)
            preempted += 1
        decodes = [r for r in running if not r.left]
        for r in decodes:
            r.blocks += r.cached % size == 0
            used += r.cached % size == 0
        budget = s.budget - len(decodes)
        computing: list[tuple[Request, int]] = []
        for r in running:  # prompts that were begun
            if r.left and budget > 0:
                computing.append((r, min(r.left, budget, s.long_threshold)))
                budget -= computing[-1][1]
        while not preempted and waiting and len(running) < s.slots and budget > 0:
            r = waiting[0]
            total = r.prompt + int(r.emitted)
            need = math.ceil(total / size)
            if need + s.watermark > s.blocks - used and running:
                break
            running.append(waiting.pop(0))
            used += need
            r.blocks = need
            r.scheduled = now if math.isnan(r.scheduled) else r.scheduled
            r.cached = min(int(s.hit * total), total - 1)
            r.left = total - r.cached
            r.computed = r.computed or r.left
            computing.append((r, min(r.left, budget, s.long_threshold)))
            budget -= computing[-1][1]
        tokens = sum(chunk for _, chunk in computing)
        work = s.b * tokens + s.q * sum(chunk * (r.cached + chunk / 2) for r, chunk in computing)
        if tokens and tokens + len(decodes) > s.graph:
            work = max(work, s.launch_s)
        end = now + s.a + s.c * (min(len(decodes), 1) if s.alone else len(decodes)) + work + (s.mixed_s if tokens else 0.0)
        while stalls and stalls[0][0] <= end:
            end += stalls.pop(0)[1]
        steps.append(Step(now, end, tokens, len(computing), len(decodes), len(running), len(waiting), used, preempted))
        now = end
        for r in decodes:
            r.cached += 1
            r.emitted += s.tokens_per_step
        for r, chunk in computing:
            r.cached += chunk
            r.left -= chunk
            r.emitted += not r.left
        for r in [*decodes, *(r for r, _ in computing if not r.left)]:
            r.tokens.append(now)
            if r.emitted >= r.output:
                running.remove(r)
                done.append(r)
    return Replay(tuple(rows), tuple(steps), s, sum(r.blocks for r in running))


# -- what it shows ---------------------------------------------------------------------------------------------------------
def observed(
    run: Replay,
    *,
    frontend_s: float = 0.004,
    output_s: float = 0.001,
    every_s: float = 1.0,
    log: bool = False,
    spans: bool = False,
    facts: Mapping[str, Any] | None = None,
) -> Engine:
    """The engine as its operator sees it: scrapes, and with `log` iteration lines, with `spans` request records.

    The API server stamps an arrival `frontend_s` before the engine has it, and gives a token `output_s` after it came. QUEUED
    is stamped between steps: what a request waits for the step in flight reads as front end.
    """
    rows, steps, s = run.requests, run.steps, run.setup
    n = math.ceil(steps[-1].end / every_s) + 1
    arrival, queued, scheduled, first, last = (
        np.array(x) for x in zip(*((r.arrival, r.queued, r.scheduled, r.tokens[0], r.tokens[-1]) for r in rows), strict=True)
    )
    prompt, output, computed = (np.array([getattr(r, name) for r in rows], float) for name in ("prompt", "output", "computed"))
    stages = {
        "ttft_s": frontend_s + first - arrival, "queue_s": scheduled - queued, "prefill_s": first - scheduled, "decode_s": last - first,
        "e2e_s": frontend_s + last - arrival + output_s,
    }  # fmt: skip
    gaps = [(t[1:], np.diff(t)) for t in (np.array(r.tokens) for r in rows) if len(t) > 1]
    after, gap = (np.concatenate([g[i] for g in gaps]) for i in (0, 1))
    ends, tokens, decoding = (np.array([getattr(x, name) for x in steps]) for name in ("end", "tokens", "decoding"))

    def summed(times: Array, values: Array | float = 1.0) -> Array:
        at = np.minimum((times / every_s).astype(int), n - 1)
        return np.bincount(at, weights=np.broadcast_to(np.asarray(values, float), times.shape), minlength=n).astype(float)

    def gauge(values: list[float]) -> Array:
        """The value of the step in flight at each scrape; idle in between is 0."""
        times = every_s * (1 + np.arange(n))
        index = np.searchsorted([x.start for x in steps], times, side="right") - 1
        return np.where(times < ends[index], np.array(values)[index], 0.0)

    row = interval_of(
        n, every_s, running=gauge([x.running for x in steps]), waiting=gauge([x.waiting for x in steps]), deferred=0.0,
        kv_usage_ratio=gauge([x.blocks / s.blocks for x in steps]),
        **{name: summed(first if name == "ttft_s" else last, values) for name, values in stages.items()},
        **{f"{name}_n": summed(first if name == "ttft" else last) for name in ("ttft", "queue", "prefill", "decode", "e2e")},
        itl_s=summed(after, gap), itl_n=summed(after), prompt_tokens=summed(first, prompt), generation_tokens=summed(np.concatenate([r.tokens for r in rows])),
        computed_tokens=summed(first, computed), local_hit_tokens=summed(first, prompt - computed), external_hit_tokens=0.0,
        prefix_query_tokens=summed(first, prompt), prefix_hit_tokens=summed(first, prompt - computed),
        preemptions=summed(ends, np.array([x.preempted for x in steps])), step_n=summed(ends), step_tokens=summed(ends, tokens + decoding),
        request_prompt_tokens=summed(last, prompt), request_prompt_n=summed(last), request_output_tokens=summed(last, output), aborted_n=0.0,
    )  # fmt: skip
    said = facts_of({
        "max_num_seqs": s.slots if s.slots < 10**9 else 4096, "max_num_batched_tokens": s.budget, "kv_blocks": float(s.blocks), "block_size": s.block_size,
        "written_tokens": float(computed.sum() + sum(len(r.tokens) for r in rows)), "graph_size": s.graph if math.isfinite(s.graph) else None, **(facts or {}),
    })  # fmt: skip
    spans_of = {
        "arrival_ts": NOON + arrival - frontend_s, "first_token_ts": NOON + first, "end_ts": NOON + last + output_s, "prompt_tokens": prompt,
        "output_tokens": output, "cached_tokens": prompt - computed, **stages, "has_span": np.ones(len(rows), bool),
    }  # fmt: skip
    lines = {
        "ts": NOON + np.round(ends, 3), "fine": np.ones(len(steps), bool), "line": np.arange(len(steps)), "iteration": np.arange(len(steps)),
        "context_requests": np.array([x.prompts for x in steps], float), "context_tokens": tokens.astype(float),
        "generation_requests": decoding.astype(float), "generation_tokens": decoding.astype(float),
        "elapsed_s": ends - np.array([x.start for x in steps]), "kv_usage_ratio": np.array([x.blocks / s.blocks for x in steps]), "dummy": np.zeros(len(steps), bool),
    }  # fmt: skip
    return Engine(
        instance="10.0.0.1:8000", engine="0", model="m", version="0.33.0", interval=row, total=total_of(row), facts=said,
        step=lines if log else {}, request=spans_of if spans else {},
        bucket={
            "vllm:inter_token_latency_seconds": counted(ITL_EDGES, gap), "vllm:request_prompt_tokens": counted(LENGTH_EDGES, prompt),
            "vllm:request_generation_tokens": counted(LENGTH_EDGES, output), "vllm:iteration_tokens_total": counted(STEP_EDGES, tokens + decoding),
        },
    )  # fmt: skip


def same(a: Array, b: Array) -> bool:
    """Seconds that are equal to a nanosecond."""
    return bool(np.allclose(a, b, rtol=0, atol=1e-9))


def pairs(values: tuple[float, ...]) -> list[tuple[float, float]]:
    """Neighbours: (smaller fault, larger fault)."""
    return list(itertools.pairwise(values))
