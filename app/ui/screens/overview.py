"""Overview: which link limits latency, by how much, how sure is that, and what to try next?"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pandas as pd
import streamlit as st

from analyzers.model import Attribution, Level, Target
from app.ui import draw, session
from app.ui.chain import chain, unmeasured
from app.ui.ledger import ledger
from app.ui.session import View
from app.ui.verdict import MODULES, answer, engine_rows, first_measure, notes, server
from app.ui.words import LABELS, THIN, TITLES, bounds, clock, count, esc, flagged, number, percent, places_of, remedies, unit, value

TITLE: Final = "Overview"
FEW: Final = 9  # engines up to which the fleet table shows all rows
QUEUE: Final = (
    draw.Line("running", "running", draw.COLOURS["grey"]),
    draw.Line("waiting", "waiting", draw.COLOURS["queue"], area=True),
    draw.Line("deferred", "of these for KV to arrive", draw.COLOURS["transfer"], area=True, rare=True),
)


def page(view: View) -> None:
    """Draw the page."""
    judged, name = view.judged, view.pick.target
    if judged is None:
        draw.html(nothing(view))
        draw.html(unmeasured())
        return
    target = view.target
    draw.html(answer(judged, name))
    if target is None:
        servers(view, judged)
        return
    draw.html(f'<div class="wl-strip">{"".join(cards(view, judged))}</div>')
    draw.html(chain(target))
    if view.fleet is not None and len(view.engines) > 1:
        fleet(view, view.fleet)
    left, right = st.columns([3, 2], gap="small")
    with left:
        with st.container(key="card-ledger"):
            draw.html(ledger(target))
        said = notes(judged, target)
        if said:
            with st.container(key="card-notes"):
                draw.html(rests(target, said))
    with right:
        with st.container(key="card-queue"):
            queue(view)
        with st.container(key="card-try"):
            draw.html(next_steps(target))


def servers(view: View, judged: Attribution) -> None:
    """The servers of a chain that is not joined: each alone."""
    if len(view.engines) > 1:
        fleet(view, judged)
    for one in judged.engines:
        draw.html(server(one, view.pick.target))
        draw.html(chain(one.targets[view.pick.target]))


def nothing(view: View) -> str:
    """What to do where there is nothing to judge."""
    if view.recordings:
        return (
            '<div class="wl-answer"><h1>No engine was observed in this window.</h1><p>Choose another window or recording above, or '
            '<a href="upload" target="_self">upload</a> the server\'s log or a recording of /metrics for it.</p></div>'
        )
    return (
        '<div class="wl-answer" data-verdict="empty"><h1>Nothing has been loaded yet.</h1>'
        '<p><a href="upload" target="_self">Upload a bundle</a>: a .zip or .tar.gz of what vLLM emits (server logs, recordings of /metrics, '
        "KV events, spans, request lines), or single files. From a shell: <code>weaklink load PATH</code>.</p>"
        "<p>Then this page says which link of the chain limits latency, by how many seconds, how sure that is, and what to try.</p></div>"
    )


# -- cards --------------------------------------------------------------------------------------------------------------------
def cards(view: View, judged: Attribution) -> list[str]:
    """Objectives and capacity, a card each, as HTML."""
    sums = view.rows("overview_card", **view.window())[0]
    log = view.rows("overview_log", **view.window())[0]
    quantiles = {(row["target"], row["q"]): row for row in view.rows("overview_quantile", **view.window())}
    tpot = judged.targets["tpot"]
    return [
        _latency("TTFT mean", "ttft", sums["ttft_s"], quantiles, judged),
        _latency("TPOT mean", "tpot", tpot.measured_s if tpot else None, quantiles, judged, of="itl", mean=sums["itl_s"]),
        _latency("E2E mean", "e2e", sums["e2e_s"], quantiles, judged),
        _throughput(sums, log),
        _capacity(sums, log),
        _isolation(view),
    ]


def _card(title: str, big: str | None, under: str, *, unknown: str = "unknown") -> str:
    look = "wl-big" if big is not None else "wl-big none"
    return f'<div class="wl-card"><div class="wl-title">{title}</div><div class="{look}">{big if big is not None else unknown}</div><div class="wl-under">{under}</div></div>'


def _latency(
    title: str, target: str, seconds: float | None, quantiles: Mapping[tuple[str, float], Mapping[str, Any]], judged: Attribution, *, of: str | None = None, mean: float | None = None,
) -> str:
    """A mean with the buckets that hold its median and 95th percentile."""
    if seconds is None and mean is None:
        why = "no request seconds in stats lines" if judged.level is Level.STATE else "no such request in this window"
        return _card(title, None, why)
    name = of or target
    prefix = "ITL " if of else ""
    shown = [f"{prefix}p{100 * q:.0f} {bounds(name, row['low_s'], row['high_s'])}" for q in (0.5, 0.95) if (row := quantiles.get((name, q)))]
    if seconds is None:
        return _card("ITL mean", value("itl", mean), "<br>".join(shown))
    return _card(title, value(target, seconds), "<br>".join(shown) or "no histogram")


def _throughput(sums: Mapping[str, Any], log: Mapping[str, Any]) -> str:
    span = sums["span_s"]
    if span and sums["generation_tokens"] is not None:
        under = f"{count(sums['generation_tokens'] / span)} out · {count((sums['prompt_tokens'] or 0) / span)} in tok/s"
        hits = sums["hit_ratio"]
        under += f"<br>{percent(hits)} of prompt tokens cached" if hits is not None else "<br>no prefix cache counters"
        return _card("Throughput", f"{number((sums['finished'] or 0) / span)}{THIN}req/s", under)
    if log["generation_tokens_per_s"] is not None:
        return _card("Throughput", f"{count(log['generation_tokens_per_s'])}{THIN}tok/s", f"{count(log['prompt_tokens_per_s'])} in tok/s; mean of {count(log['stats'])} stats lines")
    return _card("Throughput", None, "no clock in this recording" if sums["finished"] else "no counters and no stats lines")


def _capacity(sums: Mapping[str, Any], log: Mapping[str, Any]) -> str:
    levels = sums if sums["kv_peak_ratio"] is not None else log
    if levels["kv_peak_ratio"] is None:
        return _card("KV blocks used, peak", None, "KV use is not exported")
    under = f"mean {percent(levels['kv_mean_ratio'])}" if levels["kv_mean_ratio"] is not None else ""
    if sums["preemptions"]:
        under += f" · {count(sums['preemptions'])} preemptions"
    elif sums["preemptions"] == 0:
        under += " · no preemptions"
    each = sums["kv_per_request_ratio"]
    if each:
        room = (1 - sums["kv_peak_ratio"]) / each * sums["engines"]
        under += "<br>room for no more such requests" if room < 1 else f"<br>room for {count(float(f'{room:.2g}'))} more such requests"
    elif levels["waiting_peak"] is not None:
        under += f"<br>at most {count(levels['running_peak'])} running, {count(levels['waiting_peak'])} waiting"
    return _card("KV blocks used, peak", percent(levels["kv_peak_ratio"], 2), under)


def _isolation(view: View) -> str:
    """Who may share cached prefixes: only KV events show salts."""
    rows = view.rows("overview_salt", engines=list(view.chosen))
    if not rows or rows[0]["salts"] is None:
        return _card("Isolation", None, "cache salts stand only in KV events: record them to see who shares prefixes")
    salts = round(rows[0]["salts"])
    if salts == 0:
        return _card("Isolation", "none", "no cache salt was seen: every request may reuse every prefix")
    return _card("Isolation", f"{salts:,} salt{'s' if salts != 1 else ''}", "prefixes are shared inside a salt only")


# -- fleet --------------------------------------------------------------------------------------------------------------------
def fleet(view: View, judged: Attribution) -> None:
    """The engines; a row picked filters every page."""
    name = view.pick.target
    rows = engine_rows(judged, name)
    with st.container(key="card-fleet"):
        one = f"only {view.chosen[0]} is shown on this page" if len(view.chosen) < len(view.engines) else "choose a row to see one alone"
        draw.html(f'<div class="wl-title">{len(rows)} engines · {esc(one)}</div>')
        seconds = st.column_config.NumberColumn(format=f"%.{places_of(name, view.target.measured_s or 0.0 if view.target else 0.0)}f")
        picked = st.dataframe(
            pd.DataFrame(rows), hide_index=True, key=f"fleet-{name}-{view.pick.engine}", on_select="rerun", selection_mode="single-row", placeholder="",
            height="content" if len(rows) <= FEW else 330, column_config={column: seconds for column in rows[0] if column.endswith(f", {unit(name)}")},
            alt="engines with their requests, measured mean and limiting link",
        )
    chosen = picked["selection"]["rows"]
    if chosen:
        engine = view.engines[chosen[0]]
        session.choose(engine=None if view.pick.engine == engine else engine)
        st.rerun()


# -- the right side -------------------------------------------------------------------------------------------------------------
def queue(view: View) -> None:
    """Requests waiting and running over the whole recording, with the window marked."""
    whole = {**view.window(), **dict(zip(("low", "high"), session.scope(view.recordings, session.Pick(recording=view.pick.recording))[:2], strict=True))}
    columns = view.columns("timeline", points=500, **whole)
    if len(columns["ts"]) < 2:
        columns = view.columns("timeline_log", points=500, **whole)
    title = "Requests waiting and running over time"
    if not len(columns["ts"]):
        draw.html(f'<div class="wl-title">{title}</div><p style="margin-top:.5rem">No time series: one scrape, or no gauges.</p>')
        return
    lines = [line for line in QUEUE if draw.shown(columns[line.column], line)]
    peak = max(range(len(columns["ts"])), key=lambda at: _zero(columns["waiting"][at]))
    said = f" · at most {count(columns['waiting'][peak])} waiting" if _zero(columns["waiting"][peak]) > 0 else " · nobody waited at a scrape"
    if draw.timed(columns) and _zero(columns["waiting"][peak]) > 0:
        said += f", at {clock(columns['ts'][peak])}"
    keys = "".join(f'<span><i style="background:{line.colour}"></i>{line.name}</span>' for line in lines)
    draw.html(f'<div class="wl-title">{title}{said}</div><div class="wl-keys">{keys}<span>drag to set the window</span></div>')
    window = None if view.pick.start is None and view.pick.end is None else (view.low, view.high)
    draw.brushed(draw.small(columns, lines, window), f"queue-{view.pick.start}-{view.pick.end}", "requests waiting and running over time")


def _zero(value: float) -> float:
    return 0.0 if math.isnan(value) else float(value)


def next_steps(target: Target) -> str:
    """What to measure first where the data do not decide, and what to try for the link that limits."""
    found = ""
    first = first_measure(target) if target.verdict == "undetermined" else []
    if first:
        found = f'<div class="wl-title" id="try">First measure what would decide it</div><div class="wl-try">{"".join(f"<div>{line}</div>" for line in first)}</div>'
    link = target.limiting or target.runner_up or target.load
    if link:
        rows = "".join(f"<div><b>{flagged(what)}</b>{': ' if cost else ''}<span>{flagged(cost)}</span></div>" for what, cost in remedies(MODULES[link].__doc__))
        head = "Try next, each with what it costs next door" if target.limiting else f"{esc(TITLES[link])}: what would make it less, and what that costs next door"
        found += f'<div class="wl-title" {"" if first else "id=try"}{" style=margin-top:.9rem" if first else ""}>{head}</div><div class="wl-try">{rows}</div>'
    return found or '<div class="wl-title">Nothing to try: no link was named.</div>'


def rests(target: Target, said: Sequence[str]) -> str:
    """Conditions and refusals, as HTML."""
    items = "".join(f"<li>{line}</li>" for line in said)
    return f'<div class="wl-title">What the verdict on {LABELS[target.name]} rests on, and what would settle more</div><ul class="wl-notes">{items}</ul>'
