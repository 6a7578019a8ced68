"""A graph of several types of nodes and relations: where its parts are, and which type is asked about."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from gnnserve_api.files.edges import Duplicates, EdgeColumns
from gnnserve_api.files.graph_schema import TYPE_PATTERN
from gnnserve_api.spec.fields import ApiModel, text
from gnnserve_api.spec.paths import FolderPath, HeteroDataPath, TablePath
from gnnserve_api.spec.rules import rule
from gnnserve_api.spec.tables import Column, DanglingEdge, DecimalMark, Delimiter, NodeColumns

MAX_TYPES = 64
MAX_RELATIONS = 128
TypeName = Annotated[str, text(TYPE_PATTERN, "a name of letters, digits, '_' and '-'", 63)]


class ReverseRelations(StrEnum):
    ADD = "Add"
    """Every relation between two types gets a reverse, `rev_` before its name, as torch_geometric's ToUndirected adds
    them; a relation within a type goes both ways."""
    DISABLED = "Disabled"
    """Relations as they are listed: the target reads the source, and nothing the other way round."""


class NpzFolder(ApiModel):
    """A folder of `.npz` files: `nodes_TYPE.npz` and `edges_SOURCE__RELATION__TARGET.npz`."""

    uri: FolderPath
    """Path of the folder with the files `nodes_TYPE.npz` and `edges_SOURCE__RELATION__TARGET.npz`."""
    edge_columns: EdgeColumns = EdgeColumns.IGNORE
    """Treatment of the arrays `edge_attr` (numbers, [edges] or [edges, columns]) and `edge_time` (integers)."""

    def described(self) -> str:
        """For people, in one line."""
        return str(self.uri)


class HeteroDataFile(ApiModel):
    """torch_geometric's HeteroData as a safetensors file, and beside it a JSON file of the same name."""

    uri: HeteroDataPath
    """Path of the safetensors file; the JSON file beside has the same name, ending in .json."""
    edge_columns: EdgeColumns = EdgeColumns.IGNORE
    """Treatment of the arrays `edge_attr` (numbers, [edges] or [edges, columns]) and `edge_time` (integers)."""

    def described(self) -> str:
        """For people, in one line."""
        return str(self.uri)


class TypeNodeTable(NodeColumns):
    type: TypeName
    """Name of the nodes' type, which stands before a slash in requests: `user/17`."""

    _one_kind_of_label = rule(
        "!has(self.label) || !has(self.labels) || size(self.labels) == 0", "only one of label and labels may be given"
    )


class RelationEdgeTable(ApiModel):
    uri: TablePath
    """Path of the table of edges: a file, or a folder of files, read in the order of names."""
    source_type: TypeName
    """Type of the nodes where edges begin, whose features are read."""
    relation: TypeName
    """Name of the relation, as in `buys` or `written_by`."""
    target_type: TypeName
    """Type of the nodes where edges end, which read the features."""
    source: Column = "source"
    """Column of the node where an edge begins: an id of the table of `sourceType`."""
    target: Column = "target"
    """Column of the node where an edge ends: an id of the table of `targetType`."""
    duplicates: Duplicates = Duplicates.MERGE
    """Treatment of several edges between the same two nodes."""
    dangling: DanglingEdge = DanglingEdge.REFUSE
    """Treatment of edges with an end that is missing, or that the node table does not have."""
    features: Annotated[tuple[Column, ...], Field(min_length=1, max_length=1000)] | None = None
    """Columns of numbers that are features of an edge, which requests and changes then give too. Absent: edges have no
    features."""
    time: Column | None = None
    """Column of the time of an edge: integers, or in Parquet timestamps, as microseconds since 1970 (UTC). Absent:
    edges have no time."""


class CsvTypeNodeTable(TypeNodeTable):
    delimiter: Delimiter | None = None
    """Single character between the values of this table. Absent: the source's `delimiter`."""


class CsvRelationEdgeTable(RelationEdgeTable):
    delimiter: Delimiter | None = None
    """Single character between the values of this table. Absent: the source's `delimiter`."""


class ParquetByType(ApiModel):
    """Parquet files: a table of nodes for each type, one of edges for each relation."""

    nodes: Annotated[tuple[TypeNodeTable, ...], Field(min_length=1, max_length=MAX_TYPES)]
    """Tables of nodes, one for each type."""
    edges: Annotated[tuple[RelationEdgeTable, ...], Field(min_length=1, max_length=MAX_RELATIONS)]
    """Tables of edges, one for each relation."""

    def described(self) -> str:
        """For people, in one line."""
        return _described(self.nodes, self.edges)


class CsvByType(ApiModel):
    """CSV files with a header line, compressed or not: a table of nodes for each type, one of edges for each
    relation."""

    nodes: Annotated[tuple[CsvTypeNodeTable, ...], Field(min_length=1, max_length=MAX_TYPES)]
    """Tables of nodes, one for each type."""
    edges: Annotated[tuple[CsvRelationEdgeTable, ...], Field(min_length=1, max_length=MAX_RELATIONS)]
    """Tables of edges, one for each relation."""
    delimiter: Delimiter = ","
    """Single character between the values of a table; a tab is written "\\t"."""
    decimal: DecimalMark = DecimalMark.POINT
    """Mark before the fraction of a number."""

    def described(self) -> str:
        """For people, in one line."""
        return _described(self.nodes, self.edges)


def _described(nodes: Sequence[TypeNodeTable], edges: Sequence[RelationEdgeTable]) -> str:
    relations = "relation" if len(edges) == 1 else "relations"
    return f"{len(nodes)} types, {nodes[0].uri} …, {len(edges)} {relations}"


HeterogeneousFiles = NpzFolder | HeteroDataFile | ParquetByType | CsvByType


class HeterogeneousSource(ApiModel):
    """A graph of several types of nodes and relations. Where it comes from: exactly one of npz, heteroData, parquet and
    csv."""

    npz: NpzFolder | None = None
    """A folder of `.npz` files, one for each type and each relation."""
    hetero_data: HeteroDataFile | None = None
    """torch_geometric's HeteroData, as safetensors and JSON."""
    parquet: ParquetByType | None = None
    """Your own tables as Parquet, one for each type and each relation."""
    csv: CsvByType | None = None
    """Your own tables as CSV, one for each type and each relation."""
    target: TypeName | None = None
    """Type whose nodes are classified. Absent: the one that has labels."""
    without_features: Annotated[tuple[TypeName, ...], Field(max_length=MAX_TYPES)] = ()
    """Types of nodes whose features are not read. Each of these nodes gets an embedding that is learned instead, as
    nodes of types get that have no features. Empty: all features are read."""
    reverse: ReverseRelations = ReverseRelations.ADD
    """Whether relations of the opposite direction are added."""

    _exactly_one = rule(
        "[has(self.npz), has(self.heteroData), has(self.parquet), has(self.csv)].filter(given, given).size() == 1",
        "exactly one of npz, heteroData, parquet and csv must be set",
    )

    def given(self) -> HeterogeneousFiles:
        """The member that is set."""
        return self._members()[0]

    def _members(self) -> list[HeterogeneousFiles]:
        members = (self.npz, self.hetero_data, self.parquet, self.csv)
        return [member for member in members if member is not None]

    def described(self) -> str:
        """For people, in one line."""
        return self.given().described()
