"""The format of Yang et al.: features and one-hot labels of test nodes apart, neighbours in a dictionary.

Rows of `allx` and `ally` are the nodes from 0; the rows of `tx` and `ty` are the nodes that `test.index` lists, in that
order. Nodes after those of `allx` that it does not list (15 of CiteSeer) have neither features nor a class. The public
split has the nodes of `y` for training, the 500 after them for validation, and those of `test.index` for testing. As in
torch_geometric, self-loops are removed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import numpy as np
import scipy.sparse as sp

from gnnserve_api.files.edges import Direction, SelfLoops
from gnnserve_worker.graph.edges import EdgeCounts, EdgeList
from gnnserve_worker.graph.sources.pickled import read_matrix, read_neighbours
from gnnserve_worker.graph.sources.raw import RawGraph, check_columns, float32, unexpected, unlabelled
from gnnserve_worker.graph.store import Graph
from gnnserve_worker.pickled_data import RefusedPickleError

VALIDATION_NODES = 500
_MOST_TEST_NODES = 1 << 20
_T = TypeVar("_T")


def read(files: Mapping[str, Path], prefix: str, direction: Direction) -> RawGraph:
    """Read a data set. `files` are its files by name: `ind.cora.tx` and so on."""
    paths = {part: files[f"{prefix}.{part}"] for part in ("tx", "allx", "y", "ty", "ally", "graph", "test.index")}
    others = _features(paths["allx"])
    listed = _test_nodes(paths["test.index"], others.shape[0])
    nodes = int(listed.max()) + 1
    features = _with_rows(paths["tx"], others, _features(paths["tx"]), listed, nodes)
    classes = _one_hot(paths["ally"])
    labels = np.full(nodes, -1, dtype=np.int64)
    if classes.shape[0] != others.shape[0]:
        problem = f"has {classes.shape[0]} rows, expected {others.shape[0]} as in allx"
        raise unexpected(paths["ally"], "", problem)
    labels[: len(classes)] = _classes(classes)
    tested = _one_hot(paths["ty"])
    if tested.shape != (len(listed), classes.shape[1]):
        problem = f"has the shape {list(tested.shape)}, expected {[len(listed), classes.shape[1]]}"
        raise unexpected(paths["ty"], "", problem)
    labels[listed] = _classes(tested)
    train = len(_one_hot(paths["y"]))
    if train + VALIDATION_NODES > others.shape[0]:
        problem = f"has {train} rows; with {VALIDATION_NODES} for validation that is more than allx has"
        raise unexpected(paths["y"], "", problem)
    graph, counts = _graph(paths["graph"], nodes, direction)
    return RawGraph(
        graph,
        features,
        labels,
        (np.arange(train), np.arange(train, train + VALIDATION_NODES), listed),
        (*counts.findings(), *unlabelled(labels, "nodes without features and class")),
        SelfLoops.REMOVE,
    )


def _unpickled(path: Path, reader: Callable[[bytes], _T]) -> _T:
    try:
        return reader(path.read_bytes())
    except RefusedPickleError as error:
        raise unexpected(path, "", f"is refused: {error}") from error


def _features(path: Path) -> sp.csr_array:
    found = _unpickled(path, read_matrix)
    if isinstance(found, np.ndarray):
        raise unexpected(path, "", "has a dense matrix, expected a sparse one")
    check_columns(path, "", found.shape[1])
    return sp.csr_array((float32(path, "data", found.data), found.indices, found.indptr), shape=found.shape)


def _one_hot(path: Path) -> np.ndarray:
    found = _unpickled(path, read_matrix)
    if not isinstance(found, np.ndarray) or not np.isin(found, (0, 1)).all() or (found.sum(axis=1) > 1).any():
        raise unexpected(path, "", "expected a dense matrix with at most one 1 per row")
    return found


def _classes(one_hot: np.ndarray) -> np.ndarray:
    return np.where(one_hot.any(axis=1), one_hot.argmax(axis=1), -1)


def _test_nodes(path: Path, first: int) -> np.ndarray:
    try:
        listed = np.array([int(line) for line in path.read_text(encoding="ascii").split()], dtype=np.int64)
    except (ValueError, OverflowError) as error:
        raise unexpected(path, "", f"expected one node per line: {error}") from error
    if len(listed) == 0 or listed.min() < first or len(np.unique(listed)) != len(listed):
        problem = (
            f"expected nodes from {first}, each once; it has {len(listed)}, the least is {min(listed, default=None)}"
        )
        raise unexpected(path, "", problem)
    if listed.max() - first >= _MOST_TEST_NODES:
        raise unexpected(path, "", f"lists node {listed.max()}, more than {_MOST_TEST_NODES} behind those of allx")
    return listed


def _with_rows(path: Path, others: sp.csr_array, tested: sp.csr_array, listed: np.ndarray, nodes: int) -> sp.csr_array:
    if tested.shape != (len(listed), others.shape[1]):
        problem = f"has the shape {list(tested.shape)}, expected {[len(listed), others.shape[1]]}"
        raise unexpected(path, "", problem)
    order = np.argsort(listed)
    lengths = np.zeros(nodes, dtype=np.int64)
    lengths[: others.shape[0]] = np.diff(others.indptr)
    lengths[listed] = np.diff(tested.indptr)
    ordered = tested[order]
    features = sp.csr_array(
        (
            np.concatenate([others.data, ordered.data]),
            np.concatenate([others.indices, ordered.indices]),
            np.concatenate([[0], np.cumsum(lengths)]),
        ),
        shape=(nodes, others.shape[1]),
    )
    features.sum_duplicates()
    return features


def _graph(path: Path, nodes: int, direction: Direction) -> tuple[Graph, EdgeCounts]:
    neighbours = _unpickled(path, read_neighbours)
    lengths = [len(row) for row in neighbours.values()]
    sources = np.repeat(np.fromiter(neighbours, dtype=np.int64, count=len(neighbours)), lengths)
    targets = np.fromiter((node for row in neighbours.values() for node in row), dtype=np.int64, count=sum(lengths))
    edges = EdgeList(nodes, direction, self_loops=SelfLoops.REMOVE)
    bad = edges.add(sources, targets)
    if bad >= 0:
        problem = f"has an edge from {sources[bad]} to {targets[bad]}, expected nodes from 0 to {nodes - 1}"
        raise unexpected(path, "", problem)
    return edges.to_graph()
