"""Sums weighed by attention: GAT, GATv2 and Transformer. Softmax is over the list of a target, or over those of several
relations together (`layers/shared_softmax.py`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gnnserve_api.files.layers import ConvolutionManifest
from gnnserve_worker.kernel_cache import inlined, kernel
from gnnserve_worker.layers.convolutions.kind import (
    AttendingConvolution,
    BuiltConvolution,
    ConvolutionKind,
    EdgeScores,
    Ends,
    Shapes,
    Step,
    dense_shapes,
)
from gnnserve_worker.layers.dense import Product, RowsOf
from gnnserve_worker.layers.lists import Columns
from gnnserve_worker.layers.memory import RunMemory
from gnnserve_worker.models.network import Linear, PerHead
from gnnserve_worker.tables.attention import exponential, leaky
from gnnserve_worker.tables.table import NO_SCALES
from gnnserve_worker.tables.vectors import dot_row

_LEAST_TOTAL = np.float32(1e-16)
"""torch_geometric's, by which an empty list is no division by 0."""


@dataclass(frozen=True, slots=True)
class HeadProducts:
    """Products of what each head has summed: beside each other, or averaged by one product over all of them."""

    product: Linear | PerHead

    @staticmethod
    def build(matrices: np.ndarray, *, averages: bool) -> HeadProducts:
        """`matrices`: float32 [heads, columns of a head, inputs]."""
        heads, columns, inputs = matrices.shape
        if averages:
            stacked = matrices.transpose(0, 2, 1).reshape(heads * inputs, columns) / np.float32(heads)
            return HeadProducts(_linear(stacked))
        return HeadProducts(PerHead(tuple(_linear(each.T) for each in matrices)))

    def __call__(self, summed: np.ndarray, memory: RunMemory) -> np.ndarray:
        """float32 [targets, width]. `summed`: float32 [targets, heads · inputs]."""
        out = memory.rows(len(summed), self.product.outputs)
        self.product.apply(summed.reshape(-1), len(summed), out.reshape(-1))
        return out


def _linear(weight: np.ndarray) -> Linear:
    return Linear.build(weight, np.zeros(weight.shape[1], np.float32), relu=False, compute="float32")


@dataclass(frozen=True, slots=True)
class AdditiveAttention(AttendingConvolution):
    """GAT and RGAT. A head's score of either end is one vector times its row, and sums commute with products, so that
    rows are summed as they are, and multiplied once summed."""

    heads: int
    slope: float
    has_self_loops: bool
    of_source: Product
    """Scores of the heads, of the row of a neighbour."""
    of_target: Product
    edge_columns: Columns
    edge_vectors: np.ndarray
    """float32 [columns of the edges that are read, heads]"""
    products: HeadProducts
    bias: np.ndarray

    def scores(self, products: np.ndarray, step: Step) -> EdgeScores:
        lists, memory, count = step.lists, step.memory, step.count
        edges = int(lists.bounds[count])
        scores, own = memory.rows(edges, self.heads), memory.rows(count if self.has_self_loops else 0, self.heads)
        add_scores(
            self.of_source(products, memory), self.of_target(step.targets[:count], memory),
            lists.columns(self.edge_columns), self.edge_vectors, lists.sources, lists.bounds, self.slope, scores, own,
        )  # fmt: skip
        return EdgeScores(scores, own)

    def attended(self, products: np.ndarray, scores: EdgeScores, step: Step, *, are_weights: bool) -> np.ndarray:
        return sum_heads(products, scores, step, 0, products.shape[1], are_weights=are_weights)

    def behind(self, aggregated: np.ndarray, step: Step) -> np.ndarray:
        rows = self.products(aggregated, step.memory)
        rows += self.bias
        return rows


