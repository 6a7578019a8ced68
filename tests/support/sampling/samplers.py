"""Samplers as an opened revision has them, for tests of graphs that no tables are over."""

from __future__ import annotations

from functools import partial

from gnnserve_api.files.graph_schema import NAMES_OF_TYPES
from gnnserve_worker.graph.store import Graph
from gnnserve_worker.sampling.neighbours import Sampler, sample_neighbours
from gnnserve_worker.sampling.relations import sample_relations


def sampler_of(graph: Graph) -> Sampler:
    """Draws by relation where types have names."""
    return partial(sample_relations, layout=graph.layout) if graph.schema.names is NAMES_OF_TYPES else sample_neighbours
