"""What else ran while a request waited, was computed and was answered: who held it, of the requests of the same server.

From request records alone, on one clock: a request is in FRONTEND, QUEUE, PREFILL, DECODE, OUTPUT in this order, so the prefill
of others lies between two known instants of theirs. Why it waited (slots, KV blocks, prompts) is what the gauges say of that
moment, in the scheduler's own order; where none says it, only that is said. What each step held is not in these records: that
prompts shared the decode of a request is exact, how long they took from it needs its token times.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from analyzers.model import Array, Columns, Stage

FULL: Final = 0.95  # KV use from which blocks are short (as analyzers/diagnosis.py)
NEAR_CAP: Final = 0.75  # sequences below max_num_seqs at which all slots count as taken between two scrapes
COVERED: Final = 0.5  # share of a wait that others' prefill fills, from which it is named as what held it
MOST_OF: Final = 0.7  # of the prompt tokens computed meanwhile that the named requests hold at least
ALIKE: Final = 3.0  # a named prompt is at least this fraction of the longest
SAME_S: Final = 0.1  # arrivals nearer than this are of one moment
SHORT_S: Final = 0.01  # a stage below this is not worth a reason
GAP_TIMES: Final = 5.0  # a gap between tokens of this many usual ones is called a hole
GAP_S: Final = 0.25


@dataclass(frozen=True, slots=True)
class Held:
    """What held one stage of a request: its seconds, the sentence, the link it belongs to, the rows of the requests named.

    `span` is the time that the named requests took from it (epoch seconds).
    """

    stage: Stage
    seconds: float
    says: str
    link: str | None = None
    culprits: tuple[int, ...] = ()
    span: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Gauges:
    """Scrapes of the server around a request: their instants and values; `cap` is max_num_seqs, NaN where unknown."""

    ts: Array
    running: Array
    waiting: Array
    usage: Array
    preemptions: Array
    cap: float = math.nan


_NONE: Final = np.zeros(0)
NO_GAUGES: Final = Gauges(_NONE, _NONE, _NONE, _NONE, _NONE)


@dataclass(frozen=True, slots=True)
class Beside:
    """A request among the others: what held each stage, others' prompts inside its decode (start, end, tokens), holes in its tokens."""

    held: tuple[Held, ...]
    prompts: tuple[tuple[float, float, float], ...] = ()
    holes: tuple[tuple[float, float], ...] = ()

    @property
    def worst(self) -> Held | None:
        """The stage with most seconds of which it is known what held it; None where none is."""
        told = [one for one in self.held if one.link]
        return max(told, key=lambda one: one.seconds, default=None)


def edges(rows: Columns) -> dict[str, Array]:
    """The instants between the stages of requests: arrival, queued, scheduled, first, last, end (epoch seconds; NaN unknown)."""
    get = {name: np.asarray(rows[name], dtype=float) for name in ("arrival_ts", "frontend_s", "queue_s", "prefill_s", "decode_s", "end_ts")}  # fmt: skip
    queued = get["arrival_ts"] + np.nan_to_num(get["frontend_s"])
    scheduled = queued + get["queue_s"]
    first = scheduled + get["prefill_s"]
    return {"arrival": get["arrival_ts"], "queued": queued, "scheduled": scheduled, "first": first, "last": first + get["decode_s"], "end": get["end_ts"]}  # fmt: skip


def beside(rows: Columns, at: int, gauges: Gauges = NO_GAUGES, tokens: Array | None = None) -> Beside:
    """What held the request in row `at`; `rows` are all requests of its server that overlap it.

    Columns: arrival_ts, end_ts (epoch seconds), frontend_s, queue_s, prefill_s, decode_s, output_s, prompt_tokens, cached_tokens.
    `tokens` are the instants of its output tokens, where a client saw them.
    """
    when = edges(rows)
    others = np.arange(len(when["arrival"])) != at
    computed = np.maximum(0.0, np.asarray(rows["prompt_tokens"], float) - np.nan_to_num(np.asarray(rows["cached_tokens"], float)))
    held = [
        _frontend(rows, at),
        _queue(rows, when, others, computed, at, gauges),
        _prefill(rows, when, others, computed, at),
    ]
    decode, prompts, holes = _decode(rows, when, others, computed, at, gauges, tokens)
    return Beside((*held, decode, _output(rows, at)), prompts, holes)


