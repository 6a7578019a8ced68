"""Nodes, edges and features that requests bring, from ids and numbers to the arrays that are arranged over a graph.

Whether a revision takes any, and in which form, is decided when it is opened: an `Overlays` object reads what a request
in JSON brings, with ids as clients write them, or says why there is nothing to be brought. Features are read in
`features.py`, arrays in `serving/http/codecs/binary_overlay.py`. Nothing of the graph is read but its ids, and features
of overridden nodes. Every mistake is found before anything is computed. A message names the place in the request, the
value and the remedy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Protocol

import msgspec
import numpy as np

from gnnserve_api.graph_schema import GraphSchema, RelationManifest
from gnnserve_api.overlay import OverlayLimits
from gnnserve_api.protocol import RequestOverlay, TypedEdge, TypedNodeFeatures, TypedOverlay
from gnnserve_worker.asking import overlay_schemas
from gnnserve_worker.asking.features import StoredFeatures, keep_features, write_features, write_row
from gnnserve_worker.asking.naming import NodeNaming
from gnnserve_worker.asking.overlay_schemas import OverlaySchemas
from gnnserve_worker.asking.question import ErrorCode, RequestError, counted, shown_value
from gnnserve_worker.asking.type_ids import TypedId, TypedIds
from gnnserve_worker.graph.feature_columns import FeatureColumns
from gnnserve_worker.graph.overlay import Overlay

MOST_FEATURE_BYTES = 16 * 1024 * 1024
"""Features of one request's new nodes and overrides, as float32."""
NUMBER_BYTES = 4
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
    naming: NodeNaming,
    support: OverlaySupport,
    limits: OverlayLimits,
) -> Brought:
    """`nodes`: the ids that are asked for, at least one. All ids are of the graph's kind."""
    new, overrides, columns = overlay.nodes, overlay.overrides, support.columns
    check_sizes(len(new), len(overrides), len(overlay.edges), columns.features, limits)
    ends = list(chain.from_iterable(overlay.edges))
    ids = NamedIds(nodes, [node.id for node in new], ends, [override.id for override in overrides])
    placed = place_ids(ids, naming)
    features = np.empty((len(new) + len(overrides), columns.features), np.float32)
    if new:
        write_features(new, "overlay.nodes", columns, features)
    if overrides:
        keep_features(overrides, placed.overridden, support, features[len(new) :])
        write_features(overrides, "overlay.overrides", columns, features[len(new) :], are_kept=True)
    return Brought(placed.asked, features, placed.overridden, placed.edges)


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


StandIn = Callable[[Sequence[np.ndarray]], tuple[Overlay, np.ndarray]]
"""Arranges a new node that is like a stored one and has these lists (numbers of nodes, int64, ascending), one for each
of the stored one's; the new node is the seed."""


class Arrange(Protocol):
    """`OverlayArranger.arrange` of the revision's graph."""

    def __call__(
        self, features: np.ndarray, overridden: np.ndarray, edges: np.ndarray, seeds: np.ndarray, /
    ) -> tuple[Overlay, np.ndarray]: ...  # pragma: no cover


@dataclass(frozen=True, slots=True)
class OverlaySupport:
    """What is needed to read requests that bring nodes, edges and features along."""

    columns: FeatureColumns
    """Features of a node, as in the source."""
    arrange: Arrange
    features_of: Callable[[np.ndarray], np.ndarray] | None = None
    """Features of stored nodes (positions, int64) as in the source, float32 [nodes, features]. None: the revision does
    not keep them, or not exactly."""


class ArrangeByRelation(Protocol):
    """`OverlayArranger.arrange` of the revision's graph."""

    def __call__(
        self,
        features: np.ndarray,
        overridden: np.ndarray,
        edges: np.ndarray,
        seeds: np.ndarray,
        new_types: np.ndarray,
        relations: np.ndarray,
        /,
    ) -> tuple[Overlay, np.ndarray]: ...  # pragma: no cover


class NewNodeRecipe(Protocol):
    """What a new node of a type comes with."""

    @property
    def columns(self) -> FeatureColumns | None:
        """Features of a node, as in the source; None: its type has none."""

    @property
    def default(self) -> np.ndarray | None:
        """The mean of the type's embeddings, float32, in place of features; None: it has features."""


