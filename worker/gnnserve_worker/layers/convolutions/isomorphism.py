"""Products over an aggregate of the neighbours and the node itself: GIN, GINE and GEN."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gnnserve_api.files.layers import ConvolutionManifest
from gnnserve_worker.kernel_cache import kernel
from gnnserve_worker.layers.aggregates import NO_WEIGHTS, sum_lists
from gnnserve_worker.layers.convolutions.kind import (
    BuiltConvolution,
    ConvolutionKind,
    Ends,
    Shapes,
    Step,
    dense_shapes,
)
from gnnserve_worker.layers.dense import Product, below, build_products, products_shapes, run_products
from gnnserve_worker.layers.lists import Columns
from gnnserve_worker.layers.memory import RunMemory
from gnnserve_worker.tables.attention import exponential


@dataclass(frozen=True, slots=True)
class SumAndOwn(BuiltConvolution):
    own_weight: np.ndarray
    """float32 [1]: 1 + eps"""
    products: tuple[Product, ...]

    def aggregate(self, products: np.ndarray, step: Step) -> np.ndarray:
        lists, out = step.lists, step.memory.rows(step.count, products.shape[1])
        sum_lists(
            products, lists.sources, lists.bounds, NO_WEIGHTS, step.targets, self.own_weight, False, out, 0
        )  # fmt: skip
        return out

    def behind(self, aggregated: np.ndarray, step: Step) -> np.ndarray:
        return run_products(self.products, aggregated, step.memory)


@dataclass(frozen=True, slots=True)
class SumWithEdges(SumAndOwn):
    edge_columns: Columns
    edge_matrix: np.ndarray
    """float32 [columns of the edges that are read, columns of a row]"""
    edge_bias: np.ndarray

    def aggregate(self, products: np.ndarray, step: Step) -> np.ndarray:
        lists, out = step.lists, step.memory.rows(step.count, products.shape[1])
        _sum_with_edges(
            products, lists.columns(self.edge_columns), self.edge_matrix, self.edge_bias, lists.sources, lists.bounds,
            step.targets, self.own_weight[0], out,
        )  # fmt: skip
        return out


@kernel
def _sum_with_edges(
    rows: np.ndarray, edge_rows: np.ndarray, edge_matrix: np.ndarray, edge_bias: np.ndarray, sources: np.ndarray,
    bounds: np.ndarray, own: np.ndarray, own_weight: np.float32, out: np.ndarray,
) -> None:  # fmt: skip
    """Sums of ReLU(row + what the edge has), and the node's own row times its weight."""
    columns = rows.shape[1]
    joint = np.empty(columns, np.float32)
    for target in range(len(out)):
        line = out[target]
        for column in range(columns):
            line[column] = own_weight * own[target, column]
        for edge in range(bounds[target], bounds[target + 1]):
            row = rows[sources[edge]]
            for column in range(columns):
                joint[column] = row[column] + edge_bias[column]
            for place in range(edge_matrix.shape[0]):
                number = edge_rows[edge, place]
                for column in range(columns):
                    joint[column] += number * edge_matrix[place, column]
            for column in range(columns):
                line[column] += np.float32(0.0) if joint[column] < 0 else joint[column]


class Gin(ConvolutionKind):
    reads = frozenset({"mlp"})

    def tensors(self, conv: ConvolutionManifest, ends: Ends) -> Shapes:
        return {"eps": (1,), **products_shapes("nn", conv.mlp, ends.source)}

    def build(self, conv: ConvolutionManifest, ends: Ends, tensors: Mapping[str, np.ndarray]) -> BuiltConvolution:
        del ends
        return SumAndOwn(1 + tensors["eps"], build_products(conv.mlp, below(tensors, "nn")))

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

    def build(self, conv: ConvolutionManifest, ends: Ends, tensors: Mapping[str, np.ndarray]) -> BuiltConvolution:
        return SumWithEdges(
            1 + tensors["eps"],
            build_products(conv.mlp, below(tensors, "nn")),
            ends.columns_of(conv.edge_columns),
            np.ascontiguousarray(tensors["lin.weight"].T),
            tensors["lin.bias"],
        )

    def problems(self, conv: ConvolutionManifest, ends: Ends) -> list[str]:
        found = super().problems(conv, ends)
        if not conv.edge_columns:
            found.append("edgeColumns is empty; name columns of the edges, or take GIN")
        return found


