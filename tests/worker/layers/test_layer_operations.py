"""Each operation of a layer answers as torch_geometric's module, over whole lists and whichever nodes are asked for."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import msgspec
import numpy as np
import pytest
import torch
from tests.support.models.random_layers import KIND, KINDS, Case, RandomGraph, case_of, one_type, several_types

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
from gnnserve_api.files.programs import ProgramManifest
from gnnserve_worker.generation.layer_modules import LayersModule, load_canonical, tensors_of
from gnnserve_worker.generation.programs.running import ProgramScores
from gnnserve_worker.layers.contract import program_of
from gnnserve_worker.layers.runner import LayersRunner

GRAPH = one_type(np.random.default_rng(1))
SEVERAL = several_types(np.random.default_rng(2))
WIDTH = 6
SAGE = ConvolutionManifest(Convolution.GRAPH_SAGE, width=WIDTH)
GCN = ConvolutionManifest(Convolution.GCN, width=WIDTH)
MLP = (DenseManifest(5, norm=Norm.BATCH, activation=Activation.RELU), DenseManifest(WIDTH, activation=Activation.ELU))


def program_of_case(case: Case) -> ProgramManifest:
    return program_of(case.layers, case.graph.data.schema, case.graph.columns)


def scores_of(case: Case, nodes: np.ndarray, graph: RandomGraph | None = None) -> np.ndarray:
    program, schema = program_of_case(case), case.graph.data.schema
    runner = LayersRunner(case.tensors, program, schema)
    return ProgramScores(program, (graph or case.graph).as_programs_read, runner).scores(nodes)


def check(layers: LayersManifest, graph: RandomGraph = GRAPH) -> None:
    case = case_of(np.random.default_rng(3), graph, layers)
    count = len(case.scores)
    for nodes in (np.array([0]), np.array([count - 1]), np.array([4, 0, 4]), np.arange(count)):
        found = scores_of(case, nodes)
        np.testing.assert_allclose(found, case.scores[nodes], rtol=0, atol=case.tolerance)


def convolution(kind: Convolution, **fields: object) -> ConvolutionManifest:
    return ConvolutionManifest(kind, width=WIDTH, **fields)


CONVOLUTIONS = {
    "GraphSAGE, by all aggregations": convolution(Convolution.GRAPH_SAGE, aggregations=tuple(Aggregation)),
    "GraphSAGE, projected, with unit rows": convolution(
        Convolution.GRAPH_SAGE, projects=True, has_unit_rows=True, aggregations=(Aggregation.MAX,)
    ),
    "GraphSAGE without its own row": convolution(Convolution.GRAPH_SAGE, root=False, bias=False),
    "GraphConv by a weight": convolution(
        Convolution.GRAPH_CONV, aggregations=(Aggregation.SUM,), edge_weight="weight"
    ),
    "GraphConv, the largest by a weight": convolution(
        Convolution.GRAPH_CONV, aggregations=(Aggregation.MAX,), edge_weight="weight"
    ),
    "GCN": GCN,
    "GCN without self-loops": convolution(Convolution.GCN, self_loops=False),
    "GCN by a weight": convolution(Convolution.GCN, edge_weight="weight"),
    "GCN by a weight, improved": convolution(Convolution.GCN, edge_weight="weight", improved=True),
    "GCN, not normalised": convolution(Convolution.GCN, is_normalised=False, edge_weight="rate"),
    "GAT": convolution(Convolution.GAT, heads=2),
    "GAT, averaged, with edges": convolution(
        Convolution.GAT, heads=3, averages_heads=True, edge_columns=("rate", "amount")
    ),
    "GATv2, with edges": convolution(Convolution.GATV2, heads=2, edge_columns=("amount",)),
    "GATv2, averaged, of shared weights": convolution(
        Convolution.GATV2, heads=2, averages_heads=True, shares_weights=True, self_loops=False
    ),
    "Transformer": convolution(Convolution.TRANSFORMER, heads=3),
    "Transformer, gated, with edges": convolution(
        Convolution.TRANSFORMER, heads=2, has_beta=True, edge_columns=("weight", "rate")
    ),
    "Transformer, averaged": convolution(Convolution.TRANSFORMER, heads=2, averages_heads=True, edge_columns=("rate",)),
    "GIN": convolution(Convolution.GIN, mlp=MLP),
    "GINE": convolution(Convolution.GINE, mlp=MLP, edge_columns=("rate", "weight")),
    "PNA": convolution(
        Convolution.PNA, aggregations=(Aggregation.MEAN, Aggregation.STD, Aggregation.MAX), scalers=tuple(DegreeScaler),
        towers=2, pre_layers=2, post_layers=2, edge_columns=("amount",),
    ),
    "TAG": convolution(Convolution.TAG, hops=2, self_loops=False),
    "Chebyshev": convolution(Convolution.CHEBYSHEV, hops=3),
    "SGC": convolution(Convolution.SGC, hops=2),
    "APPNP": ConvolutionManifest(Convolution.APPNP, hops=3, alpha=0.2, width=WIDTH),
    "GCNII": convolution(Convolution.GCNII, alpha=0.2, theta=0.5, shares_weights=True),
    "GCNII, of two matrices": convolution(Convolution.GCNII, alpha=0.2),
    "AGNN": convolution(Convolution.AGNN),
    "AGNN without self-loops": convolution(Convolution.AGNN, self_loops=False),
    "GEN": convolution(Convolution.GEN, mlp=MLP),
    "GEN, with edges": convolution(Convolution.GEN, mlp=MLP, edge_columns=("rate", "weight")),
    "FiLM": convolution(Convolution.FILM, negative_slope=0.0),
    "FiLM without an activation": convolution(Convolution.FILM, negative_slope=1.0),
    "RGAT": convolution(Convolution.RGAT, heads=2),
    "RGAT, averaged, with edges": convolution(
        Convolution.RGAT, heads=3, averages_heads=True, edge_columns=("rate", "amount"), bias=False
    ),
}  # fmt: skip
BEFORE = (TypeProductsManifest(0, (DenseManifest(WIDTH, activation=Activation.RELU),)),)


@pytest.mark.parametrize("conv", CONVOLUTIONS.values(), ids=CONVOLUTIONS)
def test_convolutions(conv: ConvolutionManifest) -> None:
    layer = LayerManifest((conv,), activation=Activation.RELU)
    check(LayersManifest((layer, layer), BEFORE, head=(DenseManifest(3),)))


@pytest.mark.parametrize("knowledge", [JumpingKnowledge.LAST, JumpingKnowledge.CAT])
def test_each_type_has_matrices_of_its_own_in_the_head(knowledge: JumpingKnowledge) -> None:
    layer = LayerManifest(
        tuple(msgspec.structs.replace(SAGE, relation=relation) for relation in range(len(SEVERAL.data.relations))),
        own=True, activation=Activation.RELU,
    )  # fmt: skip
    head = (DenseManifest(5, activation=Activation.TANH), DenseManifest(3))
    layers = LayersManifest((layer, layer), (), knowledge, head, head_reads_input=True, head_by_type=True)
    check(layers, SEVERAL)
    case, schema, items = case_of(np.random.default_rng(3), SEVERAL, layers), SEVERAL.data.schema, 1
    of_items = LayersModule(layers, schema, SEVERAL.columns, scored=items).eval()
    load_canonical(of_items, case.tensors)
    program = program_of(layers, schema, SEVERAL.columns, (items,))
    runner = LayersRunner(case.tensors, program, schema)
    nodes = np.arange(schema.types[items].nodes)
    found = ProgramScores(program, SEVERAL.as_programs_read, runner).scores(nodes + schema.first_nodes[items])
    with torch.no_grad():
        wanted = of_items(SEVERAL.tensors(torch.float32)).numpy()
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


def test_kinds_of_edges_have_convolutions_of_their_own() -> None:
    """RGCN: a mean and a matrix for each kind, beside the node's own row."""
    of_kinds = [
        convolution(
            Convolution.GRAPH_CONV, aggregations=(Aggregation.MEAN,), root=False, where=EdgeFilter(KIND, float(kind))
        )
        for kind in range(KINDS)
    ]
    attention = convolution(Convolution.GAT, heads=2, edge_columns=("rate",), where=EdgeFilter(KIND, 1.0))
    second = (msgspec.structs.replace(GCN, where=EdgeFilter(KIND, 0.0)), attention)
    check(LayersManifest((LayerManifest(tuple(of_kinds), own=True), LayerManifest(second, Combination.MAX))))


