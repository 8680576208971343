"""Store to judgement: the one place where SQL meets the analyzers."""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Final

import numpy as np

from analyzers.attribute import attribute
from analyzers.model import Array, Attribution, Columns, Engine, Event, Level, Window
from analyzers.steps import kv_bytes_per_token, parameters_held
from app import retention, routers
from app.align import notes
from app.store import Store

# the columns of interval_row that are counters: their sums are the totals of the window
_STATE: Final = {
    "instance",
    "engine",
    "ts",
    "dt_s",
    "timed",
    "epoch",
    "restarted",
    "running",
    "running_before",
    "waiting",
    "waiting_before",
    "deferred",
    "deferred_before",
    "kv_usage_ratio",
    "kv_usage_ratio_before",
    "running_high",
    "waiting_high",
    "kv_usage_high_ratio",
}
SOON_S: Final = 10.0  # a scrape so soon after the prefix cache was emptied tells what had been written before
LOOK_BACK_S: Final = 300.0  # for the last value of a counter: a scrape may miss a series
INSTANTS: Final = (
    *("spec_decode", "kv_transfer", "eplb", "rearrange", "jit", "prefix_reset", "aborted", "preempted_v0", "failed", "death"),
    "aggregate",
)
_BUCKETS: Final = (
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "request_prompt_tokens",
    "request_generation_tokens",
    "e2e_request_latency_seconds",
    "time_per_output_token_seconds",
    "iteration_tokens_total",
)


def window_of(store: Store, start: float | None = None, end: float | None = None, engines: Sequence[str] | None = None) -> Window:
    """All that the store holds between `start` and `end` (epoch seconds; None: the whole recording).

    `engines` keeps only these labels ("1") or pairs ("host:port/1").
    """
    low, high = -math.inf if start is None else start, math.inf if end is None else end
    with store.held("epoch", low, high, before=True):
        return _window_of(store, start, end, engines, {"low": low, "high": high})


def _window_of(
    store: Store, start: float | None, end: float | None, engines: Sequence[str] | None, bounds: Mapping[str, float]
) -> Window:
    high = bounds["high"]
    interval = store.columns("SELECT * FROM interval_row WHERE ts > $low AND ts <= $high ORDER BY instance, engine, ts", bounds)
    span = "(ts IS NULL OR (ts >= $low AND ts <= $high))"
    stat = store.columns(f"SELECT * FROM stat_row WHERE {span} ORDER BY instance, engine, ts, line", bounds)
    step = store.columns(f"SELECT * FROM step_row WHERE {span} ORDER BY instance, engine, ts, line", bounds)
    scrape = store.columns(
        "SELECT instance, ts, duration_s, ok, timed FROM scrape WHERE ts > $low AND ts <= $high ORDER BY instance, ts", bounds
    )
    request = store.columns(
        "SELECT * FROM request_row WHERE end_ts > $low AND end_ts <= $high ORDER BY instance, arrival_ts", bounds
    )
    bucket = store.columns(
        "SELECT * FROM bucket_sum($families, $low, $high) ORDER BY instance, engine, family, le",
        {**bounds, "families": [f"vllm:{name}" for name in _BUCKETS]},
    )
    kv = store.columns(
        "SELECT b.instance, b.engine, count(*) AS stored_blocks, count(DISTINCT b.hash) AS distinct_blocks, "
        "count(*) FILTER (b.again) AS again_blocks, count(*) FILTER (b.elsewhere) AS elsewhere_blocks, "
        "max(b.block_size) AS block_size, any_value(g.gaps) AS gaps, any_value(g.salts) AS salts "
        "FROM kv_block AS b JOIN kv_gap AS g ON g.instance IS NOT DISTINCT FROM b.instance AND g.engine = b.engine "
        "WHERE b.ts > $low AND b.ts <= $high GROUP BY b.instance, b.engine ORDER BY b.instance, b.engine",
        bounds,
    )
    events = _events(store, bounds)
    pairs = _pairs(store, bounds, interval, stat, step) or _outside(store, events)
    tables = _Tables(
        interval=_split(interval, "instance", "engine"),
        stat=_split(stat, "instance", "engine"),
        step=_split(step, "instance", "engine"),
        scrape=_split(scrape, "instance"),
        request=_split(request, "instance"),
        bucket=_split(bucket, "instance", "engine"),
        kv=_split(kv, "instance", "engine"),
        written=_written(store, {instance for instance, _ in pairs}, high),
        last_ts=float(scrape["ts"].max()) if len(scrape["ts"]) else None,
    )
    found = tuple(
        _engine(store, pair, tables, events, _alone(pairs, pair))
        for pair in pairs
        if engines is None or pair[1] in engines or f"{pair[0]}/{pair[1]}" in engines
    )
    # also of those that were not asked for: each has a prefix cache of its own
    beside = Counter(instance for instance, _ in pairs)
    found = tuple(replace(engine, facts={**engine.facts, "engines_seen": beside[engine.instance]}) for engine in found)
    found = tuple(_with_clients(store, bounds, engine, alone=_alone(pairs, (engine.instance, engine.engine))) for engine in found)
    again = interval["restarted"].astype(bool) if len(interval["ts"]) else np.zeros(0, bool)
    restarts = len(set(zip(interval["instance"][again], interval["ts"][again], strict=True)))  # one of a server, not of each engine
    return Window(
        *_span(interval, stat, scrape, found, start, end), engines=found, restarts=restarts + _log_restarts(store, bounds)
    )


