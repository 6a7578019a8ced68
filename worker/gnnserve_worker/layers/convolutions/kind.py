"""The interface that each kind of convolution has: its tensors, and what it reads beside rows of neighbours."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import ClassVar

from gnnserve_api.files.layers import ConvolutionManifest

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
    is_undirected: bool
    """Whether lists hold each edge at both of its ends."""


class ConvolutionKind(ABC):
    """One kind of convolution. It has no state: what differs is in the description."""

    reads: ClassVar[frozenset[str]]
    """Fields of the description that it reads, beside its relation and its width."""

    @abstractmethod
    def tensors(self, conv: ConvolutionManifest, ends: Ends) -> Shapes:
        """Shapes of its tensors, under torch_geometric's names."""

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
