"""Which servers there are: from a file that something else writes, from DNS, or from Kubernetes.

`file`: Prometheus' file_sd, JSON or YAML (extra [discovery]): [{"targets": ["h:8000"], "labels": {"__scheme__": "https"}}].
`dns`: every address of a name, as a headless service has one for each pod, or its SRV records. `kubernetes`: the EndpointSlices of a service, by
the API and the pod's service account. What cannot be asked keeps the servers that were found last.

Source: https://prometheus.io/docs/prometheus/latest/configuration/configuration/#file_sd_config,
https://kubernetes.io/docs/reference/kubernetes-api/service-resources/endpoint-slice-v1/ (discovery.k8s.io/v1)
"""

import asyncio
import glob
import json
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import httpx

from app.collectors import srv
from app.collectors.access import Access, AccessError
from app.collectors.sources.scrape import Target

ACCOUNT: Final = "/var/run/secrets/kubernetes.io/serviceaccount"  # of every pod
API: Final = "https://kubernetes.default.svc"
MAX_BYTES: Final = 32 << 20
MOST: Final = 2000  # servers
PAGE: Final = 500
TIMEOUT_S: Final = 15.0
RBAC: Final = "the service account needs the verbs get and list on endpointslices (API group discovery.k8s.io) in this namespace"


class DiscoveryError(Exception):
    """Nothing could be found out now; the message says why."""


@dataclass(frozen=True, slots=True)
class Files:
    """file_sd: `paths` are files or patterns."""

    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Dns:
    """Every address of a name; without a port the SRV records of it (_http._tcp.vllm.prod.svc.cluster.local).

    `server` is the name server that is asked for them, as host or host:port; None: those of this machine.
    """

    name: str
    port: int | None
    server: str | None = None


@dataclass(frozen=True, slots=True)
class Kubernetes:
    """The ready endpoints of a service. `port` is a name or number; None: the only one there is."""

    namespace: str
    service: str
    port: str | None = None
    api: str = API
    access: Access = field(default_factory=lambda: Access(bearer_file=f"{ACCOUNT}/token", ca_file=f"{ACCOUNT}/ca.crt"))


@dataclass(frozen=True, slots=True)
class Discovery:
    """Where servers are found, how often that is looked at, and how those that are found are scraped."""

    where: Files | Dns | Kubernetes
    every_s: float = 30.0
    scheme: str = "http"
    path: str = "/metrics"
    like: Target = field(default_factory=lambda: Target("http://template/metrics"))  # interval, timeout, credentials


async def find(one: Discovery) -> list[Target]:
    """The servers that are there now, each once. DiscoveryError: that cannot be told now."""
    try:
        found = await _ADDRESSES[type(one.where)](one.where)
    except AccessError as error:
        raise DiscoveryError(str(error)) from error
    targets: dict[str, Target] = {}
    for address, labels in found[:MOST]:
        scheme, path = labels.get("__scheme__", one.scheme), labels.get("__metrics_path__", one.path)
        try:
            target = replace(one.like, url=f"{scheme}://{address}{path}")
        except ValueError as error:
            raise DiscoveryError(f"{address!r}: {error}") from error
        targets.setdefault(target.instance, target)
    return list(targets.values())


Found = list[tuple[str, Mapping[str, str]]]  # host:port, and what file_sd calls labels


# -- files --------------------------------------------------------------------------------------------------------------------
async def _from_files(where: Files) -> Found:
    return await asyncio.to_thread(_read_files, where)


def _read_files(where: Files) -> Found:
    found: Found = []
    for pattern in where.paths:
        names = sorted(glob.glob(pattern))  # noqa: PTH207 Path.glob takes no absolute pattern
        if not names and not glob.has_magic(pattern):
            raise DiscoveryError(f"{pattern}: no such file")
        for name in names:
            found += groups_of(_parsed(Path(name)), name)
    return found


