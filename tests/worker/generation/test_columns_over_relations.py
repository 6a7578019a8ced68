"""Fewer feature columns over several types: each type keeps those that are read most, what is left computes nearly the
same, and follows changes and requests' overlays as the whole network does."""

from __future__ import annotations

import asyncio
import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.changes.living_relations import PlainTypedGraph
from tests.support.changes.living_types import assert_answers_are_those_of, batch_of, opened, served_by
from tests.support.generation.recommended_links import service_of as service_of_links
from tests.support.graphs.several_types import divided_shop, shop, write_folder
from tests.support.models.networks_of_types import data_of, generated, saved, scores_of, service_of
from tests.support.overlays.typed_overlays import changed_by, drawn_overlay, embeddings_of, model_of, read, spec_of
from tests.support.serving.serving import FakeWorker, running

from gnnserve_api.errors import InputError
from gnnserve_api.files.embeddings import Neighbours
from gnnserve_api.files.repository import COLUMNS_SCHEMA_VERSION, RevisionManifest
from gnnserve_worker.generation.embeddings.compute import embedding_blocks, published_blocks
from gnnserve_worker.graph.change_batch import BatchEffect
from gnnserve_worker.graph.store import GraphData
from gnnserve_worker.inference.batch import infer_batch
from gnnserve_worker.inference.opening import served_revision
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.sampling.batch_view import Part, view_of

LIVE = {"user": [1, 3], "item": [2], "tag": [0, 2, 5, 7]}
"""Columns of 4, 3 and 8 that the first layer reads of each type: half of them, rounded down."""
STORAGES = {"storage": ["float32", "int8"]}


@pytest.fixture(autouse=True)
def _quick_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GNNSERVE_PROFILE_SECONDS", "0")


def planted(architecture: str, data: GraphData) -> Any:
    """torch_geometric's model, whose first layer reads these columns alone; of tags the others are 0."""
    model = model_of(architecture, data)
    with torch.no_grad():
        model.embeddings["tag"].weight[:, _dead("tag", 8)] = 0
        if architecture == "RGCN":
            for name, columns in (("user", 4), ("item", 3)):
                model.encoders[name].weight[:, _dead(name, columns)] = 0
            return model
        of_source, of_target = ("lin_src", "lin_dst") if architecture == "GAT" else ("lin_l", "lin_r")
        for (source, _, target), conv in model.convs[0].convs.items():
            for part, kind in ((of_source, source), (of_target, target)):
                weight = getattr(conv, part).weight
                weight[:, _dead(kind, weight.shape[1])] = 0
    return model


def _dead(kind: str, columns: int) -> np.ndarray:
    return np.setdiff1d(np.arange(columns), LIVE[kind])


def made(folder: Path, architecture: str, model: Any, source: dict[str, Any], **variants: Any) -> LoadedRevision:
    """A revision with the model's weights, over the whole neighbourhood."""
    spec = {**saved(model, folder / "model.safetensors"), **spec_of(architecture)}
    return generated(folder, service_of(source, spec, variants))


def manifest_of(loaded: LoadedRevision) -> RevisionManifest:
    assert loaded.manifest is not None
    return loaded.manifest


@pytest.mark.parametrize(("architecture", "method"), [("GraphSAGE", "Greedy"), ("RGCN", "Lasso"), ("GAT", "Greedy")])
def test_columns_that_the_first_layer_reads_are_kept_of_each_type_and_follow_changes(
    tmp_path: Path, architecture: str, method: str
) -> None:
    source, data = data_of(tmp_path, shop())
    model = planted(architecture, data)
    loaded = made(tmp_path, architecture, model, source, **STORAGES, pruning={"factors": [1, 2], "method": method})
    manifest, products = manifest_of(loaded), 10 if architecture == "GAT" else 8
    assert {one.name: one.columns for one in manifest.variants} == {
        "x1": 8, "x1-int8": 8, "x2": 4, "x2-int8": 4, "projected": products,
        "projected-int8": products,
    }  # fmt: skip
    assert manifest.ranking.method == method and {*manifest.ranking.columns[:2]} == {*LIVE["user"]}
    assert manifest.schema_version == COLUMNS_SCHEMA_VERSION
    living, plain, draw = opened(tmp_path), PlainTypedGraph(data, model), np.random.default_rng(5)
    assert_answers_are_those_of(living, plain)
    served = served_by(living)
    for _ in range(4):
        said = living.apply(living.offset + 1, [batch_of(plain.random_batch(draw, 8), served)])
        assert all(isinstance(one, BatchEffect) for one in said), said
    assert_answers_are_those_of(living, plain)


