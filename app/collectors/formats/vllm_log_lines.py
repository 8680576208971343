"""What one line of a vLLM server log says: the grammar of `vllm_log`.

Formats as vLLM 0.8.5 to 0.33.0 prints them: vllm/logging_utils/formatter.py (heads), vllm/v1/metrics/loggers.py and
vllm/v1/engine/core.py (stats, iterations), vllm/v1/spec_decode/metrics.py, vllm/distributed/eplb/eplb_state.py,
vllm/utils/jit_monitor.py, vllm/v1/engine/async_llm.py, vllm/engine/metrics.py (V0), uvicorn/logging.py (access lines).

A number is matched as a whole run of digits and all between the numbers literally. So two lines that differ only in their
digits are both records or neither, which `vllm_log` relies on.

User text (prompts, outputs, token ids) never leaves this module: an event takes numbers and fixed phrases, not a line's rest.
"""

import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from app.collectors.formats.vllm_log_repr import entries, masked

Fields = dict[str, Any]
Match = re.Match[bytes]

NAN: Final = float("nan")
TOO_BIG: Final = 1e15  # from here on a float is no exact integer; no counter of a server is as large
TEXT: Final = 1 << 16  # bytes of a line that are searched for arguments

# ---------------------------------------------------------------------------------------------------------- heads

# docker logs -t, kubectl logs --timestamps, CRI (`stdout F`), journalctl -o short-iso, all with or without a zone's colon
_ISO: Final = (
    rb"(?P<iy>\d+)-(?P<im>\d+)-(?P<id>\d+)T(?P<ih>\d+):(?P<in>\d+):(?P<is>\d+(?:\.\d+)?)(?:Z|(?P<zs>[+-])(?P<zh>\d+):?(?P<zm>\d+)?)"
)
_UNIT: Final = rb"[\w.-]+ [^\s\[(]+\[\d+\]: "  # host, unit[pid]
_TRANSPORT: Final = (
    rb"(?:" + _ISO + rb" (?:std(?:out|err) [A-Z] )?(?:" + _UNIT + rb")?"
    rb"|[A-Z][a-z][a-z] +\d+ \d+:\d+:\d+ " + _UNIT + rb"|[\w./-]+ +\| "
    rb"|\[pod/[^\]\s]+\] |\[\d+-\d+-\d+[ T]\d+:\d+:\d+(?:[.,]\d+)?\] )*+"
)
_PROCESS: Final = rb"(?:\((?P<process>[A-Za-z]+)(?:_(?:DP)?(?P<rank>\d+))?(?:[_ ][A-Z]+\d+)*(?: rank=\d+)? pid=(?P<pid>\d+)\) )*+"
_OWN: Final = rb"(?P<om>\d+)-(?P<od>\d+) (?P<oh>\d+):(?P<on>\d+):(?P<os>\d+) \[?[\w./-]+:\d+\] "
_LEVEL: Final = rb"(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL)"
_PAIR: Final = rb'"\w+": (?:"[^"\\]*"|\d+|null|true|false)'
_JSON: Final = (
    rb'\{"asctime": "(?P<jy>\d+)-(?P<jm>\d+)-(?P<jd>\d+) (?P<jh>\d+):(?P<jn>\d+):(?P<js>\d+),(?P<jf>\d+)"(?:, '
    + _PAIR
    + rb')*?, "message": "'
)
_JSON_END: Final = rb'"(?:, ' + _PAIR + rb")*+\}"

# A record may begin anywhere on a line: behind a progress bar, or behind another record whose line end was lost.
START: Final = re.compile(
    rb"(?:" + _ISO + rb" (?:std(?:out|err) [A-Z] )?)?" + _PROCESS + _LEVEL + rb"(?: (?=\d+-)" + _OWN + rb"|:  +(?=\S* ?- \"))"
    rb"|" + re.sub(rb"\?P<(\w+)>", rb"?P<\1_b>", _ISO + rb" +" + _LEVEL) + rb" +[\w.:]+: "  # Dynamo
    rb"|(?P<cy>\d+)-(?P<cm>\d+)-(?P<cd>\d+) (?P<ch>\d+):(?P<cn>\d+):(?P<cs>\d+)(?:[.,](?P<cf>\d\d\d))? - [\w.]+ - [A-Z]+ - "
)
TRANSPORT: Final = re.compile(_TRANSPORT)
_STAMP: Final = re.compile(_ISO)

