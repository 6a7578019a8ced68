"""Ranking of feature columns: planted ones are found, and every method is what its formula says."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from tests.support.generation.learning import labelled_set
from tests.support.graphs.graphs import neighbours_of, planted_graph
from tests.support.models.pyg import module_of, to_tensors

from gnnserve_api.errors import InputError
from gnnserve_api.spec.model import Model, Scope
from gnnserve_api.spec.pruning import LassoSettings, Pruning
from gnnserve_worker.generation import moments
from gnnserve_worker.generation.ranking import FirstLayerColumns, rank_at_random, rank_by_lasso, ranking_of
from gnnserve_worker.generation.train import train_on_rows
from gnnserve_worker.generation.training_set import TrainingSet
from gnnserve_worker.graph.store import GraphData
from gnnserve_worker.models.architecture import FirstLayer
from gnnserve_worker.models.registry import Tensors, first_layer

INFORMATIVE = (2, 5, 7)
ARCHITECTURES = pytest.mark.parametrize("architecture", ["GraphSAGE", "GIN"])
SPARSE = pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
SCOPES = pytest.mark.parametrize("scope", list(Scope))
WIDTH = 12


def _set_of(data: GraphData, scope: Scope = Scope.INDUCTIVE) -> TrainingSet:
    return labelled_set(data.graph, data.labels, len(data.classes), data.splits, scope)


def _first(module: Any) -> FirstLayer:
    return first_layer(to_tensors(module))


@cache
def _trained(architecture: str, sparse: bool) -> tuple[Tensors, GraphData]:
    data = planted_graph(INFORMATIVE, columns=WIDTH, sparse=sparse)
    model = Model.model_validate(
        {
            "architecture": architecture,
            "hidden": 16,
            "fanouts": [5, 5],
            # Enough decay that the weights of columns which tell nothing die out within a second of training.
            "training": {"epochs": 20, "batchSize": 240, "dropout": 0, "learningRate": 0.02, "weightDecay": 0.05},
        }
    )
    return train_on_rows(_set_of(data), data.features, model).tensors, data


def _rank(method: str, architecture: str, sparse: bool = False, **lasso_settings: int) -> np.ndarray:
    master, data = _trained(architecture, sparse)
    pruning = Pruning.model_validate({"method": method, "lasso": lasso_settings})
    return ranking_of(pruning, FirstLayerColumns(first_layer(master), data.features, _set_of(data)), seed=0).columns


@ARCHITECTURES
@SPARSE
@pytest.mark.parametrize("method", ["Lasso", "Greedy"])
def test_planted_columns_come_first(method: str, architecture: str, sparse: bool) -> None:
    columns = _rank(method, architecture, sparse)

    assert set(columns[: len(INFORMATIVE)].tolist()) == set(INFORMATIVE)


@ARCHITECTURES
@pytest.mark.parametrize("method", ["Lasso", "Greedy", "Random"])
def test_a_ranking_is_a_permutation_of_all_columns(method: str, architecture: str) -> None:
    assert sorted(_rank(method, architecture).tolist()) == list(range(WIDTH))


@ARCHITECTURES
@pytest.mark.parametrize("method", ["Lasso", "Greedy"])
def test_ranking_leaves_the_master_as_it_is(method: str, architecture: str) -> None:
    master, _ = _trained(architecture, False)
    before = {key: value.copy() for key, value in master.items()}

    _rank(method, architecture)

    for key, value in master.items():
        np.testing.assert_array_equal(value, before[key])


# --- Random


def test_random_gives_the_same_permutation_for_the_same_seed() -> None:
    assert rank_at_random(50, 3).tolist() == rank_at_random(50, 3).tolist()
    assert rank_at_random(50, 3).tolist() != rank_at_random(50, 4).tolist()


def test_random_needs_no_master() -> None:
    data = planted_graph(INFORMATIVE)

    ranking = ranking_of(Pruning(method="Random"), FirstLayerColumns(None, data.features, _set_of(data)), seed=9)

    assert ranking.columns.tolist() == rank_at_random(WIDTH, 9).tolist()
    assert ranking.settings == {"seed": 9}


@pytest.mark.parametrize("method", ["Lasso", "Greedy"])
def test_informed_methods_say_that_they_need_a_master(method: str) -> None:
    data = planted_graph(INFORMATIVE)

    with pytest.raises(ValueError, match="ranked by weights, and no network was trained"):
        ranking_of(Pruning(method=method), FirstLayerColumns(None, data.features, _set_of(data)), seed=0)


# --- Greedy


def _rank_greedily(module: Any) -> list[int]:
    data = planted_graph((0,), columns=len(_first(module).neighbours))
    reader = FirstLayerColumns(_first(module), data.features, _set_of(data))
    return ranking_of(Pruning(method="Greedy"), reader, seed=0).columns.tolist()


@ARCHITECTURES
def test_greedy_orders_by_the_sum_of_absolute_first_layer_weights(architecture: str) -> None:
    module = module_of(architecture, (5, 3), WIDTH)
    tensors = to_tensors(module)
    keys = [k for k in ("convs.0.lin_l.weight", "convs.0.lin_r.weight", "convs.0.nn.lins.0.weight") if k in tensors]
    scores = sum(np.abs(tensors[key]).sum(axis=0) for key in keys)

    assert _rank_greedily(module) == np.argsort(-np.asarray(scores), kind="stable").tolist()


def test_greedy_keeps_the_order_of_columns_that_tie() -> None:
    module = module_of("GraphSAGE", (5, 3), 4)
    with torch.no_grad():
        module.convs[0].lin_l.weight.fill_(1.0)
        module.convs[0].lin_r.weight.fill_(-1.0)

    assert _rank_greedily(module) == [0, 1, 2, 3]


# --- Lasso


def _gram(first: FirstLayer, features: Any, data: TrainingSet) -> np.ndarray:
    (found,) = FirstLayerColumns(first, features, data).grams()
    return found


def _first_layer_of_training_nodes(
    features: np.ndarray, data: TrainingSet, first: FirstLayer, *, mean: bool
) -> np.ndarray:
    """The paper's A¹X⁰W¹ written out node by node: SAGE's two terms, or GIN's sum with (1 + ε) of the node itself."""
    neighbours = first.neighbours.astype(np.float64)
    own = neighbours * first.own_share if first.own is None else first.own.astype(np.float64)
    rows = []
    for node in data.splits.train.tolist():
        listed = features[neighbours_of(data.visible_graph, node)]
        aggregated = np.zeros(features.shape[1]) if len(listed) == 0 else listed.sum(axis=0)
        if mean:
            aggregated = aggregated / max(1, len(listed))
        rows.append(aggregated @ neighbours + features[node] @ own)
    return np.array(rows)


