"""Places of a network that modules of a file are put into: layers, and products before, beside and behind them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from gnnserve_api.files.layers import Activation, Convolution, JumpingKnowledge, LayersManifest, Norm, Residual
from gnnserve_worker.readers.convolutions import FoundConvolution
from gnnserve_worker.readers.description import CheckpointLayer
from gnnserve_worker.readers.names import EVERYWHERE, Scope
from gnnserve_worker.readers.parts import Assumption, FoundNorm, FoundProduct
from gnnserve_worker.readers.typed import TypedLayer

_Any = TypeVar("_Any")
_WITHOUT_TENSORS = (Convolution.APPNP,)


@dataclass(frozen=True, slots=True)
class Stated:
    """Facts that are known of a network beside its file."""

    convolutions: tuple[tuple[Convolution, ...], ...] = ()
    """Kinds of each layer that has tensors."""
    widths: tuple[int, ...] = ()
    relations: tuple[tuple[int, ...], ...] = ()
    """Places of the relations of each layer that has tensors, as they are listed."""
    before: int | None = None
    head: int | None = None
    jumping: JumpingKnowledge | None = None
    reads_input: bool | None = None
    projected: tuple[int, ...] | None = None
    """Layers that have a residual with a matrix."""
    pre_activated: tuple[int, ...] = ()
    """Layers whose norm reads what the layer reads."""
    places: tuple[tuple[Norm, Activation], ...] | None = None
    """What stands behind each product and layer, in the order of the network."""

    @staticmethod
    def of(layers: LayersManifest) -> Stated:
        having = [one for one in layers.layers if any(conv.conv not in _WITHOUT_TENSORS for conv in one.convs)]
        before = max((each.products for each in layers.before), key=len, default=())
        return Stated(
            tuple(tuple(conv.conv for conv in layer.convs) for layer in having),
            tuple(layer.convs[0].width for layer in having),
            tuple(tuple(conv.relation for conv in layer.convs) for layer in having),
            len(before),
            len(layers.head),
            layers.jumping_knowledge,
            layers.head_reads_input,
            tuple(place for place, one in enumerate(having) if one.residual is Residual.PROJECTED),
            tuple(place for place, one in enumerate(having) if one.is_pre_activated),
            (
                *((one.norm, one.activation) for one in before),
                *((one.norm, one.activation) for one in having),
                *((one.norm, one.activation) for one in layers.head),
            ),
        )


@dataclass(slots=True)
class ProductPlace:
    """A product of the network, of each type or of all."""

    name: str
    of: dict[Scope, FoundProduct]

    @property
    def one(self) -> FoundProduct:
        return next(iter(self.of.values()))

    @property
    def inputs(self) -> set[int]:
        return {each.inputs for each in self.of.values()}

    @property
    def width(self) -> int:
        return self.one.width


@dataclass(slots=True)
class LayerPlace:
    """A layer of the network."""

    name: str
    convolutions: dict[Scope, FoundConvolution]
    norms: dict[Scope, FoundNorm] = field(default_factory=dict)
    slopes: dict[Scope, CheckpointLayer] = field(default_factory=dict)
    """PReLUs, by types."""
    residual: ProductPlace | None = None
    is_pre_activated: bool = False
    """Whether the norm reads what the layer reads."""
    typed: TypedLayer | None = None
    """What HGTConv has behind its convolutions; None: it is another one."""

    @property
    def one(self) -> FoundConvolution:
        return next(iter(self.convolutions.values()))

    @property
    def width(self) -> int:
        return self.one.width

    @property
    def inputs(self) -> int:
        return self.one.inputs


@dataclass(slots=True)
class Arrangement:
    layers: list[LayerPlace] = field(default_factory=list)
    before: list[ProductPlace] = field(default_factory=list)
    head: list[ProductPlace] = field(default_factory=list)
    jumping: JumpingKnowledge = JumpingKnowledge.LAST
    jumping_module: CheckpointLayer | None = None
    head_reads_input: bool = False
    assumed: list[Assumption] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    """Tensors of modules that no network of layers has."""
    unplaced: list[str] = field(default_factory=list)
    """Tensors of norms, activations and products of which nothing tells where they stand."""
    problem: str = ""
    """Why the layers do not follow each other; empty: they do."""


def scoped(of: Mapping[Scope, _Any], scope: Scope) -> _Any | None:
    """The one of a scope, or that of all."""
    return of.get(scope, of.get(EVERYWHERE))
