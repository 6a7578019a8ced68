"""Convolutions of files as convolutions of a network that is listed layer by layer: one object for each kind.

A family says which kinds of modules it reads, what a module's shapes tell of it, how its tensors are called here
(torch_geometric's names of today), and what they do not tell. Older names, and those of DGL, are the family's to know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Protocol

import msgspec
import numpy as np

from gnnserve_api.files.layers import (
    Aggregation,
    Convolution,
    ConvolutionManifest,
    DegreeScaler,
)
from gnnserve_worker.readers.description import CheckpointLayer, relation_of
from gnnserve_worker.readers.parts import (
    Assumption,
    Taken,
    TakenTensors,
    perceptron_of,
    spread,
    taken,
    taken_by_name,
    zeros,
)

_PLAIN_AGGREGATIONS = (Aggregation.MEAN, Aggregation.MAX, Aggregation.STD, Aggregation.MIN, Aggregation.SUM)
_PNA_AGGREGATIONS = (Aggregation.MEAN, Aggregation.MIN, Aggregation.MAX, Aggregation.STD)
_PNA_SCALERS = (DegreeScaler.IDENTITY, DegreeScaler.AMPLIFICATION, DegreeScaler.ATTENUATION, DegreeScaler.LINEAR)


@dataclass(frozen=True, slots=True)
class FoundConvolution:
    """A convolution of a file."""

    name: str
    manifest: ConvolutionManifest
    """Over relation 0."""
    inputs: int
    """Columns that it reads of a neighbour."""
    tensors: TakenTensors
    residual: TakenTensors = field(default_factory=dict)
    """Weight and bias by which the layer's input is added to it, before a norm; empty: it is not."""
    assumed: tuple[Assumption, ...] = ()
    other_width: int | None = None
    """Columns that it writes if its heads are treated the other way; None: tensors tell how they are."""

    @property
    def width(self) -> int:
        return self.manifest.width

    @property
    def widths(self) -> tuple[int, ...]:
        """Columns that it may write, the likely number first."""
        return (self.width,) if self.other_width is None else (self.width, self.other_width)

    def with_width(self, width: int) -> FoundConvolution:
        """The same with heads that give so many columns."""
        if width == self.width or width != self.other_width:
            return self
        averages = not self.manifest.averages_heads
        changed = msgspec.structs.replace(self.manifest, width=width, averages_heads=averages)
        tensors, residual = self.tensors, self.residual
        if averages:  # DGL adds biases and residuals to each head, and averages them, too
            tensors = {name: _averaged(one, width) if name == "bias" else one for name, one in tensors.items()}
            residual = {name: _averaged(one, width) for name, one in residual.items()}
        return FoundConvolution(self.name, changed, self.inputs, tensors, residual, self.assumed)


def _averaged(one: Taken, width: int) -> Taken:
    """The mean over heads, each of which has `width` of its first axis."""
    shape = (width, *one.shape[1:])
    return replace(one, shape=shape, change=lambda values: values.reshape(-1, *shape).mean(axis=0))


class ConvolutionFamily(Protocol):
    """A kind of convolution, as files have it."""

    @property
    def conv(self) -> Convolution: ...  # pragma: no cover

    @property
    def kinds(self) -> Sequence[str]:
        """Names of the kinds of modules that it reads."""
        ...  # pragma: no cover

    def read(self, module: CheckpointLayer) -> FoundConvolution | None:
        """The convolution of a module of one of its kinds; None: its shapes do not go together."""


def _layer(name: str) -> str:
    return f"layers[].{name}"


_WEIGHTS_OF_EDGES = Assumption(_layer("edgeWeight"), "none", "edges count 1 each")


def _columns_of_edges(count: int) -> tuple[str, ...]:
    """Names in place of those that the file does not have."""
    return tuple(f"edge_{place}" for place in range(count))


def _edge_assumption(count: int) -> tuple[Assumption, ...]:
    if not count:
        return ()
    return (Assumption(_layer("edgeColumns"), f"{count} of them", "put the names of your columns, in their order"),)


