"""Variants retrained on ranked columns by the worker's own `rank` and `train`.

The procedure is that of Dynamic GNN inference as-a-service, section 3.3.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gnnserve_api.spec.model import Model
from gnnserve_api.spec.pruning import Pruning, RankingMethod
from gnnserve_api.variants import columns_of
from gnnserve_worker.generation.ranking import FirstLayerColumns, ranking_of
from gnnserve_worker.generation.train import TrainedNetwork, train_on_rows
from gnnserve_worker.generation.training_set import TrainingSet, keep_columns
from gnnserve_worker.graph.store import Features
from gnnserve_worker.models.registry import first_layer


@dataclass(frozen=True, slots=True)
class Retrained:
    factor: int
    features: Features
    """The kept columns, most important first."""
    trained: TrainedNetwork


def retrain(
    method: RankingMethod,
    master: TrainedNetwork,
    data: TrainingSet,
    features: Features,
    model: Model,
    factors: Sequence[int],
) -> Iterator[Retrained]:
    """One variant per factor, with the master's hyper-parameters and seed; `model.training.seed` is Random's too."""
    reader = FirstLayerColumns(first_layer(master.tensors), features, data)
    ranking = ranking_of(Pruning(method=method), reader, model.training.seed)
    for factor in factors:
        kept = keep_columns(features, ranking.columns[: columns_of(features.shape[1], factor)])
        yield Retrained(factor, kept, train_on_rows(data, kept, model))
