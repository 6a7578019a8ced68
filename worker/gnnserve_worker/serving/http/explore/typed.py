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
from gnnserve_worker.serving.http.question import ErrorCode, RequestError, shown_value
from gnnserve_worker.serving.http.typed_ids import find_number, read_id


def typed_subject(request: ExplainRequest[Any], revision: ServedRevision) -> Subject:
    """Raises RequestError: there is no such node."""
    types, lists_by_relation = revision.numbered_types, revision.lists_by_relation
    assert types is not None  # noqa: S101  (only such revisions come here)
    assert lists_by_relation is not None  # noqa: S101
    node = find_number(read_id(request.node, "node", types, revision), types, revision)
    if node < 0:
        raise RequestError(
            ErrorCode.UNKNOWN_NODE, "node", f"node {shown_value(request.node)} is not in the graph",
            "GET /v1/nodes?type=… lists the node ids of a type",
        )  # fmt: skip
    lists = []
    for place, listed in lists_by_relation(node):
        relation = types.relations[place]
        read = ReadRelation(relation.name, relation.source, len(listed))
        lists.append(ReadList(np.sort(listed).astype(np.int64), read))
    degree = sum(len(one.neighbours) for one in lists)
    return Subject(node, tuple(lists), degree, partial(_shown, types, revision), _without(node, types, revision))


def _without(node: int, types: TypedGraphManifest, revision: ServedRevision) -> Without | str:
    support = revision.typed_overlays
    if node >= types.first_nodes[1]:
        return f"answers are about nodes of type {types.target.name}"
    if support is None:
        return "an earlier gnnserve generated the revision and kept nothing of how rows are made: generate it again"
    return partial(support.stand_in, node)


def _shown(types: TypedGraphManifest, revision: ServedRevision, number: int) -> str | None:
    kind = int(np.searchsorted(types.first_nodes, number, side="right")) - 1
    position, described = number - types.first_nodes[kind], types.types[kind]
    shown = revision.shown_ids_of(described, position, position + 1)
    return f"{described.name}/{shown[0]}" if shown else None
