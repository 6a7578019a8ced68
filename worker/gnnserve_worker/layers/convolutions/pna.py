"""Several aggregates of products of both ends, each scaled by the length of the list in several ways: PNA.

Scalers read the list of the target alone, which is whole where all neighbours are read; it needs no deeper hop.
"""

from __future__ import annotations

from gnnserve_api.files.layers import Aggregation, ConvolutionManifest
from gnnserve_worker.layers.convolutions.kind import ConvolutionKind, Ends, Shapes, dense_shapes


def tower_input(conv: ConvolutionManifest, ends: Ends) -> int:
    """Columns that a tower reads."""
    return ends.source // conv.towers if conv.divides_input else ends.source


class Pna(ConvolutionKind):
    reads = frozenset(
        {"aggregations", "scalers", "towers", "divides_input", "pre_layers", "post_layers", "edge_columns"}
    )

    def tensors(self, conv: ConvolutionManifest, ends: Ends) -> Shapes:
        read, written = tower_input(conv, ends), conv.width // conv.towers
        ends_read = 3 if conv.edge_columns else 2
        aggregated = (len(conv.aggregations) * len(conv.scalers) + 1) * read
        shapes: dict[str, tuple[int, ...]] = {"aggr_module.avg_deg_lin": (1,), "aggr_module.avg_deg_log": (1,)}
        if conv.edge_columns:
            shapes |= dense_shapes("edge_encoder", read, len(conv.edge_columns), bias=True)
        for tower in range(conv.towers):
            # torch_geometric's sequences have an activation behind each matrix but the last.
            for place in range(conv.pre_layers):
                inputs = read if place else ends_read * read
                shapes |= dense_shapes(f"pre_nns.{tower}.{2 * place}", read, inputs, bias=True)
            for place in range(conv.post_layers):
                inputs = written if place else aggregated
                shapes |= dense_shapes(f"post_nns.{tower}.{2 * place}", written, inputs, bias=True)
        return {**shapes, **dense_shapes("lin", conv.width, conv.width, bias=True)}

    def problems(self, conv: ConvolutionManifest, ends: Ends) -> list[str]:
        found = []
        if ends.source != ends.target or not ends.is_same_type:
            found.append("it is of relations within a type; take GraphSAGE, GraphConv or attention between types")
        if conv.towers < 1 or conv.width % conv.towers:
            found.append(f"width {conv.width} is no multiple of towers {conv.towers}")
        elif conv.divides_input and ends.source % conv.towers:
            found.append(f"its input has {ends.source} columns, no multiple of towers {conv.towers}")
        if not conv.aggregations or not conv.scalers:
            found.append("aggregations or scalers is empty; name one of each at least, such as Mean and Identity")
        if Aggregation.SOFTMAX in conv.aggregations:
            found.append("Softmax is no aggregation of PNA; take another")
        if conv.pre_layers < 1 or conv.post_layers < 1:
            found.append(f"preLayers is {conv.pre_layers} and postLayers {conv.post_layers}; give 1 or more")
        return found
