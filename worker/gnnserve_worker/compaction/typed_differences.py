"""What makes one graph of several types into another: as `differences.py`, type by type and relation by relation.

A node of a type without features that is in both graphs keeps the embedding that the older model has of it; one that
came since begins as any new node does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np

from gnnserve_worker.compaction.differences import (
    MOST_EDGES,
    EdgeDifference,
    edge_differences,
    gone_of,
    ids_at,
    names_of,
    new_rows,
    other_rows,
    parts_of,
)
from gnnserve_worker.compaction.kept_nodes import KeptTypedNodes
from gnnserve_worker.graph.change_batch import ChangeBatch, ChangeCounts, ChangeIds
from gnnserve_worker.graph.ids import NodeIds, lay_out
from gnnserve_worker.graph.living_typed import LivingTypedGraph
from gnnserve_worker.graph.store import Features
from gnnserve_worker.graph.typed import NodeType, Relation, TypedGraphData
from gnnserve_worker.inference.living import LivingRevision
from gnnserve_worker.opening.loaded import LoadedRevision


def bring_typed(
    loaded: LoadedRevision, features: Sequence[Features | None], target: TypedGraphData, living: LivingRevision,
    apply: Callable[[ChangeBatch], None],
) -> KeptTypedNodes:  # fmt: skip
    """As `restoring.bring`, by batches that `apply` applies to the living revision. `features`: of each type."""
    graph = living.graph
    assert isinstance(graph, LivingTypedGraph)  # noqa: S101 - as is the target
    everyone = [ids_at(kind.ids, np.arange(kind.nodes)) for kind in target.types]
    for own, kind, ids, before in zip(graph.ids_of, target.types, everyone, features, strict=True):
        stored_ids = loaded.type_ids[kind.name]
        for batch in _node_changes(stored_ids, own.count, before, kind, own.find(ids), loaded.features):
            apply(batch)
    positions = [own.find(ids) for own, ids in zip(graph.ids_of, everyone, strict=True)]
    for place, relation in enumerate(target.relations):
        if relation.reverse_of is not None:
            continue  # it goes with the one that it is the reverse of
        source, reader = graph.stored.place_of(relation.source), graph.stored.place_of(relation.target)
        numbers = [graph.places.first_nodes[kind] + positions[kind] for kind in (source, reader)]
        rules = graph.stored.relations[place].edge_rules
        lists = graph.places.list_by(place, numbers[1])
        ends = target.types[source], target.types[reader]
        for difference in edge_differences(
            graph.lists, lists, names_of(numbers[0]), relation.lists, ends[0].nodes, rules
        ):
            apply(_edges(difference, relation, ends, loaded.features))
    return KeptTypedNodes(positions, graph.stored, graph.typed)


def _node_changes(
    ids: NodeIds | None, nodes: int, before: Features | None, after: NodeType, places: np.ndarray, width: int
) -> Iterator[ChangeBatch]:
    """As `differences.node_changes`, of one type. `width`: columns of the widest type."""
    for gone in parts_of(gone_of(nodes, places), MOST_EDGES):
        yield _batch(ChangeCounts(removed_nodes=len(gone)), _called(after.name, ids, gone), width)
    if before is None or after.features is None:
        for new in parts_of(np.flatnonzero(places < 0), MOST_EDGES):
            rows = np.zeros((len(new), 0), np.float32)
            yield _batch(ChangeCounts(new_nodes=len(new)), _called(after.name, after.ids, new), width, rows)
        return
    for new, rows in new_rows(after.features, places):
        yield _batch(ChangeCounts(new_nodes=len(new)), _called(after.name, after.ids, new), width, rows)
    for other, rows in other_rows(before, after.features, places):
        yield _batch(ChangeCounts(overrides=len(other)), _called(after.name, after.ids, other), width, rows)


def _edges(
    difference: EdgeDifference, relation: Relation, ends: tuple[NodeType, NodeType], width: int
) -> ChangeBatch:  # fmt: skip
    edges = np.concatenate(difference)
    sources, targets = (_called(kind.name, kind.ids, edges[:, end]) for end, kind in enumerate(ends))
    texts = [text for source, target in zip(sources, targets, strict=True) for text in (source, relation.name, target)]
    return _batch(ChangeCounts(edges=len(difference.come), removed_edges=len(difference.go)), texts, width)


def _called(kind: str, ids: NodeIds | None, nodes: np.ndarray) -> list[str]:
    """What changes call nodes of a type at these positions (int64)."""
    found = ids_at(ids, nodes)
    if found.integers is not None:
        return [f"{kind}/{id_}" for id_ in found.integers.tolist()]
    assert found.texts is not None and found.offsets is not None  # noqa: S101
    whole = found.texts.tobytes()
    return [f"{kind}/{whole[start:end].decode()}" for start, end in pairwise(found.offsets.tolist())]


def _batch(counts: ChangeCounts, texts: Sequence[str], width: int, rows: np.ndarray | None = None) -> ChangeBatch:
    """`rows`: features, of a type's own columns."""
    features = np.zeros((counts.rows, width), np.float32)
    if rows is not None:
        features[:, : rows.shape[1]] = rows
    return ChangeBatch(counts, ChangeIds(None, *lay_out(texts)), features, is_typed=True)