class _Sage:
    conv = Convolution.GRAPH_SAGE
    kinds = (
        "SAGEConv", "SAGEConv with bias=False", "SAGEConv with root_weight=False", "SAGEConv of DGL",
        "SAGEConv with project=True", "SAGEConv with a learned softmax as its aggregation",
        "SAGEConv without weights of the node itself and a bias", "SAGEConv of DGL with a bias of its own",
        "SAGEConv of DGL with pooling",
    )  # fmt: skip
    names: ClassVar[Mapping[str, str]] = {
        "lin_l.weight": "lin_l.weight", "lin_l.bias": "lin_l.bias", "lin_r.weight": "lin_r.weight",
        "lin.weight": "lin.weight", "lin.bias": "lin.bias",
        "fc_neigh.weight": "lin_l.weight", "fc_self.weight": "lin_r.weight", "fc_self.bias": "lin_l.bias",
        "bias": "lin_l.bias", "fc_pool.weight": "lin.weight", "fc_pool.bias": "lin.bias",
    }  # fmt: skip

    def read(self, module: CheckpointLayer) -> FoundConvolution | None:
        tensors = taken_by_name(module, self.names)
        temperatures = sorted(name for name in module.shapes if name.startswith("aggr_module."))
        outputs, aggregated = tensors["lin_l.weight"].shape
        root = "lin_r.weight" in tensors
        own = tensors["lin_r.weight"].shape[1] if root else aggregated
        projects = "lin.weight" in tensors
        # Several aggregates stand beside each other; between types, widths of both ends are each their own.
        relation = relation_of(module.name)
        is_within_type = relation is None or relation["source"] == relation["target"]
        count = aggregated // own if is_within_type and aggregated % own == 0 else 1
        inputs = tensors["lin.weight"].shape[1] if projects else aggregated // count
        tensors |= {name: spread(module, name, inputs) for name in temperatures}
        is_pooled = "fc_pool.weight" in module.shapes
        aggregations = (Aggregation.MAX,) if is_pooled else _PLAIN_AGGREGATIONS[:count]
        if temperatures and count == 1:
            aggregations = (Aggregation.SOFTMAX,)
        if len(aggregations) != count:
            return None
        assumed = [
            Assumption(_layer("unitRows"), "false", "normalize=True has the same tensors"),
        ]
        if not is_pooled and not temperatures:
            shown = str([str(one) for one in aggregations]).replace("'", "")
            assumed.insert(0, Assumption(_layer("aggregations"), shown, "sum, max and others have the same tensors"))
        manifest = ConvolutionManifest(
            self.conv, width=outputs, bias="lin_l.bias" in tensors, root=root, projects=projects,
            aggregations=aggregations,
        )  # fmt: skip
        return FoundConvolution(module.name, manifest, inputs, tensors, assumed=tuple(assumed))


def _transposed(tensor: np.ndarray) -> np.ndarray:
    return tensor.T


class _Gcn:
    conv = Convolution.GCN
    kinds = ("GCNConv", "GCNConv with bias=False", "GCNConv of torch_geometric below 2.0 (or GraphConv of DGL)")

    def read(self, module: CheckpointLayer) -> FoundConvolution | None:
        tensors = taken_by_name(module, {"lin.weight": "lin.weight", "bias": "bias"})
        assumed = [
            Assumption(_layer("normalize"), "true", "improved and normalize=False have the same tensors"),
            _WEIGHTS_OF_EDGES,
        ]
        is_old = "weight" in module.shapes
        if is_old:
            shape = tuple(module.shapes["weight"])[::-1]
            tensors["lin.weight"] = Taken(shape, (module.key_of("weight"),), _transposed)
        why = "DGL's GraphConv has the same tensors, and adds none: false" if is_old else "add_self_loops"
        assumed.insert(0, Assumption(_layer("selfLoops"), "true", why))
        outputs, inputs = tensors["lin.weight"].shape
        manifest = ConvolutionManifest(self.conv, width=outputs, bias="bias" in tensors)
        return FoundConvolution(module.name, manifest, inputs, tensors, assumed=tuple(assumed))


class _GraphConv:
    conv = Convolution.GRAPH_CONV
    kinds = ("GraphConv",)

    def read(self, module: CheckpointLayer) -> FoundConvolution | None:
        tensors = {name: taken(module, name) for name in module.shapes}
        outputs, inputs = tensors["lin_rel.weight"].shape
        manifest = ConvolutionManifest(
            self.conv, width=outputs, bias="lin_rel.bias" in tensors, aggregations=(Aggregation.SUM,)
        )
        assumed = (Assumption(_layer("aggregations"), "[Sum]", "mean and max have the same tensors"), _WEIGHTS_OF_EDGES)
        return FoundConvolution(module.name, manifest, inputs, tensors, assumed=assumed)


