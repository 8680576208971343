"""Servers that come and go: file_sd, DNS, and Kubernetes, played by a fake that speaks the API's protocol (no cluster is at hand)."""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import pytest
from collectors.sources.serving import TEXT, say, serving

from app.collectors.access import Access
from app.collectors.discovery import Discovery, DiscoveryError, Dns, Files, Kubernetes, find
from app.collectors.sources.scrape import Target
from app.config import Config
from app.live.discovered import Known, discovering
from app.live.scraped import Feeds
from app.store import Store


def found(one: Discovery) -> list[str]:
    return [target.url for target in asyncio.run(find(one))]


# -- files --------------------------------------------------------------------------------------------------------------------
def test_file_sd_as_json_and_yaml(tmp_path: Path):
    (tmp_path / "a.json").write_text('[{"targets": ["a:8000", "b:8000"], "labels": {"cluster": "x"}}, {"targets": ["a:8000"]}]')
    (tmp_path / "b.yml").write_text("- targets: ['c:9000']\n  labels: {__scheme__: https, __metrics_path__: /m}\n- targets: []\n")
    expected = ["http://a:8000/metrics", "http://b:8000/metrics", "https://c:9000/m"]
    assert found(Discovery(Files((str(tmp_path / "*.json"), str(tmp_path / "*.yml"))))) == expected
    assert found(Discovery(Files((str(tmp_path / "none-*.json"),)))) == []


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("a.json", "{", "expected JSON"),
        ("a.json", '{"targets": []}', 'group 1: expected {"targets"'),
        ("a.json", '[{"targets": "h:1"}]', 'group 1: expected {"targets"'),
        ("a.json", '[{"targets": ["h:1"]}, {"targets": [1]}]', "group 2: expected"),
        ("a.json", "[" * 100_000, "expected JSON"),
        ("a.json", '[{"targets": ["u:p@h:1"]}]', "expected a URL without user and password"),
        ("a.json", '[{"targets": ["h:1"], "labels": {"__scheme__": "file"}}]', "expected http://host:port/metrics"),
        ("a.yaml", "a: [", "expected YAML"),
        ("a.yaml", "!!python/object/apply:os.system ['true']", "expected YAML"),
        ("absent.json", None, "no such file"),
    ],
)
def test_a_file_that_is_none_is_said(tmp_path: Path, name: str, text: str | None, why: str):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(DiscoveryError) as caught:
        found(Discovery(Files((str(tmp_path / name),))))
    assert why in str(caught.value)


# -- DNS ----------------------------------------------------------------------------------------------------------------------
def test_every_address_of_a_name(monkeypatch: pytest.MonkeyPatch):
    assert "http://127.0.0.1:8000/metrics" in found(Discovery(Dns("localhost", 8000)))
    with pytest.raises(DiscoveryError, match=r"no-such-host\.invalid: "):
        found(Discovery(Dns("no-such-host.invalid", 8000)))


# -- Kubernetes ---------------------------------------------------------------------------------------------------------------
class Api:
    """A fake of the API server: EndpointSlices with paging, expired pages, a bearer token, readiness."""

    def __init__(self) -> None:
        self.slices: list[dict[str, Any]] = []
        self.token, self.expire, self.page = "first", 0, 2
        self.asked: list[str] = []

    def set(self, *pods: tuple[str, int, bool | None], name: str = "http") -> None:
        self.slices = [
            {
                "metadata": {"name": f"vllm-{at}", "labels": {"kubernetes.io/service-name": "vllm"}}, "addressType": "IPv4",
                "ports": [{"name": name, "port": port, "protocol": "TCP"}],
                "endpoints": [{"addresses": [host], "conditions": {} if ready is None else {"ready": ready}, "targetRef": {"kind": "Pod"}}],
            }
            for at, (host, port, ready) in enumerate(pods)
        ]  # fmt: skip

    def __call__(self, request: BaseHTTPRequestHandler) -> None:
        parts = urlsplit(request.path)
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        self.asked.append(request.path)
        if request.headers.get("Authorization") != f"Bearer {self.token}":
            say(json.dumps({"kind": "Status", "code": 401}), status=401, kind="application/json")(request)
            return
        if parts.path != "/apis/discovery.k8s.io/v1/namespaces/prod/endpointslices":
            say(json.dumps({"kind": "Status", "code": 404}), status=404, kind="application/json")(request)
            return
        assert query["labelSelector"] == "kubernetes.io/service-name=vllm"
        at = int(query.get("continue", "0"))
        if at and self.expire:
            self.expire -= 1
            say(json.dumps({"kind": "Status", "code": 410, "reason": "Expired"}), status=410, kind="application/json")(request)
            return
        rest = self.slices[at + self.page :]
        body = {
            "kind": "EndpointSliceList", "apiVersion": "discovery.k8s.io/v1",
            "metadata": {"resourceVersion": "1", **({"continue": str(at + self.page)} if rest else {})},
            "items": self.slices[at : at + self.page],
        }  # fmt: skip
        say(json.dumps(body), kind="application/json")(request)


@pytest.fixture
def api(tmp_path: Path) -> Iterator[tuple[Api, Callable[..., Kubernetes]]]:
    fake = Api()
    (tmp_path / "token").write_text("first")
    with serving(fake) as url:
        yield fake, lambda **more: Kubernetes("prod", "vllm", api=url, access=Access(bearer_file=str(tmp_path / "token")), **more)


