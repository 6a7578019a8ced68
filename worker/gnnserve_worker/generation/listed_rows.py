"""Rows of all nodes before the layers that a manifest lists and behind each of them, over whole lists.

Made layer after layer by the runner that serves, of the rows of the layer before: tables of stored and projected
variants hold them (`families/listed.py`), and pruning of channels has them in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec
import numpy as np

from gnnserve_api.files.graph_schema import GraphSchema
from gnnserve_api.files.layers import (
    ConvolutionManifest,
    LayerManifest,
    LayersManifest,
    Residual,
    StoredRowsManifest,
)
from gnnserve_api.files.programs import ProgramManifest
from gnnserve_worker.generation.listed_layers import GivenLayers
from gnnserve_worker.graph.store import Features, Graph
from gnnserve_worker.layers.contract import program_of
from gnnserve_worker.layers.dense import below
from gnnserve_worker.layers.passes import one_layer, rows_behind, stored, tensors_behind, widest_row
from gnnserve_worker.layers.shapes import columns_of, tensor_shapes
from gnnserve_worker.layers.stored import NOTHING, RowParts, parts_of, stored_rows
from gnnserve_worker.models.registry import Tensors
from gnnserve_worker.programs.answers import Runner
from gnnserve_worker.tables.table import feature_blocks

_ROWS_AT_ONCE = 4096
"""Rows without columns that are made at a time."""


class ComputeAll(Protocol):
    """Runs a program over whole lists, for all nodes of the type that its scores are of."""

    def __call__(
        self, runner: Runner, program: ProgramManifest, lists: Graph, rows: Sequence[Features]
    ) -> Iterator[np.ndarray]:
        """What it gives of the nodes, float32 blocks that add up to [nodes, columns]. `rows`: those that it reads of
        the nodes of each type."""


PartsOf = Callable[[int, slice], RowParts]
"""Parts of the rows that a layer reads, of a type and some of its nodes."""


@dataclass(frozen=True, slots=True, eq=False)
class ListedRows:
    """Layers with their weights over a graph. Layers have numbers, the first being 1; 0 stands for what is before."""

    given: GivenLayers
    layers: LayersManifest
    answered: tuple[int, ...]
    """Types that are asked about, by their places."""
    lists: Graph
    features: Sequence[Features]
    """Features of each type, of the columns that the layers read."""
    compute: ComputeAll

    @property
    def schema(self) -> GraphSchema:
        return self.lists.schema

    def columns(self, layer: int) -> int:
        """Columns of a row behind a layer, of the widest type."""
        return widest_row(self.layers, self.schema, self._features, layer, self.answered)

    def rest(self, layer: int) -> LayersManifest:
        """The network behind a layer."""
        return stored(self.layers, self.schema, self._features, layer, self.answered)

    def with_weights(self, part: LayersManifest) -> GivenLayers:
        """What a pass has left of the network, with its weights."""
        return self.given.learnt(tensors_behind(self.given.tensors or {}, part, self.schema, self._features))

    def first(self) -> Iterator[np.ndarray]:
        """Rows before the first layer, type after type: float32 blocks that add up to [nodes, columns]."""
        return self._made(0, self.features, self._parts_of_features)

    def behind(self, layer: int, before: np.ndarray) -> Iterator[np.ndarray]:
        """Rows behind a layer. `before`: those behind the one before it, float32 [nodes, columns]."""
        own = self._by_type(layer - 1, before)
        return self._made(layer, own, self._parts(layer - 1, own))

    def outputs(self, layer: int, rows: np.ndarray) -> dict[int, np.ndarray]:
        """The layer's output of each type that is read, float32 [nodes, columns], in its rows."""
        parts = self._parts(layer, self._by_type(layer, rows))
        return {type_: parts(type_, slice(None)).output for type_ in self._rows(layer)}

    def between_products(self, layer: int, place: int, product: int, before: np.ndarray) -> np.ndarray:
        """Rows behind one of the products of a convolution, of all nodes that read it, float32 [nodes, columns].
        `place`: the convolution's, in its layer; `product`: its number, the first being 0; `before`: as of `behind`."""
        conv = self.layers.layers[layer - 1].convs[place]
        shorter = msgspec.structs.replace(conv, mlp=conv.mlp[: product + 1], width=conv.mlp[product].width)
        return self.of_convolution(layer, place, shorter, {}, before)

    def of_convolution(
        self, layer: int, place: int, conv: ConvolutionManifest, given: Mapping[str, np.ndarray], before: np.ndarray
    ) -> np.ndarray:
        """What another convolution gives in place of one of a layer, of all nodes that read it: float32 [nodes,
        columns]. `place`: the convolution's, in its layer; `given`: its tensors that are others, by their names;
        `before`: as of `behind`."""
        alone = self.one_layer(layer)
        whole = alone.layers[0]
        only = LayerManifest((conv,), is_pre_activated=whole.is_pre_activated)
        if whole.is_pre_activated:
            only = msgspec.structs.replace(
                only, norm=whole.norm, is_norm_behind=whole.is_norm_behind, norm_epsilon=whole.norm_epsilon,
                activation=whole.activation, slope=whole.slope,
            )  # fmt: skip
        cut = msgspec.structs.replace(alone, layers=(only,))
        tensors = self._of_convolution(alone, place, cut, given)
        return self._run(cut, tensors, self.schema.place_of(self.schema.relations[conv.relation].target), before, layer)

    def before_last_product(self, layer: int, type_: int, before: np.ndarray) -> np.ndarray:
        """What the last product of a layer reads, of all nodes of a type, float32 [nodes, columns]. `before`: as of
        `behind`."""
        alone = self.one_layer(layer)
        without = msgspec.structs.replace(
            alone.layers[0], output_product=False, residual=Residual.NONE, reads_input=False
        )
        cut = msgspec.structs.replace(alone, layers=(without,))
        tensors = self.with_weights(alone).tensors or {}
        shapes = tensor_shapes(cut, self.schema, self._features)
        return self._run(cut, {key: tensors[key] for key in shapes}, type_, before, layer)

    def _run(self, network: LayersManifest, tensors: Tensors, type_: int, before: np.ndarray, layer: int) -> np.ndarray:
        """Outputs of all nodes of a type of a network over the rows behind the layer before one."""
        program = program_of(network, self.schema, self._features, (type_,))
        own, given = self._by_type(layer - 1, before), self.given.learnt(tensors)
        return np.concatenate(list(self.compute(given.runner(program), program, self.lists, own)))

    @property
    def _features(self) -> tuple[int, ...]:
        return columns_of(self.schema)

    def _rows(self, layer: int) -> dict[int, StoredRowsManifest]:
        return rows_behind(self.layers, self.schema, self._features, layer, self.answered)

    def one_layer(self, layer: int) -> LayersManifest:
        """The layer alone, over the rows behind the one before it."""
        return one_layer(self.layers, self.schema, self._features, layer, self.answered)

    def _of_convolution(
        self, whole: LayersManifest, place: int, only: LayersManifest, given: Mapping[str, np.ndarray]
    ) -> Tensors:
        """Weights of a layer with some of one of its convolutions alone. `whole`: the layer with all of them. `given`:
        those that are others."""
        tensors = self.with_weights(whole).tensors or {}
        own = {**below(tensors, f"layers.0.convs.{whole.layers[0].keys[place]}"), **given}
        named = {f"layers.0.convs.{only.layers[0].keys[0]}.{name}": tensor for name, tensor in own.items()}
        shapes = tensor_shapes(only, self.schema, self._features)
        return {key: named[key] if key in named else tensors[key] for key in shapes}

    def _parts_of_features(self, type_: int, nodes: slice) -> RowParts:
        features = self.features[type_]
        (dense,) = feature_blocks(features[nodes], range(features.shape[1]))
        return NOTHING._replace(features=dense)

    def _by_type(self, layer: int, rows: np.ndarray) -> list[np.ndarray]:
        """Rows behind a layer of each type, without columns where it is not read."""
        there, schema = self._rows(layer), self.schema
        return [
            rows[first : first + kind.nodes, : there[place].columns if place in there else 0]
            for place, (first, kind) in enumerate(zip(schema.first_nodes, schema.types, strict=False))
        ]

    def _parts(self, layer: int, own: Sequence[np.ndarray]) -> PartsOf:
        there = self._rows(layer)

        def parts(type_: int, nodes: slice) -> RowParts:
            return parts_of(there[type_], own[type_][nodes]) if type_ in there else NOTHING

        return parts

    def _made(self, layer: int, read: Sequence[Features], parts: PartsOf) -> Iterator[np.ndarray]:
        """Rows behind a layer of all nodes, type after type, some at a time. `read`, `parts`: of what it reads."""
        rows, columns = self._rows(layer), self.columns(layer)
        for place, kind in enumerate(self.schema.types):
            done, row = 0, rows.get(place)
            for output in self._outputs(layer, place, row, read):
                nodes = slice(done, done + len(output))
                made = output if row is None else stored_rows(row, output, parts(place, nodes))
                yield np.pad(made, ((0, 0), (0, columns - made.shape[1])))
                done += len(output)
            assert done == kind.nodes  # noqa: S101

    def _outputs(
        self, layer: int, type_: int, row: StoredRowsManifest | None, read: Sequence[Features]
    ) -> Iterator[np.ndarray]:
        """What the layer gives of all nodes of a type, part after part; without columns, where it is not read."""
        if row is None or not row.output:
            left = self.schema.types[type_].nodes
            return (np.zeros((min(_ROWS_AT_ONCE, left - at), 0), np.float32) for at in range(0, left, _ROWS_AT_ONCE))
        alone = self.one_layer(layer)
        program = program_of(alone, self.schema, self._features, (type_,))
        return self.compute(self.with_weights(alone).runner(program), program, self.lists, read)