@dataclass(frozen=True, slots=True)
class JointAttention(AttendingConvolution):
    """GATv2. Scores are of the sum of both ends' products, and what is summed are those of the neighbours."""

    heads: int
    slope: float
    has_self_loops: bool
    of_source: RowsOf
    of_target: RowsOf | None
    """None: that of a neighbour."""
    attention: np.ndarray
    """float32 [heads · columns of a head]"""
    edge_columns: Columns
    edge_matrix: np.ndarray
    """float32 [columns of the edges that are read, heads · columns of a head]"""
    averages: bool
    bias: np.ndarray

    def of_sources(self, sources: np.ndarray, memory: RunMemory) -> np.ndarray:
        return self.of_source(sources, memory)

    def scores(self, products: np.ndarray, step: Step) -> EdgeScores:
        lists, memory, count = step.lists, step.memory, step.count
        of_target = self.of_source if self.of_target is None else self.of_target
        edges = int(lists.bounds[count])
        scores, own = memory.rows(edges, self.heads), memory.rows(count if self.has_self_loops else 0, self.heads)
        _joint_scores(
            products, of_target(step.targets[:count], memory), self.attention, lists.columns(self.edge_columns),
            self.edge_matrix, lists.sources, lists.bounds, self.slope, scores, own, NO_SCALES,
        )  # fmt: skip
        return EdgeScores(scores, own)

    def attended(self, products: np.ndarray, scores: EdgeScores, step: Step, *, are_weights: bool) -> np.ndarray:
        columns = products.shape[1] // self.heads
        return sum_heads(products, scores, step, columns, columns, are_weights=are_weights)

    def behind(self, aggregated: np.ndarray, step: Step) -> np.ndarray:
        return heads_together(aggregated, self.heads, self.averages, self.bias, step)


def sum_heads(
    products: np.ndarray, scores: EdgeScores, step: Step, apart: int, columns: int, *, are_weights: bool
) -> np.ndarray:
    """Sums of the heads beside each other, float32 [targets, heads · columns]. `apart`: how many columns a head's part
    of a product stands behind that of the head before; 0: each reads all. `are_weights`: as of `attended`."""
    lists, heads = step.lists, scores.of_edges.shape[1]
    summed = step.memory.rows(step.count, heads * columns)
    sum_attended(
        scores.of_edges, scores.of_targets, products, lists.sources, lists.bounds, apart, columns, are_weights, summed
    )  # fmt: skip
    return summed


def heads_together(
    aggregated: np.ndarray, heads: int, averages: bool, bias: np.ndarray | np.float32, step: Step
) -> np.ndarray:
    """Rows of what heads have summed, float32 [targets, heads · columns of a head]: beside each other or averaged."""
    rows = aggregated
    if averages:
        columns = aggregated.shape[1] // heads
        rows = step.memory.rows(step.count, columns)
        np.mean(aggregated.reshape(step.count, heads, columns), axis=1, out=rows)
    rows += bias
    return rows


@dataclass(frozen=True, slots=True)
class ProductAttention(AttendingConvolution):
    """Transformer. A query times the matrix of the keys is a vector that a neighbour's row is multiplied by, so that
    keys are not made; and rows are summed as they are, and multiplied once summed."""

    heads: int
    query: Product
    """Product of a target: a vector over rows of neighbours for each head, behind them one over columns of edges, and,
    where a softmax is over several relations, the score of the bias of the keys."""
    edge_columns: Columns
    values: HeadProducts
    """Over what each head has summed of rows, of columns of edges, and of its weights: 1, of an empty list 0, and of a
    softmax over several relations the share of this one."""
    skip: Product | None
    beta: np.ndarray | None
    """float32 [3 · width]: of the sum, of the node's own row, and of their difference."""

    def scores(self, products: np.ndarray, step: Step) -> EdgeScores:
        lists, memory, count = step.lists, step.memory, step.count
        edge_rows = lists.columns(self.edge_columns)
        scores = memory.rows(int(lists.bounds[count]), self.heads)
        queries = self.query(step.targets[:count], memory)
        _product_scores(products, queries, edge_rows, lists.sources, lists.bounds, scores, NO_SCALES)
        return EdgeScores(scores, memory.rows(0, self.heads))

    def attended(self, products: np.ndarray, scores: EdgeScores, step: Step, *, are_weights: bool) -> np.ndarray:
        lists = step.lists
        edge_rows = lists.columns(self.edge_columns)
        summed = step.memory.rows(step.count, self.heads * (products.shape[1] + edge_rows.shape[1] + 1))
        _sum_with_edges(scores.of_edges, products, edge_rows, lists.sources, lists.bounds, are_weights, summed)
        return summed

    def behind(self, aggregated: np.ndarray, step: Step) -> np.ndarray:
        rows = self.values(aggregated, step.memory)
        if self.skip is None:
            return rows
        own = self.skip(step.targets[: step.count], step.memory)
        if self.beta is None:
            rows += own
        else:
            gate(self.beta, own, rows)
        return rows


