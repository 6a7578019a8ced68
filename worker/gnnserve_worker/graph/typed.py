"""Names that modules still import from here; `store.py` has what they are."""

from gnnserve_worker.graph.store import EdgeSplits, NodeType, Relation
from gnnserve_worker.graph.store import GraphData as TypedGraphData

__all__ = ["EdgeSplits", "NodeType", "Relation", "TypedGraphData"]
