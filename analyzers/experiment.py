"""Was a hypothesis right? Two recordings, before and after a change, judged target by target.

An effect counts beyond the noise of two starts of a server (8 % of the value; facts: attribution-0.33). The workload must match:
where the mix of prompt lengths moved, requests are weighted to the mix before; where it moved too far, nothing is judged.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from analyzers.attribute import attribute
from analyzers.compare import NOISE, configuration
from analyzers.model import TARGETS, Array, Attribution, Effect, Hypothesis, Target, Window
from analyzers.workload import Workload, drift, workload

FAR: Final = 2.0  # factor between two arrival rates or mean lengths beyond which nothing is judged
TPOT_NOISE_S: Final = 0.00035
PARTLY: Final = 0.6  # share of the predicted gain from which an effect is more than partial
DRAWS: Final = 200
MOVE_S: Final = 20.0  # from the log line that starts a move until experts are balanced: 11 to 17 s measured (0.33, 48 layers)
FEW: Final = 10  # requests below which a part of the window says nothing
EDGES: Final = (0.0, 250.0, 500.0, 1000.0, 2000.0, 4000.0, 8000.0, math.inf)  # prompt-length classes for weighting


@dataclass(frozen=True, slots=True)
class Judgement:
    """One target's outcome: confirmed, partly, refuted or inconclusive; effect in seconds saved with its range; why."""

    verdict: str
    effect_s: float | None
    range_s: tuple[float, float] | None
    why: str


@dataclass(frozen=True, slots=True)
class Experiment:
    """The judged experiment and what weakens it."""

    targets: Mapping[str, Judgement]
    conditions: tuple[str, ...]
    configuration: tuple[str, ...]


def judge(
    before: Window, after: Window, hypothesis: Hypothesis | None = None, allowed: Sequence[str] | None = None
) -> Experiment:
    """Judge an experiment. `allowed` names the arguments that the change may touch: any other difference makes it inconclusive.

    None: only the environment must be the same (vLLM's own variables switch what is not an argument); all differences are named.
    """
    a, b = attribute(before), attribute(after)
    streams = workload(before), workload(after)
    differs = tuple(configuration(before, after))
    beyond, unknown = _beyond(differs, before, after, allowed)
    far = _too_far(*streams)
    found = {name: _one(name, a, b, before, after, hypothesis, beyond, far, _moves(name, before, after)) for name in TARGETS}
    said = (*unknown, *drift(*streams), *(f"differs beyond the hypothesis: {d}" for d in beyond))
    return Experiment(found, said, differs)


def _beyond(
    differs: Sequence[str], before: Window, after: Window, allowed: Sequence[str] | None
) -> tuple[list[str], tuple[str, ...]]:
    """Differences that the change does not explain, and what cannot be told: a side that says nothing is not a side that differs."""
    args = [[e.facts.get("args") or {} for e in w.engines] for w in (before, after)]
    silent = [name for name, of in zip(("before", "after"), args, strict=True) if not any(of)]
    if silent:
        return [], (
            f"the configuration {' and '.join(silent)} is not known (no command line, no log): it is taken to be as said",
        )
    environment = all(any("env" in a for a in of) for of in args)
    beyond = [
        d
        for d in differs
        if (environment if d.startswith("env.") else allowed is not None and d.partition(":")[0] not in allowed)
    ]
    return beyond, ()


def _one(
    name: str,
    a: Attribution,
    b: Attribution,
    before: Window,
    after: Window,
    hypothesis: Hypothesis | None,
    beyond: Sequence[str],
    far: str | None,
    moves: str | None,
) -> Judgement:
    first, second = a.targets.get(name), b.targets.get(name)
    if first is None or second is None or first.measured_s is None or second.measured_s is None:
        return Judgement("inconclusive", None, None, f"{name.upper()} was not measured on both sides")
    saved, span, how = _effect(name, first, second, before, after)
    if far:
        return Judgement("inconclusive", saved, span, far)
    if beyond:
        return Judgement("inconclusive", saved, span, f"more than the hypothesis changed: {'; '.join(beyond)}")
    predicted = hypothesis.effect.get(name) if hypothesis else None
    return _verdict(name, saved, span, first.measured_s, predicted, how, moves)


