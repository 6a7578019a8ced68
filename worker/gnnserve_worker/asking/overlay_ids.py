"""From the ids of a request that brings nodes and edges to their numbers: stored nodes have those of the graph, and
N + k is the k-th new node.

How a graph calls its nodes decides how such a request is read (`OverlayIds`, chosen when the graph is opened): ids
alone are found all at once, and all relations are the only one; ids with their type are read one by one, and an edge
names its relation. A message names the place in the request, the value and the remedy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Protocol

import msgspec
import numpy as np

from gnnserve_api.graph_schema import GraphSchema, RelationManifest
from gnnserve_api.protocol import RequestOverlay, TypedEdge, TypedOverlay
from gnnserve_worker.asking.naming import NodeNaming
from gnnserve_worker.asking.question import ErrorCode, RequestError, shown_value
from gnnserve_worker.asking.type_ids import QualifiedId, QualifiedIds
from gnnserve_worker.graph.overlay import ALL_OF_FIRST

BRING_IT = "a new node goes into overlay.nodes, with its features"
"""What else may be meant by an id that the graph lacks."""
_NEW_REMEDY = "a new node goes into overlay.nodes, with its features if its type has any"


class NamedIds(msgspec.Struct, frozen=True):
    """The ids of a request with an overlay as clients write them, all of the graph's kind."""

    asked: Sequence[Any]
    """At least one."""
    new: Sequence[Any]
    edges: Sequence[Any]
    """Source, target, source, target, …"""
    overridden: Sequence[Any]


class PlacedIds(msgspec.Struct, frozen=True):
    """Nodes of a request as numbers; N + k is the k-th new node. Types and relations are told by their places; empty:
    all are of the first one."""

    asked: np.ndarray
    """int64 [nodes asked for]"""
    edges: np.ndarray
    """int64 [edges, 2]"""
    overridden: np.ndarray
    """int64 [overrides], distinct."""
    new_types: np.ndarray = ALL_OF_FIRST
    """Types of new nodes, int64."""
    overridden_types: np.ndarray = ALL_OF_FIRST
    """int64 [overrides]"""
    relations: np.ndarray = ALL_OF_FIRST
    """int64 [edges]"""


class OverlayIds(Protocol):
    def place(self, nodes: Sequence[Any], overlay: Any) -> PlacedIds:
        """Numbers of what a request in JSON names. `nodes`: those that it asks about, at least one. Raises
        RequestError."""


class IdsAlone:
    """Ids without a type, as `naming` finds them."""

    def __init__(self, naming: NodeNaming) -> None:
        self._naming = naming

    def place(self, nodes: Sequence[Any], overlay: RequestOverlay[Any]) -> PlacedIds:
        ends = list(chain.from_iterable(overlay.edges))
        ids = NamedIds(nodes, [node.id for node in overlay.nodes], ends, [node.id for node in overlay.overrides])
        return place_ids(ids, self._naming)


def place_ids(ids: NamedIds, naming: NodeNaming) -> PlacedIds:
    """Raises RequestError, which names the place of an id in the request, for whatever is wrong with ids."""
    new, asked = ids.new, len(ids.asked)
    # All ids are found in one call, which lays their texts out once.
    wanted: list[Any] = [*ids.asked, *ids.edges]
    ends = len(wanted)
    wanted += ids.overridden
    named = len(wanted)
    places = {id_: naming.nodes + k for k, id_ in enumerate(new)}
    if len(places) < len(new):
        raise repeated(new, "overlay.nodes")
    if new:
        naming.check_new(list(places))
    wanted += places
    found = naming.place(wanted)
    if new:
        _check_unseen(found[named:], new)
        for i in [i for i, place in enumerate(found[:ends]) if place < 0]:
            found[i] = places.get(wanted[i], -1)
    del found[named:]
    if -1 in found:
        first = found.index(-1)
        where, shown = place_of(first, asked, ends), shown_value(wanted[first])
        raise new_node(where, shown) if wanted[first] in places else naming.unknown(where, shown, BRING_IT)
    if len(ids.overridden) > 1 and len(set(found[ends:])) < len(ids.overridden):
        raise repeated(ids.overridden, "overlay.overrides")
    positions = np.array(found, np.int64)
    return PlacedIds(positions[:asked], positions[asked:ends].reshape(-1, 2), positions[ends:])


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
        raise _stored_node(f"overlay.nodes[{first}].id", new[first])


