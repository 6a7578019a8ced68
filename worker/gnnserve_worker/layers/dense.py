"""Products, norms and activations of rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gnnserve_api.files.layers import Activation, DenseManifest, Norm

_TENSORS_OF_NORM: Mapping[Norm, tuple[str, ...]] = {
    Norm.NONE: (),
    Norm.BATCH: ("weight", "bias", "running_mean", "running_var"),
    Norm.LAYER: ("weight", "bias"),
    Norm.GRAPH: ("weight", "bias", "mean_scale", "running_mean", "running_var"),
    Norm.L2: (),
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
