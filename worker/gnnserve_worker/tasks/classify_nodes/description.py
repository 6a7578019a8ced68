"""Classification of nodes in OpenAPI."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gnnserve_api.protocol import PredictAnswer, PredictRequest
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
