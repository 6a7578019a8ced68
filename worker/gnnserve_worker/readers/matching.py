"""Tensors of a file for a network that is stated layer by layer: each is matched by its place and its shape.

A file whose names are those of such a network is taken as it is. In any other its modules are put in order with what is
stated in mind, and each tensor is held against the shape that the network has there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from gnnserve_api.files.graph_schema import GraphSchema
from gnnserve_api.files.layers import LayersManifest
from gnnserve_worker.models.layer_kind import Shapes
from gnnserve_worker.readers.convolutions import kinds_of
from gnnserve_worker.readers.description import listed
from gnnserve_worker.readers.misfit import AS_PROGRAM, MisfitError
from gnnserve_worker.readers.parts import Taken, shapes_of
from gnnserve_worker.readers.places import Stated
from gnnserve_worker.readers.reading import ReadLayers, read_shapes

_INSPECT = "`gnnserve model inspect FILE` writes the layers that the file looks like"
_OF_ZEROS = re.compile(r"(^|.*\.)bias$")
"""Tensors that a model without them has zeros for."""
_OF_IDENTITY = re.compile(r".*\.convs\.\d+\.lin\.weight$")
"""Names of matrices that GINE does without, where edges are as wide as rows."""


def match(
    layers: LayersManifest, schema: GraphSchema, tensors: Mapping[str, np.ndarray], shapes: Shapes
) -> dict[str, np.ndarray]:
    """The network's tensors, float32, by its own names, out of a file's. `shapes`: those that it has. MisfitError: they
    do not fit, naming layer, tensor and both shapes."""
    own = shapes_of(tensors)
    if own.keys() == shapes.keys():
        _check_shapes({key: Taken(tuple(shape), (key,)) for key, shape in own.items()}, shapes)
        return {key: np.ascontiguousarray(tensors[key], dtype=np.float32) for key in shapes}
    read = read_shapes(own, schema, Stated.of(layers))
    _check_layers(layers, read)
    taken = _of_stated_layers(layers, read)
    missing = [key for key in shapes if key not in taken]
    filled = {key: one for key in missing if (one := _filled(key, tuple(shapes[key]))) is not None}
    lacking = [key for key in missing if key not in filled]
    used = {
        key
        for name, one in taken.items()
        if name in shapes or _is_shared(name, taken, shapes, tensors)
        for key in one.keys
    }
    unread = sorted(
        {*read.unread, *read.unplaced, *(key for one in taken.values() for key in one.keys if key not in used)}
    )
    if lacking:
        raise MisfitError(*_lack(lacking, unread, shapes, read))
    _check_shapes({key: taken[key] for key in shapes if key in taken}, shapes)
    if unread:
        problem = f"looks like {read.description.says()}; {_named(unread)} no place in spec.model"
        raise MisfitError(problem, f"state what they are of in spec.model.layers, before or head; {_INSPECT}")
    return {key: (taken.get(key) or filled[key]).of(tensors) for key in shapes}


def _is_shared(
    name: str, taken: Mapping[str, Taken], shapes: Shapes, tensors: Mapping[str, np.ndarray]
) -> bool:  # fmt: skip
    """Whether a tensor repeats another one, as those of GATv2 with share_weights do in a state dict."""
    other = name.replace(".lin_r.", ".lin_l.")
    return other in shapes and other in taken and np.array_equal(taken[name].of(tensors), taken[other].of(tensors))


def _check_layers(layers: LayersManifest, read: ReadLayers) -> None:
    """That the file has as many convolutions as are stated, of their kinds."""
    stated = [
        (place, one)
        for place, layer in enumerate(layers.layers)
        for one in layer.convs[:1]
        if kinds_of(one.conv)
    ]  # fmt: skip
    says = read.description.says()
    if read.problem:
        raise MisfitError(f"looks like {says}, and {read.problem}", AS_PROGRAM)
    found = read.layers.layers
    if len(found) != len(stated):
        problem = f"looks like {says}: {len(found)} layers that are read, and spec.model.layers states {len(stated)}"
        raise MisfitError(problem, f"list each layer once; {_INSPECT}")
    for (place, one), layer in zip(stated, found, strict=True):
        held = {each.conv for each in layer.convs}
        wanted = {each.conv for each in layers.layers[place].convs}
        if not wanted <= held:
            names = ", ".join(sorted(held - wanted)) or "nothing"
            problem = f"looks like {says}; layer {place} is of {names}, and spec.model.layers[{place}] is {one.conv}"
            raise MisfitError(problem, f"state what the file has; {_INSPECT}")


def _of_stated_layers(layers: LayersManifest, read: ReadLayers) -> dict[str, Taken]:
    """With numbers of layers as they are stated, where some have no tensors."""
    places = [place for place, layer in enumerate(layers.layers) if any(kinds_of(one.conv) for one in layer.convs)]
    found = {}
    for key, one in read.taken.items():
        numbered = re.match(r"layers\.(\d+)\.(.*)", key)
        found[f"layers.{places[int(numbered[1])]}.{numbered[2]}" if numbered else key] = one
    return found


def _filled(key: str, shape: tuple[int, ...]) -> Taken | None:
    """A tensor that a model without it computes with; None: it has to be in the file."""
    if _OF_ZEROS.match(key):
        return Taken(shape)
    if _OF_IDENTITY.match(key) and len(shape) == 2 and shape[0] == shape[1]:
        return Taken(shape, is_identity=True)
    return None


def _check_shapes(taken: Mapping[str, Taken], shapes: Shapes) -> None:
    for key, shape in shapes.items():
        one = taken.get(key)
        if one is not None and one.shape != tuple(shape):
            where = _where(key)
            raise MisfitError(
                f"{one.where or key} is {list(one.shape)}, and {where} has {list(shape)} there ({key})",
                f"correct what is stated of {where}, or give the graph that the model was trained on; {_INSPECT}",
            )


def _lack(lacking: list[str], unread: list[str], shapes: Shapes, read: ReadLayers) -> tuple[str, str]:
    first = lacking[0]
    beside = f"; {_named(unread)} no place" if unread else ""
    problem = (
        f"looks like {read.description.says()}; {_where(first)} needs {first} {list(shapes[first])}, which no tensor "
        f"of the file is{beside}"
    )
    return problem, f"state the layers that the file has; {_INSPECT}"


def _where(key: str) -> str:
    """The field of spec.model that a tensor is of."""
    first, _, rest = key.partition(".")
    number = rest.partition(".")[0]
    match first:
        case "layers" | "head":
            return f"spec.model.{first}[{number}]"
        case "before":
            return "spec.model.before"
        case _:
            return "spec.model.jumpingKnowledge"


def _named(tensors: list[str]) -> str:
    return f"{listed(tensors)} {'has' if len(tensors) == 1 else 'have'}"
