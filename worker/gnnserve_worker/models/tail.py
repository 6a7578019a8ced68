"""A network without its first layers: what is left to compute where their output is stored.

The tail is a network like any other, whose features are hidden states: it can be projected, sampled for and run as the
whole one is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec
import numpy as np

from gnnserve_api.files.repository import NetworkManifest

_LAYER = re.compile(r"^convs\.(?P<layer>\d+)\.(?P<weight>.+)$")


def tail_of(network: NetworkManifest, layers: int) -> NetworkManifest:
    """The network without its first `layers`: fewer than all. What is left draws what the seed's own layers draw."""
    if not 0 <= layers < network.layers:
        raise ValueError(f"{layers} of {network.layers} layers: at least one must be left")
    return msgspec.structs.replace(network, fanouts=network.fanouts[: network.layers - layers])


def tail_tensors(tensors: Mapping[str, np.ndarray], layers: int) -> dict[str, np.ndarray]:
    """The weights of that network, under the keys of its own layers."""
    matched = {key: match for key in tensors if (match := _LAYER.match(key)) is not None}
    return {
        f"convs.{int(match['layer']) - layers}.{match['weight']}": tensors[key]
        for key, match in matched.items()
        if int(match["layer"]) >= layers
    }


def behind(first: Mapping[str, np.ndarray], layers: int, tail: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The weights of a whole network: those of its first `layers`, of which it may have more, and behind them those of
    `tail`."""
    kept = {key: tensor for key, tensor in first.items() if _layer_of(key) < layers}
    return kept | {_LAYER.sub(rf"convs.{_layer_of(key) + layers}.\g<weight>", key): tail[key] for key in tail}


def _layer_of(key: str) -> int:
    match = _LAYER.match(key)
    if match is None:
        raise ValueError(f"weights {key!r} are of no layer")
    return int(match["layer"])
