"""Parsing a routing table from untrusted text, with the manifest's limits; and reading copies that the kubelet
mounts."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

import msgspec
from pydantic import ValidationError

from gnnserve_api.limits import MOST_BACKGROUND_PERMILLE
from gnnserve_api.pods.routing import RoutingMode, RoutingTable, decode_routing
from gnnserve_api.spec.endpoint import EndpointOverlay
from gnnserve_api.spec.objective import ObjectiveSpec
from gnnserve_api.spec.routing import MOST_SHADOW_PERMILLE
from gnnserve_api.spec.worker import BatchingSpec

_LONGEST_MS = 3_600_000
"""Longest latency of an objective; nothing that is served takes longer."""
_log = logging.getLogger(__name__)


def parse_routing(text: str | bytes) -> RoutingTable:
    """Parse a table. Raises a ValueError whose text names the field and the value."""
    try:
        table = decode_routing(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(str(error)) from error
    if not table.revision:
        raise ValueError("revision is empty")
    for field, check, values in (
        ("objective", ObjectiveSpec, msgspec.to_builtins(table.objective)),
        ("batching", BatchingSpec, msgspec.to_builtins(table.batching)),
        ("overlay", EndpointOverlay, msgspec.to_builtins(table.overlay)),
    ):
        try:
            check.model_validate(values)
        except ValidationError as error:
            detail = error.errors()[0]
            name = ".".join([field, *map(str, detail["loc"])])
            raise ValueError(f"{name}: {detail['msg']}, found {detail['input']!r}") from error
    if not 0 <= table.shadow_permille <= MOST_SHADOW_PERMILLE:
        raise ValueError(f"shadowPermille: expected 0 to {MOST_SHADOW_PERMILLE}, found {table.shadow_permille}")
    _check_program_limits(table)
    _check_refresh(table)
    _check_mode(table)
    _check_costs(table)
    _check_canary(table)
    return table


def _check_program_limits(table: RoutingTable) -> None:
    limits = table.program_limits
    if limits is None:
        return
    if limits.memory_bytes <= 0:
        raise ValueError(f"programLimits.memoryBytes: expected a number of bytes above 0, found {limits.memory_bytes}")
    for field, seconds in (("seconds", limits.seconds), ("startSeconds", limits.start_seconds)):
        if not (math.isfinite(seconds) and seconds > 0):
            raise ValueError(f"programLimits.{field}: expected a number of seconds above 0, found {seconds}")


def _check_refresh(table: RoutingTable) -> None:
    budget = table.refresh
    if budget is None:
        return
    for field, value in (("rows", budget.rows), ("microseconds", budget.microseconds)):
        if value < 0:
            raise ValueError(f"refresh.{field}: expected 0 or more, found {value}")
    if not 0 <= budget.background_permille <= MOST_BACKGROUND_PERMILLE:
        found = f"found {budget.background_permille}"
        raise ValueError(f"refresh.backgroundPermille: expected 0 to {MOST_BACKGROUND_PERMILLE}, {found}")


def _check_mode(table: RoutingTable) -> None:
    if table.mode is RoutingMode.STATIC and not table.base_variant:
        raise ValueError(f"baseVariant: mode Static needs the variant that answers, found {table.base_variant!r}")
    if table.base_variant == "":
        raise ValueError("baseVariant: found '', expected the name of a variant, or null")
    for name, weight in table.weights.items():
        if weight < 0:
            raise ValueError(f"weights.{name}: expected 0 or more, found {weight}")
    if (table.mode is RoutingMode.WEIGHTS) != any(table.weights.values()):
        raise ValueError(f"weights: mode Weights alone has them, one above 0; found {table.weights} in {table.mode}")


def _check_costs(table: RoutingTable) -> None:
    """Refuse a cost that is not a time, or longer than any objective: it would make every prediction meaningless."""
    for name, cost in table.costs.items():
        for field, value in (("fixedMs", cost.fixed_ms), ("perSeedMs", cost.per_seed_ms)):
            if not 0 <= value <= _LONGEST_MS:  # which NaN is not either
                raise ValueError(
                    f"costs.{name}.{field}: expected milliseconds from 0 to {_LONGEST_MS:,}, found {value}"
                )
        if cost.at(1) <= 0:
            raise ValueError(f"costs.{name}: a batch of one node cannot take {cost.at(1)} ms")
    if table.ttl_seconds is not None and not (math.isfinite(table.ttl_seconds) and table.ttl_seconds > 0):
        raise ValueError(f"ttlSeconds: expected a number of seconds above 0, found {table.ttl_seconds}")


def _check_canary(table: RoutingTable) -> None:
    canary = table.canary
    if canary is not None and not 0 <= canary.percent <= 100:
        raise ValueError(f"canary.percent: expected 0 to 100, found {canary.percent}")
    if canary is not None and canary.revision in {"", table.revision}:
        raise ValueError(f"canary.revision: expected another one than {table.revision}, found {canary.revision!r}")


Content = TypeVar("Content")


class MountedText(Generic[Content]):
    """The mounted copy of a ConfigMap's text. It is about a minute behind the API server, and readable when that is
    down."""

    def __init__(self, path: Path, parse: Callable[[bytes], Content], what: str) -> None:
        """`parse` raises ValueError. `what`: what it reads, for messages."""
        self._path = path
        self._parse = parse
        self._what = what
        self._seen = b""

    def read(self) -> Content | None:
        """Read it; None: nothing new, or nothing usable."""
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
            return self._parse(text)
        except ValueError as error:
            _log.error("%s is not %s: %s", self._path, self._what, error)
            return None


class MountedRouting(MountedText[RoutingTable]):
    def __init__(self, path: Path) -> None:
        super().__init__(path, parse_routing, "a routing table")
