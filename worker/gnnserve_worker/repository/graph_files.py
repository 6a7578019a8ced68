"""The arrays of a graph's folder, from a graph in memory and back, and the checks that kernels rely on.

Lists of all nodes are one array, as `graph/relation_lists.py` has them. Labels, splits, and the ids and features
without a folder are of the type that is classified; those of the other types lie in `types/<name>/`. Features are kept
of graphs that a log of changes is part of alone: what else there is can be imported again. Features and times of edges
are kept of all graphs that have them.

Types and relations without names are not written: the files of a graph of one type are as they were before there were
several (`GraphManifest.schema` reads both).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from msgspec import UNSET, UnsetType

from gnnserve_api.errors import DamagedError
from gnnserve_api.files.edges import EdgeRules
from gnnserve_api.files.graph_schema import GraphSchema, TypeManifest, one_type
from gnnserve_api.files.repository import (
    CHANGED_GRAPH_SCHEMA_VERSION,
    GRAPH_SCHEMA_VERSION,
    PAYLOAD_SCHEMA_VERSION,
    TYPED_SCHEMA_VERSION,
    FileEntry,
    GraphManifest,
    GraphVersion,
    NodeIdKind,
    SourceColumn,
)
from gnnserve_worker.graph.ids import NO_OFFSETS, NodeIds, slot_count
from gnnserve_worker.graph.payload import EdgePayload
from gnnserve_worker.graph.relation_lists import merged_lists, merged_payload_rows, parted_lists
from gnnserve_worker.graph.store import FeatureColumn, Features, Graph, GraphData, NodeType, Relation, Splits
from gnnserve_worker.kernel_cache import kernel
from gnnserve_worker.kernels.layout import unpack_layout
from gnnserve_worker.repository import checks, files, paths
from gnnserve_worker.repository.positions import positions_of

Mapped = Callable[..., np.ndarray]
"""Opens an array of the graph's folder by file, dtype and shape."""

_ROWS_AT_ONCE = 1 << 16

# --- writing


def write_graph(folder: Path, data: GraphData) -> GraphManifest:
    """Write all that is kept of it; the manifest, which is not sealed yet, names it."""
    schema = data.schema
    arrays, features = _arrays_of(data, schema), _feature_arrays(data)
    files.require_free(folder, sum(array.nbytes for array in (*arrays.values(), *features.values())))
    for parent in sorted({(folder / name).parent for name in (*arrays, *features)} - {folder}):
        files.make_folder(parent)
    named = _named(schema)
    version = _write_version(folder, data, named, features)
    return GraphManifest(
        schema_version=_schema_version(data, schema, named),
        digest=data.digest,
        source=data.source,
        nodes=data.nodes,
        edges=data.edges,
        features=max(kind.features or 0 for kind in schema.types),
        node_ids=NodeIdKind(schema.target.node_ids),
        classes=data.classes,
        multi_label=data.multi_label,
        train_nodes=len(data.splits.train),
        validation_nodes=len(data.splits.validation),
        test_nodes=len(data.splits.test),
        files={name: files.write_array(folder / name, array) for name, array in arrays.items()},
        version=version,
        named=named,
        payload=schema.relations[0].payload if named is UNSET else UNSET,
    )


def rules_beside(data: GraphData) -> EdgeRules | None:
    """Rules of its one list of neighbours, which manifests of revisions keep. None: the graph's own has those of each
    relation."""
    return data.edge_rules if _named(data.schema) is UNSET else None


def _named(schema: GraphSchema) -> GraphSchema | UnsetType:
    """The schema as the manifest has it; UNSET: its other fields say all of it."""
    kind, relation = schema.target, schema.relations[0]
    told = one_type(
        kind.nodes, relation.edges, kind.features, kind.node_ids, relation.edge_rules, relation.payload
    )  # fmt: skip
    return UNSET if schema == told else schema


def _schema_version(data: GraphData, schema: GraphSchema, named: GraphSchema | UnsetType) -> int:
    """The lowest version that has all that is written of it, for readers of earlier releases."""
    if schema.has_payload:
        return PAYLOAD_SCHEMA_VERSION
    if named is not UNSET:
        return TYPED_SCHEMA_VERSION
    return GRAPH_SCHEMA_VERSION if data.made_of is None else CHANGED_GRAPH_SCHEMA_VERSION


