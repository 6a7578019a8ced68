"""Reading tensors of the archives that torch.save writes, without unpickling.

Such an archive is a zip of one pickle, which lists names, shapes and places, and of the numbers. What the pickle calls
beside tensors, as the classes of a whole module that was saved, becomes a `_Object` that only holds what the file says
about it.
"""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gnnserve_worker.pickled_data import DAMAGES, PickledKinds, PickledName, RefusedPickleError, described_by

_MOST_PICKLE_BYTES = 64 << 20
_DEEPEST = 4
"""Dictionaries within dictionaries in which a state dict is looked for."""
_STORAGES: Mapping[str, str] = {
    "torch FloatStorage": "<f4", "torch DoubleStorage": "<f8", "torch HalfStorage": "<f2",
    "torch BFloat16Storage": "bfloat16", "torch LongStorage": "<i8", "torch IntStorage": "<i4",
    "torch ShortStorage": "<i2", "torch CharStorage": "i1", "torch ByteStorage": "u1", "torch BoolStorage": "u1",
}  # fmt: skip
_REBUILT = ("torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_tensor")
_PARAMETERS = ("torch._utils _rebuild_parameter", "torch._utils _rebuild_parameter_with_state")
_AVERAGES = ("ema", "swa", "average", "shadow", "optim")
"""Words in keys of dictionaries that are taken only where there is no other one."""
_PARTS = ("node_embed", "embed", "edge_embed", "gnn", "decoder")
"""Keys of the state dicts that are parts of one model, as GraphStorm saves them (`graphstorm.py`)."""


class RefusedArchiveError(ValueError):
    """The file is no archive of tensors; the message says what it is."""


@dataclass(frozen=True, slots=True)
class _Storage:
    kind: str
    key: str


@dataclass(frozen=True, slots=True)
class _Tensor:
    storage: _Storage
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]


@dataclass(slots=True)
class _Object:
    """An object of some class, with the state that the file gives it."""

    name: str = ""
    """Module and name of its class."""
    state: Any = None


