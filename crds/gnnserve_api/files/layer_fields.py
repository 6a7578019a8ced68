"""Fields of `spec.model` that describe a network layer by layer, as a manifest's text has them: for programs that write
manifests without the types of the spec."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gnnserve_api.files.layers import Convolution, ConvolutionManifest, LayerManifest, LayersManifest
from gnnserve_api.files.programs import RelationKey

_OF_CONVOLUTIONS: Mapping[str, str] = {
    "averagesHeads": "averageHeads",
    "sharesWeights": "shareWeights",
    "isNormalised": "normalize",
    "projects": "project",
    "hasUnitRows": "unitRows",
    "hasBeta": "beta",
    "dividesInput": "divideInput",
}
_OF_LAYERS: Mapping[str, str] = {
    "combination": "combine",
    "isPreActivated": "preActivation",
    "readsInput": "residualOfInput",
}
_OF_PRODUCTS: Mapping[str, str] = {"isNormBehind": "normBehind"}
"""Names in a manifest's text of fields that a revision calls otherwise."""
_STATED = {Convolution.GRAPH_CONV: ("aggregations",), Convolution.TAG: ("self_loops",)}
"""Fields of convolutions whose default differs between the two."""
_WITH_SELF_LOOPS = frozenset(
    {
        Convolution.GCN, Convolution.SGC, Convolution.APPNP, Convolution.GCNII, Convolution.TAG, Convolution.GAT,
        Convolution.GATV2,
    }
)  # fmt: skip
_WITHOUT_WIDTH = frozenset({Convolution.APPNP, Convolution.GCNII, Convolution.GIN, Convolution.GINE})


def layer_fields(layers: LayersManifest, types: Sequence[str], relations: Sequence[RelationKey]) -> dict[str, Any]:
    """Fields of `spec.model`, those of default values left out. `types`, `relations`: by their places."""
    found: dict[str, Any] = {
        "before": [
            ({"type": types[each.type]} if types[each.type] else {}) | {"products": _renamed(each.products)}
            for each in layers.before
        ],
        "layers": [_layer(each, relations) for each in layers.layers],
        "head": _renamed(layers.head),
    }
    told = msgspec.to_builtins(layers)
    found |= {name: told[name] for name in ("jumpingKnowledge", "headReadsInput") if name in told}
    return {name: value for name, value in found.items() if value or name == "layers"}


def _layer(layer: LayerManifest, relations: Sequence[RelationKey]) -> dict[str, Any]:
    told: dict[str, Any] = _renamed(msgspec.structs.replace(layer, convs=()))
    del told["convs"]
    convolutions: list[dict[str, Any]] = [
        _convolution(each, is_of_one_type=len(relations) == 1) for each in layer.convs
    ]
    if len(relations) == 1:
        return convolutions[0] | told
    return {
        "relations": [
            {"relation": msgspec.to_builtins(relations[each.relation])} | fields
            for each, fields in zip(layer.convs, convolutions, strict=True)
        ]
    } | told


def _convolution(convolution: ConvolutionManifest, *, is_of_one_type: bool) -> dict[str, Any]:
    told: dict[str, Any] = _renamed(convolution)
    told.pop("relation", None)
    if convolution.conv in _WITHOUT_WIDTH:
        told.pop("width", None)
    stated = set(_STATED.get(convolution.conv, ()))
    if not is_of_one_type and convolution.conv in _WITH_SELF_LOOPS:
        stated.add("self_loops")
    if "self_loops" in stated and convolution.self_loops is not (
        is_of_one_type and convolution.conv is not Convolution.TAG
    ):
        told["selfLoops"] = convolution.self_loops
    if "aggregations" in stated:
        told["aggregations"] = list(convolution.aggregations)
    return told


def _renamed(value: Any) -> Any:
    """Builtins of a manifest's part with the names of a text."""
    names = {**_OF_CONVOLUTIONS, **_OF_LAYERS, **_OF_PRODUCTS}

    def renamed(each: Any) -> Any:
        if isinstance(each, Mapping):
            return {names.get(name, name): renamed(inner) for name, inner in each.items()}
        return [renamed(inner) for inner in each] if isinstance(each, list | tuple) else each

    return renamed(msgspec.to_builtins(value))
