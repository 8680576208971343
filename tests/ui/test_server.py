"""Who the server lets in, and what it takes: without a network, request by request."""

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from recordings import ROOT
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from streamlit import config

from app import routes
from app.live.collect import Collection
from app.server import COOKIE, OPTIONS, Guard, ServerError, file_name, serve
from app.store import Store

LOG = ROOT / "sample_data" / "formats" / "vllm_log" / "good" / "case-02.log"


def asgi(
    app: Any, path: str = "/", method: str = "GET", body: Iterable[bytes] = (), **headers: str
) -> tuple[int, dict[str, str], str]:
    """Ask an application: status, headers and text of its answer."""
    path, _, query = path.partition("?")
    given = {"host": "127.0.0.1:8501"} | {name.replace("_", "-"): value for name, value in headers.items()}
    scope = {
        "type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": query.encode(), "scheme": "http",
        "headers": [(name.encode(), value.encode()) for name, value in given.items()], "server": ("127.0.0.1", 8501), "root_path": "",
    }  # fmt: skip
    pieces = [*body]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": pieces.pop(0) if pieces else b"", "more_body": bool(pieces)}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    with ThreadPoolExecutor(1) as pool:  # this thread may have a loop that runs (Playwright's)
        pool.submit(lambda: asyncio.run(app(scope, receive, send))).result()
    found = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], found, b"".join(message.get("body", b"") for message in sent[1:]).decode()


async def inside(_: Any) -> PlainTextResponse:
    return PlainTextResponse("inside")


def behind(token: str | None, *, local: bool = True) -> Starlette:
    return Starlette(routes=[Route("/{path:path}", inside)], middleware=[Middleware(Guard, token=token, local=local)])


@pytest.mark.parametrize("host", ["127.0.0.1:8501", "localhost:8501", "[::1]:8501", "localhost"])
def test_this_machine_may_come_in_without_a_token(host: str):
    assert asgi(behind(None), host=host)[0] == 200


@pytest.mark.parametrize("host", ["rebound.test:8501", "127.0.0.1.elsewhere.test", "[::1", ""])
def test_a_name_that_only_leads_here_is_refused(host: str):
    status, _, said = asgi(behind(None), host=host)
    assert (status, said.partition(":")[0]) == (403, "weaklink")


def test_a_page_of_another_site_is_refused():
    assert asgi(behind(None), origin="http://elsewhere.test")[0] == 403
    assert asgi(behind("secret"), origin="http://elsewhere.test", authorization="Bearer secret")[0] == 403
    assert asgi(behind(None), origin="http://127.0.0.1:8501")[0] == 200


def test_a_token_is_asked_for_and_kept_in_a_cookie():
    app = behind("secret", local=False)
    assert asgi(app, host="gpu-1:8501")[0] == 401
    assert asgi(app, "/?token=wrong")[0] == 401
    assert asgi(app, authorization="Bearer wrong")[0] == 401
    assert asgi(app, authorization="bearer secret")[0] == 200
    assert asgi(app, cookie=f"{COOKIE}=secret")[0] == 401  # the cookie holds a hash, not the token

    status, headers, _ = asgi(app, "/timeline?token=secret&target=e2e")
    assert (status, headers["location"]) == (303, "/timeline?target=e2e")
    cookie = headers["set-cookie"]
    assert "secret" not in cookie
    assert "HttpOnly" in cookie
    assert asgi(app, cookie=cookie.partition(";")[0])[0] == 200


def test_the_way_back_never_leads_elsewhere():
    assert asgi(behind("secret"), "//elsewhere.test/?token=secret")[1]["location"] == "/elsewhere.test/"


def bundles(store: Store) -> Starlette:
    return Starlette(routes=[Route("/api/bundles", routes.bundles(store, guarded=False), methods=["POST"])])


def test_a_body_is_a_bundle():
    store = Store()
    status, _, said = asgi(bundles(store), "/api/bundles?name=../a%20server.log", "POST", [LOG.read_bytes()], x_weaklink="1")
    assert status == 200
    assert json.loads(said)["files"][0]["name"] == "a server.log"
    assert store.rows("SELECT bundle, format FROM source_file") == [("a server.log", "vllm_log")]


