"""Makers of rows of tables that store layers which a manifest lists, where the graph changes: by the layers' own
kernels, over whole lists, as generation made them. Only a server that follows changes of such tables imports this.

Rows before the first layer are made of features: products of these, and what is read of them later.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise

import msgspec
import numpy as np
from msgspec import UNSET

from gnnserve_api.errors import DamagedError
from gnnserve_api.files.graph_schema import GraphSchema
from gnnserve_api.files.layers import LayersManifest, StoredRowsManifest
from gnnserve_api.files.programs import ProgramManifest
from gnnserve_api.files.repository import VariantManifest
from gnnserve_api.spec.graph import Normalization
from gnnserve_api.spec.model import FULL_NEIGHBOURHOOD
from gnnserve_worker.graph.living_lists import LivingLists
from gnnserve_worker.graph.living_payload import LivingPayload
from gnnserve_worker.graph.store import Graph
from gnnserve_worker.layers.contract import answered_types, program_of
from gnnserve_worker.layers.passes import one_layer, rows_behind, tensors_behind
from gnnserve_worker.layers.runner import LayersRunner
from gnnserve_worker.layers.shapes import columns_of
from gnnserve_worker.layers.stored import NOTHING, parts_of, stored_rows
from gnnserve_worker.models.feature_products import Scaling
from gnnserve_worker.models.living_sums import LivingSums
from gnnserve_worker.models.network import Activations, Linear
from gnnserve_worker.models.program import ProgramNetwork
from gnnserve_worker.models.rows import BY_NODE, RowMaker, RowPlaces, encode_to_write, write_rows
from gnnserve_worker.models.stored_layers import MadeRows
from gnnserve_worker.models.type_rows import type_row_maker
from gnnserve_worker.opening.changes import FollowedRows, layers_by_number
from gnnserve_worker.opening.loaded import CORRECTION, OpenedGraph
from gnnserve_worker.opening.networks import VariantNetworks
from gnnserve_worker.sampling.batch_view import FeatureRows
from gnnserve_worker.sampling.neighbours import NeighbourSample, Sampler, Scratch
from gnnserve_worker.sampling.normalised import weigh
from gnnserve_worker.sampling.payload import gather_payload
from gnnserve_worker.tables.table import Rows, Table

# --- layers by themselves


class _Memory(threading.local):
    """Memory in which a thread computes layers."""

    def __init__(self) -> None:
        self.scratch = Scratch()
        self.activations = Activations()


_memory = _Memory()


@dataclass(frozen=True, slots=True)
class LayersAlone:
    """One layer, or the products before the first one, as a network of nodes of one type."""

    program: ProgramManifest
    schema: GraphSchema
    runner: LayersRunner

    def of_features(self, scaled: np.ndarray) -> np.ndarray:
        """Products of features, float32 [nodes, columns]."""
        (features,) = self.program.inputs
        (made,) = self.runner.run({features.name: scaled}, (self.program.scores,), len(scaled))
        return made

    def of_sample(self, table: Table, sample: NeighbourSample, seeds: int) -> np.ndarray:
        """What the layer gives of the seeds, float32 [seeds, columns], from rows of the table."""
        network = ProgramNetwork(self.program, self.schema, self.runner, self.program.row_columns(self.schema))
        made = np.empty((seeds, network.classes), np.float32)
        network.infer(network.gather(table, sample, _memory.activations), sample, _memory.activations, made)
        return made


# --- before the first layer


@dataclass(frozen=True, slots=True)
class ListedInputs:
    """The `RowsOfFeatures` of rows before the first layer, of one type."""

    scaling: Scaling
    features: int
    row: StoredRowsManifest | None
    """None: no layer reads nodes of the type."""
    before: LayersAlone | None
    """The products; None: the rows have none."""
    numbers: tuple[int, ...]
    products: tuple[Linear, ...] = ()

    def columns_of(self, columns: int) -> np.ndarray:
        return np.arange(self.features)

    def keeps(self, rows: Rows, features: int) -> bool:
        return False

    def make(self, features: FeatureRows, made: list[np.ndarray], rows: Rows, columns: int) -> None:
        """As `RowsOfFeatures.make`."""
        (number,) = self.numbers
        read, own = made[number], np.arange(self.features)
        made[number] = whole = np.zeros((len(read), rows.values.shape[1]), np.float32)
        if self.row is None or not len(read):
            return
        scaled = self.scaling.scale(features, read, own, self.features)
        output = scaled[:, :0] if self.before is None else self.before.of_features(scaled)
        whole[:, : self.row.columns] = stored_rows(self.row, output, NOTHING._replace(features=scaled))


# --- stored layers


@dataclass(frozen=True, slots=True)
class ListedLayer:
    """A layer whose output is stored, as its rows are made."""

    written: Mapping[int, StoredRowsManifest]
    """Parts of its rows, by type."""
    read: Mapping[int, StoredRowsManifest]
    """Parts of the rows that it reads."""
    alone: Mapping[int, LayersAlone]
    """The layer by itself, for each type whose rows have its output."""

    @property
    def hops(self) -> int:
        """As of `FollowedLayer`."""
        return max((one.program.sampled_hops for one in self.alone.values()), default=0)

    @property
    def weighs_neighbours(self) -> bool:
        return any(one.program.weighs_neighbours for one in self.alone.values())

    @property
    def reads_payload(self) -> bool:
        return any(one.program.reads_payload for one in self.alone.values())


@dataclass(frozen=True, slots=True)
class ListedLayerMaker:
    """A `MakesLayer` of a listed layer."""

    table: Table
    source: Table
    """Rows behind the layer before, in float32."""
    graph: Graph
    payloads: Sequence[LivingPayload | None]
    """Those of the graph's relations, which a draft has the same of."""
    draw: Sampler
    neighbour_roots: np.ndarray | None
    """`inverse_roots` of the graph, where the layer weighs neighbours."""
    layer: ListedLayer
    number: int
    """The first layer is 1."""

    @property
    def weighs_neighbours(self) -> bool:
        return self.layer.weighs_neighbours

    def rows_of_type(self, kind: int) -> int:
        """As of `RenewsRows`."""
        return 1

    def kept(self) -> Sequence[Rows]:
        """As `MakesLayer.kept`: nothing."""
        return ()

    def reading(self, graph: Graph, source: Table, neighbour_roots: np.ndarray | None) -> ListedLayerMaker:
        """As `MakesLayer.reading`."""
        return replace(self, graph=graph, source=source, neighbour_roots=neighbour_roots)

    def writing(self, table: Table) -> ListedLayerMaker:
        """As `MakesLayer.writing`."""
        return replace(self, table=table)

    def sums(self, lists: LivingLists, nodes: int) -> LivingSums | None:
        """As `MakesLayer.sums`: none are kept."""
        return None

    def make(self, nodes: np.ndarray, sums: LivingSums | None) -> MadeRows:
        """As `MakesLayer.make`, in the calling thread."""
        made = np.zeros((len(nodes), self.table.columns), np.float32)
        kinds = np.searchsorted(self.graph.schema.first_nodes, nodes, side="right") - 1
        for kind, row in self.layer.written.items():
            if len(own := np.flatnonzero(kinds == kind)):
                made[own, : row.columns] = self._rows_of(kind, nodes[own])
        return MadeRows(nodes, None, (encode_to_write(self.table.rows, made),))

    def put(self, made: MadeRows, *, in_parallel: bool = False) -> None:
        """As `MakesLayer.put`."""
        ((values, scales),) = made.rows
        write_rows(self.table.rows, made.nodes, values, scales, in_parallel=in_parallel)

    def _rows_of(self, kind: int, nodes: np.ndarray) -> np.ndarray:
        """Rows of nodes of a type, float32 [nodes, columns]."""
        layer, read, output = self.layer, NOTHING, np.zeros((len(nodes), 0), np.float32)
        if kind in layer.read:
            read = parts_of(layer.read[kind], self.source.rows.values[nodes, : layer.read[kind].columns])
        if kind in layer.alone:
            output = layer.alone[kind].of_sample(self.source, self._sample_of(nodes), len(nodes))
        return stored_rows(layer.written[kind], output, read)

    def _sample_of(self, nodes: np.ndarray) -> NeighbourSample:
        """All that the layer reads around these nodes (int64)."""
        graph, layer, scratch = self.graph, self.layer, _memory.scratch
        sample = self.draw(
            graph.indptr, graph.indices, nodes, (FULL_NEIGHBOURHOOD,) * layer.hops, 0, scratch, share=True,
            names_leaves=True, names_positions=layer.reads_payload,
        )  # fmt: skip
        if self.neighbour_roots is not None and layer.weighs_neighbours:
            sample = weigh(sample, graph.indptr, self.neighbour_roots, scratch)
        if layer.reads_payload:
            sample = msgspec.structs.replace(sample, payload=gather_payload(graph, self.payloads, sample))
        return sample


