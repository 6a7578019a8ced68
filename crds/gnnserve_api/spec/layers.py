"""Networks that a manifest lists layer by layer, whose weights are given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from pydantic import Field

from gnnserve_api.errors import InputError
from gnnserve_api.files.graph_schema import GraphSchema
from gnnserve_api.files.layers import (
    DEFAULTS,
    NAMES,
    READ_BY,
    Activation,
    Aggregation,
    Combination,
    Convolution,
    ConvolutionManifest,
    DegreeScaler,
    DenseManifest,
    EdgeFilter,
    JumpingKnowledge,
    LayerManifest,
    LayersManifest,
    Norm,
    Residual,
    ResidualPlace,
    TypeProductsManifest,
    name_in_text,
)
from gnnserve_api.spec.fields import ApiModel
from gnnserve_api.spec.program import RelationNames
from gnnserve_api.spec.rules import Rule, RuleTable, rule
from gnnserve_api.variants import MAX_LAYERS

_FIELD = "spec.model"
_WIDTH = Field(ge=1, le=65_536)
_MOST_PRODUCTS = 8
_MOST_RELATIONS = 32


def _rule_of_option(field: str, convolutions: Sequence[Convolution]) -> Rule:
    listed = ", ".join(f"'{one}'" for one in convolutions)
    named = " and ".join(filter(None, (", ".join(convolutions[:-1]), convolutions[-1])))
    return rule(
        f"!has(self.{field}) || (has(self.conv) && self.conv in [{listed}])",
        f"{field} may be given with conv {named} only[: leave it out]",
    )


class ProductSpec(ApiModel):
    """A product of rows, x · Wᵀ + b, then a norm and an activation."""

    width: Annotated[int, _WIDTH] | None = None
    """Width of the product's output, in channels. Absent: the number of classes, for the last product of the head."""
    bias: bool = True
    """Whether the product adds a bias."""
    norm: Norm = Norm.NONE
    """Normalisation of the product's output."""
    norm_behind: bool = False
    """Whether the norm stands behind the activation."""
    norm_epsilon: Annotated[float, Field(gt=0, le=1)] = 1e-5
    """Epsilon of the norm, which is added to the variance."""
    activation: Activation = Activation.NONE
    """Activation of the product's output."""
    slope: Annotated[float, Field(ge=-10, le=10)] | None = None
    """Slope of LeakyRelu below 0, or limit of Elu (alpha). Absent: torch's default, 0.01 and 1."""

    _slope_is_of_some = rule(
        "!has(self.slope) || self.activation in ['LeakyRelu', 'Elu']",
        "slope may be given with activation LeakyRelu and Elu only[: leave it out]",
    )

    def product(self, width: int) -> DenseManifest:
        """`width`: that of a product that states none."""
        return DenseManifest(
            self.width or width, self.bias, self.norm, self.norm_behind, self.norm_epsilon, self.activation, self.slope
        )


Products = Annotated[tuple[ProductSpec, ...], Field(max_length=_MOST_PRODUCTS)]


