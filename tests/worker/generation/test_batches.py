"""Training over several types in batches: the whole graph is one of them, and fan-outs bound what others read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from tests.support.generation.learning import labels_of
from tests.support.generation.steps import HeardSteps
from tests.support.graphs.several_types import TypedParts, divided_shop, load_types, shop, typed_source, write_folder
from tests.support.lacks import needs_gpu

from gnnserve_api.files.repository import RevisionManifest
from gnnserve_api.spec.graph import Normalization
from gnnserve_api.spec.model import Batches, Model, Scope
from gnnserve_api.spec.service import GNNService
from gnnserve_worker.generation.batches import MOST_NUMBERS, batches_of, report_batches
from gnnserve_worker.generation.blocks import blocks_of
from gnnserve_worker.generation.layers import CPU, Block
from gnnserve_worker.generation.networks import LearningNetwork, drawn_network
from gnnserve_worker.generation.pipeline import generate
from gnnserve_worker.generation.train import Blocks, NetworkOptimizer, Rate
from gnnserve_worker.generation.training_set import TrainingSet, training_set
from gnnserve_worker.models.architecture import RelationalShape
from gnnserve_worker.models.registry import relational_spec_of
from gnnserve_worker.progress import Progress
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.tasks.classify_nodes.learning import label_loss

CLASSES, HIDDEN = 2, 8
CLASSIFIED = (0,)
BOTH = [Batches.WHOLE_GRAPH, Batches.SAMPLED]


@pytest.fixture(autouse=True)
def _quick_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GNNSERVE_PROFILE_SECONDS", "0")


def subject_of(folder: Path, parts: TypedParts | None = None, scope: Scope = Scope.TRANSDUCTIVE) -> TrainingSet:
    data = load_types(typed_source(write_folder(folder / "graph", parts or shop())))
    return training_set(data, labels_of(data), CLASSES, scope, Normalization.DISABLED)


def model_of(**given: Any) -> Model:
    return Model.model_validate({"hidden": HIDDEN, "fanouts": [-1, -1], **given})


def shape_of(subject: TrainingSet, model: Model) -> RelationalShape:
    network = model.network(CLASSES)
    return RelationalShape(subject.schema, model.hidden, CLASSES, network.layers, model.bases, network.attention)


def made_blocks(batches: Batches, model: Model, subject: TrainingSet, device: torch.device = CPU) -> Blocks:
    return blocks_of(batches, model, shape_of(subject, model), subject, CLASSIFIED, device)


def network_of(subject: TrainingSet, model: Model, device: torch.device = CPU) -> LearningNetwork:
    spec, shape = relational_spec_of(model.architecture), shape_of(subject, model)
    return drawn_network(spec, shape, CLASSIFIED, 0.5, model.training.dropout, device)


def gradients_of(
    batches: Batches, model: Model, subject: TrainingSet, device: torch.device = CPU
) -> dict[str, torch.Tensor]:
    """Scores of all training nodes, and the gradient of each tensor, of the first step over all of them."""
    torch.manual_seed(3)
    network = network_of(subject, model, device)
    nodes = subject.data.splits.train
    blocks = made_blocks(batches, model, subject, device).over(subject.visible)
    scores = network.outputs(blocks.block(nodes, key=7), trains=False)
    label_loss(scores, subject.data.labels[nodes]).backward()  # type: ignore[no-untyped-call]
    found = {"scores": scores.detach().cpu()}
    for key, weight in network.state.items():
        gradient = torch.zeros_like(weight) if weight.grad is None else weight.grad
        found[key] = (gradient.to_dense() if gradient.is_sparse else gradient).cpu()
    return found


@needs_gpu()
@pytest.mark.parametrize("batches", BOTH)
@pytest.mark.parametrize("architecture", ["GraphSAGE", "GAT", "RGCN"])
def test_a_step_on_a_gpu_is_that_of_the_cpu_but_for_rounding(
    tmp_path: Path, architecture: str, batches: Batches
) -> None:
    subject, model = subject_of(tmp_path), model_of(architecture=architecture, fanouts=[3, 2])
    on_cpu, on_gpu = (gradients_of(batches, model, subject, torch.device(one)) for one in ("cpu", "cuda"))
    for key, expected in on_cpu.items():
        torch.testing.assert_close(on_gpu[key], expected, atol=1e-4, rtol=1e-4, msg=key)


@pytest.mark.campaign
@pytest.mark.parametrize("scope", [Scope.TRANSDUCTIVE, Scope.INDUCTIVE])
@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("architecture", ["GraphSAGE", "GAT", "RGCN"])
def test_a_batch_of_all_nodes_with_whole_lists_is_the_whole_graphs_step(
    tmp_path: Path, architecture: str, layers: int, scope: Scope
) -> None:
    subject = subject_of(tmp_path, scope=scope)
    model = model_of(architecture=architecture, fanouts=[-1] * layers)
    whole, sampled = (gradients_of(batches, model, subject) for batches in BOTH)
    assert whole.keys() == sampled.keys()
    for key, expected in whole.items():
        torch.testing.assert_close(sampled[key], expected, atol=1e-5, rtol=1e-5, msg=key)
    assert any(whole[key].abs().max() > 1e-3 for key in whole if key.startswith("embeddings.")) or layers == 1


def test_sparse_features_and_several_classes_of_a_node_make_the_same_step_too(tmp_path: Path) -> None:
    parts = shop()
    parts.nodes["user"]["labels"] = np.eye(2, dtype=np.uint8)[parts.nodes["user"]["labels"]]
    subject = subject_of(tmp_path, parts)
    sparse = [
        one if one is None else replace(one, features=sp.csr_array(np.maximum(np.asarray(one.features), 0)))
        for one in subject.features
    ]
    subject = replace(subject, features=sparse)
    whole, sampled = (gradients_of(batches, model_of(), subject) for batches in BOTH)
    for key, expected in whole.items():
        torch.testing.assert_close(sampled[key], expected, atol=1e-5, rtol=1e-5, msg=key)


def drawn_by_relation(block: Block, layer: int) -> list[np.ndarray]:
    """How many neighbours each row reads by each relation."""
    return [lists.adjacency.crow_indices().diff().numpy() for lists in block.layers[layer].lists]


def test_fan_outs_bound_what_a_batch_reads_by_each_relation(tmp_path: Path) -> None:
    parts = shop(users=400, items=80)
    # An item that everyone has bought.
    parts.edges["user", "buys", "item"] = {"src": np.arange(400), "dst": np.zeros(400, np.int64)}
    subject = subject_of(tmp_path, parts)
    model = model_of(fanouts=[4, 3], relationFanouts=[{"relation": "user knows user", "fanouts": [2, 1]}])
    blocks, seeds = made_blocks(Batches.SAMPLED, model, subject), np.array([5, 3, 8])
    block = blocks.block(seeds, key=1)
    known = [one.key for one in subject.data.relations].index("user knows user")
    for layer, fanouts, of_known in ((1, 4, 2), (0, 4, 2)):
        drawn = drawn_by_relation(block, layer)
        assert drawn[known].max(initial=0) <= of_known
        assert max(one.max(initial=0) for one in drawn) <= fanouts
    # The first layer reads the second hop too, whose rows draw fewer.
    read_by_users = sum(one.target == "user" for one in subject.data.relations)
    hop = len(seeds) * (4 * (read_by_users - 1) + 2)
    rows = sum(block.layers[0].rows)
    assert len(seeds) < rows <= len(seeds) + hop
    most_slots = max(sum(one.target == kind.name for one in subject.data.relations) for kind in subject.data.types)
    leaves = sum(len(one) for one in block.embedded if one is not None)
    leaves += sum(one.shape[0] for one in block.features if isinstance(one, torch.Tensor))
    assert leaves <= rows + hop * 3 * most_slots
    assert leaves < 200 < subject.data.nodes


def test_every_step_draws_other_neighbours_and_a_key_the_same_ones(tmp_path: Path) -> None:
    subject, model = subject_of(tmp_path, divided_shop()), model_of(fanouts=[1, 1])
    blocks, nodes = made_blocks(Batches.SAMPLED, model, subject), np.arange(60)
    network = network_of(subject, model)

    def scores(key: int, part: np.ndarray) -> torch.Tensor:
        return network.outputs(blocks.block(part, key), trains=False).detach()

    assert torch.equal(scores(1, nodes), scores(1, nodes))
    assert not torch.allclose(scores(1, nodes), scores(2, nodes))
    # Validation is the same whatever its parts are.
    halves = torch.cat([scores(1, nodes[:25]), scores(1, nodes[25:])])
    torch.testing.assert_close(halves, scores(1, nodes), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("architecture", ["GraphSAGE", "GAT", "RGCN"])
def test_a_seed_that_reads_nobody_has_scores(tmp_path: Path, architecture: str) -> None:
    parts = shop()
    for ends in parts.edges.values():
        ends["src"], ends["dst"] = ends["src"][:1], ends["dst"][:1]
    features = parts.nodes["item"]["features"]
    subject = subject_of(tmp_path, parts)
    subject = replace(
        subject,
        features=[
            one if one is None or kind.name != "item" else replace(one, features=sp.csr_array(features))
            for one, kind in zip(subject.features, subject.data.types, strict=True)
        ],
    )
    model = model_of(architecture=architecture)
    ends_of_any = [int(ends[end][0]) for ends in parts.edges.values() for end in ("src", "dst")]
    lonely = np.setdiff1d(np.arange(30), ends_of_any)[-3:]
    network, found = network_of(subject, model), []
    for batches in BOTH:
        scores = network.outputs(made_blocks(batches, model, subject).block(lonely, 1), trains=False)
        label_loss(scores, subject.data.labels[lonely]).backward()  # type: ignore[no-untyped-call]
        found.append(scores.detach())
    torch.testing.assert_close(found[1], found[0], atol=1e-5, rtol=1e-5)


def test_a_step_changes_the_embeddings_alone_that_it_has_read() -> None:
    embeddings = torch.nn.Parameter(torch.ones(6, 2))
    weights = torch.nn.Parameter(torch.ones(2))
    optimizer = NetworkOptimizer([weights], Rate(0.1, 0.0), [embeddings], Rate(0.1, 0.5), reads_few=True)
    read = torch.tensor([1, 4, 1])
    rows = torch.nn.functional.embedding(read, embeddings, sparse=True)
    # The loss has no gradient: what changes is the penalty's.
    optimizer.step((rows * weights).sum() * 0)
    changed = (embeddings.detach() != 1).any(dim=1)
    assert changed.tolist() == [False, True, False, False, True, False]
    torch.testing.assert_close(embeddings.detach()[[1, 4]], torch.full((2, 2), 0.9))


def test_auto_keeps_small_graphs_whole_and_samples_large_ones() -> None:
    model = model_of(hidden=128, fanouts=[25, 10])
    most = MOST_NUMBERS // (2 * 128)
    assert batches_of(model, most // 2, most // 2) is Batches.WHOLE_GRAPH
    assert batches_of(model, most // 2, most // 2 + 1) is Batches.SAMPLED
    assert batches_of(model_of(hidden=128), most, most) is Batches.WHOLE_GRAPH, "a batch would read most of the graph"
    for batches in BOTH:
        assert batches_of(model_of(training={"batches": batches.value}), most, most) is batches
        assert batches_of(model_of(training={"batches": batches.value}), 10, 10) is batches


def test_the_log_says_that_auto_samples_and_nothing_of_what_the_manifest_says() -> None:
    heard: list[Progress] = []
    for model in (model_of(training={"batches": "Sampled"}), model_of()):
        for batches in BOTH:
            report_batches(model, batches, "network", heard.append)
    assert [(one.stage, one.detail.partition(",")[0]) for one in heard] == [("train network in batches", "steps of 1")]


def service_of(
    source: dict[str, Any], training: dict[str, Any], task: dict[str, Any] | None = None, **model: Any
) -> GNNService:
    settings = {"scope": "Transductive", "batches": "Sampled", **training}
    spec = {
        "graph": {"source": {"typed": source}, "normalization": "Disabled"},
        "model": {"hidden": HIDDEN, "fanouts": [4, 3], "training": settings, **model},
        "task": task or {},
    }
    body = {"apiVersion": "gnnserve.dev/v1alpha1", "kind": "GNNService", "metadata": {"name": "shop"}, "spec": spec}
    return GNNService.model_validate(body)


def published_in(folder: Path, service: GNNService) -> RevisionManifest:
    heard = HeardSteps()
    published = generate(service, Repository(folder, "default", "shop"), heard)
    heard.check()
    return published


@pytest.mark.campaign
@pytest.mark.parametrize("architecture", ["GraphSAGE", "GAT", "RGCN"])
def test_batches_learn_from_labels_and_equal_manifests_give_equal_weights(tmp_path: Path, architecture: str) -> None:
    source = write_folder(tmp_path / "graph", divided_shop())
    service = service_of(source, {"epochs": 20, "batchSize": 32}, architecture=architecture)
    first, second = (published_in(tmp_path / name, service) for name in ("one", "two"))
    assert all(one.validation_accuracy > 0.9 for one in first.profile.variants)
    assert first.training is not None
    (run,) = first.training.runs
    assert (run.batches, run.epochs, run.steps) == ("Sampled", 20, 20 * 3)
    assert first.model == second.model


def test_the_whole_graph_is_the_default_of_small_graphs_and_recorded(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "graph", shop())
    published = published_in(tmp_path / "repository", service_of(source, {"epochs": 2, "batches": "Auto"}))
    assert published.training is not None
    assert [(run.batches, run.steps) for run in published.training.runs] == [("WholeGraph", 2)]


class StoppedError(Exception):
    """Raised in place of what comes after training."""


def test_an_interruption_behind_training_in_batches_loses_none_of_it(tmp_path: Path) -> None:
    service = service_of(write_folder(tmp_path / "graph", shop()), {"epochs": 3, "batchSize": 4})

    def stop(progress: Progress) -> None:
        if progress.stage == "write tables":
            raise StoppedError

    with pytest.raises(StoppedError):
        generate(service, Repository(tmp_path / "interrupted", "default", "shop"), stop)
    heard: list[Progress] = []
    resumed = generate(service, Repository(tmp_path / "interrupted", "default", "shop"), heard.append)
    (trained,) = (one.detail for one in heard if one.stage == "train network")
    assert trained.startswith("trained before")
    assert resumed.model == published_in(tmp_path / "whole", service).model


@pytest.mark.campaign
@pytest.mark.parametrize("architecture", ["GraphSAGE", "GAT", "RGCN"])
def test_links_are_learnt_in_batches(tmp_path: Path, architecture: str) -> None:
    source = write_folder(tmp_path / "graph", divided_shop())
    task = {"links": {"relation": "buys", "dimensions": 8}}
    service = service_of(source, {"epochs": 4, "batchSize": 64}, task, architecture=architecture)
    published = published_in(tmp_path / "repository", service)
    assert published.training is not None and published.links is not None
    (run,) = published.training.runs
    assert (run.batches, run.learnt_from) == ("Sampled", "links")
    links = 4 * 240 - 2 * (4 * 240 // 10)
    assert run.steps >= 4 * (links // 64)
    assert run.validation > 0.6


@pytest.mark.parametrize(
    ("source", "model", "said"),
    [
        ({"builtin": "Digits"}, {"training": {"batches": "WholeGraph"}}, "batches WholeGraph must be left out without"),
        ({"typed": {"npz": {"uri": "file:///graph"}}}, {"architecture": "LightGCN", "fanouts": [0],
         "training": {"batches": "Sampled"}},
         "training.batches Sampled must be left out with architectures SGC, SIGN and LightGCN"),
    ],
)  # fmt: skip
def test_where_there_is_nothing_to_choose_batches_are_refused(
    source: dict[str, Any], model: dict[str, Any], said: str
) -> None:
    spec = {"graph": {"source": source}, "model": model}
    body = {"apiVersion": "gnnserve.dev/v1alpha1", "kind": "GNNService", "metadata": {"name": "a"}, "spec": spec}
    with pytest.raises(ValueError, match=said):
        GNNService.model_validate(body)
