"""Steps as slow as the busiest expert-parallel rank.

What it is:
    With experts spread over ranks a layer is done when its busiest rank is. Skewed routing makes that rank read more expert
    weights (decode) and compute more tokens (prefill).

Why it costs latency:
    Every step of every request waits for it. The cost is far below the imbalance itself: attention, launches and the other
    ranks' share do not stretch.

How it is computed:
    From EPLB's balancedness lines (they are over ranks from 0.33; earlier versions took another axis and are refused) of
    steps with at least 512 tokens: share of the busiest rank, then expected further experts it reads and tokens it computes,
    from the model's shape and the device. The share of each logged step is moved out of the other links. Even routing has
    sampling noise in small steps: they are never used for the share.

What to try:
    --enable-eplb, redundant experts: memory taken from KV blocks, stalls of 0.1 to 0.3 s while experts move.
"""

import math
from dataclasses import replace
from typing import Final

import numpy as np

from analyzers import steps
from analyzers.books import Books, arrival_rate
from analyzers.model import TARGETS, Array, Engine, Link, Refusal, Row, Sign, Stage

LINK: Final = Link("moe_imbalance", "MoE imbalance")

FIRST_RIGHT: Final = (
    0,
    33,
)  # 0.24 took balancedness over layers; in between unknown (facts: vLLM pull request 51813, August 2026)
BIG_STEP_TOKENS: Final = 512
MIN_LINES: Final = 3
BALANCED: Final = 1.05
ELAPSED_HOLDS: Final = 0.9  # share of busy time that the lines' seconds must cover to be step times
GEMM_SHARE: Final = (0.45, 0.6, 0.8)  # of the FLOP peak that grouped expert products reach: low, assumed, high
MEASURE: Final = 'vLLM 0.33 with --enable-eplb --eplb-config \'{"log_balancedness": true, "log_balancedness_interval": 25}\''


def right_axis(engine: Engine) -> bool:
    """True where this version's balancedness line is over ranks."""
    parts = (engine.version or "").split(".")
    return len(parts) >= 2 and parts[0].isdigit() and parts[1].isdigit() and (int(parts[0]), int(parts[1])) >= FIRST_RIGHT


def ranks(engine: Engine) -> float:
    """Expert-parallel ranks: tensor times data parallel."""
    f = engine.facts
    return steps.number(f.get("tensor_parallel"), 1.0) * steps.number(f.get("data_parallel"), 1.0)


def lines_of(engine: Engine) -> tuple[Array, Array]:
    """(tokens of the step, max tokens / mean tokens) of each balancedness line; tokens NaN where the shape is unknown."""
    found = [
        (float(e.fields.get("avg_tokens", 0.0)), float(e.fields.get("max_tokens", 0.0))) for e in engine.event if e.kind == "eplb"
    ]
    pairs = np.array([p for p in found if p[0] > 0]).reshape(-1, 2)
    shape = engine.facts.get("shape") or {}
    per = steps.number(shape.get("layers")) * steps.number(shape.get("experts_per_token"))
    # avg_tokens counts a token once per layer, expert and tensor rank, over all ranks (measured in 0.33.0: 384 for one token)
    tokens = pairs[:, 0] * ranks(engine) / per / steps.number(engine.facts.get("tensor_parallel"), 1.0)
    return tokens, pairs[:, 1] / pairs[:, 0]


def iota(engine: Engine) -> tuple[float, int]:
    """Busiest rank over mean, by tokens, over lines of big steps; and how many such lines there are."""
    tokens, ratio = lines_of(engine)
    big = tokens >= BIG_STEP_TOKENS
    if not big.any():
        return math.nan, 0
    return float((tokens[big] * ratio[big]).sum() / tokens[big].sum()), int(big.sum())


def extra_s(engine: Engine, prompt: Array, decode: Array, busiest: float, gemm: float = GEMM_SHARE[1]) -> Array | None:
    """Seconds by which steps last longer than balanced ones: weights of further experts, and tokens of the busiest rank."""
    shape, known = engine.facts.get("shape") or {}, steps.device(engine)
    names = ("experts", "experts_per_token", "layers", "hidden", "moe_intermediate")
    E, k, layers, hidden, inner = (steps.number(shape.get(n)) for n in names)
    if known is None or not all(math.isfinite(x) for x in (E, k, layers, hidden, inner)):
        return None
    bandwidth, flops, _ = known
    R, per = ranks(engine), 3 * hidden * inner
    share = min(busiest / R, 1.0)
    T = prompt + decode
    sizes = np.array(sorted(engine.facts.get("graph_sizes") or [1, 2, 4, *range(8, 513, 8)]), dtype=float)
    padded = np.where(sizes[-1] < T, T, sizes[np.minimum(np.searchsorted(sizes, T), len(sizes) - 1)])
    hot, even = min(k * share * R / E, 1.0), k / E
    weights = layers * E / R * np.maximum((1 - even) ** padded - (1 - hot) ** padded, 0.0) * per * 2 / bandwidth
    tokens = layers * T * k * (share - 1 / R) * 2 * per / (gemm * flops)
    return np.asarray(weights + tokens)


