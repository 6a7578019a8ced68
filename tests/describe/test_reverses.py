"""Modules that read edges which leave a node are served over graphs that have the reverse of each relation, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch_geometric.nn as pyg
from tests.support.programs.described import CLASSES, ONE_WAY, TYPED_GRAPH, Net
from torch_geometric.data import HeteroData
from torch_geometric.utils import degree, scatter

from gnnserve_api.files.programs import InputRole, RelationKey
from gnnserve_api.manifest import load_manifest
from gnnserve_describe import describe
from gnnserve_describe.write import MANIFEST
from gnnserve_worker.generation.pipeline import generate
from gnnserve_worker.repository.repository import Repository

FORTH, BACK = RelationKey("node", "to", "node"), RelationKey("node", "rev_to", "node")


def test_edges_that_leave_a_node_are_sampled_by_the_reverse_of_their_relation(tmp_path: Path) -> None:
    module = Net(lambda width, out: pyg.DirGNNConv(pyg.SAGEConv(width, out))).eval()
    made = describe(module, ONE_WAY, tmp_path / "described")
    assert [each.relation for each in made.program.inputs if each.role is InputRole.EDGES] == [FORTH, BACK]
    assert (made.program.hops, made.program.reads_degrees, made.has_graph) == (2, True, True)
    assert any("the graph has node rev_to node beside node to node" in told for told in made.findings)
    # Which holds scores of hubs, of isolated nodes and of others against the module's over the whole graph.
    assert generate(load_manifest(made.folder / MANIFEST), Repository(tmp_path, "default", "described")).variants


class CountingOut(torch.nn.Module):
    """Divides what papers read by how many papers each author has written."""

    def forward(self, x_dict: dict[str, torch.Tensor], edge_index_dict: dict[Any, torch.Tensor]) -> torch.Tensor:
        assert len(edge_index_dict) == 1
        source, target = edge_index_dict["author", "writes", "paper"]
        authors = x_dict["author"][:, :CLASSES] / (1 + degree(source, x_dict["author"].size(0))).unsqueeze(1)
        return x_dict["paper"][:, :CLASSES] + scatter(authors[source], target, dim=0, dim_size=x_dict["paper"].size(0))


def test_relations_between_types_get_the_reverse_that_they_lack(tmp_path: Path) -> None:
    data = HeteroData()
    for kind in ("author", "paper"):
        data[kind].x = TYPED_GRAPH[kind].x
    data["paper"].y = TYPED_GRAPH["paper"].y
    data["author", "writes", "paper"].edge_index = TYPED_GRAPH["author", "writes", "paper"].edge_index
    made = describe(CountingOut(), data, tmp_path / "described")
    assert made.check.difference <= 1e-5
    assert [each.relation.name for each in made.program.inputs if each.role is InputRole.EDGES] == [
        "writes", "rev_writes",
    ]  # fmt: skip
