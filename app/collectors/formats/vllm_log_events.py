"""What a record of a vLLM server log says: a row of step or stat, or an event.

Formats as vLLM 0.8.5 to 0.33.0 prints them: vllm/v1/spec_decode/metrics.py, vllm/distributed/eplb/eplb_state.py,
vllm/distributed/kv_transfer/kv_connector/v1/metrics.py, vllm/utils/jit_monitor.py, vllm/v1/engine/async_llm.py and core.py,
vllm/v1/executor/multiproc_executor.py, vllm/logging_utils/dump_input.py, vllm/core/scheduler.py (V0).

User text (prompts, outputs, token ids) never leaves this module: an event takes numbers and fixed phrases, not a line's rest.
"""

import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from app.collectors.formats.vllm_log_lines import BODY, TOO_BIG, Match, number, row_of
from app.collectors.formats.vllm_log_repr import entries, masked

Fields = dict[str, Any]

TEXT: Final = 1 << 16  # bytes of a record that are searched for arguments


class Finding(NamedTuple):
    """A row of step or stat (numbers by name), or an event's fields."""

    kind: str
    fields: Fields


class Cut(Exception):  # noqa: N818 (the line is at fault, not we)
    """A record that is known, but not whole; `findings` is what can be read for certain."""

    def __init__(self, reason: str, *findings: Finding) -> None:
        super().__init__(reason)
        self.reason = reason
        self.findings = findings


Builder = Callable[[bytes, bool], list[Finding]]
EXPECTED: Final = {
    "step": "expected: Iteration(N): N context requests, N context tokens, N generation requests, N generation tokens, ... ms",
    "stat": "expected: Avg prompt throughput: N tokens/s, ..., Running: N reqs, Waiting: N reqs, ... KV cache usage: N%",
    "access": 'expected: address - "METHOD path HTTP/1.1" status',
    "eplb": "expected: EPLB step: N for model M: avg_tokens=N, max_tokens=N, balancedness=N.NNNN",
    "spec_decode": "expected: SpecDecoding metrics: Mean acceptance length: N, ..., Accepted: N tokens, Drafted: N tokens, ...",
    "json": 'expected: {"asctime": ..., "message": ...}, closed on the same line',
    "date": "expected: a date and time that exist",
    "long": "expected: a line of at most 1 MiB",
    "number": "expected: numbers below 1e15",
}


def _frequent(kind: str) -> Builder:
    def build(body: bytes, ended: bool) -> list[Finding]:  # noqa: ARG001 (they end in a unit)
        match = next((m for pattern in BODY[kind] if (m := pattern.fullmatch(body))), None)
        if match is None:
            raise Cut(EXPECTED.get(kind, EXPECTED["stat"]))
        found = match.groupdict()
        row = row_of("step" if kind == "step" else "stat", found)
        engines = number(found["engines"]) if kind == "aggregate" else 0.0
        if row is None or engines >= TOO_BIG:
            raise Cut(EXPECTED["number"])
        if kind == "aggregate":
            return [Finding(kind, {"engines": int(engines), **_canonical(row)})]
        return [Finding(kind, {**row, "engine": found.get("engine")})]

    return build


STAT_COLUMNS: Final = {  # name in the pattern -> column of table stat and unit: what one of it is
    "prompt": ("prompt_tokens_per_s", 1.0),
    "generation": ("generation_tokens_per_s", 1.0),
    "running": ("running", 1.0),
    "waiting": ("waiting", 1.0),
    "deferred": ("deferred", 1.0),
    "kv": ("kv_usage_ratio", 100.0),
    "prefix": ("prefix_hit_ratio", 100.0),
    "external": ("external_hit_ratio", 100.0),
    "mm": ("mm_hit_ratio", 100.0),
}


def _canonical(row: dict[str, float]) -> Fields:
    return {column: row[name] / unit for name, (column, unit) in STAT_COLUMNS.items() if row[name] == row[name]}


