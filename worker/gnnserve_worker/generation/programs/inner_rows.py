"""Rows inside of convolutions that matrices read, made by the same convolution with an identity in the matrix's place.

Pure: it names the convolution and its tensors; running it is for `generation/listed_rows.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
import numpy as np

from gnnserve_api.files.layers import Convolution, ConvolutionManifest, DenseManifest
from gnnserve_worker.layers.channels import NetworkChannels
from gnnserve_worker.models.registry import Tensors

_PNA_EDGES = 2
"""Place of the block of the first product of PNA that reads what is made of columns of edges."""


@dataclass(frozen=True, slots=True)
class InnerRows:
    """A convolution whose output are rows inside of another one."""

    conv: ConvolutionManifest
    given: Mapping[str, np.ndarray]
    """Its tensors that are others, float32."""
    is_cut_off: bool = False
    """Whether the rows are cut off at 0 before they are read."""


def inner_sums(conv: ConvolutionManifest, tensors: Mapping[str, np.ndarray]) -> dict[str, InnerRows]:
    """Rows that each matrix reads of what is inside of a convolution, by the matrix's name. `tensors`: of the
    convolution, by their names."""
    if conv.projects:
        width = tensors["lin_l.weight"].shape[1]
        plain = msgspec.structs.replace(conv, width=width, root=False, has_unit_rows=False)
        return {"lin_l.weight": InnerRows(plain, _identity("lin_l", width))}
    if conv.conv is Convolution.PNA:
        return _of_tower(conv, tensors)
    width = tensors["mlp.0.weight"].shape[1]
    shorter = msgspec.structs.replace(conv, mlp=(DenseManifest(width),))
    return {"mlp.0.weight": InnerRows(shorter, _identity("mlp.0", width))}


def _of_tower(conv: ConvolutionManifest, tensors: Mapping[str, np.ndarray]) -> dict[str, InnerRows]:
    found = {}
    wide = tensors["post_nns.0.0.weight"].shape[1]
    for place in range(conv.post_layers):
        # What the product of this place reads.
        width = conv.width if place else wide
        plain = msgspec.structs.replace(conv, width=width, post_layers=max(1, place))
        given = _identity("lin", width)
        given |= {} if place else _identity("post_nns.0.0", width)
        found[f"post_nns.0.{2 * place}.weight"] = InnerRows(plain, given, is_cut_off=place > 0)
    return found | {"lin.weight": InnerRows(conv, _identity("lin", conv.width))}


def _identity(name: str, width: int) -> dict[str, np.ndarray]:
    return {f"{name}.weight": np.eye(width, dtype=np.float32), f"{name}.bias": np.zeros(width, np.float32)}


def with_plain_edges(channels: NetworkChannels, tensors: Tensors) -> Tensors:
    """The weights of an equal network, whose products of columns of edges are made before PNA's first product alone:
    channels of what is made of these columns are then those of the product."""
    changed = dict(tensors)
    for layer, each in enumerate(channels.layers.layers, start=1):
        for place, conv in enumerate(each.convs):
            if conv.conv is Convolution.PNA and conv.edge_columns and channels.inner_rows(layer, place):
                key = channels.key_of_conv(layer, place)
                matrix = changed[f"{key}.pre_nns.0.0.weight"].copy()
                first = _PNA_EDGES * len(matrix)
                for part in ("weight", "bias"):
                    name = f"{key}.edge_encoder.{part}"
                    changed[name] = matrix[:, first:] @ changed[name]
                matrix[:, first:] = np.eye(len(matrix))
                changed[f"{key}.pre_nns.0.0.weight"] = matrix
    return changed
