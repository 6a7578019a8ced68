"""Listed layers from a manifest to a published revision that serves what their module gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch_geometric.nn as pyg
from safetensors.numpy import load_file, save_file
from tests.support.graphs.graphs import npz_arrays, service_of, write_npz
from tests.support.models.pyg import to_tensors
from tests.support.programs.generated_programs import (
    CLASSES,
    COLUMNS,
    EDGES,
    FEATURES,
    GRAPH,
    NODES,
    ProgramWorker,
)
from tests.support.programs.program_types import USERS
from tests.support.programs.program_types_generated import hetero_data
from tests.support.serving.secured_worker import started

from gnnserve_api.errors import InputError
from gnnserve_api.files.repository import PRODUCTS_SCHEMA_VERSION, RevisionManifest
from gnnserve_api.spec.made_variants import why_no_factors
from gnnserve_worker.generation.pipeline import find, generate
from gnnserve_worker.inference.batch import infer_batch
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.serving.security.credentials import Credentials

HIDDEN, WIDE = 8, 60
LAYERS = [
    {"conv": "GATv2", "width": HIDDEN, "heads": 2, "norm": "Batch", "activation": "Elu", "residual": "Projected"},
    {"conv": "GCN", "width": HIDDEN, "activation": "Gelu"},
]


class Net(torch.nn.Module):
    """Attention with a norm and a residual, GCN, and a head over both layers."""

    def __init__(self, seed: int = 2, columns: int = COLUMNS) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.conv1 = pyg.GATv2Conv(columns, HIDDEN // 2, heads=2)
        self.bn1 = torch.nn.BatchNorm1d(HIDDEN)
        self.res1 = torch.nn.Linear(columns, HIDDEN)
        self.conv2 = pyg.GCNConv(HIDDEN, HIDDEN)
        self.lin = torch.nn.Linear(2 * HIDDEN, CLASSES)
        self.bn1.running_mean, self.bn1.running_var = torch.randn(HIDDEN), torch.rand(HIDDEN) + 0.5

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        first = torch.nn.functional.elu(self.bn1(self.conv1(x, edges))) + self.res1(x)
        second = torch.nn.functional.gelu(self.conv2(first, edges))
        rows = torch.cat([first, second], dim=1)
        return self.lin(rows), rows


def over(features: np.ndarray, edges: np.ndarray, seed: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """Scores and embeddings of all nodes."""
    with torch.no_grad():
        scores, rows = Net(seed).eval()(torch.tensor(features), torch.tensor(edges))
    return scores.numpy(), rows.numpy()


class Given:
    """Files of a manifest, and where it is generated."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        write_npz(folder / "graph.npz", npz_arrays(GRAPH))
        save_file(to_tensors(Net()), folder / "model.safetensors")
        np.savez(folder / "expected.npz", nodes=np.arange(NODES), scores=over(FEATURES, EDGES)[0])
        self.repository = Repository(folder / "repository", "default", "tiny")

    def service(self, layers: list[dict[str, Any]] = LAYERS, **parts: Any) -> Any:
        model = {
            "checkpoint": {"uri": (self.folder / "model.safetensors").as_uri()},
            "expected": {"uri": (self.folder / "expected.npz").as_uri()},
            "layers": layers, "jumpingKnowledge": "Cat", "head": [{}], "fanouts": [-1, -1], **parts.pop("model", {}),
        }  # fmt: skip
        return service_of((self.folder / "graph.npz").as_uri(), model=model, **parts)

    def generate(self, layers: list[dict[str, Any]] = LAYERS, **parts: Any) -> RevisionManifest:
        return generate(self.service(layers, **parts), self.repository)

    def scores(self, revision: RevisionManifest, variant: str) -> np.ndarray:
        loaded = load_revision(self.repository, revision.revision)
        return infer_batch(loaded, variant, np.arange(NODES), 1).scores

    def refusal(self, layers: list[dict[str, Any]] = LAYERS, **parts: Any) -> str:
        with pytest.raises(InputError) as caught:
            self.generate(layers, **parts)
        assert not self.repository.revisions()
        return str(caught.value)


@pytest.fixture
def given(tmp_path: Path) -> Given:
    return Given(tmp_path)


