"""A file of which nothing is known but its tensors, as a network that is listed layer by layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
import numpy as np

from gnnserve_api.files.graph_schema import GraphSchema
from gnnserve_api.files.layers import (
    Activation,
    Combination,
    Convolution,
    ConvolutionManifest,
    DenseManifest,
    JumpingKnowledge,
    LayerManifest,
    LayersManifest,
    Norm,
    Residual,
    ResidualPlace,
    TypeProductsManifest,
)
from gnnserve_api.files.programs import RelationKey
from gnnserve_worker.models.layer_kind import Shapes
from gnnserve_worker.readers.arrangement import arrange
from gnnserve_worker.readers.description import CheckpointDescription, ModuleFacts, describe
from gnnserve_worker.readers.graphstorm import is_graphstorm, read_graphstorm
from gnnserve_worker.readers.names import EVERYWHERE
from gnnserve_worker.readers.parts import Assumption, Taken, TakenTensors, shapes_of, spread, taken, zeros
from gnnserve_worker.readers.places import Arrangement, LayerPlace, ProductPlace, Stated, scoped
from gnnserve_worker.readers.typed import TypedLayer

_ONE_RELATION = RelationKey()
NO_LAYERS = "APPNP has no tensors, and a layer of one's own that sums neighbours may have those of a Linear"
"""Why a file of matrices alone may be more than a perceptron."""
_OF_ROWS = (
    "of each row, as torch.nn.LayerNorm has it; torch_geometric's without mode=node reads the whole graph, and cannot "
    "be served"
)
_COPIES = ("ema", "swa", "avg", "average", "averaged", "shadow", "momentum", "target", "teacher")
"""Words in the first step of names of a second copy of the weights."""


@dataclass(frozen=True, slots=True)
class GraphNames:
    """Names of the types and relations of a graph, in its order. The first type is scored."""

    types: tuple[str, ...]
    relations: tuple[RelationKey, ...]

    @staticmethod
    def of(schema: GraphSchema) -> GraphNames:
        return GraphNames(
            tuple(kind.name for kind in schema.types),
            tuple(RelationKey(one.source, one.name, one.target) for one in schema.relations),
        )


@dataclass(frozen=True, slots=True)
class ReadLayers:
    """A file as a network that is listed layer by layer."""

    description: CheckpointDescription
    layers: LayersManifest
    names: GraphNames
    """What places in `layers` are of: as the graph has them, or in the order in which the file names them."""
    taken: TakenTensors
    """By the names of such a network."""
    assumed: tuple[str, ...]
    """What the file cannot tell, a line each, which begins with the field of spec.model."""
    unread: tuple[str, ...]
    """Tensors that no network of layers has. Where there are some, the layers are not the whole network."""
    unplaced: tuple[str, ...]
    """Tensors of norms, activations and products that the layers lack, since nothing tells where they stand."""
    problem: str = ""
    """Why its layers do not follow each other; empty: they do."""

    @property
    def is_known(self) -> bool:
        """Whether all of it can be listed, though perhaps not where all of it stands."""
        return bool(self.taken) and not self.unread and not self.problem

    @property
    def is_whole(self) -> bool:
        return self.is_known and not self.unplaced

    def tensors(self, of_file: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The network's tensors, float32, out of the file's."""
        return {key: one.of(of_file) for key, one in self.taken.items()}


def read_layers(
    tensors: Mapping[str, np.ndarray], schema: GraphSchema | None = None, facts: Mapping[str, ModuleFacts] = {}
) -> ReadLayers:
    """What a file looks like. `schema`: of the graph that it is for; None: it is not known. `facts`: what the file says
    of its modules, by their paths."""
    return read_shapes(shapes_of(tensors), schema, facts=facts)


def read_shapes(
    shapes: Shapes, schema: GraphSchema | None = None, stated: Stated = Stated(),  # noqa: B008
    facts: Mapping[str, ModuleFacts] = {},
) -> ReadLayers:  # fmt: skip
    """The same by the shapes of its tensors. `stated`: what is known of the network."""
    if is_graphstorm(shapes):
        return _of_graphstorm(shapes, schema, stated)
    description = describe(without_copies(shapes), facts)
    known = GraphNames((), ()) if schema is None else GraphNames.of(schema)
    found = arrange(description, known.types, stated, known.relations)
    names = _names_in(found) if schema is None else known
    writer = _Writer(found, names)
    layers = writer.layers()
    return ReadLayers(
        description, layers, names, writer.taken, tuple(dict.fromkeys(map(str, (*found.assumed, *writer.assumed)))),
        tuple(sorted({*found.unread, *writer.unread})), tuple(sorted(found.unplaced)), found.problem,
    )  # fmt: skip


