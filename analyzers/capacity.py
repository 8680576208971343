"""The capacity sheet: does a model with a wanted context and concurrency fit, and what would make it fit.

Memory of one GPU = share x memory = weights + KV blocks + the rest (activations, CUDA graphs, what is not torch's). Start-up
lines measure weights and blocks; where they are missing the model's shape gives them, and the rest is taken as REST_GIB.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from analyzers import steps
from analyzers.model import Engine
from analyzers.steps import number

GIB: Final = 2**30
DEFAULT_SHARE: Final = 0.92  # gpu_memory_utilization of 0.20 and newer; 0.90 before (facts: flags per link)
REST_GIB: Final = (
    1.0,
    2.5,
    6.0,
)  # low, assumed, high; 0.24 and 0.33 on H200 logged 1.9 GiB peak activations and 0.4-1.0 of graphs
MOST_SHARE: Final = 0.97  # above it vLLM's own reserve is too small on a full GPU
INSIDE: Final = "inside what is unknown of the GPU"
WORD: Final = 2.0  # bytes of a 16-bit number
INT4: Final = 0.28  # 4-bit weights with scales and 16-bit embeddings, of 16-bit ones
FP8: Final = 0.53  # 8-bit weights with 16-bit embeddings and norms, of 16-bit ones


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of one GPU in GiB, KV bytes a token on it, and tokens of one engine's pool; NaN is unknown, `how` says where each is from.

    `room_gib` is what could hold KV blocks, `kv_gib` what does: less, where an override sets the number of blocks.
    """

    gpu_gib: float
    share: float
    weights_gib: float
    kv_gib: float
    room_gib: float
    rest_gib: float
    kv_bytes: float
    pool_tokens: float
    override: bool
    how: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Option:
    """One way to hold more: tokens of the pool, contexts that then fit, whether that is enough, its flags and conditions."""

    name: str
    flags: tuple[str, ...]
    pool_tokens: float
    contexts: float
    fits: bool | None
    conditions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Sheet:
    """The answer: what is wanted, what is there, and options. `fits` None: cannot be determined, `conditions` say what is missing."""

    context: float
    concurrency: float
    memory: Memory
    needed_gib: float
    contexts: float
    fits: bool | None
    options: tuple[Option, ...]
    conditions: tuple[str, ...]
    says: str


def kv_bytes(engine: Engine, *, tensor: float = 1.0, pipeline: float = 1.0) -> float:
    """Bytes of KV cache a token takes on one GPU when that many times more GPUs share the model; NaN where the shape is unknown.

    Heads are not cut: beyond one KV head a GPU they are copied.
    """
    shape, facts = engine.facts.get("shape") or {}, engine.facts
    layers, heads, dim = (number(shape.get(k)) for k in ("layers", "kv_heads", "head_dim"))
    ways = tensor * max(1.0, number(facts.get("tensor_parallel"), 1.0))
    stages = pipeline * max(1.0, number(facts.get("pipeline_parallel"), 1.0))
    size = 1.0 if str(facts.get("kv_dtype", "auto")).startswith("fp8") else WORD
    return 2 * size * layers / stages * max(1.0, heads / ways) * dim


def memory_of(engine: Engine) -> Memory:
    """What one GPU of an engine holds, measured where the log says it, else modelled from the shape."""
    facts = engine.facts
    args: Mapping[str, Any] = facts.get("args") or {}
    share = number(args.get("gpu_memory_utilization"), DEFAULT_SHARE if _version(engine) >= (0, 20) else 0.90)
    override = bool(args.get("num_gpu_blocks_override"))
    took = {k: v for e in engine.event if e.kind == "memory" for k, v in e.fields.items()}
    how: dict[str, str] = {}
    pool, how["pool_tokens"] = (
        number(facts.get("kv_blocks")) * number(facts.get("block_size")),
        "start-up line or cache_config_info",
    )
    each, how["kv_bytes"] = kv_bytes(engine), "the model's shape"
    room, how["room_gib"] = number(took.get("kv_gib")), "start-up line"
    if math.isfinite(room * pool) and not override:
        each, how["kv_bytes"] = room * GIB / pool, "measured: memory of the pool over its tokens"
    weights, how["weights_gib"] = number(took.get("model_gib")), "start-up line"
    if not math.isfinite(weights):
        stages = max(1.0, number(facts.get("pipeline_parallel"), 1.0))
        weights = WORD * steps.parameters_held(engine) / stages / GIB * _stored(args.get("quantization"))
        how["weights_gib"] = "the model's shape, 16-bit weights" + (" quantised" if args.get("quantization") else "")
    gpu, how["gpu_gib"] = number(facts.get("memory_gib")), "derived from what vLLM took"
    rest, how["rest_gib"] = 0.0, INSIDE  # taken to be nothing beyond that
    named = _device(str(facts.get("device_name") or ""))
    if named is not None:
        gpu, how["gpu_gib"] = named, f"device {facts['device_name']}"
        rest, how["rest_gib"] = REST_GIB[1], f"assumed: {REST_GIB[0]:.0f} to {REST_GIB[2]:.0f} GiB"
    if not math.isfinite(room) and math.isfinite(pool) and not override:
        room, how["room_gib"] = each * pool / GIB, "pool tokens x bytes a token"
    if math.isfinite(room) and share * gpu - weights - room > 0:
        rest, how["rest_gib"] = share * gpu - weights - room, "what is left of the share"
    if not math.isfinite(room):
        room, how["room_gib"] = max(share * gpu - weights - rest, 0.0), "share x memory - weights - rest"  # NaN stays
    if not math.isfinite(pool):
        pool, how["pool_tokens"] = room * GIB / each, "modelled: room over bytes a token"
    if how["rest_gib"] == INSIDE:
        rest = math.nan
    return Memory(gpu, share, weights, each * pool / GIB, room, rest, each, pool, override, how)


