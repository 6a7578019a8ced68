"""Finds which key of a given state dict is which weight of which layer.

`torch_geometric.nn.GraphSAGE` and `GIN` call their layers `convs.0`, `convs.1`, …; a model as PyG's tutorial writes it
calls them `conv1`, `conv2`, or whatever its attributes are. Layers whose names differ in their number alone are taken
in the order of these numbers; anything else is refused, with the keys to rename. Only names are looked at here; which
layers a file has is told by `readers/description.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gnnserve_api.spec.model import Architecture
from gnnserve_worker.models.architecture import key_of
from gnnserve_worker.models.registry import spec_of
from gnnserve_worker.readers.misfit import MisfitError

_NUMBERED = re.compile(r"^(?P<stem>.*?)(?P<number>[0-9]+)$")


class LayoutError(MisfitError):
    """The names of layers tell no order."""


@dataclass(frozen=True, slots=True)
class CheckpointLayout:
    layers: tuple[str, ...]
    """Names of the layers in the file, in the order in which they are applied."""
    keys: Mapping[str, str]
    """Keys of the file by torch_geometric's keys. A key that belongs to no known layer maps to itself."""

    def shown(self, key: str) -> str:
        """The key of a weight in the file, or the key that it would have there."""
        if key in self.keys:
            return self.keys[key]
        layer, _, weight = key.removeprefix("convs.").partition(".")
        return f"{self.layers[int(layer)]}.{weight}" if int(layer) < len(self.layers) else key


def layout_of(keys: Iterable[str], architecture: Architecture) -> CheckpointLayout:
    """Recognise the layers by their keys, which are all of that architecture. LayoutError: their order is unclear."""
    found = sorted(keys)
    recognised = spec_of(architecture).recognise(found)
    order = in_order({known.layer for known in recognised.values()})
    names = {}
    for key in found:
        known = recognised.get(key)
        names[key if known is None else key_of(order.index(known.layer), known.weight)] = key
    return CheckpointLayout(tuple(order), names)


def in_order(layers: Iterable[str]) -> list[str]:
    """Layers by their numbers. LayoutError: they have none, or differ in more."""
    found = sorted(layers)
    if len(found) == 1:
        return found
    numbered = {layer: match for layer in found if (match := _NUMBERED.match(layer)) is not None}
    numbers = {int(match["number"]) for match in numbered.values()}
    if len({match["stem"] for match in numbered.values()}) != 1 or not len(numbered) == len(found) == len(numbers):
        renamed = ", ".join(f"{layer}.* to convs.{place}.*" for place, layer in enumerate(found))
        raise LayoutError(
            f"its layers are called {', '.join(found)}, which tells no order",
            f"rename the keys by the order in which the model applies its layers, as in {renamed}",
        )
    return sorted(found, key=lambda layer: int(numbered[layer]["number"]))
