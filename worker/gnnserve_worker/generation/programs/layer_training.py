"""Training of networks as layers: torch_geometric's modules over the whole graph, or over samples as their users train
them, by the loop that trains all networks (`train.py`).

A sample is laid out as for serving, without the degrees of the graph: as with torch_geometric's NeighborLoader, GCN and
its kind count the edges of the sample. Validation reads samples of the same kind; what a revision tells of accuracy is
measured by what serves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import ClassVar

import msgspec
import numpy as np
import torch
from msgspec import UNSET, UnsetType
from torch import nn

from gnnserve_api.files.graph_schema import GraphSchema
from gnnserve_api.files.layers import LayersManifest
from gnnserve_api.files.programs import InputRole, ProgramInput, ProgramManifest, RelationKey
from gnnserve_api.files.training import TrainedBy
from gnnserve_api.spec.model import Batches, Model
from gnnserve_worker.generation.batches import batches_of, report_batches, steps_of_epoch
from gnnserve_worker.generation.blocks import parted
from gnnserve_worker.generation.layer_convolutions import Learning
from gnnserve_worker.generation.layer_modules import (
    GraphTensors,
    LayersModule,
    canonical,
    load_canonical,
    tensors_of,
)
from gnnserve_worker.generation.layers import CPU
from gnnserve_worker.generation.programs.running import ProgramGraph, ProgramSamples, served_features
from gnnserve_worker.generation.train import Trainee
from gnnserve_worker.generation.training_set import TrainingSet
from gnnserve_worker.graph.relation_lists import joined_lists
from gnnserve_worker.graph.store import Features, GraphData, Relation
from gnnserve_worker.layers.contract import program_of
from gnnserve_worker.layers.shapes import columns_of
from gnnserve_worker.models.registry import Tensors
from gnnserve_worker.progress import ProgressListener
from gnnserve_worker.tasks.generated import Course, Visible

LEARNING_RATE = 0.005
"""Step size where the settings give none: that of torch_geometric's examples with attention, which the others bear."""


@dataclass(frozen=True, slots=True)
class LayersBlock:
    """A graph, or a sample of one, that a step computes over."""

    graph: GraphTensors
    seeds: torch.Tensor
    """Row of each seed among the scores of its type, int64."""
    kinds: torch.Tensor | None = None
    """Place of each seed's type, int64; None: all are of one."""


@dataclass(frozen=True, slots=True)
class LearningLayers:
    """A `train.TrainableNetwork` of a module, on its device."""

    module: LayersModule
    answered: tuple[int, ...]
    """Places of the types that outputs are of."""
    embedded: ClassVar[Mapping[int, nn.Parameter]] = {}

    @property
    def weights(self) -> Sequence[nn.Parameter]:
        return tuple(self.module.parameters())

    def outputs(self, block: LayersBlock, *, trains: bool) -> torch.Tensor:
        scores = self.module.train(trains).scores_of(block.graph, self.answered)
        rows = block.seeds
        if block.kinds is not None:
            first = dict(zip(self.answered, accumulate([0, *map(len, scores)]), strict=False))
            before = torch.tensor([first.get(kind, 0) for kind in range(max(self.answered) + 1)], device=rows.device)
            rows = rows + before[block.kinds]
        return torch.cat(scores)[rows]

    def tensors(self) -> Tensors:
        return canonical(self.module)


@dataclass(frozen=True, slots=True)
class WholeLayersGraph:
    """One block for all seeds."""

    trained_by: ClassVar[TrainedBy | UnsetType] = "WholeGraph"
    reads_few: ClassVar[bool] = False

    relations: Sequence[Relation]
    graph: GraphTensors
    device: torch.device
    first_nodes: Sequence[int]
    """Number of the first node of each type."""

    @classmethod
    def of(
        cls, program: ProgramManifest, model: Model, subject: TrainingSet, device: torch.device
    ) -> WholeLayersGraph:  # fmt: skip
        """`program`, `model`: not read, as nothing is sampled."""
        features = [_dense(rows).to(device) for rows in served_features(subject.features, subject.data)]
        whole = cls((), GraphTensors(features, [], []), device, subject.schema.first_nodes)
        return whole.over(subject.data.relations)

    def over(self, relations: Visible) -> WholeLayersGraph:
        if relations is self.relations:
            return self
        edges = [_edges_of(one).to(self.device) for one in relations]
        columns = [_columns_of(one, self.device) for one in relations]
        graph = replace(self.graph, edges=edges, edge_columns=columns)
        return replace(self, relations=relations, graph=graph)

    def steps(self, items: int, parts: int = 1) -> int:
        return parts

    def parted(self, items: np.ndarray, random: np.random.Generator | None = None) -> Iterator[np.ndarray]:
        """All items at once, as they are: their order means nothing."""
        yield items

    def block(self, seeds: np.ndarray, key: int) -> LayersBlock:
        firsts = np.array(self.first_nodes)
        kinds = np.searchsorted(firsts, seeds, side="right") - 1
        rows = torch.from_numpy(seeds.astype(np.int64) - firsts[kinds]).to(self.device)
        return LayersBlock(self.graph, rows, torch.from_numpy(kinds).to(self.device))


