"""What becomes of a served graph: whether changes reach it, how far they are applied, which nodes have left."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from gnnserve_api.families import STORED_GRAPH, Capabilities
from gnnserve_worker.asking.changed_features import ChangedFeatures, UnknownFeatures
from gnnserve_worker.inference.index_follower import IndexFollower
from gnnserve_worker.inference.living import LivingRevision

_CHANGED_GRAPH = Capabilities(changes=True)
_NO_FEATURES = UnknownFeatures("its graph stays as it is")


@dataclass(frozen=True, slots=True)
class ServedChanges:
    """By default the graph stays as it is."""

    replica: LivingRevision | None = None
    """What applies changes to it; None: its graph stays as it is."""
    applied_offset: Callable[[], int] | None = None
    """The offset of the log of changes that its graph has now; a batch that begins later sees at least that. From any
    thread, and quickly. None: the graph does not change."""
    is_gone: np.ndarray | None = None
    """Whether the node at that position has left the graph, bool; any thread may read it. None: nodes do not leave."""
    features: ChangedFeatures = _NO_FEATURES
    """Features that batches bring."""
    would_wait: Callable[[], bool] = lambda: False
    """Whether a batch would wait now for changes that are being applied. From any thread, and quickly."""
    index_follower: IndexFollower | None = None
    """What is computed beside the index where the graph changes; None: it does not, or there is no place for an index.
    """

    needed: Capabilities = field(init=False)
    """What a variant must be capable of to answer at all."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "needed", STORED_GRAPH if self.replica is None else _CHANGED_GRAPH)


STILL = ServedChanges()
"""The graph does not change."""
