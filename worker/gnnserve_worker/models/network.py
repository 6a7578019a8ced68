"""Inference through a network: scores of a sampled batch, without torch.

A network is a list of layers; a layer aggregates each row's neighbours and the row itself (`tables/table.py`) and
multiplies what comes out, by the library of `blas.py`. The first one reads a table, the others hidden states. `Layer`
does so over one relation; over several, where each has weights of its own, `relation_means.py` and
`relation_attention.py` do. One file per architecture beside this one says what its layers compute, `registry.py` finds
it, `registry.py` builds. Training is `generation/networks.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from gnnserve_api.files.profile import Compute
from gnnserve_worker.kernel_cache import kernel
from gnnserve_worker.kernels.primitives import scratch_for
from gnnserve_worker.models.blas import call_library, pack_weights
from gnnserve_worker.sampling.neighbours import NeighbourSample
from gnnserve_worker.tables.table import Aggregation, RowsBehind, Table, aggregate, gather

Memory = TypeVar("Memory")
AnyLayer_co = TypeVar("AnyLayer_co", bound="NetworkLayer", covariant=True)


@dataclass(frozen=True, slots=True)
class Linear:
    """x · W + b, with or without ReLU, its weights packed for the library. `apply` reads rows of `input_dtype`."""

    inputs: int
    outputs: int
    weight: np.ndarray
    """The weights as MKL packs them, in bytes; or float32 [inputs, outputs] for scipy's BLAS."""
    dense: np.ndarray
    """The weights unpacked, float32 [inputs, outputs], for GPUs (`gpu/network.py`)."""
    bias: np.ndarray
    relu: bool
    compute: Compute
    address: int
    """Address of the library's function."""
    apply: Callable[[np.ndarray, int, np.ndarray], None] = field(init=False, repr=False, compare=False)
    """Compute `count` rows: `apply(rows, count, out)`. `rows` is flat, [count · inputs] of `input_dtype`; `out` is flat
    float32, at least [count · outputs]. A field, since a method would be one more call for every batch."""

    def __post_init__(self) -> None:
        known = (self.address, self.inputs, self.weight, self.outputs, self.bias, self.relu)
        object.__setattr__(self, "apply", partial(_linear, *known))

    @staticmethod
    def build(weight: np.ndarray, bias: np.ndarray, *, relu: bool, compute: Compute) -> Linear:
        """Pack the weights. `weight` is float32 [inputs, outputs]: rows multiply from the left. `bias` is float32
        [outputs]."""
        weight, bias = (np.ascontiguousarray(array, dtype=np.float32) for array in (weight, bias))
        inputs, outputs = weight.shape
        packed = pack_weights(weight, compute)
        return Linear(inputs, outputs, packed.weight, weight, bias, relu, packed.compute, packed.address)

    @property
    def linears(self) -> tuple[Linear, ...]:
        """The products of single matrices that this one consists of."""
        return (self,)

    @property
    def input_dtype(self) -> type[np.generic]:
        """Type of the rows that `apply` reads; uint16 stands for the bits of bfloat16."""
        return np.uint16 if self.compute == "bfloat16" else np.float32


@dataclass(frozen=True, slots=True)
class PerHead:
    """A product for each head, which reads its part of a row and writes its part of the output row."""

    heads: tuple[Linear, ...]
    """One product per head, all of the same size and precision."""

    @property
    def linears(self) -> tuple[Linear, ...]:
        return self.heads

    @property
    def inputs(self) -> int:
        return sum(head.inputs for head in self.heads)

    @property
    def outputs(self) -> int:
        return sum(head.outputs for head in self.heads)

    @property
    def input_dtype(self) -> type[np.generic]:
        return self.heads[0].input_dtype

    def apply(self, rows: np.ndarray, count: int, out: np.ndarray) -> None:
        """Compute `count` rows, with arguments as for `Linear.apply`."""
        read, written = self.inputs, self.outputs
        for number, head in enumerate(self.heads):
            _linear_of_head(
                head.address, rows[number * head.inputs :], count, head.inputs, head.weight, head.outputs, head.bias,
                head.relu, out[number * head.outputs :], read, written,
            )  # fmt: skip


Product = Linear | PerHead


@kernel
def _linear(
    address: int, inputs: int, weight: np.ndarray, outputs: int, bias: np.ndarray, relu: bool,
    rows: np.ndarray, count: int, out: np.ndarray,
) -> None:  # fmt: skip
    call_library(address, rows, count, inputs, weight, outputs, out, inputs, outputs)
    for row in range(count):
        line = out[row * outputs : (row + 1) * outputs]
        for column in range(outputs):
            value = line[column] + bias[column]
            line[column] = max(value, np.float32(0.0)) if relu else value


