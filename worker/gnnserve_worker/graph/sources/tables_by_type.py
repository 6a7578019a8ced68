"""Graphs of several types from tables of the user's own: one of nodes for each type, one of edges for each relation."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from gnnserve_api.errors import InputError
from gnnserve_api.files.edges import Direction, EdgeRules
from gnnserve_api.spec.heterogeneous import CsvByType, HeterogeneousSource, ParquetByType, RelationEdgeTable
from gnnserve_worker.graph.sources.assembly import FIELD, GivenRelation, GivenType, assemble
from gnnserve_worker.graph.sources.table_edges import (
    EdgeEndColumn,
    EndPairs,
    payload_columns,
    read_ends,
    unread_columns,
)
from gnnserve_worker.graph.sources.table_files import SourceTable
from gnnserve_worker.graph.sources.table_formats import TableOptions, file_digests, format_of
from gnnserve_worker.graph.sources.table_ids import NodeOrder
from gnnserve_worker.graph.sources.table_nodes import read_nodes
from gnnserve_worker.graph.store import Finding, GraphData, NodeType
from gnnserve_worker.parallel import thread_count
from gnnserve_worker.progress import ProgressListener


def identity(given: ParquetByType | CsvByType) -> str:
    """Identity of the files' content and of every option, independent of the files' location."""
    tables: list[tuple[str, TableOptions]] = [(f"nodes[{place}]", table) for place, table in enumerate(given.nodes)]
    tables += [(f"edges[{place}]", table) for place, table in enumerate(given.edges)]
    without_uris = {part: {"__all__": {"uri"}} for part in ("nodes", "edges")}
    options = given.model_dump_json(exclude=without_uris, exclude_defaults=True)
    return "\n".join([options, *file_digests(format_of(FIELD, given), tables)])


def load(
    source: HeterogeneousSource,
    given: ParquetByType | CsvByType,
    digest: str,
    progress: ProgressListener,
    *,
    needs_labels: bool = True,
) -> GraphData:
    pa.set_cpu_count(thread_count())
    tables, orders = format_of(FIELD, given), dict[str, NodeOrder]()
    types: list[GivenType] = []
    findings: list[Finding] = []
    for place, table in enumerate(given.nodes):
        where = f"{tables.field}.nodes[{place}]"
        if table.type in orders:
            raise InputError(f"{where}.type", f"is {table.type!r} again", "give every type one table, or a folder")
        order, data = read_nodes(
            tables.open(where, table), table, progress, needs_features=bool(table.features),
            learns_labels=needs_labels and source.target in {None, table.type},
        )  # fmt: skip
        orders[table.type] = order
        kind = NodeType(table.type, order.nodes, data.features, data.feature_columns, order.ids)
        types.append(GivenType(kind, data.labelled, where))
        findings += [Finding(f"{one.what} ({table.type})", one.count, one.example) for one in data.findings]
    relations = []
    for place, edges in enumerate(given.edges):
        where = f"{tables.field}.edges[{place}]"
        relation, found = _read_relation(tables.open(where, edges), edges, orders, progress)
        relations.append(relation)
        findings += found
    return assemble(source, digest, types, relations, findings, needs_labels=needs_labels)


def _read_relation(
    table: SourceTable, options: RelationEdgeTable, orders: Mapping[str, NodeOrder], progress: ProgressListener
) -> tuple[GivenRelation, list[Finding]]:
    for option, name in (("sourceType", options.source_type), ("targetType", options.target_type)):
        if name not in orders:
            raise InputError(
                f"{table.field}.{option}", f"is {name!r}, which no table of nodes has; types are {', '.join(orders)}",
                "correct the name, or add the nodes of that type",
            )  # fmt: skip
    source = EdgeEndColumn("source", options.source, orders[options.source_type], f"id of type {options.source_type!r}")
    target = EdgeEndColumn("target", options.target, orders[options.target_type], f"id of type {options.target_type!r}")
    pairs = EndPairs(source.order.nodes, target.order.nodes)
    payload = payload_columns(table, source, target, options)
    dropped = read_ends(table, source, target, options.dangling, pairs.add, progress, payload)
    relation = GivenRelation(
        options.source_type, options.relation, options.target_type, *pairs.joined(), table.field,
        (f"{table.field}.source", f"{table.field}.target"), EdgeRules(Direction.DIRECTED, options.duplicates),
        unread=unread_columns(table, source, target, payload), payload=payload.joined(),
    )  # fmt: skip
    findings = []
    if dropped is not None:
        what = f"edges dropped, because an end is no node ({relation.key})"
        findings.append(Finding(what, pairs.dangling, dropped))
    return relation, findings
