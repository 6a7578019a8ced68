"""What is kept of how rows are made, for nodes that the graph does not have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from gnnserve_api.graph_schema import TypeRows
from gnnserve_api.repository import RowSource, SourceColumn, VariantManifest
from gnnserve_api.spec.graph import Normalization
from gnnserve_worker.generation.families.family import FamilyPlan, PlannedTable
from gnnserve_worker.generation.families.relation_tables import States
from gnnserve_worker.generation.features import Normalized
from gnnserve_worker.generation.tensors import Tensors
from gnnserve_worker.generation.training_set import TrainingSet
from gnnserve_worker.graph.store import GraphData, NodeType
from gnnserve_worker.models.relational import RelationalLayer, default_key, layer_tensors, moment_key
from gnnserve_worker.repository.staged import StagedRevision


def moments(normalized: Normalized) -> Tensors:
    if normalized.mean is None or normalized.deviation is None:
        return {}
    return {"mean": normalized.mean, "deviation": normalized.deviation}


def write_row_source(
    graph: GraphData,
    normalized: Normalized,
    plans: Sequence[FamilyPlan],
    variants: Sequence[VariantManifest],
    staged: StagedRevision,
) -> RowSource:
    """Write what is needed to make rows of the kept tables from features of later nodes."""
    tensors = moments(normalized) | _products_of(plans, variants)
    return RowSource(
        columns=tuple(_source_columns(graph.types)),
        normalization=normalized.method,
        tensors=staged.write_row_source(tensors),
    )


def _products_of(plans: Sequence[FamilyPlan], variants: Sequence[VariantManifest]) -> Tensors:
    """What the kept tables of products were made by."""
    tensors: dict[str, np.ndarray] = {}
    kept = {table for variant in variants for table in variant.tables}
    for table in (table for plan in plans for table in plan.tables if table.name in kept):
        if isinstance(table, PlannedTable) and table.made_by is not None:
            tensors |= {table.made_by.prefix + key: tensor for key, tensor in table.made_by.tensors.items()}
    return tensors


def write_type_row_source(
    graph: GraphData,
    scaled: Sequence[Normalized | None],
    plans: Sequence[FamilyPlan],
    variants: Sequence[VariantManifest],
    staged: StagedRevision,
) -> RowSource:
    """Write what features of each type were scaled by, of tables that have these features, and what products of them
    were made by. `scaled`: by type; None: it has none."""
    tensors = _products_of(plans, variants)
    for place, one in enumerate(scaled):
        if one is not None:
            tensors |= {moment_key(place, name): moment for name, moment in moments(one).items()}
    return RowSource(
        tuple(_source_columns(graph.types)),
        Normalization.DISABLED,
        staged.write_row_source(tensors),
        tuple(
            TypeRows(0, None) if one is None else TypeRows(len(kind.feature_columns), one.method)
            for one, kind in zip(scaled, graph.types, strict=True)
        ),
    )


def _source_columns(types: Sequence[NodeType]) -> Iterator[SourceColumn]:
    """Columns of the source that features of these types are made of, type after type."""
    for kind in types:
        for column in kind.feature_columns:
            yield SourceColumn(column.name, column.width, column.fill)


def write_relation_row_source(
    subject: TrainingSet, states: States, first: RelationalLayer, staged: StagedRevision
) -> RowSource:
    """Write what is needed to make rows of new nodes of each type: how features were scaled, the mean of the embeddings
    of types that have none, and the first layer."""
    tensors = layer_tensors(0, first)
    kinds = []
    for place, (scaled, kind) in enumerate(zip(subject.features, subject.data.types, strict=True)):
        if scaled is None:
            tensors[default_key(place)] = states[place].mean(axis=0, dtype=np.float64).astype(np.float32)
            kinds.append(TypeRows(0, None))
            continue
        tensors |= {moment_key(place, name): moment for name, moment in moments(scaled).items()}
        kinds.append(TypeRows(len(kind.feature_columns), scaled.method))
    columns = tuple(_source_columns(subject.data.types))
    return RowSource(columns, Normalization.DISABLED, staged.write_row_source(tensors), tuple(kinds))
