"""The step-time model: what one engine step costs, fitted on windows of many steps.

    t = max(L [tokens above the CUDA-graph size], b P + q Q) + a + c D

P prompt tokens computed in the step, Q token pairs (prompt tokens x context), D decoding sequences; a seconds a step, b
seconds a prompt token, q seconds a pair, c seconds a decoding sequence, L the launch floor of steps without CUDA graph. A graph
runs with all the places it was captured for: where iteration lines show that the empty ones cost as well, D counts them.
Single steps are never used: asynchronous scheduling moves cost between neighbours (attribution.md section 1, fact 7).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from analyzers.model import Array, Engine

TRIM: Final = 6.0  # median absolute deviations above which a window held a stall or idle time
MIN_WINDOWS: Final = 12  # busy windows below which nothing is fitted (attribution.md section 7)
MAX_CONDITION: Final = 1e3
MAX_CORRELATION: Final = 0.95
MIN_VARIATION: Final = 0.05  # coefficient of variation of a step's prompt tokens below which their cost is not seen
BLOCK: Final = 16  # rows of the JSON log a block: fewer are scattered by asynchronous scheduling
DECISIVE: Final = 10.0  # BIC by which counting the empty places of CUDA graphs must fit better
LAUNCH_GRID: Final = (0.0, 0.008, 0.012, 0.016, 0.02, 0.03, 0.04, 0.05, 0.06, 0.075, 0.09, 0.105, 0.12, 0.14)
# terms tried, simplest first: a step, b token, c sequence, q pair, m step with a prompt
LADDER: Final = ((0, 1), (0, 1, 2), (0, 1, 2, 4), (0, 1, 2, 3))

# memory GiB, bytes/s, dense bf16 FLOP/s by device name (vendor data sheets)
DEVICES: Final[Mapping[str, tuple[float, float, float]]] = {
    "B200": (179.0, 8.0e12, 2250e12),
    "MI300X": (192.0, 5.3e12, 1307e12),
    "H200": (140.0, 4.8e12, 989e12),
    "H100 NVL": (94.0, 3.9e12, 835e12),
    "H100": (79.6, 3.35e12, 989e12),
    "A100": (79.6, 2.0e12, 312e12),
    "A100-SXM4-40GB": (39.6, 1.6e12, 312e12),
    "A100-PCIE-40GB": (39.6, 1.6e12, 312e12),
    "L40S": (44.5, 0.864e12, 362e12),
    "L4": (22.2, 0.3e12, 121e12),
}
MEMORY_MATCH: Final = (0.93, 1.02)  # observed share of the nominal memory: activations and graphs are not in what vLLM says


@dataclass(frozen=True, slots=True)
class Rows:
    """Windows of steps: arrays of equal length.

    t0 start, dt seconds, n steps, prompt computed tokens, decode sequence-steps, pairs Q, mixed steps with a prompt,
    running/waiting/usage means, beside = sum over steps of P x D where steps are seen (else None), busy = usable.
    """

    t0: Array
    dt: Array
    n: Array
    prompt: Array
    decode: Array
    pairs: Array
    mixed: Array
    running: Array
    waiting: Array
    usage: Array
    arrivals: Array
    own_points: Array  # quantiles of a prompt's computed tokens, one row a window (7 columns), for the launch floor
    own_weights: Array
    prompts_n: Array  # prompts computed in the window
    beside: Array | None
    busy: Array
    source: str
    places: Array | None = None  # decode sequence-steps with the empty places of their CUDA graphs, where steps are seen

    def launch(self, floor_s: float, b: float, q: float, graph: float, budget: float) -> Array:
        """Seconds that steps above the CUDA-graph size last longer than their tokens cost."""
        if floor_s <= 0:
            return np.zeros(len(self.dt))
        p = self.own_points
        cost = b * np.minimum(p, budget) + q * p * p / 2
        return np.asarray(self.prompts_n * (((p > graph) * np.maximum(0.0, floor_s - cost)) @ self.own_weights))


@dataclass(frozen=True, slots=True)
class StepModel:
    """Coefficients in seconds (per step, token, sequence, pair, launch, mixed step); `refused` says why there is none."""

    a: float = 0.0
    b: float = 0.0
    c: float = 0.0
    q: float = 0.0
    launch_s: float = 0.0
    mixed_s: float = 0.0
    b_min: float = 0.0
    c_min: float = 0.0
    graph: float = math.inf
    budget: float = 8192.0
    windows: int = 0
    residual_ratio: float = math.nan
    condition: float = math.nan
    source: str = ""
    refused: str | None = None
    notes: tuple[str, ...] = ()
    unsplit: str | None = None  # why the cost of prompts is not known apart from that of the batch, although the sum fits
    extra: Array = field(default_factory=lambda: np.zeros(0))  # launch seconds by window
    graphs: tuple[float, ...] = ()  # sizes that decode batches are padded to; empty: what is padded costs nothing

    @property
    def ok(self) -> bool:
        """True where there is a fit."""
        return self.refused is None

    def batch(self, windows: Rows) -> Array:
        """Decode sequence-steps that cost `c` each, by window."""
        return windows.places if self.graphs and windows.places is not None else windows.decode

    def pairs_of(self, computed: float, context: float, cv: float = 0.0) -> float:
        """Token pairs of a prompt that computes `computed` tokens after `context` cached ones."""
        return computed * (context + computed / 2) * (1 + min(cv, 1.0) ** 2)

    def prompt_s(self, computed: float, context: float = 0.0, cv: float = 0.0) -> float:
        """Seconds that one prompt adds to the steps that compute it."""
        work = self.b * computed + self.q * self.pairs_of(computed, context, cv)
        return max(work, self.launch_s) if computed > self.graph else work


def number(value: object, default: float = math.nan) -> float:
    """A fact as a float; `default` where it is missing or no number."""
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return default


def kv_bytes_per_token(engine: Engine) -> float:
    """Bytes of KV cache a token takes on one GPU, from the model's shape; NaN where the shape is unknown."""
    shape = engine.facts.get("shape") or {}
    layers, heads, dim = (number(shape.get(k)) for k in ("layers", "kv_heads", "head_dim"))
    size = 1 if str(engine.facts.get("kv_dtype", "auto")).startswith("fp8") else 2
    return 2 * size * layers * heads * dim / max(1.0, number(engine.facts.get("tensor_parallel"), 1.0))