@kernel
def _linear_of_head(
    address: int, rows: np.ndarray, count: int, inputs: int, weight: np.ndarray, outputs: int,
    bias: np.ndarray, relu: bool, out: np.ndarray, row_stride: int, out_stride: int,
) -> None:  # fmt: skip
    call_library(address, rows, count, inputs, weight, outputs, out, row_stride, out_stride)
    for row in range(count):
        line = out[row * out_stride : row * out_stride + outputs]
        for column in range(outputs):
            value = line[column] + bias[column]
            line[column] = max(value, np.float32(0.0)) if relu else value


class Gather(Protocol):
    """Aggregate the rows of a table, and of what is behind it, for every row of the sample: flat, in scratch memory."""

    def __call__(
        self, table: Table, sample: NeighbourSample, scratch: Activations, behind: RowsBehind | None = None
    ) -> np.ndarray: ...  # pragma: no cover


class Multiply(Protocol):
    """The products of a layer over `count` rows that it has aggregated: flat float32, in scratch memory."""

    def __call__(self, rows: np.ndarray, count: int, scratch: Activations) -> np.ndarray: ...  # pragma: no cover


class NetworkLayer(Protocol):
    """A layer, over however many relations."""

    @property
    def inputs(self) -> int:
        """Columns that it reads, of the table or of the hidden states of the layer before."""
        ...  # pragma: no cover

    @property
    def outputs(self) -> int: ...  # pragma: no cover

    @property
    def bytes_per_row(self) -> int:
        """Bytes that its products read and write for a row."""
        ...  # pragma: no cover

    @property
    def weighs_neighbours(self) -> bool:
        """Whether samples must have weights (`sampling/normalised.py`)."""
        ...  # pragma: no cover

    @property
    def gather(self) -> Gather:
        """Reading a table, as the first layer."""
        ...  # pragma: no cover

    @property
    def finish(self) -> Multiply | None:
        """Makes the output of rows that `gather` returned; None: they are the output, as the table stores the
        products."""
        ...  # pragma: no cover

    def infer(self, below: np.ndarray, sample: NeighbourSample, hops: int, scratch: Activations) -> np.ndarray:
        """Reading hidden states, as a later layer: the output for the rows of the first `hops` hops, flat float32.
        `below`: float32 [rows of one hop more, inputs]."""
        ...  # pragma: no cover


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer over one relation."""

    inputs: int
    """Columns that are aggregated, of the table or of the hidden states of the layer before."""
    outputs: int
    aggregation: Aggregation
    products: tuple[Product, ...]
    """Matrix products after the aggregation; empty where the table stores the product already."""

    aggregated: int = field(init=False)
    """Columns of a row once it is aggregated."""
    aggregated_dtype: type[np.generic] = field(init=False)
    bytes_per_row: int = field(init=False)
    weighs_neighbours: bool = field(init=False)
    multiply: Multiply = field(init=False, repr=False, compare=False)
    """Apply the products, each to the output of the one before."""
    finish: Multiply | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Fields instead of properties, since they are read for every batch.
        aggregated = self.aggregation.width(self.inputs)
        dtype = self.products[0].input_dtype if self.products else np.float32
        written = 4 * sum(product.outputs for product in self.products)
        object.__setattr__(self, "aggregated", aggregated)
        object.__setattr__(self, "aggregated_dtype", dtype)
        object.__setattr__(self, "bytes_per_row", aggregated * np.dtype(dtype).itemsize + written)
        object.__setattr__(self, "weighs_neighbours", self.aggregation.weighted)
        object.__setattr__(self, "multiply", partial(_multiply, self.products))
        object.__setattr__(self, "finish", self.multiply if self.products else None)

    def gather(
        self, table: Table, sample: NeighbourSample, scratch: Activations, behind: RowsBehind | None = None
    ) -> np.ndarray:
        """See `NetworkLayer`."""
        size = sample.ends[-1] * self.aggregated
        out = scratch.aggregated(size, self.aggregated_dtype) if self.products else scratch.hidden(size)
        gather(table, self.inputs, sample, self.aggregation, out, behind)
        return out

    def infer(self, below: np.ndarray, sample: NeighbourSample, hops: int, scratch: Activations) -> np.ndarray:
        """See `NetworkLayer`."""
        rows, dtype = sample.ends[hops - 1], self.aggregated_dtype
        if self.aggregation.passes_on and dtype is np.float32:
            return self.multiply(below.reshape(-1), rows, scratch)
        aggregated = scratch.aggregated(rows * self.aggregated, dtype)
        aggregate(below, sample, rows, self.aggregation, aggregated)
        return self.multiply(aggregated, rows, scratch)


def _multiply(products: tuple[Product, ...], rows: np.ndarray, count: int, scratch: Activations) -> np.ndarray:
    for product in products:
        out = scratch.hidden(count * product.outputs)
        product.apply(rows, count, out)
        rows = out
    return rows


_HIDDEN_ARRAYS = 3


class Activations:
    """Scratch memory of one thread, which grows to the largest batch so far."""

    def __init__(self) -> None:
        self._aggregated: dict[type[np.generic], np.ndarray] = {}
        self._hidden = [np.empty(0, dtype=np.float32) for _ in range(_HIDDEN_ARRAYS)]
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
        self._turn = (self._turn + 1) % _HIDDEN_ARRAYS
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


class VariantNetwork(Protocol):
    """Network that computes the scores of a sampled batch: `Network`, or a program (`program.py`)."""

    @property
    def layers(self) -> tuple[Any, ...]:
        """Its layers; empty: it cannot be looked into."""
        ...  # pragma: no cover

    @property
    def classes(self) -> int: ...  # pragma: no cover

    @property
    def hidden(self) -> int:
        """Width of the embeddings; 0: it gives none."""
        ...  # pragma: no cover

    @property
    def bytes_per_row(self) -> int: ...  # pragma: no cover

    @property
    def weighs_neighbours(self) -> bool: ...  # pragma: no cover

    @property
    def names_leaves(self) -> bool: ...  # pragma: no cover

    @property
    def reads_payload(self) -> bool: ...  # pragma: no cover

    @property
    def gather(self) -> Callable[..., Any]:
        """Read the table, as `Gather`; the result is what `infer` takes first."""
        ...  # pragma: no cover

    def infer(
        self,
        aggregated: Any,
        sample: NeighbourSample,
        scratch: Activations,
        scores: np.ndarray,
        embeddings: np.ndarray | None = None,
    ) -> None: ...  # pragma: no cover


@dataclass(frozen=True, slots=True)
class Network(Generic[AnyLayer_co]):
    """One variant's weights, ready to run."""

    layers: tuple[AnyLayer_co, ...]
    classes: int
    bytes_per_row: int = field(init=False)
    """Bytes that the first layer's products read and write for a row."""
    weighs_neighbours: bool = field(init=False)
    """Whether samples must have weights (`sampling/normalised.py`)."""
    names_leaves: bool = field(init=False)
    """Whether leaves must have the names that they have in the view of a request, since lists of theirs are read."""
    reads_payload: bool = field(init=False)
    """Whether samples must have what edges have (`sampling/payload.py`)."""
    hidden: int = field(init=False)
    """Width of the last hidden layer; 0 for a one-layer network."""
    gather: Gather = field(init=False, repr=False, compare=False)
    """What the first layer makes of the table, for every row of the sample."""

    def __post_init__(self) -> None:
        first, last = self.layers[0], self.layers[-1]
        object.__setattr__(self, "bytes_per_row", first.bytes_per_row)
        object.__setattr__(self, "weighs_neighbours", any(layer.weighs_neighbours for layer in self.layers))
        object.__setattr__(self, "names_leaves", self.weighs_neighbours)
        object.__setattr__(self, "reads_payload", False)
        object.__setattr__(self, "hidden", last.inputs if len(self.layers) > 1 else 0)
        object.__setattr__(self, "gather", first.gather)

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
        hops, ends = len(self.layers), sample.ends
        rows = ends[-1]
        finish = self.layers[0].finish
        hidden = aggregated if finish is None else finish(aggregated, rows, scratch)
        for layer in self.layers[1:]:
            below = hidden[: rows * layer.inputs].reshape(rows, layer.inputs)
            hops -= 1
            rows = ends[hops - 1]
            if hops == 1 and embeddings is not None:
                copy_of_seeds(sample, below[:rows], embeddings)
            hidden = layer.infer(below, sample, hops, scratch)
        copy_of_seeds(sample, hidden[: rows * self.classes].reshape(rows, self.classes), scores)


def in_layers(network: VariantNetwork) -> Network[Any]:
    """A network that is known to be one of layers: what runs it was refused for others before."""
    assert isinstance(network, Network)  # noqa: S101
    return network


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


def copy_of_seeds(sample: NeighbourSample, rows: np.ndarray, out: np.ndarray) -> None:
    """Copy one row per requested seed; a repeated seed may be one row of the sample."""
    if sample.seed_rows is None:
        out[...] = rows
    else:
        copy_rows(rows, sample.seed_rows, out)


def copy_rows(rows: np.ndarray, wanted: np.ndarray, out: np.ndarray) -> None:
    """out = rows[wanted], without a copy in between. `wanted` are row numbers in range."""
    np.take(rows, wanted, axis=0, out=out, mode="clip")


def decisive_scores(scores: np.ndarray, thresholds: Sequence[float] | np.ndarray | None) -> np.ndarray:
    """float32 [nodes, classes]: the scores, less the threshold of each class. None: as they are.

    A node has the classes that are above 0 then; of classes that exclude each other, the highest. How thresholds are
    chosen is `tasks/classify_nodes/labels.py`.
    """
    if thresholds is None:
        return scores
    less: np.ndarray = scores - np.asarray(thresholds, dtype=np.float32)
    return less
