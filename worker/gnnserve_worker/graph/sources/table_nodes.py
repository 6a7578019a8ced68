"""The table of nodes of one type: ids, features, labels and split, read once in batches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gnnserve_api.errors import InputError
from gnnserve_api.files.graph_schema import Classes
from gnnserve_api.spec.tables import NodeColumns
from gnnserve_worker.graph.sources.checks import check_node_count
from gnnserve_worker.graph.sources.table_features import chosen_columns, feature_columns, is_pattern
from gnnserve_worker.graph.sources.table_files import RowFiles, SourceTable
from gnnserve_worker.graph.sources.table_ids import IdColumn, NodeOrder
from gnnserve_worker.graph.sources.table_labels import LabelColumn, LabelColumns, SplitColumn
from gnnserve_worker.graph.store import FeatureColumn, Features, Finding, Splits
from gnnserve_worker.progress import ProgressListener

_BATCH_ROWS = 1 << 18
_BATCH_VALUES = 1 << 22
"""Values in a batch of nodes: 16 MiB of features."""


@dataclass(frozen=True, slots=True)
class LabelledNodes:
    """Labels and splits; fields as in `GraphData`."""

    labels: np.ndarray
    classes: Classes
    splits: Splits


@dataclass(frozen=True, slots=True)
class NodeData:
    """Data of the node table; fields as in `GraphData`."""

    features: Features | None
    """None: the table has no column of features, and need not have any."""
    feature_columns: tuple[FeatureColumn, ...]
    labelled: LabelledNodes | None
    """None: the manifest names no column of labels."""
    findings: list[Finding]


def read_nodes(
    table: SourceTable,
    options: NodeColumns,
    progress: ProgressListener,
    *,
    needs_features: bool = True,
    learns_labels: bool = True,
) -> tuple[NodeOrder, NodeData]:
    """Read the table. Raises InputError that names the file, the row, the column and the value."""
    used = _check_columns(table, options)
    wanted = chosen_columns(table, options, used)
    places = RowFiles(table)
    ids = IdColumn(table, options.id, places)
    labels: LabelColumn | LabelColumns | None = None
    if options.label is not None:
        labels = LabelColumn(table, options.label, places, are_learnt=learns_labels)
    elif options.labels:
        labels = LabelColumns(table, options.labels, places)
    split = SplitColumn(table, options.split)
    features = feature_columns(table, options, wanted, places)
    names = [*used, *features.names]
    for rows in table.read(names, _batch_rows(features.width), progress, "read nodes"):
        first_row = places.rows
        places.add(rows)
        ids.add(rows, first_row)
        if labels is not None:
            labels.add(rows, first_row)
        split.add(rows)
        features.add(rows, first_row)
    if places.rows == 0:
        raise InputError(str(table.paths[0]), "has no rows, expected one per node", "write the nodes")
    check_node_count(f"{table.field}.uri", places.rows)
    order = ids.to_order()
    findings: list[Finding] = []
    if order.positions is not None:
        findings.append(Finding("rows put in the order of their ids, which are 0 to nodes - 1", order.nodes))
    labelled: LabelledNodes | None = None
    unknown = 0
    if labels is not None:
        class_indices, classes, known, label_findings = labels.to_labels(order.positions)
        splits, split_findings = split.to_splits(known, order.positions)
        labelled = LabelledNodes(class_indices, classes, splits)
        findings += [*label_findings, *split_findings]
        unknown = int((~known).sum())
    matrix: Features | None = None
    if needs_features or features.finds_any():
        matrix, feature_findings = features.to_matrix(order.positions)
        findings += feature_findings
    if unknown:
        findings.append(Finding("nodes without a label: served, but in no split", unknown))
    return order, NodeData(matrix, features.taken() if matrix is not None else (), labelled, findings)


def _check_columns(table: SourceTable, options: NodeColumns) -> list[str]:
    """Check that every named column exists and has one use; `chosen_columns` checks patterns. Returns the columns that
    are not features."""
    named = [("id", options.id)]
    named += [("label", options.label)] if options.label is not None else []
    named += [(f"labels[{place}]", name) for place, name in enumerate(options.labels)]
    named += [("split", options.split)] if options.split is not None else []
    used = [name for _, name in named]
    features = [(f"features[{place}]", name) for place, name in enumerate(options.features)]
    named += [(option, name) for option, name in features if not is_pattern(table, name)]
    first_use: dict[str, str] = {}
    for option, name in named:
        table.require(option, name)
        if name in first_use:
            raise InputError(
                f"{table.field}.{option}", f"names the column {name!r}, which {first_use[name]} names already",
                "give every column one use",
            )  # fmt: skip
        first_use[name] = option
    return used


def _batch_rows(width: int) -> int:
    return max(1, min(_BATCH_ROWS, _BATCH_VALUES // max(width, 1)))
