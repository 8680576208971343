"""What prometheus-api-client leaves out (0.7.2), in a thin layer above its session: bounds, retries, warnings, escaping.

Its retries leave POST out, its timeout is none and per read, an answer is taken whatever its size, and `warnings` of the
answer (Thanos: "partial response") are dropped. Ranges above 11,000 points fail at the server: `chunks` cuts them at the step.
"""

import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.resources import files
from string import Template
from typing import Any, Final, Self

import requests
from prometheus_api_client import PrometheusConnect

from app.collectors.access import Access, checked

MAX_BYTES: Final = 512 << 20  # of one answer
MAX_POINTS: Final = 10_000  # a series and query; Prometheus refuses above 11,000
ATTEMPTS: Final = 4
BACKOFF_S: Final = 0.5  # doubles
RETRIED: Final = frozenset({408, 429, 500, 502, 503, 504})
_MATCHER: Final = re.compile(r"\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*(=~|!~|!=|=)\s*(.*?)\s*", re.DOTALL)
_QUOTED: Final = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)

Series = Mapping[str, Any]  # {"metric": labels, "value" | "values"}


class PrometheusError(Exception):
    """The server does not answer, refuses, or answers too much; the message says what to do."""


class _AgainError(Exception):
    """Worth another attempt."""


@dataclass(slots=True)
class Client:
    """One server for the length of one task. `warnings` collects what the server said beside its answers."""

    connect: PrometheusConnect
    timeout_s: float
    until: float  # monotonic: the deadline of the task
    warnings: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.connect.close()


def client(url: str, access: Access, tenant: str | None, timeout_s: float, deadline_s: float, method: str = "GET") -> Client:
    """Open a server. AccessError: a credential cannot be read."""
    session = requests.Session()
    session.trust_env = False  # no credentials of .netrc, no proxy that is meant for the world outside
    session.stream = True  # _bounded reads the answer
    session.verify = (access.ca_file or True) if not access.insecure else False
    if access.cert_file:
        session.cert = (access.cert_file, access.key_file) if access.key_file else access.cert_file
    headers = {**access.headers(), **({"X-Scope-OrgID": tenant} if tenant else {})}
    # retries are ours: the client's leave POST out, and would not keep the deadline
    connect = PrometheusConnect(url, headers=headers, session=session, retry=0, timeout=timeout_s, method=method)
    made = Client(connect, timeout_s, time.monotonic() + deadline_s)
    session.hooks["response"].append(lambda answer, **_: _bounded(made, answer))
    return made


def _bounded(made: Client, answer: requests.Response) -> None:
    """Read the answer within the deadline and the size bound; turn refusals into our errors, keep its warnings."""
    parts, size = [], 0
    try:
        for part in answer.iter_content(1 << 16):
            size += len(part)
            if size > MAX_BYTES:
                raise PrometheusError(f"the answer is larger than {MAX_BYTES >> 20} MiB: narrow the window or the match")
            if time.monotonic() > made.until:
                raise PrometheusError("deadline passed while the answer came: narrow the window, or allow more time")
            parts.append(part)
    except requests.RequestException as error:
        raise _AgainError(f"broken off: {type(error).__name__}") from error
    finally:
        answer.close()
    body = b"".join(parts)
    answer._content, answer._content_consumed = body, True  # noqa: SLF001 the client reads it from here
    if answer.status_code in RETRIED:
        raise _AgainError(f"HTTP status {answer.status_code}{_reason(body)}")
    if answer.status_code >= requests.codes.bad_request:
        raise PrometheusError(f"HTTP status {answer.status_code}{_reason(body)}")
    if b'"warnings"' in body or b'"infos"' in body:
        found = _json(body)
        with made.lock:
            said = [str(text) for key in ("warnings", "infos") for text in found.get(key) or () if isinstance(text, str)]
            made.warnings += [text for text in dict.fromkeys(said) if text not in made.warnings]