def attribution_for(
    store: Store,
    start: float | None = None,
    end: float | None = None,
    engines: Sequence[str] | None = None,
    *,
    with_twin: bool = False,
    slo: Mapping[str, float] | None = None,
    baseline: Attribution | None = None,
) -> Attribution:
    """The attribution of what the store holds in a window; options as `attribute` has them."""
    window = window_of(store, start, end, engines)
    found = attribute(window, with_twin=with_twin, slo=slo, baseline=baseline)
    return noted(store, window, found, start, end)


def noted(store: Store, window: Window, found: Attribution, start: float | None = None, end: float | None = None) -> Attribution:
    """An attribution of a window with what the store says about it."""
    return replace(found, notes=(*found.notes, *attribution_notes(store, window, start, end)))


def attribution_notes(store: Store, window: Window, start: float | None = None, end: float | None = None) -> list[str]:
    """What the store says about a judgement: clocks that were aligned, routers, days that are not whole any more."""
    low, high = -math.inf if window.start is None else window.start, math.inf if window.end is None else window.end
    return [*notes(store), *routers.notes(store, start, end), *retention.notes(store, low, high)]


def _pairs(store: Store, bounds: Mapping[str, float], *tables: Columns) -> list[tuple[str | None, str]]:
    """(instance, engine) of everything observed, in order."""
    seen: set[tuple[str | None, str]] = set()
    for table in tables:
        seen |= set(zip(table["instance"], table["engine"], strict=True))
    scraped = store.rows(
        "SELECT DISTINCT q.instance, q.engine FROM quantity_series AS q SEMI JOIN (SELECT instance FROM scrape "
        "WHERE ok AND ts > $low AND ts <= $high) AS s USING (instance) WHERE q.engine <> ''",
        bounds,
    )
    seen |= {(row[0], row[1]) for row in scraped}
    return sorted(seen, key=lambda pair: (str(pair[0]), pair[1].zfill(6)))


def _outside(store: Store, events: Sequence[tuple[str | None, Event]]) -> list[tuple[str | None, str]]:
    """The engine that transfer lines, benchmarks or request records are about, where nothing else shows one."""
    seen = {instance for instance, event in events if event.kind in {"bench", "kv_transfer"}}
    seen |= {row[0] for row in store.rows("SELECT DISTINCT instance FROM request WHERE source = 'client' AND arrival_ts IS NULL")}
    return [(instance, "0") for instance in sorted(seen, key=str)]


