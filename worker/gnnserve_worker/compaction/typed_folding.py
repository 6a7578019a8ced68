"""What changes make of a graph of several types: as `folding.py`, type by type and relation by relation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gnnserve_api.repository import ChangedSource
from gnnserve_worker.compaction.kept_nodes import KeptTypedNodes
from gnnserve_worker.compaction.source_changes import SourceChanges
from gnnserve_worker.graph.change_batch import ChangeBatch
from gnnserve_worker.graph.found_nodes import FoundNodes
from gnnserve_worker.graph.living_typed import LivingTypedGraph
from gnnserve_worker.graph.store import Features
from gnnserve_worker.graph.typed import NodeType, Relation, TypedGraphData
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.repository.graph_files import columns_of


class TypedFolding:
    """As `folding.Folding`."""

    def __init__(self, loaded: LoadedRevision, features: Sequence[Features | None], graph: LivingTypedGraph) -> None:
        """`features`: of each type, as in the source; None: it has none. `graph`: that of `loaded`."""
        if not loaded.type_rows:
            raise ValueError("a revision that cannot follow changes")
        self._loaded, self._graph = loaded, graph
        nodes = [kind.nodes for kind in graph.stored.types]
        self._changes = [
            SourceChanges(np.zeros((count, 0), np.float32) if own is None else own, loaded.classes)
            for own, count in zip(features, nodes, strict=True)
        ]

    def note(self, batch: ChangeBatch, found: FoundNodes) -> None:
        new, places = len(found.new), self._graph.places
        kinds, kinds_overridden = places.kinds_of(found.new), places.kinds_of(found.overridden)
        for kind, changes in enumerate(self._changes):
            own, overridden = np.flatnonzero(kinds == kind), np.flatnonzero(kinds_overridden == kind)
            first, width = places.first_nodes[kind], changes.width
            changes.note_rows(
                found.new[own] - first, batch.features[own, :width],
                found.overridden[overridden] - first, batch.features[new + overridden, :width],
            )  # fmt: skip
        # Of the type that is classified, which is the first one, positions are numbers. Others have no labels.
        self._changes[0].note_labels(batch, found)

    def data(self, digest: str, made_of: ChangedSource) -> tuple[TypedGraphData, KeptTypedNodes]:
        graph, loaded = self._graph, self._loaded
        kept = [ids.kept for ids in graph.ids_of]
        firsts = graph.places.first_nodes
        names = np.zeros(int(firsts[-1]), np.int32)
        for first, own in zip(firsts.tolist(), kept, strict=False):
            names[first + own] = np.arange(len(own), dtype=np.int32)
        relations = []
        for place, one in enumerate(graph.stored.relations):
            kind = graph.stored.place_of(one.target)
            lists = graph.lists.renumbered(graph.places.list_by(place, firsts[kind] + kept[kind]), names)
            relations.append(Relation(one.source, one.name, one.target, lists, one.reverse_of, one.edge_rules))
        asked = self._changes[0]
        data = TypedGraphData(
            source=loaded.source,
            digest=digest,
            types=tuple(self._type(kind, own) for kind, own in enumerate(kept)),
            relations=tuple(relations),
            labels=asked.labels_of(loaded.labels, kept[0]),
            classes=loaded.classes,
            splits=asked.splits_of(loaded.splits, kept[0], len(loaded.labels)),
            made_of=made_of,
        )
        return data, KeptTypedNodes(kept, graph.stored, graph.typed)

    def _type(self, kind: int, kept: np.ndarray) -> NodeType:
        described, columns = self._graph.stored.types[kind], self._loaded.type_rows[kind].columns
        return NodeType(
            described.name,
            len(kept),
            None if described.features is None else self._changes[kind].features_of(kept),
            () if columns is None else columns_of(columns.columns),
            self._graph.ids_of[kind].of_these(kept),
        )