def _arrays_of(data: GraphData, schema: GraphSchema) -> dict[str, np.ndarray]:
    """All but its features, by file."""
    indptr, indices = merged_lists(schema, [relation.lists for relation in data.relations])
    arrays = {
        paths.INDPTR: indptr,
        paths.INDICES: indices,
        paths.LABELS: np.asarray(data.labels, dtype=np.uint8 if data.multi_label else np.int64),
        paths.TRAIN: np.asarray(data.splits.train, dtype=np.int64),
        paths.VALIDATION: np.asarray(data.splits.validation, dtype=np.int64),
        paths.TEST: np.asarray(data.splits.test, dtype=np.int64),
    }
    for kind in data.types:
        path_of = _path_in(kind.name, data.target.name)
        arrays |= {path_of(name): array for name, array in _id_arrays(kind.ids).items()}
    arrays |= {paths.of_all(name): array for name, array in _id_arrays(data.names).items()}
    return arrays | _payload_arrays(data, schema)


def _payload_arrays(data: GraphData, schema: GraphSchema) -> dict[str, np.ndarray]:
    """Features and times of edges, by file: a relation that is the reverse of another has those of the other."""
    if not schema.has_payload:
        return {}
    arrays = {paths.PAYLOAD_ROWS: merged_payload_rows(schema, [relation.lists for relation in data.relations])}
    for place, relation in enumerate(data.relations):
        if relation.payload is None or schema.payload_place(place) != place:
            continue
        arrays[paths.payload_features(place)] = np.asarray(relation.payload.features, np.float32)
        if relation.payload.time_column:
            arrays[paths.payload_times(place)] = np.asarray(relation.payload.times, np.int64)
    return arrays


def _id_arrays(ids: NodeIds | None) -> dict[str, np.ndarray]:
    if ids is None:
        return {}
    arrays = {paths.IDS: ids.values, paths.ID_OFFSETS: ids.offsets, paths.ID_SLOTS: ids.slots}
    return {name: arrays[name] for name in paths.ID_FILES[ids.kind]}


def _path_in(kind: str, target: str) -> Callable[[str], str]:
    """Gives the path of a type's file by its name. `target`: the type that is classified."""
    return str if kind == target else partial(paths.of_type, kind)


def _feature_arrays(data: GraphData) -> dict[str, np.ndarray]:
    """What is kept of its features, by file: sparse ones stay sparse, since `Auto` scales these in a way of their
    own."""
    if data.made_of is None:
        return {}
    arrays: dict[str, np.ndarray] = {}
    for kind in data.types:
        if kind.features is not None:
            path_of = _path_in(kind.name, data.target.name)
            arrays |= {path_of(name): array for name, array in _arrays_of_features(kind.features).items()}
    return arrays


def _arrays_of_features(features: Features) -> dict[str, np.ndarray]:
    if isinstance(features, np.ndarray):
        return {paths.FEATURES: np.asarray(features, np.float32)}
    parts = (np.asarray(features.data, np.float32), features.indices, features.indptr)
    return dict(zip(paths.SPARSE_FEATURES, parts, strict=True))


def _write_version(
    folder: Path, data: GraphData, named: GraphSchema | UnsetType, features: Mapping[str, np.ndarray]
) -> GraphVersion | UnsetType:
    """Write what `_feature_arrays` gave. `named`: the schema in the manifest, which has the rules of its relations.
    UNSET: it is the graph of its source."""
    if data.made_of is None:
        return UNSET
    return GraphVersion(
        made_of=data.made_of,
        columns=tuple(
            SourceColumn(column.name, column.width, column.fill)
            for kind in data.types
            for column in kind.feature_columns
        ),
        edge_rules=data.edge_rules if named is UNSET else None,
        files={name: files.write_array(folder / name, array) for name, array in features.items()},
        type_columns=UNSET if named is UNSET else tuple(len(kind.feature_columns) for kind in data.types),
    )


