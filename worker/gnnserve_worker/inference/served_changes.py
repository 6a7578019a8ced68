"""Changes of a served graph: whether changes reach it, how far they are applied, which nodes have left."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from gnnserve_api.families import STORED_GRAPH, Capabilities
from gnnserve_worker.asking.changed_features import ChangedFeatures, UnknownFeatures
from gnnserve_worker.graph.overlay import Overlay
from gnnserve_worker.inference.batch import Infer
from gnnserve_worker.inference.index_follower import IndexFollower
from gnnserve_worker.inference.latest_features import LatestFeatures
from gnnserve_worker.inference.living import LivingRevision
from gnnserve_worker.inference.refreshed import StaleComparison
from gnnserve_worker.inference.written import WrittenSince

_NO_FEATURES = UnknownFeatures("its graph stays as it is")


class FollowsLog(Protocol):
    """`changes.worker_log.Updates`, as a served graph is followed by it."""

    @property
    def replica(self) -> object | None: ...  # pragma: no cover

    def follow(self, replica: LivingRevision | None) -> None: ...  # pragma: no cover

    def handing_over(self, replica: LivingRevision) -> AbstractContextManager[None]: ...  # pragma: no cover


class GraphLog(Protocol):
    """The log of changes, as far as a served graph has it."""

    @property
    def offset(self) -> int | None:
        """The offset that its graph has now; a batch that begins later sees at least that. From any thread. None: the
        graph does not change."""
        ...  # pragma: no cover

    def guarded(self, infer: Infer) -> Infer:
        """`infer` with no change applied meanwhile."""
        ...  # pragma: no cover

    def note_written(self) -> WrittenSince:
        """As `LivingRevision.note_written`."""
        ...  # pragma: no cover

    def follow(self, updates: FollowsLog) -> None:
        """Let the log change this graph from now on, and no other."""
        ...  # pragma: no cover

    def handing_over(self, updates: FollowsLog) -> AbstractContextManager[None]:
        """Within it, this graph has all that the one has that is changed at present."""
        ...  # pragma: no cover


class NoLog:
    """The graph stays as it is."""

    offset = None

    def guarded(self, infer: Infer) -> Infer:
        return infer

    def note_written(self) -> WrittenSince:
        return WrittenSince()

    def follow(self, updates: FollowsLog) -> None:
        if updates.replica is not None:
            updates.follow(None)

    def handing_over(self, updates: FollowsLog) -> AbstractContextManager[None]:
        return nullcontext()


@dataclass(frozen=True, slots=True)
class AppliedLog:
    """The log is applied to the graph."""

    replica: LivingRevision

    @property
    def offset(self) -> int:
        return self.replica.offset

    def guarded(self, infer: Infer) -> Infer:
        return self.replica.guarded(infer)

    def note_written(self) -> WrittenSince:
        return self.replica.note_written()

    def follow(self, updates: FollowsLog) -> None:
        if updates.replica is not self.replica:
            updates.follow(self.replica)

    def handing_over(self, updates: FollowsLog) -> AbstractContextManager[None]:
        if updates.replica is None or updates.replica is self.replica:
            return nullcontext()
        return updates.handing_over(self.replica)


class GoneNodes(Protocol):
    """Nodes that have left the graph. Any thread may ask."""

    def are_named(self, nodes: np.ndarray, start: int, stop: int, overlay: Overlay | None) -> bool:
        """Whether a request names one: among nodes (positions, int64) from start to stop - 1, and what it brings."""
        ...  # pragma: no cover

    def among(self, first: int, end: int) -> np.ndarray | None:
        """Which of these positions have left, bool [end - first]; None: none of them."""
        ...  # pragma: no cover


class NoGoneNodes:
    """Nodes do not leave."""

    def are_named(self, nodes: np.ndarray, start: int, stop: int, overlay: Overlay | None) -> bool:
        return False

    def among(self, first: int, end: int) -> None:
        return None


@dataclass(frozen=True, slots=True)
class MarkedGoneNodes:
    is_gone: np.ndarray
    """Whether the node at that position has left, bool."""

    def are_named(self, nodes: np.ndarray, start: int, stop: int, overlay: Overlay | None) -> bool:
        """Looked for behind the batch: a node that has left keeps its row and loses its neighbours, so that what was
        computed of it may be of no graph that there was."""
        named = nodes[start:stop]
        if overlay is not None:
            named = np.concatenate((named, overlay.origins, overlay.neighbours))
            named = named[(named >= 0) & (named < len(self.is_gone))]
        return bool(self.is_gone[named].any())

    def among(self, first: int, end: int) -> np.ndarray | None:
        gone = self.is_gone[first:end]
        return gone if gone.any() else None


_NO_LOG, _NONE_GONE = NoLog(), NoGoneNodes()


@dataclass(frozen=True, slots=True)
class ServedChanges:
    """By default the graph stays as it is."""

    log: GraphLog = _NO_LOG
    gone: GoneNodes = _NONE_GONE
    features: ChangedFeatures = _NO_FEATURES
    """Features that batches bring."""
    would_wait: Callable[[], bool] = lambda: False
    """Whether a batch would wait now for changes that are being applied. From any thread, and quickly."""
    index_follower: IndexFollower | None = None
    """What is computed beside the index where the graph changes; None: it does not, or there is no place for an index.
    """
    living: LivingRevision | None = None
    """What applies changes to it, where layers behind the first are stored whose rows may be stale; None: none may be.
    """
    comparison: StaleComparison | None = None
    """What measures how many answers their errors change, likewise."""
    latest: LatestFeatures | None = None
    """Features that changes have brought; None: none have, or they are not kept."""
    needed: Capabilities = STORED_GRAPH
    """What a variant must be capable of to answer at all."""


STILL = ServedChanges()
"""The graph does not change."""