def call_of(raw: bytes) -> tuple[str, str, int] | None:
    """Return method, path and status of an access line's `"GET /metrics HTTP/1.1" 200`; None where it is none.

    The query is dropped, for it may hold keys and text; a part of the path that looks like an id becomes {id}.
    """
    match = _REQUEST.match(raw)
    if match is None or not 100 <= (status := int(match["status"][-6:])) <= 599:
        return None
    path = match["path"].split(b"?", 1)[0].split(b"#", 1)[0].decode("utf-8", "replace")[:200]
    return match["method"].decode(), _ID.sub("{id}", path), status


_REQUEST: Final = re.compile(rb'\\?"(?P<method>[A-Z]+) (?P<path>[^\s"]+) HTTP/\d+\.\d+\\?" (?P<status>\d+)')
_ID: Final = re.compile(r"(?<=/)(?=[^/]*\d)[\w.:-]{16,}(?=/|$)")


def _access(body: bytes, ended: bool) -> list[Finding]:  # noqa: ARG001 (a status is checked for its range)
    match = BODY["access"][0].fullmatch(body)
    call = call_of(match["call"]) if match else None
    if call is None:
        raise Cut(EXPECTED["access"])
    return [Finding("access", dict(zip(("method", "path", "status"), call, strict=True)))]


def _spec(body: bytes, ended: bool) -> list[Finding]:
    """SpecDecoding metrics, in the order of 0.8.5 (rate first) or 0.12 (rate last); what stands before a cut counts."""
    found = {name: match[1] for name, pattern in _SPEC.items() if (match := pattern.search(body))}
    fields: Fields = {"acceptance_length": _float(found.get("length"))}
    fields.update({f"{name}_tokens": int(found[name]) if name in found else None for name in ("accepted", "drafted")})
    fields["draft_acceptance_ratio"] = None if (rate := _float(found.get("rate"))) is None else round(rate / 100, 6)
    whole = _SPEC_END.search(body) if ended else body.endswith(b"%")
    positions = _POSITIONS.search(body) if whole else None
    fields["position_ratios"] = [float(part) for part in positions[1].split(b", ")] if positions else None
    findings = [Finding("spec_decode", fields)] if {"length", "accepted", "drafted"} & found.keys() else []
    if not whole or not findings:
        raise Cut(EXPECTED["spec_decode"], *findings)
    return findings


_SPEC: Final = {
    "length": re.compile(rb"Mean acceptance length: (\d+\.\d+|nan),"),
    "accepted": re.compile(rb"Accepted: (\d{1,15}) tokens"),
    "drafted": re.compile(rb"Drafted: (\d{1,15}) tokens"),
    "rate": re.compile(rb"Draft acceptance rate: (\d+\.\d+|nan)%"),
}
_SPEC_END: Final = re.compile(rb"(?:%|Per-position acceptance rate: [\d., ]*|depth: \d+)$")
_POSITIONS: Final = re.compile(rb"Per-position acceptance rate: (\d\.\d{3}(?:, \d\.\d{3})*)(?:, [A-Z]|$)")


def _float(raw: bytes | None) -> float | None:
    return None if raw is None or raw == b"nan" else float(raw)


def _kv_transfer(body: bytes, ended: bool) -> list[Finding]:
    fields = {
        match[1].decode(): float(match[2])
        for match in _TRANSFER.finditer(body, len(b"KV Transfer metrics: "), TEXT)
        if ended or body[match.end() : match.end() + 1] == b","  # a number at a cut may lack digits
    }
    return [Finding("kv_transfer", fields)] if fields else []


_TRANSFER: Final = re.compile(rb"([A-Za-z][\w:. ()/-]{0,100})=(-?\d{1,18}(?:\.\d{1,18})?(?:e-?\d\d?)?)(?=,|$)")


def _eplb(body: bytes, ended: bool) -> list[Finding]:
    match = _BALANCE.match(body)
    if match is None:
        raise Cut(EXPECTED["eplb"])
    step, model, average, largest, balancedness, left = match.groups()
    fields: Fields = {
        "step": None if step is None else int(step),
        "avg_tokens": float(average),
        "max_tokens": int(largest),
        "balancedness": float(balancedness),
    }
    if model is not None:
        fields["model"] = model.decode("utf-8", "replace")
    if left is not None and ended:
        fields["steps_left"] = int(left)
    return [Finding("eplb", fields)]


