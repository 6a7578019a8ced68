"""Given weights of a network over relations, held against the manifest and the graph."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gnnserve_api.files.repository import AttentionManifest
from gnnserve_api.spec.model import Architecture
from gnnserve_worker.generation.checkpoint_description import (
    looks,
    refused_layers,
    relational_architecture_of,
)
from gnnserve_worker.generation.checkpoint_layout import LayoutError, in_order
from gnnserve_worker.models.architecture import RelationalShape, RelationalSpec
from gnnserve_worker.models.layer_kind import Shapes
from gnnserve_worker.models.registry import ARCHITECTURES, Tensors, relational_spec_of
from gnnserve_worker.readers.description import CheckpointDescription, describe, relation_of, steps_of
from gnnserve_worker.readers.misfit import MisfitError

_SHOWN = 12


@dataclass(frozen=True, slots=True)
class WantedOverRelations:
    """A `checkpoint.WantedNetwork`."""

    architecture: RelationalSpec
    shape: RelationalShape

    def fit(self, tensors: Tensors) -> Tensors:
        found = {key: tensor.shape for key, tensor in tensors.items()}
        expected = dict(self.architecture.shapes(self.shape))
        if found == expected:
            return tensors
        description = describe(found)
        try:
            names, unclear = _names_here(description), None
        except LayoutError as error:
            names, unclear = {}, error
        renamed = {names.get(key, key): size for key, size in found.items()}
        if renamed == expected:
            return {names.get(key, key): tensor for key, tensor in tensors.items()}
        raise MisfitError(*_misfit(description, names, unclear, renamed, self.architecture, self.shape))


def fields_over_relations(shapes: Shapes) -> dict[str, Any] | None:
    """Fields of `spec.model` of a file over several types, all neighbours read; None: it is of no architecture that
    reads them, or of one type as well."""
    description = describe(shapes)
    layers = [layer for layer in description.layers if not _is_input(layer.name)]
    owners = {relational_architecture_of(layer) for layer in layers}
    held = owners.pop() if len(owners) == 1 and not description.others else None
    if held is None or not (ARCHITECTURES[held].one_type is None or all(relation_of(one.name) for one in layers)):
        return None
    try:
        names = _names_here(description)
    except LayoutError:
        return None
    found = {names.get(key, key): size for key, size in shapes.items()}
    count, own_fields = _layers(found), relational_spec_of(held).own_fields
    fields: dict[str, Any] = {"architecture": str(held), "hidden": _hidden(found, count)}
    if "heads" in own_fields:
        heads = _heads(found, count)
        fields |= {"heads": heads[0], "outputHeads": heads[-1]}
    if "bases" in own_fields:
        fields["bases"] = _bases(found)
    return {name: value for name, value in fields.items() if value is not None} | {"fanouts": [-1] * count}


def _misfit(
    description: CheckpointDescription, names: Mapping[str, str], unclear: LayoutError | None, found: Shapes,
    architecture: RelationalSpec, shape: RelationalShape,
) -> tuple[str, str]:  # fmt: skip
    """The problem and its remedy. `names`: the name here of each tensor. `unclear`: why there are none. `found`: under
    the names here."""
    expected_names = {*architecture.shapes(shape)}
    unread = [
        layer
        for layer in description.layers
        if relational_architecture_of(layer) is None
        and not {names.get(key, key) for key in layer.tensors} <= expected_names
        and not _is_input(layer.name)
    ]
    others = tuple(key for key in description.others if names.get(key, key) not in expected_names)
    owners = {relational_architecture_of(layer) for layer in description.layers}
    kinds = [one for one in owners if one is not None]
    if unread or others or len(kinds) > 1:
        refusal = refused_layers(replace(description, others=others), unread)
        return refusal.problem, refusal.remedy
    if unclear is not None:
        return unclear.problem, unclear.remedy
    held = next(iter(kinds), architecture.architecture)
    settings, fitting = _settings(found, held, shape)
    expected = relational_spec_of(held).shapes(fitting)
    shown = {new: old for old, new in names.items()}
    if found == dict(expected):
        if held is architecture.architecture:
            return _first_misfit(found, architecture.shapes(shape), shown, looks(description)), ", and ".join(settings)
        problem = f"{looks(description)}, so it holds a {held}, and spec.model.architecture is "
        settings = [f"set spec.model.architecture to {held}", *settings]
        return f"{problem}{architecture.architecture}", ", and ".join(settings)
    if held is not architecture.architecture:
        settings = [f"set spec.model.architecture to {held}", *settings]
    problem = _first_misfit(found, expected, shown, looks(description))
    missing, beyond = sorted(expected.keys() - found.keys()), sorted(found.keys() - expected.keys())
    if missing or beyond:
        module = relational_spec_of(held).module
        remedy = f"give the weights of a {module} over the relations that `gnnserve graph inspect` lists, which has "
        parts = ([f"{_listed(missing)} beside these"] if missing else []) + (
            [f"no {_listed(beyond)}"] if beyond else []
        )
        return problem, remedy + " and ".join(parts) + "".join(f", and {step}" for step in settings)
    other = "give the graph that the model was trained on, whose types have other columns or other classes"
    return problem, ", and ".join([other, *settings])


def _first_misfit(found: Shapes, expected: Shapes, shown: Mapping[str, str], what_it_is: str) -> str:
    """`shown`: the file's name of each tensor that has another one here."""
    for key, sizes in expected.items():
        if key not in found:
            return f"has no {key}, expected it {list(sizes)}; it {what_it_is}"
        if tuple(found[key]) != tuple(sizes):
            return f"{shown.get(key, key)} is {list(found[key])}, expected {list(sizes)}"
    beyond = sorted(found.keys() - expected.keys())
    return f"has {_listed(beyond)}, which such a model over these relations does not have"


