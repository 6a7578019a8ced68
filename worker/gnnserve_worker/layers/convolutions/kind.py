"""The interface that each kind of convolution has: its tensors, what it reads beside rows of neighbours, and the
convolution that is built of both.

A built convolution is told apart into products of the rows of neighbours, which are of each node alone, the aggregate
over lists, and what is behind it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import ClassVar

import numpy as np

from gnnserve_api.files.layers import ConvolutionManifest
from gnnserve_worker.layers.lists import RelationLists
from gnnserve_worker.layers.memory import RunMemory

Shapes = Mapping[str, tuple[int, ...]]
"""Shapes of tensors by their names."""


class Degrees(Enum):
    """Where a convolution has the degrees of nodes from."""

    NONE = auto()
    """It reads none, or counts the list of a target alone."""
    OF_SAMPLE = auto()
    """The weights that a sample has of the graph (`sampling/normalised.py`): exact with any fan-outs."""
    OF_LISTS = auto()
    """The lists themselves, which must be whole, and one hop deeper."""


@dataclass(frozen=True, slots=True)
class Ends:
    """The rows that a convolution reads at both ends of its edges."""

    source: int
    """Columns of the rows of neighbours."""
    target: int
    """Columns of the rows of the nodes that read them."""
    network_input: int
    """Columns of the target's rows before the first layer."""
    layer: int
    """Number of the layer, the first being 1."""
    is_same_type: bool
    """Whether both ends are of one type, so that a node can read itself."""
    is_only_type: bool
    """Whether all nodes of the graph are of one type."""
    is_whole: bool
    """Whether it reads all edges of its relation."""
    is_undirected: bool
    """Whether lists hold each edge at both of its ends."""
    edge_columns: tuple[str, ...]
    """Names of the columns that the edges have."""
    shares_softmax: bool = False
    """Whether its softmax is over the lists of all relations of the target's type together."""
    are_products: bool = False
    """Whether the rows are the convolution's own products (`projected.py`)."""

    def columns_of(self, names: Sequence[str]) -> tuple[int, ...]:
        """Places of columns of the edges."""
        return tuple(self.edge_columns.index(name) for name in names)

    def column_of(self, name: str) -> int | None:
        """Place of a column of the edges; None: no column is named."""
        return self.edge_columns.index(name) if name else None


@dataclass(frozen=True, slots=True)
class Step:
    """Input of a convolution in one run."""

    sources: np.ndarray
    """Rows of the type that is read, float32 [rows, columns]: of all nodes that lists name."""
    targets: np.ndarray
    """Rows of the type that reads: the first ones are of the targets."""
    counts: tuple[int, ...]
    """Targets that are written by each of its hops; a hop reads rows of those of the hop before."""
    lists: RelationLists
    network_input: np.ndarray
    """Rows of the type that reads as they are before the first layer; [0, 0]: it reads none."""
    memory: RunMemory

    @property
    def count(self) -> int:
        """Targets that the convolution writes."""
        return self.counts[-1]


class BuiltConvolution(ABC):
    """A convolution with its weights, for threads at once."""

    def of_sources(self, sources: np.ndarray, memory: RunMemory) -> np.ndarray:
        """Products of rows of neighbours, a row each; without a product, the rows themselves."""
        del memory
        return sources

    @abstractmethod
    def aggregate(self, products: np.ndarray, step: Step) -> np.ndarray:
        """Aggregate of the products over the list of each target, float32 [targets, …]."""

    def behind(self, aggregated: np.ndarray, step: Step) -> np.ndarray:
        """Rows of the targets, float32 [targets, width], in memory of the run; by itself, the aggregate as it is."""
        del step
        return aggregated

    def run(self, step: Step) -> np.ndarray:
        return self.behind(self.aggregate(self.of_sources(step.sources, step.memory), step), step)


@dataclass(frozen=True, slots=True)
class EdgeScores:
    """Scores by which edges are weighed, for each head."""

    of_edges: np.ndarray
    """float32 [edges, heads]; a softmax makes weights of them where they are."""
    of_targets: np.ndarray
    """float32 [targets, heads]: of each node itself; [0, heads]: none reads itself."""


class AttendingConvolution(BuiltConvolution):
    """A sum that is weighed by a softmax of scores, which a layer may take over several relations together."""

    @abstractmethod
    def scores(self, products: np.ndarray, step: Step) -> EdgeScores: ...

    @abstractmethod
    def attended(self, products: np.ndarray, scores: EdgeScores, step: Step, *, are_weights: bool) -> np.ndarray:
        """Aggregate of the products, weighed by a softmax of the scores over the list of each target. `are_weights`:
        whether the scores are weights already, of a softmax over more lists than these."""

    def aggregate(self, products: np.ndarray, step: Step) -> np.ndarray:
        return self.attended(products, self.scores(products, step), step, are_weights=False)


class ConvolutionKind(ABC):
    """One kind of convolution. It has no state: what differs is in the description."""

    reads: ClassVar[frozenset[str]]
    """Fields of the description that it reads, beside its relation and its width."""

    @abstractmethod
    def tensors(self, conv: ConvolutionManifest, ends: Ends) -> Shapes:
        """Shapes of its tensors, under torch_geometric's names."""

    @abstractmethod
    def build(self, conv: ConvolutionManifest, ends: Ends, tensors: Mapping[str, np.ndarray]) -> BuiltConvolution:
        """`tensors`: float32, of the shapes that `tensors` names."""

    def problems(self, conv: ConvolutionManifest, ends: Ends) -> list[str]:
        """What is wrong with the description, a sentence each, without its place."""
        del conv, ends
        return []

    def width(self, conv: ConvolutionManifest, ends: Ends) -> int:
        """Columns that it writes."""
        del ends
        return conv.width

    def reads_target(self, conv: ConvolutionManifest) -> bool:
        """Whether it reads the row of the node that its sum is of."""
        del conv
        return True

    def reads_network_input(self, conv: ConvolutionManifest) -> bool:
        """Whether it reads rows of targets as they are before the first layer."""
        del conv
        return False

    def degrees(self, conv: ConvolutionManifest, ends: Ends) -> Degrees:
        del conv, ends
        return Degrees.NONE


def dense_shapes(name: str, outputs: int, inputs: int, *, bias: bool) -> Shapes:
    """Shapes of one matrix and its bias."""
    weight = {f"{name}.weight": (outputs, inputs)}
    return {**weight, f"{name}.bias": (outputs,)} if bias else weight