def parameters_per_token(engine: Engine) -> float:
    """Parameters that a token passes through on one GPU (dense, or the top-k experts); NaN where unknown."""
    shape = engine.facts.get("shape") or {}
    h, layers, heads, kv, dim = (number(shape.get(k)) for k in ("hidden", "layers", "heads", "kv_heads", "head_dim"))
    inner = number(shape.get("intermediate"))
    if shape.get("experts"):
        inner = number(shape.get("moe_intermediate")) * number(shape.get("experts_per_token"))
    return layers * (h * dim * (2 * heads + 2 * kv) + 3 * h * inner) / max(1.0, number(engine.facts.get("tensor_parallel"), 1.0))


def parameters_held(engine: Engine) -> float:
    """Parameters that one GPU holds, all experts and embeddings included; NaN where the shape is unknown."""
    shape = engine.facts.get("shape") or {}
    if not shape.get("experts"):
        layers = parameters_per_token(engine)
    else:
        whole = {**shape, "experts_per_token": shape["experts"]}
        layers = parameters_per_token(Engine("", "", facts={**engine.facts, "shape": whole}))
    return layers + 2 * number(shape.get("vocabulary"), 0.0) * number(shape.get("hidden"), 0.0) / max(
        1.0, number(engine.facts.get("tensor_parallel"), 1.0)
    )


