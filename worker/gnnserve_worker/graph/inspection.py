"""Inspection of an imported graph: its figures, and notes on what may be a mistake.

Every note refers to a figure beside it. Notes do not judge; they name common mistakes of graph files (edges in one
direction, classes that no training node has, constant columns) before hours go into training.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from gnnserve_api.files.edges import EdgeRules
from gnnserve_api.files.repository import NodeIdKind
from gnnserve_worker.graph.edges import row_blocks
from gnnserve_worker.graph.store import Features, Graph, GraphData, NodeType, Relation, Splits
from gnnserve_worker.graph.suspicion import suspicious_columns

_BLOCK_ROWS = 65_536
_BLOCK_EDGES = 1 << 22
_PROBED_EDGES = 10_000
"""Edges whose reverse is searched: doing so for 100 million edges would take longer than reading them."""
_SCANNED_EDGES = 1 << 28
"""Most edges that probing scans: every probe scans the row of its source, so with long rows fewer edges are probed."""
_SHOWN_IDS = 3
_MANY_ISOLATED = 0.2
_FEW_NODES = 100
_UNEVEN_SCALES = 100.0
FEW_EDGES_SHARE = 0.25
"""Below this share of the edges, inductive training may lose much accuracy and should be compared with transductive."""


class DegreeFacts(msgspec.Struct, frozen=True, rename="camel"):
    """Statistics of the number of neighbours that a node reads."""

    isolated: int
    """Nodes without neighbours."""
    median: float
    mean: float
    p99: float
    highest: int
    histogram: tuple[tuple[int, int], ...]
    """Pairs (from, nodes): nodes with at least `from` neighbours, and fewer than the next entry's; powers of four."""


class FeatureFacts(msgspec.Struct, frozen=True, rename="camel"):
    columns: int
    is_sparse: bool
    nonzero_share: float
    lowest: float
    highest: float
    constant_columns: int
    smallest_deviation: float
    """Smallest standard deviation of a column that is not constant."""
    largest_deviation: float


class TakenColumn(msgspec.Struct, frozen=True, rename="camel"):
    """A column of the source that became one feature or several."""

    name: str
    width: int


class ClassCount(msgspec.Struct, frozen=True, rename="camel"):
    label: int | str
    nodes: int
    training_nodes: int


class LabelFacts(msgspec.Struct, frozen=True, rename="camel"):
    """Labels of the nodes that are classified, and how these are split. JSON has its members beside the graph's."""

    multi_label: bool
    classes: tuple[ClassCount, ...]
    """Classes in the order of the scores."""
    classless_nodes: int
    """Nodes whose class is unknown; where a node may have several, those that have none."""
    training_nodes: int
    validation_nodes: int
    test_nodes: int


class FindingNote(msgspec.Struct, frozen=True, rename="camel"):
    """Note of what importing did: a `Finding` as JSON."""

    what: str
    count: int
    example: str


class Inspection(msgspec.Struct, frozen=True, rename="camel"):
    """A graph whose nodes are of one type."""

    source: str
    digest: str
    nodes: int
    node_ids: NodeIdKind
    first_ids: list[int | str]
    edges: int
    """Directed edges: an undirected link counts twice."""
    edge_rules: EdgeRules
    """How edges became these, and how those of changes and overlays will."""
    edge_features: tuple[str, ...]
    """Columns of the features of edges."""
    edge_time: str
    """Column of the times of edges; empty: they have none."""
    self_loops: int
    repeated_edges: int
    reversed_share: float
    """Share of the edges, of a sample of at most 10,000, whose reverse is there as well: 1 in an undirected graph."""
    neighbours: DegreeFacts
    features: FeatureFacts
    feature_columns: tuple[TakenColumn, ...]
    """Columns by the source's names, in the order of the features; empty where the source has no names."""
    labels: LabelFacts
    findings: tuple[FindingNote, ...]
    notes: tuple[str, ...]


