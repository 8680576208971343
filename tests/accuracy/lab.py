"""Lab scenarios as engines: simulated runs of one vLLM-V1-like engine whose true seconds are known by re-running them.

`python -m tests.accuracy.lab export LAB OUT` simulates dense scenarios in the lab, turns what each information level would have
shown into an Engine, and writes them with the truth and the prototype's answers to OUT. `scenarios()` reads them back.

Truth is composed as the product composes (attribution.md section 3): faults among themselves (exact Shapley over re-runs), then
load with all faults fixed. Left out: scenarios with experts (the lab's straggler is one factor on the step, the product's rule
is about weights read and tokens computed by the busiest rank: scoring one by the other means nothing) and with prefix caching
off (what it would save is undetermined by rule).
"""

import argparse
import importlib
import itertools
import math
import sys
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from analyzers.model import Engine, Window

from . import packed

FILE: Final = Path(__file__).resolve().parent / "scenarios.json.gz"  # scored in the suite (seeds from 6000 on)
FURTHER: Final = FILE.with_name("further.json.gz")  # seeds from 6100 on: the ranges are calibrated on both
WORDS: Final = {  # the lab's names in our words
    "fe": "frontend",
    "cap": "slots",
    "prefix": "prefix_cache_miss",
    "kv": "kv_eviction",
    "stall": "engine_stall",
    "prefill": "prefill_backlog",
    "batch": "decode_batch",
}
FAULTS: Final = ("fe", "cap", "prefix", "kv", "stall")
LOAD: Final = ("prefill", "batch")
TARGETS: Final = ("ttft", "tpot", "e2e")
EPOCH: Final = 1_760_000_000.0  # the lab's clock starts at 0; stamps are read as epoch seconds
LENGTHS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, math.inf)
STEP_TOKENS: Final = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, math.inf)
SERIES_SEED: Final = 6035  # a scenario without a fault
PROTOTYPES: Final = ("books", "twin", "first")
MISSING: Final = (
    "draft_n",
    "draft_tokens",
    "accepted_tokens",
    "nixl_transfer_s",
    "nixl_transfer_n",
    "nixl_post_s",
    "nixl_bytes",
    "offload_load_s",
    "offload_load_bytes",
    "offload_load_n",
    "http_s",
    "http_n",
    "process_cpu_s",
)


@dataclass(frozen=True)
class Scenario:
    """One simulated run: its engine as the highest level sees it, true parts and savings in seconds, prototypes' answers."""

    seed: int
    faults: tuple[str, ...]
    engine: Engine
    measured: Mapping[str, float]
    parts: Mapping[str, Mapping[str, float]]  # target -> link -> seconds
    saves: Mapping[str, Mapping[str, float]]
    prototype: Mapping[str, Mapping[str, Mapping[str, Any]]]  # level -> which -> {"parts", "saves", "gate"}

    @property
    def window(self) -> Window:
        return _window(self.engine)


def scenarios(path: Path = FILE) -> tuple[Scenario, ...]:
    """The committed scenarios."""
    return tuple(
        Scenario(
            s["seed"],
            tuple(s["faults"]),
            packed.unpack(s["window"]).engines[0],
            s["measured"],
            s["parts"],
            s["saves"],
            s["prototype"],
        )
        for s in packed.read(path)["scenarios"]
    )


@dataclass(frozen=True)
class Sized:
    """A run with one fault of a size (1 smallest; 0: none), and what fixing it truly saves."""

    link: str | None
    size: int
    window: Window
    measured: Mapping[str, float]
    saves: Mapping[str, float]


def series(path: Path = FILE) -> tuple[Sized, ...]:
    """The committed runs with one fault in growing sizes."""
    return tuple(
        Sized(s["link"], s["size"], _window(packed.unpack(s["window"]).engines[0]), s["measured"], s.get("saves", {}))
        for s in packed.read(path)["series"]
    )


def _window(engine: Engine) -> Window:
    stamps = engine.interval["ts"]
    return Window(float(stamps[0] - engine.interval["dt_s"][0]), float(stamps[-1]), (engine,))


