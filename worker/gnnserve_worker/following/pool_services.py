"""Parsing the services of a pool from untrusted text, and what differs between two lists of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from gnnserve_api.pods.pool import MOST_SERVICES, PoolService, PoolServices, decode_services
from gnnserve_worker.following.routing import MountedText

_MOST_SHARE = 1000
_MOST_PORT = 65_535


def parse_services(text: str | bytes) -> PoolServices:
    """Parse the list. Raises a ValueError whose text names the service, the field and the value."""
    try:
        found = decode_services(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(str(error)) from error
    if len(found.services) > MOST_SERVICES:
        raise ValueError(f"expected at most {MOST_SERVICES} services, found {len(found.services)}")
    for service in found.services:
        if not service.name or "/" in service.name or not service.routing:
            raise ValueError(f"expected the names of a service and its ConfigMap, found {service}")
        if not 0 <= service.port <= _MOST_PORT:
            raise ValueError(f"{service.name}.port: expected 0 to {_MOST_PORT}, found {service.port}")
        if not 1 <= service.share <= _MOST_SHARE:
            raise ValueError(f"{service.name}.share: expected 1 to {_MOST_SHARE}, found {service.share}")
        if service.log_uid and service.max_delta_bytes <= 0:
            raise ValueError(f"{service.name}.maxDeltaBytes: expected more than 0, found {service.max_delta_bytes}")
    return found


@dataclass(frozen=True, slots=True)
class PoolDifference:
    """Changes that have to be made so that the services are those that are wanted."""

    leaving: tuple[PoolService, ...] = ()
    """Services that are no longer wanted, or not as they are."""
    joining: tuple[PoolService, ...] = ()
    reweighed: tuple[PoolService, ...] = ()
    """Services of which nothing but the share is another."""


def difference(present: Iterable[PoolService], wanted: PoolServices) -> PoolDifference:
    """One that is changed leaves, and joins once it has left."""
    now = {service.name: service for service in present}
    leaving, joining, reweighed = [], [], []
    for service in now.values():
        found = wanted.of(service.name)
        if found is None or msgspec.structs.replace(found, share=service.share) != service:
            leaving.append(service)
        elif found != service:
            reweighed.append(found)
    joining = [service for service in wanted.services if service.name not in now]
    return PoolDifference(tuple(leaving), tuple(joining), tuple(reweighed))


class MountedServices(MountedText[PoolServices]):
    def __init__(self, path: Path) -> None:
        super().__init__(path, parse_services, "a list of services")
