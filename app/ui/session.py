"""What all pages share: the one store of the process, what the user picked, and the judgement of it, cached.

The picks (target, engine, window, recording) live in the session and in the address, so that a link shows the same page to
somebody else. `View` is what a page gets.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import urlencode

import numpy as np
import streamlit as st

from analyzers.attribute import attribute, under_load
from analyzers.model import TARGETS, Attribution, Columns, Target, Window
from app.access import who_of
from app.pipeline import noted, window_of
from app.seat import seated
from app.store import Store, sql
from app.ui import shared
from app.ui.goals import measured
from app.ui.limits import missed
from app.ui.words import write_in

_PICK: Final = "pick"
LIVE: Final = "live"  # the bundle of everything that is scraped while the server runs
FEW: Final = 5  # finished requests from which a window can be compared with
LAST_S: Final = 3600.0
# mark of the store, start, end, engines, objectives missed (JSON), baseline window
Asked = tuple[str, float, float, tuple[str, ...], str, tuple[float, ...]]
ALERT: Final = "report-alert"  # in the session: the alert that the Reports page reports, where it is not the window
WINDOWS: Final = 3  # that are kept: an hour of twenty engines is 34 MB
EVERYTHING: Final = "*"  # all recordings together, as one fleet


@dataclass(frozen=True, slots=True)
class Pick:
    """What the user chose. `start` and `end` are epoch seconds; None: the whole recording. `engine` is "host:port/label".

    `model` leaves the engines that serve it. `base_*` is the window to compare with, `zone` the clock that times are written in: utc, or local, that of the browser.
    `link` and `request` are what a page is about; they do not go with the user to another page.
    """

    target: str = "ttft"
    engine: str | None = None
    start: float | None = None
    end: float | None = None
    recording: str | None = None
    base_start: float | None = None
    base_end: float | None = None
    zone: str = "utc"
    model: str | None = None
    link: str | None = None
    request: str | None = None

    def params(self) -> dict[str, str]:
        """As the address has it; what is at its default is left out."""
        given = {
            "target": None if self.target == "ttft" else self.target,
            "engine": self.engine,
            "from": None if self.start is None else _stamp(self.start, up=False),
            "to": None if self.end is None else _stamp(self.end, up=True),
            "recording": self.recording,
            "base-from": None if self.base_start is None else _stamp(self.base_start, up=False),
            "base-to": None if self.base_end is None else _stamp(self.base_end, up=True),
            "model": self.model,
            "zone": None if self.zone == "utc" else self.zone,
            "link": self.link,
            "request": self.request,
        }
        return {name: text for name, text in given.items() if text is not None}

    def shared(self) -> dict[str, str]:
        """What of it goes with the user to another page."""
        return replace(self, link=None, request=None).params()

    def address(self, page: str, **changes: Any) -> str:
        """The address of a page with the same picks, beside the page that is open; "" is the first."""
        params = replace(self, **{"link": None, "request": None, **changes}).params()
        return f"{page or './'}?{urlencode(params)}" if params else page or "./"


def pick_of(params: Mapping[str, str]) -> Pick:
    """The picks that an address holds; what cannot be read is left out."""
    target = params.get("target", "ttft")
    start, end = _instant(params.get("from")), _instant(params.get("to"))
    if start is not None and end is not None and end <= start:
        start = end = None
    base = _instant(params.get("base-from")), _instant(params.get("base-to"))
    if base[0] is None or base[1] is None or base[1] <= base[0]:
        base = None, None
    return Pick(
        target if target in TARGETS else "ttft", params.get("engine"), start, end, params.get("recording"), *base,
        "local" if params.get("zone") == "local" else "utc", params.get("model"), params.get("link"), params.get("request"),
    )  # fmt: skip


def _stamp(ts: float, *, up: bool) -> str:
    """An instant in ISO 8601 to the millisecond, rounded outwards; seconds as a number where there is no clock."""
    if ts < 1e8:
        return f"{ts:g}"
    thousandth = (math.ceil if up else math.floor)(ts * 1000)
    return datetime.fromtimestamp(thousandth // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S") + f".{thousandth % 1000:03}Z"


def _instant(text: str | None) -> float | None:
    """Epoch seconds of an ISO 8601 instant (UTC where it names no zone) or of a number; None where it is neither."""
    if not text:
        return None
    try:
        found = float(text)
    except ValueError:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            return None
        found = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    return found if math.isfinite(found) else None


def picked() -> Pick:
    """What is chosen now: the address where it says something, else the session."""
    params = st.query_params.to_dict()
    if params or _PICK not in st.session_state:
        st.session_state[_PICK] = pick_of(params)
    pick: Pick = st.session_state[_PICK]
    if params != pick.params():
        st.query_params.from_dict(pick.params())
    return pick


def set_clock() -> None:
    """Write times by the clock that is picked: UTC, or that of the browser."""
    pick: Pick = st.session_state.get(_PICK, Pick())
    minutes = st.context.timezone_offset if pick.zone == "local" else 0
    write_in(-60.0 * minutes if minutes else 0.0)  # browsers count west of Greenwich


def choose(**changes: Any) -> None:
    """Change picks, in the session and in the address; the caller reruns (a widget's callback need not)."""
    pick = replace(st.session_state.get(_PICK, Pick()), **changes)
    st.session_state[_PICK] = pick
    st.query_params.from_dict(pick.params())


# -- what is there ------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Recording:
    """A bundle in the store. `start` and `end` are None where nothing in it carries a clock."""

    bundle: str
    start: float | None
    end: float | None
    instances: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class View:
    """What a page draws: the picks, the engines they leave, and what was judged.

    `low` and `high` bound the window for SQL (infinite: open). `engines` are all in the window as "host:port/label",
    `chosen` those that the picks leave. `fleet` judges all of them, `judged` the chosen ones, `baseline` these in the window to
    compare with; None: nothing is there. `models` names the model of each engine.
    """

    store: Store
    mark: str
    pick: Pick
    recordings: tuple[Recording, ...]
    instances: tuple[str, ...]
    low: float
    high: float
    engines: tuple[str, ...]
    chosen: tuple[str, ...]
    fleet: Attribution | None
    judged: Attribution | None
    baseline: Attribution | None = None
    models: Mapping[str, str] = field(default_factory=dict)

    @property
    def target(self) -> Target | None:
        """The chosen target of the chosen engines."""
        return None if self.judged is None else self.judged.targets[self.pick.target]

    @property
    def missing(self) -> bool:
        """True where a recording is picked that the store does not hold."""
        named = self.pick.recording
        return bool(self.recordings) and named not in {None, EVERYTHING, *(one.bundle for one in self.recordings)}

    def link(self, name: str) -> str:
        """The address of a link's page, with the same picks."""
        return self.pick.address("link", link=name)

    def rows(self, name: str, **params: Any) -> list[dict[str, Any]]:
        """Rows of queries/screens/<name>.sql, cached until the store changes."""
        return _rows(self.mark, f"screens/{name}", json.dumps(params), self.store)

    def columns(self, name: str, **params: Any) -> Columns:
        """Columns of queries/screens/<name>.sql, cached until the store changes."""
        return _columns(self.mark, f"screens/{name}", json.dumps(params), self.store)

    def evidence(self, link: str, instance: str | None, engine: str) -> Columns:
        """Columns of queries/evidence/<link>.sql for one engine, over the window."""
        params = {"instance": instance, "engine": engine, "low": self.low, "high": self.high}
        return _columns(self.mark, f"evidence/{link}", json.dumps(params), self.store)

    def whole(self) -> tuple[float, float] | None:
        """First and last instant of the recordings that the window lies in; None where they carry no clock."""
        spans = [
            (one.start, one.end)
            for one in self.recordings
            if one.start is not None
            and one.end is not None
            and one.start <= self.high
            and one.end >= self.low
            and set(one.instances) & set(self.instances)
        ]
        return (min(start for start, _ in spans), max(end for _, end in spans)) if spans else None

    def window(self) -> dict[str, Any]:
        """The parameters that nearly every query takes."""
        return {"low": self.low, "high": self.high, "engines": list(self.chosen)}


def view() -> View:
    """The view of what is picked now."""
    held, pick, now = seated(shared.held()[0], who_of(st.context.headers)), picked(), shared.mark()
    set_clock()
    recordings = tuple(
        Recording(row["bundle"], row["start_ts"], row["end_ts"], tuple(row["instances"]))
        for row in _rows(now, "screens/frame_recording", "{}", held)
    )
    low, high, instances = scope(recordings, pick, shared.settled())
    found = (
        _rows(now, "screens/frame_engine", json.dumps({"low": low, "high": high, "instances": list(instances)}), held)
        if recordings
        else []
    )
    names = {f"{row['instance'] or ''}/{row['engine']}": f"{row['instance']}/{row['engine']}" for row in found}
    models = {f"{row['instance'] or ''}/{row['engine']}": row["model"] or "" for row in found}
    mine = tuple(one for one in names if pick.model is None or models[one] == pick.model) or tuple(names)
    chosen = (pick.engine,) if pick.engine in names else mine
    fleet, _ = _judged(held, now, (low, high), tuple(names.values()), pick) if names else (None, None)
    judged, baseline = _judged(held, now, (low, high), tuple(names[one] for one in chosen), pick) if names else (None, None)
    return View(held, now, pick, recordings, instances, low, high, tuple(names), chosen, fleet, judged, baseline, models)


def _judged(
    held: Store, now: str, span: tuple[float, float], names: tuple[str, ...], pick: Pick
) -> tuple[Attribution | None, Attribution | None]:
    """The attribution of a window against objectives and baseline, and that of the baseline."""
    base, asked = None, (math.nan, math.nan)
    if pick.base_start is not None and pick.base_end is not None:
        asked = pick.base_start, pick.base_end
        base = _judge((now, *asked, names, "{}", ()), held, None)
        base = base if base.finished >= FEW else None
    limit = json.dumps(missed(measured(held, now, names, *span)))
    return _judge((now, *span, names, limit, asked if base else ()), held, base), base


def scope(recordings: Sequence[Recording], pick: Pick, settled: float = math.inf) -> tuple[float, float, tuple[str, ...]]:
    """Window and servers that the picks mean: of the recording picked, of all where asked for, else of the newest.

    Of what is recorded live and has no window picked it is the last hour, up to what is `settled`: all queries of a page, and all
    pages that are drawn until more is, are about the same span.
    """
    named = [one for one in recordings if one.bundle == pick.recording]
    everything = pick.recording == EVERYTHING or (pick.start is not None and not named)
    group = list(recordings) if everything else named or list(recordings[-1:])
    instances = tuple(sorted({name for one in group for name in one.instances}))
    low, high = -math.inf, math.inf
    spans = [(one.start, one.end) for one in group if one.start is not None and one.end is not None]
    if spans and len(group) < len(recordings):
        low, high = min(start for start, _ in spans), max(end for _, end in spans)
    if spans and any(one.bundle == LIVE for one in group):
        high = min(max(end for _, end in spans), settled)
        low = high - LAST_S
    return (low if pick.start is None else pick.start), (high if pick.end is None else pick.end), instances


def _judge_now(asked: Asked, _store: Store, _base: Attribution | None) -> Attribution:
    mark, low, high, names, limit, _ = asked
    window, late = window_between(_store, mark, low, high, shared.unnamed(names)), json.loads(limit)
    found = noted(_store, window, attribute(window, baseline=_base), *_open(low, high))
    targets = {name: under_load(target, None, _base, late.get(name)) for name, target in found.targets.items()}
    return replace(found, targets=targets)


def window_between(store: Store, mark: str, low: float, high: float, chosen: Sequence[str]) -> Window:
    """All that the store holds of a span, of the chosen engines ("host:port/label"); read once for all pages that ask for it."""
    found = _window((mark, low, high), store)
    return replace(found, engines=tuple(e for e in found.engines if f"{e.instance}/{e.engine}" in chosen))


def _open(low: float, high: float) -> tuple[float | None, float | None]:
    """The bounds of a span; None where it is open."""
    return None if math.isinf(low) else low, None if math.isinf(high) else high


def _window_now(asked: tuple[str, float, float], _store: Store) -> Window:
    return window_of(_store, *_open(*asked[1:]))


def _rows_now(mark: str, name: str, params: str, _store: Store) -> list[dict[str, Any]]:
    columns = _columns_now(mark, name, params, _store)
    length = len(next(iter(columns.values())))
    return [{key: _none(values[at]) for key, values in columns.items()} for at in range(length)]


def _columns_now(mark: str, name: str, params: str, _store: Store) -> Columns:  # noqa: ARG001 as above
    return _store.columns(sql(*name.split("/")), json.loads(params) or None)


# `mark` is a part of each key: it says how much the store held. An argument that starts with _ is no part of it.
_window: Callable[..., Window] = st.cache_resource(max_entries=WINDOWS, show_spinner=False)(_window_now)
_judge: Callable[..., Attribution] = st.cache_resource(max_entries=64, show_spinner=False)(_judge_now)
_rows: Callable[..., list[dict[str, Any]]] = st.cache_data(max_entries=256, show_spinner=False)(_rows_now)
_columns: Callable[..., Columns] = st.cache_data(max_entries=64, show_spinner=False)(_columns_now)


def _none(value: Any) -> Any:
    """A cell as Python has it; NaN is None."""
    plain = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(plain, float) and math.isnan(plain) else plain
