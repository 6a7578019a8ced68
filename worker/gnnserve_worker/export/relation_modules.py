"""A network over relations as a torch module: features of nodes by type and edges by relation go in, scores come out.

The layers are those of `models/architecture.py`, whatever the architecture. Features are scaled in the module, so that
it takes them as the graph's source has them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from gnnserve_api.files.graph_schema import GraphSchema
from gnnserve_worker.export.feature_scaling import FeatureScaling
from gnnserve_worker.export.modules import segment_sum, weighted_segment_sum
from gnnserve_worker.models.architecture import Heads, RelationalLayer
from gnnserve_worker.models.feature_products import Scaling
from gnnserve_worker.programs.layered import EMBEDDINGS

_LEAST = torch.finfo(torch.float32).min


@dataclass(frozen=True, slots=True)
class RelationNetwork:
    """Layers over a graph's types and relations, which are named by their places there."""

    schema: GraphSchema
    layers: Sequence[RelationalLayer]
    scalings: Sequence[Scaling]
    """How features of each type are scaled."""
    scored: tuple[int, ...] = (0,)
    """Types whose nodes have scores, the first output's first."""

    def written(self, number: int) -> frozenset[int]:
        """Types whose rows the scores depend on: of features (0), or as a layer (the first being 1) gives them."""
        needed = frozenset(self.scored)
        for layer in reversed(self.layers[number:]):
            sources = {self.source_of(place) for place in layer.relations if self.target_of(place) in needed}
            needed = needed | sources
        return needed

    def read(self, number: int) -> list[int]:
        """Relations that a layer reads for the types that it writes, ascending."""
        written = self.written(number)
        return sorted(place for place in self.layers[number - 1].relations if self.target_of(place) in written)

    def source_of(self, place: int) -> int:
        return self.schema.place_of(self.schema.relations[place].source)

    def target_of(self, place: int) -> int:
        return self.schema.place_of(self.schema.relations[place].target)

    def slot_of(self, place: int) -> int:
        """The place of a relation among those that its target type reads."""
        target = self.schema.relations[place].target
        return sum(one.target == target for one in self.schema.relations[:place])


class RelationModule(nn.Module):
    """The whole network. Inputs and outputs are given by name."""

    def __init__(
        self, network: RelationNetwork, features: Mapping[int, str], edges: Mapping[int, str],
        scores: Mapping[int, str], *, gives_embeddings: bool,
    ) -> None:  # fmt: skip
        """`features`, `edges`: names of the inputs of each type and relation. `scores`: of the outputs of each type."""
        super().__init__()
        self.features, self.edges, self.scores, self.gives_embeddings = features, edges, scores, gives_embeddings
        self.scaled = nn.ModuleDict({str(kind): FeatureScaling(network.scalings[kind]) for kind in features})
        last = len(network.layers)
        self.layers = nn.ModuleList(
            _LAYERS[network.layers[number - 1].heads is not None](network, number, relu=number < last)
            for number in range(1, last + 1)
        )

    def forward(self, **inputs: Tensor) -> dict[str, Tensor]:
        states = {kind: self.scaled[str(kind)](inputs[name]) for kind, name in self.features.items()}
        edges = {place: inputs[name] for place, name in self.edges.items()}
        before = states
        for layer in self.layers:
            before, states = states, layer(states, edges)
        found = {name: states[kind] for kind, name in self.scores.items()}
        return found | {EMBEDDINGS: before[0]} if self.gives_embeddings else found


class _Layer(nn.Module):
    """A layer's matrices, and the sum of its parts for each type that it writes."""

    def __init__(self, network: RelationNetwork, number: int, *, relu: bool) -> None:
        super().__init__()
        layer = network.layers[number - 1]
        self.written, self.outputs, self.relu = sorted(network.written(number)), layer.outputs, relu
        self.reading: dict[int, list[tuple[int, int]]] = {kind: [] for kind in self.written}
        """By type: its relations with the types that they read."""
        for place in network.read(number):
            self.reading[network.target_of(place)].append((place, network.source_of(place)))
            self._keep("relation", place, layer.relations[place])
        for kind in self.written:
            for name, tensors in (("own", layer.own), ("bias", layer.biases)):
                if kind in tensors:
                    self._keep(name, kind, tensors[kind])

    def _keep(self, name: str, place: int, array: np.ndarray) -> None:
        self.register_buffer(f"{name}_{place}", torch.tensor(np.ascontiguousarray(array, np.float32)))

    def kept(self, name: str, place: int) -> Tensor | None:
        found: Tensor | None = getattr(self, f"{name}_{place}", None)
        return found

    def forward(self, states: Mapping[int, Tensor], edges: Mapping[int, Tensor]) -> dict[int, Tensor]:
        found = {}
        for kind in self.written:
            bias = self.kept("bias", kind)
            total = states[kind].new_zeros(states[kind].shape[0], self.outputs)
            if bias is not None:  # else the layer gives nothing for the type
                total = self.sum_of(kind, states, edges, total) + bias
            found[kind] = total.relu() if self.relu else total
        return found

    def sum_of(self, kind: int, states: Mapping[int, Tensor], edges: Mapping[int, Tensor], nothing: Tensor) -> Tensor:
        """What the layer gives for nodes of a type, but for its bias. `nothing`: zeros of that shape."""
        raise NotImplementedError


