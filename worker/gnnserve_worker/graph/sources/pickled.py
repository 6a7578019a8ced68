"""Reading matrices and dictionaries of the Planetoid files, which are pickles, as data."""

from __future__ import annotations

import math
import reprlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from gnnserve_worker.pickled_data import DAMAGES, PickledKinds, PickledName, RefusedPickleError, described_by

_ELEMENTS = frozenset({"f4", "f8", "i1", "i2", "i4", "i8", "u1", "b1"})


@dataclass(slots=True)
class _Element:
    """A numpy dtype."""

    kind: str
    order: str = ""


@dataclass(slots=True)
class _Array:
    value: np.ndarray | None = None


@dataclass(slots=True)
class _Matrix:
    value: sp.csr_array | None = None


_ARRAY = PickledName("numpy.core.multiarray _reconstruct")
_ARRAY_TYPE = PickledName("numpy ndarray")
_ELEMENT = PickledName("numpy dtype")
_MATRIX = PickledName("scipy.sparse.csr csr_matrix")
_DEFAULTDICT = PickledName("collections defaultdict")
_LIST = PickledName("__builtin__ list")
_NAMES = {name.text: name for name in (_ARRAY, _ARRAY_TYPE, _ELEMENT, _MATRIX, _DEFAULTDICT, _LIST)}


def read_matrix(data: bytes) -> np.ndarray | sp.csr_array:
    """A dense or sparse matrix of numbers."""
    found = _described_by(data)
    if not isinstance(found, np.ndarray | sp.csr_array) or found.ndim != 2:
        raise RefusedPickleError(f"it holds {_shown(found)}, expected a matrix")
    return found


def read_neighbours(data: bytes) -> dict[int, list[int]]:
    """A dictionary from integers to lists of integers."""
    found = _described_by(data)
    if not isinstance(found, dict):
        raise RefusedPickleError(f"it holds {_shown(found)}, expected a dictionary")
    entries = 0
    for key, value in found.items():
        if not _is_integer(key) or not isinstance(value, list) or not all(map(_is_integer, value)):
            raise RefusedPickleError(f"its dictionary has {_shown(key)}: {_shown(value)}, expected lists of integers")
        entries += len(value)
        if entries > len(data):  # one list, listed again and again
            raise RefusedPickleError("its lists have more entries than the file has bytes")
    return found


class _Matrices(PickledKinds):
    """Matrices and dictionaries, as Python 2's numpy and scipy wrote them."""

    needing = "data of numpy or scipy"

    def named(self, text: str) -> PickledName:
        if text not in _NAMES:
            raise RefusedPickleError(f"it names {text.replace(' ', '.')}, which is no data of numpy or scipy")
        return _NAMES[text]

    def called(self, name: Any, arguments: Any) -> Any:
        return _made(name, arguments)

    def changed(self, made: Any, state: Any) -> None:
        _build(made, state)

    def is_key(self, key: Any) -> bool:
        if not _is_integer(key) and not isinstance(key, str):
            raise TypeError("a key that is neither a number nor a text")
        return True


def _described_by(data: bytes) -> Any:
    try:
        return _finished(described_by(data, _Matrices()))
    except RefusedPickleError:
        raise
    except DAMAGES as error:
        raise RefusedPickleError(f"it is damaged ({type(error).__name__}: {error})") from error


def _made(name: Any, arguments: Any) -> Any:
    """The object that the file's call of `name` describes."""
    if name is _ARRAY and arguments == (_ARRAY_TYPE, (0,), "b"):
        return _Array()
    if name is _ELEMENT and arguments[1:] == (0, 1) and _expect(arguments[0], str) in _ELEMENTS:
        return _Element(arguments[0])
    if name is _MATRIX and arguments == ():
        return _Matrix()
    if name is _DEFAULTDICT and arguments == (_LIST,):
        return {}
    raise RefusedPickleError(f"it calls {_shown(name)} with {_shown(arguments)}, which is no data of numpy or scipy")


def _build(made: Any, state: Any) -> None:
    if isinstance(made, _Element):
        version, order, *others = state
        if version != 3 or order not in ("<", ">", "|") or others[:3] != [None, None, None]:
            raise RefusedPickleError(f"it has an array of {_shown(state)}, expected plain numbers")
        made.order = order
    elif isinstance(made, _Array):
        _, shape, element, is_fortran, content = state
        made.value = _array(shape, _expect(element, _Element), _expect(content, str), is_fortran=bool(is_fortran))
    elif isinstance(made, _Matrix):
        data, indices, indptr = (
            _expect(_finished(_expect(state, dict)[name]), np.ndarray) for name in ("data", "indices", "indptr")
        )
        made.value = _matrix(data, indices, indptr, state["_shape"])
    else:
        raise RefusedPickleError(f"it changes {_shown(made)}, which is no data of numpy or scipy")


def _array(shape: tuple[int, ...], element: _Element, content: str, *, is_fortran: bool) -> np.ndarray:
    if not all(map(_is_integer, shape)) or any(length < 0 for length in shape):
        raise RefusedPickleError(f"it has an array of shape {_shown(shape)}")
    dtype = np.dtype(f"{element.order}{element.kind}")
    raw = content.encode("latin-1")  # which is how pickletools shows bytes
    if len(raw) != math.prod(shape) * dtype.itemsize:
        raise RefusedPickleError(f"it has {len(raw)} bytes for an array of {dtype} with shape {list(shape)}")
    flat = np.frombuffer(raw, dtype=dtype).astype(dtype.newbyteorder("="))
    return flat.reshape(shape, order="F" if is_fortran else "C")


def _matrix(data: np.ndarray, indices: np.ndarray, indptr: np.ndarray, shape: tuple[int, int]) -> sp.csr_array:
    rows, columns = shape
    if not (
        indptr.ndim == indices.ndim == data.ndim == 1
        and indices.dtype.kind == indptr.dtype.kind == "i"
        and len(indptr) == rows + 1
        and indptr[0] == 0
        and indptr[-1] == len(indices) == len(data)
        and (np.diff(indptr) >= 0).all()
        and ((indices >= 0) & (indices < columns)).all()
    ):
        raise RefusedPickleError(f"it has a sparse matrix of shape {_shown(shape)} whose parts do not fit together")
    return sp.csr_array((data, indices, indptr), shape=(rows, columns))


def _finished(value: Any) -> Any:
    return value.value if isinstance(value, _Array | _Matrix) else value


def _expect(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise RefusedPickleError(f"it has {_shown(value)} where numpy and scipy write a {kind.__name__.strip('_')}")
    return value


def _is_integer(value: Any) -> bool:
    return type(value) is int


def _shown(value: Any) -> str:
    # Show a part only: a few bytes of a pickle can make nested lists that would not fit into memory.
    brief = reprlib.Repr()
    brief.maxlevel, brief.maxstring, brief.maxother = 3, 100, 100
    text = value.text.replace(" ", ".") if isinstance(value, PickledName) else brief.repr(value)
    return text if len(text) <= 100 else f"{text[:100]}…"
