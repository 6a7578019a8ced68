"""Log lines of the operator: JSON for collectors, or text for people.

A line names its object. Messages of kopf and aiohttp are logged from WARNING on: those below are about their internals.
No credential is ever logged: requests are logged by path, refusals by the server's message.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TextIO

from gnnserve_operator.settings import LogFormat, LogLevel

_FIELDS = ("object", "reason", "durationMs")
"""Fields that `ServiceKey.about` gives a line."""
_NOISY = ("kopf", "aiohttp", "asyncio")


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        line.update((field, getattr(record, field)) for field in _FIELDS if hasattr(record, field))
        if record.exc_info:
            line["stack"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


class TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        named = getattr(record, "object", None)
        where = f" {named['namespace']}/{named['name']}:" if named else ""
        text = f"{_time(record)} {record.levelname:<7}{where} {record.getMessage()}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


class OnceInAWhile(logging.Filter):
    """A filter that passes one line of each logger and kind of error, then none for a while.

    While the API server is away, kopf logs it for each of its watches at each attempt.
    """

    def __init__(self, pause_s: float = 30, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._pause_s = pause_s
        self._clock = clock
        self._said: dict[tuple[str, str, str], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name.partition(".")[0] not in _NOISY:
            return True
        error = record.exc_info[0].__name__ if record.exc_info and record.exc_info[0] else ""
        kind, now = (record.name, record.levelname, error), self._clock()
        if now - self._said.get(kind, -self._pause_s) < self._pause_s:
            return False
        self._said[kind] = now
        return True


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def configure_logging(log_format: LogFormat, level: LogLevel, stream: TextIO | None = None) -> None:
    """Configure logging of the whole process, to standard error."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format is LogFormat.JSON else TextFormatter())
    handler.addFilter(OnceInAWhile())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.value)
    for name in _NOISY:
        logging.getLogger(name).setLevel(logging.WARNING)
