"""Requests: the slowest on one clock, what held each of them, and how latency was spread over time."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import streamlit as st

from analyzers.beside import SAME_S, Beside, Held
from analyzers.model import Columns, Stage
from app.ui import decisions, draw, neighbours, plots, session
from app.ui.markup import Html, bold, div, join, link, row, table, tag
from app.ui.session import View
from app.ui.stages import FAMILIES, bucketed, stages
from app.ui.waterfall import PREEMPTED, Bar, by_which, heat, name_of, waterfall
from app.ui.words import LABELS, clock, count, exact, fixed, flagged, number, plural, value

TITLE: Final = "Requests"
MOST: Final = 8
SLICES, BANDS = 90, 18
CULPRITS: Final = 6
HEAT: Final = {
    "ttft": ("ttft",),
    "tpot": ("tpot", "itl"),
    "e2e": ("e2e",),
}  # histograms for the heat map, the first that is there
SPANS: Final = "--otlp-traces-endpoint http://WEAKLINK:8501/v1/traces"
PROTOCOL: Final = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf"


def page(view: View) -> None:
    """Draw the page."""
    if view.judged is None:
        draw.html(decisions.nothing(view))
        return
    slow = neighbours.slowest(view, MOST)
    if not slow:
        _without(view)
        return
    keys = [str(one["key"]) for one in slow]
    chosen = _chosen(view, slow)
    bars = [_bar(view, one, closely=one["key"] == chosen) for one in slow]
    bar = next(bar for bar in bars if bar.row["key"] == chosen)
    draw.html(head(view, bar, slowest=chosen == keys[0]))
    left, right = st.columns([3, 1.45], gap="small")
    with left:
        with st.container(key="card-waterfall"):
            _waterfall(view, bars, chosen)
        _heat(view, recorded=True)
    with right, st.container(key="card-request"):
        _request(view, bar)
    with st.container(key="card-stages"):
        asked = {"low": view.low, "high": view.high, "instances": neighbours.instances(view), "target": view.pick.target}
        draw.html(stages(view.rows("request_stage", **asked), view.pick.target))


def _bar(view: View, one: Mapping[str, Any], *, closely: bool) -> Bar:
    found = neighbours.looked_at(view, one, neighbours.near(view, one), neighbours.places(view, one), closely=closely)
    return Bar(one, found, name_of(str(one["key"])))


def _chosen(view: View, slow: list[dict[str, Any]]) -> str:
    """The request of the address, added to the slowest where it is none of them; the slowest where it is not there."""
    asked = view.pick.request
    if asked is None or asked in {one["key"] for one in slow}:
        return asked or str(slow[0]["key"])
    scope = {"low": view.low, "high": view.high, "instances": neighbours.instances(view), "target": view.pick.target}
    found = view.rows("request_one", **scope, key=asked, many=neighbours.many(view))
    if not found:
        draw.html(div("wl-note", f"There is no request {asked} in this window: this is the slowest."))
        return str(slow[0]["key"])
    slow.append(found[0])
    return asked


# -- one request ------------------------------------------------------------------------------------------------------------------
def head(view: View, bar: Bar, *, slowest: bool) -> Html:
    """What held it, in a sentence."""
    target, row = view.pick.target, bar.row
    who = "The slowest request" if slowest else f"Request {bar.name}"
    worst = bar.beside.worst if bar.beside else None
    if worst is None:
        said: list[object] = [f"{who}: {LABELS[target]} {value(target, row['value_s'])}."]
    else:
        verb = {"queue": "waited", "prefill": "computed its prompt for", "decode": "decoded for", "frontend": "stood"}
        said = [f"{who} {verb[worst.stage.value]} {number(worst.seconds)} s", *_emphasised(worst), "."]
    lines = (
        f"{LABELS[target]} {value(target, row['value_s'])}, the slowest of this window by {LABELS[target]}. " if slowest else ""
    )
    how = "Each bar is one request from arrival to last token; thin purple marks in decode are other requests' prompts sharing its steps. Click a bar for what ran beside it."
    return div(
        "wl-answer",
        tag("h1", *said),
        tag("p", lines, how),
        data_request=str(row["key"]),
        data_held=worst.link if worst and worst.link else "",
    )


def _emphasised(worst: Held) -> list[object]:
    """The sentence with its culprit set off."""
    if worst.stage is Stage.FRONTEND:
        where, colon, why = worst.says.partition(": ")
        return [" ", tag("em", where), colon, why]
    before, found, rest = worst.says.partition("behind ")
    if not found:
        return [" because ", tag("em", worst.says)] if worst.stage is Stage.QUEUE else [": ", tag("em", worst.says)]
    named, that, more = rest.partition(" that arrived")
    return [f" {before}{found}", tag("em", named.partition(", ")[0]), that, more.partition(", ")[0]]


def _waterfall(view: View, bars: Sequence[Bar], chosen: str) -> None:
    """The bars; a click chooses one."""
    whole = view.rows("request_count", low=view.low, high=view.high, instances=neighbours.instances(view))[0]["n"]
    keys = [tag("span", tag("i", look=f"wl-dot {stage.value}"), stage.value) for stage in Stage]
    holes = any(bar.beside and bar.beside.holes for bar in bars)
    keys += (
        [tag("span", tag("i", style=f"background:{PREEMPTED}", look="wl-dot"), "no token for long: preempted or stalled")]
        if holes
        else []
    )
    draw.html(
        join(
            [
                div("wl-title", f"Slowest {min(MOST, len(bars))} of {count(whole)} by {LABELS[view.pick.target]}, {by_which(bars)}"),
                div("wl-keys squares", *keys),
            ]
        )
    )
    key = f"waterfall-{view.pick.target}-{view.pick.start}-{view.pick.end}-{chosen}"
    figure = waterfall(bars, chosen)
    st.plotly_chart(
        figure, key=key, on_select=lambda: _click(key), selection_mode="points", config=dict(plots.CONFIG),
        alt="the slowest requests as bars from arrival to last token, by stage",
    )  # fmt: skip
    plots.download(figure, key, "slowest requests by stage")
    names = {
        bar.row["key"]: f"{bar.name} · {LABELS[view.pick.target]} {value(view.pick.target, bar.row['value_s'])}" for bar in bars
    }
    st.session_state["request"] = chosen
    st.selectbox(
        "Request", list(names), key="request", format_func=lambda one: names[one], label_visibility="collapsed", on_change=_picked
    )


def _picked() -> None:
    session.choose(request=st.session_state["request"])


def _click(key: str) -> None:
    for point in st.session_state[key]["selection"]["points"]:
        found = point.get("customdata")
        if found:
            session.choose(request=str(found[0] if isinstance(found, list | tuple) else found["0"]))


def _request(view: View, bar: Bar) -> None:
    """The panel beside: what held each stage, who, and the records behind it."""
    one = bar.row
    cached = f" ({count(one['cached_tokens'])} cached)" if one["cached_tokens"] is not None else ""
    sizes = f"{count(one['prompt_tokens'])} prompt tokens{cached} · {count(one['output_tokens'])} out"
    where = f" · {one['instance']}" if len(neighbours.instances(view)) > 1 else ""
    failed = f" · {one['status']}" if one["status"] not in {None, "ok"} else ""
    draw.html(
        join([div("wl-title", bold(one["key"])), div("wl-title", f"{sizes} · arrived {_at(one['arrival_ts'])}{where}{failed}")])
    )
    if bar.beside is None:
        draw.html(tag("p", f"Only its client told of it: {number(one['ttft_s'])} s to the first token, then {number((one['e2e_s'] or 0) - (one['ttft_s'] or 0))} s. ",
                      "The server's stages need its span (", flagged(SPANS), ") or ", flagged("--enable-per-request-metrics"), "."))  # fmt: skip
    else:
        draw.html(join([held(view, bar.beside), culprits(view, bar)]))
    draw.html(behind(neighbours.places(view, one)))


def _at(ts: float) -> str:
    return clock(ts, fine=True) if ts > 1e8 else f"{number(ts)} s"


def held(view: View, found: Beside) -> Html:
    """The stages of the request: seconds and what held them."""
    worst = found.worst
    rows = []
    for one in found.held:
        name = tag("span", tag("i", look=f"wl-dot {one.stage.value}"), one.stage.value)
        says = join([link(view.link(one.link), one.says)]) if one.link else one.says
        rows.append(
            row((name, fixed("e2e", one.seconds, 3), says), numbers=(1,), look="limiting" if one is worst else "", heads={1: "s"})
        )
    return table((("stage", ""), ("s", "num"), ("what held it", "")), rows)


def culprits(view: View, bar: Bar) -> Html:
    """The requests that held it, each leading to its own page."""
    worst = bar.beside.worst if bar.beside else None
    if worst is None or not worst.culprits:
        return join([])
    columns = neighbours.near(view, bar.row)
    rows = [_culprit(view, columns, at, float(bar.row["arrival_ts"])) for at in worst.culprits[:CULPRITS]]
    more = f", the first {CULPRITS}" if len(worst.culprits) > CULPRITS else ""
    heads = (("request", ""), ("prompt tokens", "num"), ("arrived", "num"), ("prefill, s", "num"))
    return join(
        [
            div(
                "wl-title",
                f"Who held its {worst.stage.value}: {plural(len(worst.culprits), 'request')}{more}",
                style="margin-top:.7rem",
            ),
            table(heads, rows),
        ]
    )


def _culprit(view: View, columns: Columns, at: int, arrival: float) -> Html:
    key = str(columns["key"][at])
    ago = float(columns["arrival_ts"][at]) - arrival
    name = link(view.pick.address("requests", request=key), name_of(key))
    when = "at once" if abs(ago) < SAME_S else f"{abs(ago):.1f} s {'before' if ago <= 0 else 'after'}"
    cells = (name, exact(float(columns["prompt_tokens"][at])), when, fixed("e2e", float(columns["prefill_s"][at]), 3))
    return row(cells, numbers=(1, 2, 3), heads={1: "tokens", 2: "arrived", 3: "prefill"})


def behind(places: Sequence[Mapping[str, Any]]) -> Html:
    """The records behind a request, with file and line."""
    found = []
    for one in places:
        chunks = f", {plural(len(one['chunk_s']), 'token time')}" if one["chunk_s"] is not None else ""
        what = "span of the server" if one["source"] == "span" else "line of the client"
        found.append(tag("li", f"{what}: ", tag("code", f"{one['file']}:{one['line']:.0f}"), chunks))
    return join([div("wl-title", "Behind this", style="margin-top:.7rem"), tag("ul", *found, look="wl-notes")])


# -- all requests -----------------------------------------------------------------------------------------------------------------
def _heat(view: View, *, recorded: bool) -> None:
    """The heat map: of request records, else of a histogram's buckets."""
    target = view.pick.target
    with st.container(key="card-heat"):
        if recorded:
            asked = {"low": view.low, "high": view.high, "instances": neighbours.instances(view), "target": target}
            cells = view.columns("request_heat", **asked, slices=SLICES, bands=BANDS)
            title, unit_of = f"{LABELS[target]} of every request, by when it arrived", target
        else:
            cells, name = _buckets(view, target)
            title, unit_of = f"{name.upper()} by the histogram's buckets, by when it was observed", name
        if not len(cells["ts"]):
            draw.html(join([div("wl-title", title), tag("p", "No histogram of it over time in this window.", look="wl-soft")]))
            return
        draw.html(div("wl-title", f"{title} (darker = more; two bands = queueing) · drag to set the window"))
        timed = float(np.min(cells["ts"])) > 1e8
        draw.brushed(heat(cells, unit_of, timed=timed, even=recorded), f"heat-{target}-{view.pick.start}-{view.pick.end}-{view.pick.engine}", f"{LABELS[target]} over time as a heat map")  # fmt: skip


