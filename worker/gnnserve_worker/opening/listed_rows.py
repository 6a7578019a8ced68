"""Makers of rows of tables that hold what listed layers make of nodes: of each alone, or behind the first layers, where
the graph changes and where requests bring nodes. Only a server that has such tables imports this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from msgspec import UNSET

from gnnserve_api.errors import DamagedError
from gnnserve_api.files.graph_schema import GraphSchema
from gnnserve_api.files.layers import LayersManifest, StoredRowsManifest
from gnnserve_api.files.programs import ProgramManifest
from gnnserve_api.files.repository import VariantManifest
from gnnserve_api.spec.graph import Normalization
from gnnserve_worker.graph.store import Graph
from gnnserve_worker.layers.contract import answered_types, program_of
from gnnserve_worker.layers.passes import one_layer, rows_behind, tensors_behind
from gnnserve_worker.layers.runner import LayersRunner
from gnnserve_worker.layers.shapes import columns_of
from gnnserve_worker.models.feature_products import Scaling
from gnnserve_worker.models.rows import BY_NODE, MakesRows, RowMaker, RowPlaces
from gnnserve_worker.models.type_rows import type_row_maker
from gnnserve_worker.opening.changes import FollowedRows, layers_by_number
from gnnserve_worker.opening.listed_layers import LayersAlone, ListedInputs, ListedLayer, ListedLayerMaker
from gnnserve_worker.opening.loaded import CORRECTION, OpenedGraph
from gnnserve_worker.opening.networks import VariantNetworks
from gnnserve_worker.opening.overlay_reach import OverlayReach
from gnnserve_worker.opening.overlay_rows import OverlayRows
from gnnserve_worker.sampling.neighbours import Sampler
from gnnserve_worker.tables.table import Table


@dataclass(frozen=True, slots=True)
class ListedRows:
    """Makers of rows of one revision. Methods raise DamagedError where weights do not fit."""

    networks: VariantNetworks
    tables: Mapping[str, Table]
    graph: OpenedGraph
    draw: Sampler
    roots: Callable[[], np.ndarray]
    """Makes `inverse_roots` of the graph."""
    scalings: Sequence[Scaling]
    """How features of each type are scaled."""
    names_leaves: bool
    """As of `OverlayReach`."""

    def followed(self, variants: Iterable[VariantManifest]) -> FollowedRows:
        """Makers of all rows that tables behind layers are made of, and of these tables' own."""
        inputs: dict[str, RowMaker] = {}
        # By the table that they read: networks with fewer channels have tables and layers of their own.
        layers: dict[str, ListedLayer] = {}
        makers: list[ListedLayerMaker] = []
        for variant in variants:
            names = _tables_of(variant)
            with self._reading(variant) as network:
                if names[0] not in inputs:
                    inputs[names[0]] = self._inputs(names[0], network)
                for number, (source, name) in enumerate(pairwise(names), start=1):
                    if source not in layers:
                        layers[source] = network.layer(number)
                    makers.append(self._maker(name, source, layers[source], number))
        hops = {maker.number: maker.layer.hops for maker in makers}
        return FollowedRows(tuple(inputs.values()), layers_by_number(makers, [hops[number] for number in sorted(hops)]))

    def overlaid(self, variant: VariantManifest) -> MakesRows:
        """Maker of rows of its table, which stores a layer, where requests reach."""
        names = _tables_of(variant)
        with self._reading(variant) as network:
            rows: MakesRows = self._inputs(names[0], network)
            weighs = False
            for number, (source, name) in enumerate(pairwise(names), start=1):
                maker = self._maker(name, source, network.layer(number), number)
                weighs |= maker.weighs_neighbours
                reach = OverlayReach(self.graph.seen, weighs, self.names_leaves)
                rows = OverlayRows(maker, rows, reach, number)
        return rows

    def of_nodes_alone(self, variants: Iterable[VariantManifest]) -> dict[str, RowMaker]:
        """Makers of the rows of tables that hold what is made of each node alone, by table."""
        found: dict[str, RowMaker] = {}
        for variant in variants:
            if variant.table not in found:
                with self._reading(variant) as network:
                    found[variant.table] = self._inputs(variant.table, network)
        return found

    @contextmanager
    def _reading(self, variant: VariantManifest) -> Iterator[_Network]:
        """The whole network of a variant; raises DamagedError in place of what tells that weights do not fit."""
        try:
            yield _Network.of(variant, self.networks.tensors(variant), self.graph.seen.schema)
        except (ValueError, KeyError) as error:
            problem = f"does not hold what rows of {variant.table} are made by: {error}"
            revision = self.networks.revision
            raise DamagedError(revision.folder / variant.weights, problem, revision.remedy) from error

    def _inputs(self, name: str, network: _Network) -> RowMaker:
        """Maker of rows before the first layer."""
        table, made_of = self.tables[name], tuple(network.inputs(self.scalings))
        is_of_one_type = len(made_of) == 1
        return RowMaker(
            table, made_of, BY_NODE if is_of_one_type else _places_by_type(table, self.graph.seen, len(made_of))
        )

    def _maker(self, name: str, source: str, layer: ListedLayer, number: int) -> ListedLayerMaker:
        """`name`, `source`: of tables behind the layer, and before it."""
        graph = self.graph
        return ListedLayerMaker(
            self.tables[name], self.tables[source], graph.seen,
            graph.payloads if graph.living is None else graph.living.payloads,
            self.draw, self.roots() if layer.weighs_neighbours else None, layer, number,
        )  # fmt: skip


