"""Tensors of files: of safetensors, and of archives of torch.save, whose pickles are read and never run."""

from __future__ import annotations

import io
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn

from gnnserve_api.errors import InputError
from gnnserve_worker.readers.files import read_tensor_file, read_weights_file


class _Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4)


MODEL = _Model()
STATE = {key: one.numpy() for key, one in MODEL.state_dict().items() if one.is_floating_point()}
_SAVED: dict[str, Callable[[], Any]] = {
    "a state dict": MODEL.state_dict,
    "a state dict of parameters": lambda: {**dict(MODEL.named_parameters()), **dict(MODEL.named_buffers())},
    "a plain dictionary": lambda: dict(MODEL.state_dict()),
    "a whole module": lambda: MODEL,
    "a checkpoint of Lightning": lambda: {
        "epoch": 3, "pytorch-lightning_version": "2.5", "state_dict": MODEL.state_dict(), "hyper_parameters": {"x": 1},
        "optimizer_states": [torch.optim.Adam(MODEL.parameters()).state_dict()], "callbacks": {("a", 1): 2.5},
    },
    "weights beside their moving average": lambda: {
        "ema": {f"z.{key}": torch.zeros(2) for key in range(9)}, "model": MODEL.state_dict(),
    },
    "a view with strides": lambda: OrderedDict(
        (key, one.clone().T.contiguous().T if one.dim() == 2 else one) for key, one in MODEL.state_dict().items()
    ),
}  # fmt: skip


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("name", _SAVED)
def test_what_torch_saves_is_read(tmp_path: Path, name: str, protocol: int) -> None:
    path = tmp_path / "model.pt"
    torch.save(_SAVED[name](), path, pickle_protocol=protocol)

    read = read_tensor_file(path)

    assert {key: one.tolist() for key, one in read.items()} == {key: one.tolist() for key, one in STATE.items()}


def test_a_whole_module_says_of_its_modules_what_tensors_do_not(tmp_path: Path) -> None:
    torch.save(MODEL, tmp_path / "module.pt")
    torch.save(MODEL.state_dict(), tmp_path / "state.pt")

    facts = read_weights_file(tmp_path / "module.pt").facts

    assert {path: one.name for path, one in facts.items()} == {
        "": "_Model", "conv": "Linear", "norm": "BatchNorm1d",
    }  # fmt: skip
    assert facts["norm"].attributes["eps"] == 1e-5
    assert not read_weights_file(tmp_path / "state.pt").facts


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_numbers_of_any_width_come_as_float32(tmp_path: Path, dtype: torch.dtype) -> None:
    state = {"weight": torch.tensor([[1.5, -2.25]], dtype=dtype)}
    torch.save(state, tmp_path / "model.pt")
    safetensors.torch.save_file(state, tmp_path / "model.safetensors")

    for name in ("model.pt", "model.safetensors"):
        read = read_tensor_file(tmp_path / name)
        assert read["weight"].dtype == np.float32
        assert read["weight"].tolist() == [[1.5, -2.25]]


class _Harmful:
    def __reduce__(self) -> Any:
        return (print, ("run",))


def _archive(pickled: bytes, **entries: bytes) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("archive/data.pkl", pickled)
        for name, content in entries.items():
            archive.writestr(f"archive/data/{name}", content)
    return data.getvalue()


def _truncated() -> bytes:
    data = io.BytesIO()
    torch.save(MODEL.state_dict(), data)
    return data.getvalue()[:-30]


def _beyond() -> bytes:
    """A tensor of more numbers than its storage has."""
    data = io.BytesIO()
    torch.save({"weight": torch.zeros(40)}, data)
    with zipfile.ZipFile(data) as archive:
        return _archive(archive.read("archive/data.pkl"), **{"0": b"\0" * 40})


_REFUSED: dict[str, tuple[Callable[[], bytes], str]] = {
    "calls something, and has no tensors": (
        lambda: _archive(pickle.dumps({"state_dict": _Harmful()}, 2)), "has no tensors under names"
    ),
    "is cut off": (_truncated, "damaged"),
    "has a tensor beyond its numbers": (_beyond, "beyond its 10 numbers"),
    "is another zip": (lambda: _archive(b"").replace(b"data.pkl", b"text.txt"), "without data.pkl"),
    "is no pickle": (lambda: _archive(b"\xff\xfe"), "damaged"),
    "is of numbers that are not finite": (
        lambda: _saved({"weight": torch.tensor([float("nan")])}), "weight has values that are not finite"
    ),
    "is of integers": (lambda: _saved({"weight": torch.tensor([1])}), "weight is int64, expected floats"),
    "is of torch's old format": (lambda: _old({"weight": torch.zeros(2)}), "is a pickle"),
    "is a text": (lambda: b"weights", "is not a safetensors file"),
}  # fmt: skip


def _saved(state: Any) -> bytes:
    data = io.BytesIO()
    torch.save(state, data)
    return data.getvalue()


def _old(state: Any) -> bytes:
    data = io.BytesIO()
    torch.save(state, data, _use_new_zipfile_serialization=False)
    return data.getvalue()


@pytest.mark.parametrize("name", _REFUSED)
def test_another_file_is_refused_with_what_it_is(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    make, said = _REFUSED[name]
    path = tmp_path / "model.pt"
    path.write_bytes(make())

    with pytest.raises(InputError) as refused:
        read_tensor_file(path)

    assert said in str(refused.value)
    assert "save_file" in str(refused.value) or "convert" in str(refused.value) or "train" in str(refused.value)
    assert not capsys.readouterr().out  # nothing of the file was run


def test_a_call_in_a_file_with_tensors_is_not_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"state_dict": MODEL.state_dict(), "beside": _Harmful()}, tmp_path / "model.pt")

    assert read_tensor_file(tmp_path / "model.pt").keys() == STATE.keys()
    assert not capsys.readouterr().out


def test_a_name_of_lists_in_lists_is_refused_and_never_written_out(tmp_path: Path) -> None:
    """The lists have 4 ** 200 items as a text, and 20 bytes each in the file."""
    nested = b"]q\x00" + b"".join(
        b"]q" + bytes([level + 1]) + b"(" + (b"h" + bytes([level])) * 4 + b"e" for level in range(200)
    )
    with zipfile.ZipFile(tmp_path / "model.pt", "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x04" + nested + b"X\x01\x00\x00\x00a\x93.")
    with pytest.raises(InputError, match="a name that is no text"):
        read_tensor_file(tmp_path / "model.pt")


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_tensor_file(tmp_path / "nothing.pt")
