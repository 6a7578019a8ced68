"""Certificate and tokens of a worker, from files, and followed as they are replaced.

A worker does not start without what it was told to use. Later, a bad certificate leaves the old pair in place: it
still proves who answers. Tokens are what the files say now, bad ones left out: whoever took one away wants it refused.
Where files cannot be read at all, what was read last stays. Nothing here says what is in a key or a token.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from gnnserve_api.errors import GnnserveError
from gnnserve_api.tokens import read_tokens
from gnnserve_worker.serving.access import Access
from gnnserve_worker.serving.metrics import ServingMetrics
from gnnserve_worker.serving.tls import KeyPairFiles, ListeningTls, load_key_pair

LOOK_EVERY_S = 2.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Credentials:
    """Where they lie."""

    tls: KeyPairFiles | None = None
    """None: plain HTTP."""
    tokens: Path | None = None
    """A folder with one in each file, or a file with one in each line; None: everybody is answered."""


NO_CREDENTIALS = Credentials()


class CredentialKind(StrEnum):
    TLS = "tls"
    """Certificate and key."""
    TOKENS = "tokens"
    """Accepted tokens."""


class CredentialsInUse:
    """What was read of them; raises GnnserveError where that cannot be used."""

    def __init__(self, credentials: Credentials, metrics: ServingMetrics) -> None:
        self._credentials = credentials
        self._metrics = metrics
        self._seen: dict[CredentialKind, object] = {}
        """Signs of the files that were read well."""
        self._said: dict[CredentialKind, str] = {}
        self.access = Access()
        self.tls: ListeningTls | None = None
        if credentials.tokens is not None:
            sign = _sign(credentials.tokens)
            found = read_tokens(credentials.tokens)
            if not found.tokens:
                raise found.problems[0]
            self.access = Access(found.tokens)
            self._report(CredentialKind.TOKENS, "; ".join(map(str, found.problems)))
            self._seen[CredentialKind.TOKENS] = sign
        if credentials.tls is not None:
            sign = _sign(credentials.tls.certificate, credentials.tls.key)
            pair = load_key_pair(credentials.tls)
            self.tls = ListeningTls(pair)
            metrics.show_certificate(pair.expires_at_s)
            self._report(CredentialKind.TLS, "")
            self._seen[CredentialKind.TLS] = sign

    @property
    def may_change(self) -> bool:
        return self._credentials != NO_CREDENTIALS

    def look(self, on_loop: Callable[[Callable[[], None]], object]) -> None:
        """Reads what was replaced since the last look. `on_loop` runs what it gets where requests are answered."""
        if (place := self._credentials.tokens) is not None:
            self._look_at(CredentialKind.TOKENS, _sign(place), lambda: self._read_tokens(place), on_loop)
        if (files := self._credentials.tls) is not None:
            sign = _sign(files.certificate, files.key)
            self._look_at(CredentialKind.TLS, sign, lambda: self._read_pair(files), on_loop)

    def _look_at(
        self,
        kind: CredentialKind,
        sign: object,
        read: Callable[[], tuple[Callable[[], None], str]],
        on_loop: Callable[[Callable[[], None]], object],
    ) -> None:
        if sign == self._seen.get(kind):
            return
        try:
            act, problem = read()
        except (GnnserveError, OSError) as error:
            # Its sign is not remembered: a certificate may also become valid by waiting.
            words = str(error)
            on_loop(lambda: self._report(kind, f"{words}; what was read before stays in use"))
            return
        self._seen[kind] = sign

        def take() -> None:
            act()
            self._report(kind, problem)
            _log.info("%s were replaced", "tokens" if kind is CredentialKind.TOKENS else "certificate and key")

        on_loop(take)

    def _read_tokens(self, place: Path) -> tuple[Callable[[], None], str]:
        found = read_tokens(place)
        return lambda: self.access.replace(found.tokens), "; ".join(map(str, found.problems))

    def _read_pair(self, files: KeyPairFiles) -> tuple[Callable[[], None], str]:
        pair = load_key_pair(files)

        def take() -> None:
            if self.tls is not None:
                self.tls.replace(pair)
            self._metrics.show_certificate(pair.expires_at_s)

        return take, ""

    def _report(self, kind: CredentialKind, problem: str) -> None:
        """Once for as long as it is the same."""
        self._metrics.show_credentials(kind, is_refused=bool(problem))
        if problem and problem != self._said.get(kind):
            _log.error("%s", problem)
        self._said[kind] = problem


class CredentialsFollower(threading.Thread):
    """Looks now and then, until it is stopped."""

    def __init__(self, in_use: CredentialsInUse, on_loop: Callable[[Callable[[], None]], object]) -> None:
        super().__init__(name="credentials", daemon=True)
        self._in_use = in_use
        self._on_loop = on_loop
        self._stopped = threading.Event()

    def run(self) -> None:
        while not self._stopped.wait(LOOK_EVERY_S):
            try:
                self._in_use.look(self._on_loop)
            except Exception:  # noqa: BLE001
                # A thread that died would follow nothing any more, and nobody would notice.
                _log.exception("certificate or tokens could not be looked at")

    def stop(self) -> None:
        self._stopped.set()


def _sign(*places: Path) -> object:
    """Another one whenever a file was replaced or rewritten, or cannot be seen."""
    return tuple(_sign_of(path) for place in places for path in _files(place))


def _files(place: Path) -> list[Path]:
    try:
        return sorted(place.iterdir()) if place.is_dir() else [place]
    except OSError:
        return [place]


def _sign_of(path: Path) -> object:
    try:
        seen = path.stat()
    except OSError as error:
        return str(path), error.errno
    return str(path.resolve()), seen.st_dev, seen.st_ino, seen.st_mtime_ns, seen.st_size
