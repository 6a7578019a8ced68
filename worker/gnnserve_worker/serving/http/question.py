"""What is wrong with a request that the graph and the variants of a revision do not answer.

All that can be asked, and what needs no revision to be refused, is in `asking/question.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from gnnserve_api.families import Capabilities
from gnnserve_api.objective import Objective
from gnnserve_api.protocol import MAX_OFFSET
from gnnserve_worker.asking.question import (
    OFFSET_REMEDY,
    BehindError,
    ErrorCode,
    RequestError,
    shown_value,
)
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.tasks.served import HOW_TO_CHANGE


def require_offset(
    min_offset: int, objective: Objective, timeout_ms: float | None, revision: ServedRevision, where: str
) -> None:
    """Raises BehindError where the revision's graph does not have that offset yet. `objective` and `timeout_ms`: the
    request's own."""
    if not 0 <= min_offset <= MAX_OFFSET:
        raise RequestError(ErrorCode.INVALID_VALUE, where, f"{shown_value(min_offset)} is out of range", OFFSET_REMEDY)
    applied = revision.changes.log.offset
    if applied is None:
        raise no_updates(where, "leave it out", revision)
    if applied < min_offset:
        raise BehindError(min_offset, objective, timeout_ms)


def no_updates(where: str, instead: str, revision: ServedRevision | None) -> RequestError:
    """Error for a request that needs a log of changes. `instead`: what the client may do; empty: nothing.
    `revision`: what is served now; None: nothing yet."""
    manifest = HOW_TO_CHANGE if revision is None else revision.task.how_to_change
    remedy = f"{instead}, or {manifest}" if instead else manifest
    return RequestError(ErrorCode.NO_UPDATES, where, "the graph of this service does not change", remedy)


def check_variant(name: str, outputs: Sequence[str], brings_overlay: bool, revision: ServedRevision, where: str) -> str:
    """The variant that a request names, which can answer it. `where`: the field that names it."""
    gives = revision.capabilities.get(name)
    if gives is None:
        raise RequestError(
            ErrorCode.UNKNOWN_VARIANT,
            where,
            f"revision {revision.manifest.revision} has no variant {shown_value(name)}",
            f"choose from {', '.join(revision.capabilities)}, or leave it out",
        )
    needed = Capabilities(
        overlay=brings_overlay, embeddings="embeddings" in outputs, changes=revision.changes.needed.changes
    )
    if gives.cover(needed):
        return name
    missing = needed.in_words()
    if not gives.changes and needed.changes:
        missing = " and ".join(filter(None, (missing, "a graph that changes")))
    able = ", ".join(other for other, capable in revision.capabilities.items() if capable.cover(needed))
    raise RequestError(
        ErrorCode.VARIANT_UNABLE,
        where,
        f"variant {name} cannot answer requests with {missing}",
        f"choose from {able}, or leave it out" if able else "leave it out",
    )
