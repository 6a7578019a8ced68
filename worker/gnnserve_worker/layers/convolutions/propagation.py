"""Sums weighed by the roots of both degrees, over one hop or several: GCN, SGC, APPNP, GCNII, TAG and Chebyshev."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from gnnserve_api.files.layers import ConvolutionManifest
from gnnserve_worker.layers.aggregates import NO_WEIGHTS, sum_lists
from gnnserve_worker.layers.convolutions.kind import (
    BuiltConvolution,
    ConvolutionKind,
    Degrees,
    Ends,
    Shapes,
    Step,
    dense_shapes,
)
from gnnserve_worker.layers.dense import Product
from gnnserve_worker.layers.lists import Normalisation, NormalisedWeights, RelationLists


class WeighLists(Protocol):
    """Weights of sums over lists. `count`: targets that are summed for, the first ones."""

    def __call__(self, lists: RelationLists, count: int) -> NormalisedWeights: ...  # pragma: no cover


@dataclass(frozen=True, slots=True)
class GraphDegrees:
    """Weights by the degrees of the graph, which a sample has."""

    def __call__(self, lists: RelationLists, count: int) -> NormalisedWeights:
        del count
        return lists.weights_of_graph()


@dataclass(frozen=True, slots=True)
class ListDegrees:
    """Weights by the degrees that whole lists have."""

    normalisation: Normalisation

    def __call__(self, lists: RelationLists, count: int) -> NormalisedWeights:
        return lists.normalised(self.normalisation, count)


@dataclass(frozen=True, slots=True)
class ColumnWeights:
    """Weights that edges have."""

    column: int | None
    """Place of the column; None: each edge counts 1."""

    def __call__(self, lists: RelationLists, count: int) -> NormalisedWeights:
        del count
        return NormalisedWeights(lists.weights(self.column), NO_WEIGHTS)


class Then(Protocol):
    """A change of what a hop gave, by the rows of the hops before, the node's own first."""

    def __call__(self, rows: np.ndarray, hops: Sequence[np.ndarray]) -> None: ...  # pragma: no cover


@dataclass(frozen=True, slots=True)
class KeptInput:
    """APPNP: a share of the first rows takes the place of as much of the sum."""

    share: np.float32

    def __call__(self, rows: np.ndarray, hops: Sequence[np.ndarray]) -> None:
        rows *= np.float32(1.0) - self.share
        rows += self.share * hops[0][: len(rows)]


@dataclass(frozen=True, slots=True)
class Propagated(BuiltConvolution):
    """Rows of the neighbours and the node itself, propagated over hops, and a product behind. Hops in between write
    rows of fewer and fewer nodes; where the product reads all of them, they stand beside each other."""

    weigh: WeighLists
    product: Product | None
    """None: the propagated rows are the output."""
    is_beside: bool
    """Whether the product reads the rows of each hop, the node's own first."""
    then: Then | None = None

    def aggregate(self, products: np.ndarray, step: Step) -> np.ndarray:
        weights, lists, memory = self.weigh(step.lists, step.counts[0]), step.lists, step.memory
        hops = [products]
        for count in step.counts:
            rows = memory.rows(count, products.shape[1])
            sum_lists(
                hops[-1], lists.sources, lists.bounds, weights.of_edges, hops[-1], weights.of_targets, False, rows, 0,
            )  # fmt: skip
            if self.then is not None:
                self.then(rows, hops)
            hops.append(rows)
        if not self.is_beside:
            return hops[-1]
        columns = products.shape[1]
        beside = memory.rows(step.count, len(hops) * columns)
        for place, rows in enumerate(hops):
            beside[:, place * columns : (place + 1) * columns] = rows[: step.count]
        return beside

    def behind(self, aggregated: np.ndarray, step: Step) -> np.ndarray:
        return aggregated if self.product is None else self.product(aggregated, step.memory)


@dataclass(frozen=True, slots=True)
class WithInitial(Propagated):
    """GCNII: a share of the network's input is added, and products of both are near the identity."""

    alpha: float = 0.0
    of_initial: Product | None = None
    """None: both are multiplied by one matrix."""

    def behind(self, aggregated: np.ndarray, step: Step) -> np.ndarray:
        memory = step.memory
        initial = memory.rows(step.count, aggregated.shape[1])
        np.multiply(step.network_input[: step.count], np.float32(self.alpha), out=initial)
        aggregated *= np.float32(1.0 - self.alpha)
        if self.of_initial is None:
            aggregated += initial
        assert self.product is not None  # noqa: S101 - it has one
        rows = self.product(aggregated, memory)
        if self.of_initial is not None:
            rows += self.of_initial(initial, memory)
        return rows


