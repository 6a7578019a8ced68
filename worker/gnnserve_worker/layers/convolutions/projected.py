"""Convolutions that read products in place of rows: what each kind multiplies rows by before it aggregates them, as far
as its aggregate commutes with products, and what is left of it behind. Max, PNA and the like do not commute.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gnnserve_api.files.layers import Aggregation, Convolution, ConvolutionManifest
from gnnserve_worker.kernel_cache import kernel
from gnnserve_worker.layers.aggregates import NO_WEIGHTS, Aggregate, build_aggregates, sum_lists
from gnnserve_worker.layers.convolutions.attention import (
    NO_MATRIX,
    HeadProducts,
    JointAttention,
    add_scores,
    by_head,
    columns_of_head,
    gate,
    heads_together,
    queries_of,
    scored_by_head,
    sum_heads,
)
from gnnserve_worker.layers.convolutions.film import modulate
from gnnserve_worker.layers.convolutions.kind import (
    AttendingConvolution,
    BuiltConvolution,
    EdgeScores,
    Ends,
    Shapes,
    Step,
)
from gnnserve_worker.layers.convolutions.propagation import Gcn, Propagated, Propagation, Sgc, Tag, WeighLists
from gnnserve_worker.layers.convolutions.relational import edge_vectors, scored_by_all
from gnnserve_worker.layers.dense import (
    AsTheyAre,
    Change,
    Product,
    Tensors,
    UnitRows,
    below,
    build_changes,
    build_products,
    products_shapes,
    run_products,
)
from gnnserve_worker.layers.lists import Columns
from gnnserve_worker.layers.memory import taken
from gnnserve_worker.tables.table import NO_SCALES
from gnnserve_worker.tables.vectors import dot_row


@dataclass(frozen=True, slots=True)
class Matrix:
    """x · Wᵀ + b"""

    weight: np.ndarray
    """float32 [outputs, inputs]"""
    bias: np.ndarray | None = None
    """None: nothing is added."""


@dataclass(frozen=True, slots=True)
class ProductColumns:
    """Columns of the products that a convolution reads."""

    neighbour: int
    """Columns of a neighbour's product."""
    own: int = 0
    """Columns of the node's own product; 0: it has none."""
    is_shared: bool = False
    """Whether the product of the node itself is that which it has as a neighbour."""


class ProjectedKind(ABC):
    """A kind of convolution over products."""

    def why_not(self, conv: ConvolutionManifest) -> str:
        """Why one of the kind does not commute with products, as a clause; empty: it does."""
        del conv
        return ""

    @abstractmethod
    def columns(self, conv: ConvolutionManifest, ends: Ends) -> ProductColumns: ...

    @abstractmethod
    def matrices(self, conv: ConvolutionManifest, tensors: Tensors) -> tuple[Matrix, Matrix | None]:
        """Matrices of a neighbour's row and of the node's own. `tensors`: those of the convolution over rows."""

    @abstractmethod
    def tensors(self, conv: ConvolutionManifest) -> Shapes:
        """Shapes of the tensors that are left, under the same names."""

    @abstractmethod
    def build(self, conv: ConvolutionManifest, ends: Ends, tensors: Tensors) -> BuiltConvolution:
        """`ends`: of the products; `tensors`: those that are left."""


# --- means and sums


@dataclass(frozen=True, slots=True)
class AggregateOfProducts(BuiltConvolution):
    """Means or sums of products, and the node's own product where that is read."""

    add_up: Aggregate
    weight: int | None
    """Place of the column that weighs edges."""
    has_own: bool
    bias: np.ndarray | None
    behind_sum: tuple[Change, ...]

    def aggregate(self, products: np.ndarray, step: Step) -> np.ndarray:
        lists, out = step.lists, step.memory.rows(step.count, products.shape[1])
        self.add_up.write(products, lists.sources, lists.bounds, lists.weights(self.weight), out, 0)
        return out

    def behind(self, aggregated: np.ndarray, step: Step) -> np.ndarray:
        if self.has_own:
            aggregated += step.targets[: step.count]
        if self.bias is not None:
            aggregated += self.bias
        for change in self.behind_sum:
            change(aggregated)
        return aggregated


