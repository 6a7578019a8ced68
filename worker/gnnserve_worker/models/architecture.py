"""Interface of an architecture to the worker: an object for each kind of graph that it is for, in a file of its own
beside this one.

An architecture says which tensors its layers have, how serving's layers are built from them, which part of the first
layer is linear (a projected table stores that product), how it is recognised in a checkpoint and how it is trained by
default. `registry.py` finds the objects of an `Architecture`. torch_geometric's modules are registered in
`generation/networks.py`, so that serving never imports torch.

Over several types or relations, layers are matrices. GraphSAGE and RGCN are of one form, whatever their checkpoints
look like:

    h'(i) = Σ over relations r that i's type reads: mean over neighbours j of h(j) · W_r + c_r,
            + h(i) · W_type + b_type,   ReLU between layers

so an architecture says which tensors a checkpoint has, and what W_r, c_r, W_type and b_type of each layer are made of.
A variant's file has these, whatever architecture they are of: `layers.<number>.relations.<place>`, `.own.<place>` and
`.biases.<place>`, places being those of the graph's manifest. Layers that tables are made by have `.shifts` too.

Tables store h(j) · W_r + c_r and h(i) · W_type + b_type (`projection`), which is exact, since means and sums commute
with linear maps. An architecture computes them by operators that numpy's arrays and torch's tensors share (`@`, `+`,
`.T`), so that training needs no module of each.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, ClassVar, TypeVar

import numpy as np

from gnnserve_api.files.graph_schema import GraphSchema, RelationManifest
from gnnserve_api.files.profile import Compute
from gnnserve_api.files.repository import AttentionManifest, NetworkManifest
from gnnserve_api.spec.model import Architecture
from gnnserve_api.variants import Storage
from gnnserve_worker.models.layer_kind import LayerKind
from gnnserve_worker.models.network import Layer, take
from gnnserve_worker.models.plain import PlainGraph, Reading
from gnnserve_worker.tables.table import Aggregator

# --- over any graph


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


# --- over graphs of one type and one relation


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
    """Axis of a weight: what its dimension counts."""

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


# --- over graphs of several types or relations


Array = Any
"""A numpy array; or, while a network is trained, a tensor of torch."""
NamedArrays = Mapping[str, Array]
Shapes = Mapping[str, tuple[int, ...]]
_PARTS = ("relations", "own", "biases", "shifts")
"""Parts of a layer, as keys of a file name them."""


@dataclass(frozen=True, slots=True)
class Heads:
    """How a layer attends."""

    heads: int
    columns: int
    """What each head gives."""
    averages: bool
    """Whether the heads' sums are averaged, as those of the last layer are; otherwise they stand beside each other."""
    negative_slope: float

    @property
    def outputs(self) -> int:
        return self.columns if self.averages else self.heads * self.columns

    @staticmethod
    def beside(*matrices: Array) -> Array:
        """Matrices beside each other, of numpy or torch."""
        if all(isinstance(one, np.ndarray) for one in matrices):
            return np.concatenate(matrices, axis=1)
        return sys.modules["torch"].cat(matrices, dim=1)  # loaded where there are tensors


@dataclass(frozen=True, slots=True)
class RelationalLayer:
    """The matrices of a layer, float32. Relations and types are named by their places in the graph's manifest."""

    relations: Mapping[int, Array]
    """W_r [columns of the source, outputs]. Absent: nothing is read by the relation."""
    own: Mapping[int, Array]
    """W_type [columns of the type, outputs]. Absent: a node's own row is not read."""
    biases: Mapping[int, Array]
    """b_type [outputs]. Absent: the layer gives nothing for nodes of the type: its output is 0."""
    shifts: Mapping[int, Array] = field(default_factory=dict)
    """c_r [outputs]; absent: 0."""
    heads: Heads | None = None
    """Attention heads, where the layer attends: W_r and W_type then make what `gat.py` says, and biases are added to
    the sum. None: the layer sums means."""

    @property
    def columns(self) -> int:
        """Width of a row of its products."""
        if self.heads is None:
            return self.outputs
        matrices = (*self.relations.values(), *self.own.values())
        return max(int(matrix.shape[1]) for matrix in matrices)

    @property
    def outputs(self) -> int:
        return int(next(iter(self.biases.values())).shape[0])


def layer_tensors(number: int, layer: RelationalLayer) -> dict[str, np.ndarray]:
    """A layer as tensors of a file. `number`: of the layer, from 0."""
    return {
        f"layers.{number}.{part}.{place}": np.ascontiguousarray(matrix, dtype=np.float32)
        for part in _PARTS
        for place, matrix in getattr(layer, part).items()
    }


