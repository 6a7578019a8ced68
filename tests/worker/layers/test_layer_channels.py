"""Hidden channels of listed layers: where tensors have them, and what is left of a network without some."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from tests.support.models.random_layers import Case, RandomGraph, draw_case, one_type, several_types

from gnnserve_api.files.graph_schema import one_type as one_type_schema
from gnnserve_api.files.layers import (
    Activation,
    Aggregation,
    Combination,
    Convolution,
    ConvolutionManifest,
    DegreeScaler,
    DenseManifest,
    JumpingKnowledge,
    LayerManifest,
    LayersManifest,
    Norm,
    Residual,
    TypeProductsManifest,
)
from gnnserve_worker.generation.listed_layers import GivenLayers
from gnnserve_worker.generation.listed_rows import ListedRows
from gnnserve_worker.generation.programs.layer_channels import narrow_listed
from gnnserve_worker.generation.programs.running import ProgramScores, compute_all
from gnnserve_worker.layers.channels import NetworkChannels, Place
from gnnserve_worker.layers.contract import program_of
from gnnserve_worker.layers.runner import LayersRunner
from gnnserve_worker.layers.shapes import tensor_shapes
from gnnserve_worker.models.registry import Tensors
from gnnserve_worker.tasks.generated import DecoderTensors

GRAPHS = {"one type": one_type, "several types": several_types}


def channels_of(layers: LayersManifest, graph: RandomGraph) -> NetworkChannels:
    return NetworkChannels(layers, graph.data.schema, graph.columns)


def scores_of(case: Case, layers: LayersManifest, tensors: Tensors) -> np.ndarray:
    """Scores of all nodes of the first type, over whole lists."""
    schema = case.graph.data.schema
    program = program_of(layers, schema, case.graph.columns)
    runner = LayersRunner(tensors, program, schema)
    return ProgramScores(program, case.graph.as_programs_read, runner).scores(np.arange(schema.types[0].nodes))


def is_narrowed(layers: LayersManifest, graph: RandomGraph) -> bool:
    return not channels_of(layers, graph).why_not(2, is_learnt=True)


def has_no_statistics_of_rows(layers: LayersManifest) -> bool:
    """Whether no norm counts channels, and no channel of 0 becomes another number."""
    dense = [one for each in layers.before for one in each.products]
    dense += [one for each in layers.layers for conv in each.convs for one in conv.mlp]
    found = [(one.norm, one.activation) for one in (*dense, *layers.layers)]
    return not any(norm is Norm.LAYER or activation is Activation.SIGMOID for norm, activation in found)


def may_be_zero(layers: LayersManifest, graph: RandomGraph) -> bool:
    return is_narrowed(layers, graph) and has_no_statistics_of_rows(layers)


def drawn_halves(channels: NetworkChannels, seed: int) -> dict[Place, np.ndarray]:
    """Half of the channels of each group, as many of each of its parts."""
    draw, kept = np.random.default_rng(seed), {}
    for group in channels.groups:
        first, found = 0, []
        for part, left in zip(group.parts, group.left(2), strict=True):
            found.append(first + np.sort(draw.permutation(part)[:left]))
            first += part
        kept |= dict.fromkeys(group.places, np.concatenate(found))
    return kept


def narrowed(case: Case, tensors: Tensors) -> Tensors:
    channels, data = channels_of(case.layers, case.graph), case.graph.data
    program_graph = case.graph.as_programs_read
    given = GivenLayers(tensors, data.schema, DecoderTensors("", {}, "", "", ""))
    compute = partial(compute_all, program_graph.payloads)
    rows = ListedRows(given, case.layers, (0,), program_graph.lists, program_graph.features, compute)
    nodes = [np.arange(kind.nodes) for kind in data.types]
    return narrow_listed(channels, tensors, rows, data, nodes, 2)


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("make", GRAPHS.values(), ids=GRAPHS)
@pytest.mark.parametrize("kind", Convolution)
def test_a_network_without_channels_that_are_0_gives_what_it_gave(
    kind: Convolution, make: Callable[[np.random.Generator], RandomGraph], seed: int
) -> None:
    case = draw_case(seed, make, kind, may_be_zero)
    channels = channels_of(case.layers, case.graph)
    kept = drawn_halves(channels, seed)
    tensors = channels.without(case.tensors, kept)
    left = channels.cut(tensors, kept)
    found = scores_of(case, channels.narrowed(2), left)
    whole = scores_of(case, case.layers, tensors)
    np.testing.assert_allclose(found, whole, rtol=0, atol=case.tolerance, err_msg=f"{case.layers}")


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("make", GRAPHS.values(), ids=GRAPHS)
@pytest.mark.parametrize("kind", Convolution)
def test_any_network_keeps_a_half_of_its_channels(
    kind: Convolution, make: Callable[[np.random.Generator], RandomGraph], seed: int
) -> None:
    case = draw_case(seed, make, kind, is_narrowed)
    channels = channels_of(case.layers, case.graph)
    found, layers = narrowed(case, case.tensors), channels.narrowed(2)
    shapes = tensor_shapes(layers, case.graph.data.schema, case.graph.columns)
    assert {key: tensor.shape for key, tensor in found.items()} == shapes
    assert {tensor.dtype for tensor in found.values()} == {np.dtype(np.float32)}
    assert np.isfinite(scores_of(case, layers, found)).all()


def dense(width: int, activation: Activation = Activation.NONE) -> DenseManifest:
    return DenseManifest(width, activation=activation)


def sage(width: int, **fields: object) -> LayerManifest:
    conv = ConvolutionManifest(Convolution.GRAPH_SAGE, width=width)
    return LayerManifest((conv,), activation=Activation.RELU, **fields)  # type: ignore[arg-type]


def gat(width: int, heads: int, **fields: object) -> LayerManifest:
    return LayerManifest((ConvolutionManifest(Convolution.GAT, width=width, heads=heads),), **fields)  # type: ignore[arg-type]


def hgt(width: int) -> LayerManifest:
    conv = ConvolutionManifest(Convolution.TRANSFORMER, width=width, heads=2, root=False)
    return LayerManifest((conv,), Combination.ATTENTION, output_product=True, residual=Residual.GATED)


def gin(*widths: int) -> LayerManifest:
    mlp = tuple(dense(width, Activation.RELU) for width in widths)
    return LayerManifest((ConvolutionManifest(Convolution.GIN, width=widths[-1], mlp=mlp),))


BEFORE = (TypeProductsManifest(0, (dense(20), dense(8))),)
NETWORKS = {
    "each layer by itself": (
        LayersManifest((sage(8), sage(6), sage(3))), [[(2, 0)], [(1, 0)]], [3, 4],
    ),
    "residuals that are added, from the products on": (
        LayersManifest((sage(8, residual=Residual.ADDED), sage(8, residual=Residual.ADDED)), BEFORE, head=(dense(3),)),
        [[(2, 0), (1, 0), (0, 0)]], [4],
    ),
    "a residual of features": (
        LayersManifest((sage(7, residual=Residual.ADDED), sage(8), sage(3))), [[(2, 0)]], [4],
    ),
    "a projected residual": (
        LayersManifest((sage(8), sage(6, residual=Residual.PROJECTED), sage(3))), [[(2, 0)], [(1, 0)]], [3, 4],
    ),
    "products of a GIN": (
        LayersManifest((gin(12, 8), gin(10, 3))), [[(2, 0, 0, 0)], [(1, 0)], [(1, 0, 0, 0)]], [5, 4, 6],
    ),
    "layers of which the head reads the largest": (
        LayersManifest((sage(8), sage(8)), (), JumpingKnowledge.MAX, (dense(3),)), [[(2, 0), (1, 0)]], [4],
    ),
    "layers that the head reads beside each other": (
        LayersManifest((sage(8), sage(6)), (), JumpingKnowledge.CAT, (dense(3),)), [[(2, 0)], [(1, 0)]], [3, 4],
    ),
    "a propagation behind products": (
        LayersManifest(
            (LayerManifest((ConvolutionManifest(Convolution.APPNP, width=8),)),), BEFORE, head=(dense(3),)
        ), [[(1, 0), (0, 0)]], [4],
    ),
    "products alone": (LayersManifest((), BEFORE, head=(dense(3),)), [[(0, 0)]], [4]),
    "heads": (LayersManifest((gat(10, 2), sage(3))), [[(1, 0)]], [4]),
    "a gate, and a product behind": (
        LayersManifest((hgt(8), hgt(8)), BEFORE, head=(dense(3),)),
        [[(2, 0), (1, 0), (0, 0)], [(2, 0, -1, -1, -1)], [(1, 0, -1, -1, -1)]], [4, 4, 4],
    ),
    "heads beside other heads": (
        LayersManifest((gat(12, 2), gat(12, 3, residual=Residual.ADDED), sage(3))), [[(2, 0), (1, 0)]], [6],
    ),
}  # fmt: skip
SCHEMA, COLUMNS = one_type_schema(4, 4, 7), (7,)


@pytest.mark.parametrize(("layers", "places", "widths"), NETWORKS.values(), ids=NETWORKS)
def test_channels_are_dropped_together_where_rows_are_added(
    layers: LayersManifest, places: list[list[tuple[int, ...]]], widths: list[int]
) -> None:
    channels = NetworkChannels(layers, SCHEMA, COLUMNS)
    assert not channels.why_not(2, is_learnt=True)
    assert [[*group.places] for group in channels.groups] == [[Place(*one) for one in group] for group in places]
    assert [sum(group.left(2)) for group in channels.groups] == widths
    shapes = tensor_shapes(channels.narrowed(2), SCHEMA, COLUMNS)
    assert shapes.keys() == tensor_shapes(layers, SCHEMA, COLUMNS).keys()


def pna(**fields: object) -> LayerManifest:
    return LayerManifest((ConvolutionManifest(Convolution.PNA, width=8, scalers=(DegreeScaler.IDENTITY,), **fields),))  # type: ignore[arg-type]


REFUSED = {
    "one layer": (LayersManifest((sage(3),)), "no layer before the last product has channels of its own"),
    "towers": (LayersManifest((pna(towers=2), sage(3))), "layers[0]: conv PNA: each of its towers"),
    "LSTM": (
        LayersManifest((sage(8), sage(8)), (), JumpingKnowledge.LSTM, (dense(3),)),
        "jumpingKnowledge Lstm has as many states",
    ),
    "a narrow layer": (LayersManifest((sage(1), sage(3))), "layers[0] has 1 channels, of which 2 leaves none"),
    "narrow heads": (
        LayersManifest((gat(8, 8), sage(3))), "layers[0] has 8 channels in parts of 1, of which 2 leaves none"
    ),
    "channels beside others": (
        LayersManifest(
            (LayerManifest((ConvolutionManifest(Convolution.APPNP, width=8),), Combination.CAT),), BEFORE,
            head=(dense(3),),
        ), "layers[0]: conv APPNP: its channels are those of its input",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("layers", "said"), REFUSED.values(), ids=REFUSED)
def test_layers_that_keep_all_channels_say_why(layers: LayersManifest, said: str) -> None:
    assert NetworkChannels(layers, SCHEMA, COLUMNS).why_not(2, is_learnt=True).startswith(said)


def gen(width: int) -> LayerManifest:
    return LayerManifest((ConvolutionManifest(Convolution.GEN, width=width, mlp=(dense(10), dense(width))),))


GIVEN = {
    "rows of edges": (LayersManifest((sage(8), pna(pre_layers=2), sage(3))), "layers[1]: conv PNA: rows between its"),
    "what it reads": (LayersManifest((sage(8), gen(8), sage(3))), "layers[1]: conv GEN: what it aggregates has"),
}


@pytest.mark.parametrize(("layers", "said"), GIVEN.values(), ids=GIVEN)
def test_inner_channels_that_nothing_is_fitted_to_are_dropped_where_training_goes_on(
    layers: LayersManifest, said: str
) -> None:
    channels = NetworkChannels(layers, SCHEMA, COLUMNS)
    assert not channels.why_not(2, is_learnt=True)
    assert channels.why_not(2, is_learnt=False).startswith(said)


def with_twins(channels: NetworkChannels, tensors: Tensors) -> Tensors:
    """Weights that write each channel of the first half of a part twice, and read the second one as much less."""
    made = {key: tensor.copy() for key, tensor in tensors.items()}
    for group in channels.groups:
        parts = np.split(np.arange(group.width), np.cumsum(group.parts)[:-1])
        first, second = (np.concatenate([np.array_split(part, 2)[at] for part in parts]) for at in range(2))
        for place in group.places:
            for key, axes in channels.axes.items():
                for one in (each for each in axes if each.place == place):
                    written = np.moveaxis(made[key], one.axis, 0)
                    of_twins = written[one.all_positions(first)]
                    written[one.all_positions(second)] = of_twins * np.float32(0.1 if one.is_read else 1.0)
    return made


INNER = {
    "PNA": (sage(8), pna(aggregations=(Aggregation.MEAN, Aggregation.MAX, Aggregation.STD)), sage(3)),
    "products behind PNA": (sage(8), pna(post_layers=2), sage(3)),
    "PNA with columns of edges": (sage(8), pna(edge_columns=("amount", "rate")), sage(3)),
    "GEN": (sage(6), gen(8), sage(3)),
    "a product before": (
        sage(8), LayerManifest((ConvolutionManifest(Convolution.GRAPH_SAGE, width=8, projects=True),)), sage(3),
    ),
    "a product behind": (sage(8), sage(8, output_product=True, residual=Residual.GATED), sage(3)),
}  # fmt: skip


@pytest.mark.parametrize("given", INNER.values(), ids=INNER)
def test_given_weights_are_fitted_inside_of_convolutions(given: tuple[LayerManifest, ...]) -> None:
    """Where every channel has a twin that is read less, half of them suffice."""
    case, layers = draw_case(3, one_type, Convolution.GRAPH_SAGE), LayersManifest(given)
    channels = channels_of(layers, case.graph)
    assert not channels.why_not(2, is_learnt=False)
    shapes = tensor_shapes(layers, case.graph.data.schema, case.graph.columns)
    draw = np.random.default_rng(6)
    drawn = {key: drawn_tensor(draw, key, shape) for key, shape in shapes.items()}
    tensors = with_twins(channels, drawn)
    planted = replace(case, layers=layers, tensors=tensors)
    found = scores_of(planted, channels.narrowed(2), narrowed(planted, tensors))
    whole = scores_of(planted, layers, tensors)
    np.testing.assert_allclose(found, whole, rtol=0, atol=5e-3 * float(np.abs(whole).max()))


def drawn_tensor(draw: np.random.Generator, key: str, shape: tuple[int, ...]) -> np.ndarray:
    if key.endswith(("avg_deg_lin", "avg_deg_log", "aggr_module.t", "running_var")):
        return np.ones(shape, np.float32)
    # No channel matters little.
    return (draw.choice([-1, 1], shape) * draw.uniform(0.7, 1.4, shape) / shape[-1] ** 0.5).astype(np.float32)


def test_what_is_left_is_fitted_to_channels_that_are_gone() -> None:
    """Where every channel has a twin that is read less, half of them suffice, with other weights than before."""
    case = draw_case(3, one_type, Convolution.GRAPH_SAGE, lambda layers, graph: True)
    layers = LayersManifest((sage(8), sage(3)))
    shapes = tensor_shapes(layers, case.graph.data.schema, case.graph.columns)
    draw = np.random.default_rng(4)
    tensors = {key: draw.normal(size=shape).astype(np.float32) for key, shape in shapes.items()}
    for name in ("lin_l.weight", "lin_l.bias", "lin_r.weight"):
        tensors[f"layers.0.convs.0.{name}"][4:] = tensors[f"layers.0.convs.0.{name}"][:4]
    for name in ("lin_l.weight", "lin_r.weight"):
        tensors[f"layers.1.convs.0.{name}"][:, 4:] = 0.3 * tensors[f"layers.1.convs.0.{name}"][:, :4]
    planted = replace(case, layers=layers, tensors=tensors)
    found = scores_of(planted, channels_of(layers, case.graph).narrowed(2), narrowed(planted, tensors))
    whole = scores_of(planted, layers, tensors)
    np.testing.assert_allclose(found, whole, rtol=0, atol=1e-2 * float(np.abs(whole).max()))
