"""Recommendations: nodes whose embeddings are nearest to a node's, as ids and cosines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from msgspec import UNSET
from numpy.typing import ArrayLike

from gnnserve_api.files.embeddings import IndexState
from gnnserve_api.http.recommend import RecommendAnswer
from gnnserve_client.arrays import Ids, as_json, read_ids
from gnnserve_client.asking import ClientState
from gnnserve_client.exchange import Call, Steps
from gnnserve_client.overlay import AnyOverlay, brought_by

RECOMMEND_PATH = "/v1/recommend"


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The recommended nodes, the nearest first."""

    nodes: Ids
    """Ids of the nodes; fewer than asked for where not as many may be recommended."""
    cosines: np.ndarray
    """float32 [nodes]; where the service scores links empty, as the next two are otherwise."""
    scores: np.ndarray
    """Scores of the pairs, float32 [nodes]."""
    probabilities: np.ndarray
    """Calibrated probabilities of links, float32 [nodes]."""
    variant: str
    revision: str
    objective_met: bool
    index: IndexState
    """The index that they were found in; where the graph changes, `followed_offset` and `pending` tell how far it has
    followed."""
    offset: int | None = None
    """The offset of the log of changes that the node's embedding has seen; None: the graph does not change."""


def recommend(
    asking: ClientState,
    node: int | str,
    count: int,
    type_: str | None,
    exclude: str,
    among: ArrayLike | None,
    labels: Sequence[Any] | None,
    where: Mapping[str, Mapping[str, Any]] | None,
    overlay: AnyOverlay | Mapping[str, Any] | None,
    latency_ms: float | None,
    seed: int | None,
    min_offset: int | None,
    timeout_s: float | None,
) -> Steps[Recommendation]:
    filters: dict[str, Any] = {
        **(where or {}),
        "nodes": None if among is None else read_ids(among, "among").tolist(),
        "labels": None if labels is None else np.asarray(labels).tolist(),
    }
    wanted = {
        "node": as_json(node, "node"),
        "count": count,
        "type": type_,
        "exclude": exclude,
        "filter": {name: value for name, value in filters.items() if value is not None} or None,
        "objective": None if latency_ms is None else {"latencyMs": latency_ms},
        "overlay": brought_by(overlay, np.asarray([node])),
        "seed": seed,
        "minOffset": min_offset,
    }
    body = msgspec.json.encode({name: value for name, value in wanted.items() if value is not None})
    call = Call("POST", RECOMMEND_PATH, {"Content-Type": "application/json"}, body, True)
    reply = yield from asking.answered(call, timeout_s)
    answer = asking.decode(reply.body, RecommendAnswer)
    ids = [item.id for item in answer.items]
    return Recommendation(
        np.array(ids) if ids else np.zeros(0, np.int64),
        _numbers(answer, "cosine"),
        _numbers(answer, "score"),
        _numbers(answer, "probability"),
        answer.variant,
        answer.revision,
        answer.objective_met,
        answer.index,
        None if answer.offset is UNSET else answer.offset,
    )


def _numbers(answer: RecommendAnswer, name: str) -> np.ndarray:
    """One number of each item, float32; none where items do not have it."""
    found = [getattr(item, name) for item in answer.items]
    return np.array([one for one in found if one is not UNSET], np.float32)
