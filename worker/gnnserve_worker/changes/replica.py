"""Replica that applies the log's batches: the living graph of a revision, as the follower of the log sees it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gnnserve_worker.graph.change_batch import BatchEffect, ChangeBatch, ChangeRefusal


class Replica(Protocol):
    """One thread at a time calls `apply`; `check` may be called from any."""

    @property
    def offset(self) -> int:
        """The last offset that it has applied; at first `base_offset`."""
        ...  # pragma: no cover

    @property
    def base_offset(self) -> int:
        """The offset that its revision's graph was made at."""
        ...  # pragma: no cover

    @property
    def base_checksum(self) -> int | None:
        """Checksum of the record there, 0 at offset 0, where there is none; None: it is not known."""
        ...  # pragma: no cover

    @property
    def changes_since_base(self) -> int:
        """Items of the batches that it has applied."""
        ...  # pragma: no cover

    @property
    def delta_bytes(self) -> int:
        """Memory that they have taken."""
        ...  # pragma: no cover

    @property
    def inferences(self) -> int:
        """Batches of predictions that were computed over it."""
        ...  # pragma: no cover

    @property
    def computing_s(self) -> float:
        """Seconds in which they were."""
        ...  # pragma: no cover

    @property
    def is_busy(self) -> bool:
        """Whether `check` would wait."""
        ...  # pragma: no cover

    def check(self, batch: ChangeBatch) -> ChangeRefusal | None:
        """What `apply` would say now; None: it would apply the batch."""
        ...  # pragma: no cover

    def apply(self, offset: int, batches: Sequence[ChangeBatch]) -> list[BatchEffect | ChangeRefusal]:
        """Apply batches from that offset on, each as a whole or nothing of it: no batch of predictions sees a part.
        What is said of each depends on the graph that it began with and the batches before alone, so that all workers
        say the same; but for `OF_THIS_WORKER`, which is the last thing that is said, and leaves `offset` where it was.
        An error leaves nothing that can be used."""
        ...  # pragma: no cover