def _of(rows: Columns, name: str, at: int) -> float:
    return float(np.asarray(rows[name], dtype=float)[at])


def _frontend(rows: Columns, at: int) -> Held:
    seconds = _of(rows, "frontend_s", at)
    says = "before the engine: admission, tokenizing, and waiting for the step in flight" if seconds >= SHORT_S else "nothing"
    return Held(Stage.FRONTEND, seconds, says, "frontend" if seconds >= SHORT_S else None)


def _output(rows: Columns, at: int) -> Held:
    return Held(Stage.OUTPUT, _of(rows, "output_s", at), "detokenizing and streaming after the engine")


# -- queue ------------------------------------------------------------------------------------------------------------------------
def _overlap(when: Mapping[str, Array], low: float, high: float, others: Array) -> Array:
    """Seconds that each other request's prefill lies in [low, high]; 0 where that is unknown."""
    inside = np.minimum(when["first"], high) - np.maximum(when["scheduled"], low)
    return np.asarray(np.where(others & np.isfinite(inside), np.maximum(inside, 0.0), 0.0))


def _covered(when: Mapping[str, Array], rows: Array, low: float, high: float) -> float:
    """Seconds of [low, high] in which at least one of these requests is in prefill."""
    total, reach = 0.0, low
    for one in rows[np.argsort(when["scheduled"][rows])]:
        start, end = max(reach, float(when["scheduled"][one])), min(high, float(when["first"][one]))
        if end > start:
            total, reach = total + end - start, end
    return total


def _tokens_in(when: Mapping[str, Array], share: Array, computed: Array) -> Array:
    """Prompt tokens of each request computed in the overlap, if its prefill went evenly."""
    whole = when["first"] - when["scheduled"]
    ratio = np.divide(share, whole, out=np.zeros_like(share), where=np.isfinite(whole) & (whole > 0))
    return np.asarray(np.nan_to_num(computed * np.minimum(ratio, 1.0)))


def _named(tokens: Array) -> Array:
    """The requests that hold most of the tokens, of those alike in size: the fewest that reach MOST_OF, at least one."""
    order = np.argsort(-tokens)
    order = order[tokens[order] > 0]
    if not len(order):
        return order
    reached = np.cumsum(tokens[order])
    few = order[: int(np.searchsorted(reached, MOST_OF * reached[-1])) + 1]
    alike = few[tokens[few] * ALIKE >= tokens[few[0]]]
    return alike if len(alike) else few[:1]


def _queue(rows: Columns, when: Mapping[str, Array], others: Array, computed: Array, at: int, gauges: Gauges) -> Held:
    seconds, low, high = _of(rows, "queue_s", at), float(when["queued"][at]), float(when["scheduled"][at])
    if not math.isfinite(seconds):
        return Held(Stage.QUEUE, seconds, "not recorded")
    if seconds < SHORT_S:
        return Held(Stage.QUEUE, seconds, "nothing")
    running = others & (when["scheduled"] < high) & (when["last"] > low)
    freed = np.flatnonzero(running & (when["last"] <= high + SHORT_S))
    why = _why(gauges, low, high)
    if why == "slots":
        last = freed[np.argsort(-when["last"][freed])][:1]
        says = f"all {gauges.cap:.0f} sequence slots were taken{_until(last)}"
        return Held(Stage.QUEUE, seconds, says, "slots", tuple(int(one) for one in last), (low, high))
    if why == "kv_eviction":
        return _blocks(rows, when, running, seconds, low, high)
    share = _overlap(when, low, high, others)
    tokens = _tokens_in(when, share, computed)
    named = _named(tokens)
    covered = _covered(when, np.flatnonzero(share > 0), low, high)
    if not len(named) or covered < COVERED * seconds:
        known = "" if len(gauges.ts) else "; gauges of that moment would tell slots from KV blocks"
        return Held(Stage.QUEUE, seconds, f"others' prompts were computed in {100 * covered / seconds:.0f} % of it: not told by these records{known}")  # fmt: skip
    says = f"behind {_prompts(computed, named)}{_arrived(when, named, at)}, {100 * tokens[named].sum() / tokens.sum():.0f} % of the prompt tokens computed meanwhile"  # fmt: skip
    span = float(when["scheduled"][named].min()), float(when["first"][named].max())
    return Held(Stage.QUEUE, seconds, says, "prefill_backlog", tuple(int(one) for one in named), span)


