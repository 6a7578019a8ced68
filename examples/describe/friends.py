"""A network of DGL, in an environment that has it: two SAGEConv layers over people.

gnnserve-describe examples/describe/friends.py:model --graph examples/describe/friends.py:graph --out friends
"""

import dgl
import dgl.nn
import torch

PEOPLE, GROUPS, COLUMNS = 1_000, 3, 16


def graph() -> dgl.DGLGraph:
    """People who know people of their own group more often."""
    generator = torch.Generator().manual_seed(0)
    groups = torch.randint(0, GROUPS, (PEOPLE,), generator=generator)
    ends = torch.randint(0, PEOPLE, (2, 10 * PEOPLE), generator=generator)
    ends = ends[:, (groups[ends[0]] == groups[ends[1]]) | (torch.rand(ends.shape[1], generator=generator) < 0.1)]
    made = dgl.graph((torch.cat([ends[0], ends[1]]), torch.cat([ends[1], ends[0]])), num_nodes=PEOPLE)
    made.ndata["feat"] = torch.randn(PEOPLE, COLUMNS, generator=generator) + groups.unsqueeze(1)
    made.ndata["label"] = groups
    return made


class Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = dgl.nn.SAGEConv(COLUMNS, 32, "mean")
        self.second = dgl.nn.SAGEConv(32, GROUPS, "mean")

    def forward(self, g: dgl.DGLGraph, feat: torch.Tensor) -> torch.Tensor:
        return self.second(g, self.first(g, feat).relu())


def model(epochs: int = 20) -> Network:
    torch.manual_seed(0)
    network, given = Network(), graph()
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    for _ in range(epochs):
        loss = torch.nn.functional.cross_entropy(network(given, given.ndata["feat"]), given.ndata["label"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return network
