"""Graphs with DGL's interface: computed by torch as DGL does, and described.

DGL itself has no release for the torch that is tested with; its convolutions were run by hand (docs/programs.md).
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.programs.described import CLASSES, COLUMNS, GRAPH, NODES

from gnnserve_api.errors import InputError
from gnnserve_api.files.programs import InputRole
from gnnserve_describe import describe
from gnnserve_describe.dgl_graph import TorchGraph

SOURCES, TARGETS = GRAPH.edge_index.numpy()


def copied(field: str, out: str) -> Any:
    """`dgl.function.copy_u`."""
    return SimpleNamespace(name="copy_u", in_field=field, out_field=out)


def multiplied(source: str, edge: str, out: str) -> Any:
    """`dgl.function.u_mul_e`."""
    return SimpleNamespace(name="u_mul_e", lhs_field=source, rhs_field=edge, out_field=out)


def reduced(name: str, field: str, out: str) -> Any:
    """`dgl.function.sum`, `mean`, `max`, `min`."""
    return SimpleNamespace(name=name, msg_field=field, out_field=out)


def graph() -> TorchGraph:
    ndata = {"feat": GRAPH.x, "label": GRAPH.y, "train_mask": GRAPH.train_mask}
    return TorchGraph(GRAPH.edge_index, NODES, ndata, {"weight": GRAPH.edge_attr[:, 0], "columns": GRAPH.edge_attr})


@pytest.mark.campaign
@pytest.mark.parametrize("name", ["sum", "mean", "max", "min"])
def test_messages_are_reduced_by_the_node_that_reads(name: str) -> None:
    given = graph()
    given.update_all(multiplied("feat", "weight", "m"), reduced(name, "m", "out"))
    messages = GRAPH.x.numpy()[SOURCES] * GRAPH.edge_attr.numpy()[:, :1]
    wanted = np.zeros((NODES, COLUMNS), np.float32)
    for node in np.unique(TARGETS):
        wanted[node] = getattr(np, name)(messages[node == TARGETS], axis=0)
    np.testing.assert_allclose(given.ndata["out"], wanted, rtol=1e-5, atol=1e-5)


def test_softmax_is_over_the_edges_that_a_node_reads() -> None:
    scores = GRAPH.edge_attr[:, :2]
    found = graph().softmax_by_target(scores).numpy()
    for node in np.unique(TARGETS):
        read = node == TARGETS
        np.testing.assert_allclose(found[read], torch.softmax(scores[read], dim=0), rtol=1e-5)


def test_what_a_scope_sets_is_gone_behind_it() -> None:
    given = graph()
    with given.local_scope():
        given.ndata["hidden"] = GRAPH.x
        given.edata["scores"] = GRAPH.edge_attr
    assert set(given.ndata) == {"feat", "label", "train_mask"}
    assert set(given.edata) == {"weight", "columns"}


def test_a_mailbox_that_is_reduced_by_a_function_is_refused() -> None:
    with pytest.raises(InputError, match=r"use one of DGL's reduce functions: dgl\.function\.sum"):
        graph().update_all(copied("feat", "m"), lambda nodes: {"out": nodes.mailbox["m"].sum(1)})


class Sage(torch.nn.Module):
    """As DGL's guide writes a convolution, weighted by a column of edges."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(6)
        self.linear = torch.nn.Linear(2 * COLUMNS, CLASSES)

    def forward(self, g: Any, features: torch.Tensor) -> torch.Tensor:
        with g.local_scope():
            g.ndata["h"] = features
            g.apply_edges(lambda edges: {"w": edges.data["columns"].sum(dim=1)})
            g.update_all(multiplied("h", "w", "m"), reduced("mean", "m", "neigh"))
            return self.linear(torch.cat([features, g.ndata["neigh"]], dim=1))


def test_a_module_over_such_a_graph_is_described(tmp_path: Path) -> None:
    module = Sage().eval()
    made = describe(module, graph(), tmp_path / "sage")
    assert [(each.name, each.role) for each in made.program.inputs] == [
        ("x", InputRole.FEATURES), ("edge_index", InputRole.EDGES), ("edge_attr", InputRole.EDGE_FEATURES)
    ]  # fmt: skip
    assert made.program.hops == 1
    with np.load(made.folder / "expected.npz") as arrays:
        wanted = module(graph(), GRAPH.x).detach().numpy()[arrays["nodes"]]
        np.testing.assert_allclose(arrays["scores"], wanted, atol=1e-5)
