"""The twin: a replay of one engine's V1 scheduler with the fitted step costs, to answer what-ifs and joint fixes.

Rules (vLLM 0.33, v1/core/sched/scheduler.py): running requests first; a decode that finds no block preempts the newest running
request, which is computed again; no admission in a step with a preemption; then first come, first served: the head of the
line waits until the token budget, a sequence slot and blocks for its whole prompt are there. Prompts are chunked.
Deterministic: lengths that were not observed are drawn with a seed.
"""

import bisect
import heapq
import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from analyzers import steps
from analyzers.books import Books, cap_of, logged_stalls
from analyzers.hits import FOUND_NOTHING
from analyzers.model import Array, Stage
from analyzers.steps import StepModel

GATE: Final = (0.8, 1.25)  # twin / measured outside of which the books speak alone
MAX_STEPS: Final = 3_000_000
ENDLESS: Final = 10**9


@dataclass(frozen=True, slots=True)
class Load:
    """The requests: arrival seconds (sorted), prompt tokens, output tokens (>= 1), and how they are known.

    `gap_s` and `client` are set for closed loops: a client sends its next request `gap_s` after its last one ended.
    """

    arrival: Array
    prompt: Array
    output: Array
    how: str
    start: float = math.nan  # the instant of arrival 0; NaN: unknown
    client: Array | None = None
    gap_s: Array | None = None
    hit: Array | None = None  # share of its prompt that each request found in the cache; None: all found as much
    delay: Array | None = None  # seconds in the API server beyond the nominal ones, before the engine sees the request
    seen: Mapping[str, Array] | None = (
        None  # measured queue (with the mean wait for the step in flight), prefill, decode, where known
    )

    def only(self, keep: Array) -> "Load":
        """The chosen requests (a mask, or their numbers), without what was measured of them."""

        def some(values: Array | None) -> Array | None:
            return None if values is None else values[keep]

        return replace(
            self,
            arrival=self.arrival[keep],
            prompt=self.prompt[keep],
            output=self.output[keep],
            client=some(self.client),
            gap_s=some(self.gap_s),
            hit=some(self.hit),
            delay=some(self.delay),
            seen=None,
        )


@dataclass(frozen=True, slots=True)
class Setup:
    """One engine: step costs in seconds, limits, prefix hit ratio, stalls as (time, seconds)."""

    a: float
    b: float
    c: float
    q: float = 0.0
    launch_s: float = 0.0
    mixed_s: float = 0.0
    graph: float = math.inf
    budget: int = 8192
    slots: int = ENDLESS
    blocks: int = ENDLESS
    block_size: int = 16
    watermark: int = 0
    long_threshold: int = ENDLESS  # prompt tokens of one request a step, at most
    hit: float = 0.0
    hit_now: float = 0.0  # as measured; `hit` may be better
    hit_shared: float = 0.0
    hit_endless: float = 0.0
    tokens_per_step: float = 1.0  # with speculative decoding: accepted length
    instant: bool = False  # the API server hands requests over without delay
    pool: bool = False  # prompts of others computed on an ideal separate pool
    alone: bool = False  # a decode step costs what one sequence costs
    stalls: tuple[tuple[float, float], ...] = ()
    graphs: tuple[float, ...] = ()  # sizes that decode batches are padded to

    def places(self, decoding: int) -> float:
        """Places of the decode batch that a step pays for."""
        if self.alone or not decoding:
            return min(decoding, 1)
        at = bisect.bisect_left(self.graphs, decoding)
        return self.graphs[at] if at < len(self.graphs) else decoding

    def scaled(self, factor: float) -> "Setup":
        """All step costs times a factor."""
        return replace(
            self,
            a=self.a * factor,
            b=self.b * factor,
            c=self.c * factor,
            q=self.q * factor,
            launch_s=self.launch_s * factor,
            mixed_s=self.mixed_s * factor,
        )


@dataclass(frozen=True, slots=True)
class Result:
    """Seconds per request of the load, and how many preemptions there were."""

    queue: Array
    prefill: Array
    decode: Array
    preemptions: int
    delay: float = 0.0  # mean seconds before the engine

    def mean(self, name: str, output: Array | None = None) -> float:
        """Mean seconds of a stage, of "ttft" (queue + prefill), "e2e", or "tpot" (needs the output tokens)."""
        if name == "tpot":
            assert output is not None
            return float(self.decode.sum() / max(1.0, float((output - 1).sum())))
        if name == "ttft":
            return float((self.queue + self.prefill).mean())
        if name == "e2e":
            return float((self.queue + self.prefill + self.decode).mean())
        return float(getattr(self, name).mean())