def _json(body: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(body)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _reason(body: bytes) -> str:
    """What Prometheus says went wrong; of other programs' pages nothing."""
    said = _json(body).get("error")
    return f": {said[:300]}" if isinstance(said, str) else ""


def _ask(made: Client, call: Callable[[float], Any]) -> list[Any]:
    """Call the client with a timeout, again where that may help, within the deadline."""
    why = ""
    for attempt in range(ATTEMPTS):
        left = made.until - time.monotonic()
        if left <= 0:
            break
        try:
            found = call(min(made.timeout_s, left))
        except (_AgainError, requests.ConnectionError, requests.Timeout) as error:
            why = str(error) if isinstance(error, _AgainError) else _unreachable(error)
            time.sleep(max(0.0, min(BACKOFF_S * 2**attempt, made.until - time.monotonic())) if attempt + 1 < ATTEMPTS else 0.0)
            continue
        except (ValueError, KeyError, TypeError) as error:
            raise PrometheusError("the answer is not Prometheus's JSON: is the URL that of its API?") from error
        except requests.RequestException as error:
            raise PrometheusError(f"{type(error).__name__}: {error}") from error
        if not isinstance(found, list):
            raise PrometheusError("the answer is not Prometheus's JSON: is the URL that of its API?")
        return found
    late = made.until - time.monotonic() <= 0
    raise PrometheusError(("deadline passed" if late else f"{ATTEMPTS} attempts failed") + (f"; last: {why}" if why else ""))


def _unreachable(error: Exception) -> str:
    if isinstance(error, requests.Timeout):
        return "no answer in time"
    if isinstance(error, requests.exceptions.SSLError):
        return f"TLS: {error}"
    return "cannot connect"


def instant(made: Client, query: str, ts: float) -> list[Series]:
    """The answer to `query` at `ts` (epoch seconds): a vector, or a matrix of raw samples where it ends in [range]."""
    return _ask(made, lambda timeout: made.connect.custom_query(query, params={"time": f"{ts:.3f}"}, timeout=timeout))


def chunks(start: int, end: int, step: int, points: int = MAX_POINTS) -> Iterator[tuple[int, int]]:
    """Cut the steps of a range (epoch seconds, aligned to multiples of `step`, `end` included) into at most `points` each."""
    first, last = -(-start // step), end // step
    for at in range(first, last + 1, points):
        yield at * step, min(at + points - 1, last) * step


def span(made: Client, query: str, start: int, end: int, step: int) -> list[Series]:
    """The answer to a range of any length: `chunks` of it, merged by series, each point once and in order."""
    merged: dict[tuple[tuple[str, str], ...], dict[float, str]] = {}
    for low, high in chunks(start, end, step):
        for one in piece(made, query, low, high, step):
            points = merged.setdefault(tuple(sorted(one["metric"].items())), {})
            points.update({float(ts): value for ts, value in one["values"]})
    return [{"metric": dict(key), "values": sorted(points.items())} for key, points in merged.items()]


def piece(made: Client, query: str, start: int, end: int, step: int) -> list[Series]:
    """The answer to a range of at most MAX_POINTS steps."""
    low, high = _moment(start), _moment(end)
    return _ask(made, lambda timeout: made.connect.custom_query_range(query, low, high, f"{step}s", timeout=timeout))


def series(made: Client, match: str, start: float, end: float) -> list[Mapping[str, str]]:
    """The labels of each series that matches and has a sample in the window."""
    low, high = _moment(start), _moment(end)
    return _ask(made, lambda _: made.connect.get_series(low, high, params={"match[]": match}))


def _moment(ts: float) -> datetime:
    return datetime.fromtimestamp(ts, UTC)


# -- expressions ----------------------------------------------------------------------------------------------------------------
def expression(name: str, /, **values: str) -> str:
    """The text of queries/promql/NAME.promql without comments, its $words filled in."""
    text = files("queries").joinpath("promql", f"{name}.promql").read_text(encoding="utf-8")
    return Template("\n".join(line for line in text.splitlines() if not line.startswith("#")).strip()).substitute(values)


def selector(labels: Mapping[str, str]) -> str:
    """Matchers for exactly these labels, each after a comma: for a place behind another matcher."""
    return "".join(f",{name}={quoted(value)}" for name, value in sorted(labels.items()))


def quoted(text: str) -> str:
    """A PromQL string."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def matcher(text: str) -> str:
    """One label matcher as PromQL, of namespace=prod or namespace=~"prod|test". ValueError: it is none."""
    found = _MATCHER.fullmatch(text)
    if found is None:
        raise ValueError('expected a label matcher such as namespace="prod" or job=~"vllm.*"')
    name, sign, value = found.groups()
    inner = _QUOTED.fullmatch(value)
    if inner is None and '"' in value:
        raise ValueError('expected a label matcher such as namespace="prod": one pair of quotes')
    return f"{name}{sign}{value if inner else quoted(value)}"


def matchers(texts: Sequence[str]) -> str:
    """Several matchers, each after a comma."""
    return "".join(f",{matcher(text)}" for text in texts)


def base_url(url: str) -> str:
    """The URL of an API as the client takes it. ValueError says what is wrong; credentials inside are refused."""
    full, parts = checked(url, "http://host:port")
    if parts.query or parts.fragment:
        raise ValueError("expected a URL without query")
    return full.rstrip("/").removesuffix("/api/v1")
