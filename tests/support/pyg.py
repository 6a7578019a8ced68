"""torch_geometric's own models on explicit graphs: what the fused paths must equal."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from gnnserve_api.gnnservice import Model
from gnnserve_worker.generation.networks import build_module
from gnnserve_worker.graph.store import Graph
from gnnserve_worker.sampling.tree import SampledTree


def module_of(architecture: str, fanouts: tuple[int, ...], columns: int, *, hidden: int = 8, classes: int = 3) -> Any:
    """In evaluation mode, with weights of a fixed seed."""
    torch.manual_seed(0)
    model = Model.model_validate({"architecture": architecture, "fanouts": fanouts, "hidden": hidden})
    module: Any = build_module(model, columns, classes).eval()
    for conv in module.convs:
        if hasattr(conv, "eps"):
            conv.eps.fill_(0.25)  # a user's own, so that nothing passes by taking PyG's 0 for granted
    return module


def edges_of_graph(graph: Graph) -> torch.Tensor:
    """PyG's edge_index: sources and targets of messages."""
    targets = np.repeat(np.arange(graph.nodes), np.diff(graph.indptr))
    return torch.from_numpy(np.stack([graph.indices.astype(np.int64), targets]))


def explicit_tree(tree: SampledTree) -> tuple[np.ndarray, torch.Tensor]:
    """A sampled tree as a graph of its own: the node id behind every used slot, and child-to-parent edges.

    Slot i of level 0 is node i.
    """
    numbers: list[np.ndarray] = []
    ids: list[int] = []
    for level in tree.ids:
        number = np.full(len(level), -1, dtype=np.int64)
        used = level >= 0
        number[used] = len(ids) + np.arange(used.sum())
        ids += level[used].tolist()
        numbers.append(number)
    edges = [
        (child, parent)
        for depth, fanout in enumerate(tree.fanouts)
        for slot, child in enumerate(numbers[depth + 1].tolist())
        if child >= 0
        for parent in [int(numbers[depth][slot // fanout])]
    ]
    return np.array(ids), torch.tensor(edges, dtype=torch.int64).reshape(-1, 2).T


@torch.no_grad()
def scores_of(module: Any, features: np.ndarray, edges: torch.Tensor) -> np.ndarray:
    scores: np.ndarray = module(torch.from_numpy(features.copy()), edges).numpy()
    return scores


@torch.no_grad()
def last_hidden_of(module: Any, features: np.ndarray, edges: torch.Tensor) -> np.ndarray:
    hidden = torch.from_numpy(features.copy())
    for conv in module.convs[:-1]:
        hidden = module.act(conv(hidden, edges))
    return hidden.numpy()


def assert_close(actual: np.ndarray, expected: np.ndarray, tolerance: float = 1e-5) -> None:
    """To `tolerance` of the largest value."""
    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance * float(np.abs(expected).max()))