def _until(last: Array) -> str:
    return ", until one that ran ended" if len(last) else ""


def _blocks(rows: Columns, when: Mapping[str, Array], running: Array, seconds: float, low: float, high: float) -> Held:
    """Held by KV blocks: the requests that held most of them meanwhile."""
    held = np.asarray(rows["prompt_tokens"], float) + np.nan_to_num(np.asarray(rows["output_tokens"], float))
    share = np.clip((np.minimum(when["last"], high) - np.maximum(when["scheduled"], low)) / max(high - low, 1e-9), 0.0, 1.0)
    weight = np.where(running, np.nan_to_num(held * share), 0.0)
    order = np.argsort(-weight)[:5]
    order = order[weight[order] > 0]
    says = "KV blocks were short"
    if len(order):
        says += f": {int(running.sum())} running requests held them, the largest up to {held[order[0]]:,.0f} tokens"
    return Held(Stage.QUEUE, seconds, says, "kv_eviction", tuple(int(one) for one in order), (low, high))


def _why(gauges: Gauges, low: float, high: float) -> str | None:
    """What the gauges of the wait say, in the scheduler's order: slots, kv_eviction, or None (neither, or no gauge)."""
    if not len(gauges.ts):
        return None
    inside = (gauges.ts >= low) & (gauges.ts <= high)
    if not inside.any():  # shorter than a scrape interval: the scrape that follows
        inside = np.arange(len(gauges.ts)) == min(int(np.searchsorted(gauges.ts, high)), len(gauges.ts) - 1)
    full = (np.nan_to_num(gauges.usage[inside]) >= FULL) | (np.nan_to_num(gauges.preemptions[inside]) > 0)
    slots = np.nan_to_num(gauges.running[inside]) >= gauges.cap - NEAR_CAP if math.isfinite(gauges.cap) else np.zeros_like(full)
    if slots.mean() >= COVERED:
        return "slots"
    return "kv_eviction" if full.mean() >= COVERED else None


def _prompts(computed: Array, named: Array) -> str:
    """In words: 14 prompts of 15,000 tokens."""
    sizes = computed[named]
    low, high = float(sizes.min()), float(sizes.max())
    size = f"{_round(sizes.mean()):,.0f}" if high <= 1.3 * max(low, 1.0) else f"{_round(low):,.0f} to {_round(high):,.0f}"
    return f"{len(named)} prompts of {size} tokens" if len(named) > 1 else f"a prompt of {high:,.0f} tokens"


def _round(tokens: float) -> float:
    """Two significant digits: what a person would say."""
    return round(tokens, 1 - math.floor(math.log10(tokens))) if tokens >= 1 else tokens


def _arrived(when: Mapping[str, Array], named: Array, at: int) -> str:
    """When they arrived, seen from this request."""
    ago = float(when["arrival"][at]) - when["arrival"][named]
    near, far = float(ago.min()), float(ago.max())
    if near > -SAME_S and far < SAME_S:
        return " that arrived at the same moment"
    if near < 0 < far:
        return f" that arrived from {far:.1f} s before it on"
    side, first, last = ("before", near, far) if near >= 0 else ("after", -far, -near)
    if last - first < 0.15 or round(first, 1) == round(last, 1):
        return f" that arrived {last:.1f} s {side} it"
    return f" that arrived {first:.1f} to {last:.1f} s {side} it"


