"""Aggregates of neighbours times a matrix, beside the node's own row times another: GraphSAGE and GraphConv."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gnnserve_api.files.layers import ConvolutionManifest
from gnnserve_worker.layers.aggregates import Aggregate, build_aggregates, temperature_keys
from gnnserve_worker.layers.convolutions.kind import (
    BuiltConvolution,
    ConvolutionKind,
    Ends,
    Shapes,
    Step,
    dense_shapes,
)
from gnnserve_worker.layers.dense import Product, unit_rows
from gnnserve_worker.layers.memory import RunMemory


@dataclass(frozen=True, slots=True)
class AggregateAndOwn(BuiltConvolution):
    """Aggregates beside each other, and behind them the node's own row where that is read: one product over all."""

    projection: Product | None
    aggregates: tuple[Aggregate, ...]
    weight: int | None
    """Place of the column that weighs edges."""
    columns: int
    """Columns of a row of neighbours."""
    own: int
    """Columns of the node's own row; 0: it is not read."""
    product: Product
    has_unit_rows: bool

    def of_sources(self, sources: np.ndarray, memory: RunMemory) -> np.ndarray:
        return sources if self.projection is None else self.projection(sources, memory)

    def aggregate(self, products: np.ndarray, step: Step) -> np.ndarray:
        lists, aggregated = step.lists, len(self.aggregates) * self.columns
        out = step.memory.rows(step.count, aggregated + self.own)
        for place, each in enumerate(self.aggregates):
            each.write(products, lists.sources, lists.bounds, lists.weights(self.weight), out, place * self.columns)
        if self.own:
            out[:, aggregated:] = step.targets[: step.count]
        return out

    def behind(self, aggregated: np.ndarray, step: Step) -> np.ndarray:
        rows = self.product(aggregated, step.memory)
        if self.has_unit_rows:
            unit_rows(rows)
        return rows


def _build(
    conv: ConvolutionManifest, ends: Ends, tensors: Mapping[str, np.ndarray], names: tuple[str, str]
) -> AggregateAndOwn:
    """`names`: of the matrix of the aggregates, and of that of the node's own row."""
    of_aggregates, of_own = (f"{name}.weight" for name in names)
    matrices = [tensors[of_aggregates], *([tensors[of_own]] if conv.root else [])]
    projection = Product.build(tensors["lin.weight"], tensors["lin.bias"], relu=True) if conv.projects else None
    return AggregateAndOwn(
        projection,
        build_aggregates(conv.aggregations, tensors),
        ends.column_of(conv.edge_weight),
        ends.source,
        ends.target if conv.root else 0,
        Product.build(np.concatenate(matrices, axis=1), tensors.get(f"{names[0]}.bias")),
        conv.has_unit_rows,
    )


class GraphSage(ConvolutionKind):
    reads = frozenset({"aggregations", "bias", "root", "projects", "has_unit_rows"})

    def tensors(self, conv: ConvolutionManifest, ends: Ends) -> Shapes:
        project = dense_shapes("lin", ends.source, ends.source, bias=True) if conv.projects else {}
        own = dense_shapes("lin_r", conv.width, ends.target, bias=False) if conv.root else {}
        return {
            **project,
            **dict.fromkeys(temperature_keys(conv.aggregations).values(), (ends.source,)),
            **dense_shapes("lin_l", conv.width, len(conv.aggregations) * ends.source, bias=conv.bias),
            **own,
        }

    def problems(self, conv: ConvolutionManifest, ends: Ends) -> list[str]:
        del ends
        return [] if conv.aggregations else ["aggregations is empty; name one, such as Mean"]

    def reads_target(self, conv: ConvolutionManifest) -> bool:
        return conv.root

    def build(self, conv: ConvolutionManifest, ends: Ends, tensors: Mapping[str, np.ndarray]) -> BuiltConvolution:
        return _build(conv, ends, tensors, ("lin_l", "lin_r"))


class GraphConv(ConvolutionKind):
    reads = frozenset({"aggregations", "bias", "root", "edge_weight"})

    def tensors(self, conv: ConvolutionManifest, ends: Ends) -> Shapes:
        own = dense_shapes("lin_root", conv.width, ends.target, bias=False) if conv.root else {}
        return {
            **dict.fromkeys(temperature_keys(conv.aggregations).values(), (ends.source,)),
            **dense_shapes("lin_rel", conv.width, ends.source, bias=conv.bias),
            **own,
        }

    def problems(self, conv: ConvolutionManifest, ends: Ends) -> list[str]:
        del ends
        count = len(conv.aggregations)
        return [] if count == 1 else [f"{count} aggregations are given; GraphConv has one, such as Sum"]

    def reads_target(self, conv: ConvolutionManifest) -> bool:
        return conv.root

    def build(self, conv: ConvolutionManifest, ends: Ends, tensors: Mapping[str, np.ndarray]) -> BuiltConvolution:
        return _build(conv, ends, tensors, ("lin_rel", "lin_root"))