def device(engine: Engine) -> tuple[float, float, str] | None:
    """(memory bytes/s, FLOP/s, how it is known) of the GPU; None where nothing says it.

    Where only its memory is known it is taken as the fastest device with so much: bounds made from it stay bounds.
    """
    name = str(engine.facts.get("device_name") or "").upper()
    for known in sorted(DEVICES, key=len, reverse=True):
        if name and known in name:
            _, bandwidth, flops = DEVICES[known]
            return bandwidth, flops, f"device {known}"
    memory = number(engine.facts.get("memory_gib"))
    fit_memory = [d for d in DEVICES.values() if MEMORY_MATCH[0] * d[0] <= memory <= MEMORY_MATCH[1] * d[0]]
    if not fit_memory or str(engine.facts.get("device") or "cuda") == "cpu":
        return None
    return max(d[1] for d in fit_memory), max(d[2] for d in fit_memory), f"fastest device with {memory:.0f} GiB of memory"


def padded(decoding: Array, graphs: Sequence[float]) -> Array:
    """Places of the CUDA graphs that run so many sequences: the next captured size; beyond the largest, and of none, no more."""
    sizes = np.array(sorted(graphs), dtype=float)
    if not len(sizes):
        return decoding
    at = np.minimum(np.searchsorted(sizes, decoding), len(sizes) - 1)
    return np.where((decoding > 0) & (decoding <= sizes[-1]), sizes[at], decoding)


def rows(engine: Engine) -> Rows | None:
    """The best windows there are: blocks of the JSON log, else scrape intervals, else seconds of the text log."""
    fine = engine.step.get("fine")
    if fine is not None and len(fine) >= 200 and bool(np.all(fine.astype(bool))) and not _several_writers(engine):
        return _from_log(engine, blocks=True)
    if len(engine.interval.get("ts", ())) and np.nansum(engine.interval["step_n"]) > 0:
        return _from_interval(engine)
    if fine is not None and len(fine) >= 200:
        return _from_log(engine, blocks=False)
    return None


def _several_writers(engine: Engine) -> bool:
    return number(engine.facts.get("api_servers"), 1.0) > 1


def lengths(engine: Engine) -> tuple[float, float, float, float]:
    """Mean prompt tokens, mean output tokens and their coefficients of variation, of the finished requests."""
    t = engine.total
    n = t.get("request_prompt_n") or t.get("e2e_n") or math.nan
    prompt, output = t.get("request_prompt_tokens", math.nan) / n, t.get("request_output_tokens", math.nan) / n
    if not math.isfinite(prompt) and t.get("ttft_n"):
        prompt, output = t.get("prompt_tokens", math.nan) / t["ttft_n"], t.get("generation_tokens", math.nan) / t["ttft_n"]
    spread = [_bucket_cv(engine, f"vllm:request_{k}_tokens") for k in ("prompt", "generation")]
    return prompt, output, spread[0], spread[1]


def _bucket_cv(engine: Engine, family: str) -> float:
    le, n = engine.bucket.get(family, (np.zeros(0), np.zeros(0)))
    if len(le) == 0 or n.sum() <= 0:
        return 0.5
    low = np.concatenate([[1.0], le[:-1]])
    middle = (low + np.where(np.isinf(le), low * 2, le)) / 2
    mean = float((n * middle).sum() / n.sum())
    return math.sqrt(max(float((n * (middle - mean) ** 2).sum() / n.sum()), 0.0)) / max(mean, 1.0)


def hit_ratio(engine: Engine) -> float:
    """Share of prompt tokens that were not computed (local and external hits); NaN where no counter says it."""
    t = engine.total
    prompt = t.get("prompt_tokens", 0.0)
    if prompt > 0 and "computed_tokens" in t:
        return (t.get("local_hit_tokens", 0.0) + t.get("external_hit_tokens", 0.0)) / prompt
    if engine.facts.get("prefix_caching") is False:
        return 0.0
    if t.get("prefix_query_tokens", 0.0) > 0:  # a ratio: also right where 0.8.5 counts blocks
        return t.get("prefix_hit_tokens", 0.0) / t["prefix_query_tokens"]
    return math.nan


def computed_by_interval(engine: Engine) -> Array:
    """Prompt tokens computed in each interval."""
    row = engine.interval
    if np.isfinite(row["computed_tokens"]).any():
        return np.asarray(np.nan_to_num(row["computed_tokens"]))
    h = hit_ratio(engine)
    return np.asarray(np.nan_to_num(row["prompt_tokens"])) * (1 - (h if math.isfinite(h) else 0.0))


