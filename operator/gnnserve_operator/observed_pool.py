"""Observations of a GNNWorkerPool: as one of its services depends on it, and its services as it depends on them."""

from __future__ import annotations

from dataclasses import dataclass

from gnnserve_api.spec.pool import GNNWorkerPoolSpec
from gnnserve_api.spec.service import GNNServiceSpec


@dataclass(frozen=True, slots=True)
class ObservedPool:
    """The GNNWorkerPool that a service names, as far as the service depends on it."""

    name: str
    spec: GNNWorkerPoolSpec | None = None
    """None: there is no pool of that name, or it cannot be used."""
    problem: str = ""
    """Why it cannot be used, and what to do; empty: it can."""
    claim: str = ""
    """Name of the claim with the repository of all its services."""
    port: int | None = None
    """The port at which the pool's workers answer for the service; None: it is not in their list."""
    taken_bytes: int = 0
    """Memory that is counted for its other services."""


@dataclass(frozen=True, slots=True)
class ObservedMember:
    """A GNNService that names a pool, as the pool sees it."""

    name: str
    uid: str
    created_at: str = ""
    """RFC 3339 in UTC, which sorts as text."""
    deleting: bool = False
    spec: GNNServiceSpec | None = None
    """None: it cannot be read."""
    ready: bool = False
    """Whether its condition Ready is true."""
    available: bool = False
    """Whether its condition Available is true."""
    message: str = ""
    """That of its condition Ready, where it is not true."""
    is_refused: bool = False
    """Whether its revision does not fit."""
    revision: str | None = None
    """The revision that workers are told to answer from."""
    counted_bytes: int = 0
    """Memory that is counted for it; 0: nothing is answered from."""

    @property
    def is_served(self) -> bool:
        """Whether workers are to answer for it."""
        return self.spec is not None and not self.deleting and not self.spec.suspend