def listed_names(service: Any) -> list[str]:
    """Names of all variants that there are whatever is measured."""
    return sorted(name for name in service.spec.possible_variants() if not name.startswith("projected"))


def assert_close(found: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * float(np.abs(expected).max()))


def test_layers_are_published_and_give_what_their_module_gives(given: Given) -> None:
    revision = given.generate()
    (variant,) = revision.variants
    assert (variant.name, variant.columns, variant.weights) == ("x1", COLUMNS, "variants/x1/weights.safetensors")
    scores, rows = over(FEATURES, EDGES)
    loaded = load_revision(given.repository, revision.revision)
    found = infer_batch(loaded, "x1", np.arange(NODES), 1)
    assert found.embeddings is not None
    assert_close(found.scores, scores)
    assert_close(found.embeddings, rows)
    assert not loaded.programs
    assert find(given.service(), given.repository) == revision


def test_a_server_answers_about_nodes_that_only_the_request_has(given: Given) -> None:
    revision = given.generate()
    own = np.random.default_rng(8).normal(size=(2, COLUMNS)).astype(np.float32)
    brought = [[7, NODES], [NODES, NODES + 1], [12, NODES + 1], [NODES, 7]]
    new = [{"id": NODES + place, "features": own[place].tolist()} for place in range(2)]
    asked = [NODES, NODES + 1, 7, 3]
    worker = ProgramWorker(load_revision(given.repository, revision.revision))
    with started(Credentials(), of=worker) as served:  # type: ignore[arg-type]
        connection = served.connect(None)
        body = json.dumps({"nodes": asked, "overlay": {"nodes": new, "edges": brought}, "return": ["scores"]})
        connection.request("POST", "/v1/predict", body, {"content-type": "application/json"})
        answer = json.loads(connection.getresponse().read())
        connection.close()
    edges = np.concatenate([EDGES, np.array(brought, np.int64).T], axis=1)
    assert_close(np.array(answer["scores"]), over(np.concatenate([FEATURES, own]), edges)[0][asked])


def test_variants_beside_it_are_of_what_it_reads(given: Given) -> None:
    variants = {
        "storage": ["float32", "int8"], "fanouts": [[2, 1]], "oneRow": [{"hops": 0}],
        "cascades": [{"first": "mlp0", "then": "x1", "passOnPercents": [50]}],
    }  # fmt: skip
    revision = given.generate(variants=variants, model={"training": {"epochs": 3}})
    names = [variant.name for variant in revision.profile.variants]
    assert sorted(names) == listed_names(given.service(variants=variants))
    scores = over(FEATURES, EDGES)[0]
    assert_close(given.scores(revision, "x1"), scores)
    rounded = given.scores(revision, "x1-int8")
    assert 0 < np.abs(rounded - scores).max() < 0.1 * np.abs(scores).max()


def test_layers_that_are_stored_give_what_the_whole_network_gives(given: Given) -> None:
    variants = {"storage": ["float32", "float16", "bfloat16", "int8"], "stored": [2, 1]}
    revision = given.generate(variants=variants)
    made = {variant.name: variant for variant in revision.variants}
    assert sorted(made) == listed_names(given.service(variants=variants))
    scores = over(FEATURES, EDGES)[0]
    # The first layer follows changes and what requests bring, and what it is made of is kept.
    families = {1: "stored-overlays-layers", 2: "stored-layers"}
    for layer, hops in ((1, (-1,)), (2, (0,))):
        one = made[f"stored{layer}"]
        # Behind the second layer its output and that of the first stand beside each other, for the head.
        assert (one.columns, one.fanouts, one.family) == (layer * HIDDEN, hops, families[layer])
        assert_close(given.scores(revision, one.name), scores)
        for storage, most in (("float16", 2e-3), ("bfloat16", 2e-2), ("int8", 0.1)):
            rounded = np.abs(given.scores(revision, f"{one.name}-{storage}") - scores).max()
            assert 0 < rounded < most * np.abs(scores).max()
    tables = [f"{table}-{storage}" for table in ("features", "stored1", "stored2") for storage in variants["storage"]]
    assert sorted(revision.tables) == sorted([*tables, "stored0-float32"])


