"""torch without its compiler, which nothing here uses and which takes a second to load.

torch_geometric imports `torch._dynamo` to know its modules again, and optimizers ask it not to compile what they do. A
module that stands in for it answers optimizers, and loads the real one for whatever else is asked.
"""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch  # noqa: F401  (a part of it is stood in for)

NAME = "torch._dynamo"
_PATH = "__path__"
"""Asked for by who imports a module of the package; other names with underscores are asked for of every module."""

_replacing = threading.Lock()


class StandIn(ModuleType):
    """A package of that name until something is asked of it that only the real one can answer."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != _PATH:
            raise AttributeError(name)
        # Before it is loaded: its parts ask for each other by these names.
        with _replacing:
            if sys.modules.get(self.__name__) is self:
                parent, _, child = self.__name__.rpartition(".")
                del sys.modules[self.__name__]
                vars(sys.modules[parent]).pop(child, None)
        return getattr(importlib.import_module(self.__name__), name)


class _Compiler(StandIn):
    def disable(self, function: Callable[..., Any] | None = None, *_: object, **__: object) -> Callable[..., Any]:
        """The function as it is: no compiler is there that could compile it. Without one, what returns it so."""
        return (lambda given: given) if function is None else function

    def graph_break(self) -> None:
        """Nothing: no graph is made that could be broken."""


class _LoadedParts(MetaPathFinder):
    """Where a part of the package is what is imported first, Python asks the stand-in for its path, which loads the
    package and the part with it, and would then run the part a second time. This finds the loaded one."""

    def __init__(self, package: str) -> None:
        self._prefix = f"{package}."

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None, /
    ) -> ModuleSpec | None:
        loaded = sys.modules.get(fullname) if fullname.startswith(self._prefix) else None
        if loaded is None or target is not None:  # a target: it is to be run again
            return None
        return ModuleSpec(fullname, _AsItIs(loaded))


class _AsItIs(Loader):
    def __init__(self, loaded: ModuleType) -> None:
        self._loaded, self._spec = loaded, loaded.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._loaded

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # importing has put its own there


def postpone_compiler() -> None:
    """Have the compiler loaded by its first use. Nothing happens where it is loaded already."""
    if NAME not in sys.modules:
        stand_in_for(_Compiler(NAME))


def stand_in_for(module: StandIn) -> None:
    """Put it where its package would be, whose parent is imported."""
    parent, _, child = module.__name__.rpartition(".")
    sys.modules[module.__name__] = module
    setattr(sys.modules[parent], child, module)
    sys.meta_path.insert(0, _LoadedParts(module.__name__))
