"""A layer: its convolutions, what is combined of them for each type, and what stands behind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gnnserve_api.files.graph_schema import GraphSchema
from gnnserve_api.files.layers import Combination, LayerManifest, Residual, ResidualPlace
from gnnserve_worker.layers.aggregates import NO_ROWS
from gnnserve_worker.layers.convolutions.kind import BuiltConvolution, Step
from gnnserve_worker.layers.convolutions.projected import PROJECTED
from gnnserve_worker.layers.convolutions.registry import KINDS
from gnnserve_worker.layers.dense import (
    Change,
    ColumnsOf,
    Product,
    RowsOf,
    Tensors,
    below,
    build_activation,
    build_norm,
)
from gnnserve_worker.layers.lists import RelationLists
from gnnserve_worker.layers.memory import RunMemory, taken
from gnnserve_worker.layers.products import NOTHING
from gnnserve_worker.layers.shapes import LayerWidths, source_of, target_of
from gnnserve_worker.layers.shared_softmax import attend_together

Rows = Mapping[int, np.ndarray]
"""Rows of nodes by the place of their type, float32 [nodes, columns]; the first ones are those of the seeds."""
Counts = Callable[[int, int], int]
"""Nodes of a type that are within so many hops of a seed."""


@dataclass(frozen=True, slots=True)
class RelationConvolution:
    built: BuiltConvolution
    relation: int
    source: int
    target: int
    hops: int
    reads_network_input: bool
    where: tuple[int, float] | None
    """Place of a column of the edges, and the number that it has for those that are read; None: all are."""
    products: tuple[slice, slice] | None
    """Columns that it reads of a neighbour's row and of the node's own; None: all of both."""


@dataclass(frozen=True, slots=True)
class TypeTail:
    """Operations behind the convolutions of a type."""

    columns: int
    """Columns of what the convolutions give."""
    own: RowsOf | None
    residual: Residual
    projected: RowsOf | None
    gate: np.float32 | None
    """Share of the output, of which the input has the rest; None: there is no gate."""
    output_product: Product | None
    """Behind norm and activation, before what is added there."""
    before_added: tuple[Change, ...]
    """Norm and activation that stand before what is added of the input."""
    behind_added: tuple[Change, ...]

    def finish(self, rows: np.ndarray, read: np.ndarray, added: np.ndarray, memory: RunMemory) -> np.ndarray:
        """Rows that the layer gives, in memory of the run, of what the convolutions gave, which is changed in place.
        `read`: the layer's input; `added`: what a residual adds, the first rows of both being of these."""
        count = len(rows)
        if self.own is not None:
            rows += self.own(read[:count], memory)
        for change in self.before_added:
            change(rows)
        if self.output_product is not None:
            rows = self.output_product(rows, memory)
        _ADDED[self.residual](self, rows, added[:count], memory)
        for change in self.behind_added:
            change(rows)
        return rows


