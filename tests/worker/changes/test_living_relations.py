"""A graph of several types that changes answers as one that is built anew does, whatever comes and goes."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from msgspec import UNSET
from tests.support.changes.living_relations import PlainTypedGraph
from tests.support.changes.living_types import (
    BINARY,
    CLOSE,
    EVERYTHING,
    JSON,
    NAMES,
    ROOM_BYTES,
    VARIANTS,
    assert_answers_are_those_of,
    batch_of,
    numbers_of,
    opened,
    served_by,
)
from tests.support.graphs.several_types import shop, write_tables
from tests.support.machine.waiting import WAIT_S
from tests.support.models.hetero_pyg import AttentionModel, HeteroModel
from tests.support.models.networks_of_types import data_of, generated, saved, service_of
from tests.support.overlays.typed_overlays import Given, made, read

from gnnserve_api.errors import DamagedError
from gnnserve_api.files.repository import sealed
from gnnserve_api.limits import RefreshBudget
from gnnserve_cli.changes.batches import batches_of, may_be_integers, request_of
from gnnserve_cli.changes.files import read_changes as read_rows
from gnnserve_worker.asking.question import RequestError
from gnnserve_worker.graph.change_batch import (
    OF_THIS_WORKER,
    BatchEffect,
    ChangeBatch,
    ChangeCounts,
    ChangeRefusal,
    decode_batch,
    encode_batch,
)
from gnnserve_worker.graph.change_ids import IntegerIds, TextIds
from gnnserve_worker.graph.ids import lay_out
from gnnserve_worker.inference.living import LivingRevision
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.repository.revision_files import to_json
from gnnserve_worker.sampling.batch_view import Part, view_of
from gnnserve_worker.serving.http.changes.content import content_of
from gnnserve_worker.serving.http.changes.reading import read_changes

pytestmark = pytest.mark.campaign("given")
CLOSE_BY_STORAGE = {"": 1e-5, "-float16": 1e-2}
"""Share of the largest score, by the end of a variant's name. Products of this model are up to a hundred times as large
as its scores."""


@pytest.fixture(scope="module", params=["GraphSAGE", "GAT", "RGCN"])
def given(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Given]]:
    """The folder of a graph's revision with given weights over the whole neighbourhood, and what it was made of."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("GNNSERVE_PROFILE_SECONDS", "0")
        folder = tmp_path_factory.mktemp(request.param)
        yield folder, made(folder, request.param, VARIANTS)


def test_after_any_changes_answers_are_those_of_the_graph_built_anew(given: tuple[Path, Given]) -> None:
    folder, (data, _, model) = given
    living, plain, draw = opened(folder), PlainTypedGraph(data, model), np.random.default_rng(5)
    served = served_by(living)
    assert {*living.loaded.variants} == NAMES
    for _ in range(4):
        for _ in range(3):
            said = living.apply(living.offset + 1, [batch_of(plain.random_batch(draw, 8), served)])
            assert all(isinstance(one, BatchEffect) for one in said), said
        assert_answers_are_those_of(living, plain)
    batches = [batch_of(plain.random_batch(draw, 5), served) for _ in range(6)]
    living.apply(living.offset + 1, batches)
    assert_answers_are_those_of(living, plain)
    assert served.graph.count() == len(plain.target_ids)
    assert [served.graph.ids.nodes_of(kind) for kind in served.graph.described.types] == [
        len(rows) for rows in plain.rows.values()
    ]


