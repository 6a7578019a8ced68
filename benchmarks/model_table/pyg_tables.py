"""torch_geometric's examples whose rows are weights: one for each node, and no network that makes them.

Their own classes draw walks or triples to train, for which an extension is needed that is not installed here; what is
served are the rows that training leaves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.model_table.entries import Entry, Made, Task
from benchmarks.model_table.graphs import NODES, RELATIONS, WIDTH, Key, over_nodes, over_types, several_types

FAMILY = "torch_geometric: tables of rows"
_LINK = "https://github.com/pyg-team/pytorch_geometric/blob/master/examples/"


class Walked(nn.Module):
    """Node2Vec: `forward()` gives the weight of its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(NODES, WIDTH)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        del x, edge_index
        return self.embedding.weight


class WalkedTypes(nn.Module):
    """MetaPath2Vec: one embedding for all types, one behind the other, and one row for what no walk reaches."""

    def __init__(self, counts: dict[str, int], kind: str) -> None:
        super().__init__()
        self.start = sum(count for each, count in sorted(counts.items()) if each < kind)
        self.end = self.start + counts[kind]
        self.embedding = nn.Embedding(sum(counts.values()) + 1, WIDTH)

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: dict[Key, Tensor]) -> Tensor:
        del x_dict, edge_index_dict
        return self.embedding.weight[self.start : self.end]


def walked_types() -> Made:
    graph = several_types({"author": 3, "paper": 3}, [("author", "writes", "paper")])
    counts = {kind: len(rows) for kind, rows in graph.x.items()}
    return over_types(WalkedTypes(counts, "author"), graph, "author")


class Entities(nn.Module):
    """Rows of nodes of a model of knowledge graphs; real and imaginary parts beside each other."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        del x, edge_index
        parts = [self.model.node_emb.weight]
        if hasattr(self.model, "node_emb_im"):
            parts.append(self.model.node_emb_im.weight)
        rows = torch.cat(parts, dim=1)
        return functional.normalize(rows, p=1, dim=-1) if isinstance(self.model, pyg.TransE) else rows


class Triples(nn.Module):
    """Scores of the model's triples of one relation, of rows of their nodes: what its forward does behind them."""

    def __init__(self, model: Any, relation: int) -> None:
        super().__init__()
        self.model, self.relation = model, relation

    def forward(self, head: Tensor, tail: Tensor) -> Tensor:
        relation = self.model.rel_emb.weight[self.relation]
        if isinstance(self.model, pyg.TransE):
            return -((head + relation) - tail).norm(p=self.model.p_norm, dim=-1)
        return (head * relation * tail).sum(dim=-1)


def triples(make: Any) -> Made:
    model = make(NODES, RELATIONS, WIDTH)
    return replace(over_nodes(Entities(model)), decoder=Triples(model, 1))


def _entry(name: str, make: Callable[[], Made], task: Task, note: str = "") -> Entry:
    return Entry(name, FAMILY, f"{_LINK}{name.partition(':')[0]}", task, make, (), note)


def _triples(name: str, model: Any) -> Entry:
    note = "a service for each relation; a module gives rows of nodes, another is what its forward does behind them"
    return _entry(f"kge_fb15k_237.py: {name}", lambda: triples(model), Task.LINKS, note=note)


def _entities(name: str, model: Any) -> Entry:
    return _entry(
        f"kge_fb15k_237.py: {name}", lambda: over_nodes(Entities(model(NODES, RELATIONS, WIDTH))), Task.OTHER_LINKS,
        note="rows of nodes; its function of a triple scores them",
    )  # fmt: skip


ENTRIES = (
    _entry("node2vec.py", lambda: over_nodes(Walked()), Task.ROWS),
    _entry("hetero/metapath2vec.py", walked_types, Task.ROWS),
    _triples("TransE", pyg.TransE),
    _triples("DistMult", pyg.DistMult),
    _entities("ComplEx", pyg.ComplEx),
    _entities("RotatE", pyg.RotatE),
)
