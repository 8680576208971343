"""The command line that started a vLLM server, all versions, and the model's config.json.

Written by people (a script, a line copied from a terminal), by recorders, by Hugging Face. Read are
    - a text of shell lines with `vllm serve ...` or `python -m vllm.entrypoints.openai.api_server ...`, with continuation
      lines, comments, variables that are set before, and a redirection or pipe behind.
      A comment `# client: N concurrent ...` says how many requests clients hold in flight (event `client` {concurrency}).
    - a JSON object with "command": ["vllm", "serve", ...] and perhaps "model_config": what config.json holds. Nothing else
      of it is read, and no times.
    - a config.json: "architectures" with "hidden_size" or "text_config".

Yields event `args` {name: value}, names as vLLM's fields have them (--max-num-seqs 64 -> max_num_seqs: 64), and event
`model_config`. What looks like a secret becomes "***". Of environment variables only vLLM's own (VLLM_...) beside a
JSON command are read, into the argument `env`: others hold tokens.

Traps
    - Names may be written with - or _; --json-arg.key value is one field of a JSON argument; -O3, -tp=2.
    - 1k is 1000, 1K is 1024 where vLLM expects a number of tokens or bytes.
    - A switch in front of the model takes it for its value; names that begin like switches are known here.
    - Prose may quote a command. A text in which other lines are no shell commands is refused.
    - Without a line end the last option may be cut (64 -> 6): it is left out, and the line counts as rejected.
    - --host is 0.0.0.0 if not given; without --port the instance is unknown, for every server would have the same.

Source: vllm/utils/argparse_utils.py, vllm/engine/arg_utils.py (0.33).
"""

import json
import re
import shlex
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, BinaryIO, Final

from analyzers.model import Batch
from app.collectors.formats.json_lines import MAX_LINE, Tail, Tally, documents, head_fields, lines, loads, number, table

NAME: Final = "vllm_command"
EXPECTED: Final = "expected: vllm serve MODEL --option value, or another shell command"
EXPECTED_JSON: Final = 'expected: a JSON object with "command" (a list with "serve"), or a config.json'
EXPECTED_END: Final = "expected: a line end; the last option may be cut and was left out"
SHORT: Final = {
    "tp": "tensor_parallel_size",
    "pp": "pipeline_parallel_size",
    "dp": "data_parallel_size",
    "ep": "enable_expert_parallel",
    "dpl": "data_parallel_size_local",
    "dpn": "data_parallel_rank",
    "dpr": "data_parallel_start_rank",
    "dpa": "data_parallel_address",
    "dpp": "data_parallel_rpc_port",
    "dpb": "data_parallel_backend",
    "dpe": "data_parallel_external_lb",
    "dph": "data_parallel_hybrid_lb",
    "dcp": "decode_context_parallel_size",
    "pcp": "prefill_context_parallel_size",
    "asc": "api_server_count",
    "n": "nnodes",
    "r": "node_rank",
    "q": "quantization",
    "O": "optimization_level",
    "cc": "compilation_config",
}
LISTS: Final = ("cudagraph_capture_sizes", "cuda_graph_sizes")  # a list also with one value
JOINED: Final = 200  # lines that one command may span
TAIL: Final = 200  # characters of the lines before in which `vllm serve` may begin
# what ends each state of a shell line, or (in "") is skipped
_CLOSES: Final = {"": re.compile(r"[\\'\"#]"), "'": re.compile("'"), '"': re.compile(r"\\.|\"", re.DOTALL), "#": re.compile("\n")}