class SampledLayers:
    """A block for each batch, of the neighbours that are drawn for it. To be used by one thread at a time."""

    trained_by: ClassVar[TrainedBy | UnsetType] = "Sampled"
    reads_few: ClassVar[bool] = True

    def __init__(
        self, program: ProgramManifest, model: Model, subject: TrainingSet, device: torch.device,
        relations: Visible | None = None,
    ) -> None:  # fmt: skip
        """`relations`: with the lists that are sampled; None: all of the graph's."""
        self._program, self._model, self._subject, self._device = program, model, subject, device
        self._relations = subject.data.relations if relations is None else relations
        data: GraphData = replace(subject.data, relations=tuple(self._relations))
        features, payloads = served_features(subject.features, data), [one.payload for one in self._relations]
        self._samples = ProgramSamples(program, ProgramGraph(joined_lists(data), features, payloads), model.fanouts)

    def over(self, relations: Visible) -> SampledLayers:
        if relations is self._relations:
            return self
        return SampledLayers(self._program, self._model, self._subject, self._device, relations)

    def steps(self, items: int, parts: int = 1) -> int:
        return parts * steps_of_epoch(Batches.SAMPLED, self._model, -(-items // parts))

    def parted(self, items: np.ndarray, random: np.random.Generator | None = None) -> Iterator[np.ndarray]:
        return parted(items, self._model.training.batch_size, random)

    def block(self, seeds: np.ndarray, key: int) -> LayersBlock:
        laid = self._samples.lay_out(seeds, key)
        graph = tensors_of(self._program, self._subject.schema, laid.arrays).to(self._device)
        kinds = None if laid.kinds is None else torch.from_numpy(laid.kinds.astype(np.int64)).to(self._device)
        return LayersBlock(graph, torch.from_numpy(laid.seeds).to(self._device), kinds)


def trainee_of_layers(
    layers: LayersManifest, model: Model, subject: TrainingSet, name: str, progress: ProgressListener,
    device: torch.device = CPU, initial: Tensors | None = None,
) -> Trainee:  # fmt: skip
    """A network of these layers, whose graph is one block or sampled, as `batches.py` says, which is told. `initial`:
    weights to begin with; None: drawn."""
    schema = subject.schema
    columns, answered = layers.columns or columns_of(schema), tuple(subject.problem.answered_types(schema))
    learning = Learning(model.training.dropout, {place: _degrees(one) for place, one in enumerate(subject.visible)})
    batches = batches_of(model, subject.data.nodes, subject.data.edges)
    report_batches(model, batches, name, progress)
    program = _reading_all(program_of(layers, schema, columns, answered), schema)

    def draw(course: Course) -> LearningLayers:
        del course
        module = LayersModule(layers, schema, columns, answered[0], learning)
        if initial is not None:
            load_canonical(module, initial)
        return LearningLayers(module.to(device), answered)

    return Trainee(_WAYS[batches](program, model, subject, device), device, LEARNING_RATE, draw)


_WAYS: Mapping[
    Batches, Callable[[ProgramManifest, Model, TrainingSet, torch.device], WholeLayersGraph | SampledLayers]
] = {
    Batches.WHOLE_GRAPH: WholeLayersGraph.of,
    Batches.SAMPLED: SampledLayers,
}


def _reading_all(program: ProgramManifest, schema: GraphSchema) -> ProgramManifest:
    """The program with all that samples have of the graph but its degrees."""
    inputs = []
    for place, kind in enumerate(schema.types):
        inputs.append(ProgramInput(f"nodes_per_hop_{place}", InputRole.NODES_PER_HOP, type=kind.name))
        if kind.features:
            inputs.append(ProgramInput(f"features_{place}", InputRole.FEATURES, type=kind.name))
    for place, one in enumerate(schema.relations):
        key = RelationKey(one.source, one.name, one.target)
        inputs.append(ProgramInput(f"edges_{place}", InputRole.EDGES, relation=key))
        if one.payload is not UNSET and one.payload.columns:
            inputs.append(ProgramInput(f"edge_features_{place}", InputRole.EDGE_FEATURES, relation=key))
    return msgspec.structs.replace(program, inputs=tuple(inputs), reads_degrees=False)


def _dense(rows: Features) -> torch.Tensor:
    return torch.from_numpy(np.array(rows if isinstance(rows, np.ndarray) else rows.toarray()))


def _edges_of(relation: Relation) -> torch.Tensor:
    """int64 [2, edges]: the positions of the nodes that are read, and of those that read them."""
    lists = relation.lists
    targets = np.repeat(np.arange(len(lists.indptr) - 1), np.diff(lists.indptr))
    return torch.from_numpy(np.stack([lists.indices.astype(np.int64), targets]))


def _columns_of(relation: Relation, device: torch.device) -> Mapping[str, torch.Tensor]:
    if relation.payload is None:
        return {}
    rows = torch.from_numpy(relation.payload.features[relation.lists.payload_rows]).to(device)
    return dict(zip(relation.payload.columns, rows.unbind(1), strict=True))


def _degrees(relation: Relation) -> list[int]:
    """How many nodes have a list of 0, 1, … entries."""
    counts: list[int] = np.bincount(np.diff(relation.lists.indptr)).tolist()
    return counts
