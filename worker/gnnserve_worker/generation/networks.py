"""Networks that learn: weights as they are drawn, and the layers that these make (`layers.py`).

Networks over one list of neighbours are torch_geometric's, built as a user would build them, so a state dict fits both
ways; the weights of those over relations are what their architecture's object says (`models/architecture.py`). All are
computed by one loop over layers and blocks.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import nn

from gnnserve_api.files.graph_schema import GraphSchema
from gnnserve_api.spec.model import Architecture, Model
from gnnserve_worker.generation.layers import (
    Block,
    BlockLayer,
    Ends,
    Lists,
    Outputs,
    Rows,
    States,
    TrainableLayer,
    attended,
    layer_over_relations,
    multiply_rows,
)
from gnnserve_worker.models.architecture import (
    RelationalLayer,
    RelationalShape,
    RelationalSpec,
    embedding_key,
    layer_of,
    layer_tensors,
)
from gnnserve_worker.models.registry import Tensors

with warnings.catch_warnings():
    # torch_geometric 2.8 calls torch.jit.script while it is imported, which torch 2.15 deprecates.
    warnings.filterwarnings("ignore", message="`torch.jit.script` is deprecated", category=FutureWarning)
    import torch_geometric.nn as pyg
    from torch_geometric.nn.conv.gcn_conv import gcn_norm
    from torch_geometric.utils import add_self_loops, remove_self_loops


@dataclass(frozen=True, slots=True)
class LearningNetwork:
    """A network that learns, on its device."""

    state: Mapping[str, torch.Tensor]
    """All that is kept of it, under the keys of checkpoints."""
    weights: Sequence[nn.Parameter]
    """All that is learnt but embeddings of nodes."""
    embedded: Mapping[int, nn.Parameter]
    """Embeddings that are learnt of nodes, by the place of their type."""
    layers: Callable[[], Sequence[TrainableLayer]]
    """Made of the weights anew for each step, as they may be products of several."""
    kinds: Collection[int]
    """Places of the types whose nodes have outputs."""
    dropout: float

    def outputs(self, block: Block, *, trains: bool) -> torch.Tensor:
        """Outputs of the block's seeds, float32 [seeds, outputs]. `trains` False: as in serving, without dropout.
        Raises TypeError where no relation reaches the type of one."""
        dropout = self.dropout if trains else 0.0
        states: States = [
            _embeddings(self.embedded[kind], nodes) if rows is None else rows
            for kind, (rows, nodes) in enumerate(zip(block.features, block.embedded, strict=True))
        ]
        *before, last = zip(self.layers(), block.layers, strict=True)
        for layer, read in before:
            outputs = layer(states, read, range(len(states)), dropout)
            states = [
                None if one is None else nn.functional.dropout(one.relu(), dropout, training=dropout > 0)
                for one in outputs
            ]
        layer, read = last
        outputs = layer(states, read, self.kinds, dropout)
        found = [one for kind in sorted(self.kinds) if (one := outputs[kind]) is not None]
        if len(found) < len(self.kinds):
            raise TypeError("no relation reaches nodes of a type whose outputs are wanted")
        return torch.cat(found)[block.seeds]

    def tensors(self) -> Tensors:
        """The weights as they are now, under the keys of checkpoints."""
        return numbers_of(self.state)


def numbers_of(weights: Mapping[str, torch.Tensor]) -> Tensors:
    """Copies of weights, float32."""
    return {key: weight.detach().cpu().numpy().astype(np.float32) for key, weight in weights.items()}


def _embeddings(weight: torch.Tensor, nodes: torch.Tensor | None) -> torch.Tensor:
    """Embeddings of these nodes, with sparse gradients; of all nodes the tensor itself."""
    return weight if nodes is None else nn.functional.embedding(nodes, weight, sparse=True)


# --- over relations


def drawn_network(
    spec: RelationalSpec, shape: RelationalShape, kinds: Collection[int], embedding_bound: float, dropout: float,
    device: torch.device,
) -> LearningNetwork:  # fmt: skip
    """A network with weights of torch's generator: Glorot and Bengio's uniform ones for matrices, 0 for vectors.
    `kinds`: places of the types whose nodes have outputs. `embedding_bound`: largest number of an embedding."""
    keys = {embedding_key(shape.graph.types[place].name): place for place in shape.embedded()}
    state = {
        key: nn.Parameter(_drawn(sizes, embedding_bound if key in keys else None).to(device))
        for key, sizes in spec.shapes(shape).items()
    }
    ends = ends_of(shape.graph)

    def layers() -> Sequence[TrainableLayer]:
        made = enumerate(spec.layers(state, shape))
        return [layer_over_relations(matrices, ends, is_first=number == 0) for number, matrices in made]

    embedded = {place: state[key] for key, place in keys.items()}
    weights = [weight for key, weight in state.items() if key not in keys]
    return LearningNetwork(state, weights, embedded, layers, kinds, dropout)


def network_of_layers(
    layers: Sequence[RelationalLayer], graph: GraphSchema, kinds: Collection[int], dropout: float, device: torch.device
) -> LearningNetwork:
    """A network that begins with these matrices, and learns them: over rows of all types, with no embeddings of its
    own. `kinds`: as of `drawn_network`."""
    begun = {key: tensor for number, one in enumerate(layers) for key, tensor in layer_tensors(number, one).items()}
    state = {key: nn.Parameter(torch.from_numpy(tensor).to(device)) for key, tensor in begun.items()}
    ends = ends_of(graph)

    def made() -> Sequence[TrainableLayer]:
        learnt = (replace(layer_of(number, state), heads=one.heads) for number, one in enumerate(layers))
        return [layer_over_relations(one, ends, is_first=number == 0) for number, one in enumerate(learnt)]

    return LearningNetwork(state, [*state.values()], {}, made, kinds, dropout)


def ends_of(graph: GraphSchema) -> Ends:
    return [(graph.place_of(one.source), graph.place_of(one.target)) for one in graph.relations]


def _drawn(sizes: tuple[int, ...], bound: float | None) -> torch.Tensor:
    tensor = torch.zeros(sizes)
    if len(sizes) > 1:
        bound = (6 / (sizes[-2] + sizes[-1])) ** 0.5 if bound is None else bound
        nn.init.uniform_(tensor, -bound, bound)
    return tensor


# --- over one list of neighbours


def build_module(model: Model, columns: int, classes: int) -> nn.Module:
    """An untrained torch_geometric model; seed torch's generator first."""
    attention = model.network(classes).attention
    hops = model.network(classes).hops
    options: dict[str, Any] = {} if hops is None else {"hops": hops}
    if attention is not None:
        options = {"heads": attention.heads, "negative_slope": attention.negative_slope}
    module: Any = MODULES[model.architecture].module(
        in_channels=columns,
        hidden_channels=model.hidden,
        num_layers=len(model.fanouts),
        out_channels=classes,
        dropout=model.training.dropout,
        **options,
    )
    if attention is not None and attention.output_heads != attention.heads:
        options["heads"] = attention.output_heads
        inputs = model.hidden if len(model.fanouts) > 1 else columns
        dropout = model.training.dropout
        module.convs[-1] = pyg.GATConv(inputs, classes, concat=False, dropout=dropout, **options)
    if model.mlp_hidden is not None:
        for conv in module.convs:
            inputs, *_, outputs = conv.nn.channel_list
            conv.nn = pyg.MLP([inputs, model.mlp_hidden, outputs], act=module.act, norm=None)
    built: nn.Module = module
    return built


