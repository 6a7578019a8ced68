"""Questions as codecs and `resolve` make them of bodies, without a worker."""

from __future__ import annotations

from gnnserve_api.overlay import DEFAULT_OVERLAY_LIMITS, OverlayLimits
from gnnserve_worker.asking.question import Question
from gnnserve_worker.asking.wishes import NO_WISHES, Wishes
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.serving.http.codecs.codec import Codec
from gnnserve_worker.serving.http.question import resolve


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