class _Means(_Layer):
    """The sum over relations of means, and the own row."""

    def __init__(self, network: RelationNetwork, number: int, *, relu: bool) -> None:
        super().__init__(network, number, relu=relu)
        for place, shift in network.layers[number - 1].shifts.items():
            self._keep("shift", place, shift)

    def sum_of(self, kind: int, states: Mapping[int, Tensor], edges: Mapping[int, Tensor], nothing: Tensor) -> Tensor:
        total, own = nothing, self.kept("own", kind)
        for place, source in self.reading[kind]:
            rows, shift = states[source] @ self.get_buffer(f"relation_{place}"), self.kept("shift", place)
            if shift is not None:
                rows = rows + shift
            senders, readers = edges[place][0], edges[place][1]
            summed = segment_sum(rows.index_select(0, senders), readers, nothing)
            count = segment_sum(nothing.new_ones(readers.shape[0], 1), readers, nothing)
            total = total + summed / count.clamp(min=1.0)
        return total if own is None else total + states[kind] @ own


class _Attention(_Layer):
    """The sum over relations of what heads attend to."""

    heads: Heads

    def __init__(self, network: RelationNetwork, number: int, *, relu: bool) -> None:
        super().__init__(network, number, relu=relu)
        heads = network.layers[number - 1].heads
        if heads is None:
            raise ValueError("a layer that attends, without heads")
        self.heads = heads
        self.slots = {place: network.slot_of(place) for place in network.read(number)}

    def sum_of(self, kind: int, states: Mapping[int, Tensor], edges: Mapping[int, Tensor], nothing: Tensor) -> Tensor:
        heads, own = self.heads.heads, self.kept("own", kind)
        if own is None:
            return nothing
        as_readers, total = states[kind] @ own, nothing
        for place, source in self.reading[kind]:
            rows, slot = states[source] @ self.get_buffer(f"relation_{place}"), self.slots[place]
            total = total + self._attended(rows, as_readers[:, slot * heads : (slot + 1) * heads], edges[place])
        return total

    def _attended(self, rows: Tensor, as_readers: Tensor, edges: Tensor) -> Tensor:
        """`rows`: products of the nodes that are read, and behind them their scores by head. `as_readers`: scores of
        those that read."""
        heads, width = self.heads, self.heads.heads * self.heads.columns
        senders, readers = edges[0], edges[1]
        scores = rows[:, width:].index_select(0, senders) + as_readers.index_select(0, readers)
        scores = nn.functional.leaky_relu(scores, heads.negative_slope)
        # As in any softmax, so that no exponential overflows.
        room = as_readers.new_full((as_readers.shape[0] + 1, heads.heads), _LEAST)
        largest = room.scatter_reduce(0, readers[:, None].expand_as(scores), scores, "amax")
        weights = (scores - largest.index_select(0, readers)).exp()
        # The largest of a node's neighbours weighs 1: what is less has none.
        total = segment_sum(weights, readers, as_readers).clamp(min=1.0)
        parts = zip(rows[:, :width].chunk(heads.heads, dim=1), weights.chunk(heads.heads, dim=1), strict=True)
        sums = [weighted_segment_sum(part, one, senders, readers, as_readers) for part, one in parts]
        shares = torch.cat(sums, dim=1) / total[:, :, None]
        return shares.mean(dim=1) if heads.averages else shares.flatten(1)


_LAYERS: Mapping[bool, type[_Layer]] = {False: _Means, True: _Attention}
"""By whether a layer has heads."""
