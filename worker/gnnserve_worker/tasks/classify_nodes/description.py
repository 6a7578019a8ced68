"""Description of requests that classify nodes: in OpenAPI, and in words where a field of one in JSON is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gnnserve_api.files.repository import NodeIdKind
from gnnserve_api.http.protocol import PredictAnswer, PredictRequest
from gnnserve_worker.asking.body_form import FIELDS, IDS, MEMBERS, REMEDIES, BodyForm
from gnnserve_worker.asking.question import shown_value
from gnnserve_worker.tasks.description import TaskDescription

OUTPUTS = ("scores", "embeddings", "labels")
"""All that may be asked for. A binary request that names none asks for scores."""


def describe_classes(nodes: Sequence[int | str], labels: Sequence[Any]) -> TaskDescription:
    """`nodes`, `labels`: two of the graph's, for the example."""
    return TaskDescription(
        summary="Classify nodes",
        item="node",
        request=PredictRequest,
        answer=PredictAnswer,
        items=("nodes",),
        outputs=OUTPUTS,
        example_items={"nodes": [*nodes]},
        example_outputs={"labels": [*labels], "scores": [[3.5, -1.25], [-0.5, 2.75]]},
    )


UNSERVED = describe_classes((3, 7), (0, 4))
"""Description where no revision is served yet."""

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