class _Aggregated(ProjectedKind):
    """GraphSAGE and GraphConv."""

    def __init__(self, of_neighbours: str, of_own: str) -> None:
        """Names of the matrices."""
        self._of_neighbours, self._of_own = of_neighbours, of_own

    def why_not(self, conv: ConvolutionManifest) -> str:
        if conv.projects:
            return "project stands between rows and what is aggregated"
        if len(conv.aggregations) != 1 or conv.aggregations[0] not in (Aggregation.MEAN, Aggregation.SUM):
            return (
                f"aggregations {', '.join(conv.aggregations)} do not commute with products, as Mean or Sum alone does"
            )
        return ""

    def columns(self, conv: ConvolutionManifest, ends: Ends) -> ProductColumns:
        return ProductColumns(conv.width, conv.width if conv.root else 0)

    def matrices(self, conv: ConvolutionManifest, tensors: Tensors) -> tuple[Matrix, Matrix | None]:
        own = Matrix(tensors[f"{self._of_own}.weight"]) if conv.root else None
        return Matrix(tensors[f"{self._of_neighbours}.weight"]), own

    def tensors(self, conv: ConvolutionManifest) -> Shapes:
        return {f"{self._of_neighbours}.bias": (conv.width,)} if conv.bias else {}

    def build(self, conv: ConvolutionManifest, ends: Ends, tensors: Tensors) -> BuiltConvolution:
        (add_up,) = build_aggregates(conv.aggregations, tensors)
        return AggregateOfProducts(
            add_up,
            ends.column_of(conv.edge_weight),
            conv.root,
            tensors.get(f"{self._of_neighbours}.bias"),
            (UnitRows(),) if conv.has_unit_rows else (),
        )


@dataclass(frozen=True, slots=True)
class SumOfProducts(BuiltConvolution):
    """GIN: behind the sum what its first product adds, and the products behind that."""

    own_weight: np.ndarray
    """float32 [1]: 1 + eps"""
    bias: np.ndarray | None
    changes: tuple[Change, ...]
    products: tuple[Product, ...]

    def aggregate(self, products: np.ndarray, step: Step) -> np.ndarray:
        lists, out = step.lists, step.memory.rows(step.count, products.shape[1])
        sum_lists(
            products, lists.sources, lists.bounds, NO_WEIGHTS, step.targets, self.own_weight, False, out, 0
        )  # fmt: skip
        return out

    def behind(self, aggregated: np.ndarray, step: Step) -> np.ndarray:
        if self.bias is not None:
            aggregated += self.bias
        for change in self.changes:
            change(aggregated)
        return run_products(self.products, aggregated, step.memory)


class _Gin(ProjectedKind):
    def columns(self, conv: ConvolutionManifest, ends: Ends) -> ProductColumns:
        width = conv.mlp[0].width
        return ProductColumns(width, 0 if ends.is_same_type else width, ends.is_same_type)

    def matrices(self, conv: ConvolutionManifest, tensors: Tensors) -> tuple[Matrix, Matrix | None]:
        matrix = Matrix(tensors["nn.0.weight"])
        return matrix, matrix

    def tensors(self, conv: ConvolutionManifest) -> Shapes:
        of_all = products_shapes("nn", conv.mlp, 0)
        return {"eps": (1,), **{key: shape for key, shape in of_all.items() if key != "nn.0.weight"}}

    def build(self, conv: ConvolutionManifest, ends: Ends, tensors: Tensors) -> BuiltConvolution:
        del ends
        first, products = conv.mlp[0], below(tensors, "nn")
        own = below(products, "0")
        changes = build_changes(
            first.norm, below(own, "norm"), first.norm_epsilon, first.activation, below(own, "activation"), first.slope,
            first.is_norm_behind,
        )  # fmt: skip
        behind = {f"{int(place) - 1}.{name}": one for place, name, one in _by_place(products) if place != "0"}
        return SumOfProducts(1 + tensors["eps"], own.get("bias"), changes, build_products(conv.mlp[1:], behind))


def _by_place(tensors: Tensors) -> Sequence[tuple[str, str, np.ndarray]]:
    return [(*key.split(".", 1), one) for key, one in tensors.items()]  # type: ignore[misc]


# --- sums weighed by degrees


@dataclass(frozen=True, slots=True)
class PropagatedProducts(Propagated):
    bias: np.ndarray | None = None

    def behind(self, aggregated: np.ndarray, step: Step) -> np.ndarray:
        if self.bias is not None:
            aggregated += self.bias
        return aggregated


