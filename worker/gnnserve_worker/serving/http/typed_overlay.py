"""What a request brings to a graph of several types, from JSON to the arrays that are arranged.

Ids have a type, as `typed_ids.py` reads them; an edge is `[source, relation, target]`. New nodes of a type without
features have none. Every mistake is found before anything is computed, and told by its place in the request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gnnserve_api.overlay import OverlayLimits
from gnnserve_api.protocol import TypedEdge, TypedNodeFeatures, TypedOverlay
from gnnserve_api.typed import RelationManifest, TypedGraphManifest
from gnnserve_worker.graph.overlay import Overlay
from gnnserve_worker.inference.overlay_support import TypedOverlaySupport
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.serving.http.features import write_row
from gnnserve_worker.serving.http.overlay import check_sizes
from gnnserve_worker.serving.http.question import ErrorCode, RequestError, shown_value
from gnnserve_worker.serving.http.typed_ids import TypedId, find_number, not_asked_about, read_id, read_id_with_type

_NEW_REMEDY = "a new node goes into overlay.nodes, with its features if its type has any"


def typed_support_of(revision: ServedRevision, limits: OverlayLimits) -> TypedOverlaySupport:
    """Raises RequestError where the service takes no overlays."""
    if not limits.max_nodes:
        raise RequestError(
            ErrorCode.NO_OVERLAYS, "overlay", "the service takes none",
            "leave it out, or set spec.endpoint.overlay.maxNodes above 0",
        )  # fmt: skip
    if revision.typed_overlays is None:
        raise RequestError(
            ErrorCode.NO_OVERLAYS, "overlay", f"the service takes none: {revision.no_overlays}", "leave it out"
        )
    return revision.typed_overlays


def arrange_typed(
    nodes: Sequence[Any], overlay: TypedOverlay, revision: ServedRevision, limits: OverlayLimits
) -> tuple[Overlay, np.ndarray]:
    """What the request brings, and the nodes that it asks about, in its numbering (int64)."""
    support = typed_support_of(revision, limits)
    new, overrides = overlay.nodes, overlay.overrides
    check_sizes(len(new), len(overrides), len(overlay.edges), support.width, limits)
    reader = _Reader(revision, support)
    for place, node in enumerate(new):
        reader.add(node, f"overlay.nodes[{place}].id")
    overridden = [reader.stored(one, f"overlay.overrides[{place}].id") for place, one in enumerate(overrides)]
    features = np.zeros((len(new) + len(overrides), support.width), np.float32)
    for place, node in enumerate(new):
        _write(node, reader.kinds[place], f"overlay.nodes[{place}]", support, features[place])
    for place, (one, (kind, _)) in enumerate(zip(overrides, overridden, strict=True)):
        where = f"overlay.overrides[{place}]"
        if support.types[kind].columns is None:
            name = support.graph.types[kind].name
            problem = f"nodes of type {name} have no features"
            raise RequestError(ErrorCode.WRONG_FEATURES, where, problem, "leave the override out")
        _write(one, kind, where, support, features[len(new) + place])
    if len({number for _, number in overridden}) < len(overridden):
        raise RequestError(ErrorCode.REPEATED_NODE, "overlay.overrides", "a node is given twice", "give each node once")
    edges = [reader.edge(edge, f"overlay.edges[{place}]") for place, edge in enumerate(overlay.edges)]
    seeds = [reader.asked(one, f"nodes[{place}]") for place, one in enumerate(nodes)]
    return support.arrange(
        features,
        np.array(reader.kinds, np.int64),
        np.array([number for _, number in overridden], np.int64),
        np.array(edges, np.int64).reshape(-1, 3),
        np.array(seeds, np.int64),
    )


class _Reader:
    """Numbers of nodes that a request names: those of the graph, and behind them its new ones."""

    def __init__(self, revision: ServedRevision, support: TypedOverlaySupport) -> None:
        self._revision = revision
        self._graph: TypedGraphManifest = support.graph
        self._relations: Mapping[str, list[tuple[int, RelationManifest]]] = _by_name(support.graph)
        self._new: dict[TypedId, int] = {}
        self.kinds: list[int] = []
        """Places of the types of new nodes."""

    def add(self, node: TypedNodeFeatures, where: str) -> None:
        """A new node."""
        id_ = self._read(node.id, where)
        if self._find(id_) >= 0:
            raise RequestError(
                ErrorCode.STORED_NODE, where, f"{shown_value(node.id)} is a node of the graph",
                "give a new node an id of its own; new features of a stored one go into overlay.overrides",
            )  # fmt: skip
        if self._new.setdefault(id_, len(self._new)) < len(self.kinds):
            problem = f"{shown_value(node.id)} is another new node's id too"
            raise RequestError(ErrorCode.REPEATED_NODE, where, problem, "give each node once")
        self.kinds.append(self._graph.place_of(id_.type))

    def stored(self, node: TypedNodeFeatures, where: str) -> tuple[int, int]:
        """Type and number of a node of the graph."""
        id_ = self._read(node.id, where)
        number = self._find(id_)
        if number < 0:
            raise RequestError(
                ErrorCode.UNKNOWN_NODE, where, f"node {shown_value(node.id)} is not in the graph", _NEW_REMEDY
            )
        return self._graph.place_of(id_.type), number

    def asked(self, given: Any, where: str) -> int:
        """A node that is asked about, of the type that is classified. At which end of links nodes of a type may stand
        is not looked at."""
        id_ = self._read(given, where)
        if self._revision.links is None and id_.type != self._graph.target.name:
            raise not_asked_about(given, id_.type, where, self._graph, self._revision)
        return self._number(id_, given, where)

    def edge(self, edge: TypedEdge, where: str) -> tuple[int, int, int]:
        """The place of its relation, and its two ends."""
        source, target = self._read(edge[0], f"{where}[0]"), self._read(edge[2], f"{where}[2]")
        named = self._relations.get(edge[1], [])
        found = next((place for place, one in named if (one.source, one.target) == (source.type, target.type)), None)
        if found is None or self._graph.relations[found].reverse_of is not None:
            own = [one.key for one in self._graph.relations if one.reverse_of is None]
            what = f"{source.type} {edge[1]} {target.type}"
            is_added = found is not None
            problem = f"{what} is the reverse of a relation, and goes with it" if is_added else f"no relation is {what}"
            raise RequestError(ErrorCode.INVALID_VALUE, f"{where}[1]", problem, f"relations are {', '.join(own)}")
        return found, self._number(source, edge[0], f"{where}[0]"), self._number(target, edge[2], f"{where}[2]")

    def _read(self, given: Any, where: str) -> TypedId:
        read = read_id if self._revision.links is None else read_id_with_type
        return read(given, where, self._graph, self._revision)

    def _number(self, id_: TypedId, given: Any, where: str) -> int:
        if (place := self._new.get(id_)) is not None:
            return self._graph.first_nodes[-1] + place
        number = self._find(id_)
        if number < 0:
            shown = f"node {shown_value(given)} is not in the graph"
            raise RequestError(ErrorCode.UNKNOWN_NODE, where, shown, _NEW_REMEDY)
        return number

    def _find(self, id_: TypedId) -> int:
        return find_number(id_, self._graph, self._revision)


def _by_name(graph: TypedGraphManifest) -> dict[str, list[tuple[int, RelationManifest]]]:
    found: dict[str, list[tuple[int, RelationManifest]]] = {}
    for place, relation in enumerate(graph.relations):
        found.setdefault(relation.name, []).append((place, relation))
    return found


def _write(node: TypedNodeFeatures, kind: int, where: str, support: TypedOverlaySupport, row: np.ndarray) -> None:
    """Features of a node, or where its type has none what a new node begins with."""
    name, described = support.graph.types[kind].name, support.types[kind]
    if described.columns is None or described.default is not None:
        if node.features is not None:
            raise RequestError(
                ErrorCode.WRONG_FEATURES, f"{where}.features", f"nodes of type {name} have no features",
                "leave them out: a new node begins with the mean of the embeddings of its type",
            )  # fmt: skip
        if described.default is not None:
            row[: len(described.default)] = described.default
        return
    if node.features is None:
        raise RequestError(
            ErrorCode.MISSING_FIELD, f"{where}.features", "it is missing",
            f"nodes of type {name} have {described.columns.features:,} features: give them",
        )  # fmt: skip
    write_row(node.features, f"{where}.features", described.columns, row[: described.columns.features])
