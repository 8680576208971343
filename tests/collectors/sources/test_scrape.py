"""Scrapes of real HTTP servers, most of which misbehave."""

import asyncio
import gzip
import threading
import time
from http.server import BaseHTTPRequestHandler

import pytest
from collectors.sources.serving import TEXT, say, serving
from hypothesis import given, settings
from hypothesis import strategies as st
from ports import free_port

from app.collectors.access import Access, AccessError
from app.collectors.formats import prometheus_text
from app.collectors.sources import scrape
from app.collectors.sources.scrape import Line, Target


def once(url: str, **options: object) -> Line:
    """Return the line of one scrape."""

    async def run() -> Line:
        target = Target(url, **options)
        async with scrape.client(target.access.context()) as http:
            return await scrape.scrape(http, target)

    return asyncio.run(run())


def watched(targets: list[Target], seconds: float) -> list[Line]:
    """Return the lines that come within so many seconds."""
    found: list[Line] = []

    async def run() -> None:
        stop = asyncio.Event()
        asyncio.get_running_loop().call_later(seconds, stop.set)
        await scrape.watch(targets, found.append, stop)

    asyncio.run(run())
    return found


def test_a_scrape_is_a_recording_line():
    with serving(say(TEXT)) as url:
        before = time.time()
        line = once(url)
    assert list(line) == ["t", "url", "dur", "text"]
    assert before - 0.001 <= line["t"] <= time.time()
    assert 0 < line["dur"] < 5
    assert line["url"] == f"{url}/metrics"
    assert line["text"] == TEXT


@pytest.mark.parametrize(
    ("given", "full"),
    [
        ("gpu-1:8000", "http://gpu-1:8000/metrics"),
        ("http://gpu-1:8000/", "http://gpu-1:8000/metrics"),
        ("https://gpu-1/v/metrics?x=1#y", "https://gpu-1/v/metrics?x=1"),
        ("[::1]:8000", "http://[::1]:8000/metrics"),
    ],
)
def test_a_url_is_completed(given: str, full: str):
    assert Target(given).url == full


@pytest.mark.parametrize(
    "url", ["", "ftp://h/metrics", "http://", "http://h:x/", "http://h:99999/", "http://[", "http://user:secret@h/"]
)
def test_what_is_no_url_is_refused(url: str):
    with pytest.raises(ValueError, match="expected") as caught:
        Target(url)
    assert "secret" not in str(caught.value)


def endless(request: BaseHTTPRequestHandler) -> None:
    request.send_response(200)
    request.send_header("Content-Type", "text/plain")
    request.end_headers()
    block = b'vllm:num_requests_running{engine="0"} 1\n' * 25_000
    while True:
        request.wfile.write(block)


def trickle(request: BaseHTTPRequestHandler) -> None:
    request.send_response(200)
    request.end_headers()
    for sign in TEXT:
        request.wfile.write(sign.encode())
        request.wfile.flush()
        time.sleep(0.05)


def broken_off(request: BaseHTTPRequestHandler) -> None:
    request.send_response(200)
    request.send_header("Content-Length", "1000000")
    request.end_headers()
    request.wfile.write(TEXT.encode()[:1000])


def loop(request: BaseHTTPRequestHandler) -> None:
    request.send_response(302)
    request.send_header("Location", "/metrics")
    request.send_header("Content-Length", "0")
    request.end_headers()


