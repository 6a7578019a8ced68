"""GAT as torch_geometric computes it: sampled, projected, stored, trained, ranked, and read from checkpoints."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
from tests.support.graphs.graphs import (
    dense_features,
    graph_of,
    network_manifest,
    npz_arrays,
    planted_graph,
    projected_table_of,
    random_graph,
    random_tensors,
    service_of,
    table_of,
    write_npz,
)
from tests.support.models.pyg import assert_close, edges_of_graph, explicit_sample, module_of, scores_of, to_tensors
from tests.support.models.serving_path import SHARE, infer_scores, sample_of

from gnnserve_api.errors import InputError
from gnnserve_api.spec.model import Checkpoint, Model
from gnnserve_api.variants import Storage
from gnnserve_worker.generation.checkpoint import checkpoint_digest, load_checkpoint
from gnnserve_worker.generation.checkpoint_over_rows import WantedOverRows
from gnnserve_worker.generation.moments import first_layer_moments, refit
from gnnserve_worker.generation.pipeline import generate
from gnnserve_worker.graph.store import Graph
from gnnserve_worker.inference.batch import infer_batch
from gnnserve_worker.models.registry import (
    Tensors,
    build_network,
    first_layer,
    projection_of,
    with_first_layer,
    without_first_product,
)
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.tables.attention import exponential

NODES, WIDTH = 70, 21
HEADS = pytest.mark.parametrize(
    ("heads", "output_heads"),
    [
        pytest.param(None, None, id="one head"),
        pytest.param(4, None, id="4 heads"),
        pytest.param(4, 1, id="one in the last layer"),
        pytest.param(1, 3, id="more in the last layer"),
    ],
)


def _without_self_draws(graph: Graph) -> Graph:
    """A sample as a graph of its own tells a node from the same node drawn as its neighbour; PyG must not see those."""
    return graph_of(
        [[n for n in graph.indices[a:b].tolist() if n != i] for i, (a, b) in enumerate(pairwise(graph.indptr))]
    )


@SHARE
@HEADS
@pytest.mark.parametrize("fanouts", [(6,), (25, 10), (3, 40, 2), (2, 2, 2, 2)], ids=str)
def test_sampled_scores_equal_pyg_over_the_sample(
    fanouts: tuple[int, ...], share: bool, heads: int | None, output_heads: int | None
) -> None:
    graph = _without_self_draws(random_graph(NODES, seed=1, isolated=0.2))
    features = dense_features(NODES, WIDTH, seed=2)
    module = module_of("GAT", fanouts, WIDTH, heads=heads, output_heads=output_heads)
    seeds = [*range(0, NODES, 2), 8, 8]
    sample = sample_of(graph, seeds, fanouts, share=share)

    manifest = network_manifest("GAT", fanouts, heads=heads, output_heads=output_heads)
    network = build_network(manifest, to_tensors(module), WIDTH, False, "float32")
    scores = infer_scores(network, table_of(features), sample)

    ids, edges = explicit_sample(sample)
    seed_rows = np.arange(len(seeds)) if sample.seed_rows is None else sample.seed_rows
    assert_close(scores, scores_of(module, features[ids], edges)[seed_rows])


@SHARE
@HEADS
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_full_neighbourhood_scores_equal_pyg_on_the_whole_graph(
    share: bool, layers: int, heads: int | None, output_heads: int | None
) -> None:
    """With self-loops and neighbours that are listed twice."""
    graph, features = random_graph(NODES, seed=3, isolated=0.2), dense_features(NODES, WIDTH, seed=4)
    fanouts = (-1,) * layers
    module = module_of("GAT", fanouts, WIDTH, heads=heads, output_heads=output_heads)
    seeds = [3, 69, 3, 0, 41]

    manifest = network_manifest("GAT", fanouts, heads=heads, output_heads=output_heads)
    network = build_network(manifest, to_tensors(module), WIDTH, False, "float32")
    scores = infer_scores(network, table_of(features), sample_of(graph, seeds, fanouts, share=share))

    assert_close(scores, scores_of(module, features, edges_of_graph(graph))[seeds])


@HEADS
@pytest.mark.parametrize("fanouts", [(6,), (5, 3), (-1, -1)], ids=str)
@pytest.mark.parametrize(
    ("storage", "tolerance"), [(Storage.FLOAT32, 1e-5), (Storage.FLOAT16, 4e-3), (Storage.INT8, 6e-2)], ids=str
)
def test_a_projected_network_equals_the_one_it_was_made_of(
    fanouts: tuple[int, ...], storage: Storage, tolerance: float, heads: int | None, output_heads: int | None
) -> None:
    graph, features = random_graph(NODES, seed=1, isolated=0.2), dense_features(NODES, WIDTH, seed=2)
    manifest = network_manifest("GAT", fanouts, hidden=32, heads=heads, output_heads=output_heads)
    tensors = random_tensors(manifest, WIDTH, 0)
    sample = sample_of(graph, [*range(NODES), 8], fanouts)
    expected = infer_scores(build_network(manifest, tensors, WIDTH, False, "float32"), table_of(features), sample)

    table = projected_table_of(features @ projection_of(tensors).rows, None, storage)
    network = build_network(manifest, without_first_product(tensors), table.columns, True, "float32")

    assert manifest.projected_columns == table.columns
    assert_close(infer_scores(network, table, sample), expected, tolerance)


@pytest.mark.parametrize("storage", list(Storage), ids=str)
def test_scores_are_made_of_what_every_storage_holds(storage: Storage) -> None:
    graph, features = random_graph(NODES, seed=1), dense_features(NODES, WIDTH, seed=2)
    manifest = network_manifest("GAT", (5, 3), heads=4)
    network = build_network(manifest, random_tensors(manifest, WIDTH, 0), WIDTH, False, "float32")
    sample = sample_of(graph, list(range(NODES)), (5, 3))

    expected = infer_scores(network, table_of(features), sample)

    assert_close(infer_scores(network, table_of(features, storage), sample), expected, 5e-2)


def test_attention_by_hand() -> None:
    """Scores of any size: the largest is subtracted before exp."""
    manifest = network_manifest("GAT", (-1,), classes=1)
    features = np.array([[400.0], [-900.0], [399.0]], dtype=np.float32)
    tensors = {
        "convs.0.lin.weight": np.array([[1.0]]), "convs.0.att_src": np.array([[[1.0]]]),
        "convs.0.att_dst": np.array([[[0.0]]]), "convs.0.bias": np.array([0.5]),
    }  # fmt: skip
    graph = graph_of([[1, 0, 2, 2], [], [0]])

    network = build_network(manifest, tensors, 1, False, "float32")
    scores = infer_scores(network, table_of(features), sample_of(graph, [0, 1, 2], (-1,)))

    of_2 = np.exp(-1.0)
    expected = [(400 + 2 * of_2 * 399) / (1 + 2 * of_2), -900.0, (of_2 * 399 + 400) / (1 + of_2)]
    np.testing.assert_allclose(scores[:, 0], np.array(expected) + 0.5, rtol=1e-6)


def test_theexponential_of_kernels_is_exact_to_float32() -> None:
    numbers = np.concatenate([-np.logspace(-6, np.log10(86.9), 500), [0.0]]).astype(np.float32)

    found = np.array([exponential(number) for number in numbers])

    np.testing.assert_allclose(found, np.exp(numbers.astype(np.float64)), rtol=3e-7)
    assert exponential(np.float32(-np.inf)) == exponential(np.float32(-200.0)) == 0.0


def test_moments_are_those_of_all_neighbours_and_the_node_alike() -> None:
    graph, features = random_graph(NODES, seed=1, isolated=0.2), dense_features(NODES, WIDTH, seed=2)
    nodes = np.arange(0, NODES, 3)
    expected = []
    for node in nodes:
        listed = graph.indices[graph.indptr[node] : graph.indptr[node + 1]]
        expected.append(features[[*listed[listed != node], node]].mean(axis=0))

    tensors = random_tensors(network_manifest("GAT", (3,)), WIDTH, 0)
    moments = first_layer_moments(first_layer(tensors), features, graph, nodes)

    assert moments.of_own is None
    np.testing.assert_allclose(moments.mean_neighbours, np.mean(expected, axis=0), atol=1e-5)
    centred = np.array(expected) - np.mean(expected, axis=0)
    np.testing.assert_allclose(moments.of_neighbours, centred.T @ centred, atol=1e-3)


@HEADS
@pytest.mark.parametrize("layers", [1, 2])
def test_a_column_that_repeats_others_is_pruned_without_loss(
    layers: int, heads: int | None, output_heads: int | None
) -> None:
    """Refitting finds its weights again, whatever the heads attend to; the attention itself is made of them."""
    graph, features = random_graph(NODES, seed=1), dense_features(NODES, WIDTH, seed=2)
    features[:, 0] = features[:, 1] + 2 * features[:, 2]
    manifest = network_manifest("GAT", (-1,) * layers, heads=heads, output_heads=output_heads)
    tensors: Tensors = random_tensors(manifest, WIDTH, 0)
    kept, sample = np.arange(1, WIDTH), sample_of(graph, list(range(NODES)), (-1,) * layers)

    moments = first_layer_moments(first_layer(tensors), features, graph, np.arange(NODES))
    pruned = with_first_layer(tensors, refit(first_layer(tensors), moments, kept))

    expected = infer_scores(build_network(manifest, tensors, WIDTH, False, "float32"), table_of(features), sample)
    network = build_network(manifest, pruned, len(kept), False, "float32")
    assert_close(infer_scores(network, table_of(features[:, kept]), sample), expected, 2e-2)


def test_a_service_is_trained_pruned_projected_and_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Else the clock decides which variants are left.
    monkeypatch.setattr("gnnserve_worker.generation.one_relation.worth_keeping", lambda variants: variants)
    data = planted_graph([1, 5, 8], nodes=300)
    uri = write_npz(tmp_path / "graph.npz", npz_arrays(data)).as_uri()
    training = {"epochs": 20, "scope": "Transductive", "learningRate": 0.02}
    model = {"architecture": "GAT", "hidden": 8, "heads": 2, "fanouts": [5, 5], "training": training}
    variants = {"pruning": {"factors": [1, 2], "method": "Lasso"}, "projection": "Auto", "fanouts": [[3, 2]]}
    repository = Repository(tmp_path / "repository", "default", "tiny")

    manifest = generate(service_of(uri, model=model, variants=variants), repository)

    loaded = load_revision(repository, manifest.revision)
    seeds = data.splits.test
    answers = {name: infer_batch(loaded, name, seeds, key=1).scores for name in loaded.variants}
    assert {"x1", "x1-f3x2", "x2", "projected"} <= answers.keys()
    assert_close(answers["projected"], answers["x1"], 1e-4)
    assert (answers["x1"].argmax(axis=1) == data.labels[seeds]).mean() > 0.7
    assert set(manifest.ranking.columns[:3]) == {1, 5, 8}


# --- checkpoints


def _load(path: Path, **model: object) -> Tensors:
    given = Model.model_validate({"architecture": "GAT", "hidden": 8, "checkpoint": {"uri": path.as_uri()}, **model})
    assert given.checkpoint is not None
    wanted = WantedOverRows(given, WIDTH, 3)
    return load_checkpoint(Checkpoint(uri=path.as_uri()), checkpoint_digest(given) or "", wanted)


def test_a_checkpoint_is_read_under_the_names_of_earlier_versions_too(tmp_path: Path) -> None:
    state = module_of("GAT", (5, 5), WIDTH, heads=4, output_heads=1).state_dict()
    path, older = tmp_path / "now.safetensors", tmp_path / "older.safetensors"
    safetensors.torch.save_file(state, path)
    safetensors.torch.save_file({k.replace("lin.weight", "lin_src.weight"): v for k, v in state.items()}, older)

    tensors = _load(path, heads=4, outputHeads=1)

    assert tensors.keys() == state.keys()
    for key, tensor in _load(older, heads=4, outputHeads=1).items():
        np.testing.assert_array_equal(tensor, state[key].numpy())


@pytest.mark.parametrize(
    ("model", "problem"),
    [
        ({}, r"convs.0.att_src is \[1, 4, 2\], expected \[1, 1, 8\]; set spec.model.heads to 4"),
        ({"heads": 4, "hidden": 12}, r"convs.0.att_src is .*, expected \[1, 4, 3\]; set spec.model.hidden to 8"),
        ({"heads": 4}, r"convs.1.att_src is \[1, 1, 3\], expected \[1, 4, 3\]; set spec.model.outputHeads to 1"),
        ({"architecture": "GCN"}, "so it holds a GAT, .*; set spec.model.architecture to GAT"),
    ],
)
def test_another_shape_of_a_checkpoint_says_what_to_change(
    tmp_path: Path, model: dict[str, object], problem: str
) -> None:
    path = tmp_path / "model.safetensors"
    safetensors.torch.save_file(module_of("GAT", (5, 5), WIDTH, heads=4, output_heads=1).state_dict(), path)

    with pytest.raises(InputError, match=problem):
        _load(path, **model)
