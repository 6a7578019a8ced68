"""Random graphs and random networks as layers over them, drawn from all operations, with torch_geometric's answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import torch
from msgspec import UNSET

from gnnserve_api.files.edges import Direction, Duplicates, EdgeRules, SelfLoops
from gnnserve_api.files.graph_schema import GraphSchema
from gnnserve_api.files.layers import (
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
)
from gnnserve_api.spec.heterogeneous import HeterogeneousSource
from gnnserve_worker.generation.layer_modules import GraphTensors, LayersModule, canonical, load_canonical
from gnnserve_worker.generation.programs.running import ProgramGraph
from gnnserve_worker.graph.payload import EdgePayload
from gnnserve_worker.graph.relation_lists import joined_lists
from gnnserve_worker.graph.sources.assembly import GivenRelation, GivenType, assemble
from gnnserve_worker.graph.sources.table_nodes import LabelledNodes
from gnnserve_worker.graph.store import GraphData, NodeType, Splits
from gnnserve_worker.layers.shapes import columns_of

COLUMNS, KIND, KINDS = ("amount", "rate", "weight"), "kind", 3
"""Columns of the edges of all relations that convolutions compute with, the last one above 0, and one that tells so
many kinds of edges apart."""
DIRECTED = EdgeRules(Direction.DIRECTED)
UNDIRECTED = EdgeRules(Direction.UNDIRECTED)
RULES = (
    DIRECTED,
    EdgeRules(Direction.DIRECTED, Duplicates.KEEP),
    UNDIRECTED,
    EdgeRules(Direction.UNDIRECTED, Duplicates.KEEP),
    EdgeRules(Direction.UNDIRECTED, self_loops=SelfLoops.REMOVE),
)
WIDTHS = (4, 6, 8, 12)


# --- graphs


@dataclass(frozen=True)
class RandomGraph:
    data: GraphData

    @property
    def columns(self) -> list[int]:
        return [one.features.shape[1] for one in self.data.types]

    @property
    def as_programs_read(self) -> ProgramGraph:
        features = [one.features for one in self.data.types]
        return ProgramGraph(joined_lists(self.data), features, [one.payload for one in self.data.relations])

    def tensors(self, dtype: torch.dtype) -> GraphTensors:
        """The whole graph."""
        edges, columns = [], []
        for one in self.data.relations:
            targets = np.repeat(np.arange(len(one.lists.indptr) - 1), np.diff(one.lists.indptr))
            edges.append(torch.from_numpy(np.stack([one.lists.indices.astype(np.int64), targets])))
            features = torch.from_numpy(one.payload.features[one.lists.payload_rows]).to(dtype)
            columns.append(dict(zip(one.payload.columns, features.T, strict=True)))
        features = [torch.from_numpy(one.features).to(dtype) for one in self.data.types]
        return GraphTensors(features, edges, columns)


def one_type(draw: np.random.Generator) -> RandomGraph:
    """Directed or not, edges once or several times, with loops or without."""
    rules = RULES[draw.integers(len(RULES))]
    return _assembled(draw, {"": (60, 7)}, [("", "", "", rules)], reverse="Disabled")


def several_types(draw: np.random.Generator) -> RandomGraph:
    """Relations within a type and between two, whose reverses share what edges have."""
    relations = [
        ("user", "knows", "user", RULES[draw.integers(2, len(RULES))]),
        ("user", "follows", "user", RULES[draw.integers(2)]),
        ("user", "buys", "item", RULES[draw.integers(2)]),
        ("tag", "marks", "item", RULES[draw.integers(2)]),
    ]
    return _assembled(draw, {"user": (40, 5), "item": (30, 8), "tag": (12, 3)}, relations, reverse="Add")


def _assembled(
    draw: np.random.Generator, types: Mapping[str, tuple[int, int]],
    relations: Sequence[tuple[str, str, str, EdgeRules]], *, reverse: str,
) -> RandomGraph:  # fmt: skip
    first, *_ = types
    count = types[first][0]
    splits = Splits(np.array([0]), np.array([1]), np.array([2]))
    labelled = LabelledNodes(np.arange(count) % 2, (0, 1), splits)
    given = []
    for name, (nodes, columns) in types.items():
        features = draw.normal(size=(nodes, columns)).astype(np.float32)
        given.append(GivenType(NodeType(name, nodes, features), labelled if name == first else None, "a test"))
    source = HeterogeneousSource.model_validate({"npz": {"uri": "/a/folder"}, "reverse": reverse})
    drawn = [_relation(draw, *one, types[one[0]][0], types[one[2]][0]) for one in relations]
    return RandomGraph(assemble(source, "0123abcd", given, drawn))


def _relation(
    draw: np.random.Generator, source: str, name: str, target: str, rules: EdgeRules, sources: int, targets: int
) -> GivenRelation:
    """The first node is a hub, the last tenth are isolated; some edges are listed twice."""
    read, readers = sources - sources // 10, targets - targets // 10
    some, half = 3 * readers // 2, readers // 2
    read_from = np.concatenate([draw.integers(0, read, some), np.zeros(half, np.int64), draw.integers(0, read, half)])
    read_by = np.concatenate([draw.integers(0, readers, some + half), np.zeros(half, np.int64)])
    if source == target:
        loops = draw.choice(readers, readers // 6, replace=False)
        is_loop = read_from == read_by
        # A loop once: of several, torch_geometric keeps the weight of one.
        read_from, read_by = (np.concatenate([one[~is_loop], loops]) for one in (read_from, read_by))
    twice = np.flatnonzero((read_from != read_by) & (draw.random(len(read_from)) < 0.1))
    read_from, read_by = (np.concatenate([one, one[twice]]) for one in (read_from, read_by))
    features = draw.normal(size=(len(read_from), 4)).astype(np.float32)
    features[:, 2] = draw.uniform(0.2, 2.0, len(read_from))
    features[:, 3] = draw.integers(0, KINDS, len(read_from))
    payload = EdgePayload((*COLUMNS, KIND), features, "", np.zeros(0, np.int64))
    return GivenRelation(
        source, name, target, read_from, read_by, "a test", ("sources", "targets"), rules, payload=payload
    )


# --- convolutions


@dataclass(frozen=True)
class Place:
    """Where a convolution is drawn for."""

    draw: np.random.Generator
    relation: int
    width: int
    source: int
    target: int
    is_within: bool
    inputs: int
    is_undirected: bool
    columns: tuple[str, ...]
    """Columns of the relation's edges that convolutions compute with."""
    heads: int | None = None
    """Heads of a layer whose softmax is over several relations; None: each has its own softmax."""

    def flip(self) -> bool:
        return bool(self.draw.integers(2))

    def edge_columns(self, least: int = 0) -> tuple[str, ...]:
        return tuple(self.draw.permutation(self.columns)[: self.draw.integers(least, len(self.columns) + 1)].tolist())

    def made(self, kind: Convolution, **fields: object) -> ConvolutionManifest:
        return ConvolutionManifest(kind, self.relation, fields.pop("width", self.width), **fields)