# ---------------------------------------------------------------------------------------------------------- bodies

_STEP: Final = (
    rb"Iteration\((?P<iteration>\d+)\)(?P<dummy_a> \(dummy\))?: (?P<context_requests>\d+) context requests, "
    rb"(?P<context_tokens>\d+) context tokens, (?P<generation_requests>\d+) generation requests, "
    rb"(?P<generation_tokens>\d+) generation tokens, iteration elapsed time: (?P<elapsed>\d+\.\d+) ms(?P<dummy_b> \(dummy\))?"
    rb"(?:, \w+ KV cache usage: (?P<kv>\d+\.\d+)%)?(?:, encoder inputs: \d+, encoder output embeddings: \d+)?"
)
_RATES: Final = (
    rb"Avg prompt throughput: (?P<prompt>\d+\.\d+) tokens/s, Avg generation throughput: (?P<generation>\d+\.\d+) tokens/s, "
    rb"Running: (?P<running>\d+) reqs, "
)
# "Preemptions" and "Corrupted" are dead: log() resets the counters before it reads them (0.12 to 0.33).
_V1: Final = (
    rb"Waiting: (?P<waiting>\d+) reqs(?:, Deferred: (?P<deferred>\d+) reqs)?"
    rb"(?:, KV fetch: \d+ waiting to start, \d+ in progress, \d+ completed waiting)?(?:, Preemptions: \d+)?"
    rb", \w+ KV cache usage: (?P<kv>\d+\.\d+)%(?:, Prefix cache hit rate: (?P<prefix>\d+\.\d+)%)?(?:, Corrupted: \d+ reqs)?"
    rb"(?:, External prefix cache hit rate: (?P<external>\d+\.\d+)%)?(?:, MM cache hit rate: (?P<mm>\d+\.\d+)%)?"
)
_V0: Final = (
    rb"Swapped: \d+ reqs, Pending: (?P<waiting>\d+) reqs, GPU KV cache usage: (?P<kv>\d+\.\d+)%, CPU KV cache usage: \d+\.\d+%\."
)
_ENGINE: Final = rb"Engine (?P<engine>\d+): "
_CALL: Final = rb'(?P<call>\\?"[A-Z]+ [^\s"]+ HTTP/\d+\.\d+\\?" (?P<status>\d+)(?: [\w \'-]+)?)'
BODIES: Final = {  # kind -> bodies of one; none of them contains a quotation mark or backslash, so they are the same in JSON
    "step": (rb"(?:" + _ENGINE + rb")?" + _STEP,),
    "stat": (_ENGINE + _RATES + _V1, _RATES + _V0),
    "aggregate": (rb"(?P<engines>\d+) Engines Aggregated: " + _RATES + _V1,),
    "access": (rb"\S* ?- " + _CALL,),
}
FIELDS: Final = {
    "step": ("iteration", "context_requests", "context_tokens", "generation_requests", "generation_tokens", "elapsed", "kv"),
    "stat": ("prompt", "generation", "running", "waiting", "deferred", "kv", "prefix", "external", "mm"),
}
STAMPS: Final = ("om", "od", "oh", "on", "os", "jy", "jm", "jd", "jh", "jn", "js", "jf", "iy", "im", "id", "ih", "in", "is", "zh", "zm")
BODY: Final = {kind: tuple(re.compile(body) for body in bodies) for kind, bodies in BODIES.items()}


def _whole(kind: str) -> tuple[re.Pattern[bytes], ...]:
    """Patterns of a line that holds one frequent record and nothing else, as text and as JSON."""
    head = rb"INFO: +" if kind == "access" else rb"(?:INFO|DEBUG) " + _OWN
    text = [_TRANSPORT + _PROCESS + head + body for body in BODIES[kind]]
    # iteration lines without an engine are labelled by their process: in JSON that stands behind the message
    as_json = [_TRANSPORT + _JSON + body.replace(rb"(?:" + _ENGINE + rb")?", _ENGINE) + _JSON_END for body in BODIES[kind]]
    return tuple(re.compile(pattern) for pattern in (*text, *as_json))