class TypeFacts(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    nodes: int
    node_ids: NodeIdKind
    first_ids: tuple[str, ...]
    """As requests name them: type, slash, id."""
    isolated: int
    """Nodes that read no neighbour by any relation."""
    features: FeatureFacts | None
    """None: it has none, and its nodes get embeddings."""
    feature_columns: tuple[TakenColumn, ...]


class RelationFacts(msgspec.Struct, frozen=True, rename="camel"):
    source: str
    name: str
    target: str
    edges: int
    reverse_of: str | None
    """The relation that it is the reverse of; None: it is the source's."""
    both_ways: bool
    """Whether an edge between two nodes of one type lets either read the other."""
    merges: bool
    """Whether edges between the same two nodes count once."""
    neighbours: DegreeFacts
    """How many nodes a node of the target type reads by it."""
    edge_features: tuple[str, ...]
    """Columns of the features of its edges."""
    edge_time: str
    """Column of the times of its edges; empty: they have none."""


class InspectionByType(msgspec.Struct, frozen=True, rename="camel"):
    """A graph whose types have names."""

    source: str
    digest: str
    target: str
    """The type that is classified; empty: no type has labels."""
    types: tuple[TypeFacts, ...]
    relations: tuple[RelationFacts, ...]
    labels: LabelFacts
    findings: tuple[FindingNote, ...]
    notes: tuple[str, ...]


def inspect(data: GraphData) -> Inspection:
    """Inspect a graph of one type. Reads everything once, in blocks, with little memory beside the graph."""
    graph, nodes = data.graph, data.graph.nodes
    self_loops, repeated = _count_odd_edges(graph)
    features = feature_facts(data.features)
    neighbours = degree_facts(graph)
    labels = _label_facts(data)
    reversed_share = _reversed_share(graph)
    return Inspection(
        source=data.source,
        digest=data.digest,
        nodes=nodes,
        node_ids=NodeIdKind.POSITIONS if data.ids is None else data.ids.kind,
        first_ids=[*_first_ids(data.target)],
        edges=graph.edges,
        edge_rules=data.edge_rules,
        edge_features=_edge_features(data.relations[0]),
        edge_time=_edge_time(data.relations[0]),
        self_loops=self_loops,
        repeated_edges=repeated,
        reversed_share=reversed_share,
        neighbours=neighbours,
        features=features,
        feature_columns=_taken_columns(data.target),
        labels=labels,
        findings=_noted(data),
        notes=(
            *_notes(nodes, graph.edges, neighbours, reversed_share, features, labels.classes, data.splits),
            *_note_on_scope(graph, data.splits),
            *suspicious_columns(data),
        ),
    )


def inspect_by_type(data: GraphData) -> InspectionByType:
    """Inspect a graph type by type, and relation by relation."""
    labels, types = _label_facts(data), tuple(_type_facts(data, kind) for kind in data.types)
    return InspectionByType(
        source=data.source,
        digest=data.digest,
        target=data.target.name if data.classes else "",
        types=types,
        relations=tuple(map(_relation_facts, data.relations)),
        labels=labels,
        findings=_noted(data),
        notes=(*_notes_by_type(types, data), *_split_notes(labels.classes, data.splits)) if data.classes else (),
    )


def _type_facts(data: GraphData, kind: NodeType) -> TypeFacts:
    reads = np.zeros(kind.nodes, dtype=bool)
    for relation in data.read_by(kind.name):
        reads |= np.diff(relation.lists.indptr) > 0
    return TypeFacts(
        name=kind.name,
        nodes=kind.nodes,
        node_ids=NodeIdKind.POSITIONS if kind.ids is None else kind.ids.kind,
        first_ids=tuple(f"{kind.name}/{one}" for one in _first_ids(kind)),
        isolated=int((~reads).sum()),
        features=None if kind.features is None else feature_facts(kind.features),
        feature_columns=_taken_columns(kind),
    )


def _relation_facts(relation: Relation) -> RelationFacts:
    lists = relation.lists
    return RelationFacts(
        relation.source, relation.name, relation.target, lists.edges, relation.reverse_of, relation.both_ways,
        relation.merges, degree_facts(lists), _edge_features(relation), _edge_time(relation),
    )  # fmt: skip


def _edge_features(relation: Relation) -> tuple[str, ...]:
    return () if relation.payload is None else relation.payload.columns


def _edge_time(relation: Relation) -> str:
    return "" if relation.payload is None else relation.payload.time_column


def _first_ids(kind: NodeType) -> Sequence[int | str]:
    shown = min(_SHOWN_IDS, kind.nodes)
    return range(shown) if kind.ids is None else kind.ids.shown(0, shown)


def _taken_columns(kind: NodeType) -> tuple[TakenColumn, ...]:
    return tuple(TakenColumn(column.name, column.width) for column in kind.feature_columns)


def _count_classless(data: GraphData) -> int:
    has_class = data.labels.any(axis=1) if data.multi_label else data.labels >= 0
    return int((~has_class).sum())


def _noted(data: GraphData) -> tuple[FindingNote, ...]:
    return tuple(FindingNote(finding.what, finding.count, finding.example) for finding in data.findings)


def _count_odd_edges(graph: Graph) -> tuple[int, int]:
    """Count self-loops, and entries that a row repeats."""
    self_loops = repeated = 0
    for start, end in row_blocks(graph.indptr, _BLOCK_EDGES):
        bounds = np.asarray(graph.indptr[start : end + 1])
        sources = np.asarray(graph.indices[bounds[0] : bounds[-1]], dtype=np.int64)
        targets = np.repeat(np.arange(start, end), np.diff(bounds))
        self_loops += int((sources == targets).sum())
        keys = np.sort(targets * graph.nodes + sources)
        repeated += int((keys[1:] == keys[:-1]).sum())
    return self_loops, repeated


def inductive_share(graph: Graph, splits: Splits) -> float:
    """Share of the edges that inductive training sees: those between two training nodes."""
    is_training = np.zeros(graph.nodes, dtype=bool)
    is_training[splits.train] = True
    seen = 0
    for start, end in row_blocks(graph.indptr, _BLOCK_EDGES):
        bounds = np.asarray(graph.indptr[start : end + 1])
        sources = is_training[graph.indices[bounds[0] : bounds[-1]]]
        seen += int((sources & np.repeat(is_training[start:end], np.diff(bounds))).sum())
    return seen / max(graph.edges, 1)


def degree_facts(graph: Graph) -> DegreeFacts:
    degrees = np.diff(graph.indptr)
    if not len(degrees):
        return DegreeFacts(0, 0.0, 0.0, 0.0, 0, ())
    edges = [0, 1]
    while edges[-1] <= degrees.max():
        edges.append(edges[-1] * 4)
    found, _ = np.histogram(degrees, bins=edges)
    return DegreeFacts(
        isolated=int((degrees == 0).sum()),
        median=float(np.median(degrees)),
        mean=float(degrees.mean()),
        p99=float(np.percentile(degrees, 99)),
        highest=int(degrees.max()),
        histogram=tuple(zip(edges[:-1], found.tolist(), strict=True)),
    )


def _reversed_share(graph: Graph) -> float:
    if not graph.edges:
        return 1.0
    draw = np.random.default_rng(0)
    probed = draw.integers(0, graph.edges, min(graph.edges, _PROBED_EDGES))
    targets = np.searchsorted(graph.indptr, probed, side="right") - 1
    sources = graph.indices[probed]
    order = np.argsort(sources, kind="stable")
    distinct, begins = np.unique(sources[order], return_index=True)
    probes = np.split(targets[order], begins[1:])
    found = seen = scanned = 0
    # Each source's row once, in random order, so that the rows that are scanned are a sample of all.
    for place in draw.permutation(len(distinct)):
        source, wanted = distinct[place], probes[place]
        row = graph.indices[graph.indptr[source] : graph.indptr[source + 1]]
        if len(wanted) == 1:
            found += bool((row == wanted[0]).any())
        else:
            found += int(np.isin(wanted, row[np.isin(row, wanted)]).sum())
        seen += len(wanted)
        scanned += len(row)
        if scanned > _SCANNED_EDGES:
            break
    return found / seen


def feature_facts(features: Features) -> FeatureFacts:
    rows, columns = features.shape
    total, squares = np.zeros(columns), np.zeros(columns)
    low, high = np.full(columns, np.inf), np.full(columns, -np.inf)
    nonzero = 0
    for start in range(0, rows, _BLOCK_ROWS):
        if isinstance(features, np.ndarray):
            block = features[start : start + _BLOCK_ROWS]
            nonzero += int(np.count_nonzero(block))
            total += block.sum(axis=0, dtype=np.float64)
            squares += np.einsum("ij,ij->j", block, block, dtype=np.float64)
            low, high = np.minimum(low, block.min(axis=0)), np.maximum(high, block.max(axis=0))
        else:
            part = features[start : start + _BLOCK_ROWS].astype(np.float64)
            nonzero += part.count_nonzero()
            total += np.asarray(part.sum(axis=0)).ravel()
            squares += np.asarray(part.power(2).sum(axis=0)).ravel()
            low = np.minimum(low, part.min(axis=0).toarray().ravel())
            high = np.maximum(high, part.max(axis=0).toarray().ravel())
    varies = high > low
    deviations = np.sqrt(np.maximum(squares / max(1, rows) - (total / max(1, rows)) ** 2, 0.0))[varies]
    return FeatureFacts(
        columns=columns,
        is_sparse=not isinstance(features, np.ndarray),
        nonzero_share=nonzero / max(1, rows * columns),
        lowest=float(low.min()),
        highest=float(high.max()),
        constant_columns=int(columns - varies.sum()),
        smallest_deviation=float(deviations.min()) if len(deviations) else 0.0,
        largest_deviation=float(deviations.max()) if len(deviations) else 0.0,
    )


def told_flat(found: Inspection | InspectionByType) -> dict[str, Any]:
    """The inspection as JSON has it: one object, with the members of `labels` among its own."""
    told: dict[str, Any] = {}
    for name, value in msgspec.to_builtins(found).items():
        told.update(value if name == "labels" else {name: value})
    return told


def _label_facts(data: GraphData) -> LabelFacts:
    splits = data.splits
    return LabelFacts(
        multi_label=data.multi_label,
        classes=_class_counts(data),
        classless_nodes=_count_classless(data),
        training_nodes=len(splits.train),
        validation_nodes=len(splits.validation),
        test_nodes=len(splits.test),
    )


def _class_counts(data: GraphData) -> tuple[ClassCount, ...]:
    def counts(labels: np.ndarray) -> list[int]:
        if labels.ndim == 2:
            found: list[int] = labels.sum(axis=0, dtype=np.int64).tolist()
        else:
            found = np.bincount(labels[labels >= 0], minlength=len(data.classes)).tolist()
        return found

    return tuple(map(ClassCount, data.classes, counts(data.labels), counts(data.labels[data.splits.train])))


def _note_on_scope(graph: Graph, splits: Splits) -> Iterator[str]:
    if graph.edges and len(splits.train) and (share := inductive_share(graph, splits)) < FEW_EDGES_SHARE:
        yield (
            f"Inductive training would see {share:.1%} of the edges, those between training nodes. --try measures "
            "whether scope Transductive is better here."
        )


def _notes(
    nodes: int,
    edges: int,
    neighbours: DegreeFacts,
    reversed_share: float,
    features: FeatureFacts,
    classes: tuple[ClassCount, ...],
    splits: Splits,
) -> Iterator[str]:
    if not edges:
        yield "There are no edges: every node is classified by its own features."
    elif neighbours.isolated > _MANY_ISOLATED * nodes:
        one_way = f": {1 - reversed_share:.0%} of the edges go one way only, and direction Undirected adds the other"
        yield (
            f"{neighbours.isolated / nodes:.0%} of the nodes read no neighbour and are classified by their own features"
            f"{one_way * (reversed_share < 0.9)}."
        )
    if features.constant_columns:
        yield f"{features.constant_columns:,} of {features.columns:,} feature columns have one value everywhere."
    if not features.is_sparse and features.largest_deviation > _UNEVEN_SCALES * features.smallest_deviation > 0:
        yield (
            f"Columns differ in scale: deviations go from {features.smallest_deviation:.3g} to "
            f"{features.largest_deviation:.3g}. Normalization Standardize, the default here, evens them out."
        )
    yield from _split_notes(classes, splits)


def _notes_by_type(types: tuple[TypeFacts, ...], data: GraphData) -> Iterator[str]:
    target = types[0]
    if target.isolated > _MANY_ISOLATED * target.nodes:
        yield (
            f"{target.isolated / target.nodes:.0%} of the nodes of type {target.name} read no neighbour and are "
            "classified by their own row."
        )
    if target.features is None:
        yield f"Nodes of type {target.name} have no features: those that training does not see have learnt nothing."
    for kind in types[1:]:
        if not any(relation.source == kind.name for relation in data.relations):
            yield f"No relation reads nodes of type {kind.name}: they tell nothing about others."
        if kind.features is not None and kind.features.constant_columns:
            constant = f"{kind.features.constant_columns:,} of {kind.features.columns:,} feature columns"
            yield f"{constant} of type {kind.name} have one value everywhere."


def _split_notes(classes: tuple[ClassCount, ...], splits: Splits) -> Iterator[str]:
    """Notes on what is trained on and measured with."""
    untaught = [str(entry.label) for entry in classes if entry.nodes and not entry.training_nodes]
    if untaught:
        shown = ", ".join(untaught[:5]) + " …" * (len(untaught) > 5)
        yield f"No training node has class {shown}: it will not be predicted."
    for name, split in (("validation", splits.validation), ("test", splits.test)):
        if 0 < len(split) < _FEW_NODES:
            points = 100 / len(split) ** 0.5
            yield f"Only {len(split)} {name} nodes: their accuracy is known to about {points:.0f} points."
    if not len(splits.test):
        yield "There are no test nodes: nothing will tell whether validation accuracies hold elsewhere."
