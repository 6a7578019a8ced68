"""Samplers of a graph: what draws neighbours, chosen once when a revision is opened.

A graph whose nodes have one list each is sampled by `sample_neighbours` itself; one whose nodes have a list for each
relation by `sample_relations`. Both are called alike, so that no request asks which one it is.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Protocol

import numpy as np

from gnnserve_worker.graph.store import Graph
from gnnserve_worker.kernels.view import SampleView
from gnnserve_worker.sampling.neighbours import NeighbourSample, Scratch, sample_neighbours
from gnnserve_worker.sampling.relations import sample_relations


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


def sampler_of(graph: Graph) -> Sampler:
    """Lists of a graph whose types have names are of relations, and samples of it tell by which one a row was drawn."""
    if graph.schema.has_names:
        return partial(sample_relations, layout=graph.layout)
    return sample_neighbours