def network_of(module: nn.Module, dropout: float) -> LearningNetwork:
    """The network that a module of `build_module` is, on the module's device."""
    convolutions: Any = module.convs
    make = _BY_MODULE[type(module)].layer
    return LearningNetwork(
        module.state_dict(), tuple(module.parameters()), {},
        lambda: [make(conv, number == 0) for number, conv in enumerate(convolutions)], (0,), dropout,
    )  # fmt: skip


def network_over_rows(
    model: Model, columns: int, classes: int, device: torch.device, tensors: Tensors | None = None
) -> LearningNetwork:
    """The network of a module of `build_module`. `tensors`: its weights; None: they are drawn."""
    module = build_module(model, columns, classes)
    if tensors is not None:
        load_tensors(module, tensors)
    return network_of(module.to(device), model.training.dropout)


def load_tensors(module: nn.Module, tensors: Mapping[str, np.ndarray]) -> None:
    """Give a module weights under torch_geometric's keys."""
    module.load_state_dict({key: torch.from_numpy(tensor) for key, tensor in tensors.items()})


_Convolve = Callable[[Any, Rows, Lists, float], torch.Tensor]
"""From a convolution, the rows that it reads, their lists and the share of attention that is left out to hidden states,
float32 [targets, outputs]."""


def _of_one_list(first: _Convolve, later: _Convolve) -> Callable[[Any, bool], TrainableLayer]:
    """A layer that there is over one list alone: what it does first, and in a layer behind."""

    def layer(conv: Any, is_first: bool) -> TrainableLayer:
        convolve = first if is_first else later

        def outputs(states: States, read: BlockLayer, kinds: Collection[int], dropout: float) -> Outputs:
            (rows,), (lists,) = states, read.lists
            return [None if rows is None else convolve(conv, rows, lists, dropout)]

        return outputs

    return layer


def _sage(conv: Any, is_first: bool) -> TrainableLayer:
    matrices = RelationalLayer({0: conv.lin_l.weight.T}, {0: conv.lin_r.weight.T}, {0: conv.lin_l.bias})
    return layer_over_relations(matrices, [(0, 0)], is_first=is_first)


def _first_gin(conv: Any, rows: Rows, lists: Lists, _dropout: float) -> torch.Tensor:
    first, second = conv.nn.lins
    projected = multiply_rows(rows, first.weight)
    sums = lists.sums(projected) + (1 + conv.eps) * projected[: lists.targets]
    hidden: torch.Tensor = second(conv.nn.act(sums + first.bias))
    return hidden


def _gin(conv: Any, rows: Any, lists: Lists, _dropout: float) -> torch.Tensor:
    aggregated: torch.Tensor = conv((rows, rows[: lists.targets]), lists.adjacency)
    return aggregated


