"""Variants of layers that a manifest lists whose first layers are stored: rows of all nodes, each over all of its
neighbours, made layer after layer from the rows of the layer before by the same runner that serves; and the network
that is left (`layers/passes.py`). Rows behind each layer, up to the last one that is asked for, are written in float32.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import msgspec
import numpy as np
from msgspec import UNSET

from gnnserve_api.families import STORED_LISTED
from gnnserve_api.files.graph_schema import GraphSchema
from gnnserve_api.files.layers import LayersManifest, StoredRowsManifest
from gnnserve_api.files.programs import ProgramManifest
from gnnserve_api.files.repository import StoredManifest, VariantManifest, program_network
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.variants import Storage, stored_layer_name
from gnnserve_worker.generation.families.family import (
    ComputeAll,
    DerivedTable,
    FamilyPlan,
    Ingredients,
    Outline,
    PlannedTable,
    PlannedVariant,
    storages_of,
)
from gnnserve_worker.generation.listed_layers import GivenLayers
from gnnserve_worker.graph.store import Features, Graph
from gnnserve_worker.layers.contract import FILE
from gnnserve_worker.layers.passes import one_layer, stored, tensors_behind
from gnnserve_worker.layers.shapes import columns_of
from gnnserve_worker.layers.stored import RowParts, parts_of, stored_rows
from gnnserve_worker.repository import paths
from gnnserve_worker.repository.revision_files import stored_bytes
from gnnserve_worker.tables.table import Table, feature_blocks

_COPIED_NODES = 4096
"""Rows that are brought into another storage at a time."""


class StoredLayersPlanner:
    """One variant behind each of the layers in `spec.variants.stored`, from each storage."""

    def needs_master(self, spec: GNNServiceSpec) -> bool:
        return False

    def tables_bytes(self, outline: Outline) -> int:
        asked, widths = outline.spec.variants.stored, outline.stored_columns
        if not widths:
            return 0
        written = [(Storage.FLOAT32, layer) for layer in range(max(asked) + 1)]
        written += [(storage, layer) for storage in outline.spec.variants.storage for layer in asked]
        return sum(stored_bytes(outline.nodes, widths[layer], storage) for storage, layer in dict.fromkeys(written))

    def plan(self, made_from: Ingredients, earlier: Sequence[PlannedVariant]) -> FamilyPlan:
        asked, storages = sorted(made_from.spec.variants.stored), storages_of(made_from.spec)
        listed = _Listed.of(made_from)
        tables: list[PlannedTable | DerivedTable] = [listed.first_table()]
        variants: list[PlannedVariant] = []
        for layer in range(1, asked[-1] + 1):
            tables.append(listed.table(layer))
            if layer in asked:
                tables += [listed.copy(layer, storage) for storage in storages if storage is not Storage.FLOAT32]
                variants += [listed.variant(layer, storage, storages[0]) for storage in storages]
        return FamilyPlan(tables, variants, over=lambda graph: self.plan(replace(made_from, graph=graph), earlier))


def columns_behind(layers: LayersManifest, schema: GraphSchema) -> tuple[int, ...]:
    """Columns of a row behind each layer of a network over one type: before the first one, behind it, …"""
    counts = range(len(layers.layers) + 1)
    return tuple(_rows_of(stored(layers, schema, columns_of(schema), count)).columns for count in counts)


def _rows_of(rest: LayersManifest) -> StoredRowsManifest:
    """The rows that it reads."""
    if rest.stored is UNSET:
        raise ValueError("no layer is stored")
    (rows,) = rest.stored.rows
    return rows


@dataclass(frozen=True, slots=True, eq=False)
class _Listed:
    """The listed layers of a spec, over the graph that their rows are made of."""

    given: GivenLayers
    contract: ProgramManifest
    """Of the whole network."""
    layers: LayersManifest
    fanouts: tuple[int, ...] | None
    """Neighbours that the whole network samples per hop; None: all of them."""
    lists: Graph
    features: Features
    compute: ComputeAll

    @staticmethod
    def of(made_from: Ingredients) -> _Listed:
        program, network = made_from.programs[0], made_from.programs[0].network
        if program.layers is None or program.compute is None or program.given.layers is UNSET:
            raise ValueError("variants of listed layers are made of a program that has none")
        fanouts = network.fanouts if min(network.fanouts) > 0 else None
        return _Listed(
            program.layers, program.given, program.given.layers, fanouts, made_from.graph, made_from.features,
            program.compute,
        )  # fmt: skip

    def first_table(self) -> PlannedTable:
        """Rows before the first layer."""
        row = self._row(0)
        return PlannedTable(_table_name(0), "projected", Storage.FLOAT32, row.columns, partial(self._first_rows, row))

    def table(self, layer: int) -> DerivedTable:
        """Rows behind a layer, made of those before it."""
        before, row = _table_name(layer - 1), self._row(layer)
        return DerivedTable(
            _table_name(layer), "projected", Storage.FLOAT32, row.columns,
            rows=lambda written: self._rows_behind(layer, row, written(before)),
        )  # fmt: skip

    def copy(self, layer: int, storage: Storage) -> DerivedTable:
        """The same rows in another storage."""
        name, of = _table_name(layer, storage), _table_name(layer)
        columns = self._row(layer).columns
        return DerivedTable(name, "projected", storage, columns, rows=lambda written: _blocks_of(written(of)))

    def variant(self, layer: int, storage: Storage, first: Storage) -> PlannedVariant:
        """`first`: of the storages, whose variant brings the weights that all of them share."""
        rest = self._rest(layer)
        given = self._with_weights(rest)
        file = paths.program_file_of(stored_layer_name(layer, first), FILE)
        program = msgspec.structs.replace(given.like(self.contract, rest), file=file, sha256=given.digest)
        sampled = None if self.fanouts is None or not program.hops else self.fanouts[: program.hops]
        network = program_network(program, sampled)
        name = stored_layer_name(layer, storage)
        manifest = VariantManifest(
            name=name,
            family=STORED_LISTED.family,
            table=_table_name(layer, storage),
            columns=_rows_of(rest).columns,
            fanouts=network.fanouts,
            network=network,
            compute="float32",
            weights=file,
            stored=StoredManifest(layer=layer),
        )
        return PlannedVariant(manifest, factor=1, tensors=given.tensors if storage is first else None)

    def _row(self, layer: int) -> StoredRowsManifest:
        return _rows_of(self._rest(layer))

    def _rest(self, layer: int) -> LayersManifest:
        return stored(self.layers, self.lists.schema, columns_of(self.lists.schema), layer)

    def _with_weights(self, part: LayersManifest) -> GivenLayers:
        schema = self.lists.schema
        return self.given.learnt(tensors_behind(self.given.tensors or {}, part, schema, columns_of(schema)))

    def _first_rows(self, row: StoredRowsManifest) -> Iterator[np.ndarray]:
        for nodes, output in self._outputs(0, self.features):
            (features,) = feature_blocks(self.features[nodes], range(self.features.shape[1]))
            yield stored_rows(row, output, RowParts(output, (), features[:, :0], features))

    def _rows_behind(self, layer: int, row: StoredRowsManifest, table: Table) -> Iterator[np.ndarray]:
        before, read = self._row(layer - 1), table.rows.values[:, : table.columns]
        for nodes, output in self._outputs(layer, read):
            yield stored_rows(row, output, parts_of(before, read[nodes]))

    def _outputs(self, number: int, rows: Features) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """What the layer of this number gives of all nodes, part after part. `rows`: those that it reads."""
        alone = one_layer(self.layers, self.lists.schema, columns_of(self.lists.schema), number)
        given = self._with_weights(alone)
        return self.compute(given.runner(program := given.like(self.contract, alone)), program, self.lists, rows)


def _blocks_of(table: Table) -> Iterator[np.ndarray]:
    """Rows of a table in float32, some at a time."""
    for start in range(0, table.nodes, _COPIED_NODES):
        yield table.rows.values[start : start + _COPIED_NODES, : table.columns]


def _table_name(layer: int, storage: Storage = Storage.FLOAT32) -> str:
    return f"stored{layer}-{storage}"