def _buckets(view: View, target: str) -> tuple[Columns, str]:
    """Cells of the first histogram of a target that is there, and its name."""
    cells: Columns = {"ts": np.zeros(0)}
    name = HEAT[target][0]
    for name in HEAT[target]:
        cells = view.columns("request_bucket", **view.window(), family=FAMILIES[name], slices=SLICES)
        if len(cells["ts"]):
            break
    return cells, name


# -- histograms alone ----------------------------------------------------------------------------------------------------------------
def _without(view: View) -> None:
    """What buckets allow, and which flag would give more."""
    quantiles = view.rows("request_quantile", **view.window(), names=list(FAMILIES.values()))
    sums = view.rows("request_mean", **view.window())[0]
    what = (
        "Only histograms tell of latency here: no single request was recorded."
        if quantiles
        else "Nothing tells of single requests here."
    )
    ways = [
        tag(
            "li",
            "The server's spans: start vLLM with ",
            tag("code", SPANS),
            " and ",
            tag("code", PROTOCOL),
            "; ",
            "this dashboard takes them.",
        ),
        tag(
            "li",
            "The response's own timings: ",
            tag("code", "--enable-per-request-metrics"),
            " (vLLM 0.26), recorded by the clients.",
        ),
        tag("li", "Lines of the load generator or gateway, one a request: ", tag("code", "weaklink load FILE"), "."),
    ]
    draw.html(div("wl-answer", tag("h1", what), tag("p", "Which request was slow, what held it and who ran beside it needs records of requests. Any of these gives them:"), data_request="none"))  # fmt: skip
    with st.container(key="card-ways"):
        draw.html(tag("ul", *ways, look="wl-notes"))
    _heat(view, recorded=False)
    with st.container(key="card-stages"):
        draw.html(bucketed(quantiles, sums))
