"""Fields of a request in JSON that classifies nodes, and what to do where one is wrong."""

from __future__ import annotations

from typing import Any

from gnnserve_api.repository import NodeIdKind
from gnnserve_worker.asking.body_form import FIELDS, IDS, MEMBERS, REMEDIES, BodyForm
from gnnserve_worker.asking.question import shown_value

_NODES_REMEDIES = {
    NodeIdKind.POSITIONS: "give a list of node ids, each an integer from 0",
    NodeIdKind.INTEGERS: "node ids of this graph are integers: give a list of them; GET /v1/nodes lists them",
    NodeIdKind.STRINGS: "node ids of this graph are texts: give a list of them; GET /v1/nodes lists them",
}


def _example(revision: Any) -> str:
    return f'{{"nodes": [{", ".join(map(shown_value, revision.graph.naming.shown(0, 2)))}]}}'


FORM = BodyForm(
    MEMBERS | {"": ("nodes", *FIELDS)},
    IDS,
    REMEDIES
    | {
        "return": "give a list of labels, scores and embeddings",
        "return[]": "give labels, scores or embeddings",
    },
    _example,
    lambda revision: dict.fromkeys(("nodes", "nodes[]"), _NODES_REMEDIES[revision.graph.naming.kind]),
)
