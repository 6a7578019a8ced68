"""Expected scores over several types: compared, and told apart by how relations combine and how they are numbered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from tests.support.graphs.several_types import load_types, shop, typed_source, write_folder
from tests.support.models.hetero_pyg import HIDDEN, AttentionModel, HeteroModel, RelationalModel
from torch import nn

from gnnserve_api.errors import InputError
from gnnserve_api.spec.service import GNNService
from gnnserve_worker.generation.pipeline import generate
from gnnserve_worker.graph.store import GraphData
from gnnserve_worker.repository.repository import Repository


@pytest.fixture
def given(tmp_path: Path) -> dict[str, Any]:
    return write_folder(tmp_path / "graph", shop())


def _data(given: dict[str, Any]) -> GraphData:
    return load_types(typed_source(given))


def _generate(folder: Path, given: dict[str, Any], model: nn.Module, scores: np.ndarray, **fields: Any) -> Any:
    state = {key: value.contiguous() for key, value in model.state_dict().items()}
    safetensors.torch.save_file(state, folder / "model.safetensors")
    np.savez(folder / "expected.npz", nodes=np.arange(len(scores)), scores=scores)
    spec = {
        "graph": {"source": {"typed": given}},
        "model": {
            "hidden": HIDDEN, "fanouts": [-1, -1], **fields,
            "checkpoint": {"uri": (folder / "model.safetensors").as_uri()},
            "expected": {"uri": (folder / "expected.npz").as_uri()},
        },
    }  # fmt: skip
    body = {"apiVersion": "gnnserve.dev/v1alpha1", "kind": "GNNService", "metadata": {"name": "shop"}, "spec": spec}
    return generate(GNNService.model_validate(body), Repository(folder / "repository", "default", "shop"))


def _scores(model: nn.Module, data: GraphData) -> np.ndarray:
    with torch.no_grad():
        return model.eval()(data).numpy()


@pytest.mark.parametrize(
    ("make", "fields"),
    [
        (HeteroModel, {}),
        (AttentionModel, {"architecture": "GAT", "heads": 2, "outputHeads": 3}),
        (lambda data: RelationalModel(data, 2), {"architecture": "RGCN", "bases": 2}),
    ],
    ids=["GraphSAGE", "GAT", "RGCN"],
)
def test_scores_over_types_that_are_equal_are_recorded(
    tmp_path: Path, given: dict[str, Any], make: Any, fields: dict[str, Any]
) -> None:
    data = _data(given)
    model = make(data)
    scores = _scores(model, data)

    made = _generate(tmp_path, given, model, scores, **fields)

    assert made.compared[0].nodes == len(scores)
    assert made.compared[0].difference_permille < 0.01
    assert "relations" in made.assumptions


def test_the_mean_of_relations_is_told_from_their_sum(tmp_path: Path, given: dict[str, Any]) -> None:
    data = _data(given)
    model = HeteroModel(data)
    for conv in model.convs:
        conv.aggr = "mean"
    scores = _scores(model, data)

    with pytest.raises(InputError, match=r"with the mean of what relations give the scores are equal to .*cannot be"):
        _generate(tmp_path, given, model, scores)


def test_relations_that_are_numbered_otherwise_are_found(tmp_path: Path, given: dict[str, Any]) -> None:
    data = _data(given)
    model = RelationalModel(data, None)
    scores = _scores(model, data)
    with torch.no_grad():
        for conv in model.convs:
            conv.weight.copy_(conv.weight.flip(0))

    with pytest.raises(InputError, match=r"with relations numbered as .* the scores are equal to .*number them as"):
        _generate(tmp_path, given, model, scores, architecture="RGCN")


def test_an_activation_is_found_over_types_too(tmp_path: Path, given: dict[str, Any]) -> None:
    data = _data(given)
    model = HeteroModel(data)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(torch.Tensor, "relu", torch.nn.functional.elu)
        scores = _scores(model, data)

    with pytest.raises(InputError, match=r"with ELU between layers the scores are equal to"):
        _generate(tmp_path, given, model, scores)
