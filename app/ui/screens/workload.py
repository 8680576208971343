"""Workload: what is asked of the server, what it can give, and where these wishes conflict."""

import math
from collections.abc import Sequence
from typing import Any, Final

import streamlit as st

from analyzers.capacity import Sheet, sheet
from analyzers.case import Case
from analyzers.hypotheses.objectives import Objective, conflicts, objectives
from analyzers.workload import Lengths, Workload
from app.ui import decisions, draw
from app.ui.markup import Html, bold, div, join, row, table, tag
from app.ui.session import View
from app.ui.words import DASH, THIN, TITLES, count, number, percent, titled

TITLE: Final = "Workload"
NAMES: Final = {"ttft": "TTFT", "tpot": "TPOT", "throughput": "Throughput", "capacity": "Capacity", "isolation": "Isolation"}
LOOPS: Final = {
    "open": "open: arrivals do not wait for answers",
    "closed": "closed: a fixed number of clients",
    "unknown": "not known",
}


def page(view: View) -> None:
    """Draw the page."""
    if view.judged is None:
        draw.html(decisions.nothing(view))
        return
    case = decisions.case(view)
    draw.html(head(case.work))
    draw.html(div("wl-strip", *strip(case.work)))
    left, right = st.columns([3, 2], gap="small")
    with left:
        with st.container(key="card-lengths"):
            draw.html(lengths(case.work))
        with st.container(key="card-objectives"):
            draw.html(wishes(objectives(case)))
    with right:
        with st.container(key="card-conflicts"):
            draw.html(notes("Where objectives conflict for this workload", conflicts(case), "No conflict shows in this window."))
        with st.container(key="card-drift"):
            said = decisions.drift(view)
            draw.html(
                notes(
                    "From the first to the second half of the window",
                    said,
                    "Rates and lengths stay within 15 %, or there is no clock.",
                )
            )
    with st.container(key="card-capacity"):
        capacity(case)


def head(work: Workload) -> Html:
    """The stream in a sentence, and in one paragraph."""
    rate = f"{number(work.rate_per_s)} requests a second" if work.rate_per_s else f"{count(work.requests)} requests"
    sizes = [f"{count(x.mean)} tokens {word}" for word, x in (("in", work.prompt), ("out", work.output)) if x]
    said = work.says[:1].upper() + work.says[1:]
    return div("wl-answer", tag("h1", f"{rate}, {' and '.join(sizes)} each" if sizes else rate), tag("p", said))


def strip(work: Workload) -> list[Html]:
    """The stream as cards."""
    burst = "unknown" if work.dispersion is None else number(work.dispersion, 2)
    shared = (
        "what could hit needs block identities (KV events)"
        if work.shared_ratio is None
        else f"{percent(work.shared_ratio)} could hit"
    )
    kv = work.kv_bytes_per_token
    return [
        card(
            "Arrivals",
            "unknown" if work.rate_per_s is None else f"{number(work.rate_per_s)}/s",
            f"{count(work.requests)} requests finished",
        ),
        card("Burstiness", burst, "variance of arrivals over their mean; 1 is Poisson"),
        card(
            "In flight",
            "unknown" if work.in_flight_mean is None else count(work.in_flight_mean),
            f"{count(work.in_flight_max)} at most; loop {LOOPS[work.loop]}",
        ),
        card("Prefix hits", percent(work.hit_ratio), shared),
        card("Model", work.shape.partition(",")[0], work.shape.partition(",")[2].strip() or "give the model's config.json"),
        card(
            "KV per token",
            "unknown" if kv is None else f"{kv / 1024:.0f} KiB",
            "on each GPU; " + (", ".join(work.modality) or "text only, as far as seen"),
        ),
    ]


def card(title: str, big: str, under: str) -> Html:
    """One number with its title and what it means."""
    return div(
        "wl-card", div("wl-title", title), div("wl-big none" if big == "unknown" else "wl-big", big), div("wl-under", under)
    )