def _of_graphstorm(shapes: Shapes, schema: GraphSchema | None, stated: Stated) -> ReadLayers:
    names = None if schema is None else GraphNames.of(schema)
    found = read_graphstorm(
        shapes, None if names is None else names.types, None if names is None else names.relations,
        next(iter(stated.relations), None),
    )  # fmt: skip
    return ReadLayers(
        CheckpointDescription((), (), found.says), found.layers, GraphNames(found.types, found.relations), found.taken,
        tuple(map(str, found.assumed)), found.unread, (), found.problem,
    )  # fmt: skip


def without_copies(shapes: Shapes) -> Shapes:
    """Without second copies of the same weights, such as moving averages, that stand beside them in a file."""
    parts: dict[str, dict[str, tuple[int, ...]]] = {}
    for key, shape in shapes.items():
        first, _, rest = key.partition(".")
        parts.setdefault(first, {})[rest] = tuple(shape)
    copies = {
        first
        for first, part in parts.items()
        if any(word in first.lower() for word in _COPIES)
        and any(other != first and part == beside for other, beside in parts.items())
    }
    return {key: shape for key, shape in shapes.items() if key.partition(".")[0] not in copies}


def _names_in(found: Arrangement) -> GraphNames:
    """Relations in the order of the layers, and their types, those of the last layer's targets first."""
    relations = dict.fromkeys(
        scope for layer in found.layers for scope in layer.convolutions if isinstance(scope, RelationKey)
    )
    if not relations:
        return GraphNames(("",), (_ONE_RELATION,))
    last = [scope.target for scope in found.layers[-1].convolutions if isinstance(scope, RelationKey)]
    types = dict.fromkeys([*last, *(end for one in relations for end in (one.source, one.target))])
    return GraphNames(tuple(types), tuple(relations))


