"""The one process of the dashboard: Streamlit's pages, HTTP routes and background threads around one open store.

DuckDB locks its file against every other process, so everything that needs the store runs here. Nothing is fetched from
outside: no statistics, no fonts, no scripts.
"""

import hashlib
import hmac
import importlib
import ipaddress
import json
import os
import secrets
import socket
import tempfile
import threading
import webbrowser
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import asdict
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path, PurePosixPath
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit

import uvicorn
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.middleware import Middleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from streamlit.starlette import App
from streamlit.web import bootstrap

from app.collectors.sources import otlp
from app.ingest import BundleError, FileResult, load
from app.live.received import take_spans
from app.store import Store
from app.ui import shared

HOST: Final = "127.0.0.1"
PORT: Final = 8501
MAX_BUNDLE_BYTES: Final = 4 * 1024**3  # of one POST; what it unpacks to has limits of its own (sources/bundle.py)
MAX_PARTS: Final = 1000  # files of one multipart POST
MAX_MESSAGE_BYTES: Final = 200 * 1024**2  # of the pages' socket
HEADER: Final = "x-weaklink"  # any value: a page of another site cannot send it without asking first, and is never allowed
COOKIE: Final = "weaklink"
COOKIE_DAYS: Final = 30
LOCAL_NAMES: Final = {"127.0.0.1", "localhost", "::1"}

Background = Callable[[Store, threading.Event], None]  # runs in a thread of its own until the event is set

_LIGHT: Final = {
    "primaryColor": "#1b1d21", "backgroundColor": "#fbfbfa", "secondaryBackgroundColor": "#f1f2f4", "textColor": "#1b1d21",
    "borderColor": "#e3e4e7", "linkColor": "#1b1d21", "codeBackgroundColor": "#f1f2f4", "codeTextColor": "#1b1d21",
    "dataframeHeaderBackgroundColor": "#fbfbfa", "dataframeBorderColor": "#e3e4e7",
}  # fmt: skip
_DARK: Final = {
    "primaryColor": "#e8eaed", "backgroundColor": "#0f1216", "secondaryBackgroundColor": "#20252c", "textColor": "#e8eaed",
    "borderColor": "#2a3039", "linkColor": "#e8eaed", "codeBackgroundColor": "#20252c", "codeTextColor": "#e8eaed",
    "dataframeHeaderBackgroundColor": "#171b21", "dataframeBorderColor": "#2a3039",
}  # fmt: skip
# Set here, not in a file: Streamlit would look for one in the folder that the user happens to be in.
OPTIONS: Final[Mapping[str, Any]] = {
    "browser.gatherUsageStats": False,
    "client.allowedOrigins": [],  # else the pages could be embedded by Streamlit's cloud
    "client.toolbarMode": "minimal",
    "client.showErrorLinks": False,  # they lead to search engines
    "logger.hideWelcomeMessage": True,
    "runner.magicEnabled": False,
    "server.fileWatcherType": "none",
    "server.headless": True,
    "server.maxUploadSize": 2000,  # MB, and held in memory: larger bundles come by POST or by the command line
    "server.showEmailPrompt": False,
    "theme.baseFontSize": 15,
    "theme.baseRadius": "8px",
    "theme.font": "sans-serif",
    "theme.showWidgetBorder": True,
    **{f"theme.light.{name}": colour for name, colour in _LIGHT.items()},
    **{f"theme.dark.{name}": colour for name, colour in _DARK.items()},
}


class ServerError(Exception):
    """The server cannot start; the message says what to do."""


