"""Networks that are listed layer by layer: what a revision keeps of them beside their weights.

A network is products of rows before the first layer, layers that read neighbours, jumping knowledge, and a head. A
layer has a convolution for each relation that it reads. `spec/layers.py` is what users write, and
`worker/gnnserve_worker/layers/` what computes it. Weights are a safetensors file, whose keys are

    before.<type>.<number>.<tensor>             products before the first layer, of each type of nodes
    layers.<number>.convs.<relation>.<tensor>   torch_geometric's names within the convolution; of one over some edges
                                                of a relation `<relation>_<its number among these>`
    layers.<number>.own.<type>.<tensor>         weight, bias: of the node's own row, beside the convolutions
    layers.<number>.norms.<type>.<tensor>       weight, bias, running_mean, running_var, mean_scale
    layers.<number>.activations.<type>.weight   of PReLU
    layers.<number>.residuals.<type>.<tensor>   weight, bias; of a gated one gate
    layers.<number>.outputs.<type>.<tensor>     weight, bias: of the product behind norm and activation
    jumping.<tensor>                            lstm.…, att.…: torch_geometric's names
    head.<number>.<tensor>                      of a head for each type `heads.<type>.<number>.<tensor>`

where types and relations stand by their places in the graph's manifest, and numbers begin at 0. A product's tensors are
`weight` [outputs, inputs], `bias`, `norm.<tensor>`, `activation.weight`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType


class Convolution(StrEnum):
    GRAPH_SAGE = "GraphSAGE"
    """Aggregate of the neighbours times a matrix, and the node's own row times another (SAGEConv)."""
    GCN = "GCN"
    """Sum of the neighbours and the node itself, weighed by the roots of both degrees (GCNConv)."""
    GRAPH_CONV = "GraphConv"
    """Sum of the neighbours times a matrix, weighed by a column of the edges or not, and the node's own row times
    another (GraphConv)."""
    GAT = "GAT"
    """Attention by the sum of a score of each end (GATConv)."""
    GATV2 = "GATv2"
    """Attention by a score of both ends together (GATv2Conv)."""
    TRANSFORMER = "Transformer"
    """Attention by the product of a query and a key (TransformerConv)."""
    GIN = "GIN"
    """Products over the sum of the neighbours and (1 + eps) times the node itself (GINConv)."""
    GINE = "GINE"
    """Products over sums of ReLU(neighbour + columns of the edge), otherwise those of GIN (GINEConv)."""
    PNA = "PNA"
    """Several aggregates, each scaled by the degree in several ways (PNAConv)."""
    TAG = "TAG"
    """Sum of products of the rows that are propagated over 0, 1, … hops (TAGConv)."""
    CHEBYSHEV = "Chebyshev"
    """Sum of products of Chebyshev polynomials of the Laplacian (ChebConv)."""
    SGC = "SGC"
    """Product of rows that are propagated over several hops (SGConv)."""
    APPNP = "APPNP"
    """Propagation over several hops, each of which keeps a share of the input; no weights (APPNP)."""
    GCNII = "GCNII"
    """Propagation with a share of the network's input, and a product that is near the identity (GCN2Conv)."""
    AGNN = "AGNN"
    """Attention by the cosine of both ends, times a number; no other weights (AGNNConv)."""
    GEN = "GEN"
    """Softmax of ReLU(neighbour + columns of the edge), and products over its sum with the node itself (GENConv)."""
    FILM = "FiLM"
    """Mean of neighbours, each scaled and shifted by what the node makes of itself, beside its own row (FiLMConv)."""
    RGAT = "RGAT"
    """Attention by the sum of a score of each end, which is of the products of all heads (RGATConv)."""


class Aggregation(StrEnum):
    """Aggregation of the rows of neighbours."""

    MEAN = "Mean"
    SUM = "Sum"
    MAX = "Max"
    MIN = "Min"
    STD = "Std"
    """Root of the variance, which is not below 1e-5 (torch_geometric's)."""
    VAR = "Var"
    SOFTMAX = "Softmax"
    """Sum weighed by a softmax over the rows themselves, times a temperature `aggr_module.t` (SoftmaxAggregation)."""


class DegreeScaler(StrEnum):
    """Scaling of an aggregate by the number of neighbours."""

    IDENTITY = "Identity"
    AMPLIFICATION = "Amplification"
    ATTENUATION = "Attenuation"
    LINEAR = "Linear"
    INVERSE_LINEAR = "InverseLinear"


