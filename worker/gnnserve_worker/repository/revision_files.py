"""The files of a revision that is to be opened, whether published or staged, and its arrays, tables and tensors, each
opened where it is needed. What is made of them is `opening/`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import numpy as np
import safetensors.numpy
from msgspec import UNSET

from gnnserve_api.graph_schema import GraphSchema
from gnnserve_api.repository import (
    GraphManifest,
    NetworkKind,
    RevisionManifest,
    RowsManifest,
    TableManifest,
    VariantManifest,
    types_with_rows,
)
from gnnserve_api.spec.graph import Normalization
from gnnserve_worker.repository import checks
from gnnserve_worker.repository.room import GraphRoom
from gnnserve_worker.repository.watched import WatchedFiles
from gnnserve_worker.tables.formats import FORMATS
from gnnserve_worker.tables.growing import read_only
from gnnserve_worker.tables.table import NO_SCALES, Rows, Table, WritableRows


@dataclass(frozen=True, slots=True)
class RowRecipe:
    """What rows of tables are made by, for nodes that the graph does not have."""

    normalization: Normalization
    tensors: Mapping[str, np.ndarray]
    """Moments of the columns, and what projected tables were made by."""
    columns: np.ndarray
    """Source columns of those tables that do not name theirs: int64, in the order of the ranking."""


class RowLayout(StrEnum):
    """How tables have rows of nodes."""

    BY_NODE = "ByNode"
    """a row of each node, where nodes have one list each"""
    BY_RELATION = "ByRelation"
    """a row of a node for each relation that reads it, and one for itself"""
    BY_TYPE = "ByType"
    """a row of each node, where nodes have lists by relation: what programs read"""

    @classmethod
    def of_nodes(cls, schema: GraphSchema) -> RowLayout:
        """How tables have one row of each node: where all nodes have one list, neighbours are drawn from it alone."""
        return cls.BY_NODE if schema.slots == (1,) else cls.BY_TYPE


@dataclass(frozen=True, slots=True)
class RevisionFiles:
    """What to open, whether published or staged."""

    graph_folder: Path
    graph: GraphManifest
    folder: Path
    tables: Mapping[str, TableManifest]
    variants: Sequence[VariantManifest]
    manifest: RevisionManifest | None
    rows: RowRecipe | None = None
    """What rows of a staged revision are made by; a published one has it in its manifest and its files."""
    verified: checks.VerifiedFiles = field(default_factory=checks.VerifiedFiles)
    """Files that were verified; empty while it is staged, when no other process reaches them."""
    room: GraphRoom | None = None
    """What changes may need; None: it is opened to stay as it is."""
    watched: WatchedFiles | None = None
    """What watches its files; None: no other process reaches them, since it is staged."""

    @property
    def node_room(self) -> int:
        """Nodes that tables have rows for."""
        return self.graph.nodes + (0 if self.room is None else self.room.nodes)

    @property
    def has_rows_by_relation(self) -> bool:
        """Whether nodes have a row in its tables for each relation that reads them."""
        return any(table.by_relation for table in self.tables.values())

    @property
    def row_layout(self) -> RowLayout:
        if self.has_rows_by_relation:
            return RowLayout.BY_RELATION
        # Layers over several lists need rows by relation, which these tables do not say they have.
        has_program = any(variant.network.kind is NetworkKind.PROGRAM for variant in self.variants)
        return RowLayout.of_nodes(self.graph.schema) if has_program else RowLayout.BY_NODE

    @property
    def makes_rows_by_type(self) -> bool:
        """Whether it keeps what rows of new nodes of each type are made by."""
        source = None if self.manifest is None else self.manifest.row_source
        has_products = source is not None and source.tensors is not None
        return source is not None and bool(source.types) and (has_products or not self.has_rows_by_relation)

    @property
    def remedy(self) -> str:
        return checks.remedy(self.folder)

    @property
    def graph_remedy(self) -> str:
        """Names both folders, because generation starts only when the revision is gone, and keeps a graph that is
        there."""
        return checks.remedy(self.graph_folder, self.folder)


def open_graph_array(revision: RevisionFiles, name: str, dtype: type[np.generic], *shape: int) -> np.ndarray:
    path = revision.graph_folder / name
    return checks.open_array(path, np.dtype(dtype), shape, revision.graph_remedy, revision.verified.mapped.get(path))


def open_table(revision: RevisionFiles, table: TableManifest) -> Table:
    schema = revision.graph.schema
    counts = (
        (schema.first_nodes[types_with_rows(table.kind, schema)],) * 2
        if table.by_relation is UNSET
        else (table.by_relation.rows, table.by_relation.own_rows)
    )
    rows = _open_rows(revision, table, table.rows, counts[0])
    own = rows if table.own is None else _open_rows(revision, table, table.own, counts[1])
    return Table(table.kind, table.columns, rows, own)


def _open_rows(revision: RevisionFiles, table: TableManifest, rows: RowsManifest, count: int) -> Rows:
    def mapped(name: str, dtype: np.dtype, *shape: int) -> np.ndarray:
        path = revision.folder / name
        if revision.room is not None:
            return checks.open_growing(path, dtype, shape, revision.node_room, revision.remedy)
        return checks.open_array(path, dtype, shape, revision.remedy, revision.verified.mapped.get(path))

    table_format = FORMATS[table.storage]
    values = mapped(rows.values, table_format.dtype, count, table_format.padded_columns(table.columns))
    scales = NO_SCALES if rows.scales is None else mapped(rows.scales, np.dtype(np.float32), count)
    if revision.room is None:
        return Rows(table_format, values, scales)
    # Read-only like mapped files, so that the kernels that read them are the same.
    return Rows(table_format, read_only(values), read_only(scales), WritableRows(values, scales))


def read_tensors(revision: RevisionFiles, path: Path) -> dict[str, np.ndarray]:
    content = revision.verified.read.get(path)
    return safetensors.numpy.load_file(path) if content is None else safetensors.numpy.load(content)