def _version(engine: Engine) -> tuple[int, ...]:
    """Numbers of an engine's version; as the newest where it is unknown."""
    parts = (engine.version or "").split(".")
    return tuple(int(p) for p in parts[:2]) if len(parts) >= 2 and all(p.isdigit() for p in parts[:2]) else (99, 0)


def _device(name: str) -> float | None:
    """GiB of a device by its name; None where it is not in the table."""
    known = [d for d in sorted(steps.DEVICES, key=len, reverse=True) if d in name.upper()]
    return steps.DEVICES[known[0]][0] if known else None


def _stored(quantization: object) -> float:
    """Size of stored weights of 16-bit ones, by the argument --quantization."""
    name = str(quantization or "").lower()
    if not name or name == "none":
        return 1.0
    return INT4 if any(word in name for word in ("awq", "gptq", "int4", "fp4", "w4")) else FP8


# -- what a change leaves for KV blocks -----------------------------------------------------------------------------------------
def pool_with(
    engine: Engine,
    *,
    weights: float = 1.0,
    kv: float = 1.0,
    tensor: float = 1.0,
    pipeline: float = 1.0,
    share: float | None = None,
    freed_gib: float = 0.0,
) -> float:
    """Tokens of one engine's pool after a change (and without an override of its blocks); NaN where memory is unknown.

    `weights` and `kv`: size of weights and of a cached token, of what they are now; `tensor` and `pipeline`: times more GPUs an
    engine; `share`: another gpu_memory_utilization; `freed_gib`: memory that other things give back (negative: take).
    """
    m = memory_of(engine)
    stages = tensor * pipeline
    room = m.room_gib + freed_gib
    if weights != stages:
        room += m.weights_gib * (1 - weights / stages)
    if share is not None:
        room += (share - m.share) * m.gpu_gib
    now = kv_bytes(engine)
    ratio = kv_bytes(engine, tensor=tensor, pipeline=pipeline) / now if now > 0 else math.nan
    if not math.isfinite(ratio):
        ratio = 1.0 / stages if stages > 1 else 1.0
    return max(room, 0.0) * GIB / (m.kv_bytes * kv * ratio)


def held_tokens(prompt: float, output: float, hit: float = 0.0) -> float:
    """Tokens that a running request holds on average: its prompt (shared prefixes counted once for all) and half its output."""
    return prompt * (1 - hit) + output / 2


# -- the sheet ------------------------------------------------------------------------------------------------------------------
def sheet(engine: Engine, context: float, concurrency: float) -> Sheet:
    """Does `concurrency` times `context` tokens fit into one engine's pool, and which changes would make it fit."""
    m = memory_of(engine)
    wanted = context * concurrency
    known = math.isfinite(m.pool_tokens)
    contexts = m.pool_tokens / context
    fits = bool(wanted <= m.pool_tokens) if known else None
    said = []
    longest = number((engine.facts.get("args") or {}).get("max_model_len"))
    if context > longest:
        fits = False
        said.append(f"--max-model-len is {longest:.0f}: a context of {context:.0f} tokens is refused whatever the memory")
    if m.override:
        said.append("--num-gpu-blocks-override sets the pool, not the memory")
    if m.how["rest_gib"].startswith("assumed"):
        said.append(f"activations and CUDA graphs are assumed to take {REST_GIB[1]} GiB ({REST_GIB[0]:.0f} to {REST_GIB[2]:.0f})")
    if not known:
        said.append("give the server's log (start-up lines), or the model's config.json and the GPU")
    said.append(
        "every context is counted whole: shared prefixes need less, and hybrid or MLA models store less than their heads say"
    )
    return Sheet(
        context, concurrency, m, wanted * m.kv_bytes / GIB, contexts, fits,
        tuple(_options(engine, m, context, wanted)), tuple(said), _says(m, context, concurrency, contexts, fits=fits),
    )  # fmt: skip


