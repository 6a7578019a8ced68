"""Convolutions of torch_geometric: what each module says of itself, as a revision keeps it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import torch

from gnnserve_api.files.layers import Aggregation, Convolution, ConvolutionManifest, DegreeScaler
from gnnserve_describe.layers.calls import (
    ConvolutionCall,
    ReadConvolutions,
    Reader,
    aggregations_of,
    bias_tensors,
    dense_tensors,
    mlp_of,
)
from gnnserve_describe.layers.rarer import read_agnn, read_film, read_gen, read_rgat, read_rgcn
from gnnserve_describe.layers.values import (
    Convolved,
    Edges,
    NotLayersError,
    Tensors,
)


def convolution_of(call: ConvolutionCall) -> ReadConvolutions:
    """NotLayersError: it is none that can be listed, or not with these options."""
    kind = type(call.module)
    reader = READERS.get(kind.__name__) if kind.__module__.startswith("torch_geometric.nn.conv.") else None
    if reader is None:
        raise NotLayersError(f"{kind.__name__} is none of the convolutions that can be listed")
    read = reader(call)
    found = read if isinstance(read, ReadConvolutions) else ReadConvolutions((read,))
    return replace(found, convolutions=tuple(_of_edges(each, call.edges) for each in found.convolutions))


def _of_edges(found: Convolved, edges: Edges) -> Convolved:
    """The convolution over those edges alone that it is given."""
    if edges.where is None:
        return found
    if found.manifest.where is not None:
        raise NotLayersError("a convolution that tells kinds of edges apart is given some edges of the graph's alone")
    return replace(found, manifest=msgspec.structs.replace(found.manifest, where=edges.where))


def jumping_tensors(module: torch.nn.Module) -> Tensors:
    return dict(module.state_dict())


# Tensors and options


def _sage(call: ConvolutionCall) -> Convolved:
    module, (rows, own) = call.module, call.ends
    aggregations, tensors = aggregations_of(call, module.aggr_module, rows.width)
    root = bool(module.root_weight) and own is not None
    tensors = {**tensors, **dense_tensors(module, "lin_l"), **(dense_tensors(module, "lin_r") if root else {})}
    project = bool(getattr(module, "project", False))
    scales = () if module.normalize else ("lin_l.weight", "lin_l.bias", "lin_r.weight")
    manifest = ConvolutionManifest(
        Convolution.GRAPH_SAGE, width=module.out_channels, bias=module.lin_l.bias is not None, root=root,
        projects=project, has_unit_rows=bool(module.normalize), aggregations=aggregations,
    )  # fmt: skip
    tensors |= dense_tensors(module, "lin") if project else {}
    return Convolved(manifest, tensors, call.relation, rows, own if root else None, scales=scales)


def _graph_conv(call: ConvolutionCall) -> Convolved:
    module, (rows, own) = call.module, call.ends
    aggregations, tensors = aggregations_of(call, module.aggr_module, rows.width)
    # An aggregation that was named behind its making counts where edges are summed up.
    if len(aggregations) != 1:
        raise call.refused("has several aggregations, and GraphConv of a layer has one")
    tensors = {
        **tensors,
        **dense_tensors(module, "lin_rel"),
        **({} if own is None else dense_tensors(module, "lin_root")),
    }
    manifest = ConvolutionManifest(
        Convolution.GRAPH_CONV, width=module.out_channels, bias=module.lin_rel.bias is not None, root=own is not None,
        aggregations=aggregations, edge_weight=call.edge_weight,
    )  # fmt: skip
    scales = ("lin_rel.weight", "lin_rel.bias", "lin_root.weight")
    return Convolved(manifest, tensors, call.relation, rows, own, scales=scales)


def _gcn(call: ConvolutionCall) -> Convolved:
    module = call.module
    call.sums_up()
    manifest = ConvolutionManifest(
        Convolution.GCN, width=module.out_channels, self_loops=bool(module.add_self_loops) or not module.normalize,
        improved=bool(module.improved), is_normalised=bool(module.normalize), bias=module.bias is not None,
        edge_weight=call.edge_weight,
    )  # fmt: skip
    tensors = {**dense_tensors(module, "lin"), **bias_tensors(module)}
    return Convolved(manifest, tensors, call.relation, call.rows, call.rows, scales=("lin.weight", "bias"))


def _heads(call: ConvolutionCall) -> dict[str, Any]:
    module = call.module
    if call.given.get("return_attention_weights") is not None:
        raise call.refused("gives its attention, too")
    if module.edge_dim is not None and len(call.edge_columns) != module.edge_dim:
        raise call.refused(f"has edge_dim={module.edge_dim}, and is given {len(call.edge_columns)} columns of edges")
    return {
        "width": module.out_channels * (module.heads if module.concat else 1), "heads": module.heads,
        "averages_heads": not module.concat, "edge_columns": call.edge_columns if module.edge_dim is not None else (),
    }  # fmt: skip


def _of_attention(call: ConvolutionCall) -> dict[str, Any]:
    """Options of GAT and GATv2."""
    module, (rows, own) = call.module, call.ends
    if own is None:
        raise call.refused("reads no rows of the nodes that read others")
    heads = _heads(call)
    if module.add_self_loops and own is not rows:
        raise call.refused("adds self-loops between two types (add_self_loops)")
    if heads["edge_columns"] and module.add_self_loops:
        call.needs(fill_value="mean")
    slope = float(module.negative_slope)
    return {"negative_slope": slope, "self_loops": bool(module.add_self_loops), "bias": module.bias is not None} | heads


def _residual_of(call: ConvolutionCall) -> torch.Tensor | None:
    residual = getattr(call.module, "res", None)
    return None if residual is None else residual.weight


def _gat(call: ConvolutionCall) -> Convolved:
    module, (rows, own) = call.module, call.ends
    source, target = ("lin", "lin") if module.lin is not None else ("lin_src", "lin_dst")
    manifest = ConvolutionManifest(Convolution.GAT, **_of_attention(call))
    tensors = {
        "lin_src.weight": module.get_submodule(source).weight, "lin_dst.weight": module.get_submodule(target).weight,
        "att_src": module.att_src, "att_dst": module.att_dst, **bias_tensors(module),
    }  # fmt: skip
    if manifest.edge_columns:
        tensors |= {"lin_edge.weight": module.lin_edge.weight, "att_edge": module.att_edge}
    return Convolved(manifest, tensors, call.relation, rows, own, own_weight=_residual_of(call))


def _gatv2(call: ConvolutionCall) -> Convolved:
    module, (rows, own) = call.module, call.ends
    shares = module.lin_r is module.lin_l
    manifest = ConvolutionManifest(Convolution.GATV2, shares_weights=shares, **_of_attention(call))
    if (module.lin_l.bias is None) is not (module.bias is None):
        raise call.refused("has a bias in one of two places")
    tensors = {
        **dense_tensors(module, "lin_l"),
        **({} if shares else dense_tensors(module, "lin_r")),
        "att": module.att,
    }
    tensors |= bias_tensors(module)
    if manifest.edge_columns:
        tensors["lin_edge.weight"] = module.lin_edge.weight
    return Convolved(manifest, tensors, call.relation, rows, own, own_weight=_residual_of(call))


def _transformer(call: ConvolutionCall) -> Convolved:
    module, (rows, own) = call.module, call.ends
    if own is None:
        raise call.refused("reads no rows of the nodes that read others")
    root, beta = bool(module.root_weight), module.root_weight and module.lin_beta is not None
    manifest = ConvolutionManifest(
        Convolution.TRANSFORMER, bias=module.lin_key.bias is not None, root=root, has_beta=bool(beta), **_heads(call)
    )
    names = ["lin_key", "lin_query", "lin_value", *(["lin_skip"] if root else []), *(["lin_beta"] if beta else [])]
    names += ["lin_edge"] if manifest.edge_columns else []
    tensors = {name: tensor for each in names for name, tensor in dense_tensors(module, each).items()}
    return Convolved(manifest, tensors, call.relation, rows, own)


def _gin(call: ConvolutionCall) -> Convolved:
    call.sums_up()
    rows, own = call.ends
    if own is None:
        raise call.refused("reads no rows of the nodes that read others")
    fields, tensors = mlp_of(call, rows, "nn")
    tensors = {"eps": call.module.eps.reshape(1), **tensors}
    return Convolved(ConvolutionManifest(Convolution.GIN, **fields), tensors, call.relation, rows, own)


def _gine(call: ConvolutionCall) -> Convolved:
    call.sums_up()
    rows, own = call.ends
    if own is None:
        raise call.refused("reads no rows of the nodes that read others")
    fields, tensors = mlp_of(call, rows, "nn")
    tensors = {"eps": call.module.eps.reshape(1), **tensors}
    manifest = ConvolutionManifest(Convolution.GINE, edge_columns=call.edge_columns, **fields)
    if call.module.lin is None:
        lin: Tensors = {"lin.weight": torch.eye(rows.width), "lin.bias": torch.zeros(rows.width)}
    else:
        lin = {"lin.bias": torch.zeros(rows.width), **dense_tensors(call.module, "lin")}
    return Convolved(manifest, {**tensors, **lin}, call.relation, rows, own)


_SCALERS = {
    "identity": DegreeScaler.IDENTITY,
    "amplification": DegreeScaler.AMPLIFICATION,
    "attenuation": DegreeScaler.ATTENUATION,
    "linear": DegreeScaler.LINEAR,
    "inverse_linear": DegreeScaler.INVERSE_LINEAR,
}


def _pna(call: ConvolutionCall) -> Convolved:
    module, rows = call.module, call.rows
    scaled = module.aggr_module
    aggregations, _ = aggregations_of(call, scaled.aggr, rows.width)
    if Aggregation.SOFTMAX in aggregations:
        raise call.refused("aggregates by a softmax")
    steps = [each for part in (*module.pre_nns, *module.post_nns) for each in part]
    if any(not hasattr(each, "weight") and type(each).__name__ != "ReLU" for each in steps):
        raise call.refused("has other activations than ReLU between its products")
    manifest = ConvolutionManifest(
        Convolution.PNA, width=module.out_channels, aggregations=aggregations,
        scalers=tuple(_SCALERS[each] for each in scaled.scaler), towers=module.towers,
        divides_input=bool(module.divide_input), pre_layers=_count(module.pre_nns[0]),
        post_layers=_count(module.post_nns[0]), edge_columns=call.edge_columns if module.edge_dim is not None else (),
    )  # fmt: skip
    tensors = {
        name: each
        for name, each in module.state_dict().items()
        if name.startswith(("aggr_module.avg_deg_", "edge_encoder.", "pre_nns.", "post_nns.", "lin."))
    }
    return Convolved(manifest, tensors, call.relation, rows, rows)


def _count(products: Sequence[Any]) -> int:
    return sum(hasattr(each, "weight") for each in products)


def _tag(call: ConvolutionCall) -> Convolved:
    module = call.module
    call.sums_up()
    manifest = ConvolutionManifest(
        Convolution.TAG, width=module.out_channels, hops=module.K, is_normalised=bool(module.normalize),
        self_loops=False, bias=module.bias is not None, edge_weight=call.edge_weight,
    )  # fmt: skip
    tensors = {f"lins.{hop}.weight": each.weight for hop, each in enumerate(module.lins)} | dict(bias_tensors(module))
    return Convolved(manifest, tensors, call.relation, call.rows, call.rows, scales=tuple(tensors))


def _mix_hop(call: ConvolutionCall) -> Convolved:
    """Products of each power beside each other: TAG's, whose matrices have zeros where others write."""
    module, rows = call.module, call.rows
    call.sums_up()
    powers, each = list(module.powers), module.out_channels
    width = each * len(powers)
    weights = [torch.zeros(width, rows.width) for _ in module.lins]
    for place, power in enumerate(powers):
        weights[power][place * each : (place + 1) * each] = module.lins[power].weight
    manifest = ConvolutionManifest(
        Convolution.TAG, width=width, hops=len(weights) - 1, self_loops=bool(module.add_self_loops),
        bias=module.bias is not None, edge_weight=call.edge_weight,
    )  # fmt: skip
    tensors = {f"lins.{hop}.weight": weight for hop, weight in enumerate(weights)} | dict(bias_tensors(module))
    return Convolved(manifest, tensors, call.relation, rows, rows)


