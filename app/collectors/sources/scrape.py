"""A running vLLM server's /metrics, scraped by HTTP: one recording line a scrape, as `record` writes it and bundles hold it.

A line is {"t": epoch seconds when asked, "url", "dur": seconds until the answer was complete, "text"}, with "error" in place
of "text" where there was no usable answer: a target that is down is a gap, never zero. Each target has one scrape under way
at most; what falls due meanwhile is left out. Proxies and credentials of the environment (HTTP_PROXY, .netrc) are not used.
"""

import asyncio
import contextlib
import math
import os
import re
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import httpx

from app.collectors.access import Access, AccessError, checked
from app.collectors.formats.json_lines import instance_of

MAX_BYTES: Final = 64 << 20  # of one answer, unpacked; 400 engines have 12 MiB
MAX_REDIRECTS: Final = 3
LOOK_S: Final = 1.0  # between two looks at which servers there are
# text, not OpenMetrics: no exemplars. identity: packing costs the API server the very time that is measured
HEADERS: Final = {"Accept": "text/plain;version=0.0.4", "Accept-Encoding": "identity", "User-Agent": "weaklink"}
PATH: Final = "is the path right? vLLM's is /metrics"
HINTS: Final = {401: "it asks for credentials", 403: "the credentials do not suffice", 404: PATH}
_OURS: Final = re.compile(
    r"^(?:(?:ray_)?vllm[:_]|inference_(?:extension|objective|pool)_|llm_d_(?:router_)?epp_|dynamo_(?:frontend|router|component_router)_)",
    re.MULTILINE,
)

Line = dict[str, Any]
Take = Callable[[Line], None]


@dataclass(frozen=True, slots=True)
class Target:
    """One /metrics. `url` may leave out scheme and path: host:port is http://host:port/metrics. ValueError: no such URL."""

    url: str
    name: str | None = None
    interval_s: float = 1.0
    timeout_s: float = 5.0
    access: Access = field(default_factory=Access)

    def __post_init__(self) -> None:
        """Complete the URL."""
        object.__setattr__(self, "url", complete(self.url))

    @property
    def instance(self) -> str:
        """host:port, by which everything of this server is joined."""
        return instance_of(self.url) or self.url


def complete(url: str) -> str:
    """The URL with scheme and path. ValueError says what is wrong; credentials inside are refused."""
    _, parts = checked(url, "http://host:port/metrics")
    path = parts.path if parts.path not in {"", "/"} else "/metrics"
    return urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))


class _UnusableError(Exception):
    """The answer is no scrape; the message says why."""


async def watch(targets: Sequence[Target], take: Take, stop: asyncio.Event) -> None:
    """Scrape until `stop`; `take` gets each line at once and must not block. Starts are spread over the interval.

    AccessError: a certificate cannot be read.
    """
    contexts: dict[tuple[str | bool, ...], ssl.SSLContext] = {}
    for target in targets:
        if target.access.tls() not in contexts:
            contexts[target.access.tls()] = target.access.context()
    async with asyncio.TaskGroup() as group:
        for at, target in enumerate(targets):
            delay = target.interval_s * at / len(targets)
            group.create_task(_follow(target, contexts[target.access.tls()], take, stop, delay))


async def watch_found(found: Callable[[], Sequence[Target]], take: Take, stop: asyncio.Event) -> None:
    """As `watch`, of servers that come and go: `found` says at any time which there are."""
    running: dict[Target, tuple[asyncio.Event, asyncio.Task[None]]] = {}
    async with asyncio.TaskGroup() as group:
        while not stop.is_set():
            there = dict.fromkeys(found())
            for target in [one for one in running if one not in there]:
                running.pop(target)[0].set()
            for target in there:
                if target not in running:
                    gone = asyncio.Event()
                    running[target] = gone, group.create_task(_follow(target, target.access.context(), take, gone, 0.0))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), LOOK_S)
        for gone, _ in running.values():
            gone.set()


