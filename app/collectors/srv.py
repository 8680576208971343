"""SRV records by DNS (RFC 1035, RFC 2782): host and port of each server of a service. Python's own resolver knows addresses only.

The question goes by UDP to the name servers of /etc/resolv.conf, or to one that is named (Consul's answers on port 8600); an answer
that was cut is asked for again by TCP.
"""

import re
import secrets
import socket
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

SRV: Final = 33
INTERNET: Final = 1
TIMEOUT_S: Final = 3.0
RESOLV: Final = Path("/etc/resolv.conf")
MOST_JUMPS: Final = 64  # of a compressed name: more go round in circles
_HOST: Final = re.compile(r"[A-Za-z0-9._-]+\Z")
CODES: Final = {1: "the question was not understood", 2: "the server failed", 3: "no such name", 5: "refused"}


class SrvError(Exception):
    """No answer; the message says why."""


def find(name: str, server: str | None = None) -> list[tuple[str, int]]:
    """Host and port of each record, by priority, the larger weight first. SrvError: nobody answers, or there is no such name."""
    why = "no name server in /etc/resolv.conf"
    for host, port in [_place(server)] if server else [(one, 53) for one in name_servers()]:
        try:
            return records(*_ask(name, host, port))
        except (OSError, SrvError) as error:
            why = f"{host}: {error}"
    raise SrvError(f"{name}: {why}")


def name_servers() -> list[str]:
    """Addresses in /etc/resolv.conf."""
    try:
        lines = RESOLV.read_text(errors="replace").splitlines()
    except OSError:
        return []
    return [words[1] for words in map(str.split, lines) if len(words) > 1 and words[0] == "nameserver"]


def _place(server: str) -> tuple[str, int]:
    host, _, port = server.rpartition(":")
    return (host.strip("[]"), int(port)) if host and port.isdigit() else (server, 53)


def _ask(name: str, host: str, port: int) -> tuple[bytes, int]:
    """The answer's message, and the number that it must carry."""
    number = secrets.randbelow(1 << 16)
    asked = question(name, number)
    family = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0][0]
    with socket.socket(family, socket.SOCK_DGRAM) as link:
        link.settimeout(TIMEOUT_S)
        link.connect((host, port))
        link.send(asked)
        found = link.recv(65535)
    if len(found) < 4 or not found[2] & 0x02:
        return found, number
    with socket.create_connection((host, port), TIMEOUT_S) as link, link.makefile("rb") as stream:
        link.sendall(struct.pack(">H", len(asked)) + asked)
        (length,) = struct.unpack(">H", stream.read(2).rjust(2, b"\0"))
        return stream.read(length), number


def question(name: str, number: int) -> bytes:
    """The message that asks for a name's SRV records."""
    parts = [part.encode("idna") if not part.isascii() else part.encode() for part in name.rstrip(".").split(".")]
    if not all(0 < len(part) < 64 for part in parts):
        raise SrvError("a part of the name is empty or longer than 63 bytes")
    labels = b"".join(bytes([len(part)]) + part for part in parts)
    return struct.pack(">6H", number, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">2H", SRV, INTERNET)


def records(message: bytes, number: int) -> list[tuple[str, int]]:
    """Host and port of the SRV records in an answer. SrvError where it is none, or says that there are none."""
    try:
        got, flags, questions, answers = struct.unpack_from(">4H", message)
        if got != number or not flags & 0x8000:
            raise SrvError("expected the answer to the question")
        if flags & 0x0F:
            raise SrvError(CODES.get(flags & 0x0F, f"code {flags & 0x0F}"))
        at = 12
        for _ in range(questions):
            at = _name(message, at)[1] + 4
        return [(host, port) for _, _, host, port in sorted(_records(message, at, answers))]
    except (struct.error, IndexError) as error:
        raise SrvError("expected a DNS message, got one that ends too early") from error


def _records(message: bytes, at: int, count: int) -> Iterator[tuple[int, int, str, int]]:
    for _ in range(count):
        _, at = _name(message, at)
        kind, _, _, length = struct.unpack_from(">2HIH", message, at)
        at += 10
        if kind == SRV:
            priority, weight, port = struct.unpack_from(">3H", message, at)
            host, _ = _name(message, at + 6)
            if host and not _HOST.match(host):
                raise SrvError(f"expected a host name, got {host[:80]!r}")
            if host and port:  # "." says that the service is not there
                yield priority, -weight, host, port
        at += length


def _name(message: bytes, at: int) -> tuple[str, int]:
    """A name, which may point into what was said before; and where it ends."""
    parts: list[str] = []
    end, jumps = -1, 0
    while length := message[at]:
        if length >= 0xC0:
            end, jumps = (at + 2 if end < 0 else end), jumps + 1
            at = (length & 0x3F) << 8 | message[at + 1]
        elif length < 64:
            parts.append(message[at + 1 : at + 1 + length].decode("ascii", "replace"))
            at += 1 + length
            jumps += 1
        else:
            raise SrvError("expected a label")
        if jumps > MOST_JUMPS:
            raise SrvError("expected a name, got a circle")
    return ".".join(parts), at + 1 if end < 0 else end


__all__: Sequence[str] = ("SrvError", "find", "name_servers", "question", "records")