# -- what an engine would have shown ------------------------------------------------------------------------------------------
def engine_of(run: Mapping[str, Any], config: Any, seen: Mapping[str, Any], kv: Mapping[str, float]) -> Engine:
    """The run as the highest level sees it; `seen` is the lab's own observation (scrapes, buckets), `kv` its blocks stored."""
    interval = _interval(run, seen["L1"])
    requests = {
        name: np.round(np.asarray(run[name], float), 6)
        for name in ("arr", "plen", "olen", "ncomp", "ttft", "queue", "prefill", "decode", "e2e")
    }
    total = {
        name: float(np.nansum(v))
        for name, v in interval.items()
        if name.endswith(("_s", "_n", "_tokens", "preemptions")) and name != "dt_s" and np.isfinite(v).any()
    }
    return Engine(
        instance="lab",
        engine="0",
        model="lab",
        version="0.33.0",
        interval=interval,
        step=_steps(run),
        request=_requests(requests),
        bucket={
            "vllm:inter_token_latency_seconds": (np.array([*_edges(seen), math.inf]), np.asarray(seen["L1"]["itl_hist"], float)),
            "vllm:request_prompt_tokens": _lengths(run["plen"]),
            "vllm:request_generation_tokens": _lengths(run["olen"]),
            "vllm:iteration_tokens_total": _counted(run["steps"]["P"] + run["steps"]["D"], STEP_TOKENS),
        },
        total=total,
        facts=_facts(config, total),
        kv=kv,
    )


def _edges(seen: Mapping[str, Any]) -> np.ndarray:
    return np.asarray(seen["edges"], float)


