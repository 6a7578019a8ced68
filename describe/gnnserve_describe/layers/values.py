"""Values that a module computes of a graph, each by what it is made of: what a recording leaves.

Values are made once for equal parts (`Recorder.made`), so that two of them are equal where they are the same object.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

import torch

from gnnserve_api.files.layers import Activation, Aggregation, ConvolutionManifest, EdgeFilter, Norm
from gnnserve_api.files.programs import RelationKey

Tensors = Mapping[str, torch.Tensor]
"""Weights by their names in torch_geometric."""


class NotLayersError(Exception):
    """The module is no network that can be listed layer by layer. Its message: a sentence that says why."""


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """A tensor of the graph, or computed of it."""

    @property
    def parts(self) -> tuple[Value, ...]:
        """Values of nodes that it is computed of."""
        return ()

    @property
    def is_rows(self) -> bool:
        """Whether it has a row for each node."""
        return True

    @property
    def width(self) -> int:
        """Columns of rows: those of the first of its parts, where it is as wide as these."""
        return self.parts[0].width


@dataclass(frozen=True, slots=True, eq=False)
class Unread(Value):
    """Result of a function that no layer has."""

    why: str
    """A sentence."""

    @property
    def is_rows(self) -> bool:
        return False


# Of edges


@dataclass(frozen=True, slots=True, eq=False)
class _OfEdges(Value):
    @property
    def is_rows(self) -> bool:
        return False


@dataclass(frozen=True, slots=True, eq=False)
class _OfRows(Value):
    rows: Value

    @property
    def parts(self) -> tuple[Value, ...]:
        return (self.rows,)


@dataclass(frozen=True, slots=True, eq=False)
class Edges(_OfEdges):
    """int64 [2, edges]: the nodes that are read, and those that read them."""

    relation: RelationKey
    reverse: RelationKey | None = None
    """The relation that has the same edges the other way."""
    where: EdgeFilter | None = None
    """Edges that are there; None: all of the relation."""


@dataclass(frozen=True, slots=True, eq=False)
class EdgeEnds(_OfEdges):
    """int64 [edges]: one of the two."""

    relation: RelationKey
    is_reader: bool
    where: EdgeFilter | None = None


@dataclass(frozen=True, slots=True, eq=False)
class EdgeKinds(_OfEdges):
    """A column of whole numbers, which tell kinds of edges apart."""

    relation: RelationKey
    column: int


@dataclass(frozen=True, slots=True, eq=False)
class EdgeMask(_OfEdges):
    """Whether each edge is one of these."""

    relation: RelationKey
    where: EdgeFilter


@dataclass(frozen=True, slots=True, eq=False)
class EdgeColumns(_OfEdges):
    """Neighbouring columns of what edges have, as a matrix or, of one, as a vector."""

    relation: RelationKey
    first: int
    count: int
    where: EdgeFilter | None = None


@dataclass(frozen=True, slots=True, eq=False)
class EncodedColumns(_OfEdges):
    """columns · weightᵀ + bias"""

    columns: EdgeColumns
    weight: torch.Tensor
    bias: torch.Tensor


@dataclass(frozen=True, slots=True, eq=False)
class RowsOfEdges(_OfEdges):
    """Rows of the nodes that are read, one for each edge, times a column of the edges or not."""

    rows: Value
    relation: RelationKey
    weight: EdgeColumns | None = None
    where: EdgeFilter | None = None

    @property
    def parts(self) -> tuple[Value, ...]:
        return (self.rows,)


@dataclass(frozen=True, slots=True, eq=False)
class RowsByKind(_OfEdges):
    """Rows of all edges, which are other rows for each kind, and 0 for others."""

    kinds: tuple[RowsOfEdges, ...]

    @property
    def parts(self) -> tuple[Value, ...]:
        return self.kinds


@dataclass(frozen=True, slots=True, eq=False)
class EndRows(_OfEdges):
    """Rows of the nodes at one end of the edges, [edges, heads, columns of a head], or, without heads, a matrix."""

    rows: Value
    """[nodes, heads · columns of a head]"""
    relation: RelationKey
    is_reader: bool
    heads: int | None

    @property
    def parts(self) -> tuple[Value, ...]:
        return (self.rows,)


@dataclass(frozen=True, slots=True, eq=False)
class EndProducts(_OfEdges):
    """Rows of both ends multiplied number by number, [edges, heads, columns of a head]."""

    query: Value
    key: Value
    relation: RelationKey
    heads: int

    @property
    def parts(self) -> tuple[Value, ...]:
        return (self.query, self.key)


@dataclass(frozen=True, slots=True, eq=False)
class AddedScores(_OfEdges):
    """Attention by the sum of a score of each end, [edges, heads]."""

    relation: RelationKey
    source: Value
    target: Value
    slope: float | None = None
    """Slope of the leaky ReLU over them; None: there is none."""

    @property
    def parts(self) -> tuple[Value, ...]:
        return (self.source, self.target)


@dataclass(frozen=True, slots=True, eq=False)
class ProductScores(_OfEdges):
    """Attention by the product of a query and a key, each times a number of the head, [edges, heads]."""

    relation: RelationKey
    query: Value
    key: Value
    scale: torch.Tensor
    """[heads]"""

    @property
    def parts(self) -> tuple[Value, ...]:
        return (self.query, self.key)


Scores = AddedScores | ProductScores


class SoftmaxStep(Enum):
    """How far the softmax over the edges that each node reads has come."""

    LARGEST = auto()
    """Number of each node."""
    LARGEST_OF_EDGES = auto()
    SHIFTED = auto()
    """Scores less the largest, which gives the same shares."""
    EXPONENTIAL = auto()
    TOTAL = auto()
    """Number of each node."""
    TOTAL_OF_EDGES = auto()
    SHARES = auto()


@dataclass(frozen=True, slots=True, eq=False)
class Softmax(_OfEdges):
    scores: Scores
    step: SoftmaxStep

    @property
    def parts(self) -> tuple[Value, ...]:
        return (self.scores,)


@dataclass(frozen=True, slots=True, eq=False)
class AttendedRows(_OfEdges):
    """Rows of the nodes that are read, times the shares of the edges."""

    rows: Value
    """[nodes, heads · columns of a head]"""
    heads: int | None
    """None: one, without an axis of its own."""
    scores: Scores

    @property
    def parts(self) -> tuple[Value, ...]:
        return (self.rows, self.scores)


@dataclass(frozen=True, slots=True, eq=False)
class EdgeCounts(_OfEdges):
    """Edges that each node reads, or, of power -1, one divided by them."""

    relation: RelationKey
    is_clamped: bool
    """Whether they are 1 at least."""
    power: int = 1
    where: EdgeFilter | None = None


# Of nodes: float32 [nodes, width]


@dataclass(frozen=True, slots=True, eq=False)
class Features(Value):
    """Neighbouring columns of a type's features."""

    type: str
    first: int
    count: int
    columns: int
    """Columns that nodes of the type have."""

    @property
    def is_whole(self) -> bool:
        return self.count == self.columns

    @property
    def width(self) -> int:
        return self.count


