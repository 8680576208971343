"""A Prometheus that already scrapes vLLM, or what speaks its HTTP API: Thanos, Mimir, VictoriaMetrics.

Finds vLLM's servers by themselves, also under the names that Ray Serve and Dynamo give the series, and routers before them. Takes every sample with its
own time stamp; where these would be too many, or a step is asked for, one value a step (queries/promql).

Traps
    - Prometheus stamps a scrape when it begins, our own scraper when the answer is complete.
    - The labels that Prometheus adds (job, pod, replica ...) are those of the anchor series that are not vLLM's own: they are
      taken off, so that the series are the same as from a scrape. Two jobs, or two replicas of a Prometheus, that scrape one
      server are told apart by them; the store takes the second one's scrapes only where the first has none.
    - What stands above many clusters (Thanos, Mimir) knows several servers by one address: their cluster, by the label that the
      Prometheus of each adds, goes before the server's name, also where there is only one.
    - Ray Serve exposes several servers at one address: there what differs in these labels becomes part of the server's name.
    - VictoriaMetrics drops what has more than 30 labels, as vllm:cache_config_info has: the size of the KV cache is then unknown.
    - A missing sample is a gap, never zero; a scrape that failed (up 0), or a step without any sample, is one.
"""

import json
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

import numpy as np

from analyzers.model import Array, Batch
from app.collectors import promql
from app.collectors.access import Access
from app.collectors.promql import Client, PrometheusError, Series, base_url, matcher

OWN: Final = frozenset({"__name__", "engine", "model_name"})  # of vLLM, on the anchor series
CLUSTER: Final = ("cluster", "k8s_cluster_name", "cluster_name")  # the external label by which people tell them, first found
SITE: Final = ("job", "instance", *CLUSTER)  # by which a scrape is told, whatever labels its series have
GAUGES: Final = (
    *("num_requests_running", "num_requests_waiting", "num_requests_waiting_by_reason", "kv_cache_usage_perc"),
    "gpu_cache_usage_perc",
)
PIECE: Final = 200_000  # samples asked for at once
MARKED: Final = 100  # missing steps that are marked, a gap
NO_CONFIG: Final = "no vllm:cache_config_info. VictoriaMetrics drops it unless it runs with -maxLabelsPerTimeseries=100"

__all__ = ["Found", "Piece", "PrometheusError", "Server", "base_url", "find", "matcher", "pull"]


@dataclass(frozen=True, slots=True)
class Server:
    """What is asked, and within which bounds. `step_s` None: every sample."""

    url: str
    access: Access = field(default_factory=Access)
    tenant: str | None = None  # X-Scope-OrgID
    match: tuple[str, ...] = ()
    step_s: int | None = None
    every_s: float = 15.0
    timeout_s: float = 30.0  # of one request
    deadline_s: float = 600.0  # of one pull
    parallel: int = 4
    max_series: int = 100_000
    max_samples: int = 20_000_000  # of one pull with every sample
    method: str = "GET"

    @property
    def address(self) -> str:
        """host:port, by which what it says is kept apart."""
        return urlsplit(self.url).netloc

    def client(self) -> Client:
        """Open it for one pull."""
        return promql.client(self.url, self.access, self.tenant, self.timeout_s, self.deadline_s, self.method)


@dataclass(slots=True)
class Found:
    """One vLLM server, or router, that Prometheus scrapes.

    `labels` are those that Prometheus added, `prefix` that of a server's series, `anchor` the series that tells it.
    """

    instance: str
    labels: Mapping[str, str]
    prefix: str
    anchor: str = ""
    router: bool = False
    series: int = 0
    scrapes: float = 0.0  # in the window
    interval_s: float = 15.0
    numbers: dict[tuple[str | None, ...], int] = field(default_factory=dict)  # what makes a series -> its number
    last_ts: float | None = None  # the last scrape told


