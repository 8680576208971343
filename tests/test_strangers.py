"""Ten files of other shapes, as strangers paste them into public issues: each loads, or is refused with a sentence that helps.

Retyped in short: figures and shapes kept, hosts, ids and paths replaced, what people asked left out.
"""

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from recordings import ROOT, loaded

from app.collectors import strangers

STATS: Final = "Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 5.4 tokens/s, Running: 1 reqs, Waiting: 14 reqs, GPU KV cache usage: 76.5%, Prefix cache hit rate: 92.0%"


@dataclass(frozen=True)
class File:
    """Where it is from, its name and text; the reader that takes it (None: none), rows by table, and what is said."""

    source: str
    name: str
    text: str
    format: str | None
    rows: tuple[tuple[str, int], ...] = ()
    says: str = ""


FILES: Final = (
    File(
        "intel/llm-scaler#391", "server.txt",
        f"(APIServer pid=851) INFO 04-28 22:54:32 [loggers.py:257] Engine 000: {STATS}\n"
        '(APIServer pid=851) INFO:     192.0.2.86:59146 - "GET /metrics HTTP/1.1" 200 OK\n'
        f"(APIServer pid=851) INFO 04-28 22:54:42 [loggers.py:257] Engine 000: {STATS}\n",
        "vllm_log", (("stat", 2),),
    ),
    File(
        "vllm-project/vllm#8719", "journal.txt",
        'Sep 22 23:46:41 gpu-1 vllm[361682]: INFO:     127.0.0.1:58286 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
        "Sep 22 23:46:42 gpu-1 vllm[361991]: INFO 09-22 23:46:42 metrics.py:351] Avg prompt throughput: 5902.0 tokens/s, Avg generation throughput: 230.6 tokens/s, Running: 16 reqs, Swapped: 0 reqs, Pending: 11 reqs, GPU KV cache usage: 87.1%, CPU KV cache usage: 0.0%.\n"
        "Sep 22 23:46:42 gpu-1 vllm[361991]: INFO 09-22 23:46:42 metrics.py:367] Prefix cache hit rate: GPU: 26.68%, CPU: 0.00%\n",
        "vllm_log", (("stat", 1),),
    ),
    File(
        "vllm-project/vllm#17972", "out.log",
        "INFO 05-11 18:04:22 [logger.py:39] Received request chatcmpl-x: prompt: '<|im_start|>system\\nSECRET', params: SamplingParams(n=1), prompt_token_ids: [1, 2], lora_request: None.\n"
        "INFO 05-11 18:04:22 [engine.py:310] Added request chatcmpl-x.\n"
        "INFO 05-11 18:04:32 [metrics.py:486] Avg prompt throughput: 90.1 tokens/s, Avg generation throughput: 3.2 tokens/s, Running: 1 reqs, Swapped: 0 reqs, Pending: 0 reqs, GPU KV cache usage: 1.1%, CPU KV cache usage: 0.0%.\n",
        "vllm_log", (("stat", 1),),
    ),
    File(
        "vllm-project/vllm#6337", "metrics.txt",
        "".join(f'vllm:time_to_first_token_seconds_bucket{{le="{le}",model_name="/models/m/"}} 208.0\n' for le in ("0.001", "0.005", "+Inf"))
        + 'vllm:time_to_first_token_seconds_count{model_name="/models/m/"} 208.0\nvllm:time_to_first_token_seconds_sum{model_name="/models/m/"} 0.0\n',
        "prometheus_text", (("sample", 5),),
    ),
    File(
        "IBM/vllm#18", "tgis.prom",
        '# TYPE vllm:cpu_cache_usage_perc gauge\nvllm:cpu_cache_usage_perc{model_name="bloom-560m"} 0.0\n'
        '# TYPE vllm:prompt_tokens_total counter\nvllm:prompt_tokens_total{model_name="bloom-560m"} 1196.0\n'
        'tgi_request_count{method="generate"} 12.0\n',
        "prometheus_text", (("sample", 2),),
    ),
    File(
        "production-stack#318", "router.txt",
        '# TYPE vllm:request_params_max_tokens histogram\nvllm:request_params_max_tokens_bucket{le="1.0",model_name="m"} 0.0\n'
        'vllm:request_params_max_tokens_bucket{le="+Inf",model_name="m"} 5.0\n# TYPE vllm:num_requests_running gauge\n'
        'vllm:num_requests_running{server="http://192.0.2.7:8000"} 0.0\n',
        "prometheus_text", (("sample", 3),),
    ),
    File(
        "sgl-project/sglang#4444", "metrics",
        '# HELP sglang:num_running_reqs The number of running requests.\n# TYPE sglang:num_running_reqs gauge\nsglang:num_running_reqs{engine_type="unified",model_name="m"} 0.0\n'
        'sglang:gen_throughput{engine_type="unified",model_name="m"} 0.0\n',
        "prometheus_text", (("sample", 0),), "no series of vLLM in it",
    ),
    File(
        "ai-dynamo/dynamo#4087", "kvbm.log",
        "2025-11-04T12:27:31.625974Z  INFO _core::llm::block_manager::vllm::connector::leader::slot: request set to finish: cached_gpu_tokens: 0; cached_host_tokens: 0 request_id=chatcmpl-1\n" * 3,
        None, (), "a log of Dynamo's own parts",
    ),
    File(
        "a saved page of a proxy before /metrics", "metrics.html",
        "<!DOCTYPE html>\n<html><head><title>502 Bad Gateway</title></head>\n<body><center><h1>502 Bad Gateway</h1></center></body></html>\n",
        None, (), "a proxy or a login may have answered",
    ),
    File(
        "a log as Docker's json-file driver keeps it", "container-json.log",
        "".join(json.dumps({"log": f"INFO 04-28 22:54:{at} [loggers.py:257] Engine 000: {STATS}\n", "stream": "stdout", "time": f"2026-04-28T22:54:{at}.1Z"}) + "\n" for at in (32, 42)),
        "vllm_log", (("stat", 2),),
    ),
)  # fmt: skip


