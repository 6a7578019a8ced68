"""Rate limit for warnings that a client can cause at will: one of a kind within ten seconds, with a count of the
rest."""

from __future__ import annotations

import logging

EVERY_S = 10.0


class FirstOfAKind(logging.Filter):
    """A filter that passes the first record of a kind: a message before formatting. Errors always pass."""

    def __init__(self, every_s: float = EVERY_S) -> None:
        super().__init__()
        self._every_s = every_s
        self._said: dict[str, tuple[float, int]] = {}
        """For each kind: when a record passed last, and how many were held back since."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno != logging.WARNING:
            return True
        kind = str(record.msg)
        said_s, held_back = self._said.get(kind, (-self._every_s, 0))
        # A clock that was set back must not silence the kind.
        if 0 <= record.created - said_s < self._every_s:
            self._said[kind] = said_s, held_back + 1
            return False
        self._said[kind] = record.created, 0
        if held_back:
            record.msg = f"{kind} ({held_back} more of them since the last one that was logged)"
        return True


_OF_CONNECTIONS = FirstOfAKind()


def limit_warnings(logger: logging.Logger) -> None:
    """Limit the warnings of a logger whose records clients cause."""
    logger.addFilter(_OF_CONNECTIONS)
