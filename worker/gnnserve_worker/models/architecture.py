"""What the worker may ask of an architecture: an object for each kind of graph that it is for, in a file of its own
beside this one.

An architecture says which tensors its layers have, how serving's layers are built from them, which part of the first
layer is linear (a projected table stores that product), how it is recognised in a checkpoint and how it is trained by
default. `registry.py` finds the objects of an `Architecture`; those over several relations are described in
`relational.py`. torch_geometric's modules are registered in `generation/networks.py`, so that serving never imports
torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import ClassVar, TypeVar

import numpy as np

from gnnserve_api.profile import Compute
from gnnserve_api.repository import AttentionManifest
from gnnserve_api.spec.model import Architecture
from gnnserve_api.variants import Storage
from gnnserve_worker.models.layer_kind import LayerKind
from gnnserve_worker.models.network import Layer, take
from gnnserve_worker.models.plain import PlainGraph, Reading
from gnnserve_worker.tables.gather import Aggregator


@dataclass(frozen=True, slots=True)
class FirstLayer:
    """The function: aggregate of the neighbours · `neighbours` + node's features · `own` + `bias`."""

    aggregator: Aggregator
    """How the neighbours are aggregated."""
    neighbours: np.ndarray
    """Weights of the neighbours' aggregate, float32 [columns, outputs]."""
    own: np.ndarray | None
    """Weights of the node's own features, float32 [columns, outputs]. None: one matrix multiplies the sum of both."""
    bias: np.ndarray
    """Bias, float32 [outputs]."""
    own_share: float
    """Factor of the node's own features in that sum: GIN's 1 + ε. Unused where `own` has weights of its own, and by
    attention."""
    averaged_heads: int = 1
    """Number of equal parts of the outputs whose mean the layer writes. The bias is as wide as all parts together."""

    @property
    def columns(self) -> int:
        return len(self.neighbours)

    @property
    def outputs(self) -> int:
        return int(self.neighbours.shape[1])

    def keep(self, columns: np.ndarray) -> FirstLayer:
        """The layer for inputs with the given columns only, in the given order."""
        own = None if self.own is None else self.own[columns]
        return replace(self, neighbours=self.neighbours[columns], own=own)


Size = TypeVar("Size")


class Axis(Enum):
    """What a dimension of a weight counts."""

    INPUTS = "columns that the layer reads"
    INNER = "columns between the layer's two products"
    OUTPUTS = "columns that the layer writes"
    HEADS = "attention heads"
    HEAD_OUTPUTS = "columns that one head writes"
    ALL_OUTPUTS = "columns that all heads write, beside each other"
    ONE = "a single number"


@dataclass(frozen=True, slots=True)
class LayerKey:
    """The weight and the layer that a key of a checkpoint stands for."""

    layer: str
    """The layer's name in the file."""
    weight: str
    """torch_geometric's name of the weight within its layer: a key of `OneTypeSpec.shapes`."""


class LayerWeights:
    """The tensors of one layer, by their names within it."""

    def __init__(
        self,
        tensors: Mapping[str, np.ndarray],
        layer: int,
        shapes: Mapping[str, tuple[Axis, ...]],
        sizes: Mapping[Axis, int],
        attention: AttentionManifest | None,
    ) -> None:
        self._tensors = tensors
        self._layer = layer
        self._shapes = shapes
        self._sizes = sizes
        self.attention = attention
        """Heads and slope of the network's attention; None where its architecture has none."""

    def __getitem__(self, weight: str) -> np.ndarray:
        """The tensor of that name within the layer, as float32. ValueError: it is missing or misshapen."""
        shape = tuple(self._sizes[axis] for axis in self._shapes[weight])
        return take(self._tensors, key_of(self._layer, weight), shape)

    def size(self, axis: Axis) -> int:
        return self._sizes[axis]


@dataclass(frozen=True, slots=True)
class Projection:
    """Matrices whose products with features are the rows of a projected table, float32 [columns, width]."""

    rows: np.ndarray
    own: np.ndarray | None
    """Matrix of the rows that are read of the node itself; None: they are the same as the neighbours'."""