def _weight(place: Place) -> str:
    return COLUMNS[2] if COLUMNS[2] in place.columns and place.flip() else ""


def _heads(place: Place) -> dict[str, object]:
    averages = place.flip()
    heads = int(place.draw.choice([1, 3] if averages else [1, 2]))
    return {
        "heads": heads if place.heads is None else place.heads, "averages_heads": averages,
        "bias": place.flip(), "edge_columns": place.edge_columns(),
    }  # fmt: skip


def _attention(place: Place) -> dict[str, object]:
    return {
        "self_loops": place.is_within and place.heads is None and place.flip(),
        "negative_slope": 0.1,
        **_heads(place),
    }


def _sage(place: Place) -> ConvolutionManifest:
    count = int(place.draw.choice([1, 1, 3]))
    found = tuple(Aggregation(one) for one in place.draw.choice(list(Aggregation), count, replace=False))
    return place.made(
        Convolution.GRAPH_SAGE, aggregations=found, root=place.flip(), projects=place.flip(), bias=place.flip(),
        has_unit_rows=place.draw.random() < 0.2,
    )  # fmt: skip


def _graph_conv(place: Place) -> ConvolutionManifest:
    found = place.draw.choice([Aggregation.SUM, Aggregation.MEAN, Aggregation.MAX, Aggregation.MIN])
    return place.made(
        Convolution.GRAPH_CONV, aggregations=(Aggregation(found),), root=place.flip(), bias=place.flip(),
        edge_weight=_weight(place),
    )  # fmt: skip


def _gcn(place: Place) -> ConvolutionManifest | None:
    weight = _weight(place)
    return place.is_within and place.made(
        Convolution.GCN, self_loops=place.flip(), improved=bool(weight) and place.flip(),
        is_normalised=place.draw.random() < 0.8, bias=place.flip(), edge_weight=weight,
    )  # fmt: skip


