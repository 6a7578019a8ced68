"""HGT and RGAT over public graphs of several types, trained in torch_geometric, described, and served as layers.

Splits are those of the data's authors: of acm HeCo's (20, 40 and 60 labels a class, 1,000 nodes for validation and
tests each), of imdb MAGNN's (400, 400 and 3,478 movies). Features of the classified type are its words, 1 where one is
there: shares of 85 words, as acm has them, are so small that 100 epochs learnt nothing. Nodes of other types have the
mean of those that they are joined to, as MAGNN gives directors and actors. RGAT reads all types as one graph
with kinds of edges, HGT each type apart. Runs score all test nodes over their whole neighbourhoods.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch_geometric.nn as pyg
from safetensors.numpy import load_file
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.model_table.served import Served, ServedGraph
from benchmarks.models.models_typed_accuracy import MODELS
from benchmarks.models.module_training import LabelledNodes, TrainingPlan, scores_of, train_module
from gnnserve_describe import Wishes, describe
from gnnserve_describe.write import LAYERS

SHARED = Path(__file__).parents[3] / "shared" / "typed"
_WIDTH, _HEADS, _DROPOUT = 64, 4, 0.5
_RGAT_WIDTH, _RGAT_HEADS = 32, 2
"""RGATConv makes a matrix for each edge: twice as wide takes four times the memory, several GiB."""
_EPOCHS, _LEARNING_RATE, _WEIGHT_DECAY = 100, 0.005, 1e-3
_SEEDS, _AT_ONCE = 3, 250
_LEAST = 1e-9

Key = tuple[str, str, str]


@dataclass(frozen=True, slots=True, eq=False)
class TypedGraph:
    """A graph whose first type is classified."""

    x: Mapping[str, Tensor]
    """float32 [nodes, columns], by type, of as many columns each"""
    edges: Mapping[Key, Tensor]
    """int64 [2, edges], both ways"""
    labels: np.ndarray
    masks: Mapping[str, np.ndarray]

    @property
    def classes(self) -> int:
        return int(self.labels.max()) + 1

    @property
    def as_one_type(self) -> tuple[Tensor, Tensor, Tensor]:
        """Features of all nodes, those of the first type first; their edges, and the kind of each."""
        counts = [len(rows) for rows in self.x.values()]
        first = dict(zip(self.x, np.cumsum([0, *counts]).tolist(), strict=False))
        pairs = [
            edges + torch.tensor([[first[source]], [first[target]]])
            for (source, _, target), edges in self.edges.items()
        ]
        kinds = [torch.full((edges.shape[1],), kind) for kind, edges in enumerate(pairs)]
        return torch.cat([*self.x.values()]), torch.cat(pairs, dim=1), torch.cat(kinds)


def load_graph(folder: Path) -> TypedGraph:
    meta = json.loads((folder / "meta.json").read_text())
    target = meta["target"]
    nodes = np.load(folder / f"nodes_{target}.npz")
    rows = _dense(nodes)
    x, edges = {target: torch.from_numpy(rows)}, dict[Key, Tensor]()
    for source, name, other, _ in meta["relations"]:
        ends = np.load(folder / f"edges_{source}__{name}__{other}.npz")
        pairs = np.stack([ends["src"], ends["dst"]]).astype(np.int64)
        x[other] = torch.from_numpy(_means(rows, pairs, meta["node_types"][other]))
        edges[source, name, other] = torch.from_numpy(pairs)
        edges[other, f"rev_{name}", source] = torch.from_numpy(np.ascontiguousarray(pairs[::-1]))
    return TypedGraph(x, edges, nodes["labels"], {name: nodes[name] for name in nodes.files if "mask" in name})


def _dense(nodes: Any) -> np.ndarray:
    rows = np.zeros(nodes["feat_shape"], np.float32)
    places = np.repeat(np.arange(len(rows)), np.diff(nodes["feat_indptr"]))
    rows[places, nodes["feat_indices"]] = nodes["feat_data"] > 0
    return rows


def _means(rows: np.ndarray, pairs: np.ndarray, nodes: int) -> np.ndarray:
    """Mean of the rows that each node is joined to; of none, zeros."""
    sums = np.zeros((nodes, rows.shape[1]), np.float32)
    np.add.at(sums, pairs[1], rows[pairs[0]])
    counts = np.bincount(pairs[1], minlength=nodes)
    return sums / np.maximum(counts, 1)[:, None].astype(np.float32)


class Hgt(nn.Module):
    """A product of each type, two layers, and a head. torch_geometric's example (`hgt_dblp.py`) has one layer of two
    heads, and no dropout."""

    def __init__(self, graph: TypedGraph) -> None:
        super().__init__()
        self.target = next(iter(graph.x))
        self.lins = nn.ModuleDict({kind: nn.Linear(rows.shape[1], _WIDTH) for kind, rows in graph.x.items()})
        metadata = list(graph.x), list(graph.edges)
        self.convs = nn.ModuleList([pyg.HGTConv(_WIDTH, _WIDTH, metadata, _HEADS) for _ in range(2)])
        self.head = nn.Linear(_WIDTH, graph.classes)

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: dict[Key, Tensor]) -> Tensor:
        x_dict = {kind: _dropped(self.lins[kind](x).relu(), self) for kind, x in x_dict.items()}
        for conv in self.convs:
            x_dict = conv(x_dict, edge_index_dict)
        found: Tensor = self.head(_dropped(x_dict[self.target], self))
        return found


class Rgat(nn.Module):
    """A product, two layers over kinds of edges, and a head."""

    def __init__(self, graph: TypedGraph) -> None:
        super().__init__()
        columns = next(iter(graph.x.values())).shape[1]
        self.lin = nn.Linear(columns, _RGAT_WIDTH)
        each = _RGAT_WIDTH // _RGAT_HEADS
        self.convs = nn.ModuleList(
            [pyg.RGATConv(_RGAT_WIDTH, each, len(graph.edges), heads=_RGAT_HEADS) for _ in range(2)]
        )
        self.own = nn.ModuleList([nn.Linear(_RGAT_WIDTH, _RGAT_WIDTH) for _ in range(2)])
        self.head = nn.Linear(_RGAT_WIDTH, graph.classes)

    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor) -> Tensor:
        x = _dropped(self.lin(x).relu(), self)
        for conv, own in zip(self.convs, self.own, strict=True):
            x = _dropped((conv(x, edge_index, edge_type) + own(x)).relu(), self)
        found: Tensor = self.head(x)
        return found


def _dropped(rows: Tensor, module: nn.Module) -> Tensor:
    return functional.dropout(rows, _DROPOUT, module.training)


@dataclass(frozen=True, slots=True)
class _Model:
    make: Callable[[TypedGraph], nn.Module]
    arguments: Callable[[TypedGraph], tuple[Any, ...]]
    has_types: bool


_MODELS: Mapping[str, _Model] = {
    "HGT": _Model(Hgt, lambda graph: (dict(graph.x), dict(graph.edges)), has_types=True),
    "RGAT": _Model(Rgat, lambda graph: graph.as_one_type, has_types=False),
}


def measure_accuracy(*, quick: bool) -> dict[str, Any]:
    epochs, seeds = (3, 1) if quick else (_EPOCHS, _SEEDS)
    found: dict[str, Any] = {}
    for name, graph, nodes in _tasks(quick=quick):
        found[name] = {}
        for model in MODELS:
            runs = [train_and_serve(model, graph, nodes, seed, epochs) for seed in range(seeds)]
            found[name][model] = {
                **{
                    way: {metric: [run[way][metric] for run in runs] for metric in ("macroF1", "microF1")}
                    for way in ("torch", "layers")
                },
                "difference": max(run["difference"] for run in runs),
            }
    return found


def _tasks(*, quick: bool) -> Iterator[tuple[str, TypedGraph, LabelledNodes]]:
    acm = load_graph(SHARED / "acm")
    for labels in (20,) if quick else (20, 40, 60):
        yield f"acm, {labels} labels a class", acm, _nodes(acm, f"_{labels}")
    if not quick:
        imdb = load_graph(SHARED / "imdb")
        yield "imdb", imdb, _nodes(imdb, "")


def _nodes(graph: TypedGraph, ending: str) -> LabelledNodes:
    parts = (np.flatnonzero(graph.masks[f"{part}_mask{ending}"]) for part in ("train", "val", "test"))
    return LabelledNodes(graph.labels, *parts)


def train_and_serve(name: str, graph: TypedGraph, nodes: LabelledNodes, seed: int, epochs: int) -> dict[str, Any]:
    """Scores of the test nodes, by torch_geometric and by a worker, and how far they are from each other."""
    model = _MODELS[name]
    torch.manual_seed(seed)
    module, arguments = model.make(graph), model.arguments(graph)

    def scores(places: np.ndarray) -> Tensor:
        found: Tensor = module(*arguments)[torch.from_numpy(places)]
        return found

    train_module(module, scores, nodes, TrainingPlan(epochs, _LEARNING_RATE, _WEIGHT_DECAY), seed, macro_f1)
    expected = scores_of(module, scores, nodes.test)
    served = _served(module, arguments, next(iter(graph.x)) if model.has_types else None, nodes.test)
    difference = float(np.abs(served - expected).max() / max(float(np.abs(expected).max()), _LEAST))
    labels = graph.labels[nodes.test]
    return {"torch": _judged(expected, labels), "layers": _judged(served, labels), "difference": difference}


def _served(module: nn.Module, arguments: tuple[Any, ...], target: str | None, nodes: np.ndarray) -> np.ndarray:
    """Scores by the worker's kernels over samples of all neighbours. ValueError: the module is not listed."""
    with tempfile.TemporaryDirectory() as folder:
        described = describe(module, arguments, Path(folder, "described"), Wishes(target=target))
        if described.layers is None:
            raise ValueError(f"{type(module).__name__} is not listed: {'; '.join(described.findings)}")
        graph = ServedGraph.of(described)
        tensors = load_file(described.folder / LAYERS)
        served = Served.layers_of(described.layers, tensors, graph, described.example.scored.types)
        parts = [served.scores(nodes[first : first + _AT_ONCE]) for first in range(0, len(nodes), _AT_ONCE)]
    return np.concatenate(parts)


def _judged(scores: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    return {"macroF1": macro_f1(scores, labels), "microF1": float(np.mean(scores.argmax(axis=1) == labels))}


def macro_f1(scores: np.ndarray, labels: np.ndarray) -> float:
    """Mean over classes of 2 · right / (answered + there)."""
    answered = scores.argmax(axis=1)
    found = [
        2 * np.sum((answered == kind) & (labels == kind)) / max(1, np.sum(answered == kind) + np.sum(labels == kind))
        for kind in np.unique(labels)
    ]
    return float(np.mean(found))
