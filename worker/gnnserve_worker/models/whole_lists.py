"""Whole neighbour lists for one layer, in scratch memory of the calling thread: of all nodes ahead of time, and in a
request of those whose lists it changes."""

from __future__ import annotations

import threading

import numpy as np

from gnnserve_worker.graph.store import Graph
from gnnserve_worker.kernels.view import SampleView
from gnnserve_worker.models.network import Activations
from gnnserve_worker.sampling.neighbours import NeighbourSample, Scratch, sample_neighbours
from gnnserve_worker.sampling.normalised import weigh
from gnnserve_worker.sampling.relations import sample_relations

_WHOLE_LISTS = (-1,)


class LayerScratch(threading.local):
    """Scratch memory in which a thread computes one layer. Nothing in it outlives the thread's next sample."""

    def __init__(self) -> None:
        self.activations = Activations()
        self._scratch = Scratch()

    def sample(
        self, graph: Graph, nodes: np.ndarray, roots: np.ndarray | None, view: SampleView | None = None
    ) -> NeighbourSample:
        """All neighbours of these nodes (int64), a row for each. `roots`: `inverse_roots` of the graph, where the layer
        weighs neighbours. With a `view`, which is these nodes', leaves that only gain neighbours are named."""
        sample = sample_neighbours(
            graph.indptr, graph.indices, nodes, _WHOLE_LISTS, 0, self._scratch, share=False, view=view,
            names_leaves=view is not None,
        )  # fmt: skip
        return sample if roots is None else weigh(sample, graph.indptr, roots, self._scratch, view)

    def sample_relations(self, graph: Graph, nodes: np.ndarray, view: SampleView | None = None) -> NeighbourSample:
        """All neighbours of these nodes (int64) by all relations. `view`: these nodes'."""
        return sample_relations(
            graph.indptr, graph.indices, nodes, _WHOLE_LISTS, 0, self._scratch, layout=graph.layout, share=True,
            view=view,
        )  # fmt: skip
