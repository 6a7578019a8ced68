"""A kind of layer as files of weights have it, recognised by names and shapes of its tensors.

Each architecture lists those that it reads (`layer_kinds`); those that none reads are in
`generation/checkpoint_description.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

Shapes = Mapping[str, tuple[int, ...]]
"""Shapes of tensors, by name."""


@dataclass(frozen=True, slots=True)
class LayerKind:
    """A kind of layer, recognised by its tensors."""

    name: str
    """The class that users know it by."""
    tensors: str
    """Regular expression of the names within the layer: all of them match it."""
    marks: tuple[str, ...] = ()
    """Names that must be there: regular expressions too."""
    dimensions: Mapping[str, int] = field(default_factory=dict)
    """Numbers of dimensions of tensors that are told apart by them."""
    accepts: Callable[[Shapes], bool] = lambda shapes: True
    """What else must hold of the shapes within the layer."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """New names of its tensors, by the names that they have, with which it is a layer that is read. An empty one: the
    tensor is left out."""
    transposed: tuple[str, ...] = ()
    """Matrices that have to be transposed for that."""
    added: Mapping[str, Callable[[Shapes], tuple[int, ...]]] = field(default_factory=dict)
    """Tensors of zeros that have to be added for that, and their shapes."""
    note: str = ""
    """Why it is not served, or what to know before tensors are renamed."""
    is_convolution: bool = True

    def matches(self, shapes: Shapes) -> bool:
        return (
            bool(shapes)
            and all(re.fullmatch(self.tensors, name) for name in shapes)
            and all(any(re.fullmatch(mark, name) for name in shapes) for mark in self.marks)
            and all(len(shapes[name]) == count for name, count in self.dimensions.items() if name in shapes)
            and self.accepts(shapes)
        )

    @property
    def is_read_as_it_is(self) -> bool:
        """Whether nothing has to be done to its tensors before."""
        return not (self.renamed or self.transposed or self.added)


LINEAR = LayerKind("Linear", r"weight|bias", ("weight", "bias"), {"weight": 2, "bias": 1}, is_convolution=False)