def wide(given: Given, features: np.ndarray | None = None) -> tuple[np.ndarray, Net]:
    """Features of 60 columns in place of the graph's, and a module over them."""
    if features is None:
        features = np.random.default_rng(5).normal(size=(NODES, WIDE)).astype(np.float32)
    write_npz(given.folder / "graph.npz", {**npz_arrays(GRAPH), "features": features})
    module = Net(columns=WIDE)
    save_file(to_tensors(module), given.folder / "model.safetensors")
    with torch.no_grad():
        scores = module.eval()(torch.tensor(features), torch.tensor(EDGES))[0].numpy()
    np.savez(given.folder / "expected.npz", nodes=np.arange(NODES), scores=scores)
    return features, module


STAGE = {"first": "projected", "then": "x1", "passOnPercents": [50]}
"""Stages of cascades are kept, however fast they are."""


def test_products_of_the_first_layer_are_stored_where_they_are_narrower(given: Given) -> None:
    features, module = wide(given)
    variants = {
        "storage": ["float32", "float16", "bfloat16", "int8"], "fanouts": [[2, 1]], "cascades": [STAGE],
        "pruning": {"factors": [1]},
    }  # fmt: skip
    revision = given.generate(variants=variants, normalization="Disabled")
    assert revision.schema_version == PRODUCTS_SCHEMA_VERSION
    made = {variant.name: variant for variant in revision.variants}
    assert made.keys() <= {*given.service(variants=variants).spec.possible_variants()}
    one = made["projected"]
    # Both matrices of GATv2, and that of the residual, where features have 60 columns.
    assert (one.family, one.columns, one.table) == ("projected-layers", 3 * HIDDEN, "projected")
    with torch.no_grad():
        scores, rows = (part.numpy() for part in module.eval()(torch.tensor(features), torch.tensor(EDGES)))
    loaded = load_revision(given.repository, revision.revision)
    found = infer_batch(loaded, "projected", np.arange(NODES), 1)
    assert found.embeddings is not None
    assert_close(found.scores, scores)
    assert_close(found.embeddings, rows)
    for storage, most in (("float16", 2e-3), ("bfloat16", 2e-2), ("int8", 0.1)):
        if f"projected-{storage}" in made:
            rounded = np.abs(given.scores(revision, f"projected-{storage}") - scores).max()
            assert 0 < rounded < most * np.abs(scores).max()


def test_rows_of_nodes_that_only_a_request_has_are_made_as_those_that_are_stored(given: Given) -> None:
    features, module = wide(given)
    revision = given.generate(variants={"cascades": [STAGE]}, normalization="Disabled")
    own = np.random.default_rng(8).normal(size=(2, WIDE)).astype(np.float32)
    brought = [[7, NODES], [NODES, NODES + 1], [12, NODES + 1], [NODES, 7]]
    new = [{"id": NODES + place, "features": own[place].tolist()} for place in range(2)]
    other = {"id": 3, "features": own[0].tolist()}
    asked, overlay = [NODES, NODES + 1, 7, 3], {"nodes": new, "edges": brought, "overrides": [other]}
    worker = ProgramWorker(load_revision(given.repository, revision.revision))
    with started(Credentials(), of=worker) as served:  # type: ignore[arg-type]
        connection = served.connect(None)
        body = json.dumps({"nodes": asked, "overlay": overlay, "return": ["scores"], "variant": "projected"})
        connection.request("POST", "/v1/predict", body, {"content-type": "application/json"})
        answer = json.loads(connection.getresponse().read())
        connection.close()
    assert answer["variant"] == "projected"
    edges = np.concatenate([EDGES, np.array(brought, np.int64).T], axis=1)
    seen = np.concatenate([features, own])
    seen[3] = own[0]
    with torch.no_grad():
        scores = module.eval()(torch.tensor(seen), torch.tensor(edges))[0].numpy()
    assert_close(np.array(answer["scores"]), scores[asked])


def test_rows_that_are_no_narrower_than_features_are_not_stored(given: Given) -> None:
    variants = {"stored": [1]}
    assert [one.name for one in given.generate(variants=variants).variants] == ["x1", "stored1"]
    wide(given)
    names = [one.name for one in given.generate(variants={**variants, "projection": "Disabled"}).variants]
    assert names == ["x1", "stored1"]


