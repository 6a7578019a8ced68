"""Rows of a table that stores the first layer of a network over several types, made anew where the graph changes: what
the layer computes of a node and all neighbours, from products of its inputs in float32, as generation made it."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np

from gnnserve_worker.graph.typed_lists import TypedGraph
from gnnserve_worker.kernels.layout import unpack_layout
from gnnserve_worker.models.network import Activations, Network
from gnnserve_worker.models.rows import RenewedRows
from gnnserve_worker.models.typed.network import seed_rows
from gnnserve_worker.models.typed.rows import TypedRowMaker
from gnnserve_worker.sampling.typed import TypedScratch, sample_typed
from gnnserve_worker.tables.table import Table


class _Space(threading.local):
    """What a thread samples and computes in."""

    def __init__(self) -> None:
        self.scratch = TypedScratch()
        self.activations = Activations()


_space = _Space()


@dataclass(frozen=True, slots=True)
class TypedStoredMaker:
    """Makes rows for nodes whose neighbours or their features have changed for good."""

    rows: TypedRowMaker
    """They make the rows of the table that stores the layer, from hidden states."""
    layer: Network
    """The layer alone, over `source`, without its ReLU."""
    outputs: int
    """Columns of a hidden state."""
    without_output: tuple[int, ...]
    """Places of the types that the layer gives nothing for: their hidden states are 0."""
    source: Table
    """Products of features, in float32."""
    graph: TypedGraph

    def make(self, nodes: np.ndarray) -> RenewedRows:
        """Rows of these nodes (numbers, int64, distinct), over all of their neighbours as they are now."""
        hidden = self._hidden_of(nodes)
        return self.rows.make_all(hidden, nodes)

    def _hidden_of(self, nodes: np.ndarray) -> np.ndarray:
        """float32 [nodes, outputs]"""
        graph, space = self.graph, _space
        whole = np.full((1, len(graph.typed.relations)), -1, np.int64)
        sample = sample_typed(graph.indptr, graph.indices, graph.layout, nodes, whole, 0, space.scratch, share=True)
        flat = self.layer.gather(self.source, sample, space.activations)
        rows = len(sample.nodes)
        given = flat[: rows * self.outputs].reshape(rows, self.outputs)
        hidden: np.ndarray = np.maximum(given[seed_rows(sample)], 0)
        if self.without_output:
            kinds = np.searchsorted(unpack_layout(graph.layout)[2], nodes, side="right") - 1
            hidden[np.isin(kinds, self.without_output)] = 0
        return hidden
