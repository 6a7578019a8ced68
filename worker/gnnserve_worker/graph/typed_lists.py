"""Names that modules still import from here; `store.py` and `relation_lists.py` have what they are."""

import numpy as np

from gnnserve_api.graph_schema import GraphSchema
from gnnserve_worker.graph.relation_lists import merged_lists
from gnnserve_worker.graph.store import Graph as TypedGraph
from gnnserve_worker.graph.store import GraphData


def typed_graph(typed: GraphSchema, indptr: np.ndarray, indices: np.ndarray) -> TypedGraph:
    return TypedGraph(indptr, indices, typed)


def describe_typed(data: GraphData) -> GraphSchema:
    return data.schema


__all__ = ["TypedGraph", "describe_typed", "merged_lists", "typed_graph"]
