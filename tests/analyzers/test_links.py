"""Each link's row: which cells it owns, what it says it saw, and when it says that it does not apply."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from analyzers import api_server
from analyzers.attribute import adjust
from analyzers.books import Books, books
from analyzers.links import (
    CHAIN,
    SECTIONS,
    by_name,
    decode_batch,
    engine_stall,
    frontend,
    kv_eviction,
    kv_transfer,
    moe_imbalance,
    output,
    prefill_backlog,
    prefix_cache_miss,
    sections,
    slots,
    speculation,
    tries,
)
from analyzers.model import Engine, Row, Stage

from .engines import MOE, NOON, A, B, C, balancedness, cells, engine_of, event, iteration, model_of

EXPERTS = {"expert_parallel": True, "tensor_parallel": 2, "shape": MOE, "device_name": "NVIDIA H100 80GB HBM3"}


def of(engine: Engine) -> Books:
    accounts = books(engine, model=model_of())
    assert accounts is not None
    return adjust(accounts)


def row(link: Any, **more: Any) -> Row:
    """Return the row of a link of a steady engine."""
    return link.row(of(engine_of(**more)))


# -- the chain -----------------------------------------------------------------------------------------------------------------
def test_every_link_explains_itself_and_what_to_try_with_its_cost():
    for module in CHAIN:
        assert tuple(sections(module)) == SECTIONS
        assert all(sections(module).values())
        assert all(change and cost for change, cost in tries(module)), module.LINK.name


def test_a_flag_that_no_version_here_has_is_not_advised():
    flags = ("--kv-offloading-size", "--max-num-seqs", "--kv-cache-dtype")

    def advised(*versions: str) -> list[bool]:
        said = " ".join(change for change, _ in tries(kv_eviction, versions))
        return [flag in said for flag in flags]

    assert advised() == advised("?") == advised("0.24.0") == advised("0.9.2", "0.24.0") == [True, True, True]
    assert advised("0.9.2") == [False, True, True]
    assert tries(output, ["0.9.2"]) == tries(output)  # fewer logprobs help there, too, beside a flag to come


def test_a_link_is_found_by_its_name_and_an_unknown_one_is_not():
    assert by_name("slots") is slots
    with pytest.raises(KeyError):
        by_name("gremlins")


def test_an_engine_without_faults_has_no_fault_cells():
    accounts = of(engine_of(swing=0.1))
    for module in CHAIN:
        found = module.row(accounts)
        fault = found.cells if found.fault is None and not module.LINK.load else found.fault
        assert sum((fault or {}).values()) == pytest.approx(0.0, abs=1e-9), module.LINK.name


# -- frontend, output ----------------------------------------------------------------------------------------------------------
def test_the_front_end_owns_what_exceeds_nominal_and_dwell():
    accounts = of(engine_of(frontend_s=0.112, swing=0.1))
    assert cells(frontend.row(accounts)) == pytest.approx({Stage.FRONTEND: 0.112 - 0.012 - accounts.dwell_s})


def test_output_owns_what_exceeds_2_ms_and_nothing_where_the_residue_is_negative():
    assert cells(row(output, output_s=0.052)) == pytest.approx({Stage.OUTPUT: 0.050})
    assert cells(row(output, output_s=-0.01)) == {}
    assert row(output, output_s=0.012).fact == "100 µs a token"  # 12 ms over 120 tokens


def test_cpu_of_the_api_server_is_that_of_its_busiest_quarter():
    # 45 s at 0.2 cores, 15 at 0.95
    busy = np.where(np.arange(60) < 45, 0.2, 0.95)
    engine = engine_of(columns={"process_cpu_s": busy})
    assert api_server.cpu_cores(engine) == pytest.approx(0.95)
    assert row(frontend, columns={"process_cpu_s": busy}).pressure == pytest.approx(0.95)
    assert any("0.95 cores in its busiest quarter" in text for text in api_server.evidence(engine))


@pytest.mark.parametrize(
    "more", [{"facts": {"api_servers": 2}}, {"columns": {"process_cpu_s": np.nan}}, {"columns": {"timed": False}}]
)
def test_cpu_is_unknown_with_several_servers_without_the_series_or_without_a_clock(more: dict):
    assert api_server.cpu_cores(engine_of(**more)) is None
    assert row(frontend, **more).pressure is None


def scraped(duration_s: Any, ok: Any = True) -> dict[str, Any]:
    n = 60
    return {
        "ts": NOON + np.arange(n),
        "duration_s": np.broadcast_to(np.asarray(duration_s, float), (n,)),
        "ok": np.broadcast_to(np.asarray(ok, bool), (n,)),
        "timed": np.ones(n, bool),
    }


@pytest.mark.parametrize(("cpu", "scrape_s", "saturated"), [(0.95, 0.8, True), (0.95, 0.05, False), (0.5, 0.8, False)])
def test_the_api_server_is_saturated_when_its_core_is_and_scrapes_are_slow(cpu: float, scrape_s: float, saturated: bool):
    assert api_server.saturated(engine_of(columns={"process_cpu_s": cpu}, scrape=scraped(scrape_s))) is saturated


def test_the_api_server_is_saturated_when_its_core_is_and_scrapes_fail():
    k = np.arange(60)
    failing = scraped(np.where(k % 3, 0.05, np.nan), k % 3 > 0)
    assert api_server.saturated(engine_of(columns={"process_cpu_s": 0.95}, scrape=failing))


def test_scrapes_that_failed_before_the_first_success_are_no_evidence():
    k = np.arange(60)
    said = " ".join(api_server.evidence(engine_of(scrape=scraped(0.25, (k > 9) & (k != 30) & (k != 31)))))
    assert "a scrape took 250 ms on average, 2 failed between the first and the last success" in said


def test_the_http_layer_beyond_e2e_has_a_line_of_its_own():
    engine = engine_of()
    e2e = engine.total["e2e_s"] / engine.total["e2e_n"]
    said = " ".join(api_server.evidence(engine_of(total={"http_s": 100 * (e2e + 0.05), "http_n": 100.0})))
    assert "HTTP layer beyond the measured E2E: 50 ms a request (in no stage)" in said


# -- slots, blocks, backlog --------------------------------------------------------------------------------------------------------
def test_slots_own_the_queue_at_the_cap_and_say_how_often():
    found = row(slots, swing=0.05, waiting=1.0, facts={"max_num_seqs": 6})
    assert cells(found) == pytest.approx({Stage.QUEUE: 0.2}, rel=0.01)
    assert "100 % of the waiting happened with running at the cap of 6 (engine argument), KV use then 30 %" in found.evidence
    assert found.pressure == 1.0


def test_far_from_the_cap_slots_show_their_pressure_and_own_nothing():
    found = row(slots, swing=0.0, facts={"max_num_seqs": 67})
    assert cells(found) == {}
    assert found.pressure == pytest.approx(6.7 / 67, rel=0.02)
    assert found.fact == "7 of 67"


def test_blocks_own_the_queue_while_they_are_short():
    found = row(kv_eviction, swing=0.1, waiting=1.0, usage=0.98)
    assert cells(found) == pytest.approx({Stage.QUEUE: 0.2}, rel=0.01)
    assert found.fact == "98 % of blocks"
    assert any("100 % of the waiting with KV blocks short, up to 1 requests" in text for text in found.evidence)
    assert "no preemptions" in found.evidence


def test_blocks_own_waiting_again_and_computing_again_after_preemptions():
    # 60 preemptions x (600 + 120 / 2) tokens x half: 19,800 x 20 µs and 60 steps of 10 ms; no hits, so nothing was evicted
    accounts = of(engine_of(swing=0.0, waiting=0.0, columns={"preemptions": 1.0}))
    recompute = (60 * A + 19_800 * B) / 300
    assert accounts.decode["recompute"] == pytest.approx(recompute)
    # and others decoded beside those tokens: their share of all 199,800 computed ones
    beside = accounts.decode["beside"]
    assert beside == pytest.approx((beside + accounts.decode["prompts"]) * 19_800 / (180_000 + 19_800))
    assert kv_eviction.row(accounts).cells[Stage.DECODE] == pytest.approx(recompute + beside)
    # 1 waiting for 60 s, of whom first waits were none: 0.2 s each
    again = engine_of(swing=0.0, waiting=1.0, columns={"preemptions": 1.0, "queue_s": 0.0})
    again = of(replace(again, total={**again.total, "decode_s": again.total["decode_s"] + 60.0, "e2e_s": again.total["e2e_s"] + 60.0}))
    assert kv_eviction.row(again).cells[Stage.DECODE] == pytest.approx(0.2 + again.decode["recompute"] + again.decode["beside"])


def test_evicted_prefixes_own_their_share_of_all_that_prompts_cost():
    # half of what was computed had been computed before: 5625 blocks x 16 = 90,000 of 180,000 tokens
    kv = {
        "stored_blocks": 11_250.0,
        "again_blocks": 5625.0,
        "elsewhere_blocks": 0.0,
        "block_size": 16.0,
        "gaps": 0.0,
        "salts": 0.0,
    }
    accounts = of(engine_of(swing=0.0, waiting=1.0, prefill_s=0.1, kv=kv))
    found, backlog = kv_eviction.row(accounts), prefill_backlog.row(accounts)
    assert found.cells[Stage.QUEUE] == pytest.approx(0.1)
    assert found.cells[Stage.DECODE] == pytest.approx(0.5 * accounts.decode["prompts"])
    assert found.cells[Stage.PREFILL] == pytest.approx(300 * B + 0.5 * accounts.prefill["others"])
    assert backlog.cells[Stage.QUEUE] == pytest.approx(0.1)
    assert backlog.cells[Stage.DECODE] == pytest.approx(0.5 * accounts.decode["prompts"])


def test_prefixes_on_other_engines_own_the_same_share_as_a_miss():
    kv = {
        "stored_blocks": 11_250.0,
        "again_blocks": 0.0,
        "elsewhere_blocks": 5625.0,
        "block_size": 16.0,
        "gaps": 0.0,
        "salts": 0.0,
    }
    accounts = of(engine_of(swing=0.0, waiting=1.0, prefill_s=0.1, kv=kv))
    assert prefix_cache_miss.row(accounts).cells[Stage.QUEUE] == pytest.approx(0.1)
    assert kv_eviction.row(accounts).cells[Stage.QUEUE] == 0.0


def test_of_the_backlog_only_the_queue_behind_a_full_budget_is_a_fault():
    found = row(prefill_backlog, swing=0.0, waiting=1.0, prefill_s=0.1)
    assert found.fault == pytest.approx({Stage.QUEUE: 0.2 - 0.0055}, abs=2e-4)  # half of a step of 11 ms is the step in flight
    assert found.cells[Stage.QUEUE] == pytest.approx(0.2)
    assert found.cells[Stage.PREFILL] == pytest.approx(0.1 - 0.032)


def test_the_budget_is_full_in_the_share_of_step_time_that_filled_it():
    # one step in ten computes 8192 tokens: 0.174 s beside nine of 10.5 ms
    k = np.arange(400)
    prompt = np.where(k % 10 == 0, 8192.0, 0.0)
    accounts = of(engine_of(step=iteration(400, A + B * prompt + C * 10, prompt=prompt, decoding=10.0)))
    took = A + B * 8192 + C * 10
    assert prefill_backlog.budget_full(accounts) == pytest.approx(took / (took + 9 * (A + C * 10)))


def test_the_batch_owns_what_other_sequences_add_and_is_no_fault():
    found = row(decode_batch, swing=0.0)
    assert cells(found) == pytest.approx(
        {Stage.DECODE: 119 * C * (6.5367 - 1)}, rel=1e-3
    )  # 6.54 at once, as the fixed point has it
    assert found.fault == {}
    assert found.fact == "7 at once"


# -- transfers -----------------------------------------------------------------------------------------------------------------------
def test_without_a_connector_there_are_no_transfers():
    found = row(kv_transfer, facts={"connector": False})
    assert (found.used, found.fact, cells(found)) == (False, "no connector", {})


def test_a_connector_without_traffic_owns_nothing():
    found = row(kv_transfer, facts={"connector": True})
    assert (found.used, found.known, found.fact, cells(found)) == (True, True, "no transfers seen", {})


def test_deferred_waiting_is_the_transfers_and_the_wire_is_evidence():
    # half of 0.2 s of queue is deferred; 300 transfers of 5 ms
    found = row(
        kv_transfer,
        swing=0.0,
        waiting=1.0,
        columns={
            "deferred": 0.5,
            "deferred_before": 0.5,
            "nixl_transfer_s": 0.025,
            "nixl_transfer_n": 5.0,
            "nixl_post_s": 0.005,
            "nixl_bytes": 5e8,
        },
    )
    assert cells(found) == pytest.approx({Stage.QUEUE: 0.1})
    assert "300 transfers, 5.0 ms each on the wire (+ 1.0 ms post), 100 MB each" in found.evidence
    assert "what loads cost running decodes is unknown" in found.conditions


def test_without_the_reasons_of_waiting_transfers_could_be_all_of_the_queue():
    none = {"deferred": np.nan, "deferred_before": np.nan}
    found = row(kv_transfer, swing=0.0, waiting=1.0, columns={**none, "offload_load_s": 0.1})
    assert not found.known
    assert found.bound == pytest.approx({Stage.QUEUE: 0.2})


# -- experts -------------------------------------------------------------------------------------------------------------------------
def experts(*lines: Any, **more: Any) -> Engine:
    return engine_of(**{"facts": EXPERTS, "event": lines, "version": "0.33.0", **more})


@pytest.mark.parametrize(
    ("version", "right"),
    [("0.33.0", True), ("0.34.1", True), ("1.0.0", True), ("0.32.9", False), ("0.24.0", False), (None, False), ("dev", False)],
)
def test_the_line_is_over_ranks_from_0_33(version: str | None, right: bool):
    assert moe_imbalance.right_axis(Engine("", "", version=version)) is right


def test_the_busiest_rank_is_weighed_by_tokens_over_lines_of_large_steps():
    # 4096 tokens at 1.8 and 1024 at 1.3; 500 tokens are too few: (4096 x 1.8 + 1024 x 1.3) / 5120 = 1.7
    busiest, count = moe_imbalance.iota(experts(balancedness(4096, 1.8), balancedness(1024, 1.3), balancedness(500, 2.0)))
    assert (busiest, count) == (pytest.approx(1.7), 2)


def test_a_large_step_is_longer_by_the_tokens_of_its_busiest_rank():
    # 48 layers x 2048 tokens x 8 x (0.9 - 0.5) x 2 x (3 x 2048 x 768) / (0.6 x 989e12); no expert is left unread by either
    extra = moe_imbalance.extra_s(experts(), np.array([2032.0]), np.array([16.0]), 1.8)
    assert extra is not None
    assert extra[0] == pytest.approx(48 * 2048 * 8 * 0.4 * 2 * (3 * 2048 * 768) / (0.6 * 989e12))
    assert extra[0] == pytest.approx(0.0050, abs=1e-4)


def test_a_decode_step_is_longer_by_the_weights_of_further_experts():
    # 16 tokens: an expert is left out with (1 - 8/128)^16 on a balanced rank, (1 - 8 x 0.9 x 2 / 128)^16 on the busiest
    extra = moe_imbalance.extra_s(experts(), np.array([0.0]), np.array([16.0]), 1.8)
    weights = 48 * 64 * ((1 - 0.0625) ** 16 - (1 - 0.1125) ** 16) * (3 * 2048 * 768) * 2 / 3.35e12
    tokens = 48 * 16 * 8 * 0.4 * 2 * (3 * 2048 * 768) / (0.6 * 989e12)
    assert extra is not None
    assert extra[0] == pytest.approx(weights + tokens)
    assert extra[0] == pytest.approx(0.0018, abs=1e-4)


def test_without_shape_or_device_there_is_no_excess():
    one = np.array([1.0])
    assert moe_imbalance.extra_s(experts(facts={**EXPERTS, "device_name": None}), one, one, 1.8) is None
    assert moe_imbalance.extra_s(experts(facts={**EXPERTS, "shape": {}}), one, one, 1.8) is None


def logged(iota: float) -> Books:
    """One step in eight computes 2032 tokens beside 16 decodes, each other decodes 16; three lines say how busy the busiest rank is."""
    k = np.arange(640)
    prompt = np.where(k % 8 == 0, 2032.0, 0.0)
    step = iteration(640, A + B * prompt + C * 16, prompt=prompt, decoding=16.0)
    return of(experts(*[balancedness(4096, iota)] * 3, step=step, swing=0.0, waiting=1.0, prefill_s=0.1))


def test_the_excess_is_moved_out_of_the_other_links():
    accounts, even = logged(1.8), logged(1.0)
    large, small = 0.0050 + 0.0, 0.0018
    step = {"large": A + B * 2032 + C * 16, "small": A + C * 16}
    of_decode = (large + 7 * small) / (step["large"] + 7 * step["small"])
    of_prompt = large / step["large"]
    assert moe_imbalance.shares(accounts) == (pytest.approx(of_decode, rel=0.02), pytest.approx(of_prompt, rel=0.02))
    found = moe_imbalance.row(accounts)
    assert found.cells[Stage.QUEUE] == pytest.approx(of_prompt * 0.2, rel=0.02)
    assert found.cells[Stage.PREFILL] == pytest.approx(of_prompt * 0.1, rel=0.02)
    assert found.cells[Stage.DECODE] == pytest.approx(of_decode * accounts.stages[Stage.DECODE], rel=0.02)
    # a column stays whole
    for before, after in ((even.decode, accounts.decode), (even.prefill, accounts.prefill), (even.queue, accounts.queue)):
        assert sum(after.values()) == pytest.approx(sum(before.values()))
    assert found.fact == "balancedness 0.56"


def test_balanced_ranks_cost_nothing():
    found = moe_imbalance.row(logged(1.04))
    assert (found.known, cells(found)) == (True, {})


# -- speculation ---------------------------------------------------------------------------------------------------------------------
def drafted(accepted: float) -> Books:
    """3 tokens are drafted in each of 100 drafts a second."""
    return of(
        engine_of(
            swing=0.0, facts={"speculative": True}, columns={"draft_n": 100.0, "draft_tokens": 300.0, "accepted_tokens": accepted}
        )
    )


def test_rejected_tokens_cost_what_computed_tokens_do():
    # 1 of 3 rejected: b x 1 x sequences in a step, of the mean step
    accounts = drafted(200.0)
    w = accounts.windows
    share = B * 1.0 * float(w.decode[w.busy].sum() / w.n[w.busy].sum()) / float(w.dt[w.busy].sum() / w.n[w.busy].sum())
    found = speculation.row(accounts)
    assert found.cells[Stage.DECODE] == pytest.approx(share * accounts.stages[Stage.DECODE])
    assert sum(accounts.decode.values()) == pytest.approx(accounts.stages[Stage.DECODE])
    assert found.fact == "3.00 tokens a step"  # 1 + 200 / 100
    assert "67 % of 18000 drafted tokens accepted" in found.evidence[0]


def test_with_all_drafts_accepted_nothing_was_for_nothing():
    assert cells(speculation.row(drafted(300.0))) == {}
    assert speculation.row(drafted(0.0)).pressure == 1.0


def test_without_drafts_speculation_is_not_used():
    assert row(speculation, facts={"speculative": False}).fact == "no draft model"
    assert row(speculation, facts={"speculative": None}).fact == "no drafts counted"
    assert not row(speculation, facts={"speculative": None}).used


# -- stalls ----------------------------------------------------------------------------------------------------------------------------
def test_lines_of_late_compilation_are_evidence_of_stalls():
    found = row(engine_stall, event=(event("jit", line=412), event("rearrange", line=977)))
    assert "2 log lines of late compilation or rearrangement, first at server.log:412" in found.evidence
    assert (found.fact, cells(found)) == ("none seen", {})