def layer_of(number: int, tensors: NamedArrays, prefix: str = "") -> RelationalLayer:
    """The layer that `layer_tensors` wrote, without its heads. `prefix`: what its keys begin with. ValueError: there is
    none."""
    found: dict[str, dict[int, Array]] = {part: {} for part in _PARTS}
    begin = f"{prefix}layers.{number}."
    for key, tensor in tensors.items():
        part, _, place = key.removeprefix(begin).partition(".")
        if key.startswith(begin) and part in found:
            found[part][int(place)] = tensor
    if not found["biases"] and not found["own"]:
        raise ValueError(f"weights lack layer {prefix}{number}; they have {', '.join(sorted(tensors)) or 'nothing'}")
    return RelationalLayer(found["relations"], found["own"], found["biases"], found["shifts"])


@dataclass(frozen=True, slots=True)
class RelationalShape:
    """Sizes that the shapes of a network's tensors follow from."""

    graph: GraphSchema
    hidden: int
    classes: int
    layers: int
    bases: int | None = None
    """Matrices that those of all relations are combined from; None: each has its own."""
    attention: AttentionManifest | None = None

    @staticmethod
    def of(graph: GraphSchema, network: NetworkManifest) -> RelationalShape:
        """That of a network that files have as `layer_tensors`."""
        return RelationalShape(graph, network.hidden, network.classes, network.layers, attention=network.attention)

    def with_heads(self, layer: RelationalLayer, number: int) -> RelationalLayer:
        """The layer of that number, as files have it, with the heads that it attends by, if it does."""
        return layer if self.attention is None else replace(layer, heads=self.heads_of(number))

    def heads_of(self, layer: int) -> Heads:
        """How a layer attends, of an architecture that does."""
        if self.attention is None:
            raise ValueError("a network without attention has no heads")
        if layer == self.layers - 1:
            return Heads(
                self.attention.output_heads, self.classes, averages=True, negative_slope=self.attention.negative_slope
            )
        heads = self.attention.heads
        return Heads(heads, self.hidden // heads, averages=False, negative_slope=self.attention.negative_slope)

    def width(self, kind: int) -> int:
        """Columns that layer 1 reads of a node of that type: its features, or an embedding as wide as the hidden
        layers."""
        features = self.graph.types[kind].features
        return self.hidden if features is None else features

    def outputs(self, layer: int) -> int:
        return self.classes if layer == self.layers - 1 else self.hidden

    def embedded(self) -> list[int]:
        """Places of the types whose embeddings are learned."""
        return [place for place, kind in enumerate(self.graph.types) if kind.features is None]

    def reached(self) -> list[frozenset[int]]:
        """Places of the types that have a hidden state before each layer, and behind the last one: at first all, then
        those that read one that has."""
        ends = [(self.graph.place_of(one.source), self.graph.place_of(one.target)) for one in self.graph.relations]
        found = [frozenset(range(len(self.graph.types)))]
        for _ in range(self.layers):
            found.append(frozenset(target for source, target in ends if source in found[-1]))
        return found

    def read(self, layer: int) -> list[tuple[int, RelationManifest]]:
        """Relations that the layer reads, by place."""
        before = self.reached()[layer]
        relations = enumerate(self.graph.relations)
        return [(place, one) for place, one in relations if self.graph.place_of(one.source) in before]


def embedding_key(kind: str) -> str:
    """Key of the embeddings of a type, float32 [nodes, hidden]: a torch.nn.ModuleDict `embeddings` of Embedding."""
    return f"embeddings.{kind}.weight"


def relation_key(layer: int, relation: RelationManifest) -> str:
    """Key that the tensors of a relation's convolution begin with, in a HeteroConv of torch_geometric."""
    return f"convs.{layer}.convs.<{relation.source}___{relation.name}___{relation.target}>"


def default_key(kind: int) -> str:
    """Key of what new nodes of a type without features begin with, float32 [hidden]. `kind`: the place of the type."""
    return f"types.{kind}.default"


def moment_key(kind: int, moment: str) -> str:
    """Key of the mean or deviation of a type's columns, float64."""
    return f"types.{kind}.{moment}"


class RelationalSpec(ArchitectureSpec):
    """An architecture over graphs of several types or relations."""

    gives_own_part: ClassVar[bool] = False
    """Whether a type that reads nothing keeps its own part through all layers."""

    def shapes(self, shape: RelationalShape) -> Shapes:
        """The tensors of a checkpoint, by key."""
        kinds = shape.graph.types
        embedded = {embedding_key(kinds[place].name): (kinds[place].nodes, shape.hidden) for place in shape.embedded()}
        return {**embedded, **self.layer_shapes(shape)}

    @abstractmethod
    def layer_shapes(self, shape: RelationalShape) -> Shapes:
        """The tensors beside embeddings."""

    def layers(self, tensors: NamedArrays, shape: RelationalShape) -> Sequence[RelationalLayer]:
        """The layers of a checkpoint that has all of `shapes`."""
        return [self.layer(tensors, shape, layer) for layer in range(shape.layers)]

    @abstractmethod
    def layer(self, tensors: NamedArrays, shape: RelationalShape, layer: int) -> RelationalLayer:
        """One of them, numbered from 0."""
