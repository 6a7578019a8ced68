"""What serving asks of a model: scores of a gathered batch, in numpy.

Serving must start in a second, and importing torch takes four; a network here is a list of layers that are plain
matrix products over what `graph/gather.py` has already averaged or summed. Training is `generation/networks.py`;
one file per architecture beside this one says what its layers compute, `build.py` picks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from gnnserve_worker.graph.gather import GatheredBatch, aggregate_rows

Aggregation = Literal["mean", "sum"]


class Layer(Protocol):
    def apply(self, own: np.ndarray, aggregated: np.ndarray) -> np.ndarray:
        """float32 [rows, inputs] of the nodes and of their neighbours to a new float32 [rows, outputs]."""
        ...


@dataclass(frozen=True, slots=True)
class Network:
    """One variant's weights, ready to run."""

    layers: tuple[Layer, ...]
    aggregation: Aggregation
    """How every layer combines neighbour rows; for layer 1 the gather does it."""
    classes: int

    def infer(self, batch: GatheredBatch) -> tuple[np.ndarray, np.ndarray | None]:
        """Scores before softmax or sigmoid, float32 [seeds, classes], and embeddings: the seeds' last hidden
        layer, float32 [seeds, hidden]; None for a one-layer network."""
        first, *upper = self.layers
        hidden = first.apply(batch.own, batch.neighbours)
        embeddings = None
        for depth, layer in enumerate(upper, start=1):
            np.maximum(hidden, 0.0, out=hidden)
            rows = batch.ends[len(upper) - depth]
            aggregated = aggregate_rows(hidden, batch, rows, mean=self.aggregation == "mean")
            if depth == len(upper):
                embeddings = _of_seeds(batch, hidden[:rows])
            hidden = layer.apply(hidden[:rows], aggregated)
        return _of_seeds(batch, hidden), embeddings


def take(tensors: Mapping[str, np.ndarray], key: str, shape: tuple[int, ...]) -> np.ndarray:
    """The tensor `key` as float32, or a ValueError that says which tensor is missing or misshapen."""
    if key not in tensors:
        raise ValueError(f"weights lack {key!r}; they have {', '.join(sorted(tensors))}")
    tensor = np.ascontiguousarray(tensors[key], dtype=np.float32)
    if tensor.shape != shape:
        raise ValueError(f"weights {key!r} have shape {list(tensor.shape)}, expected {list(shape)}")
    return tensor


def _of_seeds(batch: GatheredBatch, hidden: np.ndarray) -> np.ndarray:
    """One row per requested seed; repeated seeds of a subgraph share theirs."""
    return hidden[: batch.ends[0]] if batch.seed_rows is None else hidden[batch.seed_rows]
