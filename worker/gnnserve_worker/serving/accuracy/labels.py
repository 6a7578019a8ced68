"""Labels as clients send them, by the ids of the graph's source: which nodes and classes of a revision they mean."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import numpy as np

from gnnserve_api.live_accuracy import TypedNodeId
from gnnserve_api.typed import TypedGraphManifest
from gnnserve_worker.inference.served import ServedRevision

NodeId = int | str
Label = int | str | tuple[int | str, ...]
"""The label of a node; where nodes have several, all of them."""
TimedNode = tuple[NodeId, datetime]
_INT64 = range(-(2**63), 2**63)
_MOST_DIGITS = 20


def plain_ids(given: Sequence[NodeId | TypedNodeId], revision: ServedRevision) -> list[NodeId | TypedNodeId]:
    """Ids as texts with their types where they are objects, in a graph that has types."""
    if revision.graph.typed is None:
        return [*given]
    return [f"{one.type}/{one.id}" if isinstance(one, TypedNodeId) else one for one in given]


def find_nodes(ids: Sequence[NodeId | TypedNodeId], revision: ServedRevision) -> np.ndarray:
    """Positions int64 of nodes; -1 where the graph has no such node, an id of the other kind among them."""
    positions = np.full(len(ids), -1, np.int64)
    if revision.graph.typed is not None:
        ids = [_within(node, revision.graph.typed, revision) for node in ids]
    wanted = str if revision.graph.naming.are_texts else int
    places = [i for i, node in enumerate(ids) if isinstance(node, wanted) and (wanted is str or node in _INT64)]
    if not places:
        return positions
    asked = [ids[i] for i in places]
    if revision.graph.naming.are_texts:
        assert revision.graph.node_ids is not None  # noqa: S101
        positions[places] = revision.graph.node_ids.find_texts([str(node) for node in asked])
        return positions
    integers = np.array(asked, np.int64)
    if revision.graph.node_ids is not None:
        positions[places] = revision.graph.node_ids.find_integers(integers)
    else:
        positions[places] = np.where((integers >= 0) & (integers < revision.graph.nodes), integers, -1)
    return positions


def _within(node: NodeId | TypedNodeId, types: TypedGraphManifest, revision: ServedRevision) -> NodeId | TypedNodeId:
    """The id within its type, of one that names it: only nodes of one type have labels, and others are no texts."""
    name, slash, id_ = node.partition("/") if isinstance(node, str) else ("", "", "")
    if not slash or name not in {kind.name for kind in types.types}:
        return node  # an id alone, which may have a slash of its own
    if name != types.target.name:
        return TypedNodeId(name, id_)
    digits = id_.removeprefix("-")
    is_integer = digits.isascii() and digits.isdigit() and len(digits) <= _MOST_DIGITS
    return int(id_) if is_integer and not revision.graph.naming.are_texts else id_


def find_truths(labels: Sequence[Label], revision: ServedRevision) -> tuple[np.ndarray, np.ndarray]:
    """Classes as scores have them, and which labels have one (bool [labels]). Classes are int64 [labels], or uint8
    [labels, classes] where nodes may have several. A list has none where nodes have one label each, and the other way
    round."""
    columns: dict[int | str, int] = {label: column for column, label in enumerate(revision.task.classes)}
    known = np.zeros(len(labels), bool)
    if not revision.task.multi_label:
        truths = np.full(len(labels), -1, np.int64)
        for i, label in enumerate(labels):
            if not isinstance(label, tuple) and label in columns:
                truths[i], known[i] = columns[label], True
        return truths, known
    flags = np.zeros((len(labels), len(columns)), np.uint8)
    for i, label in enumerate(labels):
        if isinstance(label, tuple) and all(each in columns for each in label):
            flags[i, [columns[each] for each in label]] = 1
            known[i] = True
    return flags, known
