"""A network of torch_geometric over one type of nodes: GCN layers with a norm and a head, trained for some steps.

gnnserve-describe examples/describe/papers.py:model --graph examples/describe/papers.py:graph --out papers
"""

import torch
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv

PAPERS, TOPICS, COLUMNS = 2_000, 4, 32


def graph() -> Data:
    """Papers that cite papers of their own topic more often; features tell a little of the topic."""
    generator = torch.Generator().manual_seed(0)
    topics = torch.randint(0, TOPICS, (PAPERS,), generator=generator)
    ends = torch.randint(0, PAPERS, (2, 12 * PAPERS), generator=generator)
    is_kept = (topics[ends[0]] == topics[ends[1]]) | (torch.rand(ends.shape[1], generator=generator) < 0.1)
    ends = ends[:, is_kept & (ends[0] != ends[1])]
    centres = torch.randn(TOPICS, COLUMNS, generator=generator)
    features = torch.randn(PAPERS, COLUMNS, generator=generator) + 0.5 * centres[topics]
    edges = torch.unique(torch.cat([ends, ends.flip(0)], dim=1), dim=1)
    number = torch.rand(PAPERS, generator=generator)
    masks = {"train_mask": number < 0.6, "val_mask": (number >= 0.6) & (number < 0.8), "test_mask": number >= 0.8}
    return Data(x=features, edge_index=edges, y=topics, **masks)


class Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = GCNConv(COLUMNS, 64), GCNConv(64, 64)
        self.norm = torch.nn.BatchNorm1d(64)
        self.head = torch.nn.Linear(64, TOPICS)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        hidden = torch.nn.functional.elu(self.norm(self.first(x, edge_index)))
        hidden = torch.nn.functional.dropout(hidden, 0.5, training=self.training)
        hidden = hidden + self.second(hidden, edge_index)
        return self.head(hidden)


def model(epochs: int = 30) -> Network:
    torch.manual_seed(0)
    network, data = Network(), graph()
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    for _ in range(epochs):
        scores = network(data.x, data.edge_index)
        loss = torch.nn.functional.cross_entropy(scores[data.train_mask], data.y[data.train_mask])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return network
