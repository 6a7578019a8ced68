"""Ranking of feature columns by the method that the manifest names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

import numpy as np

from gnnserve_api.spec.pruning import Pruning, RankingMethod
from gnnserve_worker.generation.ranking import greedy, lasso, random
from gnnserve_worker.generation.training_set import TrainingSet
from gnnserve_worker.graph.store import Features
from gnnserve_worker.models.first_layer import FirstLayer


@dataclass(frozen=True, slots=True)
class Ranking:
    columns: np.ndarray
    """int64 permutation of the columns, most important first."""
    settings: dict[str, float]
    """Numbers that the ranking depends on, by name."""


def reads_master(method: RankingMethod) -> bool:
    """Whether columns are ranked by the weights of a network."""
    return method is not RankingMethod.RANDOM


def rank(pruning: Pruning, master: FirstLayer | None, features: Features, data: TrainingSet, seed: int) -> Ranking:
    """Rank the columns. `master` is the first layer of the 1× model; None is enough for Random, which ignores it."""
    match pruning.method:
        case RankingMethod.RANDOM:
            return Ranking(random.rank(features.shape[1], seed), {"seed": seed})
        case RankingMethod.GREEDY:
            return Ranking(greedy.rank(_given(master, pruning)), {})
        case RankingMethod.LASSO:
            columns = lasso.rank(lasso.gram(_given(master, pruning), features, data), pruning.lasso)
            settings = pruning.lasso.model_dump(by_alias=True)
            return Ranking(columns, {key: float(value) for key, value in settings.items()})
        case _:
            assert_never(pruning.method)


def _given(master: FirstLayer | None, pruning: Pruning) -> FirstLayer:
    if master is None:
        raise ValueError(f"{pruning.method} ranks by the master's weights")
    return master
