"""Opening a revision, published or staged: its graph, what variants read and compute by, and what applies changes.

Variants are put together from their files. How a table has rows of nodes decides how it is opened (`RevisionRows`): one
of each node, of one type or of several, or one for each relation that reads a node. A revision may have tables of both
kinds over the same lists.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Protocol

import numpy as np
from msgspec import UNSET
from safetensors import SafetensorError

from gnnserve_api.errors import DamagedError, RepositoryError
from gnnserve_api.families import point_of
from gnnserve_api.files.profile import Compute
from gnnserve_api.files.repository import NetworkManifest, VariantManifest
from gnnserve_worker.graph.living_graph import LivingGraph
from gnnserve_worker.graph.store import Graph, GraphIds, Splits
from gnnserve_worker.models.network import Layer, Network, VariantNetwork
from gnnserve_worker.models.registry import build_network
from gnnserve_worker.models.rows import MakesRows
from gnnserve_worker.models.stored_layers import MakesLayer
from gnnserve_worker.opening.changes import FollowedRows, OpenedChanges, draft_of
from gnnserve_worker.opening.delta_memory import DeltaMemory, MappedItems
from gnnserve_worker.opening.living_graphs import living_graphs, moves_blocks, roots_with_room, with_room
from gnnserve_worker.opening.loaded import (
    GraphReading,
    LoadedLabels,
    LoadedRevision,
    LoadedVariant,
    NetworkBuilder,
    NewNodes,
    OpenedGraph,
    Origin,
    TypeRowRecipe,
)
from gnnserve_worker.opening.networks import VariantNetworks, overlaid_rows_read_payload
from gnnserve_worker.opening.rows_by_node import RowsByNode
from gnnserve_worker.repository import checks, paths
from gnnserve_worker.repository.graph_files import open_graph, open_ids, open_names, open_payloads
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.repository.revision_files import RevisionFiles, RowLayout, open_graph_array
from gnnserve_worker.repository.room import GraphRoom
from gnnserve_worker.sampling.neighbours import Sampler, effective_nodes
from gnnserve_worker.tables.table import Table

if TYPE_CHECKING:
    from gnnserve_worker.programs.runner import ProgramRunner


# --- variants


class RevisionRows(Protocol):
    """How the tables of a revision have rows of nodes, and what makes such rows. Methods raise DamagedError, or
    ValueError and KeyError where weights do not fit."""

    @property
    def tables(self) -> Mapping[str, Table]: ...  # pragma: no cover

    @property
    def type_rows(self) -> tuple[TypeRowRecipe, ...]:
        """As `NewNodes.types`."""
        ...  # pragma: no cover

    @property
    def sample(self) -> Sampler:
        """Draws the neighbours whose rows are read."""
        ...  # pragma: no cover

    @property
    def mapped_nodes(self) -> int:
        """As `MappedItems.nodes`."""
        ...  # pragma: no cover

    def open(self, variant: VariantManifest) -> tuple[VariantNetwork, MakesRows | None]:
        """The network of a variant, and what makes rows for it, as of `LoadedVariant`."""
        ...  # pragma: no cover

    def open_table(self, name: str) -> Table:
        """A table from its files once more, with the room that the revision has."""
        ...  # pragma: no cover

    def followed(self) -> FollowedRows:
        """Makers of all rows that follow changes, once all variants are open."""
        ...  # pragma: no cover


class OpenedVariants:
    def __init__(self, revision: RevisionFiles, graph: OpenedGraph, build: NetworkBuilder) -> None:
        """`build`: makes networks over rows of nodes."""
        self._revision, self._mapped_entries = revision, graph.mapped_entries
        self.roots = cache(partial(roots_with_room, graph.stored, revision.node_room))
        """`inverse_roots` of the graph, where variants weigh neighbours."""
        self._networks = networks = VariantNetworks(revision, graph.seen.schema, build)
        self._rows = {
            layout: _ROWS[layout](own, graph, networks, self.roots) for layout, own in revision.by_layout().items()
        }
        self.tables = {name: table for rows in self._rows.values() for name, table in rows.tables.items()}
        # Nodes come with the same and have the same lists, whichever tables they are in.
        first = next(iter(self._rows.values()))
        self.type_rows, self.sample, self._mapped_nodes = first.type_rows, first.sample, first.mapped_nodes

    @property
    def programs(self) -> tuple[ProgramRunner, ...]:
        """As `LoadedRevision.programs`, once all variants are open."""
        if not self._networks.runners:
            return ()
        # Only a server that has a program imports what runs one.
        from gnnserve_worker.opening.programs import processes_of  # noqa: PLC0415

        return processes_of(self._networks.runners)

    def open(self, variant: VariantManifest) -> LoadedVariant:
        revision = self._revision
        path = revision.folder / variant.weights
        try:
            network, rows = self._rows_of(variant.table).open(variant)
        except (OSError, SafetensorError, ValueError, KeyError) as error:
            problem = f"does not hold the weights of {variant.name}: {error}"
            raise DamagedError(path, problem, revision.remedy) from error
        by_relation = () if variant.relation_fanouts is UNSET else variant.relation_fanouts
        table = self.tables[variant.table]
        return LoadedVariant(
            variant.name, table, variant.columns, variant.fanouts, network, rows, by_relation,
            rows_read_payload=rows is not None and overlaid_rows_read_payload(variant),
        )  # fmt: skip

    def changes(self, living: LivingGraph, draft: LivingGraph) -> OpenedChanges:
        """What applies changes, once all variants are open."""
        names = {id(table): name for name, table in self.tables.items()}
        followed = FollowedRows.joined([rows.followed() for rows in self._rows.values()])
        stored: Sequence[MakesLayer] = [maker for layer in followed.layers for maker in layer.makers]
        drafted = draft_of(
            draft,
            [maker.source for maker in stored],
            self.roots() if any(maker.weighs_neighbours for maker in stored) else None,
            # What no variant reads is not written either.
            lambda table: self._open_again(names[id(table)]) if id(table) in names else table,
        )
        mapped = MappedItems(self._mapped_nodes, self._mapped_entries)
        layers = [layer.makers for layer in followed.layers]
        memory = DeltaMemory(draft, followed.makers, layers, drafted.tables, mapped)
        widths = [one.features for one in self.type_rows]
        kept = (maker.kept_features(widths) for maker in followed.makers)
        features_of = next((one for one in kept if one is not None), None)
        return OpenedChanges(living, drafted, followed.makers, memory, followed.layers, features_of)

    def _rows_of(self, table: str) -> RevisionRows:
        return self._rows[self._revision.layout_of(self._revision.tables[table])]

    def _open_again(self, table: str) -> Table:
        return self._rows_of(table).open_table(table)


_Roots = Callable[[], np.ndarray]


def _rows_by_node(
    revision: RevisionFiles, graph: OpenedGraph, networks: VariantNetworks, roots: _Roots
) -> RevisionRows:
    return RowsByNode(revision, graph, networks, roots)


# Only a server of several types imports what opens them.


def _rows_by_relation(
    revision: RevisionFiles, graph: OpenedGraph, networks: VariantNetworks, roots: _Roots
) -> RevisionRows:
    from gnnserve_worker.opening.rows_by_relation import RowsByRelation  # noqa: PLC0415

    return RowsByRelation(revision, graph)


def _rows_by_type(
    revision: RevisionFiles, graph: OpenedGraph, networks: VariantNetworks, roots: _Roots
) -> RevisionRows:
    from gnnserve_worker.opening.rows_by_type import RowsByType  # noqa: PLC0415

    return RowsByType(revision, graph, networks, roots)


_ROWS: Mapping[RowLayout, Callable[[RevisionFiles, OpenedGraph, VariantNetworks, _Roots], RevisionRows]] = {
    RowLayout.BY_NODE: _rows_by_node,
    RowLayout.BY_RELATION: _rows_by_relation,
    RowLayout.BY_TYPE: _rows_by_type,
}


# --- its graph


def _open_seen_graph(revision: RevisionFiles) -> OpenedGraph:
    manifest, mapped = revision.graph, partial(open_graph_array, revision)
    rules = revision.edge_rules
    stored = open_graph(manifest, mapped, revision.graph_folder / paths.INDICES, revision.graph_remedy, rules)
    payloads = open_payloads(stored, mapped, revision.graph_folder, revision.graph_remedy)
    ids, schema = GraphIds(open_ids(manifest, mapped), open_names(manifest, mapped)), stored.schema
    if revision.room is None:
        return OpenedGraph(stored, stored, ids, payloads)
    if revision.row_layout is not RowLayout.BY_NODE and not revision.makes_rows_by_type:
        raise _unchangeable(revision, "how rows of new nodes are made")
    if not any(point_of(variant).capabilities.changes for variant in revision.variants):
        raise RepositoryError(
            revision.folder,
            "none of its variants follows changes of the graph: an earlier gnnserve generated it, or its search kept "
            "none that does",
            "generate it again, with variants.oneRow of hops 0 in place of a search, or leave spec.updates out",
        )
    if not manifest.keeps_rules(rules):
        raise _unchangeable(revision, "how edges become neighbour lists")
    grown = with_room(schema, revision.tables, revision.room)
    entries = None if moves_blocks(schema, grown) else _mapped_entries(revision, stored, revision.room)
    living, draft = living_graphs(stored, ids.by_type, grown, revision.room.entries, entries, payloads)
    mapped_entries = 0 if entries is None else stored.edges
    return OpenedGraph(stored, living.graph, ids, payloads, living, draft, mapped_entries)


def _mapped_entries(revision: RevisionFiles, stored: Graph, room: GraphRoom) -> Callable[[], np.ndarray]:
    """Opens the graph's entries, writable, with room behind."""
    path, entries = revision.graph_folder / paths.INDICES, revision.graph.edges + room.entries
    return lambda: checks.open_growing(path, np.dtype(np.int32), stored.indices.shape, entries, revision.graph_remedy)


