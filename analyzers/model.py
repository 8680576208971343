"""The nouns that everything passes around: frozen, without I/O.

Seconds are seconds, ratios 0-1, timestamps epoch seconds (UTC). `None` and NaN mean unknown, never zero.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy.typing as npt

Array = npt.NDArray[Any]
Columns = Mapping[str, Array]  # equal-length arrays by column name


class Stage(StrEnum):
    """Where a request's measured seconds are spent, in order; they add up to E2E."""

    FRONTEND = "frontend"
    QUEUE = "queue"
    PREFILL = "prefill"
    DECODE = "decode"
    OUTPUT = "output"


class Level(StrEnum):
    """What was observed, poorest first; each includes what the one before it shows (attribution.md section 1)."""

    STATE = "state"
    METRICS = "metrics"
    LOGS = "logs"
    REQUESTS = "requests"
    HASHES = "hashes"


TARGETS: Mapping[str, tuple[Stage, ...]] = {
    "ttft": (Stage.FRONTEND, Stage.QUEUE, Stage.PREFILL),
    "tpot": (Stage.DECODE,),
    "e2e": tuple(Stage),
}


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of one table, column by column: what a reader yields and `Store.add` takes.

    `table` names a table of queries/schema, `columns` holds equal-length sequences (lists, numpy or Arrow arrays) by
    column name; columns left out are NULL.
    """

    table: str
    columns: Mapping[str, Sequence[Any] | Array]


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened: start, restart, config, JIT, rearrangement, death (kinds: queries/schema, table event)."""

    ts: float
    engine: str | None
    kind: str
    fields: Mapping[str, Any]
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class Engine:
    """All that one window holds of one engine (instance + `engine` label).

    `interval` one row per scrape interval, `stat` per stats line of the log, `step` per iteration line, `request` per
    finished request, `scrape` per scrape of the instance; columns as in queries/views. `facts` are single values: engine
    arguments, cache configuration, model shape. `total` holds each counter's increase over the window.
    """

    instance: str
    engine: str
    model: str | None = None
    version: str | None = None
    interval: Columns = field(default_factory=dict)
    scrape: Columns = field(default_factory=dict)
    stat: Columns = field(default_factory=dict)
    step: Columns = field(default_factory=dict)
    request: Columns = field(default_factory=dict)
    bucket: Mapping[str, tuple[Array, Array]] = field(default_factory=dict)
    total: Mapping[str, float] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    kv: Mapping[str, float] = field(default_factory=dict)
    event: tuple[Event, ...] = ()


@dataclass(frozen=True, slots=True)
class Window:
    """A span of time over one or more engines. `start`/`end` are None where the recording carries no clock."""

    start: float | None
    end: float | None
    engines: tuple[Engine, ...]
    restarts: int = 0


@dataclass(frozen=True, slots=True)
class Refusal:
    """What cannot be determined, and what to measure (with the flag) to settle it."""

    what: str
    measure: str


