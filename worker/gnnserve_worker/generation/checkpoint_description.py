"""Refusals of files of weights that hold more than an architecture reads, and what helps.

A message about a checkpoint begins here, so that it names the layers that the user wrote and never advises a setting
that would be refused next. Which layers a file has is told by `readers/`; kinds of layers that architectures read are
attributes of their objects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gnnserve_api.spec.model import Architecture
from gnnserve_worker.models.layer_kind import LINEAR, Shapes
from gnnserve_worker.models.registry import OF_ONE_TYPE, RELATIONAL
from gnnserve_worker.readers.description import CheckpointDescription, CheckpointLayer, listed, relation_of
from gnnserve_worker.readers.misfit import AS_LAYERS, AS_PROGRAM
from gnnserve_worker.readers.reading import read_shapes

_OWNERS: Mapping[str, Architecture] = {
    kind.name: architecture for architecture, spec in OF_ONE_TYPE.items() for kind in spec.layer_kinds
}
_RELATIONAL_OWNERS: Mapping[str, Architecture] = {
    kind.name: architecture for architecture, spec in RELATIONAL.items() for kind in spec.layer_kinds
}
_PERCEPTRONS = tuple(architecture for architecture, spec in OF_ONE_TYPE.items() if LINEAR in spec.layer_kinds)
"""Architectures of matrices alone, whose layers may be a head in a file of others."""


@dataclass(frozen=True, slots=True)
class CheckpointRefusal:
    """Why layers of a file are not served, and what helps."""

    problem: str
    remedy: str
    shapes: Shapes | None = None
    """The file's tensors once they are as the remedy says; None: it says nothing that makes them served."""


def looks(description: CheckpointDescription) -> str:
    return f"looks like {description.says()}"


def architecture_of(description: CheckpointDescription) -> Architecture | None:
    """The one architecture of one type that all layers are of, as they stand; None: there is none."""
    if description.is_perceptron:
        return _PERCEPTRONS[0]
    found = {_read_by(layer) for layer in description.layers}
    return found.pop() if len(found) == 1 and not description.others else None


def relational_architecture_of(layer: CheckpointLayer) -> Architecture | None:
    """The architecture over several types that reads the layer as it stands."""
    return _RELATIONAL_OWNERS.get(layer.kind.name)


def _read_by(layer: CheckpointLayer) -> Architecture | None:
    """The same over one type."""
    is_read = layer.kind.is_read_as_it_is and layer.kind is not LINEAR
    return _OWNERS.get(layer.kind.name) if is_read else None


def _over_types(description: CheckpointDescription) -> CheckpointRefusal | None:
    """A refusal where layers are of relations, so that the model is over several types."""
    found = [match for layer in description.layers if (match := relation_of(layer.name)) is not None]
    if not found:
        return None
    names = dict.fromkeys(f"{one['source']}__{one['name']}__{one['target']}" for one in found)
    held = f"holds layers of the {'relation' if len(names) == 1 else 'relations'} {listed([*names])}"
    return CheckpointRefusal(
        f"{held}, so it is a model over several types of nodes, and the graph has one type",
        "give the graph that it was trained on in spec.graph.source.typed",
    )


def refusal_of(description: CheckpointDescription) -> CheckpointRefusal | None:
    """What is not served of a file over one type; None: all of its layers are, and of one architecture."""
    if (over_types := _over_types(description)) is not None:
        return over_types
    if not description.layers and not description.others:
        return CheckpointRefusal("it has nothing", "save the whole state dict of the model")
    if description.is_perceptron:
        return _renamed_perceptron(description)
    if architecture_of(description) is not None and all(layer.name for layer in description.layers):
        return None
    possible = {None if layer.kind is LINEAR else _OWNERS.get(layer.kind.name) for layer in description.layers}
    if len(possible) == 1 and None not in possible and not description.others:
        return _renamed(description)
    unread = [layer for layer in description.layers if _read_by(layer) is None]
    return refused_layers(description, unread)


def refused_layers(description: CheckpointDescription, unread: Sequence[CheckpointLayer]) -> CheckpointRefusal:
    """A refusal of a network that is of no architecture. `unread`: the layers that none reads; none: they are not
    together."""
    tensors = [name for layer in unread for name in layer.tensors] + list(description.others)
    problem = looks(description)
    if tensors:
        problem = f"{problem}; {listed(tensors)} {'was' if len(tensors) == 1 else 'were'} not read"
    notes = sorted({layer.kind.note for layer in unread if layer.kind.note})
    why = "no architecture has such layers" + (f" ({'; '.join(notes)})" if notes else "")
    shapes = {layer.key_of(name): shape for layer in description.layers for name, shape in layer.shapes.items()}
    can_be_listed = not description.others and read_shapes(shapes).is_known
    return CheckpointRefusal(problem, f"{why}: {f'{AS_LAYERS}; or ' * can_be_listed}{AS_PROGRAM}")


def _renamed(description: CheckpointDescription) -> CheckpointRefusal:
    """New names for all tensors, in the order of the layers."""
    renames, left_out, transposed, added = [], [], [], []
    shapes: dict[str, tuple[int, ...]] = {}
    keeps_names = all(layer.name and not layer.kind.renamed for layer in description.layers)
    for place, layer in enumerate(description.layers):
        kind, new = layer.kind, layer.name if keeps_names else f"convs.{place}"
        for name, shape in layer.shapes.items():
            old, called = layer.key_of(name), kind.renamed.get(name, name)
            if not called:
                left_out.append(old)
                continue
            if name in kind.transposed:
                transposed.append(old)
            if old != f"{new}.{called}":
                renames.append(f"{old} to {new}.{called}")
            shapes[f"{new}.{called}"] = shape[::-1] if name in kind.transposed else shape
        for name, shape_of in kind.added.items():
            shapes[f"{new}.{name}"] = shape_of(layer.shapes)
            added.append(f"{new}.{name} {list(shapes[f'{new}.{name}'])}")
    steps = [
        f"{what} {', '.join(names)}{after}"
        for what, names, after in (
            ("transpose", transposed, ""),
            ("rename", renames, ""),
            ("leave out", left_out, ", which the layer's other matrix repeats"),
            ("add", added, " of zeros"),
        )
        if names
    ]
    notes = sorted({f" ({layer.kind.note})" for layer in description.layers if layer.kind.note})
    return CheckpointRefusal(looks(description), "; ".join(steps) + "".join(notes), shapes)


def _renamed_perceptron(description: CheckpointDescription) -> CheckpointRefusal | None:
    """A perceptron is read under the names of torch_geometric.nn.MLP."""
    new = {layer.name: f"lins.{place}" for place, layer in enumerate(description.layers)}
    if all(old == called for old, called in new.items()):
        return None
    shapes = {
        f"{new[layer.name]}.{name}": shape for layer in description.layers for name, shape in layer.shapes.items()
    }
    pairs = ", ".join(
        f"{layer.key_of(tensor)} to {new[layer.name]}.{tensor}"
        for layer in description.layers
        for tensor in (["*"] if layer.name else layer.shapes)
    )
    count, names = "1 layer" if len(new) == 1 else f"{len(new)} layers", [name or "without a name" for name in new]
    problem = f"looks like a perceptron of {count} ({listed(names)}), which reads nothing of a graph"
    return CheckpointRefusal(problem, f"rename {pairs}, if that is the order in which they are applied", shapes)
