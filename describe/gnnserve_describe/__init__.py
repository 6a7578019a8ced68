"""Describes a model of a user's as a program that gnnserve serves; runs in the environment that has the model.

`describe(module, graph, folder)` does what `gnnserve-describe` does on a command line. It imports the contract
(`gnnserve_api`) and neither the server nor the operator; torch is imported when a name is first used, so that `--help`
does without.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gnnserve_describe.description import Description, Wishes, describe
    from gnnserve_describe.scored import links_of, nodes_of

__all__ = ["Description", "Wishes", "describe", "links_of", "nodes_of"]
_MODULES = {"links_of": "scored", "nodes_of": "scored"}
"""Modules of names that `description` does not have."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"gnnserve_describe.{_MODULES.get(name, 'description')}"), name)