ATTENDING = {
    "GAT": convolution(Convolution.GAT, heads=2, self_loops=False, edge_columns=("rate",)),
    "GATv2": convolution(Convolution.GATV2, heads=2, self_loops=False, edge_columns=("rate",)),
    "Transformer": convolution(Convolution.TRANSFORMER, heads=2, edge_columns=("rate",)),
    "Transformer, averaged, without a bias": convolution(
        Convolution.TRANSFORMER, heads=2, averages_heads=True, bias=False, root=False
    ),
    "RGAT": convolution(Convolution.RGAT, heads=2),
}  # fmt: skip


@pytest.mark.parametrize("conv", ATTENDING.values(), ids=ATTENDING)
def test_one_softmax_is_over_kinds_of_edges_together(conv: ConvolutionManifest) -> None:
    of_kinds = tuple(msgspec.structs.replace(conv, where=EdgeFilter(KIND, float(kind))) for kind in range(KINDS))
    layer = LayerManifest(of_kinds, Combination.ATTENTION, activation=Activation.ELU)
    check(LayersManifest((layer, layer), BEFORE, head=(DenseManifest(3),)))
    apart = msgspec.structs.replace(layer, combination=Combination.SUM)
    cases = [case_of(np.random.default_rng(3), GRAPH, LayersManifest((one,), BEFORE)) for one in (layer, apart)]
    assert np.abs(cases[0].scores - cases[1].scores).max() > 10 * cases[0].tolerance


