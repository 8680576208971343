"""Files that no format reads, told by their beginning: what they are, and what to give in their place.

People upload what they have. "Not recognised" leaves them alone with it; here a file is named, and the one beside it that holds
the numbers. A pattern must not fit a file that a format reads: formats are asked first.
"""

import re
from typing import Final

UNRECOGNISED: Final = "not recognised; expected one of the formats that `weaklink formats` lists"
HEAD: Final = 1 << 16  # bytes that are looked at

# what is found at the beginning of a file (start: only at its very start), what it is, and what to give
_KNOWN: Final[tuple[tuple[str, bytes, str], ...]] = (
    ("start", rb"(?i)\s*(?:<!doctype html|<html)", "an HTML page; a proxy or a login may have answered in place of vLLM's /metrics"),
    ("start", rb"PAR1", "a Parquet file. Of AIPerf's server metrics give server_metrics_export.json or .jsonl"),
    ("start", rb".{8}DUCK", "a DuckDB database: a store of weaklink is opened with --store"),
    ("start", rb"SQLite format 3\0", "an SQLite database, as profilers export it: give vLLM's log and its /metrics"),
    ("start", rb"%PDF", "a PDF: text in it cannot be read. Give the log or the /metrics as text"),
    ("start", rb"\x89PNG|\xff\xd8\xff|GIF8|RIFF.{4}WEBP", "an image: text in it cannot be read. Paste the log or the /metrics as text"),
    ("start", rb"Metric,(?:avg|Unit|Value)\b", "sums of AIPerf as CSV: give profile_export.jsonl, which has every request"),
    ("start", rb"Endpoint,(?:Type|Metric)\b", "server metrics of AIPerf as CSV: give server_metrics_export.json, which is beside it"),
    ("", rb'"status"\s*:\s*"success"\s*,\s*"data"\s*:\s*\{\s*"resultType"',
     "an answer of Prometheus's API to one query, without the other series: `weaklink collect --prometheus URL` asks for what is needed"),
    ("", rb'"traceEvents"\s*:', "a trace of single calls, as PyTorch's profiler writes it. Step times come from vLLM's log with --enable-logging-iteration-details"),
    ("", rb'"nbformat"\s*:', "a notebook: give the file that it reads"),
    ("", rb'"gridPos"\s*:', "a Grafana dashboard: it holds queries, not numbers. `weaklink collect --prometheus URL` asks its data source"),
    ("", rb"(?:Prefill|Decode) batch[ .,][^\n]{0,200}#(?:new-seq|running-req)", "a log of SGLang: only vLLM's is read"),
    ("", rb"text_generation_(?:router|launcher)", "a log of Text Generation Inference: only vLLM's is read"),
    ("", rb"\[(?:TensorRT-LLM|TRT-LLM)\]", "a log of TensorRT-LLM: only vLLM's is read"),
    ("", rb"llama_perf_|llama_print_timings|slot launch_slot_|\[GIN\] \d{4}/", "a log of llama.cpp or Ollama: only vLLM's is read"),
    ("", rb"LiteLLM(?: Proxy)?:(?:INFO|DEBUG|ERROR|WARNING)", "a log of LiteLLM, which stands before vLLM: give vLLM's own log or /metrics"),
    ("", rb"_core::llm::|dynamo_runtime::", "a log of Dynamo's own parts: give those of its vLLM workers, and their /metrics"),
    ("", rb"\((?:raylet|gcs_server)\)|\[(?:raylet|gcs_server)\]|\braylet\.cc:", "a log of Ray itself: vLLM's lines are in the logs of the replica's workers"),
    ("", rb"NVIDIA-SMI \d", "what nvidia-smi prints: it says how busy the GPU is, not what a request waits for. Give vLLM's log or /metrics"),
    ("", rb'(?m)^\S+ \S+ \S+ \[\d\d/\w{3}/\d{4}:[^\]]+\] "[A-Z]+ [^"\n]*" \d{3} ', "an access log of a web server or proxy: it has no times of tokens. Give vLLM's log or /metrics"),
    ("", rb"(?m)^apiVersion: \S+$", "a Kubernetes manifest. Of the vLLM command in it, give the line `vllm serve ...` as a file"),
)  # fmt: skip
_PATTERNS: Final = tuple((where == "start", re.compile(pattern, re.DOTALL if where else 0), says) for where, pattern, says in _KNOWN)


def said_of(head: bytes) -> str:
    """What to tell about a file that begins so, and that no format takes."""
    for at_start, pattern, says in _PATTERNS:
        if pattern.match(head) if at_start else pattern.search(head[:HEAD]):
            return f"not recognised: {says}"
    return UNRECOGNISED
