"""Modules that take the number of one type's nodes from another's, which holds over some graphs and few samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tests.support.programs.described import CLASSES, TYPED_GRAPH
from torch_geometric.data import HeteroData
from torch_geometric.utils import scatter

from gnnserve_describe import describe

HOSTS, WRITES = ("venue", "hosts", "author"), ("author", "writes", "paper")


class Borrowing(torch.nn.Module):
    """Sums venues by author into as many rows as there are papers, and those by paper."""

    def forward(self, x_dict: dict[str, torch.Tensor], edge_index_dict: dict[Any, torch.Tensor]) -> torch.Tensor:
        papers, venues = (x_dict[kind][:, :CLASSES] for kind in ("paper", "venue"))
        source, target = edge_index_dict[HOSTS]
        authors = torch.zeros_like(papers).index_add(0, target, venues[source])
        source, target = edge_index_dict[WRITES]
        return papers + scatter(authors[source], target, dim=0, dim_size=papers.size(0))


def test_types_are_given_as_many_nodes_as_all_have_together(tmp_path: Path) -> None:
    data = HeteroData()
    for kind in ("author", "paper"):
        data[kind].x = TYPED_GRAPH[kind].x
    data["venue"].x = torch.arange(80.0).reshape(20, CLASSES)
    data["paper"].y = TYPED_GRAPH["paper"].y
    data[HOSTS].edge_index = torch.stack([torch.arange(80) % 20, torch.arange(80)])
    data[WRITES].edge_index = TYPED_GRAPH[WRITES].edge_index
    made = describe(Borrowing(), data, tmp_path / "described")
    assert any("each type as many nodes as all have together" in told for told in made.findings)
    assert (made.program.hops, made.check.difference) == (2, 0.0)