class Norm(StrEnum):
    NONE = "None"
    BATCH = "Batch"
    """BatchNorm with its running mean and variance; a product and a shift of each column."""
    LAYER = "Layer"
    """LayerNorm over the columns of each row (torch.nn.LayerNorm; torch_geometric's with mode="node")."""
    GRAPH = "Graph"
    """GraphNorm by its running statistics."""
    L2 = "L2"
    """Division by the row's Euclidean length."""
    L1 = "L1"
    """Division by the sum of the row's magnitudes."""


class Activation(StrEnum):
    NONE = "None"
    RELU = "Relu"
    LEAKY_RELU = "LeakyRelu"
    ELU = "Elu"
    SELU = "Selu"
    GELU = "Gelu"
    SILU = "Silu"
    PRELU = "Prelu"
    TANH = "Tanh"
    SIGMOID = "Sigmoid"


class Residual(StrEnum):
    """Part of the layer's input that is added to the output."""

    NONE = "None"
    ADDED = "Added"
    """The input as it is, which is as wide as the output."""
    AVERAGED = "Averaged"
    """Half of the sum of both."""
    PROJECTED = "Projected"
    """The input times a matrix, `residuals.<type>.weight`."""
    GATED = "Gated"
    """A learned share of the output, the sigmoid of `residuals.<type>.gate`, and of the input the rest: of types whose
    output is as wide as their input. Others add nothing (HGTConv)."""


class ResidualPlace(StrEnum):
    BEHIND_ACTIVATION = "BehindActivation"
    BEFORE_ACTIVATION = "BeforeActivation"
    """Behind the norm."""
    BEFORE_NORM = "BeforeNorm"


class Combination(StrEnum):
    """How a layer combines what the relations of a type give."""

    SUM = "Sum"
    MEAN = "Mean"
    MAX = "Max"
    MIN = "Min"
    CAT = "Cat"
    """Beside each other, in the order of the convolutions."""
    ATTENTION = "Attention"
    """Their sum, whose shares are of one softmax over the neighbours of all relations together (HGTConv, RGATConv)."""


class JumpingKnowledge(StrEnum):
    """Rows that the head reads of the layers."""

    LAST = "Last"
    CAT = "Cat"
    """The outputs of all layers beside each other."""
    MAX = "Max"
    """The largest of each column over all layers."""
    LSTM = "Lstm"
    """Their sum, weighed by a bidirectional LSTM over them and a softmax (torch_geometric's JumpingKnowledge)."""


class DenseManifest(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True):
    """A product of rows: x · Wᵀ + b, then norm and activation."""

    width: int
    bias: bool = True
    norm: Norm = Norm.NONE
    is_norm_behind: bool = False
    """Whether the norm stands behind the activation."""
    norm_epsilon: float = 1e-5
    activation: Activation = Activation.NONE
    slope: float | None = None
    """Slope of LeakyRelu below 0 (0.01), or limit of Elu (1.0). None: torch's default."""


