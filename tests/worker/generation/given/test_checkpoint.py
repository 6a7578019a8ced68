"""Weights that a user gives: read without torch, and refused with what to change."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch
from tests.support.models.pyg import module_of, to_tensors
from torch.nn import Linear, ReLU, Sequential, functional

from gnnserve_api.errors import InputError
from gnnserve_api.spec.model import Architecture, Checkpoint, Model
from gnnserve_worker.generation.checkpoint import checkpoint_digest, load_checkpoint
from gnnserve_worker.generation.checkpoint_layout import layout_of
from gnnserve_worker.generation.checkpoint_over_rows import WantedOverRows
from gnnserve_worker.generation.networks import build_module
from gnnserve_worker.models.registry import Tensors

COLUMNS, HIDDEN, CLASSES = 6, 8, 3
ARCHITECTURES = pytest.mark.parametrize("architecture", ["GraphSAGE", "GIN"])


def _state(architecture: str = "GraphSAGE", layers: int = 2, **widths: int | None) -> dict[str, torch.Tensor]:
    sizes: dict[str, Any] = {"columns": COLUMNS, "hidden": HIDDEN, "classes": CLASSES, **widths}
    state: dict[str, torch.Tensor] = module_of(architecture, (5,) * layers, **sizes).state_dict()
    return state


def _save(folder: Path, state: dict[str, torch.Tensor]) -> Path:
    path = folder / "model.safetensors"
    safetensors.torch.save_file(state, path)
    return path


def _load(
    path: Path,
    architecture: str = "GraphSAGE",
    columns: int = COLUMNS,
    classes: int = CLASSES,
    mlp_hidden: int | None = None,
) -> Tensors:
    model = Model(
        architecture=architecture,
        hidden=HIDDEN,
        mlp_hidden=mlp_hidden,
        fanouts=(25, 10),
        checkpoint=Checkpoint(uri=path.as_uri()),
    )
    assert model.checkpoint is not None
    return load_checkpoint(model.checkpoint, checkpoint_digest(model) or "", WantedOverRows(model, columns, classes))


@ARCHITECTURES
def test_a_state_dict_of_pyg_is_read_as_it_is(tmp_path: Path, architecture: str) -> None:
    state = _state(architecture)

    tensors = _load(_save(tmp_path, state), architecture)

    assert tensors.keys() == state.keys()
    for key, tensor in tensors.items():
        assert tensor.dtype == np.float32
        np.testing.assert_array_equal(tensor, state[key].numpy())


def test_a_gin_of_another_width_inside_is_read_where_the_manifest_says_so(tmp_path: Path) -> None:
    state = _state("GIN", mlp_hidden=5)

    tensors = _load(_save(tmp_path, state), "GIN", mlp_hidden=5)

    assert tensors["convs.0.nn.lins.0.weight"].shape == (5, COLUMNS)
    assert tensors["convs.1.nn.lins.1.weight"].shape == (CLASSES, 5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_other_floats_are_widened(tmp_path: Path, dtype: torch.dtype) -> None:
    state = {key: tensor.to(dtype) for key, tensor in _state().items()}

    tensors = _load(_save(tmp_path, state))

    for key, tensor in tensors.items():
        np.testing.assert_array_equal(tensor, state[key].float().numpy())


def test_what_generation_writes_can_be_given_back(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    tensors = to_tensors(build_module(Model(hidden=HIDDEN), COLUMNS, CLASSES))
    safetensors.numpy.save_file(tensors, path)

    again = _load(path)

    assert all(np.array_equal(again[key], tensor) for key, tensor in tensors.items())


class _Tutorial(torch.nn.Module):
    """As https://pytorch-geometric.readthedocs.io/en/latest/get_started/introduction.html writes a model."""

    def __init__(self, architecture: str, hidden: int = HIDDEN) -> None:
        super().__init__()
        import torch_geometric.nn as pyg  # it warns where `networks` was not imported before

        self.conv1, self.conv2 = (
            pyg.SAGEConv(*widths)
            if architecture == "GraphSAGE"
            else pyg.GINConv(
                Sequential(Linear(widths[0], widths[1]), ReLU(), Linear(widths[1], widths[1])), train_eps=True
            )
            for widths in ((COLUMNS, hidden), (hidden, CLASSES))
        )

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        hidden = functional.dropout(functional.relu(self.conv1(x, edges)), training=self.training)
        scores: torch.Tensor = self.conv2(hidden, edges)
        return scores


