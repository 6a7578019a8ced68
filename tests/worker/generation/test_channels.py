"""Pruned channels: those that a network needs are kept, and what is left computes nearly the same."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from tests.support.generation.learning import labelled_set
from tests.support.graphs.graphs import (
    dense_features,
    network_manifest,
    npz_arrays,
    planted_graph,
    random_graph,
    random_splits,
    random_tensors,
    service_of,
    write_npz,
)
from tests.support.models.pyg import assert_close
from tests.support.overlays.overlays import scores_of_new_node

from gnnserve_api.files.repository import NetworkManifest, RevisionManifest
from gnnserve_api.spec.model import Model, Scope
from gnnserve_worker.generation.channels import choose, narrow
from gnnserve_worker.generation.given import GivenModels
from gnnserve_worker.generation.hidden import hidden_states
from gnnserve_worker.generation.moments import Moments
from gnnserve_worker.generation.pipeline import generate
from gnnserve_worker.generation.ranking import gram_of
from gnnserve_worker.inference.batch import infer_batch
from gnnserve_worker.models.architecture import FirstLayer
from gnnserve_worker.models.registry import Tensors, layer_sizes, spec_of
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.progress import silent
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.tables.table import Aggregator

NODES, FEATURES = 300, 12
ALL = (-1, -1, -1)
NO_BIAS = np.zeros(8, np.float32)
GRAPH, FEATURE_ROWS = random_graph(NODES, 0), dense_features(NODES, FEATURES, 0)
NETWORKS = {
    "GraphSAGE": network_manifest("GraphSAGE", ALL),
    "GIN": network_manifest("GIN", ALL),
    "GIN of another inner width": network_manifest("GIN", ALL, mlp_hidden=10),
    "GCN": network_manifest("GCN", ALL),
    "GAT": network_manifest("GAT", ALL, heads=2, output_heads=3),
}


def halved(network: NetworkManifest) -> NetworkManifest:
    inner = None if network.mlp_hidden is None else network.mlp_hidden // 2
    return msgspec.structs.replace(network, hidden=network.hidden // 2, mlp_hidden=inner)


def shapes_of(network: NetworkManifest) -> dict[str, tuple[int, ...]]:
    spec = spec_of(network.architecture)
    return {
        key: shape
        for layer, sizes in enumerate(layer_sizes(network, FEATURES))
        for key, shape in spec.shapes_of(layer, sizes).items()
    }


def narrowed(network: NetworkManifest, tensors: Tensors) -> Tensors:
    return narrow(tensors, network, halved(network), FEATURE_ROWS, GRAPH, np.arange(NODES))


def scores(network: NetworkManifest, tensors: Tensors) -> np.ndarray:
    return hidden_states(network, tensors, FEATURE_ROWS, GRAPH)[-1].outputs


@pytest.mark.campaign
@pytest.mark.parametrize("name", NETWORKS)
def test_every_hidden_layer_keeps_as_many_channels_as_are_wanted(name: str) -> None:
    network = NETWORKS[name]
    found = narrowed(network, random_tensors(network, FEATURES, seed=1))
    assert {key: tensor.shape for key, tensor in found.items()} == shapes_of(halved(network))
    assert {tensor.dtype for tensor in found.values()} == {np.dtype(np.float32)}
    assert np.isfinite(scores(halved(network), found)).all()


LIVE = [1, 2, 4, 7]
"""Channels of 8 that the next layer of a planted network reads."""


def planted(network: NetworkManifest) -> Tensors:
    """Weights under which nothing reads the other channels, and a GAT scores nothing by them."""
    tensors = random_tensors(network, FEATURES, seed=1)
    for key in tensors.keys() & {f"convs.{layer}.bias" for layer in range(network.layers - 1)}:
        tensors[key] += 1  # no channel of GCN and GAT is 0 for all nodes
    dead = np.setdiff1d(np.arange(network.hidden), LIVE)
    inputs = {"GraphSAGE": ["lin_l.weight", "lin_r.weight"], "GIN": ["nn.lins.0.weight"]}
    for layer in range(1, network.layers):
        for weight in inputs.get(network.architecture, ["lin.weight"]):
            tensors[f"convs.{layer}.{weight}"][:, dead] = 0
        if network.architecture == "GIN":
            tensors[f"convs.{layer - 1}.nn.lins.1.weight"][:, dead] = 0
        if network.architecture == "GAT":
            for weight in ("att_src", "att_dst"):
                tensors[f"convs.{layer - 1}.{weight}"].reshape(-1)[dead] = 0
    return tensors


@pytest.mark.parametrize("architecture", ["GraphSAGE", "GIN", "GCN", "GAT"])
def test_the_channels_that_the_next_layer_reads_are_kept_and_scores_stay(architecture: str) -> None:
    network = NETWORKS[architecture]
    tensors = planted(network)
    found = narrowed(network, tensors)
    assert_close(scores(halved(network), found), scores(network, tensors), 1e-4)


def test_what_is_left_is_fitted_to_channels_that_are_gone() -> None:
    """Where every channel has a twin, half of them suffice, but only with other weights than before."""
    network = msgspec.structs.replace(NETWORKS["GCN"], fanouts=ALL[:2])
    tensors = random_tensors(network, FEATURES, seed=1)
    for key in ("convs.0.lin.weight", "convs.0.bias"):
        tensors[key][4:] = tensors[key][:4]
    found = narrowed(network, tensors)
    assert_close(scores(halved(network), found), scores(network, tensors), 1e-2)
    kept = found["convs.1.lin.weight"]
    assert all(np.abs(kept[:, [one]] - tensors["convs.1.lin.weight"]).max(axis=0).min() > 1e-3 for one in range(4))


def test_every_head_keeps_as_many_channels() -> None:
    reader = FirstLayer(Aggregator.NONE, np.diag([9.0, 8, 7, 6, 1, 2, 3, 4]).astype(np.float32), None, NO_BIAS, 1.0)
    moments = Moments(np.eye(8, dtype=np.float32), None, None, np.zeros(8), None)
    gram = gram_of(reader, moments)
    assert choose(gram, 4, groups=1).tolist() == [0, 1, 2, 3]
    assert choose(gram, 4, groups=2).tolist() == [0, 1, 6, 7]


# --- trained, published and served

DATA = planted_graph((1, 5, 8), nodes=300)
CHANNELS = [
    {"factor": 4},
    {"factor": 2, "columnFactor": 3},
    *({"factor": 4, "table": t} for t in ("Projected", "Stored")),
]


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> tuple[RevisionManifest, LoadedRevision]:
    folder = tmp_path_factory.mktemp("channels")
    uri = write_npz(folder / "graph.npz", npz_arrays(DATA)).as_uri()
    repository = Repository(folder / "repository", "default", "tiny")
    service = service_of(
        uri,
        model={"hidden": 16, "fanouts": [4, 3], "training": {"epochs": 20}},
        variants={"pruning": {"factors": [1, 3]}, "storage": ["float32", "int8"], "channels": CHANNELS},
    )
    manifest = generate(service, repository)
    assert {*service.spec.variants.listed_names()} <= {variant.name for variant in manifest.variants}
    return manifest, load_revision(repository, manifest.revision)


def test_few_channels_tell_the_planted_classes(generated: tuple[RevisionManifest, LoadedRevision]) -> None:
    manifest, loaded = generated
    hidden = {variant.name: variant.network.hidden for variant in manifest.variants}
    assert (hidden["x1"], hidden["channels2-x3"], hidden["channels4"], hidden["channels4-stored1"]) == (16, 8, 4, 4)
    seeds = DATA.splits.test
    for name in ("channels4", "channels4-int8", "channels4-projected", "channels4-projected-int8", "channels4-stored1"):
        found = infer_batch(loaded, name, seeds, key=1).scores
        assert (found.argmax(axis=1) == DATA.labels[seeds]).mean() > 0.8, name
    wide, short = (infer_batch(loaded, name, seeds, key=1) for name in ("channels4", "channels4-projected"))
    assert_close(short.scores, wide.scores)
    # Two rows of products for a node with a hidden state, its own and those of its neighbours.
    assert short.gathered_bytes * 12 == wide.gathered_bytes * 4


def test_each_network_is_trained_once(generated: tuple[RevisionManifest, LoadedRevision]) -> None:
    training = generated[0].training
    assert training is not None
    assert [run.name for run in training.runs] == ["x1", "x3", "channels4", "channels2-x3"]


def test_a_new_node_is_answered_about_by_weights_of_their_own(
    generated: tuple[RevisionManifest, LoadedRevision],
) -> None:
    _, loaded = generated
    node = int(DATA.splits.test[0])
    features = np.asarray(DATA.features)[node]
    made = {
        name: scores_of_new_node(loaded, name, features, neighbour=0)
        for name in ("channels4", "channels4-projected", "channels4-stored1", "channels2-x3")
    }
    assert_close(made["channels4-projected"], made["channels4"])
    assert all(np.isfinite(found).all() for found in made.values())
    able = {name for name, variant in loaded.variants.items() if variant.rows is not None}
    assert {variant.name for variant in generated[0].variants} == able


def test_given_weights_are_fitted_and_not_trained() -> None:
    model = Model.model_validate({"hidden": 8, "fanouts": [4, 3]})
    network = model.network(3)
    tensors = random_tensors(network, FEATURES, seed=1)
    data = labelled_set(GRAPH, np.zeros(NODES, np.int64), 3, random_splits(NODES, 0), Scope.TRANSDUCTIVE)
    models = GivenModels(tensors, {}, data, FEATURE_ROWS, model, silent)
    found = models.narrowed(tensors, None, 2, "channels2")
    assert found["convs.1.lin_l.weight"].shape == (3, 4)
    columns = np.array([3, 1])
    part = models.narrowed(random_tensors(network, 2, seed=2), columns, 4, "channels4-x6")
    assert part["convs.0.lin_l.weight"].shape == (2, 2)
    assert models.runs == ()
