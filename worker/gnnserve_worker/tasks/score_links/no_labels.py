"""No labels: pairs are scored, and nodes have none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gnnserve_worker.asking.question import ErrorCode, RequestError
from gnnserve_worker.tasks.served_labels import NOTHING_HELD_OUT, GivenLabel, HeldOut


@dataclass(frozen=True, slots=True)
class NoLabels:
    wrong_task: Callable[[str], RequestError]
    """`ServedTask.wrong_task`."""
    held_out: HeldOut = NOTHING_HELD_OUT

    def check_taken(self) -> None:
        raise self.wrong_task("labels")

    def example(self) -> str:
        raise self.wrong_task("labels")

    def truths(self, labels: Sequence[GivenLabel]) -> tuple[np.ndarray, np.ndarray]:
        """Labels that were taken for another revision are none here."""
        return np.full(len(labels), -1, np.int64), np.zeros(len(labels), bool)

    def say_unknown(self, label: GivenLabel) -> str:
        return "nodes have no labels here"

    def decide(self, variant: str, scores: np.ndarray) -> np.ndarray:
        found: np.ndarray = scores.argmax(axis=1)
        return found

    def of_node(self, node: int) -> Any:
        return None

    def wearing(self, labels: Sequence[Any]) -> np.ndarray:
        raise RequestError(ErrorCode.INVALID_VALUE, "filter.labels", "nodes have no labels here", "leave it out")