@kernel
def add_scores(
    of_sources: np.ndarray, of_targets: np.ndarray, edge_rows: np.ndarray, edge_vectors: np.ndarray,
    sources: np.ndarray, bounds: np.ndarray, slope: float, scores: np.ndarray, own: np.ndarray,
) -> None:  # fmt: skip
    """Fill in scores of the edges, [edges, heads], and, where nodes read themselves, of these: what a loop has is the
    mean of the node's other edges, and a loop that is an edge counts for nothing."""
    heads, width = scores.shape[1], edge_vectors.shape[0]
    total = np.empty(heads, np.float32)
    for target in range(len(of_targets)):
        total[:] = 0.0
        others = 0
        for edge in range(bounds[target], bounds[target + 1]):
            source = sources[edge]
            if len(own) > 0 and source == target:
                scores[edge] = -np.inf
                continue
            others += 1
            for head in range(heads):
                of_edge = np.float32(0.0)
                for column in range(width):
                    of_edge += edge_rows[edge, column] * edge_vectors[column, head]
                total[head] += of_edge
                scores[edge, head] = leaky(of_sources[source, head] + of_targets[target, head] + of_edge, slope)
        if len(own) > 0:
            share = np.float32(1.0) / np.float32(max(others, 1))
            for head in range(heads):
                score = of_sources[target, head] + of_targets[target, head] + total[head] * share
                own[target, head] = leaky(score, slope)


@kernel
def _joint_scores(
    of_sources: np.ndarray, of_targets: np.ndarray, attention: np.ndarray, edge_rows: np.ndarray,
    edge_matrix: np.ndarray, sources: np.ndarray, bounds: np.ndarray, slope: float, scores: np.ndarray,
    own: np.ndarray, no_scales: np.ndarray,
) -> None:  # fmt: skip
    """Fill in scores as `add_scores` does."""
    heads, width, columns = scores.shape[1], edge_matrix.shape[0], len(attention)
    of_head = columns // heads
    by_head, mean = np.empty((heads, of_head), np.float32), np.empty(width, np.float32)
    joint = by_head.reshape(-1)
    for target in range(len(of_targets)):
        mean[:] = 0.0
        others = 0
        begin, end = bounds[target], bounds[target + 1]
        for edge in range(begin, end + 1 if len(own) > 0 else end):
            if edge < end:
                source = sources[edge]
                if len(own) > 0 and source == target:
                    scores[edge] = -np.inf
                    continue
                others += 1
            else:
                source = target
            for column in range(columns):
                joint[column] = of_sources[source, column] + of_targets[target, column]
            for place in range(width):
                if edge < end:
                    number = edge_rows[edge, place]
                    mean[place] += number
                else:
                    number = mean[place] / np.float32(max(others, 1))
                for column in range(columns):
                    joint[column] += number * edge_matrix[place, column]
            for column in range(columns):
                joint[column] = leaky(joint[column], slope)
            for head in range(heads):
                score = dot_row(by_head, no_scales, head, of_head, attention, head * of_head)
                if edge < end:
                    scores[edge, head] = score
                else:
                    own[target, head] = score


@kernel
def _product_scores(
    rows: np.ndarray, queries: np.ndarray, edge_rows: np.ndarray, sources: np.ndarray, bounds: np.ndarray,
    scores: np.ndarray, no_scales: np.ndarray,
) -> None:  # fmt: skip
    heads, columns, width = scores.shape[1], rows.shape[1], edge_rows.shape[1]
    flat, stride = queries.reshape(-1), queries.shape[1]
    of_keys = heads * (columns + width)
    for target in range(len(queries)):
        for edge in range(bounds[target], bounds[target + 1]):
            source = sources[edge]
            for head in range(heads):
                score = dot_row(rows, no_scales, source, columns, flat, target * stride + head * columns)
                first = heads * columns + head * width
                for place in range(width):
                    score += queries[target, first + place] * edge_rows[edge, place]
                if stride > of_keys:
                    score += queries[target, of_keys + head]
                scores[edge, head] = score


