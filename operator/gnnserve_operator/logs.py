"""Log lines of the operator: JSON for collectors, or text for people.

A line names its object. Messages of kopf and aiohttp come through from WARNING on: what they say below is about
themselves. Nothing here ever sees a credential: requests are logged by path, refusals by the server's sentence.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, TextIO

from gnnserve_operator.kinds import ServiceKey
from gnnserve_operator.settings import LogFormat, LogLevel

_FIELDS = ("object", "reason", "durationMs")
_NOISY = ("kopf", "aiohttp", "asyncio", "kubernetes", "client")


def about(
    key: ServiceKey, *, uid: str | None = None, reason: str | None = None, duration_s: float | None = None
) -> dict[str, Any]:
    """For `extra=` of a log call: which object it is about, and what else a collector may count."""
    fields: dict[str, Any] = {"object": {"namespace": key.namespace, "name": key.name}}
    if uid is not None:
        fields["object"]["uid"] = uid
    if reason is not None:
        fields["reason"] = reason
    if duration_s is not None:
        fields["durationMs"] = round(duration_s * 1000, 1)
    return fields


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


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def configure_logging(log_format: LogFormat, level: LogLevel, stream: TextIO | None = None) -> None:
    """For the whole process, on standard error."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format is LogFormat.JSON else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.value)
    for name in _NOISY:
        logging.getLogger(name).setLevel(logging.WARNING)
