"""The request stream described: lengths, sharing, arrivals, concurrency, open or closed loop, modality, model shape.

What a deployment choice is good for depends on it, so every hypothesis carries these numbers. What was not observed is None.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from analyzers import steps
from analyzers.books import arrival_rate
from analyzers.combine import roles
from analyzers.hits import hits_of
from analyzers.model import Array, Engine, Window

BURSTY: Final = 3.0  # index of dispersion of arrivals above which they are called bursty (1: Poisson)
UNEVEN: Final = 1.5  # above which they are not called a Poisson stream
CLOSED: Final = 0.15  # coefficient of variation of requests in flight below which a closed loop is likely
QUANTILES: Final = (0.5, 0.95, 0.99)
DRIFT: Final = 0.15  # change of a number between two windows from which it is named


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens of prompts or outputs: mean, coefficient of variation, quantiles (p50, p95, p99) and how they are known."""

    mean: float
    cv: float
    quantiles: Mapping[str, float]
    how: str


@dataclass(frozen=True, slots=True)
class Workload:
    """One window's request stream. Ratios 0-1, rates a second; None: not observed.

    `dispersion` is the variance of arrivals per interval over their mean; `loop` is open, closed or unknown; `modality` names
    what was seen besides text; `shape` is the model's shape in words.
    """

    requests: int
    rate_per_s: float | None
    dispersion: float | None
    prompt: Lengths | None
    output: Lengths | None
    hit_ratio: float | None
    shared_ratio: float | None
    sharing_how: str
    in_flight_mean: float | None
    in_flight_max: float | None
    in_flight_engine_max: float | None  # in one engine
    loop: str
    modality: tuple[str, ...]
    shape: str
    kv_bytes_per_token: float | None
    says: str


def workload(window: Window) -> Workload:
    """Describe the stream of a window over all its engines."""
    # a decode server's requests came through a prefill server: they are one stream
    named = list(zip(window.engines, roles(window.engines), strict=True))
    engines = [e for e, role in named if role != "decode"]
    finishing = [e for e, role in named if role != "prefill"]
    rates = [arrival_rate(e) for e in engines]
    known = [r for r in rates if r is not None]
    prompt, output = _lengths(engines, "prompt"), _lengths(finishing, "output")
    inside = _in_flight(engines)
    loop = _loop(engines, inside)
    hit = _hit(engines)
    shared, how = _shared(engines)
    shape = _shape(engines)
    kv = next((k for k in (steps.kv_bytes_per_token(e) for e in engines) if math.isfinite(k)), None)
    found = Workload(
        requests=int(sum(e.total.get("e2e_n", 0.0) for e in engines)),
        rate_per_s=sum(known) if known else None, dispersion=_dispersion(engines), prompt=prompt, output=output,
        hit_ratio=hit, shared_ratio=shared, sharing_how=how,
        in_flight_mean=float(inside.mean()) if len(inside) else None, in_flight_max=float(inside.max()) if len(inside) else None,
        in_flight_engine_max=max((float(one.max()) for one in (_in_flight([e]) for e in engines) if len(one)), default=None),
        loop=loop, modality=_modality(engines), shape=shape, kv_bytes_per_token=kv, says="",
    )  # fmt: skip
    return Workload(**{**{name: getattr(found, name) for name in Workload.__slots__}, "says": _says(found)})


def _lengths(engines: Sequence[Engine], which: str) -> Lengths | None:
    """From request rows where there are any, else from histogram sums and buckets."""
    rows = [e.request[f"{which}_tokens"] for e in engines if len(e.request.get(f"{which}_tokens", ()))]
    values = np.concatenate(rows) if rows else np.zeros(0)
    values = values[np.isfinite(values)]
    if len(values):
        quantiles = {f"p{100 * q:.0f}": float(np.quantile(values, q)) for q in QUANTILES}
        return Lengths(float(values.mean()), float(values.std() / max(values.mean(), 1e-9)), quantiles, "request rows")
    family = f"vllm:request_{'prompt' if which == 'prompt' else 'generation'}_tokens"
    total = sum(e.total.get(f"request_{which}_tokens", math.nan) for e in engines)
    count = sum(e.total.get("e2e_n", 0.0) for e in engines)
    if not math.isfinite(total) or not count:
        return None
    le, n = _buckets(engines, family)
    cv = float(np.mean([steps.lengths(e)[2 if which == "prompt" else 3] for e in engines]))
    quantiles = {f"p{100 * q:.0f}": _quantile(le, n, q) for q in QUANTILES} if len(le) and n.sum() > 0 else {}
    return Lengths(total / count, cv, quantiles, "histogram sums; quantiles are upper edges of their buckets")