def shares(books: Books, gemm: float = GEMM_SHARE[1]) -> tuple[float, float] | None:
    """(share of decode, share of prefill and queue) that the busiest rank's excess takes; None where it cannot be told."""
    engine = books.engine
    busiest, count = iota(engine) if right_axis(engine) else (math.nan, 0)
    step = engine.step
    if count < MIN_LINES or not len(step.get("ts", ())):
        return None
    if busiest < BALANCED:
        return 0.0, 0.0
    found = _logged(books, busiest, gemm)
    if found is None:
        return None
    P, D, t, extra = found
    with_prompt = P > 0
    of_prompt = float(extra[with_prompt].sum() / max(t[with_prompt].sum(), 1e-9)) if with_prompt.any() else 0.0
    return min(0.8, float((D * extra).sum() / (D * t).sum())), min(0.8, of_prompt)


def _logged(books: Books, busiest: float, gemm: float) -> tuple[Array, Array, Array, Array] | None:
    """(prompt tokens, decoding, seconds, excess seconds) of each logged step; None where shape, device or seconds are missing."""
    step, m = books.engine.step, books.model
    live = ~step["dummy"].astype(bool)
    P, D, t = step["context_tokens"][live], step["generation_requests"][live], step["elapsed_s"][live]
    w = books.windows
    if m.ok and w is not None and t.sum() < ELAPSED_HOLDS * float(w.dt[w.busy].sum()):
        t = m.a + m.b * P + m.c * D  # asynchronous scheduling: "elapsed" is a residual wait, not the step
    extra = extra_s(books.engine, P, D, busiest, gemm)
    return None if extra is None or not (D * t).sum() > 0 else (P, D, t, extra)


def adjust(books: Books) -> Books:
    """Move the excess out of the cells of the other links: it lies inside every step."""
    found = shares(books)
    if not found or not any(found):
        return books
    of_decode, of_prompt = found

    def moved(cells: dict[str, float], names: tuple[str, ...], share: float) -> dict[str, float]:
        out = dict(cells)
        out["moe"] = sum(out[name] for name in names) * share
        for name in names:
            out[name] *= 1 - share
        return out

    return replace(
        books,
        decode=moved(dict(books.decode), ("base", "batch", "prompts", "beside"), of_decode),
        prefill=moved(dict(books.prefill), ("own", "extra", "others"), of_prompt),
        queue=moved(dict(books.queue), ("budget", "step"), of_prompt),
    )


def saves(books: Books, row: Row, name: str, per: float) -> float | None:
    """Between the part (the batch does not shrink) and Little's fixed point (it does): the middle."""
    part = sum(seconds for stage, seconds in row.cells.items() if stage in TARGETS[name]) / per
    if name == "ttft" or not part > 0:
        return part
    more = fixed_point_s(books)
    decode = row.cells.get(Stage.DECODE, 0.0)
    return part + max(0.0, (more - decode) / 2) / per if more is not None else part


def fixed_point_s(books: Books) -> float | None:
    """Decode seconds saved when the batch shrinks with the steps: t = a + c D + b P + m M with D and P from Little's law."""
    busiest, count = iota(books.engine)
    found = _logged(books, busiest, GEMM_SHARE[1]) if count >= MIN_LINES else None
    rate = arrival_rate(books.engine)
    prompt, output, _, _ = steps.lengths(books.engine)
    if found is None or rate is None:
        return None
    P, D, t, extra = found
    weight = 1 / np.maximum(t, 1e-3)
    X = np.stack([np.ones(len(D)), P, D, 1.0 * (P > 0)], 1)
    a, b, c, m = (float(x) for x in steps.non_negative(X * weight[:, None], t * weight)[0])
    plain = P == 0
    less = float(extra[plain].mean()) if plain.any() else 0.0
    per_token = float(extra[~plain].sum() / max(P[~plain].sum(), 1.0))

    def step_s(less_s: float, less_b: float) -> float:
        x = 0.01
        for _ in range(200):
            tokens = rate * prompt * x
            x = (
                a
                + c * rate * output * x
                + b * tokens
                + m * min(1.0, rate * (1 + prompt / books.model.budget) * x)
                - less_s
                - less_b * tokens
            )
        return x

    now = step_s(0.0, 0.0)
    return (1 - step_s(less, per_token) / now) * books.stages[Stage.DECODE] if 0 < now < 10 else None


