"""Several aggregates of products of both ends, each scaled by the length of the list in several ways: PNA.

Scalers read the list of the target alone, which is whole where all neighbours are read; it needs no deeper hop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from gnnserve_api.files.layers import Aggregation, ConvolutionManifest, DegreeScaler
from gnnserve_worker.kernel_cache import kernel
from gnnserve_worker.layers.aggregates import NO_WEIGHTS, Aggregate, build_aggregates
from gnnserve_worker.layers.convolutions.kind import (
    BuiltConvolution,
    ConvolutionKind,
    Ends,
    Shapes,
    Step,
    dense_shapes,
)
from gnnserve_worker.layers.dense import Product, run_products
from gnnserve_worker.layers.lists import Columns
from gnnserve_worker.layers.memory import RunMemory

_SCALES: Mapping[DegreeScaler, Callable[[np.ndarray, float, float], np.ndarray]] = {
    DegreeScaler.IDENTITY: lambda degrees, _mean, _mean_log: np.ones_like(degrees),
    DegreeScaler.AMPLIFICATION: lambda degrees, _mean, mean_log: np.log(degrees + 1) / mean_log,
    DegreeScaler.ATTENUATION: lambda degrees, _mean, mean_log: mean_log / np.log(np.maximum(degrees, 1) + 1),
    DegreeScaler.LINEAR: lambda degrees, mean, _mean_log: degrees / mean,
    DegreeScaler.INVERSE_LINEAR: lambda degrees, mean, _mean_log: mean / np.maximum(degrees, 1),
}
"""What aggregates are multiplied by: by the lengths of lists, float32 [targets], their mean in training, and the mean
of log(length + 1)."""


@dataclass(frozen=True, slots=True)
class Tower:
    pre: tuple[Product, ...]
    """Products of what an edge gives, behind the first one, which is told apart by the ends."""
    post: tuple[Product, ...]


@dataclass(frozen=True, slots=True)
class ScaledAggregates(BuiltConvolution):
    """Rows of edges are made, since aggregates are of what both ends and the edge give together."""

    of_source: Product
    """The source's part of the first product of all towers, beside each other."""
    of_target: Product
    edge_columns: Columns
    edge_matrix: np.ndarray
    """float32 [columns of the edges that are read, columns of all towers]"""
    towers: tuple[Tower, ...]
    divides_input: bool
    aggregates: tuple[Aggregate, ...]
    scalers: tuple[DegreeScaler, ...]
    mean_degrees: tuple[float, float]
    product: Product

    def of_sources(self, sources: np.ndarray, memory: RunMemory) -> np.ndarray:
        return self.of_source(sources, memory)

    def aggregate(self, products: np.ndarray, step: Step) -> np.ndarray:
        """What each tower reads behind: its input, and its aggregates by each scaler."""
        lists, memory, count = step.lists, step.memory, step.count
        edges = int(lists.bounds[count])
        joint = memory.rows(edges, products.shape[1])
        _join(
            products, self.of_target(step.targets[:count], memory), lists.columns(self.edge_columns),
            self.edge_matrix, lists.sources, lists.bounds, joint,
        )  # fmt: skip
        towers, places = len(self.towers), np.arange(edges)
        read, kinds = products.shape[1] // towers, len(self.aggregates)
        degrees = np.diff(lists.bounds[: count + 1]).astype(np.float32)
        aggregated = memory.rows(count, kinds * read)
        out = memory.rows(count, towers * read * (kinds * len(self.scalers) + 1)).reshape(count, towers, -1)
        for number, tower in enumerate(self.towers):
            given = np.ascontiguousarray(joint[:, number * read : (number + 1) * read])
            if tower.pre:
                np.maximum(given, 0, out=given)
                given = run_products(tower.pre, given, memory)
            for place, each in enumerate(self.aggregates):
                each.write(given, places, lists.bounds, NO_WEIGHTS, aggregated, place * read)
            first = number * read if self.divides_input else 0
            out[:, number, :read] = step.targets[:count, first : first + read]
            for place, scaler in enumerate(self.scalers):
                at = read + place * kinds * read
                scales = _SCALES[scaler](degrees, *self.mean_degrees)
                np.multiply(aggregated, scales[:, None], out=out[:, number, at : at + kinds * read])
        return out

    def behind(self, aggregated: np.ndarray, step: Step) -> np.ndarray:
        given = [
            run_products(tower.post, np.ascontiguousarray(aggregated[:, number]), step.memory)
            for number, tower in enumerate(self.towers)
        ]
        return self.product(np.concatenate(given, axis=1), step.memory)