WHOLE: Final = {kind: _whole(kind) for kind in ("step", "stat", "access")}
LITERALS: Final = {"step": b"Iteration(", "stat": b"throughput: ", "access": b" HTTP/"}


class Stamp(NamedTuple):
    """The times that a line shows: `own` as day code and seconds of the day, `iso` in epoch seconds (NaN: none).

    `code` is month * 100 + day, 0 without a stamp, -1 if there is no such time. `year` is 0 if the stamp has none.
    """

    year: int = 0
    code: int = 0
    tod: float = 0.0
    iso: float = NAN
    fine: bool = False


def number(raw: bytes | None) -> float:
    """Return a number as matched, NaN for none."""
    return NAN if raw is None else float(raw)


def engine_of(found: dict[str, bytes | None]) -> int:
    """Return the engine that a line names, by its data-parallel rank; 0 where its version has one engine only."""
    return whole(found.get("engine") or found.get("rank") or b"0")


def whole(raw: bytes) -> int:
    """Return an integer as matched, an absurd one as a billion."""
    return int(min(float(raw), 1e9))


def clock(hour: float, minute: float, second: float) -> float:
    """Return seconds of the day, NaN where there is no such time."""
    return hour * 3600 + minute * 60 + second if hour < 24 and minute < 60 and second < 61 else NAN


def epoch(found: dict[str, bytes | None], suffix: str = "") -> float:
    """Return a container's stamp in epoch seconds; NaN where there is none, or no such time."""
    parts = [found.get(name + suffix) for name in ("iy", "im", "id", "ih", "in", "is")]
    if None in parts:
        return NAN
    year, month, day, hour, minute, second = (float(part or 0) for part in parts)
    zone = number(found.get("zh" + suffix) or b"0") * 3600 + number(found.get("zm" + suffix) or b"0") * 60
    return day_start(year, month, day) + clock(hour, minute, second) - (-zone if found.get("zs" + suffix) == b"-" else zone)


def day_start(year: float, month: float, day: float) -> float:
    """Return the epoch seconds of a day (UTC), NaN where there is no such day."""
    try:
        return datetime(int(year), int(month), int(day), tzinfo=UTC).timestamp()
    except (ValueError, OverflowError):
        return NAN


def stamp_of(found: dict[str, bytes | None], outer: float = NAN) -> Stamp:
    """Return the times of a matched head; `outer` is a container's stamp found further left."""
    iso = outer
    for suffix in ("", "_b"):
        if found.get("iy" + suffix) is not None:
            iso = epoch(found, suffix)
            if iso != iso:  # noqa: PLR0124 (NaN: no such time)
                return Stamp(code=-1)
    for letter in "jco":
        month, day, hour, minute, second = (found.get(letter + part) for part in "mdhns")
        if month is not None:
            year = whole(found.get(letter + "y") or b"-1")
            fraction = found.get(letter + "f")
            tod = clock(number(hour), number(minute), number(second)) + (0.0 if fraction is None else float(fraction) / 1000)
            code = whole(month) * 100 + whole(day or b"0")
            broken = tod != tod or year == 0 or whole(day or b"0") > 31  # noqa: PLR0124
            return Stamp(max(year, 0), -1 if broken else code, tod, iso, fine=fraction is not None or iso % 1 > 0)
    return Stamp(iso=iso, fine=iso % 1 > 0)


def row_of(kind: str, found: dict[str, bytes | None]) -> dict[str, float] | None:
    """Return the numbers of a step or stat by name (ratios still in percent, NaN if not shown); None where one is absurd."""
    values = {name: number(found.get(name)) for name in FIELDS[kind]}
    if kind == "step":
        values["dummy"] = float(found.get("dummy_a") is not None or found.get("dummy_b") is not None)
    return None if any(value >= TOO_BIG for value in values.values()) else values


# --------------------------------------------------------------------------------------------------------- records


