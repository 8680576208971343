"""AIPerf's own record of the server's metrics: server_metrics_export.jsonl (each scrape) and .json (sums of the run); 0.5 to 0.14.

The JSON lines are scrapes, those that changed nothing left out. The JSON document (the default) holds increases: they become a scrape
of zeros at the start of the measured phase and one at its end, or one a slice where AIPerf was run with --slice-duration.

Traps
    - Counters have lost their `_total`, as in prometheus_client's families. In the lines no type says which they are: what is not
      known as a gauge of vLLM is one.
    - Histograms are one value with buckets, sum and count.
    - `*_info` is not in the lines, and without labels of use in the document: the size of the KV cache is unknown.
    - In the document a gauge is the mean of the phase (of the slice), at both of its ends.
    - `warmup_metrics` are left out.

Source: aiperf 0.13.0, common/models/server_metrics_models.py (SlimRecord, ServerMetricsExportData, schema 1.1).
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, BinaryIO, Final

import numpy as np

from analyzers.model import Batch
from app.collectors.formats.json_lines import (
    Tail,
    Tally,
    documents,
    head_fields,
    instance_of,
    integer,
    lines,
    number,
    seconds,
    string,
    table,
)

NAME: Final = "aiperf_server"
ROWS: Final = 1 << 16  # samples a batch
KEPT: Final = ("vllm:", "vllm_", "ray_vllm_", "http_", "process_")
EXPECTED_LINE: Final = 'expected: a record with "endpoint_url", "timestamp_ns" and "metrics"'
EXPECTED: Final = 'expected: an export with "summary" and "metrics", and the times of the phase in "summary"'
SERIES: Final = ("series", "instance", "name", "engine", "model_name", "labels")
SCRAPE: Final = ("instance", "ts", "duration_s", "ok", "timed")
_GAUGE: Final = re.compile(
    r"num_requests_|_(?:perc|info|rate|state|in_flight|blocks|jobs|ema|active|efficiency|healthy|transfers)$|process_(?!cpu_seconds$)"
)

Point = tuple[str, Mapping[str, str], float]  # a series as vLLM exposes it, its labels, a value


@dataclass(slots=True)
class _Book:
    """Series that have been seen, and rows that wait for their batch."""

    numbers: dict[tuple[str | None, ...], int] = field(default_factory=dict)
    new: list[tuple[Any, ...]] = field(default_factory=list)
    scrapes: list[tuple[Any, ...]] = field(default_factory=list)
    samples: list[tuple[int, float, float]] = field(default_factory=list)
    instances: set[str | None] = field(default_factory=set)

    def scrape(self, instance: str | None, ts: float, duration_s: float | None, points: Iterable[Point]) -> None:
        """Take one scrape."""
        self.instances.add(instance)
        self.scrapes.append((instance, ts, duration_s, True, True))
        for name, labels, value in points:
            others = {key: text for key, text in labels.items() if key not in {"engine", "model_name"}}
            key = (instance, name, labels.get("engine"), labels.get("model_name"), json.dumps(others, sort_keys=True))
            if key not in self.numbers:
                self.numbers[key] = len(self.numbers)
                self.new.append((self.numbers[key], *key))
            self.samples.append((self.numbers[key], ts, value))

    def flush(self) -> Iterator[Batch]:
        """Yield what waits; series before their samples."""
        if self.new:
            yield table("series", SERIES, self.new)
        if self.samples:
            series, ts, value = zip(*self.samples, strict=True)
            yield Batch("sample", {"series": np.array(series), "ts": np.array(ts), "value": np.array(value)})
        if self.scrapes:
            yield table("scrape", SCRAPE, self.scrapes)
        self.new, self.samples, self.scrapes = [], [], []


def sniff(head: bytes) -> bool:
    """Recognise a line by its endpoint and stamp, the document by its summary."""
    fields = head_fields(head)
    if "endpoint_url" in fields:
        return "timestamp_ns" in fields and isinstance(fields.get("metrics"), dict | Tail)
    summary = fields.get("summary")
    return "schema_version" in fields and isinstance(summary, dict | Tail) and "endpoints_configured" in summary


def scrapes(head: bytes) -> bool:
    """Whether a file that is ours holds scrapes (the lines), not sums (the document)."""
    return "endpoint_url" in head_fields(head)


def read(stream: BinaryIO, reference_ts: float) -> Iterator[Batch]:  # noqa: ARG001 (the times here have their year)
    """Yield batches of series, sample and scrape."""
    tally, book = Tally(), _Book()
    for line, value in documents(lines(stream, tally), stream, tally):
        fields = value if isinstance(value, dict) else {}
        if "summary" in fields:
            if not _document(book, fields):
                tally.reject(line, EXPECTED)
        elif not _line(book, fields):
            tally.reject(line, EXPECTED_LINE)
        if len(book.samples) >= ROWS:
            yield from book.flush()
    yield from book.flush()
    known = book.instances - {None}
    yield from tally.batches(instance=known.pop() if len(known) == 1 else None)


# -- lines ----------------------------------------------------------------------------------------------------------------------
def _line(book: _Book, fields: Mapping[str, Any]) -> bool:
    ts, metrics = _instant(fields.get("timestamp_ns")), fields.get("metrics")
    if ts is None or not isinstance(metrics, dict):
        return False
    latency = integer(fields.get("endpoint_latency_ns"))
    points = [point for name, samples in metrics.items() if name.startswith(KEPT) for point in _points(name, samples)]
    book.scrape(instance_of(fields.get("endpoint_url")), ts, None if latency is None else seconds(latency / 1e9), points)
    return True


def _points(name: str, samples: Any) -> Iterator[Point]:
    for sample in samples if isinstance(samples, list) else ():
        if not isinstance(sample, dict):
            continue
        labels = _labels(sample.get("labels"))
        value = number(sample.get("value"))
        if value is not None:
            yield (name if _GAUGE.search(name) else f"{name}_total"), labels, value
        yield from _histogram(name, labels, sample, sample.get("buckets"))


def _histogram(name: str, labels: Mapping[str, str], sums: Mapping[str, Any], buckets: Any) -> Iterator[Point]:
    for part in ("sum", "count"):
        value = number(sums.get(part))
        if value is not None:
            yield f"{name}_{part}", labels, value
    for edge, count in buckets.items() if isinstance(buckets, dict) else ():
        value = number(count)
        if value is not None:
            yield f"{name}_bucket", {**labels, "le": edge}, value


def _labels(found: Any) -> dict[str, str]:
    return {key: value for key, value in found.items() if isinstance(value, str)} if isinstance(found, dict) else {}


def _instant(nanoseconds: Any) -> float | None:
    found = integer(nanoseconds)
    return None if found is None else seconds(found / 1e9)


# -- the document ---------------------------------------------------------------------------------------------------------------
def _document(book: _Book, fields: Mapping[str, Any]) -> bool:
    summary, metrics = fields.get("summary"), fields.get("metrics")
    span = _span(summary) if isinstance(summary, dict) else None
    if span is None or not isinstance(metrics, dict):
        return False
    start, end = span
    scrapes: dict[str | None, dict[float, list[Point]]] = {}
    for name, metric in metrics.items():
        found = metric if isinstance(metric, dict) else {}
        if name.startswith(KEPT) and not name.endswith("_info"):
            several = found.get("series")
            for series in several if isinstance(several, list) else ():
                if isinstance(series, dict):
                    held = scrapes.setdefault(instance_of(series.get("endpoint_url")), {start: [], end: []})
                    for ts, point in _increases(name, string(found.get("type")), series, start, end):
                        held.setdefault(ts, []).append(point)
    for instance, held in scrapes.items():
        for ts in sorted(held):
            book.scrape(instance, ts, None, held[ts])
    return True


def _span(summary: Mapping[str, Any]) -> tuple[float, float] | None:
    """Start and end of the measured phase: its own range, else the first and last change that was seen, else the run's."""
    ranges, infos = summary.get("phase_time_ranges"), summary.get("endpoint_info")
    phase = ranges.get("profiling") if isinstance(ranges, dict) else None
    found = [(phase.get("start_ns"), phase.get("end_ns"))] if isinstance(phase, dict) else []
    known = [info for info in infos.values() if isinstance(info, dict)] if isinstance(infos, dict) else []
    firsts = [ns for info in known if (ns := integer(info.get("first_update_ns"))) is not None]
    lasts = [ns for info in known if (ns := integer(info.get("last_update_ns"))) is not None]
    found += [(min(firsts), max(lasts))] if firsts and lasts else []
    spans = [(_instant(start), _instant(end)) for start, end in found]
    spans.append((_date(summary.get("start_time")), _date(summary.get("end_time"))))
    return next(((start, end) for start, end in spans if start is not None and end is not None and start < end), None)