@ARCHITECTURES
@SPARSE
@SCOPES
def test_the_gram_matrix_gives_the_papers_loss_for_any_beta(architecture: str, sparse: bool, scope: Scope) -> None:
    data = planted_graph(INFORMATIVE, nodes=120, columns=WIDTH, sparse=sparse)
    module = module_of(architecture, (5, 3), WIDTH)
    training = _set_of(data, scope)
    dense = np.asarray(data.features if not sparse else data.features.toarray(), dtype=np.float64)
    first, mean = _first(module), architecture == "GraphSAGE"
    output = _first_layer_of_training_nodes(dense, training, first, mean=mean)

    gram = _gram(first, data.features, training).astype(np.float64)

    draw = np.random.default_rng(0)
    for beta in (draw.normal(size=WIDTH), draw.random(WIDTH), np.zeros(WIDTH), np.eye(WIDTH)[3]):
        pruned = _first_layer_of_training_nodes(dense * beta, training, first, mean=mean)
        gamma = 1 - beta
        residual = output - pruned
        # A constant shift of the outputs costs nothing: a retrained bias absorbs it.
        residual -= residual.mean(axis=0)
        assert gamma @ gram @ gamma == pytest.approx(np.sum(residual**2), rel=1e-4)


def test_the_gram_matrix_is_the_same_in_many_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    data = planted_graph(INFORMATIVE, nodes=120)
    first, training = _first(module_of("GraphSAGE", (5, 3), WIDTH)), _set_of(data)
    whole = _gram(first, data.features, training)

    monkeypatch.setattr(moments, "_CHUNK_ROWS", 7)

    np.testing.assert_allclose(_gram(first, data.features, training), whole, rtol=1e-4, atol=1e-4)


def _random_gram(seed: int, columns: int = 8) -> np.ndarray:
    draw = np.random.default_rng(seed)
    factors = (draw.normal(size=(columns + 3, columns)) * np.linspace(0.2, 3, columns)).astype(np.float32)
    return factors.T @ factors


