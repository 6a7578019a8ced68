"""Addresses of the Hugging Face Hub in manifests: which are taken, and what is said of others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from gnnserve_api.spec.hub import PROGRAM, TENSORS, HubAddress
from gnnserve_api.spec.paths import (
    BASE_CONTEXT,
    DataPath,
    DataVolume,
    FetchedFile,
    hub_paths_of,
    paths_of,
    resolve,
    with_paths,
)
from gnnserve_api.spec.service import GNNServiceSpec

COMMIT = "0123456789abcdef0123456789abcdef01234567"
ADDRESS = f"hf://lab/papers@{COMMIT}"
GRAPH: dict[str, Any] = {"source": {"builtin": "Digits"}}


def _spec(uri: str, **parts: Any) -> GNNServiceSpec:
    return GNNServiceSpec.model_validate({"graph": GRAPH, "model": {"checkpoint": {"uri": uri}}, **parts})


@pytest.mark.parametrize(
    ("uri", "file"),
    [
        (ADDRESS, "model.safetensors"),
        (f"{ADDRESS}/a.safetensors", "a.safetensors"),
        (f"hf://A-b_1/x.y-z@{COMMIT}/parts/m-1.0.safetensors", "parts/m-1.0.safetensors"),
    ],
)
def test_an_address_names_a_file_of_a_commit(uri: str, file: str) -> None:
    (one,) = hub_paths_of(_spec(uri))
    assert one.field == "spec.model.checkpoint.uri" and str(one.value) == uri
    assert one.value.hub is not None and (one.value.hub.commit, one.value.hub.file) == (COMMIT, file)
    assert one.value.is_absolute and one.value.is_remote and not one.value.is_address
    assert paths_of(_spec(uri)) == ()


REFUSED = {
    "hf://lab/papers": "must name a commit by its 40 digits, .* none is given: .*lab/papers HEAD` tells the commit",
    "hf://lab/papers@main": "main is none: a branch or a tag may mean another file tomorrow; .*lab/papers main`",
    "hf://lab/papers@0123456": "0123456 is none: .* HEAD` tells the commit",
    "hf://papers@main": "must name a repository and a commit, .* papers is no org/name",
    f"hf://lab/papers@{COMMIT.upper()}": "must name a commit by its 40 digits",
    f"{ADDRESS}/pytorch_model.bin": "must name a .safetensors file of the repository, .* pytorch_model.bin is none",
    f"{ADDRESS}/../a.safetensors": "is none: other files are not read",
    f"{ADDRESS}/": "must name a .safetensors file",
}


@pytest.mark.parametrize("uri", REFUSED)
def test_another_form_is_refused_with_what_to_write(uri: str) -> None:
    with pytest.raises(ValidationError, match=REFUSED[uri]):
        _spec(uri)


def test_programs_are_onnx_and_graphs_are_no_models() -> None:
    assert PROGRAM.problem(ADDRESS) is None and PROGRAM.problem(f"{ADDRESS}/m.onnx") is None
    assert "must name a .onnx file" in (PROGRAM.problem(f"{ADDRESS}/m.safetensors") or "")
    with pytest.raises(ValidationError, match=r"must be a path, as in data/graph\.npz"):
        GNNServiceSpec.model_validate({"graph": {"source": {"npz": {"uri": ADDRESS}}}})


def test_an_address_needs_no_volume_and_has_one_recipe() -> None:
    specs = [
        GNNServiceSpec.model_validate(
            {"graph": GRAPH, "model": {"checkpoint": {"uri": ADDRESS}}}, context={BASE_CONTEXT: base}
        )
        for base in (None, DataVolume(None), DataVolume(Path("/data")))
    ]
    assert len({one.recipe() for one in specs}) == 1


def test_a_file_takes_the_place_of_an_address_and_the_recipe_stays() -> None:
    spec = _spec(ADDRESS)
    (one,) = hub_paths_of(spec)
    with pytest.raises(ValueError, match="was not fetched"):
        resolve(ADDRESS, None)
    placed = with_paths(spec, {one.value: DataPath(ADDRESS, FetchedFile(Path("/kept/m")), one.value.hub_file)})
    assert placed.model.checkpoint is not None and placed.model.checkpoint.uri.path == Path("/kept/m")
    assert placed.recipe() == spec.recipe()
    assert with_paths(spec, {}) is spec
    told = placed.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    assert told == spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)


def test_given_variants_may_lie_there_too() -> None:
    given = [{"checkpoint": {"uri": f"{ADDRESS}/small.safetensors"}, "columns": [0]}]
    spec = GNNServiceSpec.model_validate({"graph": GRAPH, "variants": {"given": given}})
    (one,) = hub_paths_of(spec)
    assert one.field == "spec.variants.given[0].checkpoint.uri"
    placed = with_paths(spec, {one.value: DataPath(str(one.value), FetchedFile(Path("/m")), one.value.hub_file)})
    assert placed.variants.given[0].weights.uri.path == Path("/m")


def test_the_default_file_is_the_fields() -> None:
    assert HubAddress.parse(ADDRESS, TENSORS.default) != HubAddress.parse(ADDRESS, PROGRAM.default)
    assert HubAddress.parse("hf://lab/papers@main", TENSORS.default) is None
