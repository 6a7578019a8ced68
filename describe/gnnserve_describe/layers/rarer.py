"""Convolutions that are told apart by kinds of edges, and those of single papers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gnnserve_api.files.layers import Aggregation, Convolution, ConvolutionManifest, EdgeFilter
from gnnserve_describe.layers.calls import (
    AGGREGATIONS,
    ConvolutionCall,
    ReadConvolutions,
    aggregations_of,
    dense_tensors,
    mlp_of,
)
from gnnserve_describe.layers.values import Convolved, EdgeKinds, Features, NodesBehind, Value

_LEAST_MESSAGE = 1e-7


def _rows_of_weights(
    call: ConvolutionCall, bases: torch.Tensor | None
) -> tuple[Value, list[torch.Tensor], tuple[Value, torch.Tensor] | None]:
    """RGCN without features, whose weights have a row for each node: these rows, the matrix of each kind of edges, and
    what is added of the node itself."""
    module, outputs = call.module, call.module.out_channels
    weight, root = call.value_of(module.weight), call.value_of(module.root)
    if not isinstance(weight, NodesBehind) or not isinstance(weight.rows, Features):
        raise call.refused("reads no rows")
    features = weight.rows
    shares = torch.eye(call.module.num_relations) if bases is None else bases.detach()

    def widened(matrix: torch.Tensor, of: Features) -> torch.Tensor:
        whole = torch.zeros(len(matrix), of.columns)
        whole[:, of.first : of.first + of.count] = matrix
        return whole

    matrices = [widened(torch.kron(each.unsqueeze(0), torch.eye(outputs)), features) for each in shares]
    rows = call.whole(features)
    if not isinstance(root, Features):
        return rows, matrices, None
    return rows, matrices, (rows, widened(torch.eye(outputs), root))


def _matrices_of_kinds(module: Any, bases: torch.Tensor | None, shared: torch.Tensor) -> list[torch.Tensor]:
    """Matrices [outputs, inputs] of RGCN and RGAT. `bases`: shares of each kind in matrices that all have, if any;
    `shared`: these, or the matrices or blocks of each kind."""
    if module.num_blocks is not None:
        blocks: Callable[..., torch.Tensor] = torch.block_diag
        return [blocks(*each).t() for each in shared.detach()]
    whole = shared if bases is None else torch.einsum("rb,bio->rio", bases, shared)
    return list(whole.transpose(1, 2))


def _kinds_of(call: ConvolutionCall) -> EdgeKinds:
    kinds = call.value_of(call.given.get("edge_type"))
    if not isinstance(kinds, EdgeKinds) or kinds.relation != call.relation:
        raise call.refused("reads edge_type that is no column of whole numbers of the graph's edges")
    return kinds


def read_rgcn(call: ConvolutionCall) -> ReadConvolutions:
    """A mean or a sum of the edges of each kind, times a matrix of the kind."""
    module = call.module
    kinds = _kinds_of(call)
    aggregation = AGGREGATIONS.get(type(module.aggr_module).__name__)
    if aggregation not in (Aggregation.MEAN, Aggregation.SUM):
        raise call.refused(
            f"aggregates by {type(module.aggr_module).__name__}, which no layer does over kinds of edges"
        )
    count, outputs = module.num_relations, module.out_channels
    bases = None if module.num_bases is None else module.comp
    if call.given.get("x") is None:
        rows, matrices, own = _rows_of_weights(call, bases)
    else:
        rows, target = call.ends
        matrices = _matrices_of_kinds(module, bases, module.weight)
        own = None if module.root is None or target is None else (target, module.root.t())
    convolutions = tuple(
        Convolved(
            ConvolutionManifest(
                Convolution.GRAPH_CONV, width=outputs, bias=False, root=False, aggregations=(aggregation,),
                where=EdgeFilter(str(kinds.column), float(kind)),
            ), {"lin_rel.weight": matrices[kind]}, call.relation, rows, None, scales=("lin_rel.weight",),
        )
        for kind in range(count)
    )  # fmt: skip
    return ReadConvolutions(convolutions, own, module.bias)


def read_rgat(call: ConvolutionCall) -> ReadConvolutions:
    """Attention over the edges of all kinds together, or of each kind apart, with a matrix of the kind."""
    module, rows = call.module, call.rows
    kinds = _kinds_of(call)
    call.sums_up()
    call.needs(attention_mode="additive-self-attention", mod=None)
    bases, shared = (None, module.weight) if module.num_bases is None else (module.att, module.basis)
    columns = call.edge_columns
    scores = {"q": module.q, "k": module.k}
    if columns:
        scores |= {"lin_edge.weight": module.lin_edge.weight, "e": module.e}
    width = module.out_channels * (module.heads if module.concat else 1)

    def of_kind(kind: int, matrix: torch.Tensor) -> Convolved:
        # The bias is of the sum: the first kind has it.
        bias = {} if kind or module.bias is None else {"bias": module.bias}
        manifest = ConvolutionManifest(
            Convolution.RGAT, width=width, heads=module.heads, averages_heads=not module.concat,
            negative_slope=float(module.negative_slope), bias=bool(bias), edge_columns=columns,
            where=EdgeFilter(str(kinds.column), float(kind)),
        )  # fmt: skip
        return Convolved(manifest, {"lin.weight": matrix, **scores, **bias}, call.relation, rows, rows)

    matrices = _matrices_of_kinds(module, bases, shared)
    return ReadConvolutions(
        tuple(of_kind(kind, matrix) for kind, matrix in enumerate(matrices)),
        shares_softmax=module.attention_mechanism == "across-relation",
    )


def read_agnn(call: ConvolutionCall) -> Convolved:
    module, rows = call.module, call.rows
    call.sums_up()
    manifest = ConvolutionManifest(Convolution.AGNN, width=rows.width, self_loops=bool(module.add_self_loops))
    return Convolved(manifest, {"beta": module.beta.reshape(1)}, call.relation, rows, rows)


def read_gen(call: ConvolutionCall) -> Convolved:
    module, (rows, own) = call.module, call.ends
    width = module.out_channels
    kinds, tensors = aggregations_of(call, module.aggr_module, width)
    if own is None or kinds != (Aggregation.SOFTMAX,):
        raise call.refused("aggregates by other than a softmax, or without the node itself")
    if hasattr(module, "msg_norm") or hasattr(module, "lin_aggr_out") or module.eps != _LEAST_MESSAGE:
        raise call.refused("has msg_norm, or another eps, which no layer has")
    edges = call.encoded_columns("edge_attr")
    fields, of_products = mlp_of(call, Features("", 0, width, width), "mlp")
    tensors = {**tensors, **of_products}
    for name in ("lin_src", "lin_dst"):
        made = dense_tensors(module, name) if hasattr(module, name) else {}
        if f"{name}.bias" in made:
            raise call.refused(f"has a bias of {name}, which no layer has")
        tensors |= made
    columns: tuple[str, ...] = ()
    if edges is not None:
        columns = tuple(str(edges.columns.first + place) for place in range(edges.columns.count))
        weight, bias = edges.weight, edges.bias
        if hasattr(module, "lin_edge"):
            inner = module.lin_edge
            weight, bias = inner.weight @ weight, inner.weight @ bias
            bias = bias if inner.bias is None else bias + inner.bias
        tensors |= {"lin_edge.weight": weight, "lin_edge.bias": bias}
    manifest = ConvolutionManifest(Convolution.GEN, edge_columns=columns, **fields)
    return Convolved(manifest, tensors, call.relation, rows, own)


def read_film(call: ConvolutionCall) -> Convolved:
    module, (rows, own) = call.module, call.ends
    aggregated = type(module.aggr_module).__name__
    if own is None or module.num_relations > 1 or aggregated != "MeanAggregation":
        raise call.refused("has several relations, or other than a mean")
    slopes = {"NoneType": 1.0, "ReLU": 0.0, "LeakyReLU": getattr(module.act, "negative_slope", 0.0)}
    parts = ("lins.0", "films.0", "lin_skip", "film_skip")
    if type(module.act).__name__ not in slopes or not all(
        hasattr(module.get_submodule(one), "weight") for one in parts
    ):
        raise call.refused("has an activation or products that no layer has")
    tensors = {name: each for part in parts for name, each in dense_tensors(module, part).items()}
    manifest = ConvolutionManifest(
        Convolution.FILM, width=module.out_channels, negative_slope=float(slopes[type(module.act).__name__])
    )
    return Convolved(manifest, tensors, call.relation, rows, own)
