"""Fewer feature columns of listed layers: which tensors read them, and weights fitted to those that are kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from msgspec.structs import replace as changed
from tests.support.generation.learning import labels_of
from tests.support.models.random_layers import RandomGraph, draw_case, one_type, several_types

from gnnserve_api.errors import InputError
from gnnserve_api.files.layers import Convolution, ConvolutionManifest, DenseManifest, LayerManifest, LayersManifest
from gnnserve_api.spec.graph import Normalization
from gnnserve_api.spec.model import Model, Scope
from gnnserve_api.spec.pruning import Pruning, RankingMethod
from gnnserve_worker.generation.programs.layer_columns import LayerColumns, over_columns
from gnnserve_worker.generation.programs.running import ProgramScores
from gnnserve_worker.generation.ranking import columns_by_type
from gnnserve_worker.generation.training_set import TrainingSet, keep_columns, training_set
from gnnserve_worker.layers.contract import program_of
from gnnserve_worker.layers.runner import LayersRunner
from gnnserve_worker.models.registry import Tensors

GRAPHS = {"one type": one_type, "several types": several_types}


def read_by(layers: LayersManifest, graph: RandomGraph) -> LayerColumns:
    return LayerColumns(layers, graph.data.schema, tuple(graph.columns))


def is_fitted(layers: LayersManifest, graph: RandomGraph) -> bool:
    try:
        read_by(layers, graph).check([1, 2], is_learnt=False)
    except InputError:
        return False
    return True


def told_by_half(graph: RandomGraph, draw: np.random.Generator) -> RandomGraph:
    """The graph whose features of each type are told by half of its columns."""
    types = []
    for kind in graph.data.types:
        nodes, columns = kind.features.shape
        half = columns // 2
        features = draw.normal(size=(nodes, half)).astype(np.float32) @ draw.normal(size=(half, columns))
        types.append(replace(kind, features=features.astype(np.float32)))
    return RandomGraph(replace(graph.data, types=tuple(types)))


def learnt_from(graph: RandomGraph) -> TrainingSet:
    return training_set(graph.data, labels_of(graph.data), 2, Scope.TRANSDUCTIVE, Normalization.DISABLED)


def scores_of(layers: LayersManifest, tensors: Tensors, graph: RandomGraph) -> np.ndarray:
    """Scores of all nodes of the first type, over whole lists. `graph`: with the columns that layers read."""
    schema = graph.data.schema
    program = program_of(layers, schema, graph.columns)
    runner = LayersRunner(tensors, program, schema)
    return ProgramScores(program, graph.as_programs_read, runner).scores(np.arange(schema.types[0].nodes))


@pytest.mark.campaign
@pytest.mark.parametrize("make", GRAPHS.values(), ids=GRAPHS)
@pytest.mark.parametrize(
    "kind", [Convolution.GRAPH_SAGE, Convolution.GCN, Convolution.GATV2, Convolution.TRANSFORMER, Convolution.FILM]
)
@pytest.mark.parametrize("method", RankingMethod)
def test_fitted_weights_give_the_scores_of_all_columns_where_these_are_told_by_the_kept_ones(
    kind: Convolution, make: Callable[[np.random.Generator], RandomGraph], method: RankingMethod
) -> None:
    draw, case = np.random.default_rng(1), draw_case(3, make, kind, is_fitted)
    graph = told_by_half(case.graph, draw)
    columns, data = read_by(case.layers, graph), learnt_from(graph)
    model = Model.model_validate({"training": {"scope": "Transductive"}})
    ranking = columns.ranking(Pruning(method=method), case.tensors, data, model, 0)
    assert [sorted(own) for own in ranking.by_type] == [list(range(count)) for count in graph.columns]
    kept = ranking.first_by_type(2)
    tensors = columns.fitted(case.tensors, kept, data, model)
    types = [
        replace(one, features=keep_columns(one.features, own)) for one, own in zip(graph.data.types, kept, strict=True)
    ]
    fewer = RandomGraph(replace(graph.data, types=tuple(types)))
    found = scores_of(over_columns(case.layers, fewer.columns), tensors, fewer)
    expected = scores_of(case.layers, case.tensors, graph)
    np.testing.assert_allclose(found, expected, rtol=0, atol=0.15 * float(np.abs(expected).max()))


def test_columns_of_types_that_one_matrix_reads_are_refused() -> None:
    """GIN adds rows of neighbours to the node's own, and types have their columns in orders of their own."""
    graph = several_types(np.random.default_rng(0))
    types = tuple(changed(one, features=8) for one in graph.data.schema.types)
    schema, mlp = changed(graph.data.schema, types=types), (DenseManifest(4),)
    places = [place for place, one in enumerate(schema.relations) if one.target == "user"]
    layer = LayerManifest(tuple(ConvolutionManifest(Convolution.GIN, place, width=4, mlp=mlp) for place in places))
    columns = LayerColumns(LayersManifest((layer,)), schema, (8, 8, 8))
    columns.check([1], is_learnt=True)
    with pytest.raises(InputError, match=r"multiply those of two types by one matrix.*model\.before"):
        columns.check([1, 2], is_learnt=True)


def test_columns_over_all_types_are_parted_in_their_order() -> None:
    parted = columns_by_type(np.array([4, 2, 0, 7, 5]), [3, 0, 5])
    assert [own.tolist() for own in parted] == [[2, 0], [], [1, 4, 2]]
