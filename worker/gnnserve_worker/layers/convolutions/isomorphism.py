"""Products over the sum of the neighbours and (1 + eps) times the node itself: GIN and GINE."""

from __future__ import annotations

from gnnserve_api.files.layers import ConvolutionManifest
from gnnserve_worker.layers.convolutions.kind import ConvolutionKind, Ends, Shapes, dense_shapes
from gnnserve_worker.layers.dense import products_shapes


class Gin(ConvolutionKind):
    reads = frozenset({"mlp"})

    def tensors(self, conv: ConvolutionManifest, ends: Ends) -> Shapes:
        return {"eps": (1,), **products_shapes("nn", conv.mlp, ends.source)}

    def problems(self, conv: ConvolutionManifest, ends: Ends) -> list[str]:
        found = []
        if ends.source != ends.target:
            found.append(f"rows of neighbours have {ends.source} columns, and the node's own {ends.target}")
        if not conv.mlp:
            found.append("mlp is empty; give its products")
        elif conv.mlp[-1].width != conv.width:
            found.append(f"width is {conv.width}, and the last product of mlp gives {conv.mlp[-1].width}")
        return found


class Gine(Gin):
    """Where a file has no `lin`, since edges are as wide as rows, that is the identity."""

    reads = frozenset({"mlp", "edge_columns"})

    def tensors(self, conv: ConvolutionManifest, ends: Ends) -> Shapes:
        return {
            **super().tensors(conv, ends),
            **dense_shapes("lin", ends.source, len(conv.edge_columns), bias=True),
        }

    def problems(self, conv: ConvolutionManifest, ends: Ends) -> list[str]:
        found = super().problems(conv, ends)
        if not conv.edge_columns:
            found.append("edgeColumns is empty; name columns of the edges, or take GIN")
        return found