class Record(NamedTuple):
    """One log record: its times, who wrote it, and its message without the head."""

    stamp: Stamp
    process: str
    pid: str
    found: dict[str, bytes | None]
    body: bytes


_MORE: Final = re.compile(rb"(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)(?: +\d|:  | +[\w.:]+: | - )")
# their text is the user's: nothing on such a line is another record
_PRIVATE: Final = re.compile(
    rb"Received request |Generated response |Request \S+ details: |Dumping (?:input data|scheduler output)|prompt: |.{0,80}prompt_token_ids"
)
_INNER_TIMES: Final = ("time", "timestamp", "ts", "@timestamp")


def begins(line: bytes) -> bool:
    """Tell whether a record starts where the transport's prefix ends; if not, the line may continue the one before."""
    at = _after_transport(line)
    return line.startswith(b"{", at) or START.match(line, at) is not None


def _after_transport(line: bytes) -> int:
    match = TRANSPORT.match(line)
    return match.end() if match else 0


def records(line: bytes) -> Iterator[Record] | None:
    """Yield the records of a line; None where it holds none. Raises ValueError for a JSON record that is none."""
    transport = TRANSPORT.match(line)
    at = transport.end() if transport else 0
    groups = transport.groupdict() if transport else {}
    outer = epoch(groups) if groups.get("iy") is not None else NAN
    if line.startswith(b"{", at):
        return iter(_json_records(line[at:], outer))
    first = START.match(line, at)
    if first is None and not _MORE.search(line, at):
        return None
    if first is not None and (_PRIVATE.match(line, first.end()) or not _MORE.search(line, first.end())):
        return iter((_record(first, line[first.end() :], outer),))
    heads = list(START.finditer(line, at))
    return _pieces(line, heads, outer) if heads else None


def _pieces(line: bytes, heads: list[Match], outer: float) -> Iterator[Record]:
    stamp = _STAMP.search(line, 0, heads[0].start())
    outer = epoch(stamp.groupdict()) if stamp else outer
    for at, head in enumerate(heads):
        private = _PRIVATE.match(line, head.end())
        end = len(line) if private or at + 1 == len(heads) else heads[at + 1].start()
        yield _record(head, line[head.end() : end], outer)
        if private:
            return


def _record(head: Match, body: bytes, outer: float) -> Record:
    found = head.groupdict()
    process = (found.get("process") or b"").decode()
    return Record(stamp_of(found, outer), process, (found.get("pid") or b"").decode(), found, body.rstrip(b" \t\r"))


def _json_records(text: bytes, outer: float) -> Iterator[Record]:
    decoder, at = json.JSONDecoder(), 0
    whole = text.decode("utf-8", "replace").strip()
    while at < len(whole):
        try:
            value, at = decoder.raw_decode(whole, at)
        except RecursionError as error:
            raise ValueError from error
        if isinstance(value, dict):
            yield from _json_record(value, outer)


def _json_record(value: dict[str, Any], outer: float) -> Iterator[Record]:
    """Yield the record of vLLM's JSON formatter, or those inside of a line of Docker's json-file log."""
    inner = value.get("log")
    if isinstance(inner, str):
        time = value.get("time")
        stamp = f"{time} " if isinstance(time, str) else ""
        line = (stamp + inner.rstrip("\r\n")).encode("utf-8", "replace")
        yield from (() if inner.startswith("{") else records(line) or ())
        return
    message = value.get("message")
    if not isinstance(message, str):
        return
    found: dict[str, bytes | None] = {}
    raw = value.get("asctime")
    match = _ASCTIME.match(raw.encode("utf-8", "replace")) if isinstance(raw, str) else None
    if match:
        found.update(match.groupdict())
    process = value.get("vllm_process_name") or value.get("processName") or ""
    found["level"] = str(value.get("levelname") or "").encode("utf-8", "replace")
    named = _NAME.fullmatch(str(process).encode("utf-8", "replace"))
    if named:
        found.update(named.groupdict())
    pid = value.get("process")
    name = (found.get("process") or b"").decode()
    yield Record(stamp_of(found, outer), name, str(pid) if isinstance(pid, int) else "", found, message.encode("utf-8", "replace").rstrip())


