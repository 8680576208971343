"""Burn rates, budgets and interpolation, against numbers worked out by hand and chosen to be recognised: 11, 12, 13 ..."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzers import slo as slos
from analyzers.slo import BURNING, DAY_S, FEW, PAGE, QUIET, STUCK, TICKET, UNSEEN, Points, Rule, Slo

NOW = 10_000.0
# 2 % of the budget of a period of 390,000 s in 600 s: 0.02 * 390000 / 600 = 13 times too fast
THIRTEEN = Rule(PAGE, budget_ratio=0.02, long_s=600.0, short_s=60.0)
CHAT = Slo("chat", "ttft", 0.99, 1.0, period_s=390_000.0, minimum=21, rules=(THIRTEEN,))


def points(*events: tuple[float, float, float], **more) -> Points:
    """Points from (seconds before NOW, total, bad); the server is seen every 10 s."""
    ts, total, bad = (
        np.array(column, dtype=float) for column in zip(*sorted((NOW - ago, n, b) for ago, n, b in events), strict=True)
    )
    given = {"seen": {"host:1": np.arange(NOW - 1000, NOW + 1, 10.0)}, "least": bad, "most": bad} | more
    return Points(ts, total, bad, **given)


def test_nothing_is_known_without_points():
    burn = slos.burns(CHAT, Points(), NOW)[0]
    assert (burn.long_burn, burn.short_burn, burn.events, burn.verdict) == (None, None, 0.0, UNSEEN)
    assert slos.budget(CHAT, Points(), NOW) == slos.Budget(None, None, None, 0.0, 0.0, 0.0)
    assert slos.onset(CHAT, Points(), NOW, THIRTEEN) == NOW


def test_the_workbooks_table_gives_its_burn_rates():
    """Site Reliability Workbook, chapter 5, table 5-8: 14.4, 6 and 1."""
    rates = [slos.factor(rule, 30 * DAY_S) for rule in slos.WORKBOOK]
    assert rates == pytest.approx([14.4, 6.0, 1.0])
    assert [(rule.severity, rule.long_s / 3600, rule.short_s / 60) for rule in slos.WORKBOOK] == [
        (PAGE, 1, 5),
        (PAGE, 6, 30),
        (TICKET, 72, 360),
    ]


def test_another_period_scales_the_windows_and_keeps_the_rates():
    weekly = replace(CHAT, period_s=7 * DAY_S, rules=None)
    assert [rule.long_s for rule in slos.rules_of(weekly)] == [840.0, 5040.0, 60480.0]
    assert [slos.factor(rule, weekly.period_s) for rule in slos.rules_of(weekly)] == pytest.approx([14.4, 6.0, 1.0])


@pytest.mark.parametrize(
    ("events", "long", "short", "verdict"),
    [
        # 11 of 100 in the short window, 22 of 200 in the long one: 11 % of a budget of 1 % is 11 times, below 13
        ([(30, 100, 11), (300, 100, 11)], 11.0, 11.0, QUIET),
        ([(30, 100, 14), (300, 100, 13)], 13.5, 14.0, BURNING),
        # it is over: the short window is good
        ([(30, 100, 0), (300, 100, 52)], 26.0, 0.0, QUIET),
        # a short spike that the long window forgives
        ([(30, 100, 20), (300, 1900, 0)], 1.0, 20.0, QUIET),
        # exactly at the limit is not above it
        ([(30, 100, 13), (300, 100, 13)], 13.0, 13.0, QUIET),
        # 20 events, 21 are needed
        ([(30, 10, 10), (300, 10, 10)], 100.0, 100.0, FEW),
        ([(30, 11, 11), (300, 10, 10)], 100.0, 100.0, BURNING),
        # outside of both windows
        ([(601, 100, 100), (30, 100, 0)], 0.0, 0.0, QUIET),
    ],
)
def test_burns_are_those_worked_out_by_hand(events, long, short, verdict):
    burn = slos.burns(CHAT, points(*events), NOW)[0]
    assert burn.factor == pytest.approx(13.0)
    assert (burn.long_burn, burn.short_burn) == pytest.approx((long, short))
    assert burn.verdict == verdict


def test_an_event_at_the_edge_of_a_window_counts_once():
    """Windows are (now - width, now]."""
    burn = slos.burns(CHAT, points((600, 100, 100), (0, 12, 1)), NOW)[0]
    assert (burn.events, burn.long_burn) == (12.0, pytest.approx(100 / 12))


def test_an_idle_server_is_quiet():
    burn = slos.burns(CHAT, points((700, 100, 100)), NOW)[0]
    assert (burn.long_burn, burn.verdict) == (None, QUIET)


def test_requests_in_flight_of_which_none_was_measured_are_no_quiet():
    """A server that hangs counts nothing."""
    hung = points((300, 100, 50), busy_ts=np.array([NOW - 20, NOW - 10]), busy=np.array([7.0, 7.0]))
    assert slos.burns(CHAT, hung, NOW)[0].verdict == STUCK
    drained = replace(hung, busy=np.array([7.0, 0.0]))
    assert slos.burns(CHAT, drained, NOW)[0].verdict == QUIET


def test_a_server_that_is_no_longer_seen_is_no_quiet():
    """Two servers; the bad one went dark 70 s ago, the other one is fine."""
    seen = {"bad:1": np.arange(NOW - 1000, NOW - 69, 10.0), "good:1": np.arange(NOW - 1000, NOW + 1, 10.0)}
    burn = slos.burns(CHAT, points((30, 100, 0), (300, 100, 40), seen=seen), NOW)[0]
    assert (burn.verdict, burn.unseen) == (UNSEEN, ("bad:1",))
    gone = {**seen, "bad:1": np.arange(NOW - 1000, NOW - 600, 10.0)}  # longer than the long window: it is no longer expected
    assert slos.burns(CHAT, points((30, 100, 0), seen=gone), NOW)[0].verdict == QUIET


def test_a_burn_is_a_burn_although_another_server_is_dark():
    seen = {"dark:1": np.array([NOW - 300]), "bad:1": np.arange(NOW - 1000, NOW + 1, 10.0)}
    assert slos.burns(CHAT, points((30, 100, 50), seen=seen), NOW)[0].verdict == BURNING


@pytest.mark.parametrize(
    ("verdicts", "together"),
    [
        ((QUIET, BURNING), BURNING),
        ((UNSEEN, QUIET), UNSEEN),
        ((UNSEEN, FEW), FEW),
        ((STUCK, QUIET), STUCK),
        ((QUIET, QUIET), QUIET),
    ],
)
def test_rules_of_one_severity_are_joined(verdicts, together):
    assert slos.joined([np.array([one]) for one in verdicts])[0] == together


def test_the_budget_that_is_left():
    """1,100 events, 1 % may be bad: 11. 3 are: 8 of 11 are left. Interpolated, 2 to 4 are."""
    held = points((30, 1000, 3), (300, 100, 0), least=np.array([0.0, 2.0]), most=np.array([0.0, 4.0]))
    left = slos.budget(CHAT, held, NOW)
    assert (left.left_ratio, left.least_ratio, left.most_ratio) == pytest.approx((8 / 11, 7 / 11, 9 / 11))
    assert (left.bad, left.total, left.observed_s) == (3.0, 1100.0, 1000.0)
    assert slos.budget(CHAT, points((30, 100, 13)), NOW).left_ratio == pytest.approx(-12.0)


def test_where_a_burn_began():
    """Good until 110 s before now, then half are bad."""
    good = [(ago, 10, 0) for ago in range(590, 110, -10)]
    bad = [(ago, 10, 5) for ago in range(110, -1, -10)]
    assert slos.onset(CHAT, points(*good, *bad), NOW, THIRTEEN) == NOW - 120
    assert slos.onset(CHAT, points(*bad), NOW, THIRTEEN) == NOW - 120  # nothing before it: one step before its first event


def test_one_bad_event_long_ago_is_not_where_it_began():
    rare = [(590, 10, 1)] + [(ago, 10, 0) for ago in range(580, 110, -10)]
    assert slos.onset(CHAT, points(*rare, *[(ago, 10, 5) for ago in range(110, -1, -10)]), NOW, THIRTEEN) == NOW - 120


# -- buckets ------------------------------------------------------------------------------------------------------------------
def column(*values: float) -> np.ndarray:
    return np.array(values)


def test_between_two_edges_the_share_is_interpolated_and_bounded():
    """100 events: 40 up to 1 s, 90 up to 2.5 s. Above 1.6 s: 60 - 0.4 * 50 = 40, at least 10, at most 60."""
    found = slos.above(1.6, column(100), column(1.0), column(2.5), column(40), column(90))
    assert [value[0] for value in found] == pytest.approx([40.0, 10.0, 60.0])


def test_at_an_edge_it_is_exact():
    assert [value[0] for value in slos.above(1.0, column(100), column(1.0), column(1.0), column(40), column(40))] == [60, 60, 60]


def test_above_the_last_edge_the_most_is_taken():
    found = slos.above(100.0, column(100), column(80.0), column(math.inf), column(88), column(100))
    assert [value[0] for value in found] == [12, 0, 12]


@pytest.mark.parametrize(
    ("threshold", "low", "high", "far"),
    [
        (1.0, 1.0, 1.0, False),
        (1.1, 1.0, 2.5, False),  # 0.1 of 1.5 s from the edge
        (1.6, 1.0, 2.5, True),
        (2.4, 1.0, 2.5, False),
        (0.0005, 0.0, 0.001, True),
        (9.0, 2.5, math.inf, True),
    ],
)
def test_a_threshold_far_from_an_edge_is_flagged_with_the_nearest(threshold, low, high, far):
    assert slos.edges_around([0.001, 1.0, 2.5], threshold) == slos.Edges(low, high, far)


@given(st.lists(st.floats(0.01, 9.9), min_size=1, max_size=60), st.floats(0.01, 9.0))
def test_the_truth_lies_within_the_bounds(values, threshold):
    """Whatever the requests were, the number above a threshold lies between `least` and `most`."""
    edges = [0.0, 0.5, 1.0, 2.5, 5.0, 10.0]
    around = slos.edges_around(edges, threshold)
    upto_low, upto_high = (sum(value <= edge for value in values) for edge in (around.low_s, around.high_s))
    estimate, least, most = slos.above(
        threshold, *(column(x) for x in (len(values), around.low_s, around.high_s, upto_low, upto_high))
    )
    assert least[0] <= sum(value > threshold for value in values) <= most[0]
    assert least[0] - 1e-9 <= estimate[0] <= most[0] + 1e-9
