"""Reading data that a pickle describes, without unpickling.

A pickle is a program: loading one may run whatever its author wrote. Here `pickletools` splits it into instructions, of
which those that describe data are interpreted. No name in the file is ever looked up or called: what a format's names,
calls and states stand for is said by its `PickledKinds`.

`pickle.Unpickler` with an allow-list in `find_class` is not as strict, measured with Python 3.11: a file of 9 bytes
makes it ask for more than 4 GiB (`LONG_BINPUT` with a large index); a key of tuples in tuples, which takes 5 bytes a
level, doubles the time of hashing with each level; and `BUILD` sets attributes on what lies on the stack, which may be
what `find_class` returned.
"""

from __future__ import annotations

import pickletools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

DAMAGES = (IndexError, KeyError, TypeError, ValueError, OverflowError, RecursionError, EOFError, NotImplementedError)
"""What reading a file ends in that is cut off, another one, or malicious."""


class RefusedPickleError(ValueError):
    """The pickle holds something other than the known kinds of data; the message says what."""


@dataclass(frozen=True, slots=True)
class PickledName:
    """A global that the file refers to: module and name, separated by a space."""

    text: str


class PickledKinds(ABC):
    """The kinds of data that a format writes as calls."""

    needing: ClassVar[str]
    """The data that need instructions, for messages."""

    @abstractmethod
    def named(self, text: str) -> Any:
        """What a name stands for."""

    @abstractmethod
    def called(self, name: Any, arguments: Any) -> Any:
        """The data that a call describes."""

    @abstractmethod
    def changed(self, made: Any, state: Any) -> None:
        """Give what a call described the state that the file has for it."""

    def referred(self, described: Any) -> Any:
        """What a reference to something outside of the pickle stands for."""
        raise RefusedPickleError(f"it refers to what is outside of it, which no {self.needing} need")

    def is_key(self, key: Any) -> bool:
        """Whether an item of a dictionary is kept. A tuple must not be: its hash would be computed once for every path
        to what is in it. TypeError: the format has no such keys."""
        return isinstance(key, str | int | float)

    def added(self, to: Any, items: list[Any]) -> None:
        """Add to what is neither a list nor a dictionary."""
        raise TypeError("items of something that has none")


def described_by(data: bytes, kinds: PickledKinds) -> Any:
    """The data that a pickle describes. RefusedPickleError: it describes other things than `kinds` knows; one of
    DAMAGES: it is no pickle, or damaged."""
    return _Interpreter(data, kinds).run()


class _Mark:
    """Marks where a tuple, a list or the items of a dictionary begin on the stack."""


_MARK = _Mark()


class _Interpreter:
    def __init__(self, data: bytes, kinds: PickledKinds) -> None:
        self._data = data
        self._kinds = kinds
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
        stack, kinds = self._stack, self._kinds
        if name in _VALUES:
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name]())
        elif name in _PUTS:
            self._memo[len(self._memo) if argument is None else argument] = stack[-1]
        elif name in _GETS:
            stack.append(self._memo[argument])
        elif name == "GLOBAL":
            stack.append(kinds.named(argument))
        elif name in _COLLECTED:
            stack.append(_COLLECTED[name](kinds, self._since_mark()))
        elif name in _ADDED:
            added = self._since_mark() if name.endswith("S") else self._last(_ADDED[name])
            _add(kinds, stack[-1], added)
        elif name in _MADE:
            count, make = _MADE[name]
            stack.append(make(kinds, *self._last(count)))
        elif name == "BUILD":
            (state,) = self._last(1)
            kinds.changed(stack[-1], state)
        elif name not in _IGNORED:
            raise RefusedPickleError(f"it has the instruction {name}, which no {kinds.needing} need")

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


def _add(kinds: PickledKinds, to: Any, items: list[Any]) -> None:
    if isinstance(to, list):
        to.extend(items)
    elif isinstance(to, dict):
        to.update(_dictionary(kinds, items))
    else:
        kinds.added(to, items)


def _dictionary(kinds: PickledKinds, items: list[Any]) -> dict[Any, Any]:
    return {key: value for key, value in zip(items[::2], items[1::2], strict=True) if kinds.is_key(key)}


def _named(kinds: PickledKinds, module: Any, name: Any) -> Any:
    # A few bytes can make lists in lists that would not fit into memory as a text.
    if not isinstance(module, str) or not isinstance(name, str):
        raise TypeError("a name that is no text")
    return kinds.named(f"{module} {name}")


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
_COLLECTED: Mapping[str, Callable[[PickledKinds, list[Any]], Any]] = {
    "TUPLE": lambda _, items: tuple(items), "LIST": lambda _, items: items, "DICT": _dictionary,
    "FROZENSET": lambda kinds, items: kinds.called(kinds.named("builtins frozenset"), (items,)),
}  # fmt: skip
_ADDED: Mapping[str, int] = {"APPEND": 1, "APPENDS": 0, "SETITEM": 2, "SETITEMS": 0, "ADDITEMS": 0}
"""Instructions that add to what lies on the stack, and how many items; those that end in S: all since the mark."""
_MADE: Mapping[str, tuple[int, Callable[..., Any]]] = {
    "TUPLE1": (1, lambda _, *items: items), "TUPLE2": (2, lambda _, *items: items),
    "TUPLE3": (3, lambda _, *items: items), "REDUCE": (2, lambda kinds, *call: kinds.called(*call)),
    "NEWOBJ": (2, lambda kinds, *call: kinds.called(*call)),
    "NEWOBJ_EX": (3, lambda kinds, name, arguments, _: kinds.called(name, arguments)),
    "BINPERSID": (1, lambda kinds, described: kinds.referred(described)),
    "STACK_GLOBAL": (2, _named),
}  # fmt: skip
_IGNORED = frozenset({"PROTO", "FRAME"})
