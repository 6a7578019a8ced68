"""The arrays of the folder of a graph of several types, and the checks that kernels rely on.

Lists of all types are one array, as `graph/typed_lists.py` has them. Labels, splits, and the ids and features without a
folder are of the type that is classified; those of the other types lie in `types/<name>/`. As of one type, features are
kept of graphs that a log of changes is part of alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
from msgspec import UNSET, UnsetType

from gnnserve_api.errors import DamagedError
from gnnserve_api.repository import TYPED_SCHEMA_VERSION, GraphManifest, GraphVersion, NodeIdKind
from gnnserve_api.typed import TypeManifest
from gnnserve_worker.graph.ids import NodeIds
from gnnserve_worker.graph.typed import NodeType, Relation, TypedGraphData
from gnnserve_worker.graph.typed_lists import TypedGraph, describe_typed, merged_lists, parted_lists, typed_graph
from gnnserve_worker.kernel_cache import kernel
from gnnserve_worker.kernels.layout import unpack_layout
from gnnserve_worker.repository import files, paths
from gnnserve_worker.repository.graph_files import (
    VerifiedVersion,
    columns_of,
    described_columns,
    feature_arrays,
    id_arrays,
    open_ids_of,
    read_features,
)

Mapped = Callable[..., np.ndarray]
"""Opens an array of the graph's folder by file, dtype and shape."""


def write_typed_graph(folder: Path, data: TypedGraphData) -> GraphManifest:
    """Write all that is kept of it; the manifest, which is not sealed yet, names it."""
    typed = describe_typed(data)
    indptr, indices = merged_lists(typed, [relation.lists for relation in data.relations])
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
        arrays |= {path_of(name): array for name, array in id_arrays(kind.ids).items()}
    arrays |= {paths.of_all(name): array for name, array in id_arrays(data.names).items()}
    features = _feature_arrays(data)
    files.require_free(folder, sum(array.nbytes for array in (*arrays.values(), *features.values())))
    for parent in sorted({(folder / name).parent for name in (*arrays, *features)} - {folder}):
        files.make_folder(parent)
    version = _write_version(folder, data, features)
    return GraphManifest(
        schema_version=TYPED_SCHEMA_VERSION,
        digest=data.digest,
        source=data.source,
        nodes=data.nodes,
        edges=data.edges,
        features=max(kind.features or 0 for kind in typed.types),
        node_ids=NodeIdKind(typed.target.node_ids),
        classes=data.classes,
        multi_label=data.multi_label,
        train_nodes=len(data.splits.train),
        validation_nodes=len(data.splits.validation),
        test_nodes=len(data.splits.test),
        files={name: files.write_array(folder / name, array) for name, array in arrays.items()},
        version=version,
        typed=typed,
    )


def _path_in(kind: str, target: str) -> Callable[[str], str]:
    """Gives the path of a type's file by its name. `target`: the type that is classified."""
    return str if kind == target else partial(paths.of_type, kind)


def _feature_arrays(data: TypedGraphData) -> dict[str, np.ndarray]:
    """What is kept of its features, by file."""
    if data.made_of is None:
        return {}
    arrays: dict[str, np.ndarray] = {}
    for kind in data.types:
        if kind.features is not None:
            path_of = _path_in(kind.name, data.target.name)
            arrays |= {path_of(name): array for name, array in feature_arrays(kind.features).items()}
    return arrays


def _write_version(folder: Path, data: TypedGraphData, features: Mapping[str, np.ndarray]) -> GraphVersion | UnsetType:
    """Write what `_feature_arrays` gave. UNSET: it is the graph of its source."""
    if data.made_of is None:
        return UNSET
    return GraphVersion(
        made_of=data.made_of,
        columns=tuple(column for kind in data.types for column in described_columns(kind.feature_columns)),
        edge_rules=None,
        files={name: files.write_array(folder / name, array) for name, array in features.items()},
        type_columns=tuple(len(kind.feature_columns) for kind in data.types),
    )


def read_typed_graph(found: VerifiedVersion) -> TypedGraphData:
    """The graph, its arrays mapped but for its lists. DamagedError: arrays do not fit the manifest."""
    manifest, version, mapped = found.manifest, found.version, found.mapped
    if not manifest.typed or version.type_columns is UNSET:
        raise ValueError(f"{found.folder} holds a graph of one type")
    typed, ids = manifest.typed, open_type_ids(manifest, mapped)
    graph = open_typed_graph(manifest, mapped, found.folder / paths.INDICES, found.remedy)
    types, columns = [], list(version.columns)
    for kind, count in zip(typed.types, version.type_columns, strict=True):
        own, columns = columns[:count], columns[count:]
        features = None
        if kind.features is not None:
            features = read_features(found, kind.nodes, kind.features, _path_in(kind.name, typed.target.name))
        types.append(NodeType(kind.name, kind.nodes, features, columns_of(own), ids[kind.name]))
    relations = tuple(
        Relation(one.source, one.name, one.target, lists, one.reverse_of, one.merges, one.both_ways)
        for one, lists in zip(typed.relations, parted_lists(typed, graph.indptr, graph.indices), strict=True)
    )
    return TypedGraphData(
        source=manifest.source,
        digest=manifest.digest,
        types=tuple(types),
        relations=relations,
        labels=found.labels(typed.target.nodes),
        classes=manifest.classes,
        splits=found.splits(),
        made_of=version.made_of,
    )


def open_typed_graph(graph: GraphManifest, mapped: Mapped, path: Path, remedy: str) -> TypedGraph:
    """`path`: of its lists, for messages. DamagedError: a list names a node of another type than its relation reads,
    which kernels would take for one of that type."""
    assert graph.typed  # noqa: S101 - only such graphs come here
    opened = typed_graph(
        graph.typed,
        mapped(paths.INDPTR, np.int64, graph.typed.lists + 1),
        mapped(paths.INDICES, np.int32, graph.edges),
    )
    wrong = int(_first_wrong_entry(opened.indptr, opened.indices, opened.layout))
    if wrong >= 0:
        found = f"holds node {int(opened.indices[wrong]):,} at position {wrong:,}"
        raise DamagedError(path, f"{found}, which is of another type than its relation reads", remedy)
    return opened


def open_type_ids(graph: GraphManifest, mapped: Mapped) -> Mapping[str, NodeIds | None]:
    """The source's own ids of the nodes of each type, by name; None: it numbers them from 0."""
    assert graph.typed  # noqa: S101 - only such graphs come here
    target, *others = graph.typed.types

    def ids_of(kind: TypeManifest, opened: Mapped) -> NodeIds | None:
        return open_ids_of(NodeIdKind(kind.node_ids), kind.nodes, opened)

    def inside(name: str) -> Mapped:
        return lambda file, dtype, *shape: mapped(paths.of_type(name, file), dtype, *shape)

    return {target.name: ids_of(target, mapped), **{kind.name: ids_of(kind, inside(kind.name)) for kind in others}}


def open_names(graph: GraphManifest, mapped: Mapped) -> NodeIds | None:
    """What all nodes are called, with their types, where links are scored; None: nodes are classified."""
    if not paths.has_names(graph.files):
        return None
    return open_ids_of(
        NodeIdKind.STRINGS, graph.nodes, lambda file, dtype, *shape: mapped(paths.of_all(file), dtype, *shape)
    )


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