@dataclass(frozen=True, slots=True)
class SoftmaxWithEdges(BuiltConvolution):
    """GEN: the softmax of each column over what neighbours and edges give, and the node's own row."""

    of_source: Product | None
    """None: rows are as wide as what is summed."""
    of_target: Product | None
    edge_columns: Columns
    edge_matrix: np.ndarray
    """float32 [columns of the edges that are read, columns of a row]"""
    edge_bias: np.ndarray
    temperature: np.ndarray
    products: tuple[Product, ...]

    def of_sources(self, sources: np.ndarray, memory: RunMemory) -> np.ndarray:
        return sources if self.of_source is None else self.of_source(sources, memory)

    def aggregate(self, products: np.ndarray, step: Step) -> np.ndarray:
        lists, targets = step.lists, step.targets[: step.count]
        own = targets if self.of_target is None else self.of_target(targets, step.memory)
        out = step.memory.rows(step.count, products.shape[1])
        _soften_with_edges(
            products, lists.columns(self.edge_columns), self.edge_matrix, self.edge_bias, lists.sources, lists.bounds,
            self.temperature, own, out,
        )  # fmt: skip
        return out

    def behind(self, aggregated: np.ndarray, step: Step) -> np.ndarray:
        return run_products(self.products, aggregated, step.memory)


_LEAST_MESSAGE = np.float32(1e-7)
"""torch_geometric's eps of GENConv, which is added to each message."""


_TOGETHER = 32
"""Edges whose messages are kept between finding their largest and adding them up: they fit into the fastest cache."""


@kernel
def _soften_with_edges(
    rows: np.ndarray, edge_rows: np.ndarray, edge_matrix: np.ndarray, edge_bias: np.ndarray, sources: np.ndarray,
    bounds: np.ndarray, temperature: np.ndarray, own: np.ndarray, out: np.ndarray,
) -> None:  # fmt: skip
    """Messages of some edges at a time are made once; what was summed before is scaled where a larger one comes. Rows
    are indexed and not sliced, since a slice per edge takes as long as the message."""
    columns = rows.shape[1]
    messages, before = np.empty((_TOGETHER, columns), np.float32), np.empty(columns, np.float32)
    largest, total, summed = np.empty(columns, np.float32), np.empty(columns, np.float32), np.empty(columns, np.float32)
    for target in range(len(out)):
        begin, end = bounds[target], bounds[target + 1]
        for column in range(columns):
            largest[column], total[column], summed[column] = -np.inf, 0.0, 0.0
        for first in range(begin, end, _TOGETHER):
            stop = min(first + _TOGETHER, end)
            for column in range(columns):
                before[column] = largest[column]
            for edge in range(first, stop):
                place, source = edge - first, sources[edge]
                for column in range(columns):
                    messages[place, column] = rows[source, column] + edge_bias[column]
                for which in range(edge_matrix.shape[0]):
                    number = edge_rows[edge, which]
                    for column in range(columns):
                        messages[place, column] += number * edge_matrix[which, column]
                for column in range(columns):
                    message = messages[place, column]
                    message = (np.float32(0.0) if message < 0 else message) + _LEAST_MESSAGE
                    messages[place, column] = message
                    score = temperature[column] * message
                    largest[column] = score if score > largest[column] else largest[column]
            if first > begin:
                for column in range(columns):
                    kept = exponential(before[column] - largest[column])
                    total[column] *= kept
                    summed[column] *= kept
            for place in range(stop - first):
                for column in range(columns):
                    share = exponential(temperature[column] * messages[place, column] - largest[column])
                    total[column] += share
                    summed[column] += share * messages[place, column]
        for column in range(columns):
            mean = summed[column] / total[column] if end > begin else np.float32(0.0)
            out[target, column] = own[target, column] + mean


class Gen(ConvolutionKind):
    """Rows that are not as wide as its outputs have a product before, without a bias."""

    reads = frozenset({"mlp", "edge_columns"})

    def tensors(self, conv: ConvolutionManifest, ends: Ends) -> Shapes:
        width = conv.width
        shapes: dict[str, tuple[int, ...]] = {"aggr_module.t": (width,)}
        for name, columns in (("lin_src", ends.source), ("lin_dst", ends.target)):
            shapes |= {} if columns == width else dense_shapes(name, width, columns, bias=False)
        shapes |= dense_shapes("lin_edge", width, len(conv.edge_columns), bias=True) if conv.edge_columns else {}
        return {**shapes, **products_shapes("mlp", conv.mlp, width)}

    def build(self, conv: ConvolutionManifest, ends: Ends, tensors: Mapping[str, np.ndarray]) -> BuiltConvolution:
        def product(name: str) -> Product | None:
            return Product.build(tensors[f"{name}.weight"]) if f"{name}.weight" in tensors else None

        edges = tensors.get("lin_edge.weight", np.empty((conv.width, 0), np.float32))
        return SoftmaxWithEdges(
            product("lin_src"),
            product("lin_dst"),
            ends.columns_of(conv.edge_columns),
            np.ascontiguousarray(edges.T),
            tensors.get("lin_edge.bias", np.zeros(conv.width, np.float32)),
            tensors["aggr_module.t"],
            build_products(conv.mlp, below(tensors, "mlp")),
        )

    def problems(self, conv: ConvolutionManifest, ends: Ends) -> list[str]:
        del ends
        if not conv.mlp:
            return ["mlp is empty; give its products"]
        if conv.mlp[-1].width != conv.width:
            return [f"width is {conv.width}, and the last product of mlp gives {conv.mlp[-1].width}"]
        return []