def _verdict(
    name: str, saved: float, span: tuple[float, float], measured: float, predicted: Effect | None, how: str, moves: str | None
) -> Judgement:
    noise = max(NOISE * measured, TPOT_NOISE_S if name == "tpot" else 0.0)
    promised = predicted.saves_s if predicted else None
    unit = f"{how}; noise of two starts {noise:.4g} s"
    if promised is not None and promised <= noise:
        return _no_gain(saved, span, promised, noise, unit)
    if saved < -noise or (saved <= noise and span[1] < noise):
        why = (
            f"{name.upper()} became slower by {-saved:.4g} s"
            if saved < -noise
            else f"nothing beyond the noise was saved ({saved:+.4g} s)"
        )
        return Judgement("refuted", saved, span, f"{why}; {unit}" + (f"; {moves}" if moves else ""))
    if saved <= noise:
        return Judgement("inconclusive", saved, span, f"the effect of {saved:+.4g} s is within the noise; {unit}")
    if moves:
        return Judgement("partly", saved, span, f"{saved:.4g} s saved over the whole window; {moves}; {unit}")
    if promised is not None and saved < PARTLY * promised:
        return Judgement("partly", saved, span, f"{saved:.4g} s saved of {promised:.4g} s predicted; {unit}")
    return Judgement(
        "confirmed",
        saved,
        span,
        f"{saved:.4g} s saved" + (f", {promised:.4g} s predicted" if promised is not None else "") + f"; {unit}",
    )


def _no_gain(saved: float, span: tuple[float, float], promised: float, noise: float, unit: str) -> Judgement:
    """Where nothing or a loss was predicted: right unless more was lost."""
    if promised < -noise:
        came = f"{-saved:.4g} s were lost" if saved < 0 else f"{saved:.4g} s were saved"
        verdict = "partly" if saved < promised / PARTLY else "confirmed"
        return Judgement(verdict, saved, span, f"a loss of {-promised:.4g} s was predicted, {came}; {unit}")
    said = (
        "and none beyond the noise was seen"
        if abs(saved) <= noise
        else f"and {abs(saved):.4g} s were {'saved' if saved > 0 else 'lost'}"
    )
    return Judgement("refuted" if saved < -noise else "confirmed", saved, span, f"no change was predicted {said}; {unit}")


# -- effects ----------------------------------------------------------------------------------------------------------------
def _effect(name: str, first: Target, second: Target, before: Window, after: Window) -> tuple[float, tuple[float, float], str]:
    """Seconds saved on the workload before, and their 5-95 % range; over request rows where both sides have them."""
    assert first.measured_s is not None
    assert second.measured_s is not None
    plain = first.measured_s - second.measured_s
    rows = [_rows(w, name) for w in (before, after)]
    if rows[0] is None or rows[1] is None or len(before.engines) > 1 or len(after.engines) > 1:
        width = NOISE * max(first.measured_s, second.measured_s)
        return plain, (plain - width, plain + width), "means of both windows"
    (values, prompts, tokens), (others, other_prompts, other_tokens) = rows[0], rows[1]
    weights = _weights(prompts, other_prompts)
    rng = np.random.default_rng(0)
    drawn = []
    for _ in range(DRAWS):
        i, j = _blocks(len(values), rng), _blocks(len(others), rng)
        drawn.append(_mean(name, values[i], tokens[i], np.ones(len(i))) - _mean(name, others[j], other_tokens[j], weights[j]))
    saved = _mean(name, values, tokens, np.ones(len(values))) - _mean(name, others, other_tokens, weights)
    low, high = (float(x) for x in np.percentile(drawn, [5, 95]))
    return saved, (min(low, saved), max(high, saved)), "request rows, weighted to the prompt lengths before"


def _rows(window: Window, name: str) -> tuple[Array, Array, Array] | None:
    """(values, prompt tokens, tokens after the first) of the requests; None where no rows were recorded."""
    column = "decode_s" if name == "tpot" else f"{name}_s"
    parts = [
        (e.request[column], e.request["prompt_tokens"], e.request["output_tokens"] - 1)
        for e in window.engines
        if len(e.request.get(column, ()))
    ]
    if not parts:
        return None
    values, prompts, tokens = (np.concatenate(x) for x in zip(*parts, strict=True))
    ok = np.isfinite(values) & np.isfinite(prompts) & np.isfinite(tokens)
    return (values[ok], prompts[ok], np.maximum(tokens[ok], 0.0)) if ok.sum() >= 30 else None


