"""Describes a file of weights by its names and shapes: which modules it seems to hold.

Nothing is computed, and nothing of torch_geometric is imported.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gnnserve_worker.models.layer_kind import LINEAR, LayerKind, Shapes
from gnnserve_worker.readers.kinds import KINDS

_SHOWN = 6
_NUMBER = re.compile(r"\d+")
_RELATION = re.compile(r"<?(?P<source>.+?)_{2,3}(?P<name>.+?)_{2,3}(?P<target>[^>]+)>?")
"""Names of a relation's module: HeteroConv's of torch_geometric, and those of to_hetero and of earlier versions."""


@dataclass(frozen=True, slots=True)
class ModuleFacts:
    """Class and attributes that a file tells of a module, beside its tensors."""

    name: str = ""
    """Name of its class."""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    """Attributes that are numbers, texts, or lists of these."""


@dataclass(frozen=True, slots=True)
class CheckpointLayer:
    """A layer of a file."""

    name: str
    """Empty: the file is the state dict of a layer alone."""
    kind: LayerKind
    shapes: Shapes
    """By the names within the layer."""
    facts: ModuleFacts = ModuleFacts()

    @property
    def tensors(self) -> tuple[str, ...]:
        return tuple(map(self.key_of, self.shapes))

    def key_of(self, tensor: str) -> str:
        """The file's name of a tensor."""
        return f"{self.name}.{tensor}" if self.name else tensor


@dataclass(frozen=True, slots=True)
class CheckpointDescription:
    """A file of weights as layers."""

    layers: tuple[CheckpointLayer, ...]
    others: tuple[str, ...]
    """Names of tensors that belong to no layer that is recognised."""
    name: str = ""
    """What it is as a whole, where that is known; empty: layers tell."""

    @property
    def convolutions(self) -> tuple[CheckpointLayer, ...]:
        return tuple(layer for layer in self.layers if layer.kind.is_convolution)

    @property
    def beside(self) -> tuple[CheckpointLayer, ...]:
        """Layers that are no convolutions."""
        return tuple(layer for layer in self.layers if not layer.kind.is_convolution)

    @property
    def is_perceptron(self) -> bool:
        """Whether it is layers of one matrix and a bias each, and nothing of a graph."""
        return bool(self.layers) and not self.others and all(one.kind is LINEAR for one in self.layers)

    def says(self) -> str:
        """`2 SAGEConv layers (conv1, conv2) and a Linear (fc)`."""
        if self.name:
            return self.name
        grouped: dict[str, list[str]] = {}
        for layer in (*self.convolutions, *self.beside):
            grouped.setdefault(self._says_kind(layer), []).append(layer.name or "without a name")
        parts = [f"{_counted(kind, len(names))} ({listed(names)})" for kind, names in grouped.items()]
        if self.others:
            parts.append(f"tensors of no layer that is known ({listed(self.others)})")
        return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts) or "nothing"

    def _says_kind(self, layer: CheckpointLayer) -> str:
        name, convolutions = layer.kind.name, self.convolutions
        if layer.kind is not LINEAR or not convolutions:
            return name
        outputs, inputs = layer.shapes["weight"]
        ends = [widths for one in convolutions if (widths := _widths(one)) is not None]
        if not ends:
            return name
        reads, writes = [each[0] for each in ends], [each[1] for each in ends]
        if len(writes) > 1 and inputs == sum(writes):
            return f'{name} that reads the outputs of all layers (jumping knowledge "cat")'
        if inputs in writes and outputs not in reads:
            return f"{name} behind the last convolution"
        if outputs in reads and inputs not in writes:
            return f"{name} before the first convolution"
        return name


def _counted(kind: str, count: int) -> str:
    if count == 1:
        return f"a {kind}"
    return f"{count} layers of {kind}" if " " in kind else f"{count} {kind} layers"


def listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + ", …" * (len(names) > _SHOWN)


def _widths(layer: CheckpointLayer) -> tuple[int, int] | None:
    """Columns that the layer reads and writes, as far as its matrices tell."""
    matrices = [shape for shape in layer.shapes.values() if len(shape) == 2]
    return (matrices[0][1], matrices[-1][0]) if matrices else None


def describe(shapes: Shapes, facts: Mapping[str, ModuleFacts] = {}) -> CheckpointDescription:
    """The layers of a file, in the order of the numbers in their names. `facts`: by the paths of modules."""
    layers: list[CheckpointLayer] = []
    left = dict(shapes)
    for prefix in _prefixes(shapes):
        start = f"{prefix}." if prefix else ""
        within = {name.removeprefix(start): shape for name, shape in left.items() if name.startswith(start)}
        kind = next((one for one in KINDS if one.matches(within)), None)
        if kind is None:
            continue
        layers.append(CheckpointLayer(prefix, kind, within, facts.get(prefix, ModuleFacts())))
        for name in within:
            del left[start + name]
    layers.sort(key=lambda one: _by_numbers(one.name))
    return CheckpointDescription(tuple(layers), tuple(sorted(left)))


def _prefixes(names: Shapes) -> list[str]:
    """Beginnings of the names, at dots outside of <>, the shortest first."""
    found = set()
    for name in names:
        steps = steps_of(name)
        found |= {".".join(steps[:count]) for count in range(len(steps))}
    return sorted(found, key=lambda one: (one.count("."), one))


def _by_numbers(name: str) -> tuple[str, tuple[int, ...]]:
    return _NUMBER.sub("", name), tuple(int(number) for number in _NUMBER.findall(name))


def steps_of(name: str) -> list[str]:
    """Parts of a name, cut at dots outside of <>."""
    return re.findall(r"(?:<[^>]*>|[^.])+", name)


def relation_of(layer: str) -> re.Match[str] | None:
    """The relation that a layer's name ends in, as HeteroConv or to_hetero writes it: `source`, `name`, `target`."""
    steps = steps_of(layer)
    return _RELATION.fullmatch(steps[-1]) if steps else None
