"""Who is answered: which paths are open to everybody, and whether a request shows an accepted token.

Everything that is not listed as open needs a token, where there are any: a path that is added later is closed until
somebody decides otherwise. Open is what probes, scrapes and the operator ask, who have no token, and pages that hold
nothing of the graph themselves. Of tokens only keyed digests are kept, and a request's is compared with all of them,
whichever fits, so that time tells nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable, Iterable
from typing import Final

OPEN_PATHS: Final = frozenset({"/", "/docs", "/openapi.json", "/healthz", "/readyz", "/metrics", "/v1/route"})
"""They name variants and revisions, never nodes. `/openapi.json` shows ids of the graph to those with a token only."""
OPEN_FOLDER: Final = "/docs-assets/"
"""Files of a public package."""

RESERVED_PATHS: Final = frozenset({"/healthz", "/readyz", "/metrics", "/v1/route"})
"""What is still answered where there are too many connections: a busy worker must not look like a dead one."""

_SCHEME: Final = b"bearer"
AUTHORIZATION: Final = b"authorization"


def is_open(path: str) -> bool:
    return path in OPEN_PATHS or path.startswith(OPEN_FOLDER)


class Access:
    """The tokens of the moment. Belongs to the event loop's thread."""

    def __init__(self, tokens: Iterable[str] | None = None) -> None:
        """None: everybody is answered. Without any: nobody."""
        self._key = secrets.token_bytes(32)
        self._digests: tuple[bytes, ...] | None = None
        self._when_changed: list[Callable[[], None]] = []
        self.replace(tokens)

    def __repr__(self) -> str:
        return f"Access({'open' if self._digests is None else f'{len(self._digests)} tokens'})"

    @property
    def needs_token(self) -> bool:
        return self._digests is not None

    @property
    def accepts_any(self) -> bool:
        """Whether there is a request that would be answered."""
        return self._digests is None or bool(self._digests)

    def replace(self, tokens: Iterable[str] | None) -> None:
        """From the next request on."""
        self._digests = None if tokens is None else tuple(self._digest(token.encode()) for token in tokens)
        for act in self._when_changed:
            act()

    def when_changed(self, act: Callable[[], None]) -> None:
        """Whoever remembers that a request was accepted must forget it then."""
        self._when_changed.append(act)

    def accepts(self, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        """`headers`: names in lower case."""
        if self._digests is None:
            return True
        given = [value for name, value in headers if name == AUTHORIZATION]
        # With two of them, what stands in front of the server may have looked at the other one.
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
