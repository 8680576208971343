"""Who may come in, and what they may do: tokens, a proxy that has asked for the login, the roles admin and viewer.

A viewer sees everything and changes nothing: no upload, no objective, no backup. Wrong tokens make their sender wait, twice as
long each time. Pages learn who is there from two headers, which only this module sets.
"""

import asyncio
import hashlib
import hmac
import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

ADMIN: Final = "admin"
VIEWER: Final = "viewer"
COOKIE: Final = "weaklink"
COOKIE_DAYS: Final = 30
LOCAL_NAMES: Final = {"127.0.0.1", "localhost", "::1"}
USER_HEADER: Final = b"x-weaklink-user"
ROLE_HEADER: Final = b"x-weaklink-role"
FREE_TRIES: Final = 5  # wrong tokens before one has to wait
LONGEST_S: Final = 300.0
REMEMBERED: Final = 10_000  # addresses
READS: Final = {"GET", "HEAD", "OPTIONS"}


@dataclass(frozen=True, slots=True)
class Login:
    """How users prove who they are. Nothing set: whoever is on this machine is an admin.

    `user_header` is set by a proxy that has asked for the login; it is believed from `proxies` (addresses or networks) only.
    Of its users those in `admins` are admins, the others viewers.
    """

    token: str | None = None
    read_token: str | None = None
    user_header: str | None = None
    proxies: tuple[str, ...] = ()
    admins: frozenset[str] = frozenset()

    @property
    def asks(self) -> bool:
        """Whether anything has to be proved."""
        return bool(self.token or self.read_token or self.user_header)


@dataclass(frozen=True, slots=True)
class Who:
    """A user as the login names them, and the role."""

    user: str
    role: str