@pytest.mark.parametrize("architecture", ["GraphSAGE", "GAT"])
def test_requests_that_bring_nodes_are_answered_from_few_columns_of_them(tmp_path: Path, architecture: str) -> None:
    source, data = data_of(tmp_path, shop())
    model = planted(architecture, data)
    loaded = made(tmp_path, architecture, model, source, pruning={"factors": [2]})
    served, draw, exact = served_revision(loaded), np.random.default_rng(11), copy.deepcopy(model).double()
    for _ in range(20):
        body = drawn_overlay(data, draw)
        changed, features = changed_by(data, exact, body["overlay"])
        with embeddings_of(exact, features), torch.no_grad():
            expected = exact(changed).numpy()
        question = read(served, body)
        seeds = question.nodes.copy()
        view = view_of(loaded.graph.nodes, [Part(len(seeds), question.overlay, None)], seeds)
        found = infer_batch(loaded, "x2", seeds, key=0, view=view).scores
        asked = [int(node.partition("/")[2]) for node in body["nodes"]]
        np.testing.assert_allclose(found, expected[asked], atol=1e-5 * float(np.abs(expected).max()), rtol=0)


def test_requests_bring_rows_of_types_of_unlike_widths_beside_features_that_are_kept(tmp_path: Path) -> None:
    parts = shop()
    parts.nodes["tag"]["features"] = np.ones((5, 7), np.float32)
    source, _ = data_of(tmp_path, parts)
    model = {"hidden": 8, "fanouts": [2, 2], "training": {"epochs": 1}}
    loaded = generated(tmp_path, service_of(source, model, {"pruning": {"factors": [1, 2]}}))
    brought = {"id": "tag/5", "features": [0.5] * 7}

    async def answered() -> int:
        async with running(FakeWorker(loaded=False)) as client:
            client.switch(served_revision(loaded))
            body = {"nodes": ["user/1"], "overlay": {"nodes": [brought], "edges": [["item/2", "has", "tag/5"]]}}
            return (await client.http.post("/v1/predict", json=body)).status_code

    assert asyncio.run(answered()) == 200


