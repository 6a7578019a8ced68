"""A graph of the user's own, as a table of nodes and one of edges: what columns mean, and what becomes of oddities."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from gnnserve_api.files.edges import Direction, Duplicates, SelfLoops
from gnnserve_api.spec.fields import ApiModel
from gnnserve_api.spec.paths import TablePath
from gnnserve_api.spec.rules import rule

Column = Annotated[str, Field(min_length=1, max_length=253)]


class MissingFeature(StrEnum):
    REFUSE = "Refuse"
    """An error that names the first one."""
    ZERO = "Zero"
    """0 instead."""
    MEAN = "Mean"
    """The mean of what the column has."""


class NodeColumns(ApiModel):
    """Meaning of the columns of a table of nodes."""

    uri: TablePath
    """Path of the table of nodes: a file, or a folder of files, read in the order of names."""
    id: Column = "id"
    """Column of the nodes' ids: integers or texts, each once. Requests use them."""
    label: Column | None = None
    """Column of the nodes' class: integers or texts, and nothing where the class is unknown. Absent: the classes are in
    `labels`, or this table has none."""
    labels: Annotated[tuple[Column, ...], Field(max_length=1000)] = ()
    """Columns of 0 and 1, one per class, where a node may have several classes. Empty: the class is in `label`, or this
    table has none."""
    features: Annotated[tuple[Column, ...], Field(max_length=10_000)] = ()
    """Columns of features: numbers, true and false, or lists of numbers that all have one length. A name that no column
    has may be a pattern, in which `*` stands for any text and `?` for one character. Empty: every such column that has
    no other use."""
    exclude_features: Annotated[tuple[Column, ...], Field(max_length=10_000)] = ()
    """Columns that are no features, by name or pattern: `[year, "embedding_*"]`. Empty: no column is left out."""
    split: Column | None = None
    """Column of the nodes' split: train, validation (or val, valid) or test; a node with anything else is in none.
    Absent: the labelled nodes are split 60/20/20 by a fixed permutation."""
    missing: MissingFeature = MissingFeature.REFUSE
    """Treatment of a feature that is missing or not a number."""


class NodeTable(NodeColumns):
    _one_kind_of_label = rule(
        "has(self.label) != (has(self.labels) && size(self.labels) > 0)",
        "exactly one of label and labels must be given",
    )


class DanglingEdge(StrEnum):
    REFUSE = "Refuse"
    """An error that names the first one."""
    DROP = "Drop"
    """The edge is left out, and counted."""


class EdgeTable(ApiModel):
    uri: TablePath
    """Path of the table of edges: a file, or a folder of files, read in the order of names."""
    source: Column = "source"
    """Column of the node where an edge begins: an id of the node table."""
    target: Column = "target"
    """Column of the node where an edge ends: an id of the node table."""
    direction: Direction = Direction.UNDIRECTED
    """Direction of messages along an edge."""
    duplicates: Duplicates = Duplicates.MERGE
    """Treatment of several edges between the same two nodes."""
    self_loops: SelfLoops = SelfLoops.KEEP
    """Treatment of edges from a node to itself."""
    dangling: DanglingEdge = DanglingEdge.REFUSE
    """Treatment of edges with an end that is missing, or that the node table does not have."""
    features: Annotated[tuple[Column, ...], Field(min_length=1, max_length=1000)] | None = None
    """Columns of numbers that are features of an edge, which requests and changes then give too. Absent: edges have no
    features."""
    time: Column | None = None
    """Column of the time of an edge: integers, or in Parquet timestamps, as microseconds since 1970 (UTC). Absent:
    edges have no time."""


Delimiter = Annotated[str, Field(min_length=1, max_length=1)]


class CsvNodeTable(NodeTable):
    delimiter: Delimiter | None = None
    """Single character between the values of this table. Absent: the source's `delimiter`."""


class CsvEdgeTable(EdgeTable):
    delimiter: Delimiter | None = None
    """Single character between the values of this table. Absent: the source's `delimiter`."""


class DecimalMark(StrEnum):
    POINT = "."
    """`1.5` is one and a half."""
    COMMA = ","
    """`1,5` is one and a half, and `1.5` is a text."""


class ParquetSource(ApiModel):
    """A graph in Parquet files: one table of nodes, one of edges."""

    nodes: NodeTable
    """Table of nodes, with a row per node."""
    edges: EdgeTable
    """Table of edges, with a row per edge."""


class CsvSource(ApiModel):
    """A graph in CSV files with a header line, compressed or not: one table of nodes, one of edges."""

    nodes: CsvNodeTable
    """Table of nodes, with a row per node."""
    edges: CsvEdgeTable
    """Table of edges, with a row per edge."""
    delimiter: Delimiter = ","
    """Single character between the values of a table; a tab is written "\\t"."""
    decimal: DecimalMark = DecimalMark.POINT
    """Mark before the fraction of a number. Where commas are also between values, numbers with a decimal comma are in
    quotation marks."""