class ConvolutionSpec(ApiModel):
    """A convolution, as torch_geometric.nn has it, in evaluation mode."""

    conv: Convolution | None = None
    """Kind of convolution, by the name in torch_geometric.nn. Absent: each of `relations` has a kind of its own."""
    width: Annotated[int, _WIDTH] | None = None
    """Width of the convolution's output, in channels: of all heads together where heads are not averaged. Absent: the
    number of classes, for the last layer of a network without a head; the input's width for APPNP, GCNII and AGNN."""
    heads: Annotated[int, Field(ge=1, le=64)] | None = None
    """Number of attention heads, for GAT, GATv2, Transformer and RGAT. Absent: 1."""
    average_heads: bool | None = None
    """Whether attention heads are averaged (`concat=False`), in place of standing beside each other. Absent: false."""
    negative_slope: Annotated[float, Field(ge=0, le=1)] | None = None
    """Slope of the leaky ReLU below 0: over attention scores for GAT, GATv2 and RGAT, over rows for FiLM. Absent: 0.2;
    0 for FiLM."""
    share_weights: bool | None = None
    """Whether GATv2 multiplies both ends, and GCNII the inputs of layer and network, by one matrix (`share_weights`).
    Absent: false for GATv2, true for GCNII."""
    self_loops: bool | None = None
    """Whether each node reads itself once beside the neighbours (`add_self_loops`). Absent: true over one type of
    nodes, false over several."""
    improved: bool | None = None
    """Whether that counts twice, for GCN (`improved`). Absent: false."""
    normalize: bool | None = None
    """Whether sums are weighed by the roots of both degrees (`normalize`). Absent: true."""
    bias: bool | None = None
    """Whether the convolution adds a bias. Absent: true."""
    root: bool | None = None
    """Whether the node's own row is read beside the neighbours (`root_weight`). Absent: true."""
    project: bool | None = None
    """Whether GraphSAGE aggregates products of neighbours, cut off at 0 (`project`). Absent:
    false."""
    unit_rows: bool | None = None
    """Whether GraphSAGE divides each output by the row's length (`normalize=True`). Absent: false."""
    beta: bool | None = None
    """Whether Transformer has a gate between the sum and the node's own row (`beta`). Absent: false."""
    aggregations: Annotated[tuple[Aggregation, ...], Field(min_length=1, max_length=8)] | None = None
    """Aggregations of the neighbours, beside each other where there are several. Absent: Mean for GraphSAGE, Sum for
    GraphConv; PNA must have them."""
    scalers: Annotated[tuple[DegreeScaler, ...], Field(min_length=1, max_length=5)] | None = None
    """Scalings of PNA's aggregates by the number of neighbours. Absent: Identity."""
    towers: Annotated[int, Field(ge=1, le=64)] | None = None
    """Number of PNA's towers. Absent: 1."""
    divide_input: bool | None = None
    """Whether each of PNA's towers reads a part of the input of its own (`divide_input`). Absent: false."""
    pre_layers: Annotated[int, Field(ge=1, le=8)] | None = None
    """Number of products before PNA's aggregation. Absent: 1."""
    post_layers: Annotated[int, Field(ge=1, le=8)] | None = None
    """Number of products behind PNA's aggregation. Absent: 1."""
    hops: Annotated[int, Field(ge=1, le=MAX_LAYERS)] | None = None
    """Number of hops that TAG, SGC and APPNP (`K`) and Chebyshev (`K` - 1) read. Absent: 1."""
    alpha: Annotated[float, Field(ge=0, le=1)] | None = None
    """Share of the input that APPNP and GCNII keep at each hop. Absent: 0."""
    theta: Annotated[float, Field(gt=0, le=10)] | None = None
    """Factor of GCNII's product, which is smaller in later layers (`theta`). Absent: the product is whole."""
    mlp: Products | None = None
    """Products of GIN, GINE and GEN over the sum, first to last. Absent: none; these must have some."""
    edge_columns: (
        Annotated[tuple[Annotated[str, Field(min_length=1, max_length=253)], ...], Field(max_length=256)] | None
    ) = None
    """Names of the columns of edges that the convolution reads, in the order of the weights. Absent: none."""
    edge_weight: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    """Name of the column that weighs edges. Absent: every edge counts as much."""

    _options = RuleTable(tuple(_rule_of_option(name_in_text(one), read_by) for one, read_by in READ_BY.items()))

    _products_of_gin = rule(
        "!has(self.conv) || !(self.conv in ['GIN', 'GINE', 'GEN']) || (has(self.mlp) && size(self.mlp) > 0)",
        "mlp must be given with conv GIN, GINE and GEN: the products over the sum, each with its width and activation",
    )

    _aggregations_of_pna = rule(
        "!has(self.conv) || self.conv != 'PNA' || has(self.aggregations)",
        "aggregations must be given with conv PNA, as in [Mean, Min, Max, Std]",
    )

    _heads_divide_width = rule(
        "!has(self.heads) || !has(self.width) || (has(self.averageHeads) && self.averageHeads) || "
        "self.width % self.heads == 0",
        "width {self.width} must be a multiple of heads {self.heads}: each head has width / heads columns[; use width "
        "{(self.width + self.heads - 1) / self.heads * self.heads}, or other heads]",
    )

    def convolution(self, relation: int, width: int, read: int, *, is_of_one_type: bool) -> ConvolutionManifest:
        """`relation`: its place. `width`: of a convolution that states none. `read`: columns that it reads."""
        if self.conv is None:
            raise ValueError("a layer without conv has those of its relations")
        stated: dict[str, Any] = {
            name: value for name in READ_BY if (value := getattr(self, NAMES.get(name, name))) is not None
        }
        if self.mlp is not None:
            stated["mlp"] = tuple(one.product(self.width or width) for one in self.mlp)
        keeps_width = self.conv in (Convolution.APPNP, Convolution.GCNII, Convolution.AGNN)
        own = read if keeps_width else width
        if self.mlp:
            own = stated["mlp"][-1].width
        without_loops = not is_of_one_type and self.conv in READ_BY["self_loops"]
        defaults = {**DEFAULTS.get(self.conv, {}), **({"self_loops": False} if without_loops else {})}
        return ConvolutionManifest(self.conv, relation, **{**defaults, "width": self.width or own, **stated})