def test_beta_starts_at_one() -> None:
    """Without a penalty nothing moves, so all columns tie and keep their order."""
    settings = LassoSettings(epochs=1, initial_penalty_permille=0)

    assert rank_by_lasso(_random_gram(0), settings).tolist() == list(range(8))


def test_columns_of_independent_outputs_leave_in_the_order_of_their_share() -> None:
    """A diagonal G: column j is driven to zero when λ reaches 2·g_j/scale."""
    shares = np.array([3.0, 1.0, 8.0, 0.5, 2.0], dtype=np.float32)

    assert rank_by_lasso(np.diag(shares), LassoSettings()).tolist() == [2, 0, 4, 1, 3]


def test_a_column_that_contributes_nothing_comes_last() -> None:
    gram = _random_gram(1)
    gram[4, :] = gram[:, 4] = 0

    assert rank_by_lasso(gram, LassoSettings())[-1] == 4


@pytest.mark.parametrize("factor", [1e-6, 1e6])
def test_the_ranking_does_not_depend_on_the_scale_of_the_output(factor: float) -> None:
    gram = _random_gram(2)

    assert rank_by_lasso(gram * factor, LassoSettings()).tolist() == rank_by_lasso(gram, LassoSettings()).tolist()


def test_renaming_columns_renames_the_ranking() -> None:
    gram, order = _random_gram(3), np.array([5, 2, 7, 0, 1, 3, 6, 4])

    renamed = rank_by_lasso(gram[order][:, order], LassoSettings())

    assert order[renamed].tolist() == rank_by_lasso(gram, LassoSettings()).tolist()


@pytest.mark.parametrize(
    ("permille", "ranking"),
    [
        pytest.param(990, [1, 0], id="just below 1000 permille the strongest column stays"),
        pytest.param(1000, [0, 1], id="at 1000 permille none does, and the order is the source's"),
    ],
)
def test_the_penalty_is_counted_from_the_smallest_that_removes_every_column(permille: int, ranking: list[int]) -> None:
    settings = LassoSettings(epochs=1, steps_per_epoch=1000, initial_penalty_permille=permille)

    assert rank_by_lasso(np.diag(np.array([1.0, 3.0], dtype=np.float32)), settings).tolist() == ranking


def test_a_penalty_beyond_the_limit_still_gives_a_permutation() -> None:
    settings = LassoSettings(epochs=50, initial_penalty_permille=1000, penalty_step_permille=1000)

    assert sorted(rank_by_lasso(_random_gram(4), settings).tolist()) == list(range(8))


def test_of_two_copies_of_a_column_the_rest_is_ranked_alike() -> None:
    """Perfectly correlated columns make G singular."""
    gram = _random_gram(5)
    doubled = np.concatenate([gram, gram[:1]], axis=0)
    doubled = np.concatenate([doubled, doubled[:, :1]], axis=1)

    assert sorted(rank_by_lasso(doubled, LassoSettings()).tolist()) == list(range(9))


@ARCHITECTURES
def test_a_first_layer_whose_output_is_zero_ranks_columns_as_they_are(architecture: str) -> None:
    data = planted_graph(INFORMATIVE)
    module = module_of(architecture, (5, 3), WIDTH)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()

    reader = FirstLayerColumns(_first(module), data.features, _set_of(data))
    columns = ranking_of(Pruning(method="Lasso"), reader, seed=0).columns

    assert columns.tolist() == list(range(WIDTH))


def test_more_columns_than_lasso_handles_are_refused_with_the_remedy() -> None:
    data = planted_graph(INFORMATIVE, nodes=20)
    wide = sp.csr_array((20, moments.MAX_COLUMNS + 1), dtype=np.float32)

    with pytest.raises(
        InputError,
        match=r"spec\.variants\.pruning\.method: is Lasso, but the graph has 16,385 .* up to 16,384; use Greedy",
    ):
        _gram(_first(module_of("GraphSAGE", (5, 3), wide.shape[1])), wide, _set_of(data))


def test_every_number_that_shaped_a_lasso_ranking_is_recorded() -> None:
    master, data = _trained("GraphSAGE", False)
    pruning = Pruning.model_validate({"method": "Lasso", "lasso": {"epochs": 3, "penaltyStepPermille": 7}})

    settings = ranking_of(
        pruning, FirstLayerColumns(first_layer(master), data.features, _set_of(data)), seed=0
    ).settings

    assert settings == {"epochs": 3, "stepsPerEpoch": 5, "initialPenaltyPermille": 0, "penaltyStepPermille": 7}