def client(context: ssl.SSLContext) -> httpx.AsyncClient:
    """What the scrapes of one target share. One a target: a pool looks at all of its connections for each request."""
    return httpx.AsyncClient(
        verify=context,
        trust_env=False,
        follow_redirects=True,
        max_redirects=MAX_REDIRECTS,
        headers=HEADERS,
        timeout=None,  # noqa: S113 scrape() bounds the whole, which a limit between two bytes would not
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=1, keepalive_expiry=120),
    )


async def _follow(target: Target, context: ssl.SSLContext, take: Take, stop: asyncio.Event, delay: float) -> None:
    due = time.monotonic() + delay
    stopping = asyncio.ensure_future(stop.wait())
    async with client(context) as http:
        while not await _stopped(stopping, due - time.monotonic()):
            scraping = asyncio.ensure_future(scrape(http, target))
            await asyncio.wait({scraping, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not scraping.done():  # a slow answer does not hold up the end
                scraping.cancel()
                return
            take(scraping.result())
            missed = max(0.0, (time.monotonic() - due) / target.interval_s)
            due += target.interval_s * (math.floor(missed) + 1)  # what fell due meanwhile is left out, not made up for


async def _stopped(stopping: asyncio.Future[Any], seconds: float) -> bool:
    """Wait; True as soon as the end has come."""
    await asyncio.wait({stopping}, timeout=max(0.0, seconds))
    return stopping.done()


async def scrape(http: httpx.AsyncClient, target: Target) -> Line:
    """One scrape as a recording line; what goes wrong is its "error"."""
    line: Line = {"t": round(time.time(), 4), "url": public(target.url)}
    start = time.perf_counter()
    try:
        async with asyncio.timeout(target.timeout_s):
            said: Line = {"text": await _text(http, target)}
    except (_UnusableError, AccessError) as error:
        said = {"error": str(error)}
    except TimeoutError:
        said = {"error": f"no complete answer within {target.timeout_s:g} s"}
    except httpx.HTTPError as error:
        said = {"error": _problem(error)}
    return {**line, "dur": round(time.perf_counter() - start, 4), **said}


def public(url: str) -> str:
    """The URL without what may be secret in it."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


async def _text(http: httpx.AsyncClient, target: Target) -> str:
    async with http.stream("GET", target.url, headers=target.access.headers()) as answer:
        if answer.status_code != httpx.codes.OK:
            hint = HINTS.get(answer.status_code)
            raise _UnusableError(f"HTTP status {answer.status_code}" + (f": {hint}" if hint else ""))
        if "html" in answer.headers.get("content-type", ""):
            raise _UnusableError(f"a web page, not metrics: {PATH}")
        parts, size = [], 0
        async for part in answer.aiter_bytes():
            size += len(part)
            if size > MAX_BYTES:
                raise _UnusableError(f"the answer is larger than {MAX_BYTES >> 20} MiB: cut")
            parts.append(part)
    text = b"".join(parts).decode("utf-8", "replace")
    if text.lstrip("\ufeff \t\r\n")[:1] == "<":
        raise _UnusableError(f"a web page, not metrics: {PATH}")
    if _OURS.search(text) is None:
        raise _UnusableError("no series of vLLM in the answer: another program's, or vLLM with --disable-log-stats")
    return text


def _problem(error: httpx.HTTPError) -> str:
    causes: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in causes:
        causes.append(cause)
        cause = cause.__cause__ or cause.__context__
    for one in causes:
        if isinstance(one, ssl.SSLCertVerificationError):
            return f"TLS: {one.verify_message}; ca_file names the authority to trust"
        if isinstance(one, ssl.SSLError):
            return f"TLS: {one.reason or 'failed'}; is it https?"
    if isinstance(error, httpx.ConnectError):
        numbers = [one.errno for one in causes if isinstance(one, OSError) and one.errno]
        why = os.strerror(numbers[-1]) if numbers and numbers[-1] > 0 else str(error)
        return f"cannot connect: {why or type(error).__name__}"
    if isinstance(error, httpx.TooManyRedirects):
        return f"more than {MAX_REDIRECTS} redirects"
    if isinstance(error, httpx.DecodingError):
        return "the answer cannot be unpacked"
    return f"broken off: {str(error) or type(error).__name__}"
