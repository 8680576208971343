"""How sure a part is: the range holds it, is as wide as calibrated, and grows with what was not observed."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analyzers import ranges
from analyzers.attribute import adjust, attribute, target_of
from analyzers.books import Books, books
from analyzers.calibration import SPREAD
from analyzers.links import CHAIN
from analyzers.model import TARGETS, Engine, Level, Target

from .engines import engine_of, fleet, window_of

CAP = {"max_num_seqs": 6}


def at_cap(**more) -> Engine:
    """Running never below 6 of 6, one request waiting: 60 s of waiting over 300 requests, 0.2 s each."""
    return engine_of(swing=0.05, rate=5, waiting=1.0, facts=CAP, **more)


def judged(engine: Engine) -> tuple[Books, dict[str, Target]]:
    accounts = books(engine)
    assert accounts is not None
    rows = {m.LINK.name: m.row(adjust(accounts)) for m in CHAIN}
    return accounts, {name: target_of(name, adjust(accounts), rows) for name in TARGETS}


def widths(monkeypatch: pytest.MonkeyPatch, inactive: float, active: float) -> None:
    """Set the same calibrated half-widths for all."""
    table = {
        method: {level: dict.fromkeys(links, (inactive, 1 - active, 1 + active)) for level, links in levels.items()}
        for method, levels in SPREAD.items()
    }
    monkeypatch.setattr(ranges, "SPREAD", table)


def test_an_active_link_is_as_uncertain_as_calibrated_of_its_own_seconds(monkeypatch: pytest.MonkeyPatch):
    widths(monkeypatch, 0.01, 0.5)
    accounts, targets = judged(at_cap())
    span = ranges.of(accounts, targets, Level.METRICS)["e2e"]["slots"]
    # windows are exact: drawn again they give the same costs, and the calibrated half is all there is
    assert targets["e2e"].part("slots").seconds == pytest.approx(0.2, rel=0.01)
    assert span == pytest.approx((0.1, 0.3), rel=0.01)


def test_an_inactive_link_is_as_uncertain_as_calibrated_of_the_measured_value(monkeypatch: pytest.MonkeyPatch):
    widths(monkeypatch, 0.01, 0.5)
    accounts, targets = judged(at_cap())
    measured = targets["e2e"].measured_s
    assert ranges.of(accounts, targets, Level.METRICS)["e2e"]["engine_stall"] == pytest.approx((0.0, 0.01 * measured))


def test_the_width_is_that_of_the_level_and_the_link(monkeypatch: pytest.MonkeyPatch):
    table = {"metrics": {"slots": (0.0, 0.5, 1.5)}, "logs": {"slots": (0.0, 0.75, 1.25)}}
    monkeypatch.setattr(ranges, "SPREAD", {"books": table})
    accounts, targets = judged(at_cap())
    assert ranges.of(accounts, targets, Level.METRICS)["e2e"]["slots"] == pytest.approx((0.1, 0.3), rel=0.01)
    assert ranges.of(accounts, targets, Level.LOGS)["e2e"]["slots"] == pytest.approx((0.15, 0.25), rel=0.01)


def test_more_may_be_missing_from_a_part_than_be_too_much_in_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ranges, "SPREAD", {"books": {"metrics": {"slots": (0.0, 0.9, 3.0)}}})
    accounts, targets = judged(at_cap())
    assert ranges.of(accounts, targets, Level.METRICS)["e2e"]["slots"] == pytest.approx((0.18, 0.6), rel=0.01)


def test_a_part_of_the_twin_is_as_uncertain_as_the_twins_were(monkeypatch: pytest.MonkeyPatch):
    same = {"metrics": {"slots": (0.0, 0.5, 1.5)}}
    monkeypatch.setattr(ranges, "SPREAD", {"books": same, "twin": {"metrics": {"slots": (0.0, 0.9, 1.1)}}})
    accounts, targets = judged(at_cap())
    e2e = targets["e2e"]
    parts = tuple(replace(p, seconds=0.4) if p.link == "slots" else p for p in e2e.parts)
    spans = ranges.of(accounts, targets, Level.METRICS, {**targets, "e2e": replace(e2e, parts=parts)})
    assert spans["e2e"]["slots"] == pytest.approx((0.36, 0.44), rel=0.01)
    # there the books spoke; no more than was measured
    assert spans["ttft"]["slots"] == pytest.approx((0.1, targets["ttft"].measured_s), rel=0.01)


def test_the_calibration_holds_every_link_at_every_level():
    names = {m.LINK.name for m in CHAIN}
    assert set(SPREAD) == {"books", "twin"}
    for levels in SPREAD.values():
        assert set(levels) == {level.value for level in Level} - {"state"}
        for links in levels.values():
            assert set(links) == names
            assert all(0 < inactive <= 1 and 0 <= least < 1 < most for inactive, least, most in links.values())


@pytest.mark.parametrize("link", ["frontend", "slots", "prefill_backlog", "kv_eviction", "kv_transfer", "engine_stall", "output"])
def test_no_calibrated_width_keeps_a_link_from_ever_being_named(link: str):
    # a link that holds nine tenths of what was measured must keep more than a twentieth at the lower end of its range
    for levels in SPREAD.values():
        for level, links in levels.items():
            assert 0.9 * links[link][1] > 0.05, level


@pytest.mark.parametrize(("rate", "more"), [(1.6, 1.645 / 96**0.5), (1.7, 0.0)])
def test_the_mean_of_less_than_a_hundred_requests_is_itself_uncertain(monkeypatch: pytest.MonkeyPatch, rate: float, more: float):
    # 1.6 a second are 96 requests, 1.7 are 102
    widths(monkeypatch, 0.0, 0.2)
    accounts, targets = judged(engine_of(swing=0.05, rate=rate, waiting=1.0, facts={"max_num_seqs": 2}))
    part = targets["e2e"].part("slots").seconds
    low, high = ranges.of(accounts, targets, Level.METRICS)["e2e"]["slots"]
    most = min(part * 1.2 * (1 + more), targets["e2e"].measured_s)
    assert (low, high) == pytest.approx((part * 0.8 * (1 - more), most))


def test_64_requests_that_stood_in_one_line_are_enough_to_name_it():
    # a short load on a small server: nine tenths of TTFT are the cap's
    target = fleet(
        attribute(window_of(engine_of(seconds=20, rate=3.2, swing=0.05, waiting=6.0, facts={"max_num_seqs": 4}))), "ttft"
    )
    assert target.part("slots").seconds > 0.9 * target.measured_s
    assert (target.verdict, target.limiting) == ("limited", "slots")


def test_a_range_is_never_below_zero_nor_above_what_was_measured(monkeypatch: pytest.MonkeyPatch):
    widths(monkeypatch, 1.0, 5.0)
    accounts, targets = judged(at_cap())
    for name, spans in ranges.of(accounts, targets, Level.METRICS).items():
        assert all(low >= 0 and high <= targets[name].measured_s + 1e-12 for low, high in spans.values())


def test_windows_drawn_again_widen_what_depends_on_step_costs(monkeypatch: pytest.MonkeyPatch):
    widths(monkeypatch, 0.0, 0.0)
    noise = 1 + 0.03 * np.random.default_rng(1).standard_normal(60)
    exact, noisy = (judged(engine_of(columns=columns)) for columns in ({}, {"step_n": engine_of().interval["step_n"] * noise}))
    spans = [ranges.of(accounts, targets, Level.METRICS)["tpot"]["prefill_backlog"] for accounts, targets in (exact, noisy)]
    assert spans[0][1] - spans[0][0] == pytest.approx(0.0, abs=1e-9)
    assert spans[1][1] - spans[1][0] > 1e-4


def test_what_was_measured_is_not_drawn_again(monkeypatch: pytest.MonkeyPatch):
    # front end and output are differences of measured means
    widths(monkeypatch, 0.0, 0.0)
    accounts, targets = judged(
        engine_of(
            frontend_s=0.5, output_s=0.3, columns={"step_n": engine_of().interval["step_n"] * (1 + 0.02 * np.cos(np.arange(60)))}
        )
    )
    low, high = ranges.of(accounts, targets, Level.METRICS)["e2e"]["output"]
    assert high - low == pytest.approx(0.0, abs=1e-9)


def test_the_ends_of_what_nobody_observed_are_in_the_range(monkeypatch: pytest.MonkeyPatch):
    # 60 preemptions computed again nothing at least, 60 x 660 tokens at most: 39,600 x 20 µs = 0.792 s over 300 requests
    widths(monkeypatch, 0.0, 0.0)
    engine = engine_of(swing=0.2, columns={"preemptions": 1.0})
    accounts, targets = judged(engine)
    low, high = ranges.of(accounts, targets, Level.METRICS)["e2e"]["kv_eviction"]
    assert accounts.recomputed[1:3] == pytest.approx((0.0, 60 * 660.0), rel=0.01)
    assert high - low > 0.8 * 0.792 / 300


def test_the_same_seed_gives_the_same_ranges_and_another_one_others(monkeypatch: pytest.MonkeyPatch):
    widths(monkeypatch, 0.0, 0.0)
    columns = {"step_n": engine_of().interval["step_n"] * (1 + 0.03 * np.random.default_rng(1).standard_normal(60))}
    accounts, targets = judged(engine_of(columns=columns))
    one, two, other = (ranges.of(accounts, targets, Level.METRICS, seed=seed)["tpot"]["prefill_backlog"] for seed in (0, 0, 1))
    assert one == two
    assert one != other


def test_unknown_and_unused_links_have_no_range():
    target = fleet(attribute(window_of(engine_of(facts={"prefix_caching": False}))), "e2e")
    assert target.part("prefix_cache_miss").seconds is None
    assert target.part("prefix_cache_miss").range_s is None
    assert target.part("moe_imbalance").range_s is None


def test_without_step_costs_ranges_are_the_calibrated_ones(monkeypatch: pytest.MonkeyPatch):
    widths(monkeypatch, 0.0, 0.1)
    accounts, targets = judged(engine_of(seconds=8, frontend_s=0.5))
    part = targets["e2e"].part("frontend").seconds
    assert part == pytest.approx(0.5 - 0.012)
    low, high = ranges.of(accounts, targets, Level.METRICS)["e2e"]["frontend"]
    more = 1.645 / accounts.requests**0.5
    assert accounts.requests < 100
    assert (low, high) == pytest.approx((part * 0.9 * (1 - more), min(part * 1.1 * (1 + more), targets["e2e"].measured_s)))


@settings(max_examples=8, deadline=None, derandomize=True)
@given(
    st.sampled_from([2.0, 6.0]),
    st.sampled_from([0.0, 1.0, 5.0]),
    st.sampled_from([0.004, 0.5]),
    st.sampled_from([4, 256]),
    st.sampled_from([0.3, 0.97]),
)
def test_every_range_holds_its_part(rate: float, waiting: float, frontend_s: float, cap: int, usage: float):
    result = attribute(
        window_of(engine_of(rate=rate, waiting=waiting, frontend_s=frontend_s, usage=usage, facts={"max_num_seqs": cap}))
    )
    for name in TARGETS:
        for part in fleet(result, name).parts:
            if part.range_s is not None:
                assert part.seconds is not None
                assert part.range_s[0] - 1e-12 <= part.seconds <= part.range_s[1] + 1e-12