@dataclass(frozen=True, slots=True)
class CombinedLayer:
    manifest: LayerManifest
    hops: int
    """Hops that it reads."""
    convolutions: tuple[RelationConvolution, ...]
    tails: Mapping[int, TypeTail]
    before: Mapping[int, tuple[Change, ...]]
    """Norm and activation of each type that stand before the convolutions."""

    def run(
        self, rows: Rows, network_input: Rows, lists: Mapping[int, RelationLists], wanted: Sequence[int],
        behind: int, counts: Counts, memory: RunMemory,
    ) -> dict[int, np.ndarray]:  # fmt: skip
        """Rows of the wanted types, of nodes within `behind` hops of a seed."""
        read = rows if not self.manifest.is_pre_activated else self._activated(rows, memory)
        added = network_input if self.manifest.reads_input else rows
        found = {}
        for type_ in wanted:
            count = counts(type_, behind)
            given = [
                (each.built, self._step(each, read, network_input, lists, behind, counts, memory))
                for each in self.convolutions
                if each.target == type_
            ]
            tail = self.tails[type_]
            combined = _COMBINATIONS[self.manifest.combination](given) if given else None
            if combined is None:
                combined = memory.rows(count, tail.columns)
                combined[:] = 0
            found[type_] = tail.finish(combined, read.get(type_, NO_ROWS), added.get(type_, NO_ROWS), memory)
        return found

    def _step(
        self, one: RelationConvolution, read: Rows, network_input: Rows, lists: Mapping[int, RelationLists],
        behind: int, counts: Counts, memory: RunMemory,
    ) -> Step:  # fmt: skip
        sources, targets = read[one.source], read.get(one.target, NO_ROWS)
        if one.products is not None:
            of_neighbour, of_own = one.products
            targets = taken(targets[: counts(one.target, behind)], of_own, memory) if of_own != NOTHING else NO_ROWS
            sources = taken(sources, of_neighbour, memory)
        return Step(
            sources,
            targets,
            tuple(counts(one.target, behind + left) for left in reversed(range(one.hops))),
            lists[one.relation] if one.where is None else lists[one.relation].where(*one.where),
            network_input[one.target] if one.reads_network_input else NO_ROWS,
            memory,
        )

    def _activated(self, rows: Rows, memory: RunMemory) -> dict[int, np.ndarray]:
        found = {}
        for type_, read in rows.items():
            changed = found[type_] = memory.rows(*read.shape)
            changed[:] = read
            for change in self.before[type_]:
                change(changed)
        return found


def build_layer(layer: LayerManifest, widths: LayerWidths, schema: GraphSchema, tensors: Tensors) -> CombinedLayer:
    """`tensors`: those below `layers.<number>`."""
    places: list[tuple[slice, slice]] | list[None] = [None] * len(layer.convs)
    if widths.products is not None:
        places = [*zip(widths.products.neighbours, widths.products.own, strict=True)]
    convolutions = tuple(
        RelationConvolution(
            (KINDS if place is None else PROJECTED)[conv.conv].build(conv, ends, below(tensors, f"convs.{key}")),
            conv.relation,
            source_of(conv, schema),
            target_of(conv, schema),
            conv.hops,
            KINDS[conv.conv].reads_network_input(conv),
            None if conv.where is None else (ends.edge_columns.index(conv.where.column), conv.where.equals),
            place,
        )
        for conv, ends, key, place in zip(layer.convs, widths.ends, layer.keys, places, strict=True)
    )
    tails = {type_: _build_tail(layer, widths, type_, tensors) for type_ in widths.outputs}
    before = {
        type_: tuple(_in_order(layer, _norm(layer, type_, tensors), _activation(layer, type_, tensors)))
        for type_ in (widths.inputs if layer.is_pre_activated else ())
    }
    return CombinedLayer(layer, layer.hops, convolutions, tails, before)


def _build_tail(layer: LayerManifest, widths: LayerWidths, type_: int, tensors: Tensors) -> TypeTail:
    def product(name: str) -> RowsOf:
        if widths.products is not None:
            return ColumnsOf(widths.products.beside[name].get(type_, NOTHING))
        own = below(tensors, f"{name}.{type_}")
        return Product.build(own["weight"], own["bias"])

    normed, activated = [], []
    if not layer.is_pre_activated:
        normed, activated = _norm(layer, type_, tensors), _activation(layer, type_, tensors)
    changes = _in_order(layer, normed, activated)
    place = ResidualPlace.BEHIND_ACTIVATION if layer.output_product else layer.residual_place
    first_behind = {
        ResidualPlace.BEFORE_NORM: len(activated) if layer.is_norm_behind else 0,
        ResidualPlace.BEFORE_ACTIVATION: 0 if layer.is_norm_behind else len(normed),
        ResidualPlace.BEHIND_ACTIVATION: len(changes),
    }[place]
    return TypeTail(
        widths.outputs[type_],
        product("own") if layer.own else None,
        layer.residual,
        product("residuals") if layer.residual is Residual.PROJECTED else None,
        _share(tensors.get(f"residuals.{type_}.gate")),
        _build_output(layer, below(tensors, f"outputs.{type_}")),
        tuple(changes[:first_behind]),
        tuple(changes[first_behind:]),
    )


