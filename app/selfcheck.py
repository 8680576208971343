"""`weaklink doctor self`: is this installation well? Its store, disk, collecting, extras; of a running server by its metrics."""

import importlib.util
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx

from app.retention import summary
from app.store import Store, StoreError

OK: Final = "ok"
WARN: Final = "warning"
BAD: Final = "wrong"
EXTRAS: Final = {"pdf": "weasyprint", "otlp": "opentelemetry.proto", "kv": "zmq", "notify": "apprise"}
LATE_S: Final = 120.0  # a server that is collected and was not heard of for so long
LINE: Final = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$")


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    name: str
    state: str
    said: str


def examine(path: Path, server: str | None, token: str | None) -> list[Check]:
    """Look at the store, or where a server holds it, at what that says of itself."""
    checks = [*_extras()]
    try:
        if server is not None:
            return [*checks, *_of_server(_asked(server, token))]
        if not path.exists():
            return [*checks, Check("store", WARN, f"{path} does not exist yet: weaklink load PATH, or weaklink collect")]
        with Store(path) as store:
            return [*checks, *_of_store(store)]
    except StoreError as error:
        return [
            *checks,
            Check("store", BAD, f"{error} If `weaklink serve` holds it: weaklink doctor self --server http://HOST:PORT"),
        ]
    except httpx.HTTPError as error:
        return [*checks, Check("server", BAD, f"{server} does not answer ({type(error).__name__}: {error})")]


def _extras() -> Iterator[Check]:
    missing = [name for name, module in EXTRAS.items() if not _there(module)]
    said = (
        "all there"
        if not missing
        else f"not installed, and not needed unless you use it: {', '.join(missing)} (pip install 'weaklink[...]')"
    )
    yield Check("extras", OK, said)


def _there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _of_store(store: Store) -> Iterator[Check]:
    now = time.time()
    held = summary(store, now)
    yield Check("store", WARN if store.read_only else OK, store.notice or f"{store.path}: opens, {held['bytes'] / 1e6:.1f} MB")
    yield _disk(held["free_bytes"], store.min_free_bytes, held["full_in_days"])
    lost = store.rows("SELECT count(*) FROM every_sample AS m ANTI JOIN series AS s USING (series_id)")[0][0]
    yield Check("samples", BAD if lost else OK, f"{lost} samples belong to no series" if lost else "each belongs to a series")
    assert store.segments is not None
    gone = [row[0] for row in store.rows("SELECT file FROM segment") if not (store.segments / row[0]).exists()]
    yield Check(
        "closed days",
        BAD if gone else OK,
        f"files are missing: {', '.join(gone[:5])}; restore a backup" if gone else "every file is there",
    )
    killed = store.rows("SELECT count(*), max(ts) FROM journal WHERE kind = 'killed' AND ts > ?", [now - 7 * 86400])[0][0]
    yield Check(
        "shutdown", WARN if killed else OK, f"killed {killed} times in a week" if killed else "always in order in the last week"
    )
    for instance, last in store.rows(
        "SELECT c.instance, max(c.ts) FROM scrape AS c JOIN source_file AS f USING (file_id) WHERE f.live AND c.ok GROUP BY 1 ORDER BY 1"
    ):
        yield Check(f"last scrape of {instance}", OK, f"{now - last:.0f} s ago")


def _disk(free: float, least: float, days: float | None) -> Check:
    if free < least:
        return Check(
            "disk",
            BAD,
            f"{free / 1e6:.0f} MB are free, less than {least / 1e6:.0f} MB: nothing is stored. Free some, or set [retention] max_gb",
        )
    if days is not None and days < 14:
        return Check(
            "disk", WARN, f"full in {days:.0f} days at the growth of the last week: set [retention] max_gb or fewer raw_days"
        )
    return Check("disk", OK, f"{free / 1e9:.1f} GB are free")


def _asked(server: str, token: str | None) -> dict[str, list[tuple[str, float]]]:
    """A server's metrics: name -> (labels, value)."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    answer = httpx.get(f"{server.rstrip('/')}/metrics", headers=headers, timeout=10)
    answer.raise_for_status()
    found: dict[str, list[tuple[str, float]]] = {}
    for line in answer.text.splitlines():
        if match := LINE.match(line):
            found.setdefault(match[1], []).append((match[2] or "", float(match[3])))
    return found


def _of_server(found: Mapping[str, list[tuple[str, float]]]) -> Iterator[Check]:
    def one(name: str) -> float | None:
        return found[name][0][1] if found.get(name) else None

    yield Check(
        "server",
        OK,
        f"runs since {_ago(one('process_start_time_seconds'))}, {(one('process_resident_memory_bytes') or 0) / 1e6:.0f} MB of memory",
    )
    free = one("weaklink_disk_free_bytes")
    if free is not None:
        full = one("weaklink_disk_full")
        yield Check("disk", BAD if full else OK, f"{free / 1e9:.1f} GB are free{': nothing is stored' if full else ''}")
    for labels, lag in found.get("weaklink_lag_seconds", []):
        yield Check(f"lag of {labels}", WARN if lag > LATE_S else OK, f"the newest scrape is {lag:.0f} s old")
    for labels, dropped in found.get("weaklink_dropped_total", []):
        if dropped:
            yield Check(
                f"dropped of {labels}", WARN, f"{dropped:.0f} scrapes: the store could not keep up, or the disk was nearly full"
            )
    queries, seconds = one("weaklink_queries_total"), one("weaklink_query_seconds_total")
    if queries and seconds is not None:
        slow = seconds / queries
        yield Check("queries", WARN if slow > 1 else OK, f"{1000 * slow:.1f} ms on average over {queries:.0f}")
    dead = [value for labels, value in found.get("weaklink_notifications", []) if "dead" in labels]
    if dead and dead[0]:
        yield Check("notifications", WARN, f"{dead[0]:.0f} were given up: see the Alerts page")


def _ago(ts: float | None) -> str:
    return "an unknown time" if ts is None else f"{(time.time() - ts) / 3600:.1f} h"


def document(checks: list[Check]) -> dict[str, Any]:
    """For programs."""
    return {
        "well": all(one.state != BAD for one in checks),
        "checks": [{"name": one.name, "state": one.state, "said": one.said} for one in checks],
    }


def render(checks: list[Check]) -> str:
    """For people."""
    return "\n".join(f"{one.state:<9}{one.name:<28}{one.said}" for one in checks)
