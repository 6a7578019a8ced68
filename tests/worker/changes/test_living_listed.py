"""Stored layers that a manifest lists, where the graph changes: they answer as torch_geometric's module with the same
weights does over the graph built anew."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from tests.support.changes.listed import (
    BOTH_WAYS,
    FOLLOWING,
    ONE_TYPE,
    SAGE,
    SEVERAL_TYPES,
    UPDATES,
    ListedScene,
    service_over,
    source_of,
    tensors_of,
    typed_tensors_of,
)
from tests.support.changes.living import PlainGraph, ids_of
from tests.support.programs.program_types_generated import GrownGraph, hetero_data

from gnnserve_api.files.edges import Direction, Duplicates, EdgeRules
from gnnserve_api.files.repository import PRODUCTS_SCHEMA_VERSION
from gnnserve_api.limits import RefreshBudget
from gnnserve_worker.compaction.compact import compact
from gnnserve_worker.generation.layer_modules import GraphTensors
from gnnserve_worker.generation.pipeline import generate
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.serving.http.changes.reading import read_changes

NODES = 60
RULES = [EdgeRules(Direction.UNDIRECTED, Duplicates.KEEP), EdgeRules(Direction.DIRECTED, Duplicates.KEEP)]

_HGT = {
    "conv": "Transformer", "width": 8, "heads": 2, "root": False, "combine": "Attention", "activation": "Gelu",
    "residual": "Gated", "outputProduct": True,
}  # fmt: skip
OVER_TYPES = {
    "convolutions of their own": SEVERAL_TYPES,
    "one softmax over all relations": {
        "before": [{"products": [{"width": 8, "activation": "Relu"}]}], "layers": [_HGT, _HGT], "head": [{}],
        "fanouts": [-1, -1],
    },
}  # fmt: skip

KEPT = {"cascades": [{"first": "projected", "then": "x1", "passOnPercents": [50]}], "storage": ["float32", "int8"]}
"""Stages are kept, however fast they are."""
OF_NODES_ALONE: dict[str, dict[str, Any]] = {
    "sums": {"layers": [{"conv": "GIN", "mlp": [{"width": 8, "norm": "Batch", "activation": "Relu"}]}, SAGE]},
    "means and their own rows": {"layers": [{**SAGE, "width": 4}, {**SAGE, "width": 4}]},
    "attention": {
        "layers": [{"conv": "GAT", "width": 4, "heads": 2, "activation": "Elu"}, {"conv": "GCN", "width": 8}]
    },
    "degrees": {"layers": [{"conv": "GCN", "width": 8, "activation": "Elu"}, SAGE], "jumpingKnowledge": "Cat"},
    "products that there are": {
        "before": [{"products": [{"width": 6, "activation": "Relu"}]}],
        "layers": [{"conv": "APPNP", "alpha": 0.1}, {**SAGE, "aggregations": ["Max"]}],
    },
}
"""Networks whose rows of nodes alone are narrower than features."""
OF_TYPES_ALONE: dict[str, dict[str, Any]] = {
    "products that there are": {
        "before": [
            {"type": "user", "products": [{"width": 3, "activation": "Relu"}]},
            {"type": "item", "products": [{"width": 2, "activation": "Elu"}]},
        ],
        "layers": SEVERAL_TYPES["layers"],
    },
    "products of the first layer": {
        "layers": [
            {
                "relations": [
                    {
                        "relation": {"source": "user", "name": "knows", "target": "user"}, "conv": "GATv2", "width": 2,
                        "shareWeights": True,
                    },
                    {
                        "relation": {"source": "item", "name": "bought_by", "target": "user"}, "conv": "GraphSAGE",
                        "width": 2, "root": False,
                    },
                ],
                "residual": "Projected",
            },
            {
                "relations": [
                    {"relation": {"source": "user", "name": "knows", "target": "user"}, "conv": "GraphSAGE", "width": 8}
                ],
            },
        ],
    },
}  # fmt: skip


class Scene(ListedScene):
    """Layers that were trained for an epoch."""

    def assert_projected_answers(self, nodes: np.ndarray, expected: np.ndarray) -> None:
        made = [one.name for one in self.manifest.variants if one.family == "projected-layers"]
        assert "projected" in made
        for name in made:
            close = 0.2 if name.endswith("int8") else 1e-5
            found = self.served.compute.infer(name, nodes.copy(), 0).scores
            np.testing.assert_allclose(
                found, expected, rtol=0, atol=close * float(np.abs(expected).max()), err_msg=name
            )  # fmt: skip

    def assert_answers(self, nodes: np.ndarray, expected: np.ndarray) -> None:
        largest = float(np.abs(expected).max())
        names = [one.name for one in self.manifest.variants]
        assert {"x1", "stored1", "stored2", "stored1-int8"} <= set(names)
        for name in names:
            close = 0.1 if name.endswith("int8") else 1e-5
            found = self.served.compute.infer(name, nodes.copy(), 0).scores
            np.testing.assert_allclose(found, expected, rtol=0, atol=close * largest, err_msg=name)


def assert_as_built_anew(scene: Scene, plain: PlainGraph) -> None:
    nodes = scene.living.graph.ids.find(ids_of([*plain.lists]))
    scene.assert_answers(nodes, scene.module_scores(tensors_of(plain)))


@pytest.mark.campaign
@pytest.mark.parametrize("rules", RULES, ids=lambda rules: rules.direction)
@pytest.mark.parametrize("model", ONE_TYPE.values(), ids=ONE_TYPE)
def test_stored_layers_follow_changes(tmp_path: Path, model: dict[str, Any], rules: EdgeRules) -> None:
    plain = PlainGraph(NODES, 3, rules)
    scene = Scene(tmp_path, source_of(tmp_path, plain), model)
    assert_it_follows(scene, plain)


def test_layers_that_count_edges_of_neighbours_follow_changes(tmp_path: Path) -> None:
    plain = PlainGraph(NODES, 3, RULES[0])
    assert_it_follows(Scene(tmp_path, source_of(tmp_path, plain), BOTH_WAYS), plain)


def assert_it_follows(scene: Scene, plain: PlainGraph) -> None:
    families = {one.name: one.family for one in scene.manifest.variants}
    assert families["stored1"] in {"stored-overlays-layers", "stored-following-layers"}
    assert families["stored2-int8"] in {"stored-overlays-layers", "stored-following-layers"}
    draw, fresh = np.random.default_rng(4), [*range(1000, 900, -1)]
    assert_as_built_anew(scene, plain)
    for size in (2, 6, 12):
        scene.apply([plain.random_batch(draw, size, fresh) for _ in range(3)])
        assert_as_built_anew(scene, plain)


@pytest.mark.campaign
@pytest.mark.parametrize("model", [*ONE_TYPE.values(), BOTH_WAYS], ids=[*ONE_TYPE, "both ways"])
def test_stored_layers_may_be_stale_within_a_budget(tmp_path: Path, model: dict[str, Any]) -> None:
    plain = PlainGraph(NODES, 5, RULES[0])
    all_rows = RefreshBudget(rows=1_000_000, microseconds=10**9)
    layers = [*range(1, len(model["layers"]) + 1)]
    scene = Scene(tmp_path, source_of(tmp_path, plain), model, all_rows, {**FOLLOWING, "stored": layers})
    draw, fresh = np.random.default_rng(6), [*range(1000, 900, -1)]
    scene.apply([plain.random_batch(draw, 6, fresh) for _ in range(3)])
    assert scene.living.refreshing.is_any_stale
    assert_as_built_anew(scene, plain)
    scene.apply([plain.random_batch(draw, 6, fresh)])
    scene.living.refreshing.budget = None
    scene.apply([plain.random_batch(draw, 6, fresh)])
    assert not scene.living.refreshing.is_any_stale
    assert_as_built_anew(scene, plain)


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("model", OVER_TYPES.values(), ids=OVER_TYPES)
def test_stored_layers_over_several_types_follow_changes_of_edges_with_columns(
    tmp_path: Path, model: dict[str, Any], seed: int
) -> None:
    """Also once the changes have become a part of the graph."""
    source = {"typed": {**hetero_data(tmp_path), "target": "user", "reverse": "Disabled"}}
    scene, grown, draw = Scene(tmp_path, source, model), GrownGraph(), np.random.default_rng(seed)
    for round_ in range(3):
        bodies = [grown.drawn_changes(draw) for _ in range(2)]
        scene.apply([read_changes(json.dumps(body).encode(), b"application/json", scene.served)[1] for body in bodies])
        if round_ == 1:
            scene.manifest = compact(scene.service, scene.repository, scene.updates)
            scene.start()
            assert scene.living.offset == scene.living.base_offset
        users = [f"user/{node}" for node in grown.users]
        nodes = np.array([scene.served.graph.naming.find_one(user, "nodes", "") for user in users])
        scene.assert_answers(nodes, scene.module_scores(typed_tensors_of(grown, scene.living.graph.graph.schema)))


def test_the_first_layer_follows_changes_by_itself(tmp_path: Path) -> None:
    plain = PlainGraph(NODES, 3, RULES[0])
    variants = {"storage": ["int8"], "stored": [1, 2]}
    service = service_over(source_of(tmp_path, plain), ONE_TYPE["attention and degrees"], variants, updates=UPDATES)
    manifest = generate(service, Repository(tmp_path / "repository", "default", "tiny"))
    families = {one.name: one.family for one in manifest.variants}
    assert families == {
        "x1-int8": "layers", "stored1-int8": "stored-overlays-layers", "stored2-int8": "stored-layers",
    }  # fmt: skip
    # Rows of the first layer are made of those before it, in float32.
    assert sorted(manifest.tables) == ["features-int8", "stored0-float32", "stored1-int8", "stored2-int8"]


@pytest.mark.campaign
@pytest.mark.parametrize("model", OF_NODES_ALONE.values(), ids=OF_NODES_ALONE)
def test_rows_of_nodes_alone_follow_changes(tmp_path: Path, model: dict[str, Any]) -> None:
    plain, whole = PlainGraph(NODES, 3, RULES[0]), {"head": [{}], "fanouts": [-1, -1], **model}
    scene = Scene(tmp_path, source_of(tmp_path, plain), whole, variants=KEPT)
    draw, fresh = np.random.default_rng(4), [*range(1000, 900, -1)]
    for size in (2, 6, 12):
        scene.apply([plain.random_batch(draw, size, fresh) for _ in range(3)])
        nodes = scene.living.graph.ids.find(ids_of([*plain.lists]))
        scene.assert_projected_answers(nodes, scene.module_scores(tensors_of(plain)))


@pytest.mark.campaign
@pytest.mark.parametrize("model", OF_TYPES_ALONE.values(), ids=OF_TYPES_ALONE)
def test_rows_of_nodes_alone_over_several_types_follow_changes(tmp_path: Path, model: dict[str, Any]) -> None:
    source = {"typed": {**hetero_data(tmp_path), "target": "user", "reverse": "Disabled"}}
    scene = Scene(tmp_path, source, {"head": [{}], "fanouts": [-1, -1], **model}, variants=KEPT)
    grown, draw = GrownGraph(), np.random.default_rng(1)
    for _ in range(2):
        bodies = [grown.drawn_changes(draw) for _ in range(2)]
        scene.apply([read_changes(json.dumps(body).encode(), b"application/json", scene.served)[1] for body in bodies])
        users = [f"user/{node}" for node in grown.users]
        nodes = np.array([scene.served.graph.naming.find_one(user, "nodes", "") for user in users])
        scene.assert_projected_answers(
            nodes, scene.module_scores(typed_tensors_of(grown, scene.living.graph.graph.schema))
        )


@pytest.mark.campaign
@pytest.mark.parametrize("model", OF_NODES_ALONE.values(), ids=OF_NODES_ALONE)
def test_layers_of_fewer_columns_follow_changes(tmp_path: Path, model: dict[str, Any]) -> None:
    plain, whole = PlainGraph(NODES, 3, RULES[0]), {"head": [{}], "fanouts": [-1, -1], "headReadsInput": True, **model}
    scene = Scene(tmp_path, source_of(tmp_path, plain), whole, variants={"pruning": {"factors": [1, 2]}})
    draw, fresh = np.random.default_rng(4), [*range(1000, 900, -1)]
    for size in (2, 6):
        scene.apply([plain.random_batch(draw, size, fresh) for _ in range(3)])
        nodes, graph = scene.living.graph.ids.find(ids_of([*plain.lists])), tensors_of(plain)
        kept = list(scene.manifest.ranking.columns[:6])
        fewer = GraphTensors([graph.features[0][:, kept]], graph.edges, graph.edge_columns)
        expected = scene.module_scores(fewer, "x2")
        found = scene.served.compute.infer("x2", nodes.copy(), 0).scores
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * float(np.abs(expected).max()))


def test_layers_of_fewer_columns_of_each_type_follow_changes(tmp_path: Path) -> None:
    source = {"typed": {**hetero_data(tmp_path), "target": "user", "reverse": "Disabled"}}
    variants = {
        "storage": ["float32", "int8"], "pruning": {"factors": [1, 2]}, "channels": [{"factor": 2, "columnFactor": 2}],
    }  # fmt: skip
    scene, grown, draw = (
        Scene(tmp_path, source, SEVERAL_TYPES, variants=variants), GrownGraph(), np.random.default_rng(1),
    )  # fmt: skip
    assert {one.name: one.columns for one in scene.manifest.variants} == {
        "x1": 5, "x1-int8": 5, "x2": 2, "x2-int8": 2, "channels2-x2": 2, "channels2-x2-int8": 2,
    }  # fmt: skip
    assert scene.manifest.row_source is not None and scene.manifest.schema_version == PRODUCTS_SCHEMA_VERSION
    (path,) = scene.repository.folder.glob(f"**/{scene.manifest.revision}/{scene.manifest.row_source.tensors}")
    kept = [load_file(path)[f"features-x2.types.{kind}.columns"] for kind in range(2)]
    assert [len(columns) for columns in kept] == [2, 1]
    assert scene.manifest.ranking.columns[:2] == tuple(kept[0])
    bodies = [grown.drawn_changes(draw) for _ in range(3)]
    scene.apply([read_changes(json.dumps(body).encode(), b"application/json", scene.served)[1] for body in bodies])
    users = [f"user/{node}" for node in grown.users]
    nodes = np.array([scene.served.graph.naming.find_one(user, "nodes", "") for user in users])
    whole = typed_tensors_of(grown, scene.living.graph.graph.schema)
    features = [rows[:, columns] for rows, columns in zip(whole.features, kept, strict=True)]
    for network in ("x2", "channels2-x2"):
        expected = scene.module_scores(GraphTensors(features, whole.edges, whole.edge_columns), network)
        for name, close in ((network, 1e-5), (f"{network}-int8", 0.2)):
            found = scene.served.compute.infer(name, nodes.copy(), 0).scores
            largest = float(np.abs(expected).max())
            np.testing.assert_allclose(found, expected, rtol=0, atol=close * largest, err_msg=name)


CHANNELS = {
    "stored": [1, 2], "storedFollowChanges": True, "channels": [{"factor": 2}, {"factor": 2, "table": "Stored"}],
}  # fmt: skip


def assert_each_network_answers(scene: Scene, nodes: np.ndarray, graph: GraphTensors) -> None:
    """Rows of each network are made by layers of its own, though they have the same numbers."""
    for name, network in (("stored1", "x1"), ("stored2", "x1"), ("channels2-stored1", "channels2")):
        expected = scene.module_scores(graph, network)
        found = scene.served.compute.infer(name, nodes.copy(), 0).scores
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * float(np.abs(expected).max()), err_msg=name)


def test_stored_layers_with_fewer_channels_follow_changes_beside_those_of_the_model(tmp_path: Path) -> None:
    plain, draw, fresh = PlainGraph(NODES, 3, RULES[0]), np.random.default_rng(4), [*range(1000, 900, -1)]
    scene = Scene(tmp_path, source_of(tmp_path, plain), ONE_TYPE["attention and degrees"], variants=CHANNELS)
    scene.apply([plain.random_batch(draw, 6, fresh) for _ in range(3)])
    assert_each_network_answers(scene, scene.living.graph.ids.find(ids_of([*plain.lists])), tensors_of(plain))


def test_stored_layers_with_fewer_channels_follow_changes_over_several_types(tmp_path: Path) -> None:
    source = {"typed": {**hetero_data(tmp_path), "target": "user", "reverse": "Disabled"}}
    scene, grown, draw = (
        Scene(tmp_path, source, SEVERAL_TYPES, variants=CHANNELS),
        GrownGraph(),
        np.random.default_rng(1),
    )
    bodies = [grown.drawn_changes(draw) for _ in range(2)]
    scene.apply([read_changes(json.dumps(body).encode(), b"application/json", scene.served)[1] for body in bodies])
    users = [f"user/{node}" for node in grown.users]
    nodes = np.array([scene.served.graph.naming.find_one(user, "nodes", "") for user in users])
    assert_each_network_answers(scene, nodes, typed_tensors_of(grown, scene.living.graph.graph.schema))
    scene.start()
    assert_each_network_answers(scene, nodes, typed_tensors_of(grown, scene.living.graph.graph.schema))
