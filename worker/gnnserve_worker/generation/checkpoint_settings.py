"""Settings that a manifest has to state of a file of weights, as the shapes of its tensors tell: all of it at once, so
that a message never advises a setting that the next start refuses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gnnserve_api.spec.model import Architecture, Model, column_blocks
from gnnserve_worker.models.architecture import Axis, key_of
from gnnserve_worker.models.layer_kind import Shapes
from gnnserve_worker.models.registry import ARCHITECTURES, spec_of
from gnnserve_worker.readers.misfit import AS_LAYERS, MisfitError
from gnnserve_worker.tables.table import Aggregator

_OWN_FIELDS = dict.fromkeys(name for one in ARCHITECTURES.values() for spec in one.specs for name in spec.own_fields)
"""Fields of spec.model that few architectures have."""


@dataclass(frozen=True, slots=True)
class LayerSizes:
    """Sizes of the axes of each layer."""

    layers: tuple[Mapping[Axis, int], ...]

    def of(self, axis: Axis) -> list[int]:
        return [layer[axis] for layer in self.layers if axis in layer]


def sizes_of(shapes: Shapes, architecture: Architecture, layers: int) -> LayerSizes:
    """Sizes as the tensors have them, under torch_geometric's keys. Tensors that lack a dimension are passed over."""
    spec, found = spec_of(architecture), []
    for layer in range(layers):
        sizes: dict[Axis, int] = {}
        for weight, axes in spec.shapes.items():
            shape = shapes.get(key_of(layer, weight), ())
            if len(shape) == len(axes):
                sizes |= {axis: size for axis, size in zip(axes, shape, strict=True) if axis not in sizes}
        found.append(sizes)
    return LayerSizes(tuple(found))


def needed_settings(sizes: LayerSizes, architecture: Architecture, model: Model, features: int) -> list[str]:
    """What spec.model has to say, as far as it says something else. `features`: columns of the graph. MisfitError: no
    settings can."""
    layers, outputs = len(sizes.layers), sizes.of(Axis.OUTPUTS)
    _check_widths(sizes, outputs)
    wanted: list[str] = []
    if architecture is not model.architecture:
        wanted.append(f"set spec.model.architecture to {architecture}")
    wanted += [
        f"leave out spec.model.{_shown(name)}"
        for name in _OWN_FIELDS
        if getattr(model, name) is not None and name not in spec_of(architecture).own_fields
    ]
    wanted += _fanouts(layers, architecture, model)
    if layers > 1 and outputs[0] != model.hidden:
        wanted.append(f"set spec.model.hidden to {outputs[0]}")
    wanted += _heads(sizes, model) if sizes.of(Axis.HEADS) else []
    if inner := sizes.of(Axis.INNER):
        as_wide = all(width == output for width, output in zip(inner, outputs, strict=False))
        fits = as_wide if model.mlp_hidden is None else {*inner} == {model.mlp_hidden}
        if not fits and len({*inner}) > 1 and not as_wide:
            widths = " and ".join(str(width) for width in inner)
            raise MisfitError(f"its layers are {widths} wide between their two products", _NO_SETTING)
        if not fits:
            leave = f", or leave it out for a torch_geometric.nn.{spec_of(architecture).module} as it is"
            only = len({*inner}) > 1
            wanted.append(
                "leave out spec.model.mlpHidden" if only
                else f"set spec.model.mlpHidden to {inner[0]}{leave * (as_wide and model.mlp_hidden is not None)}"
            )  # fmt: skip
    return wanted + _hops(sizes, architecture, model, features)


_NO_SETTING = f"no setting of an architecture says that: {AS_LAYERS}"


def _check_widths(sizes: LayerSizes, outputs: Sequence[int]) -> None:
    hidden = outputs[:-1]
    if len({*hidden}) > 1:
        raise MisfitError(f"its hidden layers are {' and '.join(str(width) for width in hidden)} wide", _NO_SETTING)
    for place, layer in enumerate(sizes.layers):
        heads, each, output = (layer.get(axis) for axis in (Axis.HEADS, Axis.HEAD_OUTPUTS, Axis.OUTPUTS))
        if heads is None or each is None or heads == 1:
            continue
        is_last = place == len(sizes.layers) - 1
        if is_last and output == heads * each:
            raise MisfitError(f"the {heads} heads of its last layer stand beside each other (concat=True)", _NO_SETTING)
        if not is_last and output == each:
            raise MisfitError(f"the {heads} heads of a hidden layer are averaged (concat=False)", _NO_SETTING)
    if len({*sizes.of(Axis.HEADS)[:-1]}) > 1:
        shown = " and ".join(str(heads) for heads in sizes.of(Axis.HEADS)[:-1])
        raise MisfitError(f"its hidden layers have {shown} heads", _NO_SETTING)


def samples_nothing(architecture: Architecture) -> bool:
    """Whether a node's own row is all that its layers read."""
    return spec_of(architecture).aggregator is Aggregator.NONE


def tells_hops(architecture: Architecture) -> bool:
    """Whether the width of the first layer tells how often features were propagated."""
    return samples_nothing(architecture) and column_blocks(architecture, 1) > 1


def _fanouts(layers: int, architecture: Architecture, model: Model) -> list[str]:
    if samples_nothing(architecture):
        zeros = [0] * layers
        return [] if list(model.fanouts) == zeros else [f"set spec.model.fanouts to {zeros}"]
    if model.reads_one_row:
        return [f"give {layers} fan-outs above 0, one per layer"]
    return [] if len(model.fanouts) == layers else [f"give {layers} fan-outs, one per layer"]


def _heads(sizes: LayerSizes, model: Model) -> list[str]:
    *hidden, last = sizes.of(Axis.HEADS)
    heads = model.heads or 1
    wanted = []
    if hidden and hidden[0] != heads:
        heads = hidden[0]
        wanted.append(f"set spec.model.heads to {heads}")
    if last != (model.output_heads or heads):
        wanted.append(f"set spec.model.outputHeads to {last}")
    return wanted


def _hops(sizes: LayerSizes, architecture: Architecture, model: Model, features: int) -> list[str]:
    """The number of hops that the first layer of a perceptron over propagated features tells."""
    inputs = sizes.of(Axis.INPUTS)
    if not tells_hops(architecture) or not inputs or not features or inputs[0] % features:
        return []
    hops, stated = inputs[0] // features - 1, model.network(1).hops if model.architecture is architecture else None
    return [] if hops == stated else [f"set spec.model.hops to {hops}"]


def _shown(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