def _heads(heads: int, each: int, bias: Taken | None) -> tuple[int, bool, int | None]:
    """Columns that attention writes, whether heads are averaged, and the columns if it is the other way; None: it is
    not."""
    if heads == 1:
        return each, False, None
    if bias is None:
        return heads * each, False, each
    return bias.shape[0], bias.shape[0] != heads * each, None


def _residual_of(module: CheckpointLayer, tensor: str) -> dict[str, Taken]:
    if tensor not in module.shapes:
        return {}
    weight = taken(module, tensor)
    return {"weight": weight, "bias": zeros(weight.shape[0])}


class _Gat:
    conv = Convolution.GAT
    kinds = (
        "GATConv", "GATConv with lin_src and lin_dst", "GATConv of torch_geometric below 2.0",
        "GATConv with columns of edges (edge_dim)", "GATConv with residual=True or bias=False", "GATConv of DGL",
    )  # fmt: skip
    names: ClassVar[Mapping[str, str]] = {
        "lin_src.weight": "lin_src.weight", "lin_dst.weight": "lin_dst.weight",
        "att_src": "att_src", "att_dst": "att_dst", "bias": "bias", "lin_edge.weight": "lin_edge.weight",
        "att_edge": "att_edge", "lin_l.weight": "lin_src.weight", "lin_r.weight": "lin_dst.weight",
        "att_l": "att_src", "att_r": "att_dst", "fc_src.weight": "lin_src.weight", "fc_dst.weight": "lin_dst.weight",
        "attn_l": "att_src", "attn_r": "att_dst",
    }  # fmt: skip

    def read(self, module: CheckpointLayer) -> FoundConvolution | None:
        tensors = taken_by_name(module, self.names)
        for both in ("lin.weight", "fc.weight"):
            if both in module.shapes:
                tensors |= {"lin_src.weight": taken(module, both), "lin_dst.weight": taken(module, both)}
        if "lin_src.weight" not in tensors:
            return None
        tensors.setdefault("lin_dst.weight", tensors["lin_src.weight"])
        shape = tensors["att_src"].shape
        heads, each = shape[-2], shape[-1]
        is_dgl = "attn_l" in module.shapes
        width, averages, other = _heads(heads, each, None if is_dgl else tensors.get("bias"))
        columns = tensors["lin_edge.weight"].shape[1] if "lin_edge.weight" in tensors else 0
        manifest = ConvolutionManifest(
            self.conv, width=width, heads=heads, averages_heads=averages, bias="bias" in tensors,
            self_loops=not is_dgl, edge_columns=_columns_of_edges(columns),
        )  # fmt: skip
        loops = "DGL adds none" if is_dgl else "add_self_loops"
        assumed = (
            Assumption(_layer("selfLoops"), str(not is_dgl).lower(), loops),
            Assumption(_layer("negativeSlope"), "0.2", "of the leaky ReLU over scores"),
            *_edge_assumption(columns),
        )
        residual = _residual_of(module, "res.weight") | _residual_of(module, "res_fc.weight")
        inputs = tensors["lin_src.weight"].shape[1]
        return FoundConvolution(module.name, manifest, inputs, tensors, residual, assumed, other)


class _Gatv2:
    conv = Convolution.GATV2
    kinds = ("GATv2Conv", "GATv2Conv with columns of edges (edge_dim)")

    def read(self, module: CheckpointLayer) -> FoundConvolution | None:
        tensors = {name: taken(module, name) for name in module.shapes if name != "res.weight"}
        shape = tensors["att"].shape
        width, averages, other = _heads(shape[-2], shape[-1], tensors.get("bias"))
        columns = tensors["lin_edge.weight"].shape[1] if "lin_edge.weight" in tensors else 0
        manifest = ConvolutionManifest(
            self.conv, width=width, heads=shape[-2], averages_heads=averages, bias="bias" in tensors,
            shares_weights="lin_r.weight" not in tensors, edge_columns=_columns_of_edges(columns),
        )  # fmt: skip
        assumed = (
            Assumption(_layer("selfLoops"), "true", "add_self_loops"),
            Assumption(_layer("negativeSlope"), "0.2", "of the leaky ReLU over scores"),
            *_edge_assumption(columns),
        )
        inputs = tensors["lin_l.weight"].shape[1]
        return FoundConvolution(
            module.name, manifest, inputs, tensors, _residual_of(module, "res.weight"), assumed, other
        )