_START: Final = re.compile(r"(?:^|[\s/'\"])vllm\s+serve(?=\s|$)|-m\s+vllm\.entrypoints\.openai\.api_server(?=\s|$)")
_SHELL: Final = re.compile(
    r"(?:export|set|cd|source|\.|ulimit|sleep|wait|mkdir|rm|cp|module|conda|trap|exit|unset|echo|pip|uv|nvidia-smi|numactl|kill"
    r"|tail|curl|docker|if|then|else|fi|for|do|done|while|until|\[|\{|\})(?:[\s;]|$)|[A-Za-z_]\w*="
)
_CLIENT: Final = re.compile(r"\s*#\s*clients?: (\d{1,7}) concurrent\b")
_END: Final = re.compile(r"[0-9]*>|&>|\|\|?$|&&?$|;")
_OPTION: Final = re.compile(r"--?[A-Za-z]")
_SWITCH: Final = re.compile(r"(?:enable|disable|enforce|trust|use|return|async|headless|aggregate|skip|show)(?:_|$)")
_INTEGER: Final = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")
_FLOAT: Final = re.compile(r"-?(?:(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]{1,3})?|[0-9]+[eE][-+]?[0-9]{1,3})")
_SIZE: Final = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,12})?)([kKmMgGtT])")
_SIZED: Final = re.compile(r"(?:_len|_tokens|_bytes|_seqs|_threshold)$")
_SECRET: Final = re.compile(
    r"(?:^|[_.-]|api)(?:key|secret|token|password|passwd|credentials?|auth|authorization|headers?)$", re.IGNORECASE
)
_SECRET_TEXT: Final = re.compile(r"key|secret|token|passw|credential|auth|header", re.IGNORECASE)
_USERINFO: Final = re.compile(r"://[^/@\s]+@")
_POWERS: Final = "kmgt"
_WORDS: Final = {"true": True, "false": False, "none": None, "null": None}


def sniff(head: bytes) -> bool:
    """Recognise shell lines around a command, an object with a command, and a config.json."""
    fields = head_fields(head)
    text = head.decode("utf-8", "replace").lstrip("\ufeff")
    if fields or len(head) >= 1 << 16 or text.lstrip().startswith(("{", "[")):  # no script around a command is that long
        return _kind(fields) is not None
    found = [_shell(line) for _, line in _logical(enumerate(text.splitlines(keepends=True), 1))]
    return any(found) and None not in found


def read(stream: BinaryIO, reference_ts: float) -> Iterator[Batch]:  # noqa: ARG001 (no times here)
    """Yield one batch of event."""
    tally = Tally()
    source = lines(stream, tally)
    first = next(source, (0, b""))
    source = chain([first], source) if first[0] else source
    is_json = first[1].removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"{")
    rows: list[tuple[Any, ...]] = []
    instances: set[str | None] = set()
    for line, kind, fields in _json(source, stream, tally) if is_json else _text(source, tally):
        try:
            rows.append((line, kind, json.dumps(fields, sort_keys=True, allow_nan=False)))
        except (ValueError, RecursionError):
            tally.reject(line, "expected: JSON without NaN, nested at most some hundred times")
            continue
        if kind == "args":
            instances.add(_instance(fields))
    if rows:
        yield table("event", ("line", "kind", "fields"), rows)
    yield from tally.batches(instance=instances.pop() if len(instances) == 1 else None)


def _instance(args: dict[str, Any]) -> str | None:
    host, port = args.get("host", "0.0.0.0"), args.get("port")  # noqa: S104 (vLLM's default)
    if type(port) is not int or not isinstance(host, str):
        return None
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _kind(fields: dict[str, Any]) -> str | None:
    """Tell what an object is: command, model_config or nothing of ours."""
    if isinstance(fields.get("command"), list) and _after(fields["command"]) is not None:
        return "command"
    shape = "hidden_size" in fields or isinstance(fields.get("text_config"), dict | Tail)
    return "model_config" if isinstance(fields.get("architectures"), list) and shape else None


def _json(source: Iterable[tuple[int, bytes]], stream: BinaryIO, tally: Tally) -> Iterator[tuple[int, str, dict[str, Any]]]:
    for line, value in documents(source, stream, tally):
        kind = _kind(value) if isinstance(value, dict) else None
        args = _parse(_after(value["command"]) or []) if kind == "command" else None
        if kind == "model_config":
            yield line, "model_config", value
        elif args is None:
            tally.reject(line, EXPECTED_JSON)
        else:
            yield line, "args", {**args, **_environment(value.get("env"))}
            if isinstance(value.get("model_config"), dict):
                yield line, "model_config", value["model_config"]


