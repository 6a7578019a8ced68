"""What a request brings, from ids, numbers and pairs to the arrays that `OverlaySupport.arrange` takes.

What both forms of requests share is here, and `read_overlay` for JSON, with ids as clients write them; its features are
read in `features.py`, arrays in `codecs/binary_overlay.py`. Nothing of the graph is read but its ids, and features of
overridden nodes. Every mistake is found before anything is computed. A message names the place in the request, the
value and the remedy.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import msgspec
import numpy as np

from gnnserve_api.overlay import OverlayLimits
from gnnserve_api.protocol import RequestOverlay
from gnnserve_worker.inference.overlay_support import OverlaySupport
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.serving.http.features import keep_features, write_features
from gnnserve_worker.serving.http.node_ids import POSSIBLE_IDS, unknown_node
from gnnserve_worker.serving.http.question import ErrorCode, RequestError, counted, shown_value

MOST_FEATURE_BYTES = 16 * 1024 * 1024
"""Features of one request's new nodes and overrides, as float32."""
NUMBER_BYTES = 4
_FEW_IDS = 256
BRING_IT = "a new node goes into overlay.nodes, with its features"
"""What else may be meant by an id that the graph lacks."""


class NamedIds(msgspec.Struct, frozen=True):
    """The ids of a request with an overlay as clients write them, all of the graph's kind."""

    asked: Sequence[Any]
    """At least one."""
    new: Sequence[Any]
    edges: Sequence[Any]
    """Source, target, source, target, …"""
    overridden: Sequence[Any]


class PlacedIds(msgspec.Struct, frozen=True):
    """The same as positions; N + k is the k-th new node."""

    asked: np.ndarray
    """int64 [nodes asked for]"""
    edges: np.ndarray
    """int64 [edges, 2]"""
    overridden: np.ndarray
    """int64 [overrides], distinct."""


class Brought(msgspec.Struct, frozen=True):
    """What a request brings, checked. Nodes are called by position, and N + k is the k-th new node."""

    seeds: np.ndarray
    """int64 [nodes asked for]"""
    features: np.ndarray
    """float32 [new nodes and overrides, features], in this order, C-contiguous."""
    overridden: np.ndarray
    """Stored nodes, distinct: int64 [overrides]."""
    edges: np.ndarray
    """int64 [edges, 2]: source and target."""


def support_of(revision: ServedRevision, limits: OverlayLimits) -> OverlaySupport:
    """Raises RequestError where the service takes no overlays."""
    if not limits.max_nodes:
        raise RequestError(
            ErrorCode.NO_OVERLAYS,
            "overlay",
            "the service takes none",
            "leave it out, or set spec.endpoint.overlay.maxNodes above 0",
        )
    if revision.overlays is None:
        raise RequestError(
            ErrorCode.NO_OVERLAYS, "overlay", f"the service takes none: {revision.no_overlays}", "leave it out"
        )
    return revision.overlays


def check_sizes(new_nodes: int, overrides: int, edges: int, features: int, limits: OverlayLimits) -> None:
    nodes = new_nodes + overrides
    where = "overlay.nodes" if new_nodes else "overlay.overrides"
    if nodes > limits.max_nodes:
        raise RequestError(
            ErrorCode.TOO_MANY_OVERLAY_NODES,
            where,
            f"{counted(new_nodes, 'new node')} and {counted(overrides, 'override')}, more than the "
            f"{limits.max_nodes:,} that one request may have",
            "split the request, or raise spec.endpoint.overlay.maxNodes",
        )
    if edges > limits.max_edges:
        raise RequestError(
            ErrorCode.TOO_MANY_OVERLAY_EDGES,
            "overlay.edges",
            f"{counted(edges, 'edge')}, more than the {limits.max_edges:,} that one request may have",
            f"{'split the request' if limits.max_edges else 'leave them out'}, or raise spec.endpoint.overlay.maxEdges",
        )
    size = nodes * features * NUMBER_BYTES
    if size > MOST_FEATURE_BYTES:
        raise RequestError(
            ErrorCode.OVERLAY_TOO_LARGE,
            where,
            f"{nodes:,} nodes with {features:,} features each take {size:,} bytes, more than the "
            f"{MOST_FEATURE_BYTES:,} that one request may have",
            "split the request",
        )


def read_overlay(
    nodes: Sequence[Any],
    overlay: RequestOverlay[Any],
    revision: ServedRevision,
    support: OverlaySupport,
    limits: OverlayLimits,
) -> Brought:
    """`nodes`: the ids that are asked for, at least one. All ids are of the graph's kind."""
    new, overrides, columns = overlay.nodes, overlay.overrides, support.columns
    check_sizes(len(new), len(overrides), len(overlay.edges), columns.features, limits)
    ends = list(chain.from_iterable(overlay.edges))
    ids = NamedIds(nodes, [node.id for node in new], ends, [override.id for override in overrides])
    placed = place_ids(ids, revision)
    features = np.empty((len(new) + len(overrides), columns.features), np.float32)
    if new:
        write_features(new, "overlay.nodes", columns, features)
    if overrides:
        keep_features(overrides, placed.overridden, support, features[len(new) :])
        write_features(overrides, "overlay.overrides", columns, features[len(new) :], are_kept=True)
    return Brought(placed.asked, features, placed.overridden, placed.edges)