class _Transformer:
    conv = Convolution.TRANSFORMER
    kinds = ("TransformerConv",)

    def read(self, module: CheckpointLayer) -> FoundConvolution | None:
        tensors = {name: taken(module, name) for name in module.shapes}
        inner, inputs = tensors["lin_key.weight"].shape
        root = "lin_skip.weight" in tensors
        width = tensors["lin_skip.weight"].shape[0] if root else inner
        columns = tensors["lin_edge.weight"].shape[1] if "lin_edge.weight" in tensors else 0
        heads = inner // width if inner % width == 0 else 1
        averages = heads > 1
        manifest = ConvolutionManifest(
            self.conv, width=width, heads=heads, averages_heads=averages, bias="lin_key.bias" in tensors, root=root,
            has_beta="lin_beta.weight" in tensors, edge_columns=_columns_of_edges(columns),
        )  # fmt: skip
        unknown = () if averages else (
            Assumption(_layer("heads"), "1", "heads that stand beside each other leave no trace in the tensors"),
        )  # fmt: skip
        return FoundConvolution(module.name, manifest, inputs, tensors, assumed=(*unknown, *_edge_assumption(columns)))


class _Gin:
    conv = Convolution.GIN
    kinds: Sequence[str] = (
        "GINConv",
        "GINConv with a norm in its nn",
        "GINConv over other layers than Linear, ReLU, Linear",
    )

    def read(self, module: CheckpointLayer) -> FoundConvolution | None:
        found = perceptron_of(module, "nn.")
        if not found.products or found.left:
            return None
        tensors = {
            f"nn.{place}.{name}": one
            for place, product in enumerate(found.products)
            for name, one in product.tensors.items()
        }
        tensors["eps"] = Taken((1,), (module.key_of("eps"),)) if "eps" in module.shapes else zeros(1)
        columns = 0
        if "lin.weight" in module.shapes:
            tensors |= {name: taken(module, name) for name in ("lin.weight", "lin.bias") if name in module.shapes}
            columns = tensors["lin.weight"].shape[1]
        mlp = tuple(one.manifest for one in found.products)
        manifest = ConvolutionManifest(self.conv, width=mlp[-1].width, mlp=mlp, edge_columns=_columns_of_edges(columns))
        assumed: list[Assumption] = []
        if len(mlp) > 1:
            assumed.append(Assumption(_layer("mlp[].activation"), "Relu", "between the products of nn"))
        assumed += _edge_assumption(columns)
        return FoundConvolution(module.name, manifest, found.products[0].inputs, tensors, assumed=tuple(assumed))


class _Gine(_Gin):
    conv = Convolution.GINE
    kinds = ("GINEConv",)