@dataclass(frozen=True, slots=True, eq=False)
class Product(_OfRows):
    """rows · weightᵀ + bias"""

    weight: torch.Tensor
    """[outputs, inputs]"""
    bias: torch.Tensor | None = None

    @property
    def width(self) -> int:
        return self.weight.shape[0]


@dataclass(frozen=True, slots=True, eq=False)
class ByHead(_OfRows):
    """Rows as [nodes, heads, columns of a head]."""

    heads: int

    @property
    def is_rows(self) -> bool:
        return False


@dataclass(frozen=True, slots=True, eq=False)
class NodesBehind(_OfRows):
    """Rows as [heads, nodes, columns of a head]: weights with an axis over nodes."""

    heads: int

    @property
    def is_rows(self) -> bool:
        return False


@dataclass(frozen=True, slots=True, eq=False)
class Normed(_OfRows):
    norm: Norm
    tensors: Tensors
    epsilon: float


@dataclass(frozen=True, slots=True, eq=False)
class Activated(_OfRows):
    activation: Activation
    slope: float | None = None
    weight: torch.Tensor | None = None
    """Slopes of PReLU, one for each column; None: it has none."""


@dataclass(frozen=True, slots=True, eq=False)
class Combined(Value):
    """Sum of values, each times a number, and of one row for all nodes."""

    terms: tuple[tuple[float, Value], ...]
    row: torch.Tensor | None = None

    @property
    def parts(self) -> tuple[Value, ...]:
        return tuple(value for _, value in self.terms)