def serve(
    store_path: Path | None = None,
    *,
    host: str = HOST,
    port: int = PORT,
    token: str | None = None,
    open_browser: bool = False,
    incident: Path | None = None,
    recording: str | None = None,
    background: Sequence[Background] = (),
    say: Callable[[str], None] = print,
) -> None:
    """Serve the dashboard until interrupted.

    `store_path` None keeps the store in memory. `incident` is a bundle to load first, `recording` the bundle that the address
    shows. `port` 0 takes a free one. Each of `background` runs in a thread with the store and an event that is set at the end.
    Raises ServerError where another host than the loopback is asked for without a token or the port is taken, StoreError and
    BundleError as `Store` and `load` do.
    """
    if not _is_loopback(host) and not token:
        raise ServerError(f"{host} can be reached by others: give a token (--token), which every page and route then asks for.")
    listening = _listen(host, port)
    with listening, Store(store_path) as store:
        if incident is not None:
            for result in load(store, [incident]):
                say(f"{result.name}: {result.format or 'not recognised'}{f', {result.message}' if result.message else ''}")
        ready = partial(_ready, host, listening, token, recording, say, open_browser=open_browser)
        app = application(store, host=host, token=token, background=background, ready=ready)
        config = uvicorn.Config(
            app, ws="websockets-sansio", ws_max_size=MAX_MESSAGE_BYTES, ws_per_message_deflate=False,
            log_level="warning", access_log=False, timeout_graceful_shutdown=3,
        )  # fmt: skip
        uvicorn.Server(config).run(sockets=[listening])


def application(
    store: Store,
    *,
    host: str = HOST,
    token: str | None = None,
    background: Sequence[Background] = (),
    ready: Callable[[], None] = lambda: None,
) -> App:
    """The ASGI application around an open store; GET /_stcore/health answers "ok" when it is ready."""
    bootstrap.load_config_options({**OPTIONS, "server.address": host})
    shared.hold(store)
    return App(
        str(files("app.ui").joinpath("main.py")),
        routes=[
            Route("/healthz", _health(store), methods=["GET"]),
            Route("/api/bundles", _bundles(store, token is not None), methods=["POST"]),
            *otlp.routes(partial(take_spans, store)),
        ],
        middleware=[Middleware(Guard, token=token, local=_is_loopback(host))],
        lifespan=_lifespan(store, background, ready),
    )


