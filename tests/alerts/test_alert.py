"""The state machine: whatever happens to data, clocks and evaluations, it neither flaps, nor forgets, nor resolves unseen."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analyzers.alert import CALM, FIRING, PENDING, Silence, State, episodes, silenced, step
from analyzers.slo import BURNING, FEW, PAGE, QUIET, STUCK, TICKET, UNSEEN, Points, Rule, Slo

EVERY = 10.0
PENDING_S = 20.0
KEEP_S = 40.0
VERDICTS = st.sampled_from((QUIET, BURNING, FEW, UNSEEN, STUCK))


def phases(verdicts, every=EVERY, state: State | None = None, start: float = 1000.0) -> list[State]:
    """The states after evaluations every `every` seconds."""
    found, held = [], state or State()
    for at, verdict in enumerate(verdicts):
        held = step(held, start + every * at, verdict, pending_s=PENDING_S, keep_s=KEEP_S)
        found.append(held)
    return found


def words(states) -> str:
    return "".join({CALM: ".", PENDING: "p", FIRING: "F"}[state.phase] for state in states)


B, Q, U = BURNING, QUIET, UNSEEN


@pytest.mark.parametrize(
    ("verdicts", "said"),
    [
        ([], ""),
        ([Q, Q, Q], "..."),
        ([B, B, B, B], "ppFF"),  # 20 s after the first word
        ([B, B, Q, B, B, B], "pp.ppF"),  # a pending alert that is quiet starts anew
        ([B, B, B, Q, Q, Q, Q, Q], "ppFFFFF."),  # 40 s of quiet resolve
        ([B, B, B, Q, Q, Q, B, Q, Q, Q, Q, Q], "ppFFFFFFFFF."),  # a burn in between: the 40 s start anew
        ([B, B, B, U, U, U, U, U, U, U, U], "ppFFFFFFFFF"),  # a gap never resolves
        ([B, U, U, B, B, B], "pppppF"),  # nor does it fire
        ([B, B, B, Q, Q, U, U, Q, Q, Q, Q], "ppFFFFFFFF."),  # what is unknown adds nothing to the quiet time
        ([FEW, FEW, FEW], "..."),  # too few to raise
        ([B, B, B, FEW, FEW, FEW, FEW, FEW], "ppFFFFFF"),  # but not quiet
    ],
)
def test_pending_firing_resolved(verdicts, said):
    assert words(phases(verdicts)) == said


def test_without_spans_it_fires_and_resolves_at_once():
    fired = step(State(), 1.0, BURNING, pending_s=0, keep_s=0)
    assert fired.phase == FIRING
    assert step(fired, 2.0, QUIET, pending_s=0, keep_s=0).phase == CALM


@given(st.lists(VERDICTS, max_size=60))
def test_it_never_flaps(verdicts):
    """Between firing and resolving lie at least the quiet time, between resolving and firing the pending time."""
    states = phases(verdicts)
    changes = [
        (at, state.phase == FIRING)
        for at, state in enumerate(states)
        if (state.phase == FIRING) != (at > 0 and states[at - 1].phase == FIRING)
    ]
    for (first, firing), (second, _) in itertools.pairwise(changes):
        assert (second - first) * EVERY >= (KEEP_S if firing else PENDING_S)


@given(st.lists(VERDICTS, max_size=40))
def test_no_resolve_is_lost(verdicts):
    """Once it stays quiet, every alert resolves within the quiet time and one evaluation."""
    states = phases([*verdicts, *[QUIET] * (int(KEEP_S / EVERY) + 2)])
    assert states[-1].phase == CALM


@given(st.lists(VERDICTS, max_size=40))
def test_no_alert_is_lost(verdicts):
    states = phases([*verdicts, *[BURNING] * (int(PENDING_S / EVERY) + 2)])
    assert states[-1].phase == FIRING


@given(st.lists(VERDICTS, max_size=40), st.lists(st.sampled_from((UNSEEN, STUCK)), min_size=1, max_size=60))
def test_a_gap_changes_nothing(verdicts, gap):
    before = phases(verdicts)
    was = before[-1] if before else State()
    after = phases(gap, state=was, start=1000.0 + EVERY * len(verdicts))
    assert {state.phase for state in after} == {was.phase}


@given(st.lists(st.tuples(VERDICTS, st.floats(-1e6, 1e6)), min_size=1, max_size=60))
@settings(max_examples=300)
def test_a_clock_that_jumps_neither_fires_nor_resolves_by_itself(steps):
    """Whatever the clock does, two evaluations in a row must say the same before anything changes."""
    state, now = State(), 0.0
    for verdict, jump in steps:
        was, now = state, now + jump
        state = step(state, now, verdict, pending_s=PENDING_S, keep_s=KEEP_S)
        if state.phase == FIRING and was.phase != FIRING:
            assert verdict == was.verdict == BURNING
        if state.phase == CALM and was.phase == FIRING:
            assert verdict == was.verdict == QUIET


@given(st.lists(VERDICTS, max_size=30), st.floats(1.0, 1e9))
def test_a_clock_that_goes_back_once_loses_nothing(verdicts, jump):
    """After it, alerts fire and resolve as they would have."""
    states = phases([*verdicts], start=1e9)
    was = states[-1] if states else State()
    back = 1e9 + EVERY * len(verdicts) - jump
    fired = phases([BURNING] * 4, state=was, start=back)
    assert fired[-1].phase == FIRING
    assert phases([QUIET] * 6, state=fired[-1], start=back + 40)[-1].phase == CALM


@given(st.lists(VERDICTS, max_size=60), st.integers(0, 59))
def test_a_restart_in_between_changes_nothing(verdicts, cut):
    """The state is all that is carried over."""
    first = phases(verdicts[:cut])
    second = phases(verdicts[cut:], state=first[-1] if first else None, start=1000.0 + EVERY * len(verdicts[:cut]))
    assert words([*first, *second]) == words(phases(verdicts))


# -- replays ------------------------------------------------------------------------------------------------------------------
RULES = (Rule(PAGE, 0.02, 60.0, 10.0), Rule(TICKET, 0.1, 60.0, 10.0))
CHAT = Slo("chat", "ttft", 0.9, 1.0, period_s=6000.0, minimum=1, pending_s=10, keep_s=20, rules=RULES)  # factors 2 and 10


def replayed(bad: list[float]) -> tuple:
    """Episodes of a recording with 10 requests every 10 s, of which so many are bad."""
    ts = np.arange(len(bad)) * 10.0
    values = np.array(bad)
    held = Points(ts, np.full(len(bad), 10.0), values, values, values, {"host:1": ts})
    return episodes(CHAT, held, ts)


def test_nothing_bad_raises_nothing():
    assert not replayed([0] * 30)
    assert not episodes(CHAT, Points(), np.zeros(0))


def test_a_burn_is_one_episode_with_its_end():
    """Half are bad from 100 s to 150 s: the share over 60 s exceeds 2 * 10 % from 120 s on (15 of 60); 40 s after the last it is quiet."""
    page = [one for one in replayed([0] * 10 + [5] * 6 + [0] * 14) if one.severity == PAGE]
    assert [(one.pending_ts, one.fired_ts, one.resolved_ts) for one in page] == [(120.0, 130.0, 180.0)]
    assert page[0].peak_burn == pytest.approx(5.0)


def test_a_burn_at_the_end_is_not_resolved():
    assert [one.resolved_ts for one in replayed([0] * 10 + [5] * 6)] == [None]


# -- silences -----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("silence", "now", "quiet"),
    [
        (Silence(None, None, 11, 13), 12, True),
        (Silence("chat", PAGE, 11, 13), 12, True),
        (Silence("other", None, 11, 13), 12, False),
        (Silence("chat", TICKET, 11, 13), 12, False),
        (Silence(None, None, 11, 13), 11, True),
        (Silence(None, None, 11, 13), 13, False),
        (Silence(None, None, 11, 13), 10, False),
    ],
)
def test_silences_cover_what_they_name_while_they_last(silence, now, quiet):
    assert silenced([silence], "chat", PAGE, now) == quiet
    assert not silenced([], "chat", PAGE, now)
