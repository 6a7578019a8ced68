"""Graphs in memory: types of nodes, relations, neighbour lists, features, labels, splits.

Within its type a node has a position, from 0. All nodes together have one numbering, type after type, and the type that
is classified comes first: the position of such a node is its number. A graph whose nodes are of one type has one type
and one relation without names; its accessors (`GraphData.graph`, `features`, `ids` …) are theirs.

Arrays may be memory-mapped; nothing here writes to them. `sources/` reads graphs from outside, `repository/` reads and
writes published ones.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from msgspec import UNSET

from gnnserve_api.files.edges import Direction, Duplicates, EdgeRules
from gnnserve_api.files.graph_schema import AS_LISTED, Classes, GraphSchema, TypeManifest, one_type, relation_manifest
from gnnserve_api.files.repository import ChangedSource
from gnnserve_worker.graph.ids import NodeIds
from gnnserve_worker.graph.payload import EdgePayload
from gnnserve_worker.kernels.layout import pack_layout

if TYPE_CHECKING:
    import scipy.sparse as sp


Features: TypeAlias = "np.ndarray | sp.csr_array"
"""float32 [nodes, columns], dense or CSR."""

_BLOCK_ENTRIES = 1 << 22
"""Entries of lists that are looked through at once."""

_UNCOUNTED = one_type(0, 0)
"""Stands for the schema of lists that come without one: those of one type."""


@dataclass(frozen=True, slots=True)
class Graph:
    """Neighbour lists in CSR form: each lists the nodes whose messages reach a node by one relation.

    A node's lists, one for each relation that its type reads, stand one behind the other (`relation_lists.py`). One
    array serves kernels better than one for each relation, whose number no compiled code would know.
    """

    indptr: np.ndarray
    """int64 [lists + 1], ascending; or int64 [lists, 2], begin and end of each list, of a graph that changes
    (`living_lists.py`), whose nodes include room for new ones."""
    indices: np.ndarray
    """Numbers of nodes, int32 [edges], or more of a graph that changes."""
    schema: GraphSchema = _UNCOUNTED
    """Types and relations. By default nodes are of one type and have a list each."""
    payload_rows: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32))
    """Row of each entry of `indices` in the payload of its relation (`payload.py`), int32; -1 where the relation has
    none. [0]: no relation has any."""
    nodes: int = field(init=False)
    """Nodes of all types."""
    layout: np.ndarray = field(init=False)
    """`layout.pack_layout` of the schema, for kernels."""
    _first_nodes: tuple[int, ...] = field(init=False, repr=False)
    """First node of each type, and behind them the number of all nodes."""
    _first_lists: tuple[int, ...] = field(init=False, repr=False)
    """First list of each type, and behind them the number of all lists."""
    _slots: tuple[int, ...] = field(init=False, repr=False)
    """Lists of a node of each type."""

    def __post_init__(self) -> None:
        schema = self.schema
        if schema is _UNCOUNTED:
            schema = one_type(len(self.indptr) - (self.indptr.ndim == 1), len(self.indices))
            object.__setattr__(self, "schema", schema)
        counts, slots = [kind.nodes for kind in schema.types], schema.slots
        ends = [(schema.place_of(one.source), schema.place_of(one.target)) for one in schema.relations]
        lists = accumulate((nodes * each for nodes, each in zip(counts, slots, strict=True)), initial=0)
        object.__setattr__(self, "nodes", sum(counts))
        object.__setattr__(self, "layout", pack_layout(counts, ends))
        object.__setattr__(self, "_first_nodes", schema.first_nodes)
        object.__setattr__(self, "_first_lists", tuple(lists))
        object.__setattr__(self, "_slots", slots)

    @property
    def edges(self) -> int:
        return len(self.indices)

    def list_of(self, node: int) -> np.ndarray:
        """The nodes that it reads, by whichever relation: int32 numbers, relation after relation."""
        first, count = self._lists_of(node)
        if count == 1:
            return self.one_list(first)
        return np.concatenate([self.indices[:0], *(self.one_list(first + slot) for slot in range(count))])

    def lists_by_relation(self, node: int) -> list[tuple[int, np.ndarray]]:
        """Each relation that it reads, by its place, and the nodes that it reads by it: int32 numbers, ascending."""
        first, _ = self._lists_of(node)
        name = self.schema.types[bisect_right(self._first_nodes, node) - 1].name
        read = [place for place, relation in enumerate(self.schema.relations) if relation.target == name]
        return [(place, self.one_list(first + slot)) for slot, place in enumerate(read)]

    def one_list(self, place: int) -> np.ndarray:
        """The nodes of one list: int32 numbers, ascending."""
        begin, end = self.indptr[place : place + 2] if self.indptr.ndim == 1 else self.indptr[place]
        return self.indices[begin:end]

    def first_list_of(self, node: int) -> int:
        """The first of its lists."""
        return self._lists_of(node)[0]

    def readers_of(self, node: int) -> np.ndarray:
        """The nodes whose lists name it, int64, ascending, of a graph that does not change. All lists are looked
        through, about a millisecond for a million entries."""
        found = [
            start + np.flatnonzero(self.indices[start : start + _BLOCK_ENTRIES] == node)
            for start in range(0, self.edges, _BLOCK_ENTRIES)
        ]
        entries = np.concatenate([np.zeros(0, np.int64), *found])
        return np.unique(self._nodes_of(np.searchsorted(self.indptr, entries, side="right") - 1))

    def targets(self) -> np.ndarray:
        """The node that reads each entry of `indices`, int64 [edges]."""
        lengths = np.diff(self.indptr)
        return np.repeat(self._nodes_of(np.arange(len(lengths), dtype=np.int64)), lengths)

    def of_entries(self, is_kept: np.ndarray) -> Graph:
        """The lists with these entries alone (bool [edges]), which keep what edges have. Nodes are of one type, or the
        lists those of one relation, of a graph that does not change."""
        kept_before = np.concatenate([[0], np.cumsum(is_kept)]).astype(np.int64)
        rows = self.payload_rows[is_kept] if len(self.payload_rows) else self.payload_rows
        return Graph(kept_before[self.indptr], np.ascontiguousarray(self.indices[is_kept]), payload_rows=rows)

    def induced(self, kept: np.ndarray) -> Graph:
        """The same node ids, which are of one type, with only the edges whose two ends are in `kept` (bool [nodes])."""
        return self.of_entries(kept[self.targets()] & kept[self.indices])

    def _lists_of(self, node: int) -> tuple[int, int]:
        """The first of its lists, and how many it has."""
        kind = bisect_right(self._first_nodes, node) - 1
        count = self._slots[kind]
        return self._first_lists[kind] + (node - self._first_nodes[kind]) * count, count

    def _nodes_of(self, lists: np.ndarray) -> np.ndarray:
        """The node that each of these lists (int64) is of: int64."""
        firsts, slots = np.array(self._first_lists, np.int64), np.array(self._slots, np.int64)
        # A type without lists begins where the next one does: the last of those that begin there has the list.
        kinds = np.searchsorted(firsts, lists, side="right") - 1
        positions = (lists - firsts[kinds]) // np.maximum(1, slots)[kinds]
        return np.asarray(np.array(self._first_nodes, np.int64)[kinds] + positions)


@dataclass(frozen=True, slots=True)
class GraphIds:
    """Ids by which the source calls nodes of a graph."""

    by_type: Mapping[str, NodeIds | None]
    """Ids of each type, by its name, the first type first; None: they are numbered from 0."""
    of_all: NodeIds | None = None
    """What all nodes are called, with their types, where links are scored; None: as their types call them."""

    @property
    def asked(self) -> NodeIds | None:
        """Ids of the nodes that can be asked about; None: they are numbered from 0."""
        return next(iter(self.by_type.values())) if self.of_all is None else self.of_all


@dataclass(frozen=True, slots=True)
class Splits:
    """Node ids, int64, ascending; the three do not overlap."""

    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that importing changed or left out: edges dropped, features filled, columns left out."""

    what: str
    """A few words, as `duplicate edges merged`."""
    count: int
    example: str = ""
    """The first such item, or the names of all."""