def place_ids(ids: NamedIds, revision: ServedRevision) -> PlacedIds:
    """Raises RequestError, which names the place of an id in the request, for whatever is wrong with ids."""
    new, asked = ids.new, len(ids.asked)
    # All ids are found in one call, which lays their texts out once.
    wanted: list[Any] = [*ids.asked, *ids.edges]
    ends = len(wanted)
    wanted += ids.overridden
    named = len(wanted)
    places = {id_: revision.nodes + k for k, id_ in enumerate(new)}
    if len(places) < len(new):
        raise repeated(new, "overlay.nodes")
    if new:
        _check_ids(list(places), are_texts=revision.has_text_ids)
    wanted += places
    found = _find(wanted, revision)
    if new:
        _check_unseen(found[named:], new)
        for i in [i for i, place in enumerate(found[:ends]) if place < 0]:
            found[i] = places.get(wanted[i], -1)
    del found[named:]
    if -1 in found:
        first = found.index(-1)
        where, shown = place_of(first, asked, ends), shown_value(wanted[first])
        raise new_node(where, shown) if wanted[first] in places else unknown_node(where, shown, revision, BRING_IT)
    if len(ids.overridden) > 1 and len(set(found[ends:])) < len(ids.overridden):
        raise repeated(ids.overridden, "overlay.overrides")
    positions = np.array(found, np.int64)
    return PlacedIds(positions[:asked], positions[asked:ends].reshape(-1, 2), positions[ends:])


def check_finite(features: np.ndarray, new_nodes: int) -> None:
    """`features`: float32 [new nodes and overrides, features] of a form that can have numbers that are not finite."""
    are_finite = np.isfinite(features)
    if np.count_nonzero(are_finite) < features.size:
        row, column = divmod(int(are_finite.argmin()), features.shape[1])
        field = f"overlay.nodes[{row}]" if row < new_nodes else f"overlay.overrides[{row - new_nodes}]"
        raise RequestError(
            ErrorCode.INVALID_VALUE,
            f"{field}.features[{column}]",
            f"{features[row, column]} is not finite",
            "give a number",
        )


def _check_ids(ids: list[Any], *, are_texts: bool) -> None:
    """Refuse ids of new nodes that no node of a source may have."""
    if are_texts:
        if "" in ids:
            raise RequestError(
                ErrorCode.INVALID_VALUE,
                f"overlay.nodes[{ids.index('')}].id",
                "it is empty, and no id is the empty text",
                "give the node an id of one character or more",
            )
    elif max(ids) not in POSSIBLE_IDS or min(ids) not in POSSIBLE_IDS:
        first = next(i for i, id_ in enumerate(ids) if id_ not in POSSIBLE_IDS)
        raise RequestError(
            ErrorCode.INVALID_VALUE,
            f"overlay.nodes[{first}].id",
            f"{shown_value(ids[first])} is beyond 64 bits with a sign, as no id is",
            f"give an integer from {POSSIBLE_IDS[0]} to {POSSIBLE_IDS[-1]}",
        )


def _find(wanted: list[Any], revision: ServedRevision) -> list[int]:
    """Positions of stored nodes; -1 for others."""
    if revision.has_text_ids:
        assert revision.ids is not None  # noqa: S101
        return _listed(revision.ids.find_texts(wanted))
    stored = revision.nodes
    if revision.ids is None and len(wanted) <= _FEW_IDS:  # a list is several times as quick as an array
        return [id_ if 0 <= id_ < stored else -1 for id_ in wanted]
    try:
        numbers = np.array(wanted, np.int64)
    except OverflowError:  # an integer beyond 64 bits is no stored node's
        possible = [id_ for id_ in wanted if id_ in POSSIBLE_IDS]
        places = dict(zip(possible, _find(possible, revision), strict=True))
        return [places.get(id_, -1) for id_ in wanted]
    if revision.ids is None:
        return _listed(np.where((numbers >= 0) & (numbers < stored), numbers, -1))
    return _listed(revision.ids.find_integers(numbers))


def _listed(positions: np.ndarray) -> list[int]:
    listed: list[int] = positions.tolist()
    return listed


def place_of(index: int, asked: int, ends: int) -> str:
    """Where the id stands that is `index` in the order of nodes asked for, ends of edges, overrides."""
    if index < asked:
        return f"nodes[{index}]"
    if index < ends:
        edge, end = divmod(index - asked, 2)
        return f"overlay.edges[{edge}][{end}]"
    return f"overlay.overrides[{index - ends}].id"


def _check_unseen(found: list[int], new: Sequence[Any]) -> None:
    """`found`: positions of the new nodes' ids, -1 where no stored node has them."""
    if max(found) >= 0:
        first = next(i for i, place in enumerate(found) if place >= 0)
        raise RequestError(
            ErrorCode.STORED_NODE,
            f"overlay.nodes[{first}].id",
            f"{shown_value(new[first])} is a node of the graph",
            "give a new node an id of its own; new features of a stored one go into overlay.overrides",
        )


def repeated(ids: Sequence[Any], field: str) -> RequestError:
    firsts: dict[Any, int] = {}
    again = next(i for i, id_ in enumerate(ids) if firsts.setdefault(id_, i) != i)
    return RequestError(
        ErrorCode.REPEATED_NODE,
        f"{field}[{again}].id",
        f"{shown_value(ids[again])} is also the id of {field}[{firsts[ids[again]]}]",
        "give each node once",
    )


def new_node(where: str, shown: str) -> RequestError:
    """An override of a new node."""
    return RequestError(
        ErrorCode.INVALID_VALUE, where, f"{shown} is a new node of the request", "give its features in overlay.nodes"
    )
