"""State-time accounting: measured seconds per request, by stage and by reason. Exact: what is split adds up to what was measured.

Means are per finished request. The split of the queue by reason comes from gauges, of decode from the step model; both are
scaled to the measured sums. Nothing here names a cause: links/ does, from these cells.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from analyzers import steps
from analyzers.hits import Hits, hits_of
from analyzers.model import Array, Engine, Refusal, Stage
from analyzers.steps import Rows, StepModel

NOMINAL_FRONTEND_S: Final = 0.012  # healthy servers: TTFT - queue - prefill = 4 to 12 ms (house.md section 2)
NOMINAL_OUTPUT_S: Final = 0.002
STALL_S: Final = 0.08  # attribution.md section 2.11
STALL_TIMES: Final = 3.0
LITTLE_TOLERANCE: Final = 0.10  # attribution.md section 1, fact 2
PREEMPTING_PER_S: Final = 0.3  # from this rate on an interval's waiting is for KV blocks
OTHERS: Final = 0.05  # share of E2E below zero in "output" from which TTFT must be of other requests than the stages
AT_TOP: Final = (
    0.1  # share of the waiting, with as many running as ever, from which an unknown cap matters (some interval is the fullest)
)
STEP_COSTS: Final = "what the steps of this engine cost"
FEW_GAUGES: Final = 4  # scrapes below which gauges do not say why requests waited (at 30 s a minute gave a wrong reason)
REQUEUE_MOST: Final = 0.8  # share of decode that waiting again may take
SHIFT: Final = 0.1  # share of requests by which finished and first-token populations may differ


@dataclass(frozen=True, slots=True)
class Books:
    """One engine's accounting, seconds per finished request.

    stages measured means · queue by reason (kv slots cap deferred budget step stall unread) · prefill own/extra/others/stall ·
    decode base/batch/prompts/requeue/recompute/beside/stall · dwell_s the part of in_flight_s, the wait for the step in flight
    (inside FRONTEND), that prompts in that step cause · stalled_s the wait for steps that stalled (inside FRONTEND too).
    """

    engine: Engine
    windows: Rows | None
    model: StepModel
    requests: int
    stages: Mapping[Stage, float]
    ttft_s: float
    output_tokens: float
    hits: Hits
    queue: Mapping[str, float]
    prefill: Mapping[str, float]
    decode: Mapping[str, float]
    dwell_s: float
    frontend_nominal_s: float
    in_flight_s: float = 0.0
    stalled_s: float = 0.0
    scale: float = 1.0
    little: float = math.nan
    gauges_hold: bool = True
    recomputed: tuple[float, float, float, str] = (0.0, 0.0, 0.0, "")
    requeue_s: float = 0.0
    requeue_unread_s: float = 0.0
    stalls: tuple[float, float] = (0.0, 0.0)
    notes: tuple[str, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    seen: Mapping[str, float] = field(default_factory=dict)


def books(
    engine: Engine,
    windows: Rows | None = None,
    model: StepModel | None = None,
    recomputed_tokens: float | None = None,
    frontend_nominal_s: float = NOMINAL_FRONTEND_S,
    waited: Engine | None = None,
) -> Books | None:
    """The accounting of one engine; None where no request histogram says anything (level `state`).

    `windows` and `model` take the place of the engine's own (resampling), `recomputed_tokens` of the estimate (extremes),
    `frontend_nominal_s` (after input dwell) of the usual 12 ms where a baseline measured it. `waited` is the engine over the time
    in which the requests waited, where that began before the window: its gauges say why, and are taken to be whole.
    """
    t = engine.total
    n = t.get("e2e_n", 0.0)
    if not n or not all(name in t for name in ("e2e_s", "queue_s", "prefill_s", "decode_s")):
        return None
    windows = windows or steps.rows(engine)
    model = model or steps.fit(engine, windows)
    mean = {name: t[f"{name}_s"] / n for name in ("queue", "prefill", "decode", "e2e")}
    ttft = t["ttft_s"] / t["ttft_n"] if t.get("ttft_n") and "ttft_s" in t else math.nan
    stages, notes = _stages(mean, ttft, t, _cut(engine))
    hits = hits_of(engine)
    little, hold = _little(engine)
    recomputed = steps.recomputed_tokens(engine)
    if recomputed_tokens is not None:
        recomputed = (recomputed_tokens, *recomputed[1:])
    requeue = _requeue(engine)
    # where the gauges hold other seconds than the histograms, first waits of requests that have not finished are among them
    requeue, unread_requeue = (requeue, 0.0) if hold else (0.0, min(requeue / n, REQUEUE_MOST * mean["decode"]))
    queue, seen = _queue(waited or engine, mean["queue"], hits, hold or waited is not None, windows, model)
    in_flight, dwell = _in_flight(windows, model, stages[Stage.FRONTEND], frontend_nominal_s)
    decode, scale, stalls = _decode(engine, windows, model, mean["decode"], n, recomputed[0], requeue, unread_requeue)
    prefill = _prefill(engine, model, hits, mean["prefill"])
    beyond = max(0.0, stages[Stage.FRONTEND] - max(in_flight, frontend_nominal_s + dwell))
    queue, prefill, stalled = _held_by_stalls(
        engine, model, stalls, decode["stall"] / max(mean["decode"], 1e-9), queue, prefill, beyond
    )
    refusals = (
        []
        if model.ok
        else [
            Refusal(
                f"{STEP_COSTS} (batch, prompts beside decodes)",
                (model.refused or "").rpartition("; ")[2] or "a longer recording",
            )
        ]
    )
    if model.ok and model.unsplit:
        refusals.append(
            Refusal(
                f"how the steps' seconds split between prompts and the batch: {model.unsplit}",
                "a step in load, or iteration lines (--enable-logging-iteration-details; best with the JSON formatter)",
            )
        )
    if queue["cap"] > 0:
        refusals.append(
            Refusal(
                f"whether a cap of {seen['cap']:.0f} sequences or prompts held back {queue['cap']:.3f} s of queue: max_num_seqs is not known, and {seen['cap']:.0f} is the most that ran",
                "the engine arguments (--max-num-seqs; they stand at the start of the log)",
            )
        )
    if not hold:
        refusals.append(
            Refusal(
                f"why requests waited: the gauges hold {little:.2f} times the seconds that the histograms measured"
                if math.isfinite(little)
                else "why requests waited: no running and waiting gauges with a clock, or too few of them",
                "a drained run or a longer window, scraped without holes"
                if math.isfinite(little)
                else "/metrics scraped every second, or at least four times in the window",
            )
        )
    if hits.refusal:
        refusals.append(hits.refusal)
    return Books(
        engine=engine,
        windows=windows,
        model=model,
        requests=int(n),
        stages=stages,
        ttft_s=ttft,
        output_tokens=steps.lengths(engine)[1],
        hits=hits,
        queue=queue,
        prefill=prefill,
        decode=decode,
        dwell_s=dwell,
        frontend_nominal_s=frontend_nominal_s,
        in_flight_s=in_flight,
        stalled_s=stalled,
        scale=scale,
        little=little,
        gauges_hold=hold,
        recomputed=recomputed,
        requeue_s=requeue / n,
        requeue_unread_s=unread_requeue,
        stalls=stalls,
        notes=(*notes, *model.notes),
        refusals=tuple(refusals),
        seen=seen,
    )


def _stages(
    mean: Mapping[str, float], ttft: float, t: Mapping[str, float], inside: float
) -> tuple[dict[Stage, float], list[str]]:
    """Stage means that add up to E2E. Negative residues of subtraction stay: `attribute` puts them into unexplained.

    `inside` requests were in the engine when the window began or ended: their TTFT and their stages are in different windows.
    """
    rest = mean["e2e"] - mean["queue"] - mean["prefill"] - mean["decode"]
    frontend, notes = ttft - mean["queue"] - mean["prefill"], []
    if not math.isfinite(ttft):
        frontend = rest
        notes.append("TTFT is not exported: front end and output are one number, shown as front end")
    elif abs(t["ttft_n"] - t["e2e_n"]) > SHIFT * t["e2e_n"]:
        notes.append(
            f"TTFT counts {t['ttft_n']:.0f} requests, the stages only the {t['e2e_n']:.0f} that finished: "
            "the front end of those that finished is at most E2E - queue - prefill - decode",
        )
        frontend = min(max(frontend, 0.0), max(rest, 0.0))
    elif frontend - rest > OTHERS * mean["e2e"] and inside > t["e2e_n"] / 2:
        notes.append(
            "TTFT is of other requests than the stages (the window is short, or the load changed in it): "
            "the front end of those that finished is at most E2E - queue - prefill - decode"
        )
        frontend = min(max(frontend, 0.0), max(rest, 0.0))
    if rest - frontend < 0:
        notes.append(
            "output is a difference of means (E2E - TTFT - decode) and came out below zero: TTFT counts unfinished requests and the delay of the first delivery"
        )
    return {
        Stage.FRONTEND: frontend,
        Stage.QUEUE: mean["queue"],
        Stage.PREFILL: mean["prefill"],
        Stage.DECODE: mean["decode"],
        Stage.OUTPUT: rest - frontend,
    }, notes


def _cut(engine: Engine) -> float:
    """Requests in the engine at the beginning and at the end of the window; 0 where no gauge says it."""
    row = engine.interval
    if not len(row.get("ts", ())):
        return 0.0
    first, last = row["running_before"][0] + row["waiting_before"][0], row["running"][-1] + row["waiting"][-1]
    return float(np.nan_to_num(first) + np.nan_to_num(last))


def _integral(engine: Engine, name: str) -> float:
    """Request seconds in a state: the gauge's integral over the window (trapezes; reset at restarts)."""
    row = engine.interval
    ok = np.isfinite(row[name]) & np.isfinite(row[f"{name}_before"]) & ~row["restarted"].astype(bool)
    return float((((row[name] + row[f"{name}_before"]) / 2 * row["dt_s"])[ok]).sum())


