"""A routing table from text that somebody else wrote, held to the limits that the manifest has; and the copy of it
that the kubelet mounts."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec
from pydantic import ValidationError

from gnnserve_api.gnnservice import BatchingSpec, ObjectiveSpec
from gnnserve_api.routing import RoutingTable, decode_routing

_log = logging.getLogger(__name__)


def parse_routing(text: str | bytes) -> RoutingTable:
    """Raises ValueError, whose text names the field and the value."""
    try:
        table = decode_routing(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(str(error)) from error
    if not table.revision:
        raise ValueError("revision is empty")
    for field, check, values in (
        ("objective", ObjectiveSpec, msgspec.to_builtins(table.objective)),
        ("batching", BatchingSpec, msgspec.to_builtins(table.batching)),
    ):
        try:
            check.model_validate(values)
        except ValidationError as error:
            detail = error.errors()[0]
            name = ".".join([field, *map(str, detail["loc"])])
            raise ValueError(f"{name}: {detail['msg']}, found {detail['input']!r}") from error
    return table


class MountedRouting:
    """Follows the API server by a minute or so, and is there when that is not."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = b""

    def read(self) -> RoutingTable | None:
        """None: nothing new that could be used."""
        try:
            text = self._path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            _log.warning("%s cannot be read: %s", self._path, error.strerror)
            return None
        if text == self._seen:
            return None
        self._seen = text
        try:
            return parse_routing(text)
        except ValueError as error:
            _log.error("%s is not a routing table: %s", self._path, error)
            return None
