"""What routers in front of the engines say, as notes beside an attribution: the wait before an engine, and where prefixes were found.

The seconds of an attribution begin where the engine's server takes a request; what a router did before is not among them.
"""

import math
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final

from app.store import Store

LIKE: Final = 0.2  # of the requests: a router and its engines that differ by more did not count the same ones
MOST: Final = 8  # engines that are named

_ROWS: Final = """
SELECT instance, router, target, sum(wait_s), sum(wait_n), max(queued), sum(hit_ratio_sum), sum(hit_ratio_n), sum(ttft_s), sum(ttft_n),
  sum(e2e_s), sum(e2e_n), sum(hit_tokens), sum(query_tokens)
FROM router_row WHERE ts > $low AND ts <= $high GROUP BY ALL ORDER BY ALL
"""
_NAMES: Final = (
    *("instance", "router", "target", "wait_s", "wait_n", "queued", "hit_ratio_sum", "hit_ratio_n", "ttft_s", "ttft_n"),
    *("e2e_s", "e2e_n", "hit_tokens", "query_tokens"),
)


def alone(store: Store) -> str | None:
    """What to give, where all that was found is a router; None where there is none."""
    found = store.rows("SELECT DISTINCT router, target FROM router_series ORDER BY ALL")
    if not found:
        return None
    names, targets = (sorted({row[at] for row in found if row[at]}) for at in (0, 1))
    to = f", which sends to {', '.join(targets[:8])}{' and more' if len(targets) > 8 else ''}" if targets else ""
    return (
        f"only a router was found ({', '.join(names)}){to}: it tells its own queue and where prefixes lie, no link of an engine; "
        "give the engines' /metrics (together with the router's, both are read)"
    )


def notes(store: Store, start: float | None, end: float | None) -> list[str]:
    """One note a router and topic; none where no router was collected."""
    if not store.rows("SELECT 1 FROM router_series LIMIT 1"):
        return []
    bounds = {"low": -math.inf if start is None else start, "high": math.inf if end is None else end}
    routers: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in store.rows(_ROWS, bounds):
        found = dict(zip(_NAMES, row, strict=True))
        routers[found["instance"], found["router"]].append(found)
    ((ttft_s, ttft_n),) = store.rows("SELECT sum(ttft_s), sum(ttft_n) FROM interval_row WHERE ts > $low AND ts <= $high", bounds)
    said = []
    for (instance, router), rows in routers.items():
        about = [*_wait(rows), *_before(rows, ttft_s, ttft_n), *_hits(rows)]
        said += [f"router {instance} ({router}): {text}" for text in about]
    return said


def _total(rows: list[dict[str, Any]], name: str) -> float | None:
    known = [float(row[name]) for row in rows if row[name] is not None]
    return sum(known) if known else None


def _mean(rows: list[dict[str, Any]], total: str, count: str) -> float | None:
    above, below = _total(rows, total), _total(rows, count)
    return above / below if above is not None and below else None


def _wait(rows: list[dict[str, Any]]) -> list[str]:
    """The router's own queue."""
    mean, queued = _mean(rows, "wait_s", "wait_n"), _total(rows, "queued")
    most = "" if queued is None else f"up to {queued:.0f} requests queued in it at once"
    if mean is None:
        return [most] if queued else []
    waited = f"requests waited {mean:.3g} s in it before an engine (mean of {_total(rows, 'wait_n'):.0f}), which no stage here contains"
    return ["; ".join(filter(None, (waited, most)))]


def _before(rows: list[dict[str, Any]], ttft_s: float | None, ttft_n: float | None) -> list[str]:
    """The TTFT that the router sees against that of its engines, where both counted the same requests."""
    mean, count = _mean(rows, "ttft_s", "ttft_n"), _total(rows, "ttft_n")
    if mean is None or not count or not ttft_n or ttft_s is None or abs(count - ttft_n) > LIKE * ttft_n:
        return []
    own = ttft_s / ttft_n
    return [f"it sees a TTFT of {mean:.3g} s, the engines one of {own:.3g} s: {mean - own:.3g} s pass before and after them"]


def _hits(rows: list[dict[str, Any]]) -> list[str]:
    """Where prefixes were found, by engine where the router tells them apart."""
    ratio = _mean(rows, "hit_ratio_sum", "hit_ratio_n")
    said = [f"{100 * ratio:.0f} % of a prompt was expected in the chosen engine's cache (mean)"] if ratio is not None else []
    engines = [row for row in rows if row["target"]]
    share = [f"{row['target']} {_percent(row)}" for row in engines if row["query_tokens"]]
    if share:
        said.append(f"prefix hits by engine: {_listed(share)}")
    sent = _total(engines, "e2e_n")
    if sent:
        took = [f"{row['target']} {100 * row['e2e_n'] / sent:.0f} %" for row in engines if row["e2e_n"] is not None]
        said.append(f"requests by engine: {_listed(took)}")
    return said


def _percent(row: Mapping[str, Any]) -> str:
    return f"{100 * (row['hit_tokens'] or 0.0) / row['query_tokens']:.0f} %"


def _listed(texts: list[str]) -> str:
    more = f" and {len(texts) - MOST} more" if len(texts) > MOST else ""
    return ", ".join(texts[:MOST]) + more
