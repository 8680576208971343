"""What the pages about decisions share: the window as a case for hypotheses, kept while the store stays as it is."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import streamlit as st

from analyzers.case import Case
from analyzers.model import Engine, Hypothesis, Window
from app.experiments.cases import case_for, drift_of, hypotheses_for, of_bundle
from app.store import Store
from app.ui.markup import Html, bold, div, join, link, tag
from app.ui.session import WINDOWS, View, window_between
from app.ui.words import LABELS, flagged, titled, value

Key = tuple[str, float, float, tuple[str, ...]]
MOST_REPLAYED: Final = 20_000  # requests of a window that a page replays unasked
OBJECTIVES: Final = {**LABELS, "throughput": "Throughput", "capacity": "Capacity"}


def window(view: View) -> Window:
    """The window of a page, with the engines that its picks leave."""
    return window_between(view.store, view.mark, view.low, view.high, view.chosen)


def case(view: View) -> Case:
    """The window as a case: replayed once."""
    with st.spinner("Replaying the window …", show_time=False):
        found: Case = _case(_key(view), view)
    return found


def engines(view: View) -> tuple[Engine, ...]:
    """The chosen engines with all that the window has of them, kept while the store stays as it is."""
    return window(view).engines


def recommended(view: View, objective: str) -> list[Hypothesis]:
    """What to recommend for an objective."""
    prepared = case(view)
    with st.spinner("Replaying changes …", show_time=False):
        found: list[Hypothesis] = _recommended(_key(view), objective, prepared)
    return found


def predicted(view: View, objective: str) -> list[Hypothesis] | None:
    """What is recommended, where a page can wait for it: None where so much was recorded that the replay would take long."""
    if view.judged is None or view.judged.finished > MOST_REPLAYED:
        return None
    return recommended(view, objective)


def predictions(found: Sequence[Hypothesis], target: str) -> Html:
    """Changes with what they are predicted to do to a target, and the first cost next door."""
    lines = []
    for one in found:
        big, words = saved(target, one.effect[target].saves_s, one.effect[target].range_s)
        flags = join([tag("code", flag) for flag in one.flags[:2]], " ")
        cost = tag("span", flagged(titled(one.costs[0]))) if one.costs else None
        lines.append(
            div("wl-predicted", div("", bold(titled(one.change.replace("->", "→"))), tag("br"), flags, " ", cost), div("num", bold(big), tag("br"), tag("span", words)))
        )  # fmt: skip
    return div("wl-try", *lines)


def _key(view: View) -> Key:
    """What a window depends on."""
    return view.mark, view.low, view.high, view.chosen


def _case_now(key: Key, _view: View) -> Case:  # noqa: ARG001 streamlit's cache reads it
    return case_for(window(_view))


def _recommended_now(key: Key, objective: str, _prepared: Case) -> list[Hypothesis]:  # noqa: ARG001 as above
    return hypotheses_for(_prepared, objective)


def _drift_now(key: Key, _window: Window) -> tuple[str, ...]:  # noqa: ARG001 as above
    return drift_of(_window)


_case: Callable[..., Case] = st.cache_resource(max_entries=WINDOWS, show_spinner=False)(_case_now)
_recommended: Callable[..., list[Hypothesis]] = st.cache_resource(max_entries=40, show_spinner=False)(_recommended_now)
_drift: Callable[..., tuple[str, ...]] = st.cache_data(max_entries=16, show_spinner=False)(_drift_now)


def drift(view: View) -> tuple[str, ...]:
    """How the workload changed from the first to the second half of the window."""
    found: tuple[str, ...] = _drift(_key(view), case(view).window)
    return found


def nothing(view: View) -> Html:
    """What to do where there is no engine in the window."""
    head = "No engine was observed in this window." if view.recordings else "Nothing has been loaded yet."
    said: list[Any] = [link("upload", "Upload a bundle"), ", or from a shell: ", tag("code", "weaklink load PATH"), "."]
    if view.recordings:
        said = ["Choose another window or recording above. ", *said]
    return div("wl-answer", tag("h1", head), tag("p", *said), data_verdict="empty")


def saved(target: str, seconds: float | None, span: tuple[float, float] | None) -> tuple[str, str]:
    """An effect as a page writes it: what changes, and its range."""
    if seconds is None:
        return "cannot be predicted", f"at most {value(target, span[1])} less" if span else ""
    if seconds == 0:
        return "unchanged", ""
    sign = "\N{MINUS SIGN}" if seconds > 0 else "+"
    low, high = sorted((-span[1], -span[0])) if span else (0.0, 0.0)
    words = f"{_signed(target, low)} to {_signed(target, high)}" if span else ""
    return f"{sign}{value(target, abs(seconds))}", words


def _signed(target: str, seconds: float) -> str:
    return f"+{value(target, seconds)}" if seconds > 0 else value(target, seconds)


def recording_of(view: View) -> str | None:
    """The recording that the window lies in, where it is one."""
    named = [one.bundle for one in view.recordings if set(one.instances) & set(view.instances)]
    if view.pick.recording in named:
        return view.pick.recording
    return named[-1] if named else None


def by_bundle(store: Store, mark: str, bundle: str) -> Window:
    """The window of a recording, kept while the store stays as it is."""
    found: Window = _bundle(mark, bundle, store)
    return found


def _bundle_now(mark: str, bundle: str, _store: Store) -> Window:  # noqa: ARG001 key
    return of_bundle(_store, bundle)


_bundle: Callable[..., Window] = st.cache_resource(max_entries=WINDOWS, show_spinner=False)(_bundle_now)