def _tutorial(architecture: str, hidden: int = HIDDEN) -> _Tutorial:
    torch.manual_seed(3)
    return _Tutorial(architecture, hidden).eval()


def _tutorial_state(architecture: str, hidden: int = HIDDEN) -> dict[str, torch.Tensor]:
    return _tutorial(architecture, hidden).state_dict()


@ARCHITECTURES
@pytest.mark.parametrize("prefix", ["", "module.", "encoder.model."])
def test_a_model_as_the_tutorial_of_pyg_writes_it_gives_the_same_scores(
    tmp_path: Path, architecture: str, prefix: str
) -> None:
    module = _tutorial(architecture)
    path = _save(tmp_path, {f"{prefix}{key}": tensor for key, tensor in module.state_dict().items()})
    features, edges = torch.randn(20, COLUMNS), torch.randint(0, 20, (2, 60))

    known = build_module(Model(architecture=architecture, hidden=HIDDEN), COLUMNS, CLASSES).eval()
    known.load_state_dict({key: torch.from_numpy(tensor) for key, tensor in _load(path, architecture).items()})

    with torch.no_grad():
        torch.testing.assert_close(known(features, edges), module(features, edges))


def test_layers_are_taken_in_the_order_of_their_numbers_and_not_of_their_letters() -> None:
    keys = [
        f"sage_{layer}.{weight}" for layer in (2, 10, 9) for weight in ("lin_l.weight", "lin_l.bias", "lin_r.weight")
    ]

    layout = layout_of(keys, Architecture.GRAPHSAGE)

    assert layout.layers == ("sage_2", "sage_9", "sage_10")
    assert layout.keys["convs.2.lin_r.weight"] == "sage_10.lin_r.weight"


def _renamed(**names: str) -> dict[str, torch.Tensor]:
    return {names.get(key, key): tensor for key, tensor in _state().items()}


def _without(key: str) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in _state().items() if name != key}


