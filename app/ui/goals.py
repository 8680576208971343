"""Objectives on the pages: which limits the judgement takes, and how many requests of the window meet each."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import streamlit as st

from analyzers.slo import Slo
from app.alerts.definitions import decoded, encoded
from app.alerts.measure import events, scope
from app.store import Store
from app.ui.limits import all_of
from app.ui.session import View
from app.ui.words import percent, plain

MS: Final = {"itl", "tpot"}


@dataclass(frozen=True, slots=True)
class Goal:
    """An objective over the window: good events of all, 0-1 (None: not measured, `missing` says why)."""

    slo: Slo
    good_ratio: float | None
    missing: str = ""

    @property
    def met(self) -> bool | None:
        """Whether enough events were good; None: not measured."""
        return None if self.good_ratio is None else self.good_ratio >= self.slo.objective

    def says(self) -> str:
        """One line for a card."""
        what = limit(self.slo)
        if self.good_ratio is None:
            return f"? target {what}: {self.missing or 'not measured'}"
        return f"{'✓' if self.met else '✕'} target {what}: {percent(self.good_ratio, 3)} meet it"


def limit(slo: Slo) -> str:
    """The threshold of an objective in the unit of its kind, and for how many events it should hold."""
    share = f"for {percent(slo.objective, 3)}"
    if slo.threshold_s is None:
        return share
    scale, unit = (1000.0, "ms") if slo.kind in MS else (1.0, "s")
    beside = f", TPOT {plain(1000 * slo.tpot_s)} ms" if slo.tpot_s is not None else ""
    return f"{'TTFT ' if beside else ''}{plain(scale * slo.threshold_s)} {unit}{beside} {share}"


def goals(view: View) -> list[Goal]:
    """Every objective with how many events of the window met it."""
    names = json.dumps([name.replace("None/", "/") for name in view.chosen])
    return [_goal(view.mark, encoded(slo), view.low, view.high, names, view.store) for slo in all_of(view.store)]


def _goal_now(mark: str, slo: str, low: float, high: float, names: str, _store: Store) -> Goal:  # noqa: ARG001 key
    found = decoded(slo)
    seen = events(_store, found, scope(_store, found, json.loads(names)), low, high)
    total = float(np.sum(seen.total))
    if seen.missing or not total:
        return Goal(found, None, seen.missing or "no event in this window")
    return Goal(found, 1.0 - float(np.sum(seen.bad)) / total)


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
    return [one.says().replace("target ", f"{head}target ") for one in found]