@dataclass(frozen=True, slots=True, eq=False)
class Beside(Value):
    """Columns of values beside each other."""

    values: tuple[Value, ...]

    @property
    def parts(self) -> tuple[Value, ...]:
        return self.values

    @property
    def width(self) -> int:
        return sum(each.width for each in self.values)


@dataclass(frozen=True, slots=True, eq=False)
class Stacked(Value):
    """Values along an axis of their own, which is summed up behind it."""

    values: tuple[Value, ...]
    axis: int

    @property
    def is_rows(self) -> bool:
        return False

    @property
    def parts(self) -> tuple[Value, ...]:
        return self.values


@dataclass(frozen=True, slots=True, eq=False)
class Extreme(Value):
    """The largest or the smallest of each column over values."""

    values: tuple[Value, ...]
    is_largest: bool

    @property
    def parts(self) -> tuple[Value, ...]:
        return self.values


@dataclass(frozen=True, slots=True, eq=False)
class Weighed(Value):
    """JumpingKnowledge by an LSTM."""

    values: tuple[Value, ...]
    tensors: Tensors

    @property
    def parts(self) -> tuple[Value, ...]:
        return self.values


@dataclass(frozen=True, slots=True, eq=False)
class Aggregated(_OfRows):
    """Rows of the nodes that a node reads, aggregated, each times a column of the edges or not."""

    relation: RelationKey
    aggregation: Aggregation
    weight: EdgeColumns | None = None
    where: EdgeFilter | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Convolved(Value):
    """Result of a convolution over the rows of the nodes that are read, and of those that read them."""

    manifest: ConvolutionManifest
    """Without the place of the relation."""
    tensors: Tensors
    relation: RelationKey
    rows: Value
    own: Value | None
    """None: the node's own row is not read."""
    first: Value | None = None
    """The network's input, where it reads that beside (GCNII)."""
    scales: tuple[str, ...] = field(default=())
    """Tensors that are multiplied where the convolution's output is; empty: it is not linear in them."""
    own_weight: torch.Tensor | None = None
    """A product of the own row that is added, which the manifest of a convolution does not have."""

    @property
    def parts(self) -> tuple[Value, ...]:
        return tuple(each for each in (self.rows, self.own, self.first) if each is not None)

    @property
    def width(self) -> int:
        return self.manifest.width


@dataclass(frozen=True, slots=True, eq=False)
class Attended(Value):
    """Sum of convolutions over edges of one type of nodes, weighed by one softmax over all of these edges together."""

    convolutions: tuple[Convolved, ...]

    @property
    def parts(self) -> tuple[Value, ...]:
        return self.convolutions


@dataclass(frozen=True, slots=True, eq=False)
class TypedAttention(Value):
    """Result of HGTConv for a type: GELU and a product of convolutions of one softmax, and a share of the own row."""

    convolutions: tuple[Convolved, ...]
    own: Value
    weight: torch.Tensor
    """[outputs, outputs]"""
    bias: torch.Tensor
    gate: torch.Tensor | None
    """Number whose sigmoid is the output's share; None: nothing of the own row is added."""
    is_gated: bool
    """Whether other types of the layer have a gate."""

    @property
    def parts(self) -> tuple[Value, ...]:
        return (*self.convolutions, self.own)


def values_below(*values: Value) -> Iterator[Value]:
    """The values and all that they are computed of, each once."""
    seen: set[int] = set()
    waiting = list(values)
    while waiting:
        each = waiting.pop()
        if id(each) not in seen:
            seen.add(id(each))
            yield each
            waiting += each.parts
