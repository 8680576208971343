"""What names people, machines and keys, and what users wrote, is in nothing that is sent; what is left still judges the same."""

import functools
import gzip
import io
import json
import re
import zipfile
from pathlib import Path
from typing import Any, Final

import pytest
from recordings import NOON, client, finished, kv_event, scrape, series, span
from reports.made import pdf_pages

from app.incident.kept import Asked
from app.ingest import load
from app.redact import Redactor
from app.reporting import Report, drawn, report
from app.store import Store

HOST: Final = "gpu-17.mercury.example-corp.internal"
URL: Final = f"http://{HOST}:8000/metrics"
# Everything that must not get out, wherever it was seeded.
SECRETS: Final = {
    "host": HOST, "host part": "mercury", "address": "10.84.77.13", "address 6": "fd00:12:3456::77", "person": "wilhelmina", "home": "/home/wilhelmina",
    "model path": "/srv/models/secretproject-70b", "model": "secretproject", "lora": "tenant-zanzibar", "email": "w.brandt@example-corp.com",
    "key": "sk-live-4fQ9xT7uVbN2mK8sL1pR", "token": "hf_AbCdEfGhIjKlMnOpQrStUvWxYz012345", "bearer": "Bearer q8w7e6r5t4y3u2i1o0p9", "request": "order-8841-zephyr",
    "prompt": "The patient presented with", "output": "Dear Ms Brandt", "tenant": "tenant-blue", "pod": "vllm-prod-7f9c", "bundle": "quarterly-outage", "file": "host-of-wilhelmina",
    "service": "billing-assistant", "salt": "salt-of-blue", "topic": "kv-topic-mercury", "env": "s3cr3t-env-value", "path": "/v1/users/wilhelmina",
}  # fmt: skip


