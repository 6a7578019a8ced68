"""Graphs of several types from a folder of `.npz` files: `nodes_TYPE.npz`, and `edges_SOURCE__RELATION__TARGET.npz`.

A file of nodes has `num_nodes`, features as in a graph of one type (dense, or a CSR matrix) or none, and `labels` with
masks where the type has classes. A file of edges has `src` and `dst`, positions within the two types.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from gnnserve_api.errors import InputError
from gnnserve_api.files.edges import EdgeColumns
from gnnserve_api.files.graph_schema import TYPE_PATTERN
from gnnserve_api.spec.heterogeneous import HeterogeneousSource, NpzFolder
from gnnserve_worker.graph.sources import archive
from gnnserve_worker.graph.sources.assembly import FIELD, GivenRelation, GivenType, assemble
from gnnserve_worker.graph.sources.checked_arrays import EDGE_COLUMNS, MASKS, NODE_ARRAYS, CheckedArrays, reading
from gnnserve_worker.graph.sources.files import digest_of, why_unreadable
from gnnserve_worker.graph.sources.table_nodes import LabelledNodes
from gnnserve_worker.graph.store import Features, Finding, GraphData, NodeType, random_splits
from gnnserve_worker.progress import Progress, ProgressListener

_FIELD = f"{FIELD}.npz.uri"
_NODES, _EDGES, _SUFFIX = "nodes_", "edges_", ".npz"
_EDGE_ARRAYS = {"src", "dst", "split"}


def identity(folder: NpzFolder) -> str:
    """Names and content of the files."""
    files = [f"{path.name} {digest_of(_FIELD, path)}" for path in _files(folder)]
    return "\n".join([*files, *(["edge columns"] if folder.edge_columns is EdgeColumns.READ else [])])


def load(
    source: HeterogeneousSource,
    folder: NpzFolder,
    digest: str,
    progress: ProgressListener,
    *,
    needs_labels: bool = True,
) -> GraphData:
    paths = _files(folder)
    types, relations, findings = [], [], []
    for done, path in enumerate(paths):
        progress(Progress("read files", done, len(paths), path.name))
        with (
            reading(_FIELD, path, ".npz", "write arrays of numbers with numpy.savez"),
            archive.opened(path) as opened,
        ):
            arrays = CheckedArrays(str(path), opened)
            if path.name.startswith(_NODES):
                name = _type_name(path)
                given, found = read_type(
                    name, arrays, node_count(arrays), learns_labels=needs_labels and source.target in {None, name}
                )
                types.append(given)
                findings += found
            else:
                relations.append(_read_relation(path, arrays, folder.edge_columns))
    progress(Progress("read files", len(paths), len(paths)))
    return assemble(source, digest, types, relations, findings, needs_labels=needs_labels)


def _files(folder: NpzFolder) -> list[Path]:
    """Files of nodes, then those of edges, by name."""
    path = folder.uri.path
    try:
        found = sorted(path.iterdir())
    except (OSError, ValueError) as error:
        raise InputError(_FIELD, *why_unreadable(path, error)) from error
    files = [one for begin in (_NODES, _EDGES) for one in found if one.name.startswith(begin) and one.suffix == _SUFFIX]
    if not files:
        there = ", ".join(one.name for one in found[:5]) or "nothing"
        raise InputError(
            _FIELD, f"{path} has neither nodes_TYPE.npz nor edges_SOURCE__RELATION__TARGET.npz; it has {there}",
            "name the folder with these files",
        )  # fmt: skip
    return files


def check_name(place: str, name: str) -> str:
    """A name of a type or relation that a file states."""
    if not re.match(TYPE_PATTERN, name) or len(name) > 63:
        raise InputError(
            place, f"names {name!r}, expected letters, digits, '_' and '-', at most 63", "give it another name"
        )
    return name


def _type_name(path: Path) -> str:
    return check_name(str(path), path.stem.removeprefix(_NODES))


def node_count(arrays: CheckedArrays) -> int:
    header = arrays.header("num_nodes", "iu", None)
    if header.shape not in {(), (1,)}:
        raise arrays.error("num_nodes", f"has shape {list(header.shape)}, expected one integer", "write one integer")
    found = int(arrays.array("num_nodes", "iu", None).ravel()[0])
    if found < 0:
        raise arrays.error("num_nodes", f"is {found}, expected a number from 0", "correct it")
    return found


def read_type(
    name: str, arrays: CheckedArrays, nodes: int, *, learns_labels: bool = True
) -> tuple[GivenType, list[Finding]]:
    """The type of that many nodes whose arrays have the names of a graph of one type. `learns_labels`: whether it may
    be the one that is classified."""
    # scipy.sparse takes a tenth of a second to load, and a start over a stored graph needs the files' digests alone.
    from gnnserve_worker.graph.sources.density import sparse_finding, without_zeros  # noqa: PLC0415

    features: Features | None = None
    findings: list[Finding] = []
    if nodes and arrays.has_features():
        given = arrays.features(nodes)
        features = without_zeros(given) if isinstance(given, np.ndarray) else given
        found = sparse_finding(features) if isinstance(given, np.ndarray) else ()
        findings = [Finding(f"{one.what} ({name})", one.count, one.example) for one in found]
    labelled: LabelledNodes | None = None
    if nodes and "labels" in arrays.names:
        given_labels = arrays.labels(nodes, are_learnt=learns_labels)
        has_masks = any(mask in arrays.names for mask in MASKS)
        known = given_labels.known
        splits = arrays.splits(known) if has_masks else random_splits(known)
        labelled = LabelledNodes(given_labels.labels, given_labels.classes, splits)
        findings += given_labels.findings
    findings += arrays.unread_of_nodes(nodes, NODE_ARRAYS | {"num_nodes"}, name)
    return GivenType(NodeType(name, nodes, features), labelled, arrays.path), findings


def _read_relation(path: Path, arrays: CheckedArrays, columns: EdgeColumns) -> GivenRelation:
    parts = path.stem.removeprefix(_EDGES).split("__")
    if len(parts) != 3:
        raise InputError(
            str(path), "is not named edges_SOURCE__RELATION__TARGET.npz, with two '_' between the names", "rename it"
        )
    source, name, target = (check_name(str(path), part) for part in parts)
    sources, targets = arrays.int64("src", 1), arrays.int64("dst", 1)
    held_out = arrays.int64("split", 1) if "split" in arrays.names else None
    if held_out is not None and len(held_out) != len(sources):
        raise arrays.error(
            "split", f"has {len(held_out):,} entries, and src has {len(sources):,}", "write one for each edge"
        )
    ends = (f"{path}: src", f"{path}: dst")
    reads = columns is EdgeColumns.READ
    read = {*_EDGE_ARRAYS, *(EDGE_COLUMNS if reads else ())}
    unread = tuple(array for array in arrays.names if array not in read)
    payload = arrays.edge_payload(len(sources)) if reads else None
    return GivenRelation(
        source, name, target, sources, targets, str(path), ends, parts=held_out, unread=unread, payload=payload
    )