# --- a revision's


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


def listed_rows(
    variants: Iterable[VariantManifest],
    networks: VariantNetworks,
    tables: Mapping[str, Table],
    graph: OpenedGraph,
    draw: Sampler,
    roots: Callable[[], np.ndarray],
    scalings: Sequence[Scaling],
) -> FollowedRows:
    """Makers of all rows that these variants' tables are made of, and of their own. `roots`: makes `inverse_roots` of
    the graph. `scalings`: of the features of each type. DamagedError: weights do not fit."""
    payloads = () if graph.living is None else graph.living.payloads
    inputs: dict[str, RowMaker] = {}
    makers: list[ListedLayerMaker] = []
    layers: dict[int, ListedLayer] = {}
    for variant in variants:
        assert variant.stored is not None and variant.stored.followed is not None  # noqa: S101 - it follows changes
        names = [*(layer.products for layer in variant.stored.followed.layers), variant.table]
        with _naming(variant, networks):
            network = _Network.of(variant, networks.tensors(variant), graph.seen.schema)
            if names[0] not in inputs:
                inputs[names[0]] = _input_maker(tables[names[0]], graph.seen, tuple(network.inputs(scalings)))
            for number in (number for number in range(1, len(names)) if number not in layers):
                layers[number] = network.layer(number)
        for number, (source, name) in enumerate(pairwise(names), start=1):
            layer = layers[number]
            makers.append(
                ListedLayerMaker(
                    tables[name], tables[source], graph.seen, payloads, draw,
                    roots() if layer.weighs_neighbours else None, layer, number,
                )
            )  # fmt: skip
    hops = [layers[number].hops for number in sorted(layers)]
    return FollowedRows(tuple(inputs.values()), layers_by_number(makers, hops))