def _lengths(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return _counted(values, LENGTHS)


def _counted(values: np.ndarray, edges: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """Upper edges and counts of a histogram."""
    le = np.array(edges)
    return le, np.bincount(np.searchsorted(le, values), minlength=len(le)).astype(float)


def _interval(run: Mapping[str, Any], m: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """One row a scrape interval, columns as in queries/views/20_interval.sql."""
    n, scrape, steps, ends = m["nw"], m["scrape"], run["steps"], run["steps"]["t0"] + run["steps"]["dur"]

    def at(times: np.ndarray) -> np.ndarray:
        return np.minimum((np.asarray(times) / scrape).astype(int), n - 1)

    def total(times: np.ndarray, values: np.ndarray | None = None) -> np.ndarray:
        return np.bincount(at(times), weights=values, minlength=n).astype(float)

    tokens = [np.concatenate([ends[a : b + 1] for a, b in segments]) for segments in run["segs"]]
    gaps = [(t[1:], np.diff(t)) for t in tokens if len(t) > 1]
    after, gap = (np.concatenate([g[i] for g in gaps]) for i in (0, 1))
    first, end = run["arr"] + run["ttft"], run["arr"] + run["e2e"]
    one, hit = np.ones(len(first)), run["plen"] - run["ncomp"]
    row = {
        "ts": EPOCH + scrape * (1 + np.arange(n)),
        "dt_s": np.full(n, scrape),
        "timed": np.ones(n, bool),
        "epoch": np.zeros(n),
        "restarted": np.zeros(n, bool),
        "running": m["run"],
        "waiting": m["wait"],
        "deferred": np.zeros(n),
        "kv_usage_ratio": m["use"],
        "ttft_s": total(first, run["ttft"]),
        "ttft_n": total(first),
        "e2e_s": total(end, run["e2e"]),
        "e2e_n": total(end),
        "itl_s": total(after, gap),
        "itl_n": total(after),
        "prompt_tokens": total(first, run["plen"]),
        "generation_tokens": total(np.concatenate(tokens)),
        "computed_tokens": total(first, run["ncomp"]),
        "local_hit_tokens": total(first, hit),
        "external_hit_tokens": np.zeros(n),
        "prefix_query_tokens": total(first, run["plen"]),
        "prefix_hit_tokens": total(first, hit),
        "preemptions": m["pre"],
        "step_n": total(ends),
        "step_tokens": total(ends, steps["P"] + steps["D"]),
        "request_prompt_tokens": total(end, run["plen"]),
        "request_prompt_n": total(end, one),
        "request_output_tokens": total(end, run["olen"]),
        "aborted_n": np.zeros(n),
    }
    for name in ("queue", "prefill", "decode"):
        row |= {f"{name}_s": total(end, run[name]), f"{name}_n": total(end)}
    for name in ("running", "waiting", "deferred", "kv_usage_ratio"):
        row[f"{name}_before"] = np.concatenate([[0.0], row[name][:-1]])
    return {name: np.round(v, 6) if v.dtype.kind == "f" else v for name, v in row.items()} | {
        name: np.full(n, math.nan) for name in MISSING
    }


def _steps(run: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """One row an iteration line, with the JSON log's millisecond stamps."""
    s = run["steps"]
    n = len(s["t0"])
    return {
        "ts": EPOCH + np.round(s["t0"] + s["dur"], 3),
        "fine": np.ones(n, bool),
        "context_requests": np.where(s["P"] > 0, np.maximum(s["npf"], 1), 0).astype(float),
        "context_tokens": s["P"].astype(float),
        "generation_requests": s["D"].astype(float),
        "generation_tokens": s["D"].astype(float),
        "elapsed_s": np.round(s["dur"], 5),
        "kv_usage_ratio": np.round(s["use"], 3),
        "dummy": np.zeros(n, bool),
    }


def _requests(r: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    stages = {f"{name}_s": r[name] for name in ("ttft", "queue", "prefill", "decode", "e2e")}
    return {
        "arrival_ts": EPOCH + r["arr"],
        "first_token_ts": EPOCH + r["arr"] + r["ttft"],
        "end_ts": EPOCH + r["arr"] + r["e2e"],
        "prompt_tokens": r["plen"],
        "output_tokens": r["olen"],
        "cached_tokens": r["plen"] - r["ncomp"],
        **stages,
        "has_span": np.ones(len(r["arr"]), bool),
    }


def _facts(config: Any, total: Mapping[str, float]) -> dict[str, Any]:
    return {
        "args": {},
        "args_known": True,
        "max_num_seqs": int(config.max_seqs),
        "max_num_batched_tokens": int(config.B),
        "kv_blocks": float(config.blocks),
        "block_size": int(config.bs),
        "prefix_caching": bool(config.prefix_on),
        "tensor_parallel": 1,
        "data_parallel": 1,
        "pipeline_parallel": 1,
        "expert_parallel": False,
        "eplb": False,
        "graph_size": math.inf,
        "graph_sizes": [1, *range(config.pad, 257, config.pad)],
        "speculative": False,
        "connector": False,
        "api_servers": 1,
        "kv_dtype": "auto",
        "device": None,
        "shape": {},
        "device_name": None,
        "memory_gib": None,
        "written_tokens": total["computed_tokens"] + total["generation_tokens"],
    }


class _Blocks(OrderedDict):
    """The lab's list of unreferenced blocks, which also counts what a KV event stream would say: blocks stored, and stored again.

    The lab takes a block off the list where a request uses it (`pop`), puts it there at release, and evicts from its head.
    """

    def __init__(self) -> None:
        super().__init__()
        self.resident: set[int] = set()
        self.ever: set[int] = set()
        self.stored = self.again = 0

    def _store(self, block: int) -> None:
        if block not in self.resident:
            self.stored += 1
            self.again += block in self.ever
            self.ever.add(block)
            self.resident.add(block)

    def __setitem__(self, block: int, value: None) -> None:
        self._store(block)
        super().__setitem__(block, value)

    def pop(self, block: int, default: None = None) -> None:
        self._store(block)
        if block in self:
            del self[block]
        return default

    def popitem(self, last: bool = True) -> tuple[int, None]:
        block, value = super().popitem(last=last)
        self.resident.discard(block)
        return block, value

    def summary(self, size: int) -> dict[str, float]:
        if not self.stored:
            return {}
        return {
            "stored_blocks": float(self.stored),
            "distinct_blocks": float(len(self.ever)),
            "again_blocks": float(self.again),
            "elsewhere_blocks": 0.0,
            "block_size": float(size),
            "gaps": 0.0,
            "salts": 0.0,
        }


# -- truth --------------------------------------------------------------------------------------------------------------------
class _Reruns:
    """Mean latencies of one scenario by the set of links fixed, each simulated once."""

    def __init__(self, lab: Any, requests: Sequence[Any], config: Any, seed: int) -> None:
        self.lab, self.requests, self.config, self.seed = lab, requests, config, seed
        self.done: dict[frozenset[str], dict[str, float]] = {}

    def means(self, fixed: Sequence[str]) -> dict[str, float]:
        key = frozenset(fixed)
        if key not in self.done:
            self.done[key] = self.lab.summary(self.lab.simulate(self.requests, self.config, key, seed=self.seed))
        return self.done[key]

    def matters(self, link: str, given: Sequence[str]) -> bool:
        """False where fixing it changes no mean by a thousandth, alone or with the others fixed."""
        pairs = ((self.means(()), self.means((link,))), (self.means([x for x in given if x != link]), self.means(given)))
        return any(abs(a[m] - b[m]) > 0.001 * a[m] for a, b in pairs for m in TARGETS)

    def shapley(self, tier: Sequence[str], given: Sequence[str], means: Sequence[str]) -> dict[str, dict[str, float]]:
        """Exact shares of a tier's links in what fixing them saves, when `given` is fixed already: mean -> link -> seconds."""
        n = len(tier)
        out = {m: dict.fromkeys(tier, 0.0) for m in means}
        for link in tier:
            rest = [x for x in tier if x != link]
            for size in range(n):
                weight = math.factorial(size) * math.factorial(n - size - 1) / math.factorial(n)
                for chosen in itertools.combinations(rest, size):
                    before, after = self.means((*given, *chosen)), self.means((*given, *chosen, link))
                    for m in means:
                        out[m][link] += weight * (before[m] - after[m])
        return out

    def tiers(self, faults: Sequence[str], means: Sequence[str] = TARGETS) -> dict[str, dict[str, float]]:
        """Faults among themselves, then load with all faults fixed."""
        first, second = self.shapley(faults, (), means), self.shapley(LOAD, FAULTS, means)
        return {m: {**dict.fromkeys(FAULTS, 0.0), **first[m], **second[m]} for m in means}


def _named(seconds: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    return {target: {WORDS[k]: float(f"{v:.7g}") for k, v in seconds[target].items() if k in WORDS} for target in TARGETS}


# -- the prototypes -----------------------------------------------------------------------------------------------------------
def _modules(folder: Path) -> dict[str, Any]:
    sys.path.insert(0, str(folder))
    return {name: importlib.import_module(name) for name in ("sim", "workload", "observe", "attribute", "real", "real_eval")}


def _second(
    lab: Mapping[str, Any], requests: Sequence[Any], config: Any, run: Any, seen: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """The prototype as improved on real captures: books and twin at each level (two tiers are its own)."""
    real = lab["real"]
    real.OLD = False
    capture = lab["real_eval"].sim_cap(requests, config, run, seen)
    s = run["steps"]
    ends = s["t0"] + s["dur"]
    n = len(ends)
    capture.rows = np.stack([ends, np.arange(n), np.where(s["P"] > 0, s["npf"], 0), s["P"], s["D"], s["D"], 1000 * s["dur"]], 1)
    capture.stamps = np.round(ends, 3)
    chains = {i: (r.h, None) for i, r in enumerate(requests)}
    out: dict[str, dict[str, Any]] = {}
    for level, name in (("metrics", "i"), ("logs", "ii"), ("requests", "iii"), ("hashes", "iv")):
        blocks = chains if name == "iv" else None
        try:
            books = real.books(capture, name, blocks)
            replay = real.replay(capture, name, books, blocks)
        except (IndexError, ValueError, ZeroDivisionError) as error:
            out[level] = {"error": repr(error)}
            continue
        out[level] = {
            "books": {"parts": _named(books), "saves": _named(books["saves"]), "gate": None},
            "twin": {
                "parts": _named(replay["parts"]),
                "saves": _named(replay["saves"]),
                "gate": [replay["gate"]["ttft"], replay["gate"]["decode"]],
            },
        }
    return out


def _first(lab: Mapping[str, Any], seen: Mapping[str, Any], seed: int, measured: Mapping[str, float]) -> dict[str, Any]:
    """The first prototype's anchored twin, composed in two tiers and with links as they are defined now."""
    module = lab["attribute"]
    out = {}
    for level, name in (("metrics", "L1"), ("logs", "L2"), ("requests", "L3"), ("hashes", "L4")):
        try:
            parts, info = module.account(seen, name)
            requests, config = module.twin(seen, name, info, seed)
        except (IndexError, ValueError, ZeroDivisionError) as error:
            out[level] = {"error": repr(error)}
            continue
        config.kv_inf, config.hit_inf, config.hit_best = True, info["best"], info["hit"]
        reruns = _Reruns(lab["sim"], requests, config, seed)
        faults = [k for k in FAULTS if reruns.matters(k, FAULTS)]
        phases = ("fe", "queue", "prefill", "decode", "ttft", "tpot", "e2e")
        tiered = reruns.tiers(faults, phases)
        anchored = module.anchor(
            seen, parts, reruns.means(()), {m: {**dict.fromkeys(lab["sim"].LINKS, 0.0), **tiered[m]} for m in phases}
        )
        saves = {m: {k: reruns.means(())[m] - reruns.means((k,))[m] for k in WORDS} for m in TARGETS}
        base = reruns.means(())
        out[level] = {
            "parts": _named(anchored),
            "saves": _named(saves),
            "gate": [base["ttft"] / measured["ttft"], base["tpot"] / measured["tpot"]],
        }
    return out


# -- export -------------------------------------------------------------------------------------------------------------------
def export(folder: Path, out: Path, first_seed: int, count: int, requests_n: int) -> None:
    """Simulate `count` dense scenarios from `first_seed` on and write them to `out`, and faults in growing sizes."""
    lab = _modules(folder)
    found, skipped = [], {"experts": 0, "caching off": 0}
    for seed in itertools.count(first_seed):
        requests, config, faults = lab["workload"].scenario(seed, requests_n)
        if config.moe_share > 0 or not config.prefix_on:
            skipped["experts" if config.moe_share > 0 else "caching off"] += 1
            continue
        found.append(_one(lab, requests, config, faults, seed))
        print(seed, faults, found[-1]["measured"], flush=True)
        if len(found) == count:
            break
    packed.write(
        out,
        {
            "first_seed": first_seed,
            "last_seed": seed,
            "left_out": skipped,
            "requests": requests_n,
            "scenarios": found,
            "series": _series(lab, SERIES_SEED, requests_n),
        },
    )
    print(f"{out}: {len(found)} scenarios, seeds {first_seed} to {seed}, left out {skipped}, {out.stat().st_size / 1e6:.2f} MB")


def _simulated(
    lab: Mapping[str, Any], requests: Sequence[Any], config: Any, seed: int
) -> tuple[dict[str, Any], dict[str, Any], _Blocks]:
    """A logged run, the lab's observation of it, and the blocks it stored."""
    sim, lists = lab["sim"], []
    plain = sim.OrderedDict
    sim.OrderedDict = lambda: lists.append(_Blocks()) or lists[-1]
    try:
        run = sim.simulate(requests, config, seed=seed, log=True)
    finally:
        sim.OrderedDict = plain
    seen = lab["observe"].observe(requests, config, run, seed, scrape=float(np.clip(run["span"] / 60, 0.5, 5.0)))
    seen["edges"] = lab["observe"].ITL_EDGES
    return run, seen, lists[0]


def _one(lab: Mapping[str, Any], requests: Sequence[Any], config: Any, faults: Sequence[str], seed: int) -> dict[str, Any]:
    sim = lab["sim"]
    config.kv_inf = True  # links as they are defined now: kv_eviction also owns evicted prefixes
    run, seen, blocks = _simulated(lab, requests, config, seed)
    measured = sim.summary(run)
    reruns = _Reruns(sim, requests, config, seed)
    active = [k for k in FAULTS if reruns.matters(k, FAULTS)]
    saves = {m: {k: measured[m] - reruns.means((k,))[m] for k in WORDS} for m in TARGETS}
    engine = engine_of(run, config, seen, blocks.summary(config.bs))
    first = _first(lab, seen, seed, measured)
    second = _second(lab, requests, config, run, seen)
    return {
        "seed": seed,
        "faults": list(faults),
        "window": packed.pack(Window(None, None, (engine,))),
        "measured": {m: measured[m] for m in TARGETS},
        "parts": _named(reruns.tiers(active)),
        "saves": _named(saves),
        "prototype": {level: {**second[level], "first": first[level]} for level in second},
    }


def _series(lab: Mapping[str, Any], seed: int, requests_n: int) -> list[dict[str, Any]]:
    """One healthy scenario with each fault in growing sizes: part of a link must grow with it."""
    requests, config, _ = lab["workload"].scenario(seed, requests_n)
    config.kv_inf = True
    healthy = lab["sim"].simulate(requests, config, seed=seed, log=True)
    steps = healthy["steps"]
    together = float(np.average(steps["R"], weights=steps["dur"]))
    used = float(steps["use"].max() * config.blocks)
    gap = float(np.mean(np.diff(healthy["arr"])))
    largest = 1.1 * max(r.plen + r.olen for r in requests) / config.bs + 4
    sizes: dict[str, list[dict[str, Any]]] = {
        "fe": [{"fe_s": gap * x} for x in (0.5, 0.7, 0.85, 0.95)],
        "cap": [{"max_seqs": max(2, int(together * x))} for x in (1.2, 0.9, 0.75, 0.6)],
        "kv": [{"blocks": int(max(used * x, largest))} for x in (0.9, 0.7, 0.55, 0.45)],
        "stall": [{"stall_rate": 0.2, "stall_s": x} for x in (0.2, 0.4, 0.8, 1.2)],
    }
    out = [{"link": None, "size": 0, **_seen(lab, requests, config, seed)}]
    for fault, changes in sizes.items():
        for size, change in enumerate(changes, 1):
            changed = config.copy(**change)
            fixed = lab["sim"].summary(lab["sim"].simulate(requests, changed, (fault,), seed=seed))
            one = _seen(lab, requests, changed, seed)
            saves = {m: float(f"{one['measured'][m] - fixed[m]:.7g}") for m in TARGETS}
            out.append({"link": WORDS[fault], "size": size, **one, "saves": saves})
            print(WORDS[fault], size, one["measured"], saves, flush=True)
    return out


def _seen(lab: Mapping[str, Any], requests: Sequence[Any], config: Any, seed: int) -> dict[str, Any]:
    """A run's window and measured means."""
    run, seen, blocks = _simulated(lab, requests, config, seed)
    engine = engine_of(run, config, seen, blocks.summary(config.bs))
    measured = lab["sim"].summary(run)
    return {"window": packed.pack(Window(None, None, (engine,))), "measured": {m: measured[m] for m in TARGETS}}


def rows(scenario: Scenario) -> Iterator[tuple[str, str, float, float]]:
    """(target, link, true part, true saving) of a scenario."""
    for target in TARGETS:
        for link, seconds in scenario.parts[target].items():
            yield target, link, seconds, scenario.saves[target][link]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("verb", choices=("export",))
    parser.add_argument("lab", type=Path, help="folder of the lab's modules")
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=6000, help="first seed")
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--requests", type=int, default=250)
    given = parser.parse_args()
    export(given.lab, given.out, given.seed, given.count, given.requests)


if __name__ == "__main__":
    main()