# --- reading


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
        """Labels of so many nodes, which are the ones that are classified."""
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
    """The graph, its arrays mapped, but for lists of several relations. DamagedError: arrays do not fit the
    manifest."""
    manifest, version, schema = found.manifest, found.version, found.manifest.schema
    graph = open_graph(manifest, found.mapped, found.folder / paths.INDICES, found.remedy)
    ids = open_ids(manifest, found.mapped)
    counts = (len(version.columns),) if version.type_columns is UNSET else version.type_columns
    types, columns = [], list(version.columns)
    for kind, count in zip(schema.types, counts, strict=True):
        own, columns = columns[:count], columns[count:]
        features = None
        if kind.features is not None:
            features = _read_features(found, kind.nodes, kind.features, _path_in(kind.name, schema.target.name))
        types.append(NodeType(kind.name, kind.nodes, features, columns_of(own), ids[kind.name]))
    payloads = open_payloads(graph, found.mapped, found.folder, found.remedy)
    relations = tuple(
        Relation(one.source, one.name, one.target, lists, one.reverse_of, one.edge_rules, payload=payload)
        for one, lists, payload in zip(schema.relations, parted_lists(graph), payloads, strict=True)
    )
    return GraphData(
        source=manifest.source,
        digest=manifest.digest,
        types=tuple(types),
        relations=relations,
        labels=found.labels(schema.target.nodes),
        classes=manifest.classes,
        splits=found.splits(),
        made_of=version.made_of,
        names=open_names(manifest, found.mapped),
    )


def columns_of(described: Sequence[SourceColumn]) -> tuple[FeatureColumn, ...]:
    return tuple(FeatureColumn(column.name, column.width, column.fill) for column in described)


def open_graph(
    manifest: GraphManifest, mapped: Mapped, path: Path, remedy: str, rules: EdgeRules | None = None
) -> Graph:
    """The lists of a graph. `path`: of its entries, for messages; `rules`: as of `GraphManifest.schema_by`.
    DamagedError: a list names a node of another type than its relation reads, which kernels would take for one of that
    type."""
    schema = manifest.schema_by(rules)
    indptr = mapped(paths.INDPTR, np.int64, schema.lists + 1)
    indices = mapped(paths.INDICES, np.int32, manifest.edges)
    rows = mapped(paths.PAYLOAD_ROWS, np.int32, manifest.edges) if schema.has_payload else np.zeros(0, np.int32)
    opened = Graph(indptr, indices, schema, rows)
    # Of one type all nodes are: that entries are nodes was seen when the file was verified.
    wrong = int(_first_wrong_entry(opened.indptr, opened.indices, opened.layout)) if len(schema.types) > 1 else -1
    if wrong >= 0:
        found = f"holds node {int(opened.indices[wrong]):,} at position {wrong:,}"
        raise DamagedError(path, f"{found}, which is of another type than its relation reads", remedy)
    return opened


def open_payloads(graph: Graph, mapped: Mapped, folder: Path, remedy: str) -> tuple[EdgePayload | None, ...]:
    """Features and times of the edges of each relation; None: they have none. `folder`: of the graph, for messages.
    DamagedError: an entry has a row that its relation has not, or a feature is no number."""
    schema = graph.schema
    opened: dict[int, EdgePayload | None] = {}
    for place, one in enumerate(schema.relations):
        if one.payload is UNSET or schema.payload_place(place) != place:
            opened[place] = None
            continue
        rows, path = one.payload.rows, paths.payload_features(place)
        features = mapped(path, np.float32, rows, len(one.payload.columns))
        times = mapped(paths.payload_times(place), np.int64, rows) if one.payload.time else np.zeros(0, np.int64)
        if (row := _first_not_finite(features)) >= 0:
            raise DamagedError(folder / path, f"holds no number in row {row:,}, expected numbers of float32", remedy)
        opened[place] = EdgePayload(one.payload.columns, features, one.payload.time, times)
    payloads = tuple(opened[schema.payload_place(place)] for place in range(len(schema.relations)))
    if schema.has_payload:
        counts = np.array([0 if one is None else len(one.features) for one in payloads], np.int64)
        if (entry := int(_first_wrong_row(graph.indptr, graph.payload_rows, graph.layout, counts))) >= 0:
            found = f"holds row {int(graph.payload_rows[entry]):,} at position {entry:,}"
            raise DamagedError(folder / paths.PAYLOAD_ROWS, f"{found}, which its relation does not have", remedy)
    return payloads


