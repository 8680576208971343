"""Reports: make a document of this window that can be sent, and find the incidents that were kept."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import streamlit as st

from analyzers.model import TARGETS
from app.alerts import history
from app.incident import kept
from app.incident.kept import Asked, Kept
from app.reporting import FORMATS, AlertError, Report, drawn, of_alert, report
from app.ui import decisions, draw
from app.ui.markup import Html, bold, div, join, row, table, tag
from app.ui.session import ALERT, View
from app.ui.words import LABELS, clock, plural, span

TITLE: Final = "Reports"
_MADE: Final = "report-made"
NONE: Final = "none"
BEFORE: Final = "as long before this window"
PREVIEW_PX: Final = 720
NAMES: Final = {"html": "HTML, one file with charts", "md": "Markdown, for an issue", "json": "JSON, for programs", "pdf": "PDF"}


def page(view: View) -> None:
    """Draw the page."""
    found = kept.rows(view.store)
    if view.judged is None and not found:
        draw.html(decisions.nothing(view))
        return
    said = "What you send says what limits, what it cost, what shows it, and where every number comes from. It opens offline."
    draw.html(div("wl-answer", tag("h1", "A report that you can send."), tag("p", said)))
    if view.judged is not None:
        _ask(view)
    if made := st.session_state.get(_MADE):
        _show(*made)
    _list(view, found)


def _ask(view: View) -> None:
    """The form: what is reported of the window that all pages show, or of an alert."""
    with st.container(key="card-report"):
        alert = _picked(view)
        base = _alert(view, alert) if alert is not None else None
        asked = base or _window(view)
        what = f"alert {alert}" if base else "this window"
        draw.html(div("wl-title", f"Report of {what}: {span(asked.start, asked.end) if asked.start else 'the whole recording'}"))
        with st.form(f"report-{alert}", border=False):
            title = st.text_input("Title", asked.title, placeholder="the verdict", key=f"report-title-{alert}")
            note = st.text_area(
                "Note", asked.note, height=80, key=f"report-note-{alert}", placeholder="what you saw, what you did"
            )
            with st.container(horizontal=True, vertical_alignment="bottom", gap="small", key="report-limits"):
                limits = {
                    name: st.text_input(f"{LABELS[name]} at most, s", key=f"report-slo-{name}", width=120, placeholder="none")
                    for name in TARGETS
                }
                baseline = st.selectbox("Baseline", _baselines(view), key="report-baseline", width=280, disabled=base is not None)
            with st.container(horizontal=True, vertical_alignment="center", gap="medium", key="report-switches"):
                redact = st.checkbox("Replace names of servers, models, files, requests", value=True, key="report-redact")
                data = st.checkbox("With the data of the window", key="report-data")
            with st.container(horizontal=True, gap="small", key="report-buttons"):
                make = st.form_submit_button("Make the report", type="primary", key="report-make")
                keep = st.form_submit_button("Keep as an incident", key="report-keep")
    if make or keep:
        _answer(view, replace(asked, title=title, note=note), limits, baseline, redact=redact, data=data, keep=keep)


def _picked(view: View) -> int | None:
    """The alert that is reported; None: the window."""
    alerts = {
        one.alert_id: f"alert {one.alert_id}: {one.slo}, {clock(one.fired_ts, day=True)} UTC"
        for one in history.alerts(view.store)
    }
    if not alerts:
        return None
    if st.session_state.get(ALERT) not in alerts:
        st.session_state[ALERT] = None
    chosen: int | None = st.selectbox(
        "Report of",
        [None, *alerts],
        key=ALERT,
        format_func=lambda one: alerts[one] if one is not None else "this window",
        width=420,
    )
    return chosen


def _alert(view: View, number: int) -> Asked | None:
    try:
        return of_alert(view.store, number)
    except AlertError:
        st.session_state.pop(ALERT, None)
        return None


def _window(view: View) -> Asked:
    """What all pages show, as what a report is asked of."""
    low, high = (None if abs(edge) == float("inf") else edge for edge in (view.low, view.high))
    return Asked(low, high, tuple(f"None{name}" if name.startswith("/") else name for name in view.chosen))


def _baselines(view: View) -> list[str]:
    whole = view.whole()
    earlier = whole is not None and view.judged is not None and view.judged.start is not None and view.judged.start - whole[0] > 1
    others = [one.bundle for one in view.recordings if one.bundle != view.pick.recording]
    return [NONE, *([BEFORE] if earlier else []), *(others if len(view.recordings) > 1 else [])]


def _compared(view: View, asked: Asked, chosen: str) -> Asked:
    """With the window of the chosen baseline."""
    judged = view.judged
    if chosen == BEFORE and judged is not None and judged.start is not None and judged.end is not None:
        return replace(asked, baseline=(judged.start - (judged.end - judged.start), judged.start), baseline_engines=asked.engines)
    for one in view.recordings:
        if one.bundle == chosen and one.start is not None and one.end is not None:
            rows = view.store.rows(
                "SELECT DISTINCT instance || '/' || engine FROM quantity_series WHERE engine <> '' AND list_contains(?, instance)",
                [list(one.instances)],
            )
            return replace(asked, baseline=(one.start, one.end), baseline_engines=tuple(sorted(name for (name,) in rows)) or None)
    return asked


def _answer(
    view: View, asked: Asked, limits: dict[str, str], baseline: str, *, redact: bool, data: bool, keep: bool
) -> None:  # fmt: skip
    """Make the report, or keep what it is asked of; say what cannot be read."""
    try:
        slo = {name: float(text.replace(",", ".").removesuffix("s")) for name, text in limits.items() if text.strip()}
    except ValueError:
        draw.html(div("wl-answer", tag("p", "Limits are seconds, such as 2 or 0.05."), data_report="error"))
        return
    asked = replace(asked, slo=slo)
    asked = asked if asked.baseline else _compared(view, asked, baseline)
    made = _make(view, asked, redact=redact, data=data)
    if keep:
        number = kept.keep(view.store, asked, made.verdict)
        st.session_state[_MADE] = (made, f"Kept as incident {number}.")
    else:
        st.session_state[_MADE] = (made, "")
    st.rerun()


def _make(view: View, asked: Asked, *, redact: bool, data: bool) -> Report:
    with st.status("Making the report …", expanded=False) as status:
        made = report(
            view.store, asked, redact=redact, with_data="incident-data.zip" if data else None,
            progress=lambda what: status.update(label=f"{what.capitalize()} …"),
        )  # fmt: skip
        status.update(label="Made.", state="complete")
    return made


def _show(made: Report, said: str) -> None:
    """Downloads, what was replaced, and the preview."""
    with st.container(key="card-made"):
        draw.html(
            div(
                "wl-answer",
                tag("p", bold(made.plain["title"] or made.summary)),
                tag("p", said) if said else None,
                data_report="made",
            )
        )
        with st.container(horizontal=True, gap="small", key="report-downloads"):
            for output, media in FORMATS.items():
                _download(made, output, media)
            if made.data is not None:
                st.download_button(
                    "Data", made.data.data, file_name=made.plain["data"]["name"], mime="application/zip", key="report-get-data", on_click="ignore",
                )  # fmt: skip
        if made.data is not None:
            draw.html(div("wl-title", f"Data: {made.plain['data']['says']}."))
        if made.redactor is not None:
            with st.expander(
                f"What was replaced: {', '.join(f'{n} {kind}' for kind, n in made.plain['replaced'].items()) or 'nothing'}"
            ):
                draw.html(_replaced(made))
        st.iframe(_preview(made), height=PREVIEW_PX, alt="The report as it is printed")


def _download(made: Report, output: str, media: str) -> None:
    """A button that draws the format when it is pressed."""
    try:
        import weasyprint  # noqa: F401, PLC0415 an extra

        missing = False
    except (ImportError, OSError):
        missing = True
    if output == "pdf" and missing:
        st.button("PDF", disabled=True, help="pip install 'weaklink[pdf]'", key="report-get-pdf")
        return
    st.download_button(
        output.upper() if output != "md" else "Markdown", data=lambda: drawn(made.plain, output), file_name=f"{_name(made)}.{output}", mime=media,
        key=f"report-get-{output}", help=NAMES[output], on_click="ignore",
    )  # fmt: skip


def _name(made: Report) -> str:
    """A name for the file: of the title, with nothing that a path could be made of."""
    words = re.sub(r"[^a-z0-9]+", "-", str(made.plain["title"] or made.summary).lower()).strip("-")
    return words[:60].strip("-") or "incident"


def _preview(made: Report) -> str:
    from app.reports.sheet import page as sheet  # noqa: PLC0415 only where there is one

    return sheet(made.plain, still=True)


def _replaced(made: Report) -> Html:
    """Which word stands for what: for whoever sends it, never a part of the report."""
    assert made.redactor is not None
    counts = made.redactor.counted()
    few = {word: found for word, found in made.redactor.listed().items() if counts[word.rpartition("-")[0]] <= 50}
    rows = [row((word, text, str(places)), numbers=(2,)) for word, (text, places) in few.items()]
    many = [f"{count:,} different {kind} ids or names, each by a word of its own" for kind, count in counts.items() if count > 50]
    return join([table((("word", ""), ("stands for", ""), ("places", "num")), rows), *(tag("p", text) for text in many)])


# -- what was kept ----------------------------------------------------------------------------------------------------------------
def _list(view: View, found: Sequence[Kept]) -> None:
    """The incidents of the store, each with its notes."""
    if not found:
        return
    draw.html(div("wl-title", f"{plural(len(found), 'incident')} kept in this store"))
    for one in found:
        with st.container(key=f"card-incident-{one.number}"):
            draw.html(incident(one))
            _tools(view, one)


def incident(one: Kept) -> Html:
    """An incident of the store."""
    asked = one.asked
    title = tag("p", bold(f"{one.number}. {asked.title or one.verdict}"))
    facts = [
        span(asked.start, asked.end) if asked.start is not None else "the whole recording",
        f"kept {clock(one.made_ts, day=True)} UTC",
    ]
    facts += [f"alert {asked.alert_id}"] if asked.alert_id is not None else []
    lines = [tag("li", f"{clock(ts, day=True)} UTC: {said}") for ts, said in one.notes]
    parts: list[Any] = [title, tag("p", " · ".join(facts))]
    parts += [tag("p", one.verdict)] if asked.title else []
    parts += [tag("p", asked.note)] if asked.note else []
    return div("wl-answer", *parts, tag("ul", *lines, look="wl-notes") if lines else None, data_incident=str(one.number))


def _tools(view: View, one: Kept) -> None:
    with (
        st.form(f"note-{one.number}", border=False, clear_on_submit=True),
        st.container(horizontal=True, vertical_alignment="bottom", gap="small"),
    ):
        said = st.text_input("Note", key=f"incident-note-{one.number}", label_visibility="collapsed", placeholder="add a note")
        noted = st.form_submit_button("Add", key=f"incident-add-{one.number}")
    if noted and said.strip():
        kept.note(view.store, one.number, said.strip())
        st.rerun()
    with st.container(horizontal=True, gap="small", key=f"incident-tools-{one.number}"):
        if st.button("Make the report", key=f"incident-make-{one.number}"):
            st.session_state[_MADE] = (_make(view, one.asked, redact=True, data=False), f"Incident {one.number}.")
            st.rerun()
        st.button("Remove", key=f"incident-remove-{one.number}", on_click=kept.remove, args=(view.store, one.number))
