"""torch_geometric's HeteroConv over a graph of several types, as its documentation has it: its own sampler, and layers
that `trim_to_layer` cuts. The sampler lives as long as the server, its CSC is built once, and sparse products take the
place of scatter.
"""

from __future__ import annotations

import common
import numpy as np
import torch
from hops import Key, count_hops
from torch_geometric.data import HeteroData
from torch_geometric.nn import HeteroConv, SAGEConv
from torch_geometric.sampler import HeteroSamplerOutput, NeighborSampler, NodeSamplerInput
from torch_geometric.utils import trim_to_layer
from torch_sparse import SparseTensor

States = dict[str, torch.Tensor]


class Model:
    def __init__(self) -> None:
        torch.set_num_threads(common.THREADS)
        self.target: str = common.SHAPE["target"]
        self.relations: list[Key] = [tuple(key) for key in common.SHAPE["relations"]]
        data = HeteroData()
        for name, nodes in common.SHAPE["types"].items():
            data[name].num_nodes = nodes
        for place, key in enumerate(self.relations):
            data[key].adj_t = SparseTensor(
                rowptr=torch.from_numpy(common.load(f"indptr_{place}")),
                col=torch.from_numpy(common.load(f"indices_{place}").astype(np.int64)),
                sparse_sizes=(data[key[2]].num_nodes, data[key[0]].num_nodes),
                is_sorted=True,
                trust_data=True,
            )
        self.sampler = NeighborSampler(data, num_neighbors=common.FANOUTS)
        self.rows: States = {name: torch.from_numpy(common.load(f"rows_{name}")) for name in common.SHAPE["types"]}
        self.convs = torch.nn.ModuleList(self._layer(layer) for layer in range(len(common.FANOUTS)))
        self.prepare()
        self.predict([0])
        self.predict(np.arange(common.MOST_SEEDS))

    def _layer(self, layer: int) -> HeteroConv:
        inputs = common.SHAPE["features"] if layer == 0 else common.SHAPE["hidden"]
        outputs = common.SHAPE["classes"] if layer == len(common.FANOUTS) - 1 else common.SHAPE["hidden"]
        network = HeteroConv({key: SAGEConv((inputs, inputs), outputs, aggr="mean") for key in self.relations})
        prefix = f"convs.{layer}."
        network.load_state_dict(
            {
                key.removeprefix(prefix): torch.from_numpy(tensor)
                for key, tensor in common.load_weights().items()
                if key.startswith(prefix)
            }
        )
        return network.eval()

    def prepare(self) -> None:
        """Computes whatever no request changes."""

    @torch.inference_mode()
    def predict(self, seeds: object) -> np.ndarray:
        """float32 [seeds, classes]; ids in any order, and they may repeat."""
        ids = torch.from_numpy(common.to_ids(seeds))
        # The sampler wants distinct seeds.
        distinct, positions = torch.unique(ids, return_inverse=True) if len(ids) > 1 else (ids, None)
        wanted = NodeSamplerInput(input_id=None, node=distinct, input_type=self.target)
        sampled = self.sampler.sample_from_nodes(wanted)
        hops = count_hops(sampled.node, sampled.row, sampled.col, self.target, len(distinct))
        scores = self.infer(sampled, *hops)
        return (scores if positions is None else scores[positions]).numpy()

    def infer(
        self, sampled: HeteroSamplerOutput, nodes: dict[str, list[int]], edges: dict[Key, list[int]]
    ) -> torch.Tensor:
        states = {name: self.rows[name].index_select(0, ids) for name, ids in sampled.node.items()}
        lists = {key: self.adjacency(sampled, key, len(states[key[2]]), len(states[key[0]])) for key in self.relations}
        for layer, network in enumerate(self.convs):
            states, lists, _ = trim_to_layer(layer, nodes, edges, states, lists)
            states = network(states, lists)
            if layer < len(self.convs) - 1:
                states = {name: state.relu() for name, state in states.items()}
        return states[self.target][: nodes[self.target][0]]

    @staticmethod
    def adjacency(
        sampled: HeteroSamplerOutput, key: Key, rows: int, columns: int, edges: int | None = None
    ) -> SparseTensor:
        """Lists of the first `rows` nodes that read, of the first `edges` edges; None: all edges."""
        readers, sources = sampled.col[key][:edges], sampled.row[key][:edges]
        return SparseTensor(row=readers, col=sources, sparse_sizes=(rows, columns), is_sorted=True, trust_data=True)