def _with_clients(store: Store, bounds: Mapping[str, float], engine: Engine, *, alone: bool) -> Engine:
    """Means over the records of clients: of the window, or without a clock that it shares."""
    found = store.rows(
        "SELECT count(*), avg(ttft_s), avg(e2e_s), bool_and(arrival_ts IS NOT NULL) FROM request "
        "WHERE source = 'client' AND coalesce(status, 'ok') = 'ok' AND coalesce(instance, '') = $instance "
        "AND (arrival_ts IS NULL OR (end_ts > $low AND end_ts <= $high))",
        {**bounds, "instance": engine.instance},
    )[0]
    if not alone or not found[0]:
        return engine
    client = {"requests": found[0], "ttft_s": found[1], "e2e_s": found[2], "timed": found[3]}
    told = next((e.fields.get("concurrency") for e in engine.event if e.kind == "client"), None)
    return replace(engine, facts={**engine.facts, "client": client | ({"concurrency": told} if told else {})})


def _alone(pairs: Sequence[tuple[str | None, str]], pair: tuple[str | None, str]) -> bool:
    """True where the instance has one engine, so that what carries no engine label is this engine's."""
    return sum(1 for instance, _ in pairs if (instance or "") == (pair[0] or "")) == 1


Parts = Mapping[tuple[Any, ...], dict[str, Array]]


@dataclass(frozen=True, slots=True)
class _Tables:
    """A window's rows by (instance, engine), those of scrapes and requests by (instance,); when the last scrape was."""

    interval: Parts
    stat: Parts
    step: Parts
    scrape: Parts
    request: Parts
    bucket: Parts
    kv: Parts
    written: Mapping[tuple[str | None, str], float]
    last_ts: float | None


class _Split(dict[tuple[Any, ...], dict[str, Array]]):
    """The parts of a table; one that is not there is empty, with the table's columns."""

    empty: dict[str, Array]

    def __missing__(self, key: tuple[Any, ...]) -> dict[str, Array]:
        return self.empty


def _split(table: Columns, *names: str) -> Parts:
    """The parts of a table that is ordered by these columns, without `instance` and `engine`."""
    rest = {name: values for name, values in table.items() if name not in {"instance", "engine"}}
    parts = _Split()
    parts.empty = {name: values[:0] for name, values in rest.items()}
    length = len(table[names[0]])
    if length:
        changed = np.zeros(length, bool)
        changed[0] = True
        for name in names:
            changed[1:] |= table[name][1:] != table[name][:-1]
        begins = np.flatnonzero(changed).tolist()
        for begin, end in zip(begins, [*begins[1:], length], strict=True):
            parts[tuple(table[name][begin] for name in names)] = {name: values[begin:end] for name, values in rest.items()}
    for values in (values for part in parts.values() for values in part.values()):
        values.flags.writeable = False  # all parts lie in one table: whoever wants other values copies them
    return parts


def _engine(
    store: Store, pair: tuple[str | None, str], tables: _Tables, events: Sequence[tuple[str | None, Event]], alone: bool
) -> Engine:
    instance, engine = pair
    row, stat, scrape, one, counts = (
        tables.interval[pair], tables.stat[pair], tables.scrape[instance,], tables.bucket[pair], tables.kv[pair],
    )  # fmt: skip
    total = {name: float(np.nansum(values)) for name, values in row.items() if name not in _STATE and np.isfinite(values).any()}
    mine = tuple(event for where, event in events if where == instance and event.engine in {None, engine})
    facts = facts_of(store, instance, engine, mine)
    if pair in tables.written:
        facts["written_tokens"] = tables.written[pair]
    if "written_tokens" in facts and len(row["ts"]):
        facts["written_tokens"] -= _before_reset(store, instance, engine, row)
    if not total.get("e2e_n") and not any(where == instance for where, _ in tables.stat) and tables.last_ts is not None:
        facts["last_gauges"] = _last_gauges(store, instance, engine, tables.last_ts)
    return Engine(
        instance=instance or "",
        engine=engine,
        model=_model(store, instance, engine, mine),
        version=_version(mine),
        interval=row,
        scrape=scrape,
        stat=stat,
        step=tables.step[pair],
        # spans carry no engine label: with several engines behind one server they are nobody's alone
        request=tables.request[instance,] if alone else {},
        bucket={family: (one["le"][one["family"] == family], one["n"][one["family"] == family]) for family in set(one["family"])},
        total=total,
        facts=facts,
        kv={name: float(values[0]) for name, values in counts.items() if len(values)},
        event=mine,
    )