_BALANCE: Final = re.compile(
    rb"EPLB step: (?:(\d{1,15}) for model (\S{1,300}): )?avg_tokens=(\d+\.\d+), max_tokens=(\d{1,15}), "
    rb"balancedness=(\d+\.\d{4})(?!\d)"
    rb"(?:, steps until the next rearrangement: (-?\d{1,15})$)?"
)

CONFIG: Final = (
    "model", "served_model_name", "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size",
    "enable_prefix_caching", "enable_chunked_prefill", "kv_cache_dtype", "dtype", "quantization", "speculative_config",
    "enforce_eager", "device_config", "max_seq_len",
)  # fmt: skip


def _config(body: bytes, ended: bool) -> list[Finding]:
    """Return the engine's configuration; its size of CUDA graphs as an event of its own, too."""
    match = _ENGINE_START.match(body)
    if match is None:
        raise Cut("expected: Initializing a V1 LLM engine (vN) with config: name=value, ...")
    text = body[match.end() : match.end() + TEXT].decode("utf-8", "replace")
    found = entries(text, ended=ended and len(body) - match.end() <= TEXT)
    if "chunked_prefill_enabled" in found:  # until 0.11
        found.setdefault("enable_chunked_prefill", found["chunked_prefill_enabled"])
    fields: Fields = {"version": match[1].decode("utf-8", "replace"), **{name: found[name] for name in CONFIG if name in found}}
    compilation = found.get("compilation_config")
    compilation = compilation if isinstance(compilation, dict) else {}
    largest = compilation.get("max_cudagraph_capture_size", compilation.get("max_capture_size"))
    sizes = compilation.get("cudagraph_capture_sizes")
    if isinstance(sizes, list):
        fields["cudagraph_capture_sizes"] = sizes
        largest = max((size for size in sizes if type(size) is int), default=None) if largest is None else largest
    if compilation:
        fields["max_cudagraph_capture_size"] = largest
    findings = [Finding("config", masked(fields))]
    return [*findings, Finding("graph", {"max_size": largest})] if isinstance(largest, int) and largest > 0 else findings


_ENGINE_START: Final = re.compile(rb"Initializing a V\d LLM engine \(v([^)]{1,100})\) with config: ")


def _args(body: bytes, ended: bool) -> list[Finding]:  # noqa: ARG001 (the object says itself where it ends)
    text = body.split(b"args: ", 1)[1][:TEXT].decode("utf-8", "replace")
    fields = {name: value for name, value in masked(entries(text)).items() if value is not None}
    return [Finding("args", fields)] if text.startswith(("{", "Namespace(")) and fields else []


def _simple(
    pattern: bytes, kind: str, fields: Callable[[Match], Fields | None] = lambda _: {}, *, open_end: bool = False
) -> Builder:
    """Make a reader of a fixed phrase. `open_end`: it ends in a number or name that a cut may have shortened."""
    compiled = re.compile(pattern)

    def build(body: bytes, ended: bool) -> list[Finding]:
        match = compiled.match(body)
        if match is None:
            return []
        if open_end and not ended and match.end() == len(body):
            raise Cut(f"expected: the end of a line of kind {kind}")
        found = fields(match)
        return [] if found is None else [Finding(kind, found)]

    return build


def _phrase(pattern: bytes, kind: str, *, open_end: bool = False) -> Builder:
    """Make a reader that keeps the phrase itself, which must be one of vLLM's own."""
    return _simple(pattern, kind, lambda match: {"text": _text(match).rstrip(" (")}, open_end=open_end)


def _text(match: Match, group: int | str = 0) -> str:
    return (match[group] or b"").decode("utf-8", "replace")


def _count(raw: bytes | None) -> int | None:
    return None if raw is None else int(raw.replace(b",", b"")[:15])


