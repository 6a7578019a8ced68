"""Typed graphs: the same graph from every layout, reverse relations, and how malformed ones are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.graphs.several_types import (
    TypedParts,
    load_types,
    shop,
    typed_source,
    write_folder,
    write_hetero,
    write_tables,
)
from tests.support.pages.pages import code_blocks, read_page

from gnnserve_api.errors import InputError
from gnnserve_api.spec.graph import GraphSource
from gnnserve_worker.graph.inspection import inspect_by_type
from gnnserve_worker.graph.sources import load
from gnnserve_worker.graph.sources.load import load_of_one_type, source_digest
from gnnserve_worker.graph.store import GraphData

LAYOUTS: dict[str, Callable[[Path, TypedParts], Any]] = {
    "npz": write_folder,
    "heteroData": write_hetero,
    "csv": write_tables,
    "parquet": lambda folder, parts: write_tables(folder, parts, ".parquet"),
}


def _load(folder: Path, parts: TypedParts, layout: str = "npz", **options: Any) -> GraphData:
    return load_types(typed_source(LAYOUTS[layout](folder, parts), **options))


def _pairs(data: GraphData, source: str, name: str, target: str) -> set[tuple[int, int]]:
    (lists,) = [one.lists for one in data.relations if (one.source, one.name, one.target) == (source, name, target)]
    return set(zip(lists.indices.tolist(), lists.targets().tolist(), strict=True))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_same_graph(tmp_path: Path, layout: str) -> None:
    parts = shop()

    data = _load(tmp_path, parts, layout)

    assert [(one.name, one.nodes) for one in data.types] == [
        ("user", 30), *sorted([("item", 20), ("tag", 5)], key=lambda one: one[0])
    ]  # fmt: skip
    assert data.target.name == "user"
    for name in ("user", "item"):
        np.testing.assert_allclose(data.type_named(name).features, parts.nodes[name]["features"], rtol=1e-6)
    assert data.type_named("tag").features is None
    for (source, relation, target), ends in parts.edges.items():
        listed = set(zip(ends["src"].tolist(), ends["dst"].tolist(), strict=True))
        backwards = {(there, here) for here, there in listed}
        if source == target:
            assert _pairs(data, source, relation, target) == listed | backwards
        else:
            assert _pairs(data, source, relation, target) == listed
            assert _pairs(data, target, f"rev_{relation}", source) == backwards
    assert data.labels.tolist() == parts.nodes["user"]["labels"].tolist()
    masks = ("train_mask", "val_mask", "test_mask")
    for mask, nodes in zip(masks, (data.splits.train, data.splits.validation, data.splits.test), strict=True):
        assert nodes.tolist() == np.flatnonzero(parts.nodes["user"][mask]).tolist()


def test_relations_that_a_type_reads_stand_together_in_the_order_of_types(tmp_path: Path) -> None:
    data = _load(tmp_path, shop())

    order = [one.name for one in data.types]
    places = [order.index(relation.target) for relation in data.relations]
    assert places == sorted(places)
    assert len(data.relations) == 5


def test_without_reverses_relations_go_one_way(tmp_path: Path) -> None:
    parts = shop()

    data = _load(tmp_path, parts, reverse="Disabled")

    assert {one.name for one in data.relations} == {"buys", "has", "knows"}
    knows = parts.edges["user", "knows", "user"]
    assert _pairs(data, "user", "knows", "user") == set(zip(knows["src"].tolist(), knows["dst"].tolist(), strict=True))


def test_ids_of_tables_are_found_within_their_type(tmp_path: Path) -> None:
    """Users and items have the same ids, which are other nodes."""
    given = write_tables(tmp_path, shop(), ids={"user": "n", "item": "n"})

    data = load_types(typed_source(given))

    ids = data.type_named("item").ids
    assert ids is not None
    assert ids.shown(0, 2) == ["n0", "n1"]
    assert data.type_named("tag").ids is None


def test_features_that_are_not_wanted_are_left_out(tmp_path: Path) -> None:
    data = _load(tmp_path, shop(), withoutFeatures=["item"])

    assert data.type_named("item").features is None
    assert ("feature columns of type item not read", 3) in {(one.what, one.count) for one in data.findings}


def test_nodes_without_masks_are_split_as_everywhere(tmp_path: Path) -> None:
    parts = shop()
    for mask in ("train_mask", "val_mask", "test_mask"):
        del parts.nodes["user"][mask]

    splits = _load(tmp_path, parts).splits

    assert [len(splits.train), len(splits.validation), len(splits.test)] == [18, 6, 6]


@pytest.mark.parametrize("layout", ["npz", "heteroData"])
def test_edges_that_repeat_between_two_types_stay(tmp_path: Path, layout: str) -> None:
    parts = shop()
    ends = parts.edges["user", "buys", "item"]
    parts.edges["user", "buys", "item"] = {key: np.concatenate([array, array[:3]]) for key, array in ends.items()}

    data = _load(tmp_path, parts, layout)

    (buys,) = [one for one in data.relations if one.name == "buys"]
    assert buys.lists.edges == len(ends["src"]) + 3


def test_the_digest_is_of_content_and_options(tmp_path: Path) -> None:
    def digest(folder: Path, seed: int = 0, **options: Any) -> str:
        return source_digest(GraphSource(typed=typed_source(write_folder(folder, shop(seed)), **options)))

    same = digest(tmp_path / "one")
    assert same == digest(tmp_path / "two")
    others = {
        digest(tmp_path / "three", 1),
        digest(tmp_path / "one", reverse="Disabled"),
        digest(tmp_path / "one", withoutFeatures=["item"]),
        digest(tmp_path / "one", target="user"),
    }
    assert len(others | {same}) == 5


def test_where_a_graph_of_one_type_is_needed_a_typed_one_is_refused(tmp_path: Path) -> None:
    source = GraphSource(typed=typed_source(write_folder(tmp_path, shop())))

    with pytest.raises(InputError, match=r"spec\.graph\.source\.typed.* several types"):
        load_of_one_type(source, tmp_path)


def test_an_inspection_tells_types_relations_and_isolated_nodes(tmp_path: Path) -> None:
    parts = shop()
    parts.nodes["item"]["num_nodes"] = np.array(22)
    parts.nodes["item"]["features"] = np.ones((22, 3), dtype=np.float32)

    found = inspect_by_type(_load(tmp_path, parts))

    user, item, tag = found.types
    assert (found.target, user.first_ids) == ("user", ("user/0", "user/1", "user/2"))
    assert item.isolated >= 2
    assert tag.features is None
    assert {one.name for one in found.relations if one.reverse_of} == {"rev_buys", "rev_has"}
    assert sum(one.nodes for one in found.labels.classes) == 30
    assert any("item have one value everywhere" in note for note in found.notes)


def _remove_nodes(parts: TypedParts) -> None:
    parts.nodes["tag"] = {"num_nodes": np.array(0)}


def _remove_edges(parts: TypedParts) -> None:
    parts.edges["item", "has", "tag"] = {"src": np.zeros(0, np.int32), "dst": np.zeros(0, np.int32)}


def _name_unknown(parts: TypedParts) -> None:
    parts.edges["user", "likes", "shop"] = {"src": np.zeros(1, np.int32), "dst": np.zeros(1, np.int32)}


def _point_outside(parts: TypedParts) -> None:
    parts.edges["item", "has", "tag"]["dst"][7] = 5


def _shorten(parts: TypedParts) -> None:
    parts.edges["item", "has", "tag"]["dst"] = parts.edges["item", "has", "tag"]["dst"][:3]


def _unlabel(parts: TypedParts) -> None:
    del parts.nodes["user"]["labels"]


def _label_two(parts: TypedParts) -> None:
    parts.nodes["item"]["labels"] = np.arange(20) % 2


def _reverse_twice(parts: TypedParts) -> None:
    parts.edges["item", "rev_buys", "user"] = parts.edges["user", "buys", "item"]
    parts.edges["item", "rev_buys", "user"] = {"src": np.zeros(1, np.int32), "dst": np.zeros(1, np.int32)}


def _negative_count(parts: TypedParts) -> None:
    parts.nodes["tag"]["num_nodes"] = np.array(-1)


def _narrow(parts: TypedParts) -> None:
    parts.nodes["item"]["features"] = parts.nodes["item"]["features"][:7]


def _nothing(_: TypedParts) -> None:
    """The options alone are wrong."""


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (_remove_nodes, {}, r"nodes_tag\.npz: type 'tag' has no nodes"),
        (_remove_edges, {}, r"edges_item__has__tag\.npz: relation 'item has tag' has no edges"),
        (_name_unknown, {}, r"likes__shop\.npz: names the target type 'shop', which no .*types are item, tag, user"),
        (_point_outside, {}, r"has__tag\.npz: dst\[7\]: is 5, expected 0 to 4, the nodes of type 'tag' \(1 such"),
        (_shorten, {}, r"has__tag\.npz: dst: has 3 entries, and .*src has 40"),
        (_unlabel, {}, r"no type has labels; types are item, tag, user"),
        (_label_two, {}, r"target: is absent, and several types have labels: item, user; name one"),
        (_reverse_twice, {}, r"reverse: is Add, and the reverse 'item rev_buys user' .* is a relation"),
        (_negative_count, {}, r"nodes_tag\.npz: num_nodes: is -1, expected a number from 0"),
        (_narrow, {}, r"nodes_item\.npz: features: have 7 rows, .*20 nodes"),
        (_nothing, {"target": "shop"}, r"target: is 'shop', which is no type; types are item, tag, user"),
        (_nothing, {"target": "tag"}, r"target: is 'tag', whose nodes have no labels; labels have user"),
        (_nothing, {"withoutFeatures": ["a"]}, r"withoutFeatures\[0\]: is 'a', which is no type; types are item, tag"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_place_and_what_there_is(
    tmp_path: Path, change: Callable[[TypedParts], None], options: dict[str, Any], message: str
) -> None:
    parts = shop()
    change(parts)

    with pytest.raises(InputError, match=message):
        _load(tmp_path, parts, **options)


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "people.csv").write_text("a")

    with pytest.raises(InputError, match=r"neither nodes_TYPE\.npz nor .*; it has people\.csv"):
        load_types(typed_source({"npz": {"uri": tmp_path.as_uri()}}))


@pytest.mark.parametrize("name", ["edges_user__buys.npz", "nodes_a b.npz"])
def test_names_of_files_that_say_too_little_are_refused(tmp_path: Path, name: str) -> None:
    given = write_folder(tmp_path, shop())
    np.savez(tmp_path / name, num_nodes=np.array(1))

    with pytest.raises(InputError, match=name.split(".", maxsplit=1)[0]):
        load_types(typed_source(given))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"nodes": {"user": 30, "item": 20}}', r"names the target type 'tag'"),
        ('{"nodes": {"user": 31, "item": 20, "tag": 5}}', r"user/x: have 30 rows"),
        ('{"nodes": {"user": -1}}', r"says -1 for 'user'"),
        ("[]", r"expected beside the tensors"),
    ],
)
def test_counts_beside_tensors_must_fit(tmp_path: Path, content: str, message: str) -> None:
    given = write_hetero(tmp_path, shop())
    (tmp_path / "graph.json").write_text(content)

    with pytest.raises(InputError, match=message):
        load_types(typed_source(given))


def test_the_exporter_of_the_page_writes_what_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from torch_geometric.data import HeteroData

    parts = shop()
    data = HeteroData()
    for name, arrays in parts.nodes.items():
        data[name].num_nodes = int(arrays["num_nodes"])
        called = {"features": "x", "labels": "y"}
        for key in arrays.keys() - {"num_nodes"}:
            data[name][called.get(key, key)] = torch.from_numpy(arrays[key])
    for edge, ends in parts.edges.items():
        data[edge].edge_index = torch.from_numpy(np.stack([ends["src"], ends["dst"]]).astype(np.int64))
    (exporter,) = code_blocks(read_page("data.md"), "py")
    monkeypatch.chdir(tmp_path)
    exec(exporter, {"data": data})  # noqa: S102

    found = load_types(typed_source({"heteroData": {"uri": (tmp_path / "graph.safetensors").as_uri()}}))

    same = _load(tmp_path / "folder", parts)
    assert [(one.key, one.lists.edges) for one in found.relations] == [
        (one.key, one.lists.edges) for one in same.relations
    ]
    assert found.type_named("tag").nodes == 5


def test_an_id_that_its_type_does_not_have_is_refused_or_dropped(tmp_path: Path) -> None:
    parts = shop()
    given = write_tables(tmp_path, parts)
    path = tmp_path / "item-has-tag.csv"
    path.write_text(path.read_text() + "19,99\n")

    with pytest.raises(InputError, match=r"line 42, column 'target': is '?99'?, which is no id of type 'tag'"):
        load_types(typed_source(given))

    given["csv"]["edges"][1]["dangling"] = "Drop"
    found = load_types(typed_source(given)).findings
    assert ("edges dropped, because an end is no node (item has tag)", 1) in {(one.what, one.count) for one in found}


@pytest.mark.parametrize("option", ["sourceType", "targetType"])
def test_tables_of_edges_name_types_that_exist(tmp_path: Path, option: str) -> None:
    given = write_tables(tmp_path, shop())
    given["csv"]["edges"][0][option] = "shop"

    with pytest.raises(InputError, match=rf"edges\[0\]\.{option}: is 'shop', .*types are user, item, tag"):
        load_types(typed_source(given))


def test_digests_of_graphs_are_those_of_earlier_releases(tmp_path: Path) -> None:
    """Names in the code may change; with another digest every such graph would be imported and learnt anew."""
    names = ["TypedFolder", "HeteroDataFile", "TypedParquet", "TypedCsv"]
    assert [layout().name for layout in load.LAYOUTS.values()] == names
    source = GraphSource.model_validate({"typed": write_folder(tmp_path, shop())})
    assert source_digest(source) == "c493c0288bd93029"