def _buckets(engines: Sequence[Engine], family: str) -> tuple[Array, Array]:
    found = [e.bucket[family] for e in engines if family in e.bucket]
    if not found or any(len(le) != len(found[0][0]) for le, _ in found):
        return np.zeros(0), np.zeros(0)
    return found[0][0], np.sum([n for _, n in found], axis=0)


def _quantile(le: Array, n: Array, q: float) -> float:
    """Upper edge of the bucket that holds the quantile."""
    at = int(np.searchsorted(np.cumsum(n), q * n.sum()))
    return float(le[min(at, len(le) - 1)])


def _arrivals(engine: Engine) -> Array:
    """Requests that came in each interval: finished ones plus what was added to those in the engine."""
    row = engine.interval
    if not len(row.get("ts", ())):
        return np.zeros(0)
    grown = np.nan_to_num(row["running"] + row["waiting"]) - np.nan_to_num(row["running_before"] + row["waiting_before"])
    return np.asarray(np.maximum(np.nan_to_num(row["e2e_n"]) + grown, 0.0))


def _dispersion(engines: Sequence[Engine]) -> float | None:
    """Variance over mean of arrivals per interval, between the first and the last arrival."""
    found = []
    for e in engines:
        dt = e.interval.get("dt_s", np.zeros(0))
        came = _arrivals(e)[dt < 1.8 * np.median(dt)] if len(dt) else dt  # a hole in the scrapes is no burst
        some = np.flatnonzero(came > 0)
        if len(some) and some[-1] - some[0] >= 10:
            part = came[some[0] : some[-1] + 1]
            found.append(float(part.var() / max(part.mean(), 1e-9)))
    return max(found) if found else None


def _in_flight(engines: Sequence[Engine]) -> Array:
    """Requests in the engines at each scrape while there were any (all engines of equal scrapes added up)."""
    series = [np.nan_to_num(e.interval["running"] + e.interval["waiting"]) for e in engines if len(e.interval.get("ts", ()))]
    if not series:
        return np.zeros(0)
    shortest = min(len(s) for s in series)
    total = np.sum([s[:shortest] for s in series], axis=0)
    some = np.flatnonzero(total > 0)
    return np.asarray(total[some[0] : some[-1] + 1]) if len(some) else np.zeros(0)


