"""What `gnnserve embeddings export` writes beside the vectors, for programs that read them elsewhere."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from gnnserve_api.repository import NodeIdKind

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
