"""The layer above prometheus-api-client: chunks, bounds, retries, warnings, escaping; against HTTP servers of our own."""

import json
import time
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, urlsplit

import pytest
from collectors.sources.serving import Answer, say, serving
from hypothesis import given
from hypothesis import strategies as st
from ports import free_port

from app.collectors import promql
from app.collectors.access import Access
from app.collectors.promql import Client, PrometheusError


def client(
    url: str, *, timeout_s: float = 5.0, deadline_s: float = 10.0, method: str = "GET", tenant: str | None = None
) -> Client:
    return promql.client(url, Access(), tenant, timeout_s, deadline_s, method)


def result(*series: dict, **more: object) -> Answer:
    return say(json.dumps({"status": "success", "data": {"resultType": "matrix", "result": list(series)}, **more}))


def params(request: BaseHTTPRequestHandler) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(request.path).query).items()}


@given(st.integers(0, 10**6), st.integers(0, 10**5), st.integers(1, 400), st.integers(1, 50))
def test_chunks_hold_each_step_once(start: int, width: int, step: int, points: int):
    found = list(promql.chunks(start, start + width, step, points))
    steps = [at for low, high in found for at in range(low, high + 1, step)]
    assert steps == [at for at in range(start, start + width + 1) if at % step == 0]
    assert all((high - low) // step < points for low, high in found)


def test_a_long_range_is_asked_in_parts_and_merged():
    asked: list[tuple[int, int]] = []

    def answer(request: BaseHTTPRequestHandler) -> None:
        said = params(request)
        low, high, step = int(said["start"]), int(said["end"]), int(said["step"].removesuffix("s"))
        asked.append((low, high))
        values = [[at, str(at)] for at in range(low - step, high + 1, step)]  # one more than asked for: it comes twice
        result({"metric": {"__name__": "x", "part": "a"}, "values": values})(request)

    with serving(answer) as url, client(url) as made:
        found = promql.span(made, "x", 0, 25_000 * 5, 5)
    assert asked == [(0, 49_995), (50_000, 99_995), (100_000, 125_000)]
    assert len(found) == 1
    assert found[0]["metric"] == {"__name__": "x", "part": "a"}
    assert [ts for ts, _ in found[0]["values"]] == [float(at) for at in range(-5, 125_001, 5)]


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("status", [429, 500, 503])
def test_what_may_pass_is_tried_again_also_by_post(method: str, status: int):
    seen: list[str] = []

    def answer(request: BaseHTTPRequestHandler) -> None:
        seen.append(request.command)
        (say("busy", status=status) if len(seen) < 3 else result())(request)

    with serving(answer) as url, client(url, method=method) as made:
        assert promql.instant(made, "x", 1.0) == []
    assert seen == [method] * 3


def test_a_refusal_is_told_at_once_with_the_servers_own_words():
    error = {"status": "error", "errorType": "bad_data", "error": "1:7: parse error: unclosed left parenthesis"}
    with serving(say(json.dumps(error), status=400)) as url, client(url) as made:
        start = time.monotonic()
        with pytest.raises(PrometheusError, match="HTTP status 400: 1:7: parse error"):
            promql.instant(made, "sum(x", 1.0)
        assert time.monotonic() - start < 1


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (say("<html>Sign in</html>", kind="text/html"), "not Prometheus's JSON"),
        (say('{"status": "success", "data": {}}'), "not Prometheus's JSON"),
        (say('["x"]'), "not Prometheus's JSON"),
        (say('{"status": "success", "data": {"result": 5}}'), "not Prometheus's JSON"),
        (say("<html>secret</html>", status=404, kind="text/html"), "HTTP status 404$"),
        (say("", status=401), "HTTP status 401$"),
    ],
)
def test_what_is_no_prometheus_is_said_so(answer: Answer, expected: str):
    with serving(answer) as url, client(url) as made, pytest.raises(PrometheusError, match=expected):
        promql.instant(made, "x", 1.0)