def row(books: Books) -> Row:
    """The moved cells; unknown where no right line is there and experts are spread over ranks."""
    engine, facts = books.engine, books.engine.facts
    ruled_out = _ruled_out(engine)
    if ruled_out:
        return Row(used=False, fact=ruled_out, conditions=(ruled_out,))
    found = shares(books)
    if found is None:
        spread = bool(facts.get("expert_parallel")) or any(e.kind == "eplb" for e in engine.event)
        return Row(
            known=False,
            bound=_bound(books) if spread else None,
            used=spread,
            fact="unobserved" if spread else "not known to be spread",
            conditions=(_why_not(engine)[0],),
        )
    busiest, count = iota(engine)
    said = [
        f"busiest rank {busiest:.2f} times the mean (balancedness {1 / busiest:.3f}) over {count} lines of steps with at least {BIG_STEP_TOKENS} tokens"
    ]
    if any(e.kind == "rearrange" for e in engine.event):
        said.append(f"{sum(e.kind == 'rearrange' for e in engine.event)} rearrangements started")
    if busiest >= BALANCED and not books.model.ok:
        return Row(
            known=False,
            bound=_bound(books),
            fact=f"balancedness {1 / busiest:.2f}",
            conditions=(books.model.refused or "no step model",),
            evidence=tuple(said),
        )
    if busiest >= BALANCED:
        said.append(
            f"decode steps {100 * found[0]:.0f} % and steps with prompts {100 * found[1]:.0f} % longer than balanced ones"
        )
    return Row(
        cells={
            Stage.DECODE: books.decode.get("moe", 0.0),
            Stage.PREFILL: books.prefill.get("moe", 0.0),
            Stage.QUEUE: books.queue.get("moe", 0.0),
        },
        pressure=min(1.0, busiest / ranks(engine)),
        fact=f"balancedness {1 / busiest:.2f}",
        conditions=(
            f"grouped expert products reach {GEMM_SHARE[1]} of the FLOP peak (0.45 to 0.8)",
            "popularity inside a rank is taken as even",
        ),
        evidence=tuple(said),
    )


def _bound(books: Books) -> dict[Stage, float]:
    """The most that a busiest rank can take: all but its even share."""
    most = 1 - 1 / max(ranks(books.engine), 2.0)
    return {stage: books.stages[stage] * most for stage in (Stage.DECODE, Stage.PREFILL, Stage.QUEUE)}


def _ruled_out(engine: Engine) -> str | None:
    facts = engine.facts
    shape = facts.get("shape") or {}
    if shape and not shape.get("experts"):
        return "the model is dense"
    if facts.get("args_known") and not facts.get("expert_parallel"):
        return "experts are not spread over ranks (no --enable-expert-parallel)"
    if facts.get("args_known") and ranks(engine) < 2:
        return "one rank holds all experts"
    return None


def _why_not(engine: Engine) -> tuple[str, str]:
    """Why the imbalance is not known, and what would tell."""
    lines = [e for e in engine.event if e.kind == "eplb"]
    if lines and not right_axis(engine):
        said = f"the balancedness lines of vLLM {engine.version or '(version unknown)'} may be over layers, not ranks: they do not measure imbalance"
        return said, MEASURE
    if not lines:
        unless = "" if engine.facts.get("args_known") else "; the arguments are not known: experts may be spread over ranks, unseen"
        return f"no balancedness line: expert imbalance is in no metric of vLLM{unless}", MEASURE
    shape, count = engine.facts.get("shape") or {}, iota(engine)[1]
    if not all(math.isfinite(steps.number(shape.get(name))) for name in ("layers", "experts_per_token", "experts")):
        return "the balancedness lines are there, but the model's shape is not known: nothing tells which are of big steps", "the model's config.json"
    if count < MIN_LINES:
        said = f"{count} balancedness lines of steps with at least {BIG_STEP_TOKENS} tokens, of {MIN_LINES} that are needed"
        return said, "a longer recording under load, or a smaller log_balancedness_interval"
    if not len(engine.step.get("ts", ())):
        said = "the balancedness lines are there, but no iteration lines: nothing tells which steps were as unbalanced"
        return said, "--enable-logging-iteration-details"
    return "the balancedness lines are there, but not what the device can do, or how long steps took", "the start of the log (device, arguments)"


def refusal(engine: Engine, settled: bool = False) -> Refusal | None:
    """What to measure, where experts are spread and nothing usable says how evenly (`settled`: the row has seconds)."""
    if settled or _ruled_out(engine):
        return None
    lines = any(e.kind == "eplb" for e in engine.event)
    if not engine.facts.get("expert_parallel") and not lines:
        return None
    why, measure = _why_not(engine)
    return Refusal(f"MoE imbalance: {why}", f"{measure}, or per-rank loads")


def sign(engine: Engine) -> Sign | None:
    """Never named from a state: the line of older versions is wrong, and one line is no measure."""
    del engine
    return None
