"""Engines as a window shows them, made from chosen numbers: by formula (`engine_of`), or from a replay (`observed`).

`interval_of` makes hand-written intervals complete: every column of queries/views/20_interval.sql, NaN where nothing is said.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np

from analyzers.model import Array, Attribution, Engine, Event, Row, Stage, Target, Window
from analyzers.steps import StepModel

NOON: Final = 1_795_953_600.0  # the clock of every synthetic engine
GAUGES: Final = ("running", "waiting", "deferred", "kv_usage_ratio")
COUNTERS: Final = (
    "ttft_s", "ttft_n", "queue_s", "queue_n", "prefill_s", "prefill_n", "decode_s", "decode_n", "e2e_s", "e2e_n", "itl_s", "itl_n",
    "prompt_tokens", "generation_tokens", "computed_tokens", "local_hit_tokens", "external_hit_tokens", "prefix_query_tokens",
    "prefix_hit_tokens", "preemptions", "step_n", "step_tokens", "request_prompt_tokens", "request_prompt_n",
    "request_output_tokens", "aborted_n", "draft_n", "draft_tokens", "accepted_tokens", "nixl_transfer_s", "nixl_transfer_n",
    "nixl_post_s", "nixl_bytes", "offload_load_s", "offload_load_bytes", "offload_load_n", "http_s", "http_n", "process_cpu_s",
)  # fmt: skip
ITL_EDGES: Final = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, math.inf)
LENGTH_EDGES: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, math.inf)
STEP_EDGES: Final = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, math.inf)

# a step of 10 ms, 20 µs a prompt token, 50 µs a sequence
A: Final = 0.010
B: Final = 20e-6
C: Final = 50e-6
FACTS: Final[Mapping[str, Any]] = {
    "args": {}, "args_known": True, "max_num_seqs": 256, "max_num_batched_tokens": 8192, "kv_blocks": 100_000.0, "block_size": 16,
    "prefix_caching": True, "tensor_parallel": 1, "data_parallel": 1, "api_servers": 1, "expert_parallel": False, "eplb": False,
    "speculative": False, "connector": False,
}  # fmt: skip
# Qwen3-30B-A3B: 48 layers of 128 experts, 8 a token
MOE: Final[Mapping[str, float]] = {
    "layers": 48, "hidden": 2048, "heads": 32, "kv_heads": 4, "head_dim": 128, "intermediate": 6144, "experts": 128,
    "experts_per_token": 8, "moe_intermediate": 768, "vocabulary": 151_936,
}  # fmt: skip
# Llama-3.1-8B
DENSE: Final[Mapping[str, float]] = {
    "layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "head_dim": 128, "intermediate": 14_336, "vocabulary": 128_256,
}  # fmt: skip


def interval_of(n: int, dt_s: float = 1.0, **columns: Any) -> dict[str, Array]:
    """`n` intervals with these columns (a number stands for all rows); a gauge's `_before` is the row above, 0 at first."""
    row: dict[str, Array] = {
        "ts": NOON + dt_s * (1 + np.arange(n)),
        "dt_s": np.full(n, dt_s),
        "timed": np.ones(n, bool),
        "epoch": np.zeros(n),
        "restarted": np.zeros(n, bool),
    }
    for name in (*GAUGES, *COUNTERS):
        row[name] = np.full(n, math.nan)
    for name, value in columns.items():
        row[name] = np.broadcast_to(np.asarray(value, bool if name in {"timed", "restarted"} else float), (n,)).copy()
    for name in GAUGES:
        before = f"{name}_before"
        if before not in row:
            row[before] = np.concatenate([[0.0 if np.isfinite(row[name]).any() else math.nan], row[name][:-1]])
    return row


def total_of(row: Mapping[str, Array]) -> dict[str, float]:
    """The increase of each counter over the window; one that was never exported is missing."""
    return {name: float(np.nansum(row[name])) for name in COUNTERS if np.isfinite(row[name]).any()}