def _parsed(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise DiscoveryError(f"{path}: larger than {MAX_BYTES >> 20} MiB")
        if path.suffix.lower() not in {".yml", ".yaml"}:
            return json.loads(data)
        return _yaml(path, data)
    except OSError as error:
        raise DiscoveryError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise DiscoveryError(f"{path}: expected JSON: {error}") from error


def _yaml(path: Path, data: bytes) -> Any:
    try:
        import yaml  # noqa: PLC0415 an extra
    except ImportError as error:
        raise DiscoveryError(
            f"{path}: YAML needs the extra [discovery]: pip install 'weaklink[discovery]', or write JSON"
        ) from error
    try:
        return yaml.safe_load(data)
    except (yaml.YAMLError, RecursionError) as error:
        raise DiscoveryError(f"{path}: expected YAML: {' '.join(str(error).split())}") from error


def groups_of(found: Any, name: str) -> Found:
    """The addresses in a parsed file_sd document."""
    addresses: Found = []
    for at, group in enumerate(found if isinstance(found, list) else [None], 1):
        targets = group.get("targets") if isinstance(group, dict) else None
        labels = (group.get("labels") or {}) if isinstance(group, dict) else {}
        if not isinstance(targets, list) or not all(isinstance(one, str) for one in targets) or not isinstance(labels, dict):
            raise DiscoveryError(f'{name}: group {at}: expected {{"targets": ["host:port", ...], "labels": {{...}}}}')
        addresses += [(one, {str(key): str(value) for key, value in labels.items()}) for one in targets]
    return addresses


# -- DNS ----------------------------------------------------------------------------------------------------------------------
async def _from_dns(where: Dns) -> Found:
    if where.port is None:
        try:
            found = await asyncio.to_thread(srv.find, where.name, where.server)
        except srv.SrvError as error:
            raise DiscoveryError(str(error)) from error
        return [(f"{host}:{port}", {}) for host, port in found]
    try:
        async with asyncio.timeout(TIMEOUT_S):
            answers = await asyncio.get_running_loop().getaddrinfo(where.name, where.port, type=socket.SOCK_STREAM)
    except TimeoutError as error:
        raise DiscoveryError(f"{where.name}: the name server did not answer in {TIMEOUT_S:g} s") from error
    except (OSError, UnicodeError) as error:
        raise DiscoveryError(f"{where.name}: {getattr(error, 'strerror', None) or error}") from error
    hosts = dict.fromkeys(f"[{answer[4][0]}]" if answer[0] == socket.AF_INET6 else str(answer[4][0]) for answer in answers)
    return [(f"{host}:{where.port}", {}) for host in sorted(hosts)]


# -- Kubernetes ---------------------------------------------------------------------------------------------------------------
async def _from_kubernetes(where: Kubernetes) -> Found:
    url = f"{where.api.rstrip('/')}/apis/discovery.k8s.io/v1/namespaces/{quote(where.namespace, safe='')}/endpointslices"
    params = {"labelSelector": f"kubernetes.io/service-name={where.service}", "limit": str(PAGE)}
    found: Found = []
    try:
        async with httpx.AsyncClient(verify=where.access.context(), trust_env=False, timeout=TIMEOUT_S) as client:
            while True:
                answer = await client.get(url, params=params, headers={**where.access.headers(), "Accept": "application/json"})
                if (
                    answer.status_code == httpx.codes.GONE and "continue" in params
                ):  # the list has changed too much: from the start
                    found = []
                    params.pop("continue")
                    continue
                page = _page(where, answer)
                for item in page.get("items") or []:
                    found += _slice(where, item)
                following = (page.get("metadata") or {}).get("continue")
                if not following or len(found) > MOST:
                    return found
                params["continue"] = following
    except httpx.HTTPError as error:
        raise DiscoveryError(f"{where.api}: {type(error).__name__}: {error}") from error


def _page(where: Kubernetes, answer: httpx.Response) -> Mapping[str, Any]:
    if answer.status_code in {401, 403}:
        raise DiscoveryError(f"{where.api}: {answer.status_code} for {where.namespace}/{where.service}: {RBAC}")
    if answer.status_code != httpx.codes.OK:
        raise DiscoveryError(f"{where.api}: HTTP status {answer.status_code} for {where.namespace}/{where.service}")
    try:
        page = answer.json()
    except (ValueError, RecursionError) as error:
        raise DiscoveryError(f"{where.api}: expected JSON") from error
    if not isinstance(page, dict) or page.get("kind") != "EndpointSliceList":
        raise DiscoveryError(f"{where.api}: expected an EndpointSliceList")
    return page


def _slice(where: Kubernetes, item: Any) -> Found:
    """The ready addresses of one slice at the wanted port. Unknown readiness counts as ready, as the API defines it."""
    if not isinstance(item, dict) or item.get("addressType") not in {"IPv4", "IPv6", "FQDN"}:
        return []
    ports = [one for one in item.get("ports") or [] if isinstance(one, dict) and isinstance(one.get("port"), int)]
    chosen = [one["port"] for one in ports if where.port is None or where.port in {one.get("name"), str(one["port"])}]
    if where.port is None and len(chosen) > 1:
        names = ", ".join(str(one.get("name") or one["port"]) for one in ports)
        raise DiscoveryError(f"{where.namespace}/{where.service} has several ports ({names}): say which by `port`")
    found: Found = []
    for endpoint in item.get("endpoints") or []:
        ready = (endpoint.get("conditions") or {}).get("ready")
        for address in (endpoint.get("addresses") or [])[:1] if ready is not False else ():
            host = f"[{address}]" if item["addressType"] == "IPv6" else address
            found += [(f"{host}:{port}", {}) for port in chosen]
    return found


_ADDRESSES: Final[Mapping[type, Any]] = {Files: _from_files, Dns: _from_dns, Kubernetes: _from_kubernetes}


def merged(groups: Sequence[Sequence[Target]]) -> list[Target]:
    """The servers of several discoveries, each once."""
    targets: dict[str, Target] = {}
    for group in groups:
        for target in group:
            targets.setdefault(target.instance, target)
    return list(targets.values())
