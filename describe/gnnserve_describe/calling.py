"""How a module is called: what each argument of its `forward` is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from enum import StrEnum
from types import SimpleNamespace
from typing import Any, Protocol

import torch

from gnnserve_api.files.programs import RelationKey
from gnnserve_describe.attributes import restored_attributes
from gnnserve_describe.dgl_graph import TorchGraph, dgl_by_torch
from gnnserve_describe.graph import GraphTensors


class ArgumentKind(StrEnum):
    """Kind of an argument."""

    NODES = "nodes"
    """a tensor of nodes, or a dictionary of them by type"""
    EDGES = "edges"
    """an edge list, or a dictionary of them by relation"""
    PAYLOAD = "payload"
    """a tensor of edges, or a dictionary of them by relation"""
    NODE_COUNT = "node count"
    GRAPH = "graph"
    """an object that has the others as attributes"""
    DGL_GRAPH = "DGL graph"
    """edges, with what nodes and edges have in `ndata` and `edata`"""
    GRAPH_NUMBERS = "graph numbers"
    """the number of the graph that each node is of; there is one"""
    CONSTANT = "constant"


@dataclass(frozen=True, slots=True, eq=False)
class Argument:
    parameter: str
    """Parameter of `forward`; empty: given by its place."""
    part: ArgumentKind
    block: str = ""
    """Name of the tensors, of nodes and payload."""
    value: Any = None
    """Value of a constant; the example, of a graph."""

    @property
    def words(self) -> str:
        """For people: `x`, `edge_weight=edge_attr`."""
        named = {
            ArgumentKind.EDGES: "edge_index",
            ArgumentKind.NODE_COUNT: "num_nodes",
            ArgumentKind.GRAPH_NUMBERS: "zeros",
        }
        is_short = self.value is None or isinstance(self.value, int | float | str)
        text = self.block or named.get(self.part) or (repr(self.value) if is_short else type(self.value).__name__)
        return text if self.parameter in ("", text) else f"{self.parameter}={text}"


class TensorForm(Protocol):
    """How a module is given what there is of each type and relation."""

    def of_types(self, found: Mapping[str, Any]) -> Any: ...

    def of_relations(self, found: Mapping[RelationKey, Any]) -> Any: ...

    def fill(self, made: Any, graph: GraphTensors) -> None:
        """Give an object of the example's class the tensors as its attributes."""


@dataclass(frozen=True, slots=True)
class Tensors:
    """Tensors of the only type and of one relation, as they are."""

    type: str
    relation: RelationKey

    def of_types(self, found: Mapping[str, Any]) -> Any:
        return found[self.type]

    def of_relations(self, found: Mapping[RelationKey, Any]) -> Any:
        return found[self.relation]

    def fill(self, made: Any, graph: GraphTensors) -> None:
        for name, block in (*graph.features[self.type].items(), *graph.payload[self.relation].items()):
            setattr(made, name, block)
        made.edge_index = graph.edges[self.relation]
        made.num_nodes = graph.nodes(self.type)


@dataclass(frozen=True, slots=True)
class Dictionaries:
    """By type, and by (source, relation, target), as a HeteroData has them."""

    unread: frozenset[RelationKey] = frozenset()
    """Relations that the module is not given."""

    def of_types(self, found: Mapping[str, Any]) -> Any:
        return dict(found)

    def of_relations(self, found: Mapping[RelationKey, Any]) -> Any:
        return {(key.source, key.name, key.target): each for key, each in found.items() if key not in self.unread}

    def fill(self, made: Any, graph: GraphTensors) -> None:
        for kind, blocks in graph.features.items():
            for name, block in blocks.items():
                made[kind][name] = block
        for key, edges in graph.edges.items():
            if key in self.unread:
                continue
            store = made[key.source, key.name, key.target]
            store.edge_index = edges
            for name, block in graph.payload[key].items():
                store[name] = block


TENSORS, DICTIONARIES = Tensors("", RelationKey()), Dictionaries()


@dataclass(frozen=True, slots=True, eq=False)
class ModuleCall:
    arguments: Sequence[Argument]
    form: TensorForm
    is_over_example: bool = False
    """Whether a graph of DGL is the user's own, and not one of the tensors that is computed by torch alone."""
    has_equal_types: bool = False
    """Whether each type is given as many nodes as all have together."""

    def __call__(self, module: torch.nn.Module, graph: GraphTensors) -> Any:
        # Modules write into what they are given.
        graph = graph.copied().with_equal_types() if self.has_equal_types else graph.copied()
        placed = [self._made(each, graph) for each in self.arguments if not each.parameter]
        named = {each.parameter: self._made(each, graph) for each in self.arguments if each.parameter}
        is_dgl = any(each.part is ArgumentKind.DGL_GRAPH for each in self.arguments)
        by_torch = dgl_by_torch() if is_dgl and not self.is_over_example else nullcontext()
        with by_torch, restored_attributes(module):
            return module(*placed, **named)

    def over_example(self) -> ModuleCall:
        """The call over the user's own graph, by the user's own libraries."""
        return replace(self, is_over_example=True)

    def _made(self, each: Argument, graph: GraphTensors) -> Any:
        return _MAKERS[each.part](self, each, graph)

    def nodes(self, block: str, graph: GraphTensors) -> Any:
        return self.form.of_types({kind: blocks[block] for kind, blocks in graph.features.items() if block in blocks})

    def payload(self, block: str, graph: GraphTensors) -> Any:
        return self.form.of_relations({key: each[block] for key, each in graph.payload.items() if block in each})

    def dgl_graph(self, example: Any, graph: GraphTensors) -> Any:
        if self.is_over_example:
            return example
        ndata, edata = dict(self.form.of_types(graph.features)), dict(self.form.of_relations(graph.payload))
        return TorchGraph(self.form.of_relations(graph.edges), graph.only_count, ndata, edata)

    def graph(self, example: Any, graph: GraphTensors) -> Any:
        """An object of the example's class that has nothing but what the program is given."""
        made: Any = SimpleNamespace() if isinstance(example, Mapping) else type(example)()
        self.form.fill(made, graph)
        return made


_MAKERS: Mapping[ArgumentKind, Callable[[ModuleCall, Argument, GraphTensors], Any]] = {
    ArgumentKind.NODES: lambda call, each, graph: call.nodes(each.block, graph),
    ArgumentKind.EDGES: lambda call, _, graph: call.form.of_relations(graph.edges),
    ArgumentKind.PAYLOAD: lambda call, each, graph: call.payload(each.block, graph),
    ArgumentKind.NODE_COUNT: lambda _, __, graph: graph.only_count,
    ArgumentKind.GRAPH: lambda call, each, graph: call.graph(each.value, graph),
    ArgumentKind.DGL_GRAPH: lambda call, each, graph: call.dgl_graph(each.value, graph),
    ArgumentKind.GRAPH_NUMBERS: lambda _, __, graph: torch.zeros(graph.only_count, dtype=torch.long),
    ArgumentKind.CONSTANT: lambda _, each, __: each.value,
}
