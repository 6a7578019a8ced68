"""Networks of listed layers on a GPU: the CPU's answers, of every operation that a GPU has."""

from __future__ import annotations

import numpy as np
import pytest
from tests.support.gpu.gpu_revisions import assert_answers_are_the_cpus, engine_of, some_seeds, use_small_chunks
from tests.support.gpu.interpreter import skip_overflow_checks
from tests.support.gpu.listed_revisions import HIDDEN, convolution, layers_of, listed_revision
from tests.support.graphs.graphs import graph_of

from gnnserve_api.files.layers import (
    Activation,
    Aggregation,
    Convolution,
    DenseManifest,
    JumpingKnowledge,
    LayerManifest,
    LayersManifest,
    Norm,
    Residual,
    ResidualPlace,
    TypeProductsManifest,
)
from gnnserve_api.variants import Storage
from gnnserve_worker.gpu.accelerator import Accelerator
from gnnserve_worker.inference.batch import infer_batch

SEEDS = 6
MLP = (DenseManifest(5, norm=Norm.BATCH, activation=Activation.RELU), DenseManifest(HIDDEN, activation=Activation.ELU))
CONVOLUTIONS = {
    "GraphSAGE": convolution(Convolution.GRAPH_SAGE),
    "GraphSAGE, by several aggregations": convolution(
        Convolution.GRAPH_SAGE,
        aggregations=(
            Aggregation.MAX, Aggregation.MIN, Aggregation.SUM, Aggregation.MEAN, Aggregation.VAR, Aggregation.STD,
        ),
    ),
    "GraphSAGE, projected, with unit rows": convolution(
        Convolution.GRAPH_SAGE, projects=True, has_unit_rows=True, aggregations=(Aggregation.MAX,)
    ),
    "GraphSAGE without its own row": convolution(Convolution.GRAPH_SAGE, root=False, bias=False),
    "GraphConv": convolution(Convolution.GRAPH_CONV, aggregations=(Aggregation.SUM,)),
    "GCN": convolution(Convolution.GCN),
    "GCN, not normalised": convolution(Convolution.GCN, is_normalised=False),
    "SGC": convolution(Convolution.SGC, hops=2),
    "GIN": convolution(Convolution.GIN, mlp=MLP),
    "GAT": convolution(Convolution.GAT, heads=2),
    "GAT, averaged, without loops": convolution(Convolution.GAT, heads=3, averages_heads=True, self_loops=False),
    "GATv2": convolution(Convolution.GATV2, heads=2),
    "GATv2, averaged, of shared weights, without loops": convolution(
        Convolution.GATV2, heads=2, averages_heads=True, shares_weights=True, self_loops=False
    ),
    "Transformer": convolution(Convolution.TRANSFORMER, heads=4),
    "Transformer, gated, averaged": convolution(
        Convolution.TRANSFORMER, heads=2, has_beta=True, averages_heads=True, bias=False
    ),
    "Transformer without its own row": convolution(Convolution.TRANSFORMER, heads=2, root=False),
    "RGAT": convolution(Convolution.RGAT, heads=2),
}  # fmt: skip
PROJECTED = [name for name, one in CONVOLUTIONS.items() if "several" not in name and not one.projects]
BEFORE = (TypeProductsManifest(0, (DenseManifest(HIDDEN, activation=Activation.RELU),)),)