class _Propagated(ProjectedKind):
    """GCN and SGC."""

    def __init__(self, kind: Propagation, bias: str) -> None:
        """`bias`: its name."""
        self._kind, self._bias = kind, bias

    def columns(self, conv: ConvolutionManifest, ends: Ends) -> ProductColumns:
        return ProductColumns(conv.width, is_shared=True)

    def matrices(self, conv: ConvolutionManifest, tensors: Tensors) -> tuple[Matrix, Matrix | None]:
        return Matrix(tensors["lin.weight"]), None

    def tensors(self, conv: ConvolutionManifest) -> Shapes:
        return {self._bias: (conv.width,)} if conv.bias else {}

    def build(self, conv: ConvolutionManifest, ends: Ends, tensors: Tensors) -> BuiltConvolution:
        weigh = self._kind.weigh(conv, ends)
        return PropagatedProducts(weigh, None, is_beside=False, bias=tensors.get(self._bias))


@dataclass(frozen=True, slots=True)
class PowersOfProducts(BuiltConvolution):
    """TAG: the product of the furthest hop is propagated first, and that of each nearer one is added on the way."""

    weigh: WeighLists
    bias: np.ndarray | None

    def aggregate(self, products: np.ndarray, step: Step) -> np.ndarray:
        weights, lists, memory, left = self.weigh(step.lists, step.counts[0]), step.lists, step.memory, len(step.counts)
        columns = products.shape[1] // (left + 1)
        rows = memory.rows(len(products), columns)
        rows[:] = products[:, left * columns :]
        for count in step.counts:
            left -= 1
            nearer = memory.rows(count, columns)
            sum_lists(
                rows, lists.sources, lists.bounds, weights.of_edges, rows, weights.of_targets, False, nearer, 0
            )  # fmt: skip
            nearer += products[:count, left * columns : (left + 1) * columns]
            rows = nearer
        return rows

    def behind(self, aggregated: np.ndarray, step: Step) -> np.ndarray:
        if self.bias is not None:
            aggregated += self.bias
        return aggregated


class _Tag(ProjectedKind):
    def columns(self, conv: ConvolutionManifest, ends: Ends) -> ProductColumns:
        return ProductColumns((conv.hops + 1) * conv.width, is_shared=True)

    def matrices(self, conv: ConvolutionManifest, tensors: Tensors) -> tuple[Matrix, Matrix | None]:
        return Matrix(np.concatenate([tensors[f"lins.{hop}.weight"] for hop in range(conv.hops + 1)])), None

    def tensors(self, conv: ConvolutionManifest) -> Shapes:
        return {"bias": (conv.width,)} if conv.bias else {}

    def build(self, conv: ConvolutionManifest, ends: Ends, tensors: Tensors) -> BuiltConvolution:
        return PowersOfProducts(Tag().weigh(conv, ends), tensors.get("bias"))


# --- what the node itself scales


@dataclass(frozen=True, slots=True)
class ModulatedProducts(BuiltConvolution):
    """FiLM: the node itself has beside each other what neighbours are scaled and shifted by, its own row, and what that
    is scaled and shifted by."""

    slope: float

    def aggregate(self, products: np.ndarray, step: Step) -> np.ndarray:
        lists, memory, count, columns = step.lists, step.memory, step.count, products.shape[1]
        modulation, own, own_modulation = (
            taken(step.targets[:count], slice(first * columns, end * columns), memory)
            for first, end in ((0, 2), (2, 3), (3, 5))
        )
        out = memory.rows(count, columns)
        modulate(products, modulation, own, own_modulation, lists.sources, lists.bounds, self.slope, out)
        return out


class _Film(ProjectedKind):
    def columns(self, conv: ConvolutionManifest, ends: Ends) -> ProductColumns:
        return ProductColumns(conv.width, 5 * conv.width)

    def matrices(self, conv: ConvolutionManifest, tensors: Tensors) -> tuple[Matrix, Matrix | None]:
        own = np.concatenate([tensors[f"{name}.weight"] for name in ("films.0", "lin_skip", "film_skip")])
        bias = np.concatenate([tensors["films.0.bias"], np.zeros(3 * conv.width, np.float32)])
        return Matrix(tensors["lins.0.weight"]), Matrix(own, bias)

    def tensors(self, conv: ConvolutionManifest) -> Shapes:
        return {}

    def build(self, conv: ConvolutionManifest, ends: Ends, tensors: Tensors) -> BuiltConvolution:
        return ModulatedProducts(conv.negative_slope)