def _gcn(conv: Any, rows: Rows, lists: Lists, _dropout: float) -> torch.Tensor:
    """Sum with the graph's weights. The convolution itself would compute weights from the sample."""
    projected = multiply_rows(rows, conv.lin.weight)
    hidden: torch.Tensor = lists.sums(projected) + lists.own_weights * projected[: lists.targets] + conv.bias
    return hidden


def _gat(conv: Any, rows: Rows, lists: Lists, dropout: float) -> torch.Tensor:
    """Do what the convolution's own `forward` does, of rows that may be sparse."""
    sources, size = multiply_rows(rows, conv.lin.weight).view(-1, conv.heads, conv.out_channels), lists.targets
    edges, _ = remove_self_loops(torch.stack(lists.edges()))
    (read_from, read_by), _ = add_self_loops(edges, num_nodes=size)
    of_sources, of_targets = (sources * conv.att_src).sum(dim=-1), (sources[:size] * conv.att_dst).sum(dim=-1)
    scores = of_sources.index_select(0, read_from) + of_targets.index_select(0, read_by)
    heads = attended(sources, scores, (read_from, read_by), size, conv.negative_slope, dropout)
    hidden: torch.Tensor = (heads.flatten(1) if conv.concat else heads.mean(dim=1)) + conv.bias
    return hidden


class SimpleGraphConvolution(nn.Module):
    """A model of one SGConv, which torch_geometric has as a convolution alone. Its `forward` propagates as PyG does;
    `network_of` gets features that were propagated already (`training_set.py`). Nothing is dropped out."""

    def __init__(
        self, in_channels: int, hidden_channels: int, num_layers: int, out_channels: int, dropout: float, hops: int
    ) -> None:
        """Arguments of torch_geometric's models; the hidden layers that some of them are about are not there."""
        super().__init__()
        self.convs = nn.ModuleList([pyg.SGConv(in_channels, out_channels, K=hops)])

    def forward(self, features: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.convs[0](features, edges)
        return scores


def _sgc(conv: Any, rows: Rows, lists: Lists, dropout: float) -> torch.Tensor:
    return _first_product(conv.lin, rows, lists, dropout)


class PropagatedPerceptron(nn.Module):
    """SIGN: a perceptron over features beside their propagated ones. Its `forward` propagates them as SGConv does;
    `network_of` gets rows that were propagated already (`training_set.py`)."""

    def __init__(
        self, in_channels: int, hidden_channels: int, num_layers: int, out_channels: int, dropout: float, hops: int
    ) -> None:
        """`in_channels`: those of a whole row."""
        super().__init__()
        widths = [in_channels, *[hidden_channels] * (num_layers - 1), out_channels]
        self.convs = nn.ModuleList(nn.Linear(*ends) for ends in pairwise(widths))
        self.act = nn.ReLU()
        self.dropout = nn.Dropout(dropout)
        self.hops = hops

    def forward(self, features: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        edges, weights = gcn_norm(edges, num_nodes=len(features), add_self_loops=True)
        propagate = pyg.SimpleConv(aggr="sum")
        blocks = [features]
        for _ in range(self.hops):
            blocks.append(propagate(blocks[-1], edges, weights))
        hidden = torch.cat(blocks, dim=1)
        for layer in self.convs[:-1]:
            hidden = self.dropout(self.act(layer(hidden)))
        scores: torch.Tensor = self.convs[-1](hidden)
        return scores


def _first_product(linear: Any, rows: Rows, lists: Lists, _dropout: float) -> torch.Tensor:
    hidden: torch.Tensor = multiply_rows(rows, linear.weight)[: lists.targets] + linear.bias
    return hidden


def _product(linear: Any, rows: Any, lists: Lists, _dropout: float) -> torch.Tensor:
    scores: torch.Tensor = linear(rows[: lists.targets])
    return scores


@dataclass(frozen=True, slots=True)
class TrainedArchitecture:
    """The torch side of a `models.architecture.OneTypeSpec`."""

    module: Any
    """Class of torch_geometric's model, or one that takes the same arguments."""
    layer: Callable[[Any, bool], TrainableLayer]
    """From a convolution, and whether it is the first, to the layer that it is."""


MODULES: Mapping[Architecture, TrainedArchitecture] = {
    Architecture.GRAPHSAGE: TrainedArchitecture(pyg.GraphSAGE, _sage),
    Architecture.GIN: TrainedArchitecture(pyg.GIN, _of_one_list(_first_gin, _gin)),
    Architecture.GCN: TrainedArchitecture(pyg.GCN, _of_one_list(_gcn, _gcn)),
    Architecture.SGC: TrainedArchitecture(SimpleGraphConvolution, _of_one_list(_sgc, _sgc)),
    Architecture.SIGN: TrainedArchitecture(PropagatedPerceptron, _of_one_list(_first_product, _product)),
    Architecture.GAT: TrainedArchitecture(pyg.GAT, _of_one_list(_gat, _gat)),
}
"""The torch side of each entry of `models.registry.OF_ONE_TYPE`, which is free of torch."""
_BY_MODULE = {trained.module: trained for trained in MODULES.values()}
