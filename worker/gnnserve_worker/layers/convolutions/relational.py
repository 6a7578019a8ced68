"""Attention over kinds of edges, RGAT: scores are of the products of all heads, and both ends have one matrix."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gnnserve_api.files.layers import ConvolutionManifest
from gnnserve_worker.layers.convolutions.attention import NO_MATRIX, AdditiveAttention, Attention, HeadProducts, by_head
from gnnserve_worker.layers.convolutions.kind import BuiltConvolution, Ends, Shapes, dense_shapes
from gnnserve_worker.layers.dense import Product


class Rgat(Attention):
    """Vectors of the scores are columns: `q` of the node itself, `k` of a neighbour, `e` of columns of edges."""

    reads = frozenset({"heads", "averages_heads", "negative_slope", "bias", "edge_columns"})

    def tensors(self, conv: ConvolutionManifest, ends: Ends) -> Shapes:
        wide = self.of_heads(conv)
        shapes = {
            **dense_shapes("lin", wide, ends.source, bias=False),
            "q": (wide, conv.heads),
            "k": (wide, conv.heads),
        }
        if conv.edge_columns:
            shapes |= {"lin_edge.weight": (wide, len(conv.edge_columns)), "e": (wide, conv.heads)}
        return {**shapes, "bias": (conv.width,)} if conv.bias else shapes

    def build(self, conv: ConvolutionManifest, ends: Ends, tensors: Mapping[str, np.ndarray]) -> BuiltConvolution:
        return AdditiveAttention(
            conv.heads,
            conv.negative_slope,
            False,
            Product.build(scored_by_all(tensors["lin.weight"], tensors["k"])),
            Product.build(scored_by_all(tensors["lin.weight"], tensors["q"])),
            ends.columns_of(conv.edge_columns),
            edge_vectors(conv, tensors),
            HeadProducts.build(by_head(tensors["lin.weight"], conv.heads), averages=conv.averages_heads),
            tensors.get("bias", np.zeros(conv.width, np.float32)),
        )

    def problems(self, conv: ConvolutionManifest, ends: Ends) -> list[str]:
        found = super().problems(conv, ends)
        if ends.source != ends.target and not ends.are_products:
            found.append(
                f"rows of {ends.target} columns read rows of {ends.source}, and one matrix is of both; give products "
                "before the layers, which make them as wide as each other"
            )
        return found


def scored_by_all(matrix: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Scores of the heads as one product of rows, float32 [heads, inputs]. `matrix`: [heads · columns of a head,
    inputs]; `vectors`: [heads · columns of a head, heads]."""
    found: np.ndarray = vectors.T @ matrix
    return found


def edge_vectors(conv: ConvolutionManifest, tensors: Mapping[str, np.ndarray]) -> np.ndarray:
    """Vectors of the scores over columns of edges, float32 [columns of the edges that are read, heads]."""
    if not conv.edge_columns:
        return NO_MATRIX
    return np.ascontiguousarray(scored_by_all(tensors["lin_edge.weight"], tensors["e"]).T)
