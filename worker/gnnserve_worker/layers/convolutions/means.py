"""Aggregates of neighbours times a matrix, beside the node's own row times another: GraphSAGE and GraphConv."""

from __future__ import annotations

from collections.abc import Sequence

from gnnserve_api.files.layers import Aggregation, ConvolutionManifest
from gnnserve_worker.layers.convolutions.kind import ConvolutionKind, Ends, Shapes, dense_shapes


def temperature_shapes(aggregations: Sequence[Aggregation], columns: int) -> Shapes:
    """Shapes of the temperatures of softmax aggregations, one for each column."""
    if len(aggregations) == 1:
        return {"aggr_module.t": (columns,)} if aggregations[0] is Aggregation.SOFTMAX else {}
    return {
        f"aggr_module.aggrs.{place}.t": (columns,)
        for place, one in enumerate(aggregations)
        if one is Aggregation.SOFTMAX
    }


class GraphSage(ConvolutionKind):
    reads = frozenset({"aggregations", "bias", "root", "projects", "has_unit_rows"})

    def tensors(self, conv: ConvolutionManifest, ends: Ends) -> Shapes:
        project = dense_shapes("lin", ends.source, ends.source, bias=True) if conv.projects else {}
        own = dense_shapes("lin_r", conv.width, ends.target, bias=False) if conv.root else {}
        aggregated = len(conv.aggregations) * ends.source
        return {
            **project,
            **temperature_shapes(conv.aggregations, ends.source),
            **dense_shapes("lin_l", conv.width, aggregated, bias=conv.bias),
            **own,
        }

    def problems(self, conv: ConvolutionManifest, ends: Ends) -> list[str]:
        del ends
        return [] if conv.aggregations else ["aggregations is empty; name one, such as Mean"]

    def reads_target(self, conv: ConvolutionManifest) -> bool:
        return conv.root


class GraphConv(ConvolutionKind):
    reads = frozenset({"aggregations", "bias", "root", "edge_weight"})

    def tensors(self, conv: ConvolutionManifest, ends: Ends) -> Shapes:
        own = dense_shapes("lin_root", conv.width, ends.target, bias=False) if conv.root else {}
        return {
            **temperature_shapes(conv.aggregations, ends.source),
            **dense_shapes("lin_rel", conv.width, ends.source, bias=conv.bias),
            **own,
        }

    def problems(self, conv: ConvolutionManifest, ends: Ends) -> list[str]:
        del ends
        count = len(conv.aggregations)
        return [] if count == 1 else [f"{count} aggregations are given; GraphConv has one, such as Sum"]

    def reads_target(self, conv: ConvolutionManifest) -> bool:
        return conv.root