class IdsWithTypes:
    """Ids that name their type; an edge is `[source, relation, target]`."""

    def __init__(self, ids: QualifiedIds) -> None:
        self._ids = ids
        self._relations = _by_name(ids.numbered)

    def place(self, nodes: Sequence[Any], overlay: TypedOverlay) -> PlacedIds:
        reader = _Reader(self._ids, self._relations)
        for place, node in enumerate(overlay.nodes):
            reader.add(node.id, f"overlay.nodes[{place}].id")
        overridden = [
            reader.stored(one.id, f"overlay.overrides[{place}].id") for place, one in enumerate(overlay.overrides)
        ]
        if len({number for _, number in overridden}) < len(overridden):
            raise _repeated([number for _, number in overridden], [one.id for one in overlay.overrides])
        edges = [reader.edge(edge, f"overlay.edges[{place}]") for place, edge in enumerate(overlay.edges)]
        seeds = [reader.asked(one, f"nodes[{place}]") for place, one in enumerate(nodes)]
        return PlacedIds(
            np.array(seeds, np.int64),
            np.array([ends for _, *ends in edges], np.int64).reshape(-1, 2),
            np.array([number for _, number in overridden], np.int64),
            np.array(reader.kinds, np.int64),
            np.array([kind for kind, _ in overridden], np.int64),
            np.array([relation for relation, *_ in edges], np.int64),
        )


class _Reader:
    """Numbers of nodes that a request names: those of the graph, and behind them its new ones."""

    def __init__(self, ids: QualifiedIds, relations: _RelationsByName) -> None:
        self._ids = ids
        self._graph = ids.numbered
        self._relations = relations
        self._new: dict[QualifiedId, int] = {}
        self.kinds: list[int] = []
        """Places of the types of new nodes."""

    def add(self, given: Any, where: str) -> None:
        """A new node."""
        id_ = self._ids.read(given, where)
        if self._ids.number(id_) >= 0:
            raise _stored_node(where, given)
        if self._new.setdefault(id_, len(self._new)) < len(self.kinds):
            problem = f"{shown_value(given)} is another new node's id too"
            raise RequestError(ErrorCode.REPEATED_NODE, where, problem, "give each node once")
        self.kinds.append(self._graph.place_of(id_.type))

    def stored(self, given: Any, where: str) -> tuple[int, int]:
        """Type and number of a node of the graph."""
        id_ = self._ids.read(given, where)
        number = self._ids.number(id_)
        if number < 0:
            raise RequestError(
                ErrorCode.UNKNOWN_NODE, where, f"node {shown_value(given)} is not in the graph", _NEW_REMEDY
            )
        return self._graph.place_of(id_.type), number

    def asked(self, given: Any, where: str) -> int:
        """A node that is asked about. At which end of links nodes of a type may stand is not looked at."""
        return self._number(self._ids.read_asked(given, where), given, where)

    def edge(self, edge: TypedEdge, where: str) -> tuple[int, int, int]:
        """The place of its relation, and its two ends."""
        source, target = self._ids.read(edge[0], f"{where}[0]"), self._ids.read(edge[2], f"{where}[2]")
        named = self._relations.get(edge[1], [])
        found = next((place for place, one in named if (one.source, one.target) == (source.type, target.type)), None)
        if found is None or self._graph.relations[found].reverse_of is not None:
            own = [one.key for one in self._graph.relations if one.reverse_of is None]
            what = f"{source.type} {edge[1]} {target.type}"
            is_added = found is not None
            problem = f"{what} is the reverse of a relation, and goes with it" if is_added else f"no relation is {what}"
            raise RequestError(ErrorCode.INVALID_VALUE, f"{where}[1]", problem, f"relations are {', '.join(own)}")
        return found, self._number(source, edge[0], f"{where}[0]"), self._number(target, edge[2], f"{where}[2]")

    def _number(self, id_: QualifiedId, given: Any, where: str) -> int:
        if (place := self._new.get(id_)) is not None:
            return self._graph.first_nodes[-1] + place
        number = self._ids.number(id_)
        if number < 0:
            shown = f"node {shown_value(given)} is not in the graph"
            raise RequestError(ErrorCode.UNKNOWN_NODE, where, shown, _NEW_REMEDY)
        return number


_RelationsByName = Mapping[str, Sequence[tuple[int, RelationManifest]]]


def _by_name(graph: GraphSchema) -> _RelationsByName:
    found: dict[str, list[tuple[int, RelationManifest]]] = {}
    for place, relation in enumerate(graph.relations):
        found.setdefault(relation.name, []).append((place, relation))
    return found


def repeated(ids: Sequence[Any], field: str) -> RequestError:
    return _repeated(ids, ids, field)


def _repeated(nodes: Sequence[Any], ids: Sequence[Any], field: str = "overlay.overrides") -> RequestError:
    """`nodes`: what tells the nodes from each other. `ids`: how the request calls them."""
    firsts: dict[Any, int] = {}
    again = next(i for i, node in enumerate(nodes) if firsts.setdefault(node, i) != i)
    return RequestError(
        ErrorCode.REPEATED_NODE,
        f"{field}[{again}].id",
        f"{shown_value(ids[again])} is also the id of {field}[{firsts[nodes[again]]}]",
        "give each node once",
    )


def new_node(where: str, shown: str) -> RequestError:
    """An override of a new node."""
    return RequestError(
        ErrorCode.INVALID_VALUE, where, f"{shown} is a new node of the request", "give its features in overlay.nodes"
    )


def _stored_node(where: str, given: Any) -> RequestError:
    return RequestError(
        ErrorCode.STORED_NODE,
        where,
        f"{shown_value(given)} is a node of the graph",
        "give a new node an id of its own; new features of a stored one go into overlay.overrides",
    )