class _Run:
    """State of one replay. Kept apart from `simulate` so that each rule is one short method."""

    def __init__(self, load: Load, setup: Setup) -> None:
        self.s = setup
        n = len(load.arrival)
        self.n = n
        self.prompt, self.output = load.prompt.astype(int).tolist(), np.maximum(load.output, 1).astype(int).tolist()
        reached = load.arrival if load.delay is None or setup.instant else load.arrival + load.delay
        self.arrival = reached.tolist()
        self.delay = float((reached - load.arrival).mean()) if n else 0.0
        self.load = load
        self.hit = _hits_by_request(load, setup)
        self.waiting: deque[int] = deque()
        self.running: list[int] = []
        self.prefilling: deque[int] = deque()
        self.emitted, self.context, self.left = [0] * n, [0] * n, [0] * n
        self.held, self.version = [0] * n, [0] * n
        self.start_step = [0] * n
        self.decoding = [False] * n
        self.residue = [0] * setup.block_size
        self.finish: dict[int, list[tuple[int, int]]] = {}
        self.pool: list[tuple[float, int, int]] = []
        self.scheduled, self.first, self.last = [math.nan] * n, [math.nan] * n, [math.nan] * n
        self.D = self.used = self.done = self.step = self.preemptions = 0
        self.now = 0.0
        self.next_arrival: list[tuple[float, int]] = []
        self._queue_arrivals(load)
        self.stalls = deque(sorted(setup.stalls))

    def _queue_arrivals(self, load: Load) -> None:
        if load.client is None or load.gap_s is None:
            self.next_arrival = sorted((t, i) for i, t in enumerate(self.arrival))
            self.follow: dict[int, int] = {}
            return
        last: dict[int, int] = {}
        self.follow = {}
        for i, client in enumerate(load.client.astype(int).tolist()):
            if client in last:
                self.follow[last[client]] = i
            else:
                self.next_arrival.append((self.arrival[i], i))
            last[client] = i
        heapq.heapify(self.next_arrival)

    # -- rules ---------------------------------------------------------------------------------------------------------
    def arrive(self) -> None:
        while self.next_arrival and self.next_arrival[0][0] <= self.now:
            when, i = heapq.heappop(self.next_arrival)
            self.arrival[i] = when
            self.waiting.append(i)

    def length(self, i: int) -> int:
        """Tokens in the KV cache of a decoding request at this step."""
        return self.context[i] + self.step - self.start_step[i]

    def grow(self) -> bool:
        """Give each decoding sequence the block it needs now; True where somebody was preempted for it."""
        size, preempted = self.s.block_size, False
        while self.s.blocks - self.used < self.residue[self.step % size] and len(self.running) > 1:
            self.preempt(self.running.pop())
            preempted = True
        self.used += self.residue[self.step % size]
        return preempted

    def preempt(self, i: int) -> None:
        self.preemptions += 1
        if self.decoding[i]:
            length = self.length(i)
            self.emitted[i] += int((self.step - self.start_step[i]) * self.s.tokens_per_step)
            self.D -= 1
            self.residue[(self.start_step[i] - self.context[i]) % self.s.block_size] -= 1
            self.used -= -(-length // self.s.block_size) - self.held[i]
            self.decoding[i] = False
        elif i in self.prefilling:
            self.prefilling.remove(i)
        self.release(i)
        self.version[i] += 1
        self.waiting.appendleft(i)

    def release(self, i: int) -> None:
        self.used -= self.held[i]
        self.held[i] = 0

    def admit(self, budget: int) -> tuple[int, int, float, int]:
        """Admit from the head of the line: prompt tokens, mixed?, pairs and budget left."""
        tokens, pairs, s = 0, 0.0, self.s
        while self.waiting and len(self.running) < s.slots and (budget > 0 or s.pool):
            i = self.waiting[0]
            total = self.prompt[i] + self.emitted[i]
            need = -(-total // s.block_size)
            if need + s.watermark > s.blocks - self.used and self.running:
                break
            self.waiting.popleft()
            self.used += need
            self.held[i] = need
            self.running.append(i)
            if math.isnan(self.scheduled[i]):
                self.scheduled[i] = self.now
            cached = min(int((self.hit[i] if self.emitted[i] == 0 else s.hit) * total), total - 1)
            self.context[i], self.left[i] = cached, total - cached
            if s.pool:
                self.to_pool(i)
                continue
            chunk = min(self.left[i], budget, s.long_threshold)
            tokens, pairs, budget = self.take(i, chunk, tokens, pairs, budget)
            if self.left[i]:
                self.prefilling.append(i)
            else:
                self.ready.append(i)
        return tokens, int(tokens > 0), pairs, budget

    def to_pool(self, i: int) -> None:
        s, computed, cached = self.s, self.left[i], self.context[i]
        work = s.b * computed + s.q * computed * (cached + computed / 2)
        seconds = s.a + s.mixed_s + (max(work, s.launch_s) if computed > s.graph else work)
        self.context[i] += computed
        self.left[i] = 0
        heapq.heappush(self.pool, (self.now + seconds, i, self.version[i]))

    def take(self, i: int, chunk: int, tokens: int, pairs: float, budget: int) -> tuple[int, float, int]:
        pairs += chunk * (self.context[i] + chunk / 2)
        self.context[i] += chunk
        self.left[i] -= chunk
        return tokens + chunk, pairs, budget - chunk

    def begin_decode(self, i: int, when: float) -> None:
        """A prompt is done: its token comes out at `when`."""
        self.emitted[i] += 1
        if math.isnan(self.first[i]):
            self.first[i] = when
        rest = math.ceil((self.output[i] - self.emitted[i]) / self.s.tokens_per_step)
        if rest <= 0:
            self.running.remove(i)
            self.end(i, when)
            return
        self.context[i] = self.prompt[i] + self.emitted[i] - 1
        self.held[i] = -(-self.context[i] // self.s.block_size)
        self.start_step[i] = self.step
        self.decoding[i] = True
        self.D += 1
        self.residue[(self.step - self.context[i]) % self.s.block_size] += 1
        self.finish.setdefault(self.step + rest - 1, []).append((i, self.version[i]))

    def end(self, i: int, when: float) -> None:
        self.release(i)
        self.last[i] = when
        self.done += 1
        if i in self.follow:
            following = self.follow[i]
            gap = float(self.load.gap_s[following]) if self.load.gap_s is not None else 0.0
            heapq.heappush(self.next_arrival, (when + gap, following))

    def finish_decodes(self, when: float) -> None:
        for i, version in self.finish.pop(self.step, ()):
            if self.version[i] == version and self.decoding[i]:
                length = self.length(i) + 1
                self.decoding[i] = False
                self.D -= 1
                self.residue[(self.start_step[i] - self.context[i]) % self.s.block_size] -= 1
                self.used -= -(-length // self.s.block_size) - self.held[i]  # the step before opened its last block
                self.emitted[i] = self.output[i]
                self.running.remove(i)
                self.end(i, when)

    # -- the loop ------------------------------------------------------------------------------------------------------
    def run(self) -> Result:
        s = self.s
        while self.done < self.n and self.step < MAX_STEPS:
            self.arrive()
            while self.pool and self.pool[0][0] <= self.now:
                when, i, version = heapq.heappop(self.pool)
                if self.version[i] == version:
                    self.begin_decode(i, when)
            if not self.waiting and self.D == 0 and not self.prefilling:
                self.idle()
                continue
            self.ready: list[int] = []
            preempted = self.grow()
            budget, tokens, pairs = s.budget - self.D, 0, 0.0
            for i in list(self.prefilling):
                if budget <= 0:
                    break
                tokens, pairs, budget = self.take(i, min(self.left[i], budget, s.long_threshold), tokens, pairs, budget)
                if not self.left[i]:
                    self.prefilling.remove(i)
                    self.ready.append(i)
            if not preempted:
                more, _, further, budget = self.admit(budget)
                tokens, pairs = tokens + more, pairs + further
            self.advance(tokens, pairs)
        return self.result()

    def idle(self) -> None:
        """Nothing to compute: to the next arrival or prompt from the pool."""
        times = [self.next_arrival[0][0]] if self.next_arrival else []
        times += [self.pool[0][0]] if self.pool else []
        if not times:
            self.done = self.n  # nothing can come any more
            return
        self.now = max(self.now, min(times))

    def advance(self, tokens: int, pairs: float) -> None:
        """One step, or many equal ones where nothing can happen between them."""
        s = self.s
        work = s.b * tokens + s.q * pairs
        if tokens and tokens + self.D > s.graph:
            work = max(work, s.launch_s)
        seconds = s.a + s.c * s.places(self.D) + work + (s.mixed_s if tokens else 0.0)
        stalled = False
        while self.stalls and self.stalls[0][0] <= self.now + seconds:
            seconds += self.stalls.popleft()[1]
            stalled = True
        many = 1 if stalled or tokens or self.waiting or self.ready else self.quiet(seconds)
        if many > 1:
            size = s.block_size
            rounds, rest = divmod(many - 1, size)
            self.used += rounds * sum(self.residue) + sum(self.residue[(self.step + 1 + k) % size] for k in range(rest))
            self.step += many - 1
            self.now += seconds * (many - 1)
        self.now += seconds
        self.finish_decodes(self.now)
        self.step += 1
        for i in self.ready:
            self.begin_decode(i, self.now)

    def quiet(self, seconds: float) -> int:
        """Steps until something happens: a finish, an arrival, a prompt from the pool, a stall, or blocks running short."""
        last = min(self.finish) - self.step + 1 if self.finish else 1
        times = [self.next_arrival[0][0]] if self.next_arrival else []
        times += [self.pool[0][0]] if self.pool else []
        if times:
            last = min(last, max(1, math.ceil((min(times) - self.now) / max(seconds, 1e-9))))
        if self.stalls:  # the step that it stretches is not skipped
            last = min(last, max(1, math.ceil((self.stalls[0][0] - self.now) / max(seconds, 1e-9)) - 1))
        spare = self.s.blocks - self.used
        if self.D and spare < ENDLESS // 2:
            last = min(last, max(1, (spare // self.D - 1) * self.s.block_size))
        return max(1, last)

    def result(self) -> Result:
        arrival, scheduled, first, last = (
            np.array(x, dtype=float) for x in (self.arrival, self.scheduled, self.first, self.last)
        )
        ok = np.isfinite(last)
        zero = np.zeros(self.n)
        return Result(
            np.where(ok, scheduled - arrival, zero),
            np.where(ok, first - scheduled, zero),
            np.where(ok, last - first, zero),
            self.preemptions,
            self.delay,
        )


def _hits_by_request(load: Load, setup: Setup) -> list[float]:
    """Share of its prompt that each request finds: what it found, and what hits better than `hit_now` add.

    A prefix is there or not: better hits turn requests that found nothing into such that find what the others do, the last ones
    first (the first ones met an empty cache). What is then left is found by all.
    """
    if load.hit is None:
        return [setup.hit] * len(load.arrival)
    shares, prompt = load.hit.copy(), load.prompt.astype(float)
    some = shares > 0
    found = float(np.average(shares[some], weights=prompt[some])) if some.any() else 0.0
    more = (setup.hit - setup.hit_now) * float(prompt.sum())
    for i in np.flatnonzero(~some)[::-1].tolist() if found else ():
        if more < found * prompt[i] / 2:
            break
        shares[i] = found
        more -= found * prompt[i]
    if more < 0:
        shares = shares * (setup.hit / setup.hit_now)
    elif more > 0:
        shares = np.minimum(shares + more / max(float(prompt.sum()), 1.0), np.maximum(shares, 0.99))
    return [float(x) for x in shares]


def simulate(load: Load, setup: Setup) -> Result:
    """Replay a load on an engine. Linear in requests and in steps that something happens in."""
    return _Run(load, setup).run()


# -- from books ------------------------------------------------------------------------------------------------------------
def load_of(books: Books, seed: int = 0) -> Load | None:
    """The load of a window: real requests where there are request records, else arrivals per interval with drawn lengths."""
    req = books.engine.request
    n = books.engine.total.get("e2e_n", 0.0)
    if len(req.get("arrival_ts", ())):
        ok = np.isfinite(req["arrival_ts"]) & np.isfinite(req["prompt_tokens"]) & np.isfinite(req["output_tokens"])
        if ok.sum() >= 0.9 * n:
            order = np.argsort(req["arrival_ts"][ok], kind="stable")
            take = {name: req[name][ok][order] for name in ("arrival_ts", "prompt_tokens", "output_tokens")}
            seen = {name: req[f"{name}_s"][ok][order] for name in ("queue", "prefill", "decode")}
            seen["queue"] = seen["queue"] + books.in_flight_s + books.stalled_s
            cached = req["cached_tokens"][ok][order]
            hit = np.clip(cached / np.maximum(take["prompt_tokens"], 1), 0.0, 1.0)
            before = (req["ttft_s"] - req["queue_s"] - req["prefill_s"])[ok][order] - _ordinary_s(books)
            slow = _slow_s(books) > 0 and bool(np.isfinite(before).all())
            return Load(
                take["arrival_ts"] - take["arrival_ts"][0],
                np.maximum(take["prompt_tokens"], 1),
                np.maximum(take["output_tokens"], 1),
                "request records",
                start=float(take["arrival_ts"][0]),
                hit=np.where(hit < FOUND_NOTHING, 0.0, hit) if np.isfinite(cached).all() else None,
                delay=np.maximum(before, 0.0) if slow else None,
                seen=seen if all(np.isfinite(x).all() for x in seen.values()) else None,
            )
    return _drawn(books, np.random.default_rng(seed))


def _drawn(books: Books, rng: np.random.Generator) -> Load | None:
    row = books.engine.interval
    prompt, output, cv, cv_out = steps.lengths(books.engine)
    if not len(row.get("ts", ())) or not math.isfinite(prompt) or not math.isfinite(output):
        return None
    inside = np.nan_to_num(row["running"] + row["waiting"])
    before = np.nan_to_num(row["running_before"] + row["waiting_before"])
    came = np.nan_to_num(row["e2e_n"]) + inside - before
    times: list[float] = []
    carry = 0.0
    for end, dt, count in zip(row["ts"], row["dt_s"], came, strict=True):
        carry += float(count)
        k = max(0, round(carry))
        carry -= k
        times += (end - dt + dt * rng.random(k)).tolist()
    if not times:
        return None
    times.sort()
    m = len(times)
    first, tokens = np.nan_to_num(row["ttft_n"]), np.nan_to_num(row["prompt_tokens"])
    # the j-th arrival has the mean prompt of the interval in which the j-th first token came: bursts of long prompts stay bursts
    cumulative = np.concatenate([[0.0], np.cumsum(first)])
    where = np.clip(np.searchsorted(cumulative, np.arange(m) + 0.5) - 1, 0, len(first) - 1)
    local = tokens[where] / np.maximum(first[where], 1.0)
    local = np.where(local > 0, local, prompt)
    between = float(local.std() / max(local.mean(), 1.0))
    p = local * _log_normal(rng, m, math.sqrt(max(0.0025, cv**2 - between**2)))
    o = output * _log_normal(rng, m, max(cv_out, 0.02))
    arrival = np.array(times)
    delay = _delay_by_interval(books, arrival)
    if delay is not None:
        order = np.argsort(arrival - delay, kind="stable")
        arrival, delay, p, o = (arrival - delay)[order], delay[order], p[order], o[order]
    return Load(
        arrival - arrival[0],
        np.maximum(2, p * prompt / p.mean()).astype(int),
        np.maximum(1, np.rint(o)).astype(int),
        "arrivals per interval, drawn lengths",
        start=float(arrival[0]) if bool(np.all(row["timed"].astype(bool))) else math.nan,
        delay=delay,
    )


def _ordinary_s(books: Books) -> float:
    """Mean seconds before the engine that no slow API server causes."""
    return books.dwell_s + books.stalled_s + books.frontend_nominal_s


def _slow_s(books: Books) -> float:
    """Mean seconds in a slow API server, neither nominal nor the wait for the step in flight; 0 where that wait may be all of it."""
    beyond = books.stages[Stage.FRONTEND] - _ordinary_s(books)
    return beyond if beyond > books.frontend_nominal_s + 2 * books.in_flight_s else 0.0


def _delay_by_interval(books: Books, reached: Array) -> Array | None:
    """Seconds in the API server of requests that reach the engine at these times; None where they are nominal.

    The gauges count a request from when the engine has it. Each interval's TTFT beyond the engine's mean says how long it had
    been on its way, scaled to the mean.
    """
    row, beyond = books.engine.interval, _slow_s(books)
    if not beyond:
        return None
    n, s = np.nan_to_num(row["ttft_n"]), np.nan_to_num(row["ttft_s"])
    some, inside = n >= 1, books.stages[Stage.QUEUE] + books.stages[Stage.PREFILL]
    delay = np.interp(reached, row["ts"][some] - inside, np.maximum(s[some] / n[some] - inside, 0.0))
    return np.asarray(delay * beyond / delay.mean()) if delay.mean() > 0 else None


def _log_normal(rng: np.random.Generator, m: int, cv: float) -> Array:
    s2 = math.log(1 + cv * cv)
    x = rng.lognormal(-s2 / 2, math.sqrt(s2), m)
    return np.asarray(x / x.mean())


def setup_of(books: Books, load: Load) -> Setup:
    """The engine as it was: fitted costs, arguments, hit ratios, observed stalls."""
    m: StepModel = books.model
    facts = books.engine.facts
    cap, _ = cap_of(books.engine)
    size = int(steps.number(facts.get("block_size"), 16.0))
    blocks = steps.number(facts.get("kv_blocks"))
    hits = books.hits
    now = hits.now if math.isfinite(hits.now) else 0.0
    span = float(load.arrival[-1]) if len(load.arrival) else 0.0
    count, length = books.stalls
    logged = logged_stalls(books.engine, books.model) or []
    start = load.start
    stalls = (
        tuple((one.end_ts - one.seconds - start, one.seconds) for one in logged if one.end_ts - one.seconds > start)
        if logged and math.isfinite(start)
        else tuple((span * (k + 0.5) / max(1, round(count)), length) for k in range(round(count)))
    )
    return Setup(
        a=m.a,
        b=m.b,
        c=m.c,
        q=m.q,
        launch_s=m.launch_s,
        mixed_s=m.mixed_s,
        graph=m.graph,
        budget=int(m.budget),
        slots=int(cap) if math.isfinite(cap) else ENDLESS,
        blocks=_pool_blocks(books, load, blocks, size, now) if math.isfinite(blocks) else ENDLESS,
        block_size=size,
        hit=now,
        hit_now=now,
        hit_shared=max(now, hits.shared if math.isfinite(hits.shared) else now),
        hit_endless=max(now, hits.endless if math.isfinite(hits.endless) else now),
        stalls=stalls,
        graphs=tuple(sorted(m.graphs)),
        tokens_per_step=1 + books.engine.total.get("accepted_tokens", 0.0) / books.engine.total["draft_n"]
        if books.engine.total.get("draft_n")
        else 1.0,
    )


def _pool_blocks(books: Books, load: Load, blocks: float, size: int, now: float) -> int:
    """Blocks of the pool; more of them where shared prefixes let several requests use the same ones."""
    row = books.engine.interval
    running, usage = np.nan_to_num(row["running"]), np.nan_to_num(row["kv_usage_ratio"])
    held = float((usage * row["dt_s"]).sum() * blocks / max(float((running * row["dt_s"]).sum()), 1e-9))
    alone = float((load.prompt + load.output / 2).mean()) / size
    if held > 0 and now > 0.02:
        blocks *= min(max(alone / held, 1.0), 8.0)
    return int(max(blocks, (load.prompt + load.output).max() / size + 4))


@dataclass(frozen=True, slots=True)
class Twin:
    """A calibrated replay of one engine, ready for what-ifs. `gate` is twin / measured of TTFT's engine part and of decode."""

    load: Load
    setup: Setup
    base: Result
    gate: Mapping[str, float]
    measured: Mapping[str, float]
    calibration: float

    @property
    def holds(self) -> bool:
        """True where the replay meets what was measured."""
        return all(GATE[0] <= value <= GATE[1] for value in self.gate.values() if math.isfinite(value))

    def meets(self, target: str) -> bool:
        """True where the replay meets what was measured of one target."""
        names = {"ttft": ("queue", "prefill"), "tpot": ("decode",), "e2e": ("queue", "prefill", "decode")}[target]
        measured = sum(self.measured[name] for name in names)
        return measured <= 0 or GATE[0] <= sum(self.base.mean(name) for name in names) / measured <= GATE[1]

    def saved(self, setup: Setup, name: str) -> float:
        """Seconds of a target (or "queue", "prefill", "decode") that a changed engine saves, anchored on the measured means."""
        return self.difference(simulate(self.load, setup), name)

    def difference(self, other: Result, name: str) -> float:
        """Anchored difference of the base replay to another of the same load."""
        wait = (self.base.mean("queue") + self.base.mean("prefill")) - (other.mean("queue") + other.mean("prefill"))
        decode = self.base.mean("decode") - other.mean("decode")
        engine = self.measured["queue"] + self.measured["prefill"]
        of_wait = wait * engine / max(self.base.mean("queue") + self.base.mean("prefill"), 1e-9)
        of_decode = decode * self.measured["decode"] / max(self.base.mean("decode"), 1e-9)
        of_wait += self.base.delay - other.delay
        if name == "ttft":
            return of_wait
        if name == "tpot":
            return of_decode / max(1e-9, float((self.load.output - 1).mean()))
        return of_wait + of_decode if name == "e2e" else of_decode if name == "decode" else of_wait


def twin_of(books: Books, seed: int = 0) -> Twin | None:
    """Build and calibrate the twin of one engine's window; None without a step model or a load."""
    if not books.model.ok or steps.number(books.engine.facts.get("api_servers"), 1.0) > 1:
        return None  # several API servers: steps are estimated
    load = load_of(books, seed)
    if load is None or len(load.arrival) < 2:
        return None
    setup = setup_of(books, load)
    want = books.stages[Stage.DECODE] / max(books.output_tokens - 1, 1e-9)
    tried: list[tuple[float, float, Result]] = []
    factor = 1.0
    for _ in range(5):  # near saturation TPOT is steep in the costs: keep the best factor tried
        result = simulate(load, setup.scaled(factor))
        got = result.mean("tpot", load.output)
        tried.append((abs(math.log(max(got, 1e-9) / max(want, 1e-9))), factor, result))
        if tried[-1][0] < 0.02:
            break
        factor *= min(max(want / max(got, 1e-9), 0.8), 1.25) ** 0.6
    _, factor, base = min(tried, key=lambda item: item[0])
    # the replay's queue begins at arrival; vLLM's between steps: the wait for the step in flight reads as front end
    measured = {
        "queue": books.stages[Stage.QUEUE] + books.in_flight_s + books.stalled_s,
        "prefill": books.stages[Stage.PREFILL],
        "decode": books.stages[Stage.DECODE],
    }
    engine = measured["queue"] + measured["prefill"]
    gate = {
        "ttft": (base.mean("queue") + base.mean("prefill")) / engine if engine > 0 else math.nan,
        "decode": base.mean("decode") / measured["decode"] if measured["decode"] > 0 else math.nan,
    }
    return Twin(load, setup.scaled(factor), base, gate, measured, factor)


def without_long(twin: Twin, times: float = 6.0, setup: Setup | None = None) -> dict[str, float] | None:
    """What the other requests would save without the prompts above `times` the median; None where there are none.

    `setup` is the engine to replay them on (another engine: the long prompts and its faults removed together). Anchored on
    the measured seconds of those requests where they are known.
    """
    long = twin.load.prompt > times * float(np.median(twin.load.prompt))
    if not long.any() or long.all():
        return None
    keep = ~long
    before = 0.0 if twin.load.delay is None else float(twin.load.delay[keep].mean())
    part = Result(twin.base.queue[keep], twin.base.prefill[keep], twin.base.decode[keep], 0, before)
    if twin.load.seen:
        seen = {name: float(x[keep].mean()) for name, x in twin.load.seen.items()}
    else:  # as much more or less than the replay as all requests were
        wait = (twin.measured["queue"] + twin.measured["prefill"]) / max(twin.base.mean("ttft"), 1e-9)
        decode = twin.measured["decode"] / max(twin.base.mean("decode"), 1e-9)
        seen = {
            "queue": wait * part.mean("queue"),
            "prefill": wait * part.mean("prefill"),
            "decode": decode * part.mean("decode"),
        }
    rest = twin.load.only(keep)
    other = simulate(rest, setup or twin.setup)
    shorter = replace(twin, load=rest, base=part, measured=seen)
    return {name: shorter.difference(other, name) for name in ("ttft", "e2e", "tpot")}
