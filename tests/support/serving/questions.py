"""Questions as codecs and `resolve` make them of bodies, without a worker."""

from __future__ import annotations

from gnnserve_api.limits import DEFAULT_OVERLAY_LIMITS, OverlayLimits
from gnnserve_api.pods.routing import RoutingTable
from gnnserve_worker.asking.question import NO_WISHES, Wishes
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.serving.http.predict import resolve
from gnnserve_worker.serving.requests import Codec, Question, open_lane


def question_of(
    codec: Codec,
    body: bytes,
    of: ServedRevision,
    *,
    query: bytes = b"",
    wishes: Wishes = NO_WISHES,
    max_nodes: int = 500,
    limits: OverlayLimits = DEFAULT_OVERLAY_LIMITS,
) -> Question:
    """The question, in a lane of its own. `wishes`: those of the head."""
    lane = open_lane(of, RoutingTable(of.manifest.revision, "", overlay=limits), None, None, 0.0)
    question = resolve(codec.decode(body, query, of, max_nodes, limits), wishes, lane)
    assert isinstance(question, Question)
    return question