def _environment(given: Any) -> dict[str, Any]:
    """VLLM's own variables as {"env": {name: text}}; secrets masked, nothing where there are none."""
    if not isinstance(given, dict):
        return {}
    kept = {
        name: "***" if _SECRET.search(name) else str(value)[:200] for name, value in given.items() if name.startswith("VLLM_")
    }
    return {"env": kept} if kept else {}


def _text(source: Iterable[tuple[int, bytes]], tally: Tally) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Yield the arguments of each command of a text, and what its comments say of the clients."""
    clients: list[tuple[int, int]] = []

    def decoded() -> Iterator[tuple[int, str]]:
        for at, raw in source:
            text = raw.decode("utf-8", "replace").lstrip("\ufeff")
            if match := _CLIENT.match(text):
                clients.append((at, int(match[1])))
            yield at, text

    for line, text in _logical(decoded()):
        args = _shell(text)
        if args is None:
            tally.reject(line, EXPECTED)
        elif args:
            if not text.endswith("\n"):
                tally.reject(line, EXPECTED_END)
            yield line, "args", args
    for line, concurrency in clients:
        yield line, "client", {"concurrency": concurrency}


def _logical(source: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Join lines that continue, by a backslash or an open quotation; drop blank lines and comments."""
    parts: list[str] = []
    start = size = 0
    quote, tail, begun = "", "", False
    for at, line in source:
        text = line.strip()
        if text.startswith("#") or (not text and not parts):
            continue
        start = start if parts else at
        more = text.endswith("\\")
        parts.append(text[:-1] + " " if more else line.rstrip("\r\n") + "\n" * line.endswith("\n"))
        size += len(text)
        quote = _quote(parts[-1], quote)
        begun = begun or _START.search(tail + parts[-1]) is not None
        tail = (tail + parts[-1])[-TAIL:]
        if (more or (begun and quote in {"'", '"', "\\"})) and len(parts) < JOINED and size < MAX_LINE:
            continue
        yield start, "".join(parts)
        parts, size, quote, tail, begun = [], 0, "", "", False
    if parts:
        yield start, "".join(parts)


def _quote(text: str, quote: str) -> str:
    """What is open at the end of a piece of a shell line: a quotation, an escape (a backslash), a comment (#); "" if nothing is.

    `quote` is what the pieces before left open. As shlex has it, without reading them again for each piece.
    """
    at = 1 if quote == "\\" else 0
    quote = "" if at else quote
    while at < len(text):
        found = _CLOSES[quote].search(text, at)
        if found is None:
            return quote
        at = found.end()
        if quote:
            quote = "" if found[0] in {quote, "\n"} else quote
        elif found[0] != "\\":
            quote = found[0]
        elif at == len(text):
            return "\\"
        else:
            at += 1
    return quote


def _split(text: str) -> list[str] | None:
    """Return the words of a shell line; None with an open quotation."""
    try:
        return shlex.split(text, comments=True)
    except ValueError:
        return None


def _shell(text: str) -> dict[str, Any] | None:
    """Return the arguments of a command, {} for another shell line, None for what is neither."""
    if not _START.search(text):
        return {} if _SHELL.match(text.lstrip("$ \t")) else None
    words = _split(text)
    words = None if words is None else _after(words)
    if words is None:
        return {} if _SHELL.match(text) else None
    for at, word in enumerate(words):
        if _END.match(word):
            words = words[:at]
            break
        if word.endswith(";"):
            words = [*words[:at], word[:-1]]
            break
    if not text.endswith("\n"):
        options = [at for at, word in enumerate(words) if _OPTION.match(word)]
        words = words[: options[-1]] if options else []
    return _parse(words) or None


def _after(words: list[Any]) -> list[str] | None:
    """Return what follows `vllm serve`, also inside of `bash -c "..."`; None where there is no such command."""
    if not all(isinstance(word, str) for word in words):
        return None
    for at, word in enumerate(words):
        if word == "vllm.entrypoints.openai.api_server":
            return words[at + 1 :]
        if word == "serve" and at and words[at - 1].rpartition("/")[2] in ("vllm", "vllm.entrypoints.cli.main"):
            return words[at + 1 :]
        if " " in word and _START.search(word):
            return _after([part for part in _split(word) or [] if " " not in part or not _START.search(part)])
    return None


