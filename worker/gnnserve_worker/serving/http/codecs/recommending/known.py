"""Which nodes may be recommended: not the node itself, nor those that it is joined to, and those that a filter lets."""

from __future__ import annotations

from typing import Any

import numpy as np

from gnnserve_worker.asking.question import ErrorCode, RequestError, shown_value
from gnnserve_worker.graph.overlay import Overlay
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.nearest.parts import IndexPart
from gnnserve_worker.nearest.revision_index import RevisionIndex
from gnnserve_worker.serving.http.codecs.recommending.filters import NodeFilter, passing_columns


def excluded_of(node: int, overlay: Overlay | None, revision: ServedRevision, *, with_known: bool) -> np.ndarray:
    """Positions, int64, distinct. `node`: as in a `Question`. `with_known`: nodes in its neighbour list too, and those
    that the overlay joins it to."""
    stored, parts = stored_of(node, overlay, revision), []
    if stored is not None:
        parts.append(np.array([stored], np.int64))
    if with_known and stored is not None:
        parts.append(revision.graph.neighbours_of(stored).astype(np.int64))
    if with_known and overlay is not None:
        parts.append(_joined(node, stored, overlay, revision.graph.first_new))
    joined = np.unique(np.concatenate(parts)) if parts else np.zeros(0, np.int64)
    return joined[(joined >= 0) & (joined < revision.graph.nodes)]


def stored_of(node: int, overlay: Overlay | None, revision: ServedRevision) -> int | None:
    """The position of a node of the graph; None: it is new."""
    if overlay is None or node < revision.graph.first_new:
        return node
    origin = int(overlay.origins[node - revision.graph.first_new])
    return None if origin < 0 else origin


def _joined(node: int, stored: int | None, overlay: Overlay, first_new: int) -> np.ndarray:
    """Stored nodes that the overlay joins it to, either way, int64; -1 for new ones. `stored`: as `stored_of`."""
    readers = np.repeat(np.arange(overlay.nodes), np.diff(overlay.starts))
    readers -= readers % overlay.stride
    senders, place = overlay.neighbours, node - first_new
    sending = _stored(senders[readers == place], overlay, first_new)
    # Lists name a stored node by its own number where the graph has several types, and else as an overlay node.
    is_named = senders == node if stored is None else (senders == node) | (senders == stored)
    return np.concatenate((sending, overlay.origins[readers[is_named]]))


def _stored(nodes: np.ndarray, overlay: Overlay, first_new: int) -> np.ndarray:
    is_behind = nodes >= first_new
    return np.where(is_behind, overlay.origins[np.where(is_behind, nodes - first_new, 0)], nodes)


def allowed_by(filter_: NodeFilter, held: RevisionIndex, revision: ServedRevision) -> np.ndarray:
    """bool [positions]"""
    if filter_.columns:
        allowed = passing_columns(filter_.columns, held, revision)
    else:
        allowed = np.ones(revision.graph.nodes, bool)
    if filter_.labels is not None:
        labelled = revision.task.labels.wearing(filter_.labels)
        allowed[: len(labelled)] &= labelled
        allowed[len(labelled) :] = False
    if filter_.nodes is not None:
        listed = np.zeros(revision.graph.nodes, bool)
        listed[_positions(filter_.nodes, held.part, revision)] = True
        allowed &= listed
    return allowed


def _positions(ids: tuple[Any, ...], part: IndexPart, revision: ServedRevision) -> np.ndarray:
    """Positions of the listed nodes, int64, which are all of the type that is recommended."""
    if not ids:
        return np.empty(0, np.int64)
    try:
        found = revision.graph.naming.find(ids)
    except RequestError as error:
        raise RequestError(error.code, f"filter.{error.where}", error.problem, error.remedy) from None
    if part.type and len(wrong := np.flatnonzero((found < part.start) | (found >= part.end))):
        place = int(wrong[0])
        (shown,) = revision.graph.naming.shown(int(found[place]), int(found[place]) + 1)
        raise RequestError(
            ErrorCode.WRONG_NODE_TYPE, f"filter.nodes[{place}]",
            f"node {shown_value(shown)} is not of type {part.type}, of which nodes are recommended",
            "leave it out",
        )  # fmt: skip
    return found
