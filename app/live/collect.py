"""One run of `collect`: what is scraped, asked and listened to, and how it went."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from app.collectors.access import AccessError
from app.collectors.discovery import Discovery
from app.collectors.sources.kv_events import KvEventsError, Subscription
from app.collectors.sources.prometheus import PrometheusError, Server
from app.collectors.sources.scrape import Target
from app.live import Background, run
from app.live.discovered import Known, discovering
from app.live.followed import following
from app.live.pulled import LAG_S, Pulled, pull, pulling
from app.live.received import events
from app.live.scraped import Feeds, scraping
from app.store import Store

AGAIN_S: Final = 2.0  # between two looks for a log that is not there


@dataclass(frozen=True, slots=True)
class Log:
    """A vLLM log that is followed. `instance`: host:port of the server that writes it (None: of the only target)."""

    path: Path
    instance: str | None = None


@dataclass(slots=True)
class Collection:
    """What to collect, and what was. `window`: of a Prometheus (None: open ends); without it, it is followed or asked once."""

    targets: tuple[Target, ...] = ()
    servers: tuple[Server, ...] = ()
    subscriptions: tuple[Subscription, ...] = ()
    discoveries: tuple[Discovery, ...] = ()
    logs: tuple[Log, ...] = ()
    spans: bool = True  # `serve` takes those that vLLM sends
    window: tuple[float | None, float | None] | None = None
    limit_s: float | None = None
    feeds: Feeds = field(default_factory=dict)
    pulled: dict[str, Pulled] = field(default_factory=dict)  # by URL
    lines: dict[str, dict[str, int]] = field(default_factory=dict)  # by path of a log: what was read
    unread: dict[str, str] = field(default_factory=dict)  # by path of a log: why it cannot be
    errors: list[str] = field(default_factory=list)
    known: list[Known] = field(default_factory=list)  # of each discovery

    def stored(self) -> bool:
        """Whether anything came, or was there already."""
        pulls = [sum(one.scrapes.values()) + sum(one.known.values()) for one in self.pulled.values()]
        logged = any({"stat", "step", "event"} & counts.keys() for counts in self.lines.values())
        return bool(self.subscriptions) or logged or any(pulls) or any(feed.scrapes > feed.failed for feed in self.feeds.values())

    def progress(self) -> str:
        """One line for a terminal."""
        feeds, pulls = list(self.feeds.values()), list(self.pulled.values())
        scrapes = sum(one.scrapes for one in feeds) + sum(sum(one.scrapes.values()) for one in pulls)
        failed = sum(one.failed for one in feeds) + sum(sum(one.failed.values()) for one in pulls)
        errors = "".join(f"  {one.error}" for one in self.known if one.error) + "".join(
            f"  {one.instance}: {one.error}" for one in feeds if one.error
        )
        return f"{scrapes} scrapes, {failed} failed{errors}"

    def summary(self) -> dict[str, Any]:
        """What was collected, for programs."""
        return {
            "target": [
                {
                    "instance": one.instance, "scrapes": one.scrapes, "failed": one.failed, "samples": one.samples,
                    "skipped": one.skipped, "dropped": one.dropped, "rejected": one.rejected, "error": one.error,
                }
                for one in self.feeds.values()
            ],
            "prometheus": [
                {"url": url, "instance": instance, "scrapes": count, "failed": one.failed.get(instance, 0), "known": one.known.get(instance, 0)}
                for url, one in self.pulled.items()
                for instance, count in one.scrapes.items()
            ],
            "log": [{"path": path, **counts} for path, counts in self.lines.items()],
            "note": [f"{url}: {note}" for url, one in self.pulled.items() for note in one.notes],
            "discovery": [{"servers": len(one.targets), "error": one.error} for one in self.known],
            "error": [*self.errors, *(f"{path}: {why}" for path, why in self.unread.items())],
        }  # fmt: skip


_RUNNING: Final[list[Collection]] = []  # at most one: the latest of this process


def current() -> Collection | None:
    """What this process collects; None: nothing."""
    return _RUNNING[0] if _RUNNING else None


def loops_of(going: Collection) -> list[Background]:
    """The loops that go on until they are stopped: what `serve` runs beside the dashboard."""
    _RUNNING[:] = [going]
    loops = [scraping(going.targets, going.feeds)] if going.targets else []
    loops += [discovering(going.discoveries, going.feeds, going.known)] if going.discoveries else []
    loops += [pulling(server, going.pulled.setdefault(server.url, Pulled())) for server in going.servers]
    return loops + [events(one) for one in going.subscriptions] + [_logging(going, one) for one in going.logs]


def _logging(going: Collection, log: Log) -> Background:
    """A loop that follows a log, also one that is not there yet."""
    name, server = str(log.path), log.instance or (going.targets[0].instance if len(going.targets) == 1 else None)

    def run(store: Store, stop: threading.Event) -> None:
        while not stop.is_set():
            try:
                if log.path.is_file():
                    going.unread.pop(name, None)
                    following(log.path, server, going.lines.setdefault(name, {}))(store, stop)
                else:
                    going.unread[name] = "no such file"
            except OSError as error:
                going.unread[name] = error.strerror or str(error)
            stop.wait(AGAIN_S)

    return run


def collect(store: Store, going: Collection, show: Callable[[float], None], beside: Sequence[Background] = ()) -> None:
    """Collect until done, the time is over, or a signal; what cannot be reached is said in the summary.

    The loops `beside` run as long as something is followed.
    """
    lasting = bool(going.targets or going.subscriptions or going.discoveries or going.logs)
    follow = going.window is None and (going.limit_s is not None or lasting)
    loops = loops_of(going if follow else replace(going, servers=()))
    if not follow:
        loops += [partial(_once, going, server) for server in going.servers]
    try:
        run([partial(loop, store) for loop in [*loops, *(beside if follow else ())]], going.limit_s, show)
    except (AccessError, KvEventsError) as error:
        going.errors.append(str(error))


def _once(going: Collection, server: Server, store: Store, stop: threading.Event) -> None:
    pulled = going.pulled.setdefault(server.url, Pulled())
    start, end = going.window or (None, None)
    try:
        pull(store, server, start, end if end is not None else time.time() - LAG_S, pulled, stop)
    except (PrometheusError, AccessError) as error:
        going.errors.append(f"{server.url}: {error}")
