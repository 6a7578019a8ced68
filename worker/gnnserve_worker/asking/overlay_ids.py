"""From the ids of a request that brings nodes and edges to their numbers: stored nodes have those of the graph, and
N + k is the k-th new node.

How a graph calls its nodes decides how such a request is read (`OverlayIds`, chosen when the graph is opened): ids
alone are found all at once, and all relations are the only one; ids with their type are read one by one, and an edge
names its relation. Integers of the binary form have no type: its parts say of which they are (`overlay_parts.py`). A
message names the place in the request, the value and the remedy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np

from gnnserve_api.files.graph_schema import GraphSchema, RelationManifest
from gnnserve_api.http.protocol import RequestOverlay, TypedOverlay
from gnnserve_worker.asking.features import places_by_kind
from gnnserve_worker.asking.naming import NodeNaming, naming_of
from gnnserve_worker.asking.overlay_parts import Counts, OverlayParts, kinds_of, parts_of_one_type, read_parts
from gnnserve_worker.asking.question import ErrorCode, RequestError, shown_value
from gnnserve_worker.asking.type_ids import QualifiedId, QualifiedIds
from gnnserve_worker.graph.overlay import ALL_OF_FIRST

BRING_IT = "a new node goes into overlay.nodes, with its features"
"""What else may be meant by an id that the graph lacks."""
_NEW_REMEDY = "a new node goes into overlay.nodes, with its features if its type has any"


class EdgeFields(NamedTuple):
    """Fields of a form that have the parts of an edge, by the place of the edge."""

    source: str
    relation: str
    target: str


EDGES_IN_JSON = EdgeFields("overlay.edges[{}][0]", "overlay.edges[{}][1]", "overlay.edges[{}][2]")


class OverlayRequestIds(msgspec.Struct, frozen=True):
    """The ids of a request with an overlay as clients write them, all of the graph's kind."""

    asked: Sequence[Any]
    """At least one."""
    new: Sequence[Any]
    edges: Sequence[Any]
    """Source, target, source, target, …"""
    overridden: Sequence[Any]
    relations: Sequence[str] = ()
    """Names of the relations of the edges; none where the graph has one."""
    fields: EdgeFields = EDGES_IN_JSON


class NumberedIds(msgspec.Struct, frozen=True):
    """The ids of a request in the binary form, where -1 - k is the k-th new node of its type."""

    numbers: np.ndarray
    """Nodes asked for, edges (source, target, source, target, …), overridden nodes: int64, writable."""
    counts: Counts
    parts: OverlayParts


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
    """Methods raise RequestError, which names the place of an id in the request, for whatever is wrong with ids."""

    @property
    def are_texts(self) -> bool:
        """Whether tensors of ids are of texts."""

    @property
    def names_types(self) -> bool:
        """Whether edges name their relation, and the binary form its types."""

    @property
    def type_suffixes(self) -> Sequence[str]:
        """What names of tensors end in that are of one type alone, by the place of the type."""

    @property
    def relation_suffixes(self) -> Mapping[int, str]:
        """The same of relations that edges may be brought of, by their place."""

    def named(self, nodes: Sequence[Any], overlay: Any) -> OverlayRequestIds:
        """What a request in JSON names. `nodes`: those that it asks about, at least one."""

    def place(self, ids: OverlayRequestIds) -> PlacedIds: ...

    def read_parts(self, text: bytes, counts: Counts) -> OverlayParts:
        """`text`: what the binary form says of its parts; empty where the graph has one type."""

    def place_numbers(self, ids: NumberedIds, features: np.ndarray, check: Callable[[], None]) -> PlacedIds:
        """`features`: of new nodes and overrides, float32. `check`: checks them, unless that is done along."""


