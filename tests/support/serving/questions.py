"""Questions as codecs and `resolve` make them of bodies, without a worker."""

from __future__ import annotations

from gnnserve_api.limits import DEFAULT_OVERLAY_LIMITS, OverlayLimits
from gnnserve_worker.asking.question import NO_WISHES, Question, Wishes
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.serving.http.predict import resolve
from gnnserve_worker.serving.requests import Codec


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
    """`wishes`: those of the head."""
    return resolve(codec.decode(body, query, of, max_nodes, limits), wishes, of, limits)
