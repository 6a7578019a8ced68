"""Access control: which paths are open, and whether a request has an accepted token.

Where tokens are configured, every path that is not listed as open needs one, so that a new path is closed by default.
Open are the paths that probes, scrapes and the operator ask without a token, and pages that hold nothing of the graph.
Only keyed digests of tokens are kept, and a request's digest is compared with all of them, even after a match, so that
timing reveals nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable, Iterable
from typing import Final

_HEALTH: Final = frozenset({"/healthz", "/readyz", "/v2/health/live", "/v2/health/ready"})
OPEN_PATHS: Final = (
    frozenset({"/", "/explore", "/docs", "/openapi.json", "/metrics", "/v1/history", "/v1/route"}) | _HEALTH
)
"""Open paths. They name variants and revisions, never nodes; `/openapi.json` shows ids of the graph only with a
token."""
OPEN_FOLDER: Final = "/docs-assets/"
"""Open folder: files of a public package."""

WRITES: Final = frozenset({("POST", "/v1/labels"), ("POST", "/v1/changes")})
"""Requests that need a token that may write; one that may predict is refused there."""

RESERVED_PATHS: Final = frozenset({"/metrics", "/v1/route"}) | _HEALTH
"""Paths that are still answered at the connection limit: a busy worker must not look like a dead one."""

_SCHEME: Final = b"bearer"
AUTHORIZATION: Final = b"authorization"


def is_open(path: str) -> bool:
    return path in OPEN_PATHS or path.startswith(OPEN_FOLDER)


class Access:
    """The currently accepted tokens. Belongs to the event loop's thread."""

    def __init__(self, tokens: Iterable[str] | None = None) -> None:
        """`tokens`: None accepts every request; an empty collection accepts none."""
        self._key = secrets.token_bytes(32)
        self._digests: tuple[bytes, ...] | None = None
        self.needs_token = False
        """Whether a request must have a token; where not, there is nothing to ask `accepts`."""
        self._when_changed: list[Callable[[], None]] = []
        self.replace(tokens)

    def __repr__(self) -> str:
        return f"Access({'open' if self._digests is None else f'{len(self._digests)} tokens'})"

    @property
    def accepts_any(self) -> bool:
        """Whether any request could be accepted."""
        return self._digests is None or bool(self._digests)

    def replace(self, tokens: Iterable[str] | None) -> None:
        """Replace the tokens, from the next request on."""
        self._digests = None if tokens is None else tuple(self._digest(token.encode()) for token in tokens)
        self.needs_token = self._digests is not None
        for act in self._when_changed:
            act()

    def when_changed(self, act: Callable[[], None]) -> None:
        """Call `act` whenever tokens are replaced: caches of accepted requests must be dropped then."""
        self._when_changed.append(act)

    def accepts(self, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        """Whether the request's token is accepted. `headers`: names in lower case."""
        if self._digests is None:
            return True
        given = [value for name, value in headers if name == AUTHORIZATION]
        # With two such headers, a proxy in front may have checked the other one.
        if len(given) != 1:
            return False
        scheme, _, token = given[0].partition(b" ")
        if scheme.lower() != _SCHEME:
            return False
        found = self._digest(token.strip(b" \t"))
        accepted = False
        for digest in self._digests:
            accepted |= hmac.compare_digest(digest, found)
        return accepted

    def _digest(self, token: bytes) -> bytes:
        return hashlib.blake2b(token, key=self._key, digest_size=32).digest()