def _unchangeable(revision: RevisionFiles, lacks: str) -> RepositoryError:
    return RepositoryError(
        revision.folder,
        f"an earlier gnnserve generated it and kept nothing of {lacks}",
        "generate it again, or leave spec.updates out",
    )


# --- a revision


def build_exact(
    manifest: NetworkManifest, tensors: Mapping[str, np.ndarray], columns: int, projected: bool, compute: Compute
) -> Network[Layer]:
    """A `NetworkBuilder` for revisions that are exported: in float32, as programs compute."""
    return build_network(manifest, tensors, columns, projected, "float32")


def load_revision(
    repository: Repository, revision: str, max_delta_bytes: int | None = None, build: NetworkBuilder = build_network
) -> LoadedRevision:
    """Open a published revision: verified by checksum, arrays memory-mapped, files watched from before the first byte
    was read. `max_delta_bytes`: it is opened for changes, which take so much memory at most. `build`: as of
    `open_revision`."""
    with repository.reading(revision, max_delta_bytes) as files:
        return open_revision(files, build)


def open_revision(revision: RevisionFiles, build: NetworkBuilder = build_network) -> LoadedRevision:
    """Open a revision. `build`: makes the networks of graphs of one type."""
    described, graph = revision.graph, _open_seen_graph(revision)
    parts = OpenedVariants(revision, graph, build)
    variants = {variant.name: parts.open(variant) for variant in revision.variants}
    weighs_neighbours = any(variant.network.weighs_neighbours for variant in variants.values())
    changes = None
    if graph.living is not None and graph.draft is not None:
        changes = parts.changes(graph.living, graph.draft)
        weighs_neighbours |= any(maker.weighs_neighbours for maker in changes.layer_makers)
    roots = parts.roots() if weighs_neighbours else None
    payloads = graph.payloads if graph.living is None else graph.living.payloads
    made_of = None if described.version is UNSET else described.version.made_of
    return LoadedRevision(
        manifest=revision.manifest,
        graph=graph.seen,
        reading=GraphReading(effective_nodes(graph.stored.indptr), parts.sample, roots, payloads),
        ids=graph.ids,
        labels=_labels_of(revision),
        variants=variants,
        origin=Origin(described.source, made_of, revision.folder, revision.watched),
        new_nodes=NewNodes(described.features, parts.type_rows),
        tables=parts.tables,
        programs=parts.programs,
        changes=changes,
    )


def _labels_of(revision: RevisionFiles) -> LoadedLabels:
    described, mapped = revision.graph, partial(open_graph_array, revision)
    nodes = described.schema.target.nodes
    values = (
        mapped(paths.LABELS, np.uint8, nodes, len(described.classes))
        if described.multi_label
        else mapped(paths.LABELS, np.int64, nodes)
    )
    splits = Splits(
        train=mapped(paths.TRAIN, np.int64, described.train_nodes),
        validation=mapped(paths.VALIDATION, np.int64, described.validation_nodes),
        test=mapped(paths.TEST, np.int64, described.test_nodes),
    )
    return LoadedLabels(described.classes, described.multi_label, values, splits)