@dataclass(frozen=True, slots=True)
class TypedOverlaySupport:
    """What is needed to read what requests bring to nodes of several types."""

    graph: GraphSchema
    types: tuple[NewNodeRecipe, ...]
    width: int
    """Columns of a row of features: those of the widest type, or of an embedding."""
    arrange: ArrangeByRelation
    stand_in: Callable[[int, Sequence[np.ndarray]], tuple[Overlay, np.ndarray]]
    """`OverlayArranger.stand_in` of it: of a stored node (its number), and the lists that it is to have."""


class Overlays(Protocol):
    """What requests may bring to a revision. Methods raise RequestError where the service takes none, or not so."""

    @property
    def takes_json(self) -> bool: ...

    @property
    def schemas(self) -> OverlaySchemas:
        """What requests bring, in OpenAPI."""

    @property
    def stored(self) -> StoredFeatures | None:
        """Features of stored nodes as in the source; None: they are not known, or not exactly."""

    def stand_in(self, node: int) -> StandIn | str:
        """What arranges a new node in place of a stored one (its number); a text: why nothing can."""

    @property
    def takes_arrays(self) -> bool:
        """Whether forms of arrays may bring anything too."""

    @property
    def hint(self) -> str:
        """What else may be meant by an id that the graph lacks; empty: nothing."""

    @property
    def features(self) -> int:
        """Most features of a node that is brought."""

    @property
    def lists(self) -> int:
        """Columns of them that have names, and of which each may be a list in JSON."""

    def check(self, limits: OverlayLimits) -> None: ...

    def support(self, limits: OverlayLimits) -> OverlaySupport:
        """What arrays are read and arranged by."""

    def arrange(self, nodes: Sequence[Any], overlay: Any, limits: OverlayLimits) -> tuple[Overlay, np.ndarray]:
        """What a request in JSON brings, and positions (int64) of the nodes that it asks about, which may be new.
        `nodes`: their ids, at least one."""


@dataclass(frozen=True, slots=True)
class NoOverlays:
    """Nothing can be brought."""

    why: str
    no_stand_in: str = ""
    """Why no edge can be left out; empty: for the same reason."""
    schemas: OverlaySchemas = overlay_schemas.NONE
    stored: None = None
    takes_json: bool = False
    takes_arrays: bool = False
    hint: str = ""
    features: int = 0
    lists: int = 0

    def check(self, limits: OverlayLimits) -> None:
        raise _none_taken(self.why, limits)

    def support(self, limits: OverlayLimits) -> OverlaySupport:
        raise _none_taken(self.why, limits)

    def arrange(self, nodes: Sequence[Any], overlay: Any, limits: OverlayLimits) -> tuple[Overlay, np.ndarray]:
        raise _none_taken(self.why, limits)

    def stand_in(self, node: int) -> StandIn | str:
        return self.no_stand_in or f"no edge can be left out: {self.why}"


class PlainOverlays:
    """Overlays of nodes without a type, in every form."""

    takes_json = True
    takes_arrays = True
    hint = BRING_IT
    schemas = overlay_schemas.PLAIN

    def __init__(self, naming: NodeNaming, support: OverlaySupport) -> None:
        self._naming = naming
        self._support = support
        self.stored = support if support.features_of is not None else None
        self.features = support.columns.features
        self.lists = len(support.columns.columns)

    def check(self, limits: OverlayLimits) -> None:
        if not limits.max_nodes:
            raise _none_taken("", limits)

    def support(self, limits: OverlayLimits) -> OverlaySupport:
        if not limits.max_nodes:
            raise _none_taken("", limits)
        return self._support

    def arrange(
        self, nodes: Sequence[Any], overlay: RequestOverlay[Any], limits: OverlayLimits
    ) -> tuple[Overlay, np.ndarray]:
        support = self.support(limits)
        read = read_overlay(nodes, overlay, self._naming, support, limits)
        return support.arrange(read.features, read.overridden, read.edges, read.seeds)

    def stand_in(self, node: int) -> StandIn | str:
        support = self._support
        if support.features_of is None:
            return (
                "the revision does not keep the features of its nodes as they were, which leaving out an edge needs: "
                "store a variant as Float32 with all columns, without normalisation by rows"
            )
        features = np.ascontiguousarray(support.features_of(np.array([node], np.int64)), np.float32)
        new = np.array([self._naming.nodes], np.int64)

        def arrange(lists: Sequence[np.ndarray]) -> tuple[Overlay, np.ndarray]:
            (neighbours,) = map(np.unique, lists)
            edges = np.stack([neighbours, np.broadcast_to(new, neighbours.shape)], axis=1)
            return support.arrange(features, np.empty(0, np.int64), np.ascontiguousarray(edges), new)

        return arrange