def _last_gauges(store: Store, instance: str | None, engine: str, end: float) -> dict[str, float]:
    """The gauges at the last scrape up to `end`, which are all that a single text without a time says."""
    found = store.rows(
        "SELECT q.quantity, CASE q.quantity WHEN 'kv_usage_ratio' THEN max(s.value) ELSE sum(s.value) END "
        "FROM (SELECT series_id, max(value) AS value FROM every_sample WHERE ts > $low AND ts = "
        "(SELECT max(ts) FROM epoch WHERE instance IS NOT DISTINCT FROM $instance AND ts <= $high) GROUP BY series_id) AS s "
        "JOIN quantity_series AS q USING (series_id) "
        "WHERE q.kind = 'gauge' AND q.instance IS NOT DISTINCT FROM $instance AND q.engine = $engine GROUP BY q.quantity",
        {"instance": instance, "engine": engine, "low": end - LOOK_BACK_S, "high": end},
    )
    return dict(found)


def _events(store: Store, bounds: Mapping[str, float]) -> list[tuple[str | None, Event]]:
    """Events: of what holds from the start on (arguments, cache size) all, of what happens at an instant those of the window."""
    found = store.rows(
        "SELECT instance, ts, engine, kind, fields, file, line FROM event_row "
        "WHERE ts IS NULL OR (ts >= $low AND ts <= $high) OR NOT list_contains($instants, kind) ORDER BY instance, file, line",
        {**bounds, "instants": list(INSTANTS)},
    )
    return [
        (row[0], Event(math.nan if row[1] is None else row[1], row[2], row[3], json.loads(row[4]), row[5], row[6]))
        for row in found
    ]


def _model(store: Store, instance: str | None, engine: str, events: Sequence[Event]) -> str | None:
    found = store.rows(
        "SELECT model_name FROM series WHERE instance IS NOT DISTINCT FROM ? AND coalesce(engine, '0') = ? AND model_name IS NOT NULL ORDER BY series_id LIMIT 1",
        [instance, engine],
    )
    if found:
        return str(found[0][0])
    return next((str(e.fields["model"]) for e in events if e.kind == "start" and e.fields.get("model")), None)


def _version(events: Sequence[Event]) -> str | None:
    return next(
        (str(e.fields["version"]) for e in reversed(events) if e.kind in {"start", "config"} and e.fields.get("version")), None
    )


