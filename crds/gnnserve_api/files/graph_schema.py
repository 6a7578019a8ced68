"""Schema of a graph: its types of nodes and its relations, and where tables have rows of each.

All nodes have one numbering, type after type; the type that is classified comes first, so that the position of such a
node is its number. A graph whose nodes are of one type has one type and one relation, both without a name.
`repository.py` has the manifests that these are parts of, and which of them files leave out.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Literal, Protocol, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from gnnserve_api.files.edges import Direction, Duplicates, EdgeRules

TYPE_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_-]*$"
"""Names of types and relations."""
IdKind = Literal["Positions", "Integers", "Strings"]
"""The values of `repository.NodeIdKind`."""

AS_LISTED = EdgeRules(Direction.DIRECTED, Duplicates.KEEP)
"""Rules of lists that are taken as they are: each entry is an edge."""


class TypeManifest(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A type of nodes."""

    name: str
    """Empty where all nodes are of one type."""
    nodes: int
    features: int | None
    """Features of a node, as in the source; None: it has none, and embeddings of its nodes are learned."""
    node_ids: IdKind
    """What requests call its nodes by, behind its name."""


class PayloadManifest(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Features and times of the edges of a relation."""

    columns: tuple[str, ...]
    """Names of the features, in their order."""
    time: str
    """Name of the column of times; empty: edges have none."""
    rows: int
    """Rows that features and times have: one for each edge, which its entries in lists share."""


class RelationManifest(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Edges of one kind, from nodes of one type to nodes of one type, which read them."""

    source: str
    name: str
    """Empty where all nodes are of one type."""
    target: str
    edges: int
    reverse_of: str | None
    """Name of the relation that it is the reverse of, which importing added; None: it is the source's."""
    merges: bool
    """Whether edges between the same two nodes count once."""
    both_ways: bool
    """Whether an edge between two nodes of one type lets either read the other."""
    whole_rules: EdgeRules | UnsetType = msgspec.field(default=UNSET, name="edgeRules")
    """Absent: `merges` and `both_ways` say all of them."""
    payload: PayloadManifest | UnsetType = UNSET
    """Absent: edges have neither features nor times."""

    @property
    def key(self) -> str:
        """For people: `paper written_by author`."""
        return f"{self.source} {self.name} {self.target}"

    @property
    def edge_rules(self) -> EdgeRules:
        """How edges of it become entries of lists."""
        if self.whole_rules is UNSET:
            return _brief_rules(merges=self.merges, both_ways=self.both_ways)
        return self.whole_rules


def relation_manifest(
    source: str,
    name: str,
    target: str,
    edges: int,
    reverse_of: str | None,
    rules: EdgeRules,
    payload: PayloadManifest | UnsetType = UNSET,
) -> RelationManifest:
    """A relation by those rules, which are written in whole where two words do not say them."""
    merges, both_ways = rules.duplicates is Duplicates.MERGE, rules.direction is Direction.UNDIRECTED
    whole: EdgeRules | UnsetType = UNSET if _brief_rules(merges=merges, both_ways=both_ways) == rules else rules
    return RelationManifest(source, name, target, edges, reverse_of, merges, both_ways, whole, payload)


def _brief_rules(*, merges: bool, both_ways: bool) -> EdgeRules:
    return EdgeRules(
        Direction.UNDIRECTED if both_ways else Direction.DIRECTED, Duplicates.MERGE if merges else Duplicates.KEEP
    )


class SchemaNames(Protocol):
    """How nodes and edges of a graph are called, for people."""

    def nodes_of(self, type_: str) -> str:
        """Nodes of the type of that name."""
        ...  # pragma: no cover

    def edges_of(self, key: str) -> str:
        """Edges of the relation with that key."""
        ...  # pragma: no cover


class _WithoutNames:
    def nodes_of(self, type_: str) -> str:
        return "nodes"

    def edges_of(self, key: str) -> str:
        return "edges"


class _NamesOfTypes:
    def nodes_of(self, type_: str) -> str:
        return f"nodes of type {type_!r}"

    def edges_of(self, key: str) -> str:
        return f"edges of {key}"


WITHOUT_NAMES: SchemaNames = _WithoutNames()
"""All nodes are of one type, which needs no name."""
NAMES_OF_TYPES: SchemaNames = _NamesOfTypes()
"""Types have names, which stand before ids in requests, and so have relations."""


class GraphSchema(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Types and relations of a graph. In its lists each node has one for each relation that its type reads."""

    types: tuple[TypeManifest, ...]
    """In the order of the numbering; the first one is classified."""
    relations: tuple[RelationManifest, ...]
    """In the order of their target types, so that those that a type reads stand together."""

    @property
    def first_nodes(self) -> tuple[int, ...]:
        """Number of each type's first node, and behind them that of all nodes."""
        return tuple(accumulate((kind.nodes for kind in self.types), initial=0))

    @property
    def slots(self) -> tuple[int, ...]:
        """Neighbour lists that a node of each type has: one for each relation that its type reads."""
        read = [relation.target for relation in self.relations]
        return tuple(read.count(kind.name) for kind in self.types)

    @property
    def lists(self) -> int:
        """Neighbour lists of all nodes."""
        return sum(kind.nodes * count for kind, count in zip(self.types, self.slots, strict=True))

    @property
    def target(self) -> TypeManifest:
        """The type that is classified."""
        return self.types[0]

    @property
    def names(self) -> SchemaNames:
        """How nodes and edges are called; where that decides more, a table has what goes with either."""
        return NAMES_OF_TYPES if self.target.name else WITHOUT_NAMES

    @property
    def has_payload(self) -> bool:
        """Whether edges of any relation have features or times."""
        return any(relation.payload is not UNSET for relation in self.relations)

    def payload_place(self, place: int) -> int:
        """The place of the relation whose payload that at `place` has: its own, or of the one that it reverses."""
        one = self.relations[place]
        if one.reverse_of is None:
            return place
        origin = one.target, one.reverse_of, one.source
        return next(at for at, two in enumerate(self.relations) if (two.source, two.name, two.target) == origin)

    def place_of(self, name: str) -> int:
        """The place of a type in `types`."""
        return next(place for place, kind in enumerate(self.types) if kind.name == name)


def one_type(
    nodes: int,
    edges: int,
    features: int | None = None,
    node_ids: IdKind = "Positions",
    edge_rules: EdgeRules = AS_LISTED,
    payload: PayloadManifest | UnsetType = UNSET,
) -> GraphSchema:
    """The schema of a graph whose nodes are of one type."""
    relation = relation_manifest("", "", "", edges, None, edge_rules, payload)
    return GraphSchema((TypeManifest("", nodes, features, node_ids),), (relation,))


class TypeRows(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """How rows are made of the raw features of a node of one type."""

    columns: int
    """How many of `RowSource.columns` are of this type; they are there type after type."""
    normalization: str | None
    """The normalisation that was applied; None: the type has no features, and a new node of it has the mean of its
    embeddings."""


class RelationRowPlaces(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Where a table of products has the rows of each relation: the product of a relation with each node of its source
    type, type after type of the relations that the table has. Rows of nodes themselves are in the order of the nodes.
    """

    rows: int
    """Rows of neighbours, of all relations."""
    first_rows: tuple[int | None, ...]
    """The first row of each relation of the graph; None: the table has none of it, since no node that is computed from
    it reads that relation."""
    own_rows: int
    """Rows of nodes themselves: those of all types, or of the first type alone."""


Classes: TypeAlias = tuple[int | str, ...]
"""Class labels in ascending order; all integers, or all texts. Not a union of two tuples, which msgspec cannot tell
apart."""
