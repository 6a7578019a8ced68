"""Graphs of several types, from generation to answers: equal to torch_geometric over the whole neighbourhood."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from tests.support.graphs.several_types import (
    divided_shop,
    shop,
    write_tables,
)
from tests.support.models.hetero_pyg import CLASSES, HIDDEN, AttentionModel, HeteroModel, RelationalModel
from tests.support.models.networks_of_types import data_of, generated, saved, scores_of, service_of

from gnnserve_api.errors import InputError
from gnnserve_api.files.graph_schema import GraphSchema
from gnnserve_api.manifest import parse_manifest
from gnnserve_worker.generation.pipeline import generate
from gnnserve_worker.graph.relation_lists import merged_lists
from gnnserve_worker.graph.store import Graph, GraphData
from gnnserve_worker.inference.batch import draw_sample
from gnnserve_worker.inference.opening import served_revision
from gnnserve_worker.models.architecture import RelationalShape
from gnnserve_worker.models.graphsage import RelationalGraphSageSpec
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.sampling.neighbours import NeighbourSample, Scratch
from gnnserve_worker.sampling.relations import sample_relations


@pytest.fixture(autouse=True)
def _quick_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GNNSERVE_PROFILE_SECONDS", "0")


def test_of_a_relation_fewer_neighbours_are_sampled_where_its_fan_outs_say_so(tmp_path: Path) -> None:
    given, data = data_of(tmp_path)
    own = [("user knows user", [2, 1]), ("rev_buys", [3, 4])]
    model = {"training": {"epochs": 1}, "fanouts": [6, 4], "relationFanouts": relation_fanouts(own)}
    loaded = generated(tmp_path, service_of(given, model, {"stored": [1], "fanouts": [[5, 1]]}))
    names = [one.key for one in data.relations]
    knows, bought = names.index("user knows user"), names.index("item rev_buys user")
    expected = {
        "projected": [(2, 1), (3, 4)], "projected-f5x1": [(2, 1), (3, 1)], "stored1": [(2,), (3,)],
        "stored1-f5": [(2,), (3,)],
    }  # fmt: skip
    told = served_revision(loaded).task.provenance.relation_fanouts
    assert told == {"user knows user": (2, 1), "item rev_buys user": (3, 4)}
    read = [place for place, one in enumerate(data.relations) if one.target == data.target.name]
    seeds, graph = np.arange(data.target.nodes), loaded.graph
    for name, wanted in expected.items():
        variant = loaded.variants[name]
        assert [variant.relation_fanouts[place] for place in (knows, bought)] == wanted
        others = {one for place, one in enumerate(variant.relation_fanouts) if place not in (knows, bought)}
        assert others == {variant.fanouts}
        sample = draw_sample(loaded, variant, seeds, 3, None, Scratch(), share=False)
        drawn = np.diff(sample.segments)[: len(seeds) * int(graph.layout[1])].reshape(len(seeds), -1)
        for place, fanouts in zip((knows, bought), wanted, strict=True):
            degrees = np.diff(data.relations[place].lists.indptr)
            np.testing.assert_array_equal(
                np.sort(drawn[:, read.index(place)]), np.sort(np.minimum(degrees, fanouts[0]))
            )
        assert np.isfinite(scores_of(loaded, name, seeds)).all()


def relation_fanouts(own: list[tuple[str, list[int]]]) -> list[dict[str, Any]]:
    return [{"relation": relation, "fanouts": fanouts} for relation, fanouts in own]


@pytest.mark.parametrize(
    ("relations", "message"),
    [
        (["sells"], r"relationFanouts\[0\].relation: is 'sells', which is no relation; there are .*item rev_buys user"),
        (["knows", "user knows user"], r"relationFanouts\[1\].relation: is 'user knows user', which stands at .*\[0\]"),
    ],
)
def test_fan_outs_of_a_relation_that_is_not_there_are_told(tmp_path: Path, relations: list[str], message: str) -> None:
    given, _ = data_of(tmp_path)
    own = relation_fanouts([(one, [2, 1]) for one in relations])
    with pytest.raises(InputError, match=message):
        generated(tmp_path, service_of(given, {"fanouts": [6, 4], "relationFanouts": own}))


@pytest.mark.campaign
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_answers_of_a_given_heteroconv_equal_torch_geometrics(tmp_path: Path, layers: int) -> None:
    given, data = data_of(tmp_path)
    torch.manual_seed(1)
    model = HeteroModel(data, layers)
    with torch.no_grad():
        expected = model(data).numpy()
    model_spec = {**saved(model, tmp_path / "model.safetensors"), "fanouts": [-1] * layers}
    stored = [1] if layers > 1 else []
    loaded = generated(tmp_path, service_of(given, model_spec, {"stored": stored}))
    nodes = np.arange(data.target.nodes)
    for variant in ["projected", *(["stored1"] if stored else [])]:
        np.testing.assert_allclose(scores_of(loaded, variant, nodes), expected, atol=1e-5)
        repeated = np.array([5, 3, 5, 0, 3] * 30)
        np.testing.assert_allclose(scores_of(loaded, variant, repeated), expected[repeated], atol=1e-5)


@pytest.mark.campaign
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_answers_of_a_given_attention_network_equal_torch_geometrics(tmp_path: Path, layers: int) -> None:
    given, data = data_of(tmp_path)
    torch.manual_seed(4)
    model = AttentionModel(data, layers)
    with torch.no_grad():
        model(data)
        for conv in (one for layer in model.convs for one in layer.convs.values()):
            conv.bias.normal_()
        expected = model(data).numpy()
    heads = {"architecture": "GAT", "heads": 2, "outputHeads": 3} if layers > 1 else {"architecture": "GAT", "heads": 3}
    model_spec = {**saved(model, tmp_path / "model.safetensors"), "fanouts": [-1] * layers, **heads}
    stored = [1] if layers > 1 else []
    loaded = generated(tmp_path, service_of(given, model_spec, {"stored": stored}))
    nodes = np.array([5, 3, 5, 0, 3] * 30)
    for variant in ["projected", *(["stored1"] if stored else [])]:
        np.testing.assert_allclose(scores_of(loaded, variant, nodes), expected[nodes], atol=1e-5)


@pytest.mark.parametrize("bases", [None, 2])
def test_answers_of_a_given_rgcn_equal_torch_geometrics(tmp_path: Path, bases: int | None) -> None:
    given, data = data_of(tmp_path)
    torch.manual_seed(2)
    model = RelationalModel(data, bases)
    with torch.no_grad():
        expected = model(data).numpy()
    model_spec = {**saved(model, tmp_path / "model.safetensors"), "architecture": "RGCN", "bases": bases}
    loaded = generated(tmp_path, service_of(given, model_spec, {"stored": [1]}))
    for variant in ("projected", "stored1"):
        np.testing.assert_allclose(scores_of(loaded, variant, np.arange(data.target.nodes)), expected, atol=1e-5)


def test_relations_that_nothing_reads_back_still_equal_torch_geometrics(tmp_path: Path) -> None:
    parts = shop()
    parts.edges[("item", "bought_by", "user")] = {
        "src": parts.edges[("user", "buys", "item")]["dst"], "dst": parts.edges[("user", "buys", "item")]["src"],
    }  # fmt: skip
    del parts.edges[("user", "buys", "item")]
    parts.edges[("tag", "of", "item")] = {
        "src": parts.edges[("item", "has", "tag")]["dst"], "dst": parts.edges[("item", "has", "tag")]["src"],
    }  # fmt: skip
    del parts.edges[("item", "has", "tag")]
    given, data = data_of(tmp_path, parts, reverse="Disabled")
    # Tags read nothing: only layer 1 has a state of theirs, and layer 2 has no weights for them.
    architecture_keys = _expected_keys(data)
    assert not any("convs.1" in key and "<tag___" in key for key in architecture_keys)
    loaded = generated(tmp_path, service_of(given, {"training": {"epochs": 2}}, {"stored": [1]}))
    nodes = np.arange(data.target.nodes)
    np.testing.assert_allclose(scores_of(loaded, "stored1", nodes), scores_of(loaded, "projected", nodes), atol=1e-5)


def _expected_keys(data: GraphData) -> set[str]:
    return {*RelationalGraphSageSpec().shapes(RelationalShape(data.schema, HIDDEN, CLASSES, 2))}


@pytest.mark.campaign
@pytest.mark.parametrize("variants", [{"storage": ["float32", "float16", "int8"], "fanouts": [[2, 2]], "stored": [1]}])
@pytest.mark.parametrize("architecture", ["GraphSAGE", "GAT", "RGCN"])
def test_training_learns_from_labels_and_serves_every_storage(
    tmp_path: Path, variants: dict[str, Any], architecture: str
) -> None:
    given, data = data_of(tmp_path, divided_shop())
    model = {"architecture": architecture, "fanouts": [5, 5], "training": {"epochs": 60, "scope": "Transductive"}}
    service = service_of(given, model, variants)
    loaded = generated(tmp_path, service)
    assert loaded.manifest is not None
    assert {variant.name for variant in loaded.manifest.variants} == set(service.spec.possible_variants())
    assert all(variant.validation_accuracy > 0.9 for variant in loaded.manifest.profile.variants)
    nodes = np.arange(data.target.nodes)
    exact = scores_of(loaded, "projected", nodes)
    for storage in ("float16", "int8"):
        tolerance = 0.05 * float(np.abs(exact).max())
        np.testing.assert_allclose(scores_of(loaded, f"projected-{storage}", nodes), exact, atol=tolerance)


def test_of_several_types_thresholds_are_for_two_classes_as_of_one_type(tmp_path: Path) -> None:
    """How many classes a source has is known once it is read, so that no rule of the spec can refuse it."""
    model, variants = {"training": {"epochs": 1}}, {"thresholds": "PerClass"}
    given, _ = data_of(tmp_path)
    loaded = generated(tmp_path, service_of(given, model, variants))
    assert loaded.manifest is not None
    assert all(variant.thresholds is not None for variant in loaded.manifest.variants)
    parts = shop()
    parts.nodes["user"]["labels"] = np.arange(30) % 3
    given, _ = data_of(tmp_path / "three", parts)
    with pytest.raises(
        InputError, match=r"^spec\.variants\.thresholds: is PerClass, and each node .* one of 3 classes"
    ):
        generated(tmp_path / "three", service_of(given, model, variants))


def test_equal_manifests_give_equal_weights_and_an_interruption_loses_no_training(tmp_path: Path) -> None:
    given, _ = data_of(tmp_path)
    service = service_of(given, {"training": {"epochs": 3}})
    first, second = (generated(tmp_path / name, service) for name in ("one", "two"))
    assert first.manifest is not None and second.manifest is not None
    assert first.manifest.model == second.manifest.model
    assert first.manifest.revision == second.manifest.revision


def graph_of(data: GraphData) -> tuple[GraphSchema, Graph]:
    typed = data.schema
    return typed, Graph(*merged_lists(typed, [one.lists for one in data.relations]), typed)


def test_scratch_of_several_graphs_has_room_for_the_most_neighbours_of_any() -> None:
    """Few relations may need fewer offsets for more neighbours; draws would never end in too small a table."""
    scratch = Scratch()
    scratch.reserve(seeds=1, rows=1, edges=1, fanout=10, hops=1, has_views=False, lists=6)
    scratch.reserve(seeds=1, rows=1, edges=1, fanout=50, hops=1, has_views=False, lists=1)
    assert len(scratch.table) >= 2 * 50


def sampled(graph: Graph, seeds: np.ndarray, fanouts: Any, key: int = 0, *, share: bool) -> NeighbourSample:
    return sample_relations(
        graph.indptr, graph.indices, seeds, fanouts, key, Scratch(), layout=graph.layout, share=share
    )


def test_no_list_is_read_where_nothing_is_drawn(tmp_path: Path) -> None:
    _, data = data_of(tmp_path)
    typed, graph = graph_of(data)
    # Bounds that give lengths below 0 where they are read.
    damaged = replace(graph, indptr=graph.indptr[::-1].copy())
    for fanouts in ((0,), (0, 2)):
        sample = sampled(damaged, np.array([3, 0, typed.first_nodes[1]]), fanouts, share=True)
        assert (len(sample.nodes), len(sample.neighbours)) == (3, 0)
        assert not sample.segments.any()


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("fanouts", [(-1, -1), (2, 3), (1, 40, 2), (2, 0), (0,)])
def test_each_row_draws_distinct_neighbours_by_each_relation_of_its_type(
    tmp_path: Path, fanouts: tuple[int, ...], share: bool
) -> None:
    _, data = data_of(tmp_path)
    typed, graph = graph_of(data)
    stride = int(graph.layout[1])
    seeds = np.array([3, 3, 0, typed.first_nodes[1], typed.first_nodes[2] + 1])
    sample = sampled(graph, seeds, fanouts, share=share)
    assert sample.seed_rows is not None
    np.testing.assert_array_equal(sample.nodes[sample.seed_rows], seeds)
    hops = np.searchsorted(sample.ends, np.arange(len(sample.nodes)), side="right")
    for row, node in enumerate(sample.nodes.tolist()):
        kind = int(np.searchsorted(typed.first_nodes, node, side="right")) - 1
        read = [place for place, one in enumerate(typed.relations) if one.target == typed.types[kind].name]
        for slot, place in enumerate(read):
            begin, end = sample.segments[row * stride + slot : row * stride + slot + 2]
            drawn = sample.neighbours[begin:end]
            first = typed.first_nodes[typed.place_of(typed.relations[place].source)]
            listed = data.relations[place].lists.list_of(node - typed.first_nodes[kind]) + first
            fanout = fanouts[hops[row]]
            assert len(drawn) == (len(listed) if fanout < 0 else min(fanout, len(listed)))
            assert len(set(drawn.tolist())) == len(drawn)
            assert set(drawn.tolist()) <= set(listed.tolist())
            if hops[row] < len(fanouts) - 1:
                np.testing.assert_array_equal(sample.nodes[sample.children[begin:end]], drawn)
        assert sample.starts[row + 1] == sample.segments[(row + 1) * stride]


def test_rows_of_each_hop_stand_type_after_type(tmp_path: Path) -> None:
    _, data = data_of(tmp_path)
    typed, graph = graph_of(data)
    sample = sampled(graph, np.arange(20), (3, 3, 3), share=False)
    kinds = np.searchsorted(typed.first_nodes, sample.nodes, side="right") - 1
    begin = 0
    for place, end in enumerate(sample.type_ends.tolist()):
        assert (kinds[begin:end] == place % len(typed.types)).all()
        begin = end
    assert begin == len(sample.nodes)


def test_a_checkpoint_of_other_relations_is_refused_by_the_key(tmp_path: Path) -> None:
    given, data = data_of(tmp_path)
    model = HeteroModel(data)
    with torch.no_grad():
        model(data)
    path = tmp_path / "model.safetensors"
    state = {key: value.contiguous() for key, value in model.state_dict().items() if "knows" not in key}
    safetensors.torch.save_file(state, path)
    service = service_of(given, {"checkpoint": {"uri": path.as_uri()}})
    with pytest.raises(InputError, match=r"has no convs\.0\.convs\.<user___knows___user>\.lin_l\.weight, expected"):
        generate(service, Repository(tmp_path / "repository", "default", "shop"))


@pytest.mark.parametrize(
    ("model", "variants", "said"),
    [
        ({"architecture": "GIN"}, {}, "model.architecture GIN must be GraphSAGE, GAT, RGCN or LightGCN with"),
        ({}, {"projection": "Disabled"}, "variants.projection must not be Disabled with graph.source.typed"),
        ({"bases": 2}, {}, "bases 2 may be given with architecture RGCN only"),
    ],
)
def test_what_cannot_be_had_of_several_types_is_refused_in_a_sentence(
    tmp_path: Path, model: dict[str, Any], variants: dict[str, Any], said: str
) -> None:
    given, _ = data_of(tmp_path)
    with pytest.raises(ValueError, match=said):
        service_of(given, model, variants)


def test_ids_of_the_source_are_kept_for_each_type(tmp_path: Path) -> None:
    given = write_tables(tmp_path / "tables", shop(), ids={"user": "u", "tag": "t"})
    loaded = generated(tmp_path, service_of(given, {"training": {"epochs": 2}}))
    assert loaded.ids.asked is not None
    assert loaded.ids.asked.find_texts(["u3", "t1"]).tolist() == [3, -1]
    tags = loaded.ids.by_type["tag"]
    assert tags is not None
    assert tags.find_texts(["u3", "t1"]).tolist() == [-1, 1]


def test_parse_manifest_knows_rgcn_only_with_types() -> None:
    text = (
        "apiVersion: gnnserve.dev/v1alpha1\nkind: GNNService\nmetadata: {name: a}\n"
        "spec: {graph: {source: {builtin: Digits}}, model: {architecture: RGCN}}\n"
    )
    with pytest.raises(InputError, match=r"RGCN must not be given without graph\.source\.typed"):
        parse_manifest(text, "a.yaml")
