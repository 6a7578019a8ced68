"""Pruning of hidden channels of listed layers: what `channels.py` does of those of architectures.

Whatever a network is made of, its channels are read by matrices (`layers/channels.py`). From the last layer backwards
channels are chosen that these need least, all readers of a group of channels together, and every matrix is fitted by
least squares to what it gave of all of them, over the rows that it reads: sums, means or GCN's sums of neighbours
beside the node's own row, where these commute with the matrix, and otherwise rows as they are. What compares channels
of a row with each other, attention and norms over a row, is not fitted: training what is left further does it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import scipy.sparse as sp

from gnnserve_api.files.layers import Aggregation, Convolution, ConvolutionManifest, JumpingKnowledge
from gnnserve_api.spec.model import Model
from gnnserve_worker.generation.channels import choose_in_parts
from gnnserve_worker.generation.listed_layers import GivenLayers
from gnnserve_worker.generation.listed_rows import ListedRows
from gnnserve_worker.generation.moments import SumMoments, aggregation_of, in_chunks
from gnnserve_worker.generation.programs.inner_rows import InnerRows, inner_sums, with_plain_edges
from gnnserve_worker.generation.programs.running import compute_all, served_features
from gnnserve_worker.generation.relation_channels import as_seen, nodes_seen
from gnnserve_worker.generation.training_set import TrainingSet, means_by_relation
from gnnserve_worker.graph.relation_lists import joined_lists
from gnnserve_worker.graph.store import GraphData, Relation
from gnnserve_worker.layers.channels import AxisChannels, NetworkChannels, Place
from gnnserve_worker.layers.dense import below, build_changes, build_products, run_products
from gnnserve_worker.layers.memory import RunMemory
from gnnserve_worker.layers.shapes import head_key, needed_by_layers, source_of, target_of
from gnnserve_worker.models.registry import Tensors
from gnnserve_worker.progress import Progress, ProgressListener
from gnnserve_worker.tables.table import Aggregator

_MakeRows = Callable[[], np.ndarray]
"""Makes rows, float32 [rows, channels]."""


@dataclass(frozen=True, slots=True)
class _Read:
    """Columns of a matrix that rows with channels are multiplied by."""

    key: str
    at: AxisChannels
    block: int
    rows: _MakeRows
    of_matrix: bool = False
    """Whether these have all columns of the matrix, and not those of the place."""


@dataclass(frozen=True, slots=True)
class _Sum:
    """A sum of products of rows, of one node each."""

    reads: Sequence[_Read]
    bias: str
    """Key of what is added to it; empty: nothing is."""

    def has(self, places: Sequence[Place]) -> list[int]:
        """Which of the reads are of rows of these places."""
        return [number for number, read in enumerate(self.reads) if read.at.place in places]


@dataclass
class _Narrowing:
    """Weights whose channels are dropped, group after group. They stay as wide as they are, with 0 for those that are
    dropped."""

    channels: NetworkChannels
    tensors: Tensors
    kept: dict[Place, np.ndarray] = field(default_factory=dict)
    """Channels (ids) that are kept of the places so far."""

    def narrow(self, sums: Sequence[_Sum], factor: int) -> None:
        for group in self.channels.groups:
            reading = [one for one in sums if one.has(group.places)]
            measured = [self._measured(one) for one in reading]
            gram = np.zeros((group.width, group.width))
            for one, moments in zip(reading, measured, strict=True):
                gram += moments.gram(one.has(group.places), group.width)
            kept = choose_in_parts(gram, group.parts, group.left(factor))
            for one, moments in zip(reading, measured, strict=True):
                self._fit(one, moments, one.has(group.places), kept)
            dropped = dict.fromkeys(group.places, kept)
            self.tensors = self.channels.without(self.tensors, dropped)
            self.kept |= dropped

    def _measured(self, one: _Sum) -> SumMoments:
        made = {make: make() for make in {read.rows for read in one.reads}}
        rows = np.concatenate([made[read.rows][:, self._columns(read)] for read in one.reads], axis=1)
        blocks = (rows[nodes] for nodes in in_chunks(np.arange(len(rows))))
        return SumMoments.of([self._matrix(read) for read in one.reads], blocks, has_bias=bool(one.bias))

    def _fit(self, one: _Sum, moments: SumMoments, own: Sequence[int], kept: np.ndarray) -> None:
        """`own`: places of the reads whose channels are dropped but for `kept` (ids)."""
        left = [kept if at in own else np.arange(len(self._left(read))) for at, read in enumerate(one.reads)]
        matrices, added = moments.fitted(left)
        for read, ids, matrix in zip(one.reads, left, matrices, strict=True):
            positions = read.at.positions(self._left(read)[ids], read.block)
            changed = self.tensors[read.key].copy()
            changed[:, positions] = matrix.T
            self.tensors = {**self.tensors, read.key: changed}
        if one.bias:
            self.tensors = {**self.tensors, one.bias: self.tensors[one.bias] + added}

    def _columns(self, read: _Read) -> np.ndarray:
        """Columns of its rows that are left, int64."""
        left = self._left(read)
        return read.at.positions(left, read.block) if read.of_matrix else left

    def _left(self, read: _Read) -> np.ndarray:
        return self.kept.get(read.at.place, np.arange(read.at.count))

    def _matrix(self, read: _Read) -> np.ndarray:
        """[channels that are left, outputs]"""
        matrix: np.ndarray = self.tensors[read.key][:, read.at.positions(self._left(read), read.block)].T
        return matrix


# --- rows that matrices read


@dataclass(frozen=True, slots=True)
class _AddedUp:
    """Tensors of a convolution whose products are added up, of rows that are aggregated before or behind alike."""

    neighbours: str
    own: str
    """Empty: the node's own row has no matrix of its own."""
    bias: str