@pytest.mark.parametrize("refresh", [None, RefreshBudget(rows=1_000_000, microseconds=10**9)], ids=["at once", "read"])
@pytest.mark.parametrize("model_of", [HeteroModel, AttentionModel])
def test_later_layers_follow_changes_over_as_many_hops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model_of: type[HeteroModel], refresh: RefreshBudget | None
) -> None:
    monkeypatch.setenv("GNNSERVE_PROFILE_SECONDS", "0")
    source, data = data_of(tmp_path)
    torch.manual_seed(2)
    model = model_of(data, layers=3)
    with torch.no_grad():
        model(data)
    spec = {**saved(model, tmp_path / "model.safetensors"), "fanouts": [-1, -1, -1]}
    if model_of is AttentionModel:
        spec |= {"architecture": "GAT", "heads": AttentionModel.HEADS, "outputHeads": AttentionModel.OUTPUT_HEADS}
    variants = {"stored": [2, 3], "storedFollowChanges": True, "storage": ["float32", "float16"]}
    generated(tmp_path, service_of(source, spec, variants))
    living, plain, draw = opened(tmp_path), PlainTypedGraph(data, model), np.random.default_rng(7)
    living.refreshing.budget = refresh
    served = served_by(living)
    for _ in range(3):
        said = living.apply(living.offset + 1, [batch_of(plain.random_batch(draw, 6), served) for _ in range(2)])
        assert all(isinstance(one, BatchEffect) for one in said), said
        expected, seeds = plain.scores(), numbers_of(served, plain.target_ids)
        for name, (storage, tolerance) in product(("projected", "stored2", "stored3"), CLOSE_BY_STORAGE.items()):
            found = served.compute.infer(f"{name}{storage}", seeds.copy(), 0).scores
            largest = float(np.abs(expected).max())
            np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * largest, err_msg=f"{name}{storage}")


@pytest.mark.parametrize("refresh", [None, RefreshBudget(rows=0, background_permille=0)], ids=["at once", "never"])
def test_an_overlay_is_answered_over_the_graph_as_it_is_now(
    given: tuple[Path, Given], refresh: RefreshBudget | None
) -> None:
    """By whoever tolerates nothing, whatever the budget for stale rows."""
    folder, (data, _, model) = given
    living, plain, draw = opened(folder), PlainTypedGraph(data, model), np.random.default_rng(6)
    living.refreshing.budget = refresh
    served = served_by(living)
    for _ in range(4):
        living.apply(living.offset + 1, [batch_of(plain.random_batch(draw, 8), served)])
    ids, row = plain.target_ids, np.full(4, 0.5, np.float32)
    items = [*plain.rows["item"]]
    edges = [["user/new", "buys", f"item/{items[-1]}"], [f"user/{ids[-1]}", "knows", "user/new"]]
    body = {
        "nodes": ["user/5000", *(f"user/{id_}" for id_ in ids)],
        "overlay": {"nodes": [{"id": "user/5000", "features": row.tolist()}],
                    "edges": [[end.replace("new", "5000") for end in edge] for edge in edges]},
    }  # fmt: skip
    question = read(served, body)
    infer_within = served.compute.infer_within
    assert infer_within is not None
    found = dict[str, np.ndarray]()
    for name in ("projected", "stored1", "stored2"):
        seeds = question.nodes.copy()
        view = view_of(served.graph.first_new, [Part(len(seeds), question.overlay, None)], seeds)
        found[name] = infer_within(0.0)(name, seeds, 0, view=view).scores
    plain.rows["user"][5000] = row
    relations = [(one.source, one.name, one.target) for one in data.relations]
    plain.change_edge(relations.index(("user", "buys", "item")), 5000, items[-1], adds=True)
    plain.change_edge(relations.index(("user", "knows", "user")), ids[-1], 5000, adds=True)
    expected = plain.scores()
    for name, scores in found.items():
        np.testing.assert_allclose(scores, np.roll(expected, 1, axis=0), atol=CLOSE, rtol=CLOSE, err_msg=name)