def _preempted(body: bytes, ended: bool) -> list[Finding]:
    """V0 warns at the first preemption and at each fiftieth; `count` is its cumulative counter, None where it is cut off."""
    mode = re.search(rb"PreemptionMode\.([A-Z]+) mode", body)
    total = re.search(rb"total\w*preemption\w*=(\d{1,15})" + (b"" if ended else rb"(?=\D)"), body)
    return [Finding("preempted_v0", {"count": _count(total[1]) if total else None, "mode": _text(mode, 1) if mode else None})]


def _dumped(match: Match) -> Fields:
    """Return the scheduler's last state: the only place where vLLM prints it. The rest of the dump is the users'."""
    pairs = re.findall(rb"(num_running_reqs|num_waiting_reqs|kv_cache_usage)=(\d{1,15}(?:\.\d{1,18})?)(?=[,)])", match[0])
    return {"text": "scheduler stats", **{name.decode(): float(value) for name, value in pairs}}


_NAMES: Final = rb"(?:[A-Za-z_]\w{0,60}\.){0,8}[A-Z]\w{0,60}(?:Error|Exception|Interrupt)"
_START: Final = rb"vLLM (?:API )?server version ([^\s,]{1,100})(?:, serving model (\S.{0,300}))?$"
# of several API servers each says so: the first one counts
_LISTENING: Final = rb"Starting vLLM (?:API )?server(?: 0)? on https?://(\[[^\s\]]{1,100}\]|[^\s:/]{1,200}):(\d{1,5})/?$"
_DEATH: Final = (
    rb"(?:Worker proc|Engine core proc|RayWorkerProc) \S{1,60} died unexpectedly(?: \(exit code: -?\w{1,10}\))?"
    rb"|EngineCore encountered a fatal error|EngineCore failed to start|Engine core initialization failed"
    rb"|AsyncLLM output_handler failed|\[FT\] No recovery within \d+s timeout"
)
_TABLE: Final[tuple[tuple[bytes, Builder], ...]] = (  # how a message begins (without groups), and who reads it
    (rb"(?:Engine \d+: )?Iteration\(", _frequent("step")),
    (rb"(?:Engine \d+: )?Avg prompt throughput", _frequent("stat")),
    (rb"\d+ Engines Aggregated: Avg", _frequent("aggregate")),
    (rb'\S* ?- "[A-Z]+ \S*(?: HTTP/|$)', _access),
    (rb"SpecDecoding metrics: ", _spec),
    (rb"KV Transfer metrics: ", _kv_transfer),
    (rb"EPLB step", _eplb),
    (rb"Received request ", _simple(rb"", "received")),
    (rb"Added request ", _simple(rb"", "added")),
    (rb"Aborted request", _simple(rb"Aborted request(?:\(s\))? (.+)\.$", "aborted", lambda m: {"count": m[1].count(b",") + 1})),
    (rb"Initializing a V\d", _config),
    (rb"(?:non-default )?args: ", _args),
    (
        rb"[^A-Za-z0-9]*\sversion \d",
        _simple(rb"[^A-Za-z0-9]*\sversion (\S{1,100})$", "version", lambda m: {"version": _text(m, 1)}, open_end=True),
    ),
    (
        rb"[^A-Za-z0-9]*\smodel +\S",
        _simple(rb"[^A-Za-z0-9]*\smodel +(\S.{0,300})$", "model", lambda m: {"model": _text(m, 1)}, open_end=True),
    ),
    (
        rb"vLLM (?:API )?server version ",
        _simple(_START, "start", lambda m: {"version": _text(m, 1), "model": _text(m, 2) or None}, open_end=True),
    ),
    (
        rb"Chunked prefill is enabled",
        _simple(rb".*with max_num_batched_tokens=(\d{1,15})\.", "budget", lambda m: {"max_num_batched_tokens": _count(m[1])}),
    ),
    (
        rb"[A-Za-z][\w+ ]{0,30} KV cache size: ",
        _simple(rb".{0,40} KV cache size: ([\d,]{1,20}) tokens", "kv_cache", lambda m: {"tokens": _count(m[1])}),
    ),
    (
        rb"Starting vLLM ",
        _simple(_LISTENING, "listening", lambda m: {"host": _text(m, 1), "port": _count(m[2])}, open_end=True),
    ),
    (
        rb"Available KV cache memory: ",
        _simple(rb"Available KV cache memory: (-?\d{1,6}\.\d+) GiB", "memory", lambda m: {"kv_gib": float(m[1])}),
    ),
    (
        rb"Model loading took ",
        _simple(rb"Model loading took (\d{1,6}\.\d+) (?:GiB|GB)\b", "memory", lambda m: {"model_gib": float(m[1])}),
    ),
    (
        rb"Using default MoE config",
        _simple(
            rb".{0,400}device_name=(\w{1,60}?)(?:,\w+=\w+)*\.json", "device", lambda m: {"name": _text(m, 1).replace("_", " ")}
        ),
    ),
    (rb"Asynchronous scheduling is enabled", _simple(rb"", "async_scheduling")),
    (rb"Asynchronous scheduling is disabled", _simple(rb"", "sync_scheduling")),
    (rb"Rearranging experts", _phrase(rb"Rearranging experts[ \w()]*\.\.\.", "rearrange")),
    (rb"Rearranged experts", _phrase(rb"Rearranged experts[ \w()]* in \d+\.\d+ s\w*\.", "rearrange")),
    (rb"\[EPLB\] Skip", _phrase(rb"\[EPLB\] Skip rearrange: imbalance [\d.]+ -> [\d.]+ \(", "rearrange")),
    (
        rb"[A-Z][\w .-]{0,80} during inference: ",
        _simple(
            rb"(.{1,80}?) during inference: (\S{1,200}?)(?: .*)?\. This causes",
            "jit",
            lambda m: {"kernel": _text(m, 2), "text": _text(m, 1)},
        ),
    ),
    (
        rb"Defaulting api_server_count",
        _simple(
            rb"Defaulting api_server_count to data_parallel_size \((\d{1,6})\)", "api_servers", lambda m: {"count": _count(m[1])}
        ),
    ),
    (
        rb"AsyncLLM created with api_server_count more than 1",
        _simple(rb"", "log_skipped", lambda _: {"stats": "api_server_count more than 1"}),
    ),
    (rb"Successfully reset prefix cache", _simple(rb"", "prefix_reset")),
    (rb"Sequence group \S+ is preempted by", _preempted),
    (
        rb"Recovered from KV load failure",
        _phrase(rb"Recovered from KV load failure: \d+ request\(s\) rescheduled \(\d+ tokens affected\)", "failed"),
    ),
    (rb"Failing \d+ request\(s\) due to KV", _phrase(rb"Failing \d+ request\(s\) due to KV load failure", "failed")),
    (
        rb"Request \S+ failed",
        _simple(
            rb"Request \S+ failed(?: \(([a-z ]{1,40})\)|\.| due to )",
            "failed",
            lambda m: {"text": f"request failed: {_text(m, 1) or 'error'}"},
        ),
    ),
    (rb"No available memory for the cache blocks", _phrase(rb"No available memory for the cache blocks", "failed")),
    (
        rb"(?:Worker proc|Engine core proc|RayWorkerProc|EngineCore|Engine core init|AsyncLLM output_handler|\[FT\] No recovery)",
        _phrase(_DEATH, "death"),
    ),
    (rb"Dumping scheduler stats: ", _simple(rb".{0,20000}", "death", _dumped)),
    (_NAMES + rb"(?:: |$)", _phrase(_NAMES, "error", open_end=True)),
)
_KNOWN: Final = re.compile(b"|".join(rb"(%b)" % pattern for pattern, _ in _TABLE))
_BUILD: Final = tuple(builder for _, builder in _TABLE)


def understand(body: bytes, *, ended: bool = True) -> list[Finding] | None:
    """Return what a record's message says; None where it is of no kind that we know.

    `ended`: its line has an end, so that its last number is whole. Raises Cut where it is of a known kind, but not whole.
    """
    match = _KNOWN.match(body)
    return _BUILD[match.lastindex - 1](body, ended) if match and match.lastindex else None
