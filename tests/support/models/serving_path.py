"""The path that serves, as tests of models walk it: a sample, the rows that it reads, and a network over them."""

from __future__ import annotations

import numpy as np
import pytest

from gnnserve_worker.graph.store import Graph
from gnnserve_worker.models.network import Activations, Network, NetworkLayer
from gnnserve_worker.sampling.neighbours import NeighbourSample, Scratch, sample_neighbours
from gnnserve_worker.tables.table import Table

SHARE = pytest.mark.parametrize("share", [pytest.param(False, id="rows of their own"), pytest.param(True, id="shared")])


def sample_of(graph: Graph, seeds: list[int], fanouts: tuple[int, ...], *, share: bool = False) -> NeighbourSample:
    return sample_neighbours(graph.indptr, graph.indices, np.array(seeds), fanouts, 5, Scratch(), share=share)


def infer(
    network: Network[NetworkLayer], table: Table, sample: NeighbourSample, scratch: Activations | None = None
) -> tuple[np.ndarray, np.ndarray | None]:
    """Scores and, where the network has a hidden layer, embeddings."""
    scratch = Activations() if scratch is None else scratch
    seeds = sample.ends[0] if sample.seed_rows is None else len(sample.seed_rows)
    scores = np.empty((seeds, network.classes), np.float32)
    embeddings = np.empty((seeds, network.hidden), np.float32) if network.hidden else None
    network.infer(network.gather(table, sample, scratch), sample, scratch, scores, embeddings)
    return scores, embeddings


def infer_scores(network: Network[NetworkLayer], table: Table, sample: NeighbourSample) -> np.ndarray:
    return infer(network, table, sample)[0]
