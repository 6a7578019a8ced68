"""Tensors of a file, as float32 under its own names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors

from gnnserve_api.errors import InputError
from gnnserve_worker.readers.description import ModuleFacts
from gnnserve_worker.readers.misfit import MisfitError
from gnnserve_worker.readers.torch_files import RefusedArchiveError, read_torch_modules, widen_bfloat16

_HOW_TO_WRITE = "write it with `safetensors.torch.save_file(model.state_dict(), PATH)`"
_ARCHIVE = b"PK\x03\x04"
_PICKLES = (_ARCHIVE, b"\x80")
"""First bytes of files that torch.save writes, in its new and its old format."""
_COUNTERS = ("num_batches_tracked", "n_averaged")
"""Integers that count, in norms and in averages of weights (torch.optim.swa_utils): no scores depend on them."""
_FLOATS = {"F64": np.float64, "F32": np.float32, "F16": np.float16}


@dataclass(frozen=True, slots=True)
class WeightsFile:
    tensors: Mapping[str, np.ndarray]
    """float32"""
    facts: Mapping[str, ModuleFacts]
    """By the paths of modules; empty: the file has tensors alone."""


def read_tensor_file(path: Path) -> dict[str, np.ndarray]:
    """The tensors of a safetensors file, or of an archive of torch.save, which is read as data. InputError: it is
    neither, or has other than finite numbers."""
    return dict(read_weights_file(path).tensors)


def read_weights_file(path: Path) -> WeightsFile:
    """The same, with what an archive of a whole module says of its modules. InputError as above."""
    try:
        data = path.read_bytes()
        return parse_torch_archive(data) if data.startswith(_ARCHIVE) else WeightsFile(parse_safetensors(data), {})
    except OSError as error:
        raise InputError("FILE", f"{path} cannot be read: {error.strerror}", "give a file of weights") from error
    except MisfitError as error:
        raise InputError("FILE", f"{path}: {error.problem}", error.remedy) from error.__cause__


def parse_torch_archive(data: bytes) -> WeightsFile:
    """MisfitError: it is no archive of tensors, or they are not of finite numbers."""
    try:
        tensors, modules = read_torch_modules(data)
        facts = {path: ModuleFacts(name, attributes) for path, (name, attributes) in modules.items()}
        return WeightsFile(_checked({key: _as_float32(tensor) for key, tensor in tensors.items()}), facts)
    except RefusedArchiveError as error:
        raise MisfitError(f"looks like a file of torch.save, and {error}", _HOW_TO_WRITE) from error


def parse_safetensors(data: bytes) -> dict[str, np.ndarray]:
    """MisfitError: it is no file of finite numbers."""
    try:
        entries = safetensors.deserialize(data)  # type: ignore[no-untyped-call]
    except safetensors.SafetensorError as error:
        problem = f"is not a safetensors file: {error}"
        if data.startswith(_PICKLES):  # checked last, since the length of a safetensors header may look like a pickle
            problem = "is a pickle, as torch.save writes it, which may run code when it is read"
        as_data = "; `gnnserve model inspect FILE --out PATH` does so, and reads the file as data"
        raise MisfitError(problem, _HOW_TO_WRITE + as_data * data.startswith(_ARCHIVE)) from error
    tensors = {}
    for key, entry in sorted(entries):
        values = _to_float32(entry["dtype"], entry["data"])
        tensors[key] = entry["dtype"] if values is None else values.reshape(entry["shape"])
    return _checked(tensors)


def _checked(tensors: Mapping[str, np.ndarray | str]) -> dict[str, np.ndarray]:
    """Without counters. A text in place of a tensor is the type of its numbers, which is not read."""
    found = {}
    for key, values in tensors.items():
        if key.rpartition(".")[2] in _COUNTERS:
            continue
        if isinstance(values, str):
            raise MisfitError(f"{key} is {values}, expected floats", "convert the tensor")
        if not np.isfinite(values).all():
            raise MisfitError(f"{key} has values that are not finite", "train the model again")
        found[key] = values
    return found


def _as_float32(tensor: np.ndarray) -> np.ndarray | str:
    if tensor.dtype.kind != "f":
        return str(tensor.dtype)
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is refused
        return tensor.astype(np.float32)


def _to_float32(dtype: str, data: bytes) -> np.ndarray | None:
    if dtype == "BF16":
        return widen_bfloat16(data)
    if dtype not in _FLOATS:
        return None
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is refused
        return np.frombuffer(data, dtype=_FLOATS[dtype]).astype(np.float32)