class _Pna:
    conv = Convolution.PNA
    kinds = ("PNAConv",)

    def read(self, module: CheckpointLayer) -> FoundConvolution | None:
        tensors = {name: taken(module, name) for name in module.shapes}
        first, last = tensors["pre_nns.0.0.weight"], tensors["post_nns.0.0.weight"]
        each = first.shape[0]
        blocks = last.shape[1] // each - 1
        has_edges = "edge_encoder.weight" in tensors
        columns = tensors["edge_encoder.weight"].shape[1] if has_edges else 0
        scalers = next((count for count in (3, 4, 1, 2, 5) if blocks == len(_PNA_AGGREGATIONS) * count), None)
        aggregations: tuple[Aggregation, ...] = _PNA_AGGREGATIONS
        if scalers is None:
            scalers = next((count for count in (3, 2, 1) if blocks % count == 0 and blocks // count <= 4), None)
            aggregations = _PNA_AGGREGATIONS[: blocks // scalers] if scalers else ()
        if not scalers or scalers > len(_PNA_SCALERS) or last.shape[1] % each:
            return None
        towers = 1 + max(int(name.split(".")[1]) for name in tensors if name.startswith("pre_nns."))
        tensors |= {
            name: one for name in ("aggr_module.avg_deg_lin", "aggr_module.avg_deg_log") if (one := tensors.get(name))
        }
        if "aggr_module.avg_deg_log" not in tensors:
            return None
        manifest = ConvolutionManifest(
            self.conv, width=tensors["lin.weight"].shape[0], aggregations=aggregations, scalers=_PNA_SCALERS[:scalers],
            towers=towers, pre_layers=_count(module, "pre_nns.0."), post_layers=_count(module, "post_nns.0."),
            edge_columns=_columns_of_edges(columns),
        )  # fmt: skip
        assumed = (
            Assumption(_layer("aggregations"), _shown(aggregations), "their order, and which they are"),
            Assumption(_layer("scalers"), _shown(_PNA_SCALERS[:scalers]), "their order, and which they are"),
            *((Assumption(_layer("divideInput"), "false", "whether towers read parts"),) if towers > 1 else ()),
            *_edge_assumption(columns),
        )
        return FoundConvolution(module.name, manifest, each, tensors, assumed=assumed)


def _count(module: CheckpointLayer, start: str) -> int:
    """Products whose names begin so."""
    return sum(name.startswith(start) and name.endswith(".weight") for name in module.shapes)


def _shown(names: Sequence[str]) -> str:
    return f"[{', '.join(map(str, names))}]"


class _Propagated:
    """Sums of products of rows that are propagated over 0, 1, … hops."""

    kinds = ("ChebConv or TAGConv",)

    def __init__(self, conv: Convolution, other: Convolution) -> None:
        self.conv = conv
        self._other = other

    def read(self, module: CheckpointLayer) -> FoundConvolution | None:
        tensors = {name: taken(module, name) for name in module.shapes}
        outputs, inputs = tensors["lins.0.weight"].shape
        hops = sum(name.startswith("lins.") for name in tensors) - 1
        has_loops = self.conv is Convolution.CHEBYSHEV  # TAGConv adds none, and Chebyshev's do not read the field
        manifest = ConvolutionManifest(
            self.conv, width=outputs, hops=hops, bias="bias" in tensors, self_loops=has_loops
        )
        assumed = (Assumption(_layer("conv"), self.conv, f"{self._other} has the same tensors"), _WEIGHTS_OF_EDGES)
        return FoundConvolution(module.name, manifest, inputs, tensors, assumed=assumed)


class _Sgc:
    conv = Convolution.SGC
    kinds = ("SGConv",)

    def read(self, module: CheckpointLayer) -> FoundConvolution | None:
        tensors = {name: taken(module, name) for name in module.shapes}
        outputs, inputs = tensors["lin.weight"].shape
        manifest = ConvolutionManifest(self.conv, width=outputs, hops=2, bias="lin.bias" in tensors)
        assumed = (Assumption(_layer("hops"), "2", "K leaves no trace in the tensors"), _WEIGHTS_OF_EDGES)
        return FoundConvolution(module.name, manifest, inputs, tensors, assumed=assumed)


class _Gcnii:
    conv = Convolution.GCNII
    kinds = ("GCN2Conv (GCNII)",)

    def read(self, module: CheckpointLayer) -> FoundConvolution | None:
        tensors = {name: taken(module, name) for name in module.shapes}
        width, _ = tensors["weight1"].shape
        manifest = ConvolutionManifest(
            self.conv, width=width, alpha=0.1, theta=0.5, shares_weights="weight2" not in tensors
        )
        assumed = (
            Assumption(_layer("alpha"), "0.1", "leaves no trace in the tensors"),
            Assumption(_layer("theta"), "0.5", "leaves no trace in the tensors"),
            Assumption(_layer("selfLoops"), "true", "add_self_loops"),
        )
        return FoundConvolution(module.name, manifest, width, tensors, assumed=assumed)


FAMILIES: Sequence[ConvolutionFamily] = (
    _Sage(), _Gcn(), _GraphConv(), _Gat(), _Gatv2(), _Transformer(), _Gin(), _Gine(), _Pna(),
    _Propagated(Convolution.CHEBYSHEV, Convolution.TAG), _Propagated(Convolution.TAG, Convolution.CHEBYSHEV), _Sgc(),
    _Gcnii(),
)  # fmt: skip
"""The likely one first where several read one kind of modules."""


def convolution_of(module: CheckpointLayer, stated: Convolution | None = None) -> FoundConvolution | None:
    """What a module is as a convolution; None: no layer here computes it. `stated`: the kind that it is known to be."""
    for family in FAMILIES:
        if module.kind.name in family.kinds and stated in (None, family.conv):
            return family.read(module)
    return None


def kinds_of(conv: Convolution) -> tuple[str, ...]:
    """Names of the kinds of modules that are read as a convolution."""
    return tuple(kind for family in FAMILIES if family.conv is conv for kind in family.kinds)