class EdgeFilter(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Edges whose column has one number, as where a column tells kinds of edges apart."""

    column: str
    equals: float


class ConvolutionManifest(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True):
    """A convolution over one relation. Each kind reads some of the fields (`layers/convolutions` of the worker)."""

    conv: Convolution
    relation: int = 0
    """Place of its relation in the graph's manifest."""
    width: int = 0
    """Columns that it writes: of all heads together where these stand beside each other. APPNP's is that of its
    input."""
    heads: int = 1
    averages_heads: bool = False
    """Whether heads are averaged, in place of standing beside each other (`concat=False`)."""
    negative_slope: float = 0.2
    """Slope of the leaky ReLU over scores of GAT, GATv2 and RGAT, and over rows of FiLM: 0 is ReLU, 1 none."""
    shares_weights: bool = False
    """GATv2's share_weights."""
    self_loops: bool = True
    """Whether each node reads itself once (add_self_loops), of GCN and its kind and of attention over one type."""
    improved: bool = False
    """Whether that counts twice, of GCN whose edges have weights: without these torch_geometric counts it once."""
    is_normalised: bool = True
    """Whether sums are weighed by the roots of both degrees, of GCN and its kind (`normalize`)."""
    bias: bool = True
    root: bool = True
    """Whether the node's own row is read (`root_weight`)."""
    projects: bool = False
    """GraphSAGE's `project`: a product and ReLU of the neighbours before they are aggregated."""
    has_unit_rows: bool = False
    """GraphSAGE's `normalize`: outputs are divided by their length."""
    has_beta: bool = False
    """Transformer's `beta`: a gate between the sum and the node's own row."""
    aggregations: tuple[Aggregation, ...] = (Aggregation.MEAN,)
    scalers: tuple[DegreeScaler, ...] = ()
    """PNA's."""
    towers: int = 1
    divides_input: bool = False
    """PNA's `divide_input`."""
    pre_layers: int = 1
    post_layers: int = 1
    hops: int = 1
    """Neighbours of neighbours that it reads: TAG's and SGC's and APPNP's K; Chebyshev's K less one."""
    alpha: float = 0.0
    """Share of the input, of APPNP and GCNII."""
    theta: float | None = None
    """GCNII's, with the number of the layer from 1: β = log(θ / layer + 1); None: β is 1."""
    mlp: tuple[DenseManifest, ...] = ()
    """Products of GIN and GINE, whose tensors are `nn.<number>.…`, and of GEN, `mlp.<number>.…`."""
    edge_columns: tuple[str, ...] = ()
    """Columns of the edges that it reads as features."""
    edge_weight: str = ""
    """Column of the edges that weighs them; empty: each counts 1."""
    where: EdgeFilter | None = None
    """Edges that it reads; None: all of its relation."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of the edges that it reads in any way."""
        chosen = () if self.where is None else (self.where.column,)
        return (*self.edge_columns, *([self.edge_weight] if self.edge_weight else []), *chosen)


class LayerManifest(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True):
    convs: tuple[ConvolutionManifest, ...]
    combination: Combination = Combination.SUM
    own: bool = False
    """Whether the node's own row times a matrix of its type is added."""
    norm: Norm = Norm.NONE
    is_norm_behind: bool = False
    norm_epsilon: float = 1e-5
    activation: Activation = Activation.NONE
    slope: float | None = None
    is_pre_activated: bool = False
    """Whether norm and activation stand before the convolution, and what is added of the input stands behind it."""
    residual: Residual = Residual.NONE
    residual_place: ResidualPlace = ResidualPlace.BEHIND_ACTIVATION
    reads_input: bool = False
    """Whether what is added is of the network's input, behind the products before the first layer."""
    reads_products: bool = False
    """Whether the rows that it reads are its own products beside each other, which the last products before the layers
    give: for each convolution that of a neighbour and that of the node itself, then that of its type, and that of a
    projected residual. Of the first layer alone, where a pass over the network made it so."""
    output_product: bool = False
    """Whether rows are multiplied by a square matrix of their type behind norm and activation (HGTConv)."""

    @property
    def hops(self) -> int:
        """Hops that it reads."""
        return max((one.hops for one in self.convs), default=0)

    @property
    def keys(self) -> tuple[str, ...]:
        """Names of its convolutions in the keys of weights."""
        filtered: dict[int, int] = {}
        names = []
        for one in self.convs:
            number = filtered[one.relation] = filtered.get(one.relation, -1) + (one.where is not None)
            names.append(str(one.relation) if one.where is None else f"{one.relation}_{number}")
        return tuple(names)


class TypeProductsManifest(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Products of the rows of a type before the first layer."""

    type: int
    """Place of the type in the graph's manifest."""
    products: tuple[DenseManifest, ...]


class StoredRowsManifest(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True):
    """Columns of a row that is made ahead of time, of a type: those of its parts, which stand beside each other in the
    order of these fields. A part without columns is not read."""

    type: int
    """Place of the type in the graph's manifest."""
    output: int = 0
    """Columns of what the last stored layer gives; where none is stored, of the network's input."""
    written: tuple[int, ...] = ()
    """Columns of what each layer before it gives, for jumping knowledge."""
    network_input: int = 0
    """Columns of the rows behind the products before the first layer, which residuals and GCNII add."""
    features: int = 0
    """Columns of the features, which a head over [x, h] reads."""

    @property
    def parts(self) -> tuple[int, ...]:
        return (self.output, *self.written, self.network_input, self.features)

    @property
    def columns(self) -> int:
        return sum(self.parts)


class StoredLayersManifest(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Layers of a network whose output was computed ahead of time."""

    layers: int
    """How many, the first ones. 0: the products before the first layer alone."""
    rows: tuple[StoredRowsManifest, ...]
    """Rows of each type that is read."""


class LayersManifest(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True):
    layers: tuple[LayerManifest, ...]
    """Empty: no neighbours are read, as of a perceptron, or where all layers are stored."""
    before: tuple[TypeProductsManifest, ...] = ()
    jumping_knowledge: JumpingKnowledge = JumpingKnowledge.LAST
    head: tuple[DenseManifest, ...] = ()
    """Products behind the layers; empty: what these give are scores."""
    head_reads_input: bool = False
    """Whether the head reads the features beside, before what the layers give: over [x, h]."""
    head_by_type: bool = False
    """Whether each type that the last layer writes has matrices of its own in the head."""
    stored: StoredLayersManifest | UnsetType = UNSET
    """Layers before these, whose output the network reads in place of features. Absent: it reads features."""
    columns: tuple[int, ...] = ()
    """Columns of the features of each type that it reads. Empty: all that the graph has."""

    @property
    def hops(self) -> int:
        return sum(layer.hops for layer in self.layers)


# --- what manifests say otherwise, and what each convolution reads


NAMES: Mapping[str, str] = {
    "averages_heads": "average_heads",
    "shares_weights": "share_weights",
    "is_normalised": "normalize",
    "projects": "project",
    "has_unit_rows": "unit_rows",
    "has_beta": "beta",
    "divides_input": "divide_input",
    "combination": "combine",
    "is_pre_activated": "pre_activation",
    "reads_input": "residual_of_input",
    "is_norm_behind": "norm_behind",
}
"""Names in `spec.model.layers` of fields that a revision calls otherwise."""
_ATTENTION = (Convolution.GAT, Convolution.GATV2, Convolution.TRANSFORMER, Convolution.RGAT)
_PNA = (Convolution.PNA,)
COMMUTING = (
    Convolution.GRAPH_SAGE, Convolution.GRAPH_CONV, Convolution.GCN, Convolution.SGC, Convolution.TAG, Convolution.GIN,
    Convolution.GAT, Convolution.GATV2, Convolution.TRANSFORMER, Convolution.FILM, Convolution.RGAT,
)  # fmt: skip
"""Convolutions that may read products of rows in place of rows, each made of one node alone."""
READ_BY: Mapping[str, Sequence[Convolution]] = {
    "heads": _ATTENTION,
    "averages_heads": _ATTENTION,
    "negative_slope": (Convolution.GAT, Convolution.GATV2, Convolution.FILM, Convolution.RGAT),
    "shares_weights": (Convolution.GATV2, Convolution.GCNII),
    "self_loops": (
        Convolution.GCN, Convolution.TAG, Convolution.SGC, Convolution.APPNP, Convolution.GCNII, Convolution.GAT,
        Convolution.GATV2, Convolution.AGNN,
    ),
    "improved": (Convolution.GCN,),
    "is_normalised": (Convolution.GCN, Convolution.TAG, Convolution.APPNP, Convolution.GCNII),
    "bias": (
        Convolution.GRAPH_SAGE, Convolution.GCN, Convolution.GRAPH_CONV, Convolution.GAT, Convolution.GATV2,
        Convolution.TRANSFORMER, Convolution.TAG, Convolution.CHEBYSHEV, Convolution.SGC, Convolution.RGAT,
    ),
    "root": (Convolution.GRAPH_SAGE, Convolution.GRAPH_CONV, Convolution.TRANSFORMER),
    "projects": (Convolution.GRAPH_SAGE,),
    "has_unit_rows": (Convolution.GRAPH_SAGE,),
    "has_beta": (Convolution.TRANSFORMER,),
    "aggregations": (Convolution.GRAPH_SAGE, Convolution.GRAPH_CONV, Convolution.PNA),
    "scalers": _PNA,
    "towers": _PNA,
    "divides_input": _PNA,
    "pre_layers": _PNA,
    "post_layers": _PNA,
    "hops": (Convolution.TAG, Convolution.CHEBYSHEV, Convolution.SGC, Convolution.APPNP),
    "alpha": (Convolution.APPNP, Convolution.GCNII),
    "theta": (Convolution.GCNII,),
    "mlp": (Convolution.GIN, Convolution.GINE, Convolution.GEN),
    "edge_columns": (*_ATTENTION, Convolution.GINE, Convolution.PNA, Convolution.GEN),
    "edge_weight": (
        Convolution.GRAPH_CONV, Convolution.GCN, Convolution.TAG, Convolution.SGC, Convolution.APPNP,
        Convolution.GCNII, Convolution.CHEBYSHEV,
    ),
}  # fmt: skip
"""The convolutions that read each field of a `ConvolutionManifest`; others are read by all."""
DEFAULTS: Mapping[Convolution, Mapping[str, Any]] = {
    Convolution.GRAPH_CONV: {"aggregations": (Aggregation.SUM,)},
    Convolution.PNA: {"scalers": (DegreeScaler.IDENTITY,)},
    Convolution.GCNII: {"shares_weights": True},
    Convolution.TAG: {"self_loops": False},
    Convolution.FILM: {"negative_slope": 0.0},
}
"""Defaults in `spec.model.layers` that differ from those of a `ConvolutionManifest`."""


def name_in_text(field: str) -> str:
    """Name in a manifest's text of a field of a revision."""
    first, *others = NAMES.get(field, field).split("_")
    return first + "".join(map(str.capitalize, others))
