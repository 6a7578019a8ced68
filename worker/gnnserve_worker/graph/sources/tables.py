"""User-supplied graphs: a table of nodes and a table of edges, in Parquet or CSV.

Both are read once, in batches. Nodes are kept as arrays; an edge takes 8 bytes, the positions of its ends
(`graph/edges.py`), so that a graph may have many more edges than fit into memory as a table.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from gnnserve_api.edges import EdgeRules
from gnnserve_api.errors import InputError
from gnnserve_api.spec.tables import CsvSource, EdgeTable, ParquetSource
from gnnserve_worker.graph.edges import EdgeList
from gnnserve_worker.graph.sources.checks import unread_edge_data
from gnnserve_worker.graph.sources.files import digest_of
from gnnserve_worker.graph.sources.table_csv import CSV_SUFFIXES, CsvTable
from gnnserve_worker.graph.sources.table_edges import End, read_ends, unread_columns
from gnnserve_worker.graph.sources.table_files import SourceTable, table_paths
from gnnserve_worker.graph.sources.table_ids import NodeOrder
from gnnserve_worker.graph.sources.table_nodes import read_nodes
from gnnserve_worker.graph.sources.table_parquet import PARQUET_SUFFIXES, ParquetTable
from gnnserve_worker.graph.store import Finding, Graph, GraphData
from gnnserve_worker.parallel import map_parallel, thread_count
from gnnserve_worker.progress import Progress, ProgressListener


def identity(source: ParquetSource | CsvSource) -> str:
    """Identity of the files' content and of every option, independent of the files' location."""
    suffixes = PARQUET_SUFFIXES if isinstance(source, ParquetSource) else CSV_SUFFIXES
    files: list[tuple[str, str, Path]] = []
    for name, table in (("nodes", source.nodes), ("edges", source.edges)):
        is_folder = table.uri.path.is_dir()
        field = f"{_field(source)}.{name}"
        paths = table_paths(field, table.uri.path, suffixes)
        files += [(f"{name}/{path.name if is_folder else ''}", f"{field}.uri", path) for path in paths]
    digests = map_parallel(lambda each: digest_of(*files[each][1:]), len(files))
    options = source.model_dump_json(exclude={"nodes": {"uri"}, "edges": {"uri"}}, exclude_defaults=True)
    return "\n".join(
        [type(source).__name__, options]
        + [f"{name} {digest}" for (name, *_), digest in zip(files, digests, strict=True)]
    )


def load(
    source: ParquetSource | CsvSource, digest: str, progress: ProgressListener, *, learns_labels: bool = True
) -> GraphData:
    """Load the graph. Raises InputError that names the file, the row, the column and the value."""
    pa.set_cpu_count(thread_count())
    nodes, edges = _tables(source)
    order, data = read_nodes(nodes, source.nodes, progress, learns_labels=learns_labels)
    if data.features is None or data.labelled is None:
        raise ValueError("a table of nodes without features or labels")
    graph, edge_findings = _read_edges(edges, source.edges, order, progress)
    return GraphData(
        source=f"{source.nodes.uri} and {source.edges.uri}",
        digest=digest,
        graph=graph,
        features=data.features,
        feature_columns=data.feature_columns,
        labels=data.labelled.labels,
        classes=data.labelled.classes,
        splits=data.labelled.splits,
        edge_rules=EdgeRules(source.edges.direction, source.edges.duplicates, source.edges.self_loops),
        ids=order.ids,
        findings=(*data.findings, *edge_findings),
    )


def _read_edges(
    table: SourceTable, options: EdgeTable, order: NodeOrder, progress: ProgressListener
) -> tuple[Graph, list[Finding]]:
    edges = EdgeList(order.nodes, options.direction, options.duplicates, options.self_loops)
    source, target = End("source", options.source, order), End("target", options.target, order)
    dropped = read_ends(table, source, target, options.dangling, edges.add, progress)
    progress(Progress("sort edges", 0, 1))
    graph, counts = edges.to_graph()
    progress(Progress("sort edges", 1, 1, f"{graph.edges:,} edges"))
    findings = [*counts.findings(), *unread_edge_data(unread_columns(table, source, target))]
    if dropped is not None:
        findings.append(Finding("edges dropped, because an end is no node", counts.dangling, dropped))
    return graph, findings


def _tables(source: ParquetSource | CsvSource) -> tuple[SourceTable, SourceTable]:
    nodes, edges = f"{_field(source)}.nodes", f"{_field(source)}.edges"
    if isinstance(source, CsvSource):
        return (
            CsvTable(
                nodes,
                source.nodes.uri.path,
                checked_delimiter(_field(source), source.delimiter, nodes, source.nodes.delimiter),
                source.decimal,
            ),
            CsvTable(
                edges,
                source.edges.uri.path,
                checked_delimiter(_field(source), source.delimiter, edges, source.edges.delimiter),
                source.decimal,
            ),
        )
    return ParquetTable(nodes, source.nodes.uri.path), ParquetTable(edges, source.edges.uri.path)


def checked_delimiter(source: str, of_source: str, table: str, of_table: str | None) -> str:
    """The delimiter of a table: its own, or the source's. `source` and `table` are the fields of both."""
    field, delimiter = (f"{source}.delimiter", of_source) if of_table is None else (f"{table}.delimiter", of_table)
    if not delimiter.isascii() or delimiter in '"\r\n':
        raise InputError(
            field, f"is {delimiter!r}, expected an ASCII character that is neither a quotation mark nor the end of a "
            "line", "name the character between values",
        )  # fmt: skip
    return delimiter


def _field(source: ParquetSource | CsvSource) -> str:
    return f"spec.graph.source.{'parquet' if isinstance(source, ParquetSource) else 'csv'}"
