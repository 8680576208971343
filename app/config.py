"""One TOML file -> Config: what is collected, from where, with which credentials, how long it is kept; objectives, notifiers.

Objectives and notifiers are read by app/alerts/definitions.py, which describes their tables.
Secrets do not stand in the file: it names the environment variable or the file that holds them. Keys that are not known are
errors, so that a misspelt one is no silent default.
"""

import ipaddress
import math
import os
import tomllib
from pathlib import Path
from typing import Annotated, Any, Final, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, model_validator

from app.access import Login
from app.alerts.definitions import TABLES, Definitions, definitions_of
from app.alerts.notify import check as check_notifiers
from app.alerts.table import DefinitionError
from app.collectors import discovery
from app.collectors.access import Access, AccessError
from app.collectors.sources import kv_events, prometheus, scrape
from app.live.collect import Log
from app.retention import Policy

SECRETS: Final = frozenset({"token", "bearer", "password", "bearer_token", "secret"})


class ConfigError(Exception):
    """The file cannot be used; the message has a line for each fault: file, key, what was expected."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class _Access(_Strict):
    bearer_env: str | None = None
    bearer_file: str | None = None
    user: str | None = None
    password_env: str | None = None
    password_file: str | None = None
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    insecure: bool = False

    @model_validator(mode="after")
    def _one_way_in(self) -> Self:
        bearer = [self.bearer_env, self.bearer_file]
        password = [self.password_env, self.password_file]
        if sum(one is not None for one in bearer) > 1 or sum(one is not None for one in password) > 1:
            raise ValueError("expected the secret in the environment or in a file, not in both")
        if any(bearer) and (self.user or any(password)):
            raise ValueError("expected a bearer token or a user with password, not both")
        if self.key_file and not self.cert_file:
            raise ValueError("expected cert_file beside key_file")
        return self

    def access(self) -> Access:
        """TLS and credentials as the sources take them."""
        return Access(**{name: getattr(self, name) for name in _Access.model_fields})


def _scrape_url(url: str) -> str:
    return scrape.complete(url)


def _matcher(text: str) -> str:
    prometheus.matcher(text)
    return text


def _network(text: str) -> str:
    ipaddress.ip_network(text, strict=False)
    return text


class TargetConfig(_Access):
    """[[target]]: one vLLM server's /metrics."""

    url: Annotated[str, AfterValidator(_scrape_url)]
    name: str | None = None
    interval_s: Annotated[float, Field(ge=0.5, le=60)] = 1.0
    timeout_s: Annotated[float, Field(gt=0, le=60)] = 5.0

    def target(self) -> scrape.Target:
        """The target as the scraper takes it."""
        return scrape.Target(self.url, self.name, self.interval_s, self.timeout_s, self.access())


class PrometheusConfig(_Access):
    """[[prometheus]]: a Prometheus, Thanos, Mimir or VictoriaMetrics that scrapes vLLM servers."""

    url: Annotated[str, AfterValidator(prometheus.base_url)]
    tenant: str | None = None  # X-Scope-OrgID
    match: tuple[Annotated[str, AfterValidator(_matcher)], ...] = Field(default=(), strict=False)  # namespace="prod"
    step_s: Annotated[int, Field(ge=1, le=86400)] | None = None  # None: every sample
    every_s: Annotated[float, Field(ge=5, le=3600)] = 15.0  # between two looks, while following
    timeout_s: Annotated[float, Field(gt=0, le=600)] = 30.0
    deadline_s: Annotated[float, Field(gt=0, le=86400)] = 600.0

    def server(self) -> prometheus.Server:
        """The server as the collector takes it."""
        return prometheus.Server(
            self.url, self.access(), self.tenant, self.match, self.step_s, self.every_s, self.timeout_s, self.deadline_s
        )


class KvConfig(_Strict):
    """[[kv_events]]: the ZMQ endpoint of a server started with --kv-events-config."""

    endpoint: Annotated[str, Field(pattern=r"^(tcp|ipc|inproc)://.+")]
    topic: str = ""
    instance: str | None = None  # host:port of the server whose blocks these are

    def subscription(self) -> kv_events.Subscription:
        """The subscription as the source takes it."""
        return kv_events.Subscription(self.endpoint, self.topic, self.instance)


