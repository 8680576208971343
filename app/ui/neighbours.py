"""The slowest requests with what ran beside each: request records and gauges of their server, around them."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import streamlit as st

from analyzers.beside import NO_GAUGES, Beside, Gauges, beside
from analyzers.books import cap_of
from analyzers.model import Array, Columns
from app.pipeline import window_of
from app.store import Store
from app.ui.session import View

NEAREST: Final = 5000  # requests of a server looked at beside one
MARGIN_S: Final = 30.0  # of gauges on both sides
LONG_S: Final = 3600.0  # a request longer than this is looked at without gauges
COLUMNS: Final = (
    *("arrival_ts", "end_ts", "frontend_s", "queue_s", "prefill_s", "decode_s", "output_s"),
    *("prompt_tokens", "cached_tokens", "output_tokens"),
)


def instances(view: View) -> list[str]:
    """The servers of the chosen engines; request records carry no engine."""
    return list(dict.fromkeys(name.rpartition("/")[0] for name in view.chosen))


def many(view: View) -> bool:
    """Whether there are several servers: a request that passed two of them is on each of them one."""
    return len(instances(view)) > 1


def places(view: View, row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The records of a request, with file and line."""
    return view.rows("request_place", key=row["key"], instance=row["instance"] or "", many=many(view))


def slowest(view: View, most: int) -> list[dict[str, Any]]:
    """The slowest requests by the chosen target, the slowest first."""
    asked = {"low": view.low, "high": view.high, "instances": instances(view), "target": view.pick.target}
    return view.rows("request_slow", **asked, most=most, many=many(view))


def near(view: View, row: Mapping[str, Any]) -> Columns:
    """The requests of the same server that overlap this one, itself first."""
    asked = {"key": row["key"], "instance": row["instance"] or "", "low": row["arrival_ts"], "high": row["end_ts"]}
    return view.columns("request_near", **asked, most=NEAREST, many=many(view))


def looked_at(
    view: View, row: Mapping[str, Any], columns: Columns, records: Sequence[Mapping[str, Any]], *, closely: bool
) -> Beside | None:
    """What held one request, `closely` by the gauges of its time, too; None where its stages were not recorded."""
    if row["queue_s"] is None or not len(columns["arrival_ts"]) or columns["key"][0] != row["key"]:
        return None
    plain = {name: np.asarray(columns[name], dtype=float) for name in COLUMNS}
    return beside(plain, 0, gauges(view, row) if closely else NO_GAUGES, tokens_of(row, records))


def tokens_of(row: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> Array | None:
    """The instants of its tokens on the server's clock, from a client that recorded its chunks: the first one is the first token."""
    for one in records:
        if one["chunk_s"] is not None and len(one["chunk_s"]) > 1 and row["ttft_s"] is not None:
            chunks = np.asarray(one["chunk_s"], dtype=float)
            return np.asarray(chunks - chunks[0] + float(row["arrival_ts"]) + float(row["ttft_s"]))
    return None


def gauges(view: View, row: Mapping[str, Any]) -> Gauges:
    """The scrapes around a request; none where its server has several engines, as its record names none."""
    mine = [name for name in view.engines if name.rpartition("/")[0] == (row["instance"] or "")]
    low, high = float(row["arrival_ts"]), float(row["end_ts"])
    if len(mine) != 1 or low < 1e8 or high - low > LONG_S:
        return NO_GAUGES
    return _gauges(view.mark, mine[0], math.floor(low - MARGIN_S), math.ceil(high + MARGIN_S), view.store)


def _gauges_now(mark: str, name: str, low: float, high: float, _store: Store) -> Gauges:  # noqa: ARG001 key
    window = window_of(_store, low, high, [name.replace("/", "None/", 1) if name.startswith("/") else name])
    if not window.engines or not len(window.engines[0].interval.get("ts", ())):
        return NO_GAUGES
    engine = window.engines[0]
    ts, running, waiting, usage, lost = (
        np.asarray(engine.interval[column], dtype=float)
        for column in ("ts", "running", "waiting", "kv_usage_ratio", "preemptions")
    )
    return Gauges(ts, running, waiting, usage, lost, cap_of(engine)[0])


_gauges: Callable[..., Gauges] = st.cache_data(max_entries=128, show_spinner=False)(_gauges_now)
