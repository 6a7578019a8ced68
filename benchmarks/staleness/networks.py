"""Networks whose layers are stored, and the graphs that they read: GraphSAGE with means or maxima, and attention, over
any number of relations, in torch.

Every layer is a product of a node's own state and, for each relation, an aggregation of products of the states that it
reads; hidden layers end in a ReLU. All nodes have one numbering, type after type (`graph/store.py`). States are
computed over whole lists; training draws about ten edges of each list, anew for each epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from gnnserve_worker.graph.store import Features, GraphData

HIDDEN, HEADS = 64, 4
MOST_COLUMNS = 256
"""Features beyond these are projected to as many columns by a random matrix, so that a network trains in seconds."""
_DRAWN = 10
_LEARNING_RATE, _WEIGHT_DECAY, _DROPOUT, _SLOPE = 0.01, 5e-4, 0.5, 0.2


@dataclass(frozen=True, slots=True)
class Edges:
    """Edges of all relations; nodes are numbered over all types."""

    nodes: int
    sources: np.ndarray
    """int64 [edges]: the nodes that are read."""
    targets: np.ndarray
    """int64 [edges]: the nodes that read them."""
    relations: np.ndarray
    """int64 [edges]: places of relations."""

    @staticmethod
    def of(data: GraphData) -> Edges:
        schema = data.schema
        firsts = [schema.first_nodes[schema.place_of(one.source)] for one in schema.relations]
        ends = [schema.first_nodes[schema.place_of(one.target)] for one in schema.relations]
        lists = [relation.lists for relation in data.relations]
        return Edges(
            data.nodes,
            np.concatenate([one.indices.astype(np.int64) + first for one, first in zip(lists, firsts, strict=True)]),
            np.concatenate([one.targets() + first for one, first in zip(lists, ends, strict=True)]),
            np.repeat(np.arange(len(lists)), [one.edges for one in lists]),
        )

    def where(self, is_kept: np.ndarray) -> Edges:
        """The edges of a mask (bool [edges])."""
        return Edges(self.nodes, self.sources[is_kept], self.targets[is_kept], self.relations[is_kept])

    def degrees(self) -> np.ndarray:
        """Edges that each node reads by all relations: int64 [nodes]."""
        return np.bincount(self.targets, minlength=self.nodes)

    def by_relation(self, count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Sources and targets of each relation, int64."""
        chosen = [self.relations == place for place in range(count)]
        return [(torch.from_numpy(self.sources[one]), torch.from_numpy(self.targets[one])) for one in chosen]


@dataclass(frozen=True, slots=True)
class Subject:
    """Inputs, labels and splits that a network is trained on."""

    inputs: tuple[torch.Tensor | None, ...]
    """float32 [nodes, columns] of each type; None: its nodes have embeddings that are learnt."""
    type_nodes: tuple[int, ...]
    relations: int
    labels: torch.Tensor
    """int64 [nodes of the first type], -1 where unknown."""
    train: np.ndarray
    """Nodes of the first type, int64."""
    classes: int

    @staticmethod
    def of(data: GraphData) -> Subject:
        return Subject(
            tuple(None if kind.features is None else _columns_of(kind.features) for kind in data.types),
            tuple(kind.nodes for kind in data.types), len(data.relations),
            torch.from_numpy(data.labels.astype(np.int64)), data.splits.train, len(data.classes),
        )  # fmt: skip


def _columns_of(features: Features) -> torch.Tensor:
    """Features of at most `MOST_COLUMNS` columns, each of mean 0 and deviation 1."""
    columns = features.shape[1]
    if columns > MOST_COLUMNS:
        drawn = np.random.default_rng(5).standard_normal((columns, MOST_COLUMNS), np.float32)
        features = features @ (drawn / np.float32(np.sqrt(MOST_COLUMNS)))
    dense = torch.from_numpy(np.ascontiguousarray(features, np.float32))
    return (dense - dense.mean(0)) / dense.std(0).clamp_min(1e-6)


# --- aggregations: of products [nodes, columns], over one relation


def _mean(products: torch.Tensor, ends: tuple[torch.Tensor, torch.Tensor], _: nn.Parameter | None) -> torch.Tensor:
    sources, targets = ends
    total = torch.zeros_like(products).index_add(0, targets, products[sources])
    counts = torch.bincount(targets, minlength=len(products)).clamp_min(1)
    return total / counts.unsqueeze(1)


def _maximum(products: torch.Tensor, ends: tuple[torch.Tensor, torch.Tensor], _: nn.Parameter | None) -> torch.Tensor:
    sources, targets = ends
    into = targets.unsqueeze(1).expand(-1, products.shape[1])
    return torch.zeros_like(products).scatter_reduce(0, into, products[sources], "amax", include_self=False)