def _little(engine: Engine) -> tuple[float, bool]:
    """Seconds in the gauges over seconds in the histograms, and whether they agree within what sampling allows."""
    row, t = engine.interval, engine.total
    if not len(row.get("ts", ())) or not bool(np.all(row["timed"].astype(bool))) or not np.isfinite(row["running"]).any():
        return math.nan, False
    if np.isfinite(row["running"]).sum() < FEW_GAUGES:
        return math.nan, False
    waits = _integral(engine, "waiting")
    seen = _integral(engine, "running") + waits
    measured = t["queue_s"] + t["prefill_s"] + t["decode_s"]
    if measured <= 0:
        return math.nan, False
    ratio = seen / measured
    inside = np.nan_to_num(row["running"] + row["waiting"])
    # a gauge read every second of requests that last less is a sample: allow two of its standard errors
    error = float(inside.std() / max(math.sqrt(len(inside)) * inside.mean(), 1e-9)) if inside.mean() > 0 else 1.0
    return ratio, abs(ratio - 1) <= max(LITTLE_TOLERANCE, 2 * error) and waits >= 0


def _requeue(engine: Engine) -> float:
    """Request seconds of waiting after a preemption: waiting gauge's integral beyond the measured first waits."""
    if not engine.total.get("preemptions") or not len(engine.interval.get("ts", ())):
        return 0.0
    return max(0.0, _integral(engine, "waiting") - engine.total["queue_s"])