def _chebyshev(call: ConvolutionCall) -> Convolved:
    module = call.module
    call.sums_up()
    call.needs(normalization="sym")
    if call.columns("edge_weight") is not None or call.given.get("lambda_max") is not None or len(module.lins) < 2:
        raise call.refused("has weights of edges, a largest eigenvalue, or one polynomial alone")
    manifest = ConvolutionManifest(
        Convolution.CHEBYSHEV, width=module.out_channels, hops=len(module.lins) - 1, bias=module.bias is not None
    )
    tensors = {f"lins.{hop}.weight": each.weight for hop, each in enumerate(module.lins)} | dict(bias_tensors(module))
    return Convolved(manifest, tensors, call.relation, call.rows, call.rows, scales=tuple(tensors))


def _sgc(call: ConvolutionCall) -> Convolved:
    module = call.module
    call.sums_up()
    manifest = ConvolutionManifest(
        Convolution.SGC, width=module.out_channels, hops=module.K, self_loops=bool(module.add_self_loops),
        bias=module.lin.bias is not None, edge_weight=call.edge_weight,
    )  # fmt: skip
    tensors = dense_tensors(module, "lin")
    return Convolved(manifest, tensors, call.relation, call.rows, call.rows, scales=tuple(tensors))


def _appnp(call: ConvolutionCall) -> Convolved:
    module, rows = call.module, call.rows
    call.sums_up()
    manifest = ConvolutionManifest(
        Convolution.APPNP, width=rows.width, hops=module.K, alpha=float(module.alpha),
        self_loops=bool(module.add_self_loops), is_normalised=bool(module.normalize), edge_weight=call.edge_weight,
    )  # fmt: skip
    return Convolved(manifest, {}, call.relation, rows, rows)


