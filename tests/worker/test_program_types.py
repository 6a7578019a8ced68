"""A program over several types, one of whose relations has features and times, from the repository to answers."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch_geometric.nn as pyg
from tests.support.graphs import dense_features
from tests.support.programs import check_program_file, export, made_once, manifest_of
from tests.support.repository import RANKING, repository_in, tiny_profile

from gnnserve_api.errors import RepositoryError
from gnnserve_api.files.programs import InputRole, ProgramInput, ProgramOutput, RelationKey
from gnnserve_api.files.repository import VariantManifest, program_network
from gnnserve_api.spec.model import FULL_NEIGHBOURHOOD
from gnnserve_api.variants import Storage
from gnnserve_worker.graph.payload import EdgePayload
from gnnserve_worker.graph.store import Graph, GraphData, NodeType, Relation, Splits
from gnnserve_worker.inference.batch import infer_batch, infer_each, warm_up
from gnnserve_worker.inference.opening import served_revision
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.programs.race import check_repeats
from gnnserve_worker.repository.repository import Repository

USERS, ITEMS, CLASSES, HIDDEN = 90, 40, 3, 8
COLUMNS = {"user": 5, "item": 3}
KNOWS, BOUGHT, BUYS = ("user", "knows", "user"), ("item", "bought_by", "user"), ("user", "buys", "item")
COUNTS = {"user": USERS, "item": ITEMS}
FEATURES = {"user": dense_features(USERS, 5, 1), "item": dense_features(ITEMS, 3, 2)}
TABLE = "features-float32"
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
DATA = GraphData(
    source="a test",
    digest="abcd",
    types=tuple(NodeType(name, COUNTS[name], FEATURES[name]) for name in COUNTS),
    relations=RELATIONS,
    labels=np.arange(USERS, dtype=np.int64) % CLASSES,
    classes=(0, 1, 2),
    splits=Splits(np.arange(30), np.arange(30, 60), np.arange(60, USERS)),
)


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


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[Repository, str]:
    root = tmp_path_factory.mktemp("types")
    repository, brought = repository_in(root), root / "brought"
    brought.mkdir()
    shutil.copy(program_of(tmp_path_factory), brought / "model.onnx")
    check_program_file(brought / "model.onnx", PROGRAM)
    width = max(COLUMNS.values())
    rows = [np.pad(rows, ((0, 0), (0, width - rows.shape[1]))) for rows in FEATURES.values()]
    with repository.locked(None):
        repository.put_graph(DATA)
        with repository.stage("recipe", DATA.digest) as staged:
            staged.write_table(TABLE, "features", Storage.FLOAT32, width, rows)
            network = program_network(staged.write_program("x1", brought, PROGRAM))
            assert network.program
            variant = VariantManifest(
                name="x1", family="pruned", table=TABLE, columns=width, fanouts=network.fanouts,
                network=network, compute="float32", weights=network.program.file,
            )  # fmt: skip
            manifest = staged.commit(
                scope="Inductive", ranking=RANKING, variants=[variant], profile=tiny_profile({"x1": width}),
                generator="a test", created_at="2026-01-01T00:00:00Z",
            )  # fmt: skip
    return repository, manifest.revision


@pytest.fixture(scope="module")
def model() -> Model:
    return Model().eval()


@pytest.fixture(scope="module")
def loaded(published: tuple[Repository, str]) -> LoadedRevision:
    return load_revision(*published)


def test_nodes_are_scored_as_over_the_whole_graph(loaded: LoadedRevision, model: Model) -> None:
    with torch.no_grad():
        found = model(**{name: torch.tensor(array) for name, array in whole_graph().items()})
    scores, hidden = (each.numpy() for each in found)
    tolerance = 1e-5 * float(np.abs(scores).max())
    warm_up(loaded)
    assert loaded.variants["x1"].fanouts == (FULL_NEIGHBOURHOOD,) * 2
    for seeds in (np.array([7]), np.array([3, 3, 9, 3]), np.arange(USERS)):
        for infer in (infer_batch, infer_each):
            answer = infer(loaded, "x1", seeds.astype(np.int64), 1)
            np.testing.assert_allclose(answer.scores, scores[seeds], rtol=0, atol=tolerance)
            assert answer.embeddings is not None
            np.testing.assert_allclose(answer.embeddings, hidden[seeds], rtol=0, atol=1e-5 * np.abs(hidden).max())


def test_changes_of_a_revision_that_keeps_nothing_of_rows_are_refused(published: tuple[Repository, str]) -> None:
    with pytest.raises(RepositoryError, match=r"kept nothing of how rows of new nodes are made; generate it again"):
        load_revision(*published, max_delta_bytes=1 << 20)


def test_requests_bring_nothing_along(loaded: LoadedRevision) -> None:
    overlays = served_revision(loaded).compute.overlays
    assert not overlays.takes_json


def test_twenty_runs_over_types_are_equal(loaded: LoadedRevision) -> None:
    (runner,) = loaded.programs
    check_repeats(runner, whole_graph(), PROGRAM.outputs, USERS)
