"""Tokens written since the prefix cache was last empty: what "nothing was evicted" rests on."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from recordings import NOON, scrapes, series, stored

from app.pipeline import window_of

GENERATED = series("generation_tokens_total")
COMPUTED = series("prompt_tokens_by_source_total", source="local_compute")
RUNNING = series("num_requests_running")


def recorded(folder: Path, *, first: int = 0, resets: tuple[int, ...] = (), offset: float = 0.25) -> float:
    """Tokens that the window's engine wrote. 1000 computed and 100 generated a second on top of 50,000 before; scrapes from `first` on."""
    rows = [
        (t + offset, {GENERATED: 10_000 + 100 * (t + offset), COMPUTED: 40_000 + 1000 * (t + offset), RUNNING: 2})
        for t in range(first, 61)
    ]
    scrapes(folder / "metrics.jsonl", rows)
    lines = [f"(EngineCore pid=1) INFO {stamp(t)} [block_pool.py:905] Successfully reset prefix cache\n" for t in resets]
    (folder / "server.log").write_text(
        f"(APIServer pid=1) INFO {stamp(-30)} [api_server.py:1] vLLM API server version 0.33.0\n" + "".join(lines)
    )
    (engine,) = window_of(stored(folder)).engines
    return float(engine.facts["written_tokens"])


def stamp(t: int) -> str:
    return f"{datetime.fromtimestamp(NOON + t, UTC):%m-%d %H:%M:%S}"


def test_without_a_reset_all_counts_since_the_process_began(tmp_path):
    assert recorded(tmp_path) == pytest.approx(50_000 + 1100 * 60.25)


def test_what_was_written_before_a_reset_does_not_count(tmp_path):
    # no scrape before the line, the first one 1.25 s after it: at most 1.25 s of the fastest writing lie between
    assert recorded(tmp_path, first=10, resets=(-20, 9)) == pytest.approx(1100 * 51.25, rel=0.01)


def test_a_reset_that_no_scrape_followed_soon_says_nothing(tmp_path):
    assert recorded(tmp_path, first=20, resets=(5,)) == pytest.approx(50_000 + 1100 * 60.25)


def test_a_reset_in_the_window_does_not_say_that_nothing_was_evicted_before_it(tmp_path):
    assert recorded(tmp_path, resets=(30,)) == pytest.approx(50_000 + 1100 * 60.25)


def test_a_process_that_began_after_a_reset_counts_from_its_own_beginning(tmp_path):
    # 900,000 tokens before the reset at 2 s; at 30 s a new process begins at 0
    def tokens(t: int) -> float:
        return 900_000 + 1000 * t if t < 30 else 1000 * (t - 30)

    rows = [(t + 0.25, {GENERATED: tokens(t) / 10, COMPUTED: tokens(t), RUNNING: 2}) for t in range(91)]
    scrapes(tmp_path / "metrics.jsonl", rows)
    first = f"(APIServer pid=1) INFO {stamp(-30)} [api_server.py:1] vLLM API server version 0.33.0\n"
    (tmp_path / "server.log").write_text(
        f"{first}(EngineCore pid=1) INFO {stamp(2)} [block_pool.py:905] Successfully reset prefix cache\n"
    )
    (engine,) = window_of(stored(tmp_path), NOON + 40, NOON + 91).engines
    assert engine.facts["written_tokens"] == pytest.approx(1.1 * 1000 * 60)