def _gat(place: Place) -> ConvolutionManifest:
    return place.made(Convolution.GAT, **_attention(place))


def _gatv2(place: Place) -> ConvolutionManifest:
    shares = place.is_within and place.flip()
    return place.made(Convolution.GATV2, shares_weights=shares, **_attention(place))


def _transformer(place: Place) -> ConvolutionManifest:
    root = place.flip()
    return place.made(
        Convolution.TRANSFORMER, root=root, has_beta=root and place.heads is None and place.flip(), **_heads(place)
    )


def _gin(place: Place) -> ConvolutionManifest | None:
    return place.source == place.target and place.made(Convolution.GIN, mlp=_mlp(place))


def _gine(place: Place) -> ConvolutionManifest | None:
    if not place.columns:
        return None
    columns = place.edge_columns(1)
    return place.source == place.target and place.made(Convolution.GINE, mlp=_mlp(place), edge_columns=columns)


def _mlp(place: Place) -> tuple[DenseManifest, ...]:
    return products(place.draw, [*([5] if place.flip() else []), place.width])


def _pna(place: Place) -> ConvolutionManifest | None:
    aggregations = [one for one in Aggregation if one is not Aggregation.SOFTMAX]
    divides = place.source % 2 == 0 and place.flip()
    return place.is_within and place.made(
        Convolution.PNA,
        aggregations=tuple(Aggregation(one) for one in place.draw.choice(aggregations, 2, replace=False)),
        scalers=tuple(DegreeScaler(one) for one in place.draw.choice(list(DegreeScaler), 2, replace=False)),
        towers=2 if divides or place.flip() else 1, divides_input=divides,
        pre_layers=int(place.draw.integers(1, 3)), post_layers=int(place.draw.integers(1, 3)),
        edge_columns=place.edge_columns(),
    )  # fmt: skip


def _tag(place: Place) -> ConvolutionManifest | None:
    return place.is_within and place.made(
        Convolution.TAG, hops=int(place.draw.integers(1, 3)), self_loops=place.flip(), is_normalised=place.flip(),
        bias=place.flip(), edge_weight=_weight(place),
    )  # fmt: skip


def _chebyshev(place: Place) -> ConvolutionManifest | None:
    return place.is_undirected and place.made(
        Convolution.CHEBYSHEV, hops=int(place.draw.integers(1, 3)), bias=place.flip()
    )


def _sgc(place: Place) -> ConvolutionManifest | None:
    return place.is_within and place.made(
        Convolution.SGC, hops=int(place.draw.integers(1, 3)), self_loops=place.flip(), bias=place.flip(),
        edge_weight=_weight(place),
    )  # fmt: skip


def _appnp(place: Place) -> ConvolutionManifest | None:
    return (
        place.is_within
        and place.source == place.width
        and place.made(
            Convolution.APPNP, hops=int(place.draw.integers(1, 3)), alpha=0.2, self_loops=place.flip(),
            is_normalised=place.draw.random() < 0.8, edge_weight=_weight(place),
        )
    )  # fmt: skip


def _gcnii(place: Place) -> ConvolutionManifest | None:
    return (
        place.is_within
        and place.source == place.inputs == place.width
        and place.made(
            Convolution.GCNII, alpha=0.3, theta=0.5 if place.flip() else None, shares_weights=place.flip(),
            self_loops=place.flip(), is_normalised=place.draw.random() < 0.8, edge_weight=_weight(place),
        )
    )  # fmt: skip


def _agnn(place: Place) -> ConvolutionManifest | None:
    is_fit = place.is_within and place.source == place.width
    return is_fit and place.made(Convolution.AGNN, self_loops=place.flip())


def _gen(place: Place) -> ConvolutionManifest:
    return place.made(Convolution.GEN, mlp=_mlp(place), edge_columns=place.edge_columns())


def _film(place: Place) -> ConvolutionManifest:
    return place.made(Convolution.FILM, negative_slope=float(place.draw.choice([0.0, 0.3, 1.0])))


def _rgat(place: Place) -> ConvolutionManifest | None:
    return place.source == place.target and place.made(Convolution.RGAT, negative_slope=0.1, **_heads(place))


