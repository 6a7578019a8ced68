"""Inference through a network: scores of a sampled batch, without torch.

A network is a list of layers; a layer aggregates each row's neighbours and the row itself (`tables/gather.py`) and
multiplies what comes out (`dense.py`). The first one reads a table, the others hidden states. One file per
architecture beside this one says what its layers compute, `registry.py` finds it, `build.py` builds. Training is
`generation/networks.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from gnnserve_worker.growth import scratch_for
from gnnserve_worker.kernel_cache import kernel
from gnnserve_worker.models.dense import Product
from gnnserve_worker.sampling.neighbours import NeighbourSample
from gnnserve_worker.tables.gather import Aggregation, aggregate, gather
from gnnserve_worker.tables.table import RowsBehind, Table

Memory = TypeVar("Memory")


@dataclass(frozen=True, slots=True)
class Layer:
    inputs: int
    """Columns that are aggregated, of the table or of the hidden states of the layer before."""
    outputs: int
    aggregation: Aggregation
    products: tuple[Product, ...]
    """Matrix products after the aggregation; empty where the table stores the product already."""

    aggregated: int = field(init=False)
    """Columns of a row once it is aggregated."""
    aggregated_dtype: type[np.generic] = field(init=False)

    def __post_init__(self) -> None:
        # Fields instead of properties, since they are read for every batch.
        object.__setattr__(self, "aggregated", self.aggregation.width(self.inputs))
        dtype = self.products[0].input_dtype if self.products else np.float32
        object.__setattr__(self, "aggregated_dtype", dtype)


class Activations:
    """Scratch memory of one thread, which grows to the largest batch so far."""

    def __init__(self) -> None:
        self._aggregated: dict[type[np.generic], np.ndarray] = {}
        self._hidden = [np.empty(0, dtype=np.float32) for _ in range(3)]
        self._turn = 0
        self._beside: dict[type, Any] = {}

    def aggregated(self, size: int, dtype: type[np.generic]) -> np.ndarray:
        array = self._aggregated.get(dtype)
        if array is None:
            array = np.empty(0, dtype)
        if len(array) < size:
            array = self._aggregated[dtype] = scratch_for(array, size)
        return array

    def hidden(self, size: int) -> np.ndarray:
        """A float32 array of at least this size. The arrays of the two calls before keep their content."""
        self._turn = (self._turn + 1) % len(self._hidden)
        hidden = self._hidden[self._turn]
        if len(hidden) < size:
            hidden = self._hidden[self._turn] = scratch_for(hidden, size)
        return hidden

    def beside(self, kind: type[Memory]) -> Memory:
        """The thread's own object of a kind that a network needs beside; made when it is first asked for."""
        found = self._beside.get(kind)
        if found is None:
            found = self._beside[kind] = kind()
        memory: Memory = found
        return memory


