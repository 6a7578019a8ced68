"""User-supplied graphs: a table of nodes and a table of edges, in Parquet or CSV.

Both are read once, in batches. Nodes are kept as arrays; an edge takes 8 bytes, the positions of its ends
(`graph/edges.py`), so that a graph may have many more edges than fit into memory as a table.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from gnnserve_api.classes import Classes
from gnnserve_api.edges import EdgeRules
from gnnserve_api.errors import InputError
from gnnserve_api.spec.tables import CsvSource, DanglingEdge, EdgeTable, NodeTable, ParquetSource
from gnnserve_worker.graph.edges import EdgeList
from gnnserve_worker.graph.sources.checks import check_node_count
from gnnserve_worker.graph.sources.files import digest_of, file_path
from gnnserve_worker.graph.sources.table_choice import chosen_columns, is_pattern
from gnnserve_worker.graph.sources.table_columns import shortened
from gnnserve_worker.graph.sources.table_csv import CSV_SUFFIXES, CsvTable
from gnnserve_worker.graph.sources.table_features import feature_columns
from gnnserve_worker.graph.sources.table_files import RowPlaces, SourceTable, table_paths
from gnnserve_worker.graph.sources.table_ids import EndColumns, IdColumn, NodeOrder
from gnnserve_worker.graph.sources.table_labels import LabelColumn, LabelColumns, SplitColumn
from gnnserve_worker.graph.sources.table_parquet import PARQUET_SUFFIXES, ParquetTable
from gnnserve_worker.graph.store import FeatureColumn, Features, Finding, Graph, GraphData, Splits
from gnnserve_worker.parallel import map_parallel, thread_count
from gnnserve_worker.progress import Progress, ProgressListener

_BATCH_ROWS = 1 << 18
_BATCH_VALUES = 1 << 22
"""Values in a batch of nodes: 16 MiB of features."""


def identity(source: ParquetSource | CsvSource) -> str:
    """Identity of the files' content and of every option, independent of the files' location."""
    suffixes = PARQUET_SUFFIXES if isinstance(source, ParquetSource) else CSV_SUFFIXES
    files: list[tuple[str, str, Path]] = []
    for name, table in (("nodes", source.nodes), ("edges", source.edges)):
        is_folder = file_path(table.uri).is_dir()
        field = f"{_field(source)}.{name}"
        paths = table_paths(field, table.uri, suffixes)
        files += [(f"{name}/{path.name if is_folder else ''}", f"{field}.uri", path) for path in paths]
    digests = map_parallel(lambda each: digest_of(*files[each][1:]), len(files))
    options = source.model_dump_json(exclude={"nodes": {"uri"}, "edges": {"uri"}}, exclude_defaults=True)
    return "\n".join(
        [type(source).__name__, options]
        + [f"{name} {digest}" for (name, *_), digest in zip(files, digests, strict=True)]
    )


def load(source: ParquetSource | CsvSource, digest: str, progress: ProgressListener) -> GraphData:
    """Load the graph. Raises InputError that names the file, the row, the column and the value."""
    pa.set_cpu_count(thread_count())
    nodes, edges = _tables(source)
    order, data = _read_nodes(nodes, source.nodes, progress)
    graph, edge_findings = _read_edges(edges, source.edges, order, progress)
    return GraphData(
        source=f"{source.nodes.uri} and {source.edges.uri}",
        digest=digest,
        graph=graph,
        features=data.features,
        feature_columns=data.feature_columns,
        labels=data.labels,
        classes=data.classes,
        splits=data.splits,
        edge_rules=EdgeRules(source.edges.direction, source.edges.duplicates, source.edges.self_loops),
        ids=order.ids,
        findings=(*data.findings, *edge_findings),
    )


@dataclass(frozen=True, slots=True)
class _NodeData:
    """What the node table gives; fields as in `GraphData`."""

    features: Features
    feature_columns: tuple[FeatureColumn, ...]
    labels: np.ndarray
    classes: Classes
    splits: Splits
    findings: list[Finding]


def _read_nodes(table: SourceTable, options: NodeTable, progress: ProgressListener) -> tuple[NodeOrder, _NodeData]:
    used = _check_columns(table, options)
    wanted = chosen_columns(table, options, used)
    places = RowPlaces(table)
    ids = IdColumn(table, options.id, places)
    labels = (
        LabelColumn(table, options.label, places)
        if options.label is not None
        else LabelColumns(table, options.labels, places)
    )
    split = SplitColumn(table, options.split)
    features = feature_columns(table, options, wanted, places)
    names = [*used, *features.names]
    for rows in table.read(names, _batch_rows(features.width), progress, "read nodes"):
        first_row = places.rows
        places.add(rows)
        ids.add(rows, first_row)
        labels.add(rows, first_row)
        split.add(rows)
        features.add(rows, first_row)
    if places.rows == 0:
        raise InputError(str(table.paths[0]), "has no rows, expected one per node", "write the nodes")
    check_node_count(f"{table.field}.uri", places.rows)
    order = ids.to_order()
    class_indices, classes, known, label_findings = labels.to_labels(order.positions)
    splits, split_findings = split.to_splits(known, order.positions)
    matrix, feature_findings = features.to_matrix(order.positions)
    findings = [*label_findings, *split_findings, *feature_findings]
    if order.positions is not None:
        findings.insert(0, Finding("rows put in the order of their ids, which are 0 to nodes - 1", order.nodes))
    if unknown := int((~known).sum()):
        findings.append(Finding("nodes without a label: served, but in no split", unknown))
    return order, _NodeData(matrix, features.taken(), class_indices, classes, splits, findings)


def _check_columns(table: SourceTable, options: NodeTable) -> list[str]:
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


def _read_edges(
    table: SourceTable, options: EdgeTable, order: NodeOrder, progress: ProgressListener
) -> tuple[Graph, list[Finding]]:
    ends = EndColumns(table, order)
    columns = [options.source, options.target]
    for option, name in zip(("source", "target"), columns, strict=True):
        table.require(option, name)
        ends.check_type(f"{table.field}.{option}: column {name!r} of {table.paths[0]}", table.columns[name])
    if options.source == options.target:
        raise InputError(
            f"{table.field}.target", f"names the column {options.target!r}, which source names already",
            "name the column of the other end",
        )  # fmt: skip
    edges = EdgeList(order.nodes, options.direction, options.duplicates, options.self_loops)
    first_dropped: _End | None = None
    for rows in table.read(columns, _BATCH_ROWS, progress, "read edges"):
        for name in columns:  # of every file: the first one's types are not those of the others
            ends.check_type(f"{rows.path}: column {name!r}", rows.batch.column(name).type)
        sources, targets = (ends.positions(rows.batch.column(name)) for name in columns)
        dangling = edges.add(sources, targets)
        if dangling >= 0 and first_dropped is None:
            is_source = not 0 <= sources[dangling] < order.nodes
            column = options.source if is_source else options.target
            first_dropped = _End(rows.path, rows.first + dangling, column, rows.batch.column(column)[dangling].as_py())
            if options.dangling is DanglingEdge.REFUSE:
                raise table.error(
                    first_dropped.path, first_dropped.row, column, first_dropped.problem,
                    f"correct it, or set {table.field}.dangling to Drop",
                )  # fmt: skip
    progress(Progress("sort edges", 0, 1))
    graph, counts = edges.to_graph()
    progress(Progress("sort edges", 1, 1, f"{graph.edges:,} edges"))
    findings = list(counts.findings())
    if first_dropped is not None:
        place = table.place(first_dropped.path, first_dropped.row)
        example = f"{place}, column {first_dropped.column!r}: {first_dropped.problem}"
        findings.append(Finding("edges dropped, because an end is no node", counts.dangling, example))
    return graph, findings


@dataclass(frozen=True, slots=True)
class _End:
    """An end of an edge that is not a node."""

    path: Path
    row: int
    column: str
    value: object

    @property
    def problem(self) -> str:
        return "is missing" if self.value is None else f"is {shortened(self.value)}, which is no id of the node table"


def _tables(source: ParquetSource | CsvSource) -> tuple[SourceTable, SourceTable]:
    nodes, edges = f"{_field(source)}.nodes", f"{_field(source)}.edges"
    if isinstance(source, CsvSource):
        return (
            CsvTable(nodes, source.nodes.uri, _delimiter(source, nodes, source.nodes.delimiter), source.decimal),
            CsvTable(edges, source.edges.uri, _delimiter(source, edges, source.edges.delimiter), source.decimal),
        )
    return ParquetTable(nodes, source.nodes.uri), ParquetTable(edges, source.edges.uri)


def _delimiter(source: CsvSource, table: str, own: str | None) -> str:
    field, delimiter = (f"{_field(source)}.delimiter", source.delimiter) if own is None else (f"{table}.delimiter", own)
    if not delimiter.isascii() or delimiter in '"\r\n':
        raise InputError(
            field, f"is {delimiter!r}, expected an ASCII character that is neither a quotation mark nor the end of a "
            "line", "name the character between values",
        )  # fmt: skip
    return delimiter


def _field(source: ParquetSource | CsvSource) -> str:
    return f"spec.graph.source.{'parquet' if isinstance(source, ParquetSource) else 'csv'}"


def _batch_rows(width: int) -> int:
    return max(1, min(_BATCH_ROWS, _BATCH_VALUES // max(width, 1)))
