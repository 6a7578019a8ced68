"""Products of rows, each with the norm and the activation behind it: what stands before the layers, behind them, and in
GIN."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

from gnnserve_api.files.layers import Activation, DenseManifest, Norm
from gnnserve_describe.layers.values import Activated, Features, Normed, NotLayersError, Product, Unread, Value

Step: TypeAlias = Normed | Activated


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """A norm and an activation behind something, each perhaps."""

    norm: Normed | None = None
    activation: Activated | None = None
    is_norm_behind: bool = False
    """Whether the norm stands behind the activation."""

    @property
    def fields(self) -> Mapping[str, object]:
        """Fields of a manifest."""
        norm, activation = self.norm, self.activation
        return {
            "norm": Norm.NONE if norm is None else norm.norm,
            "is_norm_behind": self.is_norm_behind and norm is not None and activation is not None,
            "norm_epsilon": 1e-5 if norm is None else norm.epsilon,
            "activation": Activation.NONE if activation is None else activation.activation,
            "slope": None if activation is None else activation.slope,
        }

    def tensors(self, norm: str, activation: str, width: int) -> dict[str, torch.Tensor]:
        """By keys that begin with these."""
        found = {} if self.norm is None else {f"{norm}.{name}": each for name, each in self.norm.tensors.items()}
        if self.activation is not None and self.activation.weight is not None:
            found[f"{activation}.weight"] = self.activation.weight.reshape(-1).expand(width)
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Dense:
    """A product of rows."""

    weight: torch.Tensor
    bias: torch.Tensor | None
    steps: Steps = Steps()

    @property
    def manifest(self) -> DenseManifest:
        return DenseManifest(self.weight.shape[0], self.bias is not None, **self.steps.fields)  # type: ignore[arg-type]


def tensors_of(key: str, products: Sequence[Dense]) -> dict[str, torch.Tensor]:
    """Tensors of products, under `key.<number>`."""
    found: dict[str, torch.Tensor] = {}
    for place, each in enumerate(products):
        below = f"{key}.{place}"
        found[f"{below}.weight"] = each.weight
        found |= {} if each.bias is None else {f"{below}.bias": each.bias}
        found |= each.steps.tensors(f"{below}.norm", f"{below}.activation", each.weight.shape[0])
    return found


def peeled(value: Value) -> tuple[list[Step], Value]:
    """Norms and activations that a value ends in, the last one first, and what they are of."""
    steps: list[Step] = []
    while isinstance(value, Normed | Activated):
        steps.append(value)
        value = value.rows
    return steps, value


def steps_of(steps: Sequence[Step]) -> Steps | None:
    """At most one norm and one activation, the last one first; None: there are more."""
    norms = [each for each in steps if isinstance(each, Normed)]
    activations = [each for each in steps if isinstance(each, Activated)]
    if len(norms) > 1 or len(activations) > 1:
        return None
    is_behind = len(steps) == 2 and isinstance(steps[0], Normed)
    return Steps(next(iter(norms), None), next(iter(activations), None), is_behind)


def dense(weight: torch.Tensor, bias: torch.Tensor | None, steps: Sequence[Step]) -> list[Dense]:
    """A product with what stands behind it, the last one first; what does not fit behind one, behind the identity."""
    for count in range(len(steps) + 1):
        inner = steps_of(steps[count:])
        if inner is not None:
            made = [Dense(weight, bias, inner)]
            return made if count == 0 else [*made, *dense(torch.eye(weight.shape[0]), None, steps[:count])]
    raise AssertionError("no step at all fits")


def behind_identity(width: int, steps: Sequence[Step]) -> list[Dense]:
    """Norms and activations that have no product."""
    return dense(torch.eye(width), None, steps) if steps else []


def products_of(value: Value) -> list[Dense]:
    """Products over all features of one type. NotLayersError: there is something else in it."""
    found: list[Dense] = []
    while True:
        steps, base = peeled(value)
        if isinstance(base, Features):
            rows = torch.eye(base.columns)[base.first : base.first + base.count]
            return (behind_identity(base.count, steps) if base.is_whole else dense(rows, None, steps)) + found
        if not isinstance(base, Product):
            raise NotLayersError(why_not(base, "products of features"))
        weight, rows_read = base.weight, base.rows
        if isinstance(rows_read, Features) and not rows_read.is_whole:
            whole = torch.zeros(weight.shape[0], rows_read.columns)
            whole[:, rows_read.first : rows_read.first + rows_read.count] = weight
            return dense(whole, base.bias, steps) + found
        found = dense(weight, base.bias, steps) + found
        value = rows_read


def why_not(value: Value, wanted: str) -> str:
    """A sentence."""
    if isinstance(value, Unread):
        return value.why
    return f"{wanted} are wanted, and there is a {type(value).__name__}"