@dataclass(frozen=True, slots=True)
class FeatureColumn:
    """A column of the source that was taken as one feature, or several."""

    name: str
    width: int
    """Features that the column became: 1, or the length of its lists."""
    fill: tuple[float, ...] | None = None
    """Numbers that stand where values are missing, one per feature; None: missing values are refused."""


@dataclass(frozen=True, slots=True)
class NodeType:
    name: str
    """Empty where all nodes are of one type."""
    nodes: int
    features: Features | None
    """As in the source (`generation/training_set.py` normalises them); None: nodes of this type have none, and get
    embeddings that are learned."""
    feature_columns: tuple[FeatureColumn, ...] = ()
    """Columns in the order of the features; empty where the source names no columns."""
    ids: NodeIds | None = None
    """The source's own ids of these nodes; None: it numbers them from 0."""


@dataclass(frozen=True, slots=True)
class EdgeSplits:
    """The edges of a relation as the source lists them, each with its part."""

    sources: np.ndarray
    """Positions within the source type, integers [edges]."""
    targets: np.ndarray
    """Positions within the target type, as many."""
    parts: np.ndarray
    """0 train, 1 validation, 2 test, as many."""


@dataclass(frozen=True, slots=True)
class Relation:
    """Edges of one kind, from nodes of one type to nodes of one type, which read them."""

    source: str
    """Type of the nodes that are read."""
    name: str
    """Empty where all nodes are of one type."""
    target: str
    """Type of the nodes that read."""
    lists: Graph
    """Row i lists the nodes of the source type, by position, that node i of the target type reads."""
    reverse_of: str | None = None
    """The relation that it is the reverse of, which importing added; None: it is the source's."""
    edge_rules: EdgeRules = AS_LISTED
    """How its edges became entries of lists, for edges that come later."""
    edge_splits: EdgeSplits | None = None
    """None: the source does not say which edges are held out where links are scored."""
    payload: EdgePayload | None = None
    """Features and times of its edges, by `lists.payload_rows`; a reverse relation has those of the one that it is the
    reverse of. None: they have none."""

    @property
    def key(self) -> str:
        """For people: `paper written_by author`."""
        return f"{self.source} {self.name} {self.target}"

    @property
    def merges(self) -> bool:
        """Whether edges between the same two nodes count once."""
        return self.edge_rules.duplicates is Duplicates.MERGE

    @property
    def both_ways(self) -> bool:
        """Whether an edge between two nodes of one type lets either read the other."""
        return self.edge_rules.direction is Direction.UNDIRECTED