def _says(m: Memory, context: float, concurrency: float, contexts: float, *, fits: bool | None) -> str:
    asked = f"{concurrency:.0f} contexts of {context:.0f} tokens"
    if fits is None:
        return f"Whether {asked} fit cannot be determined: the pool's size is unknown."
    held = f"the pool of {m.pool_tokens:,.0f} tokens holds {contexts:.1f}"
    return f"{asked} {'fit' if fits else 'do not fit'}: {held}."


def _options(engine: Engine, m: Memory, context: float, wanted: float) -> list[Option]:
    """Ways to a larger pool, each alone, in the order of what they cost."""
    facts = engine.facts
    heads, kv_heads = (number((facts.get("shape") or {}).get(name)) for name in ("heads", "kv_heads"))
    tensor = max(1.0, number(facts.get("tensor_parallel"), 1.0))
    stages = max(1.0, number(facts.get("pipeline_parallel"), 1.0))
    found: list[Option] = []

    def add(name: str, flags: tuple[str, ...], tokens: float, *conditions: str) -> None:
        held = math.isfinite(tokens)
        first = () if not m.override or flags == free else ("without the override",)
        found.append(
            Option(name, flags, tokens, tokens / context, bool(wanted <= tokens) if held else None, (*first, *conditions))
        )

    free = ("without --num-gpu-blocks-override",)
    if str(facts.get("device") or "cuda") == "cpu":
        add(
            "twice the memory",
            ("VLLM_CPU_KVCACHE_SPACE (an environment variable, GiB)",),
            2 * m.pool_tokens,
            "memory of the host",
        )
        return found
    if m.override:
        add("without the override", free, pool_with(engine))
    if m.share < MOST_SHARE - 0.005:
        flags = (f"--gpu-memory-utilization {MOST_SHARE:.2f}",)
        add("a larger share of memory", flags, pool_with(engine, share=MOST_SHARE), "running out of memory becomes possible")
    if not str(facts.get("kv_dtype", "auto")).startswith("fp8"):
        add("8-bit KV cache", ("--kv-cache-dtype fp8",), pool_with(engine, kv=0.5), *QUANTISED_KV)
    if _stored((facts.get("args") or {}).get("quantization")) == 1.0:
        add("8-bit weights", ("--quantization fp8",), pool_with(engine, weights=FP8), *QUANTISED_WEIGHTS)
        add("4-bit weights", ("a checkpoint with AWQ or GPTQ weights",), pool_with(engine, weights=INT4), *QUANTISED_WEIGHTS)
    for ways in (2, 4, 8):
        if math.isfinite(heads) and heads % (tensor * ways):
            continue
        copied = (
            () if not kv_heads < tensor * ways else (f"{kv_heads:.0f} KV heads: beyond as many GPUs each holds copies of them",)
        )
        flags = (f"--tensor-parallel-size {tensor * ways:.0f}",)
        add(f"{ways} times the GPUs, tensors split", flags, pool_with(engine, tensor=ways), "an all-reduce a layer", *copied)
    flags = (f"--pipeline-parallel-size {stages * 2:.0f}",)
    add("2 times the GPUs, layers split", flags, pool_with(engine, pipeline=2), "a token passes all stages: no lower TPOT")
    replicas = 2 * max(1.0, number(facts.get("data_parallel"), 1.0))
    flags = (f"--data-parallel-size {replicas:.0f}",)
    add("twice the replicas", flags, 2 * pool_with(engine), "each replica holds its own prefixes")
    return found


QUANTISED_KV: Final = (
    "the attention kernel of this model and GPU must take 8-bit KV (vLLM names its backend at start-up)",
    "answers change: compare them on your own evaluation",
)
QUANTISED_WEIGHTS: Final = (
    "kernels: 8-bit products need Ada, Hopper or newer; older GPUs only store them so (weight-only kernels)",
    "answers change: compare them on your own evaluation",
)


def planned(shape: Mapping[str, float], args: Mapping[str, Any], gpu: str | None) -> Engine:
    """An engine that does not run yet, from a model's shape, the arguments planned for it and the GPU's name."""
    sizes = {
        "tensor_parallel_size": "tensor_parallel",
        "pipeline_parallel_size": "pipeline_parallel",
        "data_parallel_size": "data_parallel",
    }
    facts: dict[str, Any] = {"shape": dict(shape), "args": dict(args), "args_known": bool(args), "device_name": gpu}
    facts.update({short: args[name] for name, short in sizes.items() if isinstance(args.get(name), int | float)})
    facts["kv_dtype"] = args.get("kv_cache_dtype") or "auto"
    facts["block_size"] = args.get("block_size") or 16
    return Engine("", "0", facts=facts)
