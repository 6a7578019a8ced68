"""Certificate and tokens of a worker, read from files and reloaded when these are replaced.

If a new certificate is bad, the old pair stays, which still proves the server's identity. Tokens are always those of
the files, without bad ones: a removed token is refused. Where files cannot be read at all, the last values stay. The
address of the log's database is looked at here as well, so that what is wrong with it is told like the rest; it is read
anew for each connection to the database.

A command does not start without its credentials. A pod waits for them (`waits`): its Secret may come later, and a
process that ended would be restarted with growing delays. Meanwhile it accepts no token, and presents a placeholder
certificate, so that probes and the operator can ask what it waits for. No message contains any part of a key or a
token.

A client that verifies certificates refuses the placeholder, which is self-signed, and one that does not gets 503. Its
key is made anew at each start, and its file is removed at once.
"""

from __future__ import annotations

import logging
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gnnserve_api.errors import GnnserveError, ResourceError
from gnnserve_api.http.tokens import read_tokens
from gnnserve_api.pods.routing import CredentialKind, CredentialState
from gnnserve_worker.changes.address import read_address
from gnnserve_worker.serving.metrics.metrics import ServingMetrics
from gnnserve_worker.serving.security.access import Access
from gnnserve_worker.serving.security.tls import RENEW_WORDS, KeyPair, KeyPairFiles, ListeningTls, load_key_pair

_TIMEOUT_S = 30
_VALID_DAYS = 3650
"""Days of validity, which are not checked; a pod may wait for long."""


def make_placeholder_pair() -> KeyPair:
    """Make the pair with the `openssl` command, which the worker's image has; Python's standard library makes no
    certificates."""
    with tempfile.TemporaryDirectory() as folder:
        files = KeyPairFiles(Path(folder) / "tls.crt", Path(folder) / "tls.key")
        command = (
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-subj", "/CN=gnnserve-placeholder", "-days", str(_VALID_DAYS)),
            *("-keyout", str(files.key), "-out", str(files.certificate)),
        )
        try:
            subprocess.run(command, capture_output=True, check=True, timeout=_TIMEOUT_S)  # noqa: S603 - all of it ours
        except (OSError, subprocess.SubprocessError) as error:
            raise ResourceError(
                f"openssl: a certificate to wait with cannot be made ({error}); put a valid certificate and key there "
                "before the start, or use an image that has the command openssl"
            ) from error
        return load_key_pair(files)


LOOK_EVERY_S = 2.0
_REPLACED = {
    CredentialKind.TLS: "certificate and key",
    CredentialKind.TOKENS: "tokens",
    CredentialKind.WRITE_TOKENS: "tokens that may write",
    CredentialKind.LOG: "user, password and address of the log's database",
}
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Credentials:
    """Files of the credentials."""

    tls: KeyPairFiles | None = None
    """Files of certificate and key; None: plain HTTP."""
    tokens: Path | None = None
    """A folder with a token in each file, or a file with a token in each line; None: no token is needed."""
    write_tokens: Path | None = None
    """Tokens that may write, as `tokens`; None: no request may write."""
    log_uri: Path | None = None
    """A file with the address of the log's database; None: there is no such log."""
    waits: bool = False
    """Whether a worker starts without them and waits. False: it does not start."""


NO_CREDENTIALS = Credentials()


def require_usable(credentials: Credentials) -> None:
    """Read the files of credentials, and keep nothing: serving reads them itself, later. Raises GnnserveError or
    OSError where a command could not start with them."""
    if credentials.tls is not None:
        load_key_pair(credentials.tls)
    if credentials.log_uri is not None:
        read_address(credentials.log_uri)
    if credentials.write_tokens is not None:
        read_tokens(credentials.write_tokens)
    if credentials.tokens is not None and not (found := read_tokens(credentials.tokens)).tokens:
        raise found.problems[0]


@dataclass(frozen=True, slots=True)
class _ReadCredentials:
    """Credentials that were read, to be applied on the event loop's thread."""

    take: Callable[[], None]
    problems: tuple[GnnserveError, ...] = ()
    """Problems of parts that were left out."""

    @property
    def words(self) -> str:
        return "; ".join(map(str, self.problems))


class _Source(Protocol):
    """A source of one kind of credentials."""

    kept: str
    """What is added to a problem where what was read before stays in use."""

    def sign(self) -> object:
        """A value that differs whenever the files were replaced or rewritten, or cannot be examined."""

    def read(self) -> _ReadCredentials:
        """Read the files. Raises GnnserveError or OSError where they cannot be used."""

    def state(self, problem: str) -> CredentialState:
        """The state to report. `problem`: that of the last read."""


_KEPT = "; what was read before stays in use"


