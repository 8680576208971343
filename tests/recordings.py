"""Recordings made by hand: scrapes as a recorder writes them, texts, logs, spans, with numbers that are easy to recognise."""

import functools
import json
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from analyzers.model import Incident
from app.cli import _file
from app.ingest import FileResult, load
from app.pipeline import attribution_for
from app.store import Store

ROOT: Final = Path(__file__).resolve().parent.parent
INCIDENTS: Final = ROOT / "sample_data" / "incidents"
DATA: Final = Path(__file__).resolve().parent / "data"
NOON: Final = 1795953600.0  # 2026-11-29 12:00 UTC
HERE: Final = "http://127.0.0.1:8000/metrics"
PID: Final = 4711

Values = Mapping[str, float | str]


def series(name: str, engine: str | None = "0", **labels: str) -> str:
    """Return a series as exposed: vllm:`name`, or the name itself where it has a prefix; engine None: without that label."""
    full = name if ":" in name or name.startswith(("vllm_", "ray_", "http_", "process_")) else f"vllm:{name}"
    pairs = {} if engine is None else {"engine": engine}
    pairs |= {"model_name": "m"} if "vllm" in full else {}
    inside = ",".join(f'{key}="{value}"' for key, value in sorted({**pairs, **labels}.items()))
    return f"{full}{{{inside}}}" if inside else full


def text(values: Values) -> str:
    return "".join(f"{name} {value}\n" for name, value in values.items())


def scrape(t: float, values: Values | None, url: str = HERE, dur: float = 0.0) -> str:
    """Return the line of one scrape `t` seconds after noon; values None: it failed."""
    body = {"error": "timed out"} if values is None else {"text": text(values)}
    return json.dumps({"t": NOON + t, "url": url, "dur": dur, **body}) + "\n"


def scrapes(path: Path, rows: Iterable[tuple[float, Values | None]], url: str = HERE) -> Path:
    """Write scrapes to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(scrape(t, values, url) for t, values in rows))
    return path


def stored(*paths: Path, **options: Any) -> Store:
    """Return a store in memory with these bundles, all of whose files went in."""
    store = Store()
    results = load(store, paths, **options)
    assert all(result.added for result in results), results
    return store


def by_name(results: Iterable[FileResult]) -> dict[str, FileResult]:
    return {result.name: result for result in results}


# -- requests that finish: every histogram of the stages --------------------------------------------------------------------

STAGES: Final = ("ttft", "queue", "prefill", "decode", "e2e")
_FAMILY: Final = {
    "ttft": "time_to_first_token_seconds",
    "queue": "request_queue_time_seconds",
    "prefill": "request_prefill_time_seconds",
    "decode": "request_decode_time_seconds",
    "e2e": "e2e_request_latency_seconds",
}


def finished(n: float, engine: str | None = "0", **seconds: float) -> dict[str, float]:
    """Return the histograms after `n` requests of these mean seconds (ttft, queue, prefill, decode, e2e)."""
    values: dict[str, float] = {}
    for name in STAGES:
        values[series(f"{_FAMILY[name]}_sum", engine)] = n * seconds.get(name, 0.0)
        values[series(f"{_FAMILY[name]}_count", engine)] = n
    values[series("request_generation_tokens_sum", engine)] = 11 * n
    values[series("request_generation_tokens_count", engine)] = n
    values[series("request_prompt_tokens_sum", engine)] = 100 * n
    values[series("request_prompt_tokens_count", engine)] = n
    values[series("generation_tokens_total", engine)] = 11 * n
    values[series("prompt_tokens_total", engine)] = 100 * n
    return values


# -- server logs ------------------------------------------------------------------------------------------------------------


def started(host: str = "127.0.0.1", port: int = 8000, pid: int = PID, day: str = "11-29", version: str = "0.24.0") -> str:
    """Return the lines with which a server starts."""
    head = f"(APIServer pid={pid}) INFO {day} 11:59:00"
    return (
        f"{head} [utils.py:1] vLLM server version {version}, serving model m\n"
        f"{head} [launcher.py:1] Starting vLLM API server 0 on http://{host}:{port}\n"
        f"(APIServer pid={pid}) INFO:     Started server process [{pid}]\n"
    )


def stats(at: str = "11-29 12:00:10", engine: int = 0, running: int = 1, waiting: int = 0, pid: int = PID) -> str:
    """Return a stats line."""
    return (
        f"(APIServer pid={pid}) INFO {at} [loggers.py:257] Engine {engine:03}: Avg prompt throughput: 100.0 tokens/s, "
        f"Avg generation throughput: 50.0 tokens/s, Running: {running} reqs, Waiting: {waiting} reqs, "
        "GPU KV cache usage: 10.0%, Prefix cache hit rate: 20.0%\n"
    )


def span(request_id: str, t: float, pid: int | None = PID, **more: Any) -> str:
    """Return the export of one request's span that arrives `t` seconds after noon."""
    seconds = {
        "time_to_first_token": 0.5,
        "time_in_queue": 0.1,
        "time_in_model_prefill": 0.3,
        "time_in_model_decode": 1.0,
        "e2e": 1.5,
    }
    attributes = [{"key": "gen_ai.request.id", "value": {"stringValue": request_id}}]
    attributes += [{"key": f"gen_ai.latency.{name}", "value": {"doubleValue": value}} for name, value in seconds.items()]
    attributes += [{"key": key, "value": {"stringValue": str(value)}} for key, value in more.items()]
    resource = [] if pid is None else [{"key": "vllm.process_id", "value": {"stringValue": str(pid)}}]
    one = {
        "name": "llm_request",
        "traceId": f"{abs(hash(request_id)):032x}"[-32:],
        "startTimeUnixNano": str(int((NOON + t) * 1e9)),
        "endTimeUnixNano": str(int((NOON + t + 1.5) * 1e9)),
        "attributes": attributes,
    }
    export = {"resourceSpans": [{"resource": {"attributes": resource}, "scopeSpans": [{"spans": [one]}]}]}
    return json.dumps(export) + "\n"