class DiscoverConfig(_Access):
    """[[discover]]: servers that come and go: `files` (file_sd), or `dns` with a `port` or (SRV records) without, or `kubernetes`."""

    files: tuple[str, ...] = Field(default=(), strict=False)
    dns: str | None = None
    dns_server: str | None = None  # host or host:port that is asked for SRV records; Consul: 127.0.0.1:8600
    port: int | str | None = None  # of dns a number (none: SRV records); of kubernetes its name or number
    kubernetes: Annotated[str, Field(pattern=r"^[a-z0-9-]+/[a-z0-9-]+$")] | None = None  # namespace/service
    api: Annotated[str, AfterValidator(prometheus.base_url)] = discovery.API
    api_token_file: str = f"{discovery.ACCOUNT}/token"
    api_ca_file: str | None = f"{discovery.ACCOUNT}/ca.crt"
    every_s: Annotated[float, Field(ge=1, le=3600)] = 30.0
    scheme: Annotated[str, Field(pattern="^https?$")] = "http"
    path: Annotated[str, Field(pattern="^/")] = "/metrics"
    interval_s: Annotated[float, Field(ge=0.5, le=60)] = 1.0
    timeout_s: Annotated[float, Field(gt=0, le=60)] = 5.0

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if sum((bool(self.files), self.dns is not None, self.kubernetes is not None)) != 1:
            raise ValueError("expected one of files, dns, kubernetes")
        if self.dns is not None and isinstance(self.port, str):
            raise ValueError("expected port as a number beside dns, or none for SRV records")
        if self.dns_server is not None and (self.dns is None or self.port is not None):
            raise ValueError("expected dns_server beside dns without a port")
        return self

    def discovery(self) -> discovery.Discovery:
        """The discovery as the collector takes it."""
        where: discovery.Files | discovery.Dns | discovery.Kubernetes
        if self.files:
            where = discovery.Files(self.files)
        elif self.dns is not None:
            where = discovery.Dns(self.dns, self.port if isinstance(self.port, int) else None, self.dns_server)
        else:
            namespace, _, service = str(self.kubernetes).partition("/")
            access = Access(bearer_file=self.api_token_file, ca_file=self.api_ca_file if self.api.startswith("https") else None)
            where = discovery.Kubernetes(namespace, service, None if self.port is None else str(self.port), self.api, access)
        like = scrape.Target("http://template/metrics", None, self.interval_s, self.timeout_s, self.access())
        return discovery.Discovery(where, self.every_s, self.scheme, self.path, like)


class LogConfig(_Strict):
    """[[log]]: a vLLM log file that is followed, also through rotation."""

    path: Annotated[str, Field(min_length=1)]
    instance: str | None = None  # host:port of the server that writes it; with one target it is that one

    def log(self) -> Log:
        """The log as the collector takes it."""
        return Log(Path(self.path), self.instance)


class OtlpConfig(_Strict):
    """[otlp]: POST /v1/traces of `weaklink serve`."""

    enabled: bool = True


class RetentionConfig(_Strict):
    """[retention]: how long what is collected live is kept whole, by the minute and by the hour (`inf`: for ever), and in what room."""

    raw_days: Annotated[float, Field(gt=0)] = 14.0
    minute_days: Annotated[float, Field(gt=0)] = 90.0
    hour_days: Annotated[float, Field(gt=0)] = 730.0
    max_gb: Annotated[float, Field(gt=0)] = math.inf  # of the database and its closed days
    min_free_gb: Annotated[float, Field(ge=0)] = 0.5  # of the disk: with less, nothing more is collected
    memory_gb: Annotated[float, Field(ge=0.25, lt=math.inf)] = 2.0  # of the database; what needs more goes to the disk

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if not self.raw_days <= self.minute_days <= self.hour_days:
            raise ValueError("expected raw_days <= minute_days <= hour_days")
        return self

    def policy(self) -> Policy:
        """The policy as app.retention takes it."""
        return Policy(
            self.raw_days, self.minute_days, self.hour_days, self.max_gb * 1e9, self.min_free_gb * 1e9, self.memory_gb * 1e9
        )


class LoginConfig(_Strict):
    """[login]: who may come in to `weaklink serve`, and whether as an admin or as a viewer who changes nothing."""

    token_env: str | None = None
    token_file: str | None = None
    read_token_env: str | None = None  # of viewers
    read_token_file: str | None = None
    user_header: Annotated[str | None, Field(pattern=r"^[A-Za-z0-9-]+$")] = None  # set by a proxy that asks for the login
    proxies: tuple[Annotated[str, AfterValidator(_network)], ...] = Field(default=(), strict=False)  # from whom it is believed
    admins: tuple[str, ...] = Field(default=(), strict=False)  # users of that header who may change things
    base_path: Annotated[str, Field(pattern=r"^(/[A-Za-z0-9._~-]+)*$")] = (
        ""  # below which a proxy offers the dashboard: /weaklink
    )

    @model_validator(mode="after")
    def _header_is_trusted(self) -> Self:
        if self.user_header and not self.proxies:
            raise ValueError("expected proxies beside user_header: the addresses that may set it; anybody else could write it")
        if self.admins and not self.user_header:
            raise ValueError("expected user_header beside admins")
        return self

    def login(self, token: str | None) -> Login:
        """The login as the server takes it; `token` (of the command line) goes before that of the file. ConfigError: no secret."""
        own = token or _secret("login.token", self.token_env, self.token_file)
        reading = _secret("login.read_token", self.read_token_env, self.read_token_file)
        return Login(own, reading, self.user_header, self.proxies, frozenset(self.admins))


