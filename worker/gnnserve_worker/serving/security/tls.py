"""A certificate and its key: reading, verifying, and replacing them without closing connections.

Each pair gets its own context and must complete a handshake with itself before it is used, so that a key that does not
match the certificate, or an expired certificate, never replaces a working pair. New connections get the current
context; open ones keep theirs.
"""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass, field
from pathlib import Path

from gnnserve_api.errors import ResourceError

CLOSE_TIMEOUT_S = 5.0
"""Time for the client's TLS close."""
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
RENEW_WORDS = "put a valid certificate and its key there"


@dataclass(frozen=True, slots=True)
class KeyPairFiles:
    certificate: Path
    """PEM file: the server's certificate first, then the chain to a root."""
    key: Path


@dataclass(frozen=True, slots=True)
class KeyPair:
    context: ssl.SSLContext
    expires_at_s: float
    """Expiry of the certificate, in seconds since the epoch."""
    certificate: bytes
    """In PEM, with its chain; for a listener that makes its own context."""
    key: bytes = field(repr=False)
    """In PEM, unencrypted."""


def load_key_pair(files: KeyPairFiles) -> KeyPair:
    """Load and verify a pair. Raises a ResourceError that names the files and nothing of the key's content."""
    # Read the certificate first: if the pair is replaced meanwhile, the two do not match and are read again later.
    leaf = _read_leaf(files.certificate)
    contents = _read_pair(files)
    context = _server_context()
    try:
        context.load_cert_chain(files.certificate, files.key, password=_no_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ResourceError(f"{files.key}: is not the key of {files.certificate}; {RENEW_WORDS}") from None
        what = error.reason or "no PEM"
        raise ResourceError(
            f"{files.certificate} and {files.key}: cannot be read as certificate and unencrypted key ({what}); "
            f"{RENEW_WORDS}"
        ) from None
    except (OSError, ValueError) as error:
        what = str(error.strerror) if isinstance(error, OSError) else "it is encrypted"
        raise ResourceError(f"{files.key}: cannot be read ({what}); {RENEW_WORDS}") from None
    expires_at_s = _try_on(context, leaf, files.certificate)
    if _read_pair(files) != contents:
        raise ResourceError(f"{files.certificate} and {files.key}: were replaced while they were read; read again soon")
    return KeyPair(context, expires_at_s, *contents)


class ListeningTls:
    """The listening context of a server, which presents the current pair to new connections."""

    def __init__(self, pair: KeyPair) -> None:
        self._pair = pair
        self.context = _server_context()
        # OpenSSL calls this at every ClientHello, with or without a server name.
        self.context.sni_callback = self._choose

    @property
    def pair(self) -> KeyPair:
        """The pair that new connections are shown."""
        return self._pair

    def replace(self, pair: KeyPair) -> None:
        self._pair = pair

    def _choose(self, connection: ssl.SSLObject, _name: str | None, _listening: ssl.SSLContext) -> None:
        connection.context = self._pair.context


def _server_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # No session tickets: a resumed session presents no certificate, and would outlive the pair that it began with.
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TICKET
    context.num_tickets = 0
    context.set_alpn_protocols(["http/1.1"])
    return context


def _no_password() -> str:
    # Without this callback OpenSSL would ask for a password at a terminal.
    raise ValueError


def _read_leaf(path: Path) -> str:
    try:
        text = path.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        what = str(error.strerror) if isinstance(error, OSError) else "it is not PEM"
        raise ResourceError(f"{path}: cannot be read ({what}); {RENEW_WORDS}") from None
    if (found := _CERTIFICATE.search(text)) is None:
        raise ResourceError(f"{path}: holds no certificate in PEM; {RENEW_WORDS}")
    return found[0]


def _read_pair(files: KeyPairFiles) -> tuple[bytes, bytes]:
    try:
        return files.certificate.read_bytes(), files.key.read_bytes()
    except OSError as error:
        raise ResourceError(f"{files.key}: cannot be read ({error.strerror}); {RENEW_WORDS}") from None


def _try_on(context: ssl.SSLContext, leaf: str, path: Path) -> float:
    """Complete a handshake with a client that trusts only this certificate, and return when the certificate expires."""
    client_context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client_context.check_hostname = False  # only clients know by which name they reach it
    client_context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        client_context.load_verify_locations(cadata=leaf)
        server = context.wrap_bio(to_server, to_client, server_side=True)
        client = client_context.wrap_bio(to_client, to_server)
        _shake_hands(client, server)
    except ssl.SSLCertVerificationError as error:
        raise ResourceError(f"{path}: no client would accept it: {error.verify_message}; {RENEW_WORDS}") from None
    except ssl.SSLError as error:
        raise ResourceError(f"{path}: no handshake is possible with it ({error.reason}); {RENEW_WORDS}") from None
    told = client.getpeercert()
    if told is None:
        raise RuntimeError("a handshake in which the server showed no certificate")
    return float(ssl.cert_time_to_seconds(str(told["notAfter"])))


def _shake_hands(client: ssl.SSLObject, server: ssl.SSLObject) -> None:
    waiting = [client, server]
    for _ in range(8):
        for side in tuple(waiting):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            waiting.remove(side)
        if not waiting:
            return
    raise RuntimeError("a handshake that does not end")
