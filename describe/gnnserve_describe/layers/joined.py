"""Convolutions over the same edges and rows, as one whose outputs are those of all beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import torch

from gnnserve_api.files.layers import Convolution
from gnnserve_describe.layers.values import Convolved

_JOINED_BY_HEADS = (Convolution.GAT,)
_JOINED_BY_ROWS = (Convolution.GRAPH_SAGE, Convolution.GRAPH_CONV, Convolution.GCN)
"""Convolutions whose matrices stand one above the other where their outputs stand beside each other."""


def convolutions_joined(parts: Sequence[Convolved]) -> tuple[Convolved, ...]:
    """Convolutions over the same edges and rows, as one that gives the outputs of all; others as they are."""
    first, *others = parts
    manifest = first.manifest
    width = sum(each.width for each in parts)
    is_by_heads = manifest.conv in _JOINED_BY_HEADS and not manifest.averages_heads and not manifest.edge_columns
    is_plain = not (manifest.has_unit_rows or manifest.projects or "aggr_module.t" in first.tensors)
    is_by_rows = manifest.conv in _JOINED_BY_ROWS and is_plain and len(manifest.aggregations) == 1
    for each in others:
        alike = each.manifest if is_by_heads else msgspec.structs.replace(each.manifest, width=manifest.width)
        ends = (each.relation, each.rows, each.own, each.first, each.own_weight)
        if alike != manifest or ends != (first.relation, first.rows, first.own, first.first, None):
            return tuple(parts)
    if not others or first.own_weight is not None or not (is_by_heads or is_by_rows):
        return tuple(parts)
    axes = {name: int(is_by_heads and name.startswith("att_")) for name in first.tensors}
    tensors = {name: torch.cat([each.tensors[name] for each in parts], dim=axis) for name, axis in axes.items()}
    heads = len(parts) * manifest.heads if is_by_heads else manifest.heads
    return (replace(first, manifest=msgspec.structs.replace(manifest, heads=heads, width=width), tensors=tensors),)
