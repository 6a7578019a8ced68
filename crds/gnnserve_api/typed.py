"""Names that modules still import from here; `graph_schema.py` has what they are."""

from gnnserve_api.graph_schema import GraphSchema as TypedGraphManifest
from gnnserve_api.graph_schema import RelationManifest, TypeManifest, TypeRows
from gnnserve_api.graph_schema import RowsByRelation as TypedTableManifest

__all__ = ["RelationManifest", "TypeManifest", "TypeRows", "TypedGraphManifest", "TypedTableManifest"]