def test_one_softmax_is_over_relations_of_several_types_together() -> None:
    """HGT: behind it GELU, a product of each type, and a gate where rows are as wide as those that it reads."""
    convs = tuple(
        convolution(Convolution.TRANSFORMER, relation=place, heads=2, root=False)
        for place in range(len(SEVERAL.data.schema.relations))
    )
    layer = LayerManifest(
        convs, Combination.ATTENTION, activation=Activation.GELU, residual=Residual.GATED, output_product=True
    )  # fmt: skip
    check(LayersManifest((layer, layer), BEFORE, head=(DenseManifest(3),)), SEVERAL)


@pytest.mark.parametrize("norm", Norm)
@pytest.mark.parametrize("is_norm_behind", [False, True])
def test_norms(norm: Norm, *, is_norm_behind: bool) -> None:
    layer = LayerManifest((SAGE,), norm=norm, activation=Activation.TANH, is_norm_behind=is_norm_behind)
    product = DenseManifest(4, norm=norm, is_norm_behind=is_norm_behind, activation=Activation.RELU)
    check(LayersManifest((layer,), head=(product,)))


@pytest.mark.parametrize("activation", Activation)
def test_activations(activation: Activation) -> None:
    layer = LayerManifest((SAGE,), activation=activation)
    check(LayersManifest((layer,), head=(DenseManifest(4, activation=activation),)))


@pytest.mark.parametrize("place", ResidualPlace)
@pytest.mark.parametrize("residual", Residual)
def test_residuals(residual: Residual, place: ResidualPlace) -> None:
    layer = LayerManifest(
        (SAGE,), norm=Norm.BATCH, activation=Activation.RELU, residual=residual, residual_place=place, own=True
    )
    behind = msgspec.structs.replace(layer, is_norm_behind=True, reads_input=True)
    check(LayersManifest((layer, behind), BEFORE))


def test_norm_and_activation_stand_before_the_convolution() -> None:
    layer = LayerManifest(
        (GCN,), norm=Norm.LAYER, activation=Activation.RELU, is_pre_activated=True, residual=Residual.ADDED
    )
    check(LayersManifest((layer, layer), BEFORE, head=(DenseManifest(3),)))


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("kind", JumpingKnowledge)
def test_jumping_knowledge(kind: JumpingKnowledge, count: int) -> None:
    layer = LayerManifest((SAGE,), activation=Activation.RELU)
    check(LayersManifest((layer,) * count, jumping_knowledge=kind, head=(DenseManifest(3),), head_reads_input=True))


@pytest.mark.parametrize("combination", Combination)
def test_combinations(combination: Combination) -> None:
    conv = convolution(Convolution.TRANSFORMER, heads=2) if combination is Combination.ATTENTION else SAGE
    convs = tuple(msgspec.structs.replace(conv, relation=place) for place in range(len(SEVERAL.data.schema.relations)))
    layer = LayerManifest(convs, combination, own=True, norm=Norm.LAYER, activation=Activation.RELU)
    check(LayersManifest((layer, layer), head=(DenseManifest(3),)), SEVERAL)


def test_a_perceptron_reads_no_neighbours() -> None:
    layers = LayersManifest((), head=(DenseManifest(8, activation=Activation.RELU), DenseManifest(3)))
    check(layers)
    assert program_of(layers, GRAPH.data.schema, GRAPH.columns).hops == 0


@pytest.mark.parametrize("layers", [1, 2])
def test_embeddings_are_what_the_head_reads_or_the_last_layer(layers: int) -> None:
    case = case_of(np.random.default_rng(3), GRAPH, LayersManifest((LayerManifest((SAGE,)),) * (layers + 1)))
    first = LayersManifest(case.layers.layers[:layers])
    below = {key: one for key, one in case.tensors.items() if int(key.split(".")[1]) < layers}
    program, inner = (program_of(each, GRAPH.data.schema, GRAPH.columns) for each in (case.layers, first))
    nodes = np.arange(9)
    laid = ProgramScores(program, GRAPH.as_programs_read, None).lay_out(nodes)
    found = LayersRunner(case.tensors, program, GRAPH.data.schema).run(
        laid.arrays, (program.embeddings, program.scores), 9
    )
    laid = ProgramScores(inner, GRAPH.as_programs_read, None).lay_out(nodes)
    (expected,) = LayersRunner(below, inner, GRAPH.data.schema).run(laid.arrays, (inner.scores,), [9])
    np.testing.assert_allclose(found[0], expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found[1], case.scores[nodes], rtol=0, atol=case.tolerance)


