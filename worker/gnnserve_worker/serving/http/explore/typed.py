"""A node that is explained, of any type of a graph of several. Only nodes of the type that is classified have an
answer; of the others the neighbours are shown, so that people find their way from one such node to the next."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from gnnserve_api.explain import ExplainRequest, ReadRelation
from gnnserve_api.typed import TypedGraphManifest
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.serving.http.explore.subject import ReadList, Subject, Without


def typed_subject(request: ExplainRequest[Any], revision: ServedRevision) -> Subject:
    """Raises RequestError: there is no such node."""
    types, lists_by_relation = revision.graph.numbered, revision.graph.lists_by_relation
    node = revision.graph.naming.find_any(request.node, "node")
    lists = []
    for place, listed in lists_by_relation(node):
        relation = types.relations[place]
        read = ReadRelation(relation.name, relation.source, len(listed))
        lists.append(ReadList(np.sort(listed).astype(np.int64), read))
    degree = sum(len(one.neighbours) for one in lists)
    return Subject(node, tuple(lists), degree, revision.graph.naming.shown_any, _without(node, types, revision))


def _without(node: int, types: TypedGraphManifest, revision: ServedRevision) -> Without | str:
    support = revision.compute.overlays.typed
    if node >= types.first_nodes[1]:
        return f"answers are about nodes of type {types.target.name}"
    if support is None:
        return "an earlier gnnserve generated the revision and kept nothing of how rows are made: generate it again"
    return partial(support.stand_in, node)
