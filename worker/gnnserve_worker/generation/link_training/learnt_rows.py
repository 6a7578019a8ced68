"""LightGCN, whose rows are embeddings that links are told by: what is served of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.spec.task import ComparedWith
from gnnserve_api.training import TrainingRun
from gnnserve_worker.generation.link_training.light_gcn import learn_embeddings
from gnnserve_worker.generation.link_training.spectrum import filter_embeddings
from gnnserve_worker.generation.resume import Resumption
from gnnserve_worker.generation.steps import embeddings_name
from gnnserve_worker.generation.tensors import Tensors, without_decoder
from gnnserve_worker.models.architecture import key_of
from gnnserve_worker.models.single_product import WEIGHT
from gnnserve_worker.progress import ProgressListener
from gnnserve_worker.tasks.course import EmbeddingCourse

_BIAS = "lin.bias"
_Maker = Callable[[GNNServiceSpec, EmbeddingCourse, str, ProgressListener], tuple[Tensors, Sequence[TrainingRun]]]
_MAKERS: Mapping[ComparedWith, _Maker] = {
    ComparedWith.DRAWN: learn_embeddings,
    ComparedWith.ALL: learn_embeddings,
    ComparedWith.NOTHING: filter_embeddings,
}


@dataclass(frozen=True, slots=True)
class LearntRows:
    """The `families.family.Models` of embeddings that are the features: networks that give them as they are."""

    rows: np.ndarray
    """float32 [nodes, dimensions]."""
    decoder: Tensors
    runs: Sequence[TrainingRun]

    def master(self, name: str) -> Tensors:
        dimensions = self.rows.shape[1]
        return {
            key_of(0, WEIGHT): np.eye(dimensions, dtype=np.float32),
            key_of(0, _BIAS): np.zeros(dimensions, np.float32),
        }

    def pruned(self, columns: np.ndarray, name: str) -> Tensors:
        raise ValueError("embeddings have no columns to go without")

    def narrowed(self, wide: Tensors, columns: np.ndarray | None, factor: int, name: str) -> Tensors:
        raise ValueError("embeddings have no hidden channels")

    def another_master(self, seed: int, name: str) -> Tensors:
        raise ValueError("embeddings are not ranked")


def learn_rows(
    spec: GNNServiceSpec, course: EmbeddingCourse, progress: ProgressListener, resumption: Resumption
) -> LearntRows:
    """Those that an interrupted generation has learnt already where there are any."""
    name = embeddings_name(spec)
    make = _MAKERS[course.compared_with]

    def learn() -> tuple[Tensors, Sequence[TrainingRun]]:
        return make(spec, course, name, progress)

    tensors, runs = resumption.network(name, {"columns": "embeddings"}, learn)
    network, decoder = without_decoder(tensors)
    return LearntRows(network[name], decoder, tuple(runs))
