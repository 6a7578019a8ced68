"""Rows that single layers which a manifest lists make: by the layers' own kernels, over whole lists, as generation made
them. Rows before the first layer are made of features: products of these, and what is read of them later.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from gnnserve_api.files.graph_schema import GraphSchema
from gnnserve_api.files.layers import StoredRowsManifest
from gnnserve_api.files.programs import ProgramManifest
from gnnserve_api.spec.model import FULL_NEIGHBOURHOOD
from gnnserve_worker.graph.living_lists import LivingLists
from gnnserve_worker.graph.living_payload import LivingPayload
from gnnserve_worker.graph.payload import EdgePayload
from gnnserve_worker.graph.store import Graph
from gnnserve_worker.layers.runner import LayersRunner
from gnnserve_worker.layers.stored import NOTHING, parts_of, stored_rows
from gnnserve_worker.models.feature_products import Scaling
from gnnserve_worker.models.living_sums import LivingSums
from gnnserve_worker.models.network import Activations, Linear
from gnnserve_worker.models.program import ProgramNetwork
from gnnserve_worker.models.rows import encode_rows, encode_to_write, pad_rows, write_rows
from gnnserve_worker.models.stored_layers import MadeRows
from gnnserve_worker.opening.overlay_rows import ReadPlaces, SeenNodes, name_by_node
from gnnserve_worker.programs.numbering import seed_rows
from gnnserve_worker.sampling.batch_view import BatchView, FeatureRows
from gnnserve_worker.sampling.neighbours import NeighbourSample, Sampler, Scratch
from gnnserve_worker.sampling.normalised import weigh
from gnnserve_worker.sampling.payload import gather_payload
from gnnserve_worker.tables.table import Rows, RowsBehind, Table

# --- layers by themselves


class _Memory(threading.local):
    """Memory in which a thread computes layers."""

    def __init__(self) -> None:
        self.activations = Activations()
        self._scratch: dict[int, Scratch] = {}

    def scratch_of(self, layer: int) -> Scratch:
        """Memory of samples: rows of one layer are made while another's sample is read."""
        return self._scratch.setdefault(layer, Scratch())


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

    def of_sample(
        self, table: Table, sample: NeighbourSample, seeds: int, behind: RowsBehind | None = None
    ) -> np.ndarray:
        """What the layer gives of the seeds, float32 [seeds, columns], from rows of the table, and those behind it."""
        network = ProgramNetwork(self.program, self.schema, self.runner, self.program.row_columns(self.schema))
        made = np.empty((seeds, network.classes), np.float32)
        network.infer(network.gather(table, sample, _memory.activations, behind), sample, _memory.activations, made)
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
    payloads: Sequence[EdgePayload | LivingPayload | None]
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
        made = self.rows_of(nodes, self.kinds_of(nodes))
        return MadeRows(nodes, None, (encode_to_write(self.table.rows, made),))

    def put(self, made: MadeRows, *, in_parallel: bool = False) -> None:
        """As `MakesLayer.put`."""
        ((values, scales),) = made.rows
        write_rows(self.table.rows, made.nodes, values, scales, in_parallel=in_parallel)

    def name(self, sample: NeighbourSample, places: ReadPlaces, kinds: np.ndarray) -> Sequence[np.ndarray]:
        """As `MakesSeenRows.name`."""
        return name_by_node(sample, places, self.table.nodes)

    def make_seen(
        self, nodes: np.ndarray, kinds: np.ndarray, read: Sequence[np.ndarray], seen: SeenNodes
    ) -> RowsBehind:
        """As `MakesSeenRows.make_seen`."""
        rows = self.table.rows
        values, scales = encode_rows(rows, pad_rows(rows, self.rows_of(nodes, kinds, seen)))
        return RowsBehind(values, scales, values, scales)

    def kinds_of(self, nodes: np.ndarray) -> np.ndarray:
        """Places of the types of stored nodes (int64)."""
        kinds: np.ndarray = np.searchsorted(self.graph.schema.first_nodes, nodes, side="right") - 1
        return kinds

    def rows_of(self, nodes: np.ndarray, kinds: np.ndarray, seen: SeenNodes | None = None) -> np.ndarray:
        """Rows of these nodes (int64, distinct), float32 [nodes, columns of the table]. `kinds`: the place of each
        one's type. `seen`: they are nodes of a view, each of them once in each; None: of the graph as it is."""
        made = np.zeros((len(nodes), self.table.columns), np.float32)
        for kind, row in self.layer.written.items():
            if len(own := np.flatnonzero(kinds == kind)):
                made[own, : row.columns] = self._rows_of(kind, nodes[own], None if seen is None else seen.at(own))
        return made

    def _rows_of(self, kind: int, nodes: np.ndarray, seen: SeenNodes | None) -> np.ndarray:
        """As `rows_of`, of nodes of one type and its columns alone."""
        layer, read, output = self.layer, NOTHING, np.zeros((len(nodes), 0), np.float32)
        sample, behind, named = None, None, nodes
        if kind in layer.alone or seen is not None:
            sample = self._sample_of(nodes, None if seen is None else seen.view.of_distinct(seen.views))
        if seen is not None and sample is not None:
            behind = seen.inputs.behind(seen.view, sample, self.source.columns, apart=False)
            named = sample.nodes[seed_rows(sample)].astype(np.int64)
        if kind in layer.read:
            read = parts_of(layer.read[kind], self._read(named, behind)[:, : layer.read[kind].columns])
        if kind in layer.alone and sample is not None:
            output = layer.alone[kind].of_sample(self.source, sample, len(nodes), behind)
        return stored_rows(layer.written[kind], output, read)

    def _read(self, named: np.ndarray, behind: RowsBehind | None) -> np.ndarray:
        """Rows that the layer reads by their names in a sample (int64): float32 [rows, columns]."""
        stored = self.source.rows.values
        is_stored = named < len(stored)
        found: np.ndarray = stored[np.where(is_stored, named, 0)]
        if behind is not None and behind.values is not None:
            found[~is_stored] = behind.values[named[~is_stored] - len(stored)]
        return found

    def _sample_of(self, nodes: np.ndarray, view: BatchView | None) -> NeighbourSample:
        """All that the layer reads around these nodes (int64). `view`: theirs."""
        graph, layer, scratch = self.graph, self.layer, _memory.scratch_of(self.number)
        seen = None if view is None else view.sampling
        sample = self.draw(
            graph.indptr, graph.indices, nodes, (FULL_NEIGHBOURHOOD,) * layer.hops, 0, scratch, share=True, view=seen,
            names_leaves=True, names_positions=layer.reads_payload,
        )  # fmt: skip
        if self.neighbour_roots is not None and layer.weighs_neighbours:
            sample = weigh(sample, graph.indptr, self.neighbour_roots, scratch, seen)
        if layer.reads_payload:
            sample = msgspec.structs.replace(sample, payload=gather_payload(graph, self.payloads, sample, view))
        return sample
