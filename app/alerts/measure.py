"""Events of an objective, from the store: which became known when, and how many of them were bad.

Histogram buckets tell a request as soon as it is counted, exactly where the threshold is an edge. Request records tell any
threshold exactly, when the request has ended. So buckets are used at an edge, else records where they are complete, else
buckets with the error of the interpolation.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final

import numpy as np

from analyzers.model import Array
from analyzers.slo import Edges, Slo, above, edges_around
from app.store import Store

# The histograms of a kind, the name of today first (facts: vLLM 0.8.5 to 0.33).
FAMILIES: Final = {
    "ttft": ("vllm:time_to_first_token_seconds",),
    "itl": ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
    "tpot": ("vllm:request_time_per_output_token_seconds",),
    "e2e": ("vllm:e2e_request_latency_seconds",),
    "queue": ("vllm:request_queue_time_seconds",),
}
COMPLETE: Final = 0.95  # records of so many of the finished requests: all, but for those still on their way
FAILED: Final = ("abort", "error")  # finished_reason of vLLM
GENERATES: Final = ("completions", "responses", "messages", "embeddings", "score", "rerank", "classify", "pooling", "generate")
EXACT: Final = 1e-9


def query(name: str) -> str:
    """One file of queries/alerts."""
    return files("queries").joinpath("alerts", f"{name}.sql").read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Scope:
    """The engines that an objective selects, as "host:port/label", and their servers."""

    engines: tuple[str, ...]
    instances: tuple[str, ...]
    whole: bool  # every engine of these servers: records, which name no engine, may be used

    def params(self) -> dict[str, list[str]]:
        """As the queries take it."""
        return {"engines": list(self.engines), "instances": list(self.instances)}


def scope(store: Store, slo: Slo, only: Sequence[str] | None = None) -> Scope:
    """The engines in the store that the objective selects; `only` leaves no others."""
    rows = store.rows(query("engine"))
    every = {(f"{instance}/{engine}", instance, engine, model) for instance, engine, model in rows}
    chosen = {
        (name, instance)
        for name, instance, engine, model in every
        if (only is None or name in only)
        and (slo.model is None or model == slo.model)
        and (slo.engine is None or slo.engine in {engine, name, instance})
    }
    engines, instances = {name for name, _ in chosen}, {instance for _, instance in chosen}
    whole = {name for name, instance, _, _ in every if instance in instances} == engines
    return Scope(tuple(sorted(engines)), tuple(sorted(instances)), whole)


def edges(store: Store, slo: Slo, where: Scope, kind: str | None = None) -> list[float]:
    """Finite bucket edges of the histogram of a kind; empty where it is not exported or the kind has none."""
    families = FAMILIES.get(kind or slo.kind)
    if families is None:
        return []
    rows = store.rows(query("edge"), {"engines": list(where.engines), "families": list(families)})
    first = min((row[0] for row in rows), default=None)
    return sorted({row[1] for row in rows if row[0] == first and row[1] is not None and math.isfinite(row[1])})


def near(store: Store, slo: Slo, where: Scope) -> Edges | None:
    """The bucket edges around the threshold; None where there is no histogram."""
    found = edges(store, slo, where)
    return edges_around(found, slo.threshold_s) if found and slo.threshold_s is not None else None


# -- one span -----------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Events:
    """Events of a span, and by what they were told."""

    ts: Array
    total: Array
    bad: Array
    least: Array
    most: Array
    source: str
    notes: tuple[str, ...] = ()
    missing: str | None = None


def nothing(missing: str) -> Events:
    """No events, and why."""
    none = np.zeros(0)
    return Events(none, none, none, none, none, "", (), missing)


def events(store: Store, slo: Slo, where: Scope, low: float, high: float, *, slice_s: float | None = None) -> Events:
    """The events that became known in (low, high], by scrape.

    `slice_s`: when does not matter within so many seconds (infinite: not at all), so those of a histogram are counted together.
    """
    if not where.engines:
        return nothing("no engine in the store matches the selector")
    if slo.kind == "availability":
        rows = store.columns(query("scrape_point"), {"low": low, "high": high, "instances": list(where.instances)})
        return _exact(rows["ts"], ~rows["ok"].astype(bool), "scrapes")
    if slo.kind == "errors":
        return _errors(store, where, low, high)
    if slo.kind == "goodput":
        return _goodput(store, slo, where, low, high, slice_s)
    return _latency(store, slo, where, low, high, slice_s)


def _latency(store: Store, slo: Slo, where: Scope, low: float, high: float, slice_s: float | None) -> Events:
    """Requests (ITL: tokens) above the threshold."""
    found = _buckets(store, slo.kind, slo.threshold_s or 0.0, where, low, high, slice_s)
    if found is not None and np.all(found.most - found.least <= EXACT):
        return found
    records = None if slo.kind == "itl" else _records(store, where, low, high)  # records hold no times of single tokens
    if records is not None:
        values = records[f"{slo.kind}_s"]
        known = np.isfinite(values)
        return _exact(records["ts"][known], values[known] > (slo.threshold_s or 0.0), _told(records))
    return found or nothing(f"{slo.kind.upper()}: no histogram is exported and no request records are there")


def _exact(ts: Array, bad: Array, source: str, notes: tuple[str, ...] = ()) -> Events:
    count = bad.astype(float)
    return Events(ts, np.ones(len(ts)), count, count, count, source, notes)


def _told(records: dict[str, Array]) -> str:
    return "request spans" if "span" in set(records["source"]) else "client records"


def _span(store: Store, where: Scope, low: float, high: float) -> dict[str, Any]:
    """The parameters of a query that compares scrapes; `floor` is the first sample that it needs."""
    before = store.rows(
        "SELECT min(last) FROM (SELECT coalesce(max(ts) FILTER (ts <= $low), '-infinity'::DOUBLE) AS last FROM scrape "
        "WHERE ok AND timed AND ts <= $high AND list_contains($instances, instance) GROUP BY instance HAVING max(ts) > $low)",
        {"low": low, "high": high, "instances": list(where.instances)},
    )[0][0]
    return {"low": low, "high": high, "floor": low if before is None else before}


def _buckets(
    store: Store, kind: str, threshold_s: float, where: Scope, low: float, high: float, slice_s: float | None
) -> Events | None:
    """Events by the buckets around a threshold; None where there is no such histogram."""
    asked = {"families": list(FAMILIES[kind]), "engines": list(where.engines)}
    if not store.rows(query("edge"), asked):
        return None
    if slice_s is None:
        rows = store.columns(query("bucket_point"), {**_span(store, where, low, high), **asked, "threshold": threshold_s})
        bad, least, most = above(threshold_s, rows["total"], rows["low_s"], rows["high_s"], rows["upto_low"], rows["upto_high"])
    else:
        rows = store.columns(query("bucket_span"), {**asked, "low": low, "high": high, "slice": slice_s})
        lower, upper, n = (np.asarray(rows[name], dtype=float) for name in ("low_s", "high_s", "total"))
        # each bucket is taken as a histogram of its own: all of it is below the threshold, above, or the threshold lies inside
        bad, least, most = above(
            threshold_s, n, lower, upper, np.where(upper <= threshold_s, n, 0.0), np.where(lower < threshold_s, n, 0.0)
        )
    exact = bool(np.all(most - least <= EXACT))
    source = "histogram buckets" if exact else "histogram buckets, interpolated"
    return Events(rows["ts"], rows["total"], bad, least, most, source)


def _records(store: Store, where: Scope, low: float, high: float, *, every: bool = False) -> dict[str, Array] | None:
    """Request records of the span; None where there are none, or not of all finished requests."""
    if not where.whole:
        return None
    rows = store.columns(query("request_point"), {"low": low, "high": high, "instances": list(where.instances), "all": every})
    if not len(rows["ts"]):
        return None
    finished = _counters(store, where, low, high, ["vllm:e2e_request_latency_seconds_count"])["increase"].sum()
    return rows if len(rows["ts"]) >= COMPLETE * finished else None


def _counters(store: Store, where: Scope, low: float, high: float, names: list[str]) -> dict[str, Array]:
    return store.columns(query("counter_point"), {**_span(store, where, low, high), **where.params(), "names": names})


def _errors(store: Store, where: Scope, low: float, high: float) -> Events:
    """Failed and aborted requests: by client records where there are any, else by vLLM's and the API server's counters."""
    records = _records(store, where, low, high, every=True)
    if records is not None and "client" in set(records["source"]):
        mine = records["source"] == "client"
        return _exact(records["ts"][mine], records["status"][mine] != "ok", "client records")
    rows = _counters(store, where, low, high, ["vllm:request_success_total", "http_requests_total"])
    if not len(rows["ts"]):
        return nothing(
            "errors: neither request_success_total nor http_requests_total was scraped, and there are no client records"
        )
    total, bad = np.zeros(len(rows["ts"])), np.zeros(len(rows["ts"]))
    for at, (name, text) in enumerate(zip(rows["name"], rows["labels"], strict=True)):
        labels = json.loads(text)
        if name == "vllm:request_success_total":
            total[at] = rows["increase"][at]
            bad[at] = total[at] if labels.get("finished_reason") in FAILED else 0.0
        elif str(labels.get("status", "")).startswith("5") and any(word in labels.get("handler", "") for word in GENERATES):
            total[at] = bad[at] = rows["increase"][at]
    note = "requests that a client cancels are in none of vLLM's counters: client records would show them"
    return Events(rows["ts"], total, bad, bad, bad, "counters", (note,))


def _goodput(store: Store, slo: Slo, where: Scope, low: float, high: float, slice_s: float | None) -> Events:
    """Requests that miss TTFT or TPOT: exactly from records, else bounded by the two histograms."""
    first, second = slo.threshold_s or 0.0, slo.tpot_s or 0.0
    records = _records(store, where, low, high)
    if records is not None:
        with np.errstate(invalid="ignore"):
            bad = (records["ttft_s"] > first) | (records["tpot_s"] > second) | (records["status"] != "ok")
        return _exact(records["ts"], bad, _told(records))
    one = _buckets(store, "ttft", first, where, low, high, slice_s)
    two = _buckets(store, "tpot", second, where, low, high, slice_s)
    if one is None or two is None:
        return nothing("goodput: needs request records, or the histograms of TTFT and of request TPOT (vLLM 0.11)")
    # the same requests are counted at the first token and at the end: the larger of the two is missed at least
    ts = np.union1d(one.ts, two.ts)
    sums = [
        [
            np.bincount(np.searchsorted(ts, part.ts), weights=values, minlength=len(ts))
            for values in (part.total, part.bad, part.least, part.most)
        ]
        for part in (one, two)
    ]
    (n, bad_one, least_one, most_one), (_, bad_two, least_two, most_two) = sums
    note = "from histograms: a request may miss both, so the share lies between the larger of the two and their sum"
    most = np.minimum(n, most_one + most_two)
    return Events(
        ts, n, np.maximum(bad_one, bad_two), np.maximum(least_one, least_two), most, "histogram buckets, bounded", (note,)
    )