class _Tokens:
    kept = _KEPT

    def __init__(self, kind: CredentialKind, place: Path, access: Access) -> None:
        self._kind = kind
        self._place = place
        self._access = access

    def sign(self) -> object:
        return _sign(self._place)

    def read(self) -> _ReadCredentials:
        found = read_tokens(self._place)
        return _ReadCredentials(lambda: self._access.replace(found.tokens), found.problems)

    def state(self, problem: str) -> CredentialState:
        # Without tokens that may write, labels are refused and everything else is answered.
        is_usable = self._kind is CredentialKind.WRITE_TOKENS or self._access.accepts_any
        return CredentialState(self._kind, is_usable, problem)


class _LogAddress:
    kept = ""

    def __init__(self, file: Path) -> None:
        self._file = file

    def sign(self) -> object:
        return _sign(self._file)

    def read(self) -> _ReadCredentials:
        read_address(self._file)
        return _ReadCredentials(lambda: None)

    def state(self, problem: str) -> CredentialState:
        # Without it changes are neither taken nor followed, and everything else is answered.
        return CredentialState(CredentialKind.LOG, True, problem)


class _Pair:
    kept = _KEPT

    def __init__(self, files: KeyPairFiles, metrics: ServingMetrics, now_s: Callable[[], float]) -> None:
        self._files = files
        self._metrics = metrics
        self._now_s = now_s
        self._pair: KeyPair | None = None
        """The pair in use; None: the placeholder is in use."""
        self.listening: ListeningTls | None = None

    def sign(self) -> object:
        return _sign(self._files.certificate, self._files.key)

    def read(self) -> _ReadCredentials:
        pair = load_key_pair(self._files)
        return _ReadCredentials(lambda: self._take(pair))

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
    """The credentials in use. Raises GnnserveError where they cannot be used and `waits` is False."""

    def __init__(
        self, credentials: Credentials, metrics: ServingMetrics, now_s: Callable[[], float] = time.time
    ) -> None:
        """`now_s` returns the seconds since the epoch."""
        self._metrics = metrics
        self._problems: dict[CredentialKind, str] = {}
        """Problem of each kind at its last read."""
        self._said: dict[str, str] = {}
        self._seen: dict[CredentialKind, object] = {}
        """Signs of the files that were read without a problem."""
        self.complete = threading.Event()
        """Set once every kind was usable at the same time."""
        self.access = Access(None if credentials.tokens is None else ())
        self.write_access = None if credentials.write_tokens is None else Access(())
        """Tokens that may write; None: there are none, and never will be."""
        pair = None if credentials.tls is None else _Pair(credentials.tls, metrics, now_s)
        sources: dict[CredentialKind, _Source] = {}
        if credentials.tokens is not None:
            sources[CredentialKind.TOKENS] = _Tokens(CredentialKind.TOKENS, credentials.tokens, self.access)
        if credentials.write_tokens is not None and self.write_access is not None:
            kind = CredentialKind.WRITE_TOKENS
            sources[kind] = _Tokens(kind, credentials.write_tokens, self.write_access)
        if credentials.log_uri is not None:
            sources[CredentialKind.LOG] = _LogAddress(credentials.log_uri)
        if pair is not None:
            sources[CredentialKind.TLS] = pair
        self._sources: Mapping[CredentialKind, _Source] = sources
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
        """States of all kinds. To be called on the event loop's thread."""
        return tuple(source.state(self._problems.get(kind, "")) for kind, source in self._sources.items())

    def look(self, on_loop: Callable[[Callable[[], None]], object]) -> None:
        """Read files that were replaced since the last look. `on_loop` runs a function on the event loop's thread."""
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
            # Its sign is not stored: a certificate may also become valid with time.
            words = str(error)
            on_loop(lambda: self._refuse(kind, source, words))
            return
        self._seen[kind] = sign

        def take() -> None:
            found.take()
            self._problems[kind] = found.words
            _log.info("%s were replaced", _REPLACED[kind])
            self._review()

        on_loop(take)

    def _refuse(self, kind: CredentialKind, source: _Source, words: str) -> None:
        kept = source.kept if source.state("").is_usable else ""
        self._problems[kind] = words + kept
        self._review()

    def _review(self) -> None:
        """Log each problem once for as long as it stays the same."""
        states = self.states()
        for state in states:
            self._metrics.show_credentials(state)
            if state.problem and state.problem != self._said.get(state.kind):
                _log.error("%s", state.problem)
            self._said[state.kind] = state.problem
        if all(state.is_usable for state in states):
            self.complete.set()


class CredentialsFollower(threading.Thread):
    """A thread that looks for replaced files now and then, until it is stopped."""

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
                # If the thread died, replaced files would silently no longer be noticed.
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
