"""Variants that the user gives: their columns and files, and what is said of those that do not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from tests.support.graphs.graphs import network_manifest, planted_graph, random_tensors

from gnnserve_api.errors import InputError
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_worker.generation.given_variants import given_digests, load_given, resolve_columns
from gnnserve_worker.graph.store import FeatureColumn

GRAPH = planted_graph((0, 1), nodes=20, columns=4, classes=(0, 1, 2))
SOURCE = (FeatureColumn("age", 1), FeatureColumn("words", 3), FeatureColumn("fee", 1))


@pytest.mark.parametrize(
    ("stated", "columns"),
    [
        pytest.param(["fee", "age"], [4, 0], id="names in the order of the list"),
        pytest.param(["words", 0], [1, 2, 3, 0], id="a column of lists is all of its features"),
        pytest.param([2, 4, 1], [2, 4, 1], id="indices among the features"),
    ],
)
def test_columns_are_resolved_in_their_order(stated: list[int | str], columns: list[int]) -> None:
    assert resolve_columns("c", stated, SOURCE, features=5).tolist() == columns


KNOWN = "which is no feature column of the graph; it has age, words, fee"
ONCE = "list each column once"


@pytest.mark.parametrize(
    ("stated", "named", "message"),
    [
        pytest.param(["ages"], SOURCE, f"names 'ages', {KNOWN}; did you mean 'age'?", id="a slip of a name"),
        pytest.param(["zip"], SOURCE, f"names 'zip', {KNOWN}; name some of these", id="another name"),
        pytest.param(
            ["age"],
            (),
            "names 'age', and this source gives its features no names; list their indices, from 0",
            id="a source without names",
        ),
        pytest.param(
            [5], SOURCE, "lists 5, and the graph has 5 features; use indices from 0 to 4", id="beyond the last feature"
        ),
        pytest.param([1, 1], SOURCE, f"lists 1 twice; {ONCE}", id="an index twice"),
        pytest.param(
            ["words", 3], SOURCE, f"lists 'words' and 3, which is the same feature; {ONCE}", id="by name and by index"
        ),
    ],
)
def test_columns_that_are_not_there_are_named(
    stated: list[int | str], named: tuple[FeatureColumn, ...], message: str
) -> None:
    with pytest.raises(InputError) as refused:
        resolve_columns("c", stated, named, features=5)
    assert str(refused.value) == f"c: {message}"


def _spec(folder: Path, columns: list[int], tensors: dict[str, np.ndarray], **model: Any) -> GNNServiceSpec:
    path = folder / "own.safetensors"
    safetensors.numpy.save_file(tensors, path)
    given = {"checkpoint": {"uri": path.as_uri()}, "columns": columns, "name": "own"}
    return GNNServiceSpec.model_validate(
        {
            "graph": {"source": {"builtin": "Digits"}},
            "model": {"hidden": 8, "fanouts": [4, 3], **model},
            "variants": {"given": [given]},
        }
    )


def _tensors(columns: int, architecture: str = "GraphSAGE", classes: int = 3) -> dict[str, np.ndarray]:
    return random_tensors(network_manifest(architecture, (4, 3), classes=classes), columns, seed=0)


def test_a_given_variant_is_read_with_its_columns(tmp_path: Path) -> None:
    tensors = _tensors(2)
    spec = _spec(tmp_path, [3, 1], tensors)

    (found,) = load_given(spec, given_digests(spec.variants), GRAPH)

    assert (found.name, found.columns.tolist()) == ("own", [3, 1])
    np.testing.assert_array_equal(found.tensors["convs.0.lin_l.weight"], tensors["convs.0.lin_l.weight"])


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        pytest.param(
            _tensors(3),
            "convs.0.lin_l.weight is [8, 3], expected [8, 2]; spec.variants.given[0].columns are 2 features, and the "
            "first layer reads 3: list the columns that it was trained on",
            id="columns",
        ),
        pytest.param(_tensors(2, classes=5), "and the model gives 5: label a node of each class", id="classes"),
        pytest.param(
            _tensors(2, "GIN"),
            "so it holds a GIN, and spec.model.architecture is GraphSAGE; set spec.model.architecture to GIN",
            id="architecture",
        ),
    ],
)
def test_weights_that_do_not_fit_say_what_to_change(
    tmp_path: Path, tensors: dict[str, np.ndarray], message: str
) -> None:
    spec = _spec(tmp_path, [3, 1], tensors)
    with pytest.raises(InputError) as refused:
        load_given(spec, given_digests(spec.variants), GRAPH)
    assert str(refused.value).startswith("spec.variants.given[0].checkpoint.uri: ")
    assert message in str(refused.value)


def test_a_pinned_file_must_be_that_file(tmp_path: Path) -> None:
    spec = _spec(tmp_path, [3, 1], _tensors(2))
    (given,) = spec.variants.given
    pinned = given.model_copy(update={"checkpoint": given.checkpoint.model_copy(update={"sha256": "0" * 64})})
    with pytest.raises(InputError, match=r"^spec\.variants\.given\[0\]\.checkpoint\.sha256: .* expected 0000"):
        given_digests(spec.variants.model_copy(update={"given": (pinned,)}))
