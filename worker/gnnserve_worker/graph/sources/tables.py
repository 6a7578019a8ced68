"""User-supplied graphs: a table of nodes and a table of edges, in Parquet or CSV.

Both are read once, in batches. Nodes are kept as arrays; an edge takes 8 bytes, the positions of its ends
(`graph/edges.py`), so that a graph may have many more edges than fit into memory as a table.
"""

from __future__ import annotations

import pyarrow as pa

from gnnserve_api.files.edges import EdgeRules
from gnnserve_api.spec.tables import CsvSource, EdgeTable, ParquetSource
from gnnserve_worker.graph.edges import EdgeList
from gnnserve_worker.graph.payload import EdgePayload, without_unused_rows
from gnnserve_worker.graph.sources.checks import unread_edge_data
from gnnserve_worker.graph.sources.table_edges import EdgeEndColumn, payload_columns, read_ends, unread_columns
from gnnserve_worker.graph.sources.table_files import SourceTable
from gnnserve_worker.graph.sources.table_formats import file_digests, format_of
from gnnserve_worker.graph.sources.table_ids import NodeOrder
from gnnserve_worker.graph.sources.table_nodes import read_nodes
from gnnserve_worker.graph.store import Finding, Graph, GraphData
from gnnserve_worker.parallel import thread_count
from gnnserve_worker.progress import Progress, ProgressListener

_FIELD = "spec.graph.source"
_NAMES = {ParquetSource: "ParquetSource", CsvSource: "CsvSource"}
"""In digests of graphs: another one would have every such graph imported and learnt anew."""


def identity(source: ParquetSource | CsvSource) -> str:
    """Identity of the files' content and of every option, independent of the files' location."""
    given = format_of(_FIELD, source)
    options = source.model_dump_json(exclude={"nodes": {"uri"}, "edges": {"uri"}}, exclude_defaults=True)
    digests = file_digests(given, [("nodes", source.nodes), ("edges", source.edges)])
    return "\n".join([_NAMES[type(source)], options, *digests])


def load(
    source: ParquetSource | CsvSource, digest: str, progress: ProgressListener, *, learns_labels: bool = True
) -> GraphData:
    """Load the graph. Raises InputError that names the file, the row, the column and the value."""
    pa.set_cpu_count(thread_count())
    given = format_of(_FIELD, source)
    nodes, edges = (given.open(f"{given.field}.nodes", source.nodes), given.open(f"{given.field}.edges", source.edges))
    order, data = read_nodes(nodes, source.nodes, progress, learns_labels=learns_labels)
    if data.features is None or data.labelled is None:
        raise ValueError("a table of nodes without features or labels")
    graph, payload, edge_findings = _read_edges(edges, source.edges, order, progress)
    return GraphData.of_one_type(
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
        payload=payload,
    )


def _read_edges(
    table: SourceTable, options: EdgeTable, order: NodeOrder, progress: ProgressListener
) -> tuple[Graph, EdgePayload | None, list[Finding]]:
    source, target = EdgeEndColumn("source", options.source, order), EdgeEndColumn("target", options.target, order)
    columns = payload_columns(table, source, target, options)
    rules = EdgeRules(options.direction, options.duplicates, options.self_loops)
    edges = EdgeList(order.nodes, rules.direction, rules.duplicates, rules.self_loops, has_payload=bool(columns.names))
    dropped = read_ends(table, source, target, options.dangling, edges.add, progress, columns)
    progress(Progress("sort edges", 0, 1))
    payload = columns.joined()
    graph, counts = edges.to_graph(payload)
    if payload is not None:
        payload, (rows,) = without_unused_rows(payload, (graph.payload_rows,))
        graph = Graph(graph.indptr, graph.indices, payload_rows=rows)
    progress(Progress("sort edges", 1, 1, f"{graph.edges:,} edges"))
    findings = [*counts.findings(), *unread_edge_data(unread_columns(table, source, target, columns))]
    if dropped is not None:
        findings.append(Finding("edges dropped, because an end is no node", counts.dangling, dropped))
    return graph, payload, findings
