"""Inspection of a typed graph: figures of each type and relation, and notes on what may be a mistake."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from gnnserve_api.repository import NodeIdKind
from gnnserve_worker.graph.inspection import (
    ClassCount,
    DegreeFacts,
    FeatureFacts,
    Noted,
    TakenColumn,
    class_counts,
    degree_facts,
    feature_facts,
    split_notes,
)
from gnnserve_worker.graph.typed import NodeType, Relation, TypedGraphData

_SHOWN_IDS = 3
_MANY_ISOLATED = 0.2


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


class TypedInspection(msgspec.Struct, frozen=True, rename="camel"):
    source: str
    digest: str
    target: str
    """The type that is classified; empty: no type has labels."""
    types: tuple[TypeFacts, ...]
    relations: tuple[RelationFacts, ...]
    multi_label: bool
    classes: tuple[ClassCount, ...]
    classless_nodes: int
    """Nodes of the target type whose class is unknown; where a node may have several, those that have none."""
    training_nodes: int
    validation_nodes: int
    test_nodes: int
    findings: tuple[Noted, ...]
    notes: tuple[str, ...]


def inspect_typed(data: TypedGraphData) -> TypedInspection:
    has_class = data.labels.any(axis=1) if data.multi_label else data.labels >= 0
    classes = class_counts(data.labels, data.classes, data.splits.train)
    types = tuple(_type_facts(data, kind) for kind in data.types)
    return TypedInspection(
        source=data.source,
        digest=data.digest,
        target=data.target.name if data.classes else "",
        types=types,
        relations=tuple(map(_relation_facts, data.relations)),
        multi_label=data.multi_label,
        classes=classes,
        classless_nodes=int((~has_class).sum()),
        training_nodes=len(data.splits.train),
        validation_nodes=len(data.splits.validation),
        test_nodes=len(data.splits.test),
        findings=tuple(Noted(finding.what, finding.count, finding.example) for finding in data.findings),
        notes=(*_notes(types, data), *split_notes(classes, data.splits)) if data.classes else (),
    )


def _type_facts(data: TypedGraphData, kind: NodeType) -> TypeFacts:
    reads = np.zeros(kind.nodes, dtype=bool)
    for relation in data.read_by(kind.name):
        reads |= np.diff(relation.lists.indptr) > 0
    shown = min(_SHOWN_IDS, kind.nodes)
    first = range(shown) if kind.ids is None else kind.ids.shown(0, shown)
    return TypeFacts(
        name=kind.name,
        nodes=kind.nodes,
        node_ids=NodeIdKind.POSITIONS if kind.ids is None else kind.ids.kind,
        first_ids=tuple(f"{kind.name}/{one}" for one in first),
        isolated=int((~reads).sum()),
        features=None if kind.features is None else feature_facts(kind.features),
        feature_columns=tuple(TakenColumn(column.name, column.width) for column in kind.feature_columns),
    )


def _relation_facts(relation: Relation) -> RelationFacts:
    lists = relation.lists
    return RelationFacts(
        relation.source, relation.name, relation.target, lists.edges, relation.reverse_of, relation.both_ways,
        relation.merges, degree_facts(lists),
    )  # fmt: skip


def _notes(types: tuple[TypeFacts, ...], data: TypedGraphData) -> Iterator[str]:
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