@dataclass(frozen=True, slots=True)
class Piece:
    """What one server said in one part of the window: batches of series, sample and scrape, as a reader yields them."""

    found: Found
    batches: tuple[Batch, ...]


# -- what there is --------------------------------------------------------------------------------------------------------------
def find(made: Client, server: Server, start: float, end: float) -> list[Found]:
    """The vLLM servers with samples in a window, the most often scraped first. PrometheusError: too many series."""
    anchor = promql.expression("anchor", match=promql.matchers(server.match))
    by_labels: dict[tuple[tuple[str, str], ...], str] = {}
    for labels in promql.series(made, anchor, start, end):
        added = tuple(sorted((name, value) for name, value in labels.items() if name not in OWN))
        by_labels[added] = labels["__name__"].removesuffix("num_requests_running")
    found = [
        Found(dict(added).get("instance", ""), dict(added), prefix, f"{prefix}num_requests_running")
        for added, prefix in by_labels.items()
    ]
    for one in found:
        same = [other.labels for other in found if _named(other.labels) == _named(one.labels)]
        if one.prefix.startswith("ray_") or not one.instance:
            differ = sorted({name for labels in same for name in labels if len({other.get(name) for other in same}) > 1})
            one.instance = "/".join(filter(None, [one.instance, *(one.labels.get(name, "") for name in differ)])) or "unnamed"
    found += _routers(made, server, start, end)
    for one in found:
        one.instance = "/".join(filter(None, [_named(one.labels)[0], one.instance]))
    with ThreadPoolExecutor(server.parallel) as pool:
        list(pool.map(lambda one: _measure(made, one, start, end), found))
    total = sum(one.series for one in found)
    if total > server.max_series:
        raise PrometheusError(
            f"{total:,} series of {len(found)} servers, at most {server.max_series:,} are taken: narrow it, as with --match namespace=prod"
        )
    return sorted(found, key=lambda one: (-one.scrapes, one.instance, sorted(one.labels.items())))


def _named(labels: Mapping[str, str]) -> tuple[str, str]:
    """Cluster and address; "": it has none."""
    return next((labels[name] for name in CLUSTER if labels.get(name)), ""), labels.get("instance", "")


def _routers(made: Client, server: Server, start: float, end: float) -> list[Found]:
    """The routers in front of them; one that is a vLLM server's own address is none of these."""
    by_site: dict[tuple[tuple[str, str], ...], str] = {}
    for labels in promql.series(made, promql.expression("router", match=promql.matchers(server.match)), start, end):
        site = tuple((name, labels[name]) for name in SITE if name in labels)
        if "instance" in dict(site):
            by_site.setdefault(site, labels["__name__"])
    return [Found(dict(site)["instance"], dict(site), "", anchor, router=True) for site, anchor in by_site.items()]