def test_the_files_of_a_form_are_one_bundle():
    store = Store()
    parts = b"".join(
        b'--x\r\nContent-Disposition: form-data; name="f"; filename="%s"\r\n\r\n%s\r\n' % (name, text)
        for name, text in ((b"server.log", LOG.read_bytes()), (b"notes.md", b"# a note"))
    )
    sent = {"content_type": "multipart/form-data; boundary=x", "x_weaklink": "1"}
    status, _, said = asgi(bundles(store), "/api/bundles", "POST", [parts, b"--x--\r\n"], **sent)
    assert status == 200, said
    found = json.loads(said)["files"]
    assert [(one["name"], one["format"]) for one in found] == [("notes.md", None), ("server.log", "vllm_log")]
    assert len({one["bundle"] for one in found}) == 1


@pytest.mark.parametrize(
    ("path", "body", "headers", "status"),
    [
        ("/api/bundles?name=a", [b"x"], {}, 403),  # no header: a form of another site could have sent it
        ("/api/bundles", [b"x"], {"x_weaklink": "1"}, 400),
        ("/api/bundles?name=..", [b"x"], {"x_weaklink": "1"}, 400),
        ("/api/bundles?name=a", [b""], {"x_weaklink": "1"}, 400),
        ("/api/bundles", [b"--x--"], {"x_weaklink": "1", "content_type": "multipart/form-data; boundary=x"}, 400),
        ("/api/bundles", [b"no form"], {"x_weaklink": "1", "content_type": "multipart/form-data"}, 400),
        ("/api/bundles?name=a", [b"x" * 60, b"x" * 60], {"x_weaklink": "1"}, 413),
        ("/api/bundles?name=a", [b"x"], {"x_weaklink": "1", "content_length": "5000"}, 413),
        ("/api/bundles", [b"--x\r\n", b"y" * 200], {"x_weaklink": "1", "content_type": "multipart/form-data; boundary=x"}, 413),
    ],
)
def test_what_cannot_be_taken_is_said(
    monkeypatch: pytest.MonkeyPatch, path: str, body: list[bytes], headers: dict[str, str], status: int
):
    monkeypatch.setattr(routes, "MAX_BUNDLE_BYTES", 100)
    store = Store()
    found, _, said = asgi(bundles(store), path, "POST", body, **headers)
    assert (found, list(json.loads(said))) == (status, ["error"])
    assert store.rows("SELECT count(*) FROM source_file") == [(0,)]


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("a.log", "a.log"),
        ("../../etc/passwd", "passwd"),
        ("C:\\logs\\a.log", "a.log"),
        ("..", ""),
        ("", ""),
        ("a\0\nb", "ab"),
        ("/", ""),
    ],
)
def test_a_name_is_never_a_path(given: str, name: str):
    assert file_name(given) == name


def test_others_come_in_with_a_token_only(tmp_path: Path):
    with pytest.raises(ServerError, match="--token"):
        serve(tmp_path / "x.duckdb", host="0.0.0.0")
    assert not (tmp_path / "x.duckdb").exists()


@pytest.mark.parametrize("spans", [True, False])
def test_spans_are_taken_where_the_configuration_lets_them_in(spans: bool):
    with Store() as store:
        found = routes.routes(store, Collection(spans=spans), guarded=False)
    assert ("/v1/traces" in [one.path for one in found]) == spans


def test_a_taken_port_is_said():
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ServerError, match="--port"):
        serve(port=taken.getsockname()[1])


def test_streamlit_knows_every_option():
    assert not set(OPTIONS) - set(config._config_options_template)


HEAPS = """
import resource, threading, time
from pathlib import Path
from app import server

kept, together, stop = [], threading.Barrier(8), threading.Event()

def draw():
    made = [b"x" * (20_000 + at) for at in range(1000)]
    together.wait()  # else one heap is used by one thread after the other
    kept.extend(made[::20])  # some that stay, between many that go

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

print(resident())
drawing = [threading.Thread(target=draw) for _ in range(8)]
for one in drawing: one.start()
for one in drawing: one.join()
time.sleep(1)
print(resident())
server.GIVE_BACK_S = 0.2
giving = threading.Thread(target=server._giving_back, args=(None, stop))
giving.start()
time.sleep(1)
stop.set()
giving.join()
print(resident())
"""


def test_freed_memory_is_given_back():
    """Threads that pages are drawn in leave heaps behind whose holes glibc keeps; in a process without a database, which clears up, too."""
    done = subprocess.run([sys.executable, "-c", HEAPS], capture_output=True, text=True, timeout=120, check=True)
    before, freed, after = map(int, done.stdout.split())
    assert freed - before > 100e6
    assert after - before < 0.3 * (freed - before)
