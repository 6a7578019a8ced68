"""Tables of nodes and edges as users write them: the same columns as Parquet or CSV, and what the manifest says of
them."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from gnnserve_api.spec.graph import GraphSource
from gnnserve_api.spec.tables import CsvEdgeTable, CsvNodeTable, CsvSource, EdgeTable, NodeTable, ParquetSource
from gnnserve_worker.graph.sources.load import load_source
from gnnserve_worker.graph.store import GraphData
from gnnserve_worker.progress import ProgressListener, silent

Columns = Mapping[str, Sequence[Any] | pa.Array]


def write_table(path: Path, columns: Columns) -> Path:
    """Writes the format that the suffix names. None is a missing value: nothing between two commas of a CSV."""
    if path.suffix == ".parquet":
        pq.write_table(pa.table(dict(columns)), path)
    else:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            values = [column.to_pylist() if isinstance(column, pa.Array) else column for column in columns.values()]
            writer.writerows(zip(*values, strict=True))
    return path


def nodes_of(ids: Sequence[Any]) -> dict[str, Sequence[Any]]:
    """Two classes, two features, and at least two nodes in every split of five."""
    count = len(ids)
    return {
        "id": ids,
        "kind": [("left", "right")[row % 2] for row in range(count)],
        "age": [float(row) for row in range(count)],
        "weight": [0.5 * row for row in range(count)],
    }


def edges_of(pairs: Sequence[tuple[Any, Any]]) -> dict[str, Sequence[Any]]:
    return {"source": [source for source, _ in pairs], "target": [target for _, target in pairs]}


def table_source(
    nodes: Path, edges: Path, node_options: Mapping[str, Any] | None = None,
    edge_options: Mapping[str, Any] | None = None, **options: Any,
) -> GraphSource:  # fmt: skip
    """Parquet or CSV, as the name of the nodes' file or folder has it."""
    given = {"label": "kind"} if not node_options or "labels" not in node_options else {}
    node_table = {"uri": nodes.as_uri(), **given, **(node_options or {})}
    edge_table = {"uri": edges.as_uri(), **(edge_options or {})}
    if "parquet" in nodes.name:
        return GraphSource(parquet=ParquetSource(nodes=NodeTable(**node_table), edges=EdgeTable(**edge_table)))
    return GraphSource(csv=CsvSource(nodes=CsvNodeTable(**node_table), edges=CsvEdgeTable(**edge_table), **options))


def import_tables(
    folder: Path, suffix: str, nodes: Columns, edges: Columns, node_options: Mapping[str, Any] | None = None,
    edge_options: Mapping[str, Any] | None = None, progress: ProgressListener = silent,
) -> GraphData:  # fmt: skip
    source = table_source(
        write_table(folder / f"nodes{suffix}", nodes), write_table(folder / f"edges{suffix}", edges),
        node_options, edge_options,
    )  # fmt: skip
    return load_source(source, Path("unused"), progress)
