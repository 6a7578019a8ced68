"""Sums weighed by attention: GAT, GATv2 and Transformer. Softmax is over the list of a target alone."""

from __future__ import annotations

from gnnserve_api.files.layers import ConvolutionManifest
from gnnserve_worker.layers.convolutions.kind import ConvolutionKind, Ends, Shapes, dense_shapes


class Attention(ConvolutionKind):
    def problems(self, conv: ConvolutionManifest, ends: Ends) -> list[str]:
        found = []
        if conv.heads < 1:
            found.append(f"heads is {conv.heads}; give 1 or more")
        elif not conv.averages_heads and conv.width % conv.heads:
            found.append(f"width {conv.width} is no multiple of heads {conv.heads}")
        if "self_loops" in self.reads and conv.self_loops and not ends.is_same_type:
            found.append("nodes of another type are read, which have no self-loops; set selfLoops to false")
        return found

    def of_heads(self, conv: ConvolutionManifest) -> int:
        """Columns of all heads beside each other."""
        return conv.heads * columns_of_head(conv)


def columns_of_head(conv: ConvolutionManifest) -> int:
    return conv.width if conv.averages_heads else conv.width // conv.heads


class Gat(Attention):
    """Both ends have a matrix each; where a file has one for both, `lin.weight`, it stands under either name."""

    reads = frozenset({"heads", "averages_heads", "negative_slope", "self_loops", "bias", "edge_columns"})

    def tensors(self, conv: ConvolutionManifest, ends: Ends) -> Shapes:
        wide, by_head = self.of_heads(conv), (1, conv.heads, columns_of_head(conv))
        shapes = {
            **dense_shapes("lin_src", wide, ends.source, bias=False),
            **dense_shapes("lin_dst", wide, ends.target, bias=False),
            "att_src": by_head,
            "att_dst": by_head,
        }
        if conv.edge_columns:
            shapes |= {"lin_edge.weight": (wide, len(conv.edge_columns)), "att_edge": by_head}
        return {**shapes, "bias": (conv.width,)} if conv.bias else shapes


class Gatv2(Attention):
    reads = frozenset(
        {"heads", "averages_heads", "negative_slope", "self_loops", "bias", "edge_columns", "shares_weights"}
    )

    def tensors(self, conv: ConvolutionManifest, ends: Ends) -> Shapes:
        wide = self.of_heads(conv)
        shapes = {**dense_shapes("lin_l", wide, ends.source, bias=conv.bias)}
        if not conv.shares_weights:
            shapes |= dense_shapes("lin_r", wide, ends.target, bias=conv.bias)
        shapes["att"] = (1, conv.heads, columns_of_head(conv))
        if conv.edge_columns:
            shapes["lin_edge.weight"] = (wide, len(conv.edge_columns))
        return {**shapes, "bias": (conv.width,)} if conv.bias else shapes

    def problems(self, conv: ConvolutionManifest, ends: Ends) -> list[str]:
        found = super().problems(conv, ends)
        if conv.shares_weights and ends.source != ends.target:
            found.append(
                f"rows of {ends.source} columns read rows of {ends.target}, which cannot share weights; set "
                "sharesWeights to false"
            )
        return found


class Transformer(Attention):
    reads = frozenset({"heads", "averages_heads", "bias", "root", "has_beta", "edge_columns"})

    def tensors(self, conv: ConvolutionManifest, ends: Ends) -> Shapes:
        wide = self.of_heads(conv)
        shapes = {
            **dense_shapes("lin_key", wide, ends.source, bias=conv.bias),
            **dense_shapes("lin_query", wide, ends.target, bias=conv.bias),
            **dense_shapes("lin_value", wide, ends.source, bias=conv.bias),
        }
        if conv.edge_columns:
            shapes["lin_edge.weight"] = (wide, len(conv.edge_columns))
        if conv.root:
            shapes |= dense_shapes("lin_skip", conv.width, ends.target, bias=conv.bias)
        return {**shapes, "lin_beta.weight": (1, 3 * conv.width)} if conv.has_beta else shapes

    def problems(self, conv: ConvolutionManifest, ends: Ends) -> list[str]:
        found = super().problems(conv, ends)
        if conv.has_beta and not conv.root:
            found.append("hasBeta weighs the node's own row, which is not read; set root to true, or hasBeta to false")
        return found