_ADDED_UP: Mapping[Convolution, _AddedUp] = {
    Convolution.GRAPH_SAGE: _AddedUp("lin_l.weight", "lin_r.weight", "lin_l.bias"),
    Convolution.GRAPH_CONV: _AddedUp("lin_rel.weight", "lin_root.weight", "lin_rel.bias"),
    Convolution.GCN: _AddedUp("lin.weight", "", "bias"),
    Convolution.GIN: _AddedUp("nn.0.weight", "", "nn.0.bias"),
}


_BLOCKS_OF_ROWS: Mapping[Convolution, Mapping[str, int]] = {
    Convolution.PNA: {"pre_nns.0.0.weight": 2, "post_nns.0.0.weight": 1},
}
"""Matrices of kinds some of which read other rows than the layer does, and how many of their first blocks are of these.
Of other kinds all are."""


@dataclass(frozen=True, eq=False)
class _Reading:
    """Rows of a network over the graph that training may see."""

    channels: NetworkChannels
    tensors: Tensors
    rows: ListedRows
    data: GraphData
    nodes: Sequence[np.ndarray]
    """By type, those (positions, int64) over which channels are chosen and matrices fitted."""
    behind: list[np.ndarray] = field(default_factory=list)
    """Rows behind each layer, and first before them, as `ListedRows` makes them."""

    def sums(self) -> Iterator[_Sum]:
        """All that the network adds up of rows with channels. Rows behind all layers are made first."""
        layers = self.channels.layers
        self.behind.append(np.concatenate(list(self.rows.first())))
        for layer in range(1, len(layers.layers) + 1):
            self.behind.append(np.concatenate(list(self.rows.behind(layer, self.behind[-1]))))
        needed, _ = needed_by_layers(layers, self.channels.schema, self.rows.answered)
        for layer in range(1, len(layers.layers) + 1):
            yield from self._sums_of_layer(layer, needed[layer])
        if layers.head:
            yield from self._sums_of_head()

    def _sums_of_layer(self, layer: int, written: frozenset[int]) -> Iterator[_Sum]:
        """`written`: types whose outputs are read."""
        each, key, schema = self.channels.layers.layers[layer - 1], f"layers.{layer - 1}", self.channels.schema
        for place, conv in enumerate(each.convs):
            if target_of(conv, schema) in written:
                yield from self._sums_of_conv(layer, place, conv)
        for type_ in sorted(written):
            for read in self._matrix(f"{key}.outputs.{type_}.weight"):
                nodes = partial(self._before_last_product, layer, type_)
                yield _Sum([_Read(f"{key}.outputs.{type_}.weight", read, 0, nodes)], f"{key}.outputs.{type_}.bias")
            for part, is_activated in (("own", True), ("residuals", False)):
                name = f"{key}.{part}.{type_}.weight"
                for read in self._matrix(name):
                    nodes = partial(self._of_nodes, read.place, type_, layer if is_activated else 0)
                    yield _Sum([_Read(name, read, 0, nodes)], f"{key}.{part}.{type_}.bias")

    def _sums_of_conv(self, layer: int, place: int, conv: ConvolutionManifest) -> Iterator[_Sum]:
        key = self.channels.key_of_conv(layer, place)
        joint = self._joint(conv, place, layer)
        if joint is not None:
            yield joint
        done = set() if joint is None else {read.key for read in joint.reads}
        for inner in self._inside(layer, place, conv):
            yield inner
            done |= {read.key for read in inner.reads}
        for name in self.tensors:
            if not name.startswith(f"{key}.") or name in done:
                continue
            bias = name.removesuffix("weight") + "bias"
            for read in self._matrix(name):
                if read.place.inner:
                    continue  # of edges
                rows: _MakeRows = partial(self._of_nodes, read.place, read.place.type, layer)
                if read.place.conv >= 0:
                    rows = partial(self._between, layer, read.place)
                blocks = _BLOCKS_OF_ROWS.get(conv.conv)
                for block in range(read.blocks if blocks is None else blocks.get(name.removeprefix(f"{key}."), 0)):
                    yield _Sum([_Read(name, read, block, rows)], bias if bias in self.tensors else "")

    def _inside(self, layer: int, place: int, conv: ConvolutionManifest) -> Iterator[_Sum]:
        """Sums of products of rows inside of a convolution, of all blocks of a matrix together."""
        if not self.channels.inner_rows(layer, place):
            return
        key = self.channels.key_of_conv(layer, place)
        target = target_of(conv, self.channels.schema)
        for name, what in inner_sums(conv, below(self.tensors, key)).items():
            rows = partial(self._of_convolution, layer, place, target, what)
            reads = [
                _Read(f"{key}.{name}", read, block, rows, of_matrix=True)
                for read in self._matrix(f"{key}.{name}")
                for block in range(read.blocks)
            ]
            bias = f"{key}.{name.removesuffix('weight')}bias"
            if reads:
                yield _Sum(reads, bias if bias in self.tensors else "")

    def _of_convolution(self, layer: int, place: int, type_: int, what: InnerRows) -> np.ndarray:
        rows = self.rows.of_convolution(layer, place, what.conv, what.given, self.behind[layer - 1])[self.nodes[type_]]
        found: np.ndarray = np.maximum(rows, 0) if what.is_cut_off else rows
        return found

    def _before_last_product(self, layer: int, type_: int) -> np.ndarray:
        found: np.ndarray = self.rows.before_last_product(layer, type_, self.behind[layer - 1])[self.nodes[type_]]
        return found

    def _joint(self, conv: ConvolutionManifest, place: int, layer: int) -> _Sum | None:
        """The sum over neighbours and the node itself, where products commute with it; None: they do not."""
        names, aggregate = _ADDED_UP.get(conv.conv), self._aggregate(conv)
        if names is None or aggregate is None:
            return None
        key, schema = self.channels.key_of_conv(layer, place), self.channels.schema
        source, target = source_of(conv, schema), target_of(conv, schema)
        eps = float(self.tensors[f"{key}.eps"][0]) if f"{key}.eps" in self.tensors else None

        def neighbours() -> np.ndarray:
            found: np.ndarray = aggregate[self.nodes[target]] @ self._activated(Place(layer - 1, source), layer)
            if eps is not None:
                found += np.float32(1 + eps) * self._of_nodes(Place(layer - 1, target), target, layer)
            return found

        own = partial(self._of_nodes, Place(layer - 1, target), target, layer)
        reads = [
            _Read(f"{key}.{name}", read, 0, rows)
            for name, rows in ((names.neighbours, neighbours), (names.own, own))
            if name and f"{key}.{name}" in self.tensors
            for read in self._matrix(f"{key}.{name}")
        ]
        bias = f"{key}.{names.bias}"
        return _Sum(reads, bias if bias in self.tensors else "")

    def _aggregate(self, conv: ConvolutionManifest) -> sp.csr_array | None:
        """Weights of neighbours, float32 [targets, sources]; None: it is no weighted sum of them, or by columns of
        edges."""
        if conv.where is not None or conv.edge_weight or conv.projects or conv.conv not in _ADDED_UP:
            return None
        relation = self.data.relations[conv.relation]
        if conv.conv is Convolution.GIN:
            return _counts(self.data, relation)
        if conv.conv is Convolution.GCN:
            is_within = relation.source == relation.target and conv.self_loops and conv.is_normalised
            if not is_within:
                return _counts(self.data, relation)
            return aggregation_of(relation.lists, np.arange(relation.lists.nodes), Aggregator.NORMALISED_SUM)
        find = _WEIGHTS.get(conv.aggregations)
        return None if find is None else find(self.data, relation)

    def _sums_of_head(self) -> Iterator[_Sum]:
        layers = self.channels.layers
        keys: dict[str, list[int]] = {}
        for type_ in self.rows.answered:
            keys.setdefault(head_key(layers, type_), []).append(type_)
        for key, types in keys.items():
            name, bias = f"{key}.0.weight", f"{key}.0.bias"
            reads = [_Read(name, read, 0, partial(self._in_the_end, read.place, types)) for read in self._matrix(name)]
            if reads:
                yield _Sum(reads, bias if bias in self.tensors else "")

    def _in_the_end(self, place: Place, types: Sequence[int]) -> np.ndarray:
        """Rows that a head reads of a layer, of nodes of each type."""
        is_largest = self.channels.layers.jumping_knowledge is JumpingKnowledge.MAX
        layers = self.channels.read_in_the_end if is_largest else [place.layer]
        parts = []
        for type_ in types:
            rows = [self._of_nodes(Place(layer, type_), type_, 0) for layer in layers]
            parts.append(np.maximum.reduce(rows) if len(rows) > 1 else rows[0])
        return np.concatenate(parts)

    def _matrix(self, key: str) -> Iterator[AxisChannels]:
        """Channels that a tensor multiplies and that may be dropped."""
        axes = self.channels.axes.get(key, ())
        return (one for one in axes if one.is_read and self.channels.is_hidden(one.place))

    def _of_nodes(self, place: Place, type_: int, layer: int) -> np.ndarray:
        """Rows of nodes that channels are chosen over, as a layer reads them; 0: as they are."""
        found: np.ndarray = self._activated(place, layer)[self.nodes[type_]]
        return found

    def _between(self, layer: int, place: Place) -> np.ndarray:
        conv = self.channels.layers.layers[layer - 1].convs[place.conv]
        if conv.conv is not Convolution.GEN:
            rows = self.rows.between_products(layer, place.conv, place.product, self.behind[layer - 1])
            found: np.ndarray = rows[self.nodes[place.type]]
            return found
        # What it aggregates is as wide as its output, whatever the products between.
        own = below(self.tensors, self.channels.key_of_conv(layer, place.conv))
        (aggregated,) = inner_sums(conv, own).values()
        products = build_products(conv.mlp[: place.product + 1], below(own, "mlp"))
        return run_products(products, self._of_convolution(layer, place.conv, place.type, aggregated), RunMemory())

    def _activated(self, place: Place, layer: int) -> np.ndarray:
        """Rows of all nodes, behind norm and activation where these stand before the convolutions of the layer that
        reads them (by its number; 0: none does)."""
        rows = self.rows.outputs(place.layer, self.behind[place.layer])[place.type]
        if not layer or not self.channels.layers.layers[layer - 1].is_pre_activated:
            return rows
        each, changed = self.channels.layers.layers[layer - 1], np.array(rows)
        norm, activation = (
            below(self.tensors, f"layers.{layer - 1}.{part}.{place.type}") for part in ("norms", "activations")
        )
        for change in build_changes(
            each.norm, norm, each.norm_epsilon, each.activation, activation, each.slope, each.is_norm_behind
        ):
            change(changed)
        return changed