def test_ready_pods_of_all_pages(api: tuple[Api, Callable[..., Kubernetes]], tmp_path: Path):
    fake, where = api
    fake.set(*((f"10.0.0.{at}", 8000, ready) for at, ready in enumerate([True, None, False, True, True])))
    expected = [f"http://10.0.0.{at}:8000/metrics" for at in (0, 1, 3, 4)]
    assert found(Discovery(where())) == expected
    assert len(fake.asked) == 3
    fake.expire = 1  # the list moved on between two pages
    assert found(Discovery(where())) == expected
    fake.token = "second"  # the cluster rotates it
    with pytest.raises(DiscoveryError, match="401 for prod/vllm: the service account needs the verbs get and list"):
        found(Discovery(where()))
    (tmp_path / "token").write_text("second")
    assert found(Discovery(where())) == expected
    fake.set()
    assert found(Discovery(where())) == []


def test_ports_are_chosen_by_name_or_number_and_not_guessed(api: tuple[Api, Callable[..., Kubernetes]]):
    fake, where = api
    fake.set(("10.0.0.1", 8000, True))
    fake.slices[0]["ports"].append({"name": "side", "port": 9000, "protocol": "TCP"})
    fake.slices[0] |= {"addressType": "IPv6", "endpoints": [{"addresses": ["fd00::1"], "conditions": {}}]}
    with pytest.raises(DiscoveryError, match=r"has several ports \(http, side\)"):
        found(Discovery(where()))
    assert found(Discovery(where(port="side"))) == ["http://[fd00::1]:9000/metrics"]
    assert found(Discovery(where(port="8000"))) == ["http://[fd00::1]:8000/metrics"]
    assert found(Discovery(where(port="none"))) == []


@pytest.mark.parametrize("body", ["", "[]", '{"kind": "PodList"}', "{" * 10_000])
def test_what_is_no_answer_of_the_api_is_said(body: str, tmp_path: Path):
    with serving(say(body, kind="application/json")) as url, pytest.raises(DiscoveryError, match="expected"):
        found(Discovery(Kubernetes("prod", "vllm", api=url, access=Access())))
    with pytest.raises(DiscoveryError, match="ConnectError"):
        found(Discovery(Kubernetes("prod", "vllm", api="http://127.0.0.1:9", access=Access())))
    with pytest.raises(DiscoveryError, match="token: cannot be read"):
        found(Discovery(Kubernetes("prod", "vllm", api="http://127.0.0.1:9", access=Access(bearer_file=str(tmp_path / "token")))))


# -- the whole ----------------------------------------------------------------------------------------------------------------
def until(true: Callable[[], Any], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "in vain"
        time.sleep(0.05)


def test_pods_come_and_go_while_the_rest_is_scraped(tmp_path: Path):
    file, stop, feeds, known = tmp_path / "t.json", threading.Event(), Feeds(), list[Known]()
    with serving(say(TEXT)) as one, serving(say(TEXT)) as two, Store(tmp_path / "a.duckdb") as store:
        first, second = one.removeprefix("http://"), two.removeprefix("http://")

        def there(*targets: str) -> None:
            (tmp_path / "new").write_text(json.dumps([{"targets": targets}]))
            (tmp_path / "new").replace(file)

        there(first)
        like = Target("http://template/metrics", interval_s=0.2)
        loop = discovering([Discovery(Files((str(file),)), every_s=0.2, like=like)], feeds, known)
        thread = threading.Thread(target=loop, args=(store, stop))
        thread.start()
        try:
            until(lambda: first in feeds and feeds[first].scrapes > 1)
            there(first, second)
            until(lambda: second in feeds and feeds[second].scrapes > 1)
            there(second)
            until(lambda: [target.instance for target in known[0].targets] == [second])
            time.sleep(2.0)  # what was under way ends
            held = feeds[first].scrapes
            file.write_text("{")  # half written: what was found stays
            until(lambda: known[0].error is not None)
            more = feeds[second].scrapes
            until(lambda: feeds[second].scrapes > more + 2)
            assert feeds[first].scrapes == held
            there(first, second)  # the same address comes back
            until(lambda: feeds[first].scrapes > held)
            assert known[0].error is None
        finally:
            stop.set()
            thread.join(30)
        assert not thread.is_alive()
        assert store.rows("SELECT count(*) FROM scrape WHERE NOT ok") == [(0,)]


WHOLE: Final = {
    "discover": [
        {"files": ["/etc/weaklink/*.json"], "interval_s": 2.0},
        {"dns": "vllm.prod.svc", "port": 8000, "scheme": "https", "bearer_env": "T"},
        {"kubernetes": "prod/vllm", "port": "http", "every_s": 10.0},
    ]
}


def test_it_is_configured():
    files, dns, cluster = (one.discovery() for one in Config.model_validate(WHOLE).discover)
    assert (files.where, files.like.interval_s) == (Files(("/etc/weaklink/*.json",)), 2.0)
    assert (dns.where, dns.scheme, dns.like.access) == (Dns("vllm.prod.svc", 8000), "https", Access(bearer_env="T"))
    assert (cluster.where, cluster.every_s) == (Kubernetes("prod", "vllm", "http"), 10.0)
    for wrong, why in (
        ({}, "expected one of files, dns, kubernetes"),
        ({"files": ["a"], "dns": "b", "port": 1}, "expected one of"),
        ({"dns": "b", "port": "http"}, "expected port"),
        ({"dns": "b", "port": 1, "dns_server": "c"}, "expected dns_server"),
        ({"files": ["a"], "dns_server": "c"}, "expected dns_server"),
        ({"kubernetes": "vllm"}, "match pattern"),
    ):
        with pytest.raises(ValueError, match=why):
            Config.model_validate({"discover": [wrong]})
