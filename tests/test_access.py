"""Roles, proxies, wrong tokens; our own metrics; the dashboard below a path: a real server in a process of its own."""

import asyncio
import json
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from collectors.sources.serving import TEXT, say, serving
from ports import free_port
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from app.access import ADMIN, VIEWER, Guard, Login, Tries, Who
from app.backup import restore
from app.config import Config, ConfigError
from app.seat import NotAllowedError, seated
from app.store import Store

ANY: Final = ["GET", "POST", "PUT", "DELETE"]


async def told(request: Request) -> PlainTextResponse:
    return PlainTextResponse(f"{request.headers['x-weaklink-user']}:{request.headers['x-weaklink-role']}")


class Client:
    """A client at some address, with cookies, before an application."""

    def __init__(self, app: Starlette, address: str) -> None:
        self.app, self.address, self.cookies = app, address, httpx.Cookies()

    async def _ask(self, method: str, url: str, headers: dict[str, str]) -> httpx.Response:
        transport = httpx.ASGITransport(app=self.app, client=(self.address, 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://weaklink.test", cookies=self.cookies) as client:
            answer = await client.request(method, url, headers=headers)
            self.cookies.update(client.cookies)
            return answer

    def request(self, method: str, url: str, headers: dict[str, str] | None = None) -> httpx.Response:
        with ThreadPoolExecutor(1) as pool:  # this thread may have a loop that runs (Playwright's)
            return pool.submit(lambda: asyncio.run(self._ask(method, url, headers or {}))).result()

    def get(self, url: str, headers: dict[str, str] | None = None) -> httpx.Response:
        return self.request("GET", url, headers)

    def post(self, url: str, headers: dict[str, str] | None = None) -> httpx.Response:
        return self.request("POST", url, headers)


def behind(login: Login, *, client: str = "10.0.0.9", clock: Any = None, base: str = "") -> Client:
    tries = Tries(clock) if clock else None
    app = Starlette(
        routes=[Route("/{path:path}", told, methods=ANY)],
        middleware=[Middleware(Guard, login=login, local=False, base=base, tries=tries)],
    )
    return Client(app, client)


BOTH: Final = Login(token="admins", read_token="viewers")


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def test_two_tokens_two_roles():
    client = behind(BOTH)
    assert client.get("/", headers=bearer("admins")).text == "token:admin"
    assert client.get("/", headers=bearer("viewers")).text == "read token:viewer"
    assert client.post("/api/bundles", headers=bearer("admins")).status_code == 200
    for method in ("POST", "PUT", "DELETE"):
        refused = client.request(method, "/_stcore/upload_file/x", headers=bearer("viewers"))
        assert refused.status_code == 403
        assert "may look, not change" in refused.json()["error"]


def test_the_cookie_of_each_token_has_its_role():
    for token, role in (("admins", "admin"), ("viewers", "viewer")):
        client = behind(BOTH, base="/weaklink")
        answer = client.get(f"/weaklink/timeline?token={token}")
        assert answer.status_code == 303
        assert "Path=/weaklink/" in answer.headers["set-cookie"]
        assert client.get("/weaklink/timeline").text.endswith(f":{role}")


def test_nobody_names_himself():
    forged = {"X-Weaklink-Role": "admin", "X-Weaklink-User": "root", "x-weaklink": "upload"}
    assert behind(BOTH).get("/", headers={**bearer("viewers"), **forged}).text == "read token:viewer"
    assert behind(BOTH).get("/", headers=forged).status_code == 401


def test_a_proxy_names_the_user_and_only_the_proxy():
    login = Login(user_header="X-Forwarded-User", proxies=("10.0.0.0/24",), admins=frozenset({"ann"}))
    proxy, other = behind(login), behind(login, client="10.0.1.9")
    assert proxy.get("/", headers={"X-Forwarded-User": "ann"}).text == "ann:admin"
    assert proxy.get("/", headers={"X-Forwarded-User": "bob"}).text == "bob:viewer"
    assert proxy.post("/api/bundles", headers={"X-Forwarded-User": "bob"}).status_code == 403
    assert proxy.get("/").status_code == 401
    assert other.get("/", headers={"X-Forwarded-User": "ann"}).status_code == 401


def test_behind_a_proxy_the_page_s_own_name_is_the_one_it_forwards():
    login = Login(user_header="X-Forwarded-User", proxies=("10.0.0.9",))
    ours = {"X-Forwarded-User": "bob", "X-Forwarded-Host": "dash.example", "Origin": "https://dash.example"}
    assert behind(login).get("/", headers=ours).status_code == 200
    assert behind(login).get("/", headers=ours | {"Origin": "https://evil.example"}).status_code == 403
    assert behind(BOTH).get("/", headers=bearer("admins") | ours).status_code == 403  # anybody can send X-Forwarded-Host
    assert behind(BOTH).get("/", headers=bearer("admins") | {"Origin": "http://[::1"}).status_code == 403


def test_wrong_tokens_have_to_wait_longer_and_longer():
    now = [0.0]
    client = behind(BOTH, clock=lambda: now[0])
    assert [client.get("/?token=x").status_code for _ in range(6)] == [401] * 5 + [429]
    refused = client.get("/", headers=bearer("admins"))  # not even the right one counts now
    assert (refused.status_code, int(refused.headers["retry-after"]) >= 1) == (429, True)
    tried, waits = 0, []
    while now[0] < 3600:
        if client.get("/", headers=bearer(f"guess {tried}")).status_code == 401:
            tried += 1
            waits.append(now[0])
        now[0] += 13.0
    assert tried < 22  # in an hour
    assert waits[-1] - waits[-2] >= 300
    assert behind(BOTH, client="10.0.0.10", clock=lambda: now[0]).get("/", headers=bearer("admins")).status_code == 200
    now[0] += 400
    assert client.get("/", headers=bearer("admins")).status_code == 200
    assert client.get("/", headers=bearer("x")).status_code == 401  # and the count begins anew


def test_many_addresses_do_not_fill_the_memory():
    tries = Tries(lambda: 0.0)
    for at in range(20_000):
        tries.failed(str(at))
    assert len(tries.wrong) == 10_000


def test_the_health_check_needs_no_login():
    assert behind(BOTH).get("/healthz").text == ":viewer"
    assert behind(BOTH, base="/w").get("/w/healthz").status_code == 200
    assert behind(BOTH).post("/healthz/..").status_code == 401


def test_a_login_is_configured_without_secrets_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ADMIN_TOKEN", "hush")
    (tmp_path / "read").write_text("quiet\n")
    found = Config.model_validate({"login": {"token_env": "ADMIN_TOKEN", "read_token_file": str(tmp_path / "read")}}).login
    assert found.login(None) == Login("hush", "quiet")
    assert found.login("given").token == "given"
    for wrong, why in (
        ({"user_header": "X-User"}, "expected proxies beside user_header"),
        ({"admins": ["a"]}, "expected user_header beside admins"),
        ({"proxies": ["here"]}, "does not appear to be an IPv4 or IPv6 network"),
        ({"base_path": "weaklink/"}, "match pattern"),
        ({"token": "hush"}, "not permitted"),
    ):
        with pytest.raises(ValueError, match=why):
            Config.model_validate({"login": wrong})
    monkeypatch.setenv("ADMIN_TOKEN", "")
    with pytest.raises(ConfigError, match="ADMIN_TOKEN is empty"):
        found.login(None)


# -- pages --------------------------------------------------------------------------------------------------------------------
def test_a_viewer_s_store_only_reads():
    with Store() as store:
        seat = seated(store, Who("bob", VIEWER))
        assert seat.rows("SELECT count(*) FROM sample") == [(0,)]
        assert seat.columns("-- One row\nWITH a AS (SELECT 1 AS x) SELECT * FROM a")["x"].tolist() == [1.0]
        for change in (
            lambda: seat.execute("DELETE FROM sample"),
            lambda: seat.rows("DELETE FROM sample"),
            lambda: seat.rows("  -- x\n INSERT INTO size VALUES (1, 1)"),
            lambda: seat.transaction().__enter__(),
            lambda: seat.add,
        ):
            with pytest.raises(NotAllowedError, match="may look, not change"):
                change()
        seat = seated(store, Who("ann", ADMIN))
        seat.note("upload", "x")
        assert store.rows("SELECT who, kind, said FROM journal") == [("ann", "upload", "x")]


# -- the whole ----------------------------------------------------------------------------------------------------------------
def ask(url: str, token: str | None = None, body: bytes | None = None) -> tuple[int, str]:
    request = urllib.request.Request(url, data=body, headers={"X-Weaklink": "test"} | (bearer(token) if token else {}))
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read().decode("latin-1")
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode("latin-1")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A server below /weaklink with two tokens, which collects from one target; its address and store."""
    folder = tmp_path_factory.mktemp("access")
    port = free_port()
    (folder / "read").write_text("viewers")
    with serving(say(TEXT)) as target:
        (folder / "weaklink.toml").write_text(
            f'[[target]]\nurl = "{target}"\n[login]\ntoken_env = "T"\nread_token_file = "{folder / "read"}"\nbase_path = "/weaklink"\n'
        )
        command = [
            *(sys.executable, "-c", "from app.cli import main; main()", "serve", "--port", str(port), "--no-browser"),
            *("--store", str(folder / "a.duckdb"), "--config", str(folder / "weaklink.toml")),
        ]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env={**os.environ, "T": "admins"})
        try:
            line = process.stdout.readline().decode()
            assert f"http://127.0.0.1:{port}/weaklink/" in line, (line, (folder / "log").read_text())
            for _ in range(60):
                if "weaklink_samples_total{" in ask(f"http://127.0.0.1:{port}/weaklink/metrics", "viewers")[1]:
                    break
                time.sleep(1)
            yield f"http://127.0.0.1:{port}", folder / "a.duckdb"
        finally:
            process.terminate()
            process.wait(20)
            process.stdout.close()
    with Store(folder / "a.duckdb") as store:
        assert store.notice is None  # SIGTERM closes it in order


def test_the_server_below_a_path(running: tuple[str, Path]):
    url, _ = running
    assert ask(f"{url}/healthz") == (200, '{"status":"ok"}')
    assert json.loads(ask(f"{url}/weaklink/healthz", "viewers")[1]).keys() == {"status"}
    assert ask(f"{url}/weaklink/")[0] == 401
    status, page = ask(f"{url}/weaklink/", "viewers")
    assert (status, "<script" in page) == (200, True)
    asset = re.search(r'src="\./?(static/[^"]+\.js)"', page)
    assert asset
    assert ask(f"{url}/weaklink/{asset[1]}", "viewers")[0] == 200
    assert ask(f"{url}/weaklink/../etc/passwd", "viewers")[0] in {400, 404}
    assert ask(f"{url}/weaklink/%2e%2e/%2e%2e/etc/passwd", "viewers")[1].find("root:") == -1


def test_its_metrics_are_exposition_text_and_say_what_they_should(running: tuple[str, Path]):
    url, _ = running
    assert ask(f"{url}/weaklink/metrics")[0] == 401
    status, text = ask(f"{url}/weaklink/metrics", "viewers")
    assert status == 200
    found = {family.name: family for family in text_string_to_metric_families(text)}
    for name in (
        *("weaklink_rows", "weaklink_store_bytes", "weaklink_disk_free_bytes", "weaklink_lag_seconds", "weaklink_scrapes"),
        *("weaklink_dropped", "weaklink_query_seconds", "process_resident_memory_bytes"),
    ):
        assert found[name].samples, name
    (lag,) = found["weaklink_lag_seconds"].samples
    assert 0 <= lag.value < 60
    rows = {one.labels["table"]: one.value for one in found["weaklink_rows"].samples}
    assert rows["sample"] > 0


def test_doctor_self_reads_them(running: tuple[str, Path]):
    url, store = running
    command = [sys.executable, "-m", "app", "doctor", "self", "--format", "json", "--store", str(store)]
    well = subprocess.run(
        [*command, "--server", f"{url}/weaklink", "--token", "viewers"], capture_output=True, text=True, check=False
    )
    assert well.returncode == 0, well.stderr
    checks = {one["name"].split()[0]: one["state"] for one in json.loads(well.stdout)["checks"]}
    assert checks["server"] == checks["disk"] == checks["lag"] == "ok"
    held = subprocess.run(command, capture_output=True, text=True, check=False)
    assert held.returncode == 2
    assert "--server http://HOST:PORT" in held.stdout


def test_a_backup_comes_from_the_running_server_for_admins_only(running: tuple[str, Path], tmp_path: Path):
    url, store = running
    command = [sys.executable, "-m", "app", "backup", str(tmp_path / "b.tar"), "--server", f"{url}/weaklink", "--format", "json"]
    refused = subprocess.run([*command, "--token", "viewers"], capture_output=True, text=True, check=False)
    assert (refused.returncode, "may look, not change" in refused.stderr) == (1, True)
    assert not (tmp_path / "b.tar").exists()
    done = subprocess.run([*command, "--token", "admins"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["bytes"] == (tmp_path / "b.tar").stat().st_size
    locked = subprocess.run(
        [sys.executable, "-m", "app", "backup", str(tmp_path / "c.tar"), "--store", str(store)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (locked.returncode, "--server http://HOST:PORT" in locked.stderr) == (1, True)
    restore = [sys.executable, "-m", "app", "restore", str(tmp_path / "b.tar"), "--store", str(tmp_path / "r.duckdb")]
    back = subprocess.run(restore, capture_output=True, text=True, check=False)
    assert back.returncode == 0, back.stderr
    with Store(tmp_path / "r.duckdb") as restored:
        assert restored.rows("SELECT count(*) > 0 FROM sample") == [(True,)]


def test_an_upload_is_in_the_journal_and_refused_for_viewers(running: tuple[str, Path], tmp_path: Path):
    url, _ = running
    log = (Path(__file__).resolve().parent.parent / "sample_data/formats/vllm_log/good/case-02.log").read_bytes()
    assert ask(f"{url}/weaklink/api/bundles?name=x.log", "viewers", log)[0] == 403
    status, said = ask(f"{url}/weaklink/api/bundles?name=x.log", "admins", log)
    assert (status, json.loads(said)["files"][0]["format"]) == (200, "vllm_log")
    (tmp_path / "b.tar").write_bytes(ask(f"{url}/weaklink/api/backup", "admins", b"")[1].encode("latin-1"))
    restore(tmp_path / "b.tar", tmp_path / "r.duckdb")
    with Store(tmp_path / "r.duckdb") as store:
        assert ("token", "upload", "x.log: 1 of 1 files added") in store.rows("SELECT who, kind, said FROM journal")