# -- prefill and decode -------------------------------------------------------------------------------------------------------------
def _prefill(rows: Columns, when: Mapping[str, Array], others: Array, computed: Array, at: int) -> Held:
    seconds, low, high = _of(rows, "prefill_s", at), float(when["scheduled"][at]), float(when["first"][at])
    if not math.isfinite(seconds):
        return Held(Stage.PREFILL, seconds, "not recorded")
    tokens = _tokens_in(when, _overlap(when, low, high, others), computed)
    together, own = float(tokens.sum()), float(computed[at])
    if seconds < SHORT_S or together < 1:
        return Held(Stage.PREFILL, seconds, f"its own {own:,.0f} tokens" if math.isfinite(own) else "its own prompt")
    named = _named(tokens)
    mostly = together > own
    says = f"its own {own:,.0f} tokens, beside {together:,.0f} of {int((tokens > 0).sum())} other prompts"
    return Held(
        Stage.PREFILL, seconds, says, "prefill_backlog" if mostly else None, tuple(int(one) for one in named) if mostly else ()
    )


def _decode(
    rows: Columns, when: Mapping[str, Array], others: Array, computed: Array, at: int, gauges: Gauges, tokens: Array | None
) -> tuple[Held, tuple[tuple[float, float, float], ...], tuple[tuple[float, float], ...]]:
    seconds, low, high = _of(rows, "decode_s", at), float(when["first"][at]), float(when["last"][at])
    if not math.isfinite(seconds):
        return Held(Stage.DECODE, seconds, "not recorded"), (), ()
    share = _overlap(when, low, high, others)
    beside_it = np.flatnonzero(share > 0)
    amount = _tokens_in(when, share, computed)
    prompts = tuple((max(low, float(when["scheduled"][one])), min(high, float(when["first"][one])), float(amount[one])) for one in beside_it[np.argsort(when["scheduled"][beside_it])])  # fmt: skip
    covered = _covered(when, beside_it, low, high)
    says = [f"prompts of others were computed in {100 * covered / seconds:.0f} % of it"] if covered > 0 and seconds > 0 else []
    holes, stretched = _stretched(prompts, tokens)
    link = None
    if stretched is not None and stretched > 0.02 * seconds and stretched >= SHORT_S:
        says, link = [f"{stretched:.2g} s of it stretched by {len(prompts)} prompts of others"], "prefill_backlog"
    inside = (gauges.ts >= low) & (gauges.ts <= high) if len(gauges.ts) else np.zeros(0, bool)
    lost = float(np.nan_to_num(gauges.preemptions[inside]).sum()) if inside.any() else 0.0
    if lost > 0:
        says.append(f"the engine preempted {lost:.0f} times meanwhile; which requests, vLLM does not say")
        link = link or "kv_eviction"
    held = Held(Stage.DECODE, seconds, "; ".join(says) or "nothing beside it that these records show", link)
    return held, prompts, holes


def _stretched(
    prompts: tuple[tuple[float, float, float], ...], tokens: Array | None
) -> tuple[tuple[tuple[float, float], ...], float | None]:
    """Holes between its tokens, and the seconds by which gaps beside others' prompts exceed the usual gap; None: no token times."""
    if tokens is None or len(tokens) < 8:
        return (), None
    start, end = tokens[:-1], tokens[1:]
    gap = end - start
    shared = np.zeros(len(gap), bool)
    for low, high, _ in prompts:
        shared |= (end > low) & (start < high)
    alone = gap[~shared]
    usual = float(np.median(alone)) if len(alone) >= 4 else float(np.quantile(gap, 0.1))
    long = (gap > max(GAP_S, GAP_TIMES * usual)) & ~shared
    holes = tuple((float(start[one]), float(end[one])) for one in np.flatnonzero(long))
    return holes, float(np.maximum(gap[shared] - usual, 0.0).sum())
