"""From what a request asks, as its protocol has it, to a question: its wishes are put together and checked against the
revision, and its ids are found.

Every protocol goes through `resolve`, so that each refuses the same by the same sentence. What needs no revision to be
refused is in `asking/`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from gnnserve_api.families import Capabilities
from gnnserve_api.overlay import OverlayLimits
from gnnserve_api.priority import DEFAULT_PRIORITY
from gnnserve_worker.asking.question import ErrorCode, Question, RequestError, shown_value
from gnnserve_worker.asking.wishes import IN_BODY, IN_HEAD, MIN_OFFSET, NO_WISHES, VARIANT, BehindError, Wish, Wishes
from gnnserve_worker.graph.overlay import Overlay
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.tasks.served import HOW_TO_CHANGE, Items

Arrange = Callable[[], tuple[Overlay, np.ndarray]]
"""Arranges what a request brings over the stored graph, and finds its nodes (int64). Raises RequestError."""


class Ask(msgspec.Struct, frozen=True):
    """A request as its protocol has it. Nothing of it is looked up."""

    items: Items
    """Makes items of the nodes that are found: the revision's task, or another one."""
    ids: Sequence[Any] | np.ndarray
    """Ids of the nodes that it asks about, at least one: as JSON has them, or int64. Of no use where it brings
    something."""
    outputs: tuple[str, ...]
    wishes: Wishes = NO_WISHES
    """Wishes of the body."""
    places: Mapping[str, str] = IN_BODY
    """Where the body has each wish, by its field."""
    arrange: Arrange | None = None
    """None: it brings nothing."""
    answer_form: Any = None
    """What its codec keeps of it for the answer."""
    may_bring: bool = True
    """Whether its form may bring nodes, which is advised where one is unknown."""


def resolve(ask: Ask, head: Wishes, revision: ServedRevision, limits: OverlayLimits) -> Question:
    """`head`: wishes of the request's head. Raises RequestError, and BehindError before any id is looked up, which the
    changes may bring."""
    wishes = head if ask.wishes is NO_WISHES else ask.wishes.or_else(head)
    if wishes.min_offset is not None:
        _require_offset(wishes.min_offset, wishes, revision, _place_of(MIN_OFFSET, ask))
    variant = wishes.variant
    if variant is not None:
        check_variant(variant, ask.outputs, ask.arrange is not None, revision, _place_of(VARIANT, ask))
    overlay: Overlay | None = None
    try:
        if ask.arrange is not None:
            overlay, nodes = ask.arrange()
        else:
            otherwise = revision.compute.overlays.hint if ask.may_bring and limits.max_nodes else ""
            ids, naming = ask.ids, revision.graph.naming
            nodes = naming.find_integers(ids, otherwise) if isinstance(ids, np.ndarray) else naming.find(ids, otherwise)
    except RequestError as error:
        raise ask.items.placed(error) from None
    form: Any = None
    joined = ask.items.joined
    if joined is not None:
        nodes, form = joined(nodes, overlay)
    return Question(
        nodes, wishes.objective, bool(wishes.strict), ask.outputs, overlay, wishes.seed, variant, form,
        wishes.timeout_ms, wishes.priority or DEFAULT_PRIORITY, ask.answer_form,
    )  # fmt: skip


def _place_of(wish: Wish, ask: Ask) -> str:
    is_in_body = getattr(ask.wishes, wish.field) is not None
    return (ask.places if is_in_body else IN_HEAD)[wish.field]


def _require_offset(min_offset: int, wishes: Wishes, revision: ServedRevision, where: str) -> None:
    """Raises BehindError where the revision's graph does not have that offset yet."""
    applied = revision.changes.log.offset
    if applied is None:
        raise no_updates(where, "leave it out", revision)
    if applied < min_offset:
        raise BehindError(min_offset, wishes)


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
