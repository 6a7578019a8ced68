"""The files of a repository: `graph.json` and `revision.json`.

Both name every file beside them with its size and SHA-256, and both are written last: a folder without one is
unfinished work. Each carries a checksum of itself. A reader refuses a newer `schemaVersion` than it knows. Version 2
gave revisions several tables; graphs are as in version 1.
"""

from __future__ import annotations

import hashlib
from typing import Literal, TypeVar

import msgspec

from gnnserve_api.profile import Profile
from gnnserve_api.variants import Storage

SCHEMA_VERSION = 2


class FileEntry(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    bytes: int
    sha256: str


class GraphManifest(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """`graphs/<digest>/graph.json`."""

    schema_version: int
    digest: str
    source: str
    """Where it came from, for people: `builtin Digits` or the file's URI."""
    nodes: int
    edges: int
    features: int
    classes: tuple[int, ...]
    """The graph's own label of each class, ascending: score column i belongs to `classes[i]`."""
    multi_label: bool
    train_nodes: int
    validation_nodes: int
    test_nodes: int
    files: dict[str, FileEntry]
    checksum: str = ""
    """`checksum_of` the rest."""


class RowsManifest(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """One matrix with a row per node, as `graph/table.py` stores it."""

    values: str
    """Path inside the revision: .npy [nodes, columns and padding], float32, the bits of float16 as int16, those of
    bfloat16 as uint16, or int8."""
    scales: str | None
    """Path of float32 [nodes], for int8: a row's numbers are its integers times its scale."""


class TableManifest(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """What variants gather from."""

    kind: Literal["features", "projected"]
    """The rank-ordered features, of which a variant reads a prefix; or X·W of the first layer."""
    storage: Storage
    columns: int
    """Without the padding."""
    rows: RowsManifest
    """What is read of neighbours, and of the node itself where `own` is absent."""
    own: RowsManifest | None = None
    """What is read of the node itself: X·W_own of a projected GraphSAGE."""


class NetworkManifest(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """What is needed to rebuild every variant's network from its weights."""

    architecture: str
    hidden: int
    fanouts: tuple[int, ...]
    """The seed's draw first (PyG's `num_neighbors`); all -1: full neighbourhood."""
    classes: int


class RankingManifest(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    method: str
    settings: dict[str, float]
    """Every number that shaped the ranking (paper A leaves Lasso's open, so they are recorded)."""
    columns: tuple[int, ...]
    """Original column ids, most important first: column j of the table is `columns[j]` of the source."""


class RevisionManifest(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """`revisions/<revision>/revision.json`: its presence is the commit."""

    schema_version: int
    revision: str
    recipe: str
    """Digest of the part of the spec that generation depends on."""
    graph: str
    """Digest of the graph: `graphs/<digest>`."""
    checkpoint: str | None
    """SHA-256 of the file that the weights came from; None: they were trained."""
    created_at: str
    """UTC, RFC 3339."""
    generator: str
    """`gnnserve <version>`, and the versions of torch and torch_geometric where they trained."""
    scope: str
    network: NetworkManifest
    ranking: RankingManifest
    tables: dict[str, TableManifest]
    """By name: `features-float32`, `projected-int8`."""
    profile: Profile
    files: dict[str, FileEntry]
    checksum: str = ""
    """`checksum_of` the rest."""


AnyManifest = TypeVar("AnyManifest", GraphManifest, RevisionManifest)


def checksum_of(manifest: GraphManifest | RevisionManifest) -> str:
    """SHA-256 of the manifest without its checksum: a hand's edit shows, even one that is valid JSON."""
    return hashlib.sha256(msgspec.json.encode(msgspec.structs.replace(manifest, checksum=""))).hexdigest()


def sealed(manifest: AnyManifest) -> AnyManifest:
    """With its checksum, and otherwise as a reader will see it: JSON turns the 1 of a float field into 1.0."""
    read_back: AnyManifest = msgspec.json.decode(msgspec.json.encode(manifest), type=type(manifest))
    return msgspec.structs.replace(read_back, checksum=checksum_of(read_back))