def _written(store: Store, instances: set[str | None], high: float) -> dict[tuple[str | None, str], float]:
    """Tokens that each engine computed from the start of its process to the end of a window."""
    last = store.rows(
        "SELECT instance, max(ts) FROM scrape WHERE ok AND ts <= $high AND list_contains($names, coalesce(instance, '')) GROUP BY instance",
        {"high": high, "names": [name or "" for name in instances]},
    )
    found: dict[tuple[str | None, str], float] = {}
    # servers that were seen last at about one time are asked for together: days that lie between two of them are not read
    for group in groupby(sorted(last, key=lambda one: -one[1]), key=lambda one: one[1] // LOOK_BACK_S):
        ends = dict(group[1])
        rows = store.rows(
            "SELECT q.instance, q.engine, q.quantity, arg_max(s.value, s.ts) FROM every_sample AS s JOIN quantity_series AS q USING (series_id) "
            "JOIN (SELECT unnest($names) AS instance, unnest($ends::DOUBLE[]) AS ts) AS l ON l.instance = coalesce(q.instance, '') "
            "WHERE q.quantity IN ('computed_tokens', 'generation_tokens') AND s.ts > l.ts - $back AND s.ts <= l.ts AND s.ts > $low AND s.ts <= $high "
            "GROUP BY ALL HAVING max(s.ts) IS NOT NULL",
            {
                "names": [name or "" for name in ends], "ends": list(ends.values()), "back": LOOK_BACK_S,
                "low": min(ends.values()) - LOOK_BACK_S, "high": max(ends.values()),
            },
        )  # fmt: skip
        both = Counter((instance, engine) for instance, engine, _, _ in rows)
        for instance, engine, _, value in rows:
            if both[instance, engine] == 2:
                found[instance, engine] = found.get((instance, engine), 0.0) + float(value)
    return found


def facts_of(store: Store, instance: str | None, engine: str, events: Sequence[Event]) -> dict[str, Any]:
    """Single values: engine arguments (log over command line), cache configuration, model shape. Unknown ones are missing."""
    args: dict[str, Any] = {}
    for kind in ("args", "config"):
        for event in sorted((e for e in events if e.kind == kind), key=lambda e: not math.isnan(e.ts)):
            args.update({name: value for name, value in event.fields.items() if name not in args or kind == "args"})
    facts: dict[str, Any] = {"args": args, "args_known": any(e.kind == "args" for e in events)}
    cache = store.rows(
        "SELECT labels FROM series WHERE instance IS NOT DISTINCT FROM ? AND name IN ('vllm:cache_config_info', 'vllm_cache_config_info', 'ray_vllm_cache_config_info') "
        "AND coalesce(engine, ?) = ? ORDER BY series_id DESC LIMIT 1",
        [instance, engine, engine],
    )
    info = json.loads(cache[0][0]) if cache else {}
    facts.update(_cache_facts(info, args, events))
    facts.update(_argument_facts(args, events, known=facts["args_known"], cache=info))
    facts["device"] = args.get("device_config")
    facts["shape"] = _shape(events)
    name = next((str(e.fields["name"]) for e in events if e.kind == "device" and e.fields.get("name")), None)
    facts["device_name"] = name
    facts["memory_gib"] = _memory_gib(info, args, events, facts)
    return facts


def _before_reset(store: Store, instance: str | None, engine: str, row: Columns) -> float:
    """Tokens that were written before the prefix cache was last emptied (a log line), at the window's beginning or earlier; 0 without it.

    The least that they can be: of the last scrape before the line, or of the first one soon after it, less the most that the window
    saw written in as many seconds.
    """
    low = float(row["ts"][0] - row["dt_s"][0])
    reset = store.rows(
        "SELECT max(ts) FROM event_row WHERE kind = 'prefix_reset' AND instance IS NOT DISTINCT FROM ? AND coalesce(engine, ?) = ? AND ts <= ?",
        [instance, engine, engine, low],
    )[0][0]
    if reset is None:
        return 0.0
    began = store.rows(
        "SELECT (SELECT count(*) FROM event_row WHERE kind = 'start' AND instance IS NOT DISTINCT FROM $instance AND ts > $low AND ts <= $high) "
        "+ (SELECT count(*) FROM epoch WHERE instance IS NOT DISTINCT FROM $instance AND restarted AND ts > $low AND ts <= $high)",
        {"instance": instance, "low": reset, "high": float(row["ts"][-1])},
    )[0][0]
    if began:
        return 0.0  # a process that began since then counts from its own beginning
    found = store.rows(
        "SELECT s.ts, sum(s.value), count(*) FROM every_sample AS s JOIN quantity_series AS q USING (series_id) "
        "WHERE q.instance IS NOT DISTINCT FROM $instance AND q.engine = $engine AND q.quantity IN ('computed_tokens', 'generation_tokens') "
        "AND s.ts > $low AND s.ts <= $high GROUP BY s.ts ORDER BY s.ts",
        {"instance": instance, "engine": engine, "low": reset - LOOK_BACK_S, "high": reset + SOON_S},
    )
    whole = [(ts, value) for ts, value, quantities in found if quantities == 2]
    before, after = [x for x in whole if x[0] <= reset], [x for x in whole if x[0] > reset]
    if before:
        return float(before[-1][1])
    if not after:
        return 0.0
    written = np.nan_to_num(row["computed_tokens"]) + np.nan_to_num(row["generation_tokens"])
    fastest = float((written / np.maximum(row["dt_s"], 1e-9)).max(initial=0.0))
    return max(0.0, float(after[0][1] - fastest * (after[0][0] - reset)))


def _argument_facts(args: Mapping[str, Any], events: Sequence[Event], *, known: bool, cache: Mapping[str, str]) -> dict[str, Any]:
    """Limits, parallelism and features from the engine's arguments; what they do not say is missing."""
    facts: dict[str, Any] = {
        name: args[name] for name in ("max_num_seqs", "max_num_batched_tokens") if isinstance(args.get(name), int | float)
    }
    for event in events:
        if event.kind == "budget" and event.fields.get("max_num_batched_tokens"):
            facts["max_num_batched_tokens"] = event.fields["max_num_batched_tokens"]
    sizes = {
        "tensor_parallel_size": "tensor_parallel",
        "data_parallel_size": "data_parallel",
        "pipeline_parallel_size": "pipeline_parallel",
    }
    facts.update({key: args[name] for name, key in sizes.items() if isinstance(args.get(name), int | float)})
    facts["expert_parallel"] = bool(args.get("enable_expert_parallel")) if known else None
    facts["eplb"] = bool(args.get("enable_eplb")) if known else None
    if isinstance(args.get("max_cudagraph_capture_size"), int | float):
        facts["graph_size"] = args["max_cudagraph_capture_size"]
    if args.get("enforce_eager") is True:
        facts["graph_size"] = math.inf  # no graphs at all: nothing falls out of them
    facts["graph_sizes"] = args.get("cudagraph_capture_sizes")
    if "speculative_config" in args:
        facts["speculative"] = args["speculative_config"] not in (None, "None", "")
    elif known:
        facts["speculative"] = False
    facts["connector"] = bool(args.get("kv_transfer_config")) or bool(args.get("kv_offloading_size")) if known else None
    servers = args.get("api_server_count") or next((e.fields.get("count") for e in events if e.kind == "api_servers"), None)
    facts["api_servers"] = servers if isinstance(servers, int | float) else facts.get("data_parallel", 1) if known else None
    facts["kv_dtype"] = args.get("kv_cache_dtype") or cache.get("cache_dtype") or "auto"
    return facts


def _cache_facts(info: Mapping[str, str], args: Mapping[str, Any], events: Sequence[Event]) -> dict[str, Any]:
    """KV capacity of one engine and whether prefix caching is on."""
    facts: dict[str, Any] = {}
    block = _int(info.get("block_size")) or _int(args.get("block_size"))
    if block:
        facts["block_size"] = block
    tokens = _int(info.get("kv_cache_size_tokens"))
    if tokens is None:
        tokens = next((_int(e.fields.get("tokens")) for e in reversed(events) if e.kind == "kv_cache"), None)
    blocks = _int(info.get("num_gpu_blocks"))
    if tokens and block:
        facts["kv_blocks"] = tokens / block  # num_gpu_blocks is summed over data-parallel engines
    elif blocks:
        facts["kv_blocks"] = blocks / max(1, _int(args.get("data_parallel_size")) or 1)
    override = _int(args.get("num_gpu_blocks_override"))
    if override and "kv_blocks" not in facts:
        facts["kv_blocks"] = override
    caching: Any = info.get("enable_prefix_caching", args.get("enable_prefix_caching"))
    if str(caching) in {"True", "False"}:
        facts["prefix_caching"] = str(caching) == "True"
    return facts


def _memory_gib(
    info: Mapping[str, str], args: Mapping[str, Any], events: Sequence[Event], facts: Mapping[str, Any]
) -> float | None:
    """Memory of one GPU, from what vLLM took for weights and KV blocks and its share of the whole; None where that is not said.

    What it took for activations and graphs is not said: the value is up to a few percent low.
    """
    share = info.get("gpu_memory_utilization", args.get("gpu_memory_utilization"))
    took = {
        name: float(e.fields[name]) for e in events if e.kind == "memory" for name in ("kv_gib", "model_gib") if name in e.fields
    }
    if len(took) < 2:
        took = _modelled_gib(facts) if not args.get("num_gpu_blocks_override") else {}
    try:
        fraction = float(share) if share is not None else math.nan
    except ValueError:
        return None
    return sum(took.values()) / fraction if len(took) == 2 and 0 < fraction <= 1 else None


def _modelled_gib(facts: Mapping[str, Any]) -> dict[str, float]:
    """Weights and KV blocks of one GPU in GiB from the model's shape (16-bit weights), empty where the shape is unknown."""
    probe = Engine("", "", facts=facts)
    kv, parameters = kv_bytes_per_token(probe), parameters_held(probe)
    tokens = float(facts.get("kv_blocks") or math.nan) * float(facts.get("block_size") or math.nan)
    if not (math.isfinite(kv * tokens) and math.isfinite(parameters)):
        return {}
    return {"kv_gib": kv * tokens / 2**30, "model_gib": 2 * parameters / 2**30}


def _int(value: object) -> int | None:
    try:
        return int(float(value))  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None


def _shape(events: Sequence[Event]) -> dict[str, float]:
    """The model's shape in our words, from its config.json; empty where none was given."""
    found = next((dict(e.fields) for e in events if e.kind == "model_config"), None)
    if not found:
        return {}
    config = {**found, **(found.get("text_config") or {})} if isinstance(found.get("text_config"), dict) else found
    heads = config.get("num_attention_heads")
    names = {
        "layers": "num_hidden_layers",
        "hidden": "hidden_size",
        "heads": "num_attention_heads",
        "intermediate": "intermediate_size",
        "experts_per_token": "num_experts_per_tok",
        "moe_intermediate": "moe_intermediate_size",
        "vocabulary": "vocab_size",
    }
    shape = {key: config[name] for key, name in names.items() if isinstance(config.get(name), int | float)}
    shape["kv_heads"] = config.get("num_key_value_heads") or heads
    shape["head_dim"] = config.get("head_dim") or (config.get("hidden_size", 0) // heads if heads else None)
    experts = next(
        (config[n] for n in ("num_experts", "num_local_experts", "n_routed_experts") if isinstance(config.get(n), int)), None
    )
    if experts:
        shape["experts"] = experts
    return {key: value for key, value in shape.items() if isinstance(value, int | float)}


def _span(
    interval: Columns, stat: Columns, scrape: Columns, engines: Sequence[Engine], start: float | None, end: float | None
) -> tuple[float | None, float | None]:
    """First and last instant of what was judged; None where nothing carries a clock."""
    first: list[float] = []
    last: list[float] = []
    timed = interval["timed"].astype(bool) if len(interval["timed"]) else np.zeros(0, bool)
    if timed.any():
        first.append(float((interval["ts"] - interval["dt_s"])[timed].min()))
        last.append(float(interval["ts"][timed].max()))
    else:
        ok = scrape["timed"].astype(bool) & scrape["ok"].astype(bool) if len(scrape["ts"]) else np.zeros(0, bool)
        times = [scrape["ts"][ok]] if ok.any() else []
        times += [stat["ts"][np.isfinite(stat["ts"])]] if len(stat["ts"]) else []
        times += [e.step["ts"][np.isfinite(e.step["ts"])] for e in engines if len(e.step.get("ts", ()))]
        for one in times:
            if len(one):
                first.append(float(one.min()))
                last.append(float(one.max()))
    return (min(first) if first else start), (max(last) if last else end)


def _log_restarts(store: Store, bounds: Mapping[str, float]) -> int:
    """Restarts that only logs show: lines with the arguments (one a start, however many API servers) beyond the first."""
    found = store.rows(
        "SELECT count(*) FROM (SELECT instance, ts, row_number() OVER (PARTITION BY instance, file ORDER BY line) AS n "
        "FROM event_row WHERE kind = 'args' AND ts IS NOT NULL) AS start WHERE n > 1 AND ts >= $low AND ts <= $high "
        "AND NOT EXISTS (SELECT 1 FROM scrape WHERE scrape.instance = start.instance AND ok AND timed)",
        bounds,
    )
    return int(found[0][0])


__all__ = ["Level", "attribution_for", "attribution_notes", "facts_of", "noted", "window_of"]
