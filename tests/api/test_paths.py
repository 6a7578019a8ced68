"""Paths in a manifest: every field takes every form, and each form is looked for in one place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel, ValidationError

from gnnserve_api.manifest import STANDARD_INPUT, folder_of, load_manifest
from gnnserve_api.spec.paths import BASE_CONTEXT, DataPath, DataVolume, ManifestFolder, PathBase, paths_of, resolve
from gnnserve_api.spec.service import GNNServiceSpec

LAPTOP = ManifestFolder(Path("/work/shop"), Path("/home/me"))
CLUSTER = DataVolume(Path("/data"))
TABLES = {"nodes": {"uri": "a", "label": "l"}, "edges": {"uri": "a"}}
TYPED_TABLES = {
    "nodes": [{"type": "t", "uri": "a", "label": "l"}],
    "edges": [{"uri": "a", "sourceType": "t", "relation": "r", "targetType": "t"}],
}
DIGITS: dict[str, Any] = {"graph": {"source": {"builtin": "Digits"}}}


def typed(**source: Any) -> dict[str, Any]:
    return {"graph": {"source": {"typed": source}}}


GIVEN_PROGRAM: dict[str, Any] = {"program": {"uri": "a"}, "expected": {"uri": "a"}}
WITH_DECODER: dict[str, Any] = {"program": {"uri": "a", "decoder": {"uri": "a"}}, "expected": {"uri": "a"}}
SPECS: dict[str, dict[str, Any]] = {
    "graph.source.npz.uri": {"graph": {"source": {"npz": {"uri": "a"}}}},
    "graph.source.ogb.mirror": {"graph": {"source": {"ogb": {"name": "ogbn-arxiv", "mirror": "a"}}}},
    "graph.source.pyg.mirror": {"graph": {"source": {"pyg": {"name": "Cora", "mirror": "a"}}}},
    "graph.source.parquet.nodes.uri": {"graph": {"source": {"parquet": TABLES}}},
    "graph.source.parquet.edges.uri": {"graph": {"source": {"parquet": TABLES}}},
    "graph.source.csv.nodes.uri": {"graph": {"source": {"csv": TABLES}}},
    "graph.source.csv.edges.uri": {"graph": {"source": {"csv": TABLES}}},
    "graph.source.typed.npz.uri": typed(npz={"uri": "a"}),
    "graph.source.typed.heteroData.uri": typed(heteroData={"uri": "a"}),
    "graph.source.typed.parquet.nodes[0].uri": typed(parquet=TYPED_TABLES),
    "graph.source.typed.parquet.edges[0].uri": typed(parquet=TYPED_TABLES),
    "graph.source.typed.csv.nodes[0].uri": typed(csv=TYPED_TABLES),
    "graph.source.typed.csv.edges[0].uri": typed(csv=TYPED_TABLES),
    "model.checkpoint.uri": {**DIGITS, "model": {"checkpoint": {"uri": "a"}}},
    "model.checkpoint.decoder.uri": {
        **DIGITS,
        "model": {"checkpoint": {"uri": "a", "decoder": {"uri": "a"}}},
        "task": {"links": {"decoder": "MLP"}},
    },
    "model.expected.uri": {
        **DIGITS,
        "model": {"checkpoint": {"uri": "file:///m.safetensors"}, "expected": {"uri": "a"}},
    },
    "model.program.uri": {**DIGITS, "model": GIVEN_PROGRAM},
    "model.program.decoder.uri": {**DIGITS, "model": WITH_DECODER, "task": {"links": {"decoder": "MLP"}}},
    "variants.given[0].checkpoint.uri": {
        **DIGITS,
        "variants": {"given": [{"checkpoint": {"uri": "a"}, "columns": [0]}]},
    },
    "variants.given[0].checkpoint.decoder.uri": {
        **DIGITS,
        "model": {"checkpoint": {"uri": "a", "decoder": {"uri": "a"}}},
        "variants": {"given": [{"checkpoint": {"uri": "a", "decoder": {"uri": "a"}}, "columns": [0]}]},
        "task": {"links": {"decoder": "MLP"}},
    },
    "variants.given[0].program.uri": {
        **DIGITS,
        "model": GIVEN_PROGRAM,
        "variants": {"given": [GIVEN_PROGRAM]},
    },
    "variants.given[0].program.decoder.uri": {
        **DIGITS,
        "model": WITH_DECODER,
        "variants": {"given": [WITH_DECODER]},
        "task": {"links": {"decoder": "MLP"}},
    },
    "variants.given[0].expected.uri": {
        **DIGITS,
        "variants": {
            "given": [{"checkpoint": {"uri": "file:///m.safetensors"}, "expected": {"uri": "a"}, "columns": [0]}]
        },
    },
}
"""A spec for each field that names a file."""
TENSORS = ("heteroData.uri", "checkpoint.uri", "expected.uri", "decoder.uri")
"""Ends of fields that name a .safetensors file, or stand beside one that does."""


def fields_of(model: type[BaseModel], prefix: str = "") -> set[str]:
    """Every field of the type that names a file, or is called as such fields are."""
    found = set()
    for name, field in model.model_fields.items():
        place = f"{prefix}{field.alias or name}"
        is_list = getattr(field.annotation, "__origin__", None) is tuple
        kinds = [field.annotation, *get_args(field.annotation)]
        inner = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
        if DataPath in kinds or name in {"uri", "mirror", "path"}:
            found.add(place)
        for kind in inner:
            found |= fields_of(kind, f"{place}{'[0]' if is_list else ''}.")
    return found


def written(field: str, name: str) -> dict[str, Any]:
    """The spec of a field, with this name of a file in every path of it."""
    ending = ".safetensors" if field.endswith(TENSORS) else ""
    return {key: _replaced(value, name + ending) for key, value in SPECS[field].items()}


def _replaced(value: Any, name: str) -> Any:
    if isinstance(value, dict):
        return {key: name if key in {"uri", "mirror"} else _replaced(inner, name) for key, inner in value.items()}
    return [_replaced(inner, name) for inner in value] if isinstance(value, list) else value


def path_of(field: str, name: str, base: PathBase) -> Path:
    spec = GNNServiceSpec.model_validate(written(field, name), context={BASE_CONTEXT: base})
    found = {one.field: one.value.path for one in paths_of(spec)}
    path = found[f"spec.{field}"]
    return path.with_suffix("") if field.endswith(TENSORS) else path


def path_in(manifest: Path) -> Path:
    (found,) = paths_of(load_manifest(manifest).spec)
    return found.value.path


def test_every_field_that_names_a_file_is_tried_here_and_is_of_the_one_type() -> None:
    assert fields_of(GNNServiceSpec) == set(SPECS)
    for field in SPECS:
        spec = GNNServiceSpec.model_validate(written(field, "a"))
        assert f"spec.{field}" in {one.field for one in paths_of(spec)}


@pytest.mark.parametrize("field", SPECS)
@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("nodes", "/work/shop/nodes"),
        ("./my data/nodes #1 100%", "/work/shop/my data/nodes #1 100%"),
        ("../other/nodes", "/work/shop/../other/nodes"),
        ("~/nodes", "/home/me/nodes"),
        ("/data/a b", "/data/a b"),
        ("file:///data/a%20b", "/data/a b"),
        ("~nodes", "/work/shop/~nodes"),
    ],
)
def test_on_a_laptop_every_field_takes_every_form(field: str, name: str, path: str) -> None:
    assert path_of(field, name, LAPTOP) == Path(path)


@pytest.mark.parametrize("field", SPECS)
@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("nodes", "/data/nodes"),
        ("./parts/nodes", "/data/parts/nodes"),
        ("/else/where", "/else/where"),
        ("file:///else/a%20b", "/else/a b"),
    ],
)
def test_in_a_pod_a_relative_path_is_on_the_volume_of_the_data(field: str, name: str, path: str) -> None:
    assert path_of(field, name, CLUSTER) == Path(path)


@pytest.mark.parametrize("field", SPECS)
@pytest.mark.parametrize(
    ("name", "base", "words"),
    [
        ("~/nodes", CLUSTER, "must not begin with ~ in a cluster"),
        ("~nodes", CLUSTER, "must not begin with ~ in a cluster"),
        ("../nodes", CLUSTER, "must not have .. in a cluster"),
        ("parts/../../nodes", CLUSTER, "must not have .. in a cluster"),
        ("nodes", DataVolume(None), "add spec.graph.volume"),
        ("~/nodes", ManifestFolder(Path("/work"), None), "the user has no home"),
    ],
)
def test_what_cannot_be_found_from_there_is_refused_with_its_field(
    field: str, name: str, base: PathBase, words: str
) -> None:
    with pytest.raises(ValidationError, match=words):
        GNNServiceSpec.model_validate(written(field, name), context={BASE_CONTEXT: base})


def test_a_graph_of_another_ending_is_not_advised_to_be_written_as_a_model_is() -> None:
    spec = typed(heteroData={"uri": "graph.pt"})
    with pytest.raises(ValidationError, match=r"as in data/graph\.safetensors; docs/data\.md has the lines") as refused:
        GNNServiceSpec.model_validate(spec)
    assert "state_dict" not in str(refused.value)


@pytest.mark.parametrize("field", SPECS)
def test_moving_the_folder_changes_nothing_of_the_recipe(field: str) -> None:
    spec = written(field, "parts/nodes")
    there = ManifestFolder(Path("/elsewhere"), Path("/home/you"))
    recipes = {
        GNNServiceSpec.model_validate(spec, context={BASE_CONTEXT: base}).recipe()
        for base in (LAPTOP, there, CLUSTER, None)
    }
    assert len(recipes) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [("nodes", "./nodes"), ("a/b", "a//b"), ("/data/a b", "file:///data/a%20b"), ("~/a", "~//a")],
)
def test_two_ways_to_write_a_path_have_one_recipe(one: str, other: str) -> None:
    recipes = {
        GNNServiceSpec.model_validate({"graph": {"source": {"npz": {"uri": name}}}}).recipe() for name in (one, other)
    }
    assert len(recipes) == 1


def test_a_spec_is_told_as_it_was_written() -> None:
    spec = {"graph": {"source": {"npz": {"uri": "./a b//c.npz"}}}}
    told = GNNServiceSpec.model_validate(spec, context={BASE_CONTEXT: LAPTOP})
    assert told.model_dump(mode="json", by_alias=True, exclude_defaults=True) == spec


def test_a_relative_path_without_a_base_is_no_path() -> None:
    with pytest.raises(ValueError, match="nothing says to which folder"):
        resolve("nodes.csv", None)


def test_an_address_of_a_mirror_is_no_path() -> None:
    spec = GNNServiceSpec.model_validate(
        {"graph": {"source": {"pyg": {"name": "Cora", "mirror": "https://mirror/cora"}}}},
        context={BASE_CONTEXT: CLUSTER},
    )
    assert paths_of(spec) == ()


def test_relative_paths_begin_in_the_folder_that_the_manifest_was_given_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, elsewhere = tmp_path / "shop", tmp_path / "links"
    folder.mkdir()
    elsewhere.mkdir()
    head = {"apiVersion": "gnnserve.dev/v1alpha1", "kind": "GNNService", "metadata": {"name": "a"}}
    spec = {"graph": {"source": {"npz": {"uri": "a.npz"}}}}
    (folder / "m.yaml").write_text(json.dumps({**head, "spec": spec}))
    (elsewhere / "m.yaml").symlink_to(folder / "m.yaml")
    monkeypatch.chdir(tmp_path)
    found = [path_in(Path(name)) for name in ("shop/m.yaml", str(folder / "m.yaml"))]
    assert found == [folder / "a.npz"] * 2
    assert path_in(Path("links/m.yaml")) == elsewhere / "a.npz"
    assert folder_of(STANDARD_INPUT) == folder_of(Path("/dev/null")) == ManifestFolder(tmp_path, Path.home())


def test_the_api_server_asks_for_a_volume_of_every_field_that_names_a_file() -> None:
    rule = GNNServiceSpec._relative_paths_have_a_volume.cel
    for field in SPECS:
        ending = field.rpartition("]")[2].removeprefix(".") if "[" in field else ""
        place = f"each.{ending}" if ending else f"self.{field}"
        assert f"{place}.matches(" in rule, field
        if ending:
            assert f"self.{field.partition('[')[0]}.all(each, " in rule, field


RECIPES_OF_URIS = {
    "graph.source.npz.uri": "53c08a64e99648b0",
    "graph.source.ogb.mirror": "0cf56ce8da5a82cb",
    "graph.source.pyg.mirror": "db240c6aadc5e472",
    "graph.source.parquet.nodes.uri": "84393fd1dfeb7202",
    "graph.source.parquet.edges.uri": "84393fd1dfeb7202",
    "graph.source.csv.nodes.uri": "7eeb2728263f1963",
    "graph.source.csv.edges.uri": "7eeb2728263f1963",
    "graph.source.typed.npz.uri": "4292a8d0e40b752b",
    "graph.source.typed.heteroData.uri": "89dc53d3b23ff9cc",
    "graph.source.typed.parquet.nodes[0].uri": "8e8437f89de571b6",
    "graph.source.typed.parquet.edges[0].uri": "8e8437f89de571b6",
    "graph.source.typed.csv.nodes[0].uri": "8c810e5c0cdebd7a",
    "graph.source.typed.csv.edges[0].uri": "8c810e5c0cdebd7a",
    "model.checkpoint.uri": "4d1c2df09704fe81",
    "variants.given[0].checkpoint.uri": "02d925d58f184321",
}
"""Recipes that specs had when URIs were the only form, for file:///data/a%20b."""


@pytest.mark.parametrize("field", RECIPES_OF_URIS)
def test_a_stored_spec_with_uris_is_not_trained_again(field: str) -> None:
    assert GNNServiceSpec.model_validate(written(field, "file:///data/a%20b")).recipe() == RECIPES_OF_URIS[field]
