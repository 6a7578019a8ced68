"""A node that is explained, in a graph whose nodes are of one type. Where links join nodes of several types, it is one
graph too, whose ids are texts with a type."""

from __future__ import annotations

from typing import Any

import numpy as np

from gnnserve_api.explain import ExplainRequest
from gnnserve_worker.graph.overlay import Overlay
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.serving.http.explore.subject import Lists, ReadList, Subject, Without


def one_type_subject(request: ExplainRequest[Any], revision: ServedRevision) -> Subject:
    """Raises RequestError: there is no such node."""
    node = revision.graph.naming.find_one(request.node, "node")
    listed = revision.graph.neighbours_of(node)
    lists = (ReadList(np.unique(listed).astype(np.int64), None),)

    def shown(position: int) -> Any:
        return next(iter(revision.graph.naming.shown(position, position + 1)), None)

    return Subject(node, lists, len(listed), shown, _without(node, revision))


def _without(node: int, revision: ServedRevision) -> Without | str:
    support = revision.compute.overlays.plain
    if revision.task.links is not None:
        return "pairs of nodes are scored here, and a node alone has no answer"
    if support is None:
        return f"no edge can be left out: {revision.compute.overlays.why}"
    if support.features_of is None:
        return (
            "the revision does not keep the features of its nodes as they were, which leaving out an edge needs: store "
            "a variant as Float32 with all columns, without normalisation by rows"
        )
    features = np.ascontiguousarray(support.features_of(np.array([node], np.int64)), np.float32)
    new = np.array([revision.graph.nodes], np.int64)

    def without(lists: Lists) -> tuple[Overlay, np.ndarray]:
        (neighbours,) = lists
        edges = np.stack([neighbours, np.broadcast_to(new, neighbours.shape)], axis=1)
        return support.arrange(features, np.empty(0, np.int64), np.ascontiguousarray(edges), new)

    return without
