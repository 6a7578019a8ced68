"""Programs over several types, and an example of their inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch_geometric.nn as pyg
from tests.support.graphs.graphs import dense_features
from tests.support.programs.programs import export, made_once, manifest_of

from gnnserve_api.files.programs import InputRole, ProgramInput, ProgramOutput, RelationKey
from gnnserve_worker.graph.payload import EdgePayload
from gnnserve_worker.graph.store import Graph, Relation

USERS, ITEMS, CLASSES, HIDDEN = 90, 40, 3, 8
COLUMNS = {"user": 5, "item": 3}
KNOWS, BOUGHT, BUYS = ("user", "knows", "user"), ("item", "bought_by", "user"), ("user", "buys", "item")
COUNTS = {"user": USERS, "item": ITEMS}
FEATURES = {"user": dense_features(USERS, 5, 1), "item": dense_features(ITEMS, 3, 2)}
INPUTS = (
    ProgramInput("x_user", InputRole.FEATURES, "user"),
    ProgramInput("x_item", InputRole.FEATURES, "item"),
    ProgramInput("knows", InputRole.EDGES, relation=RelationKey(*KNOWS)),
    ProgramInput("bought_by", InputRole.EDGES, relation=RelationKey(*BOUGHT)),
    ProgramInput("buys", InputRole.EDGES, relation=RelationKey(*BUYS)),
    ProgramInput("attr", InputRole.EDGE_FEATURES, relation=RelationKey(*BOUGHT)),
    ProgramInput("time", InputRole.EDGE_TIMES, relation=RelationKey(*BOUGHT)),
)
PROGRAM = manifest_of(INPUTS, columns=CLASSES, embeddings=ProgramOutput("hidden", HIDDEN))


def relation(ends: tuple[str, str, str], seed: int, *, has_payload: bool = False) -> Relation:
    """Some nodes read none, and some pairs are several edges."""
    random = np.random.default_rng(seed)
    degrees = random.integers(0, 6, COUNTS[ends[2]]) * (random.random(COUNTS[ends[2]]) > 0.2)
    indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
    lists = [np.sort(random.integers(0, COUNTS[ends[0]], degree)) for degree in degrees]
    indices = np.concatenate(lists).astype(np.int32)
    if not has_payload:
        return Relation(*ends, Graph(indptr, indices))
    edges = len(indices)
    rows = random.permutation(edges).astype(np.int32)
    payload = EdgePayload(
        ("price", "stars"), random.normal(size=(edges, 2)).astype(np.float32), "at", random.integers(0, 100, edges)
    )
    return Relation(*ends, Graph(indptr, indices, payload_rows=rows), payload=payload)


RELATIONS = (relation(KNOWS, 3), relation(BOUGHT, 4, has_payload=True), relation(BUYS, 5))


class Model(torch.nn.Module):
    """Convolutions of two kinds, one of which reads what edges have; a norm, an activation, a head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.layers = torch.nn.ModuleList(
            pyg.HeteroConv(
                {
                    KNOWS: pyg.SAGEConv((user, user), HIDDEN),
                    BOUGHT: pyg.GATv2Conv((item, user), HIDDEN, edge_dim=3, add_self_loops=False),
                    BUYS: pyg.SAGEConv((user, item), HIDDEN),
                }
            )
            for user, item in ((5, 3), (HIDDEN, HIDDEN))
        )
        self.norm = torch.nn.BatchNorm1d(HIDDEN)
        self.norm.running_mean = torch.randn(HIDDEN)
        self.head = torch.nn.Linear(HIDDEN, CLASSES)

    def forward(
        self, x_user: torch.Tensor, x_item: torch.Tensor, knows: torch.Tensor, bought_by: torch.Tensor,
        buys: torch.Tensor, attr: torch.Tensor, time: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
        nodes = {"user": x_user, "item": x_item}
        edges = {KNOWS: knows, BOUGHT: bought_by, BUYS: buys}
        having = {BOUGHT: torch.cat([attr, time[:, None].to(attr.dtype) / 100], 1)}
        for layer in self.layers:
            nodes = layer(nodes, edges, edge_attr_dict=having)
            nodes = {"user": torch.nn.functional.elu(self.norm(nodes["user"])), "item": nodes["item"].relu()}
        return self.head(nodes["user"]), nodes["user"]


def whole_graph() -> dict[str, np.ndarray]:
    """The graph as inputs of the module: edges in the order of lists, with the payload of each."""
    arrays: dict[str, np.ndarray] = {"x_user": FEATURES["user"], "x_item": FEATURES["item"]}
    for one in RELATIONS:
        targets = np.repeat(np.arange(COUNTS[one.target]), np.diff(one.lists.indptr))
        arrays[one.name] = np.stack([one.lists.indices.astype(np.int64), targets])
        if one.payload is not None:
            rows = one.lists.payload_rows
            arrays |= {"attr": one.payload.features[rows], "time": one.payload.times[rows]}
    return arrays


def example() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    edges = {"knows": (7, 7, 11), "bought_by": (4, 7, 9), "buys": (7, 4, 6)}
    made: dict[str, Any] = {"x_user": random.normal(size=(7, 5)), "x_item": random.normal(size=(4, 3))}
    made = {name: array.astype(np.float32) for name, array in made.items()}
    made |= {
        name: np.stack([random.integers(0, sources, count), random.integers(0, targets, count)])
        for name, (sources, targets, count) in edges.items()
    }
    return made | {"attr": random.normal(size=(9, 2)).astype(np.float32), "time": random.integers(0, 100, 9)}


FREE = {
    "x_user": {0: "users"}, "x_item": {0: "items"}, "knows": {1: "acquaintances"}, "bought_by": {1: "purchases"},
    "buys": {1: "buyings"}, "attr": {0: "purchases"}, "time": {0: "purchases"},
}  # fmt: skip


def program_of(factory: pytest.TempPathFactory) -> Path:
    """The export of `Model`."""
    return made_once(
        "types.onnx", lambda path: export(Model().eval(), example(), FREE, path, ("scores", "hidden")), factory
    )
