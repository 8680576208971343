"""Data: what has been loaded, what became of each file, and how to add more."""

import re
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Final
from urllib.parse import urlencode

import streamlit as st

from app.ingest import BundleError, FileResult, load
from app.ui import draw, session
from app.ui.markup import Html, div, join, link, row, table, tag
from app.ui.session import Recording, View
from app.ui.sources import sources
from app.ui.words import DASH, count, date, length, plural, span

TITLE: Final = "Data"
ARCHIVES: Final = (".zip", ".tar", ".tar.gz", ".tgz")
MAX_UPLOAD_MB: Final = 2000
WHAT: Final = (
    "Server logs, recordings of /metrics, KV events, spans, request lines of a load generator, the command line: whatever there is, "
    "in one .zip or .tar.gz or as single files. Files given together explain each other. Prompts and outputs are dropped while "
    "reading; nothing leaves this machine."
)
CURL: Final = "curl -H 'X-Weaklink: upload' --data-binary @bundle.zip 'http://HOST:PORT/api/bundles?name=bundle.zip'"
SEND: Final = "kubectl logs -f POD | weaklink ingest - --to http://HOST:PORT"
_CHUNK: Final = 1 << 20
_KNOWN: Final = re.compile(r"already loaded \(as ([^/]+)/")  # a file that came before: its bundle
_DONE: Final = "uploaded"


def page(view: View) -> None:
    """Draw the page."""
    draw.html(div("wl-answer", tag("h1", "Give it what vLLM already wrote."), tag("p", WHAT)))
    if not getattr(view.store, "may_write", True):
        draw.html(div("wl-title", "This login may look, not change: an admin can add recordings."))
        _loaded(view)
        return
    with st.form("upload", clear_on_submit=True, border=False):
        given = st.file_uploader(
            "Bundles or files", accept_multiple_files=True, max_upload_size=MAX_UPLOAD_MB, label_visibility="collapsed"
        )
        pressed = st.form_submit_button("Load", type="primary")
    if pressed and given:
        with st.status("Reading …", expanded=True) as status:
            st.session_state[_DONE] = take(view, given, status)
            status.update(label="Read.", state="complete", expanded=False)
        st.rerun()
    elif pressed:
        draw.html(div("wl-title", "Choose a file first."))
    done = st.session_state.get(_DONE)
    if done:
        _report(view, *done)
    _loaded(view)
    by_hand = [tag("code", "weaklink load PATH"), " while the dashboard is not running, or ", tag("code", CURL)]
    by_hand += [". A log as it grows: ", tag("code", SEND)]
    draw.html(div("wl-title", f"Larger than {MAX_UPLOAD_MB:,} MB, or from a script: ", *by_hand))
    sources(view)


def take(view: View, given: Sequence[Any], status: Any) -> tuple[list[FileResult], list[str]]:
    """Load uploads: each archive is a bundle, the single files together are one. Results, and what could not be used at all."""
    results: list[FileResult] = []
    problems: list[str] = []
    with tempfile.TemporaryDirectory(prefix="weaklink-") as folder:
        stamp = datetime.now(UTC).strftime("%Y-%m-%d-%H%M%S")
        loose = Path(folder) / f"upload-{stamp}"
        paths: list[Path] = []
        for at, one in enumerate(given):
            name = Path(one.name).name or f"file-{at}"
            archive = name.lower().endswith(ARCHIVES)
            place = Path(folder) / str(at) if archive else loose
            place.mkdir(exist_ok=True)
            path = place / name
            if path.exists():
                path = place / f"{at}-{name}"
            copy(one, path)
            if archive:
                paths.append(path)
        if loose.is_dir():
            held = sorted(loose.iterdir())
            paths.append(held[0] if len(held) == 1 else loose)
        for path in paths:
            try:
                results += load(view.store, [path], progress=lambda name: status.update(label=f"Reading {name} …"))
                view.store.note("upload", path.name)
            except BundleError as error:
                problems.append(str(error).replace(f"{folder}/", ""))
    return results, problems


def copy(source: IO[bytes], path: Path) -> None:
    """Write an upload to disk in pieces, so that it is in memory once."""
    source.seek(0)
    with path.open("wb") as file:
        while piece := source.read(_CHUNK):
            file.write(piece)


def _report(view: View, results: Sequence[FileResult], problems: Sequence[str]) -> None:
    """What became of the files of the last upload, and the way to the answer."""
    for problem in problems:
        st.error(problem, icon=":material/error:")
    if not results:
        return
    read = sum(one.added for one in results)
    before = [match[1] for one in results if (match := _KNOWN.match(one.message))]
    bundles = {*(one.bundle for one in results), *before}
    found = [one.bundle for one in view.recordings if one.bundle in bundles]
    with st.container(key="card-results"):
        said = f"{plural(read, 'file')} read of {len(results)}" + (f", {len(before)} already there" if before else "")
        with st.container(horizontal=True, vertical_alignment="center", key="results-head"):
            draw.html(tag("b", said))
            if read or before:
                newest = found[-1] if found and len(view.recordings) > 1 else None
                params = replace(view.pick, recording=newest, engine=None, start=None, end=None).params()
                st.page_link(st.session_state["pages"]["overview"], label="See what limits it →", query_params=params or None)
        draw.html(files(results))


def files(results: Sequence[FileResult]) -> Html:
    """One row a file: format, lines, what was rejected and why, what is asked."""
    heads = (("file", ""), ("format", ""), ("lines read", "num"), ("rejected", "num"), ("what to know", ""))
    return table(heads, [_file(one) for one in results])


def _file(one: FileResult) -> Html:
    sign = ("◐" if one.rejected else "✓") if one.added else "○" if one.format else DASH
    said = [one.message, *(f"{one.name}, {reason}" for reason in one.reasons)]
    cells = (
        join([tag("span", sign, look="wl-mark"), one.name]),
        one.format or "not recognised",
        count(one.lines) if one.format else "",
        count(one.rejected) if one.rejected else "",
        join(said, tag("br")),
    )
    return row(cells, numbers=(2, 3), look="" if one.added else "quiet", heads={2: "lines", 3: "rejected"})


def _loaded(view: View) -> None:
    """Every bundle of the store, newest first."""
    if not view.recordings:
        said = ["Drop files above, or from a shell: ", tag("code", "weaklink load PATH"), "."]
        draw.html(div("wl-blank", tag("b", "Nothing has been loaded yet."), tag("br"), *said, data_empty="1"))
        return
    rows = [_recording(one, alone=len(view.recordings) == 1) for one in reversed(view.recordings)]
    with st.container(key="card-loaded"):
        title = div("wl-title", f"{plural(len(rows), 'recording')} in the store")
        draw.html(join([title, table((("bundle", ""), ("servers", ""), ("measured", "num")), rows)]))


def _recording(one: Recording, *, alone: bool) -> Html:
    """A row of the table of bundles; with several, the name leads to what limits it."""
    when = "no clock"
    if one.start is not None and one.end is not None:
        when = f"{date(one.start)}, {span(one.start, one.end)} · {length(one.end - one.start)}"
    to = f"./?{urlencode(session.Pick(recording=one.bundle).params())}"
    return row((one.bundle if alone else link(to, one.bundle), ", ".join(one.instances), when), numbers=(2,))
