"""Paths of the files of one service:

    <root>/.downloads/           files of published graphs, as they were fetched
    <root>/<namespace>/<service>/
      .lock                      held while a revision is generated
      history.json               revisions in the order in which they answered, the last first, where their number is
                                 limited
      graphs/<digest>/           graph.json, indptr.npy, indices.npy, labels.npy, train.npy, validation.npy, test.npy,
                                 where nodes have ids of their own ids.npy, id_slots.npy and, for texts, id_offsets.npy;
                                 of a graph that a log of changes is part of features.npy, or feature_data.npy,
                                 feature_indices.npy and feature_indptr.npy; of several types types/<type>/ has the
                                 ids and features of all types but the first, and all/ the ids of all nodes where links
                                 are scored; where edges have features or times payload_rows.npy, and
                                 payload/<relation>/features.npy and times.npy by the relation's place
      damaged/<time>/            revisions set aside to be generated again; never read
      trained/<recipe>-<graph>/<network>/  network.json, weights.safetensors: of a generation that is not done
      revisions/<revision>/      revision.json, tables/<name>.npy, variants/<name>/weights.safetensors, rows.safetensors
                                 (of a program its own file, and those that have its weights, in place of weights)
      revisions/<revision>/index/  index.json, and vectors.npy or vectors.faiss: the index of its embeddings
      updates/<uid>/             log.sqlite and what SQLite keeps beside it: the log of changes of the service with that
                                 uid. updates/uid is that of servers without a cluster

This module has names only; `files.py` reads and writes. `graph.json`, `revision.json` and `network.json` are the
commits of their folders.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import MappingProxyType

from msgspec import UNSET

from gnnserve_api.files.graph_schema import GraphSchema
from gnnserve_api.files.repository import NodeIdKind
from gnnserve_api.pods.change_log import sqlite_file

DOWNLOADS = ".downloads"
"""Folder of downloads. No namespace can have this name."""

GRAPH_COMMIT = "graph.json"
REVISION_COMMIT = "revision.json"
NETWORK_COMMIT = "network.json"
NETWORK_WEIGHTS = "weights.safetensors"

INDPTR = "indptr.npy"
INDICES = "indices.npy"
PAYLOAD_ROWS = "payload_rows.npy"
LABELS = "labels.npy"
TRAIN = "train.npy"
VALIDATION = "validation.npy"
TEST = "test.npy"
GRAPH_FILES = (INDPTR, INDICES, LABELS, TRAIN, VALIDATION, TEST)
IDS = "ids.npy"
ID_OFFSETS = "id_offsets.npy"
ID_SLOTS = "id_slots.npy"
ID_FILES = {
    NodeIdKind.POSITIONS: (),
    NodeIdKind.INTEGERS: (IDS, ID_SLOTS),
    NodeIdKind.STRINGS: (IDS, ID_OFFSETS, ID_SLOTS),
}
"""The arrays of a graph's `NodeIds`."""
FEATURES = "features.npy"
FEATURE_DATA = "feature_data.npy"
FEATURE_INDICES = "feature_indices.npy"
FEATURE_INDPTR = "feature_indptr.npy"
SPARSE_FEATURES = (FEATURE_DATA, FEATURE_INDICES, FEATURE_INDPTR)
"""A CSR matrix, in the order of scipy's constructor."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_DAMAGED_FORMAT = "%Y%m%dT%H%M%S.%fZ"
_DAMAGED_NAME = re.compile(r"\d{8}T\d{6}\.\d{6}Z")


ROW_SOURCE = "rows.safetensors"
DECODER = "decoder.safetensors"


NONE_GIVEN: Mapping[str, str] = MappingProxyType({})


def weights_of(variant: str) -> str:
    return f"variants/{variant}/weights.safetensors"


def program_file_of(variant: str, name: str) -> str:
    """A file of a variant that is a program: the program itself, or one that has weights of it."""
    return f"variants/{variant}/{name}"


def rows_of(table: str) -> str:
    return f"tables/{table}.npy"


def own_rows_of(table: str) -> str:
    return f"tables/{table}.own.npy"


def scales_of(rows: str) -> str:
    return f"{rows.removesuffix('.npy')}.scales.npy"


def of_type(kind: str, name: str) -> str:
    """A file of a graph of several types that holds `name` of one of them."""
    return f"types/{kind}/{name}"


def payload_features(place: int) -> str:
    """A file of a graph that holds the features of the edges of the relation at `place`."""
    return f"payload/{place}/features.npy"


def payload_times(place: int) -> str:
    """A file of a graph that holds the times of such edges."""
    return f"payload/{place}/times.npy"


def payload_files(schema: GraphSchema) -> list[str]:
    """Files of the features and times of edges; empty: no relation has any."""
    found = [PAYLOAD_ROWS] if schema.has_payload else []
    for place, one in enumerate(schema.relations):
        if one.payload is not UNSET and schema.payload_place(place) == place:
            found += [payload_features(place), *([payload_times(place)] if one.payload.time else ())]
    return found


def of_all(name: str) -> str:
    """A file of such a graph that holds `name` of all of them."""
    return f"all/{name}"


def has_ids_of_all(files: Container[str]) -> bool:
    """Whether nodes are called by ids in one numbering of all of them, too. `files`: those of the graph's manifest."""
    return of_all(IDS) in files