class IdsAlone:
    """Ids without a type, as `naming` finds them."""

    names_types = False
    type_suffixes = ("",)
    relation_suffixes: Mapping[int, str] = MappingProxyType({0: ""})

    def __init__(self, naming: NodeNaming) -> None:
        self._naming = naming
        self.are_texts = naming.are_texts

    def named(self, nodes: Sequence[Any], overlay: RequestOverlay[Any]) -> OverlayRequestIds:
        ends = list(chain.from_iterable(overlay.edges))
        return OverlayRequestIds(
            nodes, [node.id for node in overlay.nodes], ends, [node.id for node in overlay.overrides]
        )

    def place(self, ids: OverlayRequestIds) -> PlacedIds:
        naming, new, asked = self._naming, ids.new, len(ids.asked)
        # All ids are found in one call, which lays their texts out once.
        wanted: list[Any] = [*ids.asked, *ids.edges]
        ends = len(wanted)
        wanted += ids.overridden
        named = len(wanted)
        places = {id_: naming.nodes + k for k, id_ in enumerate(new)}
        if len(places) < len(new):
            raise _repeated(new, new, "overlay.nodes")
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
            where, shown = _place_of(first, asked, ends), shown_value(wanted[first])
            raise _new_node(where, shown) if wanted[first] in places else naming.unknown(where, shown, BRING_IT)
        if len(ids.overridden) > 1 and len(set(found[ends:])) < len(ids.overridden):
            raise _repeated(ids.overridden, ids.overridden)
        positions = np.array(found, np.int64)
        return PlacedIds(positions[:asked], positions[asked:ends].reshape(-1, 2), positions[ends:])

    def read_parts(self, text: bytes, counts: Counts) -> OverlayParts:
        return parts_of_one_type(counts)

    def place_numbers(self, ids: NumberedIds, features: np.ndarray, check: Callable[[], None]) -> PlacedIds:
        numbers, counts, naming = ids.numbers, ids.counts, self._naming
        asked, ends = counts.asked, counts.asked + 2 * counts.edges
        if not naming.number_array(numbers, features, counts.new, ends):
            check()
            found = naming.place_array(numbers, counts.new)
            if np.minimum.reduce(found) < 0:
                first = int(found.argmin())
                where, shown = _place_of(first, asked, ends), str(numbers[first])
                raise naming.unknown(where, shown, _new_in_words(counts.new))
            _check_overridden(found[ends:], numbers[ends:].tolist(), naming.nodes)
            numbers = found
        return PlacedIds(numbers[:asked], numbers[asked:ends].reshape(-1, 2), numbers[ends:])


def _place_of(index: int, asked: int, ends: int) -> str:
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

    are_texts = names_types = True

    def __init__(self, ids: QualifiedIds) -> None:
        self._ids = ids
        self._relations = _Relations(ids.numbered)
        self._namings = [naming_of(ids.of_type[kind.name], kind.nodes, kind.name) for kind in ids.numbered.types]
        self.type_suffixes = tuple(f".{kind.name}" for kind in ids.types.types)
        self.relation_suffixes: Mapping[int, str] = {
            place: f".{one.source}.{one.name}.{one.target}"
            for place, one in enumerate(ids.types.relations)
            if one.reverse_of is None
        }

    def named(self, nodes: Sequence[Any], overlay: TypedOverlay) -> OverlayRequestIds:
        ends = [end for source, _, target in overlay.edges for end in (source, target)]
        new, overridden = ([one.id for one in listed] for listed in (overlay.nodes, overlay.overrides))
        return OverlayRequestIds(nodes, new, ends, overridden, [name for _, name, _ in overlay.edges])

    def place(self, ids: OverlayRequestIds) -> PlacedIds:
        reader = _Reader(self._ids, self._relations, ids.fields)
        for place, id_ in enumerate(ids.new):
            reader.add(id_, f"overlay.nodes[{place}].id")
        overridden = [reader.stored(id_, f"overlay.overrides[{place}].id") for place, id_ in enumerate(ids.overridden)]
        if len({number for _, number in overridden}) < len(overridden):
            raise _repeated([number for _, number in overridden], ids.overridden)
        ends = zip(ids.edges[::2], ids.relations, ids.edges[1::2], strict=True)
        edges = [reader.edge(*edge, place) for place, edge in enumerate(ends)]
        seeds = [reader.asked(one, f"nodes[{place}]") for place, one in enumerate(ids.asked)]
        return PlacedIds(
            np.array(seeds, np.int64),
            np.array([ends for _, *ends in edges], np.int64).reshape(-1, 2),
            np.array([number for _, number in overridden], np.int64),
            np.array(reader.kinds, np.int64),
            np.array([kind for kind, _ in overridden], np.int64),
            np.array([relation for relation, *_ in edges], np.int64),
        )

    def read_parts(self, text: bytes, counts: Counts) -> OverlayParts:
        return read_parts(text, counts, self._type_of, self._relations.find)

    def place_numbers(self, ids: NumberedIds, features: np.ndarray, check: Callable[[], None]) -> PlacedIds:
        check()
        numbers, counts, parts, graph = ids.numbers, ids.counts, ids.parts, self._ids.numbered
        asked, ends = counts.asked, counts.asked + 2 * counts.edges
        relations, overridden_types = kinds_of(parts.edges), kinds_of(parts.overrides)
        kinds = np.zeros(len(numbers), np.int64)  # nodes are asked about that are of the first type
        sources, targets = self._relations.ends
        kinds[asked:ends:2], kinds[asked + 1 : ends : 2] = sources[relations], targets[relations]
        kinds[ends:] = overridden_types
        found, begin, of_new = np.full(len(numbers), -1, np.int64), graph.first_nodes[-1], dict[int, tuple[int, int]]()
        for kind, count in parts.nodes:
            of_new[kind] = begin, count
            begin += count
        for kind, places in places_by_kind(kinds, len(kinds)):
            naming, (first_new, new) = self._namings[kind], of_new.get(kind, (0, 0))
            within = naming.place_array(numbers[places], new)
            if within.min() < 0:
                first = int(places[within.argmin()])
                raise self._unknown(kind, int(numbers[first]), _place_of(first, asked, ends), new)
            stored = within + graph.first_nodes[kind]
            found[places] = np.where(within < naming.nodes, stored, within - naming.nodes + first_new)
        _check_overridden(found[ends:], numbers[ends:].tolist(), graph.first_nodes[-1])
        return PlacedIds(
            found[:asked], found[asked:ends].reshape(-1, 2), found[ends:], kinds_of(parts.nodes), overridden_types,
            relations,
        )  # fmt: skip

    def _type_of(self, name: str, where: str) -> int:
        place = self._ids.place_of(name)
        if place < 0:
            there = ", ".join(one.name for one in self._ids.types.types)
            problem = f"{shown_value(name)} is no type of nodes"
            raise RequestError(ErrorCode.INVALID_VALUE, where, problem, f"types are {there}")
        return place

    def _unknown(self, kind: int, number: int, where: str, new: int) -> RequestError:
        naming, name = self._namings[kind], self._ids.types.types[kind].name
        if naming.are_texts:
            problem = f"ids of type {name} are texts, got {number}"
            raise RequestError(ErrorCode.INVALID_TYPE, where, problem, "send JSON, or tensors of BYTES")
        return naming.unknown(where, shown_value(f"{name}/{number}"), _new_in_words(new, f" of type {name}"))