class ArchitectureSpec(ABC):
    """An architecture over one kind of graph. Specs have no state: one object serves every revision."""

    architecture: ClassVar[Architecture]
    module: ClassVar[str]
    """What of torch_geometric.nn a checkpoint is the state dict of, for messages."""
    learning_rate: ClassVar[float]
    """Step size of Adam where the manifest gives none."""
    layer_kinds: ClassVar[tuple[LayerKind, ...]] = ()
    """Layers of files that it reads, as they are or once their tensors have other names."""
    assumptions: ClassVar[Mapping[str, str]]
    """What a checkpoint does not tell of the network, and what is taken for it, by name."""
    own_fields: ClassVar[tuple[str, ...]] = ()
    """Fields of spec.model that few architectures have, this one among them."""


class OneTypeSpec(ArchitectureSpec):
    """An architecture over graphs of one type of nodes and one relation."""

    shapes: ClassVar[Mapping[str, tuple[Axis, ...]]]
    """The tensors of each layer, by torch_geometric's names within the layer. Checks go through them in this order, so
    a tensor whose wrong shape explains that of others comes first."""
    first_products: ClassVar[tuple[str, ...]]
    """Tensors of the first layer that are multiplied with features before any non-linearity. A projected table stores
    these products (`project`), and the weights of its variant lack the tensors."""
    layer_tensors: ClassVar[str]
    """The tensors that a checkpoint must have, for messages."""
    layer_names: ClassVar[str] = "convs.0, convs.1 … or conv1, conv2 …"
    """What a checkpoint may call its layers, for messages."""
    aggregator: ClassVar[Aggregator]
    """How a layer aggregates neighbours."""
    stores_own: ClassVar[bool] = False
    """Whether a projected table has a second matrix of rows, for the node itself."""

    @abstractmethod
    def recognise(self, keys: Iterable[str]) -> dict[str, LayerKey]:
        """The keys of a checkpoint that are weights of this architecture's layers, the most distinctive ones first.

        Only names are considered. A key that other layers may have too counts only if a distinctive one is there.
        """

    @abstractmethod
    def compute_for(self, storage: Storage) -> Compute:
        """Precision of matrix products over a table of this storage, on this machine."""

    @abstractmethod
    def build_layer(self, weights: LayerWeights, *, relu: bool, compute: Compute) -> Layer:
        """Build a layer that reads features or hidden states."""

    @abstractmethod
    def build_projected_layer(self, weights: LayerWeights, *, relu: bool) -> Layer:
        """Build the first layer of a network whose table stores the `first_products`."""

    @abstractmethod
    def split_first_layer(self, tensors: Mapping[str, np.ndarray]) -> FirstLayer:
        """The linear part of the first layer."""

    @abstractmethod
    def plain_layer(
        self, weights: Mapping[str, np.ndarray], rows: np.ndarray, graph: PlainGraph, reading: Reading,
        attention: AttentionManifest | None,
    ) -> np.ndarray:  # fmt: skip
        """The layer's output for all nodes, float64, before its activation. `weights`: by their names within it."""

    def plain_rows(self, features: np.ndarray, graph: PlainGraph, reading: Reading, hops: int | None) -> np.ndarray:
        """What the first layer reads of each node."""
        return features

    def project(self, tensors: Mapping[str, np.ndarray]) -> Projection:
        """The matrices whose products with features a projected table stores. `tensors`: at least the
        `first_products`."""
        rows, *own = (np.ascontiguousarray(tensors[key_of(0, weight)].T) for weight in self.first_products)
        return Projection(rows, own[0] if self.stores_own else None)

    @abstractmethod
    def first_layer_tensors(self, first: FirstLayer) -> dict[str, np.ndarray]:
        """The tensors that `first` stands for, by their names within the layer."""

    def split_inner(self, tensors: Mapping[str, np.ndarray]) -> FirstLayer | None:
        """The product behind the first one within the first layer, as a layer that reads its own row alone; None where
        a layer has one product."""
        return None

    def inner_tensors(self, inner: FirstLayer) -> dict[str, np.ndarray]:
        """The tensors that `inner` stands for, by their names within the layer."""
        raise ValueError(f"a layer of {self.architecture} has one product, and none behind it")

    def shapes_of(self, layer: int, sizes: Mapping[Axis, Size]) -> dict[str, tuple[Size, ...]]:
        """The tensors of a layer, by torch_geometric's keys, with the sizes of their axes."""
        return {key_of(layer, weight): tuple(sizes[axis] for axis in axes) for weight, axes in self.shapes.items()}

    def first_product_keys(self) -> frozenset[str]:
        return frozenset(key_of(0, weight) for weight in self.first_products)


def key_of(layer: int, weight: str) -> str:
    """torch_geometric's key of a weight in a state dict."""
    return f"convs.{layer}.{weight}"
