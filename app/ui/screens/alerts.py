"""Alerts: which objective burns its error budget and what limits it; what another objective would have done."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import streamlit as st

from analyzers.alert import Silence
from analyzers.slo import KINDS, TIMED, Slo
from app.alerts import history, loop, outbox
from app.alerts.definitions import decoded, encoded, slo_of, table_of
from app.alerts.measure import query
from app.alerts.preview import Preview, preview, replay
from app.alerts.table import DefinitionError
from app.store import Store
from app.ui import decisions, draw, objectives, session
from app.ui.markup import div, join, tag
from app.ui.objectives import Objective
from app.ui.session import View
from app.ui.words import clock, zone

TITLE: Final = "Alerts"
NEW: Final = ""  # the form's "another objective"
PERIODS: Final = ("30d", "28d", "7d", "1d")
ALL: Final = ""  # the pickers' "all of them"
TURNS: Final = 40  # evaluations of a short recording
LIVE_S: Final = 5.0
_FORM: Final = "objective-form"
_SAID: Final = "objective-said"
_REPLAYED: Final = "objective-replayed"


def page(view: View) -> None:
    """Draw the page."""
    if view.judged is None and not view.recordings:
        draw.html(decisions.nothing(view))
    st.fragment(_state, run_every=LIVE_S if loop.running() else None)(view)
    _replays(view)
    _edit(view)
    _history(view)


def _interval(view: View) -> float:
    """Seconds between the evaluations of a preview: those of the server, but enough of them for a short recording."""
    every = loop.current().interval_s
    whole = view.whole()
    return max(1.0, min(every, (whole[1] - whole[0]) / TURNS)) if whole else every


def found(view: View) -> list[Objective]:
    """The objectives with their last evaluation and what they would have done in the window."""
    definitions = loop.current()
    filed, statuses = {slo.name for slo in definitions.slos}, history.statuses(view.store)
    return [
        Objective(slo, slo.name in filed, statuses.get(slo.name), previewed(view, slo))
        for slo in history.all_slos(view.store, definitions)
    ]


def previewed(view: View, slo: Slo) -> Preview:
    """What an objective would have done in the window, on the chosen engines."""
    names = json.dumps(view.chosen)
    return _previewed(view.mark, encoded(slo), view.low, view.high, _interval(view), names, view.store)


def _preview_now(mark: str, slo: str, low: float, high: float, interval_s: float, names: str, _store: Store) -> Preview:  # noqa: ARG001 mark is a part of the cache's key
    return preview(_store, decoded(slo), low, high, interval_s, json.loads(names))


_previewed: Callable[..., Preview] = st.cache_resource(max_entries=128, show_spinner=False)(_preview_now)


def _state(view: View) -> None:
    """What burns now, with its diagnosis, and all objectives."""
    shown = found(view)
    firing = history.alerts(view.store, firing=True, origin=history.LIVE)
    draw.html(objectives.head(shown, firing, loop.current().interval_s if loop.running() else None))
    slos = {one.slo.name: one.slo for one in shown}
    for alert in firing:
        with st.container(key=f"card-alert-{alert.alert_id}"):
            draw.html(objectives.alert_card(alert, slos.get(alert.slo), history.events_of(view.store, alert.alert_id)))
            _acknowledge(view, alert)
    if shown:
        with st.container(key="card-objectives"):
            draw.html(objectives.listed(shown))
    _silences(view)
    letters = [one for one in outbox.held(view.store) if one.sent_ts is None]
    if letters:
        with st.container(key="card-undelivered"):
            draw.html(objectives.undelivered(letters))


def _acknowledge(view: View, alert: history.Alert) -> None:
    """The button that says that somebody looks after it, and the silence."""
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small", key=f"ack-row-{alert.alert_id}"):
        if alert.acknowledged_by:
            draw.html(div("wl-title", f"Acknowledged by {alert.acknowledged_by}."), width="content")
        else:
            st.button(
                "Acknowledge",
                key=f"ack-{alert.alert_id}",
                on_click=history.acknowledge,
                args=(view.store, alert.alert_id, "dashboard"),
            )
        if st.button("Open as incident", key=f"incident-{alert.alert_id}"):
            st.session_state[session.ALERT] = alert.alert_id
            st.switch_page(st.session_state["pages"]["reports"])
        if alert.origin == history.LIVE:
            st.button("Silence for 2 h", key=f"silence-{alert.alert_id}", on_click=_silence, args=(view.store, alert))


def _silences(view: View) -> None:
    """What is silenced now, each with a button that ends it."""
    for number, silence, reason in history.silences(view.store, time.time()):
        with st.container(key=f"card-silence-{number}", horizontal=True, vertical_alignment="center"):
            named = " ".join(filter(None, (silence.slo or "all objectives", silence.severity)))
            draw.html(div("wl-title", f"Silenced until {clock(silence.end)} {zone()}: {named} ({reason})"), width="content")
            st.button("End", key=f"unsilence-{number}", on_click=_unsilence, args=(view.store, number))


def _unsilence(store: Store, number: int) -> None:
    history.end_silence(store, number, time.time())


def _silence(store: Store, alert: history.Alert) -> None:
    now = time.time()
    history.silence(store, Silence(alert.slo, alert.severity, now, now + 7200.0), "from the dashboard")


# -- replay -----------------------------------------------------------------------------------------------------------------------
def _replays(view: View) -> None:
    """Let an objective fire on what was recorded, and show the alert with its diagnosis."""
    names = [slo.name for slo in history.all_slos(view.store, loop.current())]
    if not names or view.judged is None:
        return
    with st.container(key="card-replayed"):
        draw.html(
            div(
                "wl-title",
                "Replay an objective over this window: its alerts are entered below with their diagnosis; nothing is sent",
            )
        )
        with st.container(horizontal=True, vertical_alignment="bottom", gap="small", key="replay-row"):
            name = st.selectbox("Objective to replay", names, key="replay-which", label_visibility="collapsed", width=300)
            if st.button("Replay", key="replay"):
                _replay(view, name)
        if done := st.session_state.get(_REPLAYED):
            _replayed(view, *done)


def _replayed(view: View, name: str, numbers: Sequence[int]) -> None:
    """What the last replay entered: the first alert in full."""
    if not numbers:
        draw.html(div("wl-answer", tag("p", f"{name} did not fire in this window."), data_replayed="0"))
        return
    made = [alert for alert in (history.alert_of(view.store, number) for number in numbers) if alert is not None]
    slos = {slo.name: slo for slo in history.all_slos(view.store, loop.current())}
    for alert in made[:1]:
        draw.html(
            div(
                "",
                objectives.alert_card(alert, slos.get(name), history.events_of(view.store, alert.alert_id)),
                data_replayed=str(len(made)),
            )
        )
        _acknowledge(view, alert)


def _replay(view: View, name: str) -> None:
    """Enter the alerts that the window would have raised, each with its diagnosis."""
    definitions = loop.current()
    slo = history.slo_named(view.store, definitions, name)
    with st.spinner("Evaluating, and asking what limits …"):
        made = replay(view.store, definitions, slo, view.low, view.high, _interval(view), list(view.chosen))
    st.session_state[_REPLAYED] = (name, [alert.alert_id for alert in made])
    st.rerun()


# -- add and edit ---------------------------------------------------------------------------------------------------------------
def _edit(view: View) -> None:
    """The form: an objective, previewed before it is saved."""
    mine = {slo.name: slo for slo in history.saved(view.store)}
    with st.container(key="card-edit"):
        draw.html(div("wl-title", "Add an objective, or change one that was made here"))
        chosen = NEW
        if mine:
            chosen = st.selectbox(
                "Objective", [NEW, *mine], key="edit-which", format_func=lambda name: name or "a new one", width=300
            )
        start = table_of(mine[chosen]) if chosen in mine else {}
        kind = st.selectbox(
            "Indicator", list(KINDS), key=f"edit-kind-{chosen}", format_func=objectives.kind_label,
            index=list(KINDS).index(start.get("kind", "ttft")), width=420,
        )  # fmt: skip
        with st.form(f"{_FORM}-{chosen}", border=False):
            given = _fields(view, kind, start, chosen)
            with st.container(horizontal=True, gap="small"):
                asked = st.form_submit_button("Preview", key=f"preview-{chosen}")
                saved = st.form_submit_button("Save", type="primary", key=f"save-{chosen}")
        if asked or saved:
            _answer(view, given, save=saved)
        elif said := st.session_state.pop(_SAID, None):
            draw.html(div("wl-title", said))
        if chosen in mine:
            st.button(f"Remove {chosen}", key="remove", on_click=history.remove, args=(view.store, chosen))


def _fields(view: View, kind: str, start: Mapping[str, Any], chosen: str) -> dict[str, Any]:
    """The form's fields as a definition table; what is left at its default is left out."""
    known = view.store.rows(query("engine"))
    engines = sorted({f"{instance}/{engine}" for instance, engine, _ in known})
    models = sorted({model for _, _, model in known if model})
    table: dict[str, Any] = {"kind": kind}
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small", key=f"fields-{chosen}"):
        table["name"] = st.text_input("Name", start.get("name", ""), key=f"edit-name-{chosen}", width=200, disabled=bool(chosen))
        if kind in TIMED:
            label = "TTFT at most" if kind == "goodput" else "At most"
            table["threshold"] = st.text_input(label, start.get("threshold", "1s"), key=f"edit-threshold-{chosen}", width=110)
        if kind == "goodput":
            table["tpot"] = st.text_input("TPOT at most", start.get("tpot", "50ms"), key=f"edit-tpot-{chosen}", width=110)
        share = st.number_input(
            "Good, %",
            0.1,
            99.999,
            100 * start.get("objective", 0.99),
            step=0.1,
            format="%.3f",
            key=f"edit-objective-{chosen}",
            width=130,
        )
        table["objective"] = round(share / 100, 8)
        period = start.get("period", PERIODS[0])
        periods = list(dict.fromkeys([*PERIODS, period]))
        table["period"] = st.selectbox("Over", periods, index=periods.index(period), key=f"edit-period-{chosen}", width=90)
        table["minimum"] = int(
            st.number_input("Events at least", 0, 100_000, start.get("minimum", 20), key=f"edit-minimum-{chosen}", width=130)
        )
        for key, names in (("model", models), ("engine", engines)):
            names = list(dict.fromkeys([ALL, *names, start.get(key, ALL)]))  # noqa: PLW2901 the one that is set is offered too
            picked = st.selectbox(
                key.capitalize(),
                names,
                index=names.index(start.get(key, ALL)),
                key=f"edit-{key}-{chosen}",
                format_func=lambda name: name or "all",
                width=220,
            )
            table |= {key: picked} if picked else {}
    kept = {key: start[key] for key in ("pending", "keep", "burn") if key in start}
    return {**table, **kept}


def _answer(view: View, given: Mapping[str, Any], *, save: bool) -> None:
    """What the form asks for: the preview, or the objective kept."""
    try:
        slo = slo_of(given, "objective")
    except DefinitionError as error:
        draw.html(div("wl-answer", tag("p", str(error)), data_preview="error"))
        return
    if not save:
        draw.html(objectives.previewed(previewed(view, slo)))
        return
    if slo.name in {one.name for one in loop.current().slos}:
        draw.html(div("wl-answer", tag("p", f"{slo.name} stands in the file: change it there."), data_preview="error"))
        return
    history.save(view.store, slo)
    st.session_state[_SAID] = f"{slo.name} is saved."
    st.rerun()


# -- history --------------------------------------------------------------------------------------------------------------------
def _history(view: View) -> None:
    """All alerts, newest first."""
    alerts = history.alerts(view.store)
    if alerts:
        with st.container(key="card-history"):
            draw.html(join([div("wl-title", "History"), objectives.history(alerts)]))
