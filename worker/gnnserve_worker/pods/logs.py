"""Logs of a worker pod: one JSON object a line on standard error, each naming the service it is about."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime

import msgspec

_QUIET = ("httpx", "httpcore", "uvicorn", "numba")
"""They tell about every request and every start; what goes wrong there still shows."""


class JsonFormatter(logging.Formatter):
    """`revision` and other facts come as `extra` of a record."""

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
        if (revision := getattr(record, "revision", None)) is not None:
            line["revision"] = str(revision)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode({key: _printable(value) for key, value in line.items()}).decode()


def log_as_json(service: str, namespace: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(service, namespace))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.captureWarnings(True)
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)


def _printable(text: str) -> str:
    """Names of files may hold what is no text; JSON may not."""
    return text.encode(errors="backslashreplace").decode()