def read_torch_modules(data: bytes) -> tuple[dict[str, np.ndarray], dict[str, tuple[str, dict[str, Any]]]]:
    """The tensors of the state dict in an archive, in the order of the file: of its own, of one under a key such as
    `state_dict`, or of a whole module. bfloat16 comes as float32, others with the file's dtype. Beside them, of a whole
    module, the class of each module in it by its path, with the attributes that are numbers, texts or lists of these.
    RefusedArchiveError: it has no tensors, or is damaged."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            root = _checked_root(archive)
            found, module = _state_dict(described_by(archive.read(f"{root}data.pkl"), _Tensors()))
            return {key: _numbers(tensor, archive, root) for key, tensor in found.items()}, dict(
                _modules(module, "", 0)
            )
    except RefusedArchiveError:
        raise
    except RefusedPickleError as error:
        raise RefusedArchiveError(str(error)) from error
    except (zipfile.BadZipFile, *DAMAGES) as error:
        raise RefusedArchiveError(f"it is damaged ({type(error).__name__}: {error})") from error


def _checked_root(archive: zipfile.ZipFile) -> str:
    """The folder that the archive has everything in."""
    listed = {entry.filename: entry for entry in archive.infolist()}
    root = next((name.removesuffix("data.pkl") for name in listed if name.endswith("data.pkl")), None)
    if root is None:
        raise RefusedArchiveError("it is a zip without data.pkl, which torch.save writes")
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in listed.values()):
        raise RefusedArchiveError("its entries are compressed, which torch.save's are not")
    if listed[f"{root}data.pkl"].file_size > _MOST_PICKLE_BYTES:
        raise RefusedArchiveError("its data.pkl is larger than 64 MiB")
    if f"{root}byteorder" in listed and archive.read(f"{root}byteorder") != b"little":
        raise RefusedArchiveError("its numbers are big-endian")
    return root


def widen_bfloat16(raw: bytes) -> np.ndarray:
    """float32 of numbers in bfloat16, which are its upper halves."""
    return (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)


def _numbers(tensor: _Tensor, archive: zipfile.ZipFile, root: str) -> np.ndarray:
    raw = archive.read(f"{root}data/{tensor.storage.key}")
    kind = _STORAGES[tensor.storage.kind]
    flat = widen_bfloat16(raw) if kind == "bfloat16" else np.frombuffer(raw, kind)
    count = math.prod(tensor.size)
    last = tensor.offset + sum((size - 1) * step for size, step in zip(tensor.size, tensor.stride, strict=True))
    if count == 0:
        return np.empty(tensor.size, flat.dtype)
    if min(tensor.offset, *tensor.size, *tensor.stride, 0) < 0 or last >= len(flat) or count > len(flat):
        raise RefusedArchiveError(f"it has a tensor of {list(tensor.size)} beyond its {len(flat)} numbers")
    strides = [step * flat.itemsize for step in tensor.stride]
    return np.lib.stride_tricks.as_strided(flat[tensor.offset :], tensor.size, strides).copy()


# --- which of what a file has is the state dict


def _state_dict(found: Any) -> tuple[dict[str, _Tensor], Any]:
    """And the module that it is of, where it is of one."""
    candidates = list(_candidates(found, "", 0))
    if not candidates:
        raise RefusedArchiveError("it has no tensors under names, as a state dict has them")
    _, best, module = max(
        candidates, key=lambda one: (not any(word in one[0].lower() for word in _AVERAGES), len(one[1]))
    )
    return best, module


def _candidates(found: Any, path: str, depth: int) -> Iterator[tuple[str, dict[str, _Tensor], Any]]:
    """State dicts, each with the keys that lead to it, and the module that it is of."""
    if isinstance(found, _Object):
        tensors = dict(_of_module(found, "", 0))
        if tensors:
            yield path, tensors, found
        elif isinstance(found.state, dict):
            yield from _candidates(found.state, path, depth)
        return
    if not isinstance(found, dict) or depth > _DEEPEST:
        return
    tensors = {key: value for key, value in found.items() if isinstance(key, str) and isinstance(value, _Tensor)}
    if tensors:
        yield path, tensors, None
    if parts := _joined_parts(found):
        yield path, parts, None
    for key, value in found.items():
        yield from _candidates(value, f"{path}.{key}", depth + 1)


def _joined_parts(found: Mapping[Any, Any]) -> dict[str, _Tensor]:
    """Tensors of a model that is saved in parts, under the names of these; empty: it is not."""
    parts = {name: found[name] for name in _PARTS if isinstance(found.get(name), dict)}
    if "gnn" not in parts or len(parts) < 2:
        return {}
    return {
        f"{name}.{key}": tensor
        for name, part in parts.items()
        for key, tensor in part.items()
        if isinstance(tensor, _Tensor)
    }


def _of_module(found: Any, start: str, depth: int) -> Iterator[tuple[str, _Tensor]]:
    """Tensors of a torch.nn.Module that was saved whole, under the names of its state dict."""
    state = found.state if isinstance(found, _Object) else None
    if not isinstance(state, dict) or depth > 32:
        return
    for kind in ("_parameters", "_buffers"):
        for name, tensor in (state.get(kind) or {}).items():
            if isinstance(tensor, _Tensor):
                yield f"{start}{name}", tensor
    for name, module in (state.get("_modules") or {}).items():
        yield from _of_module(module, f"{start}{name}.", depth + 1)


def _modules(found: Any, path: str, depth: int) -> Iterator[tuple[str, tuple[str, dict[str, Any]]]]:
    """Class and plain attributes of a module and of those in it."""
    state = found.state if isinstance(found, _Object) else None
    if not isinstance(state, dict) or depth > 32:
        return
    plain = {key: value for key, value in state.items() if isinstance(key, str) and _is_plain(value)}
    yield path, (found.name.rpartition(" ")[2], plain)
    for name, module in (state.get("_modules") or {}).items():
        yield from _modules(module, f"{path}.{name}" if path else str(name), depth + 1)


def _is_plain(value: Any) -> bool:
    items = value if isinstance(value, list | tuple) else [value]
    return all(isinstance(one, bool | int | float | str) for one in items)


# --- the pickle


class _Tensors(PickledKinds):
    """Tensors, as torch.save writes them, and classes as objects that only hold what the file says about them."""

    needing = "tensors"

    def named(self, text: str) -> PickledName:
        return PickledName(text)

    def called(self, name: Any, arguments: Any) -> Any:
        text = name.text if isinstance(name, PickledName) else ""
        if text == "collections OrderedDict":
            return dict(arguments[0]) if arguments and arguments[0] else {}
        if text in _REBUILT:
            storage, offset, size, stride, *_others = arguments
            if not isinstance(storage, _Storage) or not all(type(each) is int for each in (offset, *size, *stride)):
                raise TypeError("a tensor without a storage")
            return _Tensor(storage, offset, size, stride)
        if text in _PARAMETERS:
            return arguments[0]
        if text == "torch Size":
            return tuple(arguments[0])
        return _Object(text)

    def changed(self, made: Any, state: Any) -> None:
        if isinstance(made, _Object):
            made.state = state

    def referred(self, described: Any) -> _Storage:
        kind, name, key, *_others = described
        is_storage = kind == "storage" and isinstance(name, PickledName) and name.text in _STORAGES
        if not is_storage or not isinstance(key, str):
            raise TypeError("a reference to something other than numbers")
        return _Storage(name.text, key)

    def added(self, to: Any, items: list[Any]) -> None:
        if not isinstance(to, set | _Object):
            super().added(to, items)