@pytest.mark.parametrize("name", ["GraphSAGE", "GATv2, with edges", "GINE", "GCN, not normalised", "PNA"])
def test_samples_of_fewer_neighbours_answer_as_the_module_over_all_that_was_drawn(name: str) -> None:
    """Layers compute the rows that are read alone; the module computes all of them."""
    layer = LayerManifest((CONVOLUTIONS.get(name, SAGE),), norm=Norm.BATCH, activation=Activation.RELU)
    case = case_of(np.random.default_rng(3), GRAPH, LayersManifest((layer, layer), BEFORE))
    program, schema, nodes = program_of_case(case), GRAPH.data.schema, np.array([7, 0, 21, 3])
    runner = LayersRunner(case.tensors, program, schema)
    laid = ProgramScores(program, GRAPH.as_programs_read, runner, fanouts=(3, 2)).lay_out(nodes)
    module = LayersModule(case.layers, schema, GRAPH.columns).eval()
    load_canonical(module, case.tensors)
    with torch.no_grad():
        expected = module(tensors_of(program, schema, laid.arrays))[: len(nodes)].numpy()
    (found,) = runner.run(laid.arrays, (program.scores,), len(nodes))
    np.testing.assert_allclose(found, expected, rtol=0, atol=case.tolerance)


def test_degrees_of_the_graph_are_exact_with_any_fanouts() -> None:
    """A sample of one neighbour that stands for the list: its weight times the length of the list."""
    case = case_of(np.random.default_rng(3), GRAPH, LayersManifest((LayerManifest((GCN,)),)))
    program, schema = program_of_case(case), GRAPH.data.schema
    runner, graph = LayersRunner(case.tensors, program, schema), GRAPH.as_programs_read
    laid = ProgramScores(program, graph, runner, fanouts=(1,)).lay_out(np.arange(60))
    (found,) = runner.run(laid.arrays, (program.scores,), 60)
    lists = graph.lists
    lengths = np.diff(lists.indptr)
    targets = np.repeat(np.arange(60), lengths)
    degrees = 1 + np.bincount(targets[lists.indices != targets], minlength=60)
    names = laid.arrays["features_0"]
    rows = np.stack([names[number] / degrees[number] for number in range(60)])
    for source, target in laid.arrays["edges_0"].T:
        if source != target:
            weight = lengths[target] / np.sqrt(degrees[source] * degrees[target])
            rows[target] += weight * names[source]
    weight, bias = (case.tensors[f"layers.0.convs.0.{name}"] for name in ("lin.weight", "bias"))
    np.testing.assert_allclose(found, rows @ weight.T + bias, rtol=1e-4, atol=1e-4)


def test_threads_do_not_disturb_each_other() -> None:
    layer = LayerManifest((GCN,), norm=Norm.BATCH, activation=Activation.ELU)
    case = case_of(np.random.default_rng(3), GRAPH, LayersManifest((layer,) * 3))
    program, schema = program_of_case(case), GRAPH.data.schema
    runner = LayersRunner(case.tensors, program, schema)
    parts = [np.random.default_rng(seed).permutation(60)[: seed % 7 + 1] for seed in range(40)]
    laid = [ProgramScores(program, GRAPH.as_programs_read, runner).lay_out(part) for part in parts]
    with ThreadPoolExecutor(4) as threads:
        runs = threads.map(lambda one: runner.run(one.arrays, (program.scores,), len(one.seeds)), laid)
        for part, (found,) in zip(parts, runs, strict=True):
            np.testing.assert_allclose(found, case.scores[part], rtol=0, atol=case.tolerance)


def test_tensors_that_do_not_fit_are_named() -> None:
    case = case_of(np.random.default_rng(3), GRAPH, LayersManifest((LayerManifest((SAGE,)),)))
    program, schema = program_of_case(case), GRAPH.data.schema
    wrong = {**case.tensors, "layers.0.convs.0.lin_l.weight": np.zeros((5, 7), np.float32), "other": np.zeros(1)}
    del wrong["layers.0.convs.0.lin_r.weight"]
    with pytest.raises(
        ValueError, match=r"layers\.0\.convs\.0\.lin_l\.weight is \[5, 7\], expected \[6, 7\]; "
    ) as told:
        LayersRunner(wrong, program, schema)
    assert "layers.0.convs.0.lin_r.weight is missing, expected [6, 7]; other is of no layer" in str(told.value)
