"""The load of an experiment, as the command of a load generator: drawn as the recording's workload was, as far as each can.

Each generator draws prompts of its own words: mean lengths and their spread are those of the recording, prompts share as many
tokens as it hit in the prefix cache, and requests arrive at its rate, or from as many clients. What each calls an output length
is asked for exactly (no end-of-sequence before it).
"""

import math
import shlex
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from analyzers import versions
from analyzers.case import Case

REPEATED: Final = (0, 16)  # from here on `vllm bench serve` draws prompts over several shared prefixes
SHARED: Final = 0.05  # hit ratio from which prompts get shared prefixes
UNKNOWN_RATE: Final = "1  # TODO: the rate of the recording is unknown"


class _Drawn(NamedTuple):
    """A workload as a generator is told it: tokens, standard deviations of them, requests a second or clients."""

    prompt: int  # with what is shared
    prompt_sd: float
    shared: int
    prefixes: int
    output: int
    output_sd: float
    clients: int | None
    rate_per_s: float | None
    burstiness: float


def _drawn(case: Case) -> _Drawn:
    w = case.work
    prompt, output = (round(x.mean) if x else 512 for x in (w.prompt, w.output))
    closed = w.loop == "closed" and w.in_flight_mean
    return _Drawn(
        prompt=max(1, prompt),
        prompt_sd=(w.prompt.cv if w.prompt else 0.0) * prompt,
        shared=min(round(prompt * (w.hit_ratio or 0.0)), max(0, prompt - 1)) if (w.hit_ratio or 0.0) > SHARED else 0,
        prefixes=prefixes(case),
        output=max(1, output),
        output_sd=(w.output.cv if w.output else 0.0) * output,
        clients=max(1, round(w.in_flight_mean or 1.0)) if closed else None,
        rate_per_s=None if closed else w.rate_per_s,
        burstiness=min(1.0, 1 / max(w.dispersion or 1.0, 1.0)),
    )


def vllm(case: Case, served: str) -> str:
    """`vllm bench serve`, as the version of the recorded server has it: lengths are drawn uniformly."""
    d = _drawn(case)
    spread = min(0.9, d.prompt_sd / d.prompt * math.sqrt(3))  # a uniform draw of that coefficient of variation
    parts = [
        "vllm bench serve --backend vllm",
        '--model "$MODEL"',
        f"--served-model-name {shlex.quote(served)}",
        '--host "$HOST" --port "$PORT"',
    ]
    if d.shared and versions.version_of(case.engine) >= REPEATED:
        parts += [
            f"--dataset-name prefix_repetition --prefix-repetition-prefix-len {d.shared} --prefix-repetition-suffix-len {d.prompt - d.shared}",
            f"--prefix-repetition-num-prefixes {d.prefixes} --prefix-repetition-output-len {d.output}",
        ]
    else:
        parts.append(
            f"--dataset-name random --random-input-len {d.prompt - d.shared} --random-output-len {d.output} --random-range-ratio {spread:.2f}"
        )
        parts += [f"--random-prefix-len {d.shared}"] if d.shared else []
    parts += ["--ignore-eos", '--num-prompts "$REQUESTS" --seed 0']
    if d.clients:
        parts.append(f"--max-concurrency {d.clients}")
    elif d.rate_per_s:
        parts.append(f"--request-rate {d.rate_per_s:.3g} --burstiness {d.burstiness:.2g}")
    else:
        parts.append(f"--request-rate {UNKNOWN_RATE}")
    parts.append(
        '--percentile-metrics ttft,tpot,itl,e2el --metric-percentiles 50,95,99 --save-result --save-detailed --result-filename "$1.json"'
    )
    return _joined(parts)


