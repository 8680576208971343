"""Level `state`: a few stats lines or one scrape name a link without seconds, and say what would give them."""

import numpy as np
import pytest

from analyzers.attribute import attribute
from analyzers.model import TARGETS, Engine, Level, Target
from analyzers.state import MEASURE, describe, targets

from .engines import FACTS, balancedness, event, stats_of, window_of


def engine(facts: dict | None = None, **columns) -> Engine:
    """Return an engine of which only stats lines are known."""
    return Engine("10.0.0.1:8000", "0", stat=stats_of(**columns), facts={"max_num_seqs": 256, **(facts or {})})


def verdicts(state: Engine) -> dict[str, tuple[str, str | None]]:
    return {name: (t.verdict, t.limiting) for name, t in targets(state).items()}


def evidence(target: Target, link: str) -> str:
    return " ".join(target.part(link).evidence)


def test_nothing_at_all_is_undetermined_and_asks_for_a_log_or_a_scrape():
    for target in targets(Engine("", "")).values():
        assert (target.verdict, target.limiting) == ("undetermined", None)
        assert any("no stats line and no gauge was found" in r.what and "/metrics" in r.measure for r in target.cannot_determine)


def test_no_state_has_seconds_and_every_state_says_how_to_get_them():
    result = attribute(window_of(engine(running=256, waiting=40, kv_usage_ratio=0.5, generation_tokens_per_s=900.0)))
    assert result.level == Level.STATE
    for name, target in result.targets.items():
        assert target.measured_s is None
        assert set(target.stages) == set(TARGETS[name])
        assert all(p.seconds is None and p.range_s is None for p in target.parts)
        assert any(r.what == "seconds of any link" and r.measure == MEASURE for r in target.cannot_determine)
    assert "two scrapes of /metrics" in MEASURE


# -- what is named -------------------------------------------------------------------------------------------------------------
def test_waiting_at_the_cap_with_blocks_free_is_slots():
    state = engine(running=[256, 256, 256], waiting=[10, 20, 30], kv_usage_ratio=0.4, generation_tokens_per_s=3000.0)
    assert verdicts(state) == {"ttft": ("limited", "slots"), "tpot": ("undetermined", None), "e2e": ("limited", "slots")}
    assert "max_num_seqs (256) with up to 30 waiting" in evidence(targets(state)["ttft"], "slots")
    assert targets(state)["ttft"].part("slots").status == "limiting"


def test_a_minority_of_lines_at_the_cap_is_not_named():
    state = engine(running=[256, 100, 100], waiting=[10, 0, 0], kv_usage_ratio=0.4, generation_tokens_per_s=[900, 100, 900])
    assert verdicts(state)["ttft"] == ("undetermined", None)


def test_waiting_below_the_cap_is_not_slots():
    state = engine(running=[255, 254, 255], waiting=[10, 20, 30], kv_usage_ratio=0.4, generation_tokens_per_s=[900, 100, 900])
    assert verdicts(state)["ttft"] == ("undetermined", None)


def test_without_the_cap_slots_cannot_be_named():
    state = engine({"max_num_seqs": None}, running=256, waiting=10, kv_usage_ratio=0.4, generation_tokens_per_s=900.0)
    assert verdicts(state)["ttft"] == ("undetermined", None)


def test_waiting_with_blocks_used_up_below_the_cap_is_kv_and_preemptions_are_asked_for():
    state = engine(running=[40, 41], waiting=[50, 60], kv_usage_ratio=[0.97, 0.99], generation_tokens_per_s=900.0)
    assert verdicts(state) == {
        "ttft": ("limited", "kv_eviction"),
        "tpot": ("undetermined", None),
        "e2e": ("limited", "kv_eviction"),
    }
    target = targets(state)["ttft"]
    assert "use 97.0 to 99.0 % with 50 to 60 waiting and 40 to 41 running, below max_num_seqs (256)" in evidence(
        target, "kv_eviction"
    )
    assert any("vllm:num_preemptions_total" in r.measure for r in target.cannot_determine)


def test_blocks_used_up_at_the_cap_are_not_told_from_the_cap():
    state = engine(running=256, waiting=10, kv_usage_ratio=0.99, generation_tokens_per_s=900.0)
    assert verdicts(state)["ttft"] == ("undetermined", None)


def test_a_collapse_of_generation_before_prompts_are_credited_is_a_long_prefill():
    # 10 s at 3 tokens/s with 5 running, then 40,000 tokens/s x 10 s of prompts credited and 300 tokens/s again
    state = engine(running=[5, 5, 5], generation_tokens_per_s=[300, 3, 300], prompt_tokens_per_s=[0, 0, 4000])
    assert {name: limiting for name, (_, limiting) in verdicts(state).items()} == dict.fromkeys(TARGETS, "prefill_backlog")
    said = evidence(targets(state)["tpot"], "prefill_backlog")
    assert "generation fell to 3.0 tokens/s with 5 running and was 300.0 after" in said
    assert "40000 prompt tokens are credited" in said
    assert "does not mean that none was running" in said