def _tables_of(variant: VariantManifest) -> list[str]:
    """Tables of the rows before its first layer and behind each that is stored."""
    assert variant.stored is not None and variant.stored.followed is not None  # noqa: S101 - it follows changes
    return [*(layer.products for layer in variant.stored.followed.layers), variant.table]


@dataclass(frozen=True, slots=True)
class _Network:
    """A whole network, of which layers are stored."""

    program: ProgramManifest
    layers: LayersManifest
    tensors: Mapping[str, np.ndarray]
    schema: GraphSchema

    @staticmethod
    def of(variant: VariantManifest, tensors: Mapping[str, np.ndarray], schema: GraphSchema) -> _Network:
        assert variant.stored is not None and variant.stored.followed is not None  # noqa: S101 - it follows changes
        program = variant.stored.followed.network.program
        assert program is not UNSET and program.layers is not UNSET  # noqa: S101 - its kind says so
        own = {key.removeprefix(CORRECTION): one for key, one in tensors.items() if key.startswith(CORRECTION)}
        return _Network(program, program.layers, own, schema)

    def inputs(self, scalings: Sequence[Scaling]) -> Iterator[ListedInputs]:
        """What makes rows before the first layer, of each type."""
        rows, alone = self._rows(0), self._alone(0)
        for kind, (scaling, features) in enumerate(zip(scalings, columns_of(self.schema), strict=True)):
            yield ListedInputs(scaling, features, rows.get(kind), alone.get(kind), (kind,))

    def layer(self, number: int) -> ListedLayer:
        return ListedLayer(self._rows(number), self._rows(number - 1), self._alone(number))

    def _rows(self, number: int) -> Mapping[int, StoredRowsManifest]:
        answered = answered_types(self.program, self.schema)
        return rows_behind(self.layers, self.schema, columns_of(self.schema), number, answered)

    def _alone(self, number: int) -> Mapping[int, LayersAlone]:
        schema, columns = self.schema, columns_of(self.schema)
        alone = one_layer(self.layers, schema, columns, number, answered_types(self.program, schema))
        tensors, found = tensors_behind(self.tensors, alone, schema, columns), dict[int, LayersAlone]()
        for kind in (kind for kind, row in self._rows(number).items() if row.output):
            program = program_of(alone, schema, columns, (kind,))
            found[kind] = LayersAlone(program, schema, LayersRunner(tensors, program, schema))
        return found


def _places_by_type(table: Table, graph: Graph, types: int) -> RowPlaces:
    """Where a table of features has its rows, too."""
    unscaled = [Scaling(Normalization.DISABLED)] * types
    return type_row_maker(replace(table, kind="features"), graph.layout, unscaled, [0] * types).places
