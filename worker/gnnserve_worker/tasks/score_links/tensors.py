"""Why pairs have no tensors in the Open Inference Protocol."""

from __future__ import annotations

from typing import NoReturn

import numpy as np

from gnnserve_worker.asking.question import ErrorCode, RequestError
from gnnserve_worker.asking.tensors import Datatype, TensorKind
from gnnserve_worker.tasks.score_links.ends import PairEnds
from gnnserve_worker.tasks.served import ScoredNodes

_NODES = "nodes"


class NoTensors:
    names: tuple[str, ...] = ()

    def __init__(self, ends: PairEnds) -> None:
        self._ends = ends

    def check(self, where: str) -> NoReturn:
        raise RequestError(
            ErrorCode.WRONG_TASK, where, "this service scores pairs of nodes, which have no tensors in this protocol",
            f"POST {self._ends.example_body()} to /v1/predict, or ask a service without task.links",
        )  # fmt: skip

    def check_count(self, nodes: int, max_nodes: int) -> NoReturn:
        self.check(_NODES)

    def outputs(self, version: str | None = None) -> tuple[TensorKind, ...]:
        self.check(_NODES)

    def form_of(self, name: str, answer: ScoredNodes) -> tuple[Datatype, list[int]]:
        self.check(_NODES)

    def are_texts(self, name: str) -> bool:
        self.check(_NODES)

    def numbers_of(self, name: str, answer: ScoredNodes) -> np.ndarray:
        self.check(_NODES)

    def texts_of(self, name: str, answer: ScoredNodes) -> list[bytes]:
        self.check(_NODES)

    def json_texts(self, name: str, answer: ScoredNodes) -> bytes:
        self.check(_NODES)
