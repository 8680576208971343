"""The strip of cards: latencies with their buckets, throughput, capacity, isolation. What is unknown says why."""

from collections.abc import Mapping
from typing import Any, Final

from analyzers.model import Attribution, Level
from app.ui.goals import by_kind, goals, note
from app.ui.markup import Html, div, join, tag
from app.ui.session import View
from app.ui.verdict import is_pair
from app.ui.words import THIN, bounds, count, number, percent, plural, value

Row = Mapping[str, Any]
FOR: Final = {"ttft": ("ttft", "queue"), "tpot": ("tpot", "itl"), "e2e": ("e2e",)}  # objectives on a card, by target


def cards(view: View, judged: Attribution) -> list[Html]:
    """Objectives and capacity, a card each."""
    window = view.window()
    sums: Row = view.rows("overview_card", **window)[0]
    log: Row = view.rows("overview_log", **window)[0]
    quantiles = {(row["target"], row["q"]): row for row in view.rows("overview_quantile", **window)}
    if is_pair(judged):  # each request passes two servers: nothing of both may be added up
        sums, quantiles = _joined(view, judged), {}
    why = "no request seconds in stats lines" if judged.level is Level.STATE else "no such request in this window"
    otherwise = "over both servers" if is_pair(judged) else "no histogram"
    mean = {name: target.measured_s if target else None for name, target in judged.targets.items()}
    kinds = by_kind(goals(view))
    wanted = {name: [line for kind in FOR[name] for line in note(kinds.get(kind, []), kind)] or ["no target set"] for name in FOR}
    base = (
        {name: target.measured_s if target else None for name, target in view.baseline.targets.items()} if view.baseline else {}
    )
    return [
        _latency("TTFT mean", "ttft", mean["ttft"], _buckets("ttft", quantiles), why, otherwise, wanted["ttft"], base),
        _latency("TPOT mean", "tpot", mean["tpot"], _buckets("itl", quantiles, "ITL "), why, otherwise, wanted["tpot"], base),
        _latency("E2E mean", "e2e", mean["e2e"], _buckets("e2e", quantiles), why, otherwise, wanted["e2e"], base),
        _throughput(sums, log, note(kinds.get("goodput", []), "goodput")),
        _capacity(sums, log),
        _isolation(view),
    ]


def _joined(view: View, judged: Attribution) -> Row:
    """Sums of a chain of servers: what the decode servers finished and hold, what the prefill servers took in."""
    names = {
        role: [f"{one.instance}/{one.engine}" for one in judged.engines if one.role == role] for role in ("prefill", "decode")
    }
    first, second = (view.rows("overview_card", **view.window() | {"engines": names[role]})[0] for role in ("prefill", "decode"))
    return {**second, **{name: first[name] for name in ("prompt_tokens", "hit_ratio")}}


def _card(title: str, big: str | None, *under: object) -> Html:
    return div(
        "wl-card",
        div("wl-title", title),
        div("wl-big none" if big is None else "wl-big", big or "unknown"),
        div("wl-under", join(under, tag("br"))),
    )


def _buckets(name: str, quantiles: Mapping[tuple[str, float], Row], before: str = "") -> list[str]:
    """The buckets that hold the median and the 95th percentile."""
    found = [(q, quantiles[name, q]) for q in (0.5, 0.95) if (name, q) in quantiles]
    return [f"{before}p{100 * q:.0f} {bounds(name, row['low_s'], row['high_s'])}" for q, row in found]


def _latency(
    title: str,
    target: str,
    seconds: float | None,
    buckets: list[str],
    why: str,
    otherwise: str,
    wanted: list[str],
    base: Mapping[str, float | None],
) -> Html:
    """A latency against its targets and the baseline."""
    was = [f"baseline {value(target, base[target])}"] if base.get(target) is not None else []
    if seconds is None:
        return _card(title, None, *(buckets or [why]), *was, *wanted)
    return _card(title, value(target, seconds), " · ".join(buckets) or otherwise, *was, *wanted)


def _throughput(sums: Row, log: Row, wanted: list[str]) -> Html:
    span = sums["span_s"]
    if span and sums["generation_tokens"] is not None:
        tokens = f"{count(sums['generation_tokens'] / span)} out · {count((sums['prompt_tokens'] or 0) / span)} in tok/s"
        hits = sums["hit_ratio"]
        cached = "no prefix cache counters" if hits is None else f"{percent(hits)} of prompt tokens cached"
        return _card("Throughput", f"{number((sums['finished'] or 0) / span)}{THIN}req/s", tokens, cached, *wanted)
    if log["generation_tokens_per_s"] is not None:
        taken = f"{count(log['prompt_tokens_per_s'])} in tok/s; mean of {plural(log['stats'], 'stats line')}"
        return _card("Throughput", f"{count(log['generation_tokens_per_s'])}{THIN}tok/s", taken)
    return _card("Throughput", None, "no clock in this recording" if sums["finished"] else "no counters and no stats lines")


def _capacity(sums: Row, log: Row) -> Html:
    """KV blocks, and how many more requests like those would find room beside the fullest moment."""
    title, levels = "KV blocks used, peak", sums if sums["kv_peak_ratio"] is not None else log
    if levels["kv_peak_ratio"] is None:
        return _card(title, None, "KV use is not exported")
    mean = f"mean {percent(levels['kv_mean_ratio'])}" if levels["kv_mean_ratio"] is not None else ""
    preempted = f" · {plural(sums['preemptions'], 'preemption')}" if sums["preemptions"] is not None else ""
    room = ""
    if sums["kv_per_request_ratio"]:
        more = (1 - sums["kv_peak_ratio"]) / sums["kv_per_request_ratio"] * sums["engines"]
        room = f"room for {count(float(f'{more:.2g}')) if more >= 1 else 'no'} more such requests"
    elif levels["waiting_peak"] is not None:
        room = f"at most {count(levels['running_peak'])} running, {count(levels['waiting_peak'])} waiting"
    return _card(title, percent(levels["kv_peak_ratio"]), f"{mean}{preempted}".removeprefix(" · "), room)


def _isolation(view: View) -> Html:
    """Who may share cached prefixes: only KV events show salts."""
    rows = view.rows("overview_salt", engines=list(view.chosen))
    if not rows or rows[0]["salts"] is None:
        return _card("Isolation", None, "cache salts stand only in KV events: record them to see who shares prefixes")
    if not rows[0]["salts"]:
        return _card("Isolation", "none", "no cache salt was seen: every request may reuse every prefix")
    return _card("Isolation", plural(rows[0]["salts"], "salt"), "prefixes are shared inside a salt only")
