"""Small generated graphs with hubs and nodes without neighbours, as models of the table are trained and asked over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from benchmarks.model_table.entries import Made

NODES, COLUMNS, CLASSES, WIDTH = 300, 12, 4, 16
"""`WIDTH`: of hidden layers, however wide they are in the source: the structure is what counts."""
EDGE_COLUMNS, RELATIONS = 3, 3

Key = tuple[str, str, str]


@dataclass(frozen=True, slots=True, eq=False)
class OneType:
    x: torch.Tensor
    edges: torch.Tensor
    """int64 [2, edges], without an edge twice or one from a node to itself"""
    weights: torch.Tensor
    """float32 [edges], positive"""
    attributes: torch.Tensor
    """float32 [edges, columns]"""
    kinds: torch.Tensor
    """int64 [edges], one of `RELATIONS`"""
    times: torch.Tensor
    """int64 [edges]"""


def one_type(*, directed: bool = False, nodes: int = NODES, columns: int = COLUMNS) -> OneType:
    random = np.random.default_rng(11)
    pairs: np.ndarray = _pairs(random, nodes, nodes, 2 * nodes)
    pairs = pairs[:, pairs[0] != pairs[1]]
    if not directed:
        pairs = np.unique(np.concatenate([pairs, pairs[::-1]], axis=1), axis=1)
    count = pairs.shape[1]
    return OneType(
        _floats(random, nodes, columns), torch.from_numpy(pairs),
        torch.from_numpy(np.asarray(random.uniform(0.2, 2.0, count), np.float32)), _floats(random, count, EDGE_COLUMNS),
        torch.from_numpy(random.integers(0, RELATIONS, count)), torch.from_numpy(random.integers(0, 1000, count)),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class SeveralTypes:
    x: Mapping[str, torch.Tensor]
    edges: Mapping[Key, torch.Tensor]
    attributes: Mapping[Key, torch.Tensor]

    @property
    def metadata(self) -> tuple[list[str], list[Key]]:
        return list(self.x), list(self.edges)

    @property
    def columns(self) -> dict[str, int]:
        return {kind: rows.shape[1] for kind, rows in self.x.items()}


def several_types(types: Mapping[str, int], relations: Sequence[Key], *, reverses: bool = True) -> SeveralTypes:
    """`types`: columns of each. `reverses`: each relation between two types is there the other way round too, `rev_`
    before its name."""
    random = np.random.default_rng(12)
    counts = {kind: 240 - 40 * place for place, kind in enumerate(types)}
    edges: dict[Key, torch.Tensor] = {}
    for source, name, target in relations:
        pairs = _pairs(random, counts[source], counts[target], 2 * counts[target])
        edges[source, name, target] = torch.from_numpy(pairs)
        if reverses and source != target:
            edges[target, f"rev_{name}", source] = torch.from_numpy(np.ascontiguousarray(pairs[::-1]))
    return SeveralTypes(
        {kind: _floats(random, counts[kind], columns) for kind, columns in types.items()}, edges,
        {key: _floats(random, pairs.shape[1], EDGE_COLUMNS) for key, pairs in edges.items()},
    )  # fmt: skip


def _pairs(random: np.random.Generator, sources: int, targets: int, count: int) -> np.ndarray:
    """Distinct pairs: some nodes are in many, and a tenth of the targets in none."""
    read = (sources * random.random(count) ** 2).astype(np.int64)
    reading = (0.9 * targets * random.random(count) ** 2).astype(np.int64)
    return np.unique(np.stack([read, reading]), axis=1)


def _floats(random: np.random.Generator, rows: int, columns: int) -> torch.Tensor:
    return torch.from_numpy(random.normal(size=(rows, columns)).astype(np.float32))


# Modules with what they are mostly called with


def over_nodes(module: torch.nn.Module, *, directed: bool = False) -> Made:
    """forward(x, edge_index)"""
    graph = one_type(directed=directed)
    return Made(module, (graph.x, graph.edges))


def over_weights(module: torch.nn.Module) -> Made:
    """forward(x, edge_index, edge_weight)"""
    graph = one_type()
    return Made(module, (graph.x, graph.edges, graph.weights))


def over_attributes(module: torch.nn.Module) -> Made:
    """forward(x, edge_index, edge_attr)"""
    graph = one_type()
    return Made(module, (graph.x, graph.edges, graph.attributes))


def over_kinds(module: torch.nn.Module) -> Made:
    """forward(x, edge_index, edge_type)"""
    graph = one_type()
    return Made(module, (graph.x, graph.edges, graph.kinds))


def over_types(module: torch.nn.Module, graph: SeveralTypes, target: str) -> Made:
    """forward(x_dict, edge_index_dict)"""
    return Made(module, (dict(graph.x), dict(graph.edges)), target)


def normalised_weights(edges: torch.Tensor, nodes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Edges with one from each node to itself, and their weights by `gcn_norm`, as examples compute them before."""
    loops = torch.arange(nodes).repeat(2, 1)
    edges = torch.cat([edges, loops], dim=1)
    roots = torch.bincount(edges[1], minlength=nodes).float().pow(-0.5)
    return edges, roots[edges[0]] * roots[edges[1]]
