"""Where an incident comes from: the files with their hashes and counts, and how much of the window each server was seen."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from analyzers.model import Array, Attribution, Coverage
from app.store import Store

FILE_KEYS = ("name", "bundle", "format", "lines", "rejected", "sha256", "bytes", "server")


def files(store: Store, judged: Attribution, results: Sequence[Mapping[str, Any]] = ()) -> tuple[Mapping[str, Any], ...]:
    """The files that the window's servers were recorded in; of `results` also those that were not read, with the reason."""
    chosen = sorted({e.instance for e in judged.engines})
    rows = store.rows(
        "SELECT name, bundle, format, lines, rejected, sha256, bytes, instance FROM source_file AS f "
        "WHERE instance IS NULL OR list_contains($chosen, instance) "
        "OR file_id IN (SELECT file_id FROM scrape WHERE list_contains($chosen, coalesce(instance, ''))) ORDER BY bundle, name, file_id",
        {"chosen": chosen},
    )
    found = [dict(zip(FILE_KEYS, row, strict=True)) for row in rows]
    why = {one["name"]: _why(one) for one in results}
    known = {one["name"] for one in found}
    for one in found:
        one["why"] = why.get(one["name"], "")
    none = {"bundle": "", "sha256": None, "bytes": None, "server": None}
    unread = [
        {
            **none,
            "name": one["name"],
            "format": one["format"],
            "lines": one["lines"],
            "rejected": one["rejected"],
            "why": _why(one),
        }
        for one in results
        if one["name"] not in known
    ]
    return (*found, *unread)


def _why(one: Mapping[str, Any]) -> str:
    return "; ".join(filter(None, (one.get("message"), *one.get("reasons", ()))))


def coverage(store: Store, judged: Attribution, start: float | None, end: float | None) -> tuple[Coverage, ...]:
    """One row a server that was scraped in the window."""
    chosen = sorted({e.instance for e in judged.engines})
    low = start if start is not None else judged.start if judged.start is not None else -math.inf
    high = end if end is not None else judged.end if judged.end is not None else math.inf
    found = store.columns(
        "SELECT coalesce(instance, '') AS instance, ts, ok, timed FROM scrape WHERE list_contains($chosen, coalesce(instance, '')) "
        "AND (NOT timed OR (ts >= $low AND ts <= $high)) ORDER BY instance, ts",
        {"chosen": chosen, "low": low, "high": high},
    )
    out = []
    for name in dict.fromkeys(found["instance"]):
        mask = found["instance"] == name
        ok, timed = found["ok"][mask].astype(bool), found["timed"][mask].astype(bool)
        out.append(_covered(name, found["ts"][mask], ok, timed))
    return tuple(out)


def _covered(name: str, ts: Array, ok: Array, timed: Array) -> Coverage:
    good = np.unique(ts[ok & timed])
    failed = int((~ok).sum())
    if not len(good):
        return Coverage(name, len(ts), failed, None, None, None, None)
    gaps = np.diff(good)
    worst = int(gaps.argmax()) if len(gaps) else None
    return Coverage(
        name, len(ts), failed, float(good[0]), float(good[-1]),
        None if worst is None else float(gaps[worst]), None if worst is None else float(good[worst]),
    )  # fmt: skip