def cap_of(engine: Engine) -> tuple[float, str]:
    """max_num_seqs and how it is known; NaN where nothing says it."""
    row = engine.interval
    known = steps.number(engine.facts.get("max_num_seqs"))
    if math.isfinite(known):
        return known, "engine argument"
    if not len(row.get("ts", ())):
        return math.nan, "unknown"
    waiting, running, usage = (np.nan_to_num(row[name]) for name in ("waiting", "running", "kv_usage_ratio"))
    top = float(running.max()) if len(running) else 0.0
    held = waiting > 0
    if held.sum() >= 4 and top > 0:
        at_top = held & (running >= top - 0.5) & (usage < 0.9)
        if at_top.sum() >= 0.5 * held.sum():
            if engine.facts.get("args_known") and top not in {256, 1024}:
                return math.nan, "unknown"  # arguments are known and set no cap: the defaults are 256 and 1024
            return (
                top,
                f"inferred: running stood at {top:.0f} in {100 * at_top.sum() / held.sum():.0f} % of the scrapes with waiting requests",
            )
    return math.nan, "unknown"


def _queue(
    engine: Engine, mean: float, hits: Hits, hold: bool, windows: Rows | None, model: StepModel
) -> tuple[dict[str, float], dict[str, float]]:
    """Queue seconds by reason, in the scheduler's own order: kv, slots, deferred, budget; step = the step in flight.

    cap: with as many running as ever, and max_num_seqs unknown: slots or budget.
    """
    row = engine.interval
    out = dict.fromkeys(("kv", "slots", "cap", "deferred", "budget", "step", "stall", "unread"), 0.0)
    seen: dict[str, float] = {}
    if mean <= 0:
        return out, seen
    waiting_s = _integral(engine, "waiting") if len(row.get("ts", ())) and np.isfinite(row["waiting"]).any() else 0.0
    if np.isfinite(row["deferred"]).any() and waiting_s > 0:
        out["deferred"] = mean * min(1.0, _integral(engine, "deferred") / waiting_s)
    rest = mean - out["deferred"]
    step_s = min(rest, 0.5 * _mean_step(windows, model))
    if waiting_s <= 0 or not bool(np.all(row["timed"].astype(bool))):
        # never seen waiting at a scrape: short waits, behind the step in flight or a full budget
        out["step"], out["budget"] = step_s, rest - step_s
        return out, seen
    reason, seen = _reasons(engine, hits)
    weight = np.nan_to_num((row["waiting"] + row["waiting_before"]) / 2 * row["dt_s"])
    total = float(weight.sum())
    for name in ("kv", "slots"):
        out[name] = rest * float(weight[reason == name].sum()) / total
        seen[f"{name}_share"] = float(weight[reason == name].sum()) / total
    at_top = float(weight[reason == "cap"].sum()) / total
    out["cap"] = rest * at_top if at_top > AT_TOP else 0.0
    free = rest - out["kv"] - out["slots"] - out["cap"]
    out["step"] = min(free, step_s)
    out["budget"] = free - out["step"]
    if not hold and not _clear(seen):
        out["unread"] = out["budget"] + out["kv"] + out["slots"] + out["cap"]
        out["budget"] = out["kv"] = out["slots"] = out["cap"] = 0.0
    return out, seen


