"""Products, norms and activations of rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from gnnserve_api.files.layers import Activation, DenseManifest, Norm
from gnnserve_worker.kernel_cache import inlined, kernel
from gnnserve_worker.layers.memory import RunMemory
from gnnserve_worker.models.network import Linear
from gnnserve_worker.tables.attention import exponential

Tensors = Mapping[str, np.ndarray]
"""Tensors of a part of the network, by their names in it."""


class Change(Protocol):
    """A change of rows, float32 [rows, columns], where they are. Each kind is a class, which a GPU has a twin of
    (`gpu/listed/rows.py`)."""

    def __call__(self, rows: np.ndarray) -> None: ...  # pragma: no cover


class RowsOf(Protocol):
    """Maker of rows of rows, float32 [rows, columns], in memory of the run."""

    def __call__(self, rows: np.ndarray, memory: RunMemory) -> np.ndarray: ...  # pragma: no cover


@dataclass(frozen=True, slots=True)
class AsTheyAre:
    """The `RowsOf` of rows that are products already."""

    def __call__(self, rows: np.ndarray, memory: RunMemory) -> np.ndarray:
        del memory
        return rows


@dataclass(frozen=True, slots=True)
class ColumnsOf:
    """The `RowsOf` of products that stand among the columns of rows."""

    columns: slice

    def __call__(self, rows: np.ndarray, memory: RunMemory) -> np.ndarray:
        del memory
        found: np.ndarray = rows[:, self.columns]
        return found


_TENSORS_OF_NORM: Mapping[Norm, tuple[str, ...]] = {
    Norm.NONE: (),
    Norm.BATCH: ("weight", "bias", "running_mean", "running_var"),
    Norm.LAYER: ("weight", "bias"),
    Norm.GRAPH: ("weight", "bias", "mean_scale", "running_mean", "running_var"),
    Norm.L2: (),
    Norm.L1: (),
}
"""GraphNorm's running statistics are the mean of all rows, and the variance of what is left once that is taken off."""


def norm_shapes(norm: Norm, width: int) -> Mapping[str, tuple[int, ...]]:
    """Shapes of the tensors of a norm: of one without weights they are ones and zeros."""
    return dict.fromkeys(_TENSORS_OF_NORM[norm], (width,))


def activation_shapes(activation: Activation, width: int) -> Mapping[str, tuple[int, ...]]:
    """Shapes of the tensors of an activation: a slope for each column, of PReLU."""
    return {"weight": (width,)} if activation is Activation.PRELU else {}


def products_shapes(key: str, products: Sequence[DenseManifest], inputs: int) -> Mapping[str, tuple[int, ...]]:
    """Shapes of the tensors of products, one behind the other, under `key.<number>`."""
    shapes: dict[str, tuple[int, ...]] = {}
    for place, each in enumerate(products):
        below = f"{key}.{place}"
        shapes[f"{below}.weight"] = (each.width, inputs)
        if each.bias:
            shapes[f"{below}.bias"] = (each.width,)
        shapes |= {f"{below}.norm.{name}": shape for name, shape in norm_shapes(each.norm, each.width).items()}
        activation = activation_shapes(each.activation, each.width)
        shapes |= {f"{below}.activation.{name}": shape for name, shape in activation.items()}
        inputs = each.width
    return shapes


def below(tensors: Tensors, key: str) -> dict[str, np.ndarray]:
    """Tensors whose keys begin with that one and a dot, by what is behind it."""
    start = f"{key}."
    return {name.removeprefix(start): tensor for name, tensor in tensors.items() if name.startswith(start)}


@dataclass(frozen=True, slots=True)
class Product:
    """x · Wᵀ + b, and what changes the rows behind it."""

    linear: Linear
    behind: tuple[Change, ...] = ()

    @staticmethod
    def build(weight: np.ndarray, bias: np.ndarray | None = None, *, relu: bool = False) -> Product:
        """A product, with ReLU or alone. `weight`: float32 [outputs, inputs]; `bias`: None: none is added."""
        bias = np.zeros(len(weight), np.float32) if bias is None else bias
        return Product(Linear.build(weight.T, bias, relu=relu, compute="float32"))

    def __call__(self, rows: np.ndarray, memory: RunMemory) -> np.ndarray:
        """float32 [rows, outputs], in memory of the run. `rows`: float32 [rows, inputs], in C order."""
        out = memory.rows(len(rows), self.linear.outputs)
        self.linear.apply(rows.reshape(-1), len(rows), out.reshape(-1))
        for change in self.behind:
            change(out)
        return out


def build_products(products: Sequence[DenseManifest], tensors: Tensors) -> tuple[Product, ...]:
    """Products one behind the other, whose tensors are `<number>.…`. A norm of columns that stands right behind a
    product is part of it."""
    return tuple(_build_product(each, below(tensors, str(place))) for place, each in enumerate(products))