@pytest.mark.parametrize(
    ("state", "given", "problem"),
    [
        pytest.param(
            _state("GIN"), {},
            "looks like 2 GINConv layers (convs.0, convs.1), so it holds a GIN, and spec.model.architecture is "
            "GraphSAGE; set spec.model.architecture to GIN", id="another architecture",
        ),
        pytest.param(
            _state(layers=3), {}, "has 3 layers, and spec.model.fanouts has 2 entries; give 3 fan-outs, one per layer",
            id="another depth",
        ),
        pytest.param(
            _state(hidden=16), {},
            "convs.0.lin_l.weight is [16, 6], expected [8, 6]; set spec.model.hidden to 16", id="another width",
        ),
        pytest.param(
            _state(), {"columns": 7},
            "convs.0.lin_l.weight is [8, 6], expected [8, 7]; the graph has 7 feature columns: give the graph that the "
            "model was trained on", id="another graph",
        ),
        pytest.param(
            _state(), {"classes": 5},
            "convs.1.lin_l.weight is [3, 8], expected [5, 8]; the labels of the graph have 5 classes, and the model "
            "gives 3: give the labels that the model was trained on", id="fewer classes",
        ),
        pytest.param(
            _state(classes=5), {},
            "convs.1.lin_l.weight is [5, 8], expected [3, 8]; the labels of the graph have 3 classes, and the model "
            "gives 5: label a node of each class", id="more classes",
        ),
        pytest.param(
            _state(classes=1), {},
            "the model gives 1, as a regression does, or one logit for two classes: neither is served yet",
            id="one number for each node",
        ),
        pytest.param(
            _state("GIN", classes=4), {"architecture": "GIN"},
            "convs.1.nn.lins.1.weight is [4, 4], expected [3, 3]; the labels of the graph have 3 classes",
            id="other classes of a GIN",
        ),
        pytest.param(
            _state("GIN", hidden=16), {"architecture": "GIN"},
            "convs.0.nn.lins.1.weight is [16, 16], expected [8, 8]; set spec.model.hidden to 16",
            id="another width of a GIN",
        ),
        pytest.param(
            _state("GIN", mlp_hidden=5), {"architecture": "GIN"},
            "convs.0.nn.lins.1.weight is [8, 5], expected [8, 8]; set spec.model.mlpHidden to 5",
            id="a GIN narrower inside",
        ),
        pytest.param(
            _state("GIN"), {"architecture": "GIN", "mlp_hidden": 5},
            "convs.0.nn.lins.1.weight is [8, 8], expected [8, 5]; leave out spec.model.mlpHidden",
            id="a GIN as it is, where the manifest wants another",
        ),
        pytest.param(
            {key.replace("convs.0", "one").replace("convs.1", "two"): tensor for key, tensor in _state().items()}, {},
            "its layers are called one, two, which tells no order; rename the keys by the order in which the model "
            "applies its layers, as in one.* to convs.0.*, two.* to convs.1.*", id="names without numbers",
        ),
        pytest.param(
            {key.replace("convs.0", "in1").replace("convs.1", "out2"): tensor for key, tensor in _state().items()}, {},
            "its layers are called in1, out2, which tells no order", id="names that differ in more than the number",
        ),
        pytest.param(
            {"conv1.lin.weight": torch.ones(8, 6), "conv1.att": torch.ones(1, 1, 8)}, {},
            "looks like a Linear without a bias, or an Embedding (conv1.lin) and tensors of no layer that is known "
            "(conv1.att); conv1.lin.weight, conv1.att were not read; no architecture has such "
            "layers: serve it as a program",
            id="another kind of convolution",
        ),
        pytest.param(
            {"conv1.lin.weight": torch.ones(8, 6), "conv1.bias": torch.ones(8)}, {},
            "looks like a GCNConv (conv1), so it holds a GCN, and spec.model.architecture is GraphSAGE; set "
            "spec.model.architecture to GCN, and give 1 fan-outs, one per layer", id="a GCN for a GraphSAGE",
        ),
        pytest.param(
            {"conv1.lin.weight": torch.ones(8, 6), "conv1.bias": torch.ones(8), "conv2.lin.weight": torch.ones(3, 8)},
            {"architecture": "GCN"},
            "looks like a GCNConv (conv1) and a GCNConv with bias=False (conv2); add conv2.bias [3] of zeros",
            id="a GCN without a bias",
        ),
        pytest.param(
            {**_tutorial_state("GraphSAGE"), "lin.weight": torch.ones(3, 3)}, {},
            "looks like 2 SAGEConv layers (conv1, conv2) and a Linear without a bias, or an Embedding (lin); "
            "lin.weight was not read; no architecture has such layers: ",
            id="a layer after them",
        ),
        pytest.param(
            {key: tensor for key, tensor in _tutorial_state("GraphSAGE").items() if key != "conv2.lin_l.bias"}, {},
            "looks like a SAGEConv (conv1) and a SAGEConv with bias=False (conv2); add conv2.lin_l.bias [3] of zeros",
            id="a tutorial's without a bias",
        ),
        pytest.param(
            _tutorial_state("GraphSAGE", hidden=16), {},
            "conv1.lin_l.weight is [16, 6], expected [8, 6]; set spec.model.hidden to 16",
            id="another width, under the file's own names",
        ),
        pytest.param(
            _tutorial_state("GIN"), {},
            "looks like 2 GINConv layers (conv1, conv2), so it holds a GIN, and spec.model.architecture is GraphSAGE; "
            "set spec.model.architecture to GIN", id="a tutorial's GIN for a GraphSAGE",
        ),
        pytest.param({}, {}, "it has nothing", id="an empty file"),
        pytest.param(
            _without("convs.0.lin_r.weight"), {},
            "looks like a SAGEConv with root_weight=False (convs.0) and a SAGEConv (convs.1); add convs.0.lin_r.weight "
            "[8, 6] of zeros",
            id="no weight of the node itself",
        ),
        pytest.param(
            {**_state(), "norms.0.weight": torch.ones(8)}, {},
            "looks like 2 SAGEConv layers (convs.0, convs.1) and a PReLU, or a norm without a bias (norms.0); "
            "norms.0.weight was not read",
            id="normalization layers",
        ),
        pytest.param(
            _tutorial_state("GraphSAGE") | torch.nn.BatchNorm1d(8).state_dict(prefix="bn1."), {},
            "looks like 2 SAGEConv layers (conv1, conv2) and a BatchNorm (bn1); bn1.bias, bn1.running_mean, "
            "bn1.running_var, bn1.weight were not read; no architecture has such layers",
            id="a tutorial's with batch normalization, which has a counter of integers",
        ),
        pytest.param(
            {**_state(), "convs.0.lin_l.bias": torch.ones(1, 8)}, {},
            "convs.0.lin_l.bias is [1, 8], expected [8]; save the whole state dict of a torch_geometric.nn.GraphSAGE",
            id="another number of dimensions",
        ),
        pytest.param(
            {**_state(), "convs.0.lin_l.bias": torch.ones(8, dtype=torch.int32)}, {},
            "convs.0.lin_l.bias is I32, expected floats; convert the tensor", id="integers",
        ),
        pytest.param(
            {**_state(), "convs.0.lin_l.bias": torch.full((8,), torch.nan)}, {},
            "convs.0.lin_l.bias has values that are not finite; train the model again", id="not a number",
        ),
        pytest.param(
            {**_state(), "convs.0.lin_l.bias": torch.full((8,), 1e300, dtype=torch.float64)}, {},
            "convs.0.lin_l.bias has values that are not finite", id="beyond float32",
        ),
    ],
)  # fmt: skip
def test_weights_that_do_not_fit_say_what_to_change(
    tmp_path: Path, state: dict[str, torch.Tensor], given: dict[str, Any], problem: str
) -> None:
    path = _save(tmp_path, state)
    with pytest.raises(InputError) as refused:
        _load(path, **given)
    assert str(refused.value).startswith(f"spec.model.checkpoint.uri: {path}: ")
    assert problem in str(refused.value)


