"""What draws neighbours, chosen once when a revision is opened.

Where tables have a row of each node, in a graph whose nodes have one list each, it is `sample_neighbours` itself; where
they have rows by relation, `sample_relations`. Both are called alike, so that no request asks which one it is.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from gnnserve_worker.kernels.view import SampleView
from gnnserve_worker.sampling.neighbours import NeighbourSample, Scratch


class Sampler(Protocol):
    """`sample_neighbours`, or what draws by relation. `fanouts`: of each layer, the same by every relation; or of each
    relation, its layers."""

    def __call__(
        self,
        indptr: np.ndarray,
        indices: np.ndarray,
        seeds: np.ndarray,
        fanouts: Any,
        key: int,
        scratch: Scratch,
        *,
        share: bool,
        view: SampleView | None = None,
        names_leaves: bool = False,
        names_positions: bool = False,
    ) -> NeighbourSample: ...  # pragma: no cover
