"""A network that is listed layer by layer, with its weights: rows of a sample's nodes go in, scores of the seeds come
out. Each layer computes only the rows that those behind it read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from msgspec import UNSET

from gnnserve_api.files.graph_schema import GraphSchema
from gnnserve_api.files.layers import JumpingKnowledge, LayersManifest, StoredRowsManifest
from gnnserve_worker.layers.combined import CombinedLayer, Rows, build_layer
from gnnserve_worker.layers.dense import Product, Tensors, below, build_products, run_products
from gnnserve_worker.layers.jumping import Jump, build_jump
from gnnserve_worker.layers.lists import RelationLists
from gnnserve_worker.layers.memory import RunMemory
from gnnserve_worker.layers.shapes import head_key, headed_types, needed_rows, stored_layers, widths_of
from gnnserve_worker.layers.stored import parts_of


@dataclass(frozen=True, slots=True)
class LayersSample:
    """Input of a network in one run: what it reads of a sample."""

    features: Rows
    """Rows of all nodes of each type that is read: features, or what is stored of the first layers."""
    nodes_per_hop: Mapping[int, np.ndarray]
    """int64 [hops + 1] of each type that is read; empty: no relation is."""
    lists: Mapping[int, RelationLists]
    """Lists of each relation that is read, by its place."""


class NodeOutputs(NamedTuple):
    scores: np.ndarray
    """float32 [seeds, columns]"""
    embeddings: np.ndarray
    """What the head read of the layers, or, without a head, the last layer: float32 [seeds, columns]."""


@dataclass(frozen=True, slots=True)
class _Begun:
    """Rows that the first layer of a run reads, and what those behind it read beside."""

    rows: Rows
    network_input: Rows
    written: Sequence[Rows] = ()
    """Outputs of layers that are stored, but for the last of them, which the first layer reads."""
    features: Rows = field(default_factory=dict)


def _in_order(rows: np.ndarray, memory: RunMemory) -> np.ndarray:
    """The rows in C order, which kernels are compiled for."""
    if rows.flags.c_contiguous:
        return rows
    found = memory.rows(*rows.shape)
    found[:] = rows
    return found


@dataclass(frozen=True, slots=True)
class LayersNetwork:
    before: Mapping[int, tuple[Product, ...]]
    """Products of the features of each type."""
    layers: tuple[CombinedLayer, ...]
    jump: Jump
    jumped: int
    """Outputs that it reads, those of the last layers."""
    heads: Mapping[int, tuple[Product, ...]]
    """Products of the head, by each type that the last layer writes."""
    head_reads_input: bool
    needed: Callable[[tuple[int, ...]], tuple[frozenset[int], ...]]
    """Types whose rows are needed before and behind each layer, for those that are wanted."""
    stored: Mapping[int, StoredRowsManifest] | None = None
    """Parts of the rows of each type that it reads in place of features; None: it reads features."""

    @staticmethod
    def build(
        layers: LayersManifest, schema: GraphSchema, columns_of_types: Sequence[int], tensors: Tensors
    ) -> LayersNetwork:
        """`tensors`: float32, of the shapes that `tensor_shapes` names. The description has no problems."""
        widths = widths_of(layers, schema, columns_of_types)

        @lru_cache(64)
        def needed(wanted: tuple[int, ...]) -> tuple[frozenset[int], ...]:
            return needed_rows(layers, schema, wanted)

        keys = {type_: head_key(layers, type_) for type_ in headed_types(layers, widths)}
        heads = {key: build_products(layers.head, below(tensors, key)) for key in set(keys.values())}
        stored = layers.stored
        all_layers = len(layers.layers) + stored_layers(layers)
        return LayersNetwork(
            {each.type: build_products(each.products, below(tensors, f"before.{each.type}")) for each in layers.before},
            tuple(
                build_layer(layer, of_layer, schema, below(tensors, f"layers.{place}"))
                for place, (layer, of_layer) in enumerate(zip(layers.layers, widths.layers, strict=True))
            ),
            build_jump(layers.jumping_knowledge, below(tensors, "jumping")),
            1 if layers.jumping_knowledge is JumpingKnowledge.LAST else max(1, all_layers),
            {type_: heads[key] for type_, key in keys.items()},
            layers.head_reads_input,
            needed,
            None if stored is UNSET else {row.type: row for row in stored.rows},
        )

    def run(self, sample: LayersSample, wanted: tuple[int, ...], memory: RunMemory) -> dict[int, NodeOutputs]:
        """Outputs of the seeds of each wanted type, in memory of the run."""
        needed, ends = self.needed(wanted), {
            type_: list(accumulate(counts.tolist())) for type_, counts in sample.nodes_per_hop.items()
        }  # fmt: skip

        def count(type_: int, hops: int) -> int:
            """Nodes within so many hops; all, where no relation is read."""
            return ends[type_][hops] if type_ in ends else len(sample.features[type_])

        behind = sum(layer.hops for layer in self.layers)
        begun = self._begin({type_: sample.features[type_][: count(type_, behind)] for type_ in needed[0]}, memory)
        rows, written = begun.rows, [*begun.written, begun.rows]
        for place, layer in enumerate(self.layers, start=1):
            behind -= layer.hops
            rows = layer.run(rows, begun.network_input, sample.lists, sorted(needed[place]), behind, count, memory)
            written.append(rows)
        features = sample.features if self.stored is None else begun.features
        return {type_: self._finish(type_, written, features, count(type_, 0), memory) for type_ in wanted}

    def _begin(self, read: Rows, memory: RunMemory) -> _Begun:
        """`read`: rows of all nodes that the first layer reads."""
        if self.stored is None:
            rows = {type_: run_products(self.before.get(type_, ()), own, memory) for type_, own in read.items()}
            return _Begun(rows, rows)
        parts = {type_: parts_of(self.stored[type_], own) for type_, own in read.items()}
        rows = {type_: _in_order(own.output, memory) for type_, own in parts.items() if own.output.shape[1]}
        inputs = {type_: _in_order(own.network_input, memory) for type_, own in parts.items() if own.has_input}
        kept = max(len(own.written) for own in parts.values())
        written = [{type_: own.written[place] for type_, own in parts.items() if own.written} for place in range(kept)]
        return _Begun(rows, inputs or rows, written, {type_: own.features for type_, own in parts.items()})

    def _finish(
        self, type_: int, written: Sequence[Rows], of_sample: Rows, seeds: int, memory: RunMemory
    ) -> NodeOutputs:
        rows = [_in_order(each[type_][:seeds], memory) for each in written if type_ in each]
        given = self.jump(rows[-self.jumped :], memory)
        head = self.heads[type_]
        if not head:
            return NodeOutputs(given, rows[-2] if len(rows) > 1 else given)
        read = given
        if self.head_reads_input:
            features = of_sample[type_][:seeds]
            read = memory.rows(seeds, features.shape[1] + given.shape[1])
            np.concatenate([features, given], axis=1, out=read)
        return NodeOutputs(run_products(head, read, memory), given)