def _build_product(each: DenseManifest, tensors: Tensors) -> Product:
    weight, bias = tensors["weight"], tensors.get("bias")
    norm, activation = below(tensors, "norm"), below(tensors, "activation")
    scaled = None if each.is_norm_behind else column_norm(each.norm, norm, each.norm_epsilon)
    if scaled is not None:
        scale, shift = scaled
        weight, bias = weight * scale[:, None], shift if bias is None else bias * scale + shift
    is_relu = each.activation is Activation.RELU and (scaled is not None or each.norm is Norm.NONE)
    product = Product.build(weight, bias, relu=is_relu)
    if is_relu:
        return product
    first = Norm.NONE if scaled is not None else each.norm
    behind = build_changes(first, norm, each.norm_epsilon, each.activation, activation, each.slope, each.is_norm_behind)
    return Product(product.linear, behind)


def run_products(products: Sequence[Product], rows: np.ndarray, memory: RunMemory) -> np.ndarray:
    for product in products:
        rows = product(rows, memory)
    return rows


def column_norm(norm: Norm, tensors: Tensors, epsilon: float) -> tuple[np.ndarray, np.ndarray] | None:
    """What each column is multiplied by, and then shifted by, float32 [columns]; None: the norm is of rows, or there
    is none."""
    if norm not in (Norm.BATCH, Norm.GRAPH):
        return None
    wide = {name: tensor.astype(np.float64) for name, tensor in tensors.items()}
    scale = wide["weight"] / np.sqrt(wide["running_var"] + epsilon)
    mean = wide["running_mean"] * wide.get("mean_scale", 1.0)
    return scale.astype(np.float32), (wide["bias"] - mean * scale).astype(np.float32)


def build_changes(
    norm: Norm, norm_tensors: Tensors, epsilon: float, activation: Activation, activation_tensors: Tensors,
    slope: float | None, is_norm_behind: bool,
) -> tuple[Change, ...]:  # fmt: skip
    """A norm and an activation, in their order."""
    normed, activated = build_norm(norm, norm_tensors, epsilon), build_activation(activation, activation_tensors, slope)
    return (*activated, *normed) if is_norm_behind else (*normed, *activated)


def build_norm(norm: Norm, tensors: Tensors, epsilon: float) -> tuple[Change, ...]:
    if (columns := column_norm(norm, tensors, epsilon)) is not None:
        return (ScaledColumns(*columns),)
    return _NORMS_OF_ROWS[norm](tensors, epsilon)


def build_activation(activation: Activation, tensors: Tensors, slope: float | None) -> tuple[Change, ...]:
    if activation is Activation.NONE:
        return ()
    if activation is Activation.PRELU:
        return (Prelu(tensors["weight"]),)
    return (Activated(activation, _SLOPES.get(activation, 0.0) if slope is None else slope),)


@dataclass(frozen=True, slots=True)
class ScaledColumns:
    """The `Change` by a norm of columns."""

    scale: np.ndarray
    """float32 [columns]"""
    shift: np.ndarray

    def __call__(self, rows: np.ndarray) -> None:
        _scale(self.scale, self.shift, rows)


@dataclass(frozen=True, slots=True)
class NormedRows:
    """The `Change` by LayerNorm of each row."""

    weight: np.ndarray
    """float32 [columns]"""
    bias: np.ndarray
    epsilon: float

    def __call__(self, rows: np.ndarray) -> None:
        _norm_rows(self.weight, self.bias, np.float32(self.epsilon), rows)


@dataclass(frozen=True, slots=True)
class UnitRows:
    """The `Change` that divides each row by its length."""

    def __call__(self, rows: np.ndarray) -> None:
        unit_rows(rows)


@dataclass(frozen=True, slots=True)
class UnitSums:
    """The `Change` that divides each row by the sum of its magnitudes."""

    def __call__(self, rows: np.ndarray) -> None:
        _unit_sums(rows)


@dataclass(frozen=True, slots=True)
class Prelu:
    """The `Change` by an activation with a slope for each column."""

    slopes: np.ndarray
    """float32 [columns]"""

    def __call__(self, rows: np.ndarray) -> None:
        _prelu(self.slopes, rows)


@dataclass(frozen=True, slots=True)
class Activated:
    """The `Change` by an activation without weights."""

    activation: Activation
    slope: float
    """Slope of LeakyRelu below 0, or limit of Elu."""

    def __call__(self, rows: np.ndarray) -> None:
        _activate(_CODES[self.activation], np.float32(self.slope), rows)


_SLOPES: Mapping[Activation, float] = {Activation.LEAKY_RELU: 0.01, Activation.ELU: 1.0}
"""torch's defaults."""
_CODES: Mapping[Activation, int] = {one: code for code, one in enumerate(Activation)}
_RELU, _LEAKY_RELU, _ELU, _SELU, _GELU, _SILU, _TANH = (
    _CODES[one]
    for one in (
        Activation.RELU, Activation.LEAKY_RELU, Activation.ELU, Activation.SELU, Activation.GELU, Activation.SILU,
        Activation.TANH,
    )
)  # fmt: skip
_SELU_ALPHA, _SELU_SCALE = np.float32(1.6732632423543772), np.float32(1.0507009873554805)
_ROOT_HALF = np.float32(math.sqrt(0.5))
_NEAR = np.float32(-0.5)
LEAST_LENGTH = np.float32(1e-12)
"""torch's, below which lengths count as that."""