class _Writer:
    """Writes an arrangement as a description, and says where its tensors are taken from."""

    def __init__(self, found: Arrangement, names: GraphNames) -> None:
        self._found = found
        self._names = names
        self.taken: dict[str, Taken] = {}
        self.assumed: list[Assumption] = []
        self.unread: list[str] = []

    def layers(self) -> LayersManifest:
        found = self._found
        before = self._before()
        layers = tuple(self._layer(place, one) for place, one in enumerate(found.layers))
        head = tuple(self._product(f"head.{place}", one, self._names.types[0]) for place, one in enumerate(found.head))
        head = _with_relu(head, but_last=True)
        if any(one.one.manifest.activation is Activation.NONE for one in found.head[:-1]):
            self._assume("head[].activation", "Relu", "between its products")
        if found.jumping_module is not None:
            module = found.jumping_module
            self.taken |= {f"jumping.{name}": taken(module, name) for name in module.shapes}
        elif found.jumping is JumpingKnowledge.LAST and found.head and _are_as_wide(found.layers):
            self._assume("jumpingKnowledge", "Last", "the maximum over layers has the same tensors")
        if len(self._names.types) > 1:
            if any(one.typed is None for one in found.layers):
                self._assume("layers[].combine", "Sum", "of what relations give to a type")
            self._assume("spec.graph.source.typed.target", self._names.types[0], "the type that is scored")
        if not layers:
            self._assume("layers", "none", NO_LAYERS)
        return LayersManifest(layers, before, found.jumping, head, found.head_reads_input)

    def _assume(self, field: str, value: str, why: str = "") -> None:
        self.assumed.append(Assumption(field, value, why))

    def _before(self) -> tuple[TypeProductsManifest, ...]:
        places = self._found.before
        if not places:
            return ()
        self._assume("before[].activation", "Relu")
        written = []
        for place, name in enumerate(self._names.types):
            if all(scoped(one.of, name) is not None for one in places):
                products = tuple(
                    self._product(f"before.{place}.{number}", one, name) for number, one in enumerate(places)
                )
                written.append(TypeProductsManifest(place, _with_relu(products, but_last=False)))
        return tuple(written)

    def _product(self, key: str, place: ProductPlace, type_: str) -> DenseManifest:
        one = scoped(place.of, type_) or place.one
        self.taken |= {f"{key}.{name}": each for name, each in one.tensors.items()}
        if one.manifest.norm is Norm.LAYER:
            self._assume(f"{key.partition('.')[0]}[].norm", "Layer", _OF_ROWS)
        return one.manifest

    def _layer(self, place: int, layer: LayerPlace) -> LayerManifest:
        key, found = f"layers.{place}", self._found
        is_last = place == len(found.layers) - 1 and not found.head and found.jumping is JumpingKnowledge.LAST
        convs = tuple(self._convolutions(f"{key}.convs", layer))
        targets = sorted({self._names.types.index(self._names.relations[one.relation].target) for one in convs})
        types = {place: self._names.types[place] for place in targets}
        if layer.typed is not None:
            return self._typed(key, layer.typed, convs, types)
        norm, activation = Norm.NONE, Activation.NONE if is_last else Activation.RELU
        if not is_last:
            self._assume("layers[].activation", "Relu", "behind each layer" if found.head else "but the last")
        for type_, name in types.items():
            if (normed := scoped(layer.norms, name)) is not None:
                norm = normed.norm
                self.taken |= {f"{key}.norms.{type_}.{name}": one for name, one in normed.tensors.items()}
            if (sloped := scoped(layer.slopes, name)) is not None:
                activation = Activation.PRELU
                self.taken[f"{key}.activations.{type_}.weight"] = spread(sloped, "weight", layer.width)
        if norm is not Norm.NONE:
            self._assume("layers[].normBehind", "false", "the norm stands before the activation")
        if norm is Norm.LAYER:
            self._assume("layers[].norm", "Layer", _OF_ROWS)
        return LayerManifest(
            convs, norm=norm, activation=activation, is_pre_activated=layer.is_pre_activated,
            residual=self._residual(key, layer, types),
            residual_place=ResidualPlace.BEHIND_ACTIVATION if layer.residual is None else ResidualPlace.BEFORE_NORM,
        )  # fmt: skip

    def _typed(
        self, key: str, layer: TypedLayer, convs: tuple[ConvolutionManifest, ...], types: Mapping[int, str]
    ) -> LayerManifest:
        """HGTConv."""
        for type_, name in types.items():
            self.taken |= {f"{key}.outputs.{type_}.{end}": one for end, one in layer.outputs[name].items()}
            if name in layer.gates:
                self.taken[f"{key}.residuals.{type_}.gate"] = layer.gates[name]
        residual = Residual.GATED if layer.gates else Residual.NONE
        return LayerManifest(
            convs, Combination.ATTENTION, activation=Activation.GELU, residual=residual, output_product=True
        )  # fmt: skip

    def _convolutions(self, key: str, layer: LayerPlace) -> list[ConvolutionManifest]:
        written = []
        is_only = len(self._names.relations) == 1
        for relation, name in enumerate(self._names.relations):
            one = layer.convolutions.get(name) or (layer.convolutions.get(EVERYWHERE) if is_only else None)
            if one is None:
                continue
            self.taken |= {f"{key}.{relation}.{tensor}": each for tensor, each in one.tensors.items()}
            is_between_types = name.source != name.target
            self.assumed += [each for each in one.assumed if not (is_between_types and "selfLoops" in each.field)]
            manifest = one.manifest
            if is_between_types and manifest.conv in (Convolution.GAT, Convolution.GATV2):
                manifest = msgspec.structs.replace(manifest, self_loops=False)
            written.append(msgspec.structs.replace(manifest, relation=relation))
        used = {key for one in self.taken.values() for key in one.keys}
        for one in layer.convolutions.values():
            self.unread += [key for each in one.tensors.values() for key in each.keys if key not in used]
        return written

    def _residual(self, key: str, layer: LayerPlace, types: Mapping[int, str]) -> Residual:
        if layer.residual is None:
            if layer.inputs == layer.width and layer.one.manifest.conv is not Convolution.GCNII:
                self._assume("layers[].residual", "None", "adding a layer's input as it is leaves no trace")
            return Residual.NONE
        own = next((one.residual for one in layer.convolutions.values() if one.residual), None)
        for type_, name in types.items():
            of = own if own is not None else _product_tensors(layer.residual, name)
            self.taken |= {f"{key}.residuals.{type_}.{tensor}": each for tensor, each in of.items()}
        if own is None:
            self._assume("layers[].residualPlace", "BeforeNorm", "where the projected input is added")
        return Residual.PROJECTED


def _product_tensors(place: ProductPlace, type_: str) -> dict[str, Taken]:
    one = scoped(place.of, type_) or place.one
    return {"bias": zeros(one.width), **one.tensors}


def _with_relu(products: tuple[DenseManifest, ...], *, but_last: bool) -> tuple[DenseManifest, ...]:
    return tuple(
        msgspec.structs.replace(one, activation=Activation.RELU)
        if one.activation is Activation.NONE and not (but_last and place == len(products) - 1)
        else one
        for place, one in enumerate(products)
    )


def _are_as_wide(layers: list[LayerPlace]) -> bool:
    return len(layers) > 1 and len({one.width for one in layers}) == 1
