"""torch without its compiler, which nothing here uses and which takes a second to load.

torch_geometric imports `torch._dynamo` to know its modules again, and optimizers ask it not to compile what they do. A
module that stands in for it answers optimizers, and loads the real one for whatever else is asked.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

NAME = "torch._dynamo"
_PATH = "__path__"
"""Asked for by who imports a module of the package; other names with underscores are asked for of every module."""


class _Compiler(ModuleType):
    """The compiler until something is asked of it that only the real one can answer."""

    def disable(self, function: Callable[..., Any], *_: object, **__: object) -> Callable[..., Any]:
        """The function as it is: no compiler is there that could compile it."""
        return function

    def graph_break(self) -> None:
        """Nothing: no graph is made that could be broken."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != _PATH:
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            # Before it is loaded: its parts ask for each other by these names.
            del sys.modules[self.__name__], torch._dynamo
        return getattr(importlib.import_module(self.__name__), name)


def postpone_compiler() -> None:
    """Have the compiler loaded by its first use. Nothing happens where it is loaded already."""
    if NAME not in sys.modules:
        sys.modules[NAME] = torch._dynamo = _Compiler(NAME)
