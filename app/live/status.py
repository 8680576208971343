"""How each live source does: last success, lag, what failed, which lines could not be read, and where nothing is known.

What is stored says most of it, also of sources that nobody collects any more. What runs in this process (`collect.current`) adds
what is asked for and has never answered, and why the last attempt failed.
"""

import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from app.live import LIVE, collect
from app.live.collect import Collection
from app.store import Store, sql

DAY_S: Final = 86400.0
LATE: Final = 3.0  # intervals without a success
LATE_S: Final = 10.0
GAPS: Final = 50  # shown of a source, the newest
KINDS: Final = {"prometheus_text": "scrape", "otlp_spans": "otlp", "kv_events": "kv_events", "vllm_log": "tail"}  # by format
STATES: Final = ("ok", "late", "failing", "never", "quiet", "stopped")


@dataclass(frozen=True, slots=True)
class Status:
    """One source.

    `kind` is the source's name; `state` one of STATES: ok, late (no success for three intervals), failing (`says` why), never
    (asked for, nothing came yet), quiet (a sender that sent nothing lately), stopped (stored, and not collected by this process).
    `good`, `failed` and `gaps` (start and end, epoch seconds, newest first) count since `since`; `rejected` ever.
    """

    kind: str
    name: str
    instance: str | None
    state: str
    says: str = ""
    last_ts: float | None = None
    lag_s: float | None = None
    good: int = 0
    failed: int = 0
    rejected: int = 0
    examples: tuple[str, ...] = ()
    gaps: tuple[tuple[float, float], ...] = ()


def sources(store: Store, now: float | None = None, *, since_s: float = DAY_S, going: Collection | None = None) -> list[Status]:
    """Every live source with what is known of the last `since_s` seconds; `going` defaults to what this process collects."""
    moment = time.time() if now is None else now
    going = going or collect.current()
    bound = {"since": moment - since_s}
    gaps: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for file_id, start, end in store.rows(sql("live", "gap"), bound):
        gaps[file_id].append((start, end))
    examples: dict[int, list[str]] = defaultdict(list)
    for file_id, line, reason in store.rows(sql("live", "example")):
        examples[file_id].append(f"line {line}: {reason}")
    names = ("file_id", "bundle", "name", "format", "instance", "last_ts", "good", "failed", "rejected")
    rows = [dict(zip(names, row, strict=True)) for row in store.rows(sql("live", "source"), bound)]
    asked = _asked(going) if going else {}
    found = [_status(row, asked.get(_key(row)), moment, examples[row["file_id"]], gaps[row["file_id"]]) for row in rows]
    stored = {_key(row) for row in rows}
    return found + [_never(key, one) for key, one in asked.items() if key not in stored]


@dataclass(frozen=True, slots=True)
class _Asked:
    """What this process knows of a source: how often it should succeed, and why it did not."""

    instance: str | None
    every_s: float | None
    error: str | None = None


_Key = tuple[str, str]


def _key(row: Mapping[str, Any]) -> _Key:
    if row["bundle"] != LIVE:
        return ("prometheus", row["bundle"].removeprefix("prometheus "))
    kind = KINDS.get(row["format"], row["format"])
    return (kind, row["name"].partition(" ")[2] if kind in {"kv_events", "tail"} else row["name"])


def _asked(going: Collection) -> dict[_Key, _Asked]:
    asked: dict[_Key, _Asked] = {}
    for target in (*going.targets, *(target for one in going.known for target in one.targets)):
        feed = going.feeds.get(target.instance)
        asked["scrape", target.instance] = _Asked(target.instance, target.interval_s, feed.error if feed else None)
    for server in going.servers:
        pulled = going.pulled.get(server.url)
        asked["prometheus", server.address] = _Asked(None, server.every_s, pulled.error if pulled else None)
    for one in going.subscriptions:
        asked["kv_events", one.endpoint] = _Asked(one.instance, None)
    for log in going.logs:
        asked["tail", str(log.path.resolve())] = _Asked(log.instance, None, going.unread.get(str(log.path)))
    return asked


def _status(
    row: Mapping[str, Any], asked: _Asked | None, now: float, examples: list[str], gaps: list[tuple[float, float]]
) -> Status:
    kind, address = _key(row)
    name = f"{address} {row['name']}" if kind == "prometheus" else address
    lag_s = None if row["last_ts"] is None else max(0.0, now - row["last_ts"])
    said = dict.fromkeys(asked.error.splitlines()) if asked and asked.error else {}
    return Status(
        kind, name, row["instance"], _state(kind, asked, lag_s), "; ".join(said), row["last_ts"], lag_s, row["good"], row["failed"],
        row["rejected"], tuple(examples), tuple(gaps[:GAPS]),
    )  # fmt: skip


def _state(kind: str, asked: _Asked | None, lag_s: float | None) -> str:
    if kind in {"otlp", "kv_events", "tail"} and not (asked and asked.error):
        return "ok" if lag_s is not None and lag_s < 60 else "quiet"
    if asked is None:
        return "stopped"
    if asked.error:
        return "failing"
    late = lag_s is None or lag_s > max(LATE * (asked.every_s or 0.0), LATE_S)
    return "late" if late else "ok"


def _never(key: _Key, asked: _Asked) -> Status:
    kind, name = key
    return Status(kind, name, asked.instance, "failing" if asked.error else "never", asked.error or "")
