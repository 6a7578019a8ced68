"""The weights of GCN's symmetric normalisation (GCN, section 2), as torch_geometric's `gcn_norm` makes them of the full
graph:

    weight(j → i) = d(i)^-1/2 · d(j)^-1/2,   d(i) = 1 + neighbours of i,   weight(i → i) = 1 / d(i)

where a node that is in its own list counts as no neighbour: every node has exactly one self-loop. A sample keeps the
weights of the full graph, and its sum over neighbours is scaled by list length over sample size, which makes its
expectation the sum over the whole list. So nothing but d^-1/2 of each node is kept.
"""

from __future__ import annotations

import msgspec
import numpy as np

from gnnserve_worker.kernel_cache import inlined, kernel
from gnnserve_worker.kernels.primitives import list_begin, list_end, prefetch
from gnnserve_worker.kernels.view import SampleView, unpack
from gnnserve_worker.sampling.neighbours import NeighbourSample, SampleWeights, Scratch

_EDGES_AHEAD = 32
"""How many neighbours before their turn their roots are requested."""


def inverse_roots(indptr: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """d(i)^-1/2 of every node, float32 [nodes]. Reads every edge once, to leave out self-loops."""
    degrees = np.empty(len(indptr) - 1, dtype=np.float32)
    _inverse_roots(indptr, indices, degrees)
    return degrees


def renew_inverse_roots(bounds: np.ndarray, indices: np.ndarray, nodes: np.ndarray, roots: np.ndarray) -> None:
    """Write d(i)^-1/2 of these nodes (int64) anew, whose lists have changed. `bounds`: int64 [nodes, 2]."""
    _renew_inverse_roots(bounds, indices, nodes, roots)


def weigh(
    sample: NeighbourSample,
    indptr: np.ndarray,
    roots: np.ndarray,
    scratch: Scratch,
    view: SampleView | None = None,
) -> NeighbourSample:
    """The sample with its weights, in scratch. `roots`: `inverse_roots` of the graph; `view`: as it was sampled in.
    Overlay nodes have the degrees that they have there."""
    scratch.reserve_weights(len(sample.nodes), len(sample.neighbours))
    weights = SampleWeights(scratch.edge_weights, scratch.row_weights)
    packed = None if view is None else view.packed
    _weigh(
        indptr, roots, sample.nodes, sample.starts, sample.neighbours, weights.of_neighbours, weights.of_itself, packed
    )
    return msgspec.structs.replace(sample, weights=weights)


@kernel
def _inverse_roots(indptr: np.ndarray, indices: np.ndarray, out: np.ndarray) -> None:
    for node in range(len(out)):
        degree = 1
        for edge in range(indptr[node], indptr[node + 1]):
            if indices[edge] != node:
                degree += 1
        out[node] = 1.0 / np.sqrt(np.float64(degree))


@kernel
def _renew_inverse_roots(bounds: np.ndarray, indices: np.ndarray, nodes: np.ndarray, out: np.ndarray) -> None:
    for i in range(len(nodes)):
        node = nodes[i]
        degree = 1
        for edge in range(bounds[node, 0], bounds[node, 1]):
            if indices[edge] != node:
                degree += 1
        out[node] = 1.0 / np.sqrt(np.float64(degree))


@inlined
def _degrees_in_view(packed: np.ndarray, indptr: np.ndarray, roots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return d^-1/2 (float32) and the length of the list (int64) of each overlay node."""
    _, _, _, _, origins, _, starts, neighbours, _ = unpack(packed)
    stored = len(roots)
    of_overlay = np.empty(len(origins), dtype=np.float32)
    lengths = np.empty(len(origins), dtype=np.int64)
    for k in range(len(origins)):
        degree = 1.0
        lengths[k] = starts[k + 1] - starts[k]
        if origins[k] >= 0:
            root = np.float64(roots[origins[k]])
            degree = np.rint(1.0 / (root * root))
            lengths[k] += list_end(indptr, origins[k]) - list_begin(indptr, origins[k])
        for entry in range(starts[k], starts[k + 1]):
            if neighbours[entry] != stored + k:
                degree += 1.0
        of_overlay[k] = 1.0 / np.sqrt(degree)
    return of_overlay, lengths


@kernel
def _weigh(
    indptr: np.ndarray, roots: np.ndarray, nodes: np.ndarray, starts: np.ndarray, neighbours: np.ndarray,
    of_neighbours: np.ndarray, of_itself: np.ndarray, packed: np.ndarray | None,
) -> None:  # fmt: skip
    if packed is not None:
        overlay_roots, lengths = _degrees_in_view(packed, indptr, roots)
        stored = len(roots)
    edges = len(neighbours)
    for edge in range(min(edges, _EDGES_AHEAD)):
        prefetch(roots, neighbours[edge])
    for row in range(len(nodes)):
        node = nodes[row]
        start = starts[row]
        stop = starts[row + 1]
        if packed is None or node < stored:
            root = np.float64(roots[node])
            listed = list_end(indptr, node) - list_begin(indptr, node)
        else:
            root = np.float64(overlay_roots[node - stored])
            listed = lengths[node - stored]
        factor = root * listed / max(stop - start, 1)
        for edge in range(start, stop):
            if edge + _EDGES_AHEAD < edges:
                prefetch(roots, neighbours[edge + _EDGES_AHEAD])
            neighbour = neighbours[edge]
            if neighbour == node:
                of_neighbours[edge] = 0.0
            elif packed is None or neighbour < stored:
                of_neighbours[edge] = factor * roots[neighbour]
            else:
                of_neighbours[edge] = factor * overlay_roots[neighbour - stored]
        of_itself[row] = root * root