# --- attention


@dataclass(frozen=True, slots=True)
class AttentionOfProducts(AttendingConvolution):
    """GAT and RGAT over the values of a neighbour and its scores behind them, and scores of the node itself."""

    heads: int
    slope: float
    has_self_loops: bool
    edge_columns: Columns
    edge_vectors: np.ndarray
    """float32 [columns of the edges that are read, heads]"""
    averages: bool
    bias: np.ndarray

    def scores(self, products: np.ndarray, step: Step) -> EdgeScores:
        lists, memory, count, heads = step.lists, step.memory, step.count, self.heads
        columns, edges = products.shape[1] - heads, int(lists.bounds[count])
        of_sources = memory.rows(len(products), heads)
        of_sources[:] = products[:, columns:]
        scores, own = memory.rows(edges, heads), memory.rows(count if self.has_self_loops else 0, heads)
        add_scores(
            of_sources, step.targets[:count], lists.columns(self.edge_columns), self.edge_vectors, lists.sources,
            lists.bounds, self.slope, scores, own,
        )  # fmt: skip
        return EdgeScores(scores, own)

    def attended(self, products: np.ndarray, scores: EdgeScores, step: Step, *, are_weights: bool) -> np.ndarray:
        of_head = products.shape[1] // self.heads - 1
        return sum_heads(products, scores, step, of_head, of_head, are_weights=are_weights)

    def behind(self, aggregated: np.ndarray, step: Step) -> np.ndarray:
        return heads_together(aggregated, self.heads, self.averages, self.bias, step)


class _Gat(ProjectedKind):
    def columns(self, conv: ConvolutionManifest, ends: Ends) -> ProductColumns:
        return ProductColumns(conv.heads * (columns_of_head(conv) + 1), conv.heads)

    def matrices(self, conv: ConvolutionManifest, tensors: Tensors) -> tuple[Matrix, Matrix | None]:
        def scored(end: str) -> np.ndarray:
            return scored_by_head(tensors[f"lin_{end}.weight"], tensors[f"att_{end}"])

        return Matrix(np.concatenate([tensors["lin_src.weight"], scored("src")])), Matrix(scored("dst"))

    def tensors(self, conv: ConvolutionManifest) -> Shapes:
        shapes: dict[str, tuple[int, ...]] = {"bias": (conv.width,)} if conv.bias else {}
        if conv.edge_columns:
            of_head = columns_of_head(conv)
            shapes |= {
                "lin_edge.weight": (conv.heads * of_head, len(conv.edge_columns)),
                "att_edge": (1, conv.heads, of_head),
            }
        return shapes

    def build(self, conv: ConvolutionManifest, ends: Ends, tensors: Tensors) -> BuiltConvolution:
        vectors = scored_by_head(tensors["lin_edge.weight"], tensors["att_edge"]).T if conv.edge_columns else NO_MATRIX
        return AttentionOfProducts(
            conv.heads,
            conv.negative_slope,
            conv.self_loops,
            ends.columns_of(conv.edge_columns),
            np.ascontiguousarray(vectors),
            conv.averages_heads,
            tensors.get("bias", np.zeros(conv.width, np.float32)),
        )


class _Rgat(_Gat):
    def matrices(self, conv: ConvolutionManifest, tensors: Tensors) -> tuple[Matrix, Matrix | None]:
        matrix = tensors["lin.weight"]
        neighbour = np.concatenate([matrix, scored_by_all(matrix, tensors["k"])])
        return Matrix(neighbour), Matrix(scored_by_all(matrix, tensors["q"]))

    def tensors(self, conv: ConvolutionManifest) -> Shapes:
        shapes: dict[str, tuple[int, ...]] = {"bias": (conv.width,)} if conv.bias else {}
        if conv.edge_columns:
            wide = conv.heads * columns_of_head(conv)
            shapes |= {"lin_edge.weight": (wide, len(conv.edge_columns)), "e": (wide, conv.heads)}
        return shapes

    def build(self, conv: ConvolutionManifest, ends: Ends, tensors: Tensors) -> BuiltConvolution:
        return AttentionOfProducts(
            conv.heads,
            conv.negative_slope,
            False,
            ends.columns_of(conv.edge_columns),
            edge_vectors(conv, tensors),
            conv.averages_heads,
            tensors.get("bias", np.zeros(conv.width, np.float32)),
        )


