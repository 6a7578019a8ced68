"""Channels of a network that is listed layer by layer: where its tensors have them, which are kept or dropped together,
and the network with a part of those of each hidden layer.

Pure. Channels of one convolution's tensors are of `convolution_channels.py`. Rows that are added or compared column by
column, as by a residual, have the same channels; those of rows inside of a convolution are chosen by themselves. What a
head reads stays as wide as it is written, and products in the head, and before the last one before the layers, keep all
of theirs: a batch computes them for few rows, or once for each node.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import msgspec
import numpy as np

from gnnserve_api.files.graph_schema import GraphSchema
from gnnserve_api.files.layers import (
    Combination,
    Convolution,
    ConvolutionManifest,
    JumpingKnowledge,
    LayerManifest,
    LayersManifest,
    Residual,
)
from gnnserve_worker.layers.convolution_channels import InnerRows, Role, RowsInside, axes_of, inner_rows_of, rows_inside
from gnnserve_worker.layers.convolutions.kind import Ends
from gnnserve_worker.layers.convolutions.registry import KINDS
from gnnserve_worker.layers.shapes import (
    CLASSIFIED,
    NetworkWidths,
    head_key,
    headed_types,
    problems_of,
    source_of,
    target_of,
    tensor_shapes,
    widths_of,
)


class Place(NamedTuple):
    """Rows of a network that have channels."""

    layer: int
    """Number of the layer that writes them, the first being 1. 0: they stand before it."""
    type: int
    """Place of the type."""
    conv: int = -1
    """Place in the layer of the convolution between whose products they stand. -1: they are the layer's output."""
    product: int = -1
    """Number of the product that writes them there."""
    inner: int = 0
    """Number of rows inside of a convolution before its products (`mlp`), or of a layer before its last product, from
    the last ones (-1) on backwards. 0: they are none."""