@kernel
def _join(
    of_sources: np.ndarray, of_targets: np.ndarray, edge_rows: np.ndarray, edge_matrix: np.ndarray,
    sources: np.ndarray, bounds: np.ndarray, joint: np.ndarray,
) -> None:  # fmt: skip
    """Fill in the first product of each edge: the sum of the parts of both ends and of the edge."""
    columns = joint.shape[1]
    for target in range(len(of_targets)):
        for edge in range(bounds[target], bounds[target + 1]):
            source = sources[edge]
            for column in range(columns):
                joint[edge, column] = of_sources[source, column] + of_targets[target, column]
            for place in range(edge_matrix.shape[0]):
                number = edge_rows[edge, place]
                for column in range(columns):
                    joint[edge, column] += number * edge_matrix[place, column]


def _sequence(tensors: Mapping[str, np.ndarray], name: str, places: range, *, last: int) -> tuple[Product, ...]:
    """Products with ReLU behind each but the last one."""
    return tuple(
        Product.build(tensors[f"{name}.{2 * place}.weight"], tensors[f"{name}.{2 * place}.bias"], relu=place < last)
        for place in places
    )


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

    def build(self, conv: ConvolutionManifest, ends: Ends, tensors: Mapping[str, np.ndarray]) -> BuiltConvolution:
        read, columns = tower_input(conv, ends), len(conv.edge_columns)
        wide = conv.towers * read
        of_target, of_source = np.zeros((2, wide, ends.source), np.float32)
        of_edge, bias = np.zeros((columns, wide), np.float32), np.zeros(wide, np.float32)
        for tower in range(conv.towers):
            weight, written = tensors[f"pre_nns.{tower}.0.weight"], slice(tower * read, (tower + 1) * read)
            taken = written if conv.divides_input else slice(0, read)
            of_target[written, taken], of_source[written, taken] = weight[:, :read], weight[:, read : 2 * read]
            bias[written] = tensors[f"pre_nns.{tower}.0.bias"]
            if columns:
                of_edge[:, written] = (weight[:, 2 * read :] @ tensors["edge_encoder.weight"]).T
                bias[written] += weight[:, 2 * read :] @ tensors["edge_encoder.bias"]
        return ScaledAggregates(
            Product.build(of_source),
            Product.build(of_target, bias),
            ends.columns_of(conv.edge_columns),
            of_edge,
            tuple(_tower(conv, tensors, tower) for tower in range(conv.towers)),
            conv.divides_input,
            build_aggregates(conv.aggregations, {}),
            conv.scalers,
            (float(tensors["aggr_module.avg_deg_lin"][0]), float(tensors["aggr_module.avg_deg_log"][0])),
            Product.build(tensors["lin.weight"], tensors["lin.bias"]),
        )

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


def _tower(conv: ConvolutionManifest, tensors: Mapping[str, np.ndarray], tower: int) -> Tower:
    pre = _sequence(tensors, f"pre_nns.{tower}", range(1, conv.pre_layers), last=conv.pre_layers - 1)
    post = _sequence(tensors, f"post_nns.{tower}", range(conv.post_layers), last=conv.post_layers - 1)
    return Tower(pre, post)
