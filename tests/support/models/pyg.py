"""torch_geometric's own models on explicit graphs: what the fused paths must equal."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from gnnserve_api.spec.model import Model
from gnnserve_worker.generation.networks import build_module, numbers_of
from gnnserve_worker.graph.store import Graph
from gnnserve_worker.models.registry import Tensors
from gnnserve_worker.sampling.neighbours import NeighbourSample


def module_of(
    architecture: str,
    fanouts: tuple[int, ...],
    columns: int,
    *,
    hidden: int = 8,
    mlp_hidden: int | None = None,
    heads: int | None = None,
    output_heads: int | None = None,
    hops: int | None = None,
    classes: int = 3,
) -> Any:
    """A module in evaluation mode, with weights of a fixed seed."""
    torch.manual_seed(0)
    widths = {"hidden": hidden, "mlpHidden": mlp_hidden, "heads": heads, "outputHeads": output_heads, "hops": hops}
    model = Model.model_validate({"architecture": architecture, "fanouts": fanouts, **widths})
    module: Any = build_module(model, columns, classes).eval()
    for conv in module.convs:
        if hasattr(conv, "eps"):
            conv.eps.fill_(0.25)  # a user's own, so that nothing passes by taking PyG's 0 for granted
        if hasattr(conv, "att_src"):
            conv.bias.data.normal_()
    return module


def to_tensors(module: torch.nn.Module) -> Tensors:
    """The state dict as numpy arrays, under torch_geometric's keys."""
    return numbers_of(module.state_dict())


def edges_of_graph(graph: Graph) -> torch.Tensor:
    """PyG's edge_index: sources and targets of messages."""
    targets = np.repeat(np.arange(graph.nodes), np.diff(graph.indptr))
    return torch.from_numpy(np.stack([graph.indices.astype(np.int64), targets]))


def explicit_sample(sample: NeighbourSample) -> tuple[np.ndarray, torch.Tensor]:
    """A sample as a graph of its own: the node id behind every row and every leaf, and child-to-parent edges.

    Rows keep their numbers.
    """
    expanded = sample.ends[-2] if len(sample.ends) > 1 else 0
    inner = int(sample.starts[expanded])
    leaves = len(sample.neighbours) - inner
    children = np.concatenate([sample.children[:inner], len(sample.nodes) + np.arange(leaves)]).astype(np.int64)
    parents = np.repeat(np.arange(len(sample.nodes)), np.diff(sample.starts))
    ids = np.concatenate([sample.nodes, sample.neighbours[inner:]])
    return ids, torch.from_numpy(np.stack([children, parents]))


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
    """Asserts that values agree to `tolerance` of the largest one."""
    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance * float(np.abs(expected).max()))