@dataclass(frozen=True, slots=True)
class ChannelGroup:
    """Channels that are kept or dropped together."""

    places: tuple[Place, ...]
    parts: tuple[int, ...]
    """Channels of each part, beside each other, of which as large a share is kept: of attention heads, and of
    convolutions beside each other."""

    @property
    def width(self) -> int:
        return sum(self.parts)

    def left(self, factor: int) -> tuple[int, ...]:
        """Channels of each part that a factor leaves."""
        return tuple(part // factor for part in self.parts)


@dataclass(frozen=True, slots=True)
class AxisChannels:
    """Positions of channels along an axis of a tensor."""

    place: Place
    axis: int
    first: int
    """Position of the first one."""
    begin: int
    """The channel that it is of."""
    count: int
    """How many there are, beside each other."""
    blocks: int
    """How many times they stand there, behind each other."""
    is_read: bool
    """Whether the tensor is a matrix, and they are multiplied by it."""
    joins_heads: bool
    """Whether they stand along the last two axes together: by head, and then within it."""

    def positions(self, channels: np.ndarray, block: int) -> np.ndarray:
        """Positions of those of some channels (ids) of the place that stand here, of a block."""
        own = channels[(channels >= self.begin) & (channels < self.begin + self.count)]
        return self.first + block * self.count + own - self.begin

    def all_positions(self, channels: np.ndarray) -> np.ndarray:
        """Positions of these, of all blocks."""
        return np.concatenate([self.positions(channels, block) for block in range(self.blocks)])


@dataclass(frozen=True)
class NetworkChannels:
    """Channels of a network over features."""

    layers: LayersManifest
    schema: GraphSchema
    columns: Sequence[int]
    """Features of each type."""
    wanted: Sequence[int] = CLASSIFIED
    """Types that are asked about, by their places."""

    def why_not(self, factor: int, *, is_learnt: bool) -> str:
        """Why no network has one of `factor` channels, as a clause; empty: there is one. `is_learnt`: whether what is
        left is trained further."""
        if problem := self._why_not_at_all(is_learnt=is_learnt):
            return problem
        for group in self.groups:
            if not all(group.left(factor)):
                of_part = f" in parts of {min(group.parts)}" if len(group.parts) > 1 else ""
                return f"{_named(group.places[0])} has {group.width} channels{of_part}, of which {factor} leaves none"
        narrow = self.narrowed(factor)
        found = problems_of(narrow, self.schema, self.columns, self.wanted[0])
        return found[0] if found else self._why_other_shapes(narrow, factor)

    def narrowed(self, factor: int) -> LayersManifest:
        """The network with one of `factor` channels in each hidden layer. There is nothing against it."""
        left = self._left(factor)

        def of_conv(layer: int, place: int, conv: ConvolutionManifest) -> ConvolutionManifest:
            target = target_of(conv, self.schema)
            written = self._written[layer, place]
            width = left.get(Place(layer, target), [1] * written.stop)[written]
            own = [left.get(Place(layer, target, place, number)) for number in range(len(conv.mlp) - 1)]
            products = [
                one if counts is None else msgspec.structs.replace(one, width=sum(counts))
                for one, counts in zip(conv.mlp[:-1], own, strict=True)
            ]
            products += [msgspec.structs.replace(one, width=sum(width)) for one in conv.mlp[-1:]]
            return msgspec.structs.replace(conv, width=sum(width), mlp=tuple(products))

        layers = tuple(
            msgspec.structs.replace(one, convs=tuple(of_conv(number, *each) for each in enumerate(one.convs)))
            for number, one in enumerate(self.layers.layers, start=1)
        )
        before = []
        for each in self.layers.before:
            *earlier, last = each.products
            width = sum(left.get(Place(0, each.type), [last.width]))
            products = (*earlier, msgspec.structs.replace(last, width=width))
            before.append(msgspec.structs.replace(each, products=products))
        return msgspec.structs.replace(self.layers, layers=layers, before=tuple(before))

    def cut(self, tensors: Mapping[str, np.ndarray], kept: Mapping[Place, np.ndarray]) -> dict[str, np.ndarray]:
        """The weights with the channels (ids) that are kept of each place that is named. Queries become so much smaller
        as the root of a head's columns does, by which Transformer divides its scores."""
        found = {key: _cut(tensor, self._dropped(key, kept)) for key, tensor in tensors.items()}
        for key in (key for key in found if ".lin_query." in key):
            found[key] = found[key] * np.float32(np.sqrt(len(found[key]) / len(tensors[key])))
        return found

    def without(self, tensors: Mapping[str, np.ndarray], kept: Mapping[Place, np.ndarray]) -> dict[str, np.ndarray]:
        """The weights as wide as they are, with 0 where channels are dropped."""
        return {key: _zeroed(tensor, self._dropped(key, kept)) for key, tensor in tensors.items()}

    @cached_property
    def groups(self) -> tuple[ChannelGroup, ...]:
        """Channels that may be dropped, of the last layer first."""
        joined, as_wide = _Joined(self._places), _Joined(self._places)
        for pair in self._ties():
            joined.join(pair)
            as_wide.join(pair)
        for pair in self._as_wide():
            as_wide.join(pair)
        whole, all_as_wide = {as_wide.of(place) for place in self._whole()}, as_wide.groups()
        found = [
            ChannelGroup(tuple(sorted(places, reverse=True)), self._parts(all_as_wide[as_wide.of(first)]))
            for first, places in joined.groups().items()
            if as_wide.of(first) not in whole
        ]
        return tuple(sorted(found, key=lambda group: _behind(group.places[0]), reverse=True))

    @cached_property
    def axes(self) -> Mapping[str, Sequence[AxisChannels]]:
        """Channels of each tensor that has some, by its key."""
        found: dict[str, list[AxisChannels]] = {}
        for key, one in self._axes():
            found.setdefault(key, []).append(one)
        return found

    def is_hidden(self, place: Place) -> bool:
        """Whether its channels may be dropped."""
        return any(place in group.places for group in self.groups)

    @cached_property
    def widths(self) -> NetworkWidths:
        return widths_of(self.layers, self.schema, self.columns)

    @cached_property
    def read_in_the_end(self) -> Sequence[int]:
        """Numbers of the layers whose outputs the head or an answer reads."""
        count = len(self.layers.layers)
        return [count] if self.layers.jumping_knowledge is JumpingKnowledge.LAST else [*range(min(1, count), count + 1)]

    def key_of_conv(self, layer: int, place: int) -> str:
        """Beginning of the keys of a convolution's tensors. `layer`: its number, the first being 1."""
        return f"layers.{layer - 1}.convs.{self.layers.layers[layer - 1].keys[place]}"

    # --- rows that have channels

    @cached_property
    def _places(self) -> Mapping[Place, int]:
        """Columns of all rows that have channels."""
        rows = [self.widths.inputs, *(each.outputs for each in self.widths.layers)]
        found = {Place(layer, type_): count for layer, each in enumerate(rows) for type_, count in each.items()}
        for layer, each in enumerate(self.layers.layers, start=1):
            for place, conv in enumerate(each.convs):
                target = target_of(conv, self.schema)
                found |= {Place(layer, target, place, at): one.width for at, one in enumerate(conv.mlp[:-1])}
                source = self.widths.layers[layer - 1].ends[place].source
                found |= {
                    Place(layer, target, place, inner=number): source if is_read else conv.width
                    for number, is_read in self.inner_rows(layer, place).items()
                }
            if each.output_product:
                found |= {Place(layer, type_, inner=-1): count for type_, count in rows[layer].items()}
        return found

    def inner_rows(self, layer: int, place: int) -> Mapping[int, bool]:
        """Numbers of the rows inside of a convolution that have channels of their own (`Place.inner`), and whether they
        are as wide as what it reads, or as what it gives. `layer`, `place`: as of `key_of_conv`."""
        conv, ends = self.layers.layers[layer - 1].convs[place], self.widths.layers[layer - 1].ends[place]
        written = self._written[layer, place]
        is_beside = self.widths.layers[layer - 1].outputs[target_of(conv, self.schema)] != written.stop - written.start
        inside = rows_inside(conv, ends)
        if inside is None or (is_beside and inside is not RowsInside.PROJECTED):
            return {}
        if inside is not RowsInside.TOWER:
            return {-1: inside is RowsInside.PROJECTED}
        count = conv.pre_layers + conv.post_layers
        return {number: number < -conv.post_layers for number in range(-count, 0)}

    def _output(self, layer: int, type_: int) -> Place:
        """What the convolutions of a layer write: its output, or rows before its last product."""
        return Place(layer, type_, inner=-1 if self.layers.layers[layer - 1].output_product else 0)

    @cached_property
    def _written(self) -> Mapping[tuple[int, int], slice]:
        """Channels of its layer's output that each convolution writes, by the layer's number and its place in it."""
        found: dict[tuple[int, int], slice] = {}
        for layer, (each, widths) in enumerate(zip(self.layers.layers, self.widths.layers, strict=True), start=1):
            taken: dict[int, int] = {}
            for place, (conv, ends) in enumerate(zip(each.convs, widths.ends, strict=True)):
                target, width = target_of(conv, self.schema), KINDS[conv.conv].width(conv, ends)
                first = taken.get(target, 0)
                found[layer, place] = slice(first, first + width)
                taken[target] = first + width if each.combination is Combination.CAT else 0
        return found

    def _parts(self, places: Iterable[Place]) -> tuple[int, ...]:
        """Parts of which as large a share is kept, which all of these places have."""
        bounds = {0, *(self._places[place] for place in places)}
        for place in places:
            bounds |= self._bounds(place)
        return tuple(end - begin for begin, end in pairwise(sorted(bounds)))

    def _bounds(self, place: Place) -> set[int]:
        """Channels that parts of a layer's output begin with."""
        if place.layer == 0 or place.conv >= 0:
            return set()
        convs = self.layers.layers[place.layer - 1].convs
        of_types = {target_of(conv, self.schema) for conv in convs}
        # A type that reads no relation is as wide as the first one that does.
        written = place.type if place.type in of_types else target_of(convs[0], self.schema)
        found: set[int] = set()
        for number, conv in enumerate(convs):
            if target_of(conv, self.schema) == written:
                own = self._written[place.layer, number]
                heads = 1 if conv.averages_heads else conv.heads
                found |= {*range(own.start, own.stop, max(1, (own.stop - own.start) // heads))}
        return found

    def _left(self, factor: int) -> dict[Place, list[int]]:
        """For each channel of a hidden place how many of its channels are left there: 1 of those at the beginning of
        its part, else 0."""
        found: dict[Place, list[int]] = {}
        for group in self.groups:
            counts = zip(group.parts, group.left(factor), strict=True)
            of_channels = [int(at < left) for part, left in counts for at in range(part)]
            found |= dict.fromkeys(group.places, of_channels)
        return found

    # --- what is kept together

    def _as_wide(self) -> Iterator[tuple[Place, Place]]:
        """Pairs of rows that have as many channels, whichever these are."""
        for layer, (each, widths) in enumerate(zip(self.layers.layers, self.widths.layers, strict=True), start=1):
            for type_ in widths.outputs:
                yield self._output(layer, type_), Place(layer, type_)
            for number, conv in enumerate(each.convs):
                target = target_of(conv, self.schema)
                source, output = Place(layer - 1, source_of(conv, self.schema)), self._output(layer, target)
                for inner, is_read in self.inner_rows(layer, number).items():
                    yield Place(layer, target, number, inner=inner), source if is_read else output

    def _ties(self) -> Iterator[tuple[Place, Place]]:
        """Pairs of rows that have the same channels."""
        for layer, (each, widths) in enumerate(zip(self.layers.layers, self.widths.layers, strict=True), start=1):
            read = 0 if each.reads_input else layer - 1
            for type_ in widths.outputs:
                is_gated = f"layers.{layer - 1}.residuals.{type_}.gate" in self._shapes
                if is_gated or each.residual in (Residual.ADDED, Residual.AVERAGED):
                    yield Place(layer, type_), Place(read, type_)
            for conv, ends in zip(each.convs, widths.ends, strict=True):
                yield from self._ties_of(conv, ends, layer)
        last = self.read_in_the_end[-1]
        if self.layers.jumping_knowledge is JumpingKnowledge.MAX:
            for type_ in self.wanted:
                yield from ((Place(layer, type_), Place(last, type_)) for layer in self.read_in_the_end)
        if self.layers.head and not self.layers.head_by_type:
            first = self._headed[0]  # which tells how wide the one head is
            yield from ((Place(at, type_), Place(at, first)) for at in self.read_in_the_end for type_ in self.wanted)

    def _ties_of(self, conv: ConvolutionManifest, ends: Ends, layer: int) -> Iterator[tuple[Place, Place]]:
        kind, target = KINDS[conv.conv], Place(layer - 1, target_of(conv, self.schema))
        source, output = Place(layer - 1, source_of(conv, self.schema)), self._output(layer, target.type)
        has_own_matrix = any(one.role is Role.TARGET for _, one in axes_of(conv, ends))
        if kind.reads_target(conv) and not has_own_matrix:  # it is added to rows of neighbours
            yield source, target
        wider = {source: replace(ends, source=2 * ends.source), target: replace(ends, target=2 * ends.target)}
        for place, wide in wider.items():
            if kind.tensors(conv, wide).keys() - kind.tensors(conv, ends).keys():
                yield place, output  # rows as wide as the output have no product
        if kind.reads_network_input(conv):
            yield from ((source, output), (Place(0, target.type), output))
        elif kind.width(conv, replace(ends, source=2 * ends.source)) != kind.width(conv, ends):
            yield source, output

    def _whole(self) -> Iterator[Place]:
        """Rows whose channels are all kept: features, and outputs that are read by no product."""
        products = {each.type for each in self.layers.before if each.products}
        yield from (Place(0, type_) for type_ in self.widths.inputs if type_ not in products)
        if not self.layers.head:
            last = len(self.layers.layers)
            written = (self.widths.inputs, *(each.outputs for each in self.widths.layers))
            yield from (Place(last, type_) for type_ in written[last])
            yield from (Place(at, type_) for at in self.read_in_the_end for type_ in self.wanted)

    @property
    def _headed(self) -> Sequence[int]:
        return headed_types(self.layers, self.widths)

    # --- where tensors have channels

    def _axes(self) -> Iterator[tuple[str, AxisChannels]]:
        for one in self.layers.before:
            place = Place(0, one.type)
            for key in self._below(f"before.{one.type}.{len(one.products) - 1}"):
                yield key, self._whole_axis(place, 0)
        for layer, each in enumerate(self.layers.layers, start=1):
            yield from self._axes_of_layer(layer, each)
        if self.layers.head:
            yield from self._axes_of_head()

    def _axes_of_layer(self, layer: int, each: LayerManifest) -> Iterator[tuple[str, AxisChannels]]:
        widths, key = self.widths.layers[layer - 1], f"layers.{layer - 1}"
        for number, (conv, ends) in enumerate(zip(each.convs, widths.ends, strict=True)):
            source, target = source_of(conv, self.schema), target_of(conv, self.schema)
            written = self._written[layer, number]
            for name, one in axes_of(conv, ends):
                begin, count = 0, written.stop - written.start
                match one.role:
                    case Role.SOURCE:
                        place, count = Place(layer - 1, source), ends.source
                    case Role.TARGET:
                        place, count = Place(layer - 1, target), ends.target
                    case Role.NETWORK_INPUT:
                        place, count = Place(0, target), ends.network_input
                    case Role.OUTPUT:
                        place, begin = self._output(layer, target), written.start
                    case Role.BETWEEN:
                        place, count = Place(layer, target, number, one.product), conv.mlp[one.product].width
                tensor = f"{self.key_of_conv(layer, number)}.{name}"
                is_matrix = len(self._shapes[tensor]) == 2 and one.axis == 1
                is_read = is_matrix and one.role is not Role.OUTPUT
                axes = AxisChannels(place, one.axis, 0, begin, count, one.blocks, is_read, one.joins_heads)
                inner = inner_rows_of(conv, ends, name, one) if self.inner_rows(layer, number) else InnerRows(0)
                if not inner.number:
                    yield tensor, axes
                    continue
                if inner.skipped:
                    yield tensor, replace(axes, blocks=inner.skipped)
                yield tensor, replace(
                    axes, place=Place(layer, target, number, inner=inner.number), first=inner.skipped * count, begin=0,
                    blocks=one.blocks - inner.skipped, is_read=is_matrix,
                )  # fmt: skip
        read = 0 if each.reads_input else layer - 1
        for type_ in widths.outputs:
            own = self._output(layer, type_)
            yield from self._axes_of_product(f"{key}.own.{type_}", own, Place(layer - 1, type_))
            yield from self._axes_of_product(f"{key}.residuals.{type_}", Place(layer, type_), Place(read, type_))
            if each.output_product:
                yield from self._axes_of_product(f"{key}.outputs.{type_}", Place(layer, type_), own)
        for type_ in widths.inputs if each.is_pre_activated else widths.outputs:
            normed = Place(layer - 1, type_) if each.is_pre_activated else self._output(layer, type_)
            for name in (*self._below(f"{key}.norms.{type_}"), *self._below(f"{key}.activations.{type_}")):
                yield name, self._whole_axis(normed, 0)

    def _axes_of_product(self, key: str, written: Place, read: Place) -> Iterator[tuple[str, AxisChannels]]:
        if f"{key}.weight" in self._shapes:
            yield f"{key}.weight", self._whole_axis(written, 0)
            yield f"{key}.weight", replace(self._whole_axis(read, 1), is_read=True)
            yield f"{key}.bias", self._whole_axis(written, 0)

    def _axes_of_head(self) -> Iterator[tuple[str, AxisChannels]]:
        first = {head_key(self.layers, type_): type_ for type_ in reversed(self._headed)}
        for key, type_ in first.items():
            at = self.widths.features[type_] if self.layers.head_reads_input else 0
            is_cat = self.layers.jumping_knowledge is JumpingKnowledge.CAT
            for layer in self.read_in_the_end if is_cat else self.read_in_the_end[-1:]:
                one = self._whole_axis(Place(layer, type_), 1)
                yield f"{key}.0.weight", replace(one, first=at, is_read=True)
                at += one.count

    def _whole_axis(self, place: Place, axis: int) -> AxisChannels:
        """All channels of the place, written along an axis."""
        return AxisChannels(place, axis, 0, 0, self._places[place], 1, is_read=False, joins_heads=False)

    def _below(self, key: str) -> Iterator[str]:
        return (each for each in self._shapes if each.startswith(f"{key}."))

    @cached_property
    def _shapes(self) -> Mapping[str, tuple[int, ...]]:
        return tensor_shapes(self.layers, self.schema, self.columns)

    def _dropped(self, key: str, kept: Mapping[Place, np.ndarray]) -> list[tuple[AxisChannels, np.ndarray]]:
        """Positions along axes of a tensor whose channels are dropped."""
        return [
            (one, one.all_positions(np.setdiff1d(np.arange(self._places[one.place]), kept[one.place])))
            for one in self.axes.get(key, ())
            if one.place in kept
        ]

    # --- what stands against it

    def _why_not_at_all(self, *, is_learnt: bool) -> str:
        if self.layers.jumping_knowledge is JumpingKnowledge.LSTM:
            return "jumpingKnowledge Lstm has as many states as layers have channels, and none of its own"
        for number, each in enumerate(self.layers.layers):
            for place, conv in enumerate(each.convs):
                problem = "" if is_learnt else self._why_not_fitted(number + 1, place, conv)
                if conv.towers > 1:
                    problem = "each of its towers has a part of the channels"
                if each.combination is Combination.CAT and (each.own or conv.conv in _AS_WIDE_AS_READ):
                    problem = "its channels are those of its input, and stand beside others (combine Cat)"
                if problem:
                    return f"layers[{number}]: conv {conv.conv}: {problem}"
        return "" if self.groups else "no layer before the last product has channels of its own, beside features"

    def _why_not_fitted(self, layer: int, place: int, conv: ConvolutionManifest) -> str:
        """Why weights cannot be fitted to what is left inside of a convolution; empty: they can."""
        if conv.conv is Convolution.PNA and conv.pre_layers > 1:
            return f"rows between its preLayers are of edges, to which nothing is fitted, {_NOT_LEARNT}"
        if conv.conv in (Convolution.PNA, Convolution.GEN) and not self.inner_rows(layer, place):
            return f"what it aggregates has the channels of what it reads or gives, {_NOT_LEARNT}"
        return ""

    def _why_other_shapes(self, narrow: LayersManifest, factor: int) -> str:
        """Why tensors that are cut are not those of the network with fewer channels; empty: they are."""
        kept = {place: np.flatnonzero(counts) for place, counts in self._left(factor).items()}
        tensors = {key: np.empty(shape, np.bool_) for key, shape in self._shapes.items()}
        shapes = tensor_shapes(narrow, self.schema, self.columns)
        for number, each in enumerate(self.layers.layers):
            for conv, fewer in zip(each.convs, narrow.layers[number].convs, strict=True):
                heads = 1 if conv.averages_heads else conv.heads
                if fewer.width % heads:
                    return f"layers[{number}]: {heads} heads do not have as many channels each of {fewer.width}"
        try:
            cut = {key: _cut(tensor, self._dropped(key, kept)).shape for key, tensor in tensors.items()}
        except ValueError:  # heads that are left with different numbers
            cut = {}
        if cut == shapes:
            return ""
        other = next((key for key in self._shapes if cut.get(key) != shapes.get(key)), "")
        return f"{other} would not be as wide as what it is multiplied by"


_NOT_LEARNT = "and weights that are given are not trained further"
_AS_WIDE_AS_READ = (Convolution.APPNP, Convolution.AGNN, Convolution.GCNII)
"""Convolutions whose outputs have the channels of their inputs."""


class _Joined:
    """Places that are joined to others, by the first of each group."""

    def __init__(self, places: Iterable[Place]) -> None:
        self._first = {place: place for place in places}

    def join(self, pair: tuple[Place, Place]) -> None:
        kept, other = (self.of(one) for one in pair)
        for place, first in self._first.items():
            if first == other:
                self._first[place] = kept

    def of(self, place: Place) -> Place:
        return self._first[place]

    def groups(self) -> dict[Place, list[Place]]:
        found: dict[Place, list[Place]] = {}
        for place, first in self._first.items():
            found.setdefault(first, []).append(place)
        return found


def _behind(place: Place) -> tuple[int, int, int, int]:
    """Order of rows in a network: inside and between the products of a layer's convolutions, then behind it."""
    return place.layer, int(place.conv < 0), place.product, place.inner


def _named(place: Place) -> str:
    return f"layers[{place.layer - 1}]" if place.layer else "before"


def _cut(tensor: np.ndarray, dropped: Sequence[tuple[AxisChannels, np.ndarray]]) -> np.ndarray:
    shape = tensor.shape
    for axis in {one.axis for one, _ in dropped}:
        gone = np.concatenate([positions for one, positions in dropped if one.axis == axis])
        if any(one.joins_heads for one, _ in dropped if one.axis == axis):
            joined = np.delete(tensor.reshape(*shape[:-2], -1), gone, axis=-1)
            tensor = joined.reshape(*shape[:-1], -1)
        else:
            tensor = np.delete(tensor, gone, axis=axis)
    return np.ascontiguousarray(tensor)


def _zeroed(tensor: np.ndarray, dropped: Sequence[tuple[AxisChannels, np.ndarray]]) -> np.ndarray:
    if not dropped:
        return tensor
    left = tensor.copy()
    for one, gone in dropped:
        if one.joins_heads:
            left.reshape(-1)[gone] = 0
        else:
            np.moveaxis(left, one.axis, 0)[gone] = 0
    return left