@inlined
def soften(scores: np.ndarray, begin: int, end: int, head: int, itself: Any) -> Any:
    """Make weights of the scores of a list, which add up to 1 with what is returned, that of the node itself.
    `itself`: its score; -inf: it is not read."""
    largest = itself
    for edge in range(begin, end):
        largest = max(largest, scores[edge, head])
    if largest == -np.inf:
        largest = np.float32(0.0)
    of_itself = exponential(itself - largest)
    total = of_itself + _LEAST_TOTAL
    for edge in range(begin, end):
        scores[edge, head] = exponential(scores[edge, head] - largest)
        total += scores[edge, head]
    share = np.float32(1.0) / total
    for edge in range(begin, end):
        scores[edge, head] *= share
    return of_itself * share


@kernel
def sum_attended(
    scores: np.ndarray, own: np.ndarray, rows: np.ndarray, sources: np.ndarray, bounds: np.ndarray, step: int,
    columns: int, are_weights: bool, out: np.ndarray,
) -> None:  # fmt: skip
    """Sums of the heads beside each other, of `columns` each. `step`: how many columns a head's part of a row stands
    behind that of the head before; 0: each reads all. Scores become weights, unless they are; nodes read themselves by
    scores alone."""
    heads = scores.shape[1]
    for target in range(len(out)):
        begin, end = bounds[target], bounds[target + 1]
        for head in range(heads):
            itself = np.float32(0.0)
            if not are_weights:
                itself = soften(scores, begin, end, head, own[target, head] if len(own) > 0 else np.float32(-np.inf))
            line = out[target, head * columns : (head + 1) * columns]
            for column in range(columns):
                line[column] = itself * rows[target, head * step + column] if len(own) > 0 else np.float32(0.0)
        for edge in range(begin, end):
            row = rows[sources[edge]]
            for head in range(heads):
                weight = scores[edge, head]
                line = out[target, head * columns : (head + 1) * columns]
                part = row[head * step : head * step + columns]
                for column in range(columns):
                    line[column] += weight * part[column]


@kernel
def _sum_with_edges(
    scores: np.ndarray, rows: np.ndarray, edge_rows: np.ndarray, sources: np.ndarray, bounds: np.ndarray,
    are_weights: bool, out: np.ndarray,
) -> None:  # fmt: skip
    """Sums of each head: of rows, of columns of the edges, and of its weights. Scores become weights, unless they
    are."""
    heads, columns, width = scores.shape[1], rows.shape[1], edge_rows.shape[1]
    each = columns + width + 1
    for target in range(len(out)):
        begin, end = bounds[target], bounds[target + 1]
        out[target] = 0.0
        for head in range(heads):
            if not are_weights:
                soften(scores, begin, end, head, np.float32(-np.inf))
                if end > begin:
                    out[target, (head + 1) * each - 1] = 1.0
        for edge in range(begin, end):
            row = rows[sources[edge]]
            for head in range(heads):
                weight = scores[edge, head]
                line = out[target, head * each : (head + 1) * each]
                for column in range(columns):
                    line[column] += weight * row[column]
                for place in range(width):
                    line[columns + place] += weight * edge_rows[edge, place]
                if are_weights:
                    line[each - 1] += weight


@kernel
def gate(beta: np.ndarray, own: np.ndarray, rows: np.ndarray) -> None:
    """Change sums to a share of the node's own row and the rest of themselves."""
    width = rows.shape[1]
    for target in range(len(rows)):
        total = 0.0
        for column in range(width):
            summed, itself = rows[target, column], own[target, column]
            total += beta[column] * summed + beta[width + column] * itself
            total += beta[2 * width + column] * (summed - itself)
        share = np.float32(1.0 / (1.0 + np.exp(-total)))
        for column in range(width):
            rows[target, column] += share * (own[target, column] - rows[target, column])


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

    def build(self, conv: ConvolutionManifest, ends: Ends, tensors: Mapping[str, np.ndarray]) -> BuiltConvolution:
        def scored(matrix: str, vectors: str) -> np.ndarray:
            return scored_by_head(tensors[matrix], tensors[vectors])

        edge_vectors = scored("lin_edge.weight", "att_edge").T if conv.edge_columns else NO_MATRIX
        return AdditiveAttention(
            conv.heads,
            conv.negative_slope,
            conv.self_loops,
            Product.build(scored("lin_src.weight", "att_src")),
            Product.build(scored("lin_dst.weight", "att_dst")),
            ends.columns_of(conv.edge_columns),
            np.ascontiguousarray(edge_vectors),
            HeadProducts.build(by_head(tensors["lin_src.weight"], conv.heads), averages=conv.averages_heads),
            tensors.get("bias", np.zeros(conv.width, np.float32)),
        )