@pytest.fixture(scope="module")
def shops(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a revision over users and tags that are called by texts."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("GNNSERVE_PROFILE_SECONDS", "0")
        folder = tmp_path_factory.mktemp("shops")
        source = write_tables(folder / "tables", shop(), ids={"user": "u", "tag": "t"})
        model = {"training": {"epochs": 1}, "fanouts": [-1, -1, -1]}
        generated(folder, service_of(source, model, {"stored": [1, 2], "storage": ["float16"]}))
        return folder


@pytest.fixture(scope="module")
def unchanged(shops: Path) -> LivingRevision:
    """One that refuses whatever it is told to apply."""
    return opened(shops)


def lists_of(graph: Any) -> list[list[int]]:
    firsts = zip(graph.places.first_nodes.tolist(), graph.ids_of, strict=False)
    nodes = np.concatenate([np.arange(first, first + ids.count) for first, ids in firsts])
    return [graph.lists.of(np.array([place])).tolist() for place in graph.places.lists_of(nodes).tolist()]


def test_nodes_are_called_by_texts_and_integers_with_their_types(shops: Path) -> None:
    living = opened(shops)
    served = served_by(living)
    batch = batch_of(EVERYTHING, served)
    (said,) = living.apply(1, [batch])
    assert isinstance(said, BatchEffect)
    shown = {kind.name: served.graph.ids.shown(kind, 0, 100) for kind in served.graph.described.types}
    assert shown["user"][-1] == "new"
    assert shown["tag"] == ["t0", "t1", "t3", "t4", "sale"]
    assert 7 not in shown["item"]
    graph = living.graph
    sale = np.array([graph.places.first_nodes[2] + 5])
    (reader,) = graph.all_readers_of(sale)
    assert reader == graph.places.first_nodes[1] + 3


def test_what_changes_touch_is_told_as_nodes(shops: Path) -> None:
    """For an index of embeddings, which has those of the nodes that are classified."""
    living = opened(shops)
    served = served_by(living)
    living.apply(1, [batch_of({"edges": [["user/u2", "buys", "item/3"]], "removedNodes": ["tag/t2"]}, served)])
    graph, touched = living.graph, living.touched.take()
    assert touched is not None
    user, item, tag = graph.places.first_nodes[:3].tolist()
    assert {user + 2, item + 3, tag + 2} <= {*touched.listed.tolist()}
    readers = living.readers_now(np.array([tag + 1]), 100)
    assert readers is not None
    assert {item <= reader < tag for reader in readers.nodes.tolist()} == {True}


def test_predictions_go_on_while_publishing_waits_for_a_check(unchanged: LivingRevision) -> None:
    is_alone = threading.Event()

    def publish() -> None:
        with unchanged._alone():
            is_alone.set()

    publisher = threading.Thread(target=publish)
    with unchanged._publishing:  # as `check` of a large batch holds it
        publisher.start()
        assert unchanged._computing.acquire(timeout=WAIT_S)
        unchanged._computing.release()
        assert not is_alone.is_set()
    publisher.join(WAIT_S)
    assert is_alone.is_set()
    assert not unchanged._computing.locked()
    assert not unchanged.is_busy


def test_content_of_a_batch_is_what_makes_it(shops: Path) -> None:
    served = served_by(opened(shops))
    batch = batch_of(EVERYTHING, served)
    content = msgspec.json.encode(content_of(decode_batch(encode_batch(batch)), served.changes.features.columns_of))
    again = read_changes(content, JSON, served)[1]
    assert encode_batch(again) == encode_batch(batch)
    told = msgspec.json.decode(content)
    assert told["edges"] == EVERYTHING["edges"]
    assert told["nodes"][1] == {"id": "tag/sale", "features": None, "label": None}


def test_rows_of_a_file_are_what_the_graph_takes(shops: Path, tmp_path: Path) -> None:
    path = tmp_path / "new.csv"
    path.write_text(
        "change,type,id,source,relation,target,label,f0,f1,f2,f3\nadd-node,user,new,,,,class1,1,2,3,4\n"
        "add-node,tag,sale,,,,,,,,\nset-features,item,3,,,,,1,2,3,\nset-label,user,u4,,,,,,,,\n"
        "add-edge,,,user/new,buys,item/3,,,,,\nadd-edge,,,item/3,has,tag/sale,,,,,\n"
        "add-edge,,,user/new,knows,user/u4,,,,,\nremove-edge,,,user/new,buys,item/3,,,,,\n"
        "remove-node,tag,t2,,,,,,,,\nremove-node,item,7,,,,,,,,\n"
    )
    served = served_by(opened(shops))
    (batch,) = batches_of(read_rows(path)[0], 100)
    body = msgspec.json.decode(msgspec.json.encode(request_of(batch, may_be_integers(batch))))
    assert encode_batch(batch_of(body, served)) == encode_batch(batch_of(EVERYTHING, served))


def test_batches_together_are_as_one_after_the_other(shops: Path) -> None:
    one, all_, none = opened(shops), opened(shops), {"edges": [["user/nobody", "buys", "item/3"]]}
    served = served_by(one)
    bodies = [EVERYTHING, {"edges": [["user/new", "buys", f"item/{i}"] for i in range(6)]}, none,
              {"removedNodes": ["user/new"]}, {"nodes": [{"id": "user/new", "features": [0, 0, 0, 1]}]}]  # fmt: skip
    batches = [batch_of(body, served) for body in bodies]
    said = [said for offset, batch in enumerate(batches, start=1) for said in one.apply(offset, [batch])]
    assert said == all_.apply(1, batches)
    assert [isinstance(each, BatchEffect) for each in said] == [True, True, False, True, True]
    assert lists_of(one.graph) == lists_of(all_.graph) == lists_of(one.drafting.graph)
    seeds = numbers_of(served, ["u1", "new"])
    np.testing.assert_array_equal(
        served.compute.infer("stored1-float16", seeds.copy(), 0).scores,
        served_by(all_).compute.infer("stored1-float16", seeds.copy(), 0).scores,
    )


def test_an_edge_that_is_there_changes_nothing_where_it_counts_once(shops: Path) -> None:
    living = opened(shops)
    served = served_by(living)
    body = {"edges": [["user/u1", "knows", "user/u2"], ["user/u2", "knows", "user/u1"]]}
    living.apply(1, [batch_of(body, served)])
    assert living.apply(2, [batch_of(body, served)]) == [BatchEffect(2)]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"nodes": [{"id": "shop/1"}]}, 'nodes[0].id: "shop" is no type of nodes; types are user, item, tag'),
        ({"nodes": [{"id": "u9", "features": [0, 0, 0, 0]}]}, 'nodes[0].id: "u9" has no type; types are user'),
        ({"nodes": [{"id": 9}]}, "nodes[0].id: 9 has no type"),
        ({"nodes": [{"id": "user/x"}]}, "nodes[0].features: it is missing; nodes of its type have 4 features"),
        ({"nodes": [{"id": "user/x", "features": [1]}]}, "nodes[0].features: 1 number, where the graph has 4"),
        ({"nodes": [{"id": "tag/x", "features": [1]}]}, "nodes[0].features: nodes of type tag have no features"),
        ({"nodes": [{"id": "tag/x", "label": "class1"}]}, "nodes[0].label: the node is of type tag, and only nodes"),
        ({"nodes": [{"id": "user/u1", "features": [0, 0, 0, 0]}]}, "nodes[0].id: 'user/u1' is a node of the graph"),
        ({"nodes": [{"id": "tag/x"}, {"id": "tag/x"}]}, "nodes[1].id: 'tag/x' is there twice"),
        ({"nodes": [{"id": "item/x", "features": [1, 2, 3]}]}, "ids of type item are integers, got"),
        ({"overrides": [{"id": "tag/t1", "features": [1]}]}, "overrides[0].features: nodes of type tag have no"),
        ({"overrides": [{"id": "tag/t1"}]}, "overrides[0].id: 'tag/t1' has other features, and nodes of type tag"),
        ({"overrides": [{"id": "user/u1", "features": {"f1": 3}}]}, "overrides[0].features[0]: it is missing"),
        ({"overrides": [{"id": "item/4", "features": [1, 2, 3]}] * 2}, "overrides[1].id: 'item/4' is there twice"),
        ({"labels": [{"id": "item/3", "label": None}]}, "labels[0].id: 'item/3' has a label, and only nodes of type"),
        ({"edges": [["user/u1", "sells", "item/2"]]}, "edges[0][1]: 'sells' is no relation from user to item; "),
        ({"edges": [["user/u1", "item/2"]]}, "edges[0]: expected a list of 3, got "),
        ({"edges": [["item/1", "rev_buys", "user/u2"]]}, "edges[0][1]: 'rev_buys' from item to user is the reverse"),
        ({"edges": [["item/1", "buys", "user/u2"]]}, "edges[0][1]: 'buys' is no relation from item to user"),
        ({"edges": [["user/u1", "buys", "item/99"]]}, "edges[0][2]: 'item/99' is no node of the graph"),
        ({"removedEdges": [["user/u99", "buys", "item/2"]]}, "removedEdges[0][0]: 'user/u99' is no node"),
        ({"removedNodes": ["item/1", "item/1"]}, "removedNodes[1]: 'item/1' is there twice"),
        ({}, "it has no changes"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_and_changes_nothing(unchanged: LivingRevision, body: dict[str, Any], said: str) -> None:
    living = unchanged
    before = lists_of(living.drafting.graph)
    try:
        batch = read_changes(json.dumps(body).encode(), JSON, served_by(living))[1]
    except RequestError as error:
        assert said in str(error)
        return
    refusal = living.check(batch)
    assert isinstance(refusal, ChangeRefusal)
    assert said in f"{refusal.field}: {refusal.message}; {refusal.remedy}"
    assert living.apply(living.offset + 1, [batch]) == [refusal]
    assert lists_of(living.drafting.graph) == before


def test_a_batch_about_a_graph_of_one_type_is_passed_over(shops: Path) -> None:
    """However wide its rows are: the log has such batches where the source of the service was of one type before."""
    living = opened(shops)
    batch = ChangeBatch(ChangeCounts(new_nodes=1), IntegerIds(np.array([17])), np.zeros((1, 99), np.float32))
    (refusal,) = living.apply(1, [batch])
    assert isinstance(refusal, ChangeRefusal)
    assert refusal.problem not in OF_THIS_WORKER
    assert living.offset == 1
    told = content_of(batch, served_by(living).changes.features.columns_of)
    assert (told.nodes[0].id, told.nodes[0].features) == (17, None)


@pytest.mark.parametrize("text", ["tag", "tag/"])
def test_a_binary_batch_brings_no_node_without_an_id(unchanged: LivingRevision, text: str) -> None:
    served = served_by(unchanged)
    good = batch_of({"nodes": [{"id": "tag/x"}]}, served)
    bad = msgspec.structs.replace(good, ids=TextIds(*lay_out([text]), good.ids.form))
    refusal = unchanged.check(read_changes(encode_batch(bad), BINARY, served)[1])
    assert isinstance(refusal, ChangeRefusal)
    assert f"{refusal.field}: {refusal.message}" == f"nodes[0].id: '{text}' has a type and no id"


@pytest.mark.parametrize("room_bytes", [None, ROOM_BYTES], ids=["as it is", "with room for changes"])
class TestTablesThatAreDamaged:
    @pytest.mark.parametrize("table", ["projected-float16", "stored1-float16", "projected"])
    @pytest.mark.parametrize(
        ("typed", "said"),
        [
            ({"first_rows": (10**6,)}, "rows, and those of .* are to be from 1,000,000 on"),
            ({"first_rows": (-1,)}, "rows, and those of .* are to be from -1 on"),
            ({"first_rows": (None,)}, "holds no rows of"),
            ({"own_rows": 3}, "holds 3 rows of nodes themselves, expected"),
        ],
        ids=["rows behind the end", "rows before the first", "no rows", "too few rows of nodes themselves"],
    )
    def test_rows_that_are_not_there_are_told(
        self, shops: Path, tmp_path: Path, room_bytes: int | None, table: str, typed: dict[str, Any], said: str
    ) -> None:
        """The manifest was written wrong, and with a checksum that matches."""
        folder, repository = copied(shops, tmp_path)
        manifest = repository.revisions()[0]
        before = manifest.tables[table].by_relation
        assert before
        changed = {
            key: value * len(before.first_rows) if key == "first_rows" else value for key, value in typed.items()
        }
        wrong = msgspec.structs.replace(manifest.tables[table], by_relation=msgspec.structs.replace(before, **changed))
        rewrite(folder / "revision.json", to_json(sealed(
            msgspec.structs.replace(manifest, tables={**manifest.tables, table: wrong})
        )))  # fmt: skip
        with pytest.raises(DamagedError, match=said):
            load_revision(repository, manifest.revision, room_bytes)

    def test_tables_that_say_nothing_of_relations_are_told(
        self, shops: Path, tmp_path: Path, room_bytes: int | None
    ) -> None:
        folder, repository = copied(shops, tmp_path)
        manifest = repository.revisions()[0]
        plain = {name: msgspec.structs.replace(one, by_relation=UNSET) for name, one in manifest.tables.items()}
        rewrite(folder / "revision.json", to_json(sealed(msgspec.structs.replace(manifest, tables=plain))))
        with pytest.raises(DamagedError, match="does not say where the rows of each of 5 relations are"):
            load_revision(repository, manifest.revision, room_bytes)

    def test_fan_outs_of_other_relations_are_told(self, shops: Path, tmp_path: Path, room_bytes: int | None) -> None:
        folder, repository = copied(shops, tmp_path)
        manifest = repository.revisions()[0]
        first, *others = manifest.variants
        wrong = (msgspec.structs.replace(first, relation_fanouts=((2, 2, 2),)), *others)
        rewrite(folder / "revision.json", to_json(sealed(msgspec.structs.replace(manifest, variants=wrong))))
        with pytest.raises(DamagedError, match=r"has 1 lists of fan-outs by relation for variant .*, expected 5 of 3"):
            load_revision(repository, manifest.revision, room_bytes)

    def test_a_table_of_products_is_compared_with_its_checksum(
        self, shops: Path, tmp_path: Path, room_bytes: int | None
    ) -> None:
        folder, repository = copied(shops, tmp_path)
        path = folder / "tables" / "projected.npy"
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        rewrite(path, bytes(content))
        with pytest.raises(DamagedError, match="was altered: its SHA-256 is"):
            load_revision(repository, folder.name, room_bytes)


def copied(shops: Path, to: Path) -> tuple[Path, Repository]:
    """The folder of the only revision of a copy."""
    shutil.copytree(shops / "repository", to / "repository")
    repository = Repository(to / "repository", "default", "shop")
    return repository.folder / "revisions" / repository.revisions()[0].revision, repository


def rewrite(path: Path, content: bytes) -> None:
    path.chmod(0o644)
    path.write_bytes(content)


def test_changes_end_where_their_memory_does(shops: Path) -> None:
    living = opened(shops, 4096)
    served = served_by(living)
    offset = 0
    while True:
        (said,) = living.apply(offset + 1, [batch_of({"nodes": [{"id": f"tag/{offset}"}]}, served)])
        if isinstance(said, ChangeRefusal):
            break
        offset += 1
        assert offset < 100
    assert said.problem == "NoRoom"
    assert np.isfinite(served.compute.infer("projected-float16", np.arange(30), 0).scores).all()


def test_stored_layers_behind_the_first_are_not_chosen_over_a_graph_that_changes(shops: Path) -> None:
    served = served_by(opened(shops))
    able = {name for name, one in served.capabilities.items() if one.cover(served.changes.needed)}
    assert able == {"projected-float16", "stored1-float16"}
    served.compute.warm_up()