def _new_in_words(new: int, of_type: str = "") -> str:
    """What numbers below 0 mean in the binary form."""
    brought = f"-1 to -{new} are the new nodes" if new > 1 else "-1 is the new node" if new else "none is new"
    return f"of this request {brought}{of_type}"


def _check_overridden(found: np.ndarray, given: Sequence[int], stored: int) -> None:
    """`found`: numbers of overridden nodes, int64. `given`: as the request has them. `stored`: nodes of the graph."""
    overridden = found.tolist()
    if overridden and max(overridden) >= stored:
        first = next(i for i, number in enumerate(overridden) if number >= stored)
        raise _new_node(f"overlay.overrides[{first}].id", str(given[first]))
    if len(set(overridden)) < len(overridden):
        raise _repeated(overridden, given)


class _Reader:
    """Numbers of nodes that a request names: those of the graph, and behind them its new ones."""

    def __init__(self, ids: QualifiedIds, relations: _Relations, fields: EdgeFields) -> None:
        self._ids = ids
        self._graph = ids.numbered
        self._relations = relations
        self._fields = fields
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

    def edge(self, given: Any, name: str, other: Any, place: int) -> tuple[int, int, int]:
        """The place of its relation, and its two ends. `place`: of the edge."""
        fields = self._fields
        at_source, at_target = fields.source.format(place), fields.target.format(place)
        source, target = self._ids.read(given, at_source), self._ids.read(other, at_target)
        found = self._relations.find(source.type, name, target.type, fields.relation.format(place))
        return found, self._number(source, given, at_source), self._number(target, other, at_target)

    def _number(self, id_: QualifiedId, given: Any, where: str) -> int:
        if (place := self._new.get(id_)) is not None:
            return self._graph.first_nodes[-1] + place
        number = self._ids.number(id_)
        if number < 0:
            shown = f"node {shown_value(given)} is not in the graph"
            raise RequestError(ErrorCode.UNKNOWN_NODE, where, shown, _NEW_REMEDY)
        return number


class _Relations:
    """Relations of a graph by their names."""

    def __init__(self, graph: GraphSchema) -> None:
        self._graph = graph
        self._by_name: dict[str, list[tuple[int, RelationManifest]]] = {}
        for place, relation in enumerate(graph.relations):
            self._by_name.setdefault(relation.name, []).append((place, relation))
        self.ends = [
            np.array([graph.place_of(getattr(one, end)) for one in graph.relations], np.int64)
            for end in ("source", "target")
        ]
        """Places of the types of sources, and of targets: int64 [relations] each."""

    def find(self, source: str, name: str, target: str, where: str) -> int:
        """The place of a relation that edges may be brought of."""
        named = self._by_name.get(name, [])
        found = next((place for place, one in named if (one.source, one.target) == (source, target)), None)
        if found is None or self._graph.relations[found].reverse_of is not None:
            own = [one.key for one in self._graph.relations if one.reverse_of is None]
            what = f"{source} {name} {target}"
            is_added = found is not None
            problem = f"{what} is the reverse of a relation, and goes with it" if is_added else f"no relation is {what}"
            raise RequestError(ErrorCode.INVALID_VALUE, where, problem, f"relations are {', '.join(own)}")
        return found


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


def _new_node(where: str, shown: str) -> RequestError:
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
