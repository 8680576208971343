"""The first run: three ways to bring data, each a line to copy."""

from typing import Final

import streamlit as st

from app.ui import draw
from app.ui.markup import Html, bold, div, join, link, tag
from app.ui.words import flagged

WAYS: Final = (
    (
        "Look at an incident",
        "Twelve recordings of real vLLM servers come with the program, one for each link. Nothing of yours is needed.",
        "weaklink demo",
    ),
    (
        "Bring a recording",
        "A folder, .zip or .tar.gz of what vLLM emits: server logs, recordings of /metrics, spans, KV events, client timings.",
        "weaklink load PATH",
    ),
    (
        "Watch a running server",
        "Its /metrics is scraped every second into the store; the pages follow. What a Prometheus holds: `weaklink collect --prometheus URL`.",
        "weaklink serve --target HOST:8000",
    ),
)


def first_run() -> None:
    """What this is, and how to bring data."""
    draw.html(head())
    for at, (column, (title, what, line)) in enumerate(zip(st.columns(3, gap="small"), WAYS, strict=True), 1):
        with column, st.container(key=f"card-way-{at}"):
            draw.html(join([tag("p", bold(f"{at} · {title}")), tag("p", flagged(what), look="wl-soft")]))
            st.code(line, language="bash")


def head() -> Html:
    """The answer of a store that holds nothing."""
    what = "Then this page says which link of the chain limits latency, by how many seconds, how sure that is, and what to try."
    ways = ["Three ways to bring data, each a line to copy; or here: ", link("upload", "Upload a bundle"), ". "]
    return div("wl-answer", tag("h1", "Nothing has been loaded yet."), tag("p", *ways, what), data_verdict="empty")