def _clear(seen: Mapping[str, float]) -> bool:
    """True where one reason held nearly always: then holes in the gauges cannot change which."""
    return max(seen.get("kv_share", 0.0), seen.get("slots_share", 0.0)) > 0.8


def _reasons(engine: Engine, hits: Hits) -> tuple[Array, dict[str, float]]:
    """The reason of each interval's waiting: 'kv', 'slots', 'cap' (slots or budget) or 'budget'."""
    row = engine.interval
    cap, _ = cap_of(engine)
    blocks, size = steps.number(engine.facts.get("kv_blocks"), 1e6), steps.number(engine.facts.get("block_size"), 16.0)
    prompt = steps.lengths(engine)[0]
    h = hits.now if math.isfinite(hits.now) else 0.0
    head = (prompt * (1 - h) + size) / size / blocks if math.isfinite(prompt) else 0.0
    rate = np.nan_to_num(row["preemptions"]) / np.maximum(row["dt_s"], 1e-9)
    running, usage = (np.nan_to_num((row[name] + row[f"{name}_before"]) / 2) for name in ("running", "kv_usage_ratio"))
    preempting = rate > PREEMPTING_PER_S
    slots = (running >= cap - 0.75) & ~preempting if math.isfinite(cap) else np.zeros(len(rate), bool)
    kv = (preempting | (usage > 1 - max(head, 0.05) - 0.02)) & ~slots
    top = float(np.nan_to_num(row["running"]).max(initial=0.0))
    # a cap is at least the most that ran: with fewer running it held nobody back (and where the arguments set none, it is a default)
    hidden = math.isnan(cap) and not engine.facts.get("args_known")
    at_top = (running >= top - 0.75) & (top > 0) if hidden else np.zeros(len(rate), bool)
    reason = np.where(kv, "kv", np.where(slots, "slots", np.where(at_top, "cap", "budget")))
    held = np.nan_to_num(row["waiting"]) > 0
    return reason, {
        "waiting_max": float(np.nan_to_num(row["waiting"]).max(initial=0.0)),
        "head_ratio": head,
        "cap": top,
        "usage_when_waiting": float(usage[held].mean()) if held.any() else math.nan,
    }


