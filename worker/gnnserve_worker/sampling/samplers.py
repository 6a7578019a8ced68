"""Samplers of a graph: what draws neighbours, chosen once when a revision is opened.

A graph whose nodes have one list each is sampled by `sample_neighbours` itself; one whose nodes have a list for each
relation by `sample_relations`. Both are called alike, so that no request asks which one it is.
"""

from __future__ import annotations

from functools import lru_cache
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
    ) -> NeighbourSample: ...  # pragma: no cover


def sampler_of(graph: Graph) -> Sampler:
    """Lists of a graph whose types have names are of relations, and samples of it tell by which one a row was drawn."""
    return _by_relation(graph) if graph.schema.has_names else sample_neighbours


def _by_relation(graph: Graph) -> Sampler:
    layout, relations = graph.layout, len(graph.schema.relations)

    def sample(
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
    ) -> NeighbourSample:
        del names_leaves  # they always are
        by_relation = _fanouts_by_relation(fanouts, relations)
        return sample_relations(indptr, indices, layout, seeds, by_relation, key, scratch, share=share, view=view)

    return sample


@lru_cache(256)
def _fanouts_by_relation(fanouts: tuple[int, ...] | tuple[tuple[int, ...], ...], relations: int) -> np.ndarray:
    """Fan-outs of each layer and relation, int64."""
    given = np.array(fanouts, dtype=np.int64)
    return np.ascontiguousarray(given.T) if given.ndim == 2 else np.repeat(given[:, None], relations, axis=1)
