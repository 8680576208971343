"""Which flags which vLLM version has, as data: what a hypothesis prints must exist in the version that was detected.

Read from the sources of the wheels 0.9.2, 0.10.0, 0.10.2, 0.11.2, 0.12 to 0.16, 0.24 and 0.33 (engine/arg_utils.py and
entrypoints/cli). `first` and `last` are minor versions in which the flag was seen; (0, 9) as first means 0.9 or earlier, None as
last that 0.33 has it. Between two wheels that were read `first` is the later one: a flag is never promised too early.
"""

from typing import Final

from analyzers.model import Engine

Version = tuple[int, ...]
OLDEST: Final[Version] = (0, 9)
NEWEST: Final[Version] = (0, 33)

FLAGS: Final[dict[str, tuple[Version, Version | None]]] = {
    "api-server-count": (OLDEST, None),
    "block-size": (OLDEST, None),
    "cuda-graph-sizes": (OLDEST, (0, 12)),
    "cudagraph-capture-sizes": ((0, 11, 2), None),
    "data-parallel-size": (OLDEST, None),
    "enable-eplb": (OLDEST, None),
    "enable-expert-parallel": (OLDEST, None),
    "enable-prefix-caching": (OLDEST, None),
    "enforce-eager": (OLDEST, None),
    "eplb-config": ((0, 10, 2), None),
    "eplb-step-interval": (OLDEST, (0, 11, 2)),
    "gpu-memory-utilization": (OLDEST, None),
    "kv-cache-dtype": (OLDEST, None),
    "kv-events-config": (OLDEST, None),
    "kv-offloading-backend": ((0, 11, 2), None),
    "kv-offloading-size": ((0, 11, 2), None),
    "kv-transfer-config": (OLDEST, None),
    "limit-mm-per-prompt": (OLDEST, None),
    "long-prefill-token-threshold": (OLDEST, None),
    "max-cudagraph-capture-size": ((0, 11, 2), None),
    "max-logprobs": (OLDEST, None),
    "max-num-batched-tokens": (OLDEST, None),
    "max-num-seqs": (OLDEST, None),
    "mm-processor-cache-gb": ((0, 10, 2), None),
    "num-gpu-blocks-override": (OLDEST, None),
    "num-redundant-experts": (OLDEST, (0, 11, 2)),
    "pipeline-parallel-size": (OLDEST, None),
    "prefill-schedule-interval": ((0, 24), None),
    "quantization": (OLDEST, None),
    "speculative-config": (OLDEST, None),
    "stream-interval": ((0, 11, 2), None),
    "tensor-parallel-size": (OLDEST, None),
}


def version_of(engine: Engine) -> Version:
    """The engine's version as numbers; the newest known where it is not said."""
    return parsed(engine.version) or NEWEST


def parsed(text: str | None) -> Version | None:
    """Numbers of "0.24.0" or "0.10.2rc1"; None where there are not two of them."""
    numbers = []
    for part in (text or "").split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
    return tuple(numbers) if len(numbers) >= 2 else None


def has(version: Version, flag: str) -> bool:
    """True where a version has a flag (its name without the dashes)."""
    first, last = FLAGS[flag]
    return first <= version and (last is None or version[: len(last)] <= last)


def first_of(flag: str) -> Version:
    """The first version in which a flag was seen."""
    return FLAGS[flag][0]


def spelled(version: Version) -> str:
    """A version as text."""
    return ".".join(str(number) for number in version)


def unknown(engine: Engine) -> tuple[str, ...]:
    """The condition that flags carry where the version is not known."""
    return () if parsed(engine.version) else (f"the vLLM version is unknown: flags are those of {spelled(NEWEST)}",)
