"""Who held a request: by hand-made neighbours whose effect is known, and refused where it is not."""

import math
from typing import Any

import numpy as np
import pytest
from recordings import NOON

from analyzers.beside import Gauges, beside
from analyzers.model import Stage

COLUMNS = (
    "arrival_ts",
    "frontend_s",
    "queue_s",
    "prefill_s",
    "decode_s",
    "output_s",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
)


def requests(*rows: tuple[float, ...]) -> dict[str, Any]:
    """Columns of requests: arrival (seconds after noon), frontend, queue, prefill, decode, output, prompt, cached, output tokens."""
    columns = dict(zip(COLUMNS, np.array(rows, dtype=float).T, strict=True))
    columns["arrival_ts"] = columns["arrival_ts"] + NOON
    columns["end_ts"] = columns["arrival_ts"] + sum(columns[name] for name in COLUMNS[1:6])
    return columns


def gauges(running: float = 1.0, usage: float = 0.1, cap: float = math.nan, preemptions: float = 0.0) -> Gauges:
    ts = NOON + np.arange(30.0)
    return Gauges(ts, *(np.full(30, value) for value in (running, 2.0, usage, preemptions)), cap=cap)


SLOW = (1.0, 0.0, 4.0, 0.1, 2.0, 0.0, 300, 0, 50)
LONG = [(0.5 + 0.01 * at, 0.0, 0.5 + at, 1.0, 1.0, 0.0, 12_000, 0, 10) for at in range(4)]  # in prefill from 1 to 5
SHORT = (0.9, 0.0, 3.0, 0.1, 1.0, 0.0, 100, 0, 10)


def stage(found: Any, name: Stage) -> Any:
    return next(one for one in found.held if one.stage is name)


def test_long_prompts_ahead_are_named_with_their_span():
    found = stage(beside(requests(SLOW, *LONG, SHORT), 0, gauges()), Stage.QUEUE)
    assert (found.link, found.culprits) == ("prefill_backlog", (1, 2, 3))  # the fewest that hold most of the tokens
    assert found.says.startswith("behind 3 prompts of 12,000 tokens that arrived 0.5 s before it")
    assert found.span == pytest.approx((NOON + 1.0, NOON + 4.03), abs=0.05)


def test_cached_tokens_hold_nobody():
    cached = [(*one[:6], 12_000, 12_000, 10) for one in LONG]
    found = stage(beside(requests(SLOW, *cached, SHORT), 0, gauges()), Stage.QUEUE)
    assert found.says.startswith("behind a prompt of 100 tokens")


@pytest.mark.parametrize(
    ("seen", "link", "word"),
    [
        (gauges(running=16, cap=16), "slots", "all 16 sequence slots were taken"),
        (gauges(usage=0.99), "kv_eviction", "KV blocks were short"),
        (gauges(running=16, usage=0.99, cap=16), "slots", "all 16"),  # in the scheduler's own order
        (gauges(preemptions=1.0), "kv_eviction", "KV blocks were short"),
    ],
)
def test_the_gauges_of_the_wait_come_before_prompts(seen: Gauges, link: str, word: str):
    found = stage(beside(requests(SLOW, *LONG), 0, seen), Stage.QUEUE)
    assert found.link == link
    assert word in found.says


def test_what_the_records_do_not_show_is_refused():
    alone = stage(beside(requests(SLOW, SHORT), 0), Stage.QUEUE)
    assert (alone.link, alone.culprits) == (None, ())
    assert "not told by these records; gauges of that moment would tell slots from KV blocks" in alone.says
    unknown = beside(requests((1.0, math.nan, math.nan, math.nan, math.nan, math.nan, 300, 0, 50), *LONG), 0)
    assert all(one.says == "not recorded" for one in unknown.held if one.stage in {Stage.QUEUE, Stage.PREFILL, Stage.DECODE})
    assert unknown.worst is None


def test_a_decode_beside_prompts_is_stretched_by_what_its_tokens_show():
    runner = (0.0, 0.0, 0.0, 0.1, 10.0, 0.0, 100, 0, 60)
    prompts = [(2.0, 0.0, 0.0, 1.0, 1.0, 0.0, 8000, 0, 10)]
    usual, slow = np.arange(0.1, 2.0, 0.1), np.arange(2.25, 3.01, 0.25)
    tokens = NOON + np.concatenate([usual, slow, np.arange(3.1, 10.1, 0.1)])
    found = beside(requests(runner, *prompts), 0, tokens=tokens)
    assert stage(found, Stage.DECODE).link == "prefill_backlog"
    assert found.prompts == ((NOON + 2.0, NOON + 3.0, 8000.0),)
    assert float(stage(found, Stage.DECODE).says.split(" s of it")[0]) == pytest.approx(0.65, abs=0.15)
    silent = stage(beside(requests(runner, *prompts), 0), Stage.DECODE)
    assert (silent.link, silent.says) == (None, "prompts of others were computed in 10 % of it")  # how long they took: not known


def test_a_hole_between_tokens_is_marked():
    runner = (0.0, 0.0, 0.0, 0.1, 10.0, 0.0, 100, 0, 60)
    tokens = NOON + np.concatenate([np.arange(0.1, 4.0, 0.1), np.arange(6.0, 10.0, 0.1)])
    assert beside(requests(runner), 0, tokens=tokens).holes == (pytest.approx((NOON + 3.9, NOON + 6.0), abs=1e-3),)


def test_preemptions_are_counted_and_nobody_is_accused():
    runner = (0.0, 0.0, 0.0, 0.1, 10.0, 0.0, 100, 0, 60)
    found = stage(beside(requests(runner), 0, gauges(preemptions=1.0)), Stage.DECODE)
    assert found.link == "kv_eviction"
    assert "preempted 10 times meanwhile; which requests, vLLM does not say" in found.says


def test_one_request_alone_is_held_by_nobody():
    found = beside(requests((0.0, 0.001, 0.0, 0.05, 1.0, 0.0, 100, 0, 60)), 0)
    assert found.worst is None
    assert stage(found, Stage.PREFILL).says == "its own 100 tokens"