def _mean_step(windows: Rows | None, model: StepModel) -> float:
    """Seconds of the average step; without a model the quicker windows count, as the others hold idle time."""
    if windows is None or not (windows.n > 0).any():
        return 0.0
    if model.ok:
        return float(windows.dt[windows.busy].sum() / max(windows.n[windows.busy].sum(), 1.0))
    some = windows.n > 0
    return float(np.quantile(windows.dt[some] / windows.n[some], 0.1))


def _in_flight(windows: Rows | None, model: StepModel, frontend: float, nominal: float) -> tuple[float, float]:
    """Wait in the engine's input queue for the step in flight, seconds per request: all of it, and what prompts add to it.

    QUEUED is stamped between steps, so this wait reads as front end. Who arrives in a step waits for half of it, and long steps
    meet more arrivals: the few with prompts count by their squares. An engine with a line is never idle: what its steps took beyond
    plain ones is prompts, too (such as no counter has, computed again after preemptions). What prompts add is no more than the
    front end beyond its nominal seconds.
    """
    if windows is None or not model.ok:
        return 0.0, 0.0
    plain = model.a + model.c * model.batch(windows) / np.maximum(windows.n, 1e-9)
    mixed, prompts = np.clip(windows.mixed, 0.0, windows.n), _prompts_s(windows, model)
    prompts = np.where(windows.busy & (windows.waiting > 0), np.maximum(prompts, windows.dt - windows.n * plain), prompts)
    total = np.maximum(windows.n * plain + prompts, 1e-9)
    long = plain + prompts / np.maximum(mixed, 1.0)
    squares = np.maximum(windows.n - mixed, 0.0) * plain**2 + mixed * long**2
    slower = np.where(windows.busy, np.clip(windows.dt / total, 0.0, 3.0), 1.0)
    weight = np.maximum(windows.arrivals, 0.0)
    whole, alone = (float((weight * x * slower).sum() / max(1.0, weight.sum())) for x in (squares / total / 2, plain / 2))
    dwell = min(max(whole - alone, 0.0), max(0.0, frontend - nominal))
    return min(alone + dwell, max(0.0, frontend)), dwell