class Tries:
    """Wrong tokens by address: after a few, each makes the next wait twice as long."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.wrong: OrderedDict[str, tuple[int, float]] = OrderedDict()  # address -> wrong ones in a row, not before

    def wait(self, address: str) -> float:
        """Seconds that this address must wait before its next try counts."""
        return max(0.0, self.wrong.get(address, (0, 0.0))[1] - self.clock())

    def failed(self, address: str) -> None:
        """A wrong token came."""
        count = self.wrong.pop(address, (0, 0.0))[0] + 1
        pause = 0.0 if count < FREE_TRIES else min(LONGEST_S, 2.0 ** (count - FREE_TRIES))
        self.wrong[address] = count, self.clock() + pause
        while len(self.wrong) > REMEMBERED:
            self.wrong.popitem(last=False)

    def passed(self, address: str) -> None:
        """A right one came."""
        self.wrong.pop(address, None)


DRAIN_BYTES: Final = 64 * 1024**2  # of a refused body are read and dropped: a client that is still sending would miss the answer
DRAIN_S: Final = 10.0


async def drained(request: HTTPConnection, receive: Receive) -> None:
    """Read the body of a request that is refused, up to a size and a time: else its client gets a broken pipe and no answer.

    A client that asks first (Expect: 100-continue, as curl does) has sent nothing and is not told to.
    """
    if request.headers.get("expect", "").lower() == "100-continue" or request.scope["method"] in {"GET", "HEAD"}:
        return
    seen = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_S):
            while seen <= DRAIN_BYTES:
                message = await receive()
                seen += len(message.get("body", b""))
                if message["type"] != "http.request" or not message.get("more_body"):
                    return


class Guard:
    """Lets requests in: those that prove who they are where a login is set, else only those that address this machine by its own name.

    `?token=...` is answered once, with a cookie that holds a hash of it and the same address without it. Requests that another
    site's page sends are refused (their Origin is not our Host), and so is a Host that only resolves to the loopback.
    """

    def __init__(
        self,
        app: ASGIApp,
        token: str | None = None,
        *,
        local: bool,
        login: Login | None = None,
        base: str = "",
        tries: Tries | None = None,
    ) -> None:
        self.app, self.local, self.base = app, local, base
        self.login = login or Login(token=token)
        self.tries = tries or Tries()
        self.networks = [ipaddress.ip_network(one, strict=False) for one in self.login.proxies]
        held = ((self.login.token, Who("token", ADMIN)), (self.login.read_token, Who("read token", VIEWER)))
        self.tokens = [(token, who) for token, who in held if token]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with what is known of its sender, or refuse it with a plain message."""
        if scope["type"] not in {"http", "websocket"}:
            await self.app(scope, receive, send)
            return
        request = HTTPConnection(scope)
        found = self.judge(request)
        if isinstance(found, Who):
            kept = [pair for pair in scope["headers"] if pair[0].lower() not in {USER_HEADER, ROLE_HEADER}]
            told = [(USER_HEADER, found.user.encode("utf-8", "replace")), (ROLE_HEADER, found.role.encode())]
            await self.app({**scope, "headers": [*kept, *told]}, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": "refused"})
        else:
            await drained(request, receive)
            await found(scope, receive, send)

    def judge(self, request: HTTPConnection) -> Who | Response:
        """Who sent a request, or the answer that refuses it."""
        host = request.headers.get("host", "")
        origin = request.headers.get("origin")
        proxied = self._from_proxy(request)
        hosts = {host, *([request.headers.get("x-forwarded-host", "")] if proxied else [])}
        if origin is not None and _netloc(origin) not in hosts:
            return PlainTextResponse("weaklink: this request comes from another site's page and is refused.\n", 403)
        if self.open(request):
            return Who("", VIEWER)
        if not self.login.asks:
            if self.local and _name(host) not in LOCAL_NAMES:
                said = "weaklink: open it by 127.0.0.1 or localhost; another name needs a token (--token).\n"
                return PlainTextResponse(said, 403)
            return Who("local", ADMIN)
        found = self._proved(request, proxied=proxied)
        writes = request.scope["type"] == "http" and request.scope["method"] not in READS
        if isinstance(found, Who) and found.role != ADMIN and writes:
            return JSONResponse({"error": "this login may look, not change: a viewer cannot upload, send or back up"}, 403)
        return found

    def open(self, request: HTTPConnection) -> bool:
        """Whether a request needs no login: the health check, which says nothing to those who have none."""
        return (
            self.login.asks and request.scope["type"] == "http" and request.scope["path"] in {"/healthz", f"{self.base}/healthz"}
        )

    def _from_proxy(self, request: HTTPConnection) -> bool:
        try:
            address = ipaddress.ip_address(request.client.host if request.client else "")
        except ValueError:
            return False
        return any(address in network for network in self.networks)

    def _proved(self, request: HTTPConnection, *, proxied: bool) -> Who | Response:
        """Who the request proves to be; else the answer to it."""
        if self.login.user_header and proxied:
            user = request.headers.get(self.login.user_header, "").strip()[:200]
            if user:
                return Who(user, ADMIN if user in self.login.admins else VIEWER)
        if not self.tokens:
            return PlainTextResponse("weaklink: come by the proxy that asks for the login.\n", 401)
        given = request.query_params.get("token")
        bearer = request.headers.get("authorization", "")
        offered = given if given is not None else bearer[7:].strip() if bearer[:7].lower() == "bearer " else None
        if offered is not None:
            return self._offered(request, offered, page=given is not None, address=self._address(request, proxied=proxied))
        cookie = request.cookies.get(COOKIE, "")
        for token, who in self.tokens:
            if same(cookie, hashed(token)):
                return who
        why = "the token is wrong" if bearer else "a token is needed"
        return _unauthorised(why)

    def _offered(self, request: HTTPConnection, offered: str, *, page: bool, address: str) -> Who | Response:
        if wait := self.tries.wait(address):
            said = f"weaklink: too many wrong tokens came from {address}; try again in {wait:.0f} s.\n"
            return PlainTextResponse(said, 429, {"Retry-After": str(int(wait) + 1)})
        for token, who in self.tokens:
            if same(offered, token):
                self.tries.passed(address)
                asked = page and request.scope["type"] == "http" and request.scope["method"] == "GET"
                return self._welcome(request, token) if asked else who
        self.tries.failed(address)
        return _unauthorised("the token is wrong")

    @staticmethod
    def _address(request: HTTPConnection, *, proxied: bool) -> str:
        """Whose tries are counted: the sender, or whom a trusted proxy names last."""
        forwarded = request.headers.get("x-forwarded-for", "").rpartition(",")[2].strip() if proxied else ""
        return forwarded or (request.client.host if request.client else "unknown")

    def _welcome(self, request: HTTPConnection, token: str) -> Response:
        pairs = parse_qsl(request.scope["query_string"].decode("latin-1"), keep_blank_values=True)
        rest = urlencode([pair for pair in pairs if pair[0] != "token"])
        path = "/" + request.url.path.lstrip("/\\")  # never "//host", which a browser would follow elsewhere
        answer = RedirectResponse(
            f"{path}?{rest}" if rest else path, 303, {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}
        )
        secure = request.url.scheme == "https" or request.headers.get("x-forwarded-proto") == "https"
        answer.set_cookie(
            COOKIE, hashed(token), max_age=COOKIE_DAYS * 86400, path=f"{self.base}/", httponly=True, samesite="lax", secure=secure
        )
        return answer


def hashed(token: str) -> str:
    """What the cookie holds: the token cannot be had from it."""
    return hashlib.sha256(f"weaklink cookie {token}".encode()).hexdigest()


def same(given: str, known: str) -> bool:
    """Compare in a time that does not tell how far they agree."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), known.encode())


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def who_of(headers: Mapping[str, str]) -> Who:
    """Who a request is from that has passed the Guard, which lets none through without a role."""
    return Who(headers.get("x-weaklink-user") or "", VIEWER if headers.get("x-weaklink-role") == VIEWER else ADMIN)


def _name(host: str) -> str | None:
    """The name in a Host header, without its port; None where it is none."""
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


def _netloc(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


def _unauthorised(why: str) -> Response:
    said = f"weaklink: {why}. Open this address with ?token=... once, or send Authorization: Bearer ...\n"
    return PlainTextResponse(said, 401, {"WWW-Authenticate": "Bearer"})
