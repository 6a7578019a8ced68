"""Scores of links in OpenAPI."""

from __future__ import annotations

from collections.abc import Sequence

from gnnserve_api.http.pairs import PairsAnswer, PairsRequest
from gnnserve_worker.tasks.description import TaskDescription

PAIR_OUTPUTS, EMBEDDINGS = ("scores", "probabilities"), "embeddings"
OUTPUTS = (*PAIR_OUTPUTS, EMBEDDINGS)
"""All that may be asked for: of pairs, and of nodes."""


def describe_pairs(pair: Sequence[int | str]) -> TaskDescription:
    """`pair`: two ids of the graph, for the example."""
    return TaskDescription(
        summary="Score pairs of nodes",
        item="pair",
        request=PairsRequest,
        answer=PairsAnswer,
        items=("pairs", "items"),
        other_items=(("nodes",),),
        outputs=OUTPUTS,
        example_items={"pairs": [[*pair]]},
        example_outputs={"scores": [1.25], "probabilities": [0.82]},
        tells_bounds=False,
    )