def test_what_is_left_is_fitted_to_columns_that_are_gone(tmp_path: Path) -> None:
    """Where every column has a twin that is read less, half of them suffice, but with other weights than before."""
    parts = shop()
    for name, twins in (("user", [0, 1, 0, 1]), ("item", [0, 0])):
        parts.nodes[name]["features"] = parts.nodes[name]["features"][:, twins]
    source, data = data_of(tmp_path, parts)
    model = model_of("GraphSAGE", data)
    with torch.no_grad():
        tags = model.embeddings["tag"].weight
        tags[:, 4:] = tags[:, :4]
        for conv in model.convs[0].convs.values():
            for weight in (conv.lin_l.weight, conv.lin_r.weight):
                weight[:, weight.shape[1] // 2 :] *= 0.1
    loaded = made(tmp_path, "GraphSAGE", model, source, pruning={"factors": [2]})
    nodes = np.arange(data.target.nodes)
    whole, left = (scores_of(loaded, name, nodes) for name in ("projected", "x2"))
    np.testing.assert_allclose(left, whole, atol=1e-2 * float(np.abs(whole).max()))


@pytest.mark.parametrize("architecture", ["GraphSAGE", "RGCN", "GAT"])
def test_few_columns_learn_from_labels_beside_all_other_variants(tmp_path: Path, architecture: str) -> None:
    source, _ = data_of(tmp_path, divided_shop())
    model = {
        "architecture": architecture, "hidden": 16, "fanouts": [5, 5],
        "training": {"epochs": 60, "scope": "Transductive"},
    }  # fmt: skip
    variants = {
        "pruning": {"factors": [4]}, "fanouts": [[2, 2]], "stored": [1], "oneRow": [{"hops": 0}],
        "cascades": [{"first": "mlp0", "then": "x4"}], "channels": [{"factor": 2, "columnFactor": 4}],
    }  # fmt: skip
    service = service_of(source, model, variants)
    loaded = generated(tmp_path, service)
    manifest = manifest_of(loaded)
    assert manifest.training is not None
    assert {one.name for one in manifest.profile.variants} == {*service.spec.possible_variants()}
    assert [run.name for run in manifest.training.runs][:3] == ["network", "x4", "channels2-x4"]
    assert all(one.validation_accuracy > 0.9 for one in manifest.profile.variants)
    assert served_revision(loaded).capabilities["x4"].embeddings


def test_factors_that_pay_are_chosen_also_of_the_default_ones(tmp_path: Path) -> None:
    """Rows of users and items have 40 columns, those of products 16."""
    parts, draw = shop(), np.random.default_rng(2)
    for kind in parts.nodes.values():
        kind["features"] = draw.normal(size=(int(kind["num_nodes"]), 40)).astype(np.float32)
    source, _ = data_of(tmp_path, parts)
    model = {"hidden": 16, "fanouts": [3, 3], "training": {"epochs": 2}}
    loaded = generated(tmp_path, service_of(source, model, {"pruning": {"choice": "Auto"}}))
    assert [one.name for one in manifest_of(loaded).variants] == ["x1", "x4", "x8", "projected"]
    chosen = manifest_of(loaded).ranking.chosen
    assert chosen and chosen.left_out == (2,)
    assert chosen.why == "x2 was not trained: rows of projected have 16 columns, and theirs 20 on average"


def test_links_are_scored_and_embedded_from_few_columns(tmp_path: Path) -> None:
    spec = {
        "graph": {"source": {"typed": write_folder(tmp_path / "graph", shop())}},
        "model": {"hidden": 8, "fanouts": [-1, -1], "training": {"epochs": 2}},
        "task": {"links": {"relation": "buys", "dimensions": 4}},
        "variants": {"pruning": {"factors": [1, 2], "method": "Random"}},
    }
    loaded = generated(tmp_path, service_of_links(spec))
    nodes = np.arange(20)
    whole, all_columns, few = (scores_of(loaded, name, nodes) for name in ("projected", "x1", "x2"))
    np.testing.assert_allclose(all_columns, whole, atol=1e-5)
    assert not np.allclose(few, whole, atol=1e-3)
    for name in ("x1", "x2"):
        over_all = np.concatenate([*embedding_blocks(loaded, name, nodes, Neighbours.ALL, 0, tmp_path)])
        np.testing.assert_allclose(over_all, scores_of(loaded, name, nodes), atol=1e-6)
        of_index = np.concatenate([*published_blocks(loaded, name, tmp_path)])
        np.testing.assert_allclose(of_index[nodes], over_all, atol=1e-6)


@pytest.mark.parametrize(
    ("model", "factors"),
    [({}, [1, 2, 4, 8]), ({"architecture": "GAT", "heads": 2}, [1])],
    ids=["the default factors", "no fewer columns"],
)
def test_nothing_comes_of_some_lists(model: dict[str, Any], factors: list[int]) -> None:
    service = service_of({"npz": {"uri": "file:///shop"}}, model, {"pruning": {"factors": factors}})
    assert {*service.spec.possible_variants()} == {"projected"}


def test_a_factor_that_leaves_no_column_is_refused(tmp_path: Path) -> None:
    source, _ = data_of(tmp_path, shop())
    model = {"hidden": 8, "fanouts": [2, 2], "training": {"epochs": 1}}
    with pytest.raises(InputError, match="9 is larger than the graph's 8 features") as refused:
        generated(tmp_path, service_of(source, model, {"pruning": {"factors": [9]}}))
    assert refused.value.where == "spec.variants.pruning.factors[0]"
