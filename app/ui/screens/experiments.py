"""Experiments: what was changed, what had been predicted, and whether it came true."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import streamlit as st

from app.experiments import table as kept
from app.experiments import words
from app.experiments.cases import NAMES, judged, predicted
from app.experiments.table import Row
from app.ui import decisions, draw
from app.ui.markup import Html, bold, div, join, link, row, table, tag
from app.ui.session import View
from app.ui.words import LABELS, clock, plural

TITLE: Final = "Experiments"
MARKS: Final = {"confirmed": "✓", "partly": "◐", "refuted": "✕", "inconclusive": "?"}
ANY: Final = ""  # the picker's "no hypothesis"


def page(view: View) -> None:
    """Draw the page."""
    rows = kept.rows(view.store)
    if not rows and not view.recordings:
        draw.html(decisions.nothing(view))
        return
    draw.html(head(rows))
    for one in [found for found in rows if found.judgement is None]:
        _waiting(view, one)
    for one in [found for found in rows if found.judgement is not None]:
        with st.container(key=f"card-experiment-{one.number}"):
            draw.html(experiment(one))
    _judge(view)


def head(rows: Sequence[Row]) -> Html:
    """How many there are and how they came out."""
    if not rows:
        shell = [tag("code", "weaklink experiment judge BEFORE AFTER --hypothesis NAME")]
        said = [
            "Keep a change from the ",
            link("hypotheses", "Hypotheses"),
            " page with its prediction, or judge two recordings below. From a shell: ",
            *shell,
            ".",
        ]
        return div("wl-answer", tag("h1", "No experiment yet."), tag("p", *said))
    done = [one for one in rows if one.judgement is not None]
    verdicts = [str(verdict["verdict"]) for one in done for verdict in (one.judgement or {})["targets"].values()]
    counted = ", ".join(f"{verdicts.count(name)} {name}" for name in MARKS if name in verdicts)
    said = [f"By target: {counted}." if counted else "None has a recording after its change yet."]
    return div("wl-answer", tag("h1", f"{plural(len(rows), 'experiment')}, {len(done)} judged"), tag("p", *said))


def experiment(one: Row) -> Html:
    """A judged experiment: prediction, effect and verdict by target."""
    document: Mapping[str, Any] = one.judgement or {"targets": {}, "conditions": [], "configuration": []}
    heads = (("target", ""), ("verdict", ""), ("predicted", "num"), ("measured", "num"), ("range", "num"), ("why", ""))
    rows = [_target(name, found) for name, found in document["targets"].items()]
    said = [*document["configuration"], *document["conditions"]]
    more = (
        tag(
            "details",
            tag("summary", "Configuration and conditions"),
            tag("ul", *(tag("li", text) for text in said), look="wl-notes"),
        )
        if said
        else None
    )
    return join([_title(one), table(heads, rows), more])


def _title(one: Row) -> Html:
    where = f"{one.before} → {one.after}" if one.after else one.before
    when = clock(one.started_ts, day=True)
    return div(
        "wl-answer",
        tag(
            "p",
            bold(f"{one.number}. {one.prediction['change'].replace('->', '→')}"),
            f" · {one.hypothesis} · {where} · {when} UTC",
        ),
    )


def _target(name: str, found: Mapping[str, Any]) -> Html:
    predicted_s, effect = found.get("predicted_s"), found["effect_s"]
    span = found["range_s"]
    cells = (
        LABELS[name],
        join([tag("span", MARKS[found["verdict"]], look="wl-mark"), found["verdict"]]),
        "not predicted" if predicted_s is None else decisions.saved(name, predicted_s, None)[0],
        "unknown" if effect is None else decisions.saved(name, effect, None)[0],
        decisions.saved(name, effect, (span[0], span[1]))[1] if span and effect else "",
        found["why"],
    )
    return row(cells, numbers=(2, 3, 4), heads={1: "verdict", 2: "predicted", 3: "measured", 4: "range"})


def _waiting(view: View, one: Row) -> None:
    """An experiment that waits for the recording after its change."""
    with st.container(key=f"card-waiting-{one.number}"):
        draw.html(join([_title(one), tag("p", _promise(one))]))
        others = [found.bundle for found in view.recordings if found.bundle != one.before]
        if one.before not in {found.bundle for found in view.recordings}:
            draw.html(
                tag(
                    "p",
                    "Its recording before is not in this store: ",
                    tag("code", f"weaklink experiment attach {one.number} AFTER"),
                    ".",
                )
            )
            return
        if not others:
            draw.html(tag("p", "Record the same load after the change and ", link("upload", "upload it"), "."))
            return
        with st.container(horizontal=True, vertical_alignment="bottom", gap="small", key=f"attach-{one.number}"):
            after = st.selectbox("The recording after the change", others[::-1], key=f"after-{one.number}", width=380)
            pressed = st.button("Judge", key=f"judge-{one.number}", type="primary")
        if pressed and after:
            _finish(view, one, after)


def _promise(one: Row) -> str:
    said = []
    for name, found in one.prediction["effect"].items():
        big, span = decisions.saved(name, found["saves_s"], tuple(found["range_s"]) if found["range_s"] else None)
        said.append(f"{LABELS[name]} {big}" + (f" ({span})" if span else ""))
    return f"Predicted: {'; '.join(said)}. It waits for a recording after the change."


def _finish(view: View, one: Row, after: str) -> None:
    windows = decisions.by_bundle(view.store, view.mark, one.before), decisions.by_bundle(view.store, view.mark, after)
    with st.spinner("Judging …"):
        found = words.judgement(judged(*windows, one.hypothesis, kept.kept(one.prediction)))
    kept.finish(view.store, one.number, after, found)
    st.rerun()


def _judge(view: View) -> None:
    """Judge two recordings that are in the store."""
    names = [one.bundle for one in view.recordings]
    if len(names) < 2:
        return
    with st.container(key="card-judge"):
        draw.html(div("wl-title", "Judge two recordings: the same load before and after a change"))
        with st.form("judge", border=False), st.container(horizontal=True, vertical_alignment="bottom", gap="small"):
            before = st.selectbox("Before", names, key="judge-before", width=300)
            after = st.selectbox("After", names[::-1], key="judge-after", width=300)
            name = st.selectbox(
                "Change", [ANY, *sorted(NAMES)], format_func=lambda one: one or "not named", key="judge-name", width=240
            )
            pressed = st.form_submit_button("Judge", type="primary")
        if pressed:
            _judged(view, str(before), str(after), str(name or ANY))


def _judged(view: View, before: str, after: str, name: str) -> None:
    if before == after:
        draw.html(tag("p", "Choose two different recordings."))
        return
    windows = decisions.by_bundle(view.store, view.mark, before), decisions.by_bundle(view.store, view.mark, after)
    with st.spinner("Judging …"):
        promise = predicted(windows[0], name) if name else None
        found = words.judgement(judged(*windows, name or None, promise))
    heads = (("target", ""), ("verdict", ""), ("predicted", "num"), ("measured", "num"), ("range", "num"), ("why", ""))
    said = [*found["configuration"], *found["conditions"]]
    draw.html(
        join(
            [
                table(heads, [_target(key, one) for key, one in found["targets"].items()]),
                tag("ul", *(tag("li", text) for text in said), look="wl-notes"),
            ]
        )
    )
    if promise is not None:
        number = kept.start(view.store, words.hypothesis(promise), before, None)
        kept.finish(view.store, number, after, found)
        draw.html(div("wl-title", f"Kept as experiment {number}."))