def by_head(matrix: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a matrix apart by heads: [heads, columns of a head, inputs]."""
    return matrix.reshape(heads, -1, matrix.shape[1])


def scored_by_head(matrix: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Scores of the heads as one product of rows, float32 [heads, inputs]. `vectors`: [1, heads, columns of a head]."""
    found: np.ndarray = np.einsum("hci,hc->hi", by_head(matrix, vectors.shape[1]), vectors[0])
    return found


NO_MATRIX = np.empty((0, 0), np.float32)


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

    def build(self, conv: ConvolutionManifest, ends: Ends, tensors: Mapping[str, np.ndarray]) -> BuiltConvolution:
        of_target = None
        if not conv.shares_weights:
            of_target = Product.build(tensors["lin_r.weight"], tensors.get("lin_r.bias"))
        return JointAttention(
            conv.heads,
            conv.negative_slope,
            conv.self_loops,
            Product.build(tensors["lin_l.weight"], tensors.get("lin_l.bias")),
            of_target,
            tensors["att"].reshape(-1),
            ends.columns_of(conv.edge_columns),
            np.ascontiguousarray(tensors["lin_edge.weight"].T) if conv.edge_columns else NO_MATRIX,
            conv.averages_heads,
            tensors.get("bias", np.zeros(conv.width, np.float32)),
        )

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

    def build(self, conv: ConvolutionManifest, ends: Ends, tensors: Mapping[str, np.ndarray]) -> BuiltConvolution:
        heads, columns = conv.heads, columns_of_head(conv)
        edges = by_head(tensors["lin_edge.weight"], heads) if conv.edge_columns else np.empty((heads, columns, 0))
        keys = [by_head(tensors["lin_key.weight"], heads), edges]
        if ends.shares_softmax and conv.bias:
            keys.append(tensors["lin_key.bias"].reshape(heads, columns, 1))
        weight, bias = queries_of(conv, tensors, keys)
        value_bias = tensors.get("lin_value.bias", np.zeros(heads * columns, np.float32)).reshape(heads, columns, 1)
        values = np.concatenate([by_head(tensors["lin_value.weight"], heads), edges, value_bias], axis=2)
        return ProductAttention(
            heads,
            Product.build(weight, bias),
            ends.columns_of(conv.edge_columns),
            HeadProducts.build(values.astype(np.float32), averages=conv.averages_heads),
            Product.build(tensors["lin_skip.weight"], tensors.get("lin_skip.bias")) if conv.root else None,
            tensors["lin_beta.weight"].reshape(-1) if conv.has_beta else None,
        )

    def problems(self, conv: ConvolutionManifest, ends: Ends) -> list[str]:
        found = super().problems(conv, ends)
        if conv.has_beta and not conv.root:
            found.append("hasBeta weighs the node's own row, which is not read; set root to true, or hasBeta to false")
        return found


def queries_of(
    conv: ConvolutionManifest, tensors: Mapping[str, np.ndarray], keys: list[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Queries times the matrices of the keys, as one product of a target's row: its weight and bias. A bias of the keys
    adds the same to all scores of a target, which a softmax over one relation takes off again. `keys`: each [heads,
    columns, inputs]."""
    heads, columns = conv.heads, columns_of_head(conv)
    matrix = by_head(tensors["lin_query.weight"].astype(np.float64), heads) / np.sqrt(columns)
    bias = tensors.get("lin_query.bias", np.zeros(heads * columns)).reshape(heads, columns) / np.sqrt(columns)
    weights = [np.einsum("hci,hct->hit", each, matrix).reshape(-1, matrix.shape[2]) for each in keys]
    biases = [np.einsum("hci,hc->hi", each, bias).reshape(-1) for each in keys]
    return np.concatenate(weights).astype(np.float32), np.concatenate(biases).astype(np.float32)