def _loop(engines: Sequence[Engine], inside: Array) -> str:
    """Closed: a fixed number of clients, so that what is in flight hardly moves and arrivals follow completions."""
    if len(inside) < 12 or inside.mean() < 2:
        return "unknown"
    middle = inside[len(inside) // 10 : -max(1, len(inside) // 10)]
    steady = float(middle.std() / max(middle.mean(), 1e-9)) < CLOSED
    came = np.concatenate([_arrivals(e) for e in engines])
    done = np.concatenate([np.nan_to_num(e.interval["e2e_n"]) for e in engines if len(e.interval.get("ts", ()))])
    follow = len(came) == len(done) and came.std() > 0 and done.std() > 0 and float(np.corrcoef(came, done)[0, 1]) > 0.7
    return "closed" if steady and follow else "open"


def _hit(engines: Sequence[Engine]) -> float | None:
    values = [(steps.hit_ratio(e), e.total.get("prompt_tokens", 0.0)) for e in engines]
    known = [(h, w) for h, w in values if math.isfinite(h) and w > 0]
    return sum(h * w for h, w in known) / sum(w for _, w in known) if known else None


def _shared(engines: Sequence[Engine]) -> tuple[float | None, str]:
    """Share of prompt tokens that endless capacity with full sharing would have held, where block identities say it."""
    weights = [e.total.get("prompt_tokens", 0.0) for e in engines]
    if sum(weights) and all(e.kv.get("stored_blocks") and not e.kv.get("gaps") for e in engines):
        best = [max(h.now, h.shared, h.endless) for h in map(hits_of, engines)]
        return sum(h * w for h, w in zip(best, weights, strict=True)) / sum(weights), "block identities (KV events)"
    return None, "hit counters are a lower bound: what was evicted, salted or cached elsewhere is not in them"


def _modality(engines: Sequence[Engine]) -> tuple[str, ...]:
    seen = []
    if any(len(e.stat.get("mm_hit_ratio", ())) and np.isfinite(e.stat["mm_hit_ratio"]).any() for e in engines):
        seen.append("multimodal inputs (the stats line shows a media cache)")
    if any(e.total.get("draft_n") for e in engines):
        seen.append("speculative decoding")
    return tuple(seen)


def _shape(engines: Sequence[Engine]) -> str:
    shape = next((e.facts["shape"] for e in engines if e.facts.get("shape")), None)
    if not shape:
        return "unknown"
    kind = (
        f"MoE, {shape['experts']:.0f} experts, top {shape.get('experts_per_token', 0):.0f}" if shape.get("experts") else "dense"
    )
    return f"{kind}, {shape.get('layers', 0):.0f} layers, hidden {shape.get('hidden', 0):.0f}"


def _says(w: Workload) -> str:
    """One paragraph."""
    parts = []
    rate = f"{w.rate_per_s:.1f} requests a second" if w.rate_per_s is not None else "requests at an unknown rate"
    burst = (
        ""
        if w.dispersion is None
        else " in bursts"
        if w.dispersion > BURSTY
        else ", arriving less evenly than a Poisson stream"
        if w.dispersion > UNEVEN
        else ", arriving about evenly"
        if w.dispersion < 0.7
        else ", arriving like a Poisson stream"
    )
    parts.append(
        f"{w.requests} requests, {rate}{burst}"
        + (f" (variance of arrivals {w.dispersion:.1f} times their mean)" if w.dispersion is not None else "")
    )
    for name, lengths in (("prompts", w.prompt), ("outputs", w.output)):
        if lengths:
            p95 = f", p95 {lengths.quantiles['p95']:.0f}" if "p95" in lengths.quantiles else ""
            parts.append(f"{name} of {lengths.mean:.0f} tokens on average{p95}")
    if w.hit_ratio is not None:
        parts.append(
            f"{100 * w.hit_ratio:.0f} % of prompt tokens hit the prefix cache"
            + (f", {100 * w.shared_ratio:.0f} % could" if w.shared_ratio is not None else "")
        )
    if w.in_flight_mean is not None:
        parts.append(f"{w.in_flight_mean:.0f} in flight on average, {w.in_flight_max:.0f} at most")
    parts.append(
        {
            "closed": "a closed loop (a fixed number of clients)",
            "open": "an open loop (arrivals do not wait for answers)",
            "unknown": "open or closed loop unknown",
        }[w.loop]
    )
    parts.append(f"model: {w.shape}")
    if w.modality:
        parts.append(", ".join(w.modality))
    return "; ".join(parts) + "."


def drift(before: Workload, after: Workload) -> tuple[str, ...]:
    """What differs between two streams by more than 15 %, in words; empty where they match."""
    said = []
    pairs = {
        "arrival rate": (before.rate_per_s, after.rate_per_s),
        "mean prompt": (before.prompt.mean if before.prompt else None, after.prompt.mean if after.prompt else None),
        "mean output": (before.output.mean if before.output else None, after.output.mean if after.output else None),
    }
    for name, (a, b) in pairs.items():
        if a and b and abs(b / a - 1) > DRIFT:
            said.append(f"{name} {a:.4g} -> {b:.4g} ({100 * (b / a - 1):+.0f} %)")
    if before.loop != after.loop and "unknown" not in {before.loop, after.loop}:
        said.append(f"{before.loop} loop -> {after.loop} loop")
    return tuple(said)
