"""Blocks that training computes over: what is sampled for a batch of seeds, from one list of neighbours or by
relations, or the whole graph.

All are `train.Blocks`, so that one loop trains over each: the whole graph is a block for any seeds, in one batch of
all of them. Rows that are sampled by relations are those that serving would draw (`sampling/relations.py`), the last
hop included: a node that several hops meet has a row in each, and a row of hop d has a state behind as many layers as
there are hops behind it. Within its type, rows stand hop after hop, so that each layer's are the first of those before
it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar

import numpy as np
import torch
from msgspec import UNSET, UnsetType

from gnnserve_api.files.training import TrainedBy
from gnnserve_api.spec.model import Batches, Model
from gnnserve_worker.generation.batches import steps_of_epoch
from gnnserve_worker.generation.families.relations import fanouts_by_relation
from gnnserve_worker.generation.layers import CPU, Block, BlockLayer, Lists, Rows, lists_of, rows_of
from gnnserve_worker.generation.training_set import NormalizedFeatures, TrainingSet
from gnnserve_worker.graph.relation_lists import merged_lists
from gnnserve_worker.graph.store import Features, Graph, GraphData, Relation
from gnnserve_worker.models.architecture import RelationalShape
from gnnserve_worker.models.registry import spec_of
from gnnserve_worker.sampling.neighbours import NeighbourSample, Scratch
from gnnserve_worker.sampling.relations import sample_relations
from gnnserve_worker.sampling.subgraph import SampledSubgraph, SubgraphSampler
from gnnserve_worker.tables.table import is_weighted
from gnnserve_worker.tasks.generated import Visible

_JUDGED_AT_ONCE = 4096
"""Nodes whose outputs are computed together where nothing is learnt."""


def blocks_of(
    batches: Batches, model: Model, shape: RelationalShape, subject: TrainingSet, kinds: Collection[int],
    device: torch.device,
) -> WholeGraph | SampledBlocks:  # fmt: skip
    """The graph over all of its edges. `batches`: never AUTO. `kinds`: places of the types of seeds."""
    return _WAYS[batches].of(model, shape, subject, kinds, device)


class ListBlocks:
    """A block for each batch, of the neighbours that are drawn for it from one list."""

    reads_few: ClassVar[bool] = True
    trained_by: ClassVar[TrainedBy | UnsetType] = UNSET

    def __init__(self, model: Model, features: Features, graph: Graph, device: torch.device) -> None:
        self._model, self._features, self._device = model, features, device
        weighted = is_weighted(spec_of(model.architecture).aggregator)
        self._sampler = SubgraphSampler(graph.indptr, graph.indices, weighted=weighted)

    def over(self, relations: Visible) -> ListBlocks:
        (relation,) = relations
        return ListBlocks(self._model, self._features, relation.lists, self._device)

    def steps(self, items: int, parts: int = 1) -> int:
        """Parts are not counted one by one: the schedules of published networks are made so."""
        return -(-items // self._model.training.batch_size)

    def parted(self, items: np.ndarray, random: np.random.Generator | None = None) -> Iterator[np.ndarray]:
        size = _JUDGED_AT_ONCE if random is None else self._model.training.batch_size
        return parted(items, size, random)

    def block(self, seeds: np.ndarray, key: int) -> Block:
        return block_of(self._sampler.sample(seeds, self._model.fanouts, key), self._features, self._device)


class RowBlocks:
    """A block for each batch, of rows of nodes that read none."""

    reads_few: ClassVar[bool] = True
    trained_by: ClassVar[TrainedBy | UnsetType] = UNSET

    def __init__(self, model: Model, features: Features, device: torch.device) -> None:
        self._model, self._features, self._device = model, features, device

    def over(self, relations: Visible) -> RowBlocks:
        """The same: whatever the lists are, none is read."""
        return self

    def steps(self, items: int, parts: int = 1) -> int:
        """As of `ListBlocks`."""
        return -(-items // self._model.training.batch_size)

    def parted(self, items: np.ndarray, random: np.random.Generator | None = None) -> Iterator[np.ndarray]:
        size = _JUDGED_AT_ONCE if random is None else self._model.training.batch_size
        return parted(items, size, random)

    def block(self, seeds: np.ndarray, key: int) -> Block:
        count = len(seeds)
        nothing = lists_of(np.zeros(count + 1, np.int64), np.zeros(0, np.int32), count, self._device)
        layers = [BlockLayer([nothing], [count])] * len(self._model.fanouts)
        places = torch.arange(count, device=self._device)
        return Block([rows_of(self._features, seeds, self._device)], [None], layers, places)


def blocks_over_rows(model: Model, features: Features, graph: Graph, device: torch.device) -> ListBlocks | RowBlocks:
    """Blocks of networks over rows of nodes with one list of neighbours."""
    if model.reads_one_row:
        return RowBlocks(model, features, device)
    return ListBlocks(model, features, graph, device)


def block_of(subgraph: SampledSubgraph, features: Features, device: torch.device = CPU) -> Block:
    """The block of one type and relation that was sampled, with a layer for each hop. `features`: of all nodes."""
    layers = []
    for targets, sources in reversed([*pairwise(subgraph.ends)]):
        indptr = subgraph.indptr[: targets + 1]
        lists = lists_of(indptr, subgraph.neighbours[: indptr[-1]], sources, device, subgraph.weights)
        layers.append(BlockLayer([lists], [targets]))
    seeds = torch.from_numpy(subgraph.seed_rows.astype(np.int64)).to(device)
    return Block([rows_of(features, subgraph.nodes, device)], [None], layers, seeds)


@dataclass(frozen=True, slots=True)
class WholeGraph:
    """One block for all seeds."""

    trained_by: ClassVar[TrainedBy | UnsetType] = "WholeGraph"
    reads_few: ClassVar[bool] = False

    data: GraphData
    shape: RelationalShape
    relations: Sequence[Relation]
    features: Sequence[Rows | None]
    lists: Sequence[Lists]
    """By relation."""
    kinds: Collection[int]
    device: torch.device

    @classmethod
    def of(
        cls,
        model: Model,
        shape: RelationalShape,
        subject: TrainingSet,
        kinds: Collection[int],
        device: torch.device,
    ) -> WholeGraph:  # fmt: skip
        """`model`: not read, as nothing is sampled."""
        data = subject.data
        lists = [_lists_of(data, one, device) for one in data.relations]
        rows = [
            None if one is None else rows_of(one.features, np.arange(one.features.shape[0]), device)
            for one in subject.features
        ]
        return cls(data, shape, data.relations, rows, lists, kinds, device)

    def over(self, relations: Sequence[Relation]) -> WholeGraph:
        lists = [
            old_lists if new is old else _lists_of(self.data, new, self.device)
            for old_lists, new, old in zip(self.lists, relations, self.relations, strict=True)
        ]
        return replace(self, relations=relations, lists=lists)

    def steps(self, items: int, parts: int = 1) -> int:
        return parts

    def parted(self, items: np.ndarray, random: np.random.Generator | None = None) -> Iterator[np.ndarray]:
        """All items at once, as they are: their order means nothing."""
        yield items

    def block(self, seeds: np.ndarray, key: int) -> Block:
        graph = self.shape.graph
        layer = BlockLayer(self.lists, [kind.nodes for kind in graph.types])
        firsts = np.array(graph.first_nodes)
        kind_of_seed = np.searchsorted(firsts, seeds, side="right") - 1
        before, rows = np.zeros(len(graph.types), np.int64), 0
        for kind in sorted(self.kinds):
            before[kind] = rows
            rows += graph.types[kind].nodes
        places = torch.from_numpy(seeds - firsts[kind_of_seed] + before[kind_of_seed]).to(self.device)
        return Block(self.features, [None] * len(graph.types), [layer] * self.shape.layers, places)


def _lists_of(data: GraphData, relation: Relation, device: torch.device) -> Lists:
    """Lists of a relation, which need not be those of the graph."""
    return lists_of(relation.lists.indptr, relation.lists.indices, data.type_named(relation.source).nodes, device)


class SampledBlocks:
    """A block for each batch, of the neighbours that are drawn for it. Features stay in the processor's memory. To be
    used by one thread at a time."""

    trained_by: ClassVar[TrainedBy | UnsetType] = "Sampled"
    reads_few: ClassVar[bool] = True

    def __init__(
        self, model: Model, shape: RelationalShape, features: Sequence[NormalizedFeatures | None],
        relations: Sequence[Relation], device: torch.device,
    ) -> None:  # fmt: skip
        self._model, self._shape, self._features, self._device = model, shape, features, device
        self._relations = relations
        graph = shape.graph
        self._graph: Graph = Graph(*merged_lists(graph, [one.lists for one in relations]), graph)
        # A last hop that draws nothing: rows for what the hop before has drawn.
        self._fanouts = tuple((*one, 0) for one in fanouts_by_relation(model, graph))
        self._scratch = Scratch()

    @classmethod
    def of(
        cls,
        model: Model,
        shape: RelationalShape,
        subject: TrainingSet,
        kinds: Collection[int],
        device: torch.device,
    ) -> SampledBlocks:  # fmt: skip
        """`kinds`: not read, as a block has rows for its seeds alone."""
        return cls(model, shape, subject.features, subject.data.relations, device)

    def over(self, relations: Sequence[Relation]) -> SampledBlocks:
        if relations is self._relations:
            return self
        return SampledBlocks(self._model, self._shape, self._features, relations, self._device)

    def steps(self, items: int, parts: int = 1) -> int:
        return parts * steps_of_epoch(Batches.SAMPLED, self._model, -(-items // parts))

    def parted(self, items: np.ndarray, random: np.random.Generator | None = None) -> Iterator[np.ndarray]:
        return parted(items, self._model.training.batch_size, random)

    def block(self, seeds: np.ndarray, key: int) -> Block:
        graph = self._graph
        sample = sample_relations(
            graph.indptr, graph.indices, seeds.astype(np.int64), self._fanouts, key, self._scratch,
            layout=graph.layout, share=True,
        )  # fmt: skip
        rows = _Rows.of(sample, len(self._shape.graph.types), len(self._fanouts[0]))
        positions = [
            sample.nodes[own].astype(np.int64) - first
            for own, first in zip(rows.of_kind, self._shape.graph.first_nodes, strict=False)
        ]
        features, embedded = [], []
        for one, nodes in zip(self._features, positions, strict=True):
            features.append(None if one is None else rows_of(one.features, nodes, self._device))
            embedded.append(torch.from_numpy(nodes).to(self._device) if one is None else None)
        if sample.seed_rows is None:
            raise ValueError("a sample without rows of its seeds")
        places = torch.from_numpy(sample.seed_rows.astype(np.int64)).to(self._device)
        return Block(features, embedded, self._layers(sample, rows), places)

    def _layers(self, sample: NeighbourSample, rows: _Rows) -> list[BlockLayer]:
        """Lists of each layer: the first rows of those that the first layer reads."""
        graph, count = self._shape.graph, self._shape.layers
        stride = int(self._graph.layout[1])
        by_layer: list[list[Lists]] = [[] for _ in range(count)]
        slots = [0] * len(graph.types)
        for relation in graph.relations:
            source, target = graph.place_of(relation.source), graph.place_of(relation.target)
            lists = rows.of_kind[target][: rows.within[count - 1, target]] * stride + slots[target]
            slots[target] += 1
            begins = sample.segments[lists]
            degrees = sample.segments[lists + 1] - begins
            starts = np.concatenate([[0], np.cumsum(degrees)])
            entries = np.repeat(begins - starts[:-1], degrees) + np.arange(starts[-1])
            read = rows.places[sample.children[entries]]
            for layer, of_layer in enumerate(by_layer):
                reading, sources = rows.within[count - 1 - layer, target], rows.within[count - layer, source]
                own = starts[: reading + 1]
                of_layer.append(lists_of(own, read[: own[-1]], int(sources), self._device))
        return [
            BlockLayer(of_layer, rows.within[count - 1 - layer].tolist()) for layer, of_layer in enumerate(by_layer)
        ]


def parted(items: np.ndarray, size: int, random: np.random.Generator | None) -> Iterator[np.ndarray]:
    """The items, or with `random` an order of them that it draws, in parts of that size."""
    ordered = items if random is None else random.permutation(items)
    for start in range(0, len(ordered), size):
        yield ordered[start : start + size]


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of a sample, type after type."""

    of_kind: Sequence[np.ndarray]
    """By type: its rows, hop after hop, int64."""
    places: np.ndarray
    """Place of each row among those of its type, int64."""
    within: np.ndarray
    """Rows of each type within so many hops of a seed, int64 [hops, types]."""

    @classmethod
    def of(cls, sample: NeighbourSample, types: int, hops: int) -> _Rows:
        counts = np.diff(sample.type_ends, prepend=0).reshape(hops, types)
        within = np.cumsum(counts, axis=0)
        kinds = np.repeat(np.tile(np.arange(types), hops), counts.ravel())
        ends = np.cumsum(counts.ravel())
        moved = (within - counts).ravel() - (ends - counts.ravel())
        places = np.arange(len(kinds)) + np.repeat(moved, counts.ravel())
        ordered = np.argsort(kinds, kind="stable")
        return cls(np.split(ordered, np.cumsum(within[-1])[:-1]), places, within)


_WAYS: Mapping[Batches, type[WholeGraph] | type[SampledBlocks]] = {
    Batches.WHOLE_GRAPH: WholeGraph,
    Batches.SAMPLED: SampledBlocks,
}
