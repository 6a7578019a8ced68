"""Nodes by themselves, of a service that scores pairs: each is answered by its embedding, which the decoder reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec import UNSET

from gnnserve_worker.asking.question import ErrorCode, RequestError, check_node_count, shown_value
from gnnserve_worker.asking.tensors import ANY_LENGTH, Datatype, TensorKind
from gnnserve_worker.graph.overlay import Overlay
from gnnserve_worker.tasks.embedded import MissingEmbeddings
from gnnserve_worker.tasks.score_links.description import EMBEDDINGS, PAIR_OUTPUTS
from gnnserve_worker.tasks.score_links.ends import PairEnds
from gnnserve_worker.tasks.score_links.form import FORM
from gnnserve_worker.tasks.served import NOTHING_OWN, AskedItems, ScoredNodes


class EndNodes:
    """Nodes that may stand at an end of links (`served.py: TaskItems`)."""

    __slots__ = ("_ends", "_missing", "tensors")
    outputs = (EMBEDDINGS,)
    fields_of_others = frozenset({"pairs"})

    def __init__(self, ends: PairEnds, dimensions: int, missing: MissingEmbeddings | None) -> None:
        """`missing`: why no variant gives embeddings; None: one does."""
        self._ends = ends
        self._missing = missing
        self.tensors = EmbeddingTensors(dimensions)

    def items_for(self, outputs: Sequence[str]) -> EndNodes:
        return self

    def ids_of(self, request: Any, max_nodes: int) -> Sequence[Any]:
        self.check_outputs(request.outputs, [f"return[{place}]" for place in range(len(request.outputs))])
        if request.pairs is not UNSET:
            raise self.wrong_task("pairs")
        if request.nodes is UNSET:
            raise RequestError(ErrorCode.MISSING_FIELD, "nodes", "it is missing", FORM.remedies["nodes"])
        nodes: Sequence[Any] = request.nodes
        check_node_count(len(nodes), max_nodes)
        return nodes

    def check_count(self, ids: int, max_nodes: int) -> None:
        check_node_count(ids, max_nodes)

    def placed(self, error: RequestError) -> RequestError:
        return error

    def joined(self, found: np.ndarray, overlay: Overlay | None) -> tuple[np.ndarray, None]:
        self._ends.check_nodes(found, overlay)
        return found, None

    def wrong_task(self, where: str) -> RequestError:
        return RequestError(
            ErrorCode.WRONG_TASK, where, "embeddings are of nodes, and not of pairs of them",
            f"send {self._ends.example_nodes()}, or ask for {' and '.join(PAIR_OUTPUTS)} of pairs",
        )  # fmt: skip

    def check_outputs(self, outputs: Sequence[str], fields: Sequence[str]) -> None:
        for output, where in zip(outputs, fields, strict=True):
            if output != EMBEDDINGS:
                raise RequestError(
                    ErrorCode.INVALID_VALUE, where,
                    f"{shown_value(output)} is of pairs, and {EMBEDDINGS}, which are asked for too, of nodes",
                    "ask for them in two requests",
                )  # fmt: skip
            if self._missing is not None:
                raise RequestError(
                    ErrorCode.NO_EMBEDDINGS, where, self._missing.problem,
                    f"leave embeddings out; for a service that has some, {self._missing.remedy}",
                )  # fmt: skip

    def first_request(self) -> dict[str, Any]:
        return {"nodes": self._ends.example()}


class EmbeddingTensors:
    """Tensors of the Open Inference Protocol (`served.py: TaskTensors`)."""

    items, item_ids, missing = "nodes", 1, "name the nodes in it whose embeddings are wanted"
    shape, own = (ANY_LENGTH,), NOTHING_OWN
    names = default_outputs = (EMBEDDINGS,)

    def __init__(self, dimensions: int) -> None:
        self._kind = TensorKind(EMBEDDINGS, Datatype.FP32, (ANY_LENGTH, dimensions), is_optional=True)

    def check_count(self, items: int, max_nodes: int) -> None:
        check_node_count(items, max_nodes)

    def outputs(self, version: str | None = None) -> tuple[TensorKind, ...]:
        return (self._kind,)

    def form_of(self, name: str, answer: ScoredNodes, question: AskedItems) -> tuple[Datatype, list[int]]:
        return Datatype.FP32, [*answer.scores.shape]

    def are_texts(self, name: str) -> bool:
        return False

    def numbers_of(self, name: str, answer: ScoredNodes, question: AskedItems) -> np.ndarray:
        return np.ascontiguousarray(answer.scores, "<f4")

    def texts_of(self, name: str, answer: ScoredNodes) -> list[bytes]:
        raise AssertionError(name)

    def json_texts(self, name: str, answer: ScoredNodes) -> bytes:
        raise AssertionError(name)
