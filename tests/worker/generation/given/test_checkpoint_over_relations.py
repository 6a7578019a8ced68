"""Messages about files of weights over several types, and advice about them that is not refused next."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.graphs.several_types import load_types, shop, typed_source, write_folder
from tests.support.models.hetero_pyg import CLASSES, HIDDEN, AttentionModel, HeteroModel, RelationalModel
from torch import nn

from gnnserve_api.spec.model import Checkpoint, Model
from gnnserve_worker.generation.checkpoint_over_relations import WantedOverRelations
from gnnserve_worker.graph.store import GraphData
from gnnserve_worker.models.architecture import RelationalShape
from gnnserve_worker.models.registry import Tensors, relational_spec_of
from gnnserve_worker.readers.misfit import MisfitError


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> GraphData:
    folder = tmp_path_factory.mktemp("typed")
    return load_types(typed_source(write_folder(folder / "graph", shop())))


def _state(model: nn.Module, data: GraphData) -> Tensors:
    with torch.no_grad():
        model(data)  # lazy widths
    return {key: tensor.numpy() for key, tensor in model.state_dict().items()}


def _renamed(state: Tensors, pattern: str, new: Any) -> Tensors:
    return {re.sub(pattern, new, key): tensor for key, tensor in state.items()}


def _attributes(state: Tensors) -> Tensors:
    return _renamed(state, r"convs\.(\d)\.convs", lambda found: f"conv{int(found[1]) + 1}.convs")


def _to_hetero(state: Tensors) -> Tensors:
    return _renamed(
        state, r"convs\.(\d)\.convs\.<(\w+?)___(\w+?)___(\w+?)>",
        lambda found: f"conv{int(found[1]) + 1}.{found[2]}__{found[3]}__{found[4]}",
    )  # fmt: skip


_FILES: dict[str, tuple[Callable[[GraphData], Tensors], str]] = {
    "as it is": (lambda data: _state(HeteroModel(data), data), ""),
    "attributes and too few fan-outs": (
        lambda data: _attributes(_state(HeteroModel(data, layers=3), data)),
        "give 3 fan-outs, one per layer",
    ),
    "names that tell no order": (
        lambda data: _renamed(
            _state(HeteroModel(data), data), r"convs\.(\d)\.convs", lambda found: ("first", "second")[int(found[1])]
        ),
        "its layers are called first, second, which tells no order; rename the keys by the order in which the model "
        "applies its layers, as in first.* to convs.0.*, second.* to convs.1.*",
    ),
    "attention": (
        lambda data: _state(AttentionModel(data), data),
        "so it holds a GAT, and spec.model.architecture is GraphSAGE; set spec.model.architecture to GAT, and set "
        "spec.model.heads to 2, and set spec.model.outputHeads to 3",
    ),
    "RGCN with bases": (
        lambda data: _state(RelationalModel(data, 2), data),
        "so it holds a RGCN, and spec.model.architecture is GraphSAGE; set spec.model.architecture to RGCN, and set "
        "spec.model.bases to 2",
    ),
    "three layers": (
        lambda data: _state(HeteroModel(data, layers=3), data),
        "give 3 fan-outs, one per layer",
    ),
    "a head": (
        lambda data: {**_state(HeteroModel(data), data), "lin.weight": np.ones((CLASSES, CLASSES), np.float32),
                      "lin.bias": np.ones(CLASSES, np.float32)},
        "and a Linear behind the last convolution (lin); lin.weight, lin.bias were not read; no architecture has "
        "such layers: ",
    ),
    "a Linear for each type": (
        lambda data: {**_state(HeteroModel(data), data),
                      **{f"lin_dict.{kind.name}.{name}": np.ones(shape, np.float32) for kind in data.types
                         for name, shape in {"weight": (HIDDEN, 5), "bias": (HIDDEN,)}.items()}},
        "lin_dict.user.weight, lin_dict.user.bias were not read",
    ),
    "GATv2": (
        lambda data: _renamed(_state(AttentionModel(data), data), r"att_src", "att"),
        "were not read; no architecture has such layers",
    ),
    "other relations": (
        lambda data: {key: one for key, one in _state(HeteroModel(data), data).items() if "knows" not in key},
        "has no convs.0.convs.<user___knows___user>.lin_l.weight, expected it",
    ),
}  # fmt: skip


def _check(state: Tensors, data: GraphData, fields: dict[str, Any]) -> Tensors:
    model = Model(
        **{"hidden": HIDDEN, "fanouts": (-1, -1), **fields}, checkpoint=Checkpoint(uri="file:///data/m.safetensors")
    )
    network = model.network(CLASSES)
    shape = RelationalShape(data.schema, model.hidden, CLASSES, network.layers, model.bases, network.attention)
    return WantedOverRelations(relational_spec_of(model.architecture), shape).fit(state)


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "model.", "encoder."])
@pytest.mark.parametrize("rename", [dict, _attributes, _to_hetero])
def test_names_are_read_over_types_as_over_one(
    data: GraphData, prefix: str, rename: Callable[[Tensors], Tensors]
) -> None:
    state = _state(HeteroModel(data), data)
    read = _check({f"{prefix}{key}": tensor for key, tensor in rename(state).items()}, data, {})
    assert read.keys() == state.keys()
    assert all(read[key] is state[key] for key in state)


def test_two_tensors_of_one_name_are_refused(data: GraphData) -> None:
    state = _state(HeteroModel(data), data)
    twice = {f"model.{key}": one for key, one in state.items() if key.startswith("embeddings.")}
    with pytest.raises(MisfitError, match=r"has model\.embeddings\."):
        _check({**state, **twice}, data, {})


@pytest.mark.parametrize("prefix", ["module.", "model."])
def test_a_prefix_of_rgcn_is_read(data: GraphData, prefix: str) -> None:
    state = _state(RelationalModel(data, 2), data)
    read = _check({f"{prefix}{key}": one for key, one in state.items()}, data, {"architecture": "RGCN", "bases": 2})
    assert read.keys() == state.keys()


@pytest.mark.parametrize("name", _FILES)
def test_advice_about_a_file_over_types_is_not_refused_next(data: GraphData, name: str) -> None:
    make, said = _FILES[name]
    state = make(data)
    try:
        _check(state, data, {})
    except MisfitError as refused:
        message = f"{refused.problem}; {refused.remedy}"
    else:
        assert not said
        return
    assert said
    assert said in message
    fields: dict[str, Any] = {}
    for field, value in re.findall(r"set spec\.model\.(\w+) to (\w+)", message):
        fields[{"outputHeads": "output_heads"}.get(field, field)] = int(value) if value.isdigit() else value
    if (layers := re.search(r"give (\d+) fan-outs", message)) is not None:
        fields["fanouts"] = (-1,) * int(layers[1])
    changed = state
    for old, new in re.findall(r"([\w.<>]+)\.\* to ([\w.<>]+)\.\*", message):
        changed = {
            f"{new}{key.removeprefix(old)}" if key.startswith(f"{old}.") else key: one for key, one in changed.items()
        }
    if changed.keys() == state.keys() and not fields:
        assert "gnnserve-describe" in message or "gnnserve graph inspect" in message
        return
    _check(changed, data, fields)
