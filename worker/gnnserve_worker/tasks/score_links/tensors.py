"""Pairs as tensors of the Open Inference Protocol: scores and probabilities of links. In their place a request may name
nodes, where embeddings are wanted (`nodes.py`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from gnnserve_worker.asking.tensors import ANY_LENGTH, Datatype, TensorKind
from gnnserve_worker.tasks.score_links.description import OUTPUTS, PAIR_OUTPUTS
from gnnserve_worker.tasks.score_links.nodes import EndNodes
from gnnserve_worker.tasks.score_links.pairs import check_pair_count
from gnnserve_worker.tasks.served import AskedItems, OwnInputs, ScoredNodes


class PairTensors:
    items, item_ids, missing = "pairs", 2, "name the pairs to score in it"
    shape = (ANY_LENGTH, item_ids)
    names, default_outputs = OUTPUTS, PAIR_OUTPUTS

    def __init__(
        self, outputs: Callable[[ScoredNodes, AskedItems], Mapping[str, np.ndarray]], nodes: EndNodes, ids: Datatype
    ) -> None:
        """`outputs`: arrays of the outputs that are asked for, float32 [pairs]. `ids`: datatype of the graph's."""
        self._outputs = outputs
        self._nodes = nodes.tensors
        self.own = OwnInputs(
            (TensorKind(self._nodes.items, ids, self._nodes.shape, is_optional=True),), frozenset({self._nodes.items})
        )
        self._answer: ScoredNodes | None = None
        """The answer that was encoded last; it belongs to the event loop."""
        self._arrays: Mapping[str, np.ndarray] = {}
        """Its outputs: of several, each is asked for by itself."""

    def check_count(self, items: int, max_nodes: int) -> None:
        check_pair_count(items, max_nodes)

    def outputs(self, version: str | None = None) -> tuple[TensorKind, ...]:
        of_pairs = (TensorKind(name, Datatype.FP32, (ANY_LENGTH,)) for name in PAIR_OUTPUTS)
        return *of_pairs, *self._nodes.outputs(version)

    def form_of(self, name: str, answer: ScoredNodes, question: AskedItems) -> tuple[Datatype, list[int]]:
        return Datatype.FP32, [len(question.form)]

    def are_texts(self, name: str) -> bool:
        return False

    def numbers_of(self, name: str, answer: ScoredNodes, question: AskedItems) -> np.ndarray:
        if answer is not self._answer:
            self._answer, self._arrays = answer, self._outputs(answer, question)
        return self._arrays[name].astype("<f4", copy=False)

    def texts_of(self, name: str, answer: ScoredNodes) -> list[bytes]:
        raise AssertionError(name)

    def json_texts(self, name: str, answer: ScoredNodes) -> bytes:
        raise AssertionError(name)