def _secret(name: str, env: str | None, file: str | None) -> str | None:
    """What the environment variable or the file holds; None where neither is named."""
    if env is None and file is None:
        return None
    if env is not None and file is not None:
        raise ConfigError(f"{name}: expected {name}_env or {name}_file, not both")
    try:
        found = os.environ.get(env, "") if env is not None else Path(str(file)).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{name}_file: {file} cannot be read ({error})") from error
    if not found.strip():
        raise ConfigError(f"{name}: {f'the environment variable {env}' if env else file} is empty")
    return found.strip()


class Config(_Strict):
    """The whole file. Empty: nothing is collected."""

    target: tuple[TargetConfig, ...] = Field(default=(), strict=False)
    prometheus: tuple[PrometheusConfig, ...] = Field(default=(), strict=False)
    kv_events: tuple[KvConfig, ...] = Field(default=(), strict=False)
    discover: tuple[DiscoverConfig, ...] = Field(default=(), strict=False)
    log: tuple[LogConfig, ...] = Field(default=(), strict=False)
    otlp: OtlpConfig = OtlpConfig()
    retention: RetentionConfig = RetentionConfig()
    login: LoginConfig = LoginConfig()
    _definitions: Definitions = PrivateAttr(default_factory=Definitions)

    def model_post_init(self, context: Any, /) -> None:
        """Keep the objectives and notifiers, which have a reader of their own."""
        if context is not None:
            self._definitions = context

    @property
    def definitions(self) -> Definitions:
        """[[slo]], [[notify]] and [alerts]."""
        return self._definitions

    def notes(self) -> list[str]:
        """What is right in the file and does not work here: secrets and certificates that cannot be read, extras that lack."""
        said = check_notifiers(self.definitions.notifiers)
        for kind, found in (("target", self.target), ("prometheus", self.prometheus)):
            for number, one in enumerate(found, 1):
                try:
                    one.access().headers()
                    one.access().context()
                except AccessError as error:
                    said.append(f"{kind}[{number}]: {error}")
        return said + [
            f"log[{number}]: {one.path}: no such file" for number, one in enumerate(self.log, 1) if not Path(one.path).is_file()
        ]

    @model_validator(mode="after")
    def _servers_differ(self) -> Self:
        seen: set[str] = set()
        for one in self.target:
            instance = one.target().instance
            if instance in seen:
                raise ValueError(f"expected each target at a host:port of its own, {instance} is there twice")
            seen.add(instance)
        return self


def read(path: Path) -> Config:
    """The configuration in a file. ConfigError says all that is wrong with it."""
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: expected UTF-8 (byte {error.start})") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: expected TOML: {error}") from error
    faults, definitions = [], Definitions()
    try:
        definitions = definitions_of({name: found.pop(name) for name in TABLES if name in found}, str(path), path)
    except DefinitionError as error:
        faults.append(str(error))
    try:
        config = Config.model_validate(found, context=definitions)
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_input=False)
        faults[:0] = [f"{path}: {_place(one['loc'])}: {_expected(one)}" for one in wrong]
    if faults:
        raise ConfigError("\n".join(faults))
    return config


def _place(loc: tuple[int | str, ...]) -> str:
    """target[0].interval_s; counted from 1, as people do."""
    text = ""
    for part in loc:
        text += f"[{part + 1}]" if isinstance(part, int) else f".{part}" if text else part
    return text or "the file"


def _expected(fault: Any) -> str:
    if fault["type"] == "extra_forbidden":
        if str(fault["loc"][-1]) in SECRETS:
            return "not here: a secret stands in the environment or a file, expected bearer_env, bearer_file, password_env or password_file"
        return "no such key"
    message = str(fault["msg"])
    if fault["type"] == "value_error":
        return message.removeprefix("Value error, ")
    if fault["type"] == "missing":
        return "expected, but not there"
    return message.replace("Input should be", "expected").replace("String should", "expected text that should")
