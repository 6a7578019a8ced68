"""Trains two networks over the digits with torch_geometric and writes their weights: all.safetensors, half.safetensors.

The first reads all 64 columns, the second every second one. given-variants.yaml beside this file serves both. It stands
for whatever trains your own variants; nothing of gnnserve is in it.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file
from sklearn.datasets import load_digits
from sklearn.neighbors import kneighbors_graph
from torch_geometric.nn import GraphSAGE

HIDDEN, LAYERS, CLASSES = 32, 2, 10
COLUMNS = {"all": range(64), "half": range(0, 64, 2)}
EPOCHS = 60


def make(folder: Path) -> None:
    torch.manual_seed(0)
    pixels, digits = load_digits(return_X_y=True)
    # The graph that gnnserve has as `builtin: Digits`: ten nearest neighbours, linked both ways.
    nearest = kneighbors_graph(pixels, 10).tocoo()
    edges = torch.tensor([[*nearest.row, *nearest.col], [*nearest.col, *nearest.row]]).unique(dim=1)
    features, labels = torch.tensor(pixels, dtype=torch.float32), torch.tensor(digits)
    is_trained = torch.rand(len(labels)) < 0.6
    for name, columns in COLUMNS.items():
        model = GraphSAGE(len(columns), HIDDEN, LAYERS, CLASSES, dropout=0.5)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
        for _ in range(EPOCHS):
            optimizer.zero_grad()
            scores = model(features[:, list(columns)], edges)
            torch.nn.functional.cross_entropy(scores[is_trained], labels[is_trained]).backward()
            optimizer.step()
        model.eval()
        right = (model(features[:, list(columns)], edges).argmax(1) == labels)[~is_trained].float().mean()
        save_file(model.state_dict(), folder / f"{name}.safetensors")
        print(f"{name}.safetensors: {right:.1%} of the other nodes right")


if __name__ == "__main__":
    make(Path(__file__).parent)