@dataclass(frozen=True, slots=True)
class Network:
    """One variant's weights, ready to run."""

    layers: tuple[Layer, ...]
    classes: int
    bytes_per_row: int = field(init=False)
    """Bytes that the first layer's products read and write for a row."""

    weighs_neighbours: bool = field(init=False)
    """Whether samples must have weights (`sampling/normalised.py`)."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "weighs_neighbours", any(layer.aggregation.weighted for layer in self.layers))
        first = self.layers[0]
        written = 4 * sum(product.outputs for product in first.products)
        object.__setattr__(
            self, "bytes_per_row", first.aggregated * np.dtype(first.aggregated_dtype).itemsize + written
        )

    def gather(
        self, table: Table, sample: NeighbourSample, scratch: Activations, behind: RowsBehind | None = None
    ) -> np.ndarray:
        """Aggregate the input of the first layer for every row of the sample, from the table and the rows behind it.
        The result is flat, in scratch memory."""
        first = self.layers[0]
        size = sample.ends[-1] * first.aggregated
        out = scratch.aggregated(size, first.aggregated_dtype) if first.products else scratch.hidden(size)
        gather(table, first.inputs, sample, first.aggregation, out, behind)
        return out

    @property
    def hidden(self) -> int:
        """Width of the last hidden layer; 0 for a one-layer network."""
        return self.layers[-1].inputs if len(self.layers) > 1 else 0

    def infer(
        self,
        aggregated: np.ndarray,
        sample: NeighbourSample,
        scratch: Activations,
        scores: np.ndarray,
        embeddings: np.ndarray | None = None,
    ) -> None:
        """Compute `scores`, before softmax or sigmoid, float32 [seeds, classes].

        `embeddings`, if wanted, gets the seeds' last hidden layer, float32 [seeds, hidden]. A network of one layer has
        none.
        """
        rows = sample.ends[-1]
        hidden = multiply(self.layers[0], aggregated, rows, scratch)
        for depth, layer in enumerate(self.layers[1:], start=1):
            below = hidden[: rows * layer.inputs].reshape(rows, layer.inputs)
            rows = sample.ends[len(self.layers) - 1 - depth]
            if depth == len(self.layers) - 1 and embeddings is not None:
                _copy_of_seeds(sample, below[:rows], embeddings)
            if layer.aggregation.passes_on and layer.aggregated_dtype is np.float32:
                aggregated = hidden
            else:
                aggregated = scratch.aggregated(rows * layer.aggregated, layer.aggregated_dtype)
                aggregate(below, sample, rows, layer.aggregation, aggregated)
            hidden = multiply(layer, aggregated, rows, scratch)
        _copy_of_seeds(sample, hidden[: rows * self.classes].reshape(rows, self.classes), scores)


def multiply(layer: Layer, rows: np.ndarray, count: int, scratch: Activations) -> np.ndarray:
    """Apply the layer's products, each to the output of the one before. The result is flat float32."""
    for product in layer.products:
        out = scratch.hidden(count * product.outputs)
        product.apply(rows, count, out)
        rows = out
    return rows


def linear_part(layer: Layer) -> Layer:
    """The layer's aggregation alone, without bias and ReLU: what can be continued by sums."""
    return replace(layer, aggregation=replace(layer.aggregation, bias=no_bias(), relu=False), products=())


def finish_aggregation(layer: Layer, rows: np.ndarray, out: np.ndarray) -> None:
    """Bias and ReLU of the layer's aggregation. `rows`: float32 [rows, aggregated], of its linear part; `out`: float32,
    flat, perhaps the same memory."""
    _finish(rows, layer.aggregation.bias, layer.aggregation.relu, out)


@kernel
def _finish(rows: np.ndarray, bias: np.ndarray, relu: bool, out: np.ndarray) -> None:
    width = rows.shape[1]
    for row in range(len(rows)):
        line = out[row * width : (row + 1) * width]
        for column in range(width):
            value = rows[row, column]
            if len(bias) > 0:
                value += bias[column]
            # NaN stays NaN, as in numpy's maximum.
            line[column] = np.float32(0.0) if relu and value < 0.0 else value


def no_bias() -> np.ndarray:
    return np.zeros(0, dtype=np.float32)


def take(tensors: Mapping[str, np.ndarray], key: str, shape: tuple[int, ...]) -> np.ndarray:
    """The tensor `key` as float32, or a ValueError that says which tensor is missing or misshapen."""
    if key not in tensors:
        raise ValueError(f"weights lack {key!r}; they have {', '.join(sorted(tensors))}")
    tensor = np.ascontiguousarray(tensors[key], dtype=np.float32)
    if tensor.shape != shape:
        raise ValueError(f"weights {key!r} have shape {list(tensor.shape)}, expected {list(shape)}")
    return tensor


def _copy_of_seeds(sample: NeighbourSample, rows: np.ndarray, out: np.ndarray) -> None:
    """Copy one row per requested seed; a repeated seed may be one row of the sample."""
    if sample.seed_rows is None:
        out[...] = rows
    else:
        copy_rows(rows, sample.seed_rows, out)


def copy_rows(rows: np.ndarray, wanted: np.ndarray, out: np.ndarray) -> None:
    """out = rows[wanted], without a copy in between. `wanted` are row numbers in range."""
    np.take(rows, wanted, axis=0, out=out, mode="clip")