def recomputed_tokens(engine: Engine) -> tuple[float, float, float, str]:
    """Prompt tokens computed again after preemptions: estimate, low, high, and how it is known.

    No counter has them. Iteration lines do: context tokens beyond the computed prompt tokens (GPU), or generation tokens
    beyond one a request (CPU). Else between nothing (freed blocks were still cached) and preemptions x context.
    """
    n = engine.total.get("preemptions", 0.0)
    if not n:
        return 0.0, 0.0, 0.0, "no preemptions"
    step = engine.step
    if len(step.get("ts", ())) and "computed_tokens" in engine.total and not _several_writers(engine):
        context = float(np.nansum(step["context_tokens"])) - engine.total["computed_tokens"]
        excess = float(np.nansum(np.maximum(step["generation_tokens"] - step["generation_requests"], 0.0)))
        seen = max(0.0, context) + (0.0 if engine.facts.get("speculative") else excess)
        return seen, seen, seen, "iteration lines: tokens beyond first prefills"
    prompt, output, _, _ = lengths(engine)
    full = n * (prompt + output / 2)
    if not math.isfinite(full):
        return 0.0, 0.0, math.inf, "lengths unknown"
    share = 1.0 if engine.facts.get("prefix_caching") is False else 0.5
    return (
        share * full,
        full if share == 1.0 else 0.0,
        full,
        "preemptions x context" + ("" if share == 1.0 else ", half of it: freed blocks may still be cached"),
    )


