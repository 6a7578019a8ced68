"""A network of torch_geometric over several types of nodes, with columns of edges: accounts, shops and payments.

gnnserve-describe examples/describe/payments.py:model --graph examples/describe/payments.py:graph --out payments
"""

import torch
from torch_geometric.data import HeteroData
from torch_geometric.nn import HeteroConv, SAGEConv, TransformerConv
from torch_geometric.transforms import ToUndirected

ACCOUNTS, SHOPS = 1_500, 200


def graph() -> HeteroData:
    """Accounts pay shops (amount, hour) and know each other. Some pay much, at night: those are to be found."""
    generator = torch.Generator().manual_seed(0)
    is_odd = torch.rand(ACCOUNTS, generator=generator) < 0.2
    payers = torch.randint(0, ACCOUNTS, (9_000,), generator=generator)
    amount = torch.rand(9_000, generator=generator) * (1 + 2 * is_odd[payers])
    hour = torch.rand(9_000, generator=generator) * torch.where(is_odd[payers], 0.4, 1.0)
    data = HeteroData()
    data["account"].x = torch.randn(ACCOUNTS, 8, generator=generator)
    data["account"].y = is_odd.long()
    number = torch.rand(ACCOUNTS, generator=generator)
    data["account"].train_mask, data["account"].test_mask = number < 0.6, number >= 0.8
    data["account"].val_mask = ~(data["account"].train_mask | data["account"].test_mask)
    data["shop"].x = torch.randn(SHOPS, 5, generator=generator)
    shops = torch.randint(0, SHOPS, (9_000,), generator=generator)
    data["account", "pays", "shop"].edge_index = torch.stack([payers, shops])
    data["account", "pays", "shop"].edge_attr = torch.stack([amount, hour], dim=1)
    data["account", "knows", "account"].edge_index = torch.randint(0, ACCOUNTS, (2, 4_000), generator=generator)
    return ToUndirected()(data)


class Network(torch.nn.Module):
    """Attention over payments, means over acquaintances, and a head."""

    def __init__(self, data: HeteroData) -> None:
        super().__init__()
        self.first = HeteroConv({key: _convolution("edge_attr" in data[key]) for key in data.edge_types})
        self.second = HeteroConv({key: SAGEConv((-1, -1), 32) for key in data.edge_types}, aggr="mean")
        self.head = torch.nn.Linear(32, 2)

    def forward(self, x_dict: dict, edge_index_dict: dict, edge_attr_dict: dict) -> torch.Tensor:
        hidden = self.first(x_dict, edge_index_dict, edge_attr_dict)
        hidden = {kind: each.relu() for kind, each in hidden.items()}
        return self.head(self.second(hidden, edge_index_dict)["account"])


def _convolution(has_columns: bool) -> torch.nn.Module:
    if has_columns:  # they are part of what is summed: GATv2Conv would weigh shops by them, and pass none on
        return TransformerConv((-1, -1), 32, edge_dim=2)
    return SAGEConv((-1, -1), 32)


def model(epochs: int = 40) -> Network:
    torch.manual_seed(0)
    data = graph()
    network, accounts = Network(data), data["account"]
    with torch.no_grad():  # widths that are -1 are read of the graph
        network(data.x_dict, data.edge_index_dict, data.edge_attr_dict)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    for _ in range(epochs):
        scores = network(data.x_dict, data.edge_index_dict, data.edge_attr_dict)
        loss = torch.nn.functional.cross_entropy(scores[accounts.train_mask], accounts.y[accounts.train_mask])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return network