def _first_not_finite(features: np.ndarray) -> int:
    """The first row with something that is no number; -1: there is none."""
    for begin in range(0, len(features), _ROWS_AT_ONCE):
        are_finite = np.isfinite(features[begin : begin + _ROWS_AT_ONCE]).all(axis=1)
        if not are_finite.all():
            return begin + int(are_finite.argmin())
    return -1


def open_ids(manifest: GraphManifest, mapped: Mapped) -> Mapping[str, NodeIds | None]:
    """The source's own ids of the nodes of each type, by name; None: it numbers them from 0."""
    target, *others = manifest.schema.types

    def ids_of(kind: TypeManifest, opened: Mapped) -> NodeIds | None:
        return _open_ids(NodeIdKind(kind.node_ids), kind.nodes, opened)

    def inside(name: str) -> Mapped:
        return lambda file, dtype, *shape: mapped(paths.of_type(name, file), dtype, *shape)

    return {target.name: ids_of(target, mapped), **{kind.name: ids_of(kind, inside(kind.name)) for kind in others}}


def open_names(manifest: GraphManifest, mapped: Mapped) -> NodeIds | None:
    """What all nodes are called, with their types, where links are scored; None: as their types call them."""
    if not paths.has_ids_of_all(manifest.files):
        return None
    return _open_ids(
        NodeIdKind.STRINGS, manifest.nodes, lambda file, dtype, *shape: mapped(paths.of_all(file), dtype, *shape)
    )


def _open_ids(kind: NodeIdKind, nodes: int, mapped: Mapped) -> NodeIds | None:
    """Ids of so many nodes; None: nodes are called by position."""
    if kind is NodeIdKind.POSITIONS:
        return None
    slots = mapped(paths.ID_SLOTS, np.int32, slot_count(nodes))
    if kind is NodeIdKind.INTEGERS:
        return NodeIds(kind, mapped(paths.IDS, np.int64, nodes), NO_OFFSETS, slots)
    offsets = mapped(paths.ID_OFFSETS, np.int64, nodes + 1)
    return NodeIds(kind, mapped(paths.IDS, np.uint8, int(offsets[-1])), offsets, slots)


def _read_features(found: VerifiedVersion, nodes: int, columns: int, path_of: Callable[[str], str]) -> Features:
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


@kernel
def _first_wrong_entry(indptr: np.ndarray, indices: np.ndarray, layout: np.ndarray) -> int:
    """The first entry that is no node of the type that its relation reads; -1: there is none."""
    types, stride, first_nodes, first_lists, slots, relation_of, source_of = unpack_layout(layout)
    for kind in range(types):
        if slots[kind] == 0:
            continue
        for one in range(first_lists[kind], first_lists[kind + 1]):
            source = source_of[relation_of[kind * stride + (one - first_lists[kind]) % slots[kind]]]
            for entry in range(indptr[one], indptr[one + 1]):
                if indices[entry] < first_nodes[source] or indices[entry] >= first_nodes[source + 1]:
                    return int(entry)
    return -1


@kernel
def _first_wrong_row(indptr: np.ndarray, rows: np.ndarray, layout: np.ndarray, counts: np.ndarray) -> int:
    """The first entry whose row of payload is none of the so many that its relation has, or that has one where its
    relation has none; -1: there is none."""
    types, stride, _, first_lists, slots, relation_of, _ = unpack_layout(layout)
    for kind in range(types):
        if slots[kind] == 0:
            continue
        for one in range(first_lists[kind], first_lists[kind + 1]):
            count = counts[relation_of[kind * stride + (one - first_lists[kind]) % slots[kind]]]
            least = 0 if count > 0 else -1
            for entry in range(indptr[one], indptr[one + 1]):
                if rows[entry] < least or rows[entry] >= count:
                    return int(entry)
    return -1