def _prefill(engine: Engine, model: StepModel, hits: Hits, mean: float) -> dict[str, float]:
    """PREFILL seconds: own work with the best hits, extra own work for avoidable misses, the rest others' prompts."""
    prompt, _, cv, _ = steps.lengths(engine)
    if not model.ok or not math.isfinite(prompt):
        return {"own": 0.0, "extra": 0.0, "others": 0.0, "unread": mean}
    now = hits.now if math.isfinite(hits.now) else 0.0
    best = max([now, *(x for x in (hits.shared, hits.endless) if math.isfinite(x))])
    computed, least = prompt * (1 - now), prompt * (1 - best)
    # one step more than its own: asynchronous scheduling admits during the step in flight
    own = 2 * model.a + model.mixed_s + model.b * least + model.q * model.pairs_of(least, prompt - least, cv)
    if least > model.graph:
        own += max(0.0, model.launch_s - model.b * least)
    extra = model.b * (computed - least) + model.q * (
        model.pairs_of(computed, prompt - computed, cv) - model.pairs_of(least, prompt - least, cv)
    )
    own = min(own, mean)
    extra = min(max(extra, 0.0), mean - own)
    return {"own": own, "extra": extra, "others": mean - own - extra, "unread": 0.0}


def _decode(
    engine: Engine,
    windows: Rows | None,
    model: StepModel,
    mean: float,
    n: float,
    again_tokens: float,
    requeue: float,
    unread_requeue: float,
) -> tuple[dict[str, float], float, tuple[float, float]]:
    """DECODE seconds by cause, scaled to the measured mean: cells, scaling factor, (stalls, seconds a stall).

    What the steps do not take stays out of the cells (`attribute` puts it into unexplained) as far as it may be waiting again.
    """
    out = dict.fromkeys(("base", "batch", "prompts", "requeue", "recompute", "beside", "stall", "unread"), 0.0)
    preempted = engine.total.get("preemptions", 0.0)
    if not model.ok or windows is None:
        out["requeue"] = min(requeue / n, REQUEUE_MOST * mean)
        out["unread"] = mean - out["requeue"]
        return out, math.nan, (0.0, 0.0)
    prompt, output, _, _ = steps.lengths(engine)
    context = prompt + output / 2 if math.isfinite(prompt + output) else 0.0  # lengths unknown: nothing was read before
    recompute = preempted * model.a + again_tokens * (model.b + model.q * context / 2) if preempted else 0.0
    held = min(requeue + recompute, REQUEUE_MOST * mean * n)
    if requeue + recompute > 0:
        out["requeue"], out["recompute"] = (x / (requeue + recompute) * held / n for x in (requeue, recompute))
    base, batch, prompts = _by_window(windows, model)
    modelled = base + batch + prompts
    left = mean - held / n
    left -= min(unread_requeue, max(0.0, left - modelled / n))
    scale = left * n / modelled if modelled > 0 else math.nan
    if not modelled > 0:
        out["unread"] = left
        return out, scale, (0.0, 0.0)
    out["base"], out["batch"], out["prompts"] = (x / modelled * left for x in (base, batch, prompts))
    if preempted:
        computed = float(steps.computed_by_interval(engine).sum()) if len(engine.interval.get("ts", ())) else 0.0
        share = again_tokens / max(again_tokens + computed, 1.0)
        out["beside"] = out["prompts"] * share
        out["prompts"] -= out["beside"]
    count, length, seconds = _stalls(engine, windows, model)
    taken = min(seconds / n, 0.5 * out["base"])
    if taken > 0:
        whole = out["base"] + out["batch"] + out["prompts"]
        for name in ("base", "batch", "prompts"):
            out[name] *= 1 - taken / whole
        out["stall"] = taken
    return out, scale, (count, length)


def _by_window(windows: Rows, model: StepModel) -> tuple[float, float, float]:
    """Decode-request seconds of the model over all windows: alone, because of the batch, beside prompts."""
    n, decode = windows.n, windows.decode
    per = decode / np.maximum(n, 1e-9)
    base = model.a * n + model.c * np.minimum(decode, n)
    batch = model.c * np.maximum(model.batch(windows) - n, 0.0)
    prompts = _prompts_s(windows, model)
    total = base + batch + prompts
    busy = np.where(windows.busy, windows.dt, np.minimum(windows.dt, total))
    factor = np.clip(busy / np.maximum(total, 1e-9), 0.0, 3.0)
    beside = (
        np.where(windows.prompt > 0, windows.beside / np.maximum(windows.prompt, 1e-9), per)
        if windows.beside is not None
        else per
    )
    return float((per * base * factor).sum()), float((per * batch * factor).sum()), float((beside * prompts * factor).sum())


