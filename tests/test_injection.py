"""Names and lines that want to be markup: no page and no report lets them."""

import json
from pathlib import Path
from typing import Final

import pytest
from recordings import NOON
from streamlit.testing.v1 import AppTest
from ui.test_pages import PAGE_NAMES, html, opened

from app.incident.kept import Asked
from app.ingest import load
from app.reporting import report, write
from app.store import Store

EVIL: Final = "<script>alert(1)</script>"
IMAGE: Final = "<img src=x onerror=alert(2)>"
FORMULA: Final = "=HYPERLINK(1)"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A server whose model, engine, arguments and log lines are markup."""
    folder = tmp_path_factory.mktemp("evil") / "<b>bundle"
    folder.mkdir()
    lines = []
    for at in range(0, 120, 2):
        labels = f'engine="{FORMULA}",model_name="{EVIL}"'
        text = "".join(
            f"vllm:{name}{{{labels}}} {at * factor}\n"
            for name, factor in (
                ("time_to_first_token_seconds_sum", 2.0), ("time_to_first_token_seconds_count", 1), ("request_queue_time_seconds_sum", 1.5),
                ("request_queue_time_seconds_count", 1), ("e2e_request_latency_seconds_sum", 4.0), ("e2e_request_latency_seconds_count", 1),
                ("request_prefill_time_seconds_sum", 0.5), ("request_prefill_time_seconds_count", 1), ("request_decode_time_seconds_sum", 2.0),
                ("request_decode_time_seconds_count", 1), ("generation_tokens_total", 100), ("prompt_tokens_total", 200),
            )
        ) + f"vllm:num_requests_running{{{labels}}} 4\nvllm:num_requests_waiting{{{labels}}} 9\n"  # fmt: skip
        lines.append(json.dumps({"t": NOON + at, "url": "http://127.0.0.1:8000/metrics", "dur": 0.01, "text": text}))
    (folder / "metrics.jsonl").write_text("\n".join(lines))
    (folder / "server.log").write_text(
        f"INFO 11-29 12:00:10 [api_server.py:1] vLLM API server version 0.24.0{IMAGE}\n"
        f"INFO 11-29 12:00:11 [utils.py:1] non-default args: {{'model': '{EVIL}', 'max_num_seqs': 4, 'served_model_name': ['{IMAGE}']}}\n"
        f"ERROR 11-29 12:00:20 [core.py:1] EngineCore failed to start. {EVIL}{IMAGE}\n"
        "INFO 11-29 12:00:30 [loggers.py:1] Engine 000: Avg prompt throughput: 1.0 tokens/s, Avg generation throughput: 5.0 tokens/s, "
        "Running: 4 reqs, Waiting: 9 reqs, GPU KV cache usage: 1.0%, Prefix cache hit rate: 0.0%\n"
    )
    held = Store()
    assert any(one.added for one in load(held, [folder]))
    return held


def harmless(text: str) -> None:
    lowered = text.lower()
    assert "<script>alert" not in lowered
    assert "<img src=x" not in lowered
    assert "<b>bundle" not in lowered


def drawn(app: AppTest) -> str:
    """Return what reaches the browser as markup: raw elements, and markdown that may hold HTML."""
    return html(app) + "".join(one.value for one in app.markdown if one.allow_html)


@pytest.mark.parametrize("page", PAGE_NAMES)
def test_no_page_lets_a_name_be_markup(store: Store, page: str):
    harmless(drawn(opened(page, store)))


@pytest.mark.parametrize("kind", ["html", "md"])
def test_no_report_does(store: Store, kind: str, tmp_path: Path):
    results = [{"name": f"{EVIL}.log", "format": "vllm_log", "lines": 1, "rejected": 0}]
    plain = report(store, Asked(title=IMAGE, note=EVIL), results=results, redact=False).plain
    for path in write(plain, kind, tmp_path / f"r.{kind}"):
        text = path.read_text()
        if kind == "html":
            harmless(text)
            assert "&lt;script&gt;alert(1)" in text  # it is there, as text
        else:
            assert "<script>alert" not in text.replace("`", "").lower() or "`" in text
