"""DGL GraphBolt with DGL's own convolutions."""

from __future__ import annotations

import common
import dgl
import dgl.graphbolt as gb
import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812


class Model:
    def __init__(self) -> None:
        torch.set_num_threads(common.THREADS)
        self.graph = gb.fused_csc_sampling_graph(
            torch.from_numpy(common.load("indptr")), torch.from_numpy(common.load("indices").astype(np.int64))
        )
        self.features = gb.TorchBasedFeature(torch.from_numpy(common.load("features")))
        self.fanouts = [torch.tensor([fanout]) for fanout in common.FANOUTS]
        weights = {key: torch.from_numpy(tensor) for key, tensor in common.load_weights().items()}
        self.first = self._layer(weights, 0, common.SHAPE["features"], common.SHAPE["hidden"])
        self.second = self._layer(weights, 1, common.SHAPE["hidden"], common.SHAPE["classes"])
        self.predict([0])
        self.predict(np.arange(common.MOST_SEEDS))

    @staticmethod
    def _layer(weights: dict[str, torch.Tensor], layer: int, inputs: int, outputs: int) -> dgl.nn.SAGEConv:
        convolution = dgl.nn.SAGEConv(inputs, outputs, "mean").eval()
        prefix = f"convs.{layer}."
        with torch.no_grad():
            convolution.fc_neigh.weight.copy_(weights[prefix + "lin_l.weight"])
            convolution.fc_self.weight.copy_(weights[prefix + "lin_r.weight"])
            own_bias = convolution.fc_self.bias
            (convolution.bias if own_bias is None else own_bias).copy_(weights[prefix + "lin_l.bias"])
        return convolution

    @torch.inference_mode()
    def predict(self, seeds: object) -> np.ndarray:
        """float32 [seeds, classes]; ids in any order, and they may repeat."""
        distinct, positions = torch.unique(torch.from_numpy(common.to_ids(seeds)), return_inverse=True)
        nodes, blocks = distinct, []
        for fanout in self.fanouts:
            sampled = self.graph.sample_neighbors(nodes, fanout)
            wider, csc = gb.unique_and_compact_csc_formats(sampled.sampled_csc, nodes)
            blocks.append(self._block(csc, len(wider), len(nodes)))
            nodes = wider
        upper, lower = blocks
        hidden = F.relu(self.first(lower, self.features.read(nodes)))
        return self.second(upper, hidden)[positions].numpy()

    @staticmethod
    def _block(csc: object, sources: int, targets: int) -> object:
        edges = ("csc", (csc.indptr, csc.indices, torch.empty(0, dtype=torch.int64)))
        return dgl.create_block(edges, num_src_nodes=sources, num_dst_nodes=targets)