@pytest.fixture(autouse=True)
def _in_one_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node is one within a chunk: so it is within all of a batch."""
    use_small_chunks(monkeypatch, 8)
    skip_overflow_checks(monkeypatch)


def _network(name: str) -> LayersManifest:
    conv = CONVOLUTIONS[name]
    head = (DenseManifest(3),)
    layers = tuple(LayerManifest((conv,), activation=Activation.RELU) for _ in range(2))
    return LayersManifest(layers, (), head=head)


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_each_convolution_answers_as_on_the_cpu(name: str, accelerator: Accelerator) -> None:
    layers = _network(name)
    assert_answers_are_the_cpus(listed_revision(layers, (3, 2, 2, 2)[: layers.hops]), accelerator, SEEDS)


@pytest.mark.parametrize("name", PROJECTED)
def test_each_convolution_answers_over_products_as_on_the_cpu(name: str, accelerator: Accelerator) -> None:
    layers = _network(name)
    loaded = listed_revision(layers, (3, 2, 2, 2)[: layers.hops], is_projected=True)
    assert_answers_are_the_cpus(loaded, accelerator, SEEDS)


@pytest.mark.parametrize(
    "conv",
    [
        convolution(Convolution.APPNP, hops=2, alpha=0.2),
        convolution(Convolution.GCNII, alpha=0.2, theta=0.5, shares_weights=True),
        convolution(Convolution.GCNII, alpha=0.2),
    ],
    ids=["APPNP", "GCNII", "GCNII, of two matrices"],
)
def test_convolutions_that_keep_their_width_answer_as_on_the_cpu(conv: object, accelerator: Accelerator) -> None:
    layer = LayerManifest((conv,), activation=Activation.RELU)
    layers = LayersManifest((layer, layer), BEFORE, head=(DenseManifest(3),))
    assert_answers_are_the_cpus(listed_revision(layers, (3, 2, 2, 2)[: layers.hops]), accelerator, SEEDS)


@pytest.mark.parametrize("norm", [one for one in Norm if one is not Norm.NONE])
@pytest.mark.parametrize("is_norm_behind", [False, True])
def test_each_norm_answers_as_on_the_cpu(norm: Norm, is_norm_behind: bool, accelerator: Accelerator) -> None:
    layers = layers_of(
        convolution(Convolution.GRAPH_SAGE), norm=norm, activation=Activation.TANH, is_norm_behind=is_norm_behind
    )
    assert_answers_are_the_cpus(listed_revision(layers, (3, 2)), accelerator, SEEDS)


@pytest.mark.parametrize("activation", Activation)
def test_each_activation_answers_as_on_the_cpu(activation: Activation, accelerator: Accelerator) -> None:
    layers = layers_of(convolution(Convolution.GRAPH_SAGE), activation=activation)
    assert_answers_are_the_cpus(listed_revision(layers, (3, 2)), accelerator, SEEDS)


@pytest.mark.parametrize("residual", [one for one in Residual if one is not Residual.NONE])
@pytest.mark.parametrize("place", ResidualPlace)
@pytest.mark.parametrize("reads_input", [False, True])
def test_each_residual_answers_as_on_the_cpu(
    residual: Residual, place: ResidualPlace, reads_input: bool, accelerator: Accelerator
) -> None:
    layer = LayerManifest(
        (convolution(Convolution.GRAPH_SAGE),), norm=Norm.LAYER, activation=Activation.ELU, residual=residual,
        residual_place=place, reads_input=reads_input, own=True,
    )  # fmt: skip
    layers = LayersManifest((layer, layer), BEFORE, head=(DenseManifest(3),))
    assert_answers_are_the_cpus(listed_revision(layers, (3, 2)), accelerator, SEEDS)


def test_what_stands_before_and_behind_a_convolution_is_where_the_cpu_has_it(accelerator: Accelerator) -> None:
    layer = LayerManifest(
        (convolution(Convolution.GRAPH_SAGE),), norm=Norm.BATCH, activation=Activation.ELU, is_pre_activated=True,
        residual=Residual.ADDED, output_product=True,
    )  # fmt: skip
    layers = LayersManifest((layer, layer), BEFORE, head=(DenseManifest(3),))
    assert_answers_are_the_cpus(listed_revision(layers, (3, 2)), accelerator, SEEDS)


@pytest.mark.parametrize("jumping", [JumpingKnowledge.CAT, JumpingKnowledge.MAX])
@pytest.mark.parametrize("head_reads_input", [False, True])
def test_jumping_knowledge_and_heads_over_features_answer_as_on_the_cpu(
    jumping: JumpingKnowledge, head_reads_input: bool, accelerator: Accelerator
) -> None:
    layer = LayerManifest((convolution(Convolution.GCN),), activation=Activation.RELU)
    layers = LayersManifest((layer,) * 3, (), jumping, (DenseManifest(3),), head_reads_input)
    loaded = listed_revision(layers, (3, 2, 2))

    assert_answers_are_the_cpus(loaded, accelerator, SEEDS)


@pytest.mark.parametrize("storage", Storage)
@pytest.mark.parametrize("is_projected", [False, True])
def test_each_storage_answers_as_on_the_cpu(storage: Storage, is_projected: bool, accelerator: Accelerator) -> None:
    layers = layers_of(convolution(Convolution.GATV2, heads=2), activation=Activation.ELU)
    loaded = listed_revision(layers, (3, 2), storage=storage, is_projected=is_projected)
    assert_answers_are_the_cpus(loaded, accelerator, SEEDS)


def test_embeddings_are_the_cpus(accelerator: Accelerator) -> None:
    for layers in (layers_of(convolution(Convolution.GRAPH_SAGE)), _network("GCN")):
        loaded, seeds = listed_revision(layers, (3, 2)), some_seeds(SEEDS)

        found = engine_of(loaded, accelerator).infer("rows", seeds, 3).embeddings
        expected = infer_batch(loaded, "rows", seeds, 3).embeddings

        assert found is not None
        assert expected is not None
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * float(np.abs(expected).max()))


def test_a_network_without_convolutions_reads_the_seeds_alone(accelerator: Accelerator) -> None:
    head = (DenseManifest(HIDDEN, activation=Activation.RELU), DenseManifest(3))
    assert_answers_are_the_cpus(listed_revision(LayersManifest((), BEFORE, head=head), (0,)), accelerator, SEEDS)


@pytest.mark.parametrize("kind", [Convolution.GRAPH_SAGE, Convolution.GCN, Convolution.GAT, Convolution.TRANSFORMER])
def test_a_node_in_several_hops_has_the_list_that_was_drawn_where_it_stands_first(
    kind: Convolution, accelerator: Accelerator
) -> None:
    """Five nodes that read each other and themselves: all of them stand in all hops, whose fan-outs differ."""
    graph = graph_of([range(5)] * 5)
    layers = layers_of(convolution(kind), 3, activation=Activation.ELU)
    loaded = listed_revision(layers, (2, 4, 3), graph=graph)
    for seeds in (np.array([0]), np.array([3, 1]), np.arange(5)):
        engine = engine_of(loaded, accelerator)
        found, expected = engine.infer("rows", seeds, 11), infer_batch(loaded, "rows", seeds, 11)
        size = float(np.abs(expected.scores).max())
        np.testing.assert_allclose(found.scores, expected.scores, rtol=0, atol=1e-5 * size)