@pytest.mark.parametrize("file", FILES, ids=lambda one: one.source)
def test_it_loads_or_is_refused_with_a_sentence(file: File, tmp_path: Path):
    (tmp_path / file.name).write_text(file.text)
    store, (result,) = loaded(tmp_path / file.name)
    assert result.format == file.format, result.message
    for table, count in file.rows:
        assert store.rows(f"SELECT count(*) FROM {table}") == [(count,)], table
    said = f"{result.message} {' '.join(result.reasons)}"
    assert file.says in said
    if file.format is None:
        assert len(said) > 30
    assert "SECRET" not in str([store.rows(f"SELECT * FROM {name}") for name in ("event", "request", "rejected_line", "stat")])


# what stands at the beginning of a file, and a piece of what is said of it
BEGINNINGS: Final = (
    (b"PAR1\x15\x04", "server_metrics_export.json"),
    (b"\x00\x01\x02\x03\x04\x05\x06\x07DUCK@\x00", "--store"),
    (b"SQLite format 3\0\x10\x00", "SQLite"),
    (b"%PDF-1.7\n", "a PDF"),
    (b"\x89PNG\r\n\x1a\n", "an image"),
    (b"Metric,avg,min,max,p99,p90\nTime to First Token (ms),12.1,1,2,3,4\n", "profile_export.jsonl"),
    (b"Endpoint,Type,Metric,Unit\n", "server_metrics_export.json"),
    (b'{"status":"success","data":{"resultType":"matrix","result":[]}}', "weaklink collect --prometheus"),
    (b'{"schemaVersion": 1, "traceEvents": [{"ph": "X"}]}', "--enable-logging-iteration-details"),
    (b'{"cells": [], "nbformat": 4}', "a notebook"),
    (b'{"panels": [{"gridPos": {"h": 8}}]}', "Grafana"),
    (b"[2026-03-01 12:00:00 TP0] Decode batch. #running-req: 1, #token: 100, gen throughput (token/s): 30.0\n", "SGLang"),
    (b"2026-03-01T12:00:00.000000Z  INFO text_generation_router::server: Connected\n", "Text Generation Inference"),
    (b"[TensorRT-LLM][INFO] Engine version 0.20\n", "TensorRT-LLM"),
    (b"llama_perf_context_print: load time = 12 ms\n", "llama.cpp"),
    (b"12:00:00 - LiteLLM Proxy:INFO: proxy_server.py:1 - started\n", "LiteLLM"),
    (b"[2026-03-01 12:00:00,000 I 12 12] (raylet) main.cc:100: up\n", "Ray itself"),
    (b"| NVIDIA-SMI 570.86.10    Driver Version: 570.86.10 |\n", "nvidia-smi"),
    (b'192.0.2.1 - - [01/Mar/2026:12:00:00 +0000] "POST /v1/completions HTTP/1.1" 200 512\n', "an access log"),
    (b"apiVersion: apps/v1\nkind: Deployment\n", "a Kubernetes manifest"),
    (b"2026-03-01T12:00:00.000000Z  INFO dynamo_runtime::worker: up\n", "Dynamo"),
    (b"hello\n", "`weaklink formats` lists"),
)


@pytest.mark.parametrize(("head", "piece"), BEGINNINGS, ids=lambda one: one if isinstance(one, str) else "")
def test_what_no_format_reads_is_named(head: bytes, piece: str, tmp_path: Path):
    (tmp_path / "file").write_bytes(head)
    _, (result,) = loaded(tmp_path / "file")
    assert result.format is None
    assert result.message.startswith("not recognised")
    assert piece in result.message


def test_each_entry_is_met_by_one_beginning():
    met = {strangers.said_of(head) for head, _ in BEGINNINGS}
    assert met | {strangers.said_of(b"<html>")} == {strangers.UNRECOGNISED, *(f"not recognised: {says}" for _, _, says in strangers._KNOWN)}


def test_what_a_format_reads_is_no_stranger():
    samples = [path for path in (ROOT / "sample_data" / "formats").glob("*/good/*") if path.is_file()]
    assert len(samples) > 30
    for path in samples:
        assert strangers.said_of(path.read_bytes()[: strangers.HEAD]) == strangers.UNRECOGNISED, path


@pytest.mark.parametrize("piece", [b"Decode batch ", b'"status":', b'1 2 3 [01/Mar/2026:1] "G ', b"\n", b" ", b"\xff", b'"gridPos"  '])
def test_no_beginning_takes_long(piece: bytes):
    head = (piece * strangers.HEAD)[: strangers.HEAD]
    began = time.process_time()
    strangers.said_of(head)
    assert time.process_time() - began < 1.0