class _Gatv2(ProjectedKind):
    def columns(self, conv: ConvolutionManifest, ends: Ends) -> ProductColumns:
        wide = conv.heads * columns_of_head(conv)
        return ProductColumns(wide, 0 if conv.shares_weights else wide, conv.shares_weights)

    def matrices(self, conv: ConvolutionManifest, tensors: Tensors) -> tuple[Matrix, Matrix | None]:
        neighbour = Matrix(tensors["lin_l.weight"], tensors.get("lin_l.bias"))
        return neighbour, None if conv.shares_weights else Matrix(tensors["lin_r.weight"], tensors.get("lin_r.bias"))

    def tensors(self, conv: ConvolutionManifest) -> Shapes:
        of_head = columns_of_head(conv)
        shapes: dict[str, tuple[int, ...]] = {"att": (1, conv.heads, of_head)}
        if conv.edge_columns:
            shapes["lin_edge.weight"] = (conv.heads * of_head, len(conv.edge_columns))
        return {**shapes, "bias": (conv.width,)} if conv.bias else shapes

    def build(self, conv: ConvolutionManifest, ends: Ends, tensors: Tensors) -> BuiltConvolution:
        return JointAttention(
            conv.heads,
            conv.negative_slope,
            conv.self_loops,
            AsTheyAre(),
            AsTheyAre(),
            tensors["att"].reshape(-1),
            ends.columns_of(conv.edge_columns),
            np.ascontiguousarray(tensors["lin_edge.weight"].T) if conv.edge_columns else NO_MATRIX,
            conv.averages_heads,
            tensors.get("bias", np.zeros(conv.width, np.float32)),
        )


@dataclass(frozen=True, slots=True)
class QueriedProducts(AttendingConvolution):
    """Transformer over the values of a neighbour and its keys behind them. The node itself has its queries, these times
    the matrix of columns of edges, and what is added of its own row."""

    heads: int
    edge_columns: Columns
    edge_values: HeadProducts | None
    """Values of what each head has summed of columns of edges; None: it reads none."""
    averages: bool
    width: int
    has_skip: bool
    beta: np.ndarray | None

    def scores(self, products: np.ndarray, step: Step) -> EdgeScores:
        lists, memory, count, heads = step.lists, step.memory, step.count, self.heads
        edge_rows, of_head = lists.columns(self.edge_columns), products.shape[1] // (2 * heads)
        scores, queries = memory.rows(int(lists.bounds[count]), heads), step.targets[:count]
        _score_keys(
            products.reshape(-1, of_head), queries, edge_rows, lists.sources, lists.bounds, scores, NO_SCALES,
        )  # fmt: skip
        return EdgeScores(scores, memory.rows(0, heads))

    def attended(self, products: np.ndarray, scores: EdgeScores, step: Step, *, are_weights: bool) -> np.ndarray:
        lists, memory, of_head = step.lists, step.memory, products.shape[1] // (2 * self.heads)
        summed = sum_heads(products, scores, step, of_head, of_head, are_weights=are_weights)
        if self.edge_values is not None:
            edge_rows = lists.columns(self.edge_columns)
            of_edges = memory.rows(step.count, self.heads * edge_rows.shape[1])
            _sum_edges(scores.of_edges, edge_rows, lists.bounds, of_edges)
            summed += self.edge_values(of_edges, memory)
        return summed

    def behind(self, aggregated: np.ndarray, step: Step) -> np.ndarray:
        rows = heads_together(aggregated, self.heads, self.averages, np.float32(0.0), step)
        if not self.has_skip:
            return rows
        columns = step.targets.shape[1]
        own = taken(step.targets[: step.count], slice(columns - self.width, columns), step.memory)
        if self.beta is None:
            rows += own
        else:
            gate(self.beta, own, rows)
        return rows


