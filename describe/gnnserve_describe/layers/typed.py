"""HGTConv: convolutions of all relations that reach a type, weighed by one softmax, and what it does behind them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from gnnserve_api.files.layers import Convolution, ConvolutionManifest
from gnnserve_describe.layers.calls import ConvolutionCall
from gnnserve_describe.layers.values import Convolved, Edges, TypedAttention, Unread, Value


def read_hgt(call: ConvolutionCall) -> Mapping[str, TypedAttention]:
    """Outputs of each type that relations reach. NotLayersError: it reads other rows or edges than the graph's."""
    module = call.module
    rows = {kind: _rows_of(call, each) for kind, each in call.given["x_dict"].items()}
    convolutions: dict[str, list[Convolved]] = {}
    for key, edges in call.given["edge_index_dict"].items():
        convolutions.setdefault(key[-1], []).append(_convolved(call, key, edges, rows))
    gated = {kind for kind in convolutions if rows[kind].width == module.out_channels}
    found = {}
    for kind, each in convolutions.items():
        output = module.out_lin.lins[kind]
        gate = module.skip[kind] if kind in gated else None
        found[kind] = TypedAttention(tuple(each), rows[kind], output.weight, output.bias, gate, bool(gated))
    return found


def _rows_of(call: ConvolutionCall, given: Any) -> Value:
    rows = call.node_rows(given)
    if rows is None:
        raise call.refused("reads no rows of a type")
    return rows


def _convolved(call: ConvolutionCall, key: tuple[str, str, str], given: Any, rows: Mapping[str, Value]) -> Convolved:
    """One relation, as TransformerConv: its matrices are folded into those of the type that is read."""
    module, (source, *_, target) = call.module, key
    edges = call.value_of(given)
    if isinstance(edges, Unread):
        raise call.refused(f"reads other edges than the graph's: {edges.why}")
    if not isinstance(edges, Edges) or target not in rows or source not in rows:
        raise call.refused("reads other edges than the graph's, or between types without rows")
    heads, width = module.heads, module.out_channels
    place, count = module.edge_types_map[key], len(module.edge_types)
    of_heads = [head * count + place for head in range(heads)]
    key_weight, _, value_weight = module.kqv_lin.lins[source].weight.double().chunk(3)
    key_bias, _, value_bias = module.kqv_lin.lins[source].bias.double().chunk(3)
    query_weight, query_bias = (each.chunk(3)[1] for each in _dense(module.kqv_lin.lins[target]))
    scales = module.p_rel["__".join(key)].double().reshape(heads, 1, 1)
    tensors = {"lin_query.weight": query_weight, "lin_query.bias": query_bias}
    for name, weight, bias, matrices in (
        ("lin_key", key_weight, key_bias, module.k_rel.weight[of_heads].double() * scales),
        ("lin_value", value_weight, value_bias, module.v_rel.weight[of_heads].double()),
    ):
        both = torch.cat([weight, bias.unsqueeze(1)], dim=1).reshape(heads, width // heads, -1)
        folded = torch.einsum("hde,hdi->hei", matrices, both).reshape(width, -1).float()
        tensors |= {f"{name}.weight": folded[:, :-1], f"{name}.bias": folded[:, -1]}
    manifest = ConvolutionManifest(Convolution.TRANSFORMER, width=width, heads=heads, root=False, where=edges.where)
    return Convolved(manifest, tensors, edges.relation, rows[source], rows[target])


def _dense(product: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return product.weight, product.bias