def test_an_unreachable_server_is_said_so():
    with client(f"http://127.0.0.1:{free_port()}", deadline_s=2.0) as made:
        start = time.monotonic()
        with pytest.raises(PrometheusError, match="cannot connect"):
            promql.instant(made, "x", 1.0)
        assert time.monotonic() - start < 4


def test_the_deadline_holds_for_a_trickle():
    def trickle(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.end_headers()
        while True:
            request.wfile.write(b" " * 70_000)
            request.wfile.flush()
            time.sleep(0.1)

    with serving(trickle) as url, client(url, timeout_s=60.0, deadline_s=1.0) as made:
        start = time.monotonic()
        with pytest.raises(PrometheusError, match="deadline passed"):
            promql.instant(made, "x", 1.0)
        assert time.monotonic() - start < 3


def test_an_answer_without_end_is_cut(monkeypatch):
    monkeypatch.setattr(promql, "MAX_BYTES", 1 << 20)
    with serving(say(b" " * (4 << 20))) as url, client(url) as made, pytest.raises(PrometheusError, match="larger than 1 MiB"):
        promql.instant(made, "x", 1.0)


def test_warnings_are_kept_once():
    with serving(result(warnings=["partial response"], infos=["not a counter", 3])) as url, client(url) as made:
        promql.instant(made, "x", 1.0)
        promql.instant(made, "x", 2.0)
    assert made.warnings == ["partial response", "not a counter"]


def test_tenant_and_credentials_are_sent(monkeypatch):
    seen: list[tuple[str | None, str | None]] = []

    def answer(request: BaseHTTPRequestHandler) -> None:
        seen.append((request.headers.get("X-Scope-OrgID"), request.headers.get("Authorization")))
        result()(request)

    monkeypatch.setenv("WEAKLINK_TEST_TOKEN", "t")
    with serving(answer) as url, promql.client(url, Access(bearer_env="WEAKLINK_TEST_TOKEN"), "team", 5, 5) as made:
        promql.instant(made, "x", 1.0)
        promql.span(made, "x", 0, 10, 5)
    assert set(seen) == {("team", "Bearer t")}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("namespace=prod", 'namespace="prod"'),
        ('namespace="prod"', 'namespace="prod"'),
        (' job =~ "a|b" ', 'job=~"a|b"'),
        ("pod!~x.*", 'pod!~"x.*"'),
        ("path=C:\\x", 'path="C:\\\\x"'),
        ("name=O'Brien", 'name="O\'Brien"'),
        ("empty=", 'empty=""'),
    ],
)
def test_a_matcher(text: str, expected: str):
    assert promql.matcher(text) == expected


@pytest.mark.parametrize("text", ["", "x", "a b", "=x", 'a="x",b="y"', 'a="', '__x"=y', 'a="x"} or vector(1)', "1a=x"])
def test_what_is_no_matcher_is_refused(text: str):
    with pytest.raises(ValueError, match="expected a label matcher"):
        promql.matcher(text)


@given(st.text())
def test_no_label_value_leaves_its_quotes(text: str):
    inner = promql.quoted(text)[1:-1]
    assert "\n" not in inner
    assert inner.replace("\\\\", "").replace('\\"', "").replace("\\n", "").count('"') == 0
    assert json.loads(f'"{inner}"', strict=False) == text


@pytest.mark.parametrize("url", ["", "ftp://h", "http://u:p@h", "http://h?x=1", "http://h:x"])
def test_what_is_no_url_is_refused(url: str):
    with pytest.raises(ValueError, match="expected"):
        promql.base_url(url)


def test_a_url_loses_what_the_client_adds():
    assert promql.base_url("p:9090/") == "http://p:9090"
    assert promql.base_url("https://mimir/prometheus/api/v1/") == "https://mimir/prometheus"


def test_every_expression_is_filled_in():
    values = {"target": ',job="a"', "match": "", "range": "60s", "name": "vllm:x", "anchor": "vllm:y"}
    for name in ("anchor", "router", "raw", "size", "counters", "gauge", "up", "rate"):
        text = promql.expression(name, **values)
        assert "$" not in text.replace('$"', "")
        assert not text.startswith("#")
