"""A real Prometheus that holds a recorded incident, for all tests of this folder."""

import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from collectors.sources.serving import INCIDENTS, TEXT, lines_of, open_metrics, prometheus, say, serving


class Capture(NamedTuple):
    url: str
    lines: list[dict]
    start: float
    end: float


@pytest.fixture(scope="session")
def backlog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Capture]:
    """The incident prefill_backlog in a Prometheus; the test must be marked `prometheus`."""
    lines = lines_of(INCIDENTS / "prefill_backlog")
    with prometheus(tmp_path_factory.mktemp("prometheus"), open_metrics(lines)) as url:
        yield Capture(url, lines, lines[0]["t"] - 5, lines[-1]["t"] + 5)


@pytest.fixture
def tls_server() -> Iterator[tuple[str, str]]:
    """A server with a self-signed certificate (localhost.pem, made for this); its URL and the certificate's file."""
    pem = str(Path(__file__).with_name("localhost.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    with serving(say(TEXT), context=context) as url:
        yield url.replace("http:", "https:"), pem
