"""Networks with two convolutions, as users of torch_geometric write them, and the layers of a manifest that serve them.

Each is trained twice by the same plan: in plain torch (`module_training.py`), whose weights are then given to a service
as they are, and here, as layers without a checkpoint. All accuracies are of the same test nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.models.module_training import (
    LabelledNodes,
    NeighbourSampler,
    Scores,
    TrainingPlan,
    accuracy,
    scores_of,
    train_module,
)
from gnnserve_api.spec.service import GNNService
from gnnserve_worker.generation.layer_convolutions import pyg
from gnnserve_worker.generation.pipeline import generate
from gnnserve_worker.repository.repository import Repository

HEADS = 4
_EXPECTED_NODES = 256


@dataclass(frozen=True, slots=True)
class LearntGraph:
    """A graph whose nodes are classified, in memory and as the file that a service reads."""

    name: str
    file: Path
    indptr: np.ndarray
    indices: np.ndarray
    features: np.ndarray
    """float32 [nodes, columns]"""
    nodes: LabelledNodes
    classes: int
    edge_columns: np.ndarray | None = None
    """float32 [edges, columns]; None: edges have none."""
    fanouts: tuple[int, ...] | None = None
    """Neighbours that are sampled, in training and in serving; None: all are read."""

    @property
    def edges(self) -> Tensor:
        """int64 [2, edges]: the node that is read, and the one that reads it."""
        reads = np.repeat(np.arange(len(self.indptr) - 1), np.diff(self.indptr))
        return torch.from_numpy(np.stack([self.indices.astype(np.int64), reads]))


@dataclass(frozen=True, slots=True)
class LearntNetwork:
    """A network in torch, and as layers."""

    name: str
    width: int
    layer: Mapping[str, Any]
    """Fields of each layer in a manifest, but its width."""
    convolution: Callable[[LearntNetwork, int, Tensor, float], nn.Module]
    """From columns of edges, numbers of nodes with 0, 1, … neighbours, and dropout to torch_geometric's module of
    `width` columns."""
    reads_edges: bool = False
    """Whether convolutions read columns of edges."""
    has_skips: bool = True
    """Whether a product of a layer's input is added, where the convolution has none itself."""

    def fields(self, graph: LearntGraph) -> dict[str, Any]:
        """Fields of spec.model."""
        layer = {**self.layer, "width": self.width, "norm": "Batch", "activation": "Relu"}
        if self.reads_edges and graph.edge_columns is not None:
            layer["edgeColumns"] = [str(place) for place in range(graph.edge_columns.shape[1])]
        if self.has_skips:
            layer |= {"residual": "Projected", "residualPlace": "BeforeNorm"}
        before = [{"products": [{"width": self.width, "activation": "Relu"}]}]
        return {"before": before, "layers": [layer, layer], "head": [{}]}

    def made(self, graph: LearntGraph, dropout: float) -> ConvolutionNetwork:
        columns = 0 if graph.edge_columns is None else graph.edge_columns.shape[1]
        degrees = torch.from_numpy(np.bincount(np.diff(graph.indptr)))
        convs = [self.convolution(self, columns, degrees, dropout) for _ in range(2)]
        return ConvolutionNetwork(
            convs, graph.features.shape[1], self.width, graph.classes, dropout, has_skips=self.has_skips
        )


class ConvolutionNetwork(nn.Module):
    """A product, two convolutions with a norm and a product of their input beside them, and a product."""

    def __init__(
        self, convs: Sequence[nn.Module], columns: int, width: int, classes: int, dropout: float, *, has_skips: bool
    ) -> None:  # fmt: skip
        super().__init__()
        self.lin_in = nn.Linear(columns, width)
        self.convs = nn.ModuleList(convs)
        self.skips = nn.ModuleList([nn.Linear(width, width) for _ in convs if has_skips])
        self.norms = nn.ModuleList([nn.BatchNorm1d(width) for _ in convs])
        self.head = nn.Linear(width, classes)
        self.dropout = dropout

    def forward(self, x: Tensor, edges: Tensor, edge_columns: Tensor | None = None) -> Tensor:
        x = functional.relu(self.lin_in(x))
        for place, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            found = conv(x, edges) if edge_columns is None else conv(x, edges, edge_columns)
            found = found + self.skips[place](x) if self.skips else found
            x = functional.dropout(functional.relu(norm(found)), self.dropout, self.training)
        scores: Tensor = self.head(x)
        return scores


