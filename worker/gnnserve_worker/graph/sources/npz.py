"""Graphs from one numpy `.npz` file.

Arrays: `indptr` and `indices` (CSR; row i lists the neighbours of node i), `features` dense or
`feat_indptr`/`feat_indices`/`feat_data`/`feat_shape` sparse, `labels` (integers, -1 for unknown; or a 0/1 matrix
when multi-label), `train_mask`/`val_mask`/`test_mask`. Every array is checked before anything is computed from it,
and every message names the file, the array, the first bad value and the remedy.
"""

from __future__ import annotations

import numpy as np

from gnnserve_api.errors import InputError
from gnnserve_api.files.edges import Direction, Duplicates, EdgeColumns, EdgeRules
from gnnserve_api.spec.graph import NpzDirection, NpzSource
from gnnserve_worker.graph.edges import BothDirections, EdgeList
from gnnserve_worker.graph.payload import EdgePayload
from gnnserve_worker.graph.sources import archive
from gnnserve_worker.graph.sources.checked_arrays import EDGE_COLUMNS, NODE_ARRAYS, CheckedArrays, reading
from gnnserve_worker.graph.sources.checks import check_node_count
from gnnserve_worker.graph.sources.files import pinned_digest
from gnnserve_worker.graph.store import Finding, Graph, GraphData

FIELD = "spec.graph.source.npz"
_READ = {"indptr", "indices", *NODE_ARRAYS}


def identity(source: NpzSource) -> str:
    """SHA-256 of the file, and the direction where it is stated. Raises InputError when the file cannot be read or is
    not the pinned one."""
    digest = pinned_digest(FIELD, source.uri.path, source.sha256)
    told = digest if source.direction is None else f"{digest} {source.direction}"
    return told if source.edge_columns is EdgeColumns.IGNORE else f"{told} edge columns"


def load(source: NpzSource, digest: str, *, learns_labels: bool = True) -> GraphData:
    path = source.uri.path
    with (
        reading(f"{FIELD}.uri", path, ".npz", "write arrays of numbers with numpy.savez"),
        archive.opened(path) as arrays,
    ):
        return _to_graph(CheckedArrays(str(path), arrays), source, digest, learns_labels=learns_labels)


def _to_graph(arrays: CheckedArrays, source: NpzSource, digest: str, *, learns_labels: bool) -> GraphData:
    # scipy.sparse takes a tenth of a second to load, and a start over a stored graph needs the file's digest alone.
    from gnnserve_worker.graph.sources.density import sparse_finding, without_zeros  # noqa: PLC0415

    check_node_count(f"{arrays.path}: indptr", arrays.header("indptr", "iu", 1).shape[0] - 1)
    given_lists = Graph(*arrays.csr("indptr", "indices", None))
    graph, rules, findings = _with_direction(given_lists, source.direction)
    payload, read = None, _READ
    if source.edge_columns is EdgeColumns.READ:
        payload, read = arrays.edge_payload(given_lists.edges), _READ | {*EDGE_COLUMNS}
    if payload is not None:
        graph = _with_payload(given_lists, graph, payload)
    given = arrays.features(graph.nodes)
    features = without_zeros(given) if isinstance(given, np.ndarray) else given
    findings += sparse_finding(features) if isinstance(given, np.ndarray) else ()
    found = arrays.labels(graph.nodes, are_learnt=learns_labels)
    splits = arrays.splits(found.known)
    findings += (*found.findings, *arrays.unread_of_edges(given_lists.edges, read))
    if graph.nodes != given_lists.edges:  # else what is of either is told already
        findings += arrays.unread_of_nodes(graph.nodes, read)
    return GraphData.of_one_type(
        str(source.uri),
        digest,
        graph,
        features,
        found.labels,
        found.classes,
        splits,
        rules,
        findings=findings,
        payload=payload,
    )


def _with_payload(given: Graph, graph: Graph, payload: EdgePayload) -> Graph:
    """The lists with the row of each entry. Raises InputError where edges were added, which have none."""
    if graph.edges != given.edges:
        raise InputError(
            f"{FIELD}.direction", f"is Undirected, and {graph.edges - given.edges:,} edges are listed one way, whose "
            "other direction has neither edge_attr nor edge_time", "list these edges both ways, or set it to Directed",
        )  # fmt: skip
    edges = EdgeList(given.nodes, Direction.DIRECTED, Duplicates.KEEP, has_payload=True)
    edges.add(given.indices, given.targets())
    return edges.to_graph(payload)[0]


def _with_direction(graph: Graph, stated: NpzDirection | None) -> tuple[Graph, EdgeRules, tuple[Finding, ...]]:
    """The graph with the stated direction, or with the one that its lists show: whether each edge is listed both ways.
    Lists that need no other direction are taken as they are."""
    both = BothDirections.of(graph)
    if stated is None:
        direction = Direction.DIRECTED if both.one_way else Direction.UNDIRECTED
        finding = _decided(graph, both)
        return graph, EdgeRules(direction, Duplicates.KEEP), (finding,)
    rules = EdgeRules(Direction(stated), Duplicates.KEEP)
    if stated is NpzDirection.DIRECTED or not both.one_way:
        return graph, rules, ()
    return both.to_graph(), rules, (Finding("edges added in the other direction", both.one_way, both.example),)


def _decided(graph: Graph, both: BothDirections) -> Finding:
    field = f"{FIELD}.direction"
    if not both.one_way:
        what = (
            "edges, all listed both ways: the direction was taken to be Undirected, so that an edge of a change or an "
            f"overlay counts both ways; write {field}: Undirected, so that it stays so with another file"
        )
        return Finding(what, graph.edges)
    what = (
        "edges listed one way: the direction was taken to be Directed, so that an edge of a change or an overlay "
        f"counts one way; write {field}: Directed, or Undirected to add the other direction"
    )
    return Finding(what, both.one_way, both.example)