@dataclass(frozen=True, slots=True)
class GraphData:
    """A graph as it was imported, checked and ready for generation."""

    source: str
    """Name for messages: `builtin Digits`, or the file's URI."""
    digest: str
    """Identity of the content: hex, safe as a folder name."""
    types: tuple[NodeType, ...]
    """The target type first."""
    relations: tuple[Relation, ...]
    """In the order of their target types, so that those that a type reads stand together."""
    labels: np.ndarray
    """Labels of the target type: int64 [nodes], class indices with -1 for unknown; or uint8 [nodes, classes] of 0
    and 1 when multi-label."""
    classes: Classes
    """The source's own label of each class index, ascending; column numbers or names when multi-label."""
    splits: Splits
    """Positions of nodes of the target type."""
    findings: tuple[Finding, ...] = ()
    """What importing changed or left out, for `gnnserve graph inspect`."""
    made_of: ChangedSource | None = None
    """None: it is its source's, without changes of a log."""
    names: NodeIds | None = None
    """Where links are scored over types with names: what all nodes are called, as `user/17`, in their numbering, and
    splits are of all nodes. None: as their types call them."""

    @staticmethod
    def of_one_type(
        source: str,
        digest: str,
        graph: Graph,
        features: Features,
        labels: np.ndarray,
        classes: Classes,
        splits: Splits,
        edge_rules: EdgeRules,
        ids: NodeIds | None = None,
        findings: tuple[Finding, ...] = (),
        feature_columns: tuple[FeatureColumn, ...] = (),
        made_of: ChangedSource | None = None,
        payload: EdgePayload | None = None,
    ) -> GraphData:
        """A graph whose nodes are of one type. `edge_rules`: how the source's edges became neighbour lists."""
        kind = NodeType("", graph.nodes, features, feature_columns, ids)
        relation = Relation("", "", "", graph, edge_rules=edge_rules, payload=payload)
        return GraphData(source, digest, (kind,), (relation,), labels, classes, splits, findings, made_of)

    @property
    def target(self) -> NodeType:
        """The type that is classified."""
        return self.types[0]

    @property
    def nodes(self) -> int:
        return sum(kind.nodes for kind in self.types)

    @property
    def edges(self) -> int:
        """Entries of neighbour lists of all relations; an edge whose reverse was added counts twice."""
        return sum(relation.lists.edges for relation in self.relations)

    @property
    def multi_label(self) -> bool:
        return self.labels.ndim == 2

    @property
    def schema(self) -> GraphSchema:
        """Types and relations, without their arrays."""
        types = (
            TypeManifest(
                name=kind.name,
                nodes=kind.nodes,
                features=None if kind.features is None else kind.features.shape[1],
                node_ids="Positions" if kind.ids is None else kind.ids.kind.value,
            )
            for kind in self.types
        )
        relations = (
            relation_manifest(
                one.source, one.name, one.target, one.lists.edges, one.reverse_of, one.edge_rules,
                UNSET if one.payload is None else one.payload.manifest,
            )
            for one in self.relations
        )  # fmt: skip
        return GraphSchema(tuple(types), tuple(relations))

    def type_named(self, name: str) -> NodeType:
        return next(kind for kind in self.types if kind.name == name)

    def read_by(self, target: str) -> tuple[Relation, ...]:
        """The relations that nodes of the type read."""
        return tuple(relation for relation in self.relations if relation.target == target)

    # --- where nodes are of one type

    @property
    def graph(self) -> Graph:
        """The lists of the one relation."""
        (relation,) = self.relations
        return relation.lists

    @property
    def edge_rules(self) -> EdgeRules:
        """How the source's edges became neighbour lists."""
        (relation,) = self.relations
        return relation.edge_rules

    @property
    def features(self) -> Features:
        """Features as in the source; `generation/training_set.py` normalises them."""
        (kind,) = self.types
        if kind.features is None:
            raise ValueError("nodes without features")
        return kind.features

    @property
    def feature_columns(self) -> tuple[FeatureColumn, ...]:
        """Columns in the order of the features; empty where the source names no columns."""
        (kind,) = self.types
        return kind.feature_columns

    @property
    def ids(self) -> NodeIds | None:
        """The source's own ids of the nodes; None: the source numbers them from 0."""
        (kind,) = self.types
        return kind.ids

    def with_features(self, features: Features, columns: tuple[FeatureColumn, ...] = ()) -> GraphData:
        """The graph with other features of its one type, which are those columns of the source."""
        (kind,) = self.types
        return replace(self, types=(replace(kind, features=features, feature_columns=columns),))

    def with_lists(self, lists: Graph, edge_rules: EdgeRules | None = None) -> GraphData:
        """The graph with other lists of its one relation. `edge_rules`: other rules than its own; None: its own.
        Features and times of edges stay where the lists name their rows."""
        (kind,), (relation,) = self.types, self.relations
        payload = relation.payload if len(lists.payload_rows) else None
        changed = replace(relation, lists=lists, edge_rules=edge_rules or relation.edge_rules, payload=payload)
        return replace(self, types=(replace(kind, nodes=lists.nodes),), relations=(changed,))

    def with_ids(self, ids: NodeIds | None) -> GraphData:
        """The graph with other ids of the nodes of its one type."""
        (kind,) = self.types
        return replace(self, types=(replace(kind, ids=ids),))


def random_splits(known: np.ndarray) -> Splits:
    """Split the nodes that have a label (`known`, bool [nodes]) of a graph without a split of its own, 60/20/20 by a
    fixed permutation. The same graph is split the same way at every import.

    With fewer than three such nodes there are no validation nodes.
    """
    nodes = np.flatnonzero(known).astype(np.int64)
    order = nodes[np.random.default_rng(0).permutation(len(nodes))]
    train, validation = int(0.6 * len(nodes)), int(0.8 * len(nodes))
    return Splits(np.sort(order[:train]), np.sort(order[train:validation]), np.sort(order[validation:]))