@kernel
def _scale(scale: np.ndarray, shift: np.ndarray, rows: np.ndarray) -> None:
    for row in range(len(rows)):
        line = rows[row]
        for column in range(len(line)):
            line[column] = line[column] * scale[column] + shift[column]


@kernel
def _norm_rows(weight: np.ndarray, bias: np.ndarray, epsilon: np.float32, rows: np.ndarray) -> None:
    for row in range(len(rows)):
        line = rows[row]
        mean = np.float32(np.mean(line))
        spread = 0.0
        for column in range(len(line)):
            spread += (line[column] - mean) ** 2
        factor = np.float32(1.0 / np.sqrt(spread / len(line) + epsilon))
        for column in range(len(line)):
            line[column] = (line[column] - mean) * factor * weight[column] + bias[column]


@kernel
def unit_rows(rows: np.ndarray) -> None:
    """Divide each row by its length."""
    for row in range(len(rows)):
        line = rows[row]
        total = 0.0
        for column in range(len(line)):
            total += line[column] * line[column]
        length = max(np.float32(np.sqrt(total)), LEAST_LENGTH)
        for column in range(len(line)):
            line[column] /= length


@kernel
def _unit_sums(rows: np.ndarray) -> None:
    """Divide each row by the sum of its magnitudes."""
    for row in range(len(rows)):
        line = rows[row]
        total = 0.0
        for column in range(len(line)):
            total += abs(line[column])
        length = max(np.float32(total), LEAST_LENGTH)
        for column in range(len(line)):
            line[column] /= length


@kernel
def _prelu(slopes: np.ndarray, rows: np.ndarray) -> None:
    for row in range(len(rows)):
        line = rows[row]
        for column in range(len(line)):
            value = line[column]
            line[column] = value if value > 0 else value * slopes[column]


@kernel
def _activate(code: int, slope: np.float32, rows: np.ndarray) -> None:
    """One loop for each activation, so that each becomes vectors. NaN stays NaN."""
    flat = rows.reshape(-1)
    if code == _RELU:
        for place in range(len(flat)):
            flat[place] = np.float32(0.0) if flat[place] < 0 else flat[place]
    elif code == _LEAKY_RELU:
        for place in range(len(flat)):
            flat[place] = flat[place] * slope if flat[place] < 0 else flat[place]
    elif code == _ELU:
        for place in range(len(flat)):
            flat[place] = slope * _exponential_less_one(flat[place]) if flat[place] < 0 else flat[place]
    elif code == _SELU:
        for place in range(len(flat)):
            value = flat[place]
            flat[place] = _SELU_SCALE * (_SELU_ALPHA * _exponential_less_one(value) if value < 0 else value)
    elif code == _GELU:
        for place in range(len(flat)):
            flat[place] = np.float32(0.5) * flat[place] * np.float32(1.0 + math.erf(flat[place] * _ROOT_HALF))
    elif code == _SILU:
        for place in range(len(flat)):
            flat[place] *= _sigmoid(flat[place])
    elif code == _TANH:
        for place in range(len(flat)):
            flat[place] = _tanh(flat[place])
    else:
        for place in range(len(flat)):
            flat[place] = _sigmoid(flat[place])


_NORMS_OF_ROWS: Mapping[Norm, Callable[[Tensors, float], tuple[Change, ...]]] = {
    Norm.NONE: lambda _tensors, _epsilon: (),
    Norm.LAYER: lambda tensors, epsilon: (NormedRows(tensors["weight"], tensors["bias"], epsilon),),
    Norm.L2: lambda _tensors, _epsilon: (UnitRows(),),
    Norm.L1: lambda _tensors, _epsilon: (UnitSums(),),
}


@inlined
def _exponential_less_one(value: Any) -> Any:
    """exp(value) - 1 of a number below 0: by its series near 0, where the difference would have few digits."""
    series = np.float32(1 / 40320) * value + np.float32(1 / 5040)
    series = series * value + np.float32(1 / 720)
    series = series * value + np.float32(1 / 120)
    series = series * value + np.float32(1 / 24)
    series = series * value + np.float32(1 / 6)
    series = series * value + np.float32(0.5)
    series = series * value * value + value
    return series if value > _NEAR else exponential(value) - np.float32(1.0)


@inlined
def _tanh(value: Any) -> Any:
    """tanh(x) = (1 - exp(-2|x|)) / (1 + exp(-2|x|)), with the sign of x. NaN stays NaN."""
    less = _exponential_less_one(np.float32(-2.0) * abs(value))
    found = -less / (np.float32(2.0) + less)
    found = found if value > 0 else -found
    return found if value == value else value  # noqa: PLR0124


@inlined
def _sigmoid(value: Any) -> Any:
    share = exponential(-abs(value))
    found = (np.float32(1.0) if value >= 0 else share) / (np.float32(1.0) + share)
    return found if value == value else value  # noqa: PLR0124 - NaN stays NaN
