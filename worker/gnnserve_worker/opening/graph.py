"""The graph of a revision: mapped as it is stored, and with room for changes where it is opened for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from gnnserve_api.errors import RepositoryError
from gnnserve_api.families import point_of
from gnnserve_worker.graph.living_graph import LivingGraph
from gnnserve_worker.graph.payload import EdgePayload
from gnnserve_worker.graph.store import Graph, GraphIds
from gnnserve_worker.opening.living_graphs import living_graphs, moves_blocks, with_room
from gnnserve_worker.repository import checks, paths
from gnnserve_worker.repository.graph_files import open_graph, open_ids, open_names, open_payloads
from gnnserve_worker.repository.revision_files import RevisionFiles, RowLayout, open_graph_array
from gnnserve_worker.repository.room import GraphRoom


@dataclass(frozen=True, slots=True)
class OpenedGraph:
    stored: Graph
    """As it is mapped."""
    seen: Graph
    """As predictions read it: with room for new nodes, where it changes."""
    ids: GraphIds
    payloads: tuple[EdgePayload | None, ...]
    """Stored features and times of the edges of each relation; None: they have none."""
    living: LivingGraph | None = None
    """The graph where it changes, as predictions see it."""
    draft: LivingGraph | None = None
    """Another one over the same files, which changes are applied to first."""
    mapped_entries: int = 0
    """Entries of the lists of graphs that change which lie in mapped files; 0: they are copies."""


def open_seen_graph(revision: RevisionFiles) -> OpenedGraph:
    manifest, mapped = revision.graph, partial(open_graph_array, revision)
    rules = None if revision.manifest is None else revision.manifest.edge_rules
    stored = open_graph(manifest, mapped, revision.graph_folder / paths.INDICES, revision.graph_remedy, rules)
    payloads = open_payloads(stored, mapped, revision.graph_folder, revision.graph_remedy)
    ids, schema = GraphIds(open_ids(manifest, mapped), open_names(manifest, mapped)), stored.schema
    if revision.room is None:
        return OpenedGraph(stored, stored, ids, payloads)
    if revision.row_layout is not RowLayout.BY_NODE and not revision.makes_rows_by_type:
        raise _unchangeable(revision, "how rows of new nodes are made")
    if not any(point_of(variant).capabilities.changes for variant in revision.variants):
        raise _unchangeable(revision, "how rows of its variants follow changes")
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