def _measure(made: Client, one: Found, start: float, end: float) -> None:
    """How many series, and how often scraped."""
    target, width = promql.selector(one.labels), max(60, math.ceil(end - start))
    step = max(1, width // 4)
    sizes = promql.span(made, promql.expression("size", target=target), int(start), math.ceil(end) + step, step)
    one.series = max((int(float(value)) for series in sizes for _, value in series["values"]), default=0)
    day = min(width, 86400)
    counts = promql.instant(made, promql.expression("rate", anchor=one.anchor, target=target, range=f"{day}s"), end)
    most = max((float(series["value"][1]) for series in counts), default=0.0)
    one.scrapes = most * width / day
    if most >= 2:
        one.interval_s = day / most


# -- what it said ---------------------------------------------------------------------------------------------------------------
def pull(
    made: Client, server: Server, start: float, end: float, since: Callable[[Found], float | None] = lambda _: None,
    note: Callable[[str], None] = lambda _: None,
) -> Iterator[Piece]:  # fmt: skip
    """What all servers said after `start` (of one server: after `since`, where that is later) and up to `end`, in order of time.

    `note` is told what the user should know: warnings of the answers, and where steps stand for samples.
    """
    found = find(made, server, start, end)
    step = server.step_s or _thinned(server, found, start, end, note)
    for one in found:
        low = max(start, since(one) or -math.inf)
        if low < end:
            yield from _pull_one(made, server, one, low, end, step)
        if one.numbers and not one.router and not any(str(key[1]).endswith("cache_config_info") for key in one.numbers):
            note(f"{one.instance}: {NO_CONFIG}")
    for warning in made.warnings:
        note(f"{server.url} says: {warning}")


def _thinned(server: Server, found: Sequence[Found], start: float, end: float, note: Callable[[str], None]) -> int | None:
    """The step where every sample would be too many; None where it is not."""
    total = sum(one.series * one.scrapes for one in found)
    if total <= server.max_samples:
        return None
    series = sum(one.series for one in found)
    least = 2 * max(one.interval_s for one in found)
    step = 60 * math.ceil(max(least, (end - start) * series / server.max_samples) / 60)
    note(f"{total:,.0f} samples are too many: taken is one value every {step} s. A shorter window gives every sample.")
    return step


def _pull_one(made: Client, server: Server, one: Found, start: float, end: float, step: int | None) -> Iterator[Piece]:
    """The pieces of one server, in order; some are asked for ahead, in parallel."""
    asks = _raw_asks(made, one, start, end) if step is None else _step_asks(made, one, start, end, step)
    waiting: deque[Future[tuple[list[Series], list[Series]]]] = deque()
    with ThreadPoolExecutor(server.parallel) as pool:
        try:
            for ask in asks:
                waiting.append(pool.submit(ask))
                if len(waiting) >= 2 * server.parallel:
                    yield from _pieces(one, *waiting.popleft().result(), step)
            while waiting:
                yield from _pieces(one, *waiting.popleft().result(), step)
        finally:
            pool.shutdown(cancel_futures=True)


Ask = Callable[[], tuple[list[Series], list[Series]]]  # the series, and those of up


def _raw_asks(made: Client, one: Found, start: float, end: float) -> Iterator[Ask]:
    """Questions for every sample in (start, end]."""
    width = int(min(max(PIECE * one.interval_s / max(one.series, 1), 30), 6 * 3600))
    low = math.floor(start)
    while low < end:
        high = min(low + width, math.ceil(end))
        first, last = max(float(low), start), min(float(high), end)

        def ask(
            high: int = high, width: int = high - low, first: float = first, last: float = last
        ) -> tuple[list[Series], list[Series]]:
            target, within = promql.selector(one.labels), f"{width}s"
            found = promql.instant(made, promql.expression("raw", target=target, range=within), high)
            up = promql.instant(made, promql.expression("up", target=_site(one), range=within), high)
            return _cut(found, first, last), _cut(up, first, last)

        yield ask
        low = high


def _site(one: Found) -> str:
    """What `up` shares with the server's series: labels that metric relabelling adds are not on it."""
    return promql.selector({name: value for name, value in one.labels.items() if name in SITE})


def _cut(found: Sequence[Series], first: float, last: float) -> list[Series]:
    """Only what lies in (first, last]: Prometheus 3 leaves the left end of a range out, 2 does not."""
    cut = [{"metric": one["metric"], "values": [pair for pair in one["values"] if first < pair[0] <= last]} for one in found]
    return [one for one in cut if one["values"]]


def _step_asks(made: Client, one: Found, start: float, end: float, step: int) -> Iterator[Ask]:
    """Questions for one value a step after `start`."""
    within = f"{max(step, math.ceil(2 * one.interval_s))}s"  # a step shorter than that may hold no scrape, by jitter
    points = max(2, min(promql.MAX_POINTS, PIECE // max(one.series, 1)))
    for low, high in promql.chunks(math.floor(start) + 1, math.floor(end), step, points):

        def ask(low: int = low, high: int = high) -> tuple[list[Series], list[Series]]:
            target = promql.selector(one.labels)
            found = promql.piece(made, promql.expression("counters", target=target, range=within), low, high, step)
            for name in () if one.router else GAUGES:
                gauge = promql.expression(
                    "gauge", name=one.prefix + name, target=target, range=f"{step}s" if step > 60 else within
                )
                found += [
                    {"metric": {**series["metric"], "__name__": one.prefix + name}, "values": series["values"]}
                    for series in promql.piece(made, gauge, low, high, step)
                ]
            return found, []

        yield ask


# -- rows -----------------------------------------------------------------------------------------------------------------------
def _pieces(one: Found, found: Sequence[Series], up: Sequence[Series], step: int | None) -> Iterator[Piece]:
    """The batches of one answer; nothing where it is empty."""
    new: list[tuple[str | None, ...]] = []
    ids: list[Array] = []
    stamps: list[Array] = []
    values: list[Array] = []
    for series in found:
        number = _number(one, series["metric"], new)
        points = np.array(series["values"], dtype=float).reshape(-1, 2)
        points = points[np.isfinite(points[:, 1])]
        ids.append(np.full(len(points), number))
        stamps.append(points[:, 0])
        values.append(points[:, 1])
    ok = np.unique(np.concatenate(stamps)) if stamps else np.zeros(0)
    batches = []
    if new:
        columns = dict(zip(("instance", "name", "engine", "model_name", "labels"), zip(*new, strict=True), strict=True))
        known = len(one.numbers) - len(new)
        batches.append(Batch("series", {"series": list(range(known, len(one.numbers))), **columns}))
    if len(ok):
        batches.append(
            Batch("sample", {"series": np.concatenate(ids), "ts": np.concatenate(stamps), "value": np.concatenate(values)})
        )
    scrapes = _scrapes(one, ok, up, step)
    if scrapes is not None:
        batches.append(scrapes)
    if batches:
        yield Piece(one, tuple(batches))


def _number(one: Found, metric: Mapping[str, str], new: list[tuple[str | None, ...]]) -> int:
    """The number of a series, which is told where it is new."""
    own = {name: value for name, value in metric.items() if name not in OWN and name not in one.labels}
    key = (one.instance, metric["__name__"], metric.get("engine"), metric.get("model_name"), json.dumps(own, sort_keys=True))
    if key not in one.numbers:
        one.numbers[key] = len(one.numbers)
        new.append(key)
    return one.numbers[key]


def _scrapes(one: Found, ok: Array, up: Sequence[Series], step: int | None) -> Batch | None:
    """One row a scrape: those with samples, those that failed, and those that are missing."""
    took: dict[float, float] = {}
    failed: set[float] = set()
    for series in up:
        for ts, value in series["values"]:
            if series["metric"].get("__name__") == "scrape_duration_seconds":
                took[float(ts)] = float(value)
            elif float(value) == 0:
                failed.add(float(ts))
    failed -= set(ok.tolist())
    seen = sorted([*ok.tolist(), *failed])
    if not seen:
        return None
    interval = float(step) if step else float(np.median(np.diff(ok))) if len(ok) > 2 else one.interval_s
    missing: list[float] = []
    for before, after in zip([one.last_ts, *seen], seen, strict=False):
        if before is not None and after - before > 1.5 * interval:
            count = min(MARKED, round((after - before) / interval) - 1)
            missing += [before + interval * (at + 1) for at in range(count)]
    one.last_ts = seen[-1]
    rows = sorted([*((ts, True) for ts in ok.tolist()), *((ts, False) for ts in [*failed, *missing])])
    return Batch("scrape", {
        "instance": [one.instance] * len(rows), "ts": [ts for ts, _ in rows], "ok": [fine for _, fine in rows],
        "duration_s": [took.get(ts) for ts, _ in rows], "timed": [True] * len(rows),
    })  # fmt: skip
