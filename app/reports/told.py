"""What only reports hold, as plain values: what it cost, when, the evidence, what to try, where everything comes from."""

import math
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any, Final

from analyzers.model import Coverage, Evidence, Hypothesis, Impact, Incident
from app.reports.words import stamp

SCHEMA: Final = "weaklink incident 1"
MATTER: Final = (  # arguments that the judgement or a change to try reads; the others are only named
    "model", "served_model_name", "dtype", "quantization", "kv_cache_dtype", "max_model_len", "max_seq_len", "max_num_seqs",
    "max_num_active_seqs", "max_num_batched_tokens", "max_num_partial_prefills", "max_long_partial_prefills", "long_prefill_token_threshold",
    "prefill_schedule_interval", "enable_chunked_prefill", "enable_prefix_caching", "block_size", "num_gpu_blocks_override",
    "gpu_memory_utilization", "kv_cache_memory_bytes", "kv_offloading_size", "kv_offloading_backend", "kv_transfer_config", "cpu_offload_gb",
    "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "data_parallel_rank", "decode_context_parallel_size",
    "enable_expert_parallel", "enable_eplb", "eplb_config", "all2all_backend", "expert_placement_strategy", "api_server_count", "stream_interval",
    "scheduling_policy", "async_scheduling", "speculative_config", "enforce_eager", "cudagraph_capture_sizes", "max_cudagraph_capture_size",
    "compilation_config", "optimization_level", "device_config", "version", "load_format", "distributed_executor_backend", "max_logprobs",
    "reasoning_parser", "tool_call_parser", "enable_lora", "max_loras", "limit_mm_per_prompt", "mm_processor_cache_gb",
    "disable_log_stats", "enable_logging_iteration_details", "enable_log_requests", "kv_events_config", "prefix_caching_hash_algo",
)  # fmt: skip


def told(incident: Incident) -> dict[str, Any]:
    """The part of the document that reports add; nothing where the incident was not gathered for one."""
    if not incident.command:
        return {}
    return {
        "schema": SCHEMA,
        "title": incident.title,
        "note": incident.note,
        "impact": [_impact(one) for one in incident.impact],
        "timeline": [{"ts": stamp(ts), "what": what} for ts, what in incident.timeline],
        "series": {
            engine: {name: numbers(values) for name, values in columns.items()} for engine, columns in incident.series.items()
        },
        "evidence": [_evidence(one) for one in incident.evidence],
        "baseline": {"name": incident.baseline, "changes": list(incident.changes)} if incident.baseline else None,
        "workload": incident.stream,
        "hypotheses": [hypothesis(h) for h in incident.hypotheses],
        "arguments": [_arguments(name, given) for name, given in incident.arguments.items()],
        "coverage": [_coverage(one) for one in incident.coverage],
        "versions": {"weaklink": incident.version, "python": platform.python_version(), "duckdb": version("duckdb")},
        "reproduce": incident.command,
    }


def number(value: float | None) -> float | None:
    """A number as JSON has it; unknown is null."""
    return None if value is None or not math.isfinite(value) else value


def numbers(values: Sequence[float]) -> list[float | None]:
    """Points of a chart, to six digits: more would be noise and bytes."""
    return [None if not math.isfinite(x) else float(f"{x:.6g}") if abs(x) < 1e8 else round(x, 3) for x in values]


def _impact(one: Impact) -> dict[str, Any]:
    allowed = one.total * (1 - one.objective)
    return {
        "objective": one.name,
        "kind": one.kind,
        "threshold_s": one.threshold_s,
        "good_ratio": one.objective,
        "good_ratio_assumed": one.assumed,
        "total": one.total,
        "bad": one.bad,
        "bad_least": one.least,
        "bad_most": one.most,
        "minutes": one.minutes,
        "bad_minutes": one.bad_minutes,
        "first_bad": stamp(one.first_ts),
        "budget_spent_ratio": one.bad / allowed if allowed > 0 else None,
        "period_s": one.period_s,
        "source": one.source,
        "missing": one.missing,
        "notes": list(one.notes),
    }


def _evidence(one: Evidence) -> dict[str, Any]:
    return {
        "link": one.link,
        "instance": one.instance,
        "engine": one.engine,
        "query": one.query,
        "parameters": {name: stamp(value) if name in {"low", "high"} else value for name, value in one.parameters.items()},
        "rows": one.rows,
        "columns": [{"name": name, "meaning": one.meaning.get(name, ""), "values": numbers(values)} for name, values in one.columns.items()],
        "lines": [{"file": file, "line": line, "ts": stamp(ts), "what": what} for file, line, ts, what in one.lines],
    }  # fmt: skip


def _coverage(one: Coverage) -> dict[str, Any]:
    return {
        "instance": one.instance,
        "scrapes": one.scrapes,
        "failed": one.failed,
        "first": stamp(one.first_ts),
        "last": stamp(one.last_ts),
        "longest_gap_s": number(one.gap_s),
        "longest_gap_from": stamp(one.gap_ts),
    }


def _arguments(server: str, given: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "server": server,
        "flags": {name: plain(given[name]) for name in MATTER if name in given},
        "left_out": sorted(str(name) for name in given if name not in MATTER),
    }


def hypothesis(h: Hypothesis) -> dict[str, Any]:
    """A change to try as plain values."""
    return {
        "name": h.name,
        "change": h.change,
        "flags": list(h.flags),
        "claim": h.claim,
        "effect": {
            name: {"saves_s": number(e.saves_s), "range_s": None if e.range_s is None else [number(x) for x in e.range_s]}
            for name, e in h.effect.items()
        },
        "predicted_by": h.predicted_by,
        "costs": list(h.costs),
        "confused_with": h.confused_with,
        "conditions": list(h.conditions),
        "test": h.test,
    }


def plain(value: Any) -> Any:
    """An argument as JSON has it."""
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if value is None or isinstance(value, str | int | bool) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return str(value)
