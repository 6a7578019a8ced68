"""HGTConv of a file: a module of all relations, as a convolution for each of them and what stands behind these.

Its matrices of relations are folded into those of the types that are read, as `gnnserve-describe` does with a live one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gnnserve_api.files.layers import Convolution, ConvolutionManifest
from gnnserve_api.files.programs import RelationKey
from gnnserve_worker.readers.convolutions import FoundConvolution
from gnnserve_worker.readers.description import CheckpointLayer
from gnnserve_worker.readers.names import Scope
from gnnserve_worker.readers.parts import Assumption, Taken, taken

KIND = "HGTConv"
_SHARES, _PRODUCTS, _WEIGHT = "p_rel.", "kqv_lin.lins.", ".weight"
_ORDER = Assumption(
    "layers[].relations",
    "in this order",
    "matrices of k_rel and v_rel are in that of the module's metadata: list them so",
)


@dataclass(frozen=True, slots=True)
class TypedLayer:
    """A layer of HGTConv."""

    convolutions: Mapping[Scope, FoundConvolution]
    outputs: Mapping[str, Mapping[str, Taken]]
    """Weight and bias of the product behind GELU, by type."""
    gates: Mapping[str, Taken]
    """By type, where rows are as wide as those that they are made of."""


def read_typed(module: CheckpointLayer, relations: Sequence[RelationKey]) -> TypedLayer | None:
    """The layer of a module. `relations`: those of its layer, in the order of their matrices; empty: as the
    file lists them. None: it is none of HGTConv, its shapes do not go together, or it has other relations."""
    if module.kind.name != KIND:
        return None
    names = [name for name in module.shapes if name.startswith(_SHARES)]
    known = {f"{_SHARES}{one.source}__{one.name}__{one.target}": one for one in relations}
    keys = {name: known.get(name) if known else _relation_of(name) for name in names}
    ordered = [name for name in known if name in keys] if known else names
    if "k_rel.weight" not in module.shapes or not names or any(key is None for key in keys.values()):
        return None
    heads, (matrices, of_head, _) = module.shapes[names[0]][-1], module.shapes["k_rel.weight"]
    if matrices != heads * len(names) or any(_product(end) not in module.shapes for end in _ends(keys.values())):
        return None
    convolutions: dict[Scope, FoundConvolution] = {
        key: _convolution(module, key, name, range(place, matrices, len(names)), heads * of_head)
        for place, name in enumerate(ordered)
        if (key := keys[name]) is not None
    }
    targets = dict.fromkeys(key.target for key in keys.values() if key is not None)
    outputs = {
        kind: {end: taken(module, f"out_lin.lins.{kind}.{end}") for end in ("weight", "bias")} for kind in targets
    }
    is_wide = {kind: module.shapes[_product(kind)][1] == heads * of_head for kind in targets}
    gates = {kind: taken(module, f"skip.{kind}") for kind in targets if is_wide[kind]}
    return TypedLayer(convolutions, outputs, gates)


def types_in(module: CheckpointLayer) -> list[str]:
    """Names of the types that a module of HGTConv reads; of other modules none."""
    if module.kind.name != KIND:
        return []
    named = (name for name in module.shapes if name.startswith(_PRODUCTS) and name.endswith(_WEIGHT))
    return [name[len(_PRODUCTS) : -len(_WEIGHT)] for name in named]


def _relation_of(name: str) -> RelationKey | None:
    parts = name.removeprefix(_SHARES).split("__")
    return RelationKey(*parts) if len(parts) == 3 else None


def _ends(relations: Iterable[RelationKey | None]) -> set[str]:
    return {end for one in relations if one is not None for end in (one.source, one.target)}


def _product(kind: str) -> str:
    """Keys, queries and values of a type, one above the other."""
    return f"{_PRODUCTS}{kind}{_WEIGHT}"


def _convolution(
    module: CheckpointLayer, relation: RelationKey, shares: str, places: range, width: int
) -> FoundConvolution:
    """`shares`: the tensor of numbers that scores of each head are multiplied by; `places`: those of the relation's
    matrices, one for each head."""
    inputs = module.shapes[_product(relation.source)][1]
    manifest = ConvolutionManifest(Convolution.TRANSFORMER, width=width, heads=len(places), root=False)
    tensors = {}
    for place, name, matrices in ((0, "lin_key", "k_rel.weight"), (2, "lin_value", "v_rel.weight")):
        for end, shape in (("weight", (width, inputs)), ("bias", (width,))):
            keys = [f"kqv_lin.lins.{relation.source}.{end}", matrices, *([shares] if place == 0 else [])]
            tensors[f"{name}.{end}"] = Taken(shape, tuple(map(module.key_of, keys)), _folded(place, places))
    reads = module.shapes[_product(relation.target)][1]
    for end, shape in (("weight", (width, reads)), ("bias", (width,))):
        key = module.key_of(f"kqv_lin.lins.{relation.target}.{end}")
        tensors[f"lin_query.{end}"] = Taken(shape, (key,), lambda values: np.split(values, 3)[1])
    return FoundConvolution(module.name, manifest, inputs, tensors, assumed=(_ORDER,))


def _folded(place: int, places: range) -> Callable[..., np.ndarray]:
    """From a type's product, the matrices of all relations, and perhaps what scores are multiplied by, to the product
    of one relation."""

    def fold(product: np.ndarray, matrices: np.ndarray, *shares: np.ndarray) -> np.ndarray:
        of_type = np.split(product.astype(np.float64), 3)[place]
        own = matrices[list(places)].astype(np.float64)
        for one in shares:
            own = own * one.reshape(-1, 1, 1)
        by_head = of_type.reshape(len(places), own.shape[1], -1)
        folded: np.ndarray = np.einsum("hde,hdi->hei", own, by_head).reshape(of_type.shape)
        return folded

    return fold