def _in_order(layer: LayerManifest, normed: Sequence[Change], activated: Sequence[Change]) -> list[Change]:
    return [*activated, *normed] if layer.is_norm_behind else [*normed, *activated]


def _norm(layer: LayerManifest, type_: int, tensors: Tensors) -> list[Change]:
    return [*build_norm(layer.norm, below(tensors, f"norms.{type_}"), layer.norm_epsilon)]


def _activation(layer: LayerManifest, type_: int, tensors: Tensors) -> list[Change]:
    return [*build_activation(layer.activation, below(tensors, f"activations.{type_}"), layer.slope)]


def _share(gate: np.ndarray | None) -> np.float32 | None:
    return None if gate is None else np.float32(1 / (1 + np.exp(-float(gate[0]))))


def _build_output(layer: LayerManifest, tensors: Tensors) -> Product | None:
    return Product.build(tensors["weight"], tensors["bias"]) if layer.output_product else None


# --- what is added of the input


def _add_nothing(tail: TypeTail, rows: np.ndarray, added: np.ndarray, memory: RunMemory) -> None:
    del tail, rows, added, memory


def _add_input(tail: TypeTail, rows: np.ndarray, added: np.ndarray, memory: RunMemory) -> None:
    del tail, memory
    rows += added


def _average(tail: TypeTail, rows: np.ndarray, added: np.ndarray, memory: RunMemory) -> None:
    del tail, memory
    rows += added
    rows *= np.float32(0.5)


def _add_product(tail: TypeTail, rows: np.ndarray, added: np.ndarray, memory: RunMemory) -> None:
    if tail.projected is not None:
        rows += tail.projected(added, memory)


def _share_with_input(tail: TypeTail, rows: np.ndarray, added: np.ndarray, memory: RunMemory) -> None:
    if tail.gate is None:
        return
    rest = memory.rows(*rows.shape)
    np.multiply(added, np.float32(1) - tail.gate, out=rest)
    rows *= tail.gate
    rows += rest


_ADDED: Mapping[Residual, Callable[[TypeTail, np.ndarray, np.ndarray, RunMemory], None]] = {
    Residual.NONE: _add_nothing,
    Residual.ADDED: _add_input,
    Residual.AVERAGED: _average,
    Residual.PROJECTED: _add_product,
    Residual.GATED: _share_with_input,
}

# --- combinations

_Given = Sequence[tuple[BuiltConvolution, Step]]
"""Convolutions that nodes of a type read, with the input of each."""


def _outputs(given: _Given) -> list[np.ndarray]:
    return [built.run(step) for built, step in given]


def _combined(rows: Sequence[np.ndarray], change: Callable[..., np.ndarray]) -> np.ndarray:
    for each in rows[1:]:
        change(rows[0], each, out=rows[0])
    return rows[0]


def _mean(given: _Given) -> np.ndarray:
    found = _combined(_outputs(given), np.add)
    if len(given) > 1:
        found *= np.float32(1 / len(given))
    return found


def _beside(given: _Given) -> np.ndarray:
    rows = _outputs(given)
    return rows[0] if len(rows) == 1 else np.concatenate(rows, axis=1)


_COMBINATIONS: Mapping[Combination, Callable[[_Given], np.ndarray]] = {
    Combination.SUM: lambda given: _combined(_outputs(given), np.add),
    Combination.MEAN: _mean,
    Combination.MAX: lambda given: _combined(_outputs(given), np.maximum),
    Combination.MIN: lambda given: _combined(_outputs(given), np.minimum),
    Combination.CAT: _beside,
    Combination.ATTENTION: lambda given: _combined(attend_together(given), np.add),
}
