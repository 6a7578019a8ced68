"""LightGCN, whose rows are embeddings that links are told by: what is served of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.spec.task import ComparedWith
from gnnserve_worker.generation.learning import Resumption
from gnnserve_worker.generation.lessons import OneNetwork, TensorsAndRuns, embeddings_name
from gnnserve_worker.generation.link_training.light_gcn import learn_embeddings
from gnnserve_worker.generation.link_training.spectrum import filter_embeddings
from gnnserve_worker.generation.tensors import with_decoder, without_decoder
from gnnserve_worker.models.architecture import key_of
from gnnserve_worker.models.single_product import WEIGHT
from gnnserve_worker.progress import ProgressListener
from gnnserve_worker.tasks.generated import EmbeddingCourse

_BIAS = "lin.bias"
_Maker = Callable[[GNNServiceSpec, EmbeddingCourse, str, ProgressListener], TensorsAndRuns]
_MAKERS: Mapping[ComparedWith, _Maker] = {
    ComparedWith.DRAWN: learn_embeddings,
    ComparedWith.ALL: learn_embeddings,
    ComparedWith.NOTHING: filter_embeddings,
}


def learn_rows(
    spec: GNNServiceSpec, course: EmbeddingCourse, progress: ProgressListener, resumption: Resumption
) -> tuple[np.ndarray, OneNetwork]:
    """Embeddings float32 [nodes, dimensions], those that an interrupted generation has learnt already where there are
    any, and the network that gives them as they are."""
    name, make = embeddings_name(spec), _MAKERS[course.compared_with]
    tensors, runs = resumption.network(name, {"columns": "embeddings"}, lambda: make(spec, course, name, progress))
    embeddings, decoder = without_decoder(tensors)
    rows = embeddings[name]
    as_they_are = {
        key_of(0, WEIGHT): np.eye(rows.shape[1], dtype=np.float32),
        key_of(0, _BIAS): np.zeros(rows.shape[1], np.float32),
    }
    return rows, OneNetwork(lambda _: (with_decoder(as_they_are, decoder), tuple(runs)))
