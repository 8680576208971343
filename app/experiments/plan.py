"""An experiment as a shell script: the server before and after the change, the same load for both, and the judgement.

The flags before are those that the server was started with; the load is drawn as the recording's workload was, as far as the
load generator can: mean lengths, their spread, the shared share of prompts, rate and burstiness of arrivals.
"""

import json
import math
import re
import shlex
from collections.abc import Mapping
from typing import Any, Final

from analyzers import versions
from analyzers.case import Case, amount
from analyzers.hypotheses.trial import size_of
from analyzers.model import Hypothesis
from analyzers.steps import number
from app.experiments.load import LOADS

# what the log adds to the arguments, and what is of one machine
NOT_GIVEN: Final = {"version", "device_config", "max_seq_len", "dtype", "cudagraph_capture_sizes", "max_cudagraph_capture_size", "config", "model_tag"}  # fmt: skip
PLACE: Final = {"model", "host", "port", "otlp_traces_endpoint", "kv_events_config", "env", "api_key"}
DEFAULTS: Final[Mapping[str, Any]] = {"data_parallel_size": 1, "tensor_parallel_size": 1, "pipeline_parallel_size": 1, "kv_cache_dtype": "auto", "enforce_eager": False, "enable_chunked_prefill": True, "enable_prefix_caching": True}  # fmt: skip
TRACES: Final = (0, 24)  # from here on it replays recorded arrivals and lengths


def script(case: Case, hypothesis: Hypothesis, load: str = "vllm") -> str:
    """The script, for bash, with one of LOADS as the load; every line of it that needs a hand starts with TODO."""
    size = size_of(case, hypothesis.effect)
    before = arguments(case)
    after, by_hand = applied(before, hypothesis.flags)
    model = str(_given(case).get("model", "MODEL"))
    served = _given(case).get("served_model_name")
    name = served[0] if isinstance(served, list) and served else served or model
    environment = [f"export {key}={shlex.quote(str(value))}" for key, value in (case.args.get("env") or {}).items()]
    effects = ", ".join(f"{target.upper()} {_said(found.saves_s)}" for target, found in hypothesis.effect.items())
    lines = [
        "#!/usr/bin/env bash",
        f"# Experiment: {_line(hypothesis.change)}",
        f"# Why: {_line(hypothesis.claim)}",
        f"# Predicted: {effects}. Costs next door: {_line('; '.join(hypothesis.costs))}",
        *(f"# Condition: {_line(c)}" for c in hypothesis.conditions),
        "set -euo pipefail",
        "",
        f"MODEL={shlex.quote(model)}",
        "HOST=${HOST:-127.0.0.1}",
        "PORT=${PORT:-8000}",
        f"STARTS=${{STARTS:-{size.starts}}}  # starts of the server a side: two starts alone differ by up to 8 %",
        f"REQUESTS=${{REQUESTS:-{_requests(case, size.requests)}}}  # a start; {_line(size.spread)}",
        *environment,
        "",
        "before() {",
        f"  exec {_serve(before)}",
        "}",
        "",
        "after() {",
        *(f"  # TODO: {_line(text)}" for text in by_hand),
        f"  exec {_serve(after)}",
        "}",
        "",
        "load() {  # the workload of the recording, as far as random prompts have it",
        f"  {LOADS[load](case, str(name))}",
        "}",
        "",
        *_notes(case),
        *_RUN,
        f"weaklink experiment judge before-1.zip after-1.zip --hypothesis {hypothesis.name}",
    ]
    return "\n".join(lines) + "\n"


_RUN: Final = (
    "run() {  # side, start: one server, one load, one recording",
    '  "$1" > "$1-$2.log" 2>&1 &',
    "  local server=$!",
    '  until curl -sf "http://$HOST:$PORT/health" > /dev/null; do kill -0 "$server"; sleep 2; done',
    '  weaklink record --target "$HOST:$PORT" --log "$1-$2.log" --out "$1-$2.zip" &',
    "  local recorder=$!",
    '  load "$1-$2"',
    "  sleep 5",
    '  kill -TERM "$recorder"; wait "$recorder" || true',
    '  kill "$server"; wait "$server" || true',
    "}",
    "",
    'for start in $(seq "$STARTS"); do',
    '  run before "$start"',
    '  run after "$start"',
    "done",
    "",
)