@dataclass(frozen=True, slots=True)
class RevisionIdentity:
    """Digests of all that a revision is made from. Equal ones need no new generation."""

    recipe: str
    graph: str
    """Digest of the graph's content."""
    checkpoint: str | None
    """SHA-256 of the file of spec.model.checkpoint, or digest of the files of spec.model.program; None: there is
    neither."""
    given: Mapping[str, str]
    """SHA-256 of the file of each of spec.variants.given, by its name."""
    expected: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of each file of expected scores, by the weights that they are of, as `ComparedScores` names them."""
    earlier_graph: str | None = None
    """Digest of the same as an earlier gnnserve kept it, whose revisions are found too; None: it kept as much."""

    @property
    def graphs(self) -> tuple[str, ...]:
        """Digests of the graphs that its revision may be over."""
        return (self.graph,) if self.earlier_graph is None else (self.graph, self.earlier_graph)


def revision_id(
    recipe: str,
    graph_digest: str,
    checkpoint: str | None = None,
    given: Mapping[str, str] = NONE_GIVEN,
    expected: Mapping[str, str] = NONE_GIVEN,
) -> str:
    """The id of a revision: equal input gives equal ids; a changed graph, changed weights or changed expected scores
    give another one. `given`: digests of the files of given variants, by name; `expected`: those of expected scores."""
    files = [f"{name}={given[name]}" for name in sorted(given)]
    files += [f"expected {name}={expected[name]}" for name in sorted(expected)]
    parts = " ".join([recipe, graph_digest, checkpoint or "", *files])
    return hashlib.sha256(parts.encode()).hexdigest()[:12]


def version_digest(source_digest: str, log: str, offset: int, checksum: int) -> str:
    """Digest of a graph that a log of changes is part of."""
    return hashlib.sha256(f"{source_digest} {log} {offset} {checksum}".encode()).hexdigest()[:16]


def step_of(text: str) -> str:
    """The text as one step of a path: `network of seed 6` becomes `network-of-seed-6`."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text)


def is_name(text: str) -> bool:
    """Whether the text is safe as one step of a path: no separators, no `..`, not hidden."""
    return _NAME.fullmatch(text) is not None


def is_damaged_name(text: str) -> bool:
    """Whether the name has the form that `ServicePaths.damaged` makes."""
    return _DAMAGED_NAME.fullmatch(text) is not None


def is_relative(text: str) -> bool:
    """Whether the path is safe below a folder: every step is a name."""
    return all(is_name(step) for step in text.split("/"))


@dataclass(frozen=True, slots=True)
class ServicePaths:
    folder: Path
    """`<root>/<namespace>/<service>`."""

    @property
    def lock(self) -> Path:
        return self.folder / ".lock"

    @property
    def history(self) -> Path:
        return self.folder / "history.json"

    @property
    def graphs(self) -> Path:
        return self.folder / "graphs"

    @property
    def revisions(self) -> Path:
        return self.folder / "revisions"

    def damaged(self, when: datetime) -> Path:
        return self.folder / "damaged" / when.strftime(_DAMAGED_FORMAT)

    @property
    def trained(self) -> Path:
        return self.folder / "trained"

    @property
    def updates(self) -> Path:
        """The folder of logs: `gnnserve_api.pods.change_log.logs_folder` of the same service."""
        return self.folder / "updates"

    def log(self, uid: str) -> Path:
        return self.updates / sqlite_file(uid)

    def trained_for(self, recipe: str, graph_digest: str) -> Path:
        return self.trained / f"{recipe}-{graph_digest}"

    def graph(self, digest: str) -> Path:
        return self.graphs / digest

    def revision(self, revision: str) -> Path:
        return self.revisions / revision
