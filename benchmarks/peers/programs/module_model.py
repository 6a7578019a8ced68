"""A model of `modules.py` over torch_geometric's own sampler, run over the whole sample as its author wrote it."""

from __future__ import annotations

import common
import modules
import numpy as np
import torch
from torch_geometric.data import Data
from torch_geometric.sampler import NeighborSampler, NodeSamplerInput
from torch_sparse import SparseTensor


class Model:
    def __init__(self) -> None:
        torch.set_num_threads(common.THREADS)
        shape = common.SHAPE
        self.features = torch.from_numpy(common.load("features"))
        data = Data(num_nodes=shape["nodes"])
        data.adj_t = SparseTensor(
            rowptr=torch.from_numpy(common.load("indptr")),
            col=torch.from_numpy(common.load("indices").astype(np.int64)),
            sparse_sizes=(shape["nodes"], shape["nodes"]),
            is_sorted=True,
            trust_data=True,
        )
        self.sampler = NeighborSampler(data, num_neighbors=common.FANOUTS)
        self.module = modules.MODULES[shape["module"]](shape["features"], shape["hidden"], shape["classes"]).eval()
        weights = {key: torch.from_numpy(np.asarray(tensor)) for key, tensor in common.load_weights().items()}
        self.module.load_state_dict(weights)
        self.predict([0])
        self.predict(np.arange(common.MOST_SEEDS))

    @torch.inference_mode()
    def predict(self, seeds: object) -> np.ndarray:
        """float32 [seeds, classes]; ids in any order, and they may repeat."""
        ids = torch.from_numpy(common.to_ids(seeds))
        # The sampler wants distinct seeds.
        distinct, positions = torch.unique(ids, return_inverse=True) if len(ids) > 1 else (ids, None)
        sampled = self.sampler.sample_from_nodes(NodeSamplerInput(input_id=None, node=distinct))
        scores = self.infer(self.features.index_select(0, sampled.node), sampled.row, sampled.col, len(distinct))
        return (scores if positions is None else scores[positions]).numpy()

    def infer(self, rows: torch.Tensor, sources: torch.Tensor, targets: torch.Tensor, seeds: int) -> torch.Tensor:
        return self.module(rows, torch.stack([sources, targets]))[:seeds]