HOSTILE = {
    "html": (say("<html><body>Sign in</body></html>", kind="text/html; charset=utf-8"), "a web page"),
    "html that says it is text": (say("\ufeff \n<!doctype html>"), "a web page"),
    "json": (say('{"status": "ok"}', kind="application/json"), "no series of vLLM"),
    "another program": (say('up{job="x"} 1\nnode_load1 0.3\n'), "no series of vLLM"),
    "empty": (say(""), "no series of vLLM"),
    "another encoding": (say(TEXT.encode("utf-16")), "no series of vLLM"),
    "not found": (say("no", status=404), "HTTP status 404: is the path right"),
    "forbidden": (say("no", status=401), "HTTP status 401: it asks for credentials"),
    "failing": (say("no", status=500), "HTTP status 500"),
    "100 MB": (say(TEXT.encode() * (100_000_000 // len(TEXT))), "larger than 64 MiB"),
    "endless": (endless, "larger than 64 MiB|no complete answer within 3 s"),
    "a bomb": (say(gzip.compress(b"vllm:x 1\n" * 10_000_000), Content_Encoding="gzip"), "larger than 64 MiB"),
    "no gzip": (say(b"vllm:x 1\n", Content_Encoding="gzip"), "cannot be unpacked"),
    "a trickle": (trickle, "no complete answer within 3 s"),
    "broken off": (broken_off, "broken off"),
    "a circle": (loop, "more than 3 redirects"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_useless_answer_is_an_error_that_says_why(name: str):
    answer, expected = HOSTILE[name]
    with serving(answer) as url:
        start = time.monotonic()
        line = once(url, timeout_s=3.0)
    assert "text" not in line
    assert any(part in line["error"] for part in expected.split("|")), line["error"]
    assert time.monotonic() - start < 6


@given(
    body=st.binary(max_size=200)
    | st.text(max_size=200).map(str.encode)
    | st.binary(max_size=80).map(lambda rest: b"vllm:x 1\n" + rest),
    status=st.sampled_from([200, 200, 200, 204, 206, 400, 503]),
    kind=st.sampled_from(["text/plain", "text/plain; charset=utf-16", "text/html", "x", ""]),
)
@settings(max_examples=60, deadline=None)
def test_any_answer_is_a_text_or_an_error(body: bytes, status: int, kind: str):
    with serving(say(body, status=status, kind=kind)) as url:
        line = once(url)
    assert ("text" in line) != ("error" in line)
    for batch in prometheus_text.follow()(line):
        assert batch.table in {"series", "sample", "scrape", "rejected_line", "source_file"}


def test_a_dead_target_is_an_error_that_says_why():
    assert once(f"127.0.0.1:{free_port()}")["error"] == "cannot connect: Connection refused"
    assert "cannot connect" in once("no-such-host.invalid:8000")["error"]


def test_odd_bytes_and_numbers_are_left_to_the_parser():
    odd = TEXT.encode() + b'vllm:odd{model_name="\xff\xfe"} NaN\nvllm:odd{model_name="b"} +Inf\n'
    with serving(say(odd)) as url:
        assert once(url)["text"].endswith('vllm:odd{model_name="\ufffd\ufffd"} NaN\nvllm:odd{model_name="b"} +Inf\n')


def test_credentials_come_from_the_environment_or_a_file(tmp_path, monkeypatch):
    seen: list[str | None] = []

    def answer(request: BaseHTTPRequestHandler) -> None:
        seen.append(request.headers.get("Authorization"))
        say(TEXT)(request)

    secret = tmp_path / "token"
    secret.write_text("s3cret\n")
    monkeypatch.setenv("WEAKLINK_TEST_PASSWORD", "pass")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # not used
    with serving(answer) as url:
        assert "text" in once(url)
        assert "text" in once(url, access=Access(bearer_file=str(secret)))
        secret.write_text("rotated")
        assert "text" in once(url, access=Access(bearer_file=str(secret)))
        assert "text" in once(url, access=Access(user="me", password_env="WEAKLINK_TEST_PASSWORD"))
        missing = once(url, access=Access(bearer_env="WEAKLINK_TEST_NOT_SET"))
        secret.write_text("two\nlines")
        broken = once(url, access=Access(bearer_file=str(secret)))
    assert seen == [None, "Bearer s3cret", "Bearer rotated", "Basic bWU6cGFzcw=="]
    assert missing["error"] == "environment variable WEAKLINK_TEST_NOT_SET is not set"
    assert "expected one line" in broken["error"]
    assert "two" not in broken["error"]


def test_tls_is_verified_unless_told_otherwise(tls_server):
    url, authority = tls_server
    assert once(url)["error"].startswith("TLS: self-signed certificate")
    assert "text" in once(url, access=Access(ca_file=authority))
    assert "text" in once(url, access=Access(insecure=True))
    assert once(url.replace("https", "http"))["error"].startswith("broken off")
    with serving(say(TEXT)) as plain:
        assert once(plain.replace("http", "https"))["error"].startswith("TLS: ")


def test_a_missing_certificate_is_named():
    with pytest.raises(AccessError, match=r"no-such-file\.pem: cannot be used as certificate"):
        Access(ca_file="no-such-file.pem").context()


def test_the_url_in_a_line_has_no_secret():
    with serving(say(TEXT)) as url:
        assert once(f"{url}/metrics?token=secret")["url"] == f"{url}/metrics"


def test_a_slow_target_leaves_scrapes_out_and_holds_up_no_other():
    under_way, most = 0, 0
    lock = threading.Lock()

    def slow(request: BaseHTTPRequestHandler) -> None:
        nonlocal under_way, most
        with lock:
            under_way += 1
            most = max(most, under_way)
        time.sleep(0.7)
        with lock:
            under_way -= 1
        say(TEXT)(request)

    with serving(slow) as tortoise, serving(say(TEXT)) as hare:
        lines = watched([Target(tortoise, interval_s=0.2), Target(hare, interval_s=0.2)], 3.0)
    by_url = {url: [line for line in lines if line["url"].startswith(url)] for url in (tortoise, hare)}
    assert most == 1
    assert 2 <= len(by_url[tortoise]) <= 4
    assert 11 <= len(by_url[hare]) <= 16
    gaps = [b["t"] - a["t"] for a, b in zip(by_url[tortoise], by_url[tortoise][1:], strict=False)]
    assert min(gaps) > 0.75
    # at a due time, not "at once" after 0.7 s; a busy machine may miss one more
    assert all(abs(gap - 0.2 * round(gap / 0.2)) < 0.05 for gap in gaps), gaps


def test_a_target_that_dies_is_a_gap_and_comes_back():
    port = free_port()
    with serving(say(TEXT), port):
        lines = watched([Target(f"127.0.0.1:{port}", interval_s=0.2)], 1.5)
    lines += watched([Target(f"127.0.0.1:{port}", interval_s=0.2)], 1.5)
    with serving(say(TEXT), port):
        lines += watched([Target(f"127.0.0.1:{port}", interval_s=0.2)], 1.5)
    kinds = "".join("x" if "error" in line else "." for line in lines)
    assert kinds.strip(".").strip("x") == "", kinds
    assert kinds.startswith("..")
    assert kinds.endswith("..")
    assert "x" in kinds


def test_the_end_does_not_wait_for_a_slow_answer():
    with serving(trickle) as url:
        start = time.monotonic()
        assert watched([Target(url, timeout_s=60.0)], 0.5) == []
    assert time.monotonic() - start < 3


def test_no_target_is_no_error():
    assert watched([], 0.1) == []


def test_certificates_are_shared_by_what_is_in_them():
    assert Access().tls() == Access(bearer_env="X").tls()
    assert Access().tls() != Access(insecure=True).tls()