def _said(seconds: float | None) -> str:
    if seconds is None:
        return "cannot be predicted"
    return f"{amount(seconds)} saved" if seconds > 0 else f"{amount(-seconds)} lost" if seconds < 0 else "unchanged"


def _line(text: str) -> str:
    """Text that cannot end its comment."""
    return re.sub(r"\s+", " ", text)


# -- the server -----------------------------------------------------------------------------------------------------------------
def _given(case: Case) -> dict[str, Any]:
    """Arguments that the server was started with: of the command line or its log line, else what the log says beside defaults."""
    typed: dict[str, Any] = {}
    for event in case.engine.event:
        if event.kind == "args":
            typed.update(event.fields)
    found = typed or {k: v for k, v in case.args.items() if v is not None and DEFAULTS.get(k, v is None) != v}
    return {k: v for k, v in found.items() if k not in NOT_GIVEN}


def arguments(case: Case) -> dict[str, Any]:
    """The arguments to start the server with again, without those of one machine."""
    return {k: v for k, v in _given(case).items() if k not in PLACE}


def applied(before: Mapping[str, Any], flags: tuple[str, ...]) -> tuple[dict[str, Any], list[str]]:
    """Arguments with a hypothesis' flags, and what has to be done by hand."""
    after, by_hand = dict(before), []
    for flag in flags:
        words = shlex.split(flag)
        if words[0] == "without" and len(words) == 2:
            after.pop(_name(words[1]), None)
        elif words[0].startswith("--no-") and len(words) == 1:
            after[_name(words[0].replace("--no-", "--", 1))] = False
        elif words[0].startswith("--"):
            value = words[1] if len(words) > 1 else True
            merged = _json(value)
            held = after.get(_name(words[0]))
            after[_name(words[0])] = {**held, **merged} if isinstance(merged, dict) and isinstance(held, dict) else merged
        else:
            by_hand.append(flag)
    return after, by_hand or ([] if flags else ["this change is not made by the server's flags: see the conditions above"])


def _name(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")


def _json(value: Any) -> Any:
    try:
        found = json.loads(value) if isinstance(value, str) and value.startswith("{") else value
    except json.JSONDecodeError:
        return value
    return found


def _serve(args: Mapping[str, Any]) -> str:
    parts = ['vllm serve "$MODEL" --host "$HOST" --port "$PORT"', *(_option(name, value) for name, value in sorted(args.items()))]
    return " \\\n    ".join(part for part in parts if part)


def _option(name: str, value: Any) -> str:
    flag = f"--{name.replace('_', '-')}"
    if value is None:
        return ""
    if value is True:
        return flag
    if value is False:
        return f"--no-{name.replace('_', '-')}"
    if isinstance(value, Mapping):
        kept = {k: v for k, v in value.items() if v is not None}
        return f"{flag} {shlex.quote(json.dumps(kept))}"
    if isinstance(value, list | tuple):
        return f"{flag} {' '.join(shlex.quote(str(v)) for v in value)}"
    return f"{flag} {shlex.quote(str(value))}"


# -- the load -------------------------------------------------------------------------------------------------------------------
def _requests(case: Case, least: int) -> int:
    """Requests of one load: what the effect needs, and a minute of it at least."""
    rate = case.work.rate_per_s
    return max(least, math.ceil(60 * rate)) if rate else least


def _notes(case: Case) -> list[str]:
    """What the drawn load does not have of the recorded one."""
    w, said = case.work, []
    if w.prompt and w.prompt.quantiles.get("p99", 0.0) > 3 * w.prompt.mean:
        also = " (--dataset-name timed_trace)" if versions.version_of(case.engine) >= TRACES else ""
        said.append(
            f"# The recording has few prompts of up to {w.prompt.quantiles['p99']:.0f} tokens among many short ones: a uniform draw has none. Replay real lengths where they matter{also}."
        )
    if number(w.dispersion, 1.0) > 3:
        said.append("# Arrivals of the recording come in bursts: --burstiness below 1 draws some, not these.")
    return [*said, ""] if said else []