_ASCTIME: Final = re.compile(
    rb"(?P<jy>\d+)-(?P<jm>\d+)-(?P<jd>\d+)[ T](?P<jh>\d+):(?P<jn>\d+):(?P<js>\d+)(?:[.,](?P<jf>\d\d\d))?"
)
_NAME: Final = re.compile(rb"(?P<process>[A-Za-z]+)(?:_(?:DP)?(?P<rank>\d+))?(?:_[A-Z]+\d+)*")

# ------------------------------------------------------------------------------------------------- what a record says


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
        if row is None:
            raise Cut(EXPECTED["number"])
        if kind == "aggregate":
            return [Finding(kind, {"engines": int(number(found["engines"])), **_canonical(row)})]
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
    return {column: row[name] / unit for name, (column, unit) in STAT_COLUMNS.items() if row[name] == row[name]}  # noqa: PLR0124


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
        for match in _TRANSFER.finditer(body)
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
    rb"EPLB step: (?:(\d{1,15}) for model (\S{1,300}): )?avg_tokens=(\d+\.\d+), max_tokens=(\d{1,15}), balancedness=(\d+\.\d{4})(?!\d)"
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


def _simple(pattern: bytes, kind: str, fields: Callable[[Match], Fields | None], *, open_end: bool = False) -> Builder:
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
    pairs = re.findall(rb"(num_running_reqs|num_waiting_reqs|kv_cache_usage)=(\d+(?:\.\d+)?)(?=[,)])", match[0])
    return {"text": "scheduler stats", **{name.decode(): float(value) for name, value in pairs}}


