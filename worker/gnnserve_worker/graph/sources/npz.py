"""Graphs from one numpy `.npz` file.

Arrays: `indptr` and `indices` (CSR; row i lists the neighbours of node i), `features` dense or
`feat_indptr`/`feat_indices`/`feat_data`/`feat_shape` sparse, `labels` (integers, -1 for unknown; or a 0/1 matrix
when multi-label), `train_mask`/`val_mask`/`test_mask`. Every array is checked before anything is computed from it,
and every message names the file, the array, the first bad value and the remedy.
"""

from __future__ import annotations

import numpy as np

from gnnserve_api.edges import Direction, Duplicates, EdgeRules
from gnnserve_api.spec.graph import NpzSource
from gnnserve_worker.graph.edges import is_symmetric
from gnnserve_worker.graph.sources import archive
from gnnserve_worker.graph.sources.checked_arrays import CheckedArrays, reading
from gnnserve_worker.graph.sources.checks import check_node_count
from gnnserve_worker.graph.sources.files import file_path, pinned_digest
from gnnserve_worker.graph.store import Graph, GraphData

FIELD = "spec.graph.source.npz"


def file_digest(source: NpzSource) -> str:
    """SHA-256 of the file. Raises InputError when it cannot be read or is not the pinned one."""
    return pinned_digest(FIELD, source.uri, source.sha256)


def load(source: NpzSource, digest: str) -> GraphData:
    path = file_path(source.uri)
    with (
        reading(f"{FIELD}.uri", path, ".npz", "write arrays of numbers with numpy.savez"),
        archive.opened(path) as arrays,
    ):
        return _to_graph(CheckedArrays(str(path), arrays), source.uri, digest)


def _to_graph(arrays: CheckedArrays, uri: str, digest: str) -> GraphData:
    # scipy.sparse takes a tenth of a second to load, and a start over a stored graph needs the file's digest alone.
    from gnnserve_worker.graph.sources.density import sparse_finding, without_zeros  # noqa: PLC0415

    check_node_count(f"{arrays.path}: indptr", arrays.header("indptr", "iu", 1).shape[0] - 1)
    graph = Graph(*arrays.csr("indptr", "indices", None))
    given = arrays.features(graph.nodes)
    features = without_zeros(given) if isinstance(given, np.ndarray) else given
    findings = sparse_finding(features) if isinstance(given, np.ndarray) else ()
    labels, classes, known = arrays.labels(graph.nodes)
    # The file has neighbour lists, which are taken as they are; whether each link is listed both ways, they show.
    rules = EdgeRules(Direction.UNDIRECTED if is_symmetric(graph) else Direction.DIRECTED, Duplicates.KEEP)
    return GraphData(uri, digest, graph, features, labels, classes, arrays.splits(known), rules, findings=findings)
