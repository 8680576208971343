"""How a source is let in: TLS and credentials, which come from the environment or from files, never from the configuration."""

import os
import ssl
from base64 import b64encode
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, urlsplit


class AccessError(Exception):
    """A credential or certificate cannot be read; the message names the variable or file, never its content."""


@dataclass(frozen=True, slots=True)
class Access:
    """TLS and credentials of one source. Files are read at each use: tokens that a cluster rotates stay valid."""

    bearer_env: str | None = None
    bearer_file: str | None = None
    user: str | None = None
    password_env: str | None = None
    password_file: str | None = None
    ca_file: str | None = None
    cert_file: str | None = None  # client certificate, with its key unless key_file holds that
    key_file: str | None = None
    insecure: bool = False  # do not verify the server's certificate

    def headers(self) -> dict[str, str]:
        """The Authorization header; empty where no credential is configured."""
        bearer = _secret(self.bearer_env, self.bearer_file)
        if bearer is not None:
            return {"Authorization": f"Bearer {bearer}"}
        password = _secret(self.password_env, self.password_file)
        if self.user is not None or password is not None:
            pair = f"{self.user or ''}:{password or ''}".encode()
            return {"Authorization": f"Basic {b64encode(pair).decode()}"}
        return {}

    def context(self) -> ssl.SSLContext:
        """What TLS connections are made with. AccessError: a certificate cannot be read."""
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
            if self.cert_file is not None:
                context.load_cert_chain(self.cert_file, self.key_file)
        except (OSError, ssl.SSLError) as error:
            files = ", ".join(name for name in (self.ca_file, self.cert_file, self.key_file) if name)
            why = error.strerror or type(error).__name__
            raise AccessError(f"{files}: cannot be used as certificate or key ({why})") from error
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

    def tls(self) -> tuple[str | bool, ...]:
        """What makes two sources share a context."""
        return (self.ca_file or "", self.cert_file or "", self.key_file or "", self.insecure)


def _secret(variable: str | None, file: str | None) -> str | None:
    """The text of an environment variable or file; None where neither is named."""
    if variable is not None:
        if variable not in os.environ:
            raise AccessError(f"environment variable {variable} is not set")
        found = os.environ[variable].strip()
    elif file is not None:
        try:
            found = Path(file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise AccessError(f"{file}: cannot be read ({type(error).__name__})") from error
    else:
        return None
    if not found or not found.isprintable():
        raise AccessError(f"{variable or file}: expected one line of printable text")
    return found


def checked(url: str, form: str) -> tuple[str, SplitResult]:
    """The URL with its scheme, whole and in parts. ValueError names the expected `form`; credentials inside are refused."""
    full = url if "://" in url else f"http://{url}"
    try:
        parts = urlsplit(full)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"expected {form} ({error})") from error
    if parts.scheme not in {"http", "https"} or not parts.hostname or port == 0:
        raise ValueError(f"expected {form}")
    if parts.username is not None:
        raise ValueError("expected a URL without user and password: they come from the environment or a file")
    return full, parts