def _light_gcn(call: ConvolutionCall) -> Convolved:
    """One hop, of which nothing is kept."""
    rows = call.rows
    call.sums_up()
    manifest = ConvolutionManifest(
        Convolution.APPNP, width=rows.width, hops=1, self_loops=False, is_normalised=bool(call.module.normalize),
        edge_weight=call.edge_weight,
    )  # fmt: skip
    return Convolved(manifest, {}, call.relation, rows, rows)


def _gcnii(call: ConvolutionCall) -> Convolved:
    module, rows = call.module, call.rows
    call.sums_up()
    first = call.node_rows(call.given["x_0"])
    # β = log(θ / layer + 1): θ of a first layer, which is multiplied by the layer's number where that is known.
    theta = None if module.beta == 1.0 else math.expm1(module.beta)
    manifest = ConvolutionManifest(
        Convolution.GCNII, width=module.channels, alpha=float(module.alpha), theta=theta,
        shares_weights=module.weight2 is None, self_loops=bool(module.add_self_loops) or not module.normalize,
        is_normalised=bool(module.normalize), edge_weight=call.edge_weight,
    )  # fmt: skip
    tensors = {"weight1": module.weight1} | ({} if module.weight2 is None else {"weight2": module.weight2})
    return Convolved(manifest, tensors, call.relation, rows, rows, first)


def of_layer(manifest: ConvolutionManifest, number: int) -> ConvolutionManifest:
    """A convolution in the layer of that number, from 1."""
    if manifest.theta is None:
        return manifest
    return msgspec.structs.replace(manifest, theta=round(manifest.theta * number, 9))


READERS: Mapping[str, Reader] = {
    "SAGEConv": _sage,
    "GraphConv": _graph_conv,
    "GCNConv": _gcn,
    "GATConv": _gat,
    "GATv2Conv": _gatv2,
    "TransformerConv": _transformer,
    "GINConv": _gin,
    "GINEConv": _gine,
    "PNAConv": _pna,
    "TAGConv": _tag,
    "MixHopConv": _mix_hop,
    "ChebConv": _chebyshev,
    "SGConv": _sgc,
    "APPNP": _appnp,
    "LGConv": _light_gcn,
    "GCN2Conv": _gcnii,
    "RGCNConv": read_rgcn,
    "FastRGCNConv": read_rgcn,
    "RGATConv": read_rgat,
    "AGNNConv": read_agnn,
    "GENConv": read_gen,
    "FiLMConv": read_film,
}
"""By the classes of torch_geometric."""