@pytest.mark.parametrize("old_format", [False, True], ids=["zip", "legacy"])
def test_a_pickle_is_refused_by_name_and_never_read(tmp_path: Path, old_format: bool) -> None:
    path = tmp_path / "model.safetensors"
    torch.save(_state(), path, _use_new_zipfile_serialization=not old_format)
    with pytest.raises(InputError) as refused:
        _load(path)
    assert str(refused.value).startswith(
        f"spec.model.checkpoint.uri: {path}: is a pickle, as torch.save writes it, which may run code when it is read; "
        "write it with `safetensors.torch.save_file(model.state_dict(), PATH)`"
    )
    assert ("gnnserve model inspect FILE --out PATH" in str(refused.value)) is not old_format


@pytest.mark.parametrize("content", [b"", b"weights", b"\x05" + b"\0" * 20])
def test_what_is_no_safetensors_file_says_how_to_write_one(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"is not a safetensors file: .*safetensors\.torch\.save_file"):
        _load(path)


def test_half_a_file_is_refused(tmp_path: Path) -> None:
    path = _save(tmp_path, _state())
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(InputError, match="is not a safetensors file"):
        _load(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError) as refused:
        _load(tmp_path / "none.safetensors")
    assert str(refused.value) == (
        f"spec.model.checkpoint.uri: cannot read {tmp_path}/none.safetensors: No such file or directory; check the path"
    )


def test_a_pinned_file_must_be_that_file(tmp_path: Path) -> None:
    path = _save(tmp_path, _state())
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert checkpoint_digest(Model(checkpoint=Checkpoint(uri=path.as_uri(), sha256=digest))) == digest
    with pytest.raises(InputError) as refused:
        checkpoint_digest(Model(checkpoint=Checkpoint(uri=path.as_uri(), sha256="0" * 64)))
    assert str(refused.value) == (
        f"spec.model.checkpoint.sha256: {path} has SHA-256 {digest}, expected {'0' * 64}; restore the file, or change "
        "sha256 to serve this one"
    )


def test_a_file_that_changes_meanwhile_is_not_published_as_the_other(tmp_path: Path) -> None:
    path = _save(tmp_path, _state())
    model = Model(hidden=HIDDEN, checkpoint=Checkpoint(uri=path.as_uri()))
    digest = checkpoint_digest(model)
    assert digest is not None
    assert model.checkpoint is not None
    _save(tmp_path, {key: tensor + 1 for key, tensor in _state().items()})
    with pytest.raises(InputError, match="changed while it was read"):
        load_checkpoint(model.checkpoint, digest, WantedOverRows(model, COLUMNS, CLASSES))


def test_trained_models_have_no_digest() -> None:
    assert checkpoint_digest(Model()) is None


def test_reading_weights_needs_no_torch() -> None:
    script = "import sys, gnnserve_worker.generation.given, gnnserve_worker.generation.checkpoint; "
    script += "print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "False", done.stderr