class EdgeFilterSpec(ApiModel):
    """Edges whose column has one number, as where a column tells kinds of edges apart."""

    column: Annotated[str, Field(min_length=1, max_length=253)]
    """Name of the column of edges."""
    equals: float
    """Number that the column has for the edges that are read."""


class RelationConvolutionSpec(ConvolutionSpec):
    relation: RelationNames | None = None
    """Relation that the convolution reads. Absent: the only one."""
    where: EdgeFilterSpec | None = None
    """Edges that the convolution reads. Absent: all of the relation."""

    _has_a_kind = rule("has(self.conv)", "conv must be given: the kind of convolution over the relation")


class LayerSpec(ConvolutionSpec):
    relations: Annotated[tuple[RelationConvolutionSpec, ...], Field(max_length=_MOST_RELATIONS)] = ()
    """Convolutions of relations, one for each that the layer reads. Empty: `conv` over every relation."""
    combine: Combination = Combination.SUM
    """Combination of what the relations of a type give. Attention: one softmax over the neighbours of all of them
    together, in place of one for each relation."""
    own: bool = False
    """Whether the node's own row, times a matrix of the node's type, is added to the sum of relations (RGCN's root)."""
    norm: Norm = Norm.NONE
    """Normalisation of the layer's output."""
    norm_behind: bool = False
    """Whether the norm stands behind the activation."""
    norm_epsilon: Annotated[float, Field(gt=0, le=1)] = 1e-5
    """Epsilon of the norm, which is added to the variance."""
    activation: Activation = Activation.NONE
    """Activation of the layer's output."""
    slope: Annotated[float, Field(ge=-10, le=10)] | None = None
    """Slope of LeakyRelu below 0, or limit of Elu (alpha). Absent: torch's default, 0.01 and 1."""
    pre_activation: bool = False
    """Whether norm and activation stand before the convolution."""
    residual: Residual = Residual.NONE
    """Part of the layer's input that is added to the output."""
    residual_place: ResidualPlace = ResidualPlace.BEHIND_ACTIVATION
    """Place where that is added."""
    residual_of_input: bool = False
    """Whether what is added is of the network's input, behind `before`, in place of the layer's."""
    output_product: bool = False
    """Whether rows are multiplied by a matrix of the node's type behind norm and activation (HGT's `out_lin`)."""

    _has_convolutions = rule(
        "has(self.conv) != (has(self.relations) && size(self.relations) > 0)",
        "either conv or relations must be given, and not both: conv is over every relation, and relations have a conv "
        "each",
    )

    _slope_is_of_some = rule(
        "!has(self.slope) || self.activation in ['LeakyRelu', 'Elu']",
        "slope may be given with activation LeakyRelu and Elu only[: leave it out]",
    )

    def layer(self, schema: GraphSchema, width: int, read: int) -> LayerManifest:
        """`width`: of convolutions that state none; `read`: columns that they read. InputError: the graph has no such
        relation."""
        is_of_one_type = len(schema.types) == 1
        given: list[tuple[ConvolutionSpec, int]] = [(self, place) for place in range(len(schema.relations))]
        if self.relations:
            given = [(one, _place_of(one.relation, schema)) for one in self.relations]
        convs = [one.convolution(place, width, read, is_of_one_type=is_of_one_type) for one, place in given]
        for place, one in enumerate(self.relations):
            if one.where is not None:
                chosen = EdgeFilter(one.where.column, one.where.equals)
                convs[place] = msgspec.structs.replace(convs[place], where=chosen)
        return LayerManifest(
            tuple(convs),
            self.combine, self.own, self.norm, self.norm_behind, self.norm_epsilon, self.activation, self.slope,
            self.pre_activation, self.residual, self.residual_place, self.residual_of_input,
            output_product=self.output_product,
        )  # fmt: skip