@dataclass(frozen=True, slots=True)
class Link:
    """A link of the chain. `load`: present in every server, never a fault by itself. `cause` joins links that are fixed as one.

    `grows`: lifting it raises the number of sequences that run at once, so it never limits TPOT.
    """

    name: str
    title: str
    load: bool = False
    grows: bool = False
    cause: str | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One link's row of the matrix link x stage, in seconds per finished request.

    `cells` is what the link owns, `fault` the part of it that counts as a fault (None: all of it, nothing of a load link).
    An unknown link has no cells but a `bound`: the most it could hold of each stage (None: it cannot matter here, as the
    configuration rules it out). `pressure` is how near the link is to its own limit (0-1). Of `unseen` stages its share cannot be
    told: a target with such a stage, in which nothing else is seen of the link, does not know it.
    """

    cells: Mapping[Stage, float] = field(default_factory=dict)
    fault: Mapping[Stage, float] | None = None
    known: bool = True
    bound: Mapping[Stage, float] | None = None
    pressure: float | None = None
    fact: str = ""
    used: bool = True
    conditions: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    unseen: tuple[Stage, ...] = ()


@dataclass(frozen=True, slots=True)
class Sign:
    """What a state (gauges and rates without request seconds) says for a link: strength 0-1 and the sentence."""

    strength: float
    says: str
    measure: str = ""


@dataclass(frozen=True, slots=True)
class Part:
    """One link's share of one target, in seconds per request (TPOT: per output token).

    `seconds` is None where the link is unknown. `bound_s` is the most it could be, where it is unknown and may matter.
    """

    link: str
    seconds: float | None
    cells: Mapping[Stage, float]
    fault_s: float | None = None
    range_s: tuple[float, float] | None = None
    saves_s: float | None = None
    last_s: float | None = None
    status: str = "ok"
    conditions: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    pressure: float | None = None
    fact: str = ""
    used: bool = True
    bound_s: float | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """One target of one engine or fleet: measured = floor + parts + unexplained, to 1e-6.

    Where `floor_whole` is False step costs are not known: the floor is what is known of it, the rest of it is in unexplained.
    """

    name: str
    measured_s: float | None
    floor_s: float | None
    unexplained_s: float | None
    stages: Mapping[Stage, float | None]
    parts: tuple[Part, ...]
    limiting: str | None
    runner_up: str | None
    verdict: str
    cannot_determine: tuple[Refusal, ...] = ()
    conditions: tuple[str, ...] = ()
    load: str | None = None
    floor_whole: bool = True

    def part(self, link: str) -> Part:
        """The part of `link`; KeyError where the chain has no such link."""
        for part in self.parts:
            if part.link == link:
                return part
        raise KeyError(link)


@dataclass(frozen=True, slots=True)
class Segment:
    """Requests of one class of prompt length: how many, their mean prompt tokens, and mean seconds by target and stage."""

    name: str
    requests: int
    prompt_tokens: float
    seconds: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class EngineResult:
    """The targets of one engine. `role` is both, prefill or decode (by what its requests do, not by configuration)."""

    instance: str
    engine: str
    role: str
    requests: int
    targets: Mapping[str, Target]
    level: Level = Level.METRICS
    what_if: Any = None  # analyzers.whatif.WhatIf, where the twin was asked for
    segments: tuple[Segment, ...] = ()


@dataclass(frozen=True, slots=True)
class Attribution:
    """What `attribute` returns for a window: each engine's targets and, weighted by requests, the fleet's."""

    start: float | None
    end: float | None
    models: tuple[str, ...]
    versions: tuple[str, ...]
    level: Level
    restarts: int
    finished: int
    aborted: int | None
    engines: tuple[EngineResult, ...]
    targets: Mapping[str, Target | None]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Effect:
    """What a change is predicted to do to one target: seconds saved (negative: lost) with a range; None: cannot be predicted."""

    saves_s: float | None
    range_s: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """One deployment change: when it applies, what it is predicted to do, what it costs next door, how to test it.

    `claim` says why it should help here, `confused_with` the misleading alternative, `predicted_by` twin, books, arithmetic or
    nothing, `flags` the exact flags for the detected version.
    """

    name: str
    change: str
    flags: tuple[str, ...]
    claim: str
    effect: Mapping[str, Effect]
    predicted_by: str
    costs: tuple[str, ...]
    confused_with: str
    conditions: tuple[str, ...]
    test: str
    undoes: str | None = None  # the link that it takes away, where it takes one away


@dataclass(frozen=True, slots=True)
class Impact:
    """What an objective lost in a window: `bad` of `total` events (requests; ITL: tokens), between `least` and `most` where it is interpolated.

    `objective` is the share that must be good, `assumed` where nobody gave it. `minutes` had events, in `bad_minutes` of them more
    were bad than the objective allows. `period_s` is the objective's, None where it has none. `first_ts` is the first bad event.
    `missing` says why nothing can be told.
    """

    name: str
    kind: str
    threshold_s: float | None
    objective: float
    assumed: bool = False
    total: float = 0.0
    bad: float = 0.0
    least: float = 0.0
    most: float = 0.0
    minutes: int = 0
    bad_minutes: int = 0
    first_ts: float | None = None
    period_s: float | None = None
    source: str = ""
    missing: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Evidence:
    """What shows a link on one engine: the query, its parameters, its columns (at most a few hundred points), and lines of logs.

    `meaning` says what a column is, `rows` how many the query gave. `lines` are (file, line, epoch seconds or None, what it says).
    """

    link: str
    instance: str
    engine: str
    query: str
    parameters: Mapping[str, Any]
    meaning: Mapping[str, str]
    columns: Mapping[str, Sequence[float]]
    rows: int
    lines: tuple[tuple[str, int, float | None, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much of the window one server was seen: scrapes, failed ones, the longest time without a good one, and its bounds."""

    instance: str
    scrapes: int
    failed: int
    first_ts: float | None
    last_ts: float | None
    gap_s: float | None
    gap_ts: float | None


@dataclass(frozen=True, slots=True)
class Incident:
    """What is exported: an attribution and where it comes from.

    `files` holds one mapping a file: name, format, lines, rejected, and for reports sha256, bytes, server. `version` is weaklink's.
    The rest is for reports: `timeline` (epoch seconds, what happened), `series` (time series by engine and name, at most a few
    hundred points), `stream` the workload in words, `arguments` of each server, `command` that reproduces the report,
    `baseline` the name of what it is compared to, `changes` what differs from it, in sentences.
    """

    version: str
    files: tuple[Mapping[str, Any], ...]
    attribution: Attribution
    title: str = ""
    note: str = ""
    timeline: tuple[tuple[float, str], ...] = ()
    series: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict)
    stream: str = ""
    hypotheses: tuple[Hypothesis, ...] = ()
    arguments: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    command: str = ""
    impact: tuple[Impact, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    coverage: tuple[Coverage, ...] = ()
    baseline: str = ""
    changes: tuple[str, ...] = ()