def _mean(name: str, values: Array, tokens: Array, weights: Array) -> float:
    """Weighted mean; TPOT is decode seconds over tokens, a ratio of sums."""
    over = float((tokens * weights).sum()) if name == "tpot" else float(weights.sum())
    return float((values * weights).sum()) / max(over, 1e-9)


def _weights(prompts: Array, others: Array) -> Array:
    """Weights that give the requests after the change the prompt lengths of those before."""
    now, _ = np.histogram(prompts, bins=EDGES)
    then, _ = np.histogram(others, bins=EDGES)
    factor = np.where(then > 0, now / max(len(prompts), 1) / np.maximum(then / max(len(others), 1), 1e-9), 0.0)
    at = np.clip(np.digitize(others, EDGES[1:-1]), 0, len(factor) - 1)
    weights = factor[at]
    return np.asarray(weights if weights.sum() > 0 else np.ones(len(others)))


def _blocks(n: int, rng: np.random.Generator) -> Array:
    """Indices of moving blocks of twenty requests: neighbours wait together."""
    size = min(20, n)
    starts = rng.integers(0, n - size + 1, math.ceil(n / size))
    return np.concatenate([np.arange(s, s + size) for s in starts])[:n]


# -- what weakens it --------------------------------------------------------------------------------------------------------
def _too_far(before: Workload, after: Workload) -> str | None:
    pairs: dict[str, tuple[Any, Any]] = {
        "arrival rates": (before.rate_per_s, after.rate_per_s),
        "mean prompts": (before.prompt.mean if before.prompt else None, after.prompt.mean if after.prompt else None),
        "mean outputs": (before.output.mean if before.output else None, after.output.mean if after.output else None),
    }
    for name, (x, y) in pairs.items():
        if x and y and not 1 / FAR < y / x < FAR:
            return f"the workload drifted too far: {name} {x:.4g} and {y:.4g}"
    return None


def _moves(name: str, before: Window, after: Window) -> str | None:
    """Expert rearrangements inside the window after: the change acts only once they are done, and they cost."""
    moves = [
        e
        for engine in after.engines[:1]
        for e in engine.event
        if e.kind == "rearrange" and "profile" not in str(e.fields.get("text", ""))
    ]
    starts = sorted(e.ts for e in moves if math.isfinite(e.ts))
    if not starts or after.start is None:
        return None
    stalls = [s for engine in after.engines for s in _long_gaps(engine.bucket)]
    gaps = f", token gaps of 0.1 to 0.5 s: {sum(stalls):.0f}" if stalls else ""
    said = f"experts moved {len(starts)} times inside the window, first {starts[0] - after.start:.0f} s after its start{gaps}: before that nothing had changed"
    return said + _cost_of_moves(name, before, after, starts)


def _cost_of_moves(name: str, before: Window, after: Window, starts: Sequence[float]) -> str:
    """Seconds saved by requests that came while experts moved, by those that came after, and the difference: what moves cost."""
    values, others = _rows(before, name), _rows(after, name)
    arrivals = [e.request.get("arrival_ts", np.zeros(0)) for e in after.engines]
    if values is None or others is None or len(np.concatenate(arrivals)) != len(others[0]):
        return ""
    came = np.concatenate(arrivals)
    during = np.any([(came >= s) & (came < s + MOVE_S) for s in starts], axis=0)
    later = (came >= starts[0] + MOVE_S) & ~during
    if during.sum() < FEW or later.sum() < FEW:
        return ""
    base = _mean(name, values[0], values[2], np.ones(len(values[0])))
    saved = [
        base - _mean(name, others[0][part], others[2][part], _weights(values[1], others[1][part])) for part in (during, later)
    ]
    cost = (saved[1] - saved[0]) * float(during.sum() if name != "tpot" else others[2][during].sum())
    words = [f"{abs(s):.3g} s {'saved' if s > 0 else 'lost'}" for s in saved]
    return f"; of requests that came in the {MOVE_S:.0f} s after a move began {words[0]} each ({during.sum()}), of those after it {words[1]} each ({later.sum()}): the moves cost {cost:.3g} request seconds"


def _long_gaps(bucket: Mapping[str, tuple[Array, Array]]) -> list[float]:
    le, n = bucket.get("vllm:inter_token_latency_seconds", (np.zeros(0), np.zeros(0)))
    long = (le > 0.1) & (le <= 0.5)
    return [float(n[long].sum())] if long.any() else []