def _counts(data: GraphData, relation: Relation) -> sp.csr_array:
    """1 for each neighbour, float32 [targets, sources]."""
    found = means_by_relation(data, relation)
    return sp.csr_array((np.ones_like(found.data), found.indices, found.indptr), shape=found.shape)


_WEIGHTS: Mapping[tuple[Aggregation, ...], Callable[[GraphData, Relation], sp.csr_array]] = {
    (Aggregation.MEAN,): means_by_relation,
    (Aggregation.SUM,): _counts,
}


# --- networks with fewer channels


def narrow_listed(
    channels: NetworkChannels, tensors: Tensors, rows: ListedRows, data: GraphData, nodes: Sequence[np.ndarray],
    factor: int,
) -> Tensors:  # fmt: skip
    """The weights of a network with one of `factor` of its hidden channels. `rows`: of the whole network over lists
    that training may see, which are those of `data`; `nodes`: by type, those (positions, int64) over which channels are
    chosen and matrices fitted."""
    narrowing = _Narrowing(channels, with_plain_edges(channels, tensors))
    narrowing.narrow([*_Reading(channels, tensors, rows, data, nodes).sums()], factor)
    return channels.cut(narrowing.tensors, narrowing.kept)


def narrow_listed_aloud(
    model: Model, channels: NetworkChannels, given: GivenLayers, factor: int, subject: TrainingSet, name: str,
    progress: ProgressListener,
) -> Tensors:  # fmt: skip
    """The same over the graph and the nodes that training may see, of nodes a sample where they are many. `given`: the
    layers of `channels` with their weights."""
    stage = f"prune channels of {name}"
    progress(Progress(stage, 0, 1))
    seen, compute = as_seen(subject), partial(compute_all, [one.payload for one in subject.visible])
    features = served_features(subject.features, seen)
    rows = ListedRows(given, channels.layers, tuple(channels.wanted), joined_lists(seen), features, compute)
    left = narrow_listed(channels, given.tensors or {}, rows, seen, nodes_seen(model, subject), factor)
    of_all = sum(group.width * len(group.places) for group in channels.groups)
    kept = sum(sum(group.left(factor)) * len(group.places) for group in channels.groups)
    progress(Progress(stage, 1, 1, f"{kept:,} of {of_all:,} in all hidden layers"))
    return left