def projected_rows(
    variants: Iterable[VariantManifest],
    networks: VariantNetworks,
    tables: Mapping[str, Table],
    graph: Graph,
    scalings: Sequence[Scaling],
) -> dict[str, RowMaker]:
    """Makers of the rows of tables that hold what is made of each node alone, by table. `graph`: as predictions read
    it. DamagedError: as of `listed_rows`."""
    found: dict[str, RowMaker] = {}
    for variant in variants:
        if variant.table not in found:
            with _naming(variant, networks):
                network = _Network.of(variant, networks.tensors(variant), graph.schema)
                found[variant.table] = _input_maker(tables[variant.table], graph, tuple(network.inputs(scalings)))
    return found


@contextmanager
def _naming(variant: VariantManifest, networks: VariantNetworks) -> Iterator[None]:
    """Raise DamagedError in place of what tells that weights do not fit."""
    try:
        yield
    except (ValueError, KeyError) as error:
        problem = f"does not hold what rows of {variant.table} are made by: {error}"
        revision = networks.revision
        raise DamagedError(revision.folder / variant.weights, problem, revision.remedy) from error


def _input_maker(table: Table, graph: Graph, made_of: tuple[ListedInputs, ...]) -> RowMaker:
    return RowMaker(table, made_of, BY_NODE if len(made_of) == 1 else _places_by_type(table, graph, len(made_of)))


def _places_by_type(table: Table, graph: Graph, types: int) -> RowPlaces:
    """Where a table of features has its rows, too."""
    unscaled = [Scaling(Normalization.DISABLED)] * types
    return type_row_maker(replace(table, kind="features"), graph.layout, unscaled, [0] * types).places