def _prompts_s(windows: Rows, model: StepModel) -> Array:
    """Seconds that prompts add to the steps of each window."""
    extra = model.extra if len(model.extra) == len(windows.dt) else 0.0
    return np.asarray(model.b * windows.prompt + model.q * windows.pairs + extra + model.mixed_s * windows.mixed)


@dataclass(frozen=True, slots=True)
class Stall:
    """A gap between iteration lines: stamp of the line that ended it, seconds beyond its work, sequences that stood still."""

    end_ts: float
    seconds: float
    decoding: float
    prefilling: float


def logged_stalls(engine: Engine, model: StepModel) -> list[Stall] | None:
    """Stalls between iteration lines with millisecond stamps; None without them.

    A gap counts where decoding went on across it (an idle engine does not stall), is 80 ms and three times longer than the step
    that ended it. Asynchronous scheduling moves cost between neighbours: a step is held against the dearest of three, and what a
    stall took is what it and its neighbours took beyond their work.
    """
    step = engine.step
    if not len(step.get("ts", ())) or not bool(np.all(step["fine"].astype(bool))) or not model.ok:
        return None
    order = np.argsort(step["ts"], kind="stable")
    ts, P, D, M = (step[name][order] for name in ("ts", "context_tokens", "generation_requests", "context_requests"))
    pairs = P * np.maximum(P / np.maximum(M, 1), 0.0) / 2
    took = (
        model.a
        + model.b * P
        + model.c * steps.padded(D, model.graphs)
        + model.q * pairs
        + np.where(model.graph < P + D, model.launch_s, 0.0) * (P > 0)
    )
    dearest = np.maximum(took, np.maximum(np.roll(took, 1), np.roll(took, -1)))
    gap = np.diff(ts, prepend=ts[0])
    stalled = (D > 0) & (gap > STALL_TIMES * dearest) & (gap - dearest > STALL_S)
    found = []
    for run in np.split(np.flatnonzero(stalled), np.flatnonzero(np.diff(np.flatnonzero(stalled)) > 1) + 1):
        if not len(run):
            continue
        near = np.arange(max(run[0] - 1, 1), min(run[-1] + 2, len(ts)))
        near = near[(D[near] > 0) | stalled[near]]  # a neighbour that decoded nothing may hold idle time
        own = gap[run] - took[run]
        seconds = np.clip((gap - took)[near].sum(), (gap - dearest)[run].sum(), gap[run].sum())
        found += [Stall(*map(float, one)) for one in zip(ts[run], own / own.sum() * seconds, D[run], M[run], strict=True)]
    return found


def _held_by_stalls(
    engine: Engine,
    model: StepModel,
    stalls: tuple[float, float],
    share: float,
    queue: Mapping[str, float],
    prefill: Mapping[str, float],
    beyond: float,
) -> tuple[dict[str, float], dict[str, float], float]:
    """What stalls take of the queue, of prefill and of the front end: (queue, prefill, seconds of the front end).

    `share` of decode's seconds were stalls: who stands in the line, or is being prefilled, stands still as long; iteration lines say
    how many were being prefilled. Who arrives in a stall waits for half of it, in the engine's input queue: front end `beyond`
    what is known of it, then queue.
    """
    count, length = stalls
    if not count > 0:
        return dict(queue), {**prefill, "stall": 0.0}, 0.0
    n, logged = engine.total["e2e_n"], logged_stalls(engine, model)
    squares = count * length**2 if logged is None else sum(one.seconds**2 for one in logged)
    arrived = (arrival_rate(engine) or 0.0) * squares / 2 / n
    still = sum(prefill.values()) * share if logged is None else sum(one.seconds * one.prefilling for one in logged) / n
    still = min(still, prefill["others"])
    held = queue["step"] + queue["budget"]
    front = min(arrived, beyond)
    taken = min(held, held * min(share, 1.0) + arrived - front)
    left = 1 - taken / held if held > 0 else 1.0
    queue = {**queue, "stall": taken, "step": queue["step"] * left, "budget": queue["budget"] * left}
    return queue, {**prefill, "others": prefill["others"] - still, "stall": still}, front