class Propagation(ConvolutionKind):
    """Sums over the neighbours and, mostly, the node itself. Weights of the graph that a sample has are right for those
    that count each node once in its own list, and nothing else; others count the lists."""

    adds_self_loops: ClassVar[bool] = True
    """Whether it can add self-loops."""
    keeps_self: ClassVar[bool] = True
    """Whether, without self-loops, a node that stands in its own list counts as any neighbour."""

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
        is_of_graph = ends.is_only_type and ends.is_whole and self.has_self_loops(conv) and not conv.edge_weight
        return Degrees.OF_SAMPLE if is_of_graph else Degrees.OF_LISTS

    def weigh(self, conv: ConvolutionManifest, ends: Ends) -> WeighLists:
        column = ends.column_of(conv.edge_weight)
        if not conv.is_normalised:
            return ColumnWeights(column)
        if self.degrees(conv, ends) is Degrees.OF_SAMPLE:
            return GraphDegrees()
        has_self_loops = self.has_self_loops(conv)
        keeps_self = self.keeps_self and not has_self_loops
        normalisation = Normalisation(has_self_loops, keeps_self, 2.0 if conv.improved else 1.0, column)
        return ListDegrees(normalisation)


class Gcn(Propagation):
    reads = frozenset({"self_loops", "improved", "is_normalised", "bias", "edge_weight"})

    def tensors(self, conv: ConvolutionManifest, ends: Ends) -> Shapes:
        bias = {"bias": (conv.width,)} if conv.bias else {}
        return {**dense_shapes("lin", conv.width, ends.source, bias=False), **bias}

    def build(self, conv: ConvolutionManifest, ends: Ends, tensors: Mapping[str, np.ndarray]) -> BuiltConvolution:
        product = Product.build(tensors["lin.weight"], tensors.get("bias"))
        return Propagated(self.weigh(conv, ends), product, is_beside=False)


class Sgc(Propagation):
    reads = frozenset({"hops", "self_loops", "bias", "edge_weight"})

    def tensors(self, conv: ConvolutionManifest, ends: Ends) -> Shapes:
        return dense_shapes("lin", conv.width, ends.source, bias=conv.bias)

    def build(self, conv: ConvolutionManifest, ends: Ends, tensors: Mapping[str, np.ndarray]) -> BuiltConvolution:
        product = Product.build(tensors["lin.weight"], tensors.get("lin.bias"))
        return Propagated(self.weigh(conv, ends), product, is_beside=False)


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

    def build(self, conv: ConvolutionManifest, ends: Ends, tensors: Mapping[str, np.ndarray]) -> BuiltConvolution:
        del tensors
        return Propagated(self.weigh(conv, ends), None, is_beside=False, then=KeptInput(np.float32(conv.alpha)))


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

    def build(self, conv: ConvolutionManifest, ends: Ends, tensors: Mapping[str, np.ndarray]) -> BuiltConvolution:
        beta = 1.0 if conv.theta is None else math.log(conv.theta / ends.layer + 1)

        def near_identity(name: str) -> Product:
            return Product.build(beta * tensors[name].T + (1.0 - beta) * np.eye(conv.width, dtype=np.float32))

        return WithInitial(
            self.weigh(conv, ends),
            near_identity("weight1"),
            is_beside=False,
            alpha=conv.alpha,
            of_initial=None if conv.shares_weights else near_identity("weight2"),
        )


class Tag(Propagation):
    """torch_geometric's TAGConv is without self-loops; with them it is a MixHopConv whose powers go from 0 on."""

    reads = frozenset({"hops", "self_loops", "is_normalised", "bias", "edge_weight"})

    def tensors(self, conv: ConvolutionManifest, ends: Ends) -> Shapes:
        shapes = {f"lins.{hop}.weight": (conv.width, ends.source) for hop in range(conv.hops + 1)}
        return {**shapes, "bias": (conv.width,)} if conv.bias else shapes

    def reads_target(self, conv: ConvolutionManifest) -> bool:
        del conv
        return True

    def build(self, conv: ConvolutionManifest, ends: Ends, tensors: Mapping[str, np.ndarray]) -> BuiltConvolution:
        matrices = [tensors[f"lins.{hop}.weight"] for hop in range(conv.hops + 1)]
        product = Product.build(np.concatenate(matrices, axis=1), tensors.get("bias"))
        return Propagated(self.weigh(conv, ends), product, is_beside=True, then=self.then)

    @property
    def then(self) -> Then | None:
        """What changes the rows of a hop."""
        return None


class Chebyshev(Tag):
    """torch_geometric's with normalization "sym", whose largest eigenvalue is taken for 2: the Laplacian less the
    identity is then the negative of the sum that is weighed by degrees, without self-loops."""

    adds_self_loops = False
    keeps_self = False
    reads = frozenset({"hops", "bias"})

    def problems(self, conv: ConvolutionManifest, ends: Ends) -> list[str]:
        found = super().problems(conv, ends)
        if not ends.is_undirected:
            found.append(
                "it counts the edges that leave a node, which lists of directed edges do not tell; make the edges of "
                "its relation undirected"
            )
        return found

    @property
    def then(self) -> Then | None:
        return _chebyshev


def _chebyshev(rows: np.ndarray, hops: Sequence[np.ndarray]) -> None:
    """The next polynomial: -2 · sum - the one before the last; the first one is -sum."""
    rows *= np.float32(-1.0 if len(hops) == 1 else -2.0)
    if len(hops) > 1:
        rows -= hops[-2][: len(rows)]
