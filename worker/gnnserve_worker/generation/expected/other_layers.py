"""Other networks that have the same weights as a list of layers: what explains scores that differ. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from gnnserve_api.files.layers import (
    READ_BY,
    Activation,
    Aggregation,
    Convolution,
    ConvolutionManifest,
    LayerManifest,
    LayersManifest,
    Norm,
    Residual,
    ResidualPlace,
    name_in_text,
)

_ACTIVATIONS = (
    Activation.NONE, Activation.RELU, Activation.ELU, Activation.LEAKY_RELU, Activation.GELU, Activation.SILU,
    Activation.TANH,
)  # fmt: skip
_AGGREGATIONS = (Aggregation.MEAN, Aggregation.SUM, Aggregation.MAX)
_OF_ONE_AGGREGATION = (Convolution.GRAPH_SAGE, Convolution.GRAPH_CONV)
_SWITCHES = ("self_loops", "is_normalised", "improved", "has_unit_rows")
"""Fields that are true or false."""
_OF_WEIGHTS = (Residual.PROJECTED, Residual.GATED)
"""Residuals that have weights."""
_FIELD = "spec.model.layers"


def other_layers(layers: LayersManifest) -> Iterator[tuple[str, str, LayersManifest]]:
    """Networks that differ in one thing, the likeliest first: how, what to set for it, and the network."""
    replace = msgspec.structs.replace
    for activation in _ACTIVATIONS:
        yield from _all_layers(
            layers,
            f"with activation {activation}",
            f"set activation of {_FIELD} to {activation}",
            lambda layer, activation=activation: replace(layer, activation=activation, slope=None),  # type: ignore[misc]
            but_last=not layers.head,
        )
    yield from _all_layers(
        layers, "with norms behind the activations", f"set normBehind of {_FIELD}, or leave it out",
        lambda layer: replace(layer, is_norm_behind=not layer.is_norm_behind) if layer.norm is not Norm.NONE else layer,
    )  # fmt: skip
    for place in ResidualPlace:
        yield from _all_layers(
            layers,
            f"with the input of each layer added, residualPlace {place}",
            f"set residual of {_FIELD} to Added, and residualPlace to {place}",
            lambda layer, place=place: replace(layer, residual=_added(layer), residual_place=place),  # type: ignore[misc]
        )
    yield from _all_layers(
        layers, "without what is added of a layer's input", f"leave residual of {_FIELD} out",
        lambda layer: layer if layer.residual in _OF_WEIGHTS else replace(layer, residual=Residual.NONE),
    )  # fmt: skip
    for aggregation in _AGGREGATIONS:
        yield from _all_convolutions(
            layers,
            f"with neighbours aggregated by {aggregation}",
            f"set aggregations of {_FIELD} to [{aggregation}]",
            lambda conv, aggregation=aggregation: (  # type: ignore[misc]
                replace(conv, aggregations=(aggregation,)) if conv.conv in _OF_ONE_AGGREGATION else conv
            ),
        )
    for field in _SWITCHES:
        words, those = name_in_text(field), READ_BY[field]
        for is_set in (True, False):
            yield from _all_convolutions(
                layers,
                f"{'with' if is_set else 'without'} {words}",
                f"set {words} of {_FIELD} to {str(is_set).lower()}",
                lambda conv, field=field, those=those, is_set=is_set: (  # type: ignore[misc]
                    replace(conv, **{field: is_set}) if conv.conv in those else conv
                ),
            )


def _added(layer: LayerManifest) -> Residual:
    return layer.residual if layer.residual is not Residual.NONE else Residual.ADDED


def _all_layers(
    layers: LayersManifest, words: str, remedy: str, changed: Callable[[LayerManifest], LayerManifest],
    *, but_last: bool = False,
) -> Iterator[tuple[str, str, LayersManifest]]:  # fmt: skip
    """The network with all its layers changed, and with each of them alone; none that is as it was."""
    count = len(layers.layers)
    everywhere = range(count - but_last)
    found = [layers]
    for places, where in ((everywhere, ""), *(((place,), f" (layers[{place}])") for place in range(count))):
        made = tuple(changed(one) if place in places else one for place, one in enumerate(layers.layers))
        other = msgspec.structs.replace(layers, layers=made)
        if other not in found:
            found.append(other)
            yield f"{words}{where}", f"{remedy}{where}", other


def _all_convolutions(
    layers: LayersManifest, words: str, remedy: str, changed: Callable[[ConvolutionManifest], ConvolutionManifest]
) -> Iterator[tuple[str, str, LayersManifest]]:
    def of_layer(layer: LayerManifest) -> LayerManifest:
        return msgspec.structs.replace(layer, convs=tuple(changed(one) for one in layer.convs))

    yield from _all_layers(layers, words, remedy, of_layer)
