"""Sums weighed by the roots of both degrees, over one hop or several: GCN, SGC, APPNP, GCNII, TAG and Chebyshev."""

from __future__ import annotations

from typing import ClassVar

from gnnserve_api.files.layers import ConvolutionManifest
from gnnserve_worker.layers.convolutions.kind import ConvolutionKind, Degrees, Ends, Shapes, dense_shapes


class Propagation(ConvolutionKind):
    """Sums over the neighbours and, mostly, the node itself. Weights of the graph that a sample has are right for those
    that count each node once in its own list, and nothing else; others count the lists."""

    adds_self_loops: ClassVar[bool] = True
    """Whether it can add self-loops."""

    def problems(self, conv: ConvolutionManifest, ends: Ends) -> list[str]:
        found = []
        if not ends.is_same_type:
            found.append("it is of relations within a type; take GraphSAGE, GraphConv or attention between types")
        if conv.hops < 1:
            found.append(f"hops is {conv.hops}; give 1 or more")
        return found

    def reads_target(self, conv: ConvolutionManifest) -> bool:
        return conv.hops > 1 or self.has_self_loops(conv)

    def has_self_loops(self, conv: ConvolutionManifest) -> bool:
        """Whether each node reads itself once. Without normalisation torch_geometric adds nothing."""
        return self.adds_self_loops and conv.self_loops and conv.is_normalised

    def degrees(self, conv: ConvolutionManifest, ends: Ends) -> Degrees:
        if not conv.is_normalised:
            return Degrees.NONE
        is_of_graph = ends.is_only_type and self.has_self_loops(conv) and not conv.edge_weight
        return Degrees.OF_SAMPLE if is_of_graph else Degrees.OF_LISTS


class Gcn(Propagation):
    reads = frozenset({"self_loops", "improved", "is_normalised", "bias", "edge_weight"})

    def tensors(self, conv: ConvolutionManifest, ends: Ends) -> Shapes:
        bias = {"bias": (conv.width,)} if conv.bias else {}
        return {**dense_shapes("lin", conv.width, ends.source, bias=False), **bias}


class Sgc(Propagation):
    reads = frozenset({"hops", "self_loops", "bias", "edge_weight"})

    def tensors(self, conv: ConvolutionManifest, ends: Ends) -> Shapes:
        return dense_shapes("lin", conv.width, ends.source, bias=conv.bias)


class Appnp(Propagation):
    reads = frozenset({"hops", "alpha", "self_loops", "is_normalised", "edge_weight"})

    def tensors(self, conv: ConvolutionManifest, ends: Ends) -> Shapes:
        del conv, ends
        return {}

    def width(self, conv: ConvolutionManifest, ends: Ends) -> int:
        del conv
        return ends.source

    def reads_target(self, conv: ConvolutionManifest) -> bool:
        del conv
        return True


class Gcnii(Propagation):
    reads = frozenset({"alpha", "theta", "shares_weights", "self_loops", "is_normalised", "edge_weight"})

    def tensors(self, conv: ConvolutionManifest, ends: Ends) -> Shapes:
        """Both multiply rows from the right: x · weight."""
        del ends
        square = (conv.width, conv.width)
        return {"weight1": square} if conv.shares_weights else {"weight1": square, "weight2": square}

    def problems(self, conv: ConvolutionManifest, ends: Ends) -> list[str]:
        found = super().problems(conv, ends)
        read = {"the layer's input": ends.source, "the network's input": ends.network_input}
        found += [
            f"width is {conv.width}, and {whose} has {columns} columns; they are equal, by products before the layers"
            for whose, columns in read.items()
            if columns != conv.width
        ]
        return found

    def reads_network_input(self, conv: ConvolutionManifest) -> bool:
        del conv
        return True


class Tag(Propagation):
    adds_self_loops = False
    reads = frozenset({"hops", "is_normalised", "bias", "edge_weight"})

    def tensors(self, conv: ConvolutionManifest, ends: Ends) -> Shapes:
        shapes = {f"lins.{hop}.weight": (conv.width, ends.source) for hop in range(conv.hops + 1)}
        return {**shapes, "bias": (conv.width,)} if conv.bias else shapes

    def reads_target(self, conv: ConvolutionManifest) -> bool:
        del conv
        return True


class Chebyshev(Tag):
    """torch_geometric's with normalization "sym", whose largest eigenvalue is taken for 2."""

    reads = frozenset({"hops", "bias"})

    def problems(self, conv: ConvolutionManifest, ends: Ends) -> list[str]:
        found = super().problems(conv, ends)
        if not ends.is_undirected:
            found.append(
                "it counts the edges that leave a node, which lists of directed edges do not tell; make the edges of "
                "its relation undirected"
            )
        return found