def _parse(words: list[str]) -> dict[str, Any] | None:
    """Return {name: value}; None where words stand that belong to no option."""
    args: dict[str, Any] = {}
    first = next((at for at, word in enumerate(words) if _OPTION.match(word)), len(words))
    if first > 1:
        return None
    if first:
        args["model"] = _value("model", words[0])
    at = first
    while at < len(words):
        key, equals, value = words[at].partition("=")
        end = next((i for i in range(at + 1, len(words)) if _OPTION.match(words[i])), len(words))
        values = ([value] if equals else []) + words[at + 1 : end]
        at = end
        if len(values) > 1 and values[0].startswith(("{", "[")):  # JSON whose quotes a shell took
            values = [" ".join(values)]
        name, _, path = key.lstrip("-").partition(".")
        if not key.startswith("--"):
            if name[:1] == "O" and name[1:]:  # -O3
                name, values = "O", [name[1:], *values]
            if name == "O" and (path or "".join(values).startswith("{")):  # until 0.11: -O.level 3, -O '{"level": 3}'
                name = "cc"
            name = SHORT.get(name, name)
        name = name.replace("-", "_")
        if values and not equals and "model" not in args and (len(values) > 1 or _SWITCH.match(name)) and name not in LISTS:
            args["model"] = _value("model", values.pop())
        _put(args, name, path, values)
    return args


def _put(args: dict[str, Any], name: str, path: str, values: list[str]) -> None:
    """Enter one option; as in argparse the last one wins. `path` leads into a JSON argument."""
    keys = [name, *path.split(".")] if path else [name]
    if not values and name.startswith("no_"):
        args[name.removeprefix("no_")] = False
        return
    for key in keys[:-1]:
        inner = args.get(key)
        args[key] = args = inner if isinstance(inner, dict) else {}
    read_values = [_value(keys[-1].removesuffix("+"), value) for value in values]
    if keys[-1].endswith("+"):
        before = args.get(keys[-1][:-1])
        args[keys[-1][:-1]] = (before if isinstance(before, list) else []) + read_values
    elif not values:
        args[keys[-1]] = True
    else:
        args[keys[-1]] = read_values if len(values) > 1 or keys[-1] in LISTS else read_values[0]


def _value(name: str, raw: str) -> Any:
    """Return what a word says: a switch, number, size, JSON or text, without secrets."""
    size = _SIZE.fullmatch(raw) if _SIZED.search(name) else None
    value: Any = _USERINFO.sub("://***@", raw)
    if raw.lower() in _WORDS:
        value = _WORDS[raw.lower()]
    elif _SECRET.search(name):
        value = "***"
    elif _INTEGER.fullmatch(raw):
        value = int(raw)
    elif _FLOAT.fullmatch(raw) and len(raw) < 40 and number(float(raw)) is not None:
        value = float(raw)
    elif size:
        digits, unit = size.groups()
        value = int(float(digits) * (1000 if unit.islower() else 1024) ** (_POWERS.index(unit.lower()) + 1))
    elif raw.startswith(("{", "[")):
        value = _inner(raw)
    return value


def _inner(raw: str) -> Any:
    """Return a JSON argument without secrets; as text where it is not JSON (a shell took its quotes)."""
    try:
        value = loads(raw.encode("utf-8", "replace"))
        return ("***" if _SECRET_TEXT.search(raw) else raw) if value is None else _masked(value)
    except RecursionError:
        return "***"


def _masked(value: Any, name: str = "") -> Any:
    """Hide what has the name of a secret inside a JSON argument."""
    if isinstance(value, dict):
        return {key: _masked(item, key) for key, item in value.items()}
    if isinstance(value, list):
        return [_masked(item, name) for item in value]
    if isinstance(value, str):
        return "***" if _SECRET.search(name) else _USERINFO.sub("://***@", value)
    return value
