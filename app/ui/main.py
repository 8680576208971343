"""The frame of the dashboard: brand, pages, and the picks that all pages share (target, engine, window).

Streamlit runs this file for every interaction; the modules it imports stay loaded.
"""

import math
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib.resources import files
from types import ModuleType
from typing import Final

import streamlit as st

from analyzers.model import TARGETS
from app.ui import draw, session, shared
from app.ui.markup import div
from app.ui.screens import PAGES
from app.ui.session import View
from app.ui.words import LABELS, length, plural, span

LAST: Final = {"5 min": 300, "15 min": 900, "1 h": 3600, "6 h": 21600, "24 h": 86400}
ZONES: Final = {"utc": "UTC", "local": "local time"}
# pages that are not drawn again by themselves: forms, and replays that take seconds
STILL: Final = {f"app.ui.screens.{name}" for name in ("workload", "hypotheses", "experiments", "alerts", "upload")}
UNLISTED: Final = {"link"}  # pages that others lead to: in the navigation only while they are open
ALL: Final = ""  # the engine picker's "all of them", the recording picker's "the newest"


def frame() -> None:
    """Draw brand, navigation and picks, then the page."""
    st.set_page_config(page_title="weaklink", page_icon=str(files("app.ui").joinpath("mark.svg")), layout="wide")
    draw.style()
    view = session.view()
    pages = {
        _path(module): st.Page(
            partial(_page, module, view), title=module.TITLE, url_path=_path(module), default=module is PAGES[0]
        )
        for module in PAGES
    }
    st.session_state["pages"] = pages
    current = st.navigation(list(pages.values()), position="hidden")
    with st.container(key="top", horizontal=True, vertical_alignment="center", gap="xxsmall"):
        draw.html(div("wl-brand", "weaklink"), width="content")
        for name, page in pages.items():
            if name in UNLISTED and page.url_path != current.url_path:
                continue
            with st.container(key="here" if page.url_path == current.url_path else f"go-{name}", width="content"):
                st.page_link(page, label=page.title, query_params=view.pick.shared() or None)
        with st.container(key="picks", horizontal=True, horizontal_alignment="right", vertical_alignment="center", gap="xsmall"):
            if view.recordings:
                picks(view)
    if view.missing:
        draw.html(div("wl-note", f"There is no recording {view.pick.recording} in the store: this is the newest."))
    current.run()


def _page(module: ModuleType, view: View) -> None:
    """Draw a page; where it shows what is being scraped, again and again."""
    live = any(one.bundle == session.LIVE and set(one.instances) & set(view.instances) for one in view.recordings)
    if live and module.__name__ not in STILL:
        follow(module, view)
        return
    module.page(view)
    if live:
        _tell(view.mark)


def follow(module: ModuleType, view: View) -> None:
    """Draw the content of a page in place, again and again, while the frame stands still."""
    given = [view]  # judged a moment ago: good for the first time, whatever came in meanwhile

    def content() -> None:
        if session.picked() != view.pick:  # a drag in here: the frame shows the window, too
            st.rerun()
        module.page(given.pop() if given else view if shared.mark() == view.mark else session.view())

    with st.container(key="live"):
        st.fragment(content, run_every=shared.FOLLOW_S)()


def _tell(mark: str) -> None:
    """On a page that costs much to draw: say that scrapes came in since it was drawn."""

    def look() -> None:
        if shared.mark() != mark and st.button("New scrapes came in: draw the page again", key="redraw"):
            st.rerun()

    st.fragment(look, run_every=shared.FOLLOW_S)()


def _path(module: ModuleType) -> str:
    return module.__name__.rpartition(".")[2]


def picks(view: View) -> None:
    """Target, engine and window; each changes the address too."""
    st.session_state["target"] = view.pick.target
    st.segmented_control(
        "Target",
        list(TARGETS),
        key="target",
        format_func=lambda name: LABELS[name],
        label_visibility="collapsed",
        required=True,
        on_change=lambda: session.choose(target=st.session_state["target"]),
    )
    _engine(view)
    _window(view)