def facts_of(facts: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """FACTS with changes; a value of None takes the fact away."""
    return {name: value for name, value in {**FACTS, **(facts or {})}.items() if value is not None}


def made(
    row: Mapping[str, Array], facts: Mapping[str, Any] | None = None, total: Mapping[str, float | None] | None = None, **more: Any
) -> Engine:
    """Return an engine of hand-made intervals. `total` replaces sums of the intervals (None takes one away)."""
    sums = {**total_of(row), **(total or {})}
    return Engine(
        instance=more.pop("instance", "10.0.0.1:8000"),
        engine=more.pop("engine", "0"),
        interval=row,
        total={name: value for name, value in sums.items() if value is not None},
        facts=facts_of(facts),
        **more,
    )


def engine_of(
    seconds: int = 60,
    rate: float = 5.0,
    prompt: float = 600.0,
    output: float = 120.0,
    *,
    a: float = A,
    b: float = B,
    c: float = C,
    waiting: Any = 0.0,
    usage: Any = 0.3,
    hit: float = 0.0,
    frontend_s: float = 0.004,
    output_s: float = 0.001,
    prefill_s: float | None = None,
    swing: float = 0.3,
    surge: float | None = None,
    facts: Mapping[str, Any] | None = None,
    columns: Mapping[str, Any] | None = None,
    total: Mapping[str, float | None] | None = None,
    **more: Any,
) -> Engine:
    """Return an engine in a steady state that is consistent to the digit, scraped every second.

    Arrivals (by `surge`, else `swing`) and batch (by `swing`) move with different periods (7 and 11 s), so that a step's costs
    can be told apart. In each second
    n steps last n a + b P + c D n = 1 s; request seconds are the integrals of the gauges (Little's law); the batch is such
    that `output` tokens a request come out. A prompt takes two steps and its own tokens if nothing else is said.
    """
    k = np.arange(seconds)
    arrivals = rate * (1 + (swing if surge is None else surge) * np.cos(2 * np.pi * k / 7))
    computed = arrivals * prompt * (1 - hit)
    wave = 1 + swing * np.cos(2 * np.pi * np.arange(-1, seconds) / 11)

    def steps_at(batch: float) -> tuple[Array, Array]:
        together = batch * (wave[1:] + wave[:-1]) / 2
        return together, (1 - b * computed) / (a + c * together)

    low, high = 0.0, 1e5
    for _ in range(80):
        batch = (low + high) / 2
        together, n = steps_at(batch)
        low, high = (batch, high) if float((together * n).sum()) < float(arrivals.sum()) * (output - 1) else (low, batch)
    together, n = steps_at(low)
    own = 2 * a + b * prompt * (1 - hit) if prefill_s is None else prefill_s
    waits = np.broadcast_to(np.asarray(waiting, float), (seconds,))
    queue = (waits + np.concatenate([waits[:1], waits[:-1]])) / 2
    decoded = together * n
    step = 1 / n
    row = interval_of(
        seconds,
        **{
            "running": low * wave[1:] + rate * own, "running_before": low * wave[:-1] + rate * own,
            "waiting": waits, "waiting_before": np.concatenate([waits[:1], waits[:-1]]), "deferred": 0.0,
            "kv_usage_ratio": usage,
            "kv_usage_ratio_before": np.concatenate([np.broadcast_to(np.asarray(usage, float), (seconds,))[:1], np.broadcast_to(np.asarray(usage, float), (seconds,))[:-1]]),
            "ttft_s": arrivals * frontend_s + queue + rate * own, "ttft_n": arrivals, "queue_s": queue, "queue_n": arrivals,
            "prefill_s": rate * own, "prefill_n": arrivals, "decode_s": together, "decode_n": arrivals,
            "e2e_s": arrivals * (frontend_s + output_s) + queue + rate * own + together, "e2e_n": arrivals,
            "itl_s": decoded * step, "itl_n": decoded,
            "prompt_tokens": arrivals * prompt, "generation_tokens": decoded + arrivals, "computed_tokens": computed,
            "local_hit_tokens": arrivals * prompt * hit, "external_hit_tokens": 0.0, "prefix_query_tokens": arrivals * prompt,
            "prefix_hit_tokens": arrivals * prompt * hit, "preemptions": 0.0, "step_n": n, "step_tokens": computed + decoded,
            "request_prompt_tokens": arrivals * prompt, "request_prompt_n": arrivals,
            "request_output_tokens": decoded + arrivals, "aborted_n": 0.0, "process_cpu_s": 0.2,
            **(columns or {}),
        },
    )  # fmt: skip
    count = float(arrivals.sum())
    written = {"written_tokens": float((row["computed_tokens"] + row["generation_tokens"]).sum())}
    bucket = more.pop("bucket", None) or {
        "vllm:request_prompt_tokens": narrow(prompt, count),
        "vllm:request_generation_tokens": narrow(output, count),
        "vllm:inter_token_latency_seconds": counted(ITL_EDGES, step, decoded),
    }
    return made(row, {**written, **(facts or {})}, total, bucket=bucket, **more)


def narrow(value: float, count: float) -> tuple[Array, Array]:
    """A histogram whose whole count lies within 2 % of one value."""
    return np.array([0.98 * value, 1.02 * value, math.inf]), np.array([0.0, count, 0.0])


def counted(edges: Iterable[float], values: Array, weights: Array | None = None) -> tuple[Array, Array]:
    """A histogram of values: (upper edges, count of each bucket)."""
    le = np.array(tuple(edges), float)
    return le, np.bincount(np.searchsorted(le, values), weights=weights, minlength=len(le)).astype(float)


def window_of(*engines: Engine) -> Window:
    """A window over these engines."""
    return Window(NOON, NOON + 60.0, engines)


def model_of(a: float = A, b: float = B, c: float = C, **more: Any) -> StepModel:
    """A step model with these costs, as if it had been fitted."""
    more = {"windows": 60, "residual_ratio": 0.0, "condition": 1.0, "source": "by hand", "extra": np.zeros(1), **more}
    return StepModel(a=a, b=b, c=c, **more)


def event(kind: str, *, ts: float = NOON, line: int = 1, **fields: Any) -> Event:
    """A log line's event."""
    return Event(ts, None, kind, fields, "server.log", line)


def balancedness(tokens: float, iota: float, ranks: int = 2) -> Event:
    """A balancedness line of a step with so many tokens, whose busiest rank has `iota` times the mean.

    avg_tokens = tokens x layers x top_k x TP / ranks; with expert parallelism over TP = ranks they cancel.
    """
    average = tokens * MOE["layers"] * MOE["experts_per_token"]
    return event("eplb", avg_tokens=average, max_tokens=iota * average, balancedness=1 / iota, ranks=ranks)


def iteration(
    n: int, seconds: Any, *, prompt: Any = 0.0, decoding: Any = 1.0, prompts: Any = None, fine: bool = True
) -> dict[str, Array]:
    """Iteration lines of `n` steps: stamps at each step's end, in milliseconds where `fine`, else in whole seconds."""
    each = np.broadcast_to(np.asarray(seconds, float), (n,))
    P, D = (np.broadcast_to(np.asarray(x, float), (n,)).copy() for x in (prompt, decoding))
    stamp = NOON + np.cumsum(each)
    return {
        "ts": np.round(stamp, 3) if fine else np.floor(stamp), "fine": np.full(n, fine), "line": np.arange(n),
        "iteration": np.arange(n), "context_requests": np.where(P > 0, 1.0, 0.0) if prompts is None else np.broadcast_to(np.asarray(prompts, float), (n,)).copy(),
        "context_tokens": P, "generation_requests": D, "generation_tokens": D.copy(), "elapsed_s": each.copy(),
        "kv_usage_ratio": np.full(n, 0.3), "dummy": np.zeros(n, bool),
    }  # fmt: skip


def requests_of(n: int, **columns: Any) -> dict[str, Array]:
    """`n` request records with these columns; what is not said is unknown."""
    names = (
        "arrival_ts", "first_token_ts", "end_ts", "prompt_tokens", "output_tokens", "cached_tokens", "ttft_s", "queue_s", "prefill_s",
        "decode_s", "e2e_s", "sent_ts", "client_ttft_s", "client_e2e_s", "chunk_s",
    )  # fmt: skip
    return {name: np.broadcast_to(np.asarray(columns.get(name, math.nan), float), (n,)).copy() for name in names}


def stats_of(**columns: Any) -> dict[str, Array]:
    """Stats lines of the log, 10 s apart; what is not said is 0, the hit ratio unknown."""
    n = max(np.size(value) for value in columns.values())
    names = ("running", "waiting", "deferred", "kv_usage_ratio", "prompt_tokens_per_s", "generation_tokens_per_s")
    row = {name: np.zeros(n) for name in names} | {"prefix_hit_ratio": np.full(n, math.nan), "ts": NOON + 10.0 * np.arange(n)}
    return row | {name: np.broadcast_to(np.asarray(value, float), (n,)).copy() for name, value in columns.items()}


def adds_up(target: Target) -> float:
    """How far measured is from floor + parts + unexplained, seconds."""
    assert target.measured_s is not None
    assert target.floor_s is not None
    assert target.unexplained_s is not None
    return abs(target.measured_s - target.floor_s - sum(p.seconds or 0.0 for p in target.parts) - target.unexplained_s)


def fleet(attribution: Attribution, name: str) -> Target:
    """The fleet's target; it must be there."""
    target = attribution.targets[name]
    assert target is not None
    return target


def said(target: Target) -> str:
    """All that a target says of what it cannot tell: refusals, conditions, and those of unknown parts."""
    texts = [f"{r.what}: {r.measure}" for r in target.cannot_determine]
    texts += [*target.conditions, *(c for p in target.parts for c in p.conditions)]
    return "\n".join(texts)


def cells(row: Row) -> dict[Stage, float]:
    """The cells of a row that hold anything."""
    return {stage: seconds for stage, seconds in row.cells.items() if seconds}