@kernel
def _score_keys(
    rows: np.ndarray, queries: np.ndarray, edge_rows: np.ndarray, sources: np.ndarray, bounds: np.ndarray,
    scores: np.ndarray, no_scales: np.ndarray,
) -> None:  # fmt: skip
    """Fill in the scores of the edges, [edges, heads]. `rows`: for each node the values of its heads, a row each, and
    behind them their keys."""
    heads, columns, width = scores.shape[1], rows.shape[1], edge_rows.shape[1]
    flat, stride = queries.reshape(-1), queries.shape[1]
    for target in range(len(queries)):
        for edge in range(bounds[target], bounds[target + 1]):
            keys = (2 * sources[edge] + 1) * heads
            for head in range(heads):
                score = dot_row(rows, no_scales, keys + head, columns, flat, target * stride + head * columns)
                first = heads * columns + head * width
                for place in range(width):
                    score += queries[target, first + place] * edge_rows[edge, place]
                scores[edge, head] = score


@kernel
def _sum_edges(weights: np.ndarray, edge_rows: np.ndarray, bounds: np.ndarray, out: np.ndarray) -> None:
    """Sums of the columns of the edges by the weights of each head, beside each other."""
    heads, width = weights.shape[1], edge_rows.shape[1]
    for target in range(len(out)):
        out[target] = 0.0
        for edge in range(bounds[target], bounds[target + 1]):
            for head in range(heads):
                for place in range(width):
                    out[target, head * width + place] += weights[edge, head] * edge_rows[edge, place]


class _Transformer(ProjectedKind):
    def columns(self, conv: ConvolutionManifest, ends: Ends) -> ProductColumns:
        wide, of_edges = conv.heads * columns_of_head(conv), conv.heads * len(conv.edge_columns)
        return ProductColumns(2 * wide, wide + of_edges + (conv.width if conv.root else 0))

    def matrices(self, conv: ConvolutionManifest, tensors: Tensors) -> tuple[Matrix, Matrix | None]:
        wide, root = conv.heads * columns_of_head(conv), np.float32(np.sqrt(columns_of_head(conv)))
        none = np.zeros(wide, np.float32)
        neighbour = Matrix(
            np.concatenate([tensors["lin_value.weight"], tensors["lin_key.weight"]]),
            np.concatenate([tensors.get("lin_value.bias", none), tensors.get("lin_key.bias", none)]),
        )
        own = [(tensors["lin_query.weight"] / root, tensors.get("lin_query.bias", none) / root)]
        if conv.edge_columns:
            own.append(queries_of(conv, tensors, [by_head(tensors["lin_edge.weight"], conv.heads)]))
        if conv.root:
            bias = tensors.get("lin_skip.bias", np.zeros(conv.width, np.float32))
            own.append((tensors["lin_skip.weight"], bias))
        weights, biases = zip(*own, strict=True)
        return neighbour, Matrix(np.concatenate(weights), np.concatenate(biases))

    def tensors(self, conv: ConvolutionManifest) -> Shapes:
        shapes: dict[str, tuple[int, ...]] = {"lin_beta.weight": (1, 3 * conv.width)} if conv.has_beta else {}
        if conv.edge_columns:
            shapes["lin_edge.weight"] = (conv.heads * columns_of_head(conv), len(conv.edge_columns))
        return shapes

    def build(self, conv: ConvolutionManifest, ends: Ends, tensors: Tensors) -> BuiltConvolution:
        values = None
        if conv.edge_columns:
            values = HeadProducts.build(by_head(tensors["lin_edge.weight"], conv.heads), averages=False)
        return QueriedProducts(
            conv.heads,
            ends.columns_of(conv.edge_columns),
            values,
            conv.averages_heads,
            conv.width,
            conv.root,
            tensors["lin_beta.weight"].reshape(-1) if conv.has_beta else None,
        )


PROJECTED: Mapping[Convolution, ProjectedKind] = {
    Convolution.GRAPH_SAGE: _Aggregated("lin_l", "lin_r"),
    Convolution.GRAPH_CONV: _Aggregated("lin_rel", "lin_root"),
    Convolution.GCN: _Propagated(Gcn(), "bias"),
    Convolution.SGC: _Propagated(Sgc(), "lin.bias"),
    Convolution.TAG: _Tag(),
    Convolution.GIN: _Gin(),
    Convolution.GAT: _Gat(),
    Convolution.GATV2: _Gatv2(),
    Convolution.TRANSFORMER: _Transformer(),
    Convolution.FILM: _Film(),
    Convolution.RGAT: _Rgat(),
}
"""Kinds of convolutions over products; others do not commute with them, or have none."""