def correlated(given: Given) -> Net:
    """Features of 60 columns that 8 of them tell, in place of the graph's, and a module over them."""
    draw = np.random.default_rng(5)
    features = draw.normal(size=(NODES, 8)) @ draw.normal(size=(8, WIDE))
    _, module = wide(given, features.astype(np.float32))
    return module


@pytest.mark.parametrize("method", ["Greedy", "Lasso", "Random"])
def test_given_weights_are_fitted_to_fewer_columns(given: Given, method: str) -> None:
    correlated(given)
    pruning = {"factors": [1, 4], "method": method}
    variants = {"pruning": pruning, "storage": ["float32", "int8"], "fanouts": [[2, 1]], "projection": "Disabled"}
    revision = given.generate(variants=variants, normalization="Disabled")
    made = {one.name: one for one in revision.variants}
    assert sorted(made) == sorted(given.service(variants=variants).spec.possible_variants())
    one = made["x4"]
    assert (one.family, one.columns, one.table) == ("pruned-layers", WIDE // 4, "features-x4-float32")
    assert revision.ranking.method == method
    assert revision.tables[one.table].source_columns == revision.ranking.columns[: WIDE // 4]
    assert {one.factor for one in revision.profile.variants if one.name.startswith("x4")} == {4}
    # What is left out is told by fifteen of the columns, so that scores are nearly the whole network's.
    whole = given.scores(revision, "x1")
    assert 0 < np.abs(given.scores(revision, "x4") - whole).max() < 0.1 * np.abs(whole).max()


def test_layers_that_do_not_multiply_features_are_not_fitted(given: Given) -> None:
    sage = {"conv": "GraphSAGE", "width": HIDDEN, "aggregations": ["Max"]}
    module = torch.nn.ModuleDict({
        "conv1": pyg.SAGEConv(COLUMNS, HIDDEN, aggr="max"), "conv2": pyg.SAGEConv(HIDDEN, CLASSES, aggr="max"),
    })  # fmt: skip
    save_file(to_tensors(module), given.folder / "model.safetensors")
    model = {"jumpingKnowledge": "Last", "head": [], "expected": None}
    told = given.refusal(
        [sage, {**sage, "width": CLASSES}], model=model, variants={"pruning": {"factors": [1, 2]}}
    )  # fmt: skip
    assert "given weights cannot be fitted to fewer columns: layers[0]: conv GraphSAGE: aggregations Max" in told


def test_layers_of_fewer_columns_are_trained(given: Given) -> None:
    learnt = {"checkpoint": None, "expected": None, "fanouts": [4, 4], "training": {"epochs": 15}}
    variants = {"pruning": {"factors": [1, 2]}}
    revision = given.generate(model=learnt, variants=variants)
    assert revision.training is not None
    assert [run.name for run in revision.training.runs] == ["x1", "x2"]
    accuracy = {one.name: one.validation_accuracy for one in revision.profile.variants}
    assert accuracy.keys() == {"x1", "x2"}
    assert accuracy["x2"] > 0.5


def test_the_default_list_of_factors_makes_nothing(given: Given) -> None:
    assert [one.name for one in given.generate().variants] == ["x1"]
    service = given.service(variants={"pruning": {"factors": [2, 4, 8]}, "projection": "Disabled"})
    assert service.spec.possible_variants() == ("x1",)
    assert why_no_factors(service.spec).startswith("model.layers makes no variants of the default list")


def test_factors_that_leave_no_column_are_refused(given: Given) -> None:
    told = given.refusal(variants={"pruning": {"factors": [1, 7]}})
    assert "7 is larger than the graph's 6 features" in told


def test_factors_whose_rows_are_as_wide_as_those_of_projected_are_left_out(given: Given) -> None:
    correlated(given)
    revision = given.generate(variants={"pruning": {"choice": "Auto", "factors": [1, 2, 8]}}, normalization="Disabled")
    assert revision.ranking.chosen is not None
    assert revision.ranking.chosen.left_out == (2,)
    told = "x2 was not trained: rows of projected have 24 columns, and theirs 30 on average"
    assert revision.ranking.chosen.why == told
    names = {one.name for one in revision.variants}
    assert "x8" in names
    assert "x2" not in names


def test_behind_stored_layers_fewer_neighbours_are_sampled_of_hops_that_are_left(given: Given) -> None:
    model = {"fanouts": [4, 4], "checkpoint": None, "expected": None, "training": {"epochs": 3}}
    variants = {"stored": [1, 2], "fanouts": [[2, 1]]}
    revision = given.generate(model=model, variants=variants)
    fanouts = {variant.name: variant.fanouts for variant in revision.variants}
    assert fanouts == {
        "x1": (4, 4), "x1-f2x1": (2, 1), "stored1": (4,), "stored1-f2": (2,), "stored2": (0,),
    }  # fmt: skip


def test_a_search_tries_layers_that_are_stored(given: Given) -> None:
    revision = given.generate(variants={"search": "Auto", "budget": {"seconds": 1}})
    assert revision.profile.search is not None
    tried = {verdict.name for verdict in revision.profile.search.variants}
    assert {"x1", "stored1", "stored1-int8", "stored2", "stored2-int8"} <= tried


def test_a_search_tries_rows_of_nodes_alone_where_they_are_narrower(given: Given) -> None:
    wide(given)
    revision = given.generate(variants={"search": "Auto", "budget": {"seconds": 1}}, normalization="Disabled")
    assert revision.profile.search is not None
    tried = {verdict.name for verdict in revision.profile.search.variants}
    assert {"x1", "projected", "projected-int8", "stored1"} <= tried
    assert "x1-int8" not in tried


def test_other_weights_of_the_same_layers_stand_beside(given: Given) -> None:
    save_file(to_tensors(Net(3)), given.folder / "other.safetensors")
    expected = over(FEATURES, EDGES, 3)[0]
    np.savez(given.folder / "of_other.npz", nodes=np.arange(NODES), scores=expected)
    other = {
        "name": "other", "checkpoint": {"uri": (given.folder / "other.safetensors").as_uri()},
        "expected": {"uri": (given.folder / "of_other.npz").as_uri()},
    }  # fmt: skip
    cascade = {"first": "other", "then": "x1", "passOnPercents": [50]}
    variants = {"storage": ["float32", "int8"], "stored": [1], "given": [other], "cascades": [cascade]}
    revision = given.generate(variants=variants)
    names = [variant.name for variant in revision.profile.variants]
    assert sorted(names) == listed_names(given.service(variants=variants))
    families = {one.name: (one.family, one.table) for one in revision.variants}
    assert families["other-int8"] == families["x1-int8"] == ("layers", "features-int8")
    assert_close(given.scores(revision, "other"), expected)
    for name in ("x1", "stored1"):
        assert_close(given.scores(revision, name), over(FEATURES, EDGES)[0])


def test_other_weights_stand_beside_layers_that_are_trained(given: Given) -> None:
    learnt = {"checkpoint": None, "expected": None, "fanouts": [4, 4], "training": {"epochs": 2}}
    checkpoint = {"uri": (given.folder / "model.safetensors").as_uri()}
    expected = {"uri": (given.folder / "expected.npz").as_uri()}
    variants = {"given": [{"name": "other", "checkpoint": checkpoint, "expected": expected}]}
    revision = given.generate(model=learnt, variants=variants, normalization="Disabled")
    assert [one.name for one in revision.variants] == ["x1", "other"]
    assert revision.training is not None and [run.name for run in revision.training.runs] == ["x1"]


def test_other_weights_of_other_layers_are_refused_by_their_name(given: Given) -> None:
    tensors = to_tensors(Net(3))
    tensors["lin.weight"] = tensors["lin.weight"][:, :-1].copy()
    save_file(tensors, given.folder / "other.safetensors")
    other = {"checkpoint": {"uri": (given.folder / "other.safetensors").as_uri()}}
    told = given.refusal(variants={"given": [other]})
    assert told.startswith("spec.variants.given[0].checkpoint.uri: ")
    assert "lin.weight" in told


def test_layers_that_are_not_there_cannot_be_stored(given: Given) -> None:
    tag = {"conv": "TAG", "width": HIDDEN, "hops": 2}
    learnt = {"checkpoint": None, "expected": None}
    told = given.refusal([tag], model=learnt, variants={"stored": [2]})
    assert "spec.variants.stored: 2 is no layer of the network, which has 1" in told
    told = given.refusal(
        [{**tag, "conv": "SGC"}], model={**learnt, "fanouts": [3, 3]}, variants={"stored": [1], "fanouts": [[2, 2]]}
    )
    assert "layers of several hops are stored" in told


def test_layers_without_a_checkpoint_are_trained(given: Given) -> None:
    learnt = {"checkpoint": None, "expected": None, "fanouts": [4, 4], "training": {"epochs": 15}}
    variants = {"storage": ["float32", "int8"], "oneRow": [{"hops": 0}]}
    revision = given.generate(model=learnt, variants=variants)
    assert revision.training is not None
    assert revision.training.runs[0].name == "x1"
    assert {one.name: one.validation_accuracy for one in revision.profile.variants}["x1"] > 0.6
    assert sorted(one.name for one in revision.variants) == ["mlp0", "mlp0-int8", "x1", "x1-int8"]


def test_another_activation_is_found_where_scores_differ(given: Given) -> None:
    told = given.refusal([LAYERS[0], {**LAYERS[1], "activation": "Relu"}])
    assert "set activation of spec.model.layers to Gelu (layers[1])" in told
    told = given.refusal([LAYERS[0], {**LAYERS[1], "selfLoops": False}])
    assert "set selfLoops of spec.model.layers to true" in told


def test_layers_that_do_not_fit_the_file_are_named(given: Given) -> None:
    told = given.refusal([{**LAYERS[0], "width": 6}, LAYERS[1]])
    assert "model.safetensors" in told
    assert "6" in told
    assert "8" in told


def test_a_column_that_edges_lack_is_named(given: Given) -> None:
    told = given.refusal([{**LAYERS[0], "edgeColumns": ["amount"]}, LAYERS[1]])
    assert "amount" in told


def test_fan_outs_for_each_hop_are_asked_for(given: Given) -> None:
    tag = {"conv": "TAG", "width": HIDDEN, "hops": 2}
    assert "layers read 3 hops" in given.refusal([LAYERS[0], tag])


def test_weights_of_a_revision_are_checked_as_those_of_any(given: Given) -> None:
    revision = given.generate()
    (path,) = given.folder.glob("repository/**/x1/weights.safetensors")
    path.chmod(0o644)
    tensors = load_file(path)
    save_file({name: tensor + 1 for name, tensor in tensors.items()}, path)
    with pytest.raises(Exception, match=r"weights\.safetensors"):
        load_revision(given.repository, revision.revision)


def test_layers_over_several_types_are_stored(tmp_path: Path) -> None:
    """Types are of different widths, of features and between the layers; weights are trained here."""
    learnt: dict[str, Any] = {
        "before": [{"type": "item", "products": [{"width": 6, "activation": "Relu"}]}],
        "layers": [
            {"conv": "GraphSAGE", "width": HIDDEN, "norm": "Batch", "activation": "Elu", "residual": "Projected"},
            {"conv": "GATv2", "width": 2 * HIDDEN, "heads": 2, "selfLoops": False, "activation": "Gelu"},
        ],
        "jumpingKnowledge": "Cat", "head": [{}], "headReadsInput": True, "fanouts": [-1, -1],
        "training": {"epochs": 2},
    }  # fmt: skip
    variants = {"storage": ["float32", "int8"], "stored": [1, 2]}
    service = service_of("file:///none.npz", model=learnt, variants=variants)
    spec = service.model_dump(by_alias=True, exclude_none=True)
    spec["spec"]["graph"]["source"] = {"typed": {**hetero_data(tmp_path), "target": "user", "reverse": "Disabled"}}
    repository = Repository(tmp_path / "repository", "default", "tiny")
    revision = generate(type(service).model_validate(spec), repository)
    loaded = load_revision(repository, revision.revision)
    found = {name: infer_batch(loaded, name, np.arange(USERS), 1).scores for name in loaded.variants}
    assert sorted(found) == ["stored1", "stored1-int8", "stored2", "stored2-int8", "x1", "x1-int8"]
    for name in ("stored1", "stored2"):
        assert_close(found[name], found["x1"])
        rounded = np.abs(found[f"{name}-int8"] - found["x1"]).max()
        assert 0 < rounded < 0.1 * np.abs(found["x1"]).max()
