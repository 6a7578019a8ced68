"""Fields of `spec.model` that describe a network layer by layer, as a manifest's text has them: for programs that write
manifests without the types of the spec."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from gnnserve_api.files.layers import (
    DEFAULTS,
    READ_BY,
    Convolution,
    ConvolutionManifest,
    LayerManifest,
    LayersManifest,
    name_in_text,
)
from gnnserve_api.files.programs import RelationKey

_WITHOUT_WIDTH = frozenset({
    Convolution.APPNP, Convolution.GCNII, Convolution.AGNN, Convolution.GIN, Convolution.GINE, Convolution.GEN,
})  # fmt: skip


def layer_fields(layers: LayersManifest, types: Sequence[str], relations: Sequence[RelationKey]) -> dict[str, Any]:
    """Fields of `spec.model`, those of default values left out. `types`, `relations`: by their places."""
    found: dict[str, Any] = {
        "before": [
            ({"type": types[each.type]} if types[each.type] else {}) | {"products": _renamed(each.products)}
            for each in layers.before
        ],
        "layers": [_layer(each, types, relations) for each in layers.layers],
        "head": _renamed(layers.head),
    }
    told = msgspec.to_builtins(layers)
    found |= {name: told[name] for name in ("jumpingKnowledge", "headReadsInput", "headByType") if name in told}
    return {name: value for name, value in found.items() if value or name == "layers"}


def _layer(layer: LayerManifest, types: Sequence[str], relations: Sequence[RelationKey]) -> dict[str, Any]:
    told: dict[str, Any] = _renamed(msgspec.structs.replace(layer, convs=()))
    del told["convs"]
    convolutions: list[dict[str, Any]] = [_convolution(each, is_of_one_type=len(types) == 1) for each in layer.convs]
    if len(relations) == len(layer.convs) == 1 and layer.convs[0].where is None:
        return convolutions[0] | told
    named = [{"relation": msgspec.to_builtins(each)} if each.name else {} for each in relations]
    return {
        "relations": [named[each.relation] | fields for each, fields in zip(layer.convs, convolutions, strict=True)]
    } | told


def _convolution(convolution: ConvolutionManifest, *, is_of_one_type: bool) -> dict[str, Any]:
    told: dict[str, Any] = _renamed(convolution)
    told.pop("relation", None)
    conv = convolution.conv
    if conv in _WITHOUT_WIDTH:
        told.pop("width", None)
    # Defaults that are not those of a manifest's text. Aggregations are always told: most readers have to assume them.
    for name in ("selfLoops", "shareWeights", "aggregations", "negativeSlope"):
        told.pop(name, None)
    defaults = DEFAULTS.get(conv, {})
    has_loops = is_of_one_type and defaults.get("self_loops", True)
    if conv in READ_BY["self_loops"] and convolution.self_loops is not has_loops:
        told["selfLoops"] = convolution.self_loops
    if convolution.shares_weights is not defaults.get("shares_weights", False):
        told["shareWeights"] = convolution.shares_weights
    if conv in READ_BY["negative_slope"] and convolution.negative_slope != defaults.get("negative_slope", 0.2):
        told["negativeSlope"] = convolution.negative_slope
    if conv in READ_BY["aggregations"]:
        told["aggregations"] = [each.value for each in convolution.aggregations]
    return told


def _renamed(value: Any) -> Any:
    """Builtins of a manifest's part with the names of a text, those of defaults left out (msgspec keeps a float that is
    equal to its default)."""
    if isinstance(value, msgspec.Struct):
        return {
            name_in_text(each.name): _renamed(getattr(value, each.name))
            for each in msgspec.structs.fields(value)
            if getattr(value, each.name) != each.default
        }
    return [_renamed(each) for each in value] if isinstance(value, tuple) else msgspec.to_builtins(value)
