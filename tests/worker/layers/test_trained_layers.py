"""Listed layers without a checkpoint are trained, published, and served as those that are given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec import UNSET
from safetensors.numpy import load_file
from tests.support.graphs.graphs import npz_arrays, planted_graph, service_of, write_npz
from tests.support.graphs.several_types import divided_shop, write_folder

from gnnserve_api.spec.graph import Normalization
from gnnserve_worker.generation.layer_modules import GraphTensors, LayersModule, load_canonical
from gnnserve_worker.generation.pipeline import find, generate
from gnnserve_worker.generation.training_set import scaled_features
from gnnserve_worker.inference.batch import infer_batch
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.repository.repository import Repository

GRAPH = planted_graph((2, 5, 7))
LAYERS = [
    {"conv": "GATv2", "width": 16, "heads": 2, "norm": "Batch", "activation": "Elu", "residual": "Projected"},
    {"conv": "GraphSAGE", "width": 16, "activation": "Relu"},
]


class Trained:
    def __init__(self, folder: Path) -> None:
        write_npz(folder / "graph.npz", npz_arrays(GRAPH))
        self.folder, self.uri = folder, (folder / "graph.npz").as_uri()
        self.repository = Repository(folder / "repository", "default", "tiny")

    def service(self, **parts: Any) -> Any:
        training = {"epochs": 12, "batchSize": 64, "learningRate": 0.01, **parts.pop("training", {})}
        model = {
            "layers": LAYERS, "jumpingKnowledge": "Cat", "head": [{}], "fanouts": [-1, -1], "training": training,
            **parts.pop("model", {}),
        }  # fmt: skip
        return service_of(self.uri, model=model, **parts)


@pytest.fixture
def trained(tmp_path: Path) -> Trained:
    return Trained(tmp_path)


def test_layers_without_a_checkpoint_are_trained(trained: Trained) -> None:
    service = trained.service()
    revision = generate(service, trained.repository)
    (variant,) = revision.profile.variants
    majority = np.bincount(GRAPH.labels[GRAPH.splits.test]).max() / len(GRAPH.splits.test)
    assert variant.test_accuracy > majority + 0.1
    (run,) = revision.training.runs
    assert (run.name, run.batches, run.epochs) == ("x1", "WholeGraph", 12)
    assert find(service, trained.repository) == revision


def test_what_is_served_is_what_torch_geometric_computes(trained: Trained) -> None:
    service = trained.service()
    revision = generate(service, trained.repository)
    found = infer_batch(load_revision(trained.repository, revision.revision), "x1", np.arange(GRAPH.graph.nodes), 1)
    (variant,) = revision.variants
    (path,) = trained.folder.glob(f"repository/**/{variant.weights}")
    assert variant.network.program is not UNSET
    module = LayersModule(variant.network.program.layers, GRAPH.schema, [GRAPH.features.shape[1]]).eval()
    load_canonical(module, load_file(path))
    (scaled,) = scaled_features(GRAPH, service.spec.model.training.scope, Normalization.AUTO)
    edges = np.stack([GRAPH.graph.indices.astype(np.int64), GRAPH.graph.targets()])
    read = GraphTensors([torch.from_numpy(scaled.features)], [torch.from_numpy(edges)], [{}])
    with torch.no_grad():
        expected = module(read).numpy()
    np.testing.assert_allclose(found.scores, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_perceptrons_learn_the_scores_of_layers_that_are_trained(trained: Trained) -> None:
    variants = {"storage": ["float32", "int8"], "oneRow": [{"hops": 0}]}
    revision = generate(trained.service(variants=variants, training={"epochs": 3}), trained.repository)
    assert sorted(one.name for one in revision.profile.variants) == ["mlp0", "mlp0-int8", "x1", "x1-int8"]
    assert {run.name for run in revision.training.runs} >= {"x1", "mlp0"}


def test_large_graphs_are_trained_in_samples(trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gnnserve_worker.generation.batches.MOST_NUMBERS", 1)
    revision = generate(trained.service(model={"fanouts": [5, 3]}), trained.repository)
    (run,) = revision.training.runs
    assert run.batches == "Sampled"


def test_a_manifest_may_say_that_a_small_graph_is_trained_in_samples(trained: Trained) -> None:
    revision = generate(trained.service(model={"fanouts": [5, 3]}, training={"batches": "Sampled"}), trained.repository)
    (run,) = revision.training.runs
    assert run.batches == "Sampled"


def test_another_description_is_another_network(trained: Trained) -> None:
    first = trained.service().spec.recipe()
    assert trained.service(model={"layers": [LAYERS[0], {**LAYERS[1], "norm": "Layer"}]}).spec.recipe() != first
    assert trained.service(training={"epochs": 13}).spec.recipe() != first


def test_links_are_scored_by_rows_of_nodes_alone_and_by_fewer_columns(tmp_path: Path) -> None:
    """What scores pairs reads rows of nodes, and no embeddings stand beside these."""
    features = np.random.default_rng(1).normal(size=(GRAPH.nodes, 24)).astype(np.float32)
    trained = Trained(tmp_path)
    write_npz(tmp_path / "graph.npz", {**npz_arrays(GRAPH), "features": features})
    layers = [{"conv": "GCN", "width": 8, "activation": "Elu"}, {"conv": "Transformer", "width": 8, "heads": 2}]
    model = {"layers": layers, "jumpingKnowledge": "Last", "head": []}
    variants = {
        "pruning": {"factors": [1, 4]}, "oneRow": [{"hops": 0}],
        "cascades": [{"first": "mlp0", "then": "projected", "passOnPercents": [50]}],
    }  # fmt: skip
    service = trained.service(
        model=model, task={"links": {"dimensions": 8}}, variants=variants, training={"epochs": 2},
        normalization="Disabled",
    )  # fmt: skip
    revision = generate(service, trained.repository)
    loaded = load_revision(trained.repository, revision.revision)
    assert {"x1", "x4", "projected"} <= loaded.variants.keys()
    nodes = np.arange(GRAPH.nodes)
    rows = {name: infer_batch(loaded, name, nodes, 1).scores for name in ("x1", "x4", "projected")}
    largest = float(np.abs(rows["x1"]).max())
    np.testing.assert_allclose(rows["projected"], rows["x1"], rtol=0, atol=1e-5 * largest)
    assert rows["x4"].shape == rows["x1"].shape


@pytest.mark.parametrize("decoder", ["Dot", "DistMult", "MLP"])
def test_links_that_join_types_are_learnt_with_their_decoder(tmp_path: Path, decoder: str) -> None:
    """What one network gives for both types is scored better than links that are none."""
    parts = divided_shop()
    parts.nodes["tag"]["features"] = np.ones((5, 1), np.float32)
    source = write_folder(tmp_path / "shop", parts)
    layers = [{"conv": "GraphSAGE", "width": 16, "activation": "Relu"}, {"conv": "GraphSAGE"}]
    service = Trained(tmp_path).service(
        model={"layers": layers, "jumpingKnowledge": "Last", "head": []}, training={"epochs": 20},
        task={"links": {"dimensions": 8, "relation": "buys", "decoder": decoder}},
    )  # fmt: skip
    document = service.model_dump(by_alias=True, exclude_none=True)
    document["spec"]["graph"]["source"] = {"typed": source}
    revision = generate(type(service).model_validate(document), Repository(tmp_path / "links", "default", "tiny"))
    (variant,) = revision.profile.variants
    assert variant.test_figures is not None and variant.test_figures.roc_auc > 0.6
