"""Convolutions of torch_geometric: what each module says of itself, as a revision keeps it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import msgspec
import torch

from gnnserve_api.files.layers import Aggregation, Convolution, ConvolutionManifest, DegreeScaler, EdgeFilter
from gnnserve_api.files.programs import RelationKey
from gnnserve_describe.layers.products import products_of, tensors_of
from gnnserve_describe.layers.values import (
    EdgeColumns,
    EdgeKinds,
    Edges,
    Features,
    NodesBehind,
    NotLayersError,
    Tensors,
    Unread,
    Value,
)

Nested: TypeAlias = Callable[[torch.nn.Module, int, Value], Value]
"""Value of a module of rows, given the width of these and their value."""


@dataclass(frozen=True, slots=True, eq=False)
class ReadConvolution:
    manifest: ConvolutionManifest
    tensors: Tensors
    relation: RelationKey
    rows: Value
    own: Value | None
    first: Value | None = None
    scales: tuple[str, ...] = ()
    own_weight: torch.Tensor | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ReadConvolutions:
    """Convolutions whose sum a module gives."""

    convolutions: tuple[ReadConvolution, ...]
    own: tuple[Value, torch.Tensor] | None = None
    """Rows of the nodes themselves, and the matrix that they are multiplied by; None: they are not added."""
    bias: torch.Tensor | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ConvolutionCall:
    """One call of a convolution."""

    module: Any
    given: Mapping[str, Any]
    value_of: Callable[[Any], Value | None]
    nested: Nested
    whole: Callable[[Features], Features]
    """All columns of the features of the type."""

    @property
    def name(self) -> str:
        return type(self.module).__name__

    def refused(self, why: str) -> NotLayersError:
        return NotLayersError(f"{self.name} {why}")

    def _read(self, given: Any, wrong: str) -> Value | None:
        """NotLayersError: a function before it was not understood. `wrong`: what the module reads then."""
        value = self.value_of(given)
        if isinstance(value, Unread):
            raise self.refused(f"reads {wrong}: {value.why}")
        return value

    def node_rows(self, given: Any) -> Value | None:
        """None: nothing is given."""
        if given is None:
            return None
        value = self.value_of(given)
        if isinstance(value, Unread):
            raise NotLayersError(value.why)
        if value is None or not value.is_rows or given.dim() != 2:
            raise self.refused("reads rows that are not computed of features alone")
        return value

    @property
    def ends(self) -> tuple[Value, Value | None]:
        """Rows of the nodes that are read, and of those that read them."""
        given = self.given["x"]
        pair = given if isinstance(given, tuple | list) else (given, given)
        rows, own = (self.node_rows(each) for each in pair)
        if rows is None:
            raise self.refused("reads no rows")
        return rows, own

    @property
    def rows(self) -> Value:
        """Rows of a convolution whose nodes read nodes of their own type."""
        rows, own = self.ends
        if own is not rows:
            raise self.refused("reads nodes of another type, and is listed for one type alone")
        return rows

    @property
    def relation(self) -> RelationKey:
        return self.edges.relation

    @property
    def edges(self) -> Edges:
        wrong = "other edges than the graph's"
        edges = self._read(self.given.get("edge_index"), wrong)
        if not isinstance(edges, Edges):
            raise self.refused(f"reads {wrong}")
        if getattr(self.module, "flow", "source_to_target") != "source_to_target":
            raise self.refused("reads edges the other way (flow)")
        return edges

    def columns(self, *names: str) -> EdgeColumns | None:
        """Columns of the edges that it is given by one of the names. None: by none."""
        given = next((self.given[name] for name in names if self.given.get(name) is not None), None)
        if given is None:
            return None
        wrong = "what was computed of columns of the edges, in place of these"
        value = self._read(given, wrong)
        if not isinstance(value, EdgeColumns) or value.where != self.edges.where:
            raise self.refused(f"reads {wrong}")
        return value

    @property
    def edge_weight(self) -> str:
        column = self.columns("edge_weight")
        if column is not None and column.count != 1:
            raise self.refused(f"reads {column.count} columns as weights of edges")
        return "" if column is None else str(column.first)

    @property
    def edge_columns(self) -> tuple[str, ...]:
        found = self.columns("edge_attr")
        return () if found is None else tuple(str(found.first + place) for place in range(found.count))

    def sums_up(self) -> None:
        """NotLayersError: it aggregates otherwise than its kind does."""
        found = type(self.module.aggr_module).__name__
        if found != "SumAggregation":
            raise self.refused(f"aggregates by {found} in place of a sum")

    def needs(self, **wanted: Any) -> None:
        """NotLayersError: an attribute has another value."""
        for name, value in wanted.items():
            found = getattr(self.module, name, value)
            if found != value:
                raise self.refused(f"has {name}={found!r}, which no layer has")


Reader: TypeAlias = Callable[[ConvolutionCall], ReadConvolution | ReadConvolutions]


def convolution_of(
    module: torch.nn.Module, given: Mapping[str, Any], value_of: Callable[[Any], Value | None], nested: Nested,
    whole: Callable[[Features], Features],
) -> ReadConvolutions:  # fmt: skip
    """NotLayersError: it is none that can be listed, or not with these options."""
    call = ConvolutionCall(module, given, value_of, nested, whole)
    kind = type(module)
    reader = READERS.get(kind.__name__) if kind.__module__.startswith("torch_geometric.nn.conv.") else None
    if reader is None:
        raise NotLayersError(f"{kind.__name__} is none of the convolutions that can be listed")
    read = reader(call)
    found = read if isinstance(read, ReadConvolutions) else ReadConvolutions((read,))
    return replace(found, convolutions=tuple(_of_edges(each, call.edges) for each in found.convolutions))


def _of_edges(found: ReadConvolution, edges: Edges) -> ReadConvolution:
    """The convolution over those edges alone that it is given."""
    if edges.where is None:
        return found
    if found.manifest.where is not None:
        raise NotLayersError("a convolution that tells kinds of edges apart is given some edges of the graph's alone")
    return replace(found, manifest=msgspec.structs.replace(found.manifest, where=edges.where))


def jumping_tensors(module: torch.nn.Module) -> Tensors:
    return dict(module.state_dict())


# Tensors and options


def _dense(module: Any, name: str) -> Tensors:
    """Weight and, where it has one, bias of a product inside."""
    inner = module.get_submodule(name)
    bias = {} if inner.bias is None else {f"{name}.bias": inner.bias}
    return {f"{name}.weight": inner.weight, **bias}


def _bias(module: Any) -> Tensors:
    return {} if module.bias is None else {"bias": module.bias}


_AGGREGATIONS = {
    "MeanAggregation": Aggregation.MEAN,
    "SumAggregation": Aggregation.SUM,
    "MaxAggregation": Aggregation.MAX,
    "MinAggregation": Aggregation.MIN,
    "StdAggregation": Aggregation.STD,
    "VarAggregation": Aggregation.VAR,
    "SoftmaxAggregation": Aggregation.SOFTMAX,
}


def _aggregations(call: ConvolutionCall, module: Any, columns: int) -> tuple[tuple[Aggregation, ...], Tensors]:
    """Aggregations of a module, and their temperatures."""
    several = getattr(module, "aggrs", None)
    if several is not None and getattr(module, "mode", "cat") != "cat":
        raise call.refused(f"combines aggregations by {module.mode}, and those of a layer stand beside each other")
    found, tensors = [], dict[str, torch.Tensor]()
    for place, each in enumerate([module] if several is None else several):
        kind = _AGGREGATIONS.get(type(each).__name__)
        if kind is None or getattr(each, "semi_grad", False):
            raise call.refused(f"aggregates by {type(each).__name__}, which no layer does")
        found.append(kind)
        if kind is Aggregation.SOFTMAX:
            name = "aggr_module.t" if several is None else f"aggr_module.aggrs.{place}.t"
            tensors[name] = torch.as_tensor(each.t, dtype=torch.float32).reshape(-1).expand(columns)
    return tuple(found), tensors


def _sage(call: ConvolutionCall) -> ReadConvolution:
    module, (rows, own) = call.module, call.ends
    aggregations, tensors = _aggregations(call, module.aggr_module, rows.width)
    root = bool(module.root_weight) and own is not None
    tensors = {**tensors, **_dense(module, "lin_l"), **(_dense(module, "lin_r") if root else {})}
    project = bool(getattr(module, "project", False))
    scales = () if module.normalize else ("lin_l.weight", "lin_l.bias", "lin_r.weight")
    manifest = ConvolutionManifest(
        Convolution.GRAPH_SAGE, width=module.out_channels, bias=module.lin_l.bias is not None, root=root,
        projects=project, has_unit_rows=bool(module.normalize), aggregations=aggregations,
    )  # fmt: skip
    tensors |= _dense(module, "lin") if project else {}
    return ReadConvolution(manifest, tensors, call.relation, rows, own if root else None, scales=scales)


def _graph_conv(call: ConvolutionCall) -> ReadConvolution:
    module, (rows, own) = call.module, call.ends
    aggregations, tensors = _aggregations(call, module.aggr_module, rows.width)
    # An aggregation that was named behind its making counts where edges are summed up.
    if len(aggregations) != 1:
        raise call.refused("has several aggregations, and GraphConv of a layer has one")
    tensors = {**tensors, **_dense(module, "lin_rel"), **({} if own is None else _dense(module, "lin_root"))}
    manifest = ConvolutionManifest(
        Convolution.GRAPH_CONV, width=module.out_channels, bias=module.lin_rel.bias is not None, root=own is not None,
        aggregations=aggregations, edge_weight=call.edge_weight,
    )  # fmt: skip
    scales = ("lin_rel.weight", "lin_rel.bias", "lin_root.weight")
    return ReadConvolution(manifest, tensors, call.relation, rows, own, scales=scales)


def _gcn(call: ConvolutionCall) -> ReadConvolution:
    module = call.module
    call.sums_up()
    manifest = ConvolutionManifest(
        Convolution.GCN, width=module.out_channels, self_loops=bool(module.add_self_loops) or not module.normalize,
        improved=bool(module.improved), is_normalised=bool(module.normalize), bias=module.bias is not None,
        edge_weight=call.edge_weight,
    )  # fmt: skip
    tensors = {**_dense(module, "lin"), **_bias(module)}
    return ReadConvolution(manifest, tensors, call.relation, call.rows, call.rows, scales=("lin.weight", "bias"))


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


def _gat(call: ConvolutionCall) -> ReadConvolution:
    module, (rows, own) = call.module, call.ends
    source, target = ("lin", "lin") if module.lin is not None else ("lin_src", "lin_dst")
    manifest = ConvolutionManifest(Convolution.GAT, **_of_attention(call))
    tensors = {
        "lin_src.weight": module.get_submodule(source).weight, "lin_dst.weight": module.get_submodule(target).weight,
        "att_src": module.att_src, "att_dst": module.att_dst, **_bias(module),
    }  # fmt: skip
    if manifest.edge_columns:
        tensors |= {"lin_edge.weight": module.lin_edge.weight, "att_edge": module.att_edge}
    return ReadConvolution(manifest, tensors, call.relation, rows, own, own_weight=_residual_of(call))


def _gatv2(call: ConvolutionCall) -> ReadConvolution:
    module, (rows, own) = call.module, call.ends
    shares = module.lin_r is module.lin_l
    manifest = ConvolutionManifest(Convolution.GATV2, shares_weights=shares, **_of_attention(call))
    if (module.lin_l.bias is None) is not (module.bias is None):
        raise call.refused("has a bias in one of two places")
    tensors = {**_dense(module, "lin_l"), **({} if shares else _dense(module, "lin_r")), "att": module.att}
    tensors |= _bias(module)
    if manifest.edge_columns:
        tensors["lin_edge.weight"] = module.lin_edge.weight
    return ReadConvolution(manifest, tensors, call.relation, rows, own, own_weight=_residual_of(call))


def _transformer(call: ConvolutionCall) -> ReadConvolution:
    module, (rows, own) = call.module, call.ends
    if own is None:
        raise call.refused("reads no rows of the nodes that read others")
    root, beta = bool(module.root_weight), module.root_weight and module.lin_beta is not None
    manifest = ConvolutionManifest(
        Convolution.TRANSFORMER, bias=module.lin_key.bias is not None, root=root, has_beta=bool(beta), **_heads(call)
    )
    names = ["lin_key", "lin_query", "lin_value", *(["lin_skip"] if root else []), *(["lin_beta"] if beta else [])]
    names += ["lin_edge"] if manifest.edge_columns else []
    tensors = {name: tensor for each in names for name, tensor in _dense(module, each).items()}
    return ReadConvolution(manifest, tensors, call.relation, rows, own)


def _products(call: ConvolutionCall, rows: Value) -> tuple[dict[str, Any], Tensors]:
    """Products of GIN and GINE, and their tensors."""
    width = rows.width
    products = products_of(call.nested(call.module.nn, width, Features("", 0, width, width)))
    if not products:
        raise call.refused("has no products (nn)")
    eps = call.module.eps.reshape(1)
    mlp = tuple(each.manifest for each in products)
    return {"mlp": mlp, "width": mlp[-1].width}, {"eps": eps, **tensors_of("nn", products)}


def _gin(call: ConvolutionCall) -> ReadConvolution:
    call.sums_up()
    rows, own = call.ends
    if own is None:
        raise call.refused("reads no rows of the nodes that read others")
    fields, tensors = _products(call, rows)
    return ReadConvolution(ConvolutionManifest(Convolution.GIN, **fields), tensors, call.relation, rows, own)


def _gine(call: ConvolutionCall) -> ReadConvolution:
    call.sums_up()
    rows, own = call.ends
    if own is None:
        raise call.refused("reads no rows of the nodes that read others")
    fields, tensors = _products(call, rows)
    manifest = ConvolutionManifest(Convolution.GINE, edge_columns=call.edge_columns, **fields)
    if call.module.lin is None:
        lin: Tensors = {"lin.weight": torch.eye(rows.width), "lin.bias": torch.zeros(rows.width)}
    else:
        lin = {"lin.bias": torch.zeros(rows.width), **_dense(call.module, "lin")}
    return ReadConvolution(manifest, {**tensors, **lin}, call.relation, rows, own)


_SCALERS = {
    "identity": DegreeScaler.IDENTITY,
    "amplification": DegreeScaler.AMPLIFICATION,
    "attenuation": DegreeScaler.ATTENUATION,
    "linear": DegreeScaler.LINEAR,
    "inverse_linear": DegreeScaler.INVERSE_LINEAR,
}


def _pna(call: ConvolutionCall) -> ReadConvolution:
    module, rows = call.module, call.rows
    scaled = module.aggr_module
    aggregations, _ = _aggregations(call, scaled.aggr, rows.width)
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
    return ReadConvolution(manifest, tensors, call.relation, rows, rows)


def _count(products: Sequence[Any]) -> int:
    return sum(hasattr(each, "weight") for each in products)


def _tag(call: ConvolutionCall) -> ReadConvolution:
    module = call.module
    call.sums_up()
    manifest = ConvolutionManifest(
        Convolution.TAG, width=module.out_channels, hops=module.K, is_normalised=bool(module.normalize),
        self_loops=False, bias=module.bias is not None, edge_weight=call.edge_weight,
    )  # fmt: skip
    tensors = {f"lins.{hop}.weight": each.weight for hop, each in enumerate(module.lins)} | dict(_bias(module))
    return ReadConvolution(manifest, tensors, call.relation, call.rows, call.rows, scales=tuple(tensors))


def _mix_hop(call: ConvolutionCall) -> ReadConvolution:
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
    tensors = {f"lins.{hop}.weight": weight for hop, weight in enumerate(weights)} | dict(_bias(module))
    return ReadConvolution(manifest, tensors, call.relation, rows, rows)


def _chebyshev(call: ConvolutionCall) -> ReadConvolution:
    module = call.module
    call.sums_up()
    call.needs(normalization="sym")
    if call.columns("edge_weight") is not None or call.given.get("lambda_max") is not None or len(module.lins) < 2:
        raise call.refused("has weights of edges, a largest eigenvalue, or one polynomial alone")
    manifest = ConvolutionManifest(
        Convolution.CHEBYSHEV, width=module.out_channels, hops=len(module.lins) - 1, bias=module.bias is not None
    )
    tensors = {f"lins.{hop}.weight": each.weight for hop, each in enumerate(module.lins)} | dict(_bias(module))
    return ReadConvolution(manifest, tensors, call.relation, call.rows, call.rows, scales=tuple(tensors))


def _sgc(call: ConvolutionCall) -> ReadConvolution:
    module = call.module
    call.sums_up()
    manifest = ConvolutionManifest(
        Convolution.SGC, width=module.out_channels, hops=module.K, self_loops=bool(module.add_self_loops),
        bias=module.lin.bias is not None, edge_weight=call.edge_weight,
    )  # fmt: skip
    tensors = _dense(module, "lin")
    return ReadConvolution(manifest, tensors, call.relation, call.rows, call.rows, scales=tuple(tensors))


def _appnp(call: ConvolutionCall) -> ReadConvolution:
    module, rows = call.module, call.rows
    call.sums_up()
    manifest = ConvolutionManifest(
        Convolution.APPNP, width=rows.width, hops=module.K, alpha=float(module.alpha),
        self_loops=bool(module.add_self_loops), is_normalised=bool(module.normalize), edge_weight=call.edge_weight,
    )  # fmt: skip
    return ReadConvolution(manifest, {}, call.relation, rows, rows)


def _light_gcn(call: ConvolutionCall) -> ReadConvolution:
    """One hop, of which nothing is kept."""
    rows = call.rows
    call.sums_up()
    manifest = ConvolutionManifest(
        Convolution.APPNP, width=rows.width, hops=1, self_loops=False, is_normalised=bool(call.module.normalize),
        edge_weight=call.edge_weight,
    )  # fmt: skip
    return ReadConvolution(manifest, {}, call.relation, rows, rows)


def _gcnii(call: ConvolutionCall) -> ReadConvolution:
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
    return ReadConvolution(manifest, tensors, call.relation, rows, rows, first)


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


def _matrices_of_kinds(module: Any, bases: torch.Tensor | None) -> list[torch.Tensor]:
    """Matrices [outputs, inputs] of RGCN."""
    if module.num_blocks is not None:
        blocks: Callable[..., torch.Tensor] = torch.block_diag
        return [blocks(*each).t() for each in module.weight.detach()]
    whole = module.weight if bases is None else torch.einsum("rb,bio->rio", bases, module.weight)
    return list(whole.transpose(1, 2))


def _rgcn(call: ConvolutionCall) -> ReadConvolutions:
    """A mean or a sum of the edges of each kind, times a matrix of the kind."""
    module = call.module
    kinds = call.value_of(call.given.get("edge_type"))
    aggregation = _AGGREGATIONS.get(type(module.aggr_module).__name__)
    if not isinstance(kinds, EdgeKinds) or kinds.relation != call.relation:
        raise call.refused("reads edge_type that is no column of whole numbers of the graph's edges")
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
        matrices = _matrices_of_kinds(module, bases)
        own = None if module.root is None or target is None else (target, module.root.t())
    convolutions = tuple(
        ReadConvolution(
            ConvolutionManifest(
                Convolution.GRAPH_CONV, width=outputs, bias=False, root=False, aggregations=(aggregation,),
                where=EdgeFilter(str(kinds.column), float(kind)),
            ), {"lin_rel.weight": matrices[kind]}, call.relation, rows, None, scales=("lin_rel.weight",),
        )
        for kind in range(count)
    )  # fmt: skip
    return ReadConvolutions(convolutions, own, module.bias)


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
    "RGCNConv": _rgcn,
    "FastRGCNConv": _rgcn,
}
"""By the classes of torch_geometric."""
