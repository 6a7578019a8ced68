"""Manifests beside embeddings: of those exported for other programs, and of the index of a revision."""

from __future__ import annotations

from enum import StrEnum

import msgspec
from msgspec import UNSET, UnsetType

from gnnserve_api.files.repository import FileEntry, NodeIdKind, SourceColumn

EMBEDDINGS_SCHEMA_VERSION = 1


class Neighbours(StrEnum):
    """The neighbours that an embedding is computed from."""

    ALL = "all"
    """All of them, layer after layer: the same vectors whenever they are computed."""
    SAMPLED = "sampled"
    """As many as the variant draws when it serves, by one seed."""


class EmbeddingsFormat(StrEnum):
    """A form of exported embeddings, by the end of the file's name."""

    PARQUET = "parquet"
    """A row per node: id, embedding, revision, offset."""
    NPY = "npy"
    """A numpy array, and the ids of its rows in a file beside it."""


class WrittenFile(msgspec.Struct, frozen=True, rename="camel"):
    bytes: int
    sha256: str


class EmbeddingsManifest(msgspec.Struct, frozen=True, rename="camel"):
    """The file `NAME.json`, which is written last."""

    schema_version: int
    written_by: str
    service: str
    revision: str
    graph: str
    """Digest of the graph that the embeddings were computed over."""
    offset: int | None
    """How far the graph has a log of changes; None: it is the graph of its source."""
    variant: str
    neighbours: Neighbours
    seed: int | None
    """What neighbours were drawn by; None: all were read."""
    nodes: int
    """Rows."""
    columns: int
    """Length of a vector."""
    node_ids: NodeIdKind
    """`Positions`: the graph numbers its nodes from 0."""
    format: EmbeddingsFormat
    files: dict[str, WrittenFile]
    type: str | UnsetType = UNSET
    """Type of the nodes; absent: the graph has one type, or nodes of all types were written."""


INDEX_SCHEMA_VERSION = 1
RECALL_AT = 10
"""k of the recall that an index is built for."""


class IndexKind(StrEnum):
    """How the nearest vectors are found."""

    EXACT = "Exact"
    """Every vector is compared."""
    APPROXIMATE = "Approximate"
    """Vectors lie in lists by their nearest of some centres, and the lists nearest to the query are compared."""


class IndexMetric(StrEnum):
    """Metric by which nodes of an index are the nearest."""

    COSINE = "Cosine"
    """The cosine of the angle between two embeddings."""
    SCORE = "Score"
    """The score of the pair, by a decoder that is a product of the two embeddings."""


class IndexManifest(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """`index/index.json` in the folder of a revision: its presence is the commit of the index beside it."""

    schema_version: int
    written_by: str
    revision: str
    graph: str
    """Digest of the graph that the embeddings were computed over, all of its neighbours read."""
    variant: str
    """The variant whose embeddings these are. Those of other networks are not comparable."""
    weights: str
    """SHA-256 of the file with the variant's weights: variants with the same are comparable."""
    offset: int | None
    """Offset of the log of changes that the graph was made at; None: it is the graph of its source."""
    built_at: str
    """UTC, RFC 3339."""
    nodes: int
    columns: int
    kind: IndexKind
    file: str
    """Name of the file with the vectors, each of length 1, in the order of the graph's nodes."""
    entry: FileEntry
    recall: float
    """Share of the `RECALL_AT` nearest nodes of a sample of nodes that the index finds; 1 where it is exact."""
    recall_queries: int
    """Nodes in that sample; 0 where nothing is approximate."""
    lists: int = 0
    """Lists that vectors lie in, where it is approximate."""
    probed: int = 0
    """Lists that are compared for a query, the fewest that reach the recall that is wanted."""
    build_seconds: float = 0.0
    """Time from computed embeddings to the index."""
    library: str = ""
    """Name and version of the library that made it; empty: none."""
    metric: IndexMetric = IndexMetric.COSINE
    """By `Score`, vectors are embeddings of whatever length."""
    type: str = ""
    """Type of its nodes; empty in a graph of one type."""
    first: int = 0
    """Position of its first node in the graph; the others follow it."""


COLUMNS_SCHEMA_VERSION = 1


class ColumnsManifest(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """`columns/columns.json` in the folder of a revision: columns of the nodes of an index, which recommendations are
    filtered by. Its presence is their commit."""

    schema_version: int
    written_by: str
    revision: str
    nodes: int
    features: int
    """Numbers of a node; 0: nodes have none."""
    columns: tuple[SourceColumn, ...] = ()
    """In the order of the features; empty if the source does not name them."""
    files: dict[str, FileEntry] = {}
    """Features as in the source, in the order of the graph's nodes: dense as one array [features, nodes], or the three
    of a sparse matrix in columns."""
    problem: str = ""
    """Why they could not be read; empty: they were."""


class IndexState(msgspec.Struct, frozen=True, rename="camel"):
    """The index that recommendations were found in, as answers tell it."""

    revision: str
    """Revision that its embeddings are of."""
    variant: str
    """Variant that computed them."""
    kind: IndexKind
    """`Exact`: every node is compared; `Approximate`: those of the nearest lists."""
    nodes: int
    """How many nodes it has."""
    built_at: str
    """When it was made."""
    recall: float
    """Share of the ten nearest nodes that it finds."""
    offset: int | UnsetType | None = UNSET
    """Offset of the log of changes that it was made at; absent where the graph does not change, as are the next
    three."""
    followed_offset: int | UnsetType = UNSET
    """Offset up to which it is known which nodes changes have reached since."""
    renewed: int | UnsetType = UNSET
    """Nodes whose embeddings were computed since: they are compared beside the index."""
    pending: int | UnsetType = UNSET
    """Nodes that changes have reached since, and whose embeddings are not computed anew yet: of new ones nothing is
    found, others are found by the embedding that they had. 0: the answer is as of `followedOffset`."""
    metric: IndexMetric = IndexMetric.COSINE
    """What its nodes are the nearest by."""
    type: str | UnsetType = UNSET
    """Type of its nodes; absent in a graph of one type."""