class TypeProductsSpec(ApiModel):
    """Products of the features of a type of nodes before the first layer."""

    type: Annotated[str, Field(max_length=256)] = ""
    """Type of the nodes. Empty: every type, each with matrices of its own."""
    products: Annotated[Products, Field(min_length=1)]
    """Products of the features, first to last."""


def _place_of(relation: RelationNames | None, schema: GraphSchema) -> int:
    if relation is None and len(schema.relations) == 1:
        return 0
    wanted = ("", "", "") if relation is None else (relation.source, relation.name, relation.target)
    for place, one in enumerate(schema.relations):
        if (one.source, one.name, one.target) == wanted:
            return place
    raise InputError(
        f"{_FIELD}.layers", f"names the relation {' '.join(wanted)!r}, and the graph has "
        f"{', '.join(repr(one.key) for one in schema.relations)}", "name one of these",
    )  # fmt: skip


def layers_manifest(
    schema: GraphSchema, columns: int, outputs: int, before: Sequence[TypeProductsSpec], layers: Sequence[LayerSpec],
    jumping_knowledge: JumpingKnowledge, head: Sequence[ProductSpec], *, head_reads_input: bool,
    head_by_type: bool = False,
) -> LayersManifest:  # fmt: skip
    """Layers as a revision keeps them, of the fields of `spec.model`. `columns`: of the features, of the first type.
    `outputs`: columns of the scores. InputError: the graph has no such type or relation."""
    made_before = []
    for each in before:
        places = range(len(schema.types)) if not each.type else [_place_of_type(each.type, schema)]
        products = tuple(one.product(columns) for one in each.products)
        made_before += [TypeProductsManifest(place, products) for place in places]
    read = made_before[0].products[-1].width if made_before else columns
    made = []
    for one in layers:
        made.append(one.layer(schema, outputs, read))
        read = made[-1].convs[0].width
    return LayersManifest(
        tuple(made), tuple(made_before), jumping_knowledge, tuple(one.product(outputs) for one in head),
        head_reads_input, head_by_type,
    )  # fmt: skip


def _place_of_type(name: str, schema: GraphSchema) -> int:
    if name not in (names := [kind.name for kind in schema.types]):
        raise InputError(f"{_FIELD}.before", f"names the type {name!r}, and the graph has {names}", "name one of these")
    return schema.place_of(name)
