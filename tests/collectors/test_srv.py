"""SRV records, asked of a name server that speaks the protocol (a small one: no other is at hand)."""

import asyncio
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.collectors import srv
from app.collectors.discovery import Discovery, DiscoveryError, Dns, find

NAME = "_http._tcp.vllm.prod.svc.cluster.local"


def labels(name: str) -> bytes:
    return b"".join(bytes([len(part)]) + part.encode() for part in name.split(".") if part) + b"\0"


def answer(asked: bytes, *rows: tuple[int, int, int, bytes], code: int = 0, cut: bool = False) -> bytes:
    """The answer to a question: rows of priority, weight, port and the encoded host; the name points to the question."""
    head = asked[:2] + struct.pack(">5H", 0x8180 | code | (0x0200 if cut else 0), 1, len(rows), 0, 0)
    said = [
        struct.pack(">HHHIH", 0xC00C, 33, 1, 30, 6 + len(host)) + struct.pack(">3H", *numbers) + host for *numbers, host in rows
    ]
    return head + asked[12:] + b"".join(said)


@contextmanager
def serving(udp: Callable[[bytes], bytes], tcp: Callable[[bytes], bytes] | None = None) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as stream, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
        port = stream.getsockname()[1]
        link.bind(("127.0.0.1", port))

        def packets() -> None:
            asked, whence = link.recvfrom(512)
            link.sendto(udp(asked), whence)

        def streams() -> None:
            taken, _ = stream.accept()
            with taken:
                asked = taken.recv(512)[2:]
                found = tcp(asked) if tcp else b""
                taken.sendall(struct.pack(">H", len(found)) + found)

        threads = [threading.Thread(target=one, daemon=True) for one in (packets, *((streams,) if tcp else ()))]
        for thread in threads:
            thread.start()
        yield f"127.0.0.1:{port}"
        for thread in threads:
            thread.join(5)


def found(server: str, name: str = NAME) -> list[str]:
    return [target.url for target in asyncio.run(find(Discovery(Dns(name, None, server))))]


def test_host_and_port_of_each_record():
    rows = ((10, 5, 8001, labels("b.svc")), (10, 9, 8000, b"\1a" + b"\xc0\x0c"), (0, 0, 9000, labels("c.svc")), (0, 0, 0, b"\0"))
    with serving(lambda asked: answer(asked, *rows)) as server:
        assert found(server) == ["http://c.svc:9000/metrics", f"http://a.{NAME}:8000/metrics", "http://b.svc:8001/metrics"]


def test_a_cut_answer_is_asked_for_by_tcp():
    rows = [(0, 0, 8000, labels(f"h{at}.svc")) for at in range(60)]
    with serving(lambda asked: answer(asked, cut=True), lambda asked: answer(asked, *rows)) as server:
        assert len(found(server)) == 60


@pytest.mark.parametrize(
    ("udp", "why"),
    [
        (lambda asked: answer(asked, code=3), "no such name"),
        (lambda asked: b"", "expected a DNS message"),
        (lambda asked: bytes([asked[0] ^ 1]) + answer(asked)[1:], "expected the answer to the question"),
        (lambda asked: answer(asked, (0, 0, 8000, b"\xc0" + bytes([12 + len(asked) - 12 + 18]))), "circle"),
        (lambda asked: answer(asked, (0, 0, 8000, labels("u:p@h/x"))), "expected a host name"),
        (lambda asked: answer(asked, (0, 0, 8000, b"\x50"))[:-1], "ends too early"),
    ],
)
def test_what_is_no_answer_is_said(udp: Callable[[bytes], bytes], why: str):
    with serving(udp) as server, pytest.raises(DiscoveryError, match=why):
        found(server)


def test_nobody_answers(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(srv, "TIMEOUT_S", 0.1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        with pytest.raises(DiscoveryError, match=NAME):
            found(f"127.0.0.1:{silent.getsockname()[1]}")


@given(st.binary(max_size=200))
def test_no_bytes_break_it(message: bytes):
    with suppress(srv.SrvError):
        srv.records(message, 0)
