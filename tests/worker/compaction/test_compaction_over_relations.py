"""A graph of several types that a log was folded into is the one that is built anew, and goes on to change."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import scipy.sparse as sp
from tests.support.changes.compacted_relations import UID, Service
from tests.support.changes.living_relations import PlainTypedGraph
from tests.support.changes.living_types import (
    CLOSE,
    EVERYTHING,
    NAMES,
    ROOM_BYTES,
    VARIANTS,
    batch_of,
    numbers_of,
    served_by,
)
from tests.support.graphs.several_types import load_types, shop, typed_source, write_folder, write_tables
from tests.support.models.networks_of_types import service_of
from tests.support.overlays.typed_overlays import described

from gnnserve_api.errors import InputError
from gnnserve_api.files.repository import ChangedSource
from gnnserve_worker.changes.registry import opened_log
from gnnserve_worker.compaction.carrying import carry_over
from gnnserve_worker.compaction.restoring import bring, restore
from gnnserve_worker.graph.store import NodeType
from gnnserve_worker.inference.living import LivingRevision
from gnnserve_worker.inference.opening import served_revision
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.pods.followed_log import FollowedLog
from gnnserve_worker.progress import silent
from gnnserve_worker.repository.repository import Repository


@pytest.fixture(autouse=True)
def _quick_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GNNSERVE_PROFILE_SECONDS", "0")


def assert_it_is(loaded: LoadedRevision, plain: PlainTypedGraph, replayed: LivingRevision | None = None) -> None:
    """Whether answers over all neighbours are those of the graph built anew, and of a worker that applied the log."""
    served, expected = served_revision(loaded), plain.scores()
    seeds = numbers_of(served, plain.target_ids)
    for name in loaded.variants:
        found = served.compute.infer(name, seeds.copy(), 0).scores
        close = 0.05 * float(np.abs(expected).max()) if name.endswith("int8") else CLOSE
        np.testing.assert_allclose(found, expected, atol=close, rtol=close, err_msg=name)
        if replayed is not None:
            other = served_by(replayed)
            of_other = other.compute.infer(name, numbers_of(other, plain.target_ids), 0).scores
            np.testing.assert_allclose(found, of_other, atol=1e-6, rtol=1e-6, err_msg=name)


def assert_it_is_written(service: Service, plain: PlainTypedGraph) -> None:
    """Whether the version holds the graph built anew: lists, features and ids."""
    data, (built, _) = service.repository.read_graph(service.manifest.graph), plain.built()
    for one, other in zip(data.relations, built.relations, strict=True):
        assert (one.key, one.reverse_of, one.merges, one.both_ways) == (
            other.key, other.reverse_of, other.merges, other.both_ways,
        )  # fmt: skip
        np.testing.assert_array_equal(one.lists.indptr, other.lists.indptr)
        np.testing.assert_array_equal(one.lists.indices, other.lists.indices)
    for kind, same in zip(data.types, built.types, strict=True):
        assert kind.nodes == same.nodes
        if same.features is None:
            assert kind.features is None
        else:
            np.testing.assert_array_equal(kind.features, same.features)


@pytest.mark.campaign
@pytest.mark.parametrize("architecture", ["GraphSAGE", "GAT", "RGCN"])
def test_folded_twice_and_changed_in_between_it_is_the_graph_built_anew(tmp_path: Path, architecture: str) -> None:
    data, spec, model = described(tmp_path, architecture, VARIANTS)
    service, plain, draw = Service(tmp_path, spec), PlainTypedGraph(data, model), np.random.default_rng(4)
    first, features = service.manifest, [kind.features for kind in data.types]
    for last in (6, 12):
        living = service.opened()
        served = served_by(living)
        service.write(living, [batch_of(plain.random_batch(draw, 9), served) for _ in range(6)])
        loaded = service.compact()
        assert loaded.origin.made_of is not None
        assert loaded.origin.made_of.offset == last
        assert {*loaded.variants} == NAMES
        assert_it_is(loaded, plain, living)
        assert_it_is_written(service, plain)
    living = service.opened()
    assert living.offset == living.base_offset == 12
    service.write(living, [batch_of(plain.random_batch(draw, 9), served_by(living)) for _ in range(3)])
    service.compact()
    # The first model, whose log is cut, over the newest version.
    target = service.repository.read_graph(service.manifest.graph)
    before = load_revision(service.repository, first.revision, ROOM_BYTES)
    brought = bring(before, features, target, ROOM_BYTES, silent)
    older = msgspec.structs.replace(first, recipe="older")
    restored = carry_over(older, before, brought, service.repository, silent)
    assert_it_is(load_revision(service.repository, restored.revision), plain)


def test_more_than_a_thousand_new_nodes_of_a_type_become_part_of_the_graph(tmp_path: Path) -> None:
    data, spec, model = described(tmp_path, "GraphSAGE", VARIANTS)
    service, plain, draw = Service(tmp_path, spec), PlainTypedGraph(data, model), np.random.default_rng(6)
    living, kind = service.opened(), data.types[0]
    assert kind.features is not None
    rows = draw.normal(size=(1025, kind.features.shape[1])).astype(np.float32)
    plain.rows[kind.name] |= {5000 + place: row for place, row in enumerate(rows)}
    nodes = [{"id": f"{kind.name}/{5000 + place}", "features": row.tolist()} for place, row in enumerate(rows)]
    service.write(
        living, [batch_of({"nodes": nodes[start : start + 41]}, served_by(living)) for start in range(0, 1025, 41)]
    )
    service.compact()
    assert_it_is_written(service, plain)


def words(items: int) -> np.ndarray:
    """Features of items, two of a hundred words each, which the rule of density keeps sparse."""
    rows = np.zeros((items, 100), np.float32)
    rows[np.arange(items), np.arange(items)] = 1
    rows[np.arange(items), 99 - np.arange(items)] = 2
    return rows


def test_trained_anew_sparse_features_are_scaled_as_those_of_the_graph_built_anew(tmp_path: Path) -> None:
    parts, items = shop(), words(21)
    parts.nodes["item"]["features"] = items[:20]
    model, variants = {"training": {"epochs": 2}}, {"stored": [], "storage": ["float16"]}
    source = write_folder(tmp_path / "graph", parts)
    service = Service(tmp_path, service_of(source, model, variants, "Auto"))
    living = service.opened()
    items[3] = items[7]
    body = {
        "nodes": [{"id": "item/20", "features": items[20].tolist()}],
        "overrides": [{"id": "item/3", "features": items[3].tolist()}],
        "edges": [["user/0", "buys", "item/20"]],
    }
    service.write(living, [batch_of(body, served_by(living))])
    loaded = service.compact(retrain=True)
    parts.nodes["item"] = {"num_nodes": np.array(21), "features": items}
    bought = parts.edges["user", "buys", "item"]
    parts.edges["user", "buys", "item"] = {"src": np.append(bought["src"], 0), "dst": np.append(bought["dst"], 20)}
    source = write_folder(tmp_path / "anew" / "graph", parts)
    anew = Service(tmp_path / "anew", service_of(source, model, variants, "Auto"))
    rows, expected = service.manifest.row_source, anew.manifest.row_source
    assert rows is not None
    assert expected is not None
    assert [kind.normalization for kind in rows.types] == ["Standardize", "RowNormalize", None]
    assert rows.types == expected.types
    (name,) = loaded.variants
    found, other = served_revision(loaded), served_revision(load_revision(anew.repository, anew.manifest.revision))
    np.testing.assert_allclose(
        found.compute.infer(name, np.arange(30), 0).scores,
        other.compute.infer(name, np.arange(30), 0).scores,
        atol=CLOSE,
        rtol=CLOSE,
    )

    # What follows begins with the sparse features of that version: folding more, and an older model over the newest.
    first, before = service.manifest, service.repository.read_graph(service.manifest.graph)
    items[20] = items[5]
    body = {"overrides": [{"id": "item/20", "features": items[20].tolist()}], "removedNodes": ["item/19"]}
    living = service.opened()
    service.write(living, [batch_of(body, served_by(living))])
    loaded = service.compact()
    target = service.repository.read_graph(service.manifest.graph)
    np.testing.assert_array_equal(target.types[1].features.toarray(), np.delete(items, 19, axis=0))
    opened = load_revision(service.repository, first.revision, ROOM_BYTES)
    brought = bring(opened, [kind.features for kind in before.types], target, ROOM_BYTES, silent)
    scores = [
        served.compute.infer(name, np.arange(30), 0).scores
        for served in (served_revision(loaded), served_by(brought.living))
    ]
    np.testing.assert_allclose(*scores, atol=CLOSE, rtol=CLOSE)


@pytest.mark.parametrize("sparse", ["user", "item"])
@pytest.mark.parametrize("is_empty", [False, True])
def test_a_version_keeps_features_of_each_type_in_their_form(tmp_path: Path, sparse: str, *, is_empty: bool) -> None:
    data = load_types(typed_source(write_folder(tmp_path / "graph", shop())))
    made_of = ChangedSource(data.digest, UID, 1, 1, 0)

    def given(kind: NodeType) -> NodeType:
        rows = np.zeros((kind.nodes, 100), np.float32) if is_empty else words(kind.nodes)
        return replace(kind, features=sp.csr_array(rows)) if kind.name == sparse else kind

    repository = Repository(tmp_path / "repository", "default", "shop")
    written = replace(data, types=tuple(map(given, data.types)), digest="0123abcd", made_of=made_of)
    repository.put_graph(written)
    for kind, found in zip(written.types, repository.read_graph(written.digest).types, strict=True):
        assert type(found.features) is type(kind.features)
        if isinstance(kind.features, np.ndarray):
            np.testing.assert_array_equal(found.features, kind.features)
        elif kind.features is not None:
            np.testing.assert_array_equal(found.features.toarray(), kind.features.toarray())


@pytest.fixture
def called(tmp_path: Path) -> Service:
    """A service over users and tags that are called by texts."""
    source = write_tables(tmp_path / "tables", shop(), ids={"user": "u", "tag": "t"})
    model = {"training": {"epochs": 1}}
    return Service(tmp_path, service_of(source, model, {"stored": [1], "storage": ["float16"]}))


def shown(served: ServedRevision) -> dict[str, list[Any]]:
    return {kind.name: [*served.graph.ids.shown(kind, 0, 100)] for kind in served.graph.described.types}


def test_nodes_keep_their_ids_and_labels_are_those_that_changes_gave(called: Service) -> None:
    living = called.opened()
    served = served_by(living)
    called.write(living, [batch_of(EVERYTHING, served)])
    loaded = called.compact()
    assert shown(served_revision(loaded)) == shown(served)
    data = called.repository.read_graph(called.manifest.graph)
    names = shown(served)["user"]
    assert data.labels[names.index("new")] == 1
    assert data.labels[names.index("u4")] == -1
    assert names.index("new") in data.splits.train
    assert names.index("u4") not in np.concatenate([data.splits.train, data.splits.validation, data.splits.test])
    assert [column.name for column in data.target.feature_columns] == ["f0", "f1", "f2", "f3"]
    again = called.opened()
    called.write(again, [batch_of({"nodes": [{"id": "tag/t2"}], "removedNodes": ["user/new"]}, served_by(again))])
    assert shown(served_revision(called.compact())) == shown(served_by(again))


def test_networks_are_trained_anew_on_the_version_where_that_is_asked(called: Service) -> None:
    living = called.opened()
    called.write(living, [batch_of(EVERYTHING, served_by(living))])
    before = called.manifest.model
    loaded = called.compact(retrain=True)
    assert called.manifest.model != before
    assert loaded.origin.made_of is not None
    assert shown(served_revision(loaded)) == shown(served_by(living))


def test_a_type_may_lose_all_of_its_nodes_and_gets_others_later(called: Service) -> None:
    living = called.opened()
    called.write(living, [batch_of({"removedNodes": [f"tag/t{i}" for i in range(5)]}, served_by(living))])
    loaded = called.compact()
    assert shown(served_revision(loaded))["tag"] == []
    before = load_revision(called.repository, called.manifest.revision)
    living = called.opened()
    body = {"nodes": [{"id": "tag/t9"}], "edges": [["item/3", "has", "tag/t9"]]}
    called.write(living, [batch_of(body, served_by(living))])
    loaded = called.compact()
    assert shown(served_revision(loaded))["tag"] == ["t9"]
    seeds = np.arange(before.answered_nodes)
    for name in loaded.variants:
        served, replayed = served_revision(loaded), served_by(living)
        np.testing.assert_array_equal(
            served.compute.infer(name, seeds.copy(), 0).scores, replayed.compute.infer(name, seeds.copy(), 0).scores
        )
    called.write(living, [batch_of({"removedNodes": ["tag/t9"]}, served_by(living))])
    with pytest.raises(InputError, match="changes have removed all nodes of type tag"):
        called.compact(retrain=True)


def test_the_log_is_cut_behind_the_older_of_two_versions(called: Service) -> None:
    for tag in range(3):
        living = called.opened()
        called.write(living, [batch_of({"removedNodes": [f"tag/t{tag}"]}, served_by(living))])
        called.compact()
    with opened_log(called.updates.log, UID) as log:
        assert (log.position().first, log.position().last) == (3, 3)
    graph = called.opened().graph
    assert graph.taken == len(graph.kept) == 30 + 20 + 2
    called.write(living, [batch_of({"removedNodes": ["tag/t3"]}, served_by(living))])
    followed = FollowedLog(called.updates)
    stored, revision = called.repository, called.manifest.revision
    served = followed.open(lambda most: load_revision(stored, revision, most), served_revision)
    assert served.changes.log.offset == 4
    assert shown(served) == shown(served_by(living))


def test_an_older_model_answers_over_the_newest_version(called: Service, tmp_path: Path) -> None:
    first = called.manifest
    source = {"csv": called.service.spec.graph.source.model_dump(by_alias=True, exclude_none=True)["typed"]["csv"]}
    smaller = Service(tmp_path, service_of(source, {"training": {"epochs": 1}, "hidden": 4}))
    living = smaller.opened()
    batches = [batch_of(EVERYTHING, served_by(living)), batch_of({"removedNodes": ["user/u7"]}, served_by(living))]
    smaller.write(living, batches)
    smaller.compact()
    older = called.opened()
    older.apply(1, batches)
    spec = called.service.spec.model_copy(update={"revision": first.revision})
    named = called.service.model_copy(update={"spec": spec})
    restored = restore(named, first.revision, called.repository, UID)
    assert (restored.graph, restored.model) == (smaller.manifest.graph, first.model)
    served = served_revision(load_revision(called.repository, restored.revision))
    assert shown(served) == shown(served_by(older))
    for name in served.manifest.profile.variants:
        np.testing.assert_allclose(
            served.compute.infer(name.name, np.arange(30), 0).scores,
            served_by(older).compute.infer(name.name, numbers_of(served_by(older), shown(served)["user"]), 0).scores,
            atol=1e-6, rtol=1e-6,
        )  # fmt: skip
