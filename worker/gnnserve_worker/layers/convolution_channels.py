"""Channels of the tensors of one convolution: which axes have them, of which rows, and of rows inside of it.

Pure. Where a convolution's tensors have channels follows from their shapes: an axis that grows with the columns of
neighbours, of the node itself or of the output has these channels, as many times as it grows. Rows inside of a
convolution that its output or its input is as wide as have as many, and grow with these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from enum import Enum, auto
from typing import NamedTuple

import msgspec

from gnnserve_api.files.layers import Convolution, ConvolutionManifest
from gnnserve_worker.layers.convolutions.kind import Ends
from gnnserve_worker.layers.convolutions.registry import KINDS


class Role(Enum):
    """Rows that an axis of a convolution's tensors has the channels of."""

    SOURCE = auto()
    TARGET = auto()
    NETWORK_INPUT = auto()
    OUTPUT = auto()
    BETWEEN = auto()
    """Between two products of the convolution."""


class ConvolutionAxis(NamedTuple):
    role: Role
    product: int
    """Number of the product that writes rows between two of them."""
    axis: int
    blocks: int
    joins_heads: bool


def axes_of(conv: ConvolutionManifest, ends: Ends) -> Iterator[tuple[str, ConvolutionAxis]]:
    """Axes of a convolution's tensors that have channels, by the tensor's name."""
    kind = KINDS[conv.conv]
    own = kind.tensors(conv, ends)
    for role, product, wide_conv, wide_ends, count in _widened(conv, ends):
        wider = kind.tensors(wide_conv, wide_ends)
        for name, shape in own.items():
            if name not in wider:
                continue
            for axis, (size, more) in enumerate(zip(shape, wider[name], strict=True)):
                if more != size:
                    joins_heads = (more - size) % count != 0
                    yield (
                        name,
                        ConvolutionAxis(role, product, axis, 1 if joins_heads else (more - size) // count, joins_heads),
                    )


def _widened(conv: ConvolutionManifest, ends: Ends) -> Iterator[tuple[Role, int, ConvolutionManifest, Ends, int]]:
    """The convolution with twice as many channels of some rows, of which there are so many."""
    yield Role.SOURCE, -1, conv, replace(ends, source=2 * ends.source), ends.source
    yield Role.TARGET, -1, conv, replace(ends, target=2 * ends.target), ends.target
    yield Role.NETWORK_INPUT, -1, conv, replace(ends, network_input=2 * ends.network_input), ends.network_input
    for number, one in enumerate(conv.mlp):
        is_last = number == len(conv.mlp) - 1
        products = list(conv.mlp)
        products[number] = msgspec.structs.replace(one, width=2 * one.width)
        wide = msgspec.structs.replace(conv, mlp=tuple(products), width=conv.width * (2 if is_last else 1))
        yield Role.OUTPUT if is_last else Role.BETWEEN, number, wide, ends, one.width
    if not conv.mlp:
        yield Role.OUTPUT, -1, msgspec.structs.replace(conv, width=2 * conv.width), ends, conv.width


# --- rows inside of convolutions


class RowsInside(Enum):
    """Rows inside of a convolution."""

    PROJECTED = auto()
    """Products before an aggregation."""
    AGGREGATED = auto()
    """What GEN aggregates, of products of both ends."""
    TOWER = auto()
    """What each product of PNA writes, but for the last one."""


def rows_inside(conv: ConvolutionManifest, ends: Ends) -> RowsInside | None:
    if conv.projects:
        return RowsInside.PROJECTED
    if conv.conv is Convolution.PNA:
        return RowsInside.TOWER
    # Rows as wide as the output have no product: they are aggregated as they are.
    is_product = conv.conv is Convolution.GEN and conv.width not in (ends.source, ends.target)
    return RowsInside.AGGREGATED if is_product else None


class InnerRows(NamedTuple):
    """Rows inside of a convolution that an axis has the channels of."""

    number: int
    """As of `Place.inner` in `channels.py`; 0: the axis has channels of other rows."""
    skipped: int = 0
    """First blocks along the axis, which are of other rows."""


def _inner_of_projected(_conv: ConvolutionManifest, name: str, axis: ConvolutionAxis) -> InnerRows:
    return InnerRows(-1 if axis.role is Role.SOURCE and (name, axis.axis) != ("lin.weight", 1) else 0)


def _inner_of_aggregated(_conv: ConvolutionManifest, name: str, axis: ConvolutionAxis) -> InnerRows:
    is_read = (name, axis.axis) == ("mlp.0.weight", 1)
    return InnerRows(-1 if is_read or (axis.role is Role.OUTPUT and not name.startswith("mlp.")) else 0)


def _inner_of_tower(conv: ConvolutionManifest, name: str, axis: ConvolutionAxis) -> InnerRows:
    """Products are numbered from the first of `pre_nns` on, the last of `post_nns` being -1, which `lin` reads."""
    part, *places = name.split(".")
    if part not in ("pre_nns", "post_nns", "edge_encoder"):
        return InnerRows(-1 if (name, axis.axis) == ("lin.weight", 1) else 0)
    first = -conv.pre_layers - conv.post_layers
    if part == "edge_encoder":
        return InnerRows(first)
    place = int(places[1]) // 2 + (0 if part == "pre_nns" else conv.pre_layers)
    if axis.axis == 0:
        return InnerRows(first + place)
    if place == 0:  # of both ends, and of what is made of columns of edges
        return InnerRows(first, 2) if axis.blocks > 2 else InnerRows(0)
    return InnerRows(first + place - 1, int(place == conv.pre_layers))


_INNER_ROWS: Mapping[RowsInside | None, Callable[[ConvolutionManifest, str, ConvolutionAxis], InnerRows]] = {
    RowsInside.PROJECTED: _inner_of_projected,
    RowsInside.AGGREGATED: _inner_of_aggregated,
    RowsInside.TOWER: _inner_of_tower,
}
"""Which axes of tensors have channels of rows inside."""


def inner_rows_of(conv: ConvolutionManifest, ends: Ends, name: str, axis: ConvolutionAxis) -> InnerRows:
    """Rows inside of the convolution that an axis of the tensor of that name has the channels of."""
    return _INNER_ROWS[rows_inside(conv, ends)](conv, name, axis)
