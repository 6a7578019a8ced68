"""torch_geometric as a careful engineer would serve it: the sampler lives as long as the server, its CSC is built
once, each layer computes only what the next one needs, and sparse products take the place of scatter.

pyg-lib, the faster sampler, is not on PyPI; torch-sparse is what pip gives.
"""

from __future__ import annotations

import common
import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch_geometric.data import Data
from torch_geometric.nn import SAGEConv
from torch_geometric.sampler import NeighborSampler, NodeSamplerInput
from torch_sparse import SparseTensor


class Model:
    def __init__(self) -> None:
        torch.set_num_threads(common.THREADS)
        nodes = common.SHAPE["nodes"]
        self.features = torch.from_numpy(common.load("features"))
        data = Data(num_nodes=nodes)
        data.adj_t = SparseTensor(
            rowptr=torch.from_numpy(common.load("indptr")),
            col=torch.from_numpy(common.load("indices").astype(np.int64)),
            sparse_sizes=(nodes, nodes),
            is_sorted=True,
            trust_data=True,
        )
        self.sampler = NeighborSampler(data, num_neighbors=common.FANOUTS)
        weights = {key: torch.from_numpy(tensor) for key, tensor in common.load_weights().items()}
        self.first = self._layer(weights, 0, common.SHAPE["features"], common.SHAPE["hidden"])
        self.second = self._layer(weights, 1, common.SHAPE["hidden"], common.SHAPE["classes"])
        self.predict([0])
        self.predict(np.arange(common.MOST_SEEDS))

    @staticmethod
    def _layer(weights: dict[str, torch.Tensor], layer: int, inputs: int, outputs: int) -> SAGEConv:
        convolution = SAGEConv(inputs, outputs, aggr="mean")
        prefix = f"convs.{layer}."
        convolution.load_state_dict(
            {key.removeprefix(prefix): tensor for key, tensor in weights.items() if key.startswith(prefix)}
        )
        return convolution.eval()

    @torch.inference_mode()
    def predict(self, seeds: object) -> np.ndarray:
        """float32 [seeds, classes]; ids in any order, and they may repeat."""
        ids = torch.from_numpy(common.to_ids(seeds))
        # The sampler wants distinct seeds.
        distinct, positions = torch.unique(ids, return_inverse=True) if len(ids) > 1 else (ids, None)
        sampled = self.sampler.sample_from_nodes(NodeSamplerInput(input_id=None, node=distinct))
        scores = self._infer(self.features.index_select(0, sampled.node), sampled.row, sampled.col, len(distinct))
        return (scores if positions is None else scores[positions]).numpy()

    def _infer(self, rows: torch.Tensor, sources: torch.Tensor, targets: torch.Tensor, seeds: int) -> torch.Tensor:
        # Edges come hop by hop, grouped by target: those of the second layer are the first ones. Nodes come in the same
        # order, so whatever layer 1 has to compute is the first `hidden_nodes`.
        upper_edges = int(torch.searchsorted(targets, seeds))
        hidden_nodes = max(seeds, int(targets[-1]) + 1) if len(targets) else seeds
        if upper_edges:
            hidden_nodes = max(hidden_nodes, int(sources[:upper_edges].max()) + 1)
        lower = self._adjacency(targets, sources, hidden_nodes, len(rows))
        hidden = F.relu(self.first((rows, rows[:hidden_nodes]), lower))
        upper = self._adjacency(targets[:upper_edges], sources[:upper_edges], seeds, hidden_nodes)
        return self.second((hidden, hidden[:seeds]), upper)

    @staticmethod
    def _adjacency(targets: torch.Tensor, sources: torch.Tensor, rows: int, columns: int) -> SparseTensor:
        return SparseTensor(row=targets, col=sources, sparse_sizes=(rows, columns), is_sorted=True, trust_data=True)