def lengths(work: Workload) -> Html:
    """Prompts and outputs: mean and quantiles."""
    heads = (("tokens", ""), ("mean", "num"), ("p50", "num"), ("p95", "num"), ("p99", "num"), ("spread and source", ""))
    rows = [_lengths(name, found) for name, found in (("prompts", work.prompt), ("outputs", work.output))]
    return join([div("wl-title", "Lengths"), table(heads, rows)])


def _lengths(name: str, found: Lengths | None) -> Html:
    if found is None:
        return row((name, "unknown", "", "", "", "no lengths were recorded"), numbers=(1,))
    quantiles = [count(found.quantiles[q]) if q in found.quantiles else DASH for q in ("p50", "p95", "p99")]
    said = f"standard deviation {number(found.cv, 2)} of the mean; {found.how}"
    heads = {1: "mean", 2: "p50", 3: "p95", 4: "p99"}
    return row((name, count(found.mean), *quantiles, said), numbers=(1, 2, 3, 4), heads=heads)


def wishes(found: Sequence[Objective]) -> Html:
    """What can be wanted, what it is now, what limits it."""
    heads = (("objective", ""), ("now", "num"), ("limited by", ""), ("what it is made of", ""))
    rows = [
        row(
            (NAMES[o.name], o.now, TITLES.get(o.limited_by or "", o.limited_by or DASH).replace(" ", THIN), titled(o.says)),
            numbers=(1,),
        )
        for o in found
    ]
    return join([div("wl-title", "Objectives"), table(heads, rows)])


def notes(title: str, said: Sequence[str], otherwise: str) -> Html:
    """A list of sentences under a title."""
    inside = (
        tag("ul", *(tag("li", text) for text in said), look="wl-notes")
        if said
        else tag("p", otherwise, style="margin-top:.35rem")
    )
    return join([div("wl-title", title), inside])


# -- capacity -------------------------------------------------------------------------------------------------------------------
def capacity(case: Case) -> None:
    """The capacity sheet, for a context and a concurrency that can be chosen."""
    longest = [x.quantiles.get("p99", x.mean) for x in (case.work.prompt, case.work.output) if x]
    usual = sum(x for x in longest if math.isfinite(x))
    draw.html(div("wl-title", "Capacity: do contexts fit into the KV blocks of one engine?"))
    with st.container(horizontal=True, gap="small", key="wanted"):
        context = st.number_input(
            "Tokens of a context", 1, 10_000_000, max(1, round(usual) or 1000), 500, key="context", width=220
        )
        at_once = st.number_input(
            "Contexts at once", 1, 1_000_000, max(1, round(case.work.in_flight_engine_max or 1)), 1, key="at_once", width=220
        )
    draw.html(held(sheet(case.engine, float(context), float(at_once))))


def held(found: Sheet) -> Html:
    """The answer, where the memory goes, and the options."""
    m = found.memory

    def gib(value: float) -> str:
        return f"{number(value)} GiB" if math.isfinite(value) else "unknown"

    said: list[Any] = [bold(found.says)]
    said.append(
        f" Of {gib(m.gpu_gib)} on a GPU vLLM may take {100 * m.share:.0f} %: weights {gib(m.weights_gib)}, KV blocks {gib(m.kv_gib)} of {gib(m.room_gib)} that could."
    )
    heads = (("option, each alone", ""), ("contexts", "num"), ("fits", ""), ("flags", ""), ("conditions", ""))
    rows = [
        row(
            (
                o.name,
                number(o.contexts),
                "unknown" if o.fits is None else "yes" if o.fits else "no",
                join([tag("code", flag) for flag in o.flags], " "),
                "; ".join(o.conditions) or DASH,
            ),
            numbers=(1,),
            look="" if o.fits else "quiet",
            heads={1: "contexts", 2: "fits"},
        )
        for o in found.options
    ]
    ground = tag("ul", *(tag("li", text) for text in found.conditions), look="wl-notes")
    return join([tag("p", *said), table(heads, rows), ground])