def _largest_step(engine: Engine, budget: float) -> float:
    """The most tokens that a step had, by the histogram of tokens per step; the budget where that is not exported."""
    le, count = engine.bucket.get("vllm:iteration_tokens_total", (np.zeros(0), np.zeros(0)))
    seen = le[count > 0] if len(le) else le
    return min(budget, float(seen.max())) if len(seen) else budget


def _stalls(engine: Engine, windows: Rows, model: StepModel) -> tuple[float, float, float]:
    """Stalls: (count, seconds each, request seconds): token gaps above twice the largest modelled step, less preemptions."""
    logged = logged_stalls(engine, model)
    if logged is not None:
        seconds = sum(one.seconds * one.decoding for one in logged)
        return float(len(logged)), sum(one.seconds for one in logged) / max(1, len(logged)), seconds
    le, count = engine.bucket.get("vllm:inter_token_latency_seconds", (np.zeros(0), np.zeros(0)))
    if not len(le):
        return 0.0, 0.0, 0.0
    prompt, _, cv, _ = steps.lengths(engine)
    tokens = _largest_step(engine, model.budget)
    most = (
        model.a
        + model.b * tokens
        + model.q * tokens * min(prompt * (1 + cv), 4 * tokens)
        + model.launch_s
        + model.mixed_s
        + model.c * float(windows.running.max(initial=1.0))
    )
    low = np.concatenate([[0.0], le[:-1]])
    high = np.where(np.isinf(le), low * 2, le)
    long = low >= max(2 * most, 0.1)
    gaps = float(count[long].sum())
    left = max(0.0, gaps - engine.total.get("preemptions", 0.0))
    if left <= 0 or gaps <= 0:
        return 0.0, 0.0, 0.0
    seconds = float((count * np.sqrt(np.maximum(low, 0.05) * high))[long].sum()) * left / gaps
    per = windows.decode / np.maximum(windows.n, 1e-9)
    together = float(np.average(per, weights=windows.n * np.maximum(per, 0.01) + 1e-9))
    stalls = left / max(1.0, together)
    return (stalls, seconds / left, seconds) if stalls >= 1 else (0.0, 0.0, 0.0)


def prompt_seconds(books: Books) -> dict[Stage, float]:
    """All that computing prompts costs: the most that misses could own."""
    return {
        Stage.FRONTEND: books.dwell_s,
        Stage.QUEUE: books.queue["budget"] + books.queue["step"],
        Stage.PREFILL: sum(books.prefill.values()) - books.prefill["stall"],
        Stage.DECODE: books.decode["prompts"],
    }


def arrival_rate(engine: Engine) -> float | None:
    """Requests a second while requests arrived; None where that cannot be told."""
    row, t = engine.interval, engine.total
    if not len(row.get("ts", ())) or not bool(np.all(row["timed"].astype(bool))):
        return None
    inside = np.nan_to_num(row["running"] + row["waiting"]) - np.nan_to_num(row["running_before"] + row["waiting_before"])
    active = np.nan_to_num(row["e2e_n"]) + inside > 0.5
    span = float(row["ts"][active].max() - (row["ts"] - row["dt_s"])[active].min()) if active.any() else 0.0
    return float(t.get("ttft_n", 0.0)) / span if span > 0 and t.get("ttft_n") else None