def _from_log(engine: Engine, *, blocks: bool) -> Rows:
    """Windows from iteration lines: blocks of 16 rows by their millisecond stamps, or whole log seconds."""
    order = np.argsort(engine.step["ts"], kind="stable")
    keep = order[~engine.step["dummy"][order].astype(bool)]
    s = {
        name: engine.step[name][keep]
        for name in ("ts", "context_requests", "context_tokens", "generation_requests", "kv_usage_ratio")
    }
    stamp, P, M, D = s["ts"], s["context_tokens"], s["context_requests"], s["generation_requests"]
    if blocks:
        k = (len(stamp) - 1) // BLOCK * BLOCK
        group, starts = np.repeat(np.arange(k // BLOCK), BLOCK), stamp[0:k:BLOCK]
        ends, part = stamp[BLOCK : k + 1 : BLOCK], slice(1, k + 1)
    else:
        second = stamp.astype(int)
        inner = (second > second[0]) & (second < second[-1])
        part = slice(int(np.argmax(inner)), len(second) - int(np.argmax(inner[::-1])))
        group = second[part] - second[part][0]
        starts = np.arange(group[-1] + 1) + float(second[part][0])
        ends = starts + 1.0
    P, M, D = P[part], M[part], D[part]

    def total(x: Array) -> Array:
        return np.bincount(group, weights=x, minlength=len(starts))

    budget = _budget(engine)
    per = P / np.maximum(M, 1)
    pairs = P * np.where(budget <= P + D, np.maximum(budget, per) / 2 * 1.2, per / 2)
    n, dt = total(np.ones(len(P))), ends - starts
    mid = (starts + ends) / 2
    count = total(M)
    own = np.where(count > 0, total(P) / np.maximum(count, 1), 0.0)
    usage = total(np.nan_to_num(s["kv_usage_ratio"][part])) / np.maximum(n, 1)
    busy = (dt < BLOCK * 0.3) & (n > 0) if blocks else n > BLOCK / 2
    first = _at(engine, "ttft_n", mid, dt)
    return Rows(
        starts,
        dt,
        n,
        total(P),
        total(D),
        total(pairs),
        total((M > 0).astype(float)),
        total(D + M) / np.maximum(n, 1),
        _gauge(engine, "waiting", mid),
        usage,
        first,
        own[:, None],
        np.ones(1),
        count,
        total(P * D),
        busy & (dt > 0),
        "blocks of 16 iteration lines" if blocks else "seconds of iteration lines",
        total(padded(D, engine.facts.get("graph_sizes") or ())),
    )


def _gauge(engine: Engine, name: str, at: Array) -> Array:
    row = engine.interval
    if not len(row.get("ts", ())):
        return np.zeros(len(at))
    return np.asarray(np.interp(at, row["ts"], np.nan_to_num(row[name])))


def _at(engine: Engine, name: str, mid: Array, dt: Array) -> Array:
    """Increase of a counter over windows that are not scrape intervals, by interpolation."""
    row = engine.interval
    if not len(row.get("ts", ())):
        return np.zeros(len(mid))
    cumulative = np.cumsum(np.nan_to_num(row[name]))
    return np.asarray(np.interp(mid + dt / 2, row["ts"], cumulative) - np.interp(mid - dt / 2, row["ts"], cumulative))


def _budget(engine: Engine) -> float:
    return number(engine.facts.get("max_num_batched_tokens"), 8192.0)


def _from_interval(engine: Engine) -> Rows:
    """Windows from scrape intervals; with spans, each prompt's work is placed where it was computed."""
    row = engine.interval

    def get(name: str) -> Array:
        """A column with unknown as nothing."""
        return np.asarray(np.nan_to_num(row[name]))

    prompt, _, cv, _ = lengths(engine)
    h = hit_ratio(engine)
    h = h if math.isfinite(h) else 0.0
    dt, n, first = row["dt_s"], get("step_n"), get("ttft_n")
    P = computed_by_interval(engine)
    running = (get("running") + np.nan_to_num(row["running_before"])) / 2
    decode = get("itl_n") if engine.total.get("draft_n") else np.maximum(get("generation_tokens") - first, 0.0)
    n = _steps_once(engine, n, decode, running)
    budget = _budget(engine)
    own = np.where(first > 0, P / np.maximum(first, 1e-9), 0.0)
    cv2 = 0.0 if not len(own) or own.max() > 3 * prompt else min(cv, 1.0) ** 2
    pairs = P * own * (1 + cv2) / 2 * (1 + h) / max(1 - h, 0.05)
    spread = np.exp(np.array([-1.6, -0.85, -0.4, 0.0, 0.4, 0.85, 1.6]) * math.sqrt(math.log(1 + max(cv2, 0.01))))
    weights = np.array([0.1, 0.15, 0.17, 0.16, 0.17, 0.15, 0.1])
    points = own[:, None] * (spread / spread.mean())[None]
    chunks = first * np.maximum(1.0, own / budget)
    placed = _placed(engine, row["ts"], dt, budget)
    if placed is not None:
        P, pairs, chunks, first_placed, points, weights = placed
        prompts_n = first_placed
    else:
        prompts_n = first
    again, _, _, _ = recomputed_tokens(engine)
    preempted = get("preemptions")
    if preempted.sum() > 0 and again > 0:
        context = again / preempted.sum()
        P, pairs, chunks = P + preempted * context, pairs + preempted * context * context / 2, chunks + preempted
    mixed = n * (1 - np.exp(-chunks / np.maximum(n, 1.0)))
    typical = float(np.median(dt)) if len(dt) else 1.0
    busy = (
        (get("running") > 0)
        & (np.nan_to_num(row["running_before"]) > 0)
        & (n >= 1)
        & (dt < 1.8 * typical)
        & (dt > 0)
        & ~row["restarted"].astype(bool)
    )
    usage = (get("kv_usage_ratio") + np.nan_to_num(row["kv_usage_ratio_before"])) / 2
    waiting = (get("waiting") + np.nan_to_num(row["waiting_before"])) / 2
    arrivals = np.maximum(first + get("waiting") - np.nan_to_num(row["waiting_before"]), 0.0)
    return Rows(
        row["ts"] - dt,
        dt,
        n,
        P,
        decode,
        pairs,
        mixed,
        running,
        waiting,
        usage,
        arrivals,
        points,
        weights,
        prompts_n,
        None,
        busy,
        "scrape intervals" + (", prompts placed by request times" if placed is not None else ""),
    )


def _steps_once(engine: Engine, n: Array, decode: Array, running: Array) -> Array:
    """Steps, where several API servers each count the steps in which they have outputs: decode / running instead."""
    if not _several_writers(engine):
        return n
    t = engine.total
    share = t.get("decode_s", 0.0) / max(1e-9, t.get("decode_s", 0.0) + t.get("prefill_s", 0.0))
    return np.minimum(n, decode / np.maximum(running * share, 1.0))


def _placed(engine: Engine, ts: Array, dt: Array, budget: float) -> tuple[Array, Array, Array, Array, Array, Array] | None:
    """Prompt work spread evenly over [scheduled, first token] of each request's span, summed by interval."""
    req = engine.request
    if not len(req.get("arrival_ts", ())) or not np.isfinite(req["prefill_s"]).any():
        return None
    ok = np.isfinite(req["prefill_s"]) & np.isfinite(req["ttft_s"]) & np.isfinite(req["prompt_tokens"])
    if ok.sum() < 0.9 * engine.total.get("e2e_n", math.inf):
        return None
    first_token = (req["arrival_ts"] + req["ttft_s"])[ok]
    start = first_token - np.maximum(req["prefill_s"][ok], 1e-6)
    cached = np.nan_to_num(req["cached_tokens"][ok])
    computed = np.maximum(req["prompt_tokens"][ok] - cached, 1.0)
    low, high = (ts - dt)[:, None], ts[:, None]
    share = np.clip(np.minimum(high, first_token[None]) - np.maximum(low, start[None]), 0.0, None) / (first_token - start)[None]
    pairs = computed * (cached + computed / 2)
    n = share.sum(1)
    # one representative prompt a window is enough for the launch floor: the weighted quantiles of all prompts
    order = np.argsort(computed)
    cut = np.quantile(computed[order], [0.05, 0.2, 0.35, 0.5, 0.65, 0.8, 0.95])
    points = np.repeat(cut[None], len(ts), axis=0)
    own = np.where(n > 0, (share @ computed) / np.maximum(n, 1e-9), 0.0)
    points = points * (own / max(float(computed.mean()), 1e-9))[:, None]
    return share @ computed, share @ pairs, share @ np.maximum(1.0, np.ceil(computed / budget)), n, points, np.full(7, 1 / 7)


def non_negative(X: Array, y: Array, rounds: int = 5) -> tuple[Array, Array, Array]:
    """Least squares with coefficients >= 0, after dropping rows more than 6 MAD above: coefficients, residuals, kept."""
    keep = np.ones(len(y), bool)
    coef = np.zeros(X.shape[1])
    residual = y
    for _ in range(rounds):
        active = [j for j in range(X.shape[1]) if np.any(X[keep, j] != 0)]
        solution = np.zeros(0)
        while active:
            A = X[keep][:, active]
            scale = np.maximum(np.abs(A).max(0), 1e-30)
            solution = np.linalg.lstsq(A / scale, y[keep], rcond=None)[0] / scale
            if len(active) == 1 or solution.min() >= 0:
                break
            active.pop(int(np.argmin(solution * scale)))
        coef = np.zeros(X.shape[1])
        coef[active] = np.maximum(solution, 0.0) if active else 0.0
        residual = y - X @ coef
        spread = float(np.median(np.abs(residual[keep] - np.median(residual[keep])))) + 1e-9
        new = residual - np.median(residual[keep]) < TRIM * spread  # one-sided: idle time and stalls only add
        if bool((new == keep).all()) or new.sum() < X.shape[1] + 3:
            break
        keep = new
    return coef, residual, keep


def fit(engine: Engine, windows: Rows | None = None) -> StepModel:
    """Fit the model on the engine's windows; a StepModel with `refused` where the data cannot carry one."""
    windows = windows or rows(engine)
    if windows is None:
        return StepModel(
            refused="no iteration counters: no step costs; give /metrics scrapes or --enable-logging-iteration-details"
        )
    use = windows.busy
    if use.sum() < MIN_WINDOWS:
        return StepModel(
            refused=f"only {int(use.sum())} busy windows of at least {MIN_WINDOWS}: no step costs; give a longer recording",
            source=windows.source,
        )
    y = windows.dt[use]
    graph = number(engine.facts.get("graph_size"), math.inf)
    budget = _budget(engine)
    _, _, cv, _ = lengths(engine)
    graphs: tuple[float, ...] = ()
    best, X, b_min, c_min = _best(engine, windows, windows.decode, y, cv, graph, budget)
    if windows.places is not None and (windows.places > windows.decode).any():
        other = _best(engine, windows, windows.places, y, cv, graph, budget)
        if best is not None and other[0] is not None and other[0][0] < best[0] - DECISIVE:
            best, X, b_min, c_min = other
            graphs = tuple(float(x) for x in engine.facts.get("graph_sizes") or ())
    if best is None:
        return StepModel(refused="no positive cost of a step fits the windows: no step costs", source=windows.source)
    _, coef, residual, floor_s = best
    scaled = X[:, :3] / np.maximum(np.abs(X[:, :3]).max(0), 1e-12)
    condition = float(np.linalg.cond(scaled[:, np.abs(scaled).max(0) > 0]))
    model = StepModel(
        a=float(coef[0]),
        b=float(coef[1]) + b_min,
        c=float(coef[2]) + c_min,
        q=float(coef[3]),
        launch_s=floor_s,
        mixed_s=float(coef[4]),
        b_min=b_min,
        c_min=c_min,
        graph=graph,
        budget=budget,
        windows=int(use.sum()),
        residual_ratio=float(np.median(np.abs(residual)) / max(float(np.median(y)), 1e-12)),
        condition=condition,
        source=windows.source,
        refused=f"step costs cannot be told apart (condition number {min(condition, 1e6):.0f}{' or more' if condition > 1e6 else ''} above {MAX_CONDITION:.0f}); give iteration lines (--enable-logging-iteration-details)"
        if condition > MAX_CONDITION
        else None,
        notes=()
        if b_min and c_min
        else ("model shape or device unknown: step costs without lower bounds; add the model's config.json",),
        unsplit=_unsplit(X),
        graphs=graphs,
    )
    object.__setattr__(model, "extra", windows.launch(floor_s, model.b, model.q, graph, budget))
    return model


def _best(
    engine: Engine, windows: Rows, decode: Array, y: Array, cv: float, graph: float, budget: float
) -> tuple[tuple[float, Array, Array, float] | None, Array, float, float]:
    """The model of the ladder with the lowest BIC: ((BIC, coefficients, residuals, launch floor), regressors, bounds of b and c)."""
    use = windows.busy
    X = np.stack([windows.n, windows.prompt, decode, windows.pairs, windows.mixed], 1)[use]
    b_min, c_min = _bounds(engine, X, y)
    best: tuple[float, Array, Array, float] | None = None
    for floor_s in LAUNCH_GRID if cv > 0.3 and math.isfinite(graph) else (0.0,):
        for terms in LADDER:
            if cv <= 0.3 and 4 in terms:
                continue  # one prompt length: cost per token and per prompt look the same
            found = _ladder_step(windows, use, X, y, terms, floor_s, graph, budget, b_min, c_min)
            if found is not None and (best is None or found[0] < best[0]):
                best = (*found, floor_s)
    return best, X, b_min, c_min


def refit(windows: Rows, model: StepModel, index: Array) -> StepModel:
    """Fit the same terms to windows drawn again (`index` into them): how far the coefficients move.

    The model itself where the draw cannot carry a fit.
    """
    terms = [
        j for j, value in enumerate((1.0, model.b - model.b_min, model.c - model.c_min, model.q, model.mixed_s)) if value > 0
    ]
    X = np.stack([windows.n, windows.prompt, model.batch(windows), windows.pairs, windows.mixed], 1)
    y = windows.dt - model.c_min * X[:, 2] - model.b_min * X[:, 1] - (model.extra if len(model.extra) == len(windows.dt) else 0.0)
    only = np.zeros_like(X)
    only[:, terms] = X[:, terms]
    # windows that the fit left out as stalled stay out: drawn several times they would pass for what steps cost
    was = np.array([model.a, model.b - model.b_min, model.c - model.c_min, model.q, model.mixed_s])
    residual = (y - only @ was) / np.maximum(windows.dt, 1e-9)
    # stalls and idle time only add: how far windows scatter is read below the median
    middle = float(np.median(residual[windows.busy])) if windows.busy.any() else 0.0
    below = middle - residual[windows.busy & (residual <= middle)]
    spread = float(np.median(below)) + 1e-9 if len(below) else 1e-9
    usable = windows.busy & (residual - middle < TRIM * spread)
    use = index[usable[index]]
    if len(use) < MIN_WINDOWS:
        return model
    weight = 1 / np.maximum(windows.dt[use], 1e-9)
    coef, _, _ = non_negative(only[use] * weight[:, None], y[use] * weight, 2)
    if coef[0] <= 0:
        return model
    return replace(
        model,
        a=float(coef[0]),
        b=float(coef[1]) + model.b_min,
        c=float(coef[2]) + model.c_min,
        q=float(coef[3]),
        mixed_s=float(coef[4]),
    )


def _bounds(engine: Engine, X: Array, y: Array) -> tuple[float, float]:
    """Lower bounds of b (FLOPs) and c (KV bytes) from the model's shape and the device; 0 where unknown."""
    known = device(engine)
    if known is None:
        return 0.0, 0.0
    bandwidth, flops, _ = known
    prompt, output, _, _ = lengths(engine)
    c_min = 0.8 * kv_bytes_per_token(engine) * (prompt + output / 2) / bandwidth
    b_min = 2 * parameters_per_token(engine) / flops
    c_min = min(c_min, 0.5 * float(y.sum() / max(X[:, 2].sum(), 1.0))) if math.isfinite(c_min) else 0.0
    b_min = min(b_min, 0.8 * float(y.sum() / max(X[:, 1].sum(), 1.0))) if math.isfinite(b_min) else 0.0
    return b_min, c_min


def _ladder_step(
    windows: Rows,
    use: Array,
    X: Array,
    y: Array,
    terms: tuple[int, ...],
    floor_s: float,
    graph: float,
    budget: float,
    b_min: float,
    c_min: float,
) -> tuple[float, Array, Array] | None:
    """One model of the ladder at one launch floor: BIC (lower is better), coefficients above the bounds, residuals."""
    b, q = 2e-5, 0.0
    coef, residual = np.zeros(5), y
    only = np.zeros_like(X)
    only[:, list(terms)] = X[:, list(terms)]
    for _ in range(3 if floor_s else 1):
        extra = windows.launch(floor_s, b, q, graph, budget)[use]
        # each window counts by its relative error: short ones, with few sequences, tell the cost of a sequence
        coef, relative, _ = non_negative(only / y[:, None], (y - c_min * X[:, 2] - b_min * X[:, 1] - extra) / y)
        residual = relative * y
        b, q = float(coef[1]) + b_min, float(coef[3])
    if coef[0] <= 0:
        return None
    spread = float(np.median(np.abs(residual))) * 1.4826 + 1e-6
    size = len(terms) + (floor_s > 0)
    return len(y) * math.log(spread**2) + 1.5 * size * math.log(len(y)), coef, residual


def _unsplit(X: Array) -> str | None:
    """Why prompts cannot be told from the rest of the steps, although a fit exists; None where they can."""
    per_step = X[:, 1] / np.maximum(X[:, 0], 1e-9)
    if not per_step.mean() > 0:
        return None  # no prompts: nothing to tell apart
    varies = float(per_step.std() / per_step.mean())
    if varies < MIN_VARIATION:
        return f"the prompt tokens of a step hardly vary (by {100 * varies:.0f} %)"
    if X[:, 2].std() > 0:
        together = abs(float(np.corrcoef(X[:, 1], X[:, 2])[0, 1]))
        if together > MAX_CORRELATION:
            return f"prompt tokens and batch size move together (correlation {together:.2f})"
    return None
