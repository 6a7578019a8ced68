"""Parts of a network as a file has them: where each tensor is taken from, and norms, products and activations.

Everything is told by names and shapes; numbers are touched only where tensors are taken (`Taken.of`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from gnnserve_api.files.layers import Activation, DenseManifest, Norm
from gnnserve_worker.models.layer_kind import LINEAR, Shapes
from gnnserve_worker.readers.description import CheckpointLayer, describe
from gnnserve_worker.readers.kinds import BATCH_NORM, LAYER_NORM, MATRIX, PRELU

_NUMBER = re.compile(r"\d+")
_MODULE = "module."
"""Beginning of the tensors within torch_geometric's BatchNorm."""


@dataclass(frozen=True, slots=True)
class Taken:
    """A tensor of a network as it is made of a file's."""

    shape: tuple[int, ...]
    keys: tuple[str, ...] = ()
    """Tensors of the file; empty: all numbers are `fill`."""
    change: Callable[..., np.ndarray] | None = None
    """Its numbers by those of the keys; None: they are the first one's."""
    fill: float = 0.0
    is_identity: bool = False

    def of(self, tensors: Mapping[str, np.ndarray]) -> np.ndarray:
        if self.is_identity:
            return np.eye(*self.shape, dtype=np.float32)
        if not self.keys:
            return np.full(self.shape, self.fill, np.float32)
        found = [tensors[key] for key in self.keys]
        values = found[0] if self.change is None else self.change(*found)
        return np.ascontiguousarray(values.reshape(self.shape), dtype=np.float32)

    @property
    def where(self) -> str:
        """For people: the file's tensors."""
        return " and ".join(self.keys)


TakenTensors = Mapping[str, Taken]
"""By the names of a network that is listed layer by layer."""


@dataclass(frozen=True, slots=True)
class Assumption:
    """Choice that a file does not tell, and the value that is taken for it."""

    field: str
    """Field of spec.model."""
    value: str
    why: str = ""

    def __str__(self) -> str:
        return f"{self.field}: {self.value}{f' ({self.why})' if self.why else ''}"


def taken(module: CheckpointLayer, tensor: str) -> Taken:
    return Taken(tuple(module.shapes[tensor]), (module.key_of(tensor),))


def taken_by_name(module: CheckpointLayer, names: Mapping[str, str]) -> dict[str, Taken]:
    """Tensors that the module has, by new names."""
    return {new: taken(module, old) for old, new in names.items() if old in module.shapes}


def spread(module: CheckpointLayer, tensor: str, width: int) -> Taken:
    """A tensor with one number for each of `width` columns, where the module has one for all of them."""
    return Taken((width,), (module.key_of(tensor),), lambda values: np.broadcast_to(values, (width,)))


def zeros(*shape: int) -> Taken:
    return Taken(shape)


# --- norms, activations, products


@dataclass(frozen=True, slots=True)
class FoundNorm:
    norm: Norm
    width: int
    tensors: TakenTensors


def norm_of(module: CheckpointLayer) -> FoundNorm | None:
    """None: it is no norm that can be computed of a row."""
    if module.kind not in (BATCH_NORM, LAYER_NORM):
        return None
    found = {name.removeprefix(_MODULE): taken(module, name) for name in module.shapes}
    (width,) = next(iter(found.values())).shape
    plain = {"weight": Taken((width,), fill=1.0), "bias": zeros(width)}
    return FoundNorm(Norm.BATCH if module.kind is BATCH_NORM else Norm.LAYER, width, plain | found)


@dataclass(frozen=True, slots=True)
class FoundProduct:
    """A Linear, with the norm and the PReLU that belong to it."""

    name: str
    inputs: int
    manifest: DenseManifest
    tensors: TakenTensors

    @property
    def width(self) -> int:
        return self.manifest.width

    def with_norm(self, norm: FoundNorm) -> FoundProduct:
        tensors = {**self.tensors, **{f"norm.{name}": one for name, one in norm.tensors.items()}}
        return replace(self, manifest=_replaced(self.manifest, norm=norm.norm), tensors=tensors)

    def with_prelu(self, module: CheckpointLayer) -> FoundProduct:
        tensors = {**self.tensors, "activation.weight": spread(module, "weight", self.width)}
        return replace(self, manifest=_replaced(self.manifest, activation=Activation.PRELU), tensors=tensors)

    def with_activation(self, activation: Activation) -> FoundProduct:
        if self.manifest.activation is not Activation.NONE:
            return self
        return replace(self, manifest=_replaced(self.manifest, activation=activation))


def _replaced(manifest: DenseManifest, **fields: object) -> DenseManifest:
    return msgspec.structs.replace(manifest, **fields)


def product_of(module: CheckpointLayer) -> FoundProduct | None:
    """None: it is no product of rows."""
    if module.kind not in (LINEAR, MATRIX):
        return None
    outputs, inputs = module.shapes["weight"]
    manifest = DenseManifest(outputs, bias="bias" in module.shapes)
    return FoundProduct(module.name, inputs, manifest, {name: taken(module, name) for name in module.shapes})


def is_prelu(module: CheckpointLayer) -> bool:
    return module.kind is PRELU


def last_number(name: str) -> int:
    """The last number of a name; -1: it has none."""
    numbers = _NUMBER.findall(name)
    return int(numbers[-1]) if numbers else -1


def parent_of(name: str) -> str:
    return name.rpartition(".")[0]


# --- several products behind each other


@dataclass(frozen=True, slots=True)
class FoundPerceptron:
    """Products behind each other, as a Sequential or torch_geometric's MLP has them."""

    products: tuple[FoundProduct, ...]
    left: tuple[str, ...] = ()
    """Tensors in it that are none of that."""


def perceptron_of(module: CheckpointLayer, start: str) -> FoundPerceptron:
    """The products whose names begin with `start` within a module, ReLU between them."""
    within = {name.removeprefix(start): shape for name, shape in module.shapes.items() if name.startswith(start)}
    description = describe(within)
    named = [replace(one, name=module.key_of(f"{start}{one.name}").rstrip(".")) for one in description.layers]
    found = joined(named)
    products = (*(one.with_activation(Activation.RELU) for one in found.products[:-1]), *found.products[-1:])
    return FoundPerceptron(products, (*found.left, *description.others))


def joined(modules: Sequence[CheckpointLayer]) -> FoundPerceptron:
    """Modules of one parent in the order of their numbers, each norm and PReLU with the product before it. In lists of
    their own (`lins.0`, `norms.0`) those of one number belong together."""
    products = sorted(filter(None, map(product_of, modules)), key=lambda one: last_number(one.name))
    are_of_one_list = len({parent_of(one.name) for one in modules}) == 1
    left: list[str] = []
    for module in modules:
        if product_of(module) is not None:
            continue
        number, norm = last_number(module.name), norm_of(module)
        places = [
            place
            for place, one in enumerate(products)
            if (last_number(one.name) < number if are_of_one_list else last_number(one.name) == number)
        ]
        if places and norm is not None and norm.width == products[places[-1]].width:
            products[places[-1]] = products[places[-1]].with_norm(norm)
        elif places and is_prelu(module):
            products[places[-1]] = products[places[-1]].with_prelu(module)
        else:
            left += module.tensors
    return FoundPerceptron(tuple(products), tuple(left))


def shapes_of(tensors: Mapping[str, np.ndarray]) -> Shapes:
    return {key: tensor.shape for key, tensor in tensors.items()}
