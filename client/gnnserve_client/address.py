"""Which server is asked, what it is shown, and whom a client trusts there."""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from gnnserve_api.errors import InputError, remedy_of

_PORTS = {"http": 80, "https": 443}
_PASSWORD = re.compile(r"^([a-z]+://)?.*@", re.DOTALL | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ServerAccess:
    """Credentials for a server that needs them."""

    token: str | None = field(default=None, repr=False)
    ca_file: Path | None = None
    """Certificates that are trusted instead of the machine's."""


NO_ACCESS = ServerAccess()


@dataclass(frozen=True, slots=True)
class Endpoint:
    host: str
    port: int
    token: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    """TLS settings; None: plain HTTP."""

    @property
    def authority(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{'http' if self.tls is None else 'https'}://{self.authority}"

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.token is None else {"Authorization": f"Bearer {self.token}"}


def parse_url(given: str, access: ServerAccess = NO_ACCESS) -> Endpoint:
    # A password may stand before the last @; messages show none.
    text = _PASSWORD.sub(r"\1…@", given)
    try:
        parts = urlsplit(given)
        port = parts.port
    except ValueError as error:
        what = f": {error}" if text == given else " is not the address of a server"
        raise InputError("URL", f"{text!r}{what}", "write http://host:port") from None
    if parts.scheme not in _PORTS or not parts.hostname:
        raise InputError("URL", f"{text!r} is not the address of a server", "write http://host:port")
    if parts.path not in {"", "/"} or parts.query or parts.fragment or parts.username is not None:
        raise InputError(
            "URL", f"{text!r} has more than host and port", f"write {parts.scheme}://{parts.netloc.split('@')[-1]}"
        )
    if port == 0:
        raise InputError(
            "URL", f"{text!r} has port 0, on which no server listens", "write the port that the server names"
        )
    if access.ca_file is not None and parts.scheme == "http":
        raise InputError(CA_FILE, f"says whom to trust, and {text!r} proves nothing", "write https://, or leave it out")
    tls = _client_context(access.ca_file) if parts.scheme == "https" else None
    return Endpoint(
        _ascii_host(text, parts.hostname), _PORTS[parts.scheme] if port is None else port, access.token, tls
    )


CA_FILE = "ca_file"
"""The name of the certificates' file in messages; the command line puts its option in its place."""


def _client_context(ca_file: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except ssl.SSLError:
        raise InputError(CA_FILE, f"{str(ca_file)!r} holds no certificate in PEM", "name one that does") from None
    except OSError as error:
        raise InputError(
            CA_FILE, f"{str(ca_file)!r} cannot be read: {error.strerror}", remedy_of(error, "check the path")
        ) from None


def _ascii_host(text: str, host: str) -> str:
    try:
        ascii_host = host.encode("idna").decode()
    except UnicodeError:
        ascii_host = ""  # a part is empty, or longer than the 63 characters of DNS
    if not re.fullmatch(r"[\w.:%~-]+", ascii_host, re.ASCII):
        raise InputError("URL", f"{text!r} has no valid host name", "write http://host:port")
    return ascii_host