CONVOLUTIONS: Mapping[Convolution, Callable[[Place], ConvolutionManifest | None]] = {
    Convolution.GRAPH_SAGE: _sage,
    Convolution.GCN: _gcn,
    Convolution.GRAPH_CONV: _graph_conv,
    Convolution.GAT: _gat,
    Convolution.GATV2: _gatv2,
    Convolution.TRANSFORMER: _transformer,
    Convolution.GIN: _gin,
    Convolution.GINE: _gine,
    Convolution.PNA: _pna,
    Convolution.TAG: _tag,
    Convolution.CHEBYSHEV: _chebyshev,
    Convolution.SGC: _sgc,
    Convolution.APPNP: _appnp,
    Convolution.GCNII: _gcnii,
    Convolution.AGNN: _agnn,
    Convolution.GEN: _gen,
    Convolution.FILM: _film,
    Convolution.RGAT: _rgat,
}
"""How each kind is drawn; nothing where it does not fit the place."""
ATTENDING = (Convolution.GAT, Convolution.GATV2, Convolution.TRANSFORMER, Convolution.RGAT)
"""Kinds whose softmax may be over several relations together."""


# --- networks


def products(draw: np.random.Generator, widths: Sequence[int]) -> tuple[DenseManifest, ...]:
    return tuple(
        DenseManifest(
            width, bias=bool(draw.integers(2)), norm=_norm(draw), is_norm_behind=bool(draw.integers(2)),
            activation=_activation(draw),
        )
        for width in widths
    )  # fmt: skip


def _norm(draw: np.random.Generator) -> Norm:
    return Norm(draw.choice([*Norm, Norm.NONE, Norm.BATCH]))


def _activation(draw: np.random.Generator) -> Activation:
    return Activation(draw.choice(list(Activation)))


def draw_layers(
    draw: np.random.Generator, schema: GraphSchema, always: Convolution, most: int = 4
) -> LayersManifest | None:
    """A network of one to `most` layers, at least one of which has such a convolution. None: the graph may not have
    it, as Chebyshev's, which wants edges that go both ways."""
    for _ in range(200):
        found = _draw_layers(draw, schema, always, most)
        if found is not None and any(one.conv is always for layer in found.layers for one in layer.convs):
            return found
    return None


def _draw_layers(
    draw: np.random.Generator, schema: GraphSchema, always: Convolution, most: int
) -> LayersManifest | None:
    """None: it got stuck."""
    columns = columns_of(schema)
    common = int(draw.choice(WIDTHS))
    """A width that comes again and again, so that rows can be added."""
    before = tuple(
        TypeProductsManifest(kind, products(draw, [common])) for kind in range(len(columns)) if draw.random() < 0.7
    )
    inputs = [common if any(one.type == kind for one in before) else own for kind, own in enumerate(columns)]
    read: list[int | None] = [*inputs]
    layers, widths = [], []
    for _ in range(draw.integers(1, most + 1)):
        width = common if draw.random() < 0.7 else int(draw.choice(WIDTHS))
        layer, read = _draw_layer(draw, schema, inputs, read, width, always)
        if layer is None or read[0] is None:
            return None
        layers.append(layer)
        widths.append(read[0])
    if sum(layer.hops for layer in layers) > 6:
        return None
    jumping = list(JumpingKnowledge) if len(set(widths)) == 1 else [JumpingKnowledge.LAST, JumpingKnowledge.CAT]
    head = products(draw, [6, 3][draw.integers(2) :]) if draw.integers(2) else ()
    return LayersManifest(
        tuple(layers), before, JumpingKnowledge(draw.choice(jumping)), head, bool(head) and bool(draw.integers(2))
    )


