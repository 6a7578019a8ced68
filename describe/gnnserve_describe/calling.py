"""How a module is called: what each argument of its `forward` is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch

from gnnserve_api.programs import RelationKey
from gnnserve_describe.graph import GraphTensors


class Part(StrEnum):
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
    CONSTANT = "constant"


@dataclass(frozen=True, slots=True, eq=False)
class Argument:
    parameter: str
    """Parameter of `forward`; empty: given by its place."""
    part: Part
    block: str = ""
    """Name of the tensors, of nodes and payload."""
    value: Any = None
    """Value of a constant; the example, of a graph."""

    @property
    def words(self) -> str:
        """For people: `x`, `edge_weight=edge_attr`."""
        named = {Part.EDGES: "edge_index", Part.NODE_COUNT: "num_nodes", Part.GRAPH: type(self.value).__name__}
        text = self.block or named.get(self.part, repr(self.value))
        return text if self.parameter in ("", text) else f"{self.parameter}={text}"


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    arguments: Sequence[Argument]
    has_types: bool
    """Whether tensors of nodes and edges are given in dictionaries."""

    def __call__(self, module: torch.nn.Module, graph: GraphTensors) -> Any:
        placed = [self._made(each, graph) for each in self.arguments if not each.parameter]
        named = {each.parameter: self._made(each, graph) for each in self.arguments if each.parameter}
        return module(*placed, **named)

    def _made(self, each: Argument, graph: GraphTensors) -> Any:
        match each.part:
            case Part.NODES:
                return self._nodes(each.block, graph)
            case Part.EDGES:
                return self._by_relation(graph.edges)
            case Part.PAYLOAD:
                return self._payload(each.block, graph)
            case Part.NODE_COUNT:
                return graph.nodes("")
            case Part.GRAPH:
                return self._graph(each.value, graph)
            case Part.CONSTANT:
                return each.value

    def _nodes(self, block: str, graph: GraphTensors) -> Any:
        if not self.has_types:
            return graph.features[""][block]
        return {kind: blocks[block] for kind, blocks in graph.features.items() if block in blocks}

    def _payload(self, block: str, graph: GraphTensors) -> Any:
        return self._by_relation({key: blocks[block] for key, blocks in graph.payload.items() if block in blocks})

    def _by_relation(self, found: Mapping[RelationKey, torch.Tensor]) -> Any:
        if not self.has_types:
            return found[RelationKey()]
        return {(key.source, key.name, key.target): each for key, each in found.items()}

    def _graph(self, example: Any, graph: GraphTensors) -> Any:
        """An object of the example's class that has nothing but what the program is given."""
        made = type(example)()
        if not self.has_types:
            for name, block in (*graph.features[""].items(), *graph.payload[RelationKey()].items()):
                setattr(made, name, block)
            made.edge_index = graph.edges[RelationKey()]
            made.num_nodes = graph.nodes("")
            return made
        for kind, blocks in graph.features.items():
            for name, block in blocks.items():
                made[kind][name] = block
        for key, edges in graph.edges.items():
            store = made[key.source, key.name, key.target]
            store.edge_index = edges
            for name, block in graph.payload[key].items():
                store[name] = block
        return made
