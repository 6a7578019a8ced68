"""A network computed plainly over whole neighbour lists, in float64, and in other ways than it is served.

What a file of weights does not tell is a `Reading`. Where expected scores differ from those that are served, networks
are computed by other readings until one gives them (`generation/expected/`). Nothing here is fast.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

Activation = Callable[[np.ndarray], np.ndarray]
Aggregation = Literal["mean", "sum", "max", "min"]
ResidualPlace = Literal["behind the activation", "before the activation"]


def relu(rows: np.ndarray) -> np.ndarray:
    found: np.ndarray = np.maximum(rows, 0)
    return found


@dataclass(frozen=True, slots=True)
class Reading:
    """How a network is computed from its weights, as far as these do not tell. The defaults are what is served."""

    activation: Activation = relu
    """Function between two layers."""
    inner_activation: Activation = relu
    """Function between the two products of a layer."""
    aggregation: Aggregation | None = None
    """How neighbours are aggregated; None: as the architecture does."""
    loop_weight: float = 1.0
    """Weight of the self-loop that is added to each node, of an architecture that adds one; 0: none is."""
    is_normalised: bool = True
    """Whether a sum is divided by the roots of both degrees, of an architecture that does so."""
    has_unit_rows: bool = False
    """Whether the outputs of a layer are divided by their Euclidean length."""
    residual: ResidualPlace | None = None
    """Where a layer's input is added to its output, where both are equally wide."""
    ends_with_activation: bool = False
    """Whether the last layer's output goes through the activation too."""
    negative_slope: float | None = None
    """Slope of the leaky ReLU over attention scores; None: the manifest's."""


SERVED = Reading()


@dataclass(frozen=True, slots=True, eq=False)
class PlainGraph:
    """Whole neighbour lists, node i's being `indices[indptr[i]:indptr[i + 1]]`."""

    indptr: np.ndarray
    indices: np.ndarray

    @property
    def nodes(self) -> int:
        return len(self.indptr) - 1

    @property
    def targets(self) -> np.ndarray:
        """The node that reads, of each entry of a list."""
        return np.repeat(np.arange(self.nodes), np.diff(self.indptr))

    def product(self, rows: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
        """Sums of the neighbours' rows. `weights`: of each entry of a list; None: 1."""
        import scipy.sparse as sp  # noqa: PLC0415  (servers, which compute nothing here, do not import it)

        values = np.ones(len(self.indices)) if weights is None else weights
        adjacency = sp.csr_array((values, self.indices, self.indptr), shape=(self.nodes, self.nodes))
        return np.asarray(adjacency @ rows)

    def aggregated(self, rows: np.ndarray, how: Aggregation) -> np.ndarray:
        """What each node reads of its neighbours; 0 where it has none."""
        degrees = np.diff(self.indptr)
        if how in {"mean", "sum"}:
            sums = self.product(rows)
            return np.asarray(sums / np.maximum(degrees, 1)[:, None] if how == "mean" else sums)
        found = np.zeros((self.nodes, rows.shape[1]))
        is_read = degrees > 0
        extreme = np.maximum if how == "max" else np.minimum
        if is_read.any():
            found[is_read] = extreme.reduceat(rows[self.indices], self.indptr[:-1][is_read])
        return found

    def with_loops(self) -> PlainGraph:
        """The graph with exactly one self-loop at each node."""
        targets = self.targets
        is_kept = self.indices != targets
        ends = np.concatenate([targets[is_kept], np.arange(self.nodes)])
        order = np.argsort(ends, kind="stable")
        indices = np.concatenate([self.indices[is_kept], np.arange(self.nodes)])[order]
        return PlainGraph(np.searchsorted(ends[order], np.arange(self.nodes + 1)), indices)

    def summed(self, rows: np.ndarray, reading: Reading) -> np.ndarray:
        """The sum that GCN and those of its kind make, by gcn_norm unless the reading says otherwise."""
        if not reading.is_normalised and not reading.loop_weight:
            return self.product(rows)
        targets = self.targets
        # Where no loop is added, those of the graph are neighbours as any other.
        is_neighbour = ((self.indices != targets) | (reading.loop_weight == 0)).astype(np.float64)
        degrees = np.bincount(targets, weights=is_neighbour, minlength=self.nodes) + reading.loop_weight
        roots = np.divide(1, np.sqrt(degrees), out=np.zeros(self.nodes), where=degrees > 0)
        if not reading.is_normalised:
            roots = np.ones(self.nodes)
        neighbours = self.product(rows, is_neighbour * roots[targets] * roots[self.indices])
        return np.asarray(neighbours + reading.loop_weight * (roots**2)[:, None] * rows)


def attended(
    graph: PlainGraph, heads: np.ndarray, source: np.ndarray, target: np.ndarray, slope: float, loop_weight: float
) -> np.ndarray:
    """Sums by attention, float64 [nodes, heads, columns]. `heads`: products of rows, as many columns for each head."""
    read = graph.with_loops() if loop_weight else graph
    targets = read.targets
    scores = (heads * source).sum(-1)[read.indices] + (heads * target).sum(-1)[targets]
    scores = np.where(scores > 0, scores, slope * scores)
    found = np.zeros_like(heads)
    is_read = np.diff(read.indptr) > 0
    begins, counts = read.indptr[:-1][is_read], np.diff(read.indptr)[is_read]
    if not len(begins):
        return found
    exponentials = np.exp(scores - np.repeat(np.maximum.reduceat(scores, begins), counts, axis=0))
    shares = exponentials / np.repeat(np.add.reduceat(exponentials, begins), counts, axis=0)
    found[is_read] = np.add.reduceat(shares[:, :, None] * heads[read.indices], begins)
    return found


def activated(outputs: np.ndarray, before: np.ndarray, reading: Reading, *, is_last: bool) -> np.ndarray:
    """What a layer hands on. `before`: what it read of the node itself."""
    if reading.has_unit_rows:
        outputs = outputs / np.maximum(np.linalg.norm(outputs, axis=1, keepdims=True), 1e-12)
    is_added = reading.residual is not None and outputs.shape == before.shape
    if is_added and reading.residual == "before the activation":
        outputs = outputs + before
    if not is_last or reading.ends_with_activation:
        outputs = reading.activation(outputs)
    is_behind = is_added and reading.residual == "behind the activation"
    return np.asarray(outputs + before if is_behind else outputs)


def weights_of(tensors: Mapping[str, np.ndarray], layer: int) -> dict[str, np.ndarray]:
    """The tensors of a layer, as float64, by their names within it."""
    start = f"convs.{layer}."
    return {
        key.removeprefix(start): tensor.astype(np.float64) for key, tensor in tensors.items() if key.startswith(start)
    }
