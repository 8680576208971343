"""The command line that started a vLLM server, all versions, and the model's config.json.

Written by people (a script, a line copied from a terminal), by recorders, by Hugging Face. Read are
    - a text of shell lines with `vllm serve ...` or `python -m vllm.entrypoints.openai.api_server ...`, with continuation
      lines, comments, variables that are set before, and a redirection or pipe behind.
    - a JSON object with "command": ["vllm", "serve", ...] and perhaps "model_config": what config.json holds. Nothing else
      of it is read, and no times.
    - a config.json: "architectures" with "hidden_size" or "text_config".

Yields event `args` {name: value}, names as vLLM's fields have them (--max-num-seqs 64 -> max_num_seqs: 64), and event
`model_config`. What looks like a secret becomes "***". Environment variables are not read: they hold tokens.

Traps
    - Names may be written with - or _; --json-arg.key value is one field of a JSON argument; -O3, -tp=2.
    - 1k is 1000, 1K is 1024 where vLLM expects a number of tokens or bytes.
    - A switch before the model takes it for its value; names that begin like switches are known here.
    - Prose may quote a command. A text in which other lines are no shell commands is refused.
    - --host is 0.0.0.0 if not given; without --port the instance is unknown, as many servers are.

Source: vllm/utils/argparse_utils.py, vllm/engine/arg_utils.py (0.33).
"""

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, Final

from analyzers.model import Batch
from app.collectors.formats.json_lines import MAX_LINE, Tail, Tally, documents, head_fields, lines, loads, string, table

NAME: Final = "vllm_command"
EXPECTED: Final = "expected: vllm serve MODEL --option value"
EXPECTED_JSON: Final = 'expected: a JSON object with "command" (a list with "serve"), or a config.json'
SHORT: Final = {
    **{"tp": "tensor_parallel_size", "pp": "pipeline_parallel_size", "dp": "data_parallel_size", "ep": "enable_expert_parallel"},
    **{"dpl": "data_parallel_size_local", "dpn": "data_parallel_rank", "dpr": "data_parallel_start_rank"},
    **{"dpa": "data_parallel_address", "dpp": "data_parallel_rpc_port", "dpb": "data_parallel_backend"},
    **{"dpe": "data_parallel_external_lb", "dph": "data_parallel_hybrid_lb", "dcp": "decode_context_parallel_size"},
    **{"pcp": "prefill_context_parallel_size", "asc": "api_server_count", "n": "nnodes", "r": "node_rank"},
    **{"q": "quantization", "O": "optimization_level", "cc": "compilation_config", "sc": "speculative_config"},
}
LISTS: Final = ("cudagraph_capture_sizes", "cuda_graph_sizes")  # a list also with one value
_SWITCH: Final = re.compile(r"(enable|disable|enforce|trust|use|return|async|headless|aggregate|skip|show)(_|$)")
_SIZE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)([kKmMgGtT])")
_SIZED: Final = re.compile(r"(_len|_tokens|_bytes|_seqs|_threshold)$")
_SECRET: Final = re.compile(r"(^|[_.-])(api_?key|secret|secret_key|access_key|key|token|password|passwd|credentials?)$", re.IGNORECASE)
_USERINFO: Final = re.compile(r"://[^/@\s]+@")
_END: Final = re.compile(r"[0-9]*(>|<)|\||&|;")
_START: Final = re.compile(r"(?:^|[\s/'\"])vllm\s+serve(?=\s|$)|-m\s+vllm\.entrypoints\.openai\.api_server(?=\s|$)")
_SHELL: Final = re.compile(
    r"(export|set|cd|source|\.|ulimit|sleep|wait|mkdir|module|conda|trap|exit|unset|echo|pip|uv|nvidia-smi)(\s|$)|[A-Za-z_]\w*="
)


def sniff(head: bytes) -> bool:
    """Recognise shell lines around a command, an object with a command, and a config.json."""
    fields = head_fields(head)
    if fields:
        return _kind(fields) is not None
    text = head.decode("utf-8", "replace").lstrip("\ufeff")
    if len(head) >= 1 << 16 or text.lstrip().startswith(("{", "[")):
        return False  # no command is that long; JSON has been looked at
    found = [_arguments(line) if _START.search(line) else _SHELL.match(line) is not None for _, line in _logical(text)]
    return any(isinstance(args, dict) for args in found) and None not in found and False not in found


def read(stream: BinaryIO, reference_ts: float) -> Iterator[Batch]:  # noqa: ARG001 (no times here)
    """Yield one batch of event."""
    tally = Tally()
    source = lines(stream, tally)
    first = next(source, None)
    rows: list[tuple[Any, ...]] = []
    instances: set[str | None] = set()
    if first is not None:
        is_json = first[1].removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"{")
        for line, kind, fields in _json(stream, tally, first) if is_json else _text(source, tally, first):
            try:
                rows.append((line, kind, json.dumps(fields, sort_keys=True, allow_nan=False)))
            except (ValueError, RecursionError):
                tally.reject(line, "expected: JSON values, at most some hundred levels deep, without NaN")
                continue
            if kind == "args":
                port = fields.get("port")
                instances.add(f"{string(fields.get('host')) or '0.0.0.0'}:{port}" if type(port) is int else None)  # noqa: S104
    if rows:
        yield table("event", ("line", "kind", "fields"), rows)
    yield from tally.batches(instance=instances.pop() if len(instances) == 1 else None)


def _kind(fields: dict[str, Any]) -> str | None:
    """Tell what an object is: command, model_config or nothing of ours."""
    command = fields.get("command")
    if isinstance(command, list) and _after(command) is not None:
        return "command"
    shape = "hidden_size" in fields or isinstance(fields.get("text_config"), dict | Tail)
    return "model_config" if isinstance(fields.get("architectures"), list) and shape else None


def _json(stream: BinaryIO, tally: Tally, first: tuple[int, bytes]) -> Iterator[tuple[int, str, dict[str, Any]]]:
    for line, value in documents(stream, tally, first):
        kind = _kind(value) if isinstance(value, dict) else None
        args = _parse(_after(value["command"]) or []) if kind == "command" else None
        if kind == "model_config":
            yield line, "model_config", value
        elif args is None:
            tally.reject(line, EXPECTED_JSON)
        else:
            yield line, "args", args
            if isinstance(value.get("model_config"), dict):
                yield line, "model_config", value["model_config"]


def _text(
    source: Iterator[tuple[int, bytes]], tally: Tally, first: tuple[int, bytes]
) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Yield the arguments of each command of a text."""
    parts: list[tuple[int, str]] = []
    size = 0
    for number, line in (first, *source):
        size += len(line)
        if size > MAX_LINE:
            tally.reject(number, f"expected: a text of at most {MAX_LINE} bytes")
            return
        parts.append((number, line.decode("utf-8", "replace").lstrip("\ufeff")))
    for number, line in _joined(parts):
        args = _arguments(line) if _START.search(line) else None
        if args is not None:
            yield number, "args", args
        elif not _SHELL.match(line):
            tally.reject(number, EXPECTED)
