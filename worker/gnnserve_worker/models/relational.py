"""Networks over graphs of several types or relations: their layers as matrices, how files have these, and what the
worker may ask of an architecture of such networks.

GraphSAGE and RGCN are of one form, whatever their checkpoints look like:

    h'(i) = Σ over relations r that i's type reads: mean over neighbours j of h(j) · W_r + c_r,
            + h(i) · W_type + b_type,   ReLU between layers

so an architecture says which tensors a checkpoint has, and what W_r, c_r, W_type and b_type of each layer are made of.
A variant's file has these, whatever architecture they are of: `layers.<number>.relations.<place>`, `.own.<place>` and
`.biases.<place>`, places being those of the graph's manifest. Layers that tables are made by have `.shifts` too.

Tables store h(j) · W_r + c_r and h(i) · W_type + b_type (`projection`), which is exact, since means and sums commute
with linear maps. An architecture computes them by operators that numpy's arrays and torch's tensors share (`@`, `+`,
`.T`), so that training needs no module of each, and serving never imports torch.
"""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from gnnserve_api.graph_schema import GraphSchema, RelationManifest
from gnnserve_api.repository import AttentionManifest
from gnnserve_worker.models.architecture import ArchitectureSpec

Array = Any
"""A numpy array; or, while a network is trained, a tensor of torch."""
Tensors = Mapping[str, Array]
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


def layer_of(number: int, tensors: Mapping[str, np.ndarray]) -> RelationalLayer:
    """The layer that `layer_tensors` wrote. ValueError: there is none."""
    found: dict[str, dict[int, np.ndarray]] = {part: {} for part in _PARTS}
    for key, tensor in tensors.items():
        group, layer, part, place = key.split(".") if key.count(".") == 3 else ("", "", "", "")
        if group == "layers" and layer == str(number) and part in found:
            found[part][int(place)] = np.asarray(tensor, dtype=np.float32)
    if not found["biases"] and not found["own"]:
        raise ValueError(f"weights lack layer {number}; they have {', '.join(sorted(tensors)) or 'nothing'}")
    return RelationalLayer(found["relations"], found["own"], found["biases"], found["shifts"])


@dataclass(frozen=True, slots=True)
class RelationalShape:
    """What the shapes of a network's tensors follow from."""

    graph: GraphSchema
    hidden: int
    classes: int
    layers: int
    bases: int | None = None
    """Matrices that those of all relations are combined from; None: each has its own."""
    attention: AttentionManifest | None = None

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

    def layers(self, tensors: Tensors, shape: RelationalShape) -> Sequence[RelationalLayer]:
        """The layers of a checkpoint that has all of `shapes`."""
        return [self.layer(tensors, shape, layer) for layer in range(shape.layers)]

    @abstractmethod
    def layer(self, tensors: Tensors, shape: RelationalShape, layer: int) -> RelationalLayer:
        """One of them, numbered from 0."""
