"""An attribution over time adds up in every slice, and over the slices to the whole; when a trouble began."""

import itertools

import numpy as np
import pytest
from recordings import INCIDENTS, judged, loaded, stored

from analyzers.began import began
from analyzers.course import course, cut_of
from analyzers.model import Window
from app.pipeline import window_of


@pytest.mark.parametrize(("name", "link"), [("slots", "slots"), ("prefill_backlog", "prefill_backlog")])
def test_the_slices_add_up_and_together_are_the_whole(name: str, link: str):
    store, _ = loaded(INCIDENTS / name)
    window, whole = window_of(store), judged(INCIDENTS / name).attribution.targets["ttft"]
    found = course(window, "ttft")
    known = np.isfinite(found.measured)
    assert known.sum() >= 8
    parts = np.nansum(list(found.parts.values()), axis=0)
    assert (found.floor + parts + found.unexplained)[known] == pytest.approx(found.measured[known], abs=1e-6)
    weight = found.requests[known] / found.requests[known].sum()
    assert (found.measured[known] * weight).sum() == pytest.approx(whole.measured_s, rel=0.05)
    assert (found.parts[link][known] * weight).sum() == pytest.approx(whole.part(link).seconds, rel=0.15)
    reasons = np.nansum([found.queue[reason] for reason in found.queue], axis=0)
    assert (reasons[known] * weight).sum() == pytest.approx(sum(whole.stages[s] for s in whole.stages if s == "queue"), rel=0.1)


def test_cuts_lose_nothing_and_count_nothing_twice():
    store, _ = loaded(INCIDENTS / "slots")
    window = window_of(store)
    edges = np.linspace(window.start - 1, window.end + 1, 6)
    cuts = [cut_of(window.engines[0], low, high) for low, high in itertools.pairwise(edges)]
    for name in ("generation_tokens", "e2e_n", "step_n"):
        assert sum(cut.total.get(name, 0.0) for cut in cuts) == pytest.approx(window.engines[0].total[name])
    assert sum(len(cut.interval["ts"]) for cut in cuts) == len(window.engines[0].interval["ts"])
    assert all("vllm:inter_token_latency_seconds" not in cut.bucket for cut in cuts)  # the whole's stalls belong to no slice


def test_without_a_clock_or_requests_there_is_no_course():
    text = INCIDENTS.parent / "formats" / "prometheus_text" / "good" / "vllm-0.20.txt"
    assert course(window_of(stored(text)), "ttft") is None
    assert course(Window(None, None, ()), "ttft") is None
    store, _ = loaded(INCIDENTS / "slots")
    window = window_of(store)
    assert course(window_of(store, window.start, window.start + 3), "ttft") is None


TS = np.arange(20.0)


@pytest.mark.parametrize(
    ("values", "start", "end", "ended"),
    [
        ([0] * 8 + [5, 9, 30, 40, 9] + [0] * 7, 8.0, 12.0, True),
        ([1] * 10 + [8] * 10, 10.0, 19.0, False),
        ([0] * 3 + [4] + [0] * 8 + [9, 0, 9, 9] + [0] * 4, 12.0, 15.0, True),  # the worst episode, a short calm inside it
        ([float("nan")] * 3 + [0] * 7 + [9] * 3 + [0] * 7, 10.0, 12.0, True),
    ],
)
def test_the_worst_episode_is_found(values: list[float], start: float, end: float, ended: bool):
    found = began(TS, np.array(values, float))
    assert (found.start, found.end, found.ended) == (start, end, ended)
    assert found.before == start - 1


@pytest.mark.parametrize("values", [[0] * 20, [9] * 20, [9] * 12 + [0] * 8, [float("nan")] * 20, list(range(19, -1, -1))])
def test_what_was_always_there_did_not_begin(values: list[float]):
    assert began(TS, np.array(values, float)) is None


def test_a_few_scrapes_have_no_beginning():
    assert began(TS[:4], np.array([0.0, 0.0, 9.0, 9.0])) is None