def _lifespan(
    store: Store, background: Sequence[Background], ready: Callable[[], None]
) -> Callable[[App], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(_: App) -> AsyncIterator[None]:
        stop = threading.Event()
        threads = [
            threading.Thread(target=run, args=(store, stop), name=f"weaklink-{at}", daemon=True)
            for at, run in enumerate(background)
        ]
        for thread in threads:
            thread.start()
        # the pages' imports take seconds: who opens the first one should not wait for all of them
        threading.Thread(target=importlib.import_module, args=("app.ui.screens",), name="weaklink-pages", daemon=True).start()
        ready()
        try:
            yield
        finally:
            stop.set()
            for thread in threads:
                await run_in_threadpool(thread.join, 5.0)

    return lifespan


def _listen(host: str, port: int) -> socket.socket:
    """A socket that listens; ServerError where the address is taken or is none of this machine's."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=512)
    except (OSError, OverflowError) as error:
        raise ServerError(
            f"{host}:{port} cannot be used ({error}). Another weaklink may run there: open it, or give another --port."
        ) from error


def _ready(
    host: str, listening: socket.socket, token: str | None, recording: str | None, say: Callable[[str], None], *, open_browser: bool
) -> None:  # fmt: skip
    """Say where the dashboard is; the token is not printed, but handed to the browser that is opened."""
    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{listening.getsockname()[1]}/"
    params = {"recording": recording} if recording else {}
    once = " (add token=... once)" if token else ""
    say(f"weaklink: {address}{f'?{urlencode(params)}' if params else ''}{once}; stop with Ctrl-C")
    if open_browser:
        params |= {"token": token} if token else {}
        to = f"{address}?{urlencode(params)}" if params else address
        threading.Thread(target=webbrowser.open, args=(to,), daemon=True).start()


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


# -- who may come in ------------------------------------------------------------------------------------------------------------
class Guard:
    """Lets requests in: with a token only those that know it, without one only those that address this machine by its own name.

    `?token=...` is answered once, with a cookie that holds a hash of it and the same address without it. Requests that another
    site's page sends are refused (their Origin is not our Host), and so is a Host that only resolves to the loopback.
    """

    def __init__(self, app: ASGIApp, token: str | None, *, local: bool) -> None:
        self.app, self.token, self.local = app, token, local
        self.cookie = hashlib.sha256(f"weaklink cookie {token}".encode()).hexdigest() if token else ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it with a plain message."""
        if scope["type"] not in {"http", "websocket"}:
            await self.app(scope, receive, send)
            return
        answer = self.refusal(HTTPConnection(scope))
        if answer is None:
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": "refused"})
        else:
            await answer(scope, receive, send)

    def refusal(self, request: HTTPConnection) -> Response | None:
        """The answer to a request that may not pass; None where it may."""
        host = request.headers.get("host", "")
        origin = request.headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != host:
            return PlainTextResponse("weaklink: this request comes from another site's page and is refused.\n", 403)
        if self.token is not None:
            return self._unknown(request, self.token)
        if self.local and _name(host) not in LOCAL_NAMES:
            said = "weaklink: open it by 127.0.0.1 or localhost; another name needs a token (--token).\n"
            return PlainTextResponse(said, 403)
        return None

    def _unknown(self, request: HTTPConnection, token: str) -> Response | None:
        """The answer to a request that does not prove to know the token, or proves it by the address."""
        given = request.query_params.get("token")
        bearer = request.headers.get("authorization", "")
        if given is not None and _same(given, token):
            page = request.scope["type"] == "http" and request.scope["method"] == "GET"
            return self._welcome(request) if page else None
        known = bearer[:7].lower() == "bearer " and _same(bearer[7:].strip(), token)
        if known or (given is None and _same(request.cookies.get(COOKIE, ""), self.cookie)):
            return None
        why = "the token is wrong" if given is not None or bearer else "a token is needed"
        said = f"weaklink: {why}. Open this address with ?token=... once, or send Authorization: Bearer ...\n"
        return PlainTextResponse(said, 401, {"WWW-Authenticate": "Bearer"})

    def _welcome(self, request: HTTPConnection) -> Response:
        rest = urlencode(
            [
                pair
                for pair in parse_qsl(request.scope["query_string"].decode("latin-1"), keep_blank_values=True)
                if pair[0] != "token"
            ]
        )
        path = "/" + request.url.path.lstrip("/")  # never "//host", which a browser would follow elsewhere
        answer = RedirectResponse(
            f"{path}?{rest}" if rest else path, 303, {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}
        )
        answer.set_cookie(
            COOKIE, self.cookie, max_age=COOKIE_DAYS * 86400, httponly=True, samesite="lax", secure=request.url.scheme == "https"
        )
        return answer


def _name(host: str) -> str | None:
    """The name in a Host header, without its port; None where it is none."""
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


def _same(given: str, known: str) -> bool:
    return hmac.compare_digest(given.encode(), known.encode())


# -- routes ---------------------------------------------------------------------------------------------------------------------
Endpoint = Callable[[Request], Any]


def _health(store: Store) -> Endpoint:
    async def health(_: Request) -> Response:
        """Whether the store answers, and how much is in it."""
        try:
            held = await run_in_threadpool(store.rows, "SELECT count(*) FROM source_file")
        except Exception as error:  # noqa: BLE001 whatever it is, the answer is that it does not work
            return JSONResponse({"status": "failed", "error": type(error).__name__}, 503)
        return JSONResponse({"status": "ok", "version": _version(), "files": held[0][0]})

    return health


def _version() -> str:
    try:
        return version("weaklink")
    except PackageNotFoundError:
        return "unknown"


def _bundles(store: Store, guarded: bool) -> Endpoint:
    lock = threading.Lock()

    async def bundles(request: Request) -> Response:
        """Load an upload: multipart (several files are one bundle) or a raw body with ?name=. The result of each file as JSON."""
        bearer = guarded and request.headers.get("authorization", "").lower().startswith("bearer ")
        if not bearer and HEADER not in request.headers:
            return JSONResponse(
                {"error": f"send the header {HEADER.title()}: upload (any value): it shows that no other site's page sent this"},
                403,
            )
        declared = request.headers.get("content-length", "")
        if declared.isdigit() and int(declared) > MAX_BUNDLE_BYTES:
            return _too_large()
        with tempfile.TemporaryDirectory(prefix="weaklink-") as folder:
            try:
                path = await _received(request, Path(folder))
                results = await run_in_threadpool(_load, store, lock, path)
            except _TooLargeError:
                return _too_large()
            except (ValueError, MultiPartException) as error:
                return JSONResponse({"error": str(error)}, 400)
            except BundleError as error:
                return JSONResponse({"error": str(error).replace(f"{folder}{os.sep}", "")}, 422)
        return JSONResponse(json.loads(json.dumps({"files": [asdict(one) for one in results]})))

    return bundles


class _TooLargeError(Exception):
    """More bytes came than MAX_BUNDLE_BYTES."""


def _too_large() -> Response:
    return JSONResponse({"error": f"larger than {MAX_BUNDLE_BYTES:,} bytes: load it with `weaklink load PATH`"}, 413)


def _load(store: Store, lock: threading.Lock, path: Path) -> list[FileResult]:
    with lock:
        return load(store, [path])


async def _received(request: Request, folder: Path) -> Path:
    """Write the upload to disk as it comes: the file, or the folder of several. ValueError says what was expected."""
    if request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        return await _parts(request, folder)
    name = file_name(request.query_params.get("name", ""))
    if not name:
        raise ValueError("a raw body needs ?name=FILE (its ending is not trusted, but the bundle is called so)")
    path, seen = folder / name, 0
    with path.open("wb") as file:
        async for piece in request.stream():
            seen += len(piece)
            if seen > MAX_BUNDLE_BYTES:
                raise _TooLargeError
            await run_in_threadpool(file.write, piece)
    if not seen:
        raise ValueError("the body is empty: send the bundle's bytes")
    return path


async def _parts(request: Request, folder: Path) -> Path:
    """The files of a multipart body: one is itself the bundle, several are a bundle together."""
    seen = 0

    async def receive() -> Message:
        nonlocal seen
        message = await request.receive()
        seen += len(message.get("body", b""))
        if seen > MAX_BUNDLE_BYTES:
            raise _TooLargeError
        return message

    counted = Request(request.scope, receive)
    form = await MultiPartParser(counted.headers, counted.stream(), max_files=MAX_PARTS, max_fields=MAX_PARTS).parse()
    try:
        given = [one for _, one in form.multi_items() if isinstance(one, UploadFile)]
        if not given:
            raise ValueError("no file in the form: send at least one part with a filename")
        place = folder / f"upload-{secrets.token_hex(4)}"
        place.mkdir()
        for at, one in enumerate(given):
            path = place / (file_name(one.filename or "") or f"file-{at}")
            path = path if not path.exists() else place / f"{at}-{path.name}"
            with path.open("wb") as file:
                while piece := await one.read(1 << 20):
                    await run_in_threadpool(file.write, piece)
    finally:
        await form.close()
    held = list(place.iterdir())
    return held[0] if len(held) == 1 else place


def file_name(given: str) -> str:
    """The last part of a name as a client sends it, with nothing that a path could be made of; "" where none is left."""
    last = PurePosixPath(given.replace("\\", "/")).name
    kept = "".join(sign for sign in last if sign.isprintable() and sign not in "/\0").strip()
    return "" if kept in {"", ".", ".."} else kept[-120:]
