"""The one process of the dashboard: Streamlit's pages, HTTP routes and background threads around one open store.

DuckDB locks its file against every other process, so everything that needs the store runs here. Nothing is fetched from
outside: no statistics, no fonts, no scripts.
"""

import ctypes
import importlib
import signal
import socket
import sys
import threading
import webbrowser
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import uvicorn
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from streamlit.starlette import App
from streamlit.web import bootstrap

from app import kept
from app.access import COOKIE, Guard, Login, is_loopback
from app.ingest import load
from app.live.collect import Collection
from app.routes import file_name, routes
from app.store import Store
from app.ui import index, shared

HOST: Final = "127.0.0.1"
PORT: Final = 8501
GIVE_BACK_S: Final = 30.0  # between two times that freed memory is given back
MAX_MESSAGE_BYTES: Final = 200 * 1024**2  # of the pages' socket

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
    login: Login | None = None,
    base: str = "",
    going: Collection | None = None,
    open_browser: bool = False,
    incident: Path | None = None,
    recording: str | None = None,
    background: Sequence[Background] = (),
    say: Callable[[str], None] = print,
) -> None:
    """Serve the dashboard until interrupted.

    Who may come in says `login` (`token` is its short form); `base` is the path below which a proxy offers it.

    `store_path` None keeps the store in memory. `incident` is a bundle to load first, `recording` the bundle that the address
    shows. `port` 0 takes a free one. Each of `background` runs in a thread with the store and an event that is set at the end.
    Raises ServerError where another host than the loopback is asked for without a token or the port is taken, StoreError and
    BundleError as `Store` and `load` do.
    """
    login = login or Login(token=token)
    if not is_loopback(host) and not login.asks:
        raise ServerError(f"{host} can be reached by others: give a token (--token), which every page and route then asks for.")
    listening = _listen(host, port)
    with listening, Store(store_path) as store:
        if incident is not None:
            for result in load(store, [incident]):
                say(f"{result.name}: {result.format or 'not recognised'}{f', {result.message}' if result.message else ''}")
        ready = partial(_ready, f"{host}{base}", listening, login.token, recording, say, open_browser=open_browser)
        app = application(store, host=host, login=login, base=base, going=going, background=background, ready=ready)
        config = uvicorn.Config(
            app, ws="websockets-sansio", ws_max_size=MAX_MESSAGE_BYTES, ws_per_message_deflate=False,
            log_level="warning", access_log=False, timeout_graceful_shutdown=3,
        )  # fmt: skip
        with _ending_in_order():
            uvicorn.Server(config).run(sockets=[listening])


@contextmanager
def _ending_in_order() -> Iterator[None]:
    """SIGTERM and SIGINT end the block, not the process: uvicorn raises again what it caught, and the store is to be closed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGTERM, before)


def application(
    store: Store,
    *,
    host: str = HOST,
    token: str | None = None,
    login: Login | None = None,
    base: str = "",
    going: Collection | None = None,
    background: Sequence[Background] = (),
    ready: Callable[[], None] = lambda: None,
) -> App:
    """The ASGI application around an open store; GET /_stcore/health answers "ok" when it is ready.

    `base` is the path below which a proxy offers it ("/weaklink"), `login` who may come in (`token`: its short form).
    """
    login = login or Login(token=token)
    bootstrap.load_config_options({**OPTIONS, "server.address": host, "server.baseUrlPath": base.strip("/")})
    shared.hold(store)
    kept.attach(store)
    return App(
        str(files("app.ui").joinpath("main.py")),
        routes=[*routes(store, going or Collection(), guarded=login.asks, base=base), *index.routes(base)],
        middleware=[Middleware(Guard, login=login, local=is_loopback(host), base=base)],
        lifespan=_lifespan(store, (*background, kept.keeping, _giving_back), ready),
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


def _giving_back(_: Store, stop: threading.Event) -> None:
    """Give freed memory back to the system from time to time.

    glibc has a heap for each few threads, and keeps what is freed in all but one of them. Pages are drawn in a thread each: after
    90 minutes of 20 engines 840 of 1,925 MB were of that kind. A call takes 50 ms where it frees as much.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    while trim is not None and not stop.wait(GIVE_BACK_S):
        trim(0)


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
    name, _, base = host.partition("/")
    shown = f"[{name}]" if ":" in name else name
    address = f"http://{shown}:{listening.getsockname()[1]}/{f'{base}/' if base else ''}"
    params = {"recording": recording} if recording else {}
    once = " (add token=... once)" if token else ""
    say(f"weaklink: {address}{f'?{urlencode(params)}' if params else ''}{once}; stop with Ctrl-C")
    if open_browser:
        params |= {"token": token} if token else {}
        to = f"{address}?{urlencode(params)}" if params else address
        threading.Thread(target=webbrowser.open, args=(to,), daemon=True).start()


__all__ = ["COOKIE", "Guard", "ServerError", "application", "file_name", "serve"]
