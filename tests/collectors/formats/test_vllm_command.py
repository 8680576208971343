"""Commands and config.json: whole rows, secrets, what a shell makes of a line, and input of any kind."""

import json
import shlex
import time
from typing import Any

import pytest
from collectors.formats.reading import (
    HEAD,
    check_manifest,
    data,
    patient,
    read,
    refuses,
    sample,
    samples,
    scrambled,
    whole,
)
from hypothesis import example, given
from hypothesis import strategies as st

from app.collectors.formats import vllm_command

MODEL = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32} | {
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "torch_dtype": "bfloat16",
}
ARGS_0_24 = {"model": "./m8b", "served_model_name": "m8b", "host": "127.0.0.1", "port": 35437, "load_format": "dummy"} | {
    "enable_prompt_tokens_details": True,
    "max_model_len": 16384,
    "num_gpu_blocks_override": 2250,
    "otlp_traces_endpoint": "http://127.0.0.1:34993/v1/traces",
    "kv_events_config": {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": "tcp://127.0.0.1:38175"},
    "env": {"VLLM_LOGGING_COLOR": "0", "VLLM_NO_USAGE_STATS": "1"},
}
ARGS_0_8_5 = {"model": "./tiny", "served_model_name": "tiny", "host": "127.0.0.1", "port": 60137, "load_format": "dummy"} | {
    "enforce_eager": True,
    "dtype": "bfloat16",
    "max_model_len": 4096,
    "enable_prompt_tokens_details": True,
    "max_num_seqs": 32,
    "otlp_traces_endpoint": "http://127.0.0.1:33079/v1/traces",
    "block_size": 16,
}
ARGS_0_33 = {"model": "./m8b", "served_model_name": "m8b", "host": "127.0.0.1", "port": 36927, "load_format": "dummy"} | {
    "cudagraph_metrics": True,
    "enable_logging_iteration_details": True,
    "enable_per_request_metrics": True,
    "enable_prompt_tokens_details": True,
    "kv_cache_metrics": True,
    "kv_cache_metrics_sample": 0.1,
    "kv_events_config": {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": "tcp://127.0.0.1:35357"},
    "max_model_len": 16384,
    "otlp_traces_endpoint": "http://127.0.0.1:45067/v1/traces",
    "per_request_spec_decode_metrics": "summary",
    "speculative_config": {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4, "prompt_lookup_min": 2},
}
ARGS_SCRIPT = {
    "model": "meta-llama/Llama-3.1-8B-Instruct",
    "tensor_parallel_size": 4,
    "data_parallel_size": 2,
    "optimization_level": 3,
    "max_num_seqs": 64,
    "max_num_batched_tokens": 8192,
    "max_model_len": 32000,
    "enable_prefix_caching": False,
    "enforce_eager": True,
    "cudagraph_capture_sizes": [1, 2, 4],
    "served_model_name": ["llama", "llama-8b"],
    "api_key": "***",
    "speculative_config": {"method": "ngram", "num_speculative_tokens": 3},
    "kv_transfer_config": {
        "kv_connector": "NixlConnector",
        "kv_connector_extra_config": {"auth_token": "***", "url": "https://***@10.0.0.1/x"},
    },
    "gpu_memory_utilization": 0.9,
    "port": 8000,
}
API_SERVER = {"model": "./m", "host": "::1", "port": 9000, "enable_chunked_prefill": False}
MULTIMODAL = {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3"} | {
    "text_config": {"hidden_size": 2560, "num_hidden_layers": 34},
    "vision_config": {"hidden_size": 1152},
}
ROWS: dict[str, tuple[list[tuple[int, str, dict[str, Any]]], str | None]] = {
    "recorded-0.8.5.json": ([(1, "args", ARGS_0_8_5)], "127.0.0.1:60137"),
    "recorded-0.24.json": ([(1, "args", ARGS_0_24), (1, "model_config", MODEL)], "127.0.0.1:35437"),
    "recorded-0.33.json": ([(1, "args", ARGS_0_33)], "127.0.0.1:36927"),
    "script.sh": ([(5, "args", ARGS_SCRIPT)], "0.0.0.0:8000"),
    "api-server.txt": ([(1, "args", API_SERVER)], "[::1]:9000"),
    "config.json": ([(1, "model_config", MODEL)], None),
    "config-multimodal.json": ([(1, "model_config", MULTIMODAL)], None),
}


def events(text: bytes) -> list[tuple[int, str, dict[str, Any]]]:
    rows = data(read(vllm_command, text)).get("event", [])
    return [(row["line"], row["kind"], json.loads(row["fields"])) for row in rows]


def args(text: str) -> dict[str, Any]:
    """Return the arguments of one command that stands on a line."""
    ((_, kind, fields),) = events(f"vllm serve m {text}\n".encode())
    assert kind == "args"
    assert fields.pop("model") == "m"
    return fields


def test_nothing():
    assert read(vllm_command, b"") == {"source_file": [whole(0)]}
    assert read(vllm_command, b"#!/bin/bash\nsleep 1\n") == {"source_file": [whole(2)]}
    assert not vllm_command.sniff(b"")
    assert not vllm_command.sniff(b"#!/bin/bash\nsleep 1\n")


def test_the_manifest_names_each_sample():
    check_manifest(vllm_command)


@pytest.mark.parametrize("file", samples(vllm_command, "good"), ids=lambda file: file.name)
def test_whole_rows(file):
    text = file.read_bytes()
    found, instance = ROWS[file.name]
    lines = len([line for line in text.splitlines() if line.strip()])
    assert vllm_command.sniff(text[:HEAD])
    assert events(text) == found
    assert read(vllm_command, text)["source_file"] == [whole(lines, instance=instance)]


def test_fields_are_json_with_sorted_keys():
    assert read(vllm_command, b"vllm serve m --b 1 --a 2\n")["event"] == [
        {"line": 1, "kind": "args", "fields": '{"a": 2, "b": 1, "model": "m"}'}
    ]


def test_other_files_are_refused():
    assert not refuses(vllm_command)
    assert not [
        file.name for file in samples(vllm_command, "bad") if vllm_command.sniff(file.read_bytes()) and file.stem != "cut"
    ]
    for prose in (b"We use vllm serve a lot.\n", b"vllm serve\n", b"vllm serve ./m is what we use\n", b"echo vllm serve\n"):
        assert not vllm_command.sniff(prose), prose


@pytest.mark.parametrize(
    ("name", "found", "rejected", "lines"),
    [
        ("prose.md", [(5, "args", {"model": "./m", "max_num_seqs": 8})], [(3, "EXPECTED"), (7, "EXPECTED")], 4),
        ("open-quotation.txt", [], [(1, "EXPECTED")], 1),
        ("cut.txt", [(1, "args", {"model": "./m", "enforce_eager": True})], [(1, "EXPECTED_END")], 1),
        ("no-command.json", [], [(1, "EXPECTED_JSON")], 1),
    ],
)
def test_what_cannot_be_read_is_named(name, found, rejected, lines):
    text = sample(vllm_command, f"bad/{name}")
    rows = read(vllm_command, text)
    assert events(text) == found
    reasons = [(row["line"], row["reason"]) for row in rows["rejected_line"]]
    assert reasons == [(line, getattr(vllm_command, reason)) for line, reason in rejected]
    assert rows["source_file"][0]["rejected"] == len(rejected)


OPTIONS = {
    "--max-num-seqs 64": {"max_num_seqs": 64},
    "--max_num_seqs=64": {"max_num_seqs": 64},
    "--no-enable-x": {"enable_x": False},
    "--enable-x": {"enable_x": True},
    "--enable-x=False --y None": {"enable_x": False, "y": None},
    "-tp 2 -dp=3 -pp 4": {"tensor_parallel_size": 2, "data_parallel_size": 3, "pipeline_parallel_size": 4},
    "-O3": {"optimization_level": 3},
    "-O 2": {"optimization_level": 2},
    "-O.level 3": {"compilation_config": {"level": 3}},
    """-O '{"level": 3}'""": {"compilation_config": {"level": 3}},
    "-cc.mode=3 -cc.pass.fuse true": {"compilation_config": {"mode": 3, "pass": {"fuse": True}}},
    "--a.b+ 1 --a.b+ 2": {"a": {"b": [1, 2]}},
    "--a 1 --a.b 2": {"a": {"b": 2}},
    "--a 1 --a 2": {"a": 2},
    "--cudagraph-capture-sizes 8": {"cudagraph_capture_sizes": [8]},
    "--cudagraph-capture-sizes 1 2 4": {"cudagraph_capture_sizes": [1, 2, 4]},
    "--watermark -1 --x .5 --y 1e-3 --z 1e999": {"watermark": -1, "x": 0.5, "y": 0.001, "z": "1e999"},
    "--max-model-len 25.6k --max-num-batched-tokens 2K": {"max_model_len": 25600, "max_num_batched_tokens": 2048},
    "--kv-cache-memory-bytes 1G --name 1G": {"kv_cache_memory_bytes": 1 << 30, "name": "1G"},
    "--revision 0123 --x 99999999999999999999": {"revision": "0123", "x": "99999999999999999999"},
    "--x {a:1} --y [1,2]": {"x": "{a:1}", "y": [1, 2]},
    "--x '' --port 8000": {"x": "", "port": 8000},
    "--port 8000; echo done": {"port": 8000},
    "--port 8000 >log 2>&1 &": {"port": 8000},
    "--port 8000 && echo": {"port": 8000},
    "--port $PORT": {"port": "$PORT"},
    "--port 8000 # --max-num-seqs 4": {"port": 8000},
}


@pytest.mark.parametrize("text", OPTIONS)
def test_options(text):
    assert args(text) == OPTIONS[text]


@pytest.mark.parametrize(
    "text",
    [
        "--api-key secret",
        "--api-key=secret",
        "--api-key secret1 secret2",
        "--hf-token secret",
        "--ssl-keyfile-password secret",
        "--otlp-traces-headers Authorization=secret",
        """--kv-transfer-config '{"x": [{"api_key": "secret", "password": ["secret"]}]}'""",
        "--kv-transfer-config {api_key: secret}",
        "--x.access_token secret",
        "--endpoint http://user:secret@h:1/x",
        """--x '{"url": "redis://:secret@h:1"}'""",
    ],
)
def test_secrets_are_hidden(text):
    assert "secret" not in json.dumps(args(text))
    assert "***" in json.dumps(args(text))


def test_what_only_sounds_like_a_secret_is_kept():
    assert args("--max-num-batched-tokens 8 --tokenizer t --hf-token") == {
        "max_num_batched_tokens": 8,
        "tokenizer": "t",
        "hf_token": True,
    }


COMMANDS = {
    "vllm serve --port 1 m": {"model": "m", "port": 1},
    "vllm serve --enforce-eager m": {"model": "m", "enforce_eager": True},
    "vllm serve --model m --port 1": {"model": "m", "port": 1},
    "FOO=1 nohup /opt/bin/vllm serve m --port 1": {"model": "m", "port": 1},
    "uv run vllm serve m": {"model": "m"},
    """bash -c "vllm serve m --port 1" """: {"model": "m", "port": 1},
    """docker run -p 8000:8000 image sh -c 'exec vllm serve m --x "a b"'""": {"model": "m", "x": "a b"},
    "python -m vllm.entrypoints.openai.api_server --model m": {"model": "m"},
}


@pytest.mark.parametrize("text", COMMANDS)
def test_commands(text):
    assert vllm_command.sniff(f"{text}\n".encode())
    assert events(f"{text}\n".encode()) == [(1, "args", COMMANDS[text])]


def test_several_servers_have_no_common_instance():
    text = b"vllm serve m --port 1 &\nvllm serve m --port 2 &\nwait\n"
    assert vllm_command.sniff(text)
    assert [line for line, *_ in events(text)] == [1, 2]
    assert read(vllm_command, text)["source_file"] == [whole(3)]


@pytest.mark.parametrize("command", [["vllm", "serve", "m", "--port", "1"], ["/x/vllm", "serve", "m", "--port=1"]])
def test_of_an_object_only_command_and_model_are_read(command):
    text = json.dumps({"command": command, "env": {"HF_TOKEN": "secret"}, "pid": 7, "t": 1.5}).encode()
    assert events(text) == [(1, "args", {"model": "m", "port": 1})]


def subset(part: Any, full: Any) -> bool:
    """Tell whether each value of `part` is in `full`."""
    if isinstance(part, dict) and isinstance(full, dict):
        return all(key in full and subset(value, full[key]) for key, value in part.items())
    return part == full


def test_a_cut_text_invents_nothing():
    """Cut at any byte: what is left of the options is true."""
    for name in ("script.sh", "api-server.txt"):
        text = sample(vllm_command, f"good/{name}")
        ((_, _, full),) = events(text)
        for at in range(len(text)):
            for _, kind, fields in events(text[:at]):
                assert kind == "args"
                assert subset(fields, full), (at, fields)


@given(st.sampled_from([file for file in samples(vllm_command, "good") if file.suffix == ".json"]), st.data())
@patient
def test_a_cut_object_gives_nothing(file, draw):
    text = file.read_bytes().rstrip()
    assert not events(text[: draw.draw(st.integers(0, len(text) - 1))])


@given(st.binary() | st.text().map(str.encode))
@example(b"vllm serve m --x " + b"[" * 10_000 + b"\n")
@example(b"vllm serve m --x '" + b"[" * 900 + b"]" * 900 + b"'\n")
@example(b'{"command": ["vllm", "serve", "m", "--x", "[NaN]"]}')
@example(b'{"command": ["vllm", "serve", "m", "--x", "{\\"a\\": 1e999}"]}')
@example(b'{"architectures": [], "hidden_size": ' + b"[" * 900 + b"]" * 900 + b"}")
@example(b"vllm serve '\n" * 1000)
@patient
def test_any_bytes(text):
    read(vllm_command, text)
    vllm_command.sniff(text)


SHELL = st.text("'\"\\# \na", min_size=1, max_size=8).filter(lambda piece: not piece.endswith("\\"))


@given(st.lists(SHELL, min_size=1, max_size=4))
@patient
def test_what_is_open_is_told_piece_by_piece(pieces):
    quote = ""
    for piece in pieces:
        quote = vllm_command._quote(piece, quote)
    try:
        shlex.split("".join(pieces), comments=True)
    except ValueError:
        assert quote in {"'", '"'}
    else:
        assert quote in {"", "#"}


def test_a_command_whose_words_stand_lines_apart_is_one():
    text = b"vllm \\\n\\\n  serve m --x 'a\n--y'\n"
    assert events(text) == [(1, "args", {"model": "m", "x": "a\n--y"})]


def test_a_quotation_that_stays_open_over_many_lines_takes_no_time():
    """Found among a million broken inputs: each line read all those before it again."""
    text = b"vllm serve m --x 'a\n" + b'--y "' * 200 + b"\n" + (b"--z 1 " * 100 + b"\n") * 190
    began = time.process_time()
    read(vllm_command, text)
    assert time.process_time() - began < 1.0


PIECES = [
    "vllm serve",
    " ",
    "m",
    "--x",
    "-tp",
    "-O",
    "=",
    ".",
    "'",
    '"',
    "\\",
    "\n",
    "{",
    "}",
    "1",
    "#",
    ";",
    "|",
    ">",
    "no-",
    "+",
]


@given(st.lists(st.sampled_from(PIECES)))
@patient
def test_any_text_like_ours(parts):
    text = "vllm serve " + "".join(parts)
    read(vllm_command, text.encode())
    vllm_command.sniff(text.encode())
    read(vllm_command, json.dumps({"command": ["vllm", "serve", *parts]}).encode())


@given(scrambled(vllm_command))
@patient
def test_any_types(text):
    read(vllm_command, text)
    vllm_command.sniff(text)
