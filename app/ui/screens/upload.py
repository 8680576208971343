"""Data: what has been loaded, what became of each file, and how to add more."""

import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Final
from urllib.parse import urlencode

import streamlit as st

from app.ingest import BundleError, FileResult, load
from app.ui import draw, session
from app.ui.session import Recording, View
from app.ui.words import count, date, esc, length, plural, span

TITLE: Final = "Data"
ARCHIVES: Final = (".zip", ".tar", ".tar.gz", ".tgz")
MAX_UPLOAD_MB: Final = 2000
_CHUNK: Final = 1 << 20
_DONE: Final = "uploaded"


def page(view: View) -> None:
    """Draw the page."""
    draw.html(
        '<div class="wl-answer"><h1>Give it what vLLM already wrote.</h1><p>Server logs, recordings of /metrics, KV events, spans, request lines of a '
        "load generator, the command line: whatever there is, in one .zip or .tar.gz or as single files. Files given together explain each other. "
        "Prompts and outputs are dropped while reading; nothing leaves this machine.</p></div>",
    )
    with st.form("upload", clear_on_submit=True, border=False):
        given = st.file_uploader("Bundles or files", accept_multiple_files=True, max_upload_size=MAX_UPLOAD_MB, label_visibility="collapsed")
        pressed = st.form_submit_button("Load", type="primary")
    if pressed and given:
        with st.status("Reading …", expanded=True) as status:
            st.session_state[_DONE] = take(view, given, status)
            status.update(label="Read.", state="complete", expanded=False)
        st.rerun()
    elif pressed:
        draw.html('<div class="wl-title">Choose a file first.</div>')
    done = st.session_state.get(_DONE)
    if done:
        _report(view, *done)
    _loaded(view)
    draw.html(
        f'<div class="wl-title">Larger than {MAX_UPLOAD_MB:,} MB, or from a script: <code>weaklink load PATH</code> while the dashboard is not running, or '
        "<code>curl -H 'X-Weaklink: upload' --data-binary @bundle.zip 'http://HOST:PORT/api/bundles?name=bundle.zip'</code></div>",
    )


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
    read = [one for one in results if one.added]
    known = [one for one in results if one.format and not one.added and "already loaded" in one.message]
    bundles = {one.bundle for one in results}
    found = [one for one in view.recordings if one.bundle in bundles]
    with st.container(key="card-results"):
        said = f"{plural(len(read), 'file')} read of {len(results)}" + (f", {len(known)} already there" if known else "")
        with st.container(horizontal=True, vertical_alignment="center", key="results-head"):
            draw.html(f'<div class="wl-title"><b style="color:var(--ink)">{said}</b></div>')
            if read or known:
                newest = found[-1].bundle if found and len(view.recordings) > 1 else None
                params = session.Pick(recording=newest).params()
                st.page_link(st.session_state["pages"]["overview"], label="See what limits it →", query_params=params or None)
        draw.html(table(results))


def table(results: Sequence[FileResult]) -> str:
    """One row a file: format, lines, what was rejected and why, what is asked."""
    rows = []
    for one in results:
        sign = "✓" if one.added else "○" if one.format else "–"
        rejected = count(one.rejected) if one.rejected else ""
        said = [one.message] if one.message else []
        said += [f"{one.name}, {reason}" for reason in one.reasons]
        rows.append(
            f'<tr class="{"" if one.added else "quiet"}"><td><span class="wl-mark">{sign}</span>{esc(one.name)}</td><td>{esc(one.format or "not recognised")}</td>'
            f'<td class="num" data-head="lines">{count(one.lines) if one.format else ""}</td><td class="num" data-head="rejected">{rejected}</td>'
            f"<td>{'<br>'.join(esc(line) for line in said)}</td></tr>",
        )
    return (
        '<table class="wl-table"><thead><tr><th>file</th><th>format</th><th class="num">lines read</th><th class="num">rejected</th><th>what to know</th></tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table>"
    )


def _loaded(view: View) -> None:
    """Every bundle of the store, newest first."""
    if not view.recordings:
        draw.html('<div class="wl-blank" data-empty="1"><b>Nothing has been loaded yet.</b><br>Drop files above, or from a shell: <code>weaklink load PATH</code>.</div>')
        return
    rows = "".join(_recording(one, alone=len(view.recordings) == 1) for one in reversed(view.recordings))
    with st.container(key="card-loaded"):
        draw.html(
            f'<div class="wl-title">{plural(len(view.recordings), "recording")} in the store</div><table class="wl-table"><thead><tr><th>bundle</th><th>servers</th>'
            f'<th class="num">measured</th></tr></thead><tbody>{rows}</tbody></table>',
        )


def _recording(one: Recording, *, alone: bool) -> str:
    """A row of the table of bundles; with several, the name leads to what limits it."""
    when = "no clock"
    if one.start is not None and one.end is not None:
        when = f"{date(one.start)}, {span(one.start, one.end)} · {length(one.end - one.start)}"
    name = esc(one.bundle)
    if not alone:
        name = f'<a href="./?{esc(urlencode(session.Pick(recording=one.bundle).params()))}" target="_self">{name}</a>'
    return f'<tr><td>{name}</td><td>{esc(", ".join(one.instances))}</td><td class="num">{esc(when)}</td></tr>'