_NAMES: Final = rb"(?:[A-Za-z_]\w{0,60}\.){0,8}[A-Z]\w{0,60}(?:Error|Exception|Interrupt)"
_TABLE: Final[tuple[tuple[bytes, Builder], ...]] = (
    (rb"(?:Engine \d+: )?Iteration\(", _frequent("step")),
    (rb"(?:Engine \d+: )?Avg prompt throughput", _frequent("stat")),
    (rb"\d+ Engines Aggregated: Avg", _frequent("aggregate")),
    (rb'\S* ?- "[A-Z]+ \S*(?: HTTP/|$)', _access),
    (rb"SpecDecoding metrics: ", _spec),
    (rb"KV Transfer metrics: ", _kv_transfer),
    (rb"EPLB step", _eplb),
    (rb"Received request ", lambda *_: [Finding("received", {})]),
    (rb"Added request ", lambda *_: [Finding("added", {})]),
    (rb"Aborted request", _simple(rb"Aborted request(?:\(s\))? (.+)\.$", "aborted", lambda m: {"count": m[1].count(b",") + 1})),
    (rb"Initializing a V\d", _config),
    (rb"(?:non-default )?args: ", _args),
    (rb"[^A-Za-z0-9]*\sversion \d", _simple(rb"[^A-Za-z0-9]*\sversion (\S{1,100})$", "version", lambda m: {"version": _text(m, 1)}, open_end=True)),
    (rb"[^A-Za-z0-9]*\smodel +\S", _simple(rb"[^A-Za-z0-9]*\smodel +(\S.{0,300})$", "model", lambda m: {"model": _text(m, 1)}, open_end=True)),
    (
        rb"vLLM (?:API )?server version ",
        _simple(
            rb"vLLM (?:API )?server version ([^\s,]{1,100})(?:, serving model (\S.{0,300}))?$", "start",
            lambda m: {"version": _text(m, 1), "model": _text(m, 2) or None}, open_end=True,
        ),
    ),
    (
        rb"Chunked prefill is enabled",
        _simple(rb".*with max_num_batched_tokens=(\d{1,15})\.", "budget", lambda m: {"max_num_batched_tokens": _count(m[1])}),
    ),
    (rb"[A-Za-z][\w+ ]{0,30} KV cache size: ", _simple(rb".{0,40} KV cache size: ([\d,]{1,20}) tokens", "kv_cache", lambda m: {"tokens": _count(m[1])})),
    (
        rb"Starting vLLM ",
        _simple(
            rb"Starting vLLM (?:API )?server(?: \d+)? on https?://(\[[^\s\]]{1,100}\]|[^\s:/]{1,200}):(\d{1,5})/?$", "listening",
            lambda m: {"host": _text(m, 1), "port": _count(m[2])}, open_end=True,
        ),
    ),
    (rb"Asynchronous scheduling is enabled", _simple(rb"", "async_scheduling", lambda _: {})),
    (rb"Asynchronous scheduling is disabled", _simple(rb"", "sync_scheduling", lambda _: {})),
    (rb"Rearranging experts", _simple(rb"Rearranging experts[ \w()]*\.\.\.", "rearrange", lambda m: {"text": _text(m)})),
    (rb"Rearranged experts", _simple(rb"Rearranged experts[ \w()]* in \d+\.\d+ s\w*\.", "rearrange", lambda m: {"text": _text(m)})),
    (rb"\[EPLB\] Skip", _simple(rb"\[EPLB\] Skip rearrange: imbalance [\d.]+ -> [\d.]+ \(", "rearrange", lambda m: {"text": _text(m)[:-2]})),
    (
        rb"[A-Z][\w .-]{0,80} during inference: ",
        _simple(rb"(.{1,80}?) during inference: (\S{1,200}?)(?: .*)?\. This causes", "jit", lambda m: {"kernel": _text(m, 2), "text": _text(m, 1)}),
    ),
    (
        rb"Defaulting api_server_count",
        _simple(rb"Defaulting api_server_count to data_parallel_size \((\d{1,6})\)", "api_servers", lambda m: {"count": _count(m[1])}),
    ),
    (rb"AsyncLLM created with api_server_count more than 1", _simple(rb"", "log_skipped", lambda _: {"stats": "api_server_count more than 1"})),
    (rb"Successfully reset prefix cache", _simple(rb"", "prefix_reset", lambda _: {})),
    (rb"Sequence group \S+ is preempted by", _preempted),
    (rb"Recovered from KV load failure", _simple(rb"Recovered from KV load failure: \d+ request\(s\) rescheduled \(\d+ tokens affected\)", "failed", lambda m: {"text": _text(m)})),
    (rb"Failing \d+ request\(s\) due to KV", _simple(rb"Failing \d+ request\(s\) due to KV load failure", "failed", lambda m: {"text": _text(m)})),
    (rb"Request \S+ failed", _simple(rb"Request \S+ failed(?: \(([a-z ]{1,40})\))?", "failed", lambda m: {"text": "request failed: " + (_text(m, 1) or "error")})),
    (rb"No available memory for the cache blocks", _simple(rb"No available memory for the cache blocks", "failed", lambda m: {"text": _text(m)})),
    (
        rb"(?:Worker proc|Engine core proc|RayWorkerProc|EngineCore|Engine core init|AsyncLLM output_handler|\[FT\] No recovery)",
        _simple(
            rb"(?:Worker proc|Engine core proc|RayWorkerProc) \S{1,60} died unexpectedly(?: \(exit code: -?\w{1,10}\))?"
            rb"|EngineCore encountered a fatal error|EngineCore failed to start|Engine core initialization failed"
            rb"|AsyncLLM output_handler failed|\[FT\] No recovery within \d+s timeout",
            "death", lambda m: {"text": _text(m)},
        ),
    ),
    (rb"Dumping scheduler stats: ", _simple(rb".{0,20000}", "death", _dumped)),
    (_NAMES + rb"(?:: |$)", _simple(_NAMES, "error", lambda m: {"text": _text(m)}, open_end=True)),
)  # fmt: skip
_KNOWN: Final = re.compile(b"|".join(rb"(%b)" % pattern for pattern, _ in _TABLE))  # no pattern has groups of its own
_BUILD: Final = tuple(builder for _, builder in _TABLE)


def understand(record: Record, *, ended: bool) -> list[Finding]:
    """Return what a record says; nothing where it is of no kind that we know.

    `ended`: its line has an end, so that its last number is whole. Cut: it is of a known kind, but not whole.
    """
    match = _KNOWN.match(record.body)
    return _BUILD[match.lastindex - 1](record.body, ended) if match and match.lastindex else []