def guidellm(case: Case, served: str) -> str:
    """`guidellm run` (0.7 and 0.8): lengths are drawn from a normal distribution, arrivals are a Poisson process."""
    d = _drawn(case)
    data = [
        "kind=synthetic_text",
        f"prompt_tokens={d.prompt - d.shared}",
        *_normal("prompt_tokens", d.prompt - d.shared, d.prompt_sd),
        f"output_tokens={d.output}",
        *_normal("output_tokens", d.output, d.output_sd),
        *([f"prefix_tokens={d.shared}", f"prefix_count={d.prefixes}"] if d.shared else []),
    ]
    profile = f"kind=concurrent,streams={d.clients}" if d.clients else f"kind=poisson,rate={d.rate_per_s or 1:.3g}"
    return _joined(
        [
            "guidellm run",
            f'--backend "kind=openai_http,target=http://$HOST:$PORT,model={_plain(served)},request_format=/v1/completions"',
            f"--profile {profile}",
            '--constraint "kind=max_requests,count=$REQUESTS"',
            f"--data {','.join(data)}",
            '--tokenizer "kind=huggingface_auto,model=$MODEL"',
            "--seed kind=static,value=0",
            '--output "kind=json,path=$1.json"' + ("" if d.clients or d.rate_per_s else f"  # rate={UNKNOWN_RATE}"),
        ]
    )


def aiperf(case: Case, served: str) -> str:
    """`aiperf profile` (0.13): lengths are drawn from a normal distribution, arrivals from a gamma distribution."""
    d = _drawn(case)
    parts = [
        "aiperf profile",
        f'--model {shlex.quote(served)} --tokenizer "$MODEL"',
        '--url "http://$HOST:$PORT" --endpoint-type completions --streaming',
        f"--synthetic-input-tokens-mean {d.prompt - d.shared} --synthetic-input-tokens-stddev {d.prompt_sd:.0f}",
        f"--output-tokens-mean {d.output} --output-tokens-stddev {d.output_sd:.0f} --extra-inputs ignore_eos:true",
        *([f"--num-prefix-prompts {d.prefixes} --prefix-prompt-length {d.shared}"] if d.shared else []),
        '--request-count "$REQUESTS" --random-seed 0 --artifact-dir "$1-aiperf"',
    ]
    if d.clients:
        parts.append(f"--concurrency {d.clients}")
    elif d.rate_per_s:
        parts.append(f"--request-rate {d.rate_per_s:.3g} --arrival-pattern gamma --arrival-smoothness {d.burstiness:.2g}")
    else:
        parts.append(f"--request-rate {UNKNOWN_RATE}")
    return _joined(parts)


LOADS: Final[Mapping[str, Callable[[Case, str], str]]] = {"vllm": vllm, "guidellm": guidellm, "aiperf": aiperf}


def prefixes(case: Case) -> int:
    """Distinct shared prefixes: by what KV events counted, else as many as make the misses seen (each first use misses)."""
    prompt = case.work.prompt.mean if case.work.prompt else 1.0
    hit = case.work.hit_ratio or 0.0
    blocks = sum(e.kv.get("distinct_blocks", 0.0) * (e.kv.get("block_size") or 16.0) for e in case.window.engines)
    if blocks:
        unique = case.work.requests * prompt * (1 - max(case.work.shared_ratio or hit, hit))
        return max(1, round(max(blocks - unique, blocks * 0.1) / max(prompt * max(hit, 0.1), 1.0)))
    return max(1, round(case.work.requests * max(0.02, 1 - hit)))


def _normal(name: str, mean: int, deviation: float) -> list[str]:
    """A spread, and the bounds that keep its draws above zero."""
    if deviation < 1:
        return []
    return [f"{name}_stdev={deviation:.0f}", f"{name}_min=1", f"{name}_max={max(mean + 1, round(mean + 4 * deviation))}"]


def _plain(name: str) -> str:
    """A name between double quotes of the shell, where commas part fields."""
    return "".join("\\" + c if c in '"\\$`' else c for c in name if c not in ",\n")


def _joined(parts: list[str]) -> str:
    return " \\\n    ".join(parts)
