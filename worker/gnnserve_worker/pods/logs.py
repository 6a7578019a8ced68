"""Logs of a worker pod: one JSON object a line on standard error, each naming the service it is about."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime

import msgspec

_QUIET = ("httpx", "httpcore", "numba")
"""Loggers whose info records are dropped, since they log every request and start; their warnings still show."""


class WorkerJsonFormatter(logging.Formatter):
    """Formats a record as one JSON object. `revision`, and `service` where a process has several, are passed as the
    record's `extra`."""

    def __init__(self, service: str, namespace: str) -> None:
        super().__init__()
        self._about = {"service": service, "namespace": namespace}

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "message": record.getMessage(),
            **self._about,
        }
        if (service := getattr(record, "service", None)) is not None:
            line["service"] = str(service)
        if (revision := getattr(record, "revision", None)) is not None:
            line["revision"] = str(revision)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode({key: _printable(value) for key, value in line.items()}).decode()


def log_as_json(service: str, namespace: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(WorkerJsonFormatter(service, namespace))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.captureWarnings(True)
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)


def _printable(text: str) -> str:
    """The text with surrogates replaced: file names may contain bytes that are not text, JSON may not."""
    return text.encode(errors="backslashreplace").decode()
