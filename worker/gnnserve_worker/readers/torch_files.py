"""Reading tensors of the archives that torch.save writes, without unpickling.

Such an archive is a zip of one pickle, which lists names, shapes and places, and of the numbers. A pickle is a program,
and loading one may run whatever its author wrote. Here `pickletools` splits it into instructions, and those that
describe data are interpreted: names in it are compared with those of torch's tensors, and never looked up or called.
What it calls otherwise, as the classes of a whole module that was saved, becomes a `_Object` that only holds what the
file says about it.
"""

from __future__ import annotations

import io
import math
import pickletools
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

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
class _Name:
    text: str


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


class _Mark:
    """Marks where a tuple, a list or the items of a dictionary begin on the stack."""


_MARK = _Mark()


def read_torch_modules(data: bytes) -> tuple[dict[str, np.ndarray], dict[str, tuple[str, dict[str, Any]]]]:
    """The tensors of the state dict in an archive, in the order of the file: of its own, of one under a key such as
    `state_dict`, or of a whole module. bfloat16 comes as float32, others with the file's dtype. Beside them, of a whole
    module, the class of each module in it by its path, with the attributes that are numbers, texts or lists of these.
    RefusedArchiveError: it has no tensors, or is damaged."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            root = _checked_root(archive)
            found, module = _state_dict(_Interpreter(archive.read(f"{root}data.pkl")).run())
            return {key: _numbers(tensor, archive, root) for key, tensor in found.items()}, dict(
                _modules(module, "", 0)
            )
    except RefusedArchiveError:
        raise
    # The file is cut off, no archive, or malicious.
    except (
        zipfile.BadZipFile, IndexError, KeyError, TypeError, ValueError, OverflowError, RecursionError, EOFError,
        NotImplementedError,
    ) as error:  # fmt: skip
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


class _Interpreter:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def run(self) -> Any:
        for opcode, argument, _ in pickletools.genops(self._data):
            if opcode.name == "STOP":
                break
            self._step(opcode.name, argument)
        (result,) = self._stack
        return result

    def _step(self, name: str, argument: Any) -> None:
        stack = self._stack
        if name in _VALUES:
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name]())
        elif name in _PUTS:
            self._memo[len(self._memo) if argument is None else argument] = stack[-1]
        elif name == "GLOBAL":
            stack.append(_Name(argument))
        elif name in _GETS:
            stack.append(self._memo[argument])
        elif name in _COLLECTED:
            stack.append(_COLLECTED[name](self._since_mark()))
        elif name in _ADDED:
            added = self._since_mark() if name.endswith("S") else self._last(_ADDED[name])
            _add(stack[-1], added)
        elif name in _MADE:
            count, make = _MADE[name]
            stack.append(make(*self._last(count)))
        elif name == "BUILD":
            (state,) = self._last(1)
            if isinstance(stack[-1], _Object):
                stack[-1].state = state
        elif name not in _IGNORED:
            raise RefusedArchiveError(f"it has the instruction {name}, which no tensor needs")

    def _last(self, count: int) -> list[Any]:
        items = self._stack[len(self._stack) - count :]
        if len(items) != count:
            raise IndexError("more is taken than there is")
        del self._stack[len(self._stack) - count :]
        return items

    def _since_mark(self) -> list[Any]:
        for at in range(len(self._stack) - 1, -1, -1):
            if self._stack[at] is _MARK:
                items = self._stack[at + 1 :]
                del self._stack[at:]
                return items
        raise IndexError("no mark")


def _call(name: Any, arguments: Any, *_: Any) -> Any:
    """What a call in the file describes."""
    text = name.text if isinstance(name, _Name) else ""
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


def _storage(described: Any) -> _Storage:
    kind, name, key, *_others = described
    if kind != "storage" or not isinstance(name, _Name) or name.text not in _STORAGES or not isinstance(key, str):
        raise TypeError("a reference to something other than numbers")
    return _Storage(name.text, key)


def _add(to: Any, items: list[Any]) -> None:
    if isinstance(to, list):
        to.extend(items)
    elif isinstance(to, dict):
        # Nested tuples are no keys: their hash would be computed once for every path to them.
        to.update((key, value) for key, value in zip(items[::2], items[1::2], strict=True) if _is_key(key))
    elif not isinstance(to, set | _Object):
        raise TypeError("items of something that has none")


def _is_key(key: Any) -> bool:
    return isinstance(key, str | int | float)


_VALUES = frozenset({
    "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES",
    "SHORT_BINBYTES", "SHORT_BINSTRING", "BINSTRING",
})  # fmt: skip
_CONSTANTS: Mapping[str, Callable[[], Any]] = {
    "NONE": lambda: None, "NEWTRUE": lambda: True, "NEWFALSE": lambda: False, "MARK": lambda: _MARK,
    "EMPTY_TUPLE": tuple, "EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_SET": set,
}  # fmt: skip
_PUTS = frozenset({"BINPUT", "LONG_BINPUT", "MEMOIZE"})
_GETS = frozenset({"BINGET", "LONG_BINGET"})
_COLLECTED: Mapping[str, Callable[[list[Any]], Any]] = {
    "TUPLE": tuple, "LIST": list, "FROZENSET": lambda items: _Object(),
    "DICT": lambda items: {key: value for key, value in zip(items[::2], items[1::2], strict=True) if _is_key(key)},
}  # fmt: skip
_ADDED: Mapping[str, int] = {"APPEND": 1, "APPENDS": 0, "SETITEM": 2, "SETITEMS": 0, "ADDITEMS": 0}
"""Instructions that add to what lies on the stack, and how many items; those that end in S: all since the mark."""
_MADE: Mapping[str, tuple[int, Callable[..., Any]]] = {
    "TUPLE1": (1, lambda *items: items), "TUPLE2": (2, lambda *items: items), "TUPLE3": (3, lambda *items: items),
    "REDUCE": (2, _call), "NEWOBJ": (2, _call), "NEWOBJ_EX": (3, _call), "BINPERSID": (1, _storage),
    "STACK_GLOBAL": (2, lambda module, name: _Name(f"{module} {name}")),
}  # fmt: skip
_IGNORED = frozenset({"PROTO", "FRAME"})
