"""Objectives on the pages: which limits the judgement takes, and how many requests of the window meet each."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import streamlit as st

from analyzers.slo import Slo
from app.alerts.definitions import decoded, encoded
from app.store import Store
from app.ui import shared
from app.ui.limits import Goal, all_of, goal
from app.ui.words import percent, plain

if TYPE_CHECKING:
    from app.ui.session import View  # which asks for the goals, too

MS: Final = {"itl", "tpot"}


def says(one: Goal) -> str:
    """One line for a card."""
    what = limit(one.slo)
    if one.good_ratio is None:
        return f"? target {what}: {one.missing or 'not measured'}"
    return f"{'✓' if one.met else '✕'} target {what}: {percent(one.good_ratio, 3)} meet it"


def limit(slo: Slo) -> str:
    """The threshold of an objective in the unit of its kind, and for how many events it should hold."""
    share = f"for {percent(slo.objective, 3)}"
    if slo.threshold_s is None:
        return share
    scale, unit = (1000.0, "ms") if slo.kind in MS else (1.0, "s")
    beside = f", TPOT {plain(1000 * slo.tpot_s)} ms" if slo.tpot_s is not None else ""
    return f"{'TTFT ' if beside else ''}{plain(scale * slo.threshold_s)} {unit}{beside} {share}"


def goals(view: "View") -> list[Goal]:
    """Every objective with how many events of the window met it."""
    return measured(view.store, view.mark, view.chosen, view.low, view.high)


def measured(store: Store, mark: str, engines: Sequence[str], low: float, high: float) -> list[Goal]:
    """Every objective over a window of engines, kept while the store stays as it is."""
    names = json.dumps(shared.unnamed(engines))
    return [_goal(mark, encoded(slo), low, high, names, store) for slo in all_of(store)]


def _goal_now(mark: str, slo: str, low: float, high: float, names: str, _store: Store) -> Goal:  # noqa: ARG001 key
    return goal(_store, decoded(slo), json.loads(names), low, high)


_goal: Callable[..., Goal] = st.cache_data(max_entries=128, show_spinner=False)(_goal_now)


def by_kind(found: Sequence[Goal]) -> Mapping[str, list[Goal]]:
    """Goals by the kind of their objective."""
    kinds: dict[str, list[Goal]] = {}
    for one in found:
        kinds.setdefault(one.slo.kind, []).append(one)
    return kinds


def note(found: Sequence[Goal], kind: str) -> list[str]:
    """The lines of a card about the objectives of a kind."""
    head = {"itl": "ITL ", "queue": "queue ", "goodput": "goodput "}.get(kind, "")
    return [says(one).replace("target ", f"{head}target ") for one in found]
