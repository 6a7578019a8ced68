"""The network of `hetero_cut_model.py` over products: the first layer's matrices are multiplied with all rows when the
server starts, once for each relation, as gnnserve's tables have them. What is left of that layer is means and sums.
"""

from __future__ import annotations

import hetero_cut_model
import hetero_model
import torch
from torch_geometric.sampler import HeteroSamplerOutput
from torch_geometric.utils import spmm


class Model(hetero_cut_model.Model):
    @torch.inference_mode()
    def prepare(self) -> None:
        convs = {key: self.convs[0].convs[key] for key in self.relations}
        self.products = {
            key: torch.nn.functional.linear(self.rows[key[0]], conv.lin_l.weight) for key, conv in convs.items()
        }
        self.own: hetero_model.States = {}
        for name, rows in self.rows.items():
            read = [conv for key, conv in convs.items() if key[2] == name]
            matrix, shift = sum(conv.lin_r.weight for conv in read), sum(conv.lin_l.bias for conv in read)
            self.own[name] = torch.nn.functional.linear(rows, matrix, shift)
        self.rows = {}

    def first_layer(self, sampled: HeteroSamplerOutput, read: dict[str, int]) -> hetero_model.States:
        states = {name: self.own[name].index_select(0, ids[: read[name]]) for name, ids in sampled.node.items()}
        for key in self.relations:
            rows = self.products[key].index_select(0, sampled.node[key[0]])
            states[key[2]] += spmm(self.adjacency(sampled, key, read[key[2]], len(rows)), rows, reduce="mean")
        return states
