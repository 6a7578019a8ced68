"""The network of `hetero_model.py`, cut further than `trim_to_layer` does: a layer computes the nodes that the next one
reads, and of the last layer the seeds alone.
"""

from __future__ import annotations

import hetero_model
import torch
from hops import Key
from torch_geometric.sampler import HeteroSamplerOutput


class Model(hetero_model.Model):
    def infer(
        self, sampled: HeteroSamplerOutput, nodes: dict[str, list[int]], edges: dict[Key, list[int]]
    ) -> torch.Tensor:
        read = {name: seeds + first for name, (seeds, first, _) in nodes.items()}
        hidden = {name: state.relu() for name, state in self.first_layer(sampled, read).items()}
        seeds = nodes[self.target][0]
        last = [key for key in self.relations if key[2] == self.target]
        lists = {key: self.adjacency(sampled, key, seeds, read[key[0]], edges[key][0]) for key in last}
        return self.convs[1]({key: (hidden[key[0]], hidden[self.target][:seeds]) for key in last}, lists)[self.target]

    def first_layer(self, sampled: HeteroSamplerOutput, read: dict[str, int]) -> hetero_model.States:
        """States of the nodes that the second layer reads, so many of each type."""
        states = {name: self.rows[name].index_select(0, ids) for name, ids in sampled.node.items()}
        lists = {key: self.adjacency(sampled, key, read[key[2]], len(states[key[0]])) for key in self.relations}
        return self.convs[0]({key: (states[key[0]], states[key[2]][: read[key[2]]]) for key in self.relations}, lists)