def test_prompts_at_a_steady_rate_with_others_waiting_are_a_backlog():
    state = engine(
        running=20,
        waiting=[5, 8, 9, 12],
        kv_usage_ratio=0.5,
        prompt_tokens_per_s=[20_000, 20_100, 19_900, 20_000],
        generation_tokens_per_s=500.0,
    )
    assert verdicts(state)["ttft"] == ("limited", "prefill_backlog")
    assert "prompt throughput stands at 20000 tokens/s with up to 12 waiting" in evidence(
        targets(state)["ttft"], "prefill_backlog"
    )


def test_the_strongest_sign_is_named():
    # at the cap in one line of three, short of blocks in two
    state = engine(running=[256, 40, 40], waiting=10, kv_usage_ratio=[0.4, 0.99, 0.99], generation_tokens_per_s=500.0)
    assert verdicts(state)["ttft"] == ("limited", "kv_eviction")


# -- calm ------------------------------------------------------------------------------------------------------------------------
def test_steady_tokens_without_waiting_are_healthy_and_the_batch_is_the_load():
    # one request at 40 tokens/s: 25 ms a token
    state = engine(running=1, generation_tokens_per_s=[40, 40, 40], kv_usage_ratio=[0.10, 0.11, 0.12])
    for target in targets(state).values():
        assert (target.verdict, target.load) == ("healthy", "decode_batch")
    text = "\n".join(describe(state))
    assert "one request decodes steadily at 40 tokens/s (25.0 ms a token each)" in text
    assert "latency is output length" in text
    assert "KV use rises with the sequences' own growth" in text


@pytest.mark.parametrize(
    "columns",
    [
        {"running": [4, 4], "generation_tokens_per_s": 100.0},  # two lines
        {"running": [4, 4, 4], "generation_tokens_per_s": [100, 10, 100]},  # unsteady
        {"running": [4, 4, 4], "generation_tokens_per_s": 0.0},
        {"running": [4, 4, 4], "generation_tokens_per_s": 100.0, "kv_usage_ratio": 0.9},
        {"running": [4, 4, 4], "generation_tokens_per_s": 100.0, "waiting": [0, 1, 0]},
    ],
)
def test_anything_else_is_not_called_healthy(columns: dict):
    assert verdicts(engine(**columns))["e2e"][0] == "undetermined"


def test_experts_that_nothing_measures_are_not_called_healthy():
    state = engine({"expert_parallel": True}, running=4, generation_tokens_per_s=[100, 100, 100])
    assert verdicts(state)["e2e"] == ("undetermined", None)
    assert any("log_balancedness" in r.measure for r in targets(state)["e2e"].cannot_determine)


def test_a_balancedness_line_is_never_named_from_a_state():
    state = Engine(
        "",
        "",
        version="0.33.0",
        stat=stats_of(running=[4, 4, 4], generation_tokens_per_s=100.0),
        facts={**FACTS, "expert_parallel": True},
        event=(balancedness(4096, 1.8),),
    )
    assert all(limiting is None for _, limiting in verdicts(state).values())


# -- one scrape, text -----------------------------------------------------------------------------------------------------------------
def test_one_scrape_of_gauges_is_a_state():
    gauges = {"ts": 0.0, "running": 256.0, "waiting": 12.0, "kv_usage_ratio": 0.3}
    state = Engine("", "", facts={"max_num_seqs": 256, "last_gauges": gauges})
    assert verdicts(state)["ttft"] == ("limited", "slots")


def test_stats_lines_are_better_than_one_scrape():
    gauges = {"ts": 0.0, "running": 256.0, "waiting": 12.0, "kv_usage_ratio": 0.3}
    state = engine({"last_gauges": gauges}, running=4, generation_tokens_per_s=[100, 100, 100])
    assert verdicts(state)["ttft"] == ("healthy", None)


def test_a_hit_rate_that_rises_without_prompts_is_said_to_be_preemption():
    state = engine(
        running=30,
        waiting=5,
        kv_usage_ratio=0.99,
        generation_tokens_per_s=100.0,
        prompt_tokens_per_s=[50, 0, 0, 0],
        prefix_hit_ratio=[0.1, 0.2, 0.3, 0.4],
    )
    assert any("rises from 10.0 to 40.0 %" in line and "says nothing of reuse" in line for line in describe(state))


def test_a_state_without_lines_has_no_words():
    assert describe(Engine("", "", stat=stats_of(running=np.zeros(0)))) == []
    assert describe(Engine("", "", stat={}, event=(event("start"),))) == []