def client(request_id: str, t: float, url: str | None = "http://127.0.0.1:8000", **more: Any) -> str:
    """Return the client's record of a request that is sent `t` seconds after noon."""
    sent = NOON + t
    record = {
        "id": request_id,
        "t_send": sent,
        "t_first_token": sent + 0.6,
        "t_last_token": sent + 1.6,
        "t_end": sent + 1.7,
        "status": "ok",
    }
    return json.dumps(record | ({} if url is None else {"base_url": url}) | more) + "\n"


def kv_event(seq: int, t: float, hashes: list[int], tokens: Iterable[Any] = (), **more: Any) -> str:
    """Return a message with one stored block."""
    event = {
        "type": "BlockStored",
        "block_hashes": hashes,
        "parent_block_hash": None,
        "token_ids": list(tokens),
        "block_size": 16,
        **more,
    }
    return json.dumps({"t": NOON + t, "topic": "", "endpoint": "0", "seq": seq, "batch": [NOON + t, [event], 0]}) + "\n"


# -- real recordings, loaded once a process -------------------------------------------------------------------------------------


@functools.cache
def loaded(*paths: Path) -> tuple[Store, tuple[FileResult, ...]]:
    """Return a store with one bundle or several files. Read it only."""
    store = Store()
    return store, tuple(load(store, paths))


@functools.cache
def judged(*paths: Path) -> Incident:
    """Return what `weaklink analyze` shows of these paths."""
    store, results = loaded(*paths)
    return Incident(version("weaklink"), tuple(_file(result) for result in results), attribution_for(store))


def recorded(folder: Path) -> list[str]:
    """Return the names of the recordings in a folder: each says of which capture it is."""
    found = {path.name: path / "manifest.toml" for path in folder.iterdir()}
    return sorted(name for name, file in found.items() if file.exists() and "\ncapture = " in file.read_text())
