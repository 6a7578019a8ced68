"""Stored layers: what is computed ahead of time is what the whole network computes over all neighbours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.support.generation.generated import generate_over
from tests.support.generation.learning import labels_of
from tests.support.graphs.graphs import dense_features, network_manifest, random_graph, random_tensors
from tests.support.overlays.overlays import FEATURES as FEATURES_OF_WORLD
from tests.support.overlays.overlays import World

from gnnserve_api.files.edges import Direction, EdgeRules
from gnnserve_api.files.repository import NetworkManifest
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_worker.generation.families.family import Ingredients
from gnnserve_worker.generation.families.registry import plan_families
from gnnserve_worker.generation.families.write import write_plans
from gnnserve_worker.generation.hidden import ranges_of_nodes
from gnnserve_worker.generation.ranking import Ranking
from gnnserve_worker.graph.store import Graph, GraphData, Splits
from gnnserve_worker.inference.batch import infer_batch
from gnnserve_worker.models.registry import Tensors
from gnnserve_worker.models.tail import tail_of
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.opening.revision import load_revision, open_revision
from gnnserve_worker.repository.repository import Repository

NODES, FEATURES = 200, 12
ALL = (-1, -1, -1)
NETWORKS = {
    "GraphSAGE": network_manifest("GraphSAGE", ALL),
    "GIN": network_manifest("GIN", ALL, mlp_hidden=10),
    "GCN": network_manifest("GCN", ALL),
    "GAT": network_manifest("GAT", ALL, heads=2, output_heads=3),
}


def staged(
    root: Path, network: NetworkManifest, stored: list[int], storage: str = "float32"
) -> Iterator[LoadedRevision]:
    """A revision of projected and stored variants with random weights, as generation writes and opens it."""
    graph, features = random_graph(NODES, 0), dense_features(NODES, FEATURES, 0)
    attention = network.attention
    heads = {} if attention is None else {"heads": attention.heads, "outputHeads": attention.output_heads}
    model = {"architecture": network.architecture, "fanouts": [*network.fanouts], "hidden": network.hidden, **heads}
    spec = GNNServiceSpec.model_validate(
        {
            "graph": {"source": {"builtin": "Digits"}},
            "model": model,
            "variants": {"pruning": {"factors": []}, "stored": stored, "storage": [storage]},
        }
    )
    master = random_tensors(network, FEATURES, seed=1)
    made_from = Ingredients(spec, network, graph, features, Ranking(np.arange(FEATURES), {}), master)
    data = GraphData.of_one_type(
        source="made up", digest="5eed", graph=graph, features=features, labels=np.zeros(NODES, np.int64),
        classes=(0, 1, 2), splits=Splits(*(np.arange(start, NODES, 3) for start in range(3))),
        edge_rules=EdgeRules(Direction.DIRECTED),
    )  # fmt: skip
    repository = Repository(root, "tests", "stored")
    repository.put_graph(data)
    with repository.stage("recipe", data.digest) as revision:
        generated = write_plans(plan_families(made_from), revision, lambda _: None)
        yield open_revision(revision.files_of([made.variant for made in generated]))


@pytest.mark.campaign
@pytest.mark.parametrize("architecture", NETWORKS)
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_every_stored_layer_answers_as_the_whole_network_over_all_neighbours(
    tmp_path: Path, architecture: str, layers: int
) -> None:
    network = msgspec.structs.replace(NETWORKS[architecture], fanouts=ALL[:layers])
    seeds = np.arange(NODES, dtype=np.int64)
    for revision in staged(tmp_path, network, [*range(1, layers + 1)]):
        assert [*revision.variants] == ["projected", *(f"stored{layer}" for layer in range(1, layers + 1))]
        expected = infer_batch(revision, "projected", seeds, 0).scores
        for name in revision.variants:
            found = infer_batch(revision, name, seeds, 0).scores
            np.testing.assert_allclose(found, expected, atol=2e-5, rtol=2e-5)


def test_rows_are_kept_in_the_storage_of_the_variant(tmp_path: Path) -> None:
    network = msgspec.structs.replace(NETWORKS["GraphSAGE"], fanouts=ALL[:2])
    for revision in staged(tmp_path, network, [1, 2], storage="int8"):
        exact = infer_batch(revision, "projected-int8", np.arange(NODES), 0).scores
        for name in ("stored1-int8", "stored2-int8"):
            assert revision.variants[name].table.storage == "int8"
            found = infer_batch(revision, name, np.arange(NODES), 0).scores
            np.testing.assert_allclose(found, exact, atol=0.05)


def test_what_is_left_of_a_network_has_its_last_layers_and_its_first_draws() -> None:
    whole = network_manifest("GraphSAGE", (25, 10, 5))
    assert tail_of(whole, 0) == whole
    assert tail_of(whole, 1).fanouts == (25, 10)
    assert tail_of(whole, 2).fanouts == (25,)
    with pytest.raises(ValueError, match="at least one must be left"):
        tail_of(whole, 3)


@pytest.mark.parametrize("width", [1, 1000, 2**23])
def test_blocks_of_nodes_have_all_of_them_once(width: int) -> None:
    degrees = np.array([0, 5, 2**21, 0, 0, 2**20, 1, 2**20 - 1, 7])
    indptr = np.concatenate([[0], np.cumsum(degrees)])
    bounds = ranges_of_nodes(indptr, width)
    assert [node for start, end in bounds for node in range(start, end)] == list(range(len(degrees)))
    assert all(end == start + 1 or indptr[end] - indptr[start] <= 2**20 for start, end in bounds)


def test_names_of_stored_variants_are_known_before_they_are_made() -> None:
    spec = GNNServiceSpec.model_validate(
        {
            "graph": {"source": {"builtin": "Digits"}},
            "model": {"fanouts": [4, 3], "hidden": 8},
            "variants": {
                "pruning": {"factors": [1]}, "stored": [2, 1], "storage": ["float32", "int8"],
                "fanouts": [[4, 2], [2, 2]],
            },
        }
    )  # fmt: skip
    network = spec.model.network(3)
    master = random_tensors(network, FEATURES, seed=1)
    made_from = Ingredients(
        spec, network, random_graph(NODES, 0), dense_features(NODES, FEATURES, 0), Ranking(np.arange(FEATURES), {}),
        master,
    )  # fmt: skip
    planned = [made.manifest for plan in plan_families(made_from) for made in plan.variants]
    names = {manifest.name for manifest in planned}
    assert names == {*spec.variants.listed_names(), *spec.variants.optional_names()}
    assert {"stored1-f4", "stored1-int8-f2", "stored2", "stored2-int8"} <= names
    assert {manifest.fanouts for manifest in planned if manifest.family == "stored-deeper"} == {(0,)}


class RandomModels:
    runs = ()
    decoder: Mapping[str, np.ndarray] = {}

    def master(self, name: str) -> Tensors:
        return random_tensors(NETWORKS["GraphSAGE"], FEATURES_OF_WORLD, seed=1)

    def pruned(self, columns: np.ndarray, name: str) -> Tensors:
        raise AssertionError(name)

    def narrowed(self, wide: Tensors, columns: np.ndarray | None, factor: int, name: str) -> Tensors:
        raise AssertionError(name)

    def another_master(self, seed: int, name: str) -> Tensors:
        raise AssertionError(name)


def test_a_published_stored_layer_is_corrected_where_an_overlay_reaches(tmp_path: Path) -> None:
    world = World(3, EdgeRules(Direction.UNDIRECTED))
    spec = GNNServiceSpec.model_validate(
        {
            "graph": {"source": {"builtin": "Digits"}, "normalization": "Disabled"},
            "model": {"fanouts": [-1, -1, -1], "hidden": 8},
            "variants": {"pruning": {"factors": []}, "projection": "Disabled", "stored": [1, 3]},
        }
    )

    def published(digest: str, graph: Graph, features: np.ndarray) -> LoadedRevision:
        nodes = len(features)
        data = GraphData.of_one_type(
            source="made up", digest=digest, graph=graph, features=features, labels=np.zeros(nodes, np.int64),
            classes=(0, 1, 2), splits=Splits(*(np.arange(start, nodes, 3) for start in range(3))),
            edge_rules=world.rules,
        )  # fmt: skip
        repository = Repository(tmp_path, "tests", digest)
        made = generate_over(spec, data, labels_of(data), repository, lambda data, features: RandomModels())
        return load_revision(repository, made.revision)

    stored = published("stored", world.graph, world.features)
    rebuilt = published("rebuilt", world.rebuilt, world.rebuilt_features)
    assert stored.manifest is not None
    assert {*stored.manifest.tables} == {"projected-float32", "aggregated1", "stored1-float32", "stored3-float32"}
    expected = infer_batch(rebuilt, "stored1", world.seeds, 0).scores
    np.testing.assert_allclose(world.answers(stored, "stored1"), expected, atol=2e-5, rtol=2e-5)
    with pytest.raises(ValueError, match="stored3 cannot answer requests with an overlay"):
        world.answers(stored, "stored3")