class RelationOverlays:
    """Overlays of nodes that ids name with their type, in JSON alone: an edge is `[source, relation, target]`. New
    nodes of a type without features have none."""

    takes_json = True
    takes_arrays = False
    lists = 0
    schemas = overlay_schemas.OF_RELATIONS
    stored = None

    def __init__(self, ids: TypedIds, support: TypedOverlaySupport, hint: str, no_arrays: str) -> None:
        """`hint`: as of `Overlays`. `no_arrays`: why other forms than JSON bring nothing."""
        self._support = support
        self.ids = ids
        self.hint = hint
        self.features = support.width
        self._no_arrays = no_arrays

    def check(self, limits: OverlayLimits) -> None:
        if not limits.max_nodes:
            raise _none_taken("", limits)

    def support(self, limits: OverlayLimits) -> OverlaySupport:
        raise _none_taken(self._no_arrays, limits)

    def arrange(self, nodes: Sequence[Any], overlay: TypedOverlay, limits: OverlayLimits) -> tuple[Overlay, np.ndarray]:
        self.check(limits)
        support, new, overrides = self._support, overlay.nodes, overlay.overrides
        check_sizes(len(new), len(overrides), len(overlay.edges), support.width, limits)
        reader = _Reader(self.ids, support)
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
            problem = "a node is given twice"
            raise RequestError(ErrorCode.REPEATED_NODE, "overlay.overrides", problem, "give each node once")
        edges = [reader.edge(edge, f"overlay.edges[{place}]") for place, edge in enumerate(overlay.edges)]
        seeds = [reader.asked(one, f"nodes[{place}]") for place, one in enumerate(nodes)]
        return support.arrange(
            features,
            np.array([number for _, number in overridden], np.int64),
            np.array([ends for _, *ends in edges], np.int64).reshape(-1, 2),
            np.array(seeds, np.int64),
            np.array(reader.kinds, np.int64),
            np.array([relation for relation, *_ in edges], np.int64),
        )

    def stand_in(self, node: int) -> StandIn:
        return partial(self._support.stand_in, node)


class _Reader:
    """Numbers of nodes that a request names: those of the graph, and behind them its new ones."""

    def __init__(self, ids: TypedIds, support: TypedOverlaySupport) -> None:
        self._ids = ids
        self._graph = support.graph
        self._relations = _by_name(support.graph)
        self._new: dict[TypedId, int] = {}
        self.kinds: list[int] = []
        """Places of the types of new nodes."""

    def add(self, node: TypedNodeFeatures, where: str) -> None:
        """A new node."""
        id_ = self._ids.read(node.id, where)
        if self._ids.number(id_) >= 0:
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
        id_ = self._ids.read(node.id, where)
        number = self._ids.number(id_)
        if number < 0:
            raise RequestError(
                ErrorCode.UNKNOWN_NODE, where, f"node {shown_value(node.id)} is not in the graph", _NEW_REMEDY
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

    def _number(self, id_: TypedId, given: Any, where: str) -> int:
        if (place := self._new.get(id_)) is not None:
            return self._graph.first_nodes[-1] + place
        number = self._ids.number(id_)
        if number < 0:
            shown = f"node {shown_value(given)} is not in the graph"
            raise RequestError(ErrorCode.UNKNOWN_NODE, where, shown, _NEW_REMEDY)
        return number


def _by_name(graph: GraphSchema) -> Mapping[str, list[tuple[int, RelationManifest]]]:
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


def _none_taken(why: str, limits: OverlayLimits) -> RequestError:
    """`why`: why the revision takes none, where the limits would let it."""
    if not limits.max_nodes:
        remedy = "leave it out, or set spec.endpoint.overlay.maxNodes above 0"
        return RequestError(ErrorCode.NO_OVERLAYS, "overlay", "the service takes none", remedy)
    return RequestError(ErrorCode.NO_OVERLAYS, "overlay", f"the service takes none: {why}", "leave it out")