def _engine(view: View) -> None:
    """The engine picker; with one engine only its name."""
    models = ", ".join(view.judged.models) if view.judged else ""
    if len(view.engines) < 2:
        name = f"{models} · " if models else ""
        with st.popover(f"{name}{plural(len(view.engines), 'engine')}", type="secondary"):
            draw.html(div("wl-title", ", ".join(view.engines) or "no engine in this window"))
        return
    st.session_state["engine"] = view.pick.engine if view.pick.engine in view.engines else ALL
    with st.popover(_short(view, models), type="secondary"):
        _model(view)
        st.selectbox(
            "Engine",
            [ALL, *view.engines],
            key="engine",
            format_func=lambda name: name or f"all {len(view.engines)} engines",
            on_change=lambda: session.choose(engine=st.session_state["engine"] or None),
        )


def _model(view: View) -> None:
    """The model picker, where there are several."""
    names = sorted({name for name in view.models.values() if name})
    if len(names) < 2:
        return
    st.session_state["model"] = view.pick.model if view.pick.model in names else ALL
    st.selectbox(
        "Model", [ALL, *names], key="model", format_func=lambda name: name or f"all {len(names)} models", on_change=_modelled
    )


def _modelled() -> None:
    session.choose(model=st.session_state["model"] or None, engine=None)


def _short(view: View, models: str) -> str:
    chosen = view.chosen[0] if len(view.chosen) == 1 else f"{len(view.engines)} engines"
    return f"{models} · {chosen}" if models else chosen


def _window(view: View) -> None:
    """The window, and the recordings to choose from."""
    start = view.judged.start if view.judged else view.pick.start
    end = view.judged.end if view.judged else view.pick.end
    timed = start is not None and end is not None
    label = f"{span(start, end)} · {length(end - start)}" if start is not None and end is not None else "no clock"
    with st.popover(label, type="secondary"):
        if len(view.recordings) > 1:
            _recording(view)
        whole = view.whole()
        if timed and whole:
            _slider(view, whole)
            _last(whole)
        if view.pick.start is not None or view.pick.end is not None:
            st.button("Whole recording", on_click=session.choose, kwargs={"start": None, "end": None}, key="reset")
        draw.html(div("wl-title", "Drag over a chart to set it exactly."))
        st.session_state["zone"] = view.pick.zone
        st.segmented_control(
            "Times in",
            list(ZONES),
            key="zone",
            format_func=ZONES.__getitem__,
            required=True,
            on_change=lambda: session.choose(zone=st.session_state["zone"]),
        )


def _recording(view: View) -> None:
    """The picker of recordings, the newest first."""
    names = {ALL: "the newest", session.EVERYTHING: "all together, as one fleet"}
    names |= {one.bundle: one.bundle for one in reversed(view.recordings)}
    st.session_state["recording"] = view.pick.recording if view.pick.recording in names else ALL
    st.selectbox("Recording", list(names), key="recording", format_func=names.__getitem__, on_change=_recorded)


def _recorded() -> None:
    session.choose(recording=st.session_state["recording"] or None, start=None, end=None, engine=None)


def _slider(view: View, whole: tuple[float, float]) -> None:
    low, high = datetime.fromtimestamp(int(whole[0]), UTC), datetime.fromtimestamp(int(whole[1]) + 1, UTC)
    chosen = (
        low if view.pick.start is None else max(low, datetime.fromtimestamp(int(view.pick.start), UTC)),
        high if view.pick.end is None else min(high, datetime.fromtimestamp(math.ceil(view.pick.end), UTC)),
    )
    if not low <= chosen[0] < chosen[1] <= high:
        return
    st.session_state["window"] = chosen
    step = timedelta(seconds=max(1, round((high - low).total_seconds() / 1000)))
    st.slider("Window (UTC)", min_value=low, max_value=high, key="window", step=step, format="HH:mm:ss", on_change=_slid)


def _last(whole: tuple[float, float]) -> None:
    """Buttons for the last minutes and hours of a long recording."""
    shorter = {name: seconds for name, seconds in LAST.items() if seconds < whole[1] - whole[0]}
    if not shorter:
        return
    with st.container(horizontal=True, gap="xxsmall", key="last"):
        for name, seconds in shorter.items():
            window = {"start": whole[1] - seconds, "end": None}
            st.button(f"last {name}", key=f"last-{name}", on_click=session.choose, kwargs=window)
        st.button("all", key="last-all", on_click=session.choose, kwargs={"start": whole[0], "end": None})


def _slid() -> None:
    start, end = st.session_state["window"]
    session.choose(start=start.timestamp(), end=end.timestamp())


if __name__ == "__main__":
    frame()
