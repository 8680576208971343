"""The pages Workload, Hypotheses and Experiments, as Streamlit runs them."""

import re
from pathlib import Path
from typing import Final

import pytest
from recordings import DATA, INCIDENTS, loaded

from app.experiments import table
from app.ingest import load
from app.store import Store
from app.ui import decisions

from ..ui.test_pages import html, opened, plain  # noqa: TID252 the program's own packages have these names

SLOTS: Final = INCIDENTS / "slots"


@pytest.fixture
def own() -> Store:
    """A store that may be written to, with the slots incident and the run after its fix."""
    store = Store()
    load(store, [SLOTS, DATA / "h200-0.24.0-slots-fixed"])
    return store


@pytest.mark.parametrize("name", ["healthy", "slots", "kv_transfer", "moe_imbalance"])
@pytest.mark.parametrize("page", ["workload", "hypotheses", "experiments"])
def test_incidents_are_drawn(page: str, name: str):
    shown = plain(html(opened(page, loaded(INCIDENTS / name)[0])))
    assert "None" not in shown
    assert " nan" not in shown


def test_the_first_card_is_what_to_try_first():
    app = opened("hypotheses", loaded(SLOTS)[0])
    shown = plain(html(app))
    assert "For TTFT, first try: max_num_seqs 16 → 64, 4.31 s to about 0.03" in shown
    assert "--max-num-seqs 64" in shown
    assert "\N{MINUS SIGN}4.28 s" in shown
    assert "Costs next door" in shown
    assert "Not to be confused with a prefill backlog" in shown
    assert "Throughput 2,699 → 7," in shown


def test_a_healthy_window_has_no_card():
    app = opened("hypotheses", loaded(INCIDENTS / "healthy")[0])
    assert "Nothing to change for TTFT." in plain(html(app))
    assert 'data-hypotheses="0"' in html(app)
    assert not [one for one in app.get("button") if one.key and one.key.startswith("keep-")]


def test_a_change_is_kept_and_judged_from_the_pages(own: Store):
    app = opened("hypotheses", own, recording="slots")
    next(one for one in app.get("button") if one.key == "keep-more_slots").click().run()
    assert not app.exception
    row = table.rows(own)[0]
    assert (row.hypothesis, row.before, row.judgement) == ("more_slots", "slots", None)
    app = opened("experiments", own)
    assert "It waits for a recording after the change." in plain(html(app))
    next(one for one in app.get("button") if one.key == f"judge-{row.number}").click().run()
    assert not app.exception
    verdicts = {name: one["verdict"] for name, one in table.rows(own)[0].judgement["targets"].items()}
    assert verdicts == {"ttft": "confirmed", "tpot": "confirmed", "e2e": "confirmed"}
    assert "By target: 3 confirmed." in plain(html(app))


def test_two_recordings_are_judged_at_once(own: Store):
    app = opened("experiments", own)
    boxes = {one.key: one for one in app.get("selectbox")}
    boxes["judge-before"].select("slots")
    boxes["judge-after"].select("h200-0.24.0-slots-fixed")
    boxes["judge-name"].select("more_slots")
    app.get("button")[-1].click().run()
    assert not app.exception
    shown = plain(html(app))
    assert "✓ confirmed" in shown
    assert "Kept as experiment 1." in shown
    assert table.rows(own)[0].after == "h200-0.24.0-slots-fixed"


def test_a_recording_that_is_gone_is_said(own: Store):
    table.start(own, {"name": "more_slots", "change": "a -> b", "effect": {}}, "gone", Path("gone"))
    assert "Its recording before is not in this store" in plain(html(opened("experiments", own)))


def test_the_capacity_sheet_answers():
    app = opened("workload", loaded(SLOTS)[0])
    assert re.search(r"55 contexts of 3\d\d\d tokens fit: the pool of 936,544 tokens holds", plain(html(app)))
    next(one for one in app.get("number_input") if one.key == "context").set_value(100_000).run()
    assert "do not fit" in plain(html(app))


@pytest.mark.parametrize(
    ("seconds", "span", "said"),
    [
        (None, None, ("cannot be predicted", "")),
        (None, (0.0, 2.0), ("cannot be predicted", "at most 2.00\N{NO-BREAK SPACE}s less")),
        (0.0, (-0.1, 0.1), ("unchanged", "")),
        (2.0, (1.5, 2.5), ("\N{MINUS SIGN}2.00\N{NO-BREAK SPACE}s", "\N{MINUS SIGN}2.50\N{NO-BREAK SPACE}s to \N{MINUS SIGN}1.50\N{NO-BREAK SPACE}s")),
        (-2.0, (-2.5, 0.5), ("+2.00\N{NO-BREAK SPACE}s", "\N{MINUS SIGN}0.500\N{NO-BREAK SPACE}s to +2.50\N{NO-BREAK SPACE}s")),
    ],
)  # fmt: skip
def test_effects_are_written_as_changes(seconds: float | None, span: tuple[float, float] | None, said: tuple[str, str]):
    assert decisions.saved("ttft", seconds, span) == said
