"""Servers that come and go into the store: found again and again, scraped while they are there."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from app.collectors import discovery
from app.collectors.discovery import Discovery, DiscoveryError
from app.collectors.sources import scrape
from app.live import Background
from app.live.scraped import Feeds, watching

LOG: Final = logging.getLogger("weaklink.discovery")


@dataclass(slots=True)
class Known:
    """What a discovery has found, and why the last look failed."""

    targets: list[scrape.Target] = field(default_factory=list)
    error: str | None = None


def discovering(discoveries: Sequence[Discovery], feeds: Feeds, known: list[Known]) -> Background:
    """A loop that scrapes what the discoveries find; `known` shows, while it runs, what that is, one for each."""
    known[:] = [Known() for _ in discoveries]

    async def watch(take: scrape.Take, stop: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as group:
            looks = [group.create_task(_look(one, of, stop)) for one, of in zip(discoveries, known, strict=True)]
            await scrape.watch_found(lambda: discovery.merged([of.targets for of in known]), take, stop)
            for look in looks:
                look.cancel()

    return watching(watch, feeds)


async def _look(one: Discovery, of: Known, stop: asyncio.Event) -> None:
    """Look again and again. A look that fails keeps what was found before, and is said once."""
    while not stop.is_set():
        try:
            of.targets, error = await discovery.find(one), None
        except DiscoveryError as failed:
            error = str(failed)
        if error is not None and error != of.error:
            LOG.warning("discovery: %s; %d servers found before stay", error, len(of.targets))
        of.error = error
        await asyncio.sleep(one.every_s)
