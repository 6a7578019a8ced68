"""Reading matrices and dictionaries of the Planetoid files, which are pickles, without unpickling.

A pickle is a program: loading one may run whatever its author wrote. Here `pickletools` splits it into instructions, of
which the few that describe data are interpreted. No name in the file is ever looked up or called; each is compared with
the names that Python 2's numpy and scipy wrote, and any other is refused with a message that quotes it.

`pickle.Unpickler` with an allow-list in `find_class` is not as strict, measured with Python 3.11: a file of 9 bytes
makes it ask for more than 4 GiB (`LONG_BINPUT` with a large index); a key of tuples in tuples, which takes 5 bytes a
level, doubles the time of hashing with each level; and `BUILD` sets attributes on what lies on the stack, which may be
what `find_class` returned.
"""

from __future__ import annotations

import math
import pickletools
import reprlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

_ELEMENTS = frozenset({"f4", "f8", "i1", "i2", "i4", "i8", "u1", "b1"})


class RefusedPickleError(ValueError):
    """The pickle holds something other than the known kinds of data; the message says what."""


@dataclass(frozen=True, slots=True)
class _Name:
    """A global that the file refers to: module and name, separated by a space."""

    text: str


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


class _Mark:
    """Marks where a tuple, a list or the items of a dictionary begin on the stack."""


_MARK = _Mark()
_ARRAY = _Name("numpy.core.multiarray _reconstruct")
_ARRAY_TYPE = _Name("numpy ndarray")
_ELEMENT = _Name("numpy dtype")
_MATRIX = _Name("scipy.sparse.csr csr_matrix")
_DEFAULTDICT = _Name("collections defaultdict")
_LIST = _Name("__builtin__ list")
_NAMES = {name.text: name for name in (_ARRAY, _ARRAY_TYPE, _ELEMENT, _MATRIX, _DEFAULTDICT, _LIST)}


def read_matrix(data: bytes) -> np.ndarray | sp.csr_array:
    """A dense or sparse matrix of numbers."""
    found = _finished(_Interpreter(data).run())
    if not isinstance(found, np.ndarray | sp.csr_array) or found.ndim != 2:
        raise RefusedPickleError(f"it holds {_shown(found)}, expected a matrix")
    return found


def read_neighbours(data: bytes) -> dict[int, list[int]]:
    """A dictionary from integers to lists of integers."""
    found = _finished(_Interpreter(data).run())
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


class _Interpreter:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def run(self) -> Any:
        try:
            for instruction, argument in self._instructions():
                if instruction == "STOP":
                    break
                self._step(instruction, argument)
            (result,) = self._stack
        except RefusedPickleError:
            raise
        # The file is cut off, not a pickle, or malicious.
        except (IndexError, KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise RefusedPickleError(f"it is damaged ({type(error).__name__}: {error})") from error
        return result

    def _instructions(self) -> Iterator[tuple[str, Any]]:
        for instruction, argument, _ in pickletools.genops(self._data):
            yield instruction.name, argument

    def _step(self, instruction: str, argument: Any) -> None:
        if instruction in _VALUES:
            self._stack.append(argument)
        elif instruction in _CONSTANTS:
            self._stack.append(_CONSTANTS[instruction]())
        elif instruction in _PUTS:
            self._memo[argument] = self._stack[-1]
        elif instruction in _GETS:
            self._stack.append(self._memo[argument])
        elif instruction == "GLOBAL":
            if argument not in _NAMES:
                raise RefusedPickleError(f"it names {argument.replace(' ', '.')}, which is no data of numpy or scipy")
            self._stack.append(_NAMES[argument])
        elif instruction in _TUPLES:
            count = _TUPLES[instruction]
            items = self._stack[-count:]
            if len(items) != count:
                raise IndexError("a tuple of more than there is")
            self._stack[-count:] = [tuple(items)]
        elif instruction == "TUPLE":
            self._stack.append(tuple(self._since_mark()))
        elif instruction in {"APPEND", "APPENDS"}:
            added = [self._stack.pop()] if instruction == "APPEND" else self._since_mark()
            _expect(self._stack[-1], list).extend(added)
        elif instruction == "SETITEMS":
            items = self._since_mark()
            # Nested tuples are no keys: their hash would be computed once for every path to them.
            if not all(_is_integer(key) or isinstance(key, str) for key in items[::2]):
                raise TypeError("a key that is neither a number nor a text")
            _expect(self._stack[-1], dict).update(zip(items[::2], items[1::2], strict=True))
        elif instruction in {"REDUCE", "NEWOBJ"}:
            arguments, name = self._stack.pop(), self._stack.pop()
            self._stack.append(_made(name, arguments))
        elif instruction == "BUILD":
            state = self._stack.pop()
            _build(self._stack[-1], state)
        elif instruction not in _IGNORED:
            raise RefusedPickleError(f"it has the instruction {instruction}, which no data of numpy or scipy needs")

    def _since_mark(self) -> list[Any]:
        for at in range(len(self._stack) - 1, -1, -1):
            if self._stack[at] is _MARK:
                items = self._stack[at + 1 :]
                del self._stack[at:]
                return items
        raise IndexError("no mark")


_VALUES = frozenset({"BININT", "BININT1", "BININT2", "BINSTRING", "SHORT_BINSTRING"})
_CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None, "NEWTRUE": lambda: True, "NEWFALSE": lambda: False, "MARK": lambda: _MARK,
    "EMPTY_TUPLE": tuple, "EMPTY_LIST": list, "EMPTY_DICT": dict,
}  # fmt: skip
_PUTS = frozenset({"BINPUT", "LONG_BINPUT"})
_GETS = frozenset({"BINGET", "LONG_BINGET"})
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_IGNORED = frozenset({"PROTO"})


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
    text = value.text.replace(" ", ".") if isinstance(value, _Name) else brief.repr(value)
    return text if len(text) <= 100 else f"{text[:100]}…"