def _attention(
    products: torch.Tensor, ends: tuple[torch.Tensor, torch.Tensor], scorers: nn.Parameter | None
) -> torch.Tensor:
    assert scorers is not None  # noqa: S101 - networks of attention have them
    sources, targets = ends
    heads = products.view(len(products), scorers.shape[1], -1)
    read, own = ((heads * scorer).sum(-1) for scorer in scorers)
    scores = functional.leaky_relu(read[sources] + own[targets], _SLOPE)
    into = targets.unsqueeze(1).expand_as(scores)
    highest = torch.zeros_like(read).scatter_reduce(0, into, scores, "amax", include_self=False)
    weights = (scores - highest.detach()[targets]).exp()
    total = torch.zeros_like(read).index_add(0, targets, weights)
    weights = weights / total[targets].clamp_min(1e-12)
    return torch.zeros_like(heads).index_add(0, targets, heads[sources] * weights.unsqueeze(2)).flatten(1)


Aggregation = Callable[[torch.Tensor, tuple[torch.Tensor, torch.Tensor], nn.Parameter | None], torch.Tensor]
AGGREGATIONS: Mapping[str, Aggregation] = {"mean": _mean, "max": _maximum, "attention": _attention}


class Network(nn.Module):
    """Layers over a graph. `aggregation`: a key of `AGGREGATIONS`."""

    def __init__(self, subject: Subject, aggregation: str, layers: int) -> None:
        super().__init__()
        self._aggregate, self._relations = AGGREGATIONS[aggregation], subject.relations
        given = [None if one is None else one.shape[1] for one in subject.inputs]
        # Nodes of one type are read as they are; several types are brought to one width first.
        first = given[0] if len(given) == 1 and given[0] is not None else HIDDEN
        self.encoders = nn.ModuleList(
            nn.Embedding(nodes, HIDDEN) if columns is None else nn.Identity() if len(given) == 1
            else nn.Linear(columns, HIDDEN)
            for nodes, columns in zip(subject.type_nodes, given, strict=True)
        )  # fmt: skip
        widths = [first, *[HIDDEN] * (layers - 1), subject.classes]
        pairs = [*pairwise(widths)]
        self.own = nn.ModuleList(nn.Linear(*pair) for pair in pairs)
        self.read = nn.ModuleList(
            nn.ModuleList(nn.Linear(*pair, bias=False) for _ in range(subject.relations)) for pair in pairs
        )
        self.scorers = nn.ParameterList(_scorers(pair[1], last=pair is pairs[-1]) for pair in pairs)
        self._has_scorers = aggregation == "attention"

    @property
    def layers(self) -> int:
        return len(self.own)

    def inputs(self, subject: Subject) -> torch.Tensor:
        """float32 [nodes, columns]: what the first layer reads."""
        return torch.cat([
            encoder.weight if isinstance(encoder, nn.Embedding) else encoder(given)
            for encoder, given in zip(self.encoders, subject.inputs, strict=True)
        ])  # fmt: skip

    def layer(self, number: int, states: torch.Tensor, edges: Edges) -> torch.Tensor:
        """Output of a layer, from 0, over all of these edges, of every node: float32 [nodes, outputs]."""
        scorers = self.scorers[number] if self._has_scorers else None
        total = self.own[number](states)
        for product, ends in zip(self.read[number], edges.by_relation(self._relations), strict=True):
            total = total + self._aggregate(product(states), ends, scorers)
        return total if number == self.layers - 1 else total.relu()

    def states(self, subject: Subject, edges: Edges) -> list[torch.Tensor]:
        """Output of every layer over all of these edges."""
        found = [self.inputs(subject)]
        for number in range(self.layers):
            found.append(self.layer(number, found[-1], edges))
        return found[1:]


def _scorers(outputs: int, *, last: bool) -> nn.Parameter:
    """Vectors by which attention scores sources and targets: float32 [2, heads, columns of a head]."""
    heads = 1 if last else HEADS
    return nn.Parameter(torch.randn(2, heads, outputs // heads) / np.sqrt(outputs // heads))


def train(subject: Subject, edges: Edges, aggregation: str, layers: int, epochs: int) -> Network:
    """A network that classifies the nodes of the first type."""
    torch.manual_seed(7)
    rng = np.random.default_rng(7)
    network = Network(subject, aggregation, layers)
    optimizer = torch.optim.Adam(network.parameters(), lr=_LEARNING_RATE, weight_decay=_WEIGHT_DECAY)
    chance = np.minimum(1, _DRAWN / np.maximum(1, edges.degrees()))[edges.targets]
    train = torch.from_numpy(subject.train)
    for _ in range(epochs):
        drawn = edges.where(rng.random(len(chance)) < chance)
        states = functional.dropout(network.inputs(subject), _DROPOUT)
        for number in range(layers):
            states = network.layer(number, states, drawn)
            if number < layers - 1:
                states = functional.dropout(states, _DROPOUT)
        loss = functional.cross_entropy(states[train], subject.labels[train])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return network.eval()
