"""A certificate and its key: read, tried on, and replaced while connections stay.

Each pair gets a context of its own and has to complete a handshake with itself before anybody sees it, so that a key
that does not belong to the certificate, or a certificate whose time is over, never replaces one that works. New
connections get the context of the moment; those that are there keep theirs.
"""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass
from pathlib import Path

from gnnserve_api.errors import ResourceError

CLOSE_TIMEOUT_S = 5.0
"""For the other side's goodbye."""
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
RENEW_WORDS = "put a valid certificate and its key there"


@dataclass(frozen=True, slots=True)
class KeyPairFiles:
    certificate: Path
    """PEM: the server's own first, then those that lead to a root."""
    key: Path


@dataclass(frozen=True, slots=True)
class KeyPair:
    context: ssl.SSLContext
    expires_at_s: float
    """Seconds since the epoch."""


def load_key_pair(files: KeyPairFiles) -> KeyPair:
    """Raises ResourceError: naming the files, and nothing of what is in the key's."""
    # The certificate first: where another pair is put there meanwhile, the two do not fit, and are read again later.
    leaf = _read_leaf(files.certificate)
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
    return KeyPair(context, _try_on(context, leaf, files.certificate))


class ListeningTls:
    """What a server listens with: one context for the socket, behind it the pair of the moment."""

    def __init__(self, pair: KeyPair) -> None:
        self._pair = pair
        self.context = _server_context()
        # OpenSSL calls it at every ClientHello, whether or not it has a name in it.
        self.context.sni_callback = self._choose

    def replace(self, pair: KeyPair) -> None:
        self._pair = pair

    def _choose(self, connection: ssl.SSLObject, _name: str | None, _listening: ssl.SSLContext) -> None:
        connection.context = self._pair.context


def _server_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # A session that was resumed would show no certificate, and so outlive the pair that it began with.
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TICKET
    context.num_tickets = 0
    context.set_alpn_protocols(["http/1.1"])
    return context


def _no_password() -> str:
    # Without this, OpenSSL would ask for it at a terminal.
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


def _try_on(context: ssl.SSLContext, leaf: str, path: Path) -> float:
    """When the certificate expires, by a client that trusts this certificate alone and judges it as any client does."""
    client_context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client_context.check_hostname = False  # which names it is for, only its clients know
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
