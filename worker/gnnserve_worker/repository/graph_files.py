"""The arrays of a graph's folder, from a graph in memory and back.

Features are kept of graphs that a log of changes is part of alone: what else there is can be imported again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from msgspec import UNSET, UnsetType

from gnnserve_api.errors import DamagedError
from gnnserve_api.repository import (
    CHANGED_GRAPH_SCHEMA_VERSION,
    GRAPH_SCHEMA_VERSION,
    FileEntry,
    GraphManifest,
    GraphVersion,
    NodeIdKind,
    SourceColumn,
)
from gnnserve_worker.graph.ids import NO_OFFSETS, NodeIds, slot_count
from gnnserve_worker.graph.store import FeatureColumn, Features, Graph, GraphData, Splits
from gnnserve_worker.repository import checks, files, paths
from gnnserve_worker.repository.positions import positions_of


def arrays_of(data: GraphData) -> dict[str, np.ndarray]:
    """All but its features, by file."""
    labels_dtype = np.uint8 if data.multi_label else np.int64
    return {
        paths.INDPTR: np.asarray(data.graph.indptr, dtype=np.int64),
        paths.INDICES: np.asarray(data.graph.indices, dtype=np.int32),
        paths.LABELS: np.asarray(data.labels, dtype=labels_dtype),
        paths.TRAIN: np.asarray(data.splits.train, dtype=np.int64),
        paths.VALIDATION: np.asarray(data.splits.validation, dtype=np.int64),
        paths.TEST: np.asarray(data.splits.test, dtype=np.int64),
        **id_arrays(data.ids),
    }


def id_arrays(ids: NodeIds | None) -> dict[str, np.ndarray]:
    if ids is None:
        return {}
    arrays = {paths.IDS: ids.values, paths.ID_OFFSETS: ids.offsets, paths.ID_SLOTS: ids.slots}
    return {name: arrays[name] for name in paths.ID_FILES[ids.kind]}


def feature_arrays(features: Features) -> dict[str, np.ndarray]:
    """What is kept of features, by file: sparse ones stay sparse, since `Auto` scales these in a way of their own."""
    if isinstance(features, np.ndarray):
        return {paths.FEATURES: np.asarray(features, np.float32)}
    parts = (np.asarray(features.data, np.float32), features.indices, features.indptr)
    return dict(zip(paths.SPARSE_FEATURES, parts, strict=True))


def write_graph(folder: Path, data: GraphData) -> GraphManifest:
    """Write all that is kept of it; the manifest, which is not sealed yet, names it."""
    arrays = arrays_of(data)
    features = {} if data.made_of is None else feature_arrays(data.features)
    files.require_free(folder, sum(array.nbytes for array in (*arrays.values(), *features.values())))
    version = write_version(folder, data, features)
    return GraphManifest(
        schema_version=GRAPH_SCHEMA_VERSION if version is UNSET else CHANGED_GRAPH_SCHEMA_VERSION,
        digest=data.digest,
        source=data.source,
        nodes=data.graph.nodes,
        edges=data.graph.edges,
        features=data.features.shape[1],
        node_ids=NodeIdKind.POSITIONS if data.ids is None else data.ids.kind,
        classes=data.classes,
        multi_label=data.multi_label,
        train_nodes=len(data.splits.train),
        validation_nodes=len(data.splits.validation),
        test_nodes=len(data.splits.test),
        files={name: files.write_array(folder / name, array) for name, array in arrays.items()},
        version=version,
    )


def write_version(folder: Path, data: GraphData, features: Mapping[str, np.ndarray]) -> GraphVersion | UnsetType:
    """Write what `feature_arrays` gave. UNSET: it is the graph of its source."""
    if data.made_of is None:
        return UNSET
    return GraphVersion(
        made_of=data.made_of,
        columns=described_columns(data.feature_columns),
        edge_rules=data.edge_rules,
        files={name: files.write_array(folder / name, array) for name, array in features.items()},
    )


def described_columns(columns: Sequence[FeatureColumn]) -> tuple[SourceColumn, ...]:
    return tuple(SourceColumn(column.name, column.width, column.fill) for column in columns)


def columns_of(described: Sequence[SourceColumn]) -> tuple[FeatureColumn, ...]:
    return tuple(FeatureColumn(column.name, column.width, column.fill) for column in described)


@dataclass(frozen=True, slots=True)
class VerifiedVersion:
    """The folder of a graph that a log of changes is part of, verified by checksum."""

    folder: Path
    manifest: GraphManifest
    version: GraphVersion
    verified: checks.VerifiedFiles

    @property
    def remedy(self) -> str:
        return checks.remedy(self.folder)

    def mapped(self, name: str, dtype: type[np.generic], *shape: int) -> np.ndarray:
        path = self.folder / name
        return checks.open_array(path, np.dtype(dtype), shape, self.remedy, self.verified.mapped.get(path))

    def labels(self, nodes: int) -> np.ndarray:
        """Those of so many nodes, which are the ones that are classified."""
        if self.manifest.multi_label:
            return self.mapped(paths.LABELS, np.uint8, nodes, len(self.manifest.classes))
        return self.mapped(paths.LABELS, np.int64, nodes)

    def splits(self) -> Splits:
        return Splits(
            train=self.mapped(paths.TRAIN, np.int64, self.manifest.train_nodes),
            validation=self.mapped(paths.VALIDATION, np.int64, self.manifest.validation_nodes),
            test=self.mapped(paths.TEST, np.int64, self.manifest.test_nodes),
        )


def verify_version(folder: Path) -> VerifiedVersion:
    """DamagedError: it is not what was written."""
    manifest = checks.read_graph_manifest(folder)
    if (version := manifest.version) is UNSET:
        raise ValueError(f"{folder} holds a graph without its features")
    entries: dict[str, FileEntry] = {**manifest.files, **version.files}
    listed = checks.ListedFiles(folder, entries, checks.remedy(folder))
    return VerifiedVersion(folder, manifest, version, checks.verify_files([listed], positions_of(folder, manifest)))


def read_graph(found: VerifiedVersion) -> GraphData:
    """The graph, its arrays mapped. DamagedError: arrays do not fit the manifest."""
    manifest, version, mapped = found.manifest, found.version, found.mapped
    if version.edge_rules is None:
        raise ValueError(f"{found.folder} holds a graph of several types")
    return GraphData(
        source=manifest.source,
        digest=manifest.digest,
        graph=Graph(
            mapped(paths.INDPTR, np.int64, manifest.nodes + 1),
            mapped(paths.INDICES, np.int32, manifest.edges),
        ),
        features=read_features(found, manifest.nodes, manifest.features),
        labels=found.labels(manifest.nodes),
        classes=manifest.classes,
        splits=found.splits(),
        edge_rules=version.edge_rules,
        ids=open_ids(manifest, mapped),
        feature_columns=columns_of(version.columns),
        made_of=version.made_of,
    )


def open_ids(manifest: GraphManifest, mapped: Callable[..., np.ndarray]) -> NodeIds | None:
    """`mapped` opens an array by file, dtype and shape. None: nodes are called by position."""
    return open_ids_of(manifest.node_ids, manifest.nodes, mapped)


def open_ids_of(kind: NodeIdKind, nodes: int, mapped: Callable[..., np.ndarray]) -> NodeIds | None:
    """The same of so many nodes."""
    if kind is NodeIdKind.POSITIONS:
        return None
    slots = mapped(paths.ID_SLOTS, np.int32, slot_count(nodes))
    if kind is NodeIdKind.INTEGERS:
        return NodeIds(kind, mapped(paths.IDS, np.int64, nodes), NO_OFFSETS, slots)
    offsets = mapped(paths.ID_OFFSETS, np.int64, nodes + 1)
    return NodeIds(kind, mapped(paths.IDS, np.uint8, int(offsets[-1])), offsets, slots)


def read_features(found: VerifiedVersion, nodes: int, columns: int, path_of: Callable[[str], str] = str) -> Features:
    """Features of so many nodes, mapped: float32 [nodes, columns], or CSR where they were sparse. `path_of`: the path
    of one of their files in the folder. DamagedError: arrays do not fit."""
    if path_of(paths.FEATURES) in found.version.files:
        return found.mapped(path_of(paths.FEATURES), np.float32, nodes, columns)
    # Few graphs have sparse features, and scipy takes a moment.
    import scipy.sparse as sp  # noqa: PLC0415

    try:
        parts = [found.verified.mapped[found.folder / path_of(name)] for name in paths.SPARSE_FEATURES]
        return sp.csr_array(tuple(parts), shape=(nodes, columns))
    except (KeyError, ValueError) as error:
        path = found.folder / path_of(paths.FEATURE_DATA)
        raise DamagedError(path, f"is no matrix of {nodes:,} by {columns:,}: {error}", found.remedy) from error