def seeded(folder: Path) -> Path:
    """A capture with all of it: scrapes, log, command, spans, clients, KV events."""
    bundle = folder / "quarterly-outage"
    bundle.mkdir()
    labels = {"tenant": "tenant-blue", "pod": "vllm-prod-7f9c", "owner": "wilhelmina", "contact": "w.brandt@example-corp.com"}
    info = 'vllm:cache_config_info{block_size="16",cache_dtype="auto",num_gpu_blocks="1000",enable_prefix_caching="True",engine="0",node="10.84.77.13"}'
    lines = []
    for t in range(61):
        done = max(0, t - 3)
        values: dict[str, Any] = {
            **finished(2 * done, ttft=0.5 if t < 30 else 2.0, queue=0.2 if t < 30 else 1.7, prefill=0.2, decode=1.0, e2e=3.2), info: 1,
            series("num_requests_running", **labels): 4, series("num_requests_waiting"): 3 if t > 20 else 0, series("kv_cache_usage_perc"): 0.5,
            'http_requests_total{handler="/v1/users/wilhelmina",method="POST",status="2xx"}': 2 * t, 'acme_billing_total{customer="w.brandt@example-corp.com"}': t,
        }  # fmt: skip
        values = {
            name.replace('model_name="m"', 'model_name="/srv/models/secretproject-70b"'): value for name, value in values.items()
        }
        lines.append(scrape(t, values, URL))
    (bundle / "host-of-wilhelmina.jsonl").write_text("".join(lines))
    head = "(APIServer pid=4711) INFO 11-29 12:00:{:02} [x.py:1]"
    args = {
        "model": "/srv/models/secretproject-70b", "served_model_name": ["secretproject"], "api_key": "sk-live-4fQ9xT7uVbN2mK8sL1pR", "host": HOST, "port": 8000,
        "hf_token": "hf_AbCdEfGhIjKlMnOpQrStUvWxYz012345", "download_dir": "/home/wilhelmina/.cache", "max_num_seqs": 4, "lora_modules": ["tenant-zanzibar=/home/wilhelmina/lora"],
        "chat_template": "The patient presented with {{ x }}", "otlp_traces_endpoint": "http://fd00:12:3456::77:4317", "quantization": "wilhelmina of /home/wilhelmina",
    }  # fmt: skip
    log = [
        f"{head.format(0)} vLLM server version 0.24.0, serving model /srv/models/secretproject-70b",
        f"{head.format(0)} non-default args: {args!r}",
        f"{head.format(1)} Starting vLLM API server 0 on http://{HOST}:8000",
        "(APIServer pid=4711) INFO:     Started server process [4711]",
        f"{head.format(5)} Received request order-8841-zephyr: prompt: 'The patient presented with a cough', params: SamplingParams(n=1)",
        f"{head.format(6)} Engine 000: Avg prompt throughput: 100.0 tokens/s, Avg generation throughput: 50.0 tokens/s, Running: 4 reqs, Waiting: 3 reqs, GPU KV cache usage: 50.0%, Prefix cache hit rate: 20.0%",
        f"{head.format(16)} Engine 000: Avg prompt throughput: 100.0 tokens/s, Avg generation throughput: 50.0 tokens/s, Running: 4 reqs, Waiting: 3 reqs, GPU KV cache usage: 50.0%, Prefix cache hit rate: 20.0%",
        f"{head.format(17)} Triton kernel compiled during inference: _fwd_kernel in /home/wilhelmina/.triton. This causes a stall.",
        f"{head.format(18)} Generated response order-8841-zephyr: output: 'Dear Ms Brandt, ...'",
        '(APIServer pid=4711) INFO:     10.84.77.13:51111 - "POST /v1/users/wilhelmina?key=sk-live-4fQ9xT7uVbN2mK8sL1pR HTTP/1.1" 200 OK',
        f"{head.format(19)} Request order-8841-zephyr failed due to w.brandt@example-corp.com Bearer q8w7e6r5t4y3u2i1o0p9",
        f"{head.format(20)} EngineCore encountered a fatal error at 10.84.77.13",
    ]
    (bundle / "server.log").write_text("\n".join(log) + "\n")
    command = {"command": ["vllm", "serve", "/srv/models/secretproject-70b", "--host", HOST, "--port", "8000"], "env": {"VLLM_API_KEY": "s3cr3t-env-value", "VLLM_HOST_IP": "10.84.77.13"},
               "model_config": {"architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "_name_or_path": "/home/wilhelmina/x"}}  # fmt: skip
    (bundle / "command.json").write_text(json.dumps(command))
    spans = [span(f"order-8841-zephyr-{at}", at, **{"gen_ai.prompt": "The patient presented with"}) for at in range(1, 60)]
    spans = [
        one.replace('"vllm.process_id"', '"vllm.process_id"').replace(
            '{"key": "vllm', '{"key": "service.name", "value": {"stringValue": "billing-assistant"}}, {"key": "vllm', 1
        )
        for one in spans
    ]
    (bundle / "spans.jsonl").write_text("".join(spans))
    clients = [
        client(
            f"order-8841-zephyr-{at}",
            at,
            f"http://{HOST}:8000",
            prompt="The patient presented with",
            user="wilhelmina",
            output="Dear Ms Brandt",
        )
        for at in range(1, 60)
    ]
    (bundle / "clients.jsonl").write_text("".join(clients))
    events = [
        kv_event(at, at, [at % 7], [1, 2, 3], extra_keys=[["salt-of-blue"]]).replace('"topic": ""', '"topic": "kv-topic-mercury"')
        for at in range(1, 40)
    ]
    (bundle / "kv.jsonl").write_text("".join(events))
    return bundle


@functools.cache
def _folder() -> Path:
    import tempfile  # noqa: PLC0415 held for the process

    return Path(tempfile.mkdtemp(prefix="weaklink-test-"))


@functools.cache
def sent() -> Report:
    """The redacted report of the capture, with data."""
    with Store() as store:
        bundle = seeded(_folder())
        results = load(store, [bundle], now=NOON + 3600)
        assert {one.name for one in results if not one.format} == set(), results
        files = [
            {
                "name": one.name,
                "format": one.format,
                "lines": one.lines,
                "rejected": one.rejected,
                "message": one.message,
                "reasons": list(one.reasons),
            }
            for one in results
        ]
        asked = Asked(
            slo={"ttft": 1.0}, title="Outage, seen by w.brandt@example-corp.com", note=f"It began on {HOST}; call 10.84.77.13"
        )
        return report(store, asked, results=files, named=[str(bundle)], with_data="incident-data.zip")


def unpacked(data: bytes) -> bytes:
    """All bytes of a bundle: names and unpacked members."""
    parts = []
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for name in archive.namelist():
            member = archive.read(name)
            parts += [name.encode(), gzip.decompress(member) if member[:2] == b"\x1f\x8b" else member]
    return b"\n".join(parts)


@functools.cache
def everything() -> dict[str, bytes]:
    """What is sent, by format: bytes as they are, and for PDF also its text and what it holds packed."""
    found = {name: drawn(sent().plain, name) for name in ("html", "md", "json", "pdf")}
    found["pdf text"] = "\n".join(pdf_pages(found["pdf"])).encode()
    assert sent().data is not None
    found["data"] = unpacked(sent().data.data)
    return found


def test_the_capture_holds_what_is_looked_for():
    """Else the next test would prove nothing: each secret is in the files, and the store knows those that it should."""
    seeded_bytes = b"\n".join(path.name.encode() + path.read_bytes() for path in sorted(seeded_files()))
    assert [what for what, secret in SECRETS.items() if secret.encode() not in seeded_bytes and what != "bundle"] == []
    assert sent().redactor is not None
    known = json.dumps(sent().redactor.words)
    assert [
        what
        for what in ("host", "model path", "email", "address", "request", "tenant", "pod", "path", "topic", "service", "lora")
        if SECRETS[what] not in known
    ] == []


def seeded_files() -> list[Path]:
    sent()
    return [path for path in (_folder() / "quarterly-outage").iterdir() if path.is_file()]


@pytest.mark.parametrize("what", list(SECRETS))
def test_no_secret_is_in_any_format(what: str):
    secret = SECRETS[what].lower().encode()
    assert [name for name, data in everything().items() if secret in data.lower()] == []


def test_the_report_still_says_what_limits_and_its_data_judge_the_same():
    plain = sent().plain
    assert plain["targets"]["ttft"]["verdict"] in {"limited", "undetermined"}
    assert plain["data"]["says"] == "loaded into an empty store it gives the same judgement"
    assert plain["window"]["engines"] == ["server-1/0"]
    assert plain["title"] == "Outage, seen by email-1"
    assert plain["note"] == "It began on host-1; call address-1"


def test_the_list_tells_what_was_replaced_by_what():
    redactor = sent().redactor
    assert redactor is not None
    listed = redactor.listed()
    assert listed["server-1"][0] == f"{HOST}:8000"
    assert listed["host-1"][0] == HOST
    assert all(places > 0 for _, places in listed.values())
    assert sent().plain["replaced"] == redactor.counted()
    assert any(HOST in line for line in redactor.lines())


def test_without_redaction_the_names_stay():
    with Store() as store:
        load(store, [_folder() / "quarterly-outage"], now=NOON + 3600)
        found = report(store, Asked(), redact=False)
    text = drawn(found.plain, "json").decode()
    assert f"{HOST}:8000" in text
    assert "replaced" not in found.plain
    for secret in (
        "The patient presented with a cough",
        "Dear Ms Brandt",
        "sk-live-4fQ9xT7uVbN2mK8sL1pR",
    ):  # these are never stored
        assert secret not in text


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("at 12:00:00 UTC", True), ("2026-11-29T15:33:43.000Z", True), ("0.24.0", True), ("TTFT 1.65 s = floor 52.4 ms", True), ("tokens/s", True), ("--max-num-seqs 64", True),
        ("--kv-transfer-config '{\"kv_connector\": \"NixlConnector\"}'", True), ("vllm:time_to_first_token_seconds", True), ("127.0.0.1", True), ("a 4-core CPU at 3.5 GHz", True),
        ("mail w@b.co.uk", False), ("10.0.0.7", False), ("10.0.0.7:8000", False), ("fe80::1ff:fe23:4567:890a", False), ("http://a.b/c?d=e", False), ("/etc/passwd", False),
        ("C:\\Users\\w", False), ("~/models", False), ("ghp_abcdefghijklmnop1234", False), ("eyJhbGciOi.JIUzI1NiJ9", False), ("550e8400-e29b-41d4-a716-446655440000", False),
        ("Authorization: Bearer abcdefghij", False), ("node7.cluster.local", False), ("chatcmpl-abc123", False),
    ],
)  # fmt: skip
def test_what_looks_like_a_name_is_replaced_and_nothing_else(text: str, kept: bool):
    assert (Redactor().text(text) == text) is kept


def test_the_same_thing_is_the_same_word_and_order_stays():
    redactor = Redactor()
    redactor.give([f"10.0.0.{at}:8000" for at in range(12, 0, -1)], "server")
    words = [redactor.text(f"10.0.0.{at}:8000") for at in range(1, 13)]
    by_name = sorted(f"10.0.0.{at}:8000" for at in range(1, 13))
    assert [redactor.text(name) for name in by_name] == sorted(words)
    assert redactor.text("from 10.0.0.1:8000 to 10.0.0.12:8000") == f"from {words[0]} to {words[11]}"
    assert re.fullmatch(r"server-\d\d", words[0])


def test_a_word_is_only_replaced_whole():
    redactor = Redactor()
    redactor.give(["prefill"], "model")
    assert redactor.text("prefill_backlog limits prefill") == "prefill_backlog limits model-1"
    assert redactor.value({"link": "prefill", "says": "prefill"}) == {"link": "prefill", "says": "model-1"}