def _draw_layer(
    draw: np.random.Generator, schema: GraphSchema, inputs: Sequence[int], read: Sequence[int | None], width: int,
    always: Convolution,
) -> tuple[LayerManifest | None, list[int | None]]:  # fmt: skip
    convs, targets = [], []
    shared = 2 if draw.random() < 0.2 else None
    for number, one in enumerate(schema.relations):
        source, target = schema.place_of(one.source), schema.place_of(one.target)
        if read[source] is None or read[target] is None or (len(schema.relations) > 1 and draw.random() < 0.25):
            continue
        columns = () if one.payload is UNSET else one.payload.columns
        place = Place(
            draw, number, width, read[source], read[target], source == target, inputs[target],
            one.edge_rules.direction is Direction.UNDIRECTED, tuple(each for each in columns if each != KIND), shared,
        )  # fmt: skip
        able = list(CONVOLUTIONS) if shared is None else list(ATTENDING)
        kinds = [always] if draw.random() < 0.4 and always in able else draw.permutation(able)
        conv = next((made for kind in kinds if (made := CONVOLUTIONS[Convolution(kind)](place))), None)
        if conv is not None:
            is_told_apart = draw.random() < 0.2 and KIND in columns
            filters = (EdgeFilter(KIND, 0.0), EdgeFilter(KIND, 2.0)) if is_told_apart else (None,)
            convs += [msgspec.structs.replace(conv, where=each) for each in filters]
            targets += [target] * len(filters)
    if not convs:
        return None, []
    apart = [one for one in Combination if one is not Combination.ATTENTION]
    combination = Combination(draw.choice(apart)) if shared is None else Combination.ATTENTION
    written: list[int | None] = [None] * len(read)
    own = bool(draw.integers(2))
    for kind in range(len(read)):
        count = targets.count(kind) if combination is Combination.CAT else 1
        if kind in targets:
            written[kind] = width * count
        elif own and read[kind] is not None:  # as wide as what the first convolution's type has
            written[kind] = width * (targets.count(targets[0]) if combination is Combination.CAT else 1)
    reads_input = bool(draw.integers(2))
    added = inputs if reads_input else read
    fits = all(one is None or one == other for one, other in zip(written, added, strict=True))
    residual = Residual(draw.choice(list(Residual) if fits else [Residual.NONE, Residual.PROJECTED, Residual.GATED]))
    is_pre_activated, has_product = draw.random() < 0.25, draw.random() < 0.25
    places = [ResidualPlace.BEHIND_ACTIVATION] if is_pre_activated or has_product else list(ResidualPlace)
    layer = LayerManifest(
        tuple(convs), combination, own=own, norm=_norm(draw), is_norm_behind=bool(draw.integers(2)),
        activation=_activation(draw), is_pre_activated=is_pre_activated, residual=residual,
        residual_place=ResidualPlace(draw.choice(places)),
        reads_input=reads_input and residual is not Residual.NONE,
        output_product=has_product,
    )  # fmt: skip
    return layer, written


# --- weights and answers


def draw_tensors(draw: np.random.Generator, module: LayersModule) -> dict[str, np.ndarray]:
    """Weights of a module: rows stay about as long as they are, and nothing is as it was initialised."""
    return {key: _drawn(draw, key, one.shape) for key, one in canonical(module).items()}


def _drawn(draw: np.random.Generator, key: str, shape: tuple[int, ...]) -> np.ndarray:
    if key.endswith(("running_var", "avg_deg_lin", "avg_deg_log", "mean_scale", "norm.weight", "aggr_module.t")):
        return draw.uniform(0.5, 1.5, shape).astype(np.float32)
    inputs = shape[-1] if len(shape) > 1 else 4
    return (draw.normal(size=shape) / inputs**0.5).astype(np.float32)


@dataclass(frozen=True)
class Case:
    """A network, its weights, and torch_geometric's scores of all nodes of the first type."""

    graph: RandomGraph
    layers: LayersManifest
    tensors: Mapping[str, np.ndarray]
    scores: np.ndarray
    """Computed in float64."""
    noise: float
    """Largest difference of torch_geometric's own scores in float32 from these."""

    @property
    def tolerance(self) -> float:
        """1e-5 of the largest score, or what torch_geometric itself is off in float32."""
        return max(1e-5 * float(np.abs(self.scores).max()), 4 * self.noise)


def draw_case(
    seed: int, make: Callable[[np.random.Generator], RandomGraph], always: Convolution,
    fits: Callable[[LayersManifest, RandomGraph], bool] = lambda layers, graph: True,
) -> Case:  # fmt: skip
    """`fits`: whether a network will do; others are drawn until one does."""
    draw = np.random.default_rng(seed)
    while True:
        graph = make(draw)
        if (layers := draw_layers(draw, graph.data.schema, always)) is not None and fits(layers, graph):
            return case_of(draw, graph, layers)


def case_of(draw: np.random.Generator, graph: RandomGraph, layers: LayersManifest) -> Case:
    module = LayersModule(layers, graph.data.schema, graph.columns).eval()
    tensors = draw_tensors(draw, module)
    load_canonical(module, tensors)
    single = scores_of(module, graph, torch.float32)
    double = scores_of(module.double(), graph, torch.float64)
    return Case(graph, layers, tensors, double, float(np.abs(single - double).max()))


@torch.no_grad()
def scores_of(module: LayersModule, graph: RandomGraph, dtype: torch.dtype) -> np.ndarray:
    return module(graph.tensors(dtype)).numpy()