def _settings(found: Shapes, held: Architecture, shape: RelationalShape) -> tuple[list[str], RelationalShape]:
    """What spec.model has to say, and the network that it then is. `found`: under the names that are read."""
    layers = _layers(found)
    hidden, settings = _hidden(found, layers) or shape.hidden, []
    if layers != shape.layers:
        settings.append(f"give {layers} fan-outs, one per layer")
    if hidden != shape.hidden:
        settings.append(f"set spec.model.hidden to {hidden}")
    fitting = replace(shape, hidden=hidden, layers=layers, attention=None, bases=None)
    own_fields = relational_spec_of(held).own_fields
    if "heads" in own_fields:
        fitting = replace(fitting, attention=_attention(found, layers, shape, settings))
    elif shape.attention is not None:
        settings.append("leave out spec.model.heads and outputHeads")
    if "bases" in own_fields:
        bases = _bases(found)
        if bases != shape.bases:
            settings.append(f"set spec.model.bases to {bases}" if bases is not None else "leave out spec.model.bases")
        fitting = replace(fitting, bases=bases)
    elif shape.bases is not None:
        settings.append("leave out spec.model.bases")
    return settings, fitting


def _layers(found: Shapes) -> int:
    return 1 + max((int(match[1]) for key in found if (match := re.match(r"convs\.(\d+)\.", key))), default=0)


def _bases(found: Shapes) -> int | None:
    return next((size[1] for key, size in found.items() if key.endswith(".comp")), None)


def _heads(found: Shapes, layers: int) -> list[int]:
    return [
        next((size[1] for key, size in found.items() if re.fullmatch(rf"convs\.{layer}\..*att_src", key)), 1)
        for layer in range(layers)
    ]


def _hidden(found: Shapes, layers: int) -> int | None:
    """Columns between the layers, as far as tensors tell."""
    of_layers = (
        r"convs\.1\..*lin_l\.weight",
        r"convs\.1\..*lin_src\.weight",
        r"encoders\..*\.weight",
        r"convs\.1\.root",
    )
    places = (1, 1, 0, 0)
    for pattern, place in zip(of_layers, places, strict=True):
        for key, size in found.items():
            if layers > 1 and re.fullmatch(pattern, key) and len(size) == 2:
                return size[place]
    return None


def _attention(found: Shapes, layers: int, shape: RelationalShape, settings: list[str]) -> AttentionManifest:
    heads = _heads(found, layers)
    stated = shape.attention
    slope = 0.2 if stated is None else stated.negative_slope
    if stated is None or (layers > 1 and heads[0] != stated.heads):
        settings.append(f"set spec.model.heads to {heads[0]}")
    if heads[-1] != (heads[0] if stated is None else stated.output_heads):
        settings.append(f"set spec.model.outputHeads to {heads[-1]}")
    return AttentionManifest(heads=heads[0], output_heads=heads[-1], negative_slope=slope)


def _names_here(description: CheckpointDescription) -> Mapping[str, str]:
    """The name that each tensor has here: without a prefix, `convs.0` in place of `conv1`, and relations as HeteroConv
    writes them in place of to_hetero. LayoutError: the order of the layers is unclear."""
    convolutions = [layer for layer in description.layers if relational_architecture_of(layer) is not None]
    layers, relations = {}, {}
    for layer in convolutions:
        steps = steps_of(layer.name)
        relation = relation_of(layer.name)
        if relation is not None:
            relations[layer.name] = f"convs.<{relation['source']}___{relation['name']}___{relation['target']}>"
            steps = steps[:-1]
            if len(steps) > 1 and steps[-1] == "convs":
                steps = steps[:-1]
        layers[layer.name] = ".".join(steps)
    order = in_order({*layers.values()}) if layers else []
    names: dict[str, str] = {}
    for layer in convolutions:
        of_relation = [relations[layer.name]] if layer.name in relations else []
        new = ".".join([f"convs.{order.index(layers[layer.name])}", *of_relation])
        names |= {f"{layer.name}.{name}": f"{new}.{name}" for name in layer.shapes}
    for layer in description.layers:
        if relational_architecture_of(layer) is None and (
            match := re.fullmatch(r"(?:.*\.)?((?:encoders|embeddings)\..+)", layer.name)
        ):
            names |= {f"{layer.name}.{name}": f"{match[1]}.{name}" for name in layer.shapes}
    # Two tensors of one name are not told apart: all stay as the file has them.
    return names if len({*names.values()}) == len(names) else {}


def _is_input(layer: str) -> bool:
    """Whether the layer brings nodes of a type to a network: an embedding, or RGCN's Linear."""
    return re.fullmatch(r"(?:.*\.)?(?:encoders|embeddings)\..+", layer) is not None


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + ", …" * (len(names) > _SHOWN)