def _attention(of: LearntNetwork, columns: int, dropout: float) -> dict[str, Any]:
    return {"heads": HEADS, "dropout": dropout, "edge_dim": columns if of.reads_edges else None}


def _mlp(width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))


_WIDTH = 64
_AGGREGATIONS, _SCALERS = ("Mean", "Min", "Max", "Std"), ("Identity", "Amplification", "Attenuation")


def _graph_sage(_reads_edges: bool) -> LearntNetwork:
    """Mean of the neighbours, beside which the convolution has a product of the node itself."""
    return LearntNetwork(
        "GraphSAGE", _WIDTH, {"conv": "GraphSAGE"}, lambda of, *_: pyg.SAGEConv(of.width, of.width), has_skips=False
    )


def _gatv2(reads_edges: bool) -> LearntNetwork:
    return LearntNetwork(
        "GATv2", _WIDTH, {"conv": "GATv2", "heads": HEADS},
        lambda of, columns, _, dropout: pyg.GATv2Conv(of.width, of.width // HEADS, **_attention(of, columns, dropout)),
        reads_edges,
    )  # fmt: skip


def _transformer(reads_edges: bool) -> LearntNetwork:
    return LearntNetwork(
        "Transformer", _WIDTH, {"conv": "Transformer", "heads": HEADS},
        lambda of, columns, _, dropout: pyg.TransformerConv(
            of.width, of.width // HEADS, **_attention(of, columns, dropout)
        ), reads_edges, has_skips=False,
    )  # fmt: skip


def _gine(reads_edges: bool) -> LearntNetwork:
    mlp = [{"width": _WIDTH, "activation": "Relu"}, {"width": _WIDTH}]
    return LearntNetwork(
        "GINE", _WIDTH, {"conv": "GINE", "mlp": mlp},
        lambda of, columns, *_: pyg.GINEConv(_mlp(of.width), train_eps=True, edge_dim=columns), reads_edges,
    )  # fmt: skip


def _pna(reads_edges: bool) -> LearntNetwork:
    return LearntNetwork(
        "PNA", _WIDTH, {"conv": "PNA", "aggregations": list(_AGGREGATIONS), "scalers": list(_SCALERS)},
        lambda of, columns, degrees, _: pyg.PNAConv(
            of.width, of.width, [one.lower() for one in _AGGREGATIONS], [one.lower() for one in _SCALERS], degrees,
            edge_dim=columns if of.reads_edges else None,
        ), reads_edges, has_skips=False,
    )  # fmt: skip


NETWORKS: Mapping[str, Callable[[bool], LearntNetwork]] = {
    "GraphSAGE": _graph_sage, "GATv2": _gatv2, "Transformer": _transformer, "GINE": _gine, "PNA": _pna,
}  # fmt: skip
"""By name, from whether edges have columns."""


# --- one network over one graph


@dataclass(frozen=True, slots=True)
class Trained:
    """Accuracies of one network over test nodes, seed by seed."""

    graph: str
    network: str
    torch: list[float]
    """Trained in torch_geometric, and scored by it."""
    given: list[float]
    """torch_geometric's weights, served as layers."""
    here: list[float]
    """Trained here as layers, and served."""


def measure(
    graph: LearntGraph, network: LearntNetwork, plan: TrainingPlan, dropout: float, seeds: Sequence[int], folder: Path
) -> dict[str, Any]:
    found = Trained(graph.name, network.name, [], [], [])
    for seed in seeds:
        of_seed = folder / f"{graph.name}-{network.name}-{seed}"
        of_seed.mkdir(parents=True)
        found.torch.append(_trained_in_torch(graph, network, plan, dropout, seed, of_seed))
        weights = {"checkpoint": {"uri": str(of_seed / "weights.safetensors")}}
        if graph.fanouts is None:
            weights["expected"] = {"uri": str(of_seed / "expected.npz")}
        found.given.append(_served(graph, network, weights, of_seed / "given"))
        found.here.append(_served(graph, network, _training(plan, dropout, seed, graph), of_seed / "here"))
        told = ", ".join(f"{key} {value[-1]:.4f}" for key, value in asdict(found).items() if isinstance(value, list))
        print(f"{graph.name}, {network.name}, seed {seed}: {told}", flush=True)
    return asdict(found)


def _trained_in_torch(
    graph: LearntGraph, network: LearntNetwork, plan: TrainingPlan, dropout: float, seed: int, folder: Path
) -> float:
    torch.manual_seed(seed)
    module = network.made(graph, dropout)
    scores = _scores(graph, network, module, seed)
    train_module(module, scores, graph.nodes, plan, seed)
    test = scores_of(module, scores, graph.nodes.test, plan.batch_size)
    save_file(module.state_dict(), folder / "weights.safetensors")
    if graph.fanouts is None:
        np.savez(folder / "expected.npz", nodes=graph.nodes.test[:_EXPECTED_NODES], scores=test[:_EXPECTED_NODES])
    return accuracy(test, graph.nodes.labels[graph.nodes.test])


def _scores(graph: LearntGraph, network: LearntNetwork, module: nn.Module, seed: int) -> Scores:
    """Scores over the whole graph, or over samples of it."""
    x = torch.from_numpy(graph.features)
    if graph.fanouts is None:
        columns = graph.edge_columns if network.reads_edges else None
        read = (x, graph.edges, *([] if columns is None else [torch.from_numpy(columns)]))
        return lambda nodes: module(*read)[torch.from_numpy(nodes)]
    sampler = NeighbourSampler(graph.indptr, graph.indices, graph.fanouts, seed)

    def sampled(nodes: np.ndarray) -> Tensor:
        reached, edges = sampler.sample(nodes)
        scores: Tensor = module(x[torch.from_numpy(reached)], torch.from_numpy(edges))[: len(nodes)]
        return scores

    return sampled


def _training(plan: TrainingPlan, dropout: float, seed: int, graph: LearntGraph) -> dict[str, Any]:
    training = {
        "epochs": plan.epochs, "learningRate": plan.learning_rate, "weightDecay": plan.weight_decay,
        "dropout": dropout, "seed": seed, "scope": "Transductive",
        "batches": "WholeGraph" if graph.fanouts is None else "Sampled",
    }  # fmt: skip
    return {"training": training | ({} if plan.batch_size is None else {"batchSize": plan.batch_size})}


def _served(graph: LearntGraph, network: LearntNetwork, beside: Mapping[str, Any], folder: Path) -> float:
    """Accuracy of a service over the test nodes. `beside`: fields of spec.model beside its layers."""
    source: dict[str, Any] = {"uri": str(graph.file), "direction": "Undirected"}
    if graph.edge_columns is not None:
        source["edgeColumns"] = "Read"
    fanouts = [-1, -1] if graph.fanouts is None else list(graph.fanouts)
    spec = {
        "graph": {"source": {"npz": source}, "normalization": "Disabled"},
        "model": {**network.fields(graph), **beside, "fanouts": fanouts},
        "variants": {"pruning": {"factors": [1]}, "projection": "Disabled"},
    }
    body = {"apiVersion": "gnnserve.dev/v1alpha1", "kind": "GNNService", "metadata": {"name": "learnt"}, "spec": spec}
    published = generate(GNNService.model_validate(body), Repository(folder, "default", "learnt"))
    found = published.profile.variants[0].test_accuracy
    if found is None:
        raise SystemExit(f"{graph.name} has no test nodes")
    return found