def _date(text: Any) -> float | None:
    try:
        found = datetime.fromisoformat(text) if isinstance(text, str) else None
        return None if found is None else seconds((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp())
    except (ValueError, OverflowError):
        return None


def _increases(name: str, kind: str | None, series: Mapping[str, Any], start: float, end: float) -> Iterator[tuple[float, Point]]:
    """The points of one series: a mean at both ends of a gauge; of what counts, zeros at the start, then what it grew by."""
    labels = _labels(series.get("labels"))
    stats = series.get("stats")
    whole = [(end, stats, series.get("buckets"))] if isinstance(stats, dict) else []
    slices = _slices(series.get("timeslices"), start, end)
    if kind not in {"counter", "histogram"}:
        for ts, found, _ in [(start, stats, None), *(slices or whole)] if whole else slices:
            value = number(found.get("avg")) if isinstance(found, dict) else None
            if value is not None:
                yield ts, (name, labels, value)
        return
    total: dict[tuple[str, str], float] = {}
    for ts, found, buckets in slices or whole:
        points = list(_grown(name, kind, labels, found, buckets))
        if not total:
            yield from ((start, (one, named, 0.0)) for one, named, _ in points)
        for one, named, value in points:
            key = (one, named.get("le", ""))
            total[key] = total.get(key, 0.0) + value
            yield ts, (one, named, total[key])


def _grown(name: str, kind: str | None, labels: Mapping[str, str], found: Mapping[str, Any], buckets: Any) -> Iterator[Point]:
    if kind == "histogram":
        yield from _histogram(name, labels, found, buckets)
        return
    value = number(found.get("total"))
    if value is not None:
        yield f"{name}_total", labels, value


def _slices(found: Any, start: float, end: float) -> list[tuple[float, Mapping[str, Any], Any]]:
    """End, figures and buckets of each slice of the phase, in order."""
    slices = []
    for one in found if isinstance(found, list) else ():
        ts = _instant(one.get("end_ns")) if isinstance(one, dict) else None
        if ts is not None and start < ts <= end + 1:
            slices.append((ts, one, one.get("buckets")))
    return sorted(slices, key=lambda item: item[0])
