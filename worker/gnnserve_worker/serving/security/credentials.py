"""Certificate and tokens of a worker, from files, and followed as they are replaced.

Later, a bad certificate leaves the old pair in place: it still proves who answers. Tokens are what the files say now,
bad ones left out: a token that was taken away is refused. Where files cannot be read at all, what was read last stays.

A command does not start without what it was told to use. A pod waits for it (`waits`): its Secret may come later, and
a process that ended would be started again with growing delays. Meanwhile it accepts no token, and shows a certificate
that proves nothing, so that probes and the operator can ask what it waits for. Nothing here says what is in a key or a
token.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gnnserve_api.errors import GnnserveError
from gnnserve_api.routing import CredentialKind, CredentialState
from gnnserve_api.tokens import read_tokens
from gnnserve_worker.serving.metrics import ServingMetrics
from gnnserve_worker.serving.security.access import Access
from gnnserve_worker.serving.security.placeholder import make_placeholder_pair
from gnnserve_worker.serving.security.tls import RENEW_WORDS, KeyPair, KeyPairFiles, ListeningTls, load_key_pair

LOOK_EVERY_S = 2.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Credentials:
    """Where they lie."""

    tls: KeyPairFiles | None = None
    """None: plain HTTP."""
    tokens: Path | None = None
    """A folder with one in each file, or a file with one in each line; None: everybody is answered."""
    waits: bool = False
    """A worker starts without them, and waits for them. False: it does not start."""


NO_CREDENTIALS = Credentials()


@dataclass(frozen=True, slots=True)
class _Found:
    """What was read, for the event loop's thread to take on."""

    take: Callable[[], None]
    problems: tuple[GnnserveError, ...] = ()
    """What is wrong with parts of it."""

    @property
    def words(self) -> str:
        return "; ".join(map(str, self.problems))


class _Source(Protocol):
    """One kind of credentials."""

    def sign(self) -> object:
        """Another one whenever its files were replaced or rewritten, or cannot be seen."""

    def read(self) -> _Found:
        """Raises GnnserveError or OSError where it cannot be used."""

    def state(self, problem: str) -> CredentialState:
        """`problem`: of what was read last."""


class _Tokens:
    def __init__(self, place: Path, access: Access) -> None:
        self._place = place
        self._access = access

    def sign(self) -> object:
        return _sign(self._place)

    def read(self) -> _Found:
        found = read_tokens(self._place)
        return _Found(lambda: self._access.replace(found.tokens), found.problems)

    def state(self, problem: str) -> CredentialState:
        return CredentialState(CredentialKind.TOKENS, self._access.accepts_any, problem)


class _Pair:
    def __init__(self, files: KeyPairFiles, metrics: ServingMetrics, now_s: Callable[[], float]) -> None:
        self._files = files
        self._metrics = metrics
        self._now_s = now_s
        self._pair: KeyPair | None = None
        """None: the placeholder's."""
        self.listening: ListeningTls | None = None

    def sign(self) -> object:
        return _sign(self._files.certificate, self._files.key)

    def read(self) -> _Found:
        pair = load_key_pair(self._files)
        return _Found(lambda: self._take(pair))

    def state(self, problem: str) -> CredentialState:
        is_over = self._pair is not None and self._now_s() >= self._pair.expires_at_s
        if is_over and not problem:
            problem = f"{self._files.certificate}: has expired, and clients refuse it; {RENEW_WORDS}"
        return CredentialState(CredentialKind.TLS, self._pair is not None and not is_over, problem)

    def _take(self, pair: KeyPair) -> None:
        self._pair = pair
        if self.listening is None:
            self.listening = ListeningTls(pair)
        else:
            self.listening.replace(pair)
        self._metrics.show_certificate(pair.expires_at_s)


class CredentialsInUse:
    """What was read of them; raises GnnserveError where that cannot be used and is not waited for."""

    def __init__(
        self, credentials: Credentials, metrics: ServingMetrics, now_s: Callable[[], float] = time.time
    ) -> None:
        """`now_s`: seconds since the epoch."""
        self._metrics = metrics
        self._problems: dict[CredentialKind, str] = {}
        """What was wrong when a kind was read last."""
        self._said: dict[str, str] = {}
        self._seen: dict[CredentialKind, object] = {}
        """Signs of the files that were read well."""
        self.complete = threading.Event()
        """Every kind has been usable at once."""
        self.access = Access(None if credentials.tokens is None else ())
        pair = None if credentials.tls is None else _Pair(credentials.tls, metrics, now_s)
        tokens = None if credentials.tokens is None else _Tokens(credentials.tokens, self.access)
        found: dict[CredentialKind, _Source | None] = {CredentialKind.TOKENS: tokens, CredentialKind.TLS: pair}
        self._sources: Mapping[CredentialKind, _Source] = {
            kind: source for kind, source in found.items() if source is not None
        }
        for kind, source in self._sources.items():
            self._begin(kind, source, waits=credentials.waits)
        if pair is not None and pair.listening is None:
            pair.listening = ListeningTls(make_placeholder_pair())
        self.tls = None if pair is None else pair.listening
        self._review()

    @property
    def may_change(self) -> bool:
        return bool(self._sources)

    def states(self) -> tuple[CredentialState, ...]:
        """On the event loop's thread."""
        return tuple(source.state(self._problems.get(kind, "")) for kind, source in self._sources.items())

    def look(self, on_loop: Callable[[Callable[[], None]], object]) -> None:
        """Reads what was replaced since the last look. `on_loop` runs what it gets where requests are answered."""
        for kind, source in self._sources.items():
            self._look_at(kind, source, on_loop)
        on_loop(self._review)  # a certificate also expires without being replaced

    def _begin(self, kind: CredentialKind, source: _Source, *, waits: bool) -> None:
        sign = source.sign()
        try:
            found = source.read()
        except (GnnserveError, OSError) as error:
            if not waits:
                raise
            self._problems[kind] = str(error)
            return
        found.take()
        self._problems[kind], self._seen[kind] = found.words, sign
        if not waits and not source.state("").is_usable:
            raise found.problems[0]

    def _look_at(self, kind: CredentialKind, source: _Source, on_loop: Callable[[Callable[[], None]], object]) -> None:
        sign = source.sign()
        if sign == self._seen.get(kind):
            return
        try:
            found = source.read()
        except (GnnserveError, OSError) as error:
            # Its sign is not remembered: a certificate may also become valid by waiting.
            words = str(error)
            on_loop(lambda: self._refuse(kind, source, words))
            return
        self._seen[kind] = sign

        def take() -> None:
            found.take()
            self._problems[kind] = found.words
            _log.info("%s were replaced", "tokens" if kind is CredentialKind.TOKENS else "certificate and key")
            self._review()

        on_loop(take)

    def _refuse(self, kind: CredentialKind, source: _Source, words: str) -> None:
        kept = "; what was read before stays in use" if source.state("").is_usable else ""
        self._problems[kind] = words + kept
        self._review()

    def _review(self) -> None:
        """Logs a problem once for as long as it is the same."""
        states = self.states()
        for state in states:
            self._metrics.show_credentials(state)
            if state.problem and state.problem != self._said.get(state.kind):
                _log.error("%s", state.problem)
            self._said[state.kind] = state.problem
        if all(state.is_usable for state in states):
            self.complete.set()


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
